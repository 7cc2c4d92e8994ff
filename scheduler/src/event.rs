//! The predecessor's events: `scheduler.prioritize`, `scheduler.reserve` and `scheduler.release`.
//!
//! Bodies and replies are as its server knew them, except that an error is answered, where it was swallowed
//! and the caller waited for its own timeout. What a reservation is for is told by the `context`; without one
//! nothing can settle it, and it lapses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use model::{Map, Text, Value};
use serde::Serialize;

use crate::engine::{Engine, Refusal};
use crate::filter::{Amount, Check, Need};
use crate::hosts::label;
use crate::ledger::{Book, Note, Promise};
use crate::port::{Bound, Port, Protocol, WILDCARD};
use crate::request::{AMOUNT_MAX, Invalid, LABELS_MAX, LIST_MAX, PORTS_MAX};
use crate::room::{Addresses, PortGroup, Room};
use crate::score;

/// The reply to an event.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventReply {
    /// Where the sender waits for it.
    pub name: Option<Text>,
    /// The event.
    pub previous_ids: Vec<Text>,
    /// Always `schedulerRequest`.
    pub resource_type: &'static str,
    /// As in the event.
    pub resource_id: Option<Text>,
    /// The answer.
    pub data: EventData,
}

/// The answer to an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum EventData {
    /// Hosts that fit, best first.
    Prioritized {
        /// Their uuids.
        #[serde(rename = "prioritizedCandidates")]
        candidates: Vec<Text>,
    },
    /// What was reserved.
    Reserved {
        /// Ports, when some were asked for.
        #[serde(rename = "portReservation", skip_serializing_if = "Vec::is_empty")]
        ports: Vec<PortReservation>,
    },
    /// Nothing to tell.
    Nothing,
}

/// The ports of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortReservation {
    /// The container's id as in the request.
    #[serde(rename = "instanceID")]
    pub instance_id: Text,
    /// Its ports.
    #[serde(rename = "allocatedIPs")]
    pub allocated: Vec<Allocated>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Allocated {
    /// Its address.
    #[serde(rename = "allocatedIP")]
    pub address: IpAddr,
    /// The port outside.
    #[serde(rename = "publicPort")]
    pub public: u16,
    /// The port inside.
    #[serde(rename = "privatePort")]
    pub private: u16,
    /// The transport.
    pub protocol: &'static str,
}

impl Engine {
    /// Answers one of the predecessor's events.
    pub fn event(&self, name: &str, event: &Value, now: Duration) -> Result<EventReply, Refusal> {
        type Answer = fn(&Engine, &mut Book, &Body, Duration) -> Result<EventData, Refusal>;
        let answer: Answer = match name {
            "scheduler.prioritize" => |engine, book, body, _| Ok(engine.prioritize(book, body)),
            "scheduler.reserve" => |_, book, body, now| reserve(book, body, now),
            "scheduler.release" => |_, book, body, now| Ok(release(book, body, now)),
            other => {
                let expected = "scheduler.prioritize, scheduler.reserve or scheduler.release";
                return Err(Invalid {
                    field: "name".into(),
                    problem: format!("no event {other:?}"),
                    expected: expected.into(),
                }
                .into());
            }
        };
        if self.ledger().keeper().shared().is_some() && name != "scheduler.prioritize" {
            return Err(Refusal::Unshared(
                "events reserve nothing where several schedulers share a ledger: use POST /v1/placements",
            ));
        }
        let body = Body::parse(event)?;
        let data = self.with(now, |book| answer(self, book, &body, now))?;
        let map = event.as_map();
        let text = |key| map.and_then(|map| map.text(key)).cloned();
        Ok(EventReply {
            name: text("replyTo"),
            previous_ids: text("id").into_iter().collect(),
            resource_type: "schedulerRequest",
            resource_id: text("resourceId"),
            data,
        })
    }

    fn prioritize(&self, book: &Book, body: &Body) -> EventData {
        let hosts = book.inventory().hosts().clone();
        let mut amounts: Vec<Amount> = Vec::new();
        for (name, amount) in &body.amounts {
            match amounts.iter_mut().find(|known| known.name == *name) {
                Some(known) => known.amount = known.amount.saturating_add(*amount),
                None => amounts.push(Amount { pool: hosts.pool(name), name: name.clone(), amount: *amount }),
            }
        }
        let mut checks = vec![Check::Eligible, Check::Demand(body.labels.clone())];
        checks.extend(amounts.iter().cloned().map(Check::Room));
        if !body.ports.is_empty() {
            let groups = body.ports.iter().map(|request| request.group.clone()).collect();
            checks.push(Check::Ports(groups, Addresses::Listed));
        }
        let need = Need { checks, wishes: Vec::new(), amounts, service: None, images: Vec::new() };
        let room = book.room();
        let ranked = score::ranked(&need, &room, &need.candidates(&room), self.order(), self.strategy());
        EventData::Prioritized { candidates: ranked.iter().map(|host| hosts.facts(*host).uuid.clone()).collect() }
    }
}

fn reserve(book: &mut Book, body: &Body, now: Duration) -> Result<EventData, Refusal> {
    let uuid = body.host()?;
    let Some(host) = book.inventory().hosts().index(&uuid) else { return Ok(EventData::Nothing) };
    book.admit(body.ports.len() + 1)?;
    let room = book.room();
    let hosts = book.inventory().hosts();
    // Everything is looked at before anything is kept, so there is nothing to roll back.
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
    // Who reserves again takes back what was given back.
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
    let mut kept = Vec::new();
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
            Some(bound) => kept.push((bound.clone(), false)),
            None => wanted.push(*port),
        }
    }
    let rest = PortGroup { owner: group.owner.clone(), ports: wanted };
    match room.assign_beside(host, std::slice::from_ref(&rest), Addresses::Any, unit) {
        Some(bound) => kept.extend(bound.into_iter().map(|bound| (bound, true))),
        None if force => kept.extend(rest.ports.iter().filter(|port| port.public != 0).map(|port| {
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
    Ok(kept)
}

/// Ends what the unit gave back on this host.
fn take_back(book: &mut Book, host: &str, body: &Body) {
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

fn release(book: &mut Book, body: &Body, now: Duration) -> EventData {
    let Some((uuid, host)) = body.host.clone().and_then(|uuid| {
        let host = book.inventory().hosts().index(&uuid)?;
        Some((uuid, host))
    }) else {
        return EventData::Nothing;
    };
    release_amounts(book, &uuid, host, body, now);
    for request in &body.ports {
        release_ports(book, &uuid, host, request, now);
    }
    EventData::Nothing
}

fn release_amounts(book: &mut Book, uuid: &Text, host: u32, body: &Body, now: Duration) {
    let mut left: BTreeMap<Text, i64> = BTreeMap::new();
    for (name, amount) in &body.amounts {
        let sum = left.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
    let positive = |note: &Note| !note.gives_back && note.unit == body.unit && !note.promise.amounts.is_empty();
    let own: Vec<u64> = book.notes(uuid).filter(|(_, note)| positive(note)).map(|(at, _)| at).collect();
    for at in own {
        let Some((_, note)) = book.notes(uuid).find(|(own, _)| *own == at) else { continue };
        let mut promise = note.promise.clone();
        for (name, amount) in &mut promise.amounts {
            let less = left.get(name).copied().unwrap_or(0).min(*amount);
            *amount -= less;
            left.entry(name.clone()).and_modify(|left| *left -= less);
        }
        promise.amounts.retain(|(_, amount)| *amount > 0);
        if promise == Promise::default() {
            book.remove_note(at);
        } else {
            book.change_note(at, promise);
        }
    }
    // The rest is used by containers that the snapshot still shows: no more than they use, and only once.
    let inventory = book.inventory().clone();
    let hosts = inventory.hosts();
    let here = |owner: &&Text| inventory.account(owner).is_some_and(|account| account.host == Some(host));
    let there: BTreeSet<Text> = body.unit.iter().filter(here).cloned().collect();
    let used = |pool: usize| -> i64 {
        if body.unit.is_empty() {
            return inventory.used(pool)[host as usize];
        }
        let accounts = there.iter().filter_map(|owner| inventory.account(owner));
        accounts
            .flat_map(|account| &account.amounts)
            .filter(|(known, _)| *known == pool)
            .map(|(_, amount)| amount)
            .sum()
    };
    let given = |name: &Text| -> i64 {
        let notes =
            book.notes(uuid).filter(|(_, note)| note.gives_back && (body.unit.is_empty() || note.unit == body.unit));
        notes
            .flat_map(|(_, note)| &note.promise.amounts)
            .filter(|(known, _)| known == name)
            .map(|(_, amount)| -amount)
            .sum()
    };
    let back: Vec<(Text, i64)> = left
        .into_iter()
        .filter_map(|(name, amount)| {
            let limit = used(hosts.pool(&name)?) - given(&name);
            let amount = amount.min(limit);
            (amount > 0).then_some((name, -amount))
        })
        .collect();
    if !back.is_empty() {
        let promise = Promise { amounts: back, ..Promise::default() };
        let note = Note { waits_for: there, ..Note::new(uuid.clone(), promise, body.unit.clone(), true, now) };
        book.add_note(note);
    }
}

fn release_ports(book: &mut Book, uuid: &Text, host: u32, request: &PortRequest, now: Duration) {
    let group = &request.group;
    let meant = |bound: &Bound| {
        (group.owner.is_empty() || bound.owner == group.owner)
            && group.ports.iter().any(|port| {
                let public = if port.public == 0 { bound.private == port.private } else { bound.public == port.public };
                let address = port.address.is_none_or(|address| address.is_unspecified() || address == bound.address);
                bound.protocol == port.protocol && public && address
            })
    };
    let promised: Vec<u64> =
        book.notes(uuid).filter(|(_, note)| note.promise.bound.iter().any(meant)).map(|(at, _)| at).collect();
    for at in promised {
        let Some((_, note)) = book.notes(uuid).find(|(own, _)| *own == at) else { continue };
        let mut promise = note.promise.clone();
        promise.bound.retain(|bound| !meant(bound));
        if promise == Promise::default() {
            book.remove_note(at);
        } else {
            book.change_note(at, promise);
        }
    }
    let inventory = book.inventory().clone();
    let known: Vec<Bound> = book.notes(uuid).flat_map(|(_, note)| note.promise.released.iter().cloned()).collect();
    let mut by_owner: BTreeMap<Text, Vec<Bound>> = BTreeMap::new();
    for bound in inventory.bound(host).iter().filter(|bound| meant(bound) && !known.contains(bound)) {
        by_owner.entry(bound.owner.clone()).or_default().push(bound.clone());
    }
    for (owner, released) in by_owner {
        let promise = Promise { released, ..Promise::default() };
        book.add_note(Note::new(uuid.clone(), promise, owners(&owner), true, now));
    }
}

fn owners(owner: &Text) -> BTreeSet<Text> {
    Some(owner).filter(|owner| !owner.is_empty()).into_iter().cloned().collect()
}

/// What an event asks for.
#[derive(Debug)]
struct Body {
    host: Option<Text>,
    force: bool,
    amounts: Vec<(Text, i64)>,
    ports: Vec<PortRequest>,
    /// Labels of the unit's containers.
    labels: Vec<(Text, Text)>,
    /// Uuids of the unit's containers.
    unit: BTreeSet<Text>,
}

#[derive(Debug)]
struct PortRequest {
    instance_id: Text,
    group: PortGroup,
}

impl Body {
    fn parse(event: &Value) -> Result<Self, Refusal> {
        let map = event.as_map().ok_or_else(|| invalid("", "no map", "an event"))?;
        let request = field(map, "data").and_then(Value::as_map).and_then(|data| field(data, "schedulerRequest"));
        let request = request.and_then(Value::as_map);
        let request = request.ok_or_else(|| invalid("data.schedulerRequest", "missing", "what is asked for"))?;
        let phase = text(request, "phase")?.unwrap_or_default();
        // The predecessor's server sends amounts in other phases too, and they were never meant.
        let counts = matches!(&*phase, "instance.allocate" | "instance.deallocate");
        let mut body = Self {
            host: text(request, "hostID")?,
            force: field(request, "force").and_then(Value::as_bool).unwrap_or(false),
            amounts: Vec::new(),
            ports: Vec::new(),
            labels: Vec::new(),
            unit: BTreeSet::new(),
        };
        for (at, one) in list(request, "resourceRequests", LIST_MAX)?.iter().enumerate() {
            let path = format!("data.schedulerRequest.resourceRequests[{at}]");
            let one = one.as_map().ok_or_else(|| invalid(&path, "no map", "a resource request"))?;
            match &*text(one, "type")?.unwrap_or_default() {
                "computePool" if counts => {
                    let resource = text(one, "resource")?;
                    let resource =
                        resource.ok_or_else(|| invalid(&format!("{path}.resource"), "missing", "the pool"))?;
                    let amount = field(one, "amount").and_then(Value::as_int);
                    let amount = amount.filter(|amount| (0..=AMOUNT_MAX).contains(amount)).ok_or_else(|| {
                        invalid(
                            &format!("{path}.amount"),
                            "no amount",
                            &format!("a whole number from 0 to {AMOUNT_MAX}"),
                        )
                    })?;
                    body.amounts.push((resource, amount));
                }
                "portPool" => body.ports.push(PortRequest::parse(one, &path)?),
                _ => {}
            }
        }
        for (at, instance) in list(request, "context", LIST_MAX)?.iter().enumerate() {
            let path = format!("data.schedulerRequest.context[{at}]");
            let instance = instance.as_map().ok_or_else(|| invalid(&path, "no map", "an instance"))?;
            body.unit.extend(text(instance, "uuid")?);
            let fields = field(instance, "data").and_then(Value::as_map).and_then(|data| field(data, "fields"));
            let labels =
                fields.and_then(Value::as_map).and_then(|fields| field(fields, "labels")).and_then(Value::as_map);
            body.labels.extend(labels.into_iter().flatten().filter_map(label));
            if body.labels.len() > LABELS_MAX {
                return Err(invalid(&path, "too many labels", &format!("at most {LABELS_MAX}")));
            }
        }
        Ok(body)
    }

    fn host(&self) -> Result<Text, Refusal> {
        self.host.clone().ok_or_else(|| invalid("data.schedulerRequest.hostID", "missing", "the uuid of a host"))
    }
}

impl PortRequest {
    fn parse(map: &Map, path: &str) -> Result<Self, Refusal> {
        let mut ports = Vec::new();
        for (at, port) in list(map, "portRequests", PORTS_MAX)?.iter().enumerate() {
            let path = format!("{path}.portRequests[{at}]");
            let port = port.as_map().ok_or_else(|| invalid(&path, "no map", "a port"))?;
            let number = |key: &str, least: i64| {
                let number = field(port, key).and_then(Value::as_int).unwrap_or(0);
                let fine = (least..=65535).contains(&number).then(|| u16::try_from(number).ok()).flatten();
                fine.ok_or_else(|| {
                    invalid(&format!("{path}.{key}"), "no port", &format!("a port from {least} to 65535"))
                })
            };
            let address = text(port, "ipAddress")?.filter(|text| !text.is_empty());
            let address: Option<IpAddr> = match address {
                None => None,
                Some(text) => {
                    Some(text.parse().map_err(|_| invalid(&format!("{path}.ipAddress"), "no address", "an address"))?)
                }
            };
            let protocol = text(port, "protocol")?.filter(|text| !text.is_empty()).unwrap_or_else(|| "tcp".into());
            let protocol = Protocol::parse(&protocol)
                .ok_or_else(|| invalid(&format!("{path}.protocol"), "no protocol", "tcp, udp or sctp"))?;
            ports.push(Port {
                address,
                public: number("publicPort", 0)?,
                private: number("privatePort", 0)?,
                protocol,
            });
        }
        let group = PortGroup { owner: text(map, "resourceUuid")?.unwrap_or_default(), ports };
        Ok(Self { instance_id: text(map, "instanceId")?.unwrap_or_default(), group })
    }
}

fn invalid(field: &str, problem: &str, expected: &str) -> Refusal {
    Invalid { field: field.into(), problem: problem.into(), expected: expected.into() }.into()
}

/// The value of a key, whatever its case, as the predecessor's decoder looked it up.
fn field<'a>(map: &'a Map, key: &str) -> Option<&'a Value> {
    let folded = || map.iter().find(|(own, _)| own.eq_ignore_ascii_case(key)).map(|(_, value)| value);
    map.get(key).or_else(folded).filter(|value| !value.is_null())
}

fn text(map: &Map, key: &str) -> Result<Option<Text>, Refusal> {
    match field(map, key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(Value::Int(int)) => Ok(Some(int.to_string().into())),
        Some(other) => Err(invalid(key, &format!("found {}", other.kind()), "text")),
    }
}

fn list<'a>(map: &'a Map, key: &str, most: usize) -> Result<&'a [Value], Refusal> {
    match field(map, key) {
        None => Ok(&[]),
        Some(Value::List(items)) if items.len() <= most => Ok(items),
        Some(_) => Err(invalid(key, "no list, or too long", &format!("a list of at most {most} entries"))),
    }
}
