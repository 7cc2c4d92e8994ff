//! The last good snapshot on disk: a start without the source serves it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::cluster::{ClusterFolder, revisions, shop_text, stamped};
use tests::{Launch, Question, Service, eventually, http};

const LIMIT: Duration = Duration::from_secs(5);

/// What all three services answer at the moment, in one text.
fn answers(agent: &mut Service) -> String {
    let metadata = http::get("/latest").json().ask(agent.address_of("metadata")).text();
    let dns = Question::a("web.all.rancher.internal").ask(agent.address_of("dns")).line();
    let body = r#"{"image": "web", "dry_run": true}"#;
    let scheduler = http::post("/v1/placements", body).ask(agent.address_of("scheduler")).text();
    format!("{metadata}\n{dns}\n{scheduler}")
}

fn shows(agent: &mut Service, revision: u16) -> bool {
    answers(agent).lines().all(|answer| revisions(answer).into_iter().eq([revision]))
}

fn kept(folder: &ClusterFolder) -> std::path::PathBuf {
    folder.path("state").join("snapshot.ndjson")
}

#[test]
fn after_kill_9_and_without_the_source_the_last_good_snapshot_is_served() {
    let folder = ClusterFolder::new(stamped(1));
    let launch = Launch::agent(&folder.file()).with("--state-dir", folder.path("state"));
    let mut agent = launch.start();
    agent.ready();
    folder.replace(stamped(2));
    eventually("the second revision is kept", LIMIT, || {
        std::fs::read_to_string(kept(&folder)).is_ok_and(|text| text.contains("rev00002")).then_some(())
    });
    agent.kill();
    folder.remove();
    let mut agent = launch.start();
    eventually("the kept revision is served", LIMIT, || shows(&mut agent, 2).then_some(()));
    eventually("the reason", LIMIT, || agent.reasons().contains("does not exist").then_some(()));
    // What comes later wins over what was kept.
    folder.replace(stamped(3));
    eventually("the third revision is served", LIMIT, || shows(&mut agent, 3).then_some(()));
    agent.ready();
    assert_eq!(agent.reasons(), "");
}

#[test]
fn nobody_else_may_read_what_is_kept() {
    let folder = ClusterFolder::new(stamped(1));
    let state = folder.path("state");
    let mode = |path: &Path| {
        let stat = Command::new("stat").args(["-c", "%a"]).arg(path).output().unwrap();
        String::from_utf8_lossy(&stat.stdout).trim().to_owned()
    };
    let launch = Launch::agent(&folder.file()).with("--state-dir", &state);
    let mut agent = launch.start();
    agent.ready();
    eventually("it is kept", LIMIT, || kept(&folder).exists().then_some(()));
    let [ledger, lock] = ["ledger.ndjson", "ledger.lock"].map(|name| state.join(name));
    assert_eq!([&state, &kept(&folder), &ledger, &lock].map(|path| mode(path)), ["700", "600", "600", "600"]);
    agent.stop();
    let all: Vec<_> = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(all.iter().all(|path| mode(path) == "600"), "{all:?}");
    // What an older version left for everybody is closed.
    for path in &all {
        Command::new("chmod").arg("644").arg(path).status().unwrap();
    }
    let mut agent = launch.start();
    agent.ready();
    for path in [&kept(&folder), &ledger, &lock] {
        eventually("it is closed", LIMIT, || (mode(path) == "600").then_some(()));
    }
}

#[test]
fn what_the_source_says_wins_over_what_was_kept() {
    let folder = ClusterFolder::new(stamped(1));
    let launch = Launch::agent(&folder.file()).with("--state-dir", folder.path("state"));
    let mut agent = launch.start();
    agent.ready();
    eventually("it is kept", LIMIT, || kept(&folder).exists().then_some(()));
    agent.kill();
    folder.replace(stamped(2));
    let mut agent = launch.start();
    agent.ready();
    eventually("the file's revision is served", LIMIT, || shows(&mut agent, 2).then_some(()));
}

#[test]
fn damaged_state_is_set_aside_and_ends_nothing() {
    let folder = ClusterFolder::new(stamped(1));
    let launch = Launch::agent(&folder.file()).with("--state-dir", folder.path("state"));
    let mut agent = launch.start();
    agent.ready();
    eventually("it is kept", LIMIT, || kept(&folder).exists().then_some(()));
    agent.stop();
    let good = std::fs::read(kept(&folder)).unwrap();
    folder.remove();
    for (name, damaged) in [
        ("cut", good[..good.len() / 2].to_vec()),
        ("empty", Vec::new()),
        ("flipped", good.iter().enumerate().map(|(at, octet)| if at == 200 { octet ^ 1 } else { *octet }).collect()),
        ("binary", (0..=255).cycle().take(good.len()).collect()),
    ] {
        std::fs::write(kept(&folder), &damaged).unwrap();
        let mut agent = launch.start();
        agent.line("what became of it", |line| line["message"].as_str().unwrap_or_default().contains("damaged"));
        assert_eq!(std::fs::read(kept(&folder).with_extension("damaged")).unwrap(), damaged, "{name}");
        let metadata = agent.address_of("metadata");
        assert_eq!(http::get("/latest").ask(metadata).status, 404, "{name}: nothing is there to serve");
        folder.replace(stamped(9));
        eventually("healed", LIMIT, || shows(&mut agent, 9).then_some(()));
        agent.stop();
        folder.remove();
    }
}

#[test]
fn a_state_directory_that_cannot_be_used_is_told_at_once() {
    let folder = ClusterFolder::new(shop_text());
    let ended = Launch::agent(&folder.file()).with("--state-dir", folder.file()).run();
    assert_eq!(ended.code, Some(1));
    assert!(ended.errors.contains("cannot store state in"), "{}", ended.errors);
}

#[test]
fn a_start_without_anything_says_so_and_heals() {
    let folder = ClusterFolder::empty();
    let mut agent = Launch::agent(&folder.file()).start();
    let (metadata, dns) = (agent.address_of("metadata"), agent.address_of("dns"));
    let scheduler = agent.address_of("scheduler");
    for (path, expected) in [
        ("/", "200 latest"),
        ("/latest", "404 Not found"),
        ("/latest/self/container/name", "404 Not found"),
        ("/2016-07-29", "404 Invalid version"),
    ] {
        let response = http::get(path).ask(metadata);
        assert_eq!(format!("{} {}", response.status, response.text().trim_end()), expected, "{path}");
    }
    assert_eq!(Question::a("web.all.rancher.internal").ask(dns).rcode(), "SERVFAIL");
    let response = http::post("/v1/placements", r#"{"image": "web", "dry_run": true}"#).ask(scheduler);
    assert_eq!(response.status, 503, "{}", response.text());
    eventually("the reason", LIMIT, || agent.reasons().contains("does not exist").then_some(()));
    let admin = agent.admin();
    assert_eq!(http::get("/readyz").ask(admin).status, 503);
    assert_eq!(http::get("/healthz").ask(admin).status, 200);
    folder.replace(stamped(4));
    eventually("healed", LIMIT, || shows(&mut agent, 4).then_some(()));
    agent.ready();
}

#[test]
fn metadata_can_be_told_to_say_503_before_it_has_data() {
    let folder = ClusterFolder::empty();
    let mut metadata = Launch::metadata(&folder.file()).with("--when-empty", "unavailable").start();
    let address = metadata.address();
    assert_eq!(http::get("/latest").ask(address).status, 503);
    assert!(http::get("/latest").ask(address).header("retry-after").is_some());
    folder.replace(stamped(4));
    eventually("healed", LIMIT, || (http::get("/latest").ask(address).status == 200).then_some(()));
}
