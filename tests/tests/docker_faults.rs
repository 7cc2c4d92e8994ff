//! A real Docker Engine that fails as a source: it dies, hangs, refuses and does not tell, and nothing is taken back on
//! suspicion.
//!
//! Linux, as root, with Debian's docker.io and busybox-static; images are imported, since there is no registry.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tests::engine::{Boxed, Engine};
use tests::etcd::Etcd;
use tests::followed::Followed;
use tests::http::get;
use tests::{Executable, Launch, eventually};

const LIMIT: Duration = Duration::from_secs(30);

/// Stands between an engine and who asks it. Its threads end with the process.
struct Meddler {
    /// Where it listens.
    socket: PathBuf,
    harms: Arc<Mutex<Harms>>,
    _folder: TempDir,
}

/// Parts of request lines that are not passed on.
#[derive(Default)]
struct Harms {
    /// Those that are answered with an error.
    refused: Vec<String>,
    /// Those that are never answered.
    swallowed: Vec<String>,
}

impl Meddler {
    /// One that does no harm yet.
    fn before(engine: &Engine) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let socket = folder.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).expect("the folder is ours");
        let meddler = Self { socket, harms: Arc::default(), _folder: folder };
        let (harms, target) = (meddler.harms.clone(), engine.socket());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // What cannot be connected is closed, as by an engine that is not there.
                let _ = connect(client, &target, harms.clone());
            }
        });
        meddler
    }

    /// From now on refuses requests that have one of these in their first line.
    fn refuse(&self, parts: &[&str]) {
        lock(&self.harms).refused = parts.iter().map(ToString::to_string).collect();
    }

    /// From now on keeps requests to itself that have one of these in their first line.
    fn swallow(&self, parts: &[&str]) {
        lock(&self.harms).swallowed = parts.iter().map(ToString::to_string).collect();
    }
}

fn connect(client: UnixStream, target: &Path, harms: Arc<Mutex<Harms>>) -> io::Result<()> {
    let engine = UnixStream::connect(target)?;
    let (mut from, mut to) = (engine.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || pass_on(client, engine, &harms));
    Ok(())
}

/// Passes requests on, which have no bodies and come one after the other.
fn pass_on(mut client: UnixStream, mut engine: UnixStream, harms: &Mutex<Harms>) -> io::Result<()> {
    let mut head = Vec::new();
    loop {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.extend(byte);
        if head.ends_with(b"\r\n\r\n") {
            let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
            let has = |parts: &[String]| parts.iter().any(|part| line.contains(part.as_str()));
            let (refused, swallowed) = {
                let harms = lock(harms);
                (has(&harms.refused), has(&harms.swallowed))
            };
            if refused {
                let body = r#"{"message": "out of sorts"}"#;
                let kind = "Content-Type: application/json";
                let length = body.len();
                let answer = format!("HTTP/1.1 500 No\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
                client.write_all(answer.as_bytes())?;
            } else if !swallowed {
                engine.write_all(&head)?;
            }
            head.clear();
        }
    }
}

fn lock(harms: &Mutex<Harms>) -> MutexGuard<'_, Harms> {
    harms.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn one_container_that_cannot_be_inspected_harms_no_other() {
    let Some(world) = Boxed::start() else { return };
    let (one, two) = (world.engine.run_box("one", &[]), world.engine.run_box("two", &[]));
    let meddler = Meddler::before(&world.engine);
    meddler.refuse(&[&one]);
    let followed = Followed::at_socket(&meddler.socket);
    followed.ready();
    assert_eq!(followed.names(), ["two"]);
    let told = followed.told.load_full();
    let defects: Vec<_> = told.defects.iter().map(ToString::to_string).collect();
    assert!(defects.len() == 1 && defects[0].contains(&one) && defects[0].contains("out of sorts"), "{defects:?}");
    // It is asked about again by itself; and what was known stays when it can no longer be asked.
    meddler.refuse(&[]);
    followed.until("one", "state", &json!("running"));
    assert_eq!(followed.told.load_full().defects, []);
    meddler.refuse(&[&two]);
    world.engine.docker(&["pause", "two"]);
    world.engine.docker(&["pause", "one"]);
    followed.until("one", "state", &json!("stopping"));
    eventually("it is reported", LIMIT, || (followed.told.load_full().defects.len() == 1).then_some(()));
    assert_eq!(followed.container("two").unwrap()["state"], "running");

    // A list that fails takes nobody away.
    meddler.refuse(&["/containers/json"]);
    let refused = followed.reload().unwrap_err();
    assert!(refused.contains("out of sorts") && followed.reason().contains("out of sorts"), "{refused}");
    assert_eq!(followed.names(), ["one", "two"]);
    meddler.refuse(&[]);
    followed.ready();
    followed.until("two", "state", &json!("stopping"));
    world.engine.docker(&["unpause", "two"]);
    followed.until("two", "state", &json!("running"));
}

#[test]
fn what_events_did_not_tell_is_read_all_the_same() {
    let Some(world) = Boxed::start() else { return };
    world.engine.run_box("leaves", &[]);
    let meddler = Meddler::before(&world.engine);
    meddler.swallow(&["/events"]);
    let followed = Followed::at_socket(&meddler.socket);
    followed.ready();
    assert_eq!(followed.names(), ["leaves"]);
    world.engine.run_box("comes", &[]);
    world.engine.docker(&["rm", "--force", "leaves"]);
    assert_eq!(followed.names(), ["leaves"]);
    followed.reload().unwrap();
    assert_eq!(followed.names(), ["comes"]);
    // By itself it is read once a minute, give or take a tenth.
    world.engine.run_box("later", &[]);
    let reading = Duration::from_secs(75);
    eventually("it is read by itself", reading, || (followed.names() == ["comes", "later"]).then_some(()));
}

#[test]
fn an_engine_that_hangs_is_noticed_within_seconds() {
    let Some(world) = Boxed::start() else { return };
    world.engine.run_box("web", &[]);
    let followed = Followed::new(&world.engine);
    followed.ready();
    world.engine.hang();
    // Silence of 3 s, and 5 s without an answer.
    let noticed = Duration::from_secs(12);
    eventually("it is noticed", noticed, || followed.reason().contains("has not answered").then_some(()));
    assert_eq!(followed.names(), ["web"]);
    world.engine.go_on();
    followed.ready();
    assert_eq!(followed.names(), ["web"]);
}

#[test]
fn a_restart_while_the_engine_hangs_takes_no_host_out_of_the_cluster() {
    let (Some(world), Some(etcd)) = (Boxed::start(), Etcd::start(1)) else { return };
    world.engine.run_box("web", &[]);
    let state = tempfile::tempdir().unwrap();
    let launch = Launch::served(Executable::Metadata)
        .with("--source", format!("etcd:{}", etcd.urls()))
        .with("--etcd-lease", "3")
        .with("--state-dir", state.path())
        .flag(&format!("--docker=unix://{}", world.engine.socket().display()))
        .logged();
    // What stands on disk is a moment behind.
    let stored = || std::fs::read_to_string(state.path().join("host.json")).is_ok_and(|text| text.contains("web"));
    let mut service = launch.start();
    service.ready();
    eventually("it is stored", LIMIT, || stored().then_some(()));
    service.stop();
    world.engine.hang();

    let mut service = launch.start();
    let address = service.address();
    let is_there = || get("/latest/containers/web/name").ask(address).text() == "web";
    eventually("what was known is published", LIMIT, || is_there().then_some(()));
    // Its lease and the grace of those who follow would be over.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        assert!(is_there(), "after {:?}", begun.elapsed());
        sleep(Duration::from_millis(100));
    }
    world.engine.go_on();
    service.ready();
    assert!(is_there());
}

#[test]
fn a_lost_engine_leaves_what_it_said_last() {
    let Some(mut world) = Boxed::start() else { return };
    world.engine.run_box("keeps", &["--restart", "always"]);
    world.engine.run_box("ends", &[]);
    // Absent at start.
    world.engine.kill();
    std::fs::remove_file(world.engine.socket()).unwrap();
    let followed = Followed::new(&world.engine);
    eventually("it says what to do", LIMIT, || followed.reason().contains("start the engine").then_some(()));
    assert_eq!(followed.names(), [""; 0]);
    let refused = followed.reload().unwrap_err();
    assert!(refused.contains("start the engine"), "{refused}");
    world.engine.restart();
    followed.ready();
    assert_eq!(followed.names(), ["ends", "keeps"]);
    // Without live-restore an engine ends what ran without it, and starts again what wants to be.
    followed.until("keeps", "state", &json!("running"));
    followed.until("ends", "state", &json!("stopped"));

    // Killed while it is followed, twice: nothing is taken back until it says so itself.
    for _ in 0..2 {
        let before = followed.document();
        world.engine.kill();
        eventually("it is missed", LIMIT, || (!followed.reason().is_empty()).then_some(()));
        // Schedulers are to know that, and nothing else is different.
        let said = || (followed.document()["hosts"][0]["agent_state"] == "without its Docker Engine").then_some(());
        eventually("the host says so", LIMIT, said);
        let mut after = followed.document();
        after["hosts"][0].as_object_mut().map(|host| host.remove("agent_state"));
        assert_eq!(after, before);
        world.engine.restart();
        followed.ready();
        assert_eq!(followed.document()["hosts"][0].get("agent_state"), None);
        assert_eq!(followed.names(), ["ends", "keeps"]);
        followed.until("keeps", "state", &json!("running"));
    }
    world.engine.docker(&["start", "ends"]);
    followed.until("ends", "state", &json!("running"));
    followed.reload().unwrap();
    world.engine.docker(&["rm", "--force", "ends", "keeps"]);
    eventually("both are gone", LIMIT, || followed.names().is_empty().then_some(()));
}
