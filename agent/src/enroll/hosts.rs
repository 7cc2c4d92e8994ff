//! `agent hosts` and `agent invites`: who is in the cluster, and who may come.

use std::collections::BTreeMap;
use std::process::ExitCode;

use etcd::{EtcdClient, EtcdError};
use live::intents::HostState;
use model::printable::printable_json;
use network::claim::Claims;
use network::registry::Listed;
use process::Failure;
use process::table::table;
use serde_json::{Value, json};

use super::drain::is_unit;
use super::folder::Rights;
use super::intent::{self, IntentValue};
use super::names::{HOST_MAX, INVITATIONS, invitations_with_user};
use super::operator::Operator;
use super::outcome::{json as parsed, now, written};

/// List the hosts that are active, invited or gone
#[derive(clap::Args)]
pub(crate) struct Hosts {
    /// Write JSON instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    operator: Operator,
}

/// A host as etcd has it.
#[derive(Debug, Default)]
struct Known {
    /// What it publishes, if it does.
    published: Option<Value>,
    containers: usize,
    /// How many of them are units of stacks that run.
    units: usize,
    /// The subnet of its containers (docs/network.md).
    subnet: Option<String>,
    said: IntentValue,
}

impl Known {
    /// Its state in one word: docs/hosts.md.
    fn state(&self, invitations: &BTreeMap<String, bool>) -> &'static str {
        let Some(host) = &self.published else { return self.presence(invitations) };
        match self.said.state() {
            // Also if the command that waited for it has ended before.
            Some(HostState::Draining) if self.units == 0 => HostState::Drained.word(),
            Some(HostState::Draining) => HostState::Draining.word(),
            // `agent leave` on the host itself.
            _ if host["state"] == HostState::Draining.on_the_wire() => "leaving",
            Some(state) => state.word(),
            None => self.presence(invitations),
        }
    }

    /// The state that operators gave a host that is not there, and why.
    fn reason_there(&self) -> String {
        let reason = self.said.reason().unwrap_or_default().to_owned();
        match self.said.state() {
            Some(state) if self.published.is_none() && reason.is_empty() => state.word().to_owned(),
            Some(state) if self.published.is_none() => format!("{}: {reason}", state.word()),
            _ => reason,
        }
    }

    /// Whether it is there or may come, whatever state operators gave it.
    fn presence(&self, invitations: &BTreeMap<String, bool>) -> &'static str {
        if self.published.is_some() {
            return "active";
        }
        let Some(id) = self.said.invited("id") else { return "expected" };
        let until = self.said.invited("until").and_then(live::moment::read);
        match invitations.get(id) {
            _ if self.said.rotated().is_some() => "gone",
            Some(false) => "invited",
            Some(true) => "gone",
            None if until.is_some_and(|until| until > now()) => "revoked",
            None => "expired",
        }
    }

    /// Since when, and who says so.
    fn since(&self, state: &str) -> (String, String) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let invited = |field| self.said.invited(field).unwrap_or_default().to_owned();
        if self.published.is_some() && self.said.state().is_some() {
            let [_, since, by] = self.said.of_state();
            return (since.to_owned(), by.to_owned());
        }
        match &self.published {
            Some(host) => (text(&host["published"]["at"]), text(&host["agent_ip"])),
            None if state == "expired" => (invited("until"), invited("by")),
            None if state == "invited" => (invited("at"), invited("by")),
            None => {
                let said = |field: &str| self.said.0.get(field).map(text).unwrap_or_default();
                (said("at"), said("by"))
            }
        }
    }
}

impl Hosts {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let invitations = invitations(&client).await?;
            let mut hosts = known(&client).await?;
            let claims = match Listed::read(&client).await {
                Ok(listed) => listed.claims,
                // A reader of the cluster need not be allowed to see them.
                Err(EtcdError::Refused(_)) => Claims::default(),
                Err(error) => return Err(error.into()),
            };
            for (name, host) in &mut hosts {
                host.subnet = claims.subnet_of_host(name).map(|subnet| subnet.to_string());
            }
            if self.json {
                let host = |(name, host): (&String, &Known)| {
                    let state = host.state(&invitations);
                    let (since, by) = host.since(state);
                    let labels: BTreeMap<_, _> = host.said.labels().collect();
                    json!({
                        "name": name, "state": state, "since": since, "by": by, "reason": host.said.reason(),
                        "intended": host.said.state().map(HostState::word),
                        "containers": host.containers, "subnet": host.subnet,
                        "operator_labels": labels, "published": host.published.as_ref().map(|host| &host["published"]),
                        "invitation": host.said.0.get("invited"), "rotated": host.said.rotated(),
                    })
                };
                let hosts: Vec<_> = hosts.iter().map(host).collect();
                return Ok(printable_json(&format!("{:#}\n", json!({ "hosts": hosts }))));
            }
            let mut rows = vec![["HOST", "STATE", "SINCE", "BY", "CONTAINERS", "SUBNET", "REASON"].map(str::to_owned)];
            for (name, host) in &hosts {
                let state = host.state(&invitations);
                let (since, by) = host.since(state);
                let containers = host.published.as_ref().map(|_| host.containers.to_string()).unwrap_or_default();
                let (subnet, reason) = (host.subnet.clone().unwrap_or_default(), host.reason_there());
                rows.push([name.clone(), state.to_owned(), since, by, containers, subnet, reason]);
            }
            Ok(table(&rows, HOST_MAX))
        })
    }
}

/// Whether each host is there or may come, and the name of the invitation that was made for it last.
pub(crate) async fn presences(
    client: &EtcdClient,
) -> Result<BTreeMap<String, (&'static str, Option<String>)>, EtcdError> {
    let invitations = invitations(client).await?;
    let state = |host: &Known| (host.presence(&invitations), host.said.invited("id").map(str::to_owned));
    Ok(known(client).await?.iter().map(|(name, host)| (name.clone(), state(host))).collect())
}

/// All hosts that etcd has something of, by name.
async fn known(client: &EtcdClient) -> Result<BTreeMap<String, Known>, EtcdError> {
    let prefix = format!("{}hosts/", client.options().prefix);
    let mut hosts: BTreeMap<String, Known> = BTreeMap::new();
    for (host, said) in intent::all(client).await? {
        hosts.entry(host).or_default().said = said;
    }
    let mut containers: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for pair in client.list(prefix.as_bytes(), false).await?.pairs {
        let key = String::from_utf8_lossy(&pair.key[prefix.len()..]).into_owned();
        match key.split_once('/') {
            Some((host, "host")) => hosts.entry(host.to_owned()).or_default().published = Some(parsed(&pair.value)),
            Some((host, rest)) if rest.starts_with("containers/") => {
                let (all, units) = containers.entry(host.to_owned()).or_default();
                *all += 1;
                *units += usize::from(is_unit(&parsed(&pair.value)));
            }
            _ => {}
        }
    }
    for (host, (all, units)) in containers {
        // Keys of a host whose own key is gone are `agent prune`'s.
        if let Some(host) = hosts.get_mut(&host) {
            (host.containers, host.units) = (all, units);
        }
    }
    Ok(hosts)
}

/// The invitations that are there, and whether each was used.
async fn invitations(client: &EtcdClient) -> Result<BTreeMap<String, bool>, EtcdError> {
    let pairs = client.list(INVITATIONS.as_bytes(), false).await;
    let pairs = match pairs {
        Ok(listing) => listing.pairs,
        // A reader of the cluster need not be allowed to see them.
        Err(EtcdError::Refused(_)) => Vec::new(),
        Err(error) => return Err(error),
    };
    let one = |pair: &etcd::Pair| {
        let id = String::from_utf8_lossy(&pair.key[INVITATIONS.len()..]).into_owned();
        (id, !parsed(&pair.value)["sealed"].is_string())
    };
    Ok(pairs.iter().map(one).collect())
}

/// List the invitations: for which host, until when, and who used them
#[derive(clap::Args)]
pub(crate) struct Invites {
    /// Write JSON instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    operator: Operator,
}

impl Invites {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Root, async |client| {
            let invites = invites(&client).await?;
            if self.json {
                return Ok(printable_json(&format!("{:#}\n", json!({ "invitations": invites }))));
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mut rows = vec![["INVITATION", "HOST", "STATE", "UNTIL", "BY"].map(str::to_owned)];
            rows.extend(invites.iter().map(|one| ["id", "host", "state", "until", "by"].map(|key| text(&one[key]))));
            Ok(table(&rows, HOST_MAX))
        })
    }
}

/// All invitations of which etcd has anything.
async fn invites(client: &EtcdClient) -> Result<Vec<Value>, Failure> {
    let mut found: BTreeMap<String, Value> = BTreeMap::new();
    for pair in client.list(INVITATIONS.as_bytes(), false).await?.pairs {
        let id = String::from_utf8_lossy(&pair.key[INVITATIONS.len()..]).into_owned();
        let value = parsed(&pair.value);
        let state = if value["sealed"].is_string() { "open" } else { "used" };
        let used = value["used"].clone();
        found.insert(id.clone(), json!({ "id": id, "host": value["host"], "state": state, "used": used }));
    }
    for id in invitations_with_user(client).await? {
        found.entry(id.clone()).or_insert_with(|| json!({ "id": id, "state": "expired" }));
    }
    for (host, said) in intent::all(client).await? {
        let Some(one) = said.invited("id").and_then(|id| found.get_mut(id)) else { continue };
        one["host"] = host.into();
        for field in ["until", "by"] {
            one[field] = said.invited(field).into();
        }
        // It was ended before it was written to etcd: run again, or revoke.
        let until = said.invited("until").and_then(live::moment::read);
        if one["state"] == "expired" && until.is_some_and(|until| until > now()) {
            one["state"] = "half made, or used up".into();
        }
    }
    Ok(found.into_values().collect())
}

/// The marker that takes the place of an invitation that was used; `machine` is who used it.
pub(crate) fn used(host: &str, machine: &str) -> Value {
    json!({ "host": host, "used": { "at": written(now()), "by": machine } })
}
