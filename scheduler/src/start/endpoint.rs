//! Docker engines: where the engine of each host listens.
//!
//! A host says so in a label, or a file says it for hosts by name: `linux-1: tcp://192.0.2.10:2376`, with `*` for all
//! others.

use std::collections::HashMap;

use engine::Endpoint;
use model::{Text, Value};

use crate::place::bits::Bits;
use crate::place::hosts::{Facts, HostTable};

/// Host label with the address of its Docker Engine.
pub(crate) const ENDPOINT_LABEL: &str = "io.berth.docker.endpoint";

/// What to type so that the engine of a host is known.
pub(crate) const ENDPOINT_HINT: &str = "start its agent with `--label io.berth.docker.endpoint=tcp://ADDRESS:2376`, or the scheduler \
                                 with `--docker-engines FILE`";

/// Word in the file for hosts that have no line of their own.
const OTHERS: &str = "*";

/// The engines of all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Endpoints {
    by_host: HashMap<String, Text>,
    others: Option<Text>,
    /// Whether there are certificates for mutual TLS.
    certificates: bool,
}

impl Endpoints {
    /// The engines that labels of hosts name, and no others.
    pub(crate) fn of_labels(certificates: bool) -> Self {
        Self { certificates, ..Self::default() }
    }

    /// The engines in a map from hosts to endpoints.
    ///
    /// # Errors
    ///
    /// Which entry is wrong.
    pub(crate) fn new(value: &Value, certificates: bool) -> Result<Self, String> {
        let map = value.as_map().ok_or_else(|| format!("found {}, expected a map from hosts", value.kind()))?;
        let mut endpoints = Self { certificates, ..Self::default() };
        for (host, endpoint) in map {
            let text = endpoint.as_text().ok_or_else(|| format!("{host}: found {}, expected text", endpoint.kind()))?;
            Endpoint::parse(text, certificates).map_err(|error| format!("{host}: {error}"))?;
            if &**host == OTHERS {
                endpoints.others = Some(text.clone());
            } else {
                endpoints.by_host.insert(host.to_lowercase(), text.clone());
            }
        }
        Ok(endpoints)
    }

    /// Hosts in the file that are not among these.
    pub(crate) fn unknown(&self, hosts: &HostTable) -> Vec<&str> {
        let mut unknown: Vec<&str> = self.by_host.keys().map(String::as_str).collect();
        unknown.retain(|host| hosts.find(host).is_none());
        unknown.sort_unstable();
        unknown
    }

    /// Where the engine of a host listens.
    ///
    /// # Errors
    ///
    /// Fails if neither a label nor the file has an endpoint, or it cannot be parsed.
    pub(crate) fn of(&self, facts: &Facts) -> Result<Endpoint, String> {
        let own = [&facts.uuid, &facts.name].into_iter().find_map(|word| self.by_host.get(&word.to_lowercase()));
        let text = own.or_else(|| facts.label(ENDPOINT_LABEL)).or(self.others.as_ref());
        let text = text.ok_or_else(|| {
            format!("no label or file says where the Docker Engine of host {} listens: {ENDPOINT_HINT}", facts.name)
        })?;
        Endpoint::parse(text, self.certificates).map_err(|error| format!("engine of host {}: {error}", facts.name))
    }

    /// The hosts whose engines have a known endpoint.
    pub(crate) fn known(&self, hosts: &HostTable) -> Bits {
        if self.others.is_some() {
            return Bits::all(hosts.len());
        }
        let mut known = Bits::none(hosts.len());
        for (_, having) in hosts.values(ENDPOINT_LABEL) {
            known.unite(having);
        }
        for word in self.by_host.keys() {
            if let Some(host) = hosts.find(word) {
                known.insert(host);
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_hosts_and_all_others() {
        let endpoints = |json: &str| Endpoints::new(&serde_json::from_str(json).unwrap(), false);
        assert!(endpoints(r#"{"One": "unix:///a", "*": "unix:///b"}"#).is_ok());
        for (json, part) in [("[]", "a map"), (r#"{"one": 5}"#, "one: found"), (r#"{"one": "x"}"#, "one: \"x\"")] {
            let error = endpoints(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}
