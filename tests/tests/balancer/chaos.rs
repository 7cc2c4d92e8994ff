//! Everything fails while members come and go: afterwards HAProxy is as the plan says.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tests::battery::is_long;
use tests::cluster::replace;
use tests::random::Random;
use tests::wait::timed;
use tests::{eventually, ports, tell};

use crate::web::{Web, body};
use crate::{Balancer, LIMIT, document, has_programs, pid_of_master, rule};

/// Containers that come and go.
const CHURNING: u8 = 200;

/// Longest time after the last change until HAProxy is as the plan says.
const QUIET: Duration = Duration::from_secs(5);

/// A file system in memory that can be filled.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where only root may mount.
    fn at(folder: &Path) -> Option<Self> {
        std::fs::create_dir_all(folder).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"]).arg(folder).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(folder.to_owned()))
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filling")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn free(&self) {
        let _ = std::fs::remove_file(self.0.join("filling"));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn ask(socket: &Path, line: &str) -> String {
    let asked = UnixStream::connect(socket).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        writeln!(stream, "{line}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    asked.unwrap_or_default()
}

/// Where HAProxy leads new clients.
fn led(socket: &Path) -> BTreeSet<String> {
    let answer = ask(socket, "show servers state");
    let servers = answer.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let ready = servers.filter(|fields| fields.len() > 18 && matches!(fields[6], "0" | "4"));
    ready.map(|fields| format!("{} {}:{}", fields[1], fields[4], fields[18])).collect()
}

fn worker(socket: &Path) -> Option<String> {
    ask(socket, "show info").lines().find_map(|line| Some(line.strip_prefix("Pid: ")?.to_owned()))
}

fn signal(pid: &str, name: &str) {
    // What has ended meanwhile cannot be sent anything.
    let _ = Command::new("kill").args([&format!("-{name}"), pid]).stderr(std::process::Stdio::null()).status();
}

#[test]
fn after_everything_failed_haproxy_is_as_the_plan_says() {
    if !has_programs() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yml");
    let disk = SmallDisk::at(&folder.path().join("haproxy"));
    let [port, churned, target] = ports::some(3)[..] else { unreachable!() };
    let (first, second) = (Web::start(221, target, "first"), Web::start(222, target, "second"));
    let churning = |number: u8| IpAddr::V4(Ipv4Addr::new(127, 97, 1, number));
    let mut random = Random(0xc4a0_5000_0000_0003);
    let mut running: BTreeSet<u8> = (0..CHURNING / 2).collect();
    let write = |running: &BTreeSet<u8>, has_second: bool| {
        let web = [Some(first.ip()), has_second.then_some(second.ip())];
        let rules = rule(port, "", "", "web", target) + &rule(churned, "", "", "churn", 9);
        let running_at = |ip| (ip, "running");
        let services = [
            ("web", web.into_iter().flatten().map(running_at).collect()),
            ("churn", running.iter().map(|number| running_at(churning(*number))).collect()),
        ];
        replace(&file, document(&rules, &services, ""));
        let churn = running.iter().map(|number| (churned, churning(*number), 9));
        let web = web.into_iter().flatten().map(|ip| (port, ip, target));
        // Backends are numbered in the order of their ports.
        let name = |of: u16| if (of == port) == (port < churned) { "b1" } else { "b2" };
        churn.chain(web).map(|(of, ip, at)| format!("{} {ip}:{at}", name(of))).collect::<BTreeSet<_>>()
    };
    write(&running, true);
    let start = || Balancer::haproxy(&file, folder.path(), &[]);
    let mut balancer = Some(start());
    let sockets = folder.path().join("haproxy");
    let (socket, master) = (sockets.join("haproxy.sock"), sockets.join("master.sock"));
    let proxy = SocketAddr::from(([127, 0, 0, 1], port));
    eventually("HAProxy serves", LIMIT, || body(proxy, "example.org", "/"));
    let begun = Instant::now();
    let whole = if is_long() { Duration::from_mins(10) } else { Duration::ZERO };
    let (mut rounds, mut slowest, mut changes) = (0, Duration::ZERO, 0);
    let whats = ["the agent is killed", "HAProxy is killed", "HAProxy is stuck", "the disk is full", "nothing"];
    while rounds < whats.len() || begun.elapsed() < whole {
        let what = whats[rounds % whats.len()];
        let stuck = match what {
            "the agent is killed" => {
                if let Some(Balancer::Haproxy(agent)) = &mut balancer {
                    agent.kill();
                }
                None
            }
            "HAProxy is killed" => {
                signal(&pid_of_master(&master), "KILL");
                None
            }
            "HAProxy is stuck" => worker(&socket).inspect(|pid| signal(pid, "STOP")),
            "the disk is full" => {
                disk.as_ref().inspect(|disk| disk.fill());
                None
            }
            _ => None,
        };
        for _ in 0..20 {
            for _ in 0..=random.below(20) {
                let one = u8::try_from(random.below(CHURNING.into())).unwrap();
                if !running.remove(&one) {
                    running.insert(one);
                }
            }
            write(&running, random.below(2) == 0);
            changes += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        if let Some(pid) = stuck {
            signal(&pid, "CONT");
        }
        disk.as_ref().inspect(|disk| disk.free());
        if what == "the agent is killed" {
            drop(balancer.take());
            balancer = Some(start());
        }
        let wanted = write(&running, false);
        let said = format!("HAProxy leads where the plan says after {what}");
        let ((), took) = timed(&said, QUIET, || (led(&socket) == wanted).then_some(()));
        slowest = slowest.max(took);
        // Gone for a second, it gets no request any more.
        std::thread::sleep(Duration::from_secs(1));
        let served = second.served();
        for _ in 0..20 {
            assert_eq!(body(proxy, "example.org", "/").as_deref(), Some("first"), "after {what}");
        }
        assert_eq!(second.served(), served, "after {what}");
        rounds += 1;
    }
    tell(&format!("{rounds} failures, {changes} changes: HAProxy was as the plan says within {slowest:?}"));
    drop(balancer);
}
