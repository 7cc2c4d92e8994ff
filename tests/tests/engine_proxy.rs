//! `agent engine-proxy` before a real Docker Engine: a process without privileges does its work through it, and nothing
//! else can be done through it.
//!
//! Linux, as root, with Debian's docker.io, busybox-static and util-linux.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::engine::{Boxed, try_docker_at};
use tests::shared::there;
use tests::{Executable, Launch, Service, binaries, eventually, http, scaled};

const LIMIT: Duration = Duration::from_secs(30);

/// Longest time until an idle agent has ended.
const STOPPED: Duration = Duration::from_secs(3);

/// User and group without rights, which nothing else runs as.
const USER: u32 = 64123;

/// Starts a program as that user, without any privilege and without a way to get one.
const UNPRIVILEGED: [&str; 6] =
    ["setpriv", "--reuid=64123", "--regid=64123", "--clear-groups", "--no-new-privs", "--bounding-set=-all"];

struct Proxied {
    world: Boxed,
    _proxy: Service,
    folder: tempfile::TempDir,
}

impl Proxied {
    fn start() -> Option<Self> {
        Self::with_policy(None)
    }

    /// The proxy with the text of a policy.
    fn with_policy(policy: Option<&str>) -> Option<Self> {
        if !there(&[("setpriv", "--version")], "util-linux") {
            return None;
        }
        let world = Boxed::start()?;
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let socket = format!("unix://{}", folder.path().join("engine.sock").display());
        let engine = format!("--docker=unix://{}", world.engine.socket().display());
        let mut launch = Launch::bare(Executable::Agent).word("engine-proxy").word(engine).logged();
        if let Some(policy) = policy {
            let path = folder.path().join("policy.yml");
            std::fs::write(&path, policy).unwrap();
            launch = launch.with("--policy", path);
        }
        let mut proxy = launch.with("--listen", socket).with("--group", USER.to_string()).start();
        proxy.line("it serves", |line| line["message"] == "serving");
        Some(Self { world, _proxy: proxy, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> String {
        format!("unix://{}", self.path("engine.sock").display())
    }

    /// What is answered to a request with a body.
    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let curl = ["--silent", "--max-time", "20", "--header", "Content-Type: application/json", "--unix-socket"];
        let mut command = Command::new("curl");
        command.args(curl).arg(self.path("engine.sock")).args(["--request", method, "--data-binary", body]);
        String::from_utf8(command.arg(format!("http://x{path}")).output().unwrap().stdout).unwrap()
    }

    /// What Docker's own client says, asked through the proxy.
    fn docker(&self, arguments: &[&str]) -> Result<String, String> {
        try_docker_at(&self.path("engine.sock"), arguments)
    }
}

#[test]
fn an_agent_without_privileges_shows_and_starts_containers() {
    let Some(proxied) = Proxied::start() else { return };
    proxied.world.engine.run_box("web", &["--env", "PASSWORD=secret"]);
    // Where the user may read it.
    let executable = proxied.path("agent");
    std::fs::copy(binaries::native("agent"), &executable).unwrap();
    // Each user reads its own.
    let (token, ours) = (proxied.path("token"), proxied.path("ours"));
    for token in [&token, &ours] {
        std::fs::write(token, "0123456789abcdef0123456789abcdef\n").unwrap();
        std::fs::set_permissions(token, Permissions::from_mode(0o600)).unwrap();
    }
    let state = proxied.path("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    for path in [&state, &token] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let docker = format!("--docker={}", proxied.socket());
    let launch = Launch::bare(Executable::Agent).word("up").word(docker).logged().executable(&executable);
    let launch = launch.with("--state-dir", &state).with("--token-file", &token).through(&UNPRIVILEGED);
    let ports = ["--metadata", "--dns", "--scheduler", "--admin"];
    let mut agent = ports.iter().fold(launch, |launch, flag| launch.with(flag, "127.0.0.1:0")).start();
    let (metadata, scheduler) = (agent.address_of("metadata"), agent.address_of("scheduler"));
    let names = || {
        let containers: Value = http::get("/latest/containers").json().ask(metadata).value();
        let mut names: Vec<String> =
            containers.as_array()?.iter().map(|container| container["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        Some(names)
    };
    eventually("the container is known", LIMIT, || names().filter(|names| names == &["web"]));
    let command = |words: &[&str]| {
        let (server, token) = (scheduler.to_string(), ours.display().to_string());
        let ask = [words[0], "--server", &server, "--token-file", &token];
        ask.iter().chain(&words[1..]).fold(Launch::bare(Executable::Scheduler), Launch::word)
    };
    let image = ["box", "/bin/busybox", "sleep", "1000"];
    let run =
        |words: &[&str]| words.iter().chain(&image).fold(command(&["run", "--platform", "linux"]), Launch::word).run();
    let ended = run(&["--name", "placed"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    eventually("its start is known by an event", LIMIT, || names().filter(|names| names == &["placed", "web"]));
    let ended = command(&["rm", "placed"]).run();
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert_eq!(proxied.world.engine.names(), ["web".to_owned()].into());
}

/// One command, started as root: what containers talk to has neither root's rights nor the engine's socket.
#[test]
fn what_containers_talk_to_gives_up_root_and_the_engine() {
    let Some(world) = Boxed::start() else { return };
    world.engine.run_box("web", &[]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let state = folder.path().join("state");
    let docker = format!("--docker=unix://{}", world.engine.socket().display());
    let launch = Launch::bare(Executable::Agent).word("up").word(docker).logged();
    let launch = launch.with("--state-dir", &state).with("--user", USER.to_string());
    let ports = ["--metadata", "--dns", "--scheduler", "--admin"];
    let launch = ports.iter().fold(launch, |launch, flag| launch.with(flag, "127.0.0.1:0"));
    for round in 0..3 {
        let mut agent = launch.start();
        let (metadata, pid) = (agent.address_of("metadata"), agent.pid());
        eventually("the container is known", LIMIT, || {
            http::get("/latest/containers").ask(metadata).text().contains("web").then_some(())
        });
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let has = |line: &str| status.lines().any(|one| one.split_whitespace().eq(line.split_whitespace()));
        for line in [
            "Uid: 64123 64123 64123 64123",
            "Gid: 64123 64123 64123 64123",
            "Groups:",
            "CapInh: 0000000000000000",
            "CapPrm: 0000000000000400",
            "CapEff: 0000000000000400",
            "CapBnd: 0000000000000400",
            "CapAmb: 0000000000000000",
            "NoNewPrivs: 1",
            "Seccomp: 2",
        ] {
            assert!(has(line), "{line} in {status}");
        }
        // The socket that it has passes on little; the engine's own is for root.
        let listening = format!("/run/berth-engine.{pid}/engine.sock");
        let stop = try_docker_at(listening.as_ref(), &["stop", "web"]);
        assert!(stop.unwrap_err().contains("was not started by a scheduler"));
        assert_eq!(std::fs::metadata(&state).unwrap().uid(), USER);
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let is_proxy = |child: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap();
            line.contains("\0engine-proxy\0")
        };
        // The other one is the broker (broker.rs).
        let children: Vec<u32> = children.split_whitespace().map(|child| child.parse().unwrap()).collect();
        let proxy = *children.iter().find(|child| is_proxy(child)).unwrap();
        assert_eq!(children.len(), 2);
        if round == 0 {
            // However it ends, nothing stays.
            agent.kill();
        } else if round == 1 {
            // Nothing that was in hand is waited for.
            let begun = Instant::now();
            agent.stop();
            assert!(begun.elapsed() < scaled(STOPPED), "{:?}", begun.elapsed());
            assert!(!agent.log().contains("did not end in time"), "{}", agent.log());
        } else {
            assert!(Command::new("kill").args(["-KILL", &proxy.to_string()]).status().unwrap().success());
            assert_eq!(agent.ended(LIMIT).code(), Some(1));
            assert!(agent.log().contains("the process with the engine's socket ended"), "{}", agent.log());
            std::fs::remove_dir_all(format!("/run/berth-engine.{pid}")).unwrap();
        }
        eventually("the others end too", LIMIT, || {
            let folder = std::path::Path::new(&listening).parent()?;
            let is_gone = |child: &u32| !std::path::Path::new(&format!("/proc/{child}")).exists();
            (children.iter().all(is_gone) && !folder.exists()).then_some(())
        });
    }
    for (user, why) in [
        ("no such user", "--user"),
        ("nobody", "useradd --system"),
        ("65534", "useradd --system"),
        ("4294967295", "no user"),
    ] {
        let refused = launch.clone().with("--user", user).run();
        assert!(refused.code != Some(0) && refused.errors.contains(why), "{user}: {}", refused.errors);
    }
}

#[test]
fn nothing_secret_is_read_through_the_proxy() {
    let Some(proxied) = Proxied::start() else { return };
    let engine = &proxied.world.engine;
    engine.docker(&["network", "create", "--opt", "com.docker.network.bridge.name=br-secret", "shop"]);
    let health = ["--health-cmd", "echo secret", "--health-interval", "200ms"];
    let more = ["--env", "PASSWORD=secret", "--log-opt", "tag=secret", "--volume", "/tmp:/secret", "--network", "shop"];
    engine.run_box("web", &[&health[..], &more].concat());
    engine.docker(&["commit", "--change", "ENV PASSWORD=secret", "--change", "LABEL a=b", "web", "shown"]);
    engine.docker(&["exec", "web", "/bin/busybox", "echo", "secret"]);
    eventually("its health was checked", LIMIT, || {
        let shown = engine.docker(&["inspect", "web"]);
        shown.contains("\"Output\": \"secret").then_some(())
    });
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let events = format!("/events?since=1&until={}", now + 1);
    let get = |path: &str, socket: PathBuf| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "20", "--unix-socket"]).arg(socket).arg(format!("http://x{path}"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    for (path, part) in [
        ("/containers/web/json", "\"Health\":{\"FailingStreak\":0,\"Log\":[{\"ExitCode\":0}"),
        ("/v1.41/containers/web/json?size=true", "\"IPAddress\""),
        ("/containers/json?all=true", "/web"),
        ("/images/shown/json", "\"a\":\"b\""),
        ("/networks", "\"shop\""),
        ("/networks/shop", "\"shop\""),
        (&events, "\"Action\":\"exec_create\""),
        (&events, "\"Action\":\"health_status\""),
    ] {
        let whole = get(path, engine.socket());
        assert!(path.contains("containers/json") || whole.contains("secret"), "{path} has nothing to hide: {whole}");
        let shown = get(path, proxied.path("engine.sock"));
        assert!(shown.contains(part) && !shown.contains("secret"), "{path}: {shown}");
    }
}

/// The engine connects to the host that an image's name says, and tells what it found: also when nothing is pulled.
#[test]
fn no_registry_is_asked_for_an_image_that_the_policy_does_not_allow() {
    let policy = r#"default: {images: ["127.0.0.1:1/allowed/*"]}"#;
    let Some(proxied) = Proxied::with_policy(Some(policy)) else { return };
    let get = |method: &str, path: &str| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "20", "--request", method, "--unix-socket"]);
        command.arg(proxied.path("engine.sock")).arg(format!("http://x{path}"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    for image in ["127.0.0.1:1/other/web", "169.254.169.254/latest/web", "web", "127.0.0.1:1/allowed"] {
        let shown = get("GET", &format!("/v1.41/distribution/{image}/json"));
        assert!(shown.contains("images") && !shown.contains("dial"), "{image}: {shown}");
        let shown = get("POST", &format!("/v1.41/images/create?fromImage={}", image.replace('/', "%2F")));
        assert!(shown.contains("images") && !shown.contains("dial"), "{image}: {shown}");
    }
    // Nothing listens there.
    let shown = get("GET", "/v1.41/distribution/127.0.0.1:1/allowed/web/json");
    assert!(shown.contains("connection refused"), "{shown}");
}

#[test]
fn half_requests_take_no_places_from_others() {
    let Some(proxied) = Proxied::start() else { return };
    let (socket, halves) = (proxied.path("engine.sock"), 300);
    let half = |text: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    for text in [
        "GET /v1.41/info HTTP/1.1\r\nHost: x\r\n",
        "POST /v1.41/containers/create HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
    ] {
        let mut open: Vec<UnixStream> = (0..halves).map(|_| half(text)).collect();
        let begun = Instant::now();
        proxied.docker(&["ps"]).unwrap();
        assert!(begun.elapsed() < scaled(Duration::from_secs(1)), "{:?}", begun.elapsed());
        // The oldest were ended for the others.
        let first = &mut open[0];
        first.set_read_timeout(Some(scaled(LIMIT))).unwrap();
        let _ = first.read_to_end(&mut Vec::new());
    }
    // A single one is ended soon, too.
    let mut stream = half("GET /v1.41/in");
    let begun = Instant::now();
    stream.set_read_timeout(Some(scaled(LIMIT))).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    assert!(begun.elapsed() < scaled(Duration::from_secs(5)), "{:?}", begun.elapsed());
}

#[test]
fn the_proxy_gives_its_socket_to_no_user_that_others_run_as() {
    if !there(&[("setpriv", "--version")], "util-linux") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let (path, executable) = (folder.path().join("engine.sock"), folder.path().join("agent"));
    std::fs::copy(binaries::native("agent"), &executable).unwrap();
    let engine = format!("--docker=unix://{}", folder.path().join("none.sock").display());
    let launch = Launch::bare(Executable::Agent).word("engine-proxy").word(engine).executable(&executable);
    let launch = launch.with("--listen", format!("unix://{}", path.display()));
    let as_user = |user: &str, group: &str| {
        let (user, group) = (format!("--reuid={user}"), format!("--regid={group}"));
        launch.clone().through(&["setpriv", &user, &group, "--clear-groups"])
    };
    for refused in [
        launch.clone().with("--group", "nogroup"),
        launch.clone().with("--group", "65534"),
        as_user("65534", "64123"),
        as_user("64123", "65534"),
    ] {
        let ended = refused.run();
        assert!(ended.code != Some(0) && ended.errors.contains("useradd --system berth"), "{}", ended.errors);
        assert!(!path.exists() && !path.with_extension("new").exists());
    }
}

#[test]
fn nobody_gets_at_a_host_or_at_others_containers_through_the_proxy() {
    let Some(proxied) = Proxied::start() else { return };
    let engine = &proxied.world.engine;
    engine.run_box("web", &["--env", "PASSWORD=secret"]);
    let label = "--label=io.berth.request=r1";
    engine.run_box("placed", &[label, "--env", "PASSWORD=secret"]);

    // What is read is without secrets.
    assert!(proxied.docker(&["ps", "--format", "{{.Names}}"]).unwrap().contains("web"));
    let shown = proxied.docker(&["inspect", "web"]).unwrap();
    assert!(shown.contains("\"web\"") || shown.contains("/web"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");

    // What an image brings makes no container one of a scheduler's.
    engine.docker(&["commit", "--change", "LABEL io.berth.request=r2", "web", "baked"]);
    engine.docker(&["run", "--detach", "--name", "stranger", "baked", "/bin/busybox", "sleep", "1000"]);

    // One that a scheduler started is its own even if its image has the same request.
    let given = ["--label=io.berth.request=r2", "--label=io.berth.attempt=4c1d"];
    engine.docker(
        &[&["run", "--detach", "--name", "own"], &given[..], &["baked", "/bin/busybox", "sleep", "1000"]].concat(),
    );
    proxied.docker(&["logs", "own"]).unwrap();

    // The image of one may be gone, with what it would show.
    engine.docker(&["commit", "web", "gone"]);
    engine.docker(&["run", "--detach", "--name", "orphan", label, "gone", "/bin/busybox", "sleep", "1000"]);
    proxied.docker(&["logs", "orphan"]).unwrap();
    engine.docker(&["stop", "--time", "0", "orphan"]);
    engine.docker(&["rmi", "--force", "gone"]);

    let before = engine.docker(&["ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}} {{.State}}"]);
    let sleep = ["box", "/bin/busybox", "sleep", "1000"];
    let create = |flags: &[&'static str]| [&["create"], flags, &sleep].concat();
    for (arguments, why) in [
        (vec!["exec", "web", "/bin/busybox", "id"], "does not pass"),
        (vec!["stop", "web"], "was not started by a scheduler"),
        (vec!["rm", "--force", "web"], "was not started by a scheduler"),
        (vec!["logs", "web"], "was not started by a scheduler"),
        (vec!["stop", "stranger"], "was not started by a scheduler"),
        (vec!["logs", "stranger"], "was not started by a scheduler"),
        (vec!["logs", "orphan"], "its image is gone"),
        (vec!["rm", "--force", "orphan"], "its image is gone"),
        (vec!["cp", "web:/etc/passwd", "-"], "does not pass"),
        (vec!["rename", "placed", "x"], "does not pass"),
        (vec!["update", "--memory", "1g", "placed"], "does not pass"),
        (vec!["commit", "placed", "x"], "does not pass"),
        (vec!["volume", "prune", "--force"], "does not pass"),
        (vec!["network", "create", "x"], "does not pass"),
        (vec!["image", "rm", "box"], "does not pass"),
        (vec!["swarm", "init"], "does not pass"),
        (vec!["tag", "box", "x"], "does not pass"),
        (create(&[label]), "no field that the scheduler sets"),
    ] {
        let error = proxied.docker(&arguments).expect_err(&arguments.join(" "));
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
    assert_eq!(engine.docker(&["ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}} {{.State}}"]), before);

    // A body as the scheduler writes it, with what it may not have.
    let body = |host: &str| {
        format!(r#"{{"Image":"box","Cmd":["true"],"Labels":{{"io.berth.request":"r2"}},"HostConfig":{host}}}"#)
    };
    let post = |path: &str, body: &str| {
        let curl = ["--silent", "--max-time", "20", "--header", "Content-Type: application/json", "--unix-socket"];
        let socket = proxied.path("engine.sock");
        let mut command = Command::new("curl");
        command.args(curl).arg(socket).args(["--path-as-is", "--data", body]).arg(format!("http://x{path}"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    // Also by an id, or the beginning of one.
    let id = |what: &[&str]| engine.docker(&[what, &["--format", "{{.Id}}"]].concat());
    let (host_network, web) = (id(&["network", "inspect", "host"]), id(&["inspect", "web"]));
    for (host, why) in [
        (r#"{"Binds":["/:/host"]}"#, "bind_sources"),
        (r#"{"NetworkMode":"host"}"#, "networks"),
        (&format!(r#"{{"NetworkMode":"{host_network}"}}"#), "networks"),
        (&format!(r#"{{"NetworkMode":"{}"}}"#, &host_network[..12]), "networks"),
        (r#"{"NetworkMode":"no-such-network"}"#, "No such network"),
        (r#"{"NetworkMode":"container:web"}"#, "joins"),
        (&format!(r#"{{"NetworkMode":"container:{}"}}"#, &web[..12]), "the container web"),
        (&format!(r#"{{"VolumesFrom":["{web}:ro"]}}"#), "the container web"),
        (r#"{"VolumesFrom":["placed"]}"#, "joins"),
        (r#"{"NetworkMode":"container:stranger"}"#, "joins"),
        (r#"{"privileged":true}"#, "no field"),
        (r#"{"Privileged":true}"#, "privileges"),
        (r#"{"CapAdd":["NET_ADMIN"]}"#, "privileges"),
        (r#"{"PidMode":"host"}"#, "privileges"),
        (r#"{"Devices":[{"PathOnHost":"/dev/null"}]}"#, "privileges"),
        (r#"{"Runtime":"other"}"#, "no field"),
        (r#"{},"NetworkingConfig":{"EndpointsConfig":{"host":{}}}"#, "NetworkingConfig"),
    ] {
        let answer = post("/v1.41/containers/create?name=evil", &body(host));
        assert!(answer.contains(why), "{host}: {answer}");
    }
    for path in ["/containers/../containers/web/exec", "/v1.41/containers/web/exec", "/containers/web%2fexec", "/build"]
    {
        let answer = post(path, "{}");
        assert!(answer.contains("does not pass"), "{path}: {answer}");
    }
    assert!(!engine.names().contains("evil"));
    // The last one of two equal fields counts, and the engine is sent that one alone.
    let twice = r#"{"Image":"box","Cmd":["/bin/busybox"],"Labels":{"io.berth.request":"r2"},"HostConfig":{"Privileged":true},"HostConfig":{}}"#;
    let answer = post("/v1.41/containers/create?name=fine", twice);
    assert!(answer.contains("\"Id\""), "{answer}");
    assert_eq!(engine.docker(&["inspect", "--format", "{{.HostConfig.Privileged}}", "fine"]), "false");
    let bridge = format!(r#"{{"NetworkMode":"{}"}}"#, id(&["network", "inspect", "bridge"]));
    let answer = post("/v1.41/containers/create?name=bridged", &body(&bridge));
    assert!(answer.contains("\"Id\""), "{answer}");
    // Whose network is joined is of the same request.
    let joined = r#"{"Image":"box","Cmd":["/bin/busybox"],"Labels":{"io.berth.request":"r1"},"HostConfig":{"NetworkMode":"container:placed"}}"#;
    let answer = post("/v1.41/containers/create?name=sidekick", joined);
    assert!(answer.contains("\"Id\""), "{answer}");
    proxied.docker(&["rm", "--force", "sidekick"]).unwrap();
}

#[test]
fn volumes_are_made_and_removed_through_the_proxy_for_stacks_alone() {
    let Some(proxied) = Proxied::start() else { return };
    let engine = &proxied.world.engine;
    engine.docker(&[
        "volume",
        "create",
        "--opt",
        "type=tmpfs",
        "--opt",
        "o=size=1m,uid=4242",
        "--opt",
        "device=tmpfs",
        "theirs",
    ]);
    let ask = |method: &str, path: &str, body: &str| proxied.ask(method, path, body);
    let labels = r#""Labels":{"io.berth.stack":"shop","io.berth.ledger":"l1"}"#;
    let make = |more: &str| ask("POST", "/v1.41/volumes/create", &format!("{{{more}}}"));
    let own = make(&format!(r#""Name":"data",{labels}"#));
    assert!(own.contains("Mountpoint"), "{own}");
    for (body, why) in [
        (r#""Name":"xx""#.to_owned(), "not made for a stack"),
        (r#""Name":"xx","Labels":{"io.berth.stack":"shop"}"#.to_owned(), "not made for a stack"),
        (format!(r#""Name":"xx",{labels},"DriverOpts":{{"type":"none","o":"bind","device":"/"}}"#), "no field"),
        (format!(r#""Name":"xx",{labels},"Driver":"other""#), "privileges"),
        (format!(r#""Name":"../x",{labels}"#), "no name"),
    ] {
        let answer = make(&body);
        assert!(answer.contains(why), "{body}: {answer}");
    }
    // One that is there stays as it is, and its options are shown to nobody.
    let there = make(&format!(r#""Name":"theirs",{labels}"#));
    assert!(there.contains("Mountpoint") && !there.contains("4242"), "{there}");
    let filters = "/v1.41/volumes?filters=%7B%22label%22%3A%5B%22io.berth.stack%3Dshop%22%5D%7D";
    let listed = ask("GET", filters, "");
    assert!(listed.contains("\"data\"") && !listed.contains("theirs"), "{listed}");
    let all = ask("GET", "/v1.41/volumes", "");
    assert!(all.contains("theirs") && !all.contains("4242"), "{all}");
    for (path, why) in [
        ("/v1.41/volumes/theirs", "not made for a stack"),
        ("/v1.41/volumes/data?force=true", "does not pass"),
        ("/v1.41/volumes/none", "No such volume"),
    ] {
        let answer = ask("DELETE", path, "");
        assert!(answer.contains(why), "{path}: {answer}");
    }
    assert_eq!(ask("DELETE", "/v1.41/volumes/data", ""), "");
    assert_eq!(engine.docker(&["volume", "ls", "--quiet"]).trim(), "theirs");
}

#[test]
fn files_are_put_through_the_proxy_into_containers_before_their_start_alone() {
    let Some(proxied) = Proxied::start() else { return };
    let engine = &proxied.world.engine;
    let create = |name: &str, more: &[&str]| {
        engine.docker(&[&["create", "--name", name], more, &["box", "/bin/busybox", "sleep", "1000"]].concat());
    };
    create("own", &["--label", "io.berth.request=r1"]);
    create("other", &[]);
    let archive = proxied.path("files.tar");
    std::fs::write(proxied.path("pw"), "s3cret").unwrap();
    let folder = archive.parent().unwrap();
    assert!(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(folder).arg("pw").status().unwrap().success());
    let put = |name: &str| {
        let body = format!("@{}", archive.display());
        proxied.ask("PUT", &format!("/v1.41/containers/{name}/archive?path=%2F"), &body)
    };
    assert!(put("other").contains("was not started by a scheduler"));
    assert!(put("none").contains("No such container"));
    assert_eq!(put("own"), "");
    engine.docker(&["start", "own"]);
    assert_eq!(engine.docker(&["exec", "own", "/bin/busybox", "cat", "/pw"]).trim(), "s3cret");
    let late = put("own");
    assert!(late.contains("was started already"), "{late}");
    let read = proxied.ask("GET", "/v1.41/containers/own/archive?path=%2Fpw", "");
    assert!(read.contains("does not pass"), "{read}");
}
