//! The ledger in etcd as keys and values.
//!
//! Below the prefix there is one key for each placement, whole; one for each host (its fence), which is put with every
//! promise on it and so shows whether another scheduler promised in between; one for each port and each container's
//! name (a claim), which makes them unique; and one for each scheduler, which disappears with its lease.

use std::net::SocketAddr;
use std::time::Duration;

use etcd::{LEDGER, segment};
use model::Text;
use model::printable::printable;
use percent_encoding::AsciiSet;
use serde::{Deserialize, Serialize};

use crate::ledger::record::{Eviction, Record};
use crate::ledger::stored::{StoredRecord, WHY_MAX, parse_problem};
use crate::place::port::Bound;

/// The version of the values that is written, and the latest that is read.
const VERSION: u32 = 1;

/// Where placements are.
const PLACEMENTS: &str = "placements";

/// Where schedulers are that live.
const SCHEDULERS: &str = "schedulers";

/// Where evictions are, behind the prefix.
const EVICTED: &str = "evicted/";

/// The keys of one ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    root: String,
}

/// What a key is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The placement with this id.
    Placement(Text),
    /// The fence of the host with this uuid.
    Fence(Text),
    /// Something that only one placement can have: the key's end.
    Claim(Text),
    /// The scheduler with this id lives.
    Scheduler(Text),
    /// When room was freed last: a scheduler that finds none first makes sure that it knows of that.
    Freed,
    /// The fingerprint of the key with which placements are sealed.
    Seal,
    /// By which all hosts know that another container has the place of this one. It is not below the ledger's, which hosts
    /// do not read.
    Evicted(Eviction),
}

impl Keys {
    /// The keys below a prefix that ends in a slash.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { root: format!("{prefix}{LEDGER}") }
    }

    /// What all of them begin with.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// What the keys of placements begin with.
    pub(crate) fn placements(&self) -> String {
        format!("{}{PLACEMENTS}/", self.root)
    }

    /// What the keys of living schedulers begin with.
    pub(crate) fn schedulers(&self) -> String {
        format!("{}{SCHEDULERS}/", self.root)
    }

    /// The whole key.
    pub(crate) fn of(&self, key: &Key) -> String {
        let root = &self.root;
        match key {
            Key::Placement(id) => format!("{root}{PLACEMENTS}/{}", encoded(id)),
            Key::Fence(host) => format!("{root}hosts/{}", encoded(host)),
            Key::Claim(claim) => format!("{root}{claim}"),
            Key::Scheduler(id) => format!("{root}{SCHEDULERS}/{}", encoded(id)),
            Key::Freed => format!("{root}freed"),
            Key::Seal => format!("{root}key"),
            Key::Evicted(Eviction { host, container }) => self.of_host(EVICTED, [host, "", container]),
        }
    }

    /// What the keys of all evictions begin with.
    pub(crate) fn evictions(&self) -> String {
        format!("{}{EVICTED}", self.prefix())
    }

    /// The eviction of a key; `None` when it is none.
    pub(crate) fn eviction(&self, key: &[u8]) -> Option<Eviction> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(self.prefix())?.strip_prefix(EVICTED)?;
        let (host, container) = rest.split_once('/')?;
        let name =
            |segment| segment::unescape(segment, segment::ESCAPED).filter(|name| !name.is_empty()).map(Text::from);
        Some(Eviction { host: name(host)?, container: name(container)? })
    }

    /// The key by which its host publishes the container of an eviction.
    pub(crate) fn published(&self, Eviction { host, container }: &Eviction) -> String {
        self.of_host("hosts/", [host, "containers/", container])
    }

    /// What all keys of Berth begin with.
    fn prefix(&self) -> &str {
        self.root.strip_suffix(LEDGER).unwrap_or(&self.root)
    }

    /// A key that hosts read, as they escape it.
    fn of_host(&self, family: &str, [host, list, container]: [&str; 3]) -> String {
        let mut key = format!("{}{family}", self.prefix());
        segment::escape(host, segment::ESCAPED, &mut key);
        key.push('/');
        key.push_str(list);
        segment::escape(container, segment::ESCAPED, &mut key);
        key
    }

    /// What a key of the ledger is about; `None` when it is none of ours.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Key> {
        let whole = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        if whole == "freed" {
            return Some(Key::Freed);
        }
        if whole == "key" {
            return Some(Key::Seal);
        }
        let (kind, rest) = whole.split_once('/')?;
        let one = || decoded(rest).filter(|_| !rest.is_empty());
        let key = match kind {
            PLACEMENTS => Key::Placement(one()?),
            "hosts" => Key::Fence(one()?),
            SCHEDULERS => Key::Scheduler(one()?),
            "names" => Key::Claim(name_claim(&one()?)),
            "ports" => {
                let (host, port) = rest.split_once('/')?;
                let (port, protocol) = port.split_once('/')?;
                let port: SocketAddr = port.parse().ok()?;
                Key::Claim(format!("ports/{}/{port}/{}", encoded(&decoded(host)?), encoded(protocol)).into())
            }
            _ => return None,
        };
        // Another way to write the same would be another key.
        (self.of(&key).strip_prefix(&self.root)? == whole).then_some(key)
    }
}

/// The claim of a port.
pub(crate) fn port_claim(host: &str, bound: &Bound) -> Text {
    let port = SocketAddr::new(bound.address, bound.public);
    format!("ports/{}/{port}/{}", encoded(host), bound.protocol.name()).into()
}

/// The claim of a container's name.
pub(crate) fn name_claim(name: &str) -> Text {
    format!("names/{}", encoded(&name.to_lowercase())).into()
}

/// What is escaped in a segment: `:` is not.
const ESCAPED: &AsciiSet = &segment::ESCAPED.remove(b':');

/// A segment of a key: what is not plain is written as `%` and two hexadecimal digits.
fn encoded(text: &str) -> String {
    let mut key = String::with_capacity(text.len());
    segment::escape(text, ESCAPED, &mut key);
    key
}

/// The text of a segment; `None` when it is not written as we write it.
fn decoded(segment: &str) -> Option<Text> {
    segment::unescape(segment, ESCAPED).map(Text::from)
}

/// A placement as it is stored in etcd.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EtcdRecord {
    berth: u32,
    /// The scheduler that works on it.
    pub(crate) owner: Text,
    /// Whether more of its units are still being written; no response has named it then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) growing: bool,
    #[serde(flatten)]
    pub(crate) stored: StoredRecord,
}

impl EtcdRecord {
    pub(crate) fn new(owner: &Text, growing: bool, id: &Text, record: &Record) -> Self {
        Self { berth: VERSION, owner: owner.clone(), growing, stored: StoredRecord::of(id, record) }
    }

    /// The value without its seal; what is written here can be written.
    pub(crate) fn written(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the value of the placement with this id; the seal is not its concern.
    ///
    /// # Errors
    ///
    /// Fails if the value is not a record of this version, or of another placement.
    pub(crate) fn read(id: &str, value: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(value).map_err(|error| parse_problem(&error))?;
        version(record.berth)?;
        if *record.stored.id != *id {
            return Err(printable(&format!("it is about {}", record.stored.id), WHY_MAX));
        }
        if record.owner.is_empty() {
            return Err("owner is empty".into());
        }
        Ok(record)
    }
}

/// Which scheduler put the fence of a host last, and for which placement.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fence {
    berth: u32,
    pub(crate) by: Text,
    placement: Text,
}

impl Fence {
    pub(crate) fn written(by: &Text, placement: &Text) -> Vec<u8> {
        let fence = Self { berth: VERSION, by: by.clone(), placement: placement.clone() };
        serde_json::to_vec(&fence).unwrap_or_default()
    }

    /// The scheduler that put it; empty when the value cannot be read, which matches no scheduler.
    pub(crate) fn writer(value: &[u8]) -> Text {
        serde_json::from_slice(value).map_or_else(|_| Text::default(), |fence: Self| fence.by)
    }
}

/// Of which placement an evicted container is.
#[derive(Debug, Serialize)]
pub(crate) struct Evicted<'a> {
    berth: u32,
    placement: &'a Text,
}

impl<'a> Evicted<'a> {
    pub(crate) fn written(placement: &'a Text) -> Vec<u8> {
        serde_json::to_vec(&Self { berth: VERSION, placement }).unwrap_or_default()
    }
}

/// Which scheduler freed room last.
#[derive(Debug, Serialize)]
pub(crate) struct Freed<'a> {
    berth: u32,
    by: &'a Text,
}

impl<'a> Freed<'a> {
    pub(crate) fn written(by: &'a Text) -> Vec<u8> {
        serde_json::to_vec(&Self { berth: VERSION, by }).unwrap_or_default()
    }
}

/// The key with which the schedulers seal placements.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeyFingerprint {
    berth: u32,
    fingerprint: Text,
}

impl KeyFingerprint {
    pub(crate) fn written(fingerprint: &Text) -> Vec<u8> {
        serde_json::to_vec(&Self { berth: VERSION, fingerprint: fingerprint.clone() }).unwrap_or_default()
    }

    /// The fingerprint, shortened and printable: any client of etcd may have written it. What cannot be read is no
    /// key's.
    pub(crate) fn read(value: &[u8]) -> Text {
        let read = serde_json::from_slice(value).map(|key: Self| printable(&key.fingerprint, WHY_MAX).into());
        read.unwrap_or_else(|_| "(unreadable)".into())
    }
}

/// Which placement has something.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    berth: u32,
    placement: Text,
}

impl Claim {
    pub(crate) fn written(placement: &Text) -> Vec<u8> {
        serde_json::to_vec(&Self { berth: VERSION, placement: placement.clone() }).unwrap_or_default()
    }

    /// The placement that has it; empty when the value cannot be read.
    pub(crate) fn holder(value: &[u8]) -> Text {
        serde_json::from_slice(value).map_or_else(|_| Text::default(), |claim: Self| claim.placement)
    }
}

/// What a scheduler publishes about itself while it is alive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Presence {
    berth: u32,
    process: u32,
    /// Milliseconds since 1970 when it was put.
    since: u64,
    /// The fingerprint of the key with which it seals contents of files, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secrets: Option<Text>,
}

impl Presence {
    pub(crate) fn written(process: u32, now: Duration, secrets: Option<Text>) -> Vec<u8> {
        let since = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        serde_json::to_vec(&Self { berth: VERSION, process, since, secrets }).unwrap_or_default()
    }

    /// The fingerprint of its key, shortened and printable: any client of etcd may have written it.
    pub(crate) fn secrets(value: &[u8]) -> Option<Text> {
        let presence: Self = serde_json::from_slice(value).ok()?;
        Some(printable(&presence.secrets?, WHY_MAX).into())
    }
}

fn version(berth: u32) -> Result<(), String> {
    if berth == VERSION { Ok(()) } else { Err(format!("version {berth}, expected {VERSION}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::port::Protocol;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let keys = Keys::new("/berth/v1/");
        let bound = |address: &str| Bound {
            address: address.parse().unwrap(),
            public: 80,
            private: 8080,
            protocol: Protocol::Tcp,
            owner: "web".into(),
        };
        for (key, written) in [
            (Key::Placement("web-1".into()), "placements/web-1"),
            (Key::Placement("a/b c%ü".into()), "placements/a%2Fb%20c%25%C3%BC"),
            (Key::Fence("1f:h".into()), "hosts/1f:h"),
            (Key::Scheduler("s-1".into()), "schedulers/s-1"),
            (Key::Freed, "freed"),
            (Key::Seal, "key"),
            (Key::Claim(name_claim("Web_1")), "names/web_1"),
            (Key::Claim(port_claim("h/1", &bound("0.0.0.0"))), "ports/h%2F1/0.0.0.0:80/tcp"),
            (Key::Claim(port_claim("h", &bound("2001:db8::1"))), "ports/h/[2001:db8::1]:80/tcp"),
        ] {
            let whole = keys.of(&key);
            assert_eq!(whole, format!("/berth/v1/ledger/{written}"));
            assert_eq!(keys.parse(whole.as_bytes()), Some(key), "{written}");
        }
    }

    #[test]
    fn evictions_are_where_hosts_read_them() {
        let keys = Keys::new("/berth/v1/");
        let eviction = Eviction { host: "win 1".into(), container: "u:1".into() };
        let key = keys.of(&Key::Evicted(eviction.clone()));
        assert_eq!(key, "/berth/v1/evicted/win%201/u%3A1");
        assert_eq!(keys.published(&eviction), "/berth/v1/hosts/win%201/containers/u%3A1");
        assert_eq!((keys.eviction(key.as_bytes()), keys.parse(key.as_bytes())), (Some(eviction), None));
        for other in
            ["evicted/", "evicted/a", "evicted/a/", "evicted//b", "evicted/a/b/c", "evicted/a/b c", "evictedx/a/b"]
        {
            assert_eq!(keys.eviction(format!("/berth/v1/{other}").as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn foreign_keys_are_none_of_ours() {
        let keys = Keys::new("/berth/v1/");
        for rest in [
            "",
            "placements",
            "placements/",
            "placements/a b",
            "placements/%4",
            "placements/%41",
            "placements/%ff",
            "hosts/a/b",
            "other/x",
            "names/Web",
            "ports/h",
            "ports/h/80/tcp",
            "ports/h/0.0.0.0:080/tcp/x",
        ] {
            assert_eq!(keys.parse(format!("/berth/v1/ledger/{rest}").as_bytes()), None, "{rest}");
        }
        assert_eq!(keys.parse(b"/other/ledger/placements/a"), None);
        assert_eq!(keys.parse(b"/berth/v1/ledger/placements/\xff"), None);
    }

    #[test]
    fn values_of_another_version_of_another_placement_or_without_an_owner_are_not_read() {
        let value_of = |berth: u32, id: &str, owner: &str| {
            serde_json::json!({ "berth": berth, "owner": owner, "id": id, "made": 1, "unplaced": 0,
                "asked": { "image": "i" }, "units": [] })
            .to_string()
        };
        let value = |berth: u32, id: &str| value_of(berth, id, "s");
        assert!(EtcdRecord::read("a", value(1, "a").as_bytes()).is_ok());
        for (wrong, why) in [
            (value(2, "a"), "version 2"),
            (value(1, "b"), "about b"),
            (value_of(1, "a", ""), "owner is empty"),
            ("{".into(), "ends too early"),
            ("{]".into(), "not JSON"),
            ("[]".into(), ""),
            ("null".into(), "expected an object"),
        ] {
            let error = EtcdRecord::read("a", wrong.as_bytes()).unwrap_err();
            assert!(error.contains(why) && !error.contains("line 1"), "{error}");
        }
    }
}
