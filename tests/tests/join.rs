//! A host's life: invited, joined, labelled, given another password, removed, with a real etcd that asks for users and
//! speaks TLS, and a real engine.
//!
//! Debian's etcd-server and docker.io.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "join/middle.rs"]
mod middle;
#[path = "join/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcd::{Access, EtcdError, Span};
use serde_json::{Value, json};
use tests::engine::Engine;
use tests::etcd_with_users::agent;
use tests::namespace::Pair;
use tests::wait::seconds;
use tests::{Executable, Launch, Service, eventually, http, scaled, tell};

use crate::world::{World, token};

const SOON: Duration = Duration::from_secs(10);

/// Longest time until a label is served. It takes some milliseconds; other tests run beside this one.
const LABELLED: Duration = Duration::from_millis(500);

/// What all keys of the cluster begin with.
const PREFIX: &str = "/berth/v1/";

#[test]
fn a_host_joins_by_its_invitation_alone_and_has_no_more_rights_than_it_needs() {
    let Some(pair) = Pair::try_new("10.42.0.7") else { return };
    let Some(engine) = Engine::start(&pair.host) else { return };
    let Some(world) = World::start(&engine) else { return };
    let short = world.invite("late", &["--ttl", "5s"]);
    a_changed_token_or_another_authority_leads_nowhere(&world);
    let token = world.invite("win-1", &["--label", "zone=a"]);
    all_that_is_wrong_is_told_at_once_and_nothing_is_written(&world, &token);
    no_invitation_is_used_up_where_something_cannot_be_written(&world);
    join_that_was_killed_anywhere_goes_on(&world, &token);
    an_invitation_is_good_once(&world, &token);
    let mut agent = world.agent("win-1", &[("BERTH_LABELS", "io.berth.admin/own=1,team/x=1,rack=5")]);
    labels_count_by_who_gave_them_and_reserved_ones_of_hosts_do_not(&world, &mut agent);
    whoever_read_the_invitation_has_nothing_after_rotate(&world, &mut agent);
    a_hosts_credentials_do_nothing_that_is_not_its_own(&world);
    no_certificate_of_a_host_passes_for_a_member_and_none_for_a_client(&world);
    a_host_that_is_active_is_not_removed_by_mistake(&world);
    drop(agent);
    a_machine_that_replaces_another_takes_its_name_over(&world);
    a_name_can_be_removed_and_invited_again(&world);
    an_expired_invitation_is_refused(&world, &short);
    nobody_is_invited_by_half_a_list_or_twice(&world);
    a_script_for_windows_is_one(&world);
    no_secret_stands_in_a_log(&world);
}

fn a_changed_token_or_another_authority_leads_nowhere(world: &World) {
    let file = world.invite("mitm", &[]);
    let token = token(&file);
    let at = token.find('@').unwrap() - 3;
    let other = if &token[at..=at] == "A" { "B" } else { "A" };
    let changed = format!("{}{other}{}", &token[..at], &token[at + 1..]);
    let ended = world.note(world.joining("mitm", &[&changed]).run());
    assert!(ended.code == Some(1) && ended.errors.contains("not a token of Berth: a character"), "{}", ended.errors);
    world.middle.is_honest.store(false, Ordering::SeqCst);
    let ended = world.join("mitm", &file);
    world.middle.is_honest.store(true, Ordering::SeqCst);
    assert!(ended.code == Some(1) && ended.errors.contains("certificate"), "{}", ended.errors);
    let (tries, heard) = &*world.middle.heard.lock().unwrap();
    assert!(*tries > 0, "the man in the middle was asked");
    assert_eq!(String::from_utf8_lossy(heard), "", "nothing was said to it");
    assert!(!world.state("mitm").exists() && !world.path("mitm.env").exists());
    // Taken back it is void.
    let id = token.split('.').nth(1).unwrap();
    let told = world.told(&["invite", "--revoke", id]);
    assert!(told.contains("is void") && told.contains("the password of mitm"), "{told}");
    let ended = world.join("mitm", &file);
    assert!(ended.errors.contains("is not there any more"), "{}", ended.errors);
    assert!(world.operator(&["invite", "--revoke", id]).errors.contains("no invitation"));
}

fn all_that_is_wrong_is_told_at_once_and_nothing_is_written(world: &World, file: &Path) {
    let launch = world.joining("win-1", &["--file", file.to_str().unwrap(), "--host", "other"]);
    let wrong = world.note(launch.clone().flag("--docker=unix:///nowhere/docker.sock").run());
    // Given twice, an engine is a matter of the command line.
    assert_eq!(wrong.code, Some(2), "{}", wrong.errors);
    let words = ["join", "--file", file.to_str().unwrap(), "--host", "other", "--docker=unix:///nowhere/docker.sock"];
    let wrong = world.note(agent(&words));
    assert_eq!(wrong.code, Some(1));
    for part in ["--host other: the invitation is for win-1", "/nowhere/docker.sock", "nothing was changed"] {
        assert!(wrong.errors.contains(part), "{part} in {}", wrong.errors);
    }
    let dry = world.note(world.joining("win-1", &["--file", file.to_str().unwrap(), "--dry-run"]).run());
    assert!(dry.output.contains("BERTH_HOST=win-1") && dry.output.contains("nothing was changed"), "{}", dry.errors);
    assert!(!world.state("win-1").exists() && !world.path("win-1.env").exists());
    let invited = hosts(world);
    assert_eq!(invited["win-1"]["state"], "invited", "{invited:?}");
}

fn no_invitation_is_used_up_where_something_cannot_be_written(world: &World) {
    let file = world.invite("careful", &[]);
    let (state, settings, plain) = (world.state("careful"), world.path("careful.env"), world.path("plain"));
    fs::write(&plain, "a file, not a folder").unwrap();
    let join = |file: &Path, state: &Path, settings: &Path| {
        let launch = Launch::bare(Executable::Agent).word("join").with("--file", file).flag("--no-start");
        let launch = launch.flag(&format!("--docker=unix://{}", world.socket.display()));
        let launch = launch.within(world.etcd.folder());
        world.note(launch.with("--state-dir", state).with("--env-file", settings).run())
    };
    for (state, settings, wrong) in [
        (&state, &plain.join("below/agent.env"), &plain),
        (&state, &world.path("cluster"), &world.path("cluster")),
        (&state, &PathBuf::from("/proc/nowhere/agent.env"), &PathBuf::from("/proc/nowhere")),
        (&plain.join("state"), &settings, &plain),
    ] {
        let ended = join(&file, state, settings);
        assert!(ended.code == Some(1) && ended.errors.contains(wrong.to_str().unwrap()), "{}", ended.errors);
        assert!(!world.state("careful").join("etcd-password").exists() && !settings.is_file());
    }
    let ended = join(&file, &plain.join("state"), &plain.join("agent.env"));
    let plain = plain.display();
    let both =
        format!("in the way:\n  {plain}/state: {plain}: not a directory\n  {plain}: not a directory\nnothing was");
    assert!(ended.errors.contains(&both), "{}", ended.errors);
    let half = world.path("half.invitation");
    let text = fs::read_to_string(&file).unwrap();
    let (begin, key) = (text.find("-----BEGIN").unwrap(), text.find("-----BEGIN PRIVATE KEY").unwrap());
    let without_certificate = format!("{}{}", &text[..begin], &text[key..]);
    for (half_of_it, wrong) in [
        (&text[..key], "the invitation has a certificate and no key"),
        (&without_certificate, "the invitation has a key and no certificate"),
    ] {
        fs::write(&half, half_of_it).unwrap();
        let ended = join(&half, &state, &settings);
        assert!(ended.code == Some(1) && ended.errors.contains(wrong), "{}", ended.errors);
    }
    let ended = join(&file, &state, &settings);
    assert!(ended.code == Some(0) && ended.output.contains("this machine is careful now"), "{}", ended.errors);
    world.secrets.borrow_mut().push(world.password("careful").trim().to_owned());
    // Given relative to a folder, they are written as what they are from everywhere.
    fs::remove_file(&settings).unwrap();
    let relative = ["careful.invitation", "careful.state", "careful.env"].map(Path::new);
    let ended = join(relative[0], relative[1], relative[2]);
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    let text = fs::read_to_string(&settings).unwrap();
    assert!(text.contains(&format!("BERTH_STATE_DIR={}\n", state.display())), "{text}");
    assert!(world.told(&["remove", "careful"]).contains("removed careful"));
}

fn join_that_was_killed_anywhere_goes_on(world: &World, file: &Path) {
    // Ever later, until one comes to its end by itself.
    let mut wait = Duration::from_millis(4);
    loop {
        let mut joining = world.joining("win-1", &["--file", file.to_str().unwrap()]).start();
        std::thread::sleep(wait);
        let ended = !joining.is_running();
        joining.kill();
        if ended {
            break;
        }
        wait = wait * 5 / 4;
    }
    let ended = world.join("win-1", file);
    assert!(ended.code == Some(0) && ended.output.contains("this machine is win-1 already"), "{}", ended.errors);
    let once = world.invite("once", &[]);
    let joined = world.join("once", &once);
    assert!(joined.code == Some(0) && joined.output.contains("this machine is once now"), "{}", joined.errors);
    assert!(joined.output.contains("agent up"), "what to type: {}", joined.output);
    assert!(joined.output.contains("agent rotate once"), "what is left to do: {}", joined.output);
    let left = |machine: &str| {
        let mut names: Vec<_> =
            fs::read_dir(world.state(machine)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let settings = fs::read_to_string(world.path(&format!("{machine}.env"))).unwrap();
        (names, settings.replace(machine, "HOST"))
    };
    assert_eq!(left("win-1"), left("once"), "ended and typed again is the same as once");
}

fn an_invitation_is_good_once(world: &World, file: &Path) {
    let ended = world.join("thief", file);
    assert!(ended.code == Some(1) && ended.errors.contains("was used at 2"), "{}", ended.errors);
    assert!(ended.errors.contains("agent remove win-1 --now"), "{}", ended.errors);
    assert!(!world.state("thief").exists());
    let invites: Value = serde_json::from_str(&world.told(&["invites", "--json"])).unwrap();
    let states: Vec<_> =
        invites["invitations"].as_array().unwrap().iter().map(|one| (&one["host"], &one["state"])).collect();
    assert!(states.contains(&(&json!("win-1"), &json!("used"))), "{invites}");
}

fn labels_count_by_who_gave_them_and_reserved_ones_of_hosts_do_not(world: &World, agent: &mut Service) {
    world.runtime.block_on(async {
        let operator = world.client("operator", &fs::read_to_string(world.path("cluster/operator.password")).unwrap());
        let reserved = format!("{PREFIX}config/labels.reserved");
        operator.put(reserved.as_bytes(), br#"{"keys": ["team/*"]}"#, 0).await.unwrap();
    });
    let (metadata, scheduler) = (agent.address_of("metadata"), agent.address_of("scheduler"));
    let labels = || {
        let hosts = http::get("/latest/hosts").json().ask(metadata).value();
        let host = hosts.as_array()?.iter().find(|host| host["name"] == "win-1")?.clone();
        Some(host["labels"].clone())
    };
    let shows = |expected: &[(&str, Value)]| {
        eventually(&format!("{expected:?}"), SOON, || {
            let labels = labels()?;
            expected.iter().all(|(key, value)| labels[key] == *value).then_some(())
        });
    };
    shows(&[("zone", json!("a")), ("rack", json!("5")), ("io.berth.admin/own", Value::Null), ("team/x", Value::Null)]);
    agent.line("it is told", |line| line.to_string().contains("only operators give this label"));
    // A file of the host counts more than its command line, an operator more than both.
    fs::create_dir_all(world.state("win-1").join("labels.d")).unwrap();
    let file = world.state("win-1").join("labels.d/a.env");
    fs::write(&file, "rack=6\nnote=a,b\nio.berth.admin/own=2\n").unwrap();
    shows(&[("rack", json!("6")), ("note", json!("a,b")), ("io.berth.admin/own", Value::Null)]);
    world.told(&["label", "win-1", "rack=7", "io.berth.admin/vip=yes", "team/x=2"]);
    let written = Instant::now();
    shows(&[("rack", json!("7")), ("io.berth.admin/vip", json!("yes")), ("team/x", json!("2"))]);
    eventually("the scheduler knows it", SOON, || {
        http::get("/v1/hosts").ask(scheduler).text().contains("io.berth.admin/vip").then_some(())
    });
    tell(&format!("a label is in metadata and the scheduler {:?} after `agent label` has ended", written.elapsed()));
    assert!(written.elapsed() < scaled(LABELLED), "{:?}", written.elapsed());
    world.told(&["label", "win-1", "rack-", "zone-"]);
    shows(&[("rack", json!("6")), ("zone", Value::Null)]);
    assert_eq!(world.told(&["label", "win-1"]), "io.berth.admin/vip=yes\nteam/x=2\n");
    assert_eq!(world.operator(&["label", "win-1", "rack"]).code, Some(2));
    fs::remove_file(file).unwrap();
    shows(&[("rack", json!("5")), ("note", Value::Null)]);
}

fn whoever_read_the_invitation_has_nothing_after_rotate(world: &World, agent: &mut Service) {
    let user = "berth.host.win-1";
    let before = world.password("win-1");
    let reads = |password: &str| {
        let client = world.client(user, password);
        world
            .runtime
            .block_on(client.get(format!("{PREFIX}hosts/win-1/host").as_bytes()))
            .map(|(pair, _)| pair.is_some())
    };
    assert_eq!(reads(&before), Ok(true));
    assert!(world.told(&["rotate", "win-1"]).contains("win-1 has a new password"));
    assert!(matches!(reads(&before), Err(EtcdError::Refused(_))), "the password of the invitation");
    // The agent goes on with the new one: what changes is published.
    let labels = world.state("win-1").join("labels.d/b.env");
    fs::write(&labels, "after=rotate\n").unwrap();
    let root = world.client("root", &fs::read_to_string(world.path("cluster/root.password")).unwrap());
    eventually("it publishes with its new password", SOON, || {
        let pair = world.runtime.block_on(root.get(format!("{PREFIX}hosts/win-1/host").as_bytes())).unwrap().0?;
        String::from_utf8_lossy(&pair.value).contains("rotate").then_some(())
    });
    let after = world.password("win-1");
    world.secrets.borrow_mut().extend([after.trim().to_owned()]);
    assert_ne!(before.trim(), after.trim());
    assert_eq!(reads(&after), Ok(true));
    assert!(agent.is_running());
    // What other users of its machine see in the list of processes.
    for name in ["cmdline", "environ"] {
        let seen = fs::read(format!("/proc/{}/{name}", agent.pid())).unwrap();
        assert!(!seen.is_empty());
        world.said.borrow_mut().push_str(&String::from_utf8_lossy(&seen));
    }
    let invites = world.told(&["invites"]);
    assert!(!invites.contains("win-1"), "its invitation is gone: {invites}");
    assert!(world.operator(&["rotate", "once"]).errors.contains("once: it is not there now"));
    world.said.borrow_mut().push_str(&agent.log());
}

/// Every write that is not the host's, with its credentials.
fn a_hosts_credentials_do_nothing_that_is_not_its_own(world: &World) {
    let client = world.client("berth.host.win-1", &world.password("win-1"));
    for path in ["hosts/win-1/containers/x", "votes/win-1/a/b", "health/win-1/a/b", "claims/host/win-1"] {
        let key = format!("{PREFIX}{path}");
        assert!(world.runtime.block_on(client.put(key.as_bytes(), b"{}", 0)).is_ok(), "its own {path}");
        // The agent may have taken away first what it did not publish.
        assert!(world.runtime.block_on(client.delete(key.as_bytes())).is_ok(), "its own {path}");
    }
    let mut denied: Vec<(String, bool)> = Vec::new();
    let mut deny = |what: &str, outcome: Result<(), EtcdError>| {
        denied.push((what.to_owned(), matches!(outcome, Err(EtcdError::Refused(_)))));
    };
    for key in [
        "documents/d",
        "documents/owners",
        "empty",
        "intents/win-1",
        "intents/once",
        "config/labels.reserved",
        "config/x",
        "hosts/once/host",
        "hosts/once/containers/x",
        "hosts/win-10/host",
        "hosts/win-1",
        "hosts/win-1x/host",
        "claims/host/once",
        "claims/host/win-10",
        "claims/host/win-1/x",
        "claims/subnet/10.0.0.0",
        "votes/once/a/b",
        "votes/win-10/a",
        "health/once/a/b",
        "health/win-10/a",
        "ledger/key",
        "ledger/placements/p",
        "ledger/hosts/win-1",
        "ledger/schedulers/s",
        "drains/win-1",
        "",
    ] {
        deny(key, world.runtime.block_on(client.put(format!("{PREFIX}{key}").as_bytes(), b"{}", 0)).map(drop));
    }
    for key in ["/berth/join/v1/x", "/berth/v2/x", "/x"] {
        deny(key, world.runtime.block_on(client.put(key.as_bytes(), b"{}", 0)).map(drop));
    }
    deny(
        "delete intents",
        world.runtime.block_on(client.delete(format!("{PREFIX}intents/win-1").as_bytes())).map(drop),
    );
    deny("delete all", world.runtime.block_on(client.delete_span(&Span::of_prefix(PREFIX.as_bytes()))).map(drop));
    deny("read invitations", world.runtime.block_on(client.list(b"/berth/join/v1/", true)).map(drop));
    deny("read all", world.runtime.block_on(client.list(b"/", true)).map(drop));
    deny("its own password", world.runtime.block_on(client.put_user("berth.host.win-1", "x")));
    deny("a user", world.runtime.block_on(client.put_user("evil", "x")));
    deny("delete a user", world.runtime.block_on(client.delete_user("berth.host.once")).map(drop));
    deny("a role", world.runtime.block_on(client.add_role("evil")).map(drop));
    deny(
        "more rights",
        world.runtime.block_on(client.permit("berth.host.win-1", Access::ReadWrite, &Span::of_prefix(b"/"))),
    );
    deny("root", world.runtime.block_on(client.grant_role("berth.host.win-1", "root")));
    deny("delete a role", world.runtime.block_on(client.delete_role("operator")).map(drop));
    deny("users", world.runtime.block_on(client.users()).map(drop));
    assert!(denied.len() >= 40, "{}", denied.len());
    let allowed: Vec<_> = denied.iter().filter(|(_, denied)| !denied).collect();
    assert!(allowed.is_empty(), "{allowed:?}");
}

/// What a member of etcd sends to another is done in the name of any user.
fn no_certificate_of_a_host_passes_for_a_member_and_none_for_a_client(world: &World) {
    let cluster: Value = serde_json::from_slice(&fs::read(world.path("cluster/cluster.json")).unwrap()).unwrap();
    let port = cluster["members"][0]["port"].as_u64().unwrap();
    let state = world.state("win-1");
    let member = world.path("cluster/members/etcd1");
    let host = (state.join("etcd-cert.pem"), state.join("etcd-key.pem"));
    let operator = (world.path("cluster/operator/cert.pem"), world.path("cluster/operator/key.pem"));
    let peer = (member.join("peer-cert.pem"), member.join("peer-key.pem"));
    let client = (member.join("cert.pem"), member.join("key.pem"));
    let ask = |ca: &str, who: Option<&(PathBuf, PathBuf)>, port: u64, path: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--http1.1", "-m", "10", "--cacert"]).arg(world.path("cluster").join(ca));
        if let Some((cert, key)) = who {
            curl.arg("--cert").arg(cert).arg("--key").arg(key);
        }
        let output = curl.arg(format!("https://127.0.0.1:{port}{path}")).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // The other end closes the connection in its handshake, or curl notices that later: while sending or receiving.
    let is_refused =
        |(code, text): (Option<i32>, String)| code.is_some_and(|code| [35, 55, 56].contains(&code)) && text.is_empty();
    let (_, members) = ask("peer-ca.pem", Some(&peer), port + 1, "/members");
    assert!(members.contains("etcd1"), "{members}");
    for who in [None, Some(&host), Some(&operator), Some(&client)] {
        for path in ["/members", "/raft", "/raft/probing"] {
            assert!(is_refused(ask("peer-ca.pem", who, port + 1, path)), "{who:?} {path}");
        }
    }
    assert_eq!(ask("ca.pem", Some(&host), port, "/version").0, Some(0));
    for who in [None, Some(&peer)] {
        assert!(is_refused(ask("ca.pem", who, port, "/version")), "{who:?}");
    }
}

fn a_host_that_is_active_is_not_removed_by_mistake(world: &World) {
    let known = hosts(world);
    assert_eq!((&known["win-1"]["state"], &known["once"]["state"]), (&json!("active"), &json!("gone")));
    assert!(world.operator(&["remove", "win-1"]).errors.contains("the host win-1 is active"));
    assert!(world.operator(&["invite", "win-1"]).errors.contains("the host win-1 is active"));
    let told = world.told(&["remove", "win-1", "--now"]);
    assert!(told.contains("its credentials are void"), "{told}");
    let client = world.client("berth.host.win-1", &world.password("win-1"));
    let read = world.runtime.block_on(client.get(b"/berth/v1/x"));
    assert!(matches!(read, Err(EtcdError::Refused(_))), "{read:?}");
    assert!(!hosts(world).contains_key("win-1"));
    assert!(world.operator(&["remove", "win-1"]).errors.contains("etcd has nothing of a host win-1"));
}

fn a_machine_that_replaces_another_takes_its_name_over(world: &World) {
    let publisher = || hosts(world)["moved"]["published"]["by"].as_str().map(str::to_owned);
    let first = world.invite("moved", &["--label", "zone=a"]);
    assert_eq!(world.join("old", &first).code, Some(0));
    let mut old = world.agent("old", &[]);
    let machine = eventually("the old one is published", SOON, publisher);
    let file = world.path("moved.invitation");
    let words = ["invite", "moved", "--out", file.to_str().unwrap()];
    assert!(world.operator(&words).errors.contains("the host moved is active"));
    let second = world.invite("moved", &["--again"]);
    let refused = world.join("new", &second);
    assert_eq!(refused.code, Some(1));
    for part in ["the name moved is taken by another machine", &*machine, "give --takeover", "nothing was changed"] {
        assert!(refused.errors.contains(part), "{part} in {}", refused.errors);
    }
    assert!(!world.state("new").exists() && !world.path("new.env").exists());
    let words = ["--file", second.to_str().unwrap(), "--takeover"];
    let dry = world.note(world.joining("new", &words).flag("--dry-run").run());
    assert!(dry.output.contains(&format!("would delete what machine {machine}")), "{}{}", dry.output, dry.errors);
    assert_eq!(publisher().as_ref(), Some(&machine));
    let ended = world.note(world.joining("new", &words).run());
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert!(ended.output.contains(&format!("it has the place of machine {machine}")), "{}", ended.output);
    // The old one runs on without a say: its password is void, and it says so.
    let new = world.agent("new", &[]);
    let next = eventually("the new one is published", SOON, publisher);
    assert_ne!(next, machine);
    let admin = old.admin();
    eventually("the old one says why it is not published", SOON, || {
        let ready = http::get("/readyz").send(admin).ok()?;
        (ready.text().contains("cannot sign in as berth.host.moved")).then_some(())
    });
    assert_eq!(publisher(), Some(next.clone()));
    for machine in ["old", "new"] {
        world.secrets.borrow_mut().push(world.password(machine).trim().to_owned());
    }
    // Typed again, nothing is taken from itself.
    let again = world.note(world.joining("new", &words).run());
    assert!(again.output.contains("this machine is moved already"), "{}{}", again.output, again.errors);
    assert!(!again.output.contains("the place of"), "{}", again.output);
    assert_eq!(publisher(), Some(next));
    assert_eq!(hosts(world)["moved"]["operator_labels"], json!({ "zone": "a" }));
    world.said.borrow_mut().extend([old.log(), new.log()]);
    drop((old, new));
    assert!(world.told(&["remove", "moved", "--now"]).contains("removed moved"));
}

fn a_name_can_be_removed_and_invited_again(world: &World) {
    for round in 0..20 {
        let role = if round == 0 { "host,scheduler" } else { "host" };
        let file = world.invite("again", &["--role", role]);
        let ended = world.join("again", &file);
        assert!(ended.code == Some(0) && ended.output.contains("is again now"), "{round}: {}", ended.errors);
        if round == 0 {
            a_scheduler_has_the_ledger_and_its_key(world);
        }
        assert!(world.told(&["remove", "again"]).contains("removed again"));
    }
}

fn a_scheduler_has_the_ledger_and_its_key(world: &World) {
    let key = fs::read_to_string(world.path("cluster/ledger.key")).unwrap();
    assert_eq!(fs::read_to_string(world.state("again").join("ledger.key")).unwrap(), key);
    world.secrets.borrow_mut().push(key);
    assert!(fs::read_to_string(world.path("again.env")).unwrap().contains("BERTH_SCHEDULER_LEDGER_ETCD=https://"));
    let client = world.client("berth.host.again", &world.password("again"));
    let key = format!("{PREFIX}ledger/hosts/again");
    assert!(world.runtime.block_on(client.put(key.as_bytes(), b"{}", 0)).is_ok());
    assert_eq!(world.runtime.block_on(client.delete(key.as_bytes())), Ok(true));
}

fn an_expired_invitation_is_refused(world: &World, file: &Path) {
    let ended = eventually("it expires", seconds(10), || {
        let ended = world.note(world.joining("late", &["--file", file.to_str().unwrap(), "--dry-run"]).run());
        (ended.code == Some(1)).then_some(ended)
    });
    assert!(ended.errors.contains("it expired, or was taken back"), "{}", ended.errors);
    assert!(!world.state("late").exists());
    assert_eq!(hosts(world)["late"]["state"], "expired");
    // What is left of it is its user, and the password that it holds.
    let told = world.told(&["prune"]);
    assert!(told.contains("invitations that are over"), "{told}");
    assert!(told.contains("late has not joined while it was invited"), "{told}");
    assert!(world.told(&["prune", "--dry-run"]).ends_with("hosts are there\n"));
}

fn nobody_is_invited_by_half_a_list_or_twice(world: &World) {
    let (list, folder) = (world.path("hosts.csv"), world.path("invitations"));
    let invite = || {
        world.operator(&[
            "invite",
            "--file",
            list.to_str().unwrap(),
            "--out",
            folder.to_str().unwrap(),
            "--role",
            "host",
        ])
    };
    fs::write(&list, "many-1\nmany/2\nMANY-1\n").unwrap();
    let ended = invite();
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    for wrong in ["line 2: \"many/2\" is no name", "line 3: MANY-1 stands in line 1"] {
        assert!(ended.errors.contains(wrong), "{}", ended.errors);
    }
    assert!(!folder.exists() && !hosts(world).contains_key("many-1"));

    fs::write(&list, "# rack 7\nmany-1,zone=a\n").unwrap();
    let ended = invite();
    assert!(ended.output.starts_with("invited 1 of 1 hosts\n"), "{}{}", ended.output, ended.errors);
    fs::write(&list, "many-1,zone=a\nmany-2\n").unwrap();
    let first = token(&folder.join("many-1.invitation"));
    let ended = invite();
    let told = "invited 1 of 2 hosts; left alone: many-1 (invited)\n";
    assert!(ended.output.starts_with(told), "{}{}", ended.output, ended.errors);
    assert_eq!(token(&folder.join("many-1.invitation")), first);
    for host in ["many-1", "many-2"] {
        let file = folder.join(format!("{host}.invitation"));
        world.secrets.borrow_mut().push(token(&file).split('.').nth(2).unwrap().to_owned());
        let ended = world.join(host, &file);
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
    }
    let told = "invited 0 of 2 hosts; left alone: many-1 (gone), many-2 (gone)\n";
    assert!(invite().output.starts_with(told));
    assert_eq!(hosts(world)["many-1"]["operator_labels"], json!({ "zone": "a" }));
}

fn a_script_for_windows_is_one(world: &World) {
    let (alone, installs, package) = (world.path("alone.ps1"), world.path("installs.ps1"), world.path("berth.msi"));
    fs::write(&package, "x").unwrap();
    let script = |file: &Path| {
        let words = ["invite", "win-ps", "--script", "powershell", "--out", file.to_str().unwrap()];
        words.map(str::to_owned).to_vec()
    };
    let mut words = script(&installs);
    words.extend(["--package", package.to_str().unwrap(), "--from", "https://files.example/berth/"].map(str::to_owned));
    for words in [script(&alone), words] {
        world.told(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let Some(parsed) = tests::powershell::parse(&[alone, installs]) else { return };
    parsed.unwrap();
}

fn no_secret_stands_in_a_log(world: &World) {
    let mut said = world.said.borrow().clone();
    for name in ["etcd.log", "cluster/cluster.json"] {
        said += &fs::read_to_string(world.path(name)).unwrap_or_default();
    }
    let report = world.path("report.json");
    let cluster = world.path("cluster");
    let file = |name: &str| cluster.join(name).display().to_string();
    let etcd = format!("https://{}", world.middle.address);
    let doctor = Launch::bare(Executable::Agent).word("doctor").with("--report", &report);
    let doctor = doctor.with("--metadata", "127.0.0.1:1").with("--dns", "127.0.0.1:1").with("--etcd", &etcd);
    let doctor = doctor.with("--etcd-ca", file("ca.pem")).with("--etcd-user", "root");
    let doctor = doctor.with("--etcd-cert", file("operator/cert.pem")).with("--etcd-key", file("operator/key.pem"));
    doctor.with("--etcd-password-file", file("root.password")).run();
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("keep any lease alive"), "what this release of etcd lacks: {report}");
    said += &report;
    for secret in world.secrets.borrow().iter() {
        assert!(secret.len() > 10 && !said.contains(secret), "a secret was told");
    }
}

/// What `agent hosts` says, by name.
fn hosts(world: &World) -> BTreeMap<String, Value> {
    let told: Value = serde_json::from_str(&world.told(&["hosts", "--json"])).unwrap();
    let hosts = told["hosts"].as_array().unwrap().iter();
    hosts.map(|host| (host["name"].as_str().unwrap().to_owned(), host.clone())).collect()
}
