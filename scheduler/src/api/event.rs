//! The predecessor's events: `scheduler.prioritize`, `scheduler.reserve` and `scheduler.release`.
//!
//! Bodies and replies are as its server knew them, except that an error is answered, where it was swallowed
//! and the caller waited for its own timeout. The `context` says what a reservation is for; without one
//! nothing can settle it, and it lapses.

mod body;
mod release;
mod reserve;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use model::{Text, Value};
use serde::Serialize;

use crate::api::event::body::EventBody;
use crate::api::event::release::release;
use crate::api::event::reserve::reserve;
use crate::ledger::book::Book;
use crate::place::Placer;
use crate::place::filter::Need;
use crate::place::filter::amount::PoolNeed;
use crate::place::filter::check::Check;
use crate::place::invalid::Invalid;
use crate::place::refusal::Refusal;
use crate::place::room::Addresses;
use crate::place::score;

/// The event that only asks.
pub(super) const PRIORITIZE: &str = "scheduler.prioritize";

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
    Nothing,
}

/// The ports of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortReservation {
    /// The container's id as in the request.
    #[serde(rename = "instanceID")]
    pub(crate) instance_id: Text,
    /// Its ports.
    #[serde(rename = "allocatedIPs")]
    pub(crate) allocated: Vec<Allocated>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Allocated {
    /// Its address.
    #[serde(rename = "allocatedIP")]
    pub(crate) address: IpAddr,
    /// The port outside.
    #[serde(rename = "publicPort")]
    pub(crate) public: u16,
    /// The port inside.
    #[serde(rename = "privatePort")]
    pub(crate) private: u16,
    pub(crate) protocol: &'static str,
}

impl Placer {
    /// Answers one of the predecessor's events.
    pub fn event(&self, name: &str, event: &Value, now: Duration) -> Result<EventReply, Refusal> {
        type Answer = fn(&Placer, &mut Book, &EventBody, Duration) -> Result<EventData, Refusal>;
        let answer: Answer = match name {
            PRIORITIZE => |placer, book, body, _| Ok(placer.prioritize(book, body)),
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
        if self.ledger().store().shared().is_some() && name != PRIORITIZE {
            return Err(Refusal::Unshared(
                "events reserve nothing where several schedulers share a ledger: use POST /v1/placements",
            ));
        }
        let body = EventBody::parse(event)?;
        let map = event.as_map();
        for key in ["name", "id", "replyTo", "resourceType", "resourceId"] {
            if let Some(other) =
                map.and_then(|map| map.get(key)).filter(|value| !value.is_null() && value.as_text().is_none())
            {
                return Err(Invalid::new(key, format!("found {}", other.kind()), "text").into());
            }
        }
        let data = self.with(now, |book| answer(self, book, &body, now))?;
        let text = |key| map.and_then(|map| map.text(key)).cloned();
        Ok(EventReply {
            name: text("replyTo"),
            previous_ids: text("id").into_iter().collect(),
            resource_type: "schedulerRequest",
            resource_id: text("resourceId"),
            data,
        })
    }

    fn prioritize(&self, book: &Book, body: &EventBody) -> EventData {
        let hosts = book.inventory().hosts().clone();
        let mut amounts: Vec<PoolNeed> = Vec::new();
        for (name, amount) in &body.amounts {
            match amounts.iter_mut().find(|known| known.name == *name) {
                Some(known) => known.amount = known.amount.saturating_add(*amount),
                None => amounts.push(PoolNeed { pool: hosts.pool(name), name: name.clone(), amount: *amount }),
            }
        }
        let mut checks = vec![Check::Eligible, Check::Demand(body.labels.clone())];
        if !hosts.tainted.is_empty() {
            // The predecessor's requests tolerate nothing.
            checks.push(Check::Taints(Vec::new()));
        }
        checks.extend(amounts.iter().cloned().map(Check::Room));
        if !body.ports.is_empty() {
            let groups = body.ports.iter().map(|request| request.group.clone()).collect();
            checks.push(Check::Ports(groups, Addresses::Listed));
        }
        let need = Need { checks, wishes: Vec::new(), amounts, service: None, images: Vec::new() };
        let room = book.room();
        let ranked = score::ranked(&need, &room, &need.candidates(&room), self.usual_ranking());
        EventData::Prioritized { candidates: ranked.iter().map(|host| hosts.facts(*host).uuid.clone()).collect() }
    }
}

fn owners(owner: &Text) -> BTreeSet<Text> {
    Some(owner).filter(|owner| !owner.is_empty()).into_iter().cloned().collect()
}
