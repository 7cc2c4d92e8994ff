//! Targets for Prometheus (its `http_sd_config`), from the labels of containers.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Json;
use axum::routing::get;
use model::{Container, Entity as _, Service, Snapshot, Text};
use serde_json::{Value, json};
use source::Store;

/// Label of a container whose metrics are asked for: the port inside.
pub const PORT: &str = "io.berth.metrics.port";

/// Label with the path of its metrics; `/metrics` without one.
pub const PATH: &str = "io.berth.metrics.path";

/// Label with `http` or `https`; `http` without one.
pub const SCHEME: &str = "io.berth.metrics.scheme";

/// The page `GET /v1/prometheus`.
pub fn router(snapshots: Arc<Store<Snapshot>>) -> Router {
    Router::new().route("/v1/prometheus", get(page)).with_state(snapshots)
}

async fn page(State(snapshots): State<Arc<Store<Snapshot>>>) -> Json<Value> {
    Json(targets(&snapshots.load_full()))
}

/// The targets: running containers that have [`PORT`], at the address at which other hosts reach them.
pub fn targets(snapshot: &Snapshot) -> Value {
    let services = snapshot.services.values();
    let members = services.flat_map(|service| service.members().iter().map(move |uuid| (uuid, &**service)));
    // Of several the first, as for metadata.
    let mut services: HashMap<&Text, &Service> = HashMap::new();
    for (uuid, service) in members {
        services.entry(uuid).or_insert(service);
    }
    let of = |container: &Container| services.get(container.uuid()).copied();
    snapshot.containers.values().filter_map(|container| target(snapshot, container, of(container))).collect()
}

fn target(snapshot: &Snapshot, container: &Container, service: Option<&Service>) -> Option<Value> {
    let label = |key: &str| container.labels()?.text(key).map(ToString::to_string);
    let port: u16 = container.labels()?.get(PORT).and_then(|port| port.as_str()?.trim().parse().ok())?;
    if !container.runs() || port == 0 {
        return None;
    }
    // A container of this host is reached from here, however its network is.
    let here = snapshot.local_host.as_ref().is_some_and(|host| container.host_uuid() == Some(host.uuid()));
    let own = container.primary_ip().filter(|_| here).map(|address| (address, port).into());
    let address = own.or_else(|| snapshot.port_from_elsewhere(container, port))?;
    let host = container.host_uuid().and_then(|uuid| snapshot.hosts.get(uuid)).and_then(|host| host.name().cloned());
    let text = |text: Option<&Text>| text.map(ToString::to_string).unwrap_or_default();
    let stack = text(service.and_then(Service::stack_name));
    let service = text(service.and_then(|service| service.name()));
    let job = match (&*stack, &*service) {
        (_, "") => "containers".to_owned(),
        ("", service) => service.to_owned(),
        (stack, service) => format!("{stack}/{service}"),
    };
    let scheme = label(SCHEME).filter(|scheme| scheme == "https").unwrap_or_else(|| "http".to_owned());
    Some(json!({
        "targets": [address.to_string()],
        "labels": {
            "__metrics_path__": label(PATH).filter(|path| path.starts_with('/')).unwrap_or_else(|| "/metrics".to_owned()),
            "__scheme__": scheme,
            "job": job,
            "stack": stack,
            "service": service,
            "container": container.name().map(ToString::to_string).unwrap_or_default(),
            "host": host.map(|host| host.to_string()).unwrap_or_default(),
        },
    }))
}

#[cfg(test)]
mod tests {
    use model::{Map, objects};

    use super::*;
    use crate::world::generated::object;

    #[test]
    fn running_containers_with_a_port_are_targets_of_their_service() {
        let container = |name: &str, state: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).into(), model::Value::text(*value)));
            object(
                "container",
                &[
                    ("uuid", model::Value::text(name)),
                    ("name", model::Value::text(name)),
                    ("state", model::Value::text(state)),
                    ("primary_ip", model::Value::text("10.42.0.7")),
                    ("labels", model::Value::Map(Map::new(labels.collect()))),
                ],
            )
        };
        let texts = |kind: &'static str, fields: &[(&'static str, &str)]| {
            let fields: Vec<_> = fields.iter().map(|(key, value)| (*key, model::Value::text(*value))).collect();
            object(kind, &fields)
        };
        let snapshot = objects::read([
            container("a", "running", &[(PORT, "9100"), (PATH, "/m")]),
            container("b", "stopped", &[(PORT, "9100")]),
            container("c", "running", &[(PORT, "http")]),
            container("d", "running", &[]),
            container("e", "running", &[(PORT, "9100")]),
            texts("service", &[("uuid", "s"), ("name", "web"), ("stack_name", "shop")]),
            texts("serviceContainerLink", &[("service_uuid", "s"), ("service_name", "web"), ("container_uuid", "a")]),
        ]);
        let target = |path: &str, job: &str, stack: &str, service: &str, container: &str| {
            json!({ "targets": ["10.42.0.7:9100"], "labels": {
                "__metrics_path__": path, "__scheme__": "http", "job": job, "stack": stack, "service": service,
                "container": container, "host": "" } })
        };
        let expected = [target("/m", "shop/web", "shop", "web", "a"), target("/metrics", "containers", "", "", "e")];
        assert_eq!(targets(&snapshot.0), json!(expected));
    }
}
