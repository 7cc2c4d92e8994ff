//! What is written in a real etcd and read from it: garbage beside it, its size, who may, and what dead hosts left.
//!
//! Debian's etcd-server, started and ended by the tests.

use std::time::Duration;

use etcd::{Compare, EtcdClient, EtcdError, EtcdOptions, Op, OpResult, Pair, Span, Txn};
use live::etcd::{FOREIGN, Identity, prune};
use serde_json::{Value, json};
use tests::cable::Cable;
use tests::etcd::{Etcd, base64};
use tests::eventually;
use tests::publication::{Follower, Host, LATE, SOON, client, document, options, runtime, sleep};

#[test]
fn garbage_harms_only_itself() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let _host = Host::new(&runtime, &etcd.urls(), "a", &["x", "y"]);
    let follower = Follower::new(&runtime, &etcd.urls());
    follower.sees("hosts/a:x,y");
    for (key, value) in [
        ("hosts/a/containers/x", "{broken"),
        ("hosts/a/containers/bad", r#"{"name":"other"}"#),
        ("hosts/a/pods/p", "{}"),
        ("hosts/%zz/host", "{}"),
        ("hosts/b/host", r#"{"name":"b","berth":7}"#),
        ("hosts/c/containers/orphan", r#"{"name":"orphan"}"#),
        ("documents/d", r#"{"containers":[{"name":"e"},{"nam":"f"}]}"#),
        ("documents/bad", "- yaml"),
        ("nobody", "\u{0}\u{1}"),
    ] {
        etcd.put(&format!("/berth/v1/{key}"), value);
    }
    etcd.put("/berth/v2/hosts/z/host", r#"{"name":"z"}"#);
    follower.sees("documents/d:e hosts/a:x,y");
    let told = eventually("all of it is reported", SOON, || {
        let told = ["hosts/a", "hosts/b", "documents/bad", FOREIGN].map(|part| follower.defects(part).join("\n"));
        (!told[3].is_empty() && told[3].contains("nobody")).then_some(told)
    });
    for (part, expected) in [
        (0, "hosts/a/containers/x: no JSON"),
        (0, "the last good value stays"),
        (0, "hosts/a/containers/bad: its name is another one than the key says"),
        (1, "hosts/b/host: of format 7"),
        (2, "documents/bad: no JSON"),
        (3, "/berth/v1/hosts/a/pods/p: no key of ours"),
        (3, "/berth/v1/hosts/%zz/host: no key of ours"),
    ] {
        assert!(told[part].contains(expected), "{expected} in {}", told[part]);
    }
    etcd.put("/berth/v1/hosts/a/containers/x", r#"{"name":"x","state":"stopped"}"#);
    eventually("healed", SOON, || (!follower.defects("hosts/a").join("").contains("containers/x")).then_some(()));
    etcd.put("/berth/v1/documents/d", "{broken");
    sleep(1);
    assert_eq!(follower.parts(), "documents/d:e hosts/a:x,y");
    etcd.delete("/berth/v1/documents/d");
    follower.sees("hosts/a:x,y");
    // A clock an hour ahead.
    let put = json!({"name": "h", "published": {"by": "m", "at": "2099-01-01T00:00:00Z"}});
    etcd.put("/berth/v1/hosts/h/host", &put.to_string());
    let told = eventually("the clock is reported", SOON, || follower.defects("hosts/h").first().cloned());
    assert!(told.contains("its clock is") && told.contains("ahead of ours"), "{told}");
    assert_eq!(follower.gone(), ["documents/d"]);
}

#[test]
fn a_change_costs_less_than_a_kibibyte() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let document = |version: usize| {
        let mut own = document("win-1.example.org", &[]);
        let containers = (0..20).map(|number| {
            json!({
                "name": format!("shop-web-{number}"), "uuid": format!("{number:064x}"), "host": "win-1.example.org",
                "primary_ip": "10.42.0.7", "service": "shop/web", "service_index": "1", "network": "nat", "create_index": 1_795_199_999,
                "state": "running", "health_state": if number == version % 20 { "unhealthy" } else { "healthy" },
                "labels": {"com.docker.compose.project": "shop", "com.docker.compose.service": "web"},
            })
        });
        let containers = serde_json::from_value(Value::Array(containers.collect())).unwrap();
        own.document = own.document.with([("containers".into(), containers)]);
        own
    };
    let cable = Cable::to(etcd.address(0));
    let host = Host::start(&runtime, client(&etcd.urls()), Identity::open(None).unwrap(), document(0));
    let follower = Follower::new(&runtime, &cable.url());
    let shown = || follower.told().shown.len();
    eventually("it is there", SOON, || (shown() == 1).then_some(()));
    sleep(1);
    let before = cable.bytes();
    for version in 1..=20 {
        host.says(document(version));
        eventually("it is there", SOON, || (shown() == version + 1).then_some(()));
    }
    // Each time two containers change: one gets well, another one falls ill.
    let each = (cable.bytes() - before) / 40;
    tests::tell(&format!("{each} bytes for a change"));
    assert!(each < 1024, "{each}");
}

#[test]
fn a_reload_answers_when_everything_is_told() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let follower = Follower::new(&runtime, &etcd.urls());
    etcd.put("/berth/v1/documents/d", r#"{"containers":[{"name":"e"}]}"#);
    for name in ["f", "g"] {
        etcd.put("/berth/v1/documents/d", &json!({"containers": [{"name": name}]}).to_string());
        assert_eq!(runtime.block_on(follower.reload.request()), Ok(()));
        assert_eq!(follower.parts(), format!("documents/d:{name}"));
    }
    etcd.kill_all();
    let refused = runtime.block_on(follower.reload.request()).unwrap_err();
    assert!(refused.contains("no member of etcd answers") || refused.contains("lost"), "{refused}");
}

#[test]
fn certificates_and_users_are_asked_for() {
    let Some(mut etcd) = Etcd::start_with_tls(1) else { return };
    let runtime = runtime();
    let certificates = etcd.certificates().unwrap();
    let file = |name: &str| Some(certificates.join(name));
    let known =
        EtcdOptions { ca: file("ca.pem"), cert: file("cert.pem"), key: file("key.pem"), ..options(&etcd.urls()) };
    let strange = EtcdClient::new(EtcdOptions { cert: None, key: None, ..known.clone() }).unwrap();
    assert!(matches!(runtime.block_on(strange.get(b"x")), Err(EtcdError::Unavailable(_))));
    let plain = EtcdClient::new(known.clone()).unwrap();
    assert_eq!(runtime.block_on(plain.get(b"x")).unwrap().0, None);
    // Users: one with the rights that the documentation names for a host, one who may only read.
    let add = |path: &str, body: Value| etcd.ask(&format!("auth/{path}"), &body);
    add("user/add", json!({"name": "root", "password": "r"}));
    add("user/grant", json!({"user": "root", "role": "root"}));
    for (user, permissions) in [
        (
            "host",
            &[("READ", "/berth/v1/", "/berth/v10"), ("READWRITE", "/berth/v1/hosts/a/", "/berth/v1/hosts/a0")][..],
        ),
        ("reader", &[("READ", "/berth/v1/", "/berth/v10")]),
    ] {
        add("role/add", json!({"name": user}));
        for (kind, from, to) in permissions {
            let permission = json!({"permType": kind, "key": base64(from), "range_end": base64(to)});
            add("role/grant", json!({"name": user, "perm": permission}));
        }
        add("user/add", json!({"name": user, "password": "s3cret"}));
        add("user/grant", json!({"user": user, "role": user}));
    }
    add("enable", json!({}));
    let password_file = file("password");
    let signed_in = |user: &str, password: &str| {
        std::fs::write(password_file.as_ref().unwrap(), format!("{password}\n")).unwrap();
        let password_file = password_file.clone();
        EtcdClient::new(EtcdOptions { user: Some(user.into()), password_file, ..known.clone() }).unwrap()
    };
    assert!(matches!(runtime.block_on(plain.get(b"/berth/v1/x")), Err(EtcdError::Refused(_))));
    let wrong = runtime.block_on(signed_in("host", "wrong").get(b"/berth/v1/x")).unwrap_err().to_string();
    assert!(wrong.contains("cannot sign in as host"), "{wrong}");
    let reader = signed_in("reader", "s3cret");
    assert!(matches!(runtime.block_on(reader.put(b"/berth/v1/x", b"", 0)), Err(EtcdError::Refused(_))));
    let host = signed_in("host", "s3cret");
    assert!(matches!(runtime.block_on(host.get(b"/other")), Err(EtcdError::Refused(_))));
    assert!(matches!(runtime.block_on(host.put(b"/berth/v1/hosts/b/host", b"", 0)), Err(EtcdError::Refused(_))));
    let host = Host::start(&runtime, host, Identity::open(None).unwrap(), document("a", &["x"]));
    let watcher = signed_in("reader", "s3cret");
    assert!(runtime.block_on(watcher.watch(b"/berth/v1/", 0)).is_ok());
    assert!(matches!(runtime.block_on(watcher.watch(b"/other", 0)), Err(EtcdError::Refused(_))));
    let follower = Follower::start(&runtime, reader, None);
    follower.sees("hosts/a:x");
    // A member that was restarted knows no tokens any more.
    etcd.kill_all();
    eventually("the loss is noticed", LATE, || follower.trouble());
    etcd.run_all();
    eventually("ready again", LATE, || follower.is_ready());
    eventually("watched", LATE, || runtime.block_on(watcher.watch(b"/berth/v1/", 0)).ok());
    host.says(document("a", &["y"]));
    follower.sees_within(LATE, "hosts/a:y");
    assert_eq!(follower.gone(), [""; 0]);
}

#[test]
fn dead_keys_are_pruned_and_members_describe_themselves() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let runtime = runtime();
    let host = Host::new(&runtime, &etcd.urls(), "a", &["x"]);
    eventually("published", LATE, || host.is_published());
    let client = client(&etcd.urls());
    for key in [
        "hosts/dead/host",
        "hosts/dead/containers/y",
        "hosts/a/containers/hand",
        "hosts/a/junk",
        "documents/d",
        "nobody",
    ] {
        etcd.put(&format!("/berth/v1/{key}"), "{}");
    }
    let keys = |dry_run| {
        let pruned = runtime.block_on(prune(&client, dry_run)).unwrap();
        assert_eq!((pruned.hosts, pruned.changed), (1, 0));
        let names = pruned.keys.iter().map(|key| key.key.strip_prefix("/berth/v1/hosts/").unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let dead = ["a/containers/hand", "a/junk", "dead/containers/y", "dead/host"];
    assert_eq!(keys(true), dead);
    assert_eq!(keys(false), dead);
    assert_eq!(keys(false), [""; 0]);
    let left = runtime.block_on(client.list(b"/berth/v1/", true)).unwrap();
    // The host, its container, service and network; the document, and what is not under hosts/.
    assert_eq!(left.pairs.len(), 6);
    let down = (etcd.leader() + 1) % 3;
    etcd.kill(down);
    let members = runtime.block_on(etcd::members(&client));
    assert_eq!(members.len(), 3);
    for (number, member) in members.iter().enumerate() {
        assert_eq!(member.status.is_ok(), number != down, "{member:?}");
        let Ok(status) = &member.status else { continue };
        assert!(status.knows_leader && status.reads.is_ok() && status.members.len() == 3, "{status:?}");
        assert!(status.clock_ahead.is_some_and(|ahead| ahead.abs() <= 2), "{status:?}");
    }
    assert_eq!(members.iter().filter(|member| member.status.as_ref().is_ok_and(|status| status.leads)).count(), 1);
}

#[test]
fn transactions_hold_or_do_not() {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = runtime();
    let client = client(&etcd.urls());
    let txn = |compare, success| {
        let failure = vec![Op::Get(b"k".to_vec())];
        runtime.block_on(client.txn(Txn { compare, success, failure })).unwrap()
    };
    let put = |value: &str, lease| Op::Put { key: b"k".to_vec(), value: value.into(), lease };
    let first = txn(vec![Compare::absent("k")], vec![put("1", 0), Op::Get(b"k".to_vec())]);
    assert!(first.succeeded);
    let OpResult::Pairs(pairs) = &first.results[1] else { panic!("{first:?}") };
    let expected = Pair {
        key: b"k".to_vec(),
        value: b"1".to_vec(),
        create_revision: first.revision,
        mod_revision: first.revision,
        version: 1,
        lease: 0,
    };
    assert_eq!(pairs[0], expected);
    // The same again does not hold, and tells what is there.
    let second = txn(vec![Compare::absent("k")], vec![put("2", 0)]);
    assert_eq!((second.succeeded, &second.results[..]), (false, &[OpResult::Pairs(vec![expected])][..]));
    let lease = runtime.block_on(client.grant(Duration::from_mins(1))).unwrap();
    assert!(txn(vec![Compare::unchanged("k", first.revision)], Vec::new()).succeeded);
    assert!(txn(Vec::new(), vec![put("3", lease)]).succeeded);
    assert!(!txn(vec![Compare::unchanged("k", first.revision)], Vec::new()).succeeded);
    assert_eq!(runtime.block_on(client.get(b"k")).unwrap().0.unwrap().lease, lease);
    runtime.block_on(client.revoke(lease)).unwrap();
    assert_eq!(runtime.block_on(client.get(b"k")).unwrap().0, None);
    assert_eq!(runtime.block_on(client.keep_alive(lease)), Err(EtcdError::LeaseGone));
    assert_eq!(runtime.block_on(client.put(b"k", b"", lease)), Err(EtcdError::LeaseGone));
    let many = (0..60_u8).map(|number| Op::Put { key: vec![b'p', number], value: vec![0; 1000], lease: 0 }).collect();
    assert!(txn(Vec::new(), many).succeeded);
    assert_eq!(runtime.block_on(client.list(b"p", false)).unwrap().pairs.len(), 60);
    let deleted = txn(Vec::new(), vec![Op::Delete(vec![b'p', 0]), Op::Get(vec![b'p', 0])]);
    assert_eq!(deleted.results, [OpResult::Deleted(1), OpResult::Pairs(Vec::new())]);
}

#[test]
fn all_ranges_of_a_watch_are_watched_at_once() {
    let Some(etcd) = Etcd::start(1) else { return };
    let (runtime, client) = (runtime(), client(&etcd.urls()));
    // Longer than what etcd reads of a request at first: it may answer the first range before it has read the others.
    let ranges: Vec<String> = (0..12).map(|number| format!("{}/{number}/", "x".repeat(100))).collect();
    let spans: Vec<Span> = ranges.iter().map(|range| Span::of_prefix(range.as_bytes())).collect();
    for round in 0..100 {
        let at = runtime.block_on(client.get(b"none")).unwrap().1;
        // One that etcd has forgotten is reported as unavailable, after 2 s.
        let mut watch = runtime.block_on(client.watch_spans(&spans, at.revision + 1)).unwrap();
        let span = round % ranges.len();
        etcd.put(&format!("{}key", ranges[span]), "1");
        assert_eq!(runtime.block_on(watch.next()).unwrap().span, span);
    }
}
