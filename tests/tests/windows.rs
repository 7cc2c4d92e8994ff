//! The Windows executables, run under Wine, beside those of this system: the same bytes, and what only Windows has.
//!
//! Runs when `BERTH_WINDOWS=1` and `BERTH_BINARIES` names a folder that `tests/wine/wrap` made, as `tests/run --executables`
//! does; many other tests run with the same executables then.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use tests::cluster::ClusterFolder;
use tests::namespace::Pair;
use tests::wait::{scaled, seconds};
use tests::{Companion, Executable, Launch, Process, Service, binaries, eventually, repository, skip, tell};

const LIMIT: Duration = Duration::from_secs(15);

/// Why there can be no service of executables that were built below this folder: all may write to it.
const OPEN_FOLDER: &str = r"can change Z:\tmp";

/// Whether the executables are Windows ones.
fn windows() -> bool {
    let there = binaries::are_for_windows();
    if !there && std::env::var_os("BERTH_EXECUTABLES").is_some_and(|value| value == "1") {
        // This is the run of all tests; the run under Wine is another one.
        tell("windows.rs: left to the run under Wine");
    } else if !there {
        skip("no Windows executables; tests/run --executables builds them and runs this");
    }
    there
}

/// The three addresses of a running agent.
struct Running {
    metadata: SocketAddr,
    dns: SocketAddr,
    scheduler: SocketAddr,
    service: Service,
}

fn start(launch: &Launch) -> Running {
    let mut service = launch.start();
    service.ready();
    let [metadata, dns, scheduler] = ["metadata", "dns", "scheduler"].map(|name| service.address_of(name));
    Running { metadata, dns, scheduler, service }
}

/// Everything that a server sends for these bytes, without what tells the time.
fn exchange(to: SocketAddr, from: &str, bytes: &[u8]) -> String {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from.parse().unwrap(), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(seconds(10))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.lines()
        .filter(|line| !line.starts_with("Date: ") && !line.starts_with("date: "))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A question of DNS with a fixed id, as bytes.
fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

fn over_udp(to: SocketAddr, from: &str, bytes: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    socket.set_read_timeout(Some(seconds(10))).unwrap();
    socket.send_to(bytes, to).unwrap();
    let mut answer = [0; 1500];
    let (length, sender) = socket.recv_from(&mut answer).unwrap();
    assert_eq!(sender, to, "the answer comes from the address that was asked");
    answer[..length].to_vec()
}

fn over_tcp(to: SocketAddr, from: &str, bytes: &[u8]) -> Vec<u8> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from.parse().unwrap(), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(seconds(10))).unwrap();
    let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], bytes].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).unwrap();
    answer
}

/// The paths of the recorded requests would do as well; these are few, because Wine is slow.
const PATHS: [&str; 12] = [
    "/",
    "/latest",
    "/latest/self/container",
    "/latest/self/container/name",
    "/latest/self/service/containers/",
    "/latest/self/stack/services/db/containers/0/primary_ip",
    "/latest/containers",
    "/2015-12-19/stacks",
    "/2016-07-29/services/web",
    "/latest//hosts",
    "/latest/none/such",
    "/v1/openapi.json",
];

/// A, AAAA, PTR, TXT, SOA, ANY, and a type that nobody has.
const TYPES: [u16; 7] = [1, 28, 12, 16, 6, 255, 99];

const NAMES: [&str; 7] = [
    "shop-web-1.rancher.internal",
    "SHOP-web-1",
    "db.rancher.internal",
    "rancher.internal",
    "shop.rancher.internal",
    "none.rancher.internal",
    "11.1.42.127.in-addr.arpa",
];

#[test]
fn the_same_bytes_as_on_linux() {
    if !windows() {
        return;
    }
    let file = repository().join("examples/shop.yml");
    let wine = start(&Launch::agent(&file));
    let linux = start(&Launch::agent(&file).executable(&binaries::native("agent")));
    let mut compared = 0;
    let mut same = |what: String, wine: &dyn std::fmt::Debug, linux: &dyn std::fmt::Debug| {
        assert_eq!(format!("{wine:?}"), format!("{linux:?}"), "{what}");
        compared += 1;
    };
    for from in ["127.0.0.1", "127.42.1.11"] {
        for path in PATHS {
            for accept in
                ["", "Accept: application/json\r\n", "Accept: application/x-yaml\r\n", "Accept: text/html\r\n"]
            {
                for method in ["GET", "HEAD"] {
                    let request = format!("{method} {path} HTTP/1.1\r\nHost: m\r\n{accept}Connection: close\r\n\r\n");
                    let [a, b] = [wine.metadata, linux.metadata].map(|to| exchange(to, from, request.as_bytes()));
                    same(format!("{from} {request}"), &a, &b);
                }
            }
        }
        for name in NAMES {
            for kind in TYPES {
                let question = question(name, kind);
                let [a, b] = [wine.dns, linux.dns].map(|to| over_udp(to, from, &question));
                same(format!("{from} {name} {kind}"), &a, &b);
                let [a, b] = [wine.dns, linux.dns].map(|to| over_tcp(to, from, &question));
                same(format!("{from} {name} {kind} over TCP"), &a, &b);
            }
        }
    }
    let body = r#"{"image": "web", "resources": {"memory": "4GiB"}, "dry_run": true, "id": "same"}"#;
    let request = format!(
        "POST /v1/placements HTTP/1.1\r\nHost: s\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let [a, b] = [wine.scheduler, linux.scheduler].map(|to| exchange(to, "127.0.0.1", request.as_bytes()));
    same("a placement".to_owned(), &a, &b);
    tell(&format!("the same bytes under Wine in {compared} answers"));
}

/// A balancer with a rule of each kind, and members that are well, leaving and gone.
const BALANCED: &str = r#"berth: 1
hosts:
- { name: win-1, agent_ip: 192.0.2.1 }
services:
- name: lb
  stack: edge
  lb_config:
    port_rules:
    - { source_port: 8080, hostname: www.example.org, path: /a, service: s/web, target_port: 80, priority: 2 }
    - { source_port: 8080, hostname: "*.example.org", service: s/api, target_port: 8081 }
    - { source_port: 8080, selector: "kind in (web, api)", target_port: 80 }
    - { source_port: 8443, protocol: https, hostname: "`) || Host(`é", service: s/web, target_port: 443 }
    - { source_port: 5000, protocol: tcp, service: s/api, target_port: 5000 }
    - { source_port: 0, service: s/web, target_port: 80 }
    certs: [www]
    default_cert: www
    stickiness_policy: { mode: insert, cookie: berth }
- { name: web, stack: s, labels: { kind: web } }
- { name: api, stack: s, labels: { kind: api } }
containers:
- { name: web-1, service: s/web, host: win-1, primary_ip: 10.42.0.1 }
- { name: web-2, service: s/web, host: win-1, primary_ip: 10.42.0.2, state: stopping }
- { name: api-1, service: s/api, host: win-1, primary_ip: 10.42.0.3, health_state: unhealthy }
- { name: api-2, service: s/api, host: win-1, primary_ip: "2001:db8::4" }
...
"#;

#[test]
fn traefik_is_told_the_same_as_on_linux() {
    if !windows() {
        return;
    }
    let folder = ClusterFolder::new(BALANCED);
    let launch = Launch::metadata(&folder.file());
    let native = launch.clone().executable(&binaries::native("metadata"));
    let mut both = [launch, native].map(|launch| launch.start());
    let path = "/v1/traefik?service=edge/lb&wait=0";
    let [wine, linux] = both.each_mut().map(|service| {
        service.ready();
        let request = format!("GET {path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n");
        exchange(service.address(), "127.0.0.1", request.as_bytes())
    });
    assert!(linux.contains("200 OK") && linux.contains("www.example.org") && linux.contains("10.42.0.1"), "{linux}");
    assert_eq!(wine, linux);
    let source = format!("file:{}", folder.file().display());
    let words = |launch: Launch| {
        let launch = launch.word("lb").word("traefik-static").with("--metadata", "127.0.0.1:80");
        launch.with("--bind", "127.0.0.1").with("--source", &source).run().output
    };
    let [wine, linux] =
        [Launch::bare(Executable::Agent), Launch::bare(Executable::Agent).executable(&binaries::native("agent"))]
            .map(words);
    assert!(linux.contains("p8080") && linux.contains("p5000"), "{linux}");
    assert_eq!(wine, linux);
}

/// What the executable says to words alone. Not its exit code: of a process with several threads Wine at times passes
/// on the code of the thread that ended last.
fn agent(words: &[&str]) -> String {
    let ended = words.iter().fold(Launch::bare(Executable::Agent), Launch::word).run();
    ended.output + &ended.errors
}

#[test]
fn a_service_lives_from_its_installation_to_its_removal() {
    if !windows() {
        return;
    }
    let files = ClusterFolder::new(tests::cluster::shop_text());
    let name = format!("berth-{}", std::process::id());
    let data = files.path("data");
    let metadata = format!("127.0.0.1:{}", tests::ports::free());
    let with_name = |action: &str| agent(&["service", action, "--name", &name]);
    // Wine ends its services with the last other program, and its own begin with the first one, whose outputs they keep.
    let mut beside = Launch::metadata(&files.file()).start();
    beside.ready();

    assert_eq!(with_name("status"), format!("{name}: not installed\n"));
    let said = with_name("start");
    assert!(said.contains("agent service install"), "{said}");
    // Wrong arguments are refused before there is a service that cannot start.
    let said = agent(&["service", "install", "--name", &name, "--", "--metadat", "x"]);
    assert!(said.contains("--metadat"), "{said}");
    assert_eq!(with_name("status"), format!("{name}: not installed\n"));

    let file = files.file().display().to_string();
    let install = ["service", "install", "--name", &name, "--data", data.to_str().unwrap(), "--", &file];
    let serve =
        ["--metadata", &metadata, "--dns", "127.0.0.1:0", "--scheduler", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let said = agent(&[&install[..], &serve].concat());
    if said.contains(OPEN_FOLDER) {
        return skip(OPEN_FOLDER);
    }
    assert!(said.contains("is installed"), "{said}");
    let said = agent(&[&install[..], &serve].concat());
    assert!(said.contains("already"), "{said}");
    assert_eq!(with_name("status"), format!("{name}: stopped\n"));
    let key = format!(r"HKLM\SYSTEM\CurrentControlSet\Services\EventLog\Application\{name}");
    let source_of_events = || {
        let mut query = std::process::Command::new(repository().join("tests/wine/run"));
        let told = query.args(["reg", "query", &key]).output().unwrap();
        String::from_utf8_lossy(&told.stdout).contains("EventCreate.exe")
    };
    assert!(source_of_events());
    let said = with_name("repair");
    assert!(said.contains(&format!("{name} is set up")), "{said}");

    assert_eq!(with_name("start"), format!("{name} runs\n"));
    assert_eq!(with_name("status"), format!("{name}: running\n"));
    eventually("the service answers", LIMIT, || {
        let address: SocketAddr = metadata.parse().unwrap();
        let answer = tests::http::get("/latest/self/container/name").from("127.42.1.11").send(address).ok()?;
        (answer.text() == "shop-web-1").then_some(())
    });
    assert_eq!(with_name("stop"), format!("{name} has stopped\n"));
    assert_eq!(with_name("uninstall"), format!("{name} is removed\n"));
    assert!(!source_of_events());
    let logs = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path());
    let log: String = logs.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert!(log.contains("service stop") && !log.contains("ERROR"), "{log}");
}

/// No one can take the sockets of a service over, but its addresses are there while it starts again.
#[test]
fn addresses_of_a_service_stay_while_it_starts_again() {
    if !windows() {
        return;
    }
    let Some(pair) = Pair::try_new("10.42.0.7") else { return };
    let files = ClusterFolder::new(tests::cluster::shop_text());
    let name = format!("berth-stays-{}", std::process::id());
    let (file, data) = (files.file().display().to_string(), files.path("data").display().to_string());
    let agent = |words: &[&str]| {
        let agent = words.iter().fold(Launch::bare(Executable::Agent), Launch::word);
        let ended = agent.in_namespace(&pair.host).run();
        ended.output + &ended.errors
    };
    let with_name = |action: &str| agent(&["service", action, "--name", &name]);
    // For Wine, which ends its services with the last other program.
    let mut beside = Launch::metadata(&files.file()).in_namespace(&pair.host).start();
    beside.line("that it serves", |line| line["message"] == "serving");

    let install = ["service", "install", "--name", &name, "--data", &data, "--", &file, "--add-address"];
    let serve = ["--metadata", "169.254.169.250:80", "--dns", "169.254.169.251:53", "--interface", "cable0"];
    let others = ["--scheduler", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let said = agent(&[&install[..], &serve, &others].concat());
    if said.contains(OPEN_FOLDER) {
        return skip(OPEN_FOLDER);
    }
    assert!(said.contains("is installed"), "{said}");
    assert_eq!(with_name("start"), format!("{name} runs\n"));
    let answers = || pair.in_container(&["curl", "-s", "-m", "1", "http://169.254.169.250/"]).contains("2015-12-19");
    eventually("the service answers", LIMIT, || answers().then_some(()));
    let has_addresses = || {
        let addresses = pair.on_host(&["ip", "-o", "address", "show"]);
        ["169.254.169.250/32", "169.254.169.251/32"].map(|address| addresses.contains(address))
    };

    let (mut last, mut gap) = (Instant::now(), Duration::ZERO);
    std::thread::scope(|scope| {
        let restart = scope.spawn(|| ["stop", "start"].map(with_name));
        loop {
            let is_over = restart.is_finished();
            assert_eq!(has_addresses(), [true, true]);
            if answers() {
                (gap, last) = (gap.max(last.elapsed()), Instant::now());
                if is_over {
                    break;
                }
            }
            assert!(last.elapsed() < scaled(LIMIT), "it does not answer any more");
        }
        assert_eq!(restart.join().unwrap(), [format!("{name} has stopped\n"), format!("{name} runs\n")]);
    });
    tell(&format!("a restart of a service: no answer for {gap:?}"));

    let none = "there is no address that a Berth left which has stopped\n";
    assert_eq!(agent(&["service", "release"]), none, "it serves");
    let said = with_name("uninstall");
    let removed = |address: &str| format!("{address} is removed from cable0");
    assert!(said.starts_with(&format!("{name} is removed\n")), "{said}");
    assert!(said.contains(&removed("169.254.169.250")) && said.contains(&removed("169.254.169.251")), "{said}");
    assert_eq!(has_addresses(), [false, false]);
    assert_eq!(agent(&["service", "release"]), none);
}

#[test]
fn a_service_that_cannot_listen_is_not_said_to_run() {
    if !windows() {
        return;
    }
    let files = ClusterFolder::new(tests::cluster::shop_text());
    let name = format!("berth-taken-{}", std::process::id());
    let data = files.path("data").display().to_string();
    // It has the port that the service is to listen on.
    let mut beside = Launch::metadata(&files.file()).start();
    beside.ready();
    let taken = beside.address().to_string();
    let with_name = |action: &str| agent(&["service", action, "--name", &name]);

    // What is not there is told, with the whole path.
    let missing = files.path("none.yml").display().to_string();
    let install = ["service", "install", "--name", &name, "--data", &data, "--"];
    let serve = ["--metadata", &taken, "--dns", "127.0.0.1:0", "--scheduler", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let said = agent(&[&install[..], &[&missing], &serve].concat());
    if said.contains(OPEN_FOLDER) {
        return skip(OPEN_FOLDER);
    }
    assert!(said.contains("is installed") && said.contains("none.yml") && said.contains("no cluster file"), "{said}");
    assert!(!said.contains("docker"), "{said}");

    let said = with_name("start");
    assert!(!said.contains("runs"), "{said}");
    assert!(said.contains(&format!("the service {name} ended while it was starting")), "{said}");
    assert!(said.contains(&format!("cannot listen on {taken}")) && said.contains("agent.2"), "{said}");
    assert_eq!(with_name("uninstall"), format!("{name} is removed\n"));
}

#[test]
fn a_reset_connection_ends_no_listener() {
    if !windows() {
        return;
    }
    let running = start(&Launch::agent(&repository().join("examples/shop.yml")));
    let page =
        || exchange(running.metadata, "127.0.0.1", b"GET /latest HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n");
    let hosts = || {
        exchange(
            running.scheduler,
            "127.0.0.1",
            b"GET /v1/hosts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )
    };
    let name = || over_tcp(running.dns, "127.0.0.1", &question("db.rancher.internal", 1));
    let before = (page(), hosts(), name());
    for address in [running.metadata, running.dns, running.scheduler] {
        for _ in 0..20 {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.connect(&address.into()).unwrap();
            // Closing it sends a reset, mostly before it was accepted.
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
    assert_eq!((page(), hosts(), name()), before);
    let log = running.service.log();
    assert!(!log.contains("panicked") && !log.contains("fails; going on"), "{log}");
}

#[test]
fn a_file_that_a_program_holds_alone_is_read_once_it_is_free() {
    if !windows() {
        return;
    }
    let files = ClusterFolder::new(tests::cluster::stamped(1));
    let mut metadata = Launch::metadata(&files.file()).start();
    metadata.ready();
    let address = metadata.address();
    let mut hold = std::process::Command::new(repository().join("tests/wine/run"));
    std::fs::write(files.path("next"), tests::cluster::stamped(2)).unwrap();
    hold.arg(compiled("hold", &files.path("."))).arg(files.file()).arg(files.path("next")).arg("6000");
    let mut hold = Process::start(hold.stdout(std::process::Stdio::piped()));
    let mut ready = [0; 4];
    hold.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let version = || tests::http::get("/latest/version").ask(address).text();
    let before = version();
    eventually("it says that it cannot read the file", LIMIT, || {
        metadata.reasons().contains("os error 32").then_some(())
    });
    eventually("the file is read once it is free", LIMIT, || (version() != before).then_some(()));
    metadata.ready();
}

/// Leads connections to a new port of 127.0.0.1 on to a socket of Unix.
fn lead_to(socket: std::path::PathBuf) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = std::os::unix::net::UnixStream::connect(&socket) else { continue };
            let (mut near_back, mut far_back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (mut near, mut far) = (near, far);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut near, &mut far);
                let _ = far.shutdown(std::net::Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut far_back, &mut near_back);
                let _ = near_back.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    port
}

/// Makes a program of `tests/wine`.
fn compiled(name: &str, folder: &std::path::Path) -> std::path::PathBuf {
    let program = folder.join(format!("{name}.exe"));
    let source = repository().join(format!("tests/wine/{name}.c"));
    let mut compiler = std::process::Command::new("x86_64-w64-mingw32-gcc");
    let made = compiler.args(["-O2", "-o"]).arg(&program).arg(source).arg("-lws2_32").status();
    assert!(made.unwrap().success());
    program
}

#[test]
fn an_engine_is_asked_through_its_pipe() {
    if !windows() {
        return;
    }
    let _alone = tests::shared::Exclusive::take("engines");
    let Some(tests::engine::Boxed { pair: _pair, engine }) = tests::engine::Boxed::start() else { return };
    let files = ClusterFolder::empty();
    let pipe = format!("berth_{}", std::process::id());
    let mut relay = std::process::Command::new(repository().join("tests/wine/run"));
    relay
        .arg(compiled("pipe-relay", &files.path(".")))
        .args([format!(r"\\.\pipe\{pipe}"), lead_to(engine.socket()).to_string()])
        .stdout(std::process::Stdio::piped());
    let mut relay = Process::start(&mut relay);
    let mut ready = [0; 5];
    relay.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let source = format!("docker:npipe:////./pipe/{pipe}");
    let mut metadata = Launch::served(Executable::Metadata).with("--source", source).start();
    metadata.ready();
    let address = metadata.address();
    engine.run_box("piped", &[]);
    let state = tests::http::get("/latest/containers/piped/state");
    eventually("a started container is told", LIMIT, || {
        state.send(address).ok().filter(|answer| answer.text() == "running")
    });
    engine.docker(&["rm", "--force", "piped"]);
    eventually("a removed one is not", LIMIT, || state.send(address).ok().filter(|answer| answer.status == 404));

    // Without a pipe it says what to do, and goes on.
    let source = "docker:npipe:////./pipe/no_such_engine";
    let mut metadata = Launch::served(Executable::Metadata).with("--source", source).start();
    eventually("it says what is missing", LIMIT, || metadata.reasons().contains("no_such_engine").then_some(()));
    assert!(metadata.is_running());
}

#[test]
fn nobody_takes_part_of_an_address_in_use() {
    if !windows() {
        return;
    }
    let files = ClusterFolder::new(tests::cluster::shop_text());
    let mut first = Launch::metadata(&files.file()).start();
    let address = first.address();
    let second = Launch::metadata(&files.file()).with("--listen", address.to_string()).run();
    assert!(second.errors.contains(&format!("cannot listen on {address}")), "{}", second.errors);
    assert!(first.is_running());
}

#[test]
fn ctrl_c_drains() {
    if !windows() {
        return;
    }
    let files = ClusterFolder::new(tests::cluster::shop_text());
    let mut service = Launch::metadata(&files.file()).start();
    service.ready();
    let address = service.address();
    let version = tests::http::get("/latest/version").ask(address).text();
    let waiting = Companion::start(move || {
        let path = format!("/latest/version?wait=true&value={version}&maxWait=60");
        tests::http::get(&path).within(seconds(60)).ask(address)
    });
    let metrics = tests::http::get("/metrics");
    let admin = service.admin();
    eventually("it waits", LIMIT, || metrics.ask(admin).text().contains("metadata_waiters 1\n").then_some(()));
    service.stop();
    assert_eq!(service.lines_with("Ctrl-C").len(), 1, "{}", service.log());
    // Who waits is answered before the end.
    assert_eq!(waiting.join().status, 200);
}

#[test]
fn routes_between_hosts_are_written_and_undone_and_those_of_others_stay() {
    if !windows() {
        return;
    }
    let Some(switch) = tests::namespace::Switch::try_new(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yml");
    let write = |router: &str| {
        let host = |number: u8, rest: &str| {
            format!("- {{ name: host-{number}, agent_ip: 10.44.0.{number}, subnet: 10.42.{number}.0/24{rest} }}\n")
        };
        let hosts = [host(1, ""), host(2, &format!(", router_ip: {router}")), host(3, ""), host(7, "")].concat();
        let range = "networks: [{ name: berth, metadata: { cidr: 10.42.0.0/16 } }]";
        std::fs::write(&file, format!("berth: 1\nhost: host-1\n{range}\nhosts:\n{hosts}...\n")).unwrap();
    };
    let run = |verb: &str| {
        let launch = Launch::bare(Executable::Agent).in_namespace(&switch.hosts[0]).word("network").word(verb);
        let launch = launch.with("--source", format!("file:{}", file.display()));
        let ended = launch.with("--state-dir", folder.path().join("state")).run();
        assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
        ended.output
    };
    let table = || {
        let routes = switch.on(0, &["ip", "route", "show", "metric", "4242"]);
        let mut routes: Vec<_> = routes.lines().map(|line| line.trim().to_owned()).collect();
        routes.sort();
        (routes, switch.on(0, &["sysctl", "-n", "net.ipv4.conf.eth0.forwarding"]).trim() == "1")
    };
    let route = |number: u8, via: u8| format!("10.42.{number}.0/24 via 10.44.0.{via} dev eth0");
    // Routes of another program, with the metric of Berth's: one in its way, one elsewhere.
    let foreign = [route(7, 9), "10.99.0.0/16 via 10.44.0.9 dev eth0".to_owned()];
    for line in &foreign {
        let words: Vec<&str> =
            ["ip", "route", "add"].into_iter().chain(line.split(' ')).chain(["metric", "4242"]).collect();
        assert_eq!(switch.on(0, &words), "");
    }
    let before = table();
    assert_eq!(before, (foreign.to_vec(), false));
    write("10.44.0.2");
    let planned = run("plan");
    assert!(planned.contains("add the route 10.42.2.0/24 via 10.44.0.2 dev eth0"), "{planned}");
    assert_eq!(table(), before);
    assert_eq!(run("apply"), planned);
    assert_eq!(table(), (vec![route(2, 2), route(3, 3), foreign[0].clone(), foreign[1].clone()], true));
    assert_eq!(run("plan"), "nothing is to be changed\n");
    write("10.44.0.22");
    assert!(run("apply").contains("move the route 10.42.2.0/24"));
    assert_eq!(table(), (vec![route(2, 22), route(3, 3), foreign[0].clone(), foreign[1].clone()], true));
    let undone = run("remove");
    assert!(undone.contains("removed 2 routes") && undone.contains("no longer passes packets on"), "{undone}");
    assert_eq!(table(), before);
}
