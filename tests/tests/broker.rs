//! `NET_ADMIN` is with a process of its own (the broker), and what containers talk to serves, starts again and stops without it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;
use std::time::Duration;

use tests::cluster::{ClusterFolder, shop_text};
use tests::namespace::Pair;
use tests::successors::Agent;
use tests::{Executable, Launch, eventually};

const LIMIT: Duration = Duration::from_secs(15);

/// A user that nothing else on the machine has.
const USER: u32 = 64_123;

/// Starts a program as the packages' unit does: as a user with two capabilities.
const AS_THE_UNIT: [&str; 6] = [
    "setpriv",
    "--reuid=64123",
    "--regid=64123",
    "--clear-groups",
    "--inh-caps=+net_admin,+net_bind_service",
    "--ambient-caps=+net_admin,+net_bind_service",
];

const ADDRESSES: [&str; 2] = ["169.254.169.250", "169.254.169.251"];

fn pair() -> Option<Pair> {
    let needed = [("ip", "-V"), ("ss", "-V"), ("nft", "--version"), ("curl", "--version"), ("setpriv", "--version")];
    tests::shared::there(&needed, "iproute2, nftables, curl, util-linux").then(|| Pair::try_new("10.42.0.7"))?
}

/// A line of the status of a process, such as its capabilities.
fn status(process: u32, line: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().find_map(|one| one.strip_prefix(line)).unwrap_or_default().trim().to_owned()
}

/// The brokers of an executable.
fn brokers(executable: &std::path::Path) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_broker = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next() == Some(executable.as_os_str().as_encoded_bytes()) && words.next() == Some(b"broker")
    };
    processes.filter(is_broker).collect()
}

#[test]
fn what_containers_talk_to_cannot_change_the_network_of_its_host() {
    if tests::binaries::are_for_windows() {
        return;
    }
    let Some(pair) = pair() else { return };
    let cluster = ClusterFolder::new(shop_text());
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let executable = folder.path().join("agent");
    fs::copy(tests::binaries::native("agent"), &executable).unwrap();
    let (state, file) = (folder.path().join("state"), folder.path().join("cluster.yml"));
    fs::copy(cluster.file(), &file).unwrap();
    let launch = Launch::bare(Executable::Agent).word("up").word(file.to_str().unwrap()).word("--serve-containers");
    let launch = launch.logged().in_namespace(&pair.host).executable(&executable);
    for starter in [&AS_THE_UNIT[..], &[]] {
        fs::create_dir(&state).unwrap();
        chown(&state, Some(USER), Some(USER)).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        let launch = launch.clone().with("--state-dir", &state).through(starter);
        let launch = if starter.is_empty() { launch.with("--user", USER.to_string()) } else { launch };
        let pid = state.join("pid");
        let mut agent = Agent { started: launch.with("--pid-file", &pid).start(), pid };
        let is_ready = || pair.on_host(&["curl", "-s", "-m", "2", "http://127.0.0.1:8112/readyz"]);
        eventually("it is ready", LIMIT, || is_ready().contains("\"ready\":true").then_some(()));
        if !starter.is_empty() {
            // The successor asks the same broker.
            let broker = brokers(&executable);
            agent.restart();
            assert_eq!(brokers(&executable), broker);
        }
        let serving = agent.process().unwrap();
        let [broker] = brokers(&executable)[..] else { panic!("{:?}", brokers(&executable)) };
        for (process, capabilities) in [(serving, "0000000000000400"), (broker, "0000000000001000")] {
            assert_eq!(status(process, "Uid:"), "64123\t64123\t64123\t64123");
            for line in ["CapPrm:", "CapEff:"] {
                assert_eq!(status(process, line), capabilities, "{line}");
            }
            // A program that they run gets nothing more: a successor what its predecessor has.
            let passed = if starter.is_empty() { "0000000000000000" } else { capabilities };
            assert_eq!(status(process, "CapAmb:"), passed);
        }
        assert_eq!((status(broker, "NoNewPrivs:"), status(broker, "Seccomp:")), ("1".to_owned(), "2".to_owned()));
        // It has nothing of what the other one listens on.
        let listening = pair.on_host(&["ss", "-Hltunp"]);
        assert!(listening.contains(&format!("pid={serving},")), "{listening}");
        assert!(!listening.contains(&format!("pid={broker},")), "{listening}");

        // Its sockets have the room for datagrams that needs the capability, and what is taken away comes back.
        let sockets = pair.on_host(&["ss", "-lunm"]);
        assert!(sockets.contains("rb8388608"), "{sockets}");
        let rules = pair.on_host(&["nft", "list", "ruleset"]);
        assert!(rules.contains("berth-169.254.169.250-80") && rules.contains("berth-169.254.169.251-53"), "{rules}");
        let asks = || pair.on_host(&["curl", "-s", "-m", "5", "http://169.254.169.250/"]);
        assert!(asks().contains("latest"), "{}", asks());
        let has = |address: &str| pair.on_host(&["ip", "-o", "address"]).contains(&format!("{address}/32"));
        for address in ADDRESSES {
            let on = pair.on_host(&["ip", "-o", "address", "show", "to", address]);
            let device = on.split_whitespace().nth(1).unwrap().to_owned();
            pair.on_host(&["ip", "address", "delete", &format!("{address}/32"), "dev", &device]);
            eventually("it is put back", LIMIT, || has(address).then_some(()));
        }
        assert!(asks().contains("latest"), "{}", asks());
        // A container on a bridge that is made later is served, and the one outside is not.
        pair.on_host(&["ip", "link", "add", "late0", "type", "bridge"]);
        pair.on_host(&["ip", "link", "set", "late0", "up"]);
        pair.on_host(&["ip", "address", "add", "10.43.0.1/24", "dev", "late0"]);
        pair.on_host(&["ip", "link", "add", "late1", "type", "veth", "peer", "name", "eth1", "netns", &pair.container]);
        pair.on_host(&["ip", "link", "set", "late1", "master", "late0", "up"]);
        let within = |words: &[&str]| pair.in_container(words);
        within(&["ip", "address", "add", "10.43.0.7/24", "dev", "eth1"]);
        within(&["ip", "link", "set", "eth1", "up"]);
        let outside = within(&["curl", "-s", "-m", "1", "http://169.254.169.250/"]);
        assert_eq!(outside, "", "it came by a cable that is no container's");
        within(&["ip", "route", "add", "169.254.169.250/32", "via", "10.43.0.1"]);
        eventually("the container is served", LIMIT, || {
            within(&["curl", "-s", "-m", "1", "http://169.254.169.250/"]).contains("latest").then_some(())
        });
        pair.on_host(&["ip", "link", "delete", "late1"]);
        pair.on_host(&["ip", "link", "delete", "late0"]);

        // However one of them ends, the other one does.
        if starter.is_empty() {
            assert!(Command::new("kill").args(["-KILL", &broker.to_string()]).status().unwrap().success());
            eventually("the agent ends", LIMIT, || (!agent.is_there(serving)).then_some(()));
            let log = agent.started.log();
            assert!(log.contains("the process with the capability NET_ADMIN ended"), "{log}");
        } else {
            // A manager of services asks all processes to stop, and the addresses are removed all the same.
            assert!(Command::new("kill").args(["-TERM", &broker.to_string()]).status().unwrap().success());
            agent.signal("TERM");
            eventually("it stops", LIMIT, || (!agent.is_there(serving)).then_some(()));
            assert!(!ADDRESSES.iter().any(|address| has(address)), "the addresses are gone");
        }
        eventually("the broker ends", LIMIT, || brokers(&executable).is_empty().then_some(()));
        fs::remove_dir_all(&state).unwrap();
    }
}
