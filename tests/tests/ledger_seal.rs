//! The seal of the ledger in a real etcd: what others write there starts nothing, and is reported.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use tests::cluster::ClusterFolder;
use tests::etcd::{Etcd, base64, text};
use tests::schedulers::{SOON, TAKEOVER};
use tests::service::Ended;
use tests::shared::Exclusive;
use tests::storm::Engines;
use tests::wait::seconds;
use tests::{Executable, Launch, eventually, http};

const PLACEMENTS: &str = "/berth/v1/ledger/placements/";
const SCHEDULERS: &str = "/berth/v1/ledger/schedulers/";

/// A record by which a scheduler that is dead has begun to start a container with the host's disk.
fn forged(id: &str, stage: &str) -> Value {
    json!({ "berth": 1, "owner": "s-dead", "id": id, "made": 1, "unplaced": 0,
        "asked": { "image": "alpine", "start": true, "volumes": ["/:/h"], "environment": ["PASSWORD=hunter2"],
            "command": ["chroot", "/h", "sh", "-c", "id>/owned"] },
        "units": [{ "host": "uuid-0", "host_name": "h0", "stage": stage, "containers": [{ "name": id }] }] })
}

/// What a scheduler says of a placement: its state and, when it cannot be read, why.
fn told(scheduler: SocketAddr, id: &str) -> (u16, String, String) {
    let answer = http::get(format!("/v1/placements/{id}")).within(seconds(10)).ask(scheduler);
    let value = if answer.status == 200 { answer.value() } else { Value::Null };
    let word = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    (answer.status, word("state"), word("error"))
}

/// The value of a key, as of a revision or (0) now, with the pair's numbers.
fn pair(etcd: &Etcd, key: &str, revision: i64) -> Option<(String, i64)> {
    let answer = etcd.ask("kv/range", &json!({ "key": base64(key), "revision": revision.to_string() }));
    let pair = answer["kvs"].as_array()?.first()?.clone();
    Some((text(&pair["value"]), pair["create_revision"].as_str()?.parse().ok()?))
}

fn launch(engines: &Engines, etcd: &Etcd, state: &Path) -> Launch {
    engines.scheduler().with("--ledger-etcd", etcd.urls()).with("--state-dir", state)
}

#[test]
fn who_writes_the_ledger_in_etcd_without_its_key_has_nothing_started() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(1, 10) else { return };
    engines.mend();
    let (own, other) = (engines.files.path("own"), engines.files.path("other"));
    let mut scheduler = launch(&engines, &etcd, &own).start();
    scheduler.ready();
    let address = scheduler.address();
    let key = std::fs::read_to_string(own.join("ledger.key")).expect("the first scheduler makes the key");
    assert!(!format!("{:?}", pair(&etcd, "/berth/v1/ledger/key", 0)).contains(key.trim()), "the key is in etcd");

    let unreadable = |address: SocketAddr, id: &str| {
        let why = eventually("it is listed", SOON, || Some(told(address, id)).filter(|told| told.1 == "unreadable")).2;
        assert!(why.contains("seal"), "{id}: {why}");
    };
    // The finding: a few words in etcd, and the host's disk is in a container.
    etcd.put(&format!("{PLACEMENTS}x"), &forged("x", "begun").to_string());
    unreadable(address, "x");
    eventually("it is logged", SOON, || (scheduler.lines_with("it has no seal").len() == 1).then_some(()));

    // A container that was really asked for, and is removed again.
    let web = json!({ "id": "web", "image": "any", "start": true }).to_string();
    let placed = http::post("/v1/placements", web).within(seconds(60)).ask(address);
    assert_eq!((placed.status, engines.count("start")), (201, 1), "{}", placed.text());
    let web = format!("{PLACEMENTS}web");
    let (last, created) = pair(&etcd, &web, 0).expect("it is in etcd");
    let (first, _) = pair(&etcd, &web, created).expect("etcd has not forgotten it");
    assert!(first.contains(r#""stage":"begun""#) && last.contains(r#""stage":"started""#), "{first} {last}");
    let changed = first.replace("\"any\"", "\"bad\"");
    let removed = http::Request::new("DELETE", "/v1/placements/web").within(seconds(60)).ask(address);
    assert_eq!(removed.status, 200, "{}", removed.text());

    // Its old values say nothing, at its key or at another one.
    etcd.put(&web, &last);
    unreadable(address, "web");
    etcd.put(&format!("{PLACEMENTS}web-2"), &first);
    unreadable(address, "web-2");
    etcd.delete(&web);
    etcd.put(&web, &changed);
    unreadable(address, "web");
    // The very first one fits again once its key is deleted: its scheduler ends it,
    etcd.delete(&web);
    etcd.put(&web, &first);
    eventually("it is deleted", SOON, || pair(&etcd, &web, 0).is_none().then_some(()));
    // and so does another one after that one has died.
    scheduler.kill();
    etcd.put(&web, &first);
    // As when its lease has run out.
    etcd.ask(
        "kv/deleterange",
        &json!({ "key": base64(SCHEDULERS), "range_end": base64("/berth/v1/ledger/schedulers0") }),
    );
    let key_of_secrets = |digits: &str| {
        let path = engines.files.path(&format!("secrets.{}", &digits[..2]));
        std::fs::write(&path, digits).expect("the folder is ours");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("the file is ours");
        path
    };
    let (of_secrets, others) = (key_of_secrets(&"5a".repeat(32)), key_of_secrets(&"5b".repeat(32)));
    let mut second = launch(&engines, &etcd, &own).with("--secrets-key", &of_secrets).start();
    second.ready();
    eventually("it is deleted", TAKEOVER, || pair(&etcd, &web, 0).is_none().then_some(()));
    unreadable(second.address(), "x");

    // A scheduler without the key has no part in it, until it is copied there.
    let mut stranger = launch(&engines, &etcd, &other).with("--secrets-key", others).start();
    let address = stranger.address();
    eventually("it has no key", SOON, || stranger.reasons().contains("sealed with the key").then_some(()));
    assert!(stranger.reasons().contains("ledger.key: copy the file"), "{}", stranger.reasons());
    std::fs::write(other.join("ledger.key"), "0".repeat(64)).expect("the folder is there");
    eventually("it has another key", SOON, || stranger.reasons().contains("has the key").then_some(()));
    let refused = http::post("/v1/placements", json!({ "image": "any", "start": true }).to_string()).ask(address);
    assert_eq!(refused.status, 503, "{}", refused.text());
    std::fs::write(other.join("ledger.key"), key).expect("the folder is there");
    // Nor has one that could not open contents of files.
    let seals = "seals contents of files with the key";
    eventually("it has another key for secrets", SOON, || stranger.reasons().contains(seals).then_some(()));
    let refused = http::post("/v1/placements", json!({ "image": "any", "start": true }).to_string()).ask(address);
    assert!(refused.status == 503 && !refused.text().contains("5b5b"), "{}", refused.text());
    stranger.kill();
    let mut stranger = launch(&engines, &etcd, &other).with("--secrets-key", &of_secrets).start();
    stranger.ready();
    unreadable(stranger.address(), "x");
    assert!(second.reasons().is_empty(), "the first one goes on: {}", second.reasons());
    assert_eq!((engines.count("create"), engines.count("start")), (1, 1), "somebody believed what others wrote");
}

#[test]
fn no_old_value_of_a_stack_is_begun() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(1, 10) else { return };
    engines.mend();
    let state = engines.files.path("state");
    let mut scheduler = launch(&engines, &etcd, &state).start();
    scheduler.ready();
    let address = scheduler.address();
    let stack = json!({ "services": [{ "service": "web", "image": "any" }] }).to_string();
    let up = http::Request::new("PUT", "/v1/stacks/shop").content(stack).within(seconds(60)).ask(address);
    assert_eq!(up.status, 200, "{}", up.text());
    eventually("it runs", TAKEOVER, || (engines.count("start") == 1).then_some(()));
    let key = format!("{PLACEMENTS}stacks%2Fshop");
    let (_, created) = pair(&etcd, &key, 0).expect("it is in etcd");
    let (first, _) = pair(&etcd, &key, created).expect("etcd has not forgotten it");
    let down = http::Request::new("DELETE", "/v1/stacks/shop").within(seconds(60)).ask(address);
    assert_eq!(down.status, 200, "{}", down.text());
    eventually("it is gone", TAKEOVER, || pair(&etcd, &key, 0).is_none().then_some(()));

    // Neither its own scheduler goes on with it,
    etcd.put(&key, &first);
    eventually("it is deleted", SOON, || pair(&etcd, &key, 0).is_none().then_some(()));
    // nor another one that takes it over.
    scheduler.kill();
    etcd.put(&key, &first);
    etcd.ask(
        "kv/deleterange",
        &json!({ "key": base64(SCHEDULERS), "range_end": base64("/berth/v1/ledger/schedulers0") }),
    );
    let mut second = launch(&engines, &etcd, &state).start();
    second.ready();
    eventually("it is deleted by the other one", TAKEOVER, || pair(&etcd, &key, 0).is_none().then_some(()));
    assert_eq!(engines.count("start"), 1, "an old value was begun");
}

#[test]
fn a_ledger_without_seals_is_believed_once_an_operator_has_sealed_it() {
    let Some(etcd) = Etcd::start(1) else { return };
    let hosts = json!({ "berth": 1, "hosts": [{ "name": "h0", "uuid": "uuid-0" }] });
    let files = ClusterFolder::new(hosts.to_string());
    let state = files.path("state");
    std::fs::create_dir(&state).expect("the folder is ours");
    etcd.put(&format!("{PLACEMENTS}old"), &forged("old", "started").to_string());
    etcd.put(&format!("{PLACEMENTS}garbage"), "{");
    let launch = Launch::scheduler().with("--source", format!("file:{}", files.file().display()));
    let mut scheduler = launch.with("--ledger-etcd", etcd.urls()).with("--state-dir", &state).start();
    eventually("it has no part in it", SOON, || scheduler.reasons().contains("no key, and 2 placements").then_some(()));
    assert!(!state.join("ledger.key").exists());

    let seal = |words: &[&str]| -> Ended {
        let command = ["ledger", "seal"].iter().chain(words).fold(Launch::bare(Executable::Scheduler), Launch::word);
        command.with("--ledger-etcd", etcd.urls()).with("--state-dir", &state).run()
    };
    let listed = seal(&[]);
    let (lines, says) = (&listed.output, |word: &str| listed.output.contains(word));
    assert!(
        says("old      unsealed")
            && says("SUBJECT")
            && says("anonymous")
            && says("s-dead")
            && says("h0")
            && says("/:/h"),
        "{lines} {}",
        listed.errors
    );
    assert!(says("garbage  unreadable") && says("--yes") && !says("hunter2"), "{lines}");
    assert_eq!(pair(&etcd, &format!("{PLACEMENTS}old"), 0).map(|pair| pair.0.contains("seal")), Some(false));

    let hash = |listed: &str| {
        let listed: Value = serde_json::from_str(listed).unwrap_or_default();
        listed[0]["listed"].as_str().unwrap_or_default().to_owned()
    };
    // What came after the list is not sealed with it.
    let before = hash(&seal(&["--json"]).output);
    assert!(!before.is_empty() && listed.output.contains(&before), "{before} {lines}");
    etcd.put(&format!("{PLACEMENTS}old"), &forged("old", "started").to_string());
    let refused = seal(&["--yes", &before]);
    assert!(refused.code == Some(2) && refused.errors.contains("list it again"), "{}", refused.errors);
    assert_eq!(pair(&etcd, &format!("{PLACEMENTS}old"), 0).map(|pair| pair.0.contains("seal")), Some(false));

    let sealed = seal(&["--yes", &hash(&seal(&["--json"]).output), "--json"]);
    let sealed: Value = serde_json::from_str(&sealed.output).unwrap_or_default();
    assert_eq!((&sealed[0]["state"], &sealed[1]["state"]), (&json!("unreadable"), &json!("sealed")), "{sealed}");
    scheduler.ready();
    let address = scheduler.address();
    eventually("it is believed", SOON, || (told(address, "old").1 == "placed").then_some(()));
    assert_eq!(told(address, "garbage").1, "unreadable");
    let again = seal(&[]);
    assert!(again.output.contains("garbage") && !again.output.contains("old"), "{}", again.output);
}

/// The finding of the placements, for what should run: it would be started again and again.
#[test]
fn a_stack_that_others_wrote_is_reported_and_never_begun() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(1, 10) else { return };
    engines.mend();
    let state = engines.files.path("state");
    let mut scheduler = launch(&engines, &etcd, &state).start();
    scheduler.ready();
    let address = scheduler.address();
    let ask = |address: SocketAddr, method: &'static str, path: &str, body: &Value| {
        let request = http::Request::new(method, path).within(seconds(60));
        if body.is_null() { request.ask(address) } else { request.content(body.to_string()).ask(address) }
    };
    let shop = json!({ "services": [{ "service": "web", "image": "any", "count": 1 }] });
    let put = ask(address, "PUT", "/v1/stacks/shop", &shop);
    assert_eq!(put.status, 200, "{}", put.text());
    eventually("its unit is started", SOON, || (engines.count("start") == 1).then_some(()));
    let key = format!("{PLACEMENTS}stacks%2Fshop");
    let (one, _) = pair(&etcd, &key, 0).expect("it is in etcd");
    assert!(one.contains("seal"), "{one}");
    let unreadable = |address: SocketAddr, name: &str| {
        let why = eventually("it is reported", SOON, || {
            let told = http::get(format!("/v1/stacks/{name}")).within(seconds(10)).ask(address);
            Some(told.text()).filter(|text| text.contains("cannot be read"))
        });
        assert!(why.contains("seal") && why.contains(&format!("stacks/{name}")), "{why}");
        let (status, state, _) = told(address, &format!("stacks%2F{name}"));
        assert_eq!((status, &*state), (200, "unreadable"), "{name}");
    };
    // Another stack, which nobody has sealed.
    let evil = one.replace("shop", "evil").replace("\"any\"", "\"bad\"");
    etcd.put(&format!("{PLACEMENTS}stacks%2Fevil"), &evil);
    unreadable(address, "evil");
    // Nor can it be had under that name before it is deleted.
    let put = ask(address, "PUT", "/v1/stacks/evil", &shop);
    assert!(put.status == 409 && put.text().contains("rm --force"), "{}", put.text());

    // An old value while its scheduler runs: that knows better, and writes it again.
    let scaled = ask(address, "POST", "/v1/stacks/shop/scale", &json!({ "web": 0 }));
    assert_eq!(scaled.status, 200, "{}", scaled.text());
    let units = |address: SocketAddr| {
        let told = http::get("/v1/stacks/shop").within(seconds(10)).ask(address).value();
        told["services"][0]["units"].as_array().map(Vec::len)
    };
    eventually("its unit is removed", SOON, || (units(address) == Some(0)).then_some(()));
    etcd.put(&key, &one);
    eventually("it is written again", SOON, || {
        let (now, _) = pair(&etcd, &key, 0)?;
        (now != one && now.contains("\"scale\":0")).then_some(())
    });
    assert_eq!((units(address), engines.count("start")), (Some(0), 1));

    // An old value, and one that is damaged, when another scheduler takes it over.
    for value in [&*one, "{"] {
        scheduler.kill();
        etcd.put(&key, value);
        etcd.ask(
            "kv/deleterange",
            &json!({ "key": base64(SCHEDULERS), "range_end": base64("/berth/v1/ledger/schedulers0") }),
        );
        scheduler = launch(&engines, &etcd, &state).start();
        scheduler.ready();
        let address = scheduler.address();
        unreadable(address, "shop");
        let down = ask(address, "DELETE", "/v1/stacks/shop", &Value::Null);
        assert_eq!(down.status, 409, "{}", down.text());
        assert_eq!(pair(&etcd, &key, 0).expect("it is left alone").0, value);
    }
    let address = scheduler.address();
    assert_eq!((engines.count("create"), engines.count("start")), (1, 1), "somebody believed what others wrote");
    for name in ["evil", "shop"] {
        let given_up = ask(address, "DELETE", &format!("/v1/placements/stacks%2F{name}?force=true"), &Value::Null);
        assert_eq!(given_up.status, 200, "{}", given_up.text());
    }
    let put = ask(address, "PUT", "/v1/stacks/shop", &shop);
    assert_eq!(put.status, 200, "{}", put.text());
    eventually("its unit is started", SOON, || (engines.count("start") == 2).then_some(()));
}
