//! What it costs until a file of many containers is visible.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::machine::Machine;
use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::server::{Executables, Server};
use crate::{Failure, exchange};

/// Between two looks whether the file is visible. Each costs the server some tens of µs.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let Scene { machine, executables, options, .. } = *scene;
    let sizes: &[(usize, f64)] = if options.quick { &[(10_000, 100.0)] } else { &[(10_000, 100.0), (100_000, 1000.0)] };
    for (containers, limit) in sizes {
        let title = format!("a file of {containers} containers becomes visible");
        if !options.wants(&title) {
            continue;
        }
        let cluster = Cluster::of_services(*containers);
        // Nobody writes such a document by hand: what programs write is what counts.
        let forms = [
            ("answers (to v0.7)", cluster.answers()),
            ("saved answers (from v0.8)", cluster.envelope()?),
            ("document", cluster.document()),
        ];
        let mut rows = Vec::new();
        for (form, text) in forms {
            let (cost, seen) = match visible(machine, executables, &cluster, &text, options.rounds()) {
                Ok(measured) => measured,
                Err(failure) => {
                    let row = Row::missing(format!("berth {form}"), failure.to_string());
                    rows.push(row.with_goal(Goal::AtMost(*limit)));
                    continue;
                }
            };
            let note = format!("{:.1} MB; {:.0} ms until it was seen", megabytes(text.len()), seen.median);
            rows.push(Row {
                ratio: None,
                ..Row::figure(format!("berth {form}"), cost.median)
                    .with_goal(Goal::AtMost(*limit))
                    .with_note(format!("{note}; {:.0}-{:.0} ms", cost.min, cost.max))
            });
        }
        scene.tell("CPU ms", &title, "", rows);
    }
    Ok(())
}

fn megabytes(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes / 1000).unwrap_or(u32::MAX)) / 1000.0
}

/// Processor time in ms from before the file is put there until it is visible, and the time until then.
fn visible(
    machine: &Machine,
    executables: &Executables,
    cluster: &Cluster,
    text: &str,
    rounds: usize,
) -> Result<(Spread, Spread), Failure> {
    let folder = TempDir::new()?;
    let (file, next) = (folder.path().join("answers.json"), folder.path().join("next"));
    let small = Cluster::of_services(1).document();
    fs::write(&file, &small)?;
    let server = executables.start(machine, "metadata", &["--answers", &file.display().to_string()])?;
    let last = format!("/latest/containers/{}/name", cluster.container(cluster.containers - 1));
    let seen = |server: &Server| Ok(exchange::text(server.address, &last)?.is_some());
    let (mut costs, mut times) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        exchange::until("the small file", LOOK, || Ok(!seen(&server)?))?;
        quiet(&server)?;
        fs::write(&next, text)?;
        let before = server.cpu()?;
        fs::rename(&next, &file)?;
        let took = exchange::until("the large file", LOOK, || seen(&server))?;
        costs.push((server.cpu()?.saturating_sub(before)).as_secs_f64() * 1e3);
        times.push(took.as_secs_f64() * 1e3);
        fs::write(&next, &small)?;
        fs::rename(&next, &file)?;
    }
    Ok((Spread::of(costs), Spread::of(times)))
}

/// Waits until the server has nothing to do any more: freeing the former state, for one, goes on for a while.
pub(crate) fn quiet(server: &Server) -> Result<(), Failure> {
    const PAUSE: Duration = Duration::from_millis(100);
    exchange::until("quiet", Duration::ZERO, || {
        let before = server.cpu()?;
        std::thread::sleep(PAUSE);
        Ok(server.cpu()?.saturating_sub(before) < PAUSE / 50)
    })?;
    Ok(())
}
