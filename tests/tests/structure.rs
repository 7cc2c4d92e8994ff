//! The rules of ARCHITECTURE.md that a compiler does not keep: arrows between crates, purity, the seam to the operating system.
//!
//! Each rule is tried on a text that breaks it too, so that a rule which sees nothing is noticed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::repository;
use tests::rust_text::{code, code_without_tests, imports, lines_with};

/// Our crates and which of our crates each may depend on. `tests` may use anything.
const ARROWS: [(&str, &[&str]); 18] = [
    ("model", &[]),
    ("balancer", &["model", "platform"]),
    ("stacks", &["model"]),
    ("platform", &[]),
    ("http_client", &[]),
    ("tls", &[]),
    ("etcd", &["http_client", "model", "tls"]),
    ("engine", &["http_client", "platform", "tls"]),
    ("source", &["http_client", "model", "platform"]),
    ("process", &["http_client", "model", "platform", "source"]),
    ("live", &["engine", "etcd", "model", "platform", "process", "source", "tls"]),
    ("metadata", &["live", "model", "platform", "process", "source"]),
    ("dns", &["model", "platform", "process", "source", "tls"]),
    ("scheduler", &["engine", "etcd", "http_client", "model", "platform", "process", "source", "stacks", "tls"]),
    ("network", &["engine", "etcd", "model", "platform"]),
    ("health", &["model", "platform", "source", "tls"]),
    ("ui", &["model", "process", "source", "tls"]),
    (
        "agent",
        &[
            "balancer",
            "dns",
            "engine",
            "etcd",
            "health",
            "http_client",
            "live",
            "metadata",
            "model",
            "network",
            "platform",
            "process",
            "scheduler",
            "source",
            "tls",
            "ui",
        ],
    ),
];

/// Crates that nothing depends on and that may depend on anything.
const MAY_USE_ANY: [&str; 2] = ["bench", "tests"];

/// What may touch sockets, files, clocks and the runtime; every other file of these crates is pure.
///
/// `main.rs` is the process, `config.rs` reads the command line, `lib.rs` is the list of files.
const SHELLS: [(&str, &[&str]); 12] = [
    ("model", &[]),
    ("balancer", &["lib.rs", "metrics.rs", "socket.rs"]),
    ("stacks", &[]),
    (
        "etcd",
        &[
            "lib.rs",
            "args.rs",
            "auth.rs",
            "client.rs",
            "error.rs",
            "lease.rs",
            "members.rs",
            "options.rs",
            "pages.rs",
            "transport.rs",
            "watch.rs",
        ],
    ),
    ("engine", &["lib.rs", "connect.rs", "engine.rs"]),
    (
        "live",
        &[
            "lib.rs",
            "config.rs",
            "start.rs",
            "follow.rs",
            "assemble.rs",
            "drain.rs",
            "label_files.rs",
            "leave.rs",
            "stored_host.rs",
            "docker/client.rs",
            "docker/follow.rs",
            "docker/session.rs",
            "etcd/compare.rs",
            "etcd/follow.rs",
            "etcd/identity.rs",
            "etcd/stored.rs",
            "etcd/votes.rs",
            "etcd/part.rs",
            "etcd/pending.rs",
            "etcd/publish.rs",
        ],
    ),
    (
        "metadata",
        &[
            "main.rs",
            "lib.rs",
            "fuzzing.rs",
            "body/renderings.rs",
            "http/changes.rs",
            "http/connection.rs",
            "http/server.rs",
            "http/service.rs",
        ],
    ),
    (
        "dns",
        &[
            "main.rs",
            "lib.rs",
            "server.rs",
            "shared.rs",
            "sockets.rs",
            "udp.rs",
            "connection_end.rs",
            "connections.rs",
            "tcp.rs",
            "doh.rs",
            "certificate.rs",
            "forward.rs",
            "hold.rs",
            "forward/exchange.rs",
            "forward/flight.rs",
            "answers_file.rs",
            "metrics.rs",
            "pages.rs",
            "command.rs",
        ],
    ),
    (
        "health",
        &["lib.rs", "check.rs", "grpc.rs", "pages.rs", "run.rs", "run/histories.rs", "run/reckon.rs", "run/take_in.rs"],
    ),
    ("ui", &["lib.rs", "ask.rs", "compressed.rs", "guard.rs", "options.rs", "prometheus.rs", "server.rs", "stream.rs"]),
    ("network", &["lib.rs", "fault.rs", "firewall_program.rs", "host.rs", "ledger.rs", "registry.rs"]),
    (
        "scheduler",
        &[
            "main.rs",
            "lib.rs",
            "audit.rs",
            "audit/line.rs",
            "audit/writer.rs",
            "benching.rs",
            "config.rs",
            "clock.rs",
            "token.rs",
            "api.rs",
            "api/accept.rs",
            "api/app.rs",
            "api/stacks.rs",
            "api/body.rs",
            "api/caller.rs",
            "api/inside.rs",
            "api/placing.rs",
            "api/reply.rs",
            "api/routes.rs",
            "api/write_timeout.rs",
            "cli.rs",
            "cli/backup.rs",
            "cli/catalog.rs",
            "cli/catalog/folder.rs",
            "cli/client.rs",
            "cli/evacuate.rs",
            "cli/explain.rs",
            "cli/file.rs",
            "cli/hosts.rs",
            "cli/images.rs",
            "cli/inside.rs",
            "cli/ledger.rs",
            "cli/place.rs",
            "cli/ps.rs",
            "cli/rm.rs",
            "cli/run.rs",
            "cli/terminal.rs",
            "cli/variables.rs",
            "ledger.rs",
            "ledger/etcd/context.rs",
            "ledger/etcd/evictions.rs",
            "ledger/etcd/follow.rs",
            "ledger/etcd/key_file.rs",
            "ledger/etcd/lease.rs",
            "ledger/etcd/saved.rs",
            "ledger/etcd/store.rs",
            "ledger/etcd/sync.rs",
            "ledger/etcd/unsealed.rs",
            "ledger/etcd/write.rs",
            "ledger/journal.rs",
            "place.rs",
            "place/promise.rs",
            "replace.rs",
            "replace/last_log.rs",
            "start.rs",
            "start/attempt.rs",
            "start/docker.rs",
            "start/docker/inside.rs",
            "start/docker/presence.rs",
            "start/docker/stored_images.rs",
            "start/docker_config.rs",
            "start/evacuate.rs",
            "start/images.rs",
            "start/inside.rs",
            "start/job.rs",
            "start/keep_unit.rs",
            "start/late.rs",
            "start/leased.rs",
            "start/logs.rs",
            "start/look.rs",
            "start/progress.rs",
            "start/prune.rs",
            "start/pull_ahead.rs",
            "start/replace_unit.rs",
            "start/silent.rs",
            "start/strangers.rs",
            "start/tests/evacuate.rs",
            "start/unit.rs",
            "start/volumes.rs",
            "cli/stack.rs",
            "cli/stack/change.rs",
            "cli/stack/show.rs",
            "cli/stack/up.rs",
            "stack.rs",
            "stack/act.rs",
            "stack/ahead.rs",
            "stack/keeper.rs",
            "stack/preview.rs",
            "stack/store.rs",
            "stack/view.rs",
            "stack/volumes.rs",
            "start/played.rs",
        ],
    ),
];

/// What a pure file does not name.
const IMPURE: [&str; 24] = [
    "tokio",
    "tokio_util",
    "hyper",
    "hyper_util",
    "http_client",
    "rustls",
    "tls",
    "axum",
    "socket2",
    "notify",
    "tracing",
    "platform",
    "process",
    "std::fs",
    "std::io::stdin",
    "std::env",
    "std::process",
    "std::thread",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::time::Instant",
    "std::time::SystemTime",
    "getrandom",
];

/// Words by which code depends on the operating system.
const OPERATING_SYSTEM: [&str; 9] = [
    "cfg(unix",
    "cfg(windows",
    "cfg(not(unix",
    "cfg(not(windows",
    "target_os",
    "target_family",
    "std::os",
    "cfg!(unix",
    "cfg!(windows",
];

/// What only an executable's `main.rs` does.
const PROCESS_ONLY: [&str; 6] = ["println!", "print!", "eprintln!", "eprint!", "dbg!", "std::process::exit"];

/// The folder of a crate: services and programs stand at the top, what they are built of below `lib/`.
fn folder(name: &str) -> String {
    let below = format!("lib/{name}");
    if repository().join(&below).is_dir() { below } else { name.to_owned() }
}

/// The rust files below a folder of the repository.
fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![repository().join(folder)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no sources in {folder}");
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What breaks a rule in all sources of `crates`: `file:line: what`.
fn broken(crates: &[&str], rule: impl Fn(&Path, &str) -> Vec<(usize, String)>) -> Vec<String> {
    let files = crates.iter().flat_map(|name| sources(&format!("{}/src", folder(name))));
    files
        .flat_map(|path| {
            let name = path.strip_prefix(repository()).unwrap_or(&path).display().to_string();
            let lines = rule(&path, &read(&path));
            lines.into_iter().map(move |(line, what)| format!("{name}:{line}: {what}"))
        })
        .collect()
}

fn our_crates() -> Vec<&'static str> {
    ARROWS.iter().map(|(name, _)| *name).collect()
}

/// The crates of ours that each package depends on, tests and build included.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--locked", "--no-deps", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(repository()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let name = |package: &Value| package["name"].as_str().unwrap().to_owned();
    let ours: Vec<_> = packages.iter().map(name).collect();
    let depends = |package: &Value| {
        let mut names: Vec<_> = package["dependencies"].as_array().unwrap().iter().map(name).collect();
        names.retain(|name| ours.contains(name));
        names.sort();
        names.dedup();
        names
    };
    packages.iter().map(|package| (name(package), depends(package))).collect()
}

/// The dependencies that no arrow allows.
fn against_the_arrows(dependencies: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut found = Vec::new();
    for (package, names) in dependencies.iter().filter(|(package, _)| !MAY_USE_ANY.contains(&package.as_str())) {
        match ARROWS.iter().find(|(name, _)| name == package) {
            Some((_, allowed)) => {
                let wrong = names.iter().filter(|name| !allowed.contains(&name.as_str()));
                found.extend(wrong.map(|name| format!("{package} -> {name}")));
            }
            None => found.push(format!("{package} has no place in the arrows")),
        }
    }
    found
}

/// What is impure in a source: paths that are used, whether they are imported or written out.
fn impurities(source: &str) -> Vec<(usize, String)> {
    // The values that describe routes are data; only `Routes` speaks to the system.
    let code = code_without_tests(source);
    let speaks = code.lines().any(|line| line.contains("platform::route") && line.contains("Routes"));
    let code = if speaks { code } else { code.replace("use platform::route::", "use route::") };
    let mut found = lines_with(&code, &IMPURE);
    // `use std::net::{IpAddr, TcpStream}` names the socket without its path.
    for import in imports(&code) {
        let named = |word: &&&str| import == ***word || import.starts_with(&format!("{word}::"));
        let already = |word: &str| found.iter().any(|(_, known)| known == word);
        if let Some(word) = IMPURE.iter().find(named).filter(|word| !already(word)) {
            found.push((0, (*word).to_owned()));
        }
    }
    // A field or module of ours may have one of these words as its name.
    found.retain(|(line, word)| {
        let text = line.checked_sub(1).and_then(|line| code.lines().nth(line)).unwrap_or_default();
        word.contains("::")
            || *line == 0
            || text.contains(&format!("{word}::"))
            || text.contains(&format!("use {word}"))
    });
    found
}

#[test]
fn crates_depend_on_each_other_as_drawn() {
    assert_eq!(against_the_arrows(&dependencies()), [""; 0]);
    let planted = BTreeMap::from([
        ("dns".to_owned(), vec!["metadata".to_owned(), "model".to_owned()]),
        ("model".to_owned(), vec!["source".to_owned()]),
        ("util".to_owned(), Vec::new()),
    ]);
    assert_eq!(against_the_arrows(&planted), ["dns -> metadata", "model -> source", "util has no place in the arrows"]);
}

#[test]
fn pure_files_name_no_runtime_socket_file_or_clock() {
    for (package, shells) in SHELLS {
        let found = broken(&[package], |path, source| {
            let below = path.strip_prefix(repository().join(folder(package)).join("src")).unwrap();
            let name = below.to_str().unwrap();
            let is_shell = shells.contains(&name) || path.ends_with("tests.rs");
            if is_shell { Vec::new() } else { impurities(source) }
        });
        assert_eq!(found, [""; 0], "{package}");
    }
    for (planted, expected) in [
        ("use std::net::{IpAddr, TcpStream};", 1),
        ("use std::time::Instant;", 1),
        ("fn now() -> u64 { std::time::SystemTime::now() }", 1),
        ("use tokio::sync::watch;", 1),
        ("use platform::route::{Route, Routes};", 1),
        ("use platform::route::{Route, RouteTable};", 0),
        ("fn a() { tracing::warn!(\"x\") }", 1),
        ("use std::{fs, env};", 2),
        ("use std::net::IpAddr; // tokio::spawn", 0),
        ("fn a(platform: &str) -> bool { platform.is_empty() }", 0),
        ("fn a() {}\n#[cfg(test)]\nmod tests { use std::fs; }", 0),
    ] {
        assert_eq!(impurities(planted).len(), expected, "{planted}: {:?}", impurities(planted));
    }
}

/// `tests/run` names those that wait for minutes, and runs all others in one go.
#[test]
fn the_tests_that_wait_are_there_and_named_once() {
    let run = std::fs::read_to_string(repository().join("tests/run")).unwrap();
    let (_, rows) = run.split_once("\nwaiting=(").unwrap();
    let (rows, _) = rows.split_once("\n)").unwrap();
    let mut names: Vec<_> = rows.split(['"', ' ', '\n']).filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in &names {
        assert!(repository().join(format!("tests/tests/{name}.rs")).is_file(), "tests/run names no file: {name}");
    }
    names.sort_unstable();
    assert!(names.windows(2).all(|two| two[0] != two[1]), "twice: {names:?}");
}

/// What starts `dns` or `agent` tells them to ask no name server of the machine; `Launch` does it for all others.
#[test]
fn executables_are_started_where_no_name_server_of_the_machine_is_asked() {
    let rule = |source: &str| {
        let starts = ["CARGO_BIN_EXE_", "binaries::path(", "binaries::folder("];
        let found = lines_with(&code(source), &starts);
        // The metadata service asks no name server.
        let line = |at: usize| source.lines().nth(at - 1).unwrap_or_default();
        let found = found.into_iter().filter(|(at, _)| !line(*at).contains("path(\"metadata\")"));
        let told = source.contains("NO_NAME_SERVER") || source.contains("BERTH_DNS_UPSTREAM");
        if told { Vec::new() } else { found.collect::<Vec<_>>() }
    };
    let folders = ["tests", "dns/tests", "metadata/tests", "scheduler/tests", "stacks/tests", "agent/tests"];
    let folders = folders.into_iter().filter(|folder| repository().join(folder).is_dir());
    let found: Vec<_> = folders
        .flat_map(sources)
        .filter(|path| !path.ends_with("tests/src/binaries.rs") && !path.ends_with("tests/structure.rs"))
        .flat_map(|path| rule(&read(&path)).into_iter().map(move |(line, _)| format!("{}:{line}", path.display())))
        .collect();
    assert_eq!(found, [""; 0]);
    assert_eq!(rule("fn a() {\n Command::new(binaries::path(\"dns\"))\n}").len(), 1);
}

#[test]
fn the_operating_system_shows_in_platform_only() {
    let crates: Vec<_> = our_crates().into_iter().filter(|name| *name != "platform").chain(MAY_USE_ANY).collect();
    let rule = |source: &str| lines_with(&code(source), &OPERATING_SYSTEM);
    assert_eq!(broken(&crates, |_, source| rule(source)), [""; 0]);
    for planted in ["#[cfg(unix)]\nfn a() {}", "#[cfg(target_os = \"linux\")]", "use std::os::fd::AsRawFd;"] {
        assert_eq!(rule(planted).len(), 1, "{planted}");
    }
}

/// After a loss of power, a file that was only renamed may be the one before, without what was written since.
#[test]
fn nothing_that_is_stored_is_replaced_by_renaming_alone() {
    let crates: Vec<_> = our_crates().into_iter().filter(|name| *name != "platform").collect();
    // A damaged file and an old log move aside; of two passwords that are there, the one that works is taken; an executable that is on
    // the disk takes the name of another.
    let moves =
        ["source/src/state.rs", "scheduler/src/audit/writer.rs", "etcd/src/transport.rs", "agent/src/upgrade/file.rs"];
    let rule = |source: &str| lines_with(&code_without_tests(source), &["fs::rename", "file::replace"]);
    let found = broken(&crates, |path, source| {
        let is_test = path.ends_with("tests.rs") || moves.iter().any(|name| path.ends_with(name));
        if is_test { Vec::new() } else { rule(source) }
    });
    assert_eq!(found, [""; 0]);
    assert_eq!(rule("fn a() { std::fs::rename(old, new) }").len(), 1);
    assert_eq!(rule("fn a() { platform::file::replace(old, new) }").len(), 1);
    assert_eq!(rule("fn a() { platform::file::replace_private(path, bytes) }").len(), 0);
}

#[test]
fn unsafe_code_stands_in_platform_only() {
    let crates: Vec<_> = our_crates().into_iter().filter(|name| *name != "platform").chain(MAY_USE_ANY).collect();
    let rule = |source: &str| lines_with(&code(source), &["unsafe"]);
    assert_eq!(broken(&crates, |_, source| rule(source)), [""; 0]);
    assert_eq!(rule("// unsafe\nfn a() { unsafe { b() } }"), [(2, "unsafe".to_owned())]);
    // There it is, and nowhere without its reason.
    let reasoned = broken(&["platform"], |_, source| {
        let lines: Vec<_> = source.lines().collect();
        let found = lines_with(&code_without_tests(source), &["unsafe {", "unsafe fn", "unsafe impl"]);
        let lacks = |(line, _): &(usize, String)| {
            !lines[line.saturating_sub(12)..*line]
                .iter()
                .any(|before| before.contains("SAFETY") || before.contains("# Safety"))
        };
        found.into_iter().filter(lacks).collect()
    });
    assert_eq!(reasoned, [""; 0]);
}

#[test]
fn only_executables_print_and_exit() {
    let crates: Vec<_> = our_crates();
    let rule = |path: &Path, source: &str| {
        if path.ends_with("main.rs") { Vec::new() } else { lines_with(&code_without_tests(source), &PROCESS_ONLY) }
    };
    assert_eq!(broken(&crates, rule), [""; 0]);
    assert_eq!(rule(Path::new("server.rs"), "fn a() {\n println!(\"x\");\n std::process::exit(1);\n}").len(), 2);
    assert_eq!(rule(Path::new("main.rs"), "fn main() { println!(\"x\") }").len(), 0);
}

#[test]
fn files_say_what_they_are() {
    let rule = |source: &str| if source.starts_with("//! ") { Vec::new() } else { vec![(1, "no //! line".to_owned())] };
    let all: Vec<_> = our_crates().into_iter().chain(MAY_USE_ANY).collect();
    let tests_apart = |path: &Path, source: &str| if path.ends_with("tests.rs") { Vec::new() } else { rule(source) };
    assert_eq!(broken(&all, tests_apart), [""; 0]);
    assert_eq!(rule("use std::fmt;").len(), 1);
}

#[test]
fn versions_of_dependencies_stand_in_the_root_manifest() {
    let rule = |manifest: &str| -> Vec<String> {
        let dependencies = manifest
            .split("\n[")
            .filter(|section| section.split(']').next().is_some_and(|head| head.ends_with("dependencies")));
        let lines = dependencies.flat_map(|section| section.lines().skip(1));
        let lines = lines.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.filter(|line| line.contains("version =") || line.contains("= \"")).map(ToOwned::to_owned).collect()
    };
    for package in our_crates().into_iter().chain(MAY_USE_ANY) {
        let manifest = read(&repository().join(folder(package)).join("Cargo.toml"));
        assert_eq!(rule(&manifest), [""; 0], "{package}");
    }
    assert_eq!(rule("[package]\nname = \"a\"\n[dependencies]\nserde = \"1\"\nclap.workspace = true\n").len(), 1);
}

/// The tests that the page about security names and that are no functions of `code`.
fn missing_tests(page: &str, code: &str) -> Vec<String> {
    let table = page.split("\n## What holds").nth(1).unwrap_or_default();
    let cells = table.lines().filter(|line| line.starts_with('|')).filter_map(|line| line.rsplit(" | ").next());
    let named = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(|name| !name.contains('.'));
    named.filter(|name| !code.contains(&format!("fn {name}("))).map(ToOwned::to_owned).collect()
}

#[test]
fn the_page_about_security_names_no_test_that_does_not_exist() {
    let page = read(&repository().join("docs/security.md"));
    let folders =
        ["agent", "balancer", "dns", "health", "lib", "metadata", "network", "scheduler", "stacks", "tests", "ui"];
    let code: String = folders.iter().flat_map(|folder| sources(folder)).map(|path| read(&path)).collect();
    assert_eq!(missing_tests(&page, &code), [""; 0]);
    let planted = "\n## What holds\n\n| enter | a door | `the_door_is_shut`, `a_window` |\n";
    assert_eq!(missing_tests(planted, "fn the_door_is_shut() {}"), ["a_window"]);
}
