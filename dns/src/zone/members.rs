//! What the zone needs to know about single entities.

use std::net::IpAddr;
use std::sync::Arc;

use model::entity::texts;
use model::{Container, Entity, Reach, Service, Snapshot, Text, Unreachable};

use super::Zone;
use super::few::Few;

/// Label that names a port: `io.rancher.container.dns.port.http: 8080/tcp` gives `_http._tcp.service.stack`.
const PORT_LABEL: &str = "io.rancher.container.dns.port.";

/// Containers that have something in common.
pub(super) type Claims = Few<Arc<Container>>;

/// Ids in order, each once.
pub(super) type Ids = Few<Text>;

/// A port for which a service has service records.
#[derive(PartialEq)]
pub(super) struct Port {
    /// What stands before the name of the service (RFC 2782): `_8080._tcp`, or `_http._tcp`.
    pub(super) labels: String,
    pub(super) number: u16,
    /// `tcp` or `udp`.
    pub(super) protocol: &'static str,
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
            let port = Port { labels, number, protocol };
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

/// Of containers with one name, the one of the greatest rank has it: a running one, of this host, the newest one.
///
/// Names are unique on an engine, not among hosts: another host's container must not hide the one that is here.
pub(super) fn rank<'c>(snapshot: &Snapshot, container: &'c Container) -> (bool, bool, i64, &'c Text) {
    (container.runs(), snapshot.is_local(container), container.create_index(), container.uuid())
}

/// The addresses under which clients of the local host reach a container, of each family the first one; those of the
/// container whose network it shares when it has none.
pub(super) fn addresses(zone: &Zone, container: &Container) -> Few<IpAddr> {
    zone.snapshot.reachable_addresses(container, &|address| zone.is_here(address)).collect()
}

/// The addresses that stand for a container here: from which it asks, and which lead back to its name.
pub(super) fn own_addresses(snapshot: &Snapshot, container: &Container) -> Few<IpAddr> {
    snapshot.standing_addresses(container).collect()
}

/// Why clients of the local host get no address of a running container that has one.
pub(super) fn unreachable(zone: &Zone, container: &Container) -> Option<Unreachable> {
    // Nearly all of them: cluster files and originals say nothing of routes.
    container.routed_ips()?;
    if !container.runs() || container.addresses().next().is_none() {
        return None;
    }
    match zone.snapshot.reach(container, &|address| zone.is_here(address)) {
        Reach::Nowhere(why) => Some(why),
        Reach::Own(_) | Reach::Host(_) => None,
    }
}

/// How messages name a service.
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
