//! What one process has to do with a container: whether it asks, and who decides.

use std::net::SocketAddr;

use model::checkers::{CHECKER, Hosts, uuid_of_host};
use model::health::BadCheck;
use model::{Container, Entity as _, Snapshot, Text};

use crate::budget::{Budget, may_be_asked_by_others};
use crate::spec::Spec;
use crate::target::{Target, check_of};

/// Which containers are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of this host, by this host.
    Own,
    /// All, by this host.
    All,
    /// Those of each host by several others.
    Cluster,
}

/// A container that this process asks, or decides about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assigned {
    /// Where it is asked, and how.
    pub(crate) target: Target,
    /// The other host that decides; `None`: the verdict is made here.
    pub(crate) owner: Option<Text>,
    /// The hosts that check it, the first in rank first; none where this process alone does.
    pub(crate) checkers: Vec<Text>,
    /// The place of this host among them, if it asks.
    pub(crate) rank: Option<usize>,
}

/// Who checks in a cluster, as one host sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster {
    /// The name of this host.
    pub(crate) own: Option<Text>,
    /// All hosts that check.
    pub(crate) hosts: Hosts,
    /// Whether etcd is away, takes no writes or has not got this host, so that no votes arrive.
    pub(crate) is_alone: bool,
}

/// What this process has to do with a container, if anything.
///
/// # Errors
///
/// Fails if the check of a container about which this process decides is wrong; then it counts as unchecked.
pub(crate) fn assigned(
    scope: Scope,
    snapshot: &Snapshot,
    container: &Container,
    roster: &Roster,
    budget: &Budget,
) -> Result<Option<Assigned>, BadCheck> {
    let host = container.host_uuid();
    let is_own = snapshot.local_host.as_ref().is_some_and(|local| host == Some(local.uuid()));
    if is_own || scope == Scope::All {
        let Some(target) = Target::of(snapshot, container)? else { return Ok(None) };
        return Ok(Some(match scope {
            Scope::Cluster => own(snapshot, container, target, roster, budget),
            Scope::Own | Scope::All => alone(target),
        }));
    }
    Ok(if scope == Scope::Cluster { others(snapshot, container, roster, budget) } else { None })
}

fn alone(target: Target) -> Assigned {
    Assigned { target, owner: None, checkers: Vec::new(), rank: Some(0) }
}

/// A container of this host: others check it if they reach it, and are not asked for too much.
fn own(snapshot: &Snapshot, container: &Container, target: Target, roster: &Roster, budget: &Budget) -> Assigned {
    let is_reached = elsewhere(snapshot, container, &target.spec).is_some() && !budget.is_beyond(container);
    let own = roster.own.as_deref();
    let checkers = roster.hosts.checkers(container.uuid(), own);
    let checkers: Vec<Text> = checkers.into_iter().map(|host| roster.hosts.name(host).into()).collect();
    if roster.is_alone || !is_reached || checkers.len() < 2 {
        return alone(target);
    }
    let rank = checkers.iter().position(|name| Some(&**name) == own);
    Assigned { target, owner: None, checkers, rank }
}

/// A container of another host that takes part, if this host is one of its checkers. What is wrong with its check is for its own
/// host to say.
fn others(snapshot: &Snapshot, container: &Container, roster: &Roster, budget: &Budget) -> Option<Assigned> {
    let own = roster.own.as_ref()?;
    let owner = snapshot.hosts.get(container.host_uuid()?)?;
    let name = owner.name().filter(|name| *name != own && owner.fields().text(CHECKER).is_some())?;
    let rank = roster.hosts.rank(own, uuid_of_host(container.uuid()), Some(name))?;
    if !container.runs() || budget.is_beyond(container) {
        return None;
    }
    let spec = check_of(container.fields()).ok()??;
    let address = elsewhere(snapshot, container, &spec)?;
    Some(Assigned {
        target: Target { address, is_elsewhere: true, ..Target::new(container, spec, address) },
        owner: Some(name.clone()),
        checkers: Vec::new(),
        rank: Some(rank),
    })
}

/// Where hosts other than its own ask a container; `None` if only its own asks.
fn elsewhere(snapshot: &Snapshot, container: &Container, spec: &Spec) -> Option<SocketAddr> {
    may_be_asked_by_others(spec).then(|| snapshot.port_from_elsewhere(container, spec.port))?
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Host, Map, Table};

    use super::*;

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    /// A cluster of these hosts, of which `h0` is here, with a container on `h0` and one on `h1`.
    fn cluster(hosts: usize, more: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for number in 0..hosts {
            let fields = format!(
                r#"{{"uuid": "u{number}", "name": "h{number}", "agent_ip": "192.0.2.{number}", "health_checks": "made"}}"#
            );
            snapshot.hosts.insert(Arc::new(Host::new(map(&fields), 0).unwrap()));
        }
        snapshot.local_host = snapshot.hosts.get("u0").cloned();
        for host in [0, 1] {
            let fields =
                format!(r#"{{"uuid": "c{host}", "host_uuid": "u{host}", "primary_ip": "10.0.{host}.5", {more}}}"#);
            snapshot.containers.insert(Arc::new(Container::new(map(&fields), Map::default()).unwrap()));
        }
        snapshot
    }

    fn roster(snapshot: &Snapshot, is_alone: bool) -> Roster {
        Roster { own: Some("h0".into()), hosts: Hosts::of(&snapshot.hosts), is_alone }
    }

    fn found(snapshot: &Snapshot, uuid: &str, is_alone: bool) -> Option<Assigned> {
        let mut budget = Budget::default();
        budget.take_in(&Table::default(), &snapshot.containers);
        assigned(Scope::Cluster, snapshot, &snapshot.containers[uuid], &roster(snapshot, is_alone), &budget).unwrap()
    }

    const TCP: &str = r#""labels": {"io.berth.health.port": "80"}, "routed_ips": ["10.0.9.5"]"#;

    #[test]
    fn three_other_hosts_check_and_the_own_one_decides() {
        let snapshot = cluster(4, TCP);
        let own = found(&snapshot, "c0", false).unwrap();
        let mut checkers: Vec<_> = own.checkers.iter().map(|name| &**name).collect();
        checkers.sort_unstable();
        assert_eq!((checkers.as_slice(), own.rank, own.owner), (&["h1", "h2", "h3"][..], None, None));
        // This host is one of the three of the other one.
        let other = found(&snapshot, "c1", false).unwrap();
        assert!(other.rank.is_some() && other.target.is_elsewhere);
        assert_eq!((other.owner.as_deref(), other.target.address), (Some("h1"), ([10, 0, 9, 5], 80).into()));
        // With fewer hosts the own one fills up.
        assert_eq!(found(&cluster(3, TCP), "c0", false).unwrap().rank, Some(2));
        let single = found(&cluster(1, TCP), "c0", false).unwrap();
        assert_eq!(
            (single.checkers.len(), single.rank, single.target.address),
            (0, Some(0), ([10, 0, 0, 5], 80).into())
        );
    }

    #[test]
    fn own_host_alone_checks_what_others_do_not_reach_or_could_change() {
        let labels = |more: &str| format!(r#""labels": {{"io.berth.health.port": "80"{more}}}"#);
        let routed = r#", "routed_ips": ["10.0.9.5"]"#;
        for (fields, is_alone) in [
            (format!(r#"{}, "routed_ips": []"#, labels("")), true),
            (format!(r#"{}, "routed_ips": [], "ports": ["8080:80/tcp"]"#, labels("")), false),
            (labels(r#", "io.berth.health.from": "own""#) + routed, true),
            (labels(r#", "io.berth.health.request_line": "POST /x HTTP/1.0""#) + routed, true),
            (labels(r#", "io.berth.health.request_line": "HEAD /x HTTP/1.0""#) + routed, false),
        ] {
            let snapshot = cluster(4, &fields);
            assert_eq!(found(&snapshot, "c0", false).unwrap().checkers.is_empty(), is_alone, "{fields}");
            assert_eq!(found(&snapshot, "c1", false).is_none(), is_alone, "{fields}");
        }
        // Nor can they say anything while etcd is away.
        assert_eq!(found(&cluster(4, TCP), "c0", true).unwrap().rank, Some(0));
    }

    #[test]
    fn what_is_too_much_for_others_its_own_host_checks() {
        let mut snapshot = cluster(4, TCP);
        let spoiled = |number: usize| {
            let fields = format!(r#"{{"uuid": "0{number}", "host_uuid": "u{}", {TCP}}}"#, number % 2);
            Arc::new(Container::new(map(&fields), Map::default()).unwrap())
        };
        (0..1998).map(spoiled).for_each(|container| snapshot.containers.insert(container));
        // One is too much on neither host, and one more on both.
        assert_eq!(found(&snapshot, "c0", false).unwrap().checkers.len(), 3);
        assert!(found(&snapshot, "c1", false).is_some());
        (1998..2000).map(spoiled).for_each(|container| snapshot.containers.insert(container));
        assert_eq!(found(&snapshot, "c0", false).unwrap().rank, Some(0));
        assert!(found(&snapshot, "c0", false).unwrap().checkers.is_empty());
        assert_eq!(found(&snapshot, "c1", false), None);
    }

    #[test]
    fn what_another_host_is_called_like_has_the_checkers_that_its_own_host_knows() {
        let mut snapshot = cluster(9, TCP);
        let marked = snapshot.containers["c1"].fields().with([("uuid".into(), model::Value::text("c1@h1"))]);
        let checks = |snapshot: &Snapshot, uuid: &str, host: &str| {
            let roster = Roster { own: Some(host.into()), ..roster(snapshot, false) };
            let budget = Budget::default();
            assigned(Scope::Cluster, snapshot, &snapshot.containers[uuid], &roster, &budget)
                .unwrap()
                .and_then(|it| it.rank)
        };
        snapshot.containers.insert(Arc::new(Container::new(marked, Map::default()).unwrap()));
        let hosts: Vec<String> = (2..9).map(|number| format!("h{number}")).collect();
        assert!(hosts.iter().all(|host| checks(&snapshot, "c1@h1", host) == checks(&snapshot, "c1", host)));
        assert_eq!(hosts.iter().filter_map(|host| checks(&snapshot, "c1@h1", host)).count(), 3);
    }

    #[test]
    fn hosts_that_take_no_part_are_left_alone() {
        let mut snapshot = cluster(4, TCP);
        let fields = map(r#"{"uuid": "u1", "name": "h1", "agent_ip": "192.0.2.1"}"#);
        snapshot.hosts.insert(Arc::new(Host::new(fields, 0).unwrap()));
        assert_eq!(found(&snapshot, "c1", false), None);
        assert!(found(&snapshot, "c0", false).unwrap().checkers.iter().all(|name| **name != *"h1"));
    }
}
