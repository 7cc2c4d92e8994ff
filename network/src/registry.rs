//! The claims in etcd: read, made and given back, each by one transaction.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use etcd::{Compare, EtcdClient, EtcdError, Op, OpResult, Pair, Span, Txn};
use ipnet::Ipv4Net;
use model::network_key::{CLAIMS, NETWORK_ACCEPT, NETWORK_CONFIG};
use model::{Map, Text};
use serde_json::json;

use crate::choice::candidates;
use crate::claim::{Claims, Owner, host_key, subnet_key};
use crate::config::{Allocate, Config};

/// How often a claim is tried again that another host's came before, until there is a pause.
const TRIES: usize = 64;

/// That pause.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a word of an operator about a loss is good, in seconds: for hosts whose clocks differ, and that look every minute.
const ACCEPTED: i64 = 600;

/// How many such rounds there are.
const ROUNDS: usize = 10;

/// Why a claim was not made, changed or given back.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// etcd did not do it.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// It cannot be, for this reason.
    #[error("{0}")]
    Refused(String),
}

/// The claims of a cluster as etcd has them, with their revisions.
#[derive(Debug)]
pub struct Listed {
    /// What they mean.
    pub claims: Claims,
    pairs: Vec<Pair>,
    prefix: String,
}

impl Listed {
    /// Reads them all.
    ///
    /// # Errors
    ///
    /// Fails if etcd cannot be read.
    pub async fn read(client: &EtcdClient) -> Result<Self, EtcdError> {
        let prefix = client.options().prefix.to_string();
        let config = Span::of_key(format!("{prefix}{NETWORK_CONFIG}").as_bytes());
        let claims = Span::of_prefix(format!("{prefix}{CLAIMS}").as_bytes());
        let accept = Span::of_key(format!("{prefix}{NETWORK_ACCEPT}").as_bytes());
        let pairs = client.list_spans(&[claims, config, accept], false).await?.pairs;
        let maps: Vec<(&str, Map)> = pairs
            .iter()
            .filter_map(|pair| {
                let key = std::str::from_utf8(&pair.key).ok()?.strip_prefix(&prefix)?;
                // What is no JSON is none of the claims, and is reported as one that lacks everything.
                Some((key, serde_json::from_slice(&pair.value).unwrap_or_default()))
            })
            .collect();
        let claims = Claims::of(maps.iter().map(|(key, map)| (*key, map)));
        Ok(Self { claims, pairs, prefix })
    }

    /// The configuration.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or none that can be used.
    pub fn config(&self) -> Result<&Config, ClaimError> {
        self.claims.config().map_err(ClaimError::Refused)
    }

    /// Which host has which subnet, and when that was written last, by an operator or by the host itself.
    #[must_use]
    pub fn written(&self) -> Vec<(Text, Ipv4Net, Option<Text>)> {
        let values: BTreeMap<&[u8], &[u8]> = self.pairs.iter().map(|pair| (&*pair.key, &*pair.value)).collect();
        let at = |path: &str| {
            let value = values.get(&*self.key(path))?;
            serde_json::from_slice::<Map>(value).ok()?.text("at").cloned()
        };
        let owned = self.claims.subnets.iter().filter_map(|(subnet, owner)| match owner {
            Owner::Host(host) => Some((host.clone(), *subnet)),
            Owner::Freed { .. } => None,
        });
        // The times have one form, in which the later one is the greater text.
        owned.map(|(host, subnet)| (host.clone(), subnet, at(&subnet_key(subnet)).max(at(&host_key(&host))))).collect()
    }

    fn key(&self, path: &str) -> Vec<u8> {
        format!("{}{path}", self.prefix).into_bytes()
    }

    /// The comparison that holds while a key is as it was read, or is still missing.
    fn as_read(&self, path: &str) -> Compare {
        let key = self.key(path);
        match self.pairs.iter().find(|pair| pair.key == key) {
            Some(pair) => Compare::unchanged(key, pair.mod_revision),
            None => Compare::absent(key),
        }
    }

    fn put(&self, path: &str, value: &serde_json::Value) -> Op {
        Op::Put { key: self.key(path), value: value.to_string().into_bytes(), lease: 0 }
    }
}

/// Makes the network of a cluster, or widens its range; returns whether anything was changed.
///
/// # Errors
///
/// Fails if there is another one already that this is not an extension of.
pub async fn init(client: &EtcdClient, config: &Config) -> Result<bool, ClaimError> {
    let listed = Listed::read(client).await?;
    match &listed.claims.config {
        Some(Ok(before)) if before == config => return Ok(false),
        Some(Ok(before)) if !config.cidr.contains(&before.cidr) || config.host_prefix != before.host_prefix => {
            return Err(ClaimError::Refused(format!(
                "this cluster has the network {} with subnets of /{}; it can be widened, but not be changed otherwise while \
                 hosts use it",
                before.cidr, before.host_prefix
            )));
        }
        _ => {}
    }
    if let Some(outside) = listed.claims.subnets.keys().find(|subnet| !config.fits(**subnet)) {
        return Err(ClaimError::Refused(format!("a host has the subnet {outside}, which is none of {}", config.cidr)));
    }
    let success = vec![listed.put(NETWORK_CONFIG, &config.to_json())];
    let txn = Txn { compare: vec![listed.as_read(NETWORK_CONFIG)], success, failure: Vec::new() };
    if client.txn(txn).await?.succeeded {
        Ok(true)
    } else {
        Err(ClaimError::Refused("another operator has changed the network just now: type it again".to_owned()))
    }
}

/// What a host says of itself when it claims a subnet.
#[derive(Clone, Copy, Debug)]
pub struct Claimant<'c> {
    /// Its name.
    pub host: &'c str,
    /// The address through which the others reach it.
    pub via: Option<Ipv4Addr>,
    /// The machine, as its state directory names it.
    pub machine: &'c str,
    /// The subnet that it had last.
    pub last: Option<Ipv4Net>,
    /// The time, as RFC 3339 writes it.
    pub at: &'c str,
    /// The time in seconds after the beginning of 1970.
    pub now: i64,
}

impl Claimant<'_> {
    fn value(&self, subnet: Ipv4Net) -> serde_json::Value {
        json!({ "subnet": subnet.to_string(), "via": self.via, "machine": self.machine, "at": self.at })
    }
}

/// The subnet that a host has in etcd, or one that it gets now, as an operator who invites it.
///
/// # Errors
///
/// Fails if none is free, or there is no network.
pub async fn give(client: &EtcdClient, host: &str, at: &str, now: i64) -> Result<Ipv4Net, ClaimError> {
    claim(client, Claimant { host, via: None, machine: "", last: None, at, now }, false).await
}

/// The subnet that this host has, which says through which address it is reached. Where hosts take subnets themselves, it
/// takes one if it has none.
///
/// # Errors
///
/// Fails if it has none and may not take one, if none is free, or if another machine has the host's name.
pub async fn announce(client: &EtcdClient, claimant: Claimant<'_>, takeover: bool) -> Result<Ipv4Net, ClaimError> {
    let listed = Listed::read(client).await?;
    let config = listed.config()?;
    let path = host_key(claimant.host);
    let key = listed.key(&path);
    let before: Option<Map> =
        listed.pairs.iter().find(|pair| pair.key == key).and_then(|pair| serde_json::from_slice(&pair.value).ok());
    let machine = before.as_ref().and_then(|value| value.text("machine")).filter(|machine| !machine.is_empty());
    if let Some(other) = machine.filter(|machine| ***machine != *claimant.machine && !takeover) {
        return Err(ClaimError::Refused(format!(
            "another machine ({other}) has the subnet of a host that is called {} too: give this host another name, or type \
             agent network apply --takeover if it replaces that machine",
            claimant.host
        )));
    }
    let Some(subnet) = listed.claims.subnet_of_host(claimant.host) else {
        return match config.allocate {
            Allocate::Itself => claim(client, claimant, true).await,
            Allocate::Invited => Err(ClaimError::Refused(format!(
                "the host {} has no subnet; an operator gives it one: agent network give {0}",
                claimant.host
            ))),
        };
    };
    let value = claimant.value(subnet);
    let same = before.is_some_and(|before| {
        ["subnet", "via", "machine"].iter().all(|field| {
            before.get(field).map(|value| serde_json::to_value(value).unwrap_or_default()).unwrap_or_default()
                == value[field]
        })
    });
    if !same {
        client.put(&key, value.to_string().as_bytes(), 0).await?;
    }
    Ok(subnet)
}

/// Claims a subnet by one transaction, which also writes the host's own key where `announced`.
async fn claim(client: &EtcdClient, claimant: Claimant<'_>, announced: bool) -> Result<Ipv4Net, ClaimError> {
    let path = host_key(claimant.host);
    for round in 0..ROUNDS {
        if round > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let mut listed = Listed::read(client).await?;
        let config = listed.config()?.clone();
        if let Some(subnet) = listed.claims.subnet_of_host(claimant.host) {
            return Ok(subnet);
        }
        for _ in 0..TRIES {
            let taken = &listed.claims.subnets;
            let next = candidates(&config, taken, claimant.host, claimant.last, claimant.now).next();
            let Some(subnet) = next else {
                return Err(ClaimError::Refused(format!(
                    "no subnet of {} is free for {}: give one back with `agent network release HOST`, or widen the range with \
                     `agent network init`",
                    config.cidr, claimant.host
                )));
            };
            let owner = json!({ "host": claimant.host, "at": claimant.at });
            let mut success = vec![listed.put(&subnet_key(subnet), &owner)];
            let mut compare = vec![listed.as_read(NETWORK_CONFIG), listed.as_read(&subnet_key(subnet))];
            if announced {
                compare.push(listed.as_read(&path));
                success.push(listed.put(&path, &claimant.value(subnet)));
            }
            let failure = vec![Op::Get(listed.key(&subnet_key(subnet)))];
            let outcome = client.txn(Txn { compare, success, failure }).await?;
            if outcome.succeeded {
                return Ok(subnet);
            }
            match owner_now(outcome.results.first()) {
                // By another command at the same time.
                Some(Owner::Host(owner)) if *owner == *claimant.host => return Ok(subnet),
                // Another host was faster.
                Some(owner @ Owner::Host(_)) => drop(listed.claims.subnets.insert(subnet, owner)),
                // Something else has changed.
                _ => break,
            }
        }
    }
    Err(ClaimError::Refused("other hosts claim subnets all the time; try again".to_owned()))
}

/// Whose a subnet is, in the answer to a question for its key.
fn owner_now(answer: Option<&OpResult>) -> Option<Owner> {
    let Some(OpResult::Pairs(pairs)) = answer else { return None };
    Owner::parse(&serde_json::from_slice(&pairs.first()?.value).ok()?).ok()
}

/// Gives back the subnet of a host; returns it and until when it is not given again, in seconds after the beginning of 1970.
///
/// # Errors
///
/// Fails if the host has none.
pub async fn release(client: &EtcdClient, host: &str, now: i64) -> Result<(Ipv4Net, i64), ClaimError> {
    let listed = Listed::read(client).await?;
    let until = now + listed.config()?.quarantine;
    let subnet = listed.claims.subnet_of_host(host).ok_or_else(|| {
        ClaimError::Refused(format!("the host {host} has no subnet; `agent network claims` lists those that have one"))
    })?;
    let path = subnet_key(subnet);
    let freed = json!({ "freed": true, "host": host, "until": until });
    let success = vec![listed.put(&path, &freed), Op::Delete(listed.key(&host_key(host)))];
    let txn = Txn { compare: vec![listed.as_read(&path)], success, failure: Vec::new() };
    if client.txn(txn).await?.succeeded {
        Ok((subnet, until))
    } else {
        Err(ClaimError::Refused(format!("the subnet of {host} was changed just now: type it again")))
    }
}

/// Says that the present loss of claims is meant; returns until when, in seconds after the beginning of 1970.
///
/// # Errors
///
/// Fails if etcd does.
pub async fn accept(client: &EtcdClient, now: i64) -> Result<i64, EtcdError> {
    let until = now + ACCEPTED;
    let key = format!("{}{NETWORK_ACCEPT}", client.options().prefix);
    client.put(key.as_bytes(), json!({ "until": until }).to_string().as_bytes(), 0).await?;
    Ok(until)
}

/// Writes back claims that etcd has lost, from what a host has stored; what is there stays. Returns how many were written.
///
/// # Errors
///
/// Fails if etcd does.
pub async fn restore(client: &EtcdClient, stored: &[(String, Map)]) -> Result<usize, EtcdError> {
    let prefix = client.options().prefix.clone();
    let mut written = 0;
    for (path, value) in stored {
        let key = format!("{prefix}{path}").into_bytes();
        let value = serde_json::to_vec(value).unwrap_or_default();
        let success = vec![Op::Put { key: key.clone(), value, lease: 0 }];
        let txn = Txn { compare: vec![Compare::absent(key)], success, failure: Vec::new() };
        written += usize::from(client.txn(txn).await?.succeeded);
    }
    Ok(written)
}
