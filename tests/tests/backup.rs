//! `scheduler backup` and `scheduler restore`: a real etcd that loses everything gets back what nobody would write again.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tests::etcd::{Etcd, base64, text};
use tests::service::Ended;
use tests::shared::Exclusive;
use tests::storm::Engines;
use tests::wait::seconds;
use tests::{Executable, Launch, eventually, http};

/// Longest wait for what takes milliseconds, and for a lease that ended.
const SOON: Duration = Duration::from_secs(30);

fn scheduler(command: &str, file: &Path, etcd: &Etcd, key: &Path, more: &[&str]) -> Ended {
    let launch = Launch::bare(Executable::Scheduler).word(command).word(file);
    let launch = launch.with("--ledger-etcd", etcd.urls()).with("--ledger-key", key);
    more.iter().fold(launch, |launch, word| launch.flag(word)).run()
}

/// All keys that etcd has below the prefix.
fn keys(etcd: &Etcd) -> Vec<String> {
    let range = json!({ "key": base64("/berth/v1/"), "range_end": base64("/berth/v10"), "keys_only": true });
    let answer = etcd.ask("kv/range", &range);
    let pairs = answer["kvs"].as_array().cloned().unwrap_or_default();
    pairs.iter().map(|pair| text(&pair["key"])).collect()
}

fn value_of(etcd: &Etcd, key: &str) -> Option<String> {
    let answer = etcd.ask("kv/range", &json!({ "key": base64(key) }));
    Some(text(&answer["kvs"].as_array()?.first()?["value"]))
}

#[test]
fn an_etcd_that_lost_everything_gets_it_back_and_nothing_is_started_twice() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(1, 10) else { return };
    engines.mend();
    let state = engines.files.path("own");
    let (key, file) = (state.join("ledger.key"), engines.files.path("cluster.backup"));
    let launch = engines.scheduler().with("--ledger-etcd", etcd.urls()).with("--state-dir", &state);
    let mut running = launch.start();
    running.ready();
    let web = json!({ "id": "web", "image": "any", "start": true, "ports": ["8080:80"] }).to_string();
    let placed = http::post("/v1/placements", web).within(seconds(60)).ask(running.address());
    assert_eq!((placed.status, engines.count("start")), (201, 1), "{}", placed.text());
    let kept = [
        ("/berth/v1/documents/outside", r#"{"services": [{"name": "db", "stack": "shop"}]}"#),
        ("/berth/v1/intents/h0", r#"{"state": "cordoned", "by": "anna"}"#),
        ("/berth/v1/claims/subnet/10.42.1.0-24", r#"{"host": "h0"}"#),
    ];
    for (name, value) in kept {
        etcd.put(name, value);
    }
    // What hosts say of themselves, and what is no placement of a scheduler.
    etcd.put("/berth/v1/hosts/h0/host", r#"{"name": "h0"}"#);
    etcd.put("/berth/v1/ledger/placements/forged", r#"{"berth": 1, "id": "forged"}"#);

    let done = scheduler("backup", &file, &etcd, &key, &[]);
    assert_eq!(done.code, Some(1), "something is left out: {}", done.errors);
    assert!(done.errors.contains("ledger/placements/forged is not in the backup: it has no seal"), "{}", done.errors);
    assert!(done.output.contains("1 ledger/placements") && done.output.contains("1 documents"), "{}", done.output);
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(!written.contains(std::fs::read_to_string(&key).unwrap().trim()), "the ledger's key is not in it");
    assert!(!written.contains("hosts/h0/host"), "hosts write this again");

    // Not while a scheduler would overrule it, and not over what is there.
    let refused = scheduler("restore", &file, &etcd, &key, &["--missing"]);
    assert!(refused.code == Some(2) && refused.errors.contains("stop them"), "{}", refused.errors);
    running.stop();
    let refused = eventually("it is gone", SOON, || {
        let refused = scheduler("restore", &file, &etcd, &key, &[]);
        (!refused.errors.contains("are running")).then_some(refused)
    });
    assert!(refused.code == Some(2) && refused.errors.contains("etcd is not empty"), "{}", refused.errors);

    etcd.wipe();
    assert_eq!(keys(&etcd), Vec::<String>::new());
    // What was changed, and what another key has sealed.
    let changed = engines.files.path("changed.backup");
    std::fs::write(&changed, written.replace("10.42.1.0-24", "10.42.2.0-24")).unwrap();
    let refused = scheduler("restore", &changed, &etcd, &key, &[]);
    assert!(refused.code == Some(2) && refused.errors.contains("damaged"), "{}", refused.errors);
    let other = engines.files.path("other.key");
    // As secret as the other one.
    std::fs::copy(&key, &other).unwrap();
    std::fs::write(&other, "1".repeat(64)).unwrap();
    let refused = scheduler("restore", &file, &etcd, &other, &[]);
    assert!(refused.code == Some(1) && refused.errors.contains("has the key"), "{}", refused.errors);
    let tried = scheduler("restore", &file, &etcd, &key, &["--dry-run"]);
    assert!(tried.code == Some(0) && tried.output.contains("would be put"), "{}{}", tried.output, tried.errors);
    assert_eq!(keys(&etcd), Vec::<String>::new(), "nothing was done so far");

    let restored = scheduler("restore", &file, &etcd, &key, &["--json"]);
    assert_eq!(restored.code, Some(0), "{}", restored.errors);
    let told: Value = serde_json::from_str(&restored.output).unwrap();
    assert_eq!(told["keys"]["ledger/placements"], 1, "{told}");
    for (name, value) in kept {
        assert_eq!(value_of(&etcd, name).as_deref(), Some(value), "{name}");
    }
    let again = scheduler("restore", &file, &etcd, &key, &["--missing"]);
    assert!(again.code == Some(0) && again.output.starts_with("0 keys were put"), "{}{}", again.output, again.errors);

    // The placement is what it was, and its container is the one that runs.
    let mut running = launch.start();
    running.ready();
    let address = running.address();
    eventually("the placement is there", SOON, || {
        let told = http::get("/v1/placements/web?refresh=true").ask(address).value();
        let container = &told["placements"][0]["containers"][0];
        (told["state"] == "placed" && container["state"] == "started" || container["state"] == "settled").then_some(())
    });
    assert_eq!(engines.count("start"), 1, "nothing was started again");
    let twin = json!({ "id": "twin", "image": "any", "ports": ["8080:80"] }).to_string();
    let twin = http::post("/v1/placements", twin).ask(address);
    assert_eq!(twin.status, 409, "its port is still taken: {}", twin.text());
}
