//! The cluster's network: one range of addresses, divided into subnets of one size, one for each host.

use ipnet::Ipv4Net;
use model::{Map, Value};

/// Most subnets of a range: more hosts than one etcd serves, and few enough to be tried one by one.
const SUBNETS_MAX: u32 = 1 << 16;

/// Longest time for which a subnet that was given back is not given again, in hours: a year.
const QUARANTINE_MAX: i64 = 24 * 366;

/// How long a subnet that was given back is not given again, in hours, unless the configuration says so. Names in caches,
/// connections that a firewall tracks and entries of ARP tables have ended by then.
const QUARANTINE: i64 = 24;

/// What a configuration consists of.
const KEYS: [&str; 6] = ["berth", "cidr", "host_prefix", "reserved", "allocate", "quarantine_h"];

/// Who gives subnets to hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocate {
    /// The operator who invites the host; the host writes its own key only.
    #[default]
    Invited,
    /// Each host takes one. Any host can take any subnet.
    Itself,
}

/// The value of `config/network`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The addresses of all containers.
    pub cidr: Ipv4Net,
    /// Length of the prefix of each host's subnet.
    pub host_prefix: u8,
    /// Parts of it that no host gets.
    pub reserved: Vec<Ipv4Net>,
    /// Who gives subnets to hosts.
    pub allocate: Allocate,
    /// How long a subnet that was given back is not given again, in seconds.
    pub quarantine: i64,
}

impl Config {
    /// A range whose hosts get subnets with prefixes of this length.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn new(cidr: Ipv4Net, host_prefix: u8, reserved: Vec<Ipv4Net>, allocate: Allocate) -> Result<Self, String> {
        let config = Self { cidr, host_prefix, reserved, allocate, quarantine: QUARANTINE * 3600 };
        config.check().map(|()| config)
    }

    /// The configuration in `{"berth": 1, "cidr": "10.42.0.0/16", "host_prefix": 24, ...}`.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn parse(value: &Map) -> Result<Self, String> {
        if let Some((key, _)) = value.iter().find(|(key, _)| !KEYS.contains(&&**key)) {
            return Err(format!("unknown key {key}, expected some of {}", KEYS.join(", ")));
        }
        let cidr = value.text("cidr").ok_or("cidr: expected a text such as 10.42.0.0/16")?;
        let cidr = network(cidr).map_err(|wrong| format!("cidr: {wrong}"))?;
        let host_prefix = match value.get("host_prefix") {
            None => HOST_PREFIX,
            Some(number) => {
                number.as_int().and_then(|number| number.try_into().ok()).ok_or("host_prefix: expected a number")?
            }
        };
        let reserved = value.list("reserved").iter().map(|part| {
            let text = part.as_text().ok_or("reserved: expected a list of texts such as 10.42.0.0/24")?;
            network(text).map_err(|wrong| format!("reserved: {wrong}"))
        });
        let allocate = match value.get("allocate").map(Value::as_str) {
            None | Some(Some("invited")) => Allocate::Invited,
            Some(Some("self")) => Allocate::Itself,
            Some(_) => return Err("allocate: expected invited or self".to_owned()),
        };
        let hours = match value.get("quarantine_h") {
            None => QUARANTINE,
            Some(hours) => hours
                .as_int()
                .filter(|hours| (0..=QUARANTINE_MAX).contains(hours))
                .ok_or_else(|| format!("quarantine_h: expected a number of hours up to {QUARANTINE_MAX}"))?,
        };
        let config = Self {
            cidr,
            host_prefix,
            reserved: reserved.collect::<Result<_, String>>()?,
            allocate,
            quarantine: hours * 3600,
        };
        config.check().map(|()| config)
    }

    /// The configuration among the metadata of a network in a cluster file, where operators also keep what is theirs.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn of_metadata(metadata: &Map) -> Result<Self, String> {
        Self::parse(&metadata.iter().filter(|(key, _)| KEYS.contains(&&**key)).cloned().collect())
    }

    /// The value for etcd.
    pub fn to_json(&self) -> serde_json::Value {
        let allocate = match self.allocate {
            Allocate::Invited => "invited",
            Allocate::Itself => "self",
        };
        serde_json::json!({
            "berth": 1, "cidr": self.cidr.to_string(), "host_prefix": self.host_prefix, "allocate": allocate,
            "reserved": self.reserved.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "quarantine_h": self.quarantine / 3600,
        })
    }

    fn check(&self) -> Result<(), String> {
        let (cidr, host_prefix) = (self.cidr, self.host_prefix);
        if cidr.addr() != cidr.network() {
            return Err(format!("{cidr} is an address within a network: write {}", cidr.trunc()));
        }
        // The last two bits leave room for a gateway, a broadcast address and two containers at least.
        if host_prefix <= cidr.prefix_len() || host_prefix > 29 {
            return Err(format!(
                "subnets of /{host_prefix} do not fit: expected from /{} to /29",
                cidr.prefix_len() + 1
            ));
        }
        if self.count() > SUBNETS_MAX {
            return Err(format!("{cidr} has more than {SUBNETS_MAX} subnets of /{host_prefix}: give a smaller range"));
        }
        if let Some(other) = self.reserved.iter().find(|other| !self.cidr.contains(*other)) {
            return Err(format!("reserved {other} is no part of {cidr}"));
        }
        if !(0..self.count()).any(|index| self.is_given(index)) {
            return Err(format!("no subnet is left for hosts: the first and the last one of {cidr} are not given"));
        }
        Ok(())
    }

    /// How many subnets the range has, with those that no host gets.
    pub fn count(&self) -> u32 {
        1_u32.checked_shl(u32::from(self.host_prefix - self.cidr.prefix_len())).unwrap_or(u32::MAX)
    }

    /// The subnet with this number, from 0.
    pub fn subnet(&self, index: u32) -> Ipv4Net {
        let size = 32 - u32::from(self.host_prefix);
        let first = u32::from(self.cidr.network()) | index.checked_shl(size).unwrap_or_default();
        // The length was checked.
        Ipv4Net::new_assert(first.into(), self.host_prefix)
    }

    /// Whether hosts get this subnet. The first and the last one have addresses that old software takes for the network's
    /// own or for broadcast.
    pub fn is_given(&self, index: u32) -> bool {
        let subnet = self.subnet(index);
        index > 0 && index + 1 < self.count() && !self.reserved.iter().any(|other| overlap(subnet, *other))
    }

    /// Whether a host can have this subnet: it is one of those that the range is divided into.
    pub fn fits(&self, subnet: Ipv4Net) -> bool {
        subnet.prefix_len() == self.host_prefix && subnet.addr() == subnet.network() && self.cidr.contains(&subnet)
    }
}

/// Length of the prefix of subnets, unless it is given: 253 containers on each host.
pub const HOST_PREFIX: u8 = 24;

/// A network, which has to be written with its first address.
///
/// # Errors
///
/// Says what is wrong with it.
pub fn network(text: &str) -> Result<Ipv4Net, String> {
    let net: Ipv4Net = text.parse().map_err(|_| format!("{text:?} is no network such as 10.42.0.0/16"))?;
    if net.addr() == net.network() {
        Ok(net)
    } else {
        Err(format!("{text} is an address within a network: write {}", net.trunc()))
    }
}

/// Whether two networks have an address in common.
pub fn overlap(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<Config, String> {
        Config::parse(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_configuration_is_what_its_json_says() {
        let config = parsed(r#"{"berth": 1, "cidr": "10.42.0.0/16", "reserved": ["10.42.128.0/17"]}"#).unwrap();
        assert_eq!((config.host_prefix, config.count(), config.quarantine), (24, 256, 86_400));
        assert_eq!(config.subnet(7).to_string(), "10.42.7.0/24");
        let given: Vec<_> = (0..config.count()).filter(|index| config.is_given(*index)).collect();
        assert_eq!((given[0], given.len()), (1, 127));
        let json = config.to_json().to_string();
        assert_eq!(parsed(&json), Ok(config));
    }

    #[test]
    fn what_cannot_be_divided_is_refused_with_the_reason() {
        for (json, part) in [
            ("{}", "cidr: expected"),
            (r#"{"cidr": "10.42.0.1/16"}"#, "write 10.42.0.0/16"),
            (r#"{"cidr": "10.42.0.0"}"#, "no network"),
            (r#"{"cidr": "fd00::/64"}"#, "no network"),
            (r#"{"cidr": "10.42.0.0/24"}"#, "expected from /25 to /29"),
            (r#"{"cidr": "10.42.0.0/16", "host_prefix": 30}"#, "expected from /17 to /29"),
            (r#"{"cidr": "10.0.0.0/8", "host_prefix": 29}"#, "more than 65536"),
            (r#"{"cidr": "10.42.0.0/24", "host_prefix": 25}"#, "no subnet is left"),
            (r#"{"cidr": "10.42.0.0/16", "reserved": ["10.43.0.0/24"]}"#, "no part of"),
            (r#"{"cidr": "10.42.0.0/16", "reserved": ["10.42.0.0/16"]}"#, "no subnet is left"),
            (r#"{"cidr": "10.42.0.0/16", "allocate": "any"}"#, "invited or self"),
            (r#"{"cidr": "10.42.0.0/16", "quarantine_h": -1}"#, "quarantine_h"),
            (r#"{"cidr": "10.42.0.0/16", "size": 24}"#, "unknown key size"),
        ] {
            let wrong = parsed(json).unwrap_err();
            assert!(wrong.contains(part), "{json}: {wrong}");
        }
    }
}
