//! What the zone needs to know about single entities.

use std::net::IpAddr;
use std::sync::Arc;

use model::entity::texts;
use model::{Container, Entity, Map, Service, Snapshot, Text, Value};

use super::few::Few;

/// Label that names a port: `io.rancher.container.dns.port.http: 8080/tcp` gives `_http._tcp.service.stack`.
const PORT_LABEL: &str = "io.rancher.container.dns.port.";

/// A port that a service tells about.
#[derive(PartialEq)]
pub(super) struct Port {
    /// What stands before the name of the service (RFC 2782): `_8080._tcp`, or `_http._tcp`.
    pub(super) labels: String,
    pub(super) number: u16,
}

/// Ports of a service, each once.
pub(super) fn ports_of(service: &Service) -> Vec<Port> {
    let mut ports = Vec::new();
    let mut add = |label: Option<&str>, port: &str| {
        let (port, protocol) = port.split_once('/').unwrap_or((port, "tcp"));
        let private = port.rsplit(':').next().unwrap_or_default().trim();
        let known = ["tcp", "udp"].into_iter().find(|known| known.eq_ignore_ascii_case(protocol));
        if let (Ok(number), Some(protocol)) = (private.parse::<u16>(), known) {
            let labels = match label {
                Some(label) => ["_", &label.to_lowercase(), "._", protocol].concat(),
                // The number as it is meant, not as it was written.
                None => ["_", &number.to_string(), "._", protocol].concat(),
            };
            let port = Port { labels, number };
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
    };
    for text in texts(service.fields(), "ports").chain(texts(service.fields(), "expose")) {
        add(None, text);
    }
    for (key, value) in service.labels().into_iter().flatten() {
        if let Some(name) = key.strip_prefix(PORT_LABEL)
            && let Some(port) =
                value.as_str().map(str::to_owned).or_else(|| value.as_int().map(|port| port.to_string()))
        {
            add(Some(name), &port);
        }
    }
    ports
}

/// Whether an entity is of the snapshot's own environment; one that does not say so is.
pub(super) fn is_local(own: Option<&Text>, environment: Option<&Text>) -> bool {
    match (own, environment) {
        // What was read together is often the same piece of memory.
        (Some(own), Some(environment)) => Arc::ptr_eq(own, environment) || own == environment,
        _ => true,
    }
}

/// Whether a container runs or is about to; a source that tells no states has only running ones.
pub(super) fn runs(container: &Container) -> bool {
    matches!(container.state(), "" | "running" | "starting" | "updating-running")
}

/// Whether a container may be asked; `checked` says that its service has a health check.
pub(super) fn is_healthy(container: &Container, checked: bool) -> bool {
    match container.health_state() {
        None => !checked,
        Some(state) => matches!(state, "healthy" | "updating-healthy"),
    }
}

/// Whether the fields of a service ask for health checks.
pub(super) fn is_checked(fields: &Map) -> bool {
    fields.map("health_check").and_then(|check| check.get("port")).and_then(Value::as_int).is_some_and(|port| port != 0)
}

/// The running, newest one of two containers has the greater rank.
pub(super) fn rank(container: &Container) -> (bool, i64, &Text) {
    (runs(container), container.create_index(), container.uuid())
}

/// A container's addresses, of each family the first one; those of the container whose network it shares when it has
/// none.
pub(super) fn addresses(snapshot: &Snapshot, container: &Container) -> Few<IpAddr> {
    let own = own_addresses(container);
    if !own.is_empty() {
        return own;
    }
    let shared = container.network_from().and_then(|uuid| snapshot.containers.get(uuid));
    shared.map(|shared| own_addresses(shared)).unwrap_or_default()
}

/// A container's own addresses: the main one, and the first usable one of the other family.
pub(super) fn own_addresses(container: &Container) -> Few<IpAddr> {
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_unicast_link_local(),
    };
    let Some(main) = container.primary_ip().filter(usable) else { return Few::default() };
    let others = container.other_ips().iter().copied().filter(usable);
    let other = others.into_iter().find(|other| other.is_ipv4() != main.is_ipv4());
    match other {
        Some(other) => [main, other].into_iter().collect(),
        None => Few::One(main),
    }
}

/// Where a service stands in messages.
pub(super) fn path(service: &Service) -> String {
    let stack = service.stack_name().map_or("", |stack| stack);
    format!("services/{stack}/{}", service.name().map_or("", |name| name))
}

/// The key of a service among all of its environment.
pub(super) fn service_path(stack: &str, service: &str) -> String {
    format!("{}/{}", stack.to_lowercase(), service.to_lowercase())
}

/// Whether a service stands for others.
pub(super) fn is_alias(service: &Service) -> bool {
    service.kind() == "dnsService"
}

/// Whether a service stands for addresses outside of the cluster.
pub(super) fn is_external(service: &Service) -> bool {
    service.kind() == "externalService"
}

/// Whether a service's addresses come from Kubernetes.
pub(super) fn is_kubernetes(service: &Service) -> bool {
    service.kind() == "kubernetesService"
}

/// Whether a service's records are the addresses of its containers, when it has no address of its own.
pub(super) fn stands_for_members(service: &Service) -> bool {
    !service.members().is_empty() && !is_external(service) && !is_alias(service)
}
