//! Requests to the metadata service, beside nginx which answers with a constant.

use std::time::Duration;

use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::load::{self, wrk};
use crate::machine::Machine;
use crate::paired::{Measured, Subject, measure};
use crate::peer::{INSTALL, Nginx};
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::server::{Server, free_address};
use crate::{Failure, Options, exchange};

/// Containers of the cluster.
const CONTAINERS: usize = 1000;

/// What a container asks for first of all. The client is 127.0.0.1, the first container of the cluster.
const PATH: &str = "/latest/self/container/name";

/// Connections of wrk; for whole trees fewer, which are 2 MB each.
const CONNECTIONS: usize = 64;
const TREE_CONNECTIONS: usize = 8;

/// What is counted.
const UNIT: &str = "CPU µs/request";

/// A subject: name, server, port, path.
type Asked<'a> = (&'a str, &'a Server, u16, &'a str);

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let Scene { machine, executables, options, .. } = *scene;
    if !load::has("wrk") {
        return Err(format!("no wrk; {INSTALL}").into());
    }
    let cluster = Cluster::of_services(CONTAINERS);
    let berth = executables.start_with(machine, "metadata", &cluster.document(), &[])?;
    exchange::until("the own section", Duration::from_millis(20), || {
        Ok(exchange::text(berth.address, PATH)?.as_deref() == Some(&*cluster.container(0)))
    })?;
    let (_, tree) = exchange::get(berth.address, "/latest", "application/json")?;
    let nginx = Nginx::start(machine, &cluster.container(0), &tree);
    let original = original(machine, options, &cluster)?;
    for (title, headers, goals) in [
        ("kept connections, a small value", &[][..], [Some(Goal::AtMost(1.0)), None, Some(Goal::AtMost(0.40))]),
        (
            "one request per connection",
            &["Connection: close"],
            [None, Some(Goal::AtMost(0.95)), Some(Goal::AtMost(1.0 / 2.3))],
        ),
    ] {
        if !options.wants(title) {
            continue;
        }
        let mut peers: Vec<(Asked<'_>, Option<Goal>)> = Vec::new();
        let mut missing = Vec::new();
        match &nginx {
            Ok(nginx) => {
                peers.push((("nginx return 200", &nginx.server, nginx.plain, "/"), goals[0]));
                if !headers.is_empty() {
                    peers.push((("nginx deferred", &nginx.server, nginx.deferred, "/"), goals[1]));
                }
            }
            Err(failure) => missing.push(Row::missing("nginx", failure.to_string())),
        }
        match &original {
            Some(original) => peers.push((("original metadata", original, original.address.port(), PATH), goals[2])),
            None => missing.push(Row::missing("original metadata", "give --original-metadata")),
        }
        let duration = options.run();
        let subject = |asked| subject(asked, headers, duration);
        let ours = subject(("berth metadata", &berth, berth.address.port(), PATH));
        let others = peers.iter().map(|(peer, _)| subject(*peer)).collect();
        let mut rows = rows(&measure(ours, others, options.rounds())?);
        for (row, (_, goal)) in rows.iter_mut().skip(1).zip(&peers) {
            row.goal = *goal;
        }
        rows.extend(missing);
        scene.tell(UNIT, title, "berth / peer", rows);
    }
    let title = format!("GET /latest as JSON, {CONTAINERS} containers, {} bytes", tree.len());
    if options.wants(&title) {
        let headers = &["Accept: application/json"][..];
        let requests = |path| wrk::Requests { path, connections: TREE_CONNECTIONS, headers };
        let duration = options.run();
        let ours =
            Subject::new("berth metadata", || wrk::run(&berth, berth.address.port(), requests("/latest"), duration));
        let mut others = Vec::new();
        let mut missing = Vec::new();
        match &nginx {
            Ok(nginx) => others.push(Subject::new("nginx file", || {
                wrk::run(&nginx.server, nginx.plain, requests("/tree.json"), duration)
            })),
            Err(failure) => missing.push(Row::missing("nginx", failure.to_string())),
        }
        match &original {
            Some(original) => others.push(Subject::new("original metadata", || {
                wrk::run(original, original.address.port(), requests("/latest"), duration)
            })),
            None => missing.push(
                Row::missing("original metadata", "give --original-metadata").with_goal(Goal::AtMost(1.0 / 15.0)),
            ),
        }
        let mut rows = rows(&measure(ours, others, options.rounds())?);
        for row in &mut rows {
            if row.subject.starts_with("original") {
                row.goal = Some(Goal::AtMost(1.0 / 15.0));
            }
        }
        rows.extend(missing);
        scene.tell(UNIT, &title, "berth / peer", rows);
    }
    Ok(())
}

/// Small values, again and again.
fn subject<'a>((name, server, port, path): Asked<'a>, headers: &'a [&'a str], duration: Duration) -> Subject<'a> {
    let requests = wrk::Requests { path, connections: CONNECTIONS, headers };
    Subject::new(name, move || wrk::run(server, port, requests, duration))
}

/// The original service with the same cluster, in the form that it reads.
fn original(machine: &Machine, options: &Options, cluster: &Cluster) -> Result<Option<Server>, Failure> {
    let Some(program) = &options.original_metadata else { return Ok(None) };
    let folder = TempDir::new()?;
    let answers = folder.path().join("answers.json");
    std::fs::write(&answers, cluster.answers())?;
    let (listen, reload) = (free_address()?, free_address()?);
    let mut command = std::process::Command::new(std::path::absolute(program)?);
    command.arg("--listen").arg(listen.to_string()).arg("--listenReload").arg(reload.to_string());
    command.arg("--answers").arg(&answers);
    let mut server = Server::start(machine, "original metadata", &command, folder)?;
    server.wait(listen, |address| exchange::text(address, PATH).is_ok_and(|name| name.is_some()))?;
    Ok(Some(server))
}

/// Ours first; ratios are our cost divided by theirs.
fn rows(measured: &[Measured]) -> Vec<Row> {
    let ratio =
        |(index, measured): (usize, &Measured)| Row::measured(measured, (index > 0).then(|| measured.ratio.inverse()));
    measured.iter().enumerate().map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paired::Sample;

    #[test]
    fn ratio_is_ours_by_theirs() {
        let costing = |name: &str, cost| Subject::new(name, move || Ok(Sample { cost, ..Sample::default() }));
        let rows = rows(&measure(costing("berth", 3.0), vec![costing("nginx", 4.0)], 1).unwrap());
        assert_eq!(rows[0].ratio, None);
        assert!((rows[1].ratio.unwrap().median - 0.75).abs() < 1e-9);
    }
}
