//! The predecessor's answers file: the names of each client, written out (its flag `-answers`).
//!
//! `{client address or "default": {search, recurse, authoritative, a, cname, ptr, txt}}`. What cannot be understood is
//! reported and left out; what is no such file at all is refused, so that the last good one stays.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_proto::rr::Name;
use model::{Defect, Map, Node as Written, Value, scalar};
use thiserror::Error;

use super::{Data, Links, Node, Scope, Settings, Target, Zone, reverse_name};
use crate::name::{Folded, wire_of};
use crate::upstream::Upstream;

/// The section of every client that has none, and behind those that have one.
const DEFAULT: &str = "default";

/// Keys of a section; the predecessor itself wrote the misspelled one.
const KEYS: [&str; 8] = ["search", "recurse", "authoritative", "authorative", "a", "cname", "ptr", "txt"];

/// Longest character string (RFC 1035 section 3.3).
const STRING_BYTES_MAX: usize = 255;

/// Names by client, as the predecessor's file has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DnsAnswers {
    default: Section,
    clients: BTreeMap<IpAddr, Section>,
}

/// What one client sees.
#[derive(Clone, Debug, Default, PartialEq)]
struct Section {
    search: Vec<Folded>,
    upstreams: Vec<SocketAddr>,
    authoritative: Vec<Folded>,
    names: BTreeMap<Folded, Vec<Record>>,
}

/// A record, with its TTL unless it is the zone's.
type Record = (Data, Option<u32>);

/// Why a file is refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadAnswers {
    /// It is not a map.
    #[error("expected a map of clients to their names, found {0}")]
    NoMap(&'static str),
    /// There is not one section in it.
    #[error("not one section: expected `default` or a client's address as a key, and a map behind it")]
    Empty,
}

impl DnsAnswers {
    /// Whether a document looks like such a file.
    pub fn is_dns_answers(node: &Written) -> bool {
        let is_client = |key: &str| key == DEFAULT || key.parse::<IpAddr>().is_ok();
        let is_section = |node: &Written| {
            node.entries().is_some_and(|entries| entries.iter().any(|(key, _)| KEYS.contains(&&**key)))
        };
        node.entries().is_some_and(|entries| entries.iter().any(|(key, node)| is_client(key) && is_section(node)))
    }

    /// The answers of a document, and what is wrong in it.
    ///
    /// # Errors
    ///
    /// When the document has not one section.
    pub fn read(node: &Written) -> Result<(Self, Vec<Defect>), BadAnswers> {
        Self::from_value(&node.to_value(scalar::yaml11))
    }

    /// The answers of a value, and what is wrong in it.
    ///
    /// # Errors
    ///
    /// When the value has not one section.
    pub fn from_value(value: &Value) -> Result<(Self, Vec<Defect>), BadAnswers> {
        let map = value.as_map().ok_or_else(|| BadAnswers::NoMap(value.kind()))?;
        let mut reading = Reading::default();
        let mut answers = Self::default();
        let mut sections = 0;
        for (client, section) in map {
            let address = client.parse::<IpAddr>().ok();
            if &**client != DEFAULT && address.is_none() {
                reading.hidden(client, "expected `default` or an address");
                continue;
            }
            let section = match section {
                Value::Null => Section::default(),
                Value::Map(map) => reading.section(client, map),
                other => {
                    reading.hidden(client, format!("expected a map, found {}", other.kind()));
                    continue;
                }
            };
            sections += 1;
            match address {
                Some(address) => drop(answers.clients.insert(address.to_canonical(), section)),
                None => answers.default = section,
            }
        }
        if sections == 0 { Err(BadAnswers::Empty) } else { Ok((answers, reading.defects)) }
    }

    /// The zone of these answers; `serial` grows with every zone.
    pub fn zone(&self, settings: &Settings, serial: u32) -> Zone {
        let mut zone = Zone { serial, overlay: true, ..Zone::empty(settings) };
        for apex in &self.default.authoritative {
            zone.add_apex(apex.clone());
        }
        zone.search.clone_from(&self.default.search);
        zone.upstreams = self.default.upstreams.clone().into();
        let node = |records: &[Record]| {
            let mut node = Node::default();
            for (data, ttl) in records {
                node.add(data, ttl.unwrap_or(settings.ttl));
            }
            Arc::new(node)
        };
        for (name, records) in &self.default.names {
            zone.insert(name.clone(), node(records));
        }
        for (client, section) in &self.clients {
            let target = |(name, records): (&Folded, &Vec<Record>)| (name.clone(), Target::Node(node(records)));
            let links: Links = section.names.iter().map(target).collect();
            let scope = Scope {
                search: section.search.clone(),
                upstreams: section.upstreams.clone().into(),
                links: if links.is_empty() { Vec::new() } else { vec![Arc::new(links)] },
                stacks: Vec::new(),
            };
            zone.scopes.insert(*client, Arc::new(scope));
        }
        zone
    }
}

#[derive(Default)]
struct Reading {
    defects: Vec<Defect>,
}

impl Reading {
    fn hidden(&mut self, path: &str, problem: impl Into<String>) {
        self.defects.push(Defect::hidden(path, problem));
    }

    fn ignored(&mut self, path: &str, problem: impl Into<String>) {
        self.defects.push(Defect::ignored(path, problem));
    }

    fn section(&mut self, client: &str, map: &Map) -> Section {
        let mut section = Section::default();
        for (key, value) in map {
            let path = format!("{client}/{key}");
            match &**key {
                "search" => section.search = self.names(&path, value),
                "authoritative" | "authorative" => section.authoritative.extend(self.names(&path, value)),
                "recurse" => section.upstreams = self.upstreams(&path, value),
                "a" | "cname" | "ptr" | "txt" => self.records(&path, key, value, &mut section),
                _ => self.ignored(&path, "unknown key"),
            }
        }
        section
    }

    fn strings<'v>(&mut self, path: &str, value: &'v Value) -> Vec<&'v str> {
        if !value.is_null() && value.as_list().is_none() {
            self.ignored(path, format!("expected a list, found {}", value.kind()));
        }
        value.as_list().unwrap_or_default().iter().filter_map(|item| self.string(path, item)).collect()
    }

    fn string<'v>(&mut self, path: &str, value: &'v Value) -> Option<&'v str> {
        if value.as_str().is_none() {
            self.ignored(path, format!("expected text, found {}", value.kind()));
        }
        value.as_str()
    }

    fn names(&mut self, path: &str, value: &Value) -> Vec<Folded> {
        let texts = self.strings(path, value);
        texts.into_iter().filter_map(|text| self.name(path, text)).collect()
    }

    fn name(&mut self, path: &str, text: &str) -> Option<Folded> {
        Folded::parse(text).map_err(|error| self.ignored(path, format!("{text:?}: {error}"))).ok()
    }

    fn upstreams(&mut self, path: &str, value: &Value) -> Vec<SocketAddr> {
        let mut upstreams = Vec::new();
        for text in self.strings(path, value) {
            match text.parse::<Upstream>() {
                Ok(upstream) => upstreams.push(upstream.0),
                Err(problem) => self.ignored(path, problem),
            }
        }
        upstreams
    }

    fn records(&mut self, path: &str, kind: &str, value: &Value, section: &mut Section) {
        let Some(map) = value.as_map() else {
            if !value.is_null() {
                self.hidden(path, format!("expected a map, found {}", value.kind()));
            }
            return;
        };
        for (key, value) in map {
            let path = format!("{path}/{key}");
            let Some(fields) = value.as_map() else {
                self.hidden(&path, format!("expected a map with `answer`, found {}", value.kind()));
                continue;
            };
            let name = if kind == "ptr" { self.reverse(&path, key) } else { self.name(&path, key) };
            let Some(name) = name else { continue };
            let ttl = match fields.get("ttl") {
                None | Some(Value::Null) => None,
                Some(ttl) => {
                    let seconds = ttl.as_int().and_then(|ttl| u32::try_from(ttl).ok()).filter(|ttl| *ttl <= TTL_MAX);
                    if seconds.is_none() {
                        self.ignored(&format!("{path}/ttl"), "expected seconds");
                    }
                    seconds
                }
            };
            let answer = fields.get("answer").unwrap_or(&Value::Null);
            let data = self.data(&format!("{path}/answer"), kind, answer);
            section.names.entry(name).or_default().extend(data.into_iter().map(|data| (data, ttl)));
        }
    }

    /// The records of one entry; those that cannot be are left out.
    fn data(&mut self, path: &str, kind: &str, answer: &Value) -> Vec<Data> {
        match kind {
            "a" => {
                let mut data = Vec::new();
                for text in self.strings(path, answer) {
                    match text.trim().parse::<IpAddr>() {
                        Ok(address) => data.push(Data::Address(address)),
                        Err(_) => self.ignored(path, format!("{text:?} is no address")),
                    }
                }
                data
            }
            "txt" => {
                let mut data = Vec::new();
                for text in self.strings(path, answer) {
                    let bytes = unescaped(text);
                    if bytes.len() <= STRING_BYTES_MAX {
                        data.push(Data::Text(vec![bytes.into()]));
                    } else {
                        self.ignored(path, format!("a text of more than {STRING_BYTES_MAX} bytes"));
                    }
                }
                data
            }
            _ => {
                let Some(text) = self.string(path, answer) else { return Vec::new() };
                let Ok(name) = Folded::parse(text) else {
                    self.ignored(path, format!("{text:?} is no name"));
                    return Vec::new();
                };
                // The spelling is kept where it can be.
                let name = Name::from_ascii(text)
                    .ok()
                    .map(|mut spelled| {
                        spelled.set_fqdn(true);
                        spelled
                    })
                    .filter(|spelled| Folded::of(spelled) == name)
                    .map_or_else(|| name.wire().into(), |spelled| wire_of(&spelled));
                vec![if kind == "ptr" { Data::Pointer(name) } else { Data::Alias(name) }]
            }
        }
    }

    /// The name of a PTR key: an address, a reverse name, or labels to be turned around.
    fn reverse(&mut self, path: &str, key: &str) -> Option<Folded> {
        if let Ok(address) = key.trim_end_matches('.').parse::<IpAddr>() {
            return Some(reverse_name(address));
        }
        let lower = key.trim_end_matches('.').to_lowercase();
        if lower.ends_with("in-addr.arpa") || lower.ends_with("ip6.arpa") {
            return self.name(path, key);
        }
        let labels: Vec<&str> = lower.rsplit('.').collect();
        self.name(path, &format!("{}.in-addr.arpa", labels.join(".")))
    }
}

/// The bytes of a text in the notation of zone files, in which the predecessor's library took it: `\X` is X, and
/// `\DDD` the byte of that number (RFC 1035 section 5.1).
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let number = rest.get(..3).filter(|digits| digits.iter().all(u8::is_ascii_digit));
        let number = number.and_then(|digits| str::from_utf8(digits).ok()?.parse::<u8>().ok());
        if let Some(number) = number {
            bytes.push(number);
            rest = &rest[3..];
        } else if let Some((&byte, tail)) = rest.split_first() {
            bytes.push(byte);
            rest = tail;
        }
    }
    bytes
}

/// Longest TTL (RFC 2181 section 8).
const TTL_MAX: u32 = 0x7fff_ffff;
