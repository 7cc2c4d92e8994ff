//! The policy where the engine's socket is: what a Docker Engine may be asked to create and to pull by any subject.
//!
//! The process that holds the socket sees bodies for the engine, not requests with a subject, so a body is allowed if some
//! subject may have it. Only fields that [`crate::start`] sets are passed on: every other one could be a way into the host.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};
use source::format::FormatError;

use crate::config::policy_in;
use crate::place::request::Request;
use crate::place::request::engine::EngineSettings;
use crate::policy::{Denial, Policy, STACK_LABELS};
use crate::start::docker::{ATTEMPT_LABEL, REQUEST_LABEL};
use crate::subject::Subject;

/// What a Docker Engine may be asked for.
#[derive(Debug, Default)]
pub struct EnginePolicy {
    policy: Policy,
    /// The sockets of engines on this machine, besides those that are common.
    sockets: Vec<String>,
}

/// The fields of a body that creates a container.
const FIELDS: [&str; 15] = [
    "Cmd",
    "Domainname",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Healthcheck",
    "HostConfig",
    "Hostname",
    "Image",
    "Labels",
    "NetworkingConfig",
    "StopSignal",
    "StopTimeout",
    "User",
    "WorkingDir",
];

/// Those about its host, besides the settings that a request may have.
const HOST_FIELDS: [&str; 12] = [
    "Binds",
    "CpuShares",
    "Dns",
    "DnsSearch",
    "Isolation",
    "Memory",
    "MemoryReservation",
    "NanoCpus",
    "NetworkMode",
    "PortBindings",
    "RestartPolicy",
    "VolumesFrom",
];

/// What the network of another container is asked for with.
const JOINED: &str = "container:";

impl EnginePolicy {
    /// The policy in the contents of this file.
    ///
    /// # Errors
    ///
    /// Fails if they are no policy, or others may change the file.
    pub fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, FormatError> {
        Ok(Self { policy: policy_in(path, bytes)?, sockets: Vec::new() })
    }

    /// The same where an engine listens at this socket.
    #[must_use]
    pub fn with_socket(mut self, socket: &str) -> Self {
        self.sockets.push(socket.to_owned());
        self
    }

    /// The containers whose network or volumes a container would use.
    pub fn joined(body: &Json) -> Vec<&str> {
        let host = &body["HostConfig"];
        let network = host["NetworkMode"].as_str().and_then(|mode| mode.strip_prefix(JOINED));
        network.into_iter().chain(texts(&host["VolumesFrom"]).map(without_mode)).collect()
    }

    /// The network that a container would be in, where an engine has to say which one that is.
    pub fn network(body: &Json) -> Option<&str> {
        let mode = body["HostConfig"]["NetworkMode"].as_str()?;
        (!mode.starts_with(JOINED) && !is_default(mode)).then_some(mode)
    }

    /// The same body with names in place of ids: those of [`EnginePolicy::joined`], and of [`EnginePolicy::network`].
    #[must_use]
    pub fn named(body: &Json, containers: &BTreeMap<&str, String>, network: Option<&str>) -> Json {
        let mut named = body.clone();
        let Some(host) = named.get_mut("HostConfig").and_then(Json::as_object_mut) else { return named };
        let name = |text: &str| containers.get(text).cloned();
        if let Some(mode) = host.get_mut("NetworkMode") {
            let joined = mode.as_str().and_then(|mode| name(mode.strip_prefix(JOINED)?));
            if let Some(known) = joined.map(|name| format!("{JOINED}{name}")).or_else(|| network.map(ToOwned::to_owned))
            {
                *mode = known.into();
            }
        }
        for from in host.get_mut("VolumesFrom").and_then(Json::as_array_mut).into_iter().flatten() {
            let known =
                from.as_str().and_then(|text| Some(name(without_mode(text))? + &text[without_mode(text).len()..]));
            if let Some(known) = known {
                *from = known.into();
            }
        }
        named
    }

    /// The request that a container would be of.
    pub fn request_of(body: &Json) -> Option<&str> {
        body["Labels"][REQUEST_LABEL].as_str().filter(|id| !id.is_empty())
    }

    /// What identifies the scheduler's try to start a container: random, so that no image brings it.
    pub fn attempt_of(body: &Json) -> Option<&str> {
        body["Labels"][ATTEMPT_LABEL].as_str().filter(|attempt| !attempt.is_empty())
    }

    /// Whether a container may be created; `own` are those of [`EnginePolicy::joined`] that are of the same request.
    ///
    /// # Errors
    ///
    /// What is not allowed, and the rule that forbids it.
    pub fn check_create(&self, body: &Json, own: &[&str]) -> Result<(), String> {
        let object = body.as_object().ok_or("the body is not an object")?;
        let host = object.get("HostConfig").and_then(Json::as_object);
        if object.contains_key("HostConfig") && host.is_none() {
            return Err("HostConfig is not an object".to_owned());
        }
        let of_body: fn(&str) -> bool = |field| FIELDS.contains(&field);
        let of_host: fn(&str) -> bool = |field| HOST_FIELDS.contains(&field) || EngineSettings::is_field(field);
        let known = [(Some(object), of_body), (host, of_host)];
        for (object, is_known) in known {
            let unknown = |(field, value): &(&String, &Json)| !is_known(field) && !value.is_null();
            if let Some((field, _)) = object.into_iter().flatten().find(unknown) {
                return Err(format!("{field} is no field that the scheduler sets"));
            }
        }
        if Self::request_of(body).is_none() {
            return Err(format!("it has no label {REQUEST_LABEL}"));
        }
        let host = &body["HostConfig"];
        let mode = host["NetworkMode"].as_str().unwrap_or_default();
        check_endpoints(&body["NetworkingConfig"], mode)?;
        let labels = body["Labels"].as_object().into_iter().flatten();
        let labels: serde_json::Map<_, _> = labels
            .filter(|(key, _)| STACK_LABELS.iter().any(|known| key.eq_ignore_ascii_case(known)))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let foreign = |name: &&str| !own.contains(&without_mode(name));
        let mut request = json!({
            "image": body["Image"], "labels": labels, "volumes": list(&host["Binds"])?,
            "volumes_from": texts_of(&host["VolumesFrom"])?.into_iter().filter(foreign).collect::<Vec<_>>(),
        });
        match mode.strip_prefix(JOINED) {
            Some(name) if foreign(&name) => request["network_from"] = name.into(),
            Some(_) => {}
            None if is_default(mode) => {}
            None => request["network"] = mode.into(),
        }
        self.check(&request, host.as_object().map(EngineSettings::of_engine).unwrap_or_default())
    }

    /// Whether an image may be pulled.
    ///
    /// # Errors
    ///
    /// The rule that forbids it.
    pub fn check_pull(&self, image: &str) -> Result<(), String> {
        self.check_rules(|policy| policy.check_image(image))
    }

    /// One subject has to be allowed all of it: what is asked for, and the settings.
    fn check(&self, request: &Json, settings: EngineSettings) -> Result<(), String> {
        let value = serde_json::from_value(request.clone()).map_err(|error| error.to_string())?;
        let mut request = Request::parse(&value).map_err(|invalid| invalid.to_string())?;
        request.subject = Subject::any();
        request.members[0].run.engine = settings;
        self.check_rules(|policy| policy.check(&request, &self.sockets))
    }

    /// Whether what is asked for is allowed to one of the subjects; otherwise, why it is not allowed to those without a name.
    fn check_rules(&self, check: impl Fn(&Policy) -> Result<(), Denial>) -> Result<(), String> {
        let policies = self.policy.for_each_subject();
        let mut denials = policies.iter().map(|policy| check(policy).err());
        let first = denials.next().flatten();
        match first {
            Some(denial) if denials.all(|denial| denial.is_some()) => Err(denial.to_string()),
            _ => Ok(()),
        }
    }
}

/// Refuses all that a body says of networks but further names of the container in the one that the policy looks at.
fn check_endpoints(networking: &Json, network: &str) -> Result<(), String> {
    let wrong = || Err("NetworkingConfig has more than aliases in the network of NetworkMode".to_owned());
    let Some(object) = networking.as_object() else { return if networking.is_null() { Ok(()) } else { wrong() } };
    for (key, endpoints) in object {
        let Some(endpoints) = endpoints.as_object().filter(|_| key == "EndpointsConfig") else { return wrong() };
        for (name, endpoint) in endpoints {
            let is_fine = |(key, value): (&String, &Json)| key == "Aliases" && texts_of(value).is_ok();
            if name != network || !endpoint.as_object().is_some_and(|endpoint| endpoint.iter().all(is_fine)) {
                return wrong();
            }
        }
    }
    Ok(())
}

/// Whether the engine puts a container into a network of its own choice.
fn is_default(mode: &str) -> bool {
    matches!(mode, "" | "default")
}

fn without_mode(from: &str) -> &str {
    from.split_once(':').map_or(from, |(name, _)| name)
}

fn texts(value: &Json) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Json::as_str)
}

/// The texts in a list; what is neither a list of texts nor absent is refused, since the engine may read it otherwise.
fn texts_of(value: &Json) -> Result<Vec<&str>, String> {
    match value {
        Json::Null => Ok(Vec::new()),
        Json::Array(entries) if entries.iter().all(Json::is_string) => Ok(texts(value).collect()),
        _ => Err("Binds and VolumesFrom have to be lists of texts".to_owned()),
    }
}

fn list(value: &Json) -> Result<Json, String> {
    texts_of(value).map(Json::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(host: &Json) -> Json {
        json!({ "Image": "web:1", "Labels": { REQUEST_LABEL: "r1" }, "HostConfig": host })
    }

    fn policy(json: &Json) -> EnginePolicy {
        EnginePolicy {
            policy: Policy::parse(&serde_json::from_value(json.clone()).unwrap()).unwrap(),
            ..EnginePolicy::default()
        }
    }

    #[test]
    fn no_body_leads_into_the_host() {
        let plain = EnginePolicy::default();
        for host in [
            json!({}),
            json!({ "NetworkMode": "default", "PortBindings": { "80/tcp": [{ "HostPort": "80" }] } }),
            json!({ "NetworkMode": "container:own", "VolumesFrom": ["own:ro"], "Binds": ["data:/data"] }),
            json!({ "Privileged": false, "CapDrop": ["ALL"], "ReadonlyRootfs": true, "ShmSize": 5 }),
        ] {
            assert_eq!(plain.check_create(&body(&host), &["own"]), Ok(()), "{host}");
        }
        for (host, why) in [
            (json!({ "Privileged": true }), "privileges do not allow any subject to use privileged"),
            (json!({ "CapAdd": ["SYS_ADMIN"] }), "privileges"),
            (json!({ "Mounts": [{ "Type": "bind", "Source": "/", "Target": "/h" }] }), "Mounts"),
            (json!({ "Devices": [{ "PathOnHost": "/dev/sda" }] }), "privileges"),
            (json!({ "LogConfig": { "Type": "json-file", "type": "syslog" } }), "privileges"),
            (json!({ "Runtime": "other" }), "Runtime"),
            (json!({ "PidMode": "host" }), "privileges"),
            (json!({ "SecurityOpt": ["seccomp=unconfined"] }), "privileges"),
            (json!({ "privileged": true }), "privileged"),
            (json!({ "Binds": ["/:/h"] }), "bind_sources"),
            (json!({ "binds": ["/:/h"] }), "binds"),
            (json!({ "Binds": "/:/h" }), "lists of texts"),
            (json!({ "Binds": [["/:/h"]] }), "lists of texts"),
            (json!({ "Binds": ["/var/run/docker.sock:/s"] }), "bind_sources"),
            (json!({ "NetworkMode": "host" }), "networks"),
            (json!({ "NetworkMode": "container:other" }), "joins"),
            (json!({ "VolumesFrom": ["other"] }), "joins"),
        ] {
            let error = plain.check_create(&body(&host), &["own"]).unwrap_err();
            assert!(error.contains(why), "{host}: {error}");
        }
        for (whole, why) in [
            (json!([]), "not an object"),
            (json!({ "Image": "web:1" }), REQUEST_LABEL),
            (json!({ "Image": "web:1", "Labels": { REQUEST_LABEL: "" } }), REQUEST_LABEL),
            (json!({ "Image": "web:1", "Labels": { REQUEST_LABEL: "r" }, "HostConfig": [] }), "not an object"),
            (
                json!({ "Image": "web:1", "Labels": { REQUEST_LABEL: "r" }, "NetworkingConfig": { "EndpointsConfig": { "b": {} } } }),
                "NetworkingConfig",
            ),
            (json!({ "Labels": { REQUEST_LABEL: "r" } }), "image"),
        ] {
            let error = plain.check_create(&whole, &[]).unwrap_err();
            assert!(error.contains(why), "{whole}: {error}");
        }
    }

    #[test]
    fn names_in_the_own_network_are_all_that_a_body_says_of_networks() {
        let policy = policy(&json!({ "default": { "networks": ["shop"] } }));
        for (networking, allowed) in [
            (json!(null), true),
            (json!({}), true),
            (json!({ "EndpointsConfig": { "shop": { "Aliases": ["db"] } } }), true),
            (json!({ "EndpointsConfig": { "other": { "Aliases": ["db"] } } }), false),
            (json!({ "EndpointsConfig": { "shop": {}, "other": {} } }), false),
            (json!({ "EndpointsConfig": { "shop": { "IPAMConfig": { "IPv4Address": "192.0.2.1" } } } }), false),
            (json!({ "EndpointsConfig": { "shop": { "Aliases": "db" } } }), false),
            (json!({ "endpointsConfig": { "other": {} } }), false),
            (json!([]), false),
        ] {
            let mut whole = body(&json!({ "NetworkMode": "shop" }));
            whole["NetworkingConfig"] = networking.clone();
            whole["Healthcheck"] = json!({ "Test": ["CMD", "true"] });
            assert_eq!(policy.check_create(&whole, &[]).is_ok(), allowed, "{networking}");
        }
    }

    #[test]
    fn ids_are_judged_by_the_names_that_they_stand_for() {
        let policy = policy(&json!({ "default": { "joins": ["a*"], "networks": ["*"] } }));
        let names = BTreeMap::from([("abc", "other".to_owned()), ("def", "all".to_owned())]);
        for (host, network, allowed) in [
            (json!({ "NetworkMode": "container:abc" }), None, false),
            (json!({ "NetworkMode": "container:def" }), None, true),
            (json!({ "VolumesFrom": ["abc:ro"] }), None, false),
            (json!({ "VolumesFrom": ["def:ro"] }), None, true),
            (json!({ "NetworkMode": "abc" }), Some("host"), false),
            (json!({ "NetworkMode": "abc" }), Some("shop"), true),
        ] {
            let judged = EnginePolicy::named(&body(&host), &names, network);
            assert_eq!(policy.check_create(&judged, &[]).is_ok(), allowed, "{host}");
        }
        for (mode, asked) in
            [("", None), ("default", None), ("container:a", None), ("none", Some("none")), ("ab", Some("ab"))]
        {
            assert_eq!(EnginePolicy::network(&body(&json!({ "NetworkMode": mode }))), asked);
        }
    }

    #[test]
    fn what_one_subject_may_have_is_passed_on_and_no_mixture_of_two() {
        let policy = policy(&json!({
            "default": { "images": ["web"] },
            "subjects": {
                "token:a": { "images": ["web"], "bind_sources": ["/srv/a"] },
                "token:b": { "images": ["web"], "networks": ["host"] },
                "token:c": { "images": ["web"], "privileges": ["cap_add=NET_ADMIN"] },
            },
        }));
        let check = |host: Json| policy.check_create(&body(&host), &[]);
        assert_eq!(check(json!({ "Binds": ["/srv/a:/x"] })), Ok(()));
        assert_eq!(check(json!({ "NetworkMode": "host" })), Ok(()));
        check(json!({ "Binds": ["/srv/a:/x"], "NetworkMode": "host" })).unwrap_err();
        assert_eq!(check(json!({ "CapAdd": ["NET_ADMIN"] })), Ok(()));
        check(json!({ "Binds": ["/srv/a:/x"], "CapAdd": ["NET_ADMIN"] })).unwrap_err();
        assert_eq!(policy.check_pull("web:2"), Ok(()));
        assert!(policy.check_pull("other").unwrap_err().contains("images"));
    }
}
