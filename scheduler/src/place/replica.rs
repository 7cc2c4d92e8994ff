//! A replica of a request: one unit on one host, with the names, ports and images that its containers get there.

use model::Text;

use crate::ledger::record::{Promise, PromiseState, PromisedContainer, Replica, Stage};
use crate::place::filter::Need;
use crate::place::filter::choice::choose;
use crate::place::inventory::key::{Kind, key};
use crate::place::port::{Bound, Port, WILDCARD};
use crate::place::request::Request;
use crate::place::room::{Addresses, PortGroup, Room};

pub(crate) fn promised_replica(request: &Request, room: &Room<'_>, host: u32, names: &[Text]) -> Replica {
    let facts = room.inventory.hosts().facts(host);
    let groups = request.port_groups(names);
    let bound = room.assign(host, &groups, Addresses::Own).unwrap_or_else(|| {
        // The request named the host: it gets its ports even if others have them, as in the predecessor.
        forced(room, host, &groups)
    });
    let mut replica = replica_of(request, (facts.uuid.clone(), facts.name.clone()), names, &bound);
    for (held, member) in replica.members.iter_mut().zip(&request.members) {
        held.system = choose(facts, &member.platforms, request.isolation).map(Into::into);
    }
    if request.requested_host.is_some() {
        let mut free = request.clone();
        free.requested_host = None;
        let need = Need::new(&free, room.inventory, names);
        replica.overridden = need.reasons(room, host).into_iter().map(|reason| reason.detail).collect();
    }
    replica
}

/// One unit of the request on this host (uuid and name), with containers of these names and these ports.
pub(crate) fn replica_of(
    request: &Request,
    (host, host_name): (Text, Text),
    names: &[Text],
    bound: &[Bound],
) -> Replica {
    let members = request.members.iter().zip(names).map(|(member, name)| {
        let own: Vec<_> = bound.iter().filter(|bound| bound.owner == *name).cloned().collect();
        let mut keys = Vec::with_capacity(member.keys.len() + 2);
        keys.push(key(Kind::Name, &[name]));
        keys.extend_from_slice(&member.keys);
        PromisedContainer {
            name: name.clone(),
            system: None,
            container: None,
            promise: Promise { amounts: member.amounts.clone(), bound: own.clone(), keys, ..Promise::default() },
            bound: own,
            state: PromiseState::Reserved,
        }
    });
    let mut members: Vec<_> = members.collect();
    // The service counts units, not containers.
    members[0].promise.keys.extend(request.service_key);
    for held in &mut members {
        held.promise.keys.sort_unstable();
        held.promise.keys.dedup();
    }
    let (stage, overridden) = (Stage::Reserved, Vec::new());
    Replica {
        stage,
        host,
        host_name,
        members,
        attempt: None,
        overridden,
        unclear_until: None,
        waits: None,
        replaced: None,
    }
}

/// All ports as they are asked for; those that are for the scheduler to choose are free.
fn forced(room: &Room<'_>, host: u32, groups: &[PortGroup]) -> Vec<Bound> {
    let mut all: Vec<Bound> = Vec::new();
    for group in groups {
        for port in &group.ports {
            let owner = group.owner.clone();
            let Port { address, public, private, protocol } = *port;
            if public == 0 {
                let one = PortGroup { owner, ports: vec![*port] };
                all.extend(room.assign_beside(host, &[one], Addresses::Any, &all).into_iter().flatten());
            } else {
                all.push(Bound { address: address.unwrap_or(WILDCARD), public, private, protocol, owner });
            }
        }
    }
    all
}

/// The names of a unit's containers; `which` distinguishes several units.
pub(crate) fn member_names(request: &Request, id: &str, which: Option<&str>) -> Vec<Text> {
    let base = request.members[0].name.as_deref().unwrap_or(id);
    // Hosts may be called what no container can be.
    let plain = |char: char| if char.is_ascii_alphanumeric() || "_.-".contains(char) { char } else { '-' };
    let primary: Text = match which {
        None => base.into(),
        Some(which) => format!("{base}-{}", which.chars().map(plain).collect::<String>()).into(),
    };
    let sidekick = |name: &Text| format!("{primary}-{name}").into();
    let sidekicks = request.members[1..].iter().filter_map(|member| member.name.as_ref()).map(sidekick);
    std::iter::once(primary.clone()).chain(sidekicks).collect()
}
