//! Whether the memory of the DNS service grows over ten million queries of many kinds.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::load::udp::{FROM, Load};
use crate::names::{Mix, NAMES, Question, name};
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::server::Server;
use crate::{Failure, exchange};

/// Queries in all; a look without patience takes fewer.
const QUERIES: f64 = 10e6;
const QUERIES_QUICK: f64 = 1e6;

/// Looks at the memory, evenly spread.
const LOOKS: u32 = 10;

/// Bytes by which it may grow after the first look: the allocator rounds.
const GROWTH_MAX: f64 = 1024.0;

/// Numbers of record types (RFC 1035 section 3.2.2, RFC 3596, RFC 2782): NS, SOA, PTR, MX, TXT, AAAA, SRV, ANY.
const KINDS: [u8; 8] = [2, 6, 12, 15, 16, 28, 33, 255];

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let Scene { machine, executables, options, .. } = *scene;
    let server = executables.start_with(machine, "dns", &Cluster::of_names(NAMES).document(), &[])?;
    let last = Question::new(&name(NAMES - 1), true);
    exchange::until("the zone", Duration::from_millis(20), || Ok(exchange::answers(server.address, &last)))?;
    let questions = questions();
    let load = Load { questions: &questions, from: &FROM, check: false };
    let wanted = if options.quick { QUERIES_QUICK } else { QUERIES };
    let mut asked = 0.0;
    let mut looks: Vec<(f64, f64)> = Vec::new();
    while asked < wanted {
        let sample = load.saturate(&server, options.run())?;
        asked += sample.rate * options.run().as_secs_f64();
        if asked * f64::from(LOOKS) >= wanted * f64::from(u32::try_from(looks.len())? + 1) {
            looks.push((asked, kibibytes(&server)?));
        }
    }
    let first = looks.first().map(|look| look.1).unwrap_or_default();
    let mut rows: Vec<_> = looks
        .iter()
        .map(|(asked, resident)| Row::figure(format!("berth dns, after {:.1} million", asked / 1e6), *resident))
        .collect();
    let growth = looks.last().map(|look| look.1).unwrap_or_default() - first;
    rows.push(Row::figure("berth dns, growth since the first look", growth).with_goal(Goal::AtMost(GROWTH_MAX)));
    scene.tell("KiB", "memory over queries of many kinds", "", rows);
    Ok(())
}

fn kibibytes(server: &Server) -> Result<f64, Failure> {
    Ok(f64::from(u32::try_from(server.resident()? / 1024)?))
}

/// Hits and misses, with and without EDNS, of many types, in letters of either size.
fn questions() -> Vec<Question> {
    let kinds = KINDS.into_iter().cycle();
    let plain = Mix::Both.questions().into_iter();
    plain
        .zip(Mix::Both.names().zip(kinds))
        .enumerate()
        .map(|(number, (plain, ((name, exists), kind)))| match number % 4 {
            0 => plain,
            1 => plain.with_edns(),
            2 => Question::new(&name.to_uppercase(), exists),
            _ => Question::of_kind(&name, kind, exists).with_edns(),
        })
        .collect()
}
