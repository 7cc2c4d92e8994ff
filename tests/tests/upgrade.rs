//! `agent upgrade`: another executable takes the place of one that serves, and goes again if it does not; no client notices.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tests::cluster::{ClusterFolder, shop_text};
use tests::load::{Askers, ask_http, ask_tcp, ask_udp, at_rate};
use tests::service::Ended;
use tests::successors::Agent;
use tests::wait::millis;
use tests::{Executable, Launch, binaries, eventually, http, tell};

/// Questions, connections and requests a second.
const RATE: u32 = 200;

/// Longest wait for a successor that does not serve to be given up.
const LIMIT: Duration = Duration::from_mins(1);

/// An agent whose executable is a file of its own.
struct World {
    agent: Agent,
    admin: SocketAddr,
    folder: ClusterFolder,
    executable: PathBuf,
}

impl World {
    fn start() -> Self {
        let folder = ClusterFolder::new(shop_text());
        fs::create_dir(folder.path("bin")).unwrap();
        fs::set_permissions(folder.path("bin"), fs::Permissions::from_mode(0o755)).unwrap();
        let executable = folder.path("bin/agent");
        copy(&binaries::native("agent"), &executable);
        let launch = Launch::agent(&folder.file()).executable(&executable).with("--state-dir", folder.path("state"));
        let mut agent = Agent::start(&launch, &folder.path("."));
        let admin = agent.started.admin();
        Self { agent, admin, folder, executable }
    }

    /// A file with these contents, and its digest.
    fn file(&self, name: &str, contents: &[u8]) -> (PathBuf, String) {
        let path = self.folder.path(name);
        fs::write(&path, contents).unwrap();
        let digest = Command::new("sha256sum").arg(&path).output().unwrap().stdout;
        (path, String::from_utf8(digest).unwrap()[..64].to_owned())
    }

    /// A script that says its version as the agent does, and otherwise does this.
    fn script(&self, name: &str, otherwise: &str) -> (PathBuf, String) {
        let good = binaries::native("agent");
        let text = format!("#!/bin/sh\n[ \"$1\" = version ] && exec {} \"$@\"\n{otherwise}\n", good.display());
        self.file(name, text.as_bytes())
    }

    fn command(&self, (file, digest): &(PathBuf, String)) -> Command {
        let mut command = Command::new(binaries::native("agent"));
        command.arg("upgrade").arg(file).args(["--sha256", digest, "--admin", &self.admin.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Types it; a process that never answers is waited for longer than other programs.
    fn upgrade(&self, file: &(PathBuf, String), more: &[&str]) -> Ended {
        ended(self.command(file).args(more).spawn().unwrap())
    }

    /// The same, and meanwhile another one, which is refused: it would take the failure of the first for its own.
    fn upgrade_twice(&self, first: &(PathBuf, String), second: &(PathBuf, String)) -> Ended {
        let first = self.command(first).spawn().unwrap();
        eventually("a start is under way", LIMIT, || {
            let page = http::get("/v1/process").ask(self.admin).value();
            page["restart"]["refused"].as_str().map(drop)
        });
        let second = self.upgrade(second, &[]);
        assert!(second.code == Some(1) && second.errors.contains("it is starting again already"), "{second:?}");
        ended(first)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.folder.path("bin"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// What it ends with.
fn ended(child: Child) -> Ended {
    let ended = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: ended.status.code(), output: text(ended.stdout), errors: text(ended.stderr) }
}

/// Has a process told that its terminal is closed, if it is still there.
fn hang_up(process: Option<u32>) {
    let Some(process) = process else { return };
    let _ = Command::new("kill").args(["-HUP", &process.to_string()]).stderr(Stdio::null()).status();
}

/// By another process: a program that another test starts meanwhile would hold the file open for writing.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn another_executable_serves_or_the_one_before_does_and_nothing_is_lost() {
    let mut world = World::start();
    let [metadata, dns] = ["metadata", "dns"].map(|service| world.agent.started.address_of(service));
    let good = fs::read(binaries::native("agent")).unwrap();
    let mut askers = Askers::default();
    askers.add("UDP", move |end| ask_udp(dns, RATE, end));
    askers.add("TCP", move |end| at_rate(RATE / 4, end, |counts| counts.count(Instant::now(), ask_tcp(dns))));
    askers.add("HTTP", move |end| at_rate(RATE / 4, end, |counts| counts.count(Instant::now(), ask_http(metadata))));

    // What follows what is loaded does not change what runs.
    let newer = world.file("newer", &[&good[..], b"newer"].concat());
    let process = world.agent.process();
    let other = (newer.0.clone(), "0".repeat(64));
    let no_program = world.file("no-program", b"\x7fELF no program");
    let silent = world.file("silent", b"#!/bin/sh\nexit 0\n");
    let other_name = {
        let text = format!("#!/bin/sh\nexec {} \"$@\"\n", binaries::native("dns").display());
        world.file("dns", text.as_bytes())
    };
    let ends = world.script("ends", "exit 3");
    let hangs = world.script("hangs", "exec sleep 1000");
    let folder = (world.folder.path("bin"), newer.1.clone());
    for (case, file, expected) in [
        ("another hash", &other, "nothing was changed"),
        ("no program", &no_program, "does not run on this machine"),
        ("a program that says nothing", &silent, "is not agent"),
        ("another program", &other_name, "is dns, not agent"),
        ("a folder", &folder, "is a directory"),
        ("ends", &ends, "exit status: 3"),
        ("never answers", &hangs, "it does not serve within 40 s"),
    ] {
        let ended = if case == "never answers" { world.upgrade_twice(file, &newer) } else { world.upgrade(file, &[]) };
        assert_eq!(ended.code, Some(1), "{case}: {}{}", ended.output, ended.errors);
        assert!(ended.errors.contains(expected), "{case}: {}", ended.errors);
        assert_eq!(world.agent.process(), process, "{case}");
        assert!(fs::read(&world.executable).unwrap() == good, "{case}: the executable is the one before");
        assert_eq!(world.names(), ["agent"], "{case}");
    }

    let dry = world.upgrade(&newer, &["--dry-run"]);
    assert!(dry.code == Some(0) && dry.output.starts_with("would put it in the place of "), "{dry:?}");
    assert_eq!((world.agent.process(), world.names()), (process, vec!["agent".to_owned()]));

    // Two times, since the first one leaves something behind.
    for turn in 0..2 {
        let before = world.agent.process();
        // Meanwhile its configuration is read again and again, and the operator's terminal is closed.
        let mut upgrading = world.command(&newer).spawn().unwrap();
        while upgrading.try_wait().unwrap().is_none() {
            hang_up(world.agent.process());
            let is_swapped = fs::metadata(&world.executable).is_ok_and(|now| now.len() != good.len() as u64);
            hang_up(Some(upgrading.id()).filter(|_| turn == 0 && is_swapped));
            sleep(millis(50));
        }
        let done = ended(upgrading);
        assert_eq!(done.code, Some(0), "{}", done.errors);
        // Its file is written when the one before is gone.
        let after = eventually("another process", LIMIT, || world.agent.process().filter(|now| Some(*now) != before));
        assert!(done.output.contains(&format!("process {after}")), "{}", done.output);
        assert!(fs::read(&world.executable).unwrap() == fs::read(&newer.0).unwrap());
        let expected = if turn == 0 { good.clone() } else { fs::read(&newer.0).unwrap() };
        assert!(fs::read(world.folder.path("bin/agent.old")).unwrap() == expected);
        assert_eq!(world.names(), ["agent", "agent.old"]);
        let mode = |name| fs::metadata(world.folder.path(name)).unwrap().permissions().mode();
        assert_eq!(mode("bin/agent"), mode("bin/agent.old"));
    }
    sleep(millis(200));
    for (what, counts) in askers.end() {
        tell(&format!("upgrades, {what}: {counts}"));
        assert!(counts.lost.is_empty() && counts.refused == 0, "{what}: {counts}: {:?}", counts.lost.first());
        assert!(counts.answered > 0, "{what}");
    }
    let page = http::get("/v1/process").ask(world.admin).value();
    assert_eq!(
        (page["process"].as_u64(), &page["restart"]["failed"]),
        (world.agent.process().map(u64::from), &0.into())
    );
    world.agent.restart();
}

#[test]
fn what_others_can_change_and_what_does_not_run_is_no_place_for_an_executable() {
    let world = World::start();
    let good = fs::read(binaries::native("agent")).unwrap();
    let newer = world.file("newer", &[&good[..], b"newer"].concat());
    let bin = world.folder.path("bin");
    let rights = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let refused = |expected: &str| {
        let ended = world.upgrade(&newer, &[]);
        assert!(ended.code == Some(1) && ended.errors.contains(expected), "{expected}: {}", ended.errors);
        assert_eq!(world.names().first().map(String::as_str), Some("agent"));
    };
    rights(&bin, 0o777);
    refused("chmod go-w");
    rights(&bin, 0o755);
    rights(&world.executable, 0o775);
    refused("chmod go-w");
    rights(&world.executable, 0o755);
    // What an upgrade that was killed has left, or another user has laid there, is not written through.
    let elsewhere = world.folder.path("elsewhere");
    fs::write(&elsewhere, "elsewhere").unwrap();
    symlink(&elsewhere, bin.join("agent.new")).unwrap();
    assert_eq!(world.upgrade(&newer, &["--dry-run"]).code, Some(0));
    assert_eq!((fs::read(&elsewhere).unwrap(), world.names()), (b"elsewhere".to_vec(), vec!["agent".to_owned()]));
    // A package has replaced it, and the agent was not told.
    let aside = bin.join("aside");
    copy(&binaries::native("agent"), &aside);
    fs::rename(&aside, &world.executable).unwrap();
    refused("it was replaced already");
    let wrong = Launch::bare(Executable::Agent).word("upgrade").word(&newer.0).with("--sha256", "12").run();
    assert!(wrong.code == Some(2) && wrong.errors.contains("64 hexadecimal digits"), "{}", wrong.errors);
}

#[test]
fn what_an_upgrade_that_was_killed_has_left_is_undone_by_the_next_one() {
    let world = World::start();
    let good = fs::read(binaries::native("agent")).unwrap();
    let newer = world.file("newer", &[&good[..], b"newer"].concat());
    let hangs = world.script("hangs", "exec sleep 1000");
    let mut killed = world.command(&hangs).spawn().unwrap();
    eventually("it is in its place", LIMIT, || (fs::read(&world.executable).ok()? != good).then_some(()));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let said = || http::get("/v1/process").ask(world.admin).value()["restart"]["failed"] == 1;
    eventually("it does not serve", LIMIT, || said().then_some(()));
    let (process, hanging) = (world.agent.process(), fs::read(&world.executable).unwrap());
    let dry = world.upgrade(&newer, &["--dry-run"]);
    assert!(dry.code == Some(1) && dry.errors.contains("type: mv "), "{}", dry.errors);
    assert!(fs::read(&world.executable).unwrap() == hanging, "nothing was changed");

    let done = world.upgrade(&newer, &[]);
    assert!(done.code == Some(0) && done.errors.contains("it gets its name back"), "{}", done.errors);
    assert_ne!(world.agent.process(), process);
    assert!(fs::read(&world.executable).unwrap() == fs::read(&newer.0).unwrap());
    assert!(fs::read(world.folder.path("bin/agent.old")).unwrap() == good);
}
