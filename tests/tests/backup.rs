//! `scheduler backup` and `restore` beside a real etcd that is emptied, and a ledger on disk.

#[cfg(unix)]
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use tests::etcd::{Etcd, base64, text};
use tests::schedulers::TAKEOVER;
use tests::service::Ended;
use tests::shared::Exclusive;
use tests::storm::Engines;
use tests::wait::seconds;
use tests::{Executable, Launch, eventually, http};

fn command(words: &[&str], file: &Path) -> Launch {
    words.iter().fold(Launch::bare(Executable::Scheduler), Launch::word).word(file)
}

/// All keys of operators and schedulers and, of those that are not placements, their values.
fn keys(etcd: &Etcd) -> Vec<(String, String)> {
    let all = etcd.ask("kv/range", &json!({ "key": base64("/berth/v1/"), "range_end": base64("/berth/v10") }));
    let pairs = all["kvs"].as_array().cloned().unwrap_or_default();
    let pairs = pairs.iter().map(|pair| (text(&pair["key"]), text(&pair["value"])));
    let lasting = pairs.filter(|(key, _)| !["schedulers/", "ledger/hosts/", "freed"].iter().any(|of| key.contains(of)));
    lasting.map(|(key, value)| if key.contains("placements") { (key, String::new()) } else { (key, value) }).collect()
}

fn placed(address: std::net::SocketAddr, id: &str) -> Value {
    let answer = http::get(format!("/v1/placements/{id}")).within(seconds(10)).ask(address);
    if answer.status == 200 { answer.value() } else { Value::Null }
}

fn stack(address: std::net::SocketAddr) -> Value {
    http::get("/v1/stacks/shop").within(seconds(10)).ask(address).value()
}

fn start(address: std::net::SocketAddr, id: &str) -> String {
    let request = json!({ "id": id, "image": "any", "start": true }).to_string();
    let answer = http::post("/v1/placements", request).within(seconds(60)).ask(address);
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.value()["placements"][0]["containers"][0]["container"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn an_emptied_etcd_gets_back_what_was_in_it_and_nothing_is_started_twice() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(2, 10) else { return };
    engines.mend();
    let (state, file) = (engines.files.path("state"), engines.files.path("backup"));
    let launch = || engines.scheduler().with("--ledger-etcd", etcd.urls()).with("--state-dir", &state);
    let mut scheduler = launch().start();
    scheduler.ready();
    let address = scheduler.address();
    let container = start(address, "web");
    let shop = json!({ "services": [{ "service": "web", "image": "any", "count": 1 }] }).to_string();
    let wanted = http::Request::new("PUT", "/v1/stacks/shop").content(shop).within(seconds(60)).ask(address);
    assert_eq!(wanted.status, 200, "{}", wanted.text());
    eventually("its unit is started", TAKEOVER, || {
        (engines.count("start") == 2 && stack(address)["services"][0]["units"][0]["state"] != "starting").then_some(())
    });
    let unit = stack(address)["services"][0]["units"][0]["id"].clone();
    for (key, value) in [("documents/shop", r#"{"berth":1}"#), ("intents/h9", r#"{"state":"draining"}"#)] {
        etcd.put(&format!("/berth/v1/{key}"), value);
    }
    // What a host publishes is not for a backup.
    etcd.put("/berth/v1/hosts/h0/host", "{}");
    let ran = |words: &[&str]| -> Ended {
        command(words, &file).with("--ledger-etcd", etcd.urls()).with("--state-dir", &state).run()
    };
    let made = ran(&["backup"]);
    assert!(made.code == Some(0) && made.output.contains("keys of etcd"), "{} {}", made.output, made.errors);
    #[cfg(unix)]
    assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    let used = ran(&["restore", "--overwrite"]);
    assert!(used.code == Some(1) && used.errors.contains("stop them first"), "{}", used.errors);
    scheduler.stop();
    eventually("it has no presence", TAKEOVER, || {
        let range = json!({ "key": base64("/berth/v1/ledger/schedulers/"), "range_end": base64("/berth/v1/ledger/schedulers0") });
        etcd.ask("kv/range", &range)["kvs"].is_null().then_some(())
    });
    etcd.delete("/berth/v1/hosts/h0/host");
    let before = keys(&etcd);
    let full = ran(&["restore"]);
    assert!(full.code == Some(1) && full.errors.contains("not empty"), "{}", full.errors);

    etcd.wipe();
    let launch = || engines.scheduler().with("--ledger-etcd", etcd.urls()).with("--state-dir", &state);
    let ran = |words: &[&str], state: &Path| -> Ended {
        command(words, &file).with("--ledger-etcd", etcd.urls()).with("--state-dir", state).run()
    };
    assert!(keys(&etcd).is_empty());
    let other = ran(&["restore"], &engines.files.path("other"));
    assert!(other.code == Some(2) && other.errors.contains("another key"), "{}", other.errors);
    let dry = ran(&["restore", "--dry-run", "--json"], &state);
    let dry: Value = serde_json::from_str(&dry.output).unwrap_or_default();
    assert_eq!((&dry["dry_run"], &dry["keys"]), (&json!(true), &json!(before.len())), "{dry}");
    assert!(keys(&etcd).is_empty());
    let whole = std::fs::read(&file).expect("it is there");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("the folder is ours");
    let cut = ran(&["restore"], &state);
    assert!(cut.code == Some(2) && cut.errors.contains("damaged"), "{}", cut.errors);
    std::fs::write(&file, whole).expect("the folder is ours");
    let restored = ran(&["restore"], &state);
    assert_eq!(restored.code, Some(0), "{} {}", restored.output, restored.errors);
    assert_eq!(keys(&etcd), before);

    let mut scheduler = launch().start();
    scheduler.ready();
    let address = scheduler.address();
    let same = || placed(address, "web")["placements"][0]["containers"][0]["container"] == json!(container);
    eventually("the placement is there again", TAKEOVER, || same().then_some(()));
    let shop = stack(address);
    assert_eq!((&shop["revision"], &shop["services"][0]["units"][0]["id"]), (&json!(1), &unit), "{shop:#}");
    start(address, "next");
    assert_eq!((engines.count("create"), engines.count("start")), (3, 3), "something was started again");
    let removed = http::Request::new("DELETE", "/v1/placements/web").within(seconds(60)).ask(address);
    assert_eq!(removed.status, 200, "{}", removed.text());
}

#[test]
fn a_ledger_on_disk_is_backed_up_while_its_scheduler_runs_and_restored_when_it_does_not() {
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(1, 10) else { return };
    engines.mend();
    let (state, file) = (engines.files.path("state"), engines.files.path("backup"));
    let mut scheduler = engines.scheduler().with("--state-dir", &state).start();
    scheduler.ready();
    let container = start(scheduler.address(), "web");
    let ran = |words: &[&str]| command(words, &file).with("--state-dir", &state).run();
    let made = ran(&["backup"]);
    assert_eq!(made.code, Some(0), "{}", made.errors);
    let used = ran(&["restore", "--overwrite"]);
    assert!(used.code == Some(1) && used.errors.contains("ledger"), "{}", used.errors);
    scheduler.stop();
    let full = ran(&["restore"]);
    assert!(full.code == Some(1) && full.errors.contains("--overwrite"), "{}", full.errors);
    std::fs::remove_file(state.join("ledger.ndjson")).expect("it is there");
    let restored = ran(&["restore"]);
    assert_eq!(restored.code, Some(0), "{}", restored.errors);
    let mut scheduler = engines.scheduler().with("--state-dir", &state).start();
    scheduler.ready();
    let address = scheduler.address();
    assert_eq!(placed(address, "web")["placements"][0]["containers"][0]["container"], json!(container));
    assert_eq!(engines.count("start"), 1);
}
