//! What is checked of a container, and at which address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::health::{BadCheck, has_check_labels};
use model::votes::start;
use model::{Container, Entity as _, Map, Snapshot, Text};

use crate::spec::Spec;
use crate::verdict::HealthState;

/// A container that is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The container's uuid.
    pub uuid: Text,
    /// The container's name, for people.
    pub name: Text,
    /// The uuid of its host; empty if it has none.
    pub host: Text,
    /// Where it is asked.
    pub address: SocketAddr,
    /// Whether it is of another host, which says where it is: then an address of this host is never asked.
    pub is_elsewhere: bool,
    /// How.
    pub spec: Arc<Spec>,
    /// Which start of it: its results count for this one only.
    pub start: i64,
    /// What its source says of it, which is the state to begin with.
    pub known: Option<HealthState>,
}

impl Target {
    /// The target that a container is; `None` if it is not checked, or cannot be while it is as it is.
    ///
    /// # Errors
    ///
    /// Fails if its check is wrong; then it counts as unchecked.
    pub fn of(snapshot: &Snapshot, container: &Container) -> Result<Option<Self>, BadCheck> {
        if !container.runs() {
            return Ok(None);
        }
        let Some(spec) = check_of(container.fields())? else { return Ok(None) };
        let Some(ip) = address(snapshot, container) else { return Ok(None) };
        let address = (ip, spec.port).into();
        Ok(Some(Self::new(container, spec, address)))
    }

    /// A container of this host that is asked so at this address.
    pub(crate) fn new(container: &Container, spec: Spec, address: SocketAddr) -> Self {
        Self {
            uuid: container.uuid().clone(),
            name: container.name().unwrap_or_else(|| container.uuid()).clone(),
            host: container.host_uuid().cloned().unwrap_or_else(|| "".into()),
            address,
            is_elsewhere: false,
            spec: Arc::new(spec),
            start: start(container.fields()),
            known: container.health_state().and_then(HealthState::of_word),
        }
    }

    /// Whether results of one say something about the other: the same process is asked the same at the same place.
    pub(crate) fn is_same_check(&self, other: &Self) -> bool {
        (self.address, self.start) == (other.address, other.start) && self.spec == other.spec
    }
}

/// The check in the fields of a container: in its labels, otherwise in its `health_check`.
///
/// # Errors
///
/// Fails if one of its fields is wrong.
pub fn check_of(fields: &Map) -> Result<Option<Spec>, BadCheck> {
    if let Some(labels) = fields.map("labels").filter(|_| has_check_labels(fields)) {
        return Spec::of_labels(labels);
    }
    fields.map("health_check").map_or(Ok(None), Spec::of_fields)
}

/// Its main address; that of the container whose network it shares when it has none.
fn address(snapshot: &Snapshot, container: &Container) -> Option<IpAddr> {
    let shared = || snapshot.containers.get(container.network_from()?)?.primary_ip();
    container.primary_ip().or_else(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(json: &str) -> Container {
        let fields: Map = serde_json::from_str(json).unwrap();
        Container::new(fields, Map::default()).unwrap()
    }

    fn target(json: &str) -> Result<Option<Target>, BadCheck> {
        let mut snapshot = Snapshot::default();
        snapshot.containers.insert(container(r#"{"uuid": "host", "primary_ip": "10.0.0.9"}"#).into());
        Target::of(&snapshot, &container(json))
    }

    #[test]
    fn a_running_container_with_a_check_and_an_address_is_a_target() {
        let labelled = r#"{"uuid": "a", "name": "web-1", "primary_ip": "10.0.0.1", "start_count": 3, "health_state": "healthy",
            "labels": {"io.berth.health.port": "8080"}, "health_check": {"port": 1}}"#;
        let found = target(labelled).unwrap().unwrap();
        assert_eq!((found.address, found.start), (([10, 0, 0, 1], 8080).into(), 3));
        assert_eq!((&*found.name, found.known), ("web-1", Some(HealthState::Healthy)));
        for (json, expected) in [
            (r#"{"uuid": "a", "primary_ip": "10.0.0.1", "health_check": {"port": 81}}"#, Some("10.0.0.1:81")),
            (
                r#"{"uuid": "a", "network_from_container_uuid": "host", "health_check": {"port": 81}}"#,
                Some("10.0.0.9:81"),
            ),
            (r#"{"uuid": "a", "primary_ip": "10.0.0.1", "state": "stopped", "health_check": {"port": 81}}"#, None),
            (r#"{"uuid": "a", "primary_ip": "10.0.0.1", "labels": {"other": "x"}}"#, None),
            (r#"{"uuid": "a", "health_check": {"port": 81}}"#, None),
            (r#"{"uuid": "a", "primary_ip": "10.0.0.1", "health_check": {"port": 0}}"#, None),
        ] {
            let address = target(json).unwrap().map(|target| target.address.to_string());
            assert_eq!(address.as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn a_wrong_check_is_an_error_that_names_the_field() {
        let wrong = r#"{"uuid": "a", "primary_ip": "10.0.0.1", "labels": {"io.berth.health.interval": "1ms"}}"#;
        assert_eq!(target(wrong).unwrap_err().field, "interval");
    }

    #[test]
    fn another_start_address_or_check_is_another_check() {
        let json = |start: u8, ip: &str, port: u16| {
            format!(
                r#"{{"uuid": "a", "start_count": {start}, "primary_ip": "{ip}", "health_check": {{"port": {port}}}}}"#
            )
        };
        let first = target(&json(1, "10.0.0.1", 80)).unwrap().unwrap();
        let known = Target { known: Some(HealthState::Healthy), name: "renamed".into(), ..first.clone() };
        assert!(first.is_same_check(&known));
        // Started by hand, it counts its restarts from the beginning.
        let by_hand =
            json(1, "10.0.0.1", 80).replace("\"start_count\"", "\"started\": 1795197600000001, \"start_count\"");
        for other in [json(2, "10.0.0.1", 80), by_hand, json(1, "10.0.0.2", 80), json(1, "10.0.0.1", 81)] {
            assert!(!first.is_same_check(&target(&other).unwrap().unwrap()));
        }
    }
}
