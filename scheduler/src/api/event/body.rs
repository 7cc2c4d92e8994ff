//! The body of an event, read as the predecessor's decoder did: ignoring the case of its keys.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Map, Text, Value};

use crate::place::hosts::label;
use crate::place::invalid::Invalid;
use crate::place::port::{Port, Protocol};
use crate::place::refusal::Refusal;
use crate::place::request::limits::{AMOUNT_MAX, LABELS_MAX, LIST_MAX, PORTS_MAX};
use crate::place::room::PortGroup;

/// What an event asks for.
#[derive(Debug)]
pub(super) struct EventBody {
    pub(super) host: Option<Text>,
    pub(super) force: bool,
    pub(super) amounts: Vec<(Text, i64)>,
    pub(super) ports: Vec<PortRequest>,
    /// Labels of the unit's containers.
    pub(super) labels: Vec<(Text, Text)>,
    /// Uuids of the unit's containers.
    pub(super) unit: BTreeSet<Text>,
}

#[derive(Debug)]
pub(super) struct PortRequest {
    pub(super) instance_id: Text,
    pub(super) group: PortGroup,
}

impl EventBody {
    pub(super) fn parse(event: &Value) -> Result<Self, Refusal> {
        let map = event.as_map().ok_or_else(|| invalid("", "no map", "an event"))?;
        let request = field(map, "data").and_then(Value::as_map).and_then(|data| field(data, "schedulerRequest"));
        let request = request.and_then(Value::as_map);
        let request = request.ok_or_else(|| invalid("data.schedulerRequest", "missing", "what is asked for"))?;
        let phase = text(request, "phase")?.unwrap_or_default();
        // The predecessor's server sends amounts in other phases too, and they were never meant.
        let counts = matches!(&*phase, "instance.allocate" | "instance.deallocate");
        let mut body = Self {
            host: text(request, "hostID")?,
            force: truth(request, "force")?,
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

    pub(super) fn host(&self) -> Result<Text, Refusal> {
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

/// The value of a key, ignoring case, as the predecessor's decoder looked it up.
pub(super) fn field<'a>(map: &'a Map, key: &str) -> Option<&'a Value> {
    let folded = || map.iter().find(|(own, _)| own.eq_ignore_ascii_case(key)).map(|(_, value)| value);
    map.get(key).or_else(folded).filter(|value| !value.is_null())
}

pub(super) fn text(map: &Map, key: &str) -> Result<Option<Text>, Refusal> {
    match field(map, key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(Value::Int(int)) => Ok(Some(int.to_string().into())),
        Some(other) => Err(invalid(key, &format!("found {}", other.kind()), "text")),
    }
}

fn truth(map: &Map, key: &str) -> Result<bool, Refusal> {
    match field(map, key) {
        None => Ok(false),
        Some(Value::Bool(bool)) => Ok(*bool),
        Some(other) => Err(invalid(key, &format!("found {}", other.kind()), "true or false")),
    }
}

fn list<'a>(map: &'a Map, key: &str, most: usize) -> Result<&'a [Value], Refusal> {
    match field(map, key) {
        None => Ok(&[]),
        Some(Value::List(items)) if items.len() <= most => Ok(items),
        Some(_) => Err(invalid(key, "no list, or too long", &format!("a list of at most {most} entries"))),
    }
}
