//! `scheduler.reserve`: all of a unit's room on a host, or none of it.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Text;

use crate::api::event::body::{EventBody, PortRequest};
use crate::api::event::{Allocated, EventData, PortReservation, owners};
use crate::ledger::book::Book;
use crate::ledger::note::Note;
use crate::ledger::record::Promise;
use crate::place::port::{Bound, Port, WILDCARD};
use crate::place::refusal::Refusal;
use crate::place::room::{Addresses, PortGroup, Room};

pub(super) fn reserve(book: &mut Book, body: &EventBody, now: Duration) -> Result<EventData, Refusal> {
    let uuid = body.host()?;
    let Some(host) = book.inventory().hosts().index(&uuid) else { return Ok(EventData::Nothing) };
    book.admit(body.ports.len() + 1)?;
    let room = book.room();
    let hosts = book.inventory().hosts();
    // Everything is checked before anything is reserved, so there is nothing to roll back.
    let mut sums: BTreeMap<&Text, i64> = BTreeMap::new();
    let own = book.notes(&uuid).find(|(_, note)| !body.unit.is_empty() && note.unit == body.unit && !note.gives_back);
    let own = own.map(|(at, _)| at);
    let had = |name: &Text| {
        let promise = own.and_then(|own| book.notes(&uuid).find(|(at, _)| *at == own)).map(|(_, note)| &note.promise);
        promise
            .and_then(|promise| promise.amounts.iter().find(|(known, _)| known == name))
            .map_or(0, |(_, amount)| *amount)
    };
    for (name, amount) in &body.amounts {
        // Nothing is reserved of a pool that the host does not have, as in the predecessor: who asked `prioritize`
        // first never gets here with one.
        let Some(pool) = hosts.pool(name).filter(|pool| room.has_pool(*pool, host)) else { continue };
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(*amount);
        if *sum > room.free(pool, host).saturating_add(had(name)) && !body.force {
            return Err(Refusal::DoesNotFit(format!(
                "Not enough available resources on host {uuid} to reserve {name}."
            )));
        }
    }
    let mut replies = Vec::new();
    let mut bounds: Vec<(Text, Vec<Bound>)> = Vec::new();
    let mut unit: Vec<Bound> = Vec::new();
    for request in &body.ports {
        let bound = ports_of(&room, host, &uuid, request, &unit, body.force)?;
        let allocated = bound.iter().map(|(bound, _)| Allocated {
            address: bound.address,
            public: bound.public,
            private: bound.private,
            protocol: bound.protocol.name(),
        });
        replies.push(PortReservation { instance_id: request.instance_id.clone(), allocated: allocated.collect() });
        let new: Vec<_> = bound.into_iter().filter(|(_, new)| *new).map(|(bound, _)| bound).collect();
        unit.extend(new.iter().cloned());
        bounds.push((request.group.owner.clone(), new));
    }
    let amounts: Vec<(Text, i64)> = sums.into_iter().map(|(name, amount)| (name.clone(), amount)).collect();
    // A repeated reservation takes back what was given back.
    take_back(book, &uuid, body);
    let there = |owner: &Text| book.inventory().account(owner).is_some_and(|account| account.host == Some(host));
    if !amounts.is_empty() && (body.unit.is_empty() || !body.unit.iter().all(there)) {
        let promise = Promise { amounts, ..Promise::default() };
        match own {
            Some(own) => book.change_note(own, promise),
            None => book.add_note(Note::new(uuid.clone(), promise, body.unit.clone(), false, now)),
        }
    }
    for (owner, bound) in bounds.into_iter().filter(|(_, bound)| !bound.is_empty()) {
        let promise = Promise { bound, ..Promise::default() };
        book.add_note(Note::new(uuid.clone(), promise, owners(&owner), false, now));
    }
    Ok(EventData::Reserved { ports: replies })
}

/// The ports that a request gets, each with whether it is new.
fn ports_of(
    room: &Room<'_>,
    host: u32,
    uuid: &Text,
    request: &PortRequest,
    unit: &[Bound],
    force: bool,
) -> Result<Vec<(Bound, bool)>, Refusal> {
    let group = &request.group;
    let mut ports = Vec::new();
    let mut wanted = Vec::new();
    for port in &group.ports {
        let has = room.bound(host).find(|bound| {
            let public = if port.public == 0 { bound.private == port.private } else { bound.public == port.public };
            let address = port.address.is_none_or(|address| address == bound.address);
            !group.owner.is_empty()
                && bound.owner == group.owner
                && bound.protocol == port.protocol
                && public
                && address
        });
        match has {
            Some(bound) => ports.push((bound.clone(), false)),
            None => wanted.push(*port),
        }
    }
    let rest = PortGroup { owner: group.owner.clone(), ports: wanted };
    match room.assign_beside(host, std::slice::from_ref(&rest), Addresses::Any, unit) {
        Some(bound) => ports.extend(bound.into_iter().map(|bound| (bound, true))),
        None if force => ports.extend(rest.ports.iter().filter(|port| port.public != 0).map(|port| {
            let address = port.address.unwrap_or(WILDCARD);
            let (public, private, protocol) = (port.public, port.private, port.protocol);
            (Bound { address, public, private, protocol, owner: group.owner.clone() }, true)
        })),
        None => {
            let alone = |port: &&Port| {
                let one = PortGroup { owner: group.owner.clone(), ports: vec![**port] };
                room.assign_beside(host, &[one], Addresses::Any, unit).is_none()
            };
            let port = rest.ports.iter().find(alone).or_else(|| rest.ports.first());
            let port = port.map(ToString::to_string).unwrap_or_default();
            return Err(Refusal::DoesNotFit(format!("Port {port} is not free on host {uuid}.")));
        }
    }
    Ok(ports)
}

/// Ends what the unit gave back on this host.
fn take_back(book: &mut Book, host: &str, body: &EventBody) {
    let given: Vec<u64> = book
        .notes(host)
        .filter(|(_, note)| {
            let unit = !body.unit.is_empty() && note.unit == body.unit;
            let port = body.ports.iter().any(|request| note.unit == owners(&request.group.owner));
            note.gives_back && !note.unit.is_empty() && (unit || port)
        })
        .map(|(at, _)| at)
        .collect();
    for at in given {
        book.remove_note(at);
    }
}
