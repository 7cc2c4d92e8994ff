//! A record of the ledger as it is written down, on disk or in etcd.
//!
//! What containers use is not written: snapshots tell it, and the request, which is written whole, tells what was
//! promised for them.

use std::time::Duration;

use model::{Map, Text};
use serde::{Deserialize, Serialize};

use crate::ledger::record::{Chosen, HeldState, Promise, Record, Replica, Stage};
use crate::port::{Bound, Protocol};
use crate::replica::replica_of;
use crate::request::Request;

/// A record as it is written.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) id: Text,
    /// Milliseconds of the clock by which the promise lapses.
    made: u64,
    unplaced: u32,
    asked: Map,
    units: Vec<KeptUnit>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptUnit {
    host: Text,
    host_name: Text,
    stage: Stage,
    containers: Vec<KeptContainer>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptContainer {
    name: Text,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<KeptPort>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    system: Option<Chosen>,
    #[serde(default)]
    over: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptPort {
    ip: std::net::IpAddr,
    public: u16,
    private: u16,
    protocol: Text,
}

impl Kept {
    pub(crate) fn of(id: &Text, record: &Record) -> Self {
        let port = |bound: &Bound| KeptPort {
            ip: bound.address,
            public: bound.public,
            private: bound.private,
            protocol: bound.protocol.name().into(),
        };
        let unit = |replica: &Replica| KeptUnit {
            host: replica.host.clone(),
            host_name: replica.host_name.clone(),
            stage: replica.stage,
            containers: replica
                .members
                .iter()
                .map(|held| KeptContainer {
                    name: held.name.clone(),
                    ports: held.bound.iter().map(port).collect(),
                    container: held.container.clone(),
                    system: held.system.clone(),
                    over: held.state == HeldState::Over,
                })
                .collect(),
        };
        Self {
            id: id.clone(),
            made: u64::try_from(record.made.as_millis()).unwrap_or(u64::MAX),
            unplaced: record.unplaced,
            asked: record.asked.clone(),
            units: record.replicas.iter().map(unit).collect(),
        }
    }

    pub(crate) fn record(self, now: Duration) -> Result<Record, String> {
        let request = Request::parse(&self.asked.clone().into()).map_err(|error| error.to_string())?;
        let unit = |unit: KeptUnit| {
            let names: Vec<Text> = unit.containers.iter().map(|container| container.name.clone()).collect();
            let bound = unit.containers.iter().flat_map(|container| {
                container.ports.iter().filter_map(|port| {
                    let protocol = Protocol::parse(&port.protocol)?;
                    let owner = container.name.clone();
                    Some(Bound { address: port.ip, public: port.public, private: port.private, protocol, owner })
                })
            });
            let mut replica = replica_of(&request, (unit.host, unit.host_name), &names, &bound.collect::<Vec<_>>());
            replica.stage = unit.stage;
            for (held, kept) in replica.members.iter_mut().zip(unit.containers) {
                held.container = kept.container;
                held.system = kept.system;
                if kept.over {
                    held.state = HeldState::Over;
                    held.promise = Promise::default();
                }
            }
            replica
        };
        Ok(Record {
            fingerprint: request.fingerprint,
            // A clock that was set back must not keep a promise for ever.
            made: Duration::from_millis(self.made).min(now),
            replicas: self.units.into_iter().map(unit).collect(),
            unplaced: self.unplaced,
            asked: self.asked,
        })
    }
}
