//! What `agent doctor` finds out about the hosts of a cluster: containers of other hosts whose names are empty here.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use model::{Container, Entity, Reach, Snapshot, Unreachable};
use source::{Readiness, Source};
use tokio::time::timeout;

use super::{Finding, Outcome};

/// Longest wait for the containers of all hosts: 100,000 of them take a second.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Most containers that are named for one reason.
const NAMED_MAX: usize = 3;

/// What to do for containers whose network is of their host alone.
const ADVICE: &str = "where other hosts need them, give each host a network with a subnet of its own and routes to the \
     others (docker network create --subnet SUBNET --label io.berth.network.routed=true NAME), or publish each port under \
     its own number (docs/etcd.md, \"Names across hosts\")";

/// Asks metadata for the containers of all hosts, as `dns` does.
pub(super) async fn look(metadata: SocketAddr) -> Option<Finding> {
    let source = Source::Metadata(metadata.to_string().parse().ok()?);
    let following = source::follow(source, None, Arc::new(Readiness::default())).ok()?;
    let snapshots = following.snapshots.clone();
    let mut watcher = snapshots.watch();
    let read = timeout(READ_WITHIN, watcher.first()).await;
    following.stop().await;
    read.ok().map(|()| left_out(&snapshots.load()))
}

/// The containers of other hosts that have no address here, by reason.
fn left_out(snapshot: &Snapshot) -> Finding {
    let running = || snapshot.containers.values().filter(|container| container.runs());
    let local = running().filter(|container| snapshot.is_local(container));
    let here = local.flat_map(|container| snapshot.standing_addresses(container));
    let here: HashSet<_> = here.map(|address| address.to_canonical()).collect();
    let is_here = |address: IpAddr| here.contains(&address.to_canonical());
    let why = |container: &Container| match snapshot.reach(container, &is_here) {
        Reach::Nowhere(why) => Some(why),
        Reach::Own(_) | Reach::Host(_) => None,
    };
    let name = |container: &Container| {
        let host = container.host_uuid().and_then(|uuid| snapshot.hosts.get(uuid)).and_then(|host| host.name());
        format!(
            "{} on {}",
            container.name().unwrap_or_else(|| container.uuid()),
            host.map_or("another host", |host| host)
        )
    };
    let (mut others, mut left_out, mut by_reason) = (0, 0, BTreeMap::<_, Vec<_>>::new());
    let mut outcome = Outcome::Odd;
    let addressed = |container: &&Arc<Container>| container.addresses().next().is_some();
    for container in running().filter(addressed).filter(|container| !snapshot.is_local(container)) {
        others += 1;
        let Some(why) = why(container) else { continue };
        left_out += 1;
        // A container without ports may be meant for its own host alone.
        if !matches!(why, Unreachable::Unpublished | Unreachable::Renumbered) {
            outcome = Outcome::Bad;
        }
        by_reason.entry(why.reason()).or_default().push(container);
    }
    let subject = "names across hosts";
    if by_reason.is_empty() {
        return Finding::good(subject, format!("{others} containers of other hosts, each reached from here"));
    }
    let reasons = by_reason.iter().map(|(reason, containers)| {
        let names: Vec<_> = containers.iter().take(NAMED_MAX).map(|container| name(container)).collect();
        let more = containers.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}: {reason}", names.join(", "))
    });
    let reasons: Vec<_> = reasons.collect();
    let found =
        format!("{left_out} of {others} containers of other hosts have no address here: {}", reasons.join("; "));
    Finding::new(subject, outcome, found, ADVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found on host `h1` when host `h2` has this container.
    fn found(agent_ip: &str, container: &str) -> Finding {
        let text = format!(
            "
berth: 1
host: h1
hosts: [{{name: h1, agent_ip: 192.0.2.1}}, {{name: h2, agent_ip: {agent_ip}}}]
containers:
  - {{name: web, host: h1, primary_ip: 172.17.0.2, routed_ips: []}}
  - {{name: api, host: h2, {container}}}
"
        );
        left_out(&source::format::read(&text).unwrap().snapshot)
    }

    #[test]
    fn containers_without_an_address_here_are_found_and_equal_addresses_are_not() {
        let ports = |port| format!("primary_ip: 172.17.0.2, routed_ips: [], ports: ['{port}']");
        for (agent_ip, container, outcome, expected) in [
            ("192.0.2.2", &*ports("8080:8080"), "ok", "1 containers of other hosts"),
            ("192.0.2.2", "primary_ip: 172.17.0.3, routed_ips: []", "odd", "api on h2: its network is not routed"),
            ("192.0.2.2", &*ports("80:8080"), "odd", "under another number"),
            ("192.0.2.1", &*ports("8080:8080"), "bad", "--public-ip"),
            ("127.0.0.1", &*ports("8080:8080"), "bad", "--public-ip"),
            ("192.0.2.2", "primary_ip: 172.17.0.2, routed_ips: [172.17.0.2]", "bad", "a subnet of its own"),
            ("192.0.2.2", "primary_ip: 10.9.0.2, routed_ips: [10.9.0.2]", "ok", "1 containers of other hosts"),
        ] {
            let finding = found(agent_ip, container);
            assert_eq!(finding.outcome.word(), outcome, "{container}: {}", finding.found);
            assert!(finding.found.contains(expected), "{container}: {}", finding.found);
            assert!(outcome == "ok" || finding.advice.contains("io.berth.network.routed=true"));
        }
    }
}
