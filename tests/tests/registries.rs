//! Images of a private registry: pulled with the scheduler's own credentials or the caller's, which are kept nowhere.
//!
//! A real engine in a network namespace, and Debian's docker-registry with a password and TLS. Linux, as root.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde_json::{Value, json};
use tests::cluster::ClusterFolder;
use tests::engine::Engine;
use tests::namespace::Pair;
use tests::registry::PrivateRegistry;
use tests::service::Ended;
use tests::wait::seconds;
use tests::{Executable, Launch, Service, eventually, http, scaled};

/// Longest wait for the answer about a helper that hangs: the scheduler waits 10 s for it.
const HUNG: Duration = Duration::from_secs(30);

/// Longest wait for what takes a second or two.
const LIMIT: Duration = Duration::from_secs(10);

/// A host with an engine and a private registry with the image `box`, and what Docker's client has of the latter.
struct World {
    engine: Engine,
    registry: PrivateRegistry,
    // Dropped after what runs in it.
    _pair: Pair,
    files: ClusterFolder,
}

impl World {
    /// `None`, with a word about it, where there can be none; with `CI=true` that is a failure.
    fn start(tags: &[&str]) -> Option<Self> {
        let pair = Pair::try_new("10.42.0.7")?;
        let registry = PrivateRegistry::start(&pair.host, "10.42.0.1")?;
        let engine = Engine::start_trusting(&pair.host, &[], Some(&registry.authority))?;
        engine.import_box()?;
        let files = ClusterFolder::empty();
        let host = json!({ "name": "one", "uuid": "uuid-one", "memory": "8GiB", "milli_cpu": 4000,
            "labels": { "io.berth.docker.endpoint": format!("unix://{}", engine.socket().display()) } });
        std::fs::write(files.file(), json!({ "berth": 1, "hosts": [host] }).to_string()).unwrap();
        let world = Self { engine, registry, _pair: pair, files };
        world.log_in(&world.registry.address);
        for tag in tags {
            world.publish("box", tag);
        }
        Some(world)
    }

    /// Puts an image of the engine into the registry.
    fn publish(&self, image: &str, tag: &str) {
        let there = self.image(tag);
        self.docker(&["tag", image, &there]);
        self.docker(&["push", &there]);
        self.docker(&["rmi", &there]);
    }

    fn image(&self, tag: &str) -> String {
        format!("{}/box:{tag}", self.registry.address)
    }

    /// The folder of Docker's client that has logged in.
    fn login(&self) -> PathBuf {
        self.files.path("login")
    }

    fn log_in(&self, registry: &str) {
        let (user, password) = (PrivateRegistry::USER, PrivateRegistry::PASSWORD);
        self.docker(&["login", "--username", user, "--password", password, registry]);
    }

    fn docker(&self, arguments: &[&str]) {
        let ended = self.engine.command(arguments).env("DOCKER_CONFIG", self.login()).output().unwrap();
        assert!(ended.status.success(), "{arguments:?} {}", String::from_utf8_lossy(&ended.stderr));
    }

    /// A folder with a configuration of Docker's that names this helper, which this script is.
    fn helper(&self, name: &str, script: &str) -> (PathBuf, String) {
        let folder = self.files.path(name);
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join(format!("docker-credential-{name}"));
        std::fs::write(&program, script).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(&program).status().unwrap().success());
        let config = json!({ "credHelpers": { &self.registry.address: name } });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        (folder, path)
    }

    fn launch(&self) -> Launch {
        Launch::scheduler().with("--source", format!("file:{}", self.files.file().display()))
    }

    fn run(&self, server: SocketAddr, tag: &str, more: &[&str], docker_config: &Path) -> Ended {
        run(server, &self.image(tag), more, docker_config).run()
    }
}

fn start(launch: &Launch) -> (Service, SocketAddr) {
    let mut scheduler = launch.start();
    scheduler.ready();
    let address = scheduler.address();
    (scheduler, address)
}

fn run(server: SocketAddr, image: &str, more: &[&str], docker_config: &Path) -> Launch {
    let words = ["run", "--server", &server.to_string(), "--attempts", "1"].map(ToOwned::to_owned);
    let launch = words.iter().fold(Launch::bare(Executable::Scheduler), Launch::word);
    let launch = more.iter().fold(launch, Launch::word).env("DOCKER_CONFIG", docker_config);
    [image, "/bin/busybox", "sleep", "1000"].iter().fold(launch, Launch::word)
}

#[test]
fn private_images_are_pulled_with_the_scheduler_s_credentials_and_never_without() {
    let Some(world) = World::start(&["file", "helper", "hang"]) else { return };
    let nobody = world.files.path("nobody");
    // One that hangs takes its time, beside the others.
    let (folder, path) = world.helper("hang", "#!/bin/sh\nsleep 1000 &\necho $$ $! >\"$(dirname \"$0\")/pid\"\nwait\n");
    let (_hanging, server) = start(&world.launch().with("--registry-config", &folder).env("PATH", path));
    let mut hung = run(server, &world.image("hang"), &["--platform", "linux"], &nobody).start();

    // None at all: what to type.
    let (_bare, server) = start(&world.launch());
    let ended = world.run(server, "file", &["--name", "none"], &nobody);
    assert_eq!(ended.code, Some(1), "{}", ended.errors);
    let login = format!("docker login {}", world.registry.address);
    for part in ["no basic auth credentials", &login, "--registry-config", "--with-registry-auth"] {
        assert!(ended.errors.contains(part), "{part}: {}", ended.errors);
    }

    // Those of Docker's file, which may come later than the scheduler.
    let late = world.files.path("late");
    let (mut late_scheduler, server) = start(&world.launch().with("--registry-config", late.join("config.json")));
    late_scheduler.line("which file is missing", |line| line.to_string().contains("does not exist"));
    let ended = world.run(server, "file", &["--name", "early"], &nobody);
    assert_eq!(ended.code, Some(1), "{}", ended.errors);
    assert!(ended.errors.contains("has no credentials for") && ended.errors.contains(&login), "{}", ended.errors);
    std::fs::create_dir_all(&late).unwrap();
    std::fs::copy(world.login().join("config.json"), late.join("config.json")).unwrap();
    let ended = world.run(server, "file", &["--name", "of-file"], &nobody);
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    assert!(ended.errors.contains("pulling"), "{}", ended.errors);

    // For which systems a private image is there is asked with them too.
    only_for_windows(&world.registry, "windows");
    let ended = world.run(server, "windows", &["--name", "win"], &nobody);
    assert_eq!(ended.code, Some(1), "{}", ended.errors);
    let text = format!("{}{}", ended.output, ended.errors);
    assert!(text.contains("is for windows 20348.1/amd64, host is linux"), "{text}");

    // Those of a helper.
    let script = format!(
        "#!/bin/sh\n[ \"$1 $(cat)\" = 'get {}' ] || exit 1\nprintf '{{\"ServerURL\":\"x\",\"Username\":\"{}\",\"Secret\":\"{}\"}}'\n",
        world.registry.address,
        PrivateRegistry::USER,
        PrivateRegistry::PASSWORD
    );
    let (folder, path) = world.helper("own", &script);
    let (_helped, server) = start(&world.launch().with("--registry-config", &folder).env("PATH", path));
    let ended = world.run(server, "helper", &["--name", "of-helper"], &nobody);
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);

    // One that fails, and one that is not there, are named with what is to be known.
    let (folder, path) = world.helper("broken", "#!/bin/sh\necho the token has expired\nexit 3\n");
    let (_broken, server) = start(&world.launch().with("--registry-config", &folder).env("PATH", path));
    let ended = world.run(server, "hang", &["--name", "broken"], &nobody);
    for part in ["docker-credential-broken", &world.registry.address, "the token has expired"] {
        assert!(ended.errors.contains(part), "{part}: {}", ended.errors);
    }
    let (_lost, server) = start(&world.launch().with("--registry-config", &folder));
    let ended = world.run(server, "hang", &["--name", "lost"], &nobody);
    assert!(ended.errors.contains("is not on the PATH"), "{}", ended.errors);

    assert_eq!(hung.ended(HUNG).code(), Some(1));
    eventually("its error is read", HUNG, || {
        let log = hung.log();
        let parts = ["docker-credential-hang", &world.registry.address, "has not answered within 10 s"];
        parts.iter().all(|part| log.contains(part)).then_some(())
    });
    let pids = std::fs::read_to_string(world.files.path("hang").join("pid")).unwrap();
    for pid in pids.split_whitespace() {
        eventually("the helper and its children are ended", HUNG, || is_over(pid).then_some(()));
    }
}

#[test]
fn the_caller_s_credentials_serve_one_request_and_are_kept_nowhere() {
    let Some(world) = World::start(&["mine", "later"]) else { return };
    let state = world.files.path("state");
    let launch = world.launch().with("--state-dir", &state).flag("--debug");
    let (scheduler, server) = start(&launch);
    let nobody = world.files.path("nobody");
    let ended = world.run(server, "mine", &["--name", "mine", "--with-registry-auth"], &nobody);
    assert_eq!(ended.code, Some(2), "{}", ended.errors);
    assert!(ended.errors.contains("docker login"), "{}", ended.errors);
    let ended = world.run(server, "mine", &["--name", "mine", "--with-registry-auth"], &world.login());
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    assert!(ended.errors.contains("for this request only"), "{}", ended.errors);
    // The next request has none.
    let ended = world.run(server, "later", &["--name", "later"], &world.login());
    assert_eq!(ended.code, Some(1), "{}", ended.errors);
    assert!(ended.errors.contains("no basic auth credentials"), "{}", ended.errors);
    // Over a network they go with TLS only; nothing is sent there.
    let ended = run("192.0.2.1:8254".parse().unwrap(), &world.image("mine"), &["--with-registry-auth"], &world.login());
    let ended = ended.run();
    assert!(ended.code == Some(2) && ended.errors.contains("in plain text"), "{}", ended.errors);

    let auth = STANDARD.encode(format!("{}:{}", PrivateRegistry::USER, PrivateRegistry::PASSWORD));
    let quoted = format!("\"password\":\"{}\"", PrivateRegistry::PASSWORD);
    let secrets = [PrivateRegistry::PASSWORD.to_owned(), auth, URL_SAFE.encode(&quoted), STANDARD.encode(&quoted)];
    let ledger = std::fs::read_to_string(state.join("ledger.ndjson")).unwrap();
    assert!(ledger.contains("mine"), "{ledger}");
    let inspected = world.engine.docker(&["inspect", "mine"]);
    for text in [ledger, scheduler.log(), inspected] {
        for secret in &secrets {
            // Base64 depends on what stands before: a part of it does not.
            let part = &secret[secret.len() / 3..secret.len() / 3 + 8];
            assert!(!text.contains(part), "{part} in {text}");
        }
    }
}

/// The units of stacks are started, and their images pulled ahead, at any time: with what the scheduler has.
#[test]
fn stacks_have_private_images_by_the_scheduler_s_credentials() {
    let Some(world) = World::start(&["one", "two"]) else { return };
    let file = world.files.path("shop.yml");
    let write = |tag: &str| {
        let text = format!(
            "services:\n  web:\n    image: {}\n    command: [/bin/busybox, sleep, '1000']\n    stop_grace_period: 1s\n    deploy: {{update_config: {{monitor: 1s}}}}\n",
            world.image(tag)
        );
        std::fs::write(&file, text).unwrap();
    };
    let up = |server: SocketAddr| {
        let words = ["up", &file.display().to_string(), "--stack", "shop", "--server", &server.to_string()];
        words.iter().fold(Launch::bare(Executable::Scheduler), Launch::word).run()
    };
    let images = || world.engine.docker(&["ps", "--format", "{{.Image}}"]);
    write("one");
    {
        let (_bare, server) = start(&world.launch());
        let ended = up(server);
        let login = format!("docker login {}", world.registry.address);
        assert!(ended.code == Some(1) && ended.errors.contains(&login), "{}{}", ended.output, ended.errors);
        assert_eq!(images(), "");
    }
    let (_scheduler, server) = start(&world.launch().with("--registry-config", world.login()));
    for tag in ["one", "two"] {
        write(tag);
        let ended = up(server);
        assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
        assert_eq!(images().trim(), world.image(tag));
    }
    // One that does not come is known before what runs is stopped.
    write("three");
    let ended = up(server);
    let said = ended.output + &ended.errors;
    assert!(ended.code == Some(1) && said.contains("did not come to host"), "{said}");
    assert_eq!(images().trim(), world.image("two"));
}

#[test]
fn rm_gives_up_a_pull_that_goes_on() {
    let Some(world) = World::start(&[]) else { return };
    // With a layer that the engine does not have from elsewhere.
    world.engine.import("other", &[Path::new("/bin/busybox")], &[("other", "busybox")]);
    world.publish("other", "slow");
    world.docker(&["rmi", "other"]);
    let slow = world.registry.behind_a_bottleneck();
    world.log_in(&slow.address);
    let (_scheduler, server) = start(&world.launch().with("--registry-config", world.login()));
    let image = format!("{}/box:slow", slow.address);
    let mut pulling = run(server, &image, &["--name", "slow", "--platform", "linux"], &world.login()).start();
    slow.holds_a_layer();
    let command = |words: &[&str]| {
        let launch = words.iter().fold(Launch::bare(Executable::Scheduler), Launch::word);
        launch.with("--server", server.to_string()).run()
    };
    let shown = command(&["ps"]);
    assert!(shown.output.contains(&format!("pulling {image}")), "{}", shown.output);
    // It is answered though the layer never comes, and the engine waits for it no longer.
    let removed = command(&["rm", "slow"]);
    assert_eq!((removed.code, &*removed.output), (Some(0), "slow\n"), "{}", removed.errors);
    let given_up = || world.engine.log().contains("Not continuing with pull after error: context canceled");
    eventually("the engine gives it up", LIMIT, || given_up().then_some(()));
    assert_eq!(pulling.ended(LIMIT).code(), Some(1), "{}", pulling.log());
    let shown: Value = serde_json::from_str(&command(&["ps", "--json"]).output).unwrap();
    assert_eq!(shown["placements"], json!([]));
    assert!(world.engine.names().is_empty(), "{:?}", world.engine.names());
    // The same image can be had right after that, by the way that is not slow.
    let ended = world.run(server, "slow", &["--name", "quick", "--platform", "linux"], &world.login());
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
}

#[test]
fn a_registry_that_does_not_answer_delays_nobody_else() {
    // One after another they take minutes.
    const IMAGES: usize = 30;
    let Some(world) = World::start(&[]) else { return };
    let (_scheduler, server) = start(&world.launch());
    // No host has this address.
    let image = |number: usize| format!("10.42.0.200:5000/{number}");
    let sidekicks: Vec<_> =
        (1..IMAGES).map(|number| json!({ "name": format!("side-{number}"), "image": image(number) })).collect();
    let body = json!({ "id": "away", "image": image(0), "sidekicks": sidekicks, "start": true, "attempts": 1 });
    let asked = http::post("/v1/placements", body.to_string()).within(seconds(60));
    std::thread::spawn(move || drop(asked.send(server)));
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    let ended = run(server, "box", &["--name", "here"], &world.files.path("nobody")).run();
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    assert!(begun.elapsed() < scaled(LIMIT), "{:?}", begun.elapsed());
}

/// Whether a process is no more; one that nobody waits for is none.
fn is_over(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| stat.contains(") Z ")) || !Path::new("/proc").join(pid).exists()
}

/// Puts an index into the registry that has the image only for a build of Windows.
fn only_for_windows(registry: &PrivateRegistry, tag: &str) {
    const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    let accept = format!("Accept: {MANIFEST}");
    let answer = registry.ask("/v2/box/manifests/file", &["--header", &accept]);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let digest = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("docker-content-digest").then_some(value)
    });
    let kind = "application/vnd.docker.distribution.manifest.list.v2+json";
    let entry = json!({ "mediaType": MANIFEST, "digest": digest.unwrap(), "size": body.len(),
        "platform": { "os": "windows", "architecture": "amd64", "os.version": "10.0.20348.1" } });
    let list: Value = json!({ "schemaVersion": 2, "mediaType": kind, "manifests": [entry] });
    let (content, list) = (format!("Content-Type: {kind}"), list.to_string());
    registry.ask(&format!("/v2/box/manifests/{tag}"), &["--request", "PUT", "--header", &content, "--data", &list]);
}
