//! Targets for Prometheus (its `http_sd_config`), from the labels of containers.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Json;
use axum::routing::get;
use model::{Container, Entity as _, Snapshot};
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
    snapshot.containers.values().filter_map(|container| target(snapshot, container)).collect()
}

fn target(snapshot: &Snapshot, container: &Container) -> Option<Value> {
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
    let text = |key: &str| container.fields().text(key).map(ToString::to_string).unwrap_or_default();
    let (stack, service) = (text("stack_name"), text("service_name"));
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
    fn running_containers_with_a_port_are_targets() {
        let container = |name: &str, state: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).into(), model::Value::text(*value)));
            object(
                "container",
                &[
                    ("uuid", model::Value::text(name)),
                    ("name", model::Value::text(name)),
                    ("state", model::Value::text(state)),
                    ("primary_ip", model::Value::text("10.42.0.7")),
                    ("stack_name", model::Value::text("shop")),
                    ("service_name", model::Value::text("web")),
                    ("labels", model::Value::Map(Map::new(labels.collect()))),
                ],
            )
        };
        let snapshot = objects::read([
            container("a", "running", &[(PORT, "9100"), (PATH, "/m")]),
            container("b", "stopped", &[(PORT, "9100")]),
            container("c", "running", &[(PORT, "http")]),
            container("d", "running", &[]),
        ]);
        let expected = json!([{ "targets": ["10.42.0.7:9100"], "labels": {
            "__metrics_path__": "/m", "__scheme__": "http", "job": "shop/web", "stack": "shop", "service": "web",
            "container": "a", "host": "" } }]);
        assert_eq!(targets(&snapshot.0), expected);
    }
}
