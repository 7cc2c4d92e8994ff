//! What `agent doctor` finds out about the network between hosts: settings of the system, routes, and whether packets arrive.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use etcd::EtcdArgs;
use live::Origin;
use live::config::Engine;
use network::plan::{BRIDGE, FORWARDING};
use network::verdict::{Judged, Verdict};
use platform::route::Link;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Finding, Outcome};
use crate::network::{Looked, look as look_at};

/// A port at which nothing listens, so that the other system refuses what comes there, which is an answer. The first one of
/// traceroute, which firewalls know.
const PROBED_PORT: u16 = 33434;

/// Longest wait for an answer; each probe is sent twice.
const PROBE_TIME: Duration = Duration::from_secs(1);

/// Most hosts that are probed, the first ones by subnet: enough to tell one host's fault from one of this host.
const PROBED_MAX: usize = 32;

/// Most hosts that are named for one reason.
const NAMED_MAX: usize = 3;

/// IPv4 header without options and UDP header (RFC 791, RFC 768).
const HEADERS: usize = 20 + 8;

/// Entries of the ARP table from which on the system may refuse new ones, by default, as a setting.
const NEIGHBOURS: &str = "net.ipv4.neigh.default.gc_thresh3";

/// What routers of clouds and virtual switches have to let through.
const FOREIGN_SOURCES: &str = "if forwarding is on there, the network between the hosts drops packets with addresses of containers: \
     allow them (AWS: source/destination check off; Google: canIpForward; Azure: enableIPForwarding; Hyper-V: MAC address spoofing; \
     OpenStack: allowed address pairs)";

/// Looks at the network; nothing if the cluster has none.
pub(super) async fn look(
    origin: &Origin,
    etcd: &EtcdArgs,
    engine: Option<&Engine>,
    host: Option<&str>,
) -> Vec<Finding> {
    match look_at(origin, etcd, engine, host).await {
        Ok(None) => Vec::new(),
        Ok(Some(looked)) => {
            let mut findings = vec![planned(&looked), routes(&looked.plan.judged)];
            findings.extend(settings(&looked));
            findings.extend(managers());
            findings.extend(probed(&looked).await);
            findings
        }
        Err(failure) => {
            let advice = "as root, with the options of `agent up`: agent network explain";
            vec![Finding::new("network", Outcome::Odd, format!("cannot be looked at: {failure}"), advice)]
        }
    }
}

/// Whether everything is as the claims want it.
fn planned(looked: &Looked) -> Finding {
    let (steps, findings) = (looked.steps(), &looked.plan.findings);
    match (looked.plan.subnet, steps.first(), findings.first()) {
        (_, _, Some(finding)) => {
            let advice = "agent network explain shows each host; agent network plan shows what would be changed";
            Finding::new("network of this host", Outcome::Bad, finding, advice)
        }
        (_, Some(step), None) => {
            let more = if steps.len() > 1 { format!(" and {} steps more", steps.len() - 1) } else { String::new() };
            let found = format!("it is not as it should be, missing: {step}{more}");
            Finding::new("network of this host", Outcome::Bad, found, "agent network apply, or agent up --network")
        }
        (None, None, None) => Finding::new(
            "network of this host",
            Outcome::Odd,
            "this host has no subnet, so its containers are not reached from other hosts",
            "as an operator: agent network give HOST",
        ),
        (Some(subnet), None, None) => Finding::good("network of this host", format!("{subnet} on {BRIDGE}")),
    }
}

/// Whether each other host has a route.
fn routes(judged: &[Judged]) -> Finding {
    let mut without: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
    for peer in judged.iter().filter(|peer| !peer.verdict.is_reached()) {
        without.entry(peer.verdict.word()).or_default().push(peer);
    }
    if without.is_empty() {
        return Finding::good("routes to hosts", format!("{} hosts, each with a route", judged.len()));
    }
    let reasons: Vec<_> = without.values().map(|peers| format!("{}: {}", named(peers), peers[0].verdict)).collect();
    Finding::new("routes to hosts", Outcome::Bad, reasons.join("; "), "agent network explain shows each host")
}

/// The first hosts of some, and how many more there are.
fn named(peers: &[&Judged]) -> String {
    let names: Vec<_> = peers.iter().take(NAMED_MAX).map(|peer| &*peer.host).collect();
    let more = peers.len().saturating_sub(NAMED_MAX);
    if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
}

/// Settings of the system on which packets of containers depend.
fn settings(Looked { facts, plan, .. }: &Looked) -> Vec<Finding> {
    let mut findings = Vec::new();
    let link = |name: &str| facts.table.links.iter().find(|link| link.name == name);
    let ways: Vec<&Link> =
        facts.table.links.iter().filter(|link| plan.judged.iter().any(|peer| peer.link == Some(link.index))).collect();
    match facts.forwarding.as_deref() {
        Some("1") => findings.push(Finding::good("forwarding", "packets are passed on to containers")),
        Some(_) => findings.push(Finding::new(
            "forwarding",
            Outcome::Bad,
            format!("{FORWARDING} is 0: packets from other hosts do not reach containers"),
            "agent network apply",
        )),
        None => {}
    }
    for way in &ways {
        let name = &way.name;
        let strict = ["all", name].iter().filter_map(|name| setting(&format!("net.ipv4.conf.{name}.rp_filter"))).max();
        let elsewhere = plan
            .judged
            .iter()
            .any(|peer| matches!(peer.verdict, Verdict::Shadowed { .. }) && peer.link == Some(way.index));
        if strict == Some(1) && elsewhere {
            findings.push(Finding::new(
                format!("rp_filter of {name}"),
                Outcome::Bad,
                "packets are dropped whose way back is not the one on which they came, and another program's routes lead elsewhere",
                format!("remove these routes, or: sysctl net.ipv4.conf.{name}.rp_filter=2"),
            ));
        }
    }
    if let (Some(bridge), Some(way)) = (link(BRIDGE), ways.iter().min_by_key(|way| way.mtu)) {
        let found = format!("{} on {BRIDGE}, {} on {}", bridge.mtu, way.mtu, way.name);
        findings.push(if bridge.mtu > way.mtu {
            let advice = "stop the containers on it and type: agent network apply --recreate";
            Finding::new(
                "packet size (MTU)",
                Outcome::Bad,
                format!("{found}: large packets of containers are lost"),
                advice,
            )
        } else {
            Finding::good("packet size (MTU)", found)
        });
    }
    let most = setting(NEIGHBOURS).and_then(|most| usize::try_from(most).ok());
    if let Some(most) = most.filter(|most| plan.judged.len() > *most) {
        findings.push(Finding::new(
            "neighbours",
            Outcome::Odd,
            format!("{} hosts, but the system holds at most {most} neighbours ({NEIGHBOURS})", plan.judged.len()),
            format!("sysctl {NEIGHBOURS}={}", (plan.judged.len() * 2).next_power_of_two()),
        ));
    }
    findings
}

fn setting(name: &str) -> Option<i64> {
    platform::sysctl::read(name).ok()?.trim().parse().ok()
}

/// Programs that change routes or firewalls of others.
fn managers() -> Vec<Finding> {
    let mut findings = Vec::new();
    if Path::new("/run/systemd/netif/state").exists() && !networkd_keeps_foreign_routes() {
        findings.push(Finding::new(
            "systemd-networkd",
            Outcome::Odd,
            "it removes routes of other programs when it starts again, until the agent adds them again",
            "in /etc/systemd/networkd.conf, section [Network]: ManageForeignRoutes=no",
        ));
    }
    if Path::new("/run/firewalld").exists() {
        findings.push(Finding::new(
            "firewalld",
            Outcome::Odd,
            "when it is reloaded, it removes the rules that let packets to containers pass, until the agent adds them again",
            "restart the engine after a reload, and see that the agent runs with --network",
        ));
    }
    findings
}

/// Whether systemd-networkd leaves routes of others alone; later files win (networkd.conf(5)).
fn networkd_keeps_foreign_routes() -> bool {
    let mut files = vec![Path::new("/etc/systemd/networkd.conf").to_owned()];
    for folder in ["/usr/lib/systemd/networkd.conf.d", "/etc/systemd/networkd.conf.d"] {
        let mut parts: Vec<_> =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|part| part.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let values = texts.flat_map(|text| text.lines().filter_map(manages_foreign_routes).collect::<Vec<_>>());
    values.last() == Some(false)
}

/// The value in a line that sets it.
fn manages_foreign_routes(line: &str) -> Option<bool> {
    let (key, value) = line.split_once('=')?;
    (key.trim() == "ManageForeignRoutes").then(|| matches!(value.trim(), "yes" | "true" | "1" | "on"))
}

/// Whether a host and its containers' gateway answer, from here and from the containers' gateway here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answered {
    /// Not even the host.
    Nothing,
    /// The host alone.
    Host,
    /// The gateway too, but not large packets.
    Small,
    All,
}

/// Sends packets to the other hosts as containers would.
async fn probed(Looked { claims, facts, plan }: &Looked) -> Option<Finding> {
    const SUBJECT: &str = "packets to hosts";
    let gateway = |subnet: ipnet::Ipv4Net| Ipv4Addr::from(u32::from(subnet.network()) + 1);
    let own = plan.subnet.map(gateway);
    let own =
        own.filter(|own| facts.table.links.iter().any(|link| link.addresses.iter().any(|has| has.addr() == *own)))?;
    let host = claims.hosts.get(&*facts.host)?.as_ref().ok()?.via?;
    let peers: Vec<_> = plan.judged.iter().filter(|peer| peer.verdict.is_reached()).take(PROBED_MAX).collect();
    let mut probes = JoinSet::new();
    for (index, peer) in peers.iter().enumerate() {
        let (via, there) = (peer.via?, gateway(peer.subnet));
        let mtu = facts.table.links.iter().find(|link| Some(link.index) == peer.link).map_or(0, |link| link.mtu);
        let large = usize::try_from(mtu).unwrap_or_default().saturating_sub(HEADERS);
        probes.spawn(async move {
            let answered = if answers(own, there, 1).await {
                if answers(own, there, large).await { Answered::All } else { Answered::Small }
            } else if answers(host, via, 1).await {
                Answered::Host
            } else {
                Answered::Nothing
            };
            (index, answered)
        });
    }
    let mut by_answer: BTreeMap<Answered, Vec<&Judged>> = BTreeMap::new();
    while let Some(Ok((index, answered))) = probes.join_next().await {
        by_answer.entry(answered).or_default().push(peers[index]);
    }
    for peers in by_answer.values_mut() {
        peers.sort_by_key(|peer| peer.subnet);
    }
    let of = |answered| by_answer.get(&answered).map(|peers| named(peers));
    Some(match (of(Answered::Host), of(Answered::Small), of(Answered::Nothing)) {
        (Some(hosts), ..) => Finding::new(
            SUBJECT,
            Outcome::Bad,
            format!("{hosts}: the host answers, but not the gateway of its containers to that of the containers here"),
            format!("agent doctor there; {FOREIGN_SOURCES}"),
        ),
        (None, Some(hosts), _) => Finding::new(
            SUBJECT,
            Outcome::Bad,
            format!("{hosts}: small packets arrive, those of the size of the interface do not"),
            "give both ends, and what is between them, the same packet size (MTU)",
        ),
        (None, None, Some(hosts)) => Finding::new(
            SUBJECT,
            Outcome::Odd,
            format!("{hosts}: no answer; they may be down, or drop packets to UDP port {PROBED_PORT}"),
            "see whether they run: agent doctor there",
        ),
        (None, None, None) => {
            Finding::good(SUBJECT, format!("{} hosts and their containers' gateways answer", peers.len()))
        }
    })
}

/// Whether a datagram of this length from one address to another is answered, by a refusal of the port too.
async fn answers(from: Ipv4Addr, to: Ipv4Addr, length: usize) -> bool {
    let Ok(socket) = UdpSocket::bind((from, 0)).await else { return false };
    if socket.connect((to, PROBED_PORT)).await.is_err() {
        return false;
    }
    let datagram = vec![0; length];
    for _ in 0..2 {
        if let Err(error) = socket.send(&datagram).await {
            return error.kind() == ErrorKind::ConnectionRefused;
        }
        match timeout(PROBE_TIME, socket.recv(&mut [0; 1])).await {
            Ok(Ok(_)) => return true,
            Ok(Err(error)) => return error.kind() == ErrorKind::ConnectionRefused,
            Err(_) => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_networkd_says_whether_it_removes_routes() {
        for (line, expected) in [
            ("ManageForeignRoutes=no", Some(false)),
            (" ManageForeignRoutes = yes", Some(true)),
            ("#ManageForeignRoutes=no", None),
            ("[Network]", None),
        ] {
            assert_eq!(manages_foreign_routes(line), expected, "{line}");
        }
    }
}
