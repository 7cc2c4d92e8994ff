//! Docker engines: where the engine of each host listens.
//!
//! A host says so in a label, or a file says it for hosts by name: `linux-1: tcp://192.0.2.10:2376`, with `*` for all
//! others. A label leads to the engine of its own host only: the engine has to show a certificate for the host's name. An
//! agent that follows this machine's engine uses it for this host when neither says anything.

use std::collections::HashMap;
use std::net::IpAddr;

use engine::Endpoint;
use model::{Text, Value};

use crate::place::bits::Bits;
use crate::place::hosts::{Facts, HostTable};

/// Host label with the address of its Docker Engine.
pub(crate) const ENDPOINT_LABEL: &str = "io.berth.docker.endpoint";

/// What to type so that the engine of a host is known.
pub(crate) const ENDPOINT_HINT: &str = "start its agent with `--label io.berth.docker.endpoint=tcp://NAME:2376`, NAME being \
    the host's name (on the scheduler's own host `unix:///var/run/docker.sock` will do), or the scheduler with \
    `--docker-engines FILE`";

/// Word in the file for hosts that have no line of their own.
const OTHERS: &str = "*";

/// The engines of all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Endpoints {
    by_host: HashMap<String, Text>,
    others: Option<Text>,
    /// The engine of the host that the scheduler is on.
    own: Option<Endpoint>,
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

    /// The same with the engine of the host that the scheduler is on, for when nothing else names one.
    pub(crate) fn with_own(mut self, own: Option<&Endpoint>) -> Self {
        self.own = own.filter(|own| self.certificates || !matches!(own, Endpoint::Tls(_))).cloned();
        self
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
        let label = facts.label(ENDPOINT_LABEL);
        if let (None, Some(text)) = (own, label)
            && !is_own(text, facts)
        {
            let name = &facts.name;
            return Err(format!(
                "the label {ENDPOINT_LABEL} of host {name} is {text:?}, which may be the engine of another host: label it \
                 tcp://{name}:PORT, with a certificate for {name}, or start the scheduler with `--docker-engines FILE`"
            ));
        }
        match (own.or(label).or(self.others.as_ref()), &self.own) {
            (Some(text), _) => Endpoint::parse(text, self.certificates)
                .map_err(|error| format!("engine of host {}: {error}", facts.name)),
            (None, Some(own)) if facts.is_local => Ok(own.clone()),
            (None, _) => {
                let name = &facts.name;
                Err(format!("no label or file says where the Docker Engine of host {name} listens: {ENDPOINT_HINT}"))
            }
        }
    }

    /// The sockets and pipes at which engines listen, of whichever host.
    pub(crate) fn local(&self, hosts: &HostTable) -> Vec<String> {
        let of_labels = hosts.values(ENDPOINT_LABEL).iter().map(|(text, _)| text);
        let texts = self.by_host.values().chain(&self.others).chain(of_labels);
        let parsed = texts.filter_map(|text| text.parse().ok());
        let local = parsed.chain(self.own.clone()).filter_map(|endpoint| match endpoint {
            Endpoint::Local(path) => Some(path),
            _ => None,
        });
        local.collect()
    }

    /// The hosts whose engines have a known endpoint.
    pub(crate) fn known(&self, hosts: &HostTable) -> Bits {
        if self.others.is_some() {
            return Bits::all(hosts.len());
        }
        let mut known = Bits::none(hosts.len());
        if self.own.is_some() {
            known.unite(&hosts.local);
        }
        for (text, having) in hosts.values(ENDPOINT_LABEL) {
            having.iter().filter(|host| is_own(text, hosts.facts(*host))).for_each(|host| known.insert(host));
        }
        for word in self.by_host.keys() {
            if let Some(host) = hosts.find(word) {
                known.insert(host);
            }
        }
        known
    }
}

/// Whether a host's label can only lead to the engine of that host: it is the one that the scheduler is on, or the name
/// that the engine's certificate has to be for is the host's.
fn is_own(text: &str, facts: &Facts) -> bool {
    let named = || {
        let (_, address) = text.trim().split_once("://").filter(|(scheme, _)| matches!(*scheme, "tcp" | "https"))?;
        Some(address.trim_end_matches('/').rsplit_once(':')?.0)
    };
    // Without TLS a name proves nothing, and these are names of the scheduler's own host.
    let is_loopback = |name: &str| {
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
    };
    facts.is_local || named().is_some_and(|name| name.eq_ignore_ascii_case(&facts.name) && !is_loopback(name))
}

#[cfg(test)]
mod tests {
    use model::document;

    use super::*;

    #[test]
    fn a_label_of_a_host_chooses_no_engine_but_its_own() {
        for (local, name, label, expected) in [
            ("here", "evil", "unix:///var/run/docker.sock", None),
            ("here", "evil", "npipe:////./pipe/docker_engine", None),
            ("here", "evil", "tcp://127.0.0.1:2375", None),
            ("here", "evil", "http://localhost:2375", None),
            ("here", "localhost", "tcp://localhost:2375", None),
            ("here", "127.0.0.1", "tcp://127.0.0.1:2375", None),
            ("here", "::1", "tcp://[::1]:2375", None),
            ("here", "evil", "tcp://victim:2376", None),
            ("here", "evil", "tcp://192.0.2.7:2376", None),
            ("here", "evil", "tcp://evil.victim:2376", None),
            ("here", "evil", "tcp://evil:2376@victim:2376", None),
            ("here", "evil", "tcp://victim/evil:2376", None),
            ("here", "Good", "tcp://good:2376", Some("https://good:2376")),
            ("Good", "Good", "unix:///var/run/docker.sock", Some("unix:///var/run/docker.sock")),
            ("Good", "Good", "tcp://127.0.0.1:2375", Some("https://127.0.0.1:2375")),
        ] {
            let text = format!(
                r#"{{"host": "{local}", "hosts": [{{"name": "here"}}, {{"name": "{name}", "labels": {{"{ENDPOINT_LABEL}": "{label}"}}}}]}}"#
            );
            let (snapshot, _) = document::resolve_value(&serde_json::from_str(&text).unwrap()).unwrap();
            let hosts = HostTable::new(&snapshot.hosts, snapshot.local_host.as_deref(), false);
            let at = hosts.find(name).unwrap();
            let endpoints = Endpoints::of_labels(true);
            let found = endpoints.of(hosts.facts(at)).map(|endpoint| endpoint.to_string());
            assert_eq!(found.as_deref().ok(), expected, "{label} of {name}");
            assert_eq!(endpoints.known(&hosts).iter().any(|host| host == at), expected.is_some(), "{label} of {name}");
            if let Err(problem) = found {
                assert!(problem.contains("--docker-engines"), "{problem}");
                // What a person writes counts for any host.
                let file = serde_json::from_str(&format!(r#"{{"{name}": "tcp://192.0.2.7:2376"}}"#)).unwrap();
                let endpoint = Endpoints::new(&file, true).unwrap().of(hosts.facts(at)).unwrap();
                assert_eq!(endpoint.to_string(), "https://192.0.2.7:2376");
            }
        }
    }

    #[test]
    fn an_agent_uses_the_engine_that_it_follows_for_its_own_host_alone() {
        let own = Endpoint::Local("/run/own.sock".into());
        for (label, file, expected) in [
            (None, r"{}", Some("unix:///run/own.sock")),
            (Some("unix:///label.sock"), r"{}", Some("unix:///label.sock")),
            (None, r#"{"*": "unix:///others.sock"}"#, Some("unix:///others.sock")),
            (Some("unix:///label.sock"), r#"{"here": "unix:///file.sock"}"#, Some("unix:///file.sock")),
        ] {
            let labels =
                label.map_or_else(String::new, |label| format!(r#", "labels": {{"{ENDPOINT_LABEL}": "{label}"}}"#));
            let text = format!(r#"{{"host": "here", "hosts": [{{"name": "here"{labels}}}, {{"name": "there"}}]}}"#);
            let (snapshot, _) = document::resolve_value(&serde_json::from_str(&text).unwrap()).unwrap();
            let hosts = HostTable::new(&snapshot.hosts, snapshot.local_host.as_deref(), false);
            let endpoints = Endpoints::new(&serde_json::from_str(file).unwrap(), false).unwrap().with_own(Some(&own));
            let of =
                |name: &str| endpoints.of(hosts.facts(hosts.find(name).unwrap())).ok().map(|found| found.to_string());
            assert_eq!(of("here").as_deref(), expected);
            let known = endpoints.known(&hosts);
            for name in ["here", "there"] {
                assert_eq!(known.contains(hosts.find(name).unwrap()), of(name).is_some(), "{name} with {file}");
            }
            assert!(endpoints.local(&hosts).contains(&"/run/own.sock".to_owned()));
        }
        let elsewhere = Endpoint::Tls("192.0.2.1:2376".into());
        assert!(Endpoints::of_labels(false).with_own(Some(&elsewhere)).own.is_none());
    }

    #[test]
    fn no_socket_of_an_engine_is_overlooked() {
        let file = r#"{"One": "unix:///a/docker.sock", "two": "tcp://127.0.0.1:1", "*": "npipe:////./pipe/b"}"#;
        let hosts = format!(r#"{{"hosts": [{{"name": "one", "labels": {{"{ENDPOINT_LABEL}": "unix:///c"}}}}]}}"#);
        let (snapshot, _) = document::resolve_value(&serde_json::from_str(&hosts).unwrap()).unwrap();
        let hosts = HostTable::new(&snapshot.hosts, None, false);
        let endpoints = Endpoints::new(&serde_json::from_str(file).unwrap(), false).unwrap();
        assert_eq!(endpoints.local(&hosts), ["/a/docker.sock", "//./pipe/b", "/c"]);
    }

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
