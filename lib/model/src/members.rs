//! Which members of a service are asked: one decision for names and for balancers.

use std::sync::Arc;

use crate::entity::{Container, Entity as _, Service, is_healthy_state, is_unhealthy_state};
use crate::panic::Share;
use crate::snapshot::Snapshot;
use crate::value::{Map, Value};

impl Snapshot {
    /// Says which of a service's running containers are well; all of them when so few are that health is not believed
    /// ([`crate::panic`]). It may be none: what then happens is the caller's to say.
    ///
    /// `panic_threshold` is per cent, 0 is never.
    pub fn is_well(
        &self,
        service: &Service,
        running: &[&Arc<Container>],
        panic_threshold: u8,
    ) -> impl Fn(&Container) -> bool + use<> {
        let share = running.iter().fold(Share::default(), |sum, one| sum.plus(Share::of(one.health_state())));
        let is_panic = self.is_panic || share.is_service_panic(panic_threshold);
        let unchecked = |container: &&Arc<Container>| container.health_state().is_none();
        let checked = running.iter().any(unchecked) && is_checked(service.fields());
        move |container| is_panic || is_healthy(container, checked)
    }
}

/// Whether a container may be asked; `checked` says that its service has a health check.
fn is_healthy(container: &Container, checked: bool) -> bool {
    match container.health_state() {
        None => !checked,
        Some(state) => is_healthy_state(state),
    }
}

/// Why a container that is not well, or is ending, is not asked.
pub fn unhealthy(container: &Container) -> Option<&'static str> {
    match (container.state(), container.health_state()) {
        ("stopping", _) => Some("it is stopping"),
        _ if !container.runs() => None,
        (_, Some(state)) if is_unhealthy_state(state) => {
            Some("it is unhealthy: `agent health` on its host, or the health check of its engine, has the reason")
        }
        (_, Some("initializing" | "reinitializing")) => Some("it has not been well since it was started"),
        (_, None) => Some("nothing is known of its health, and its service has a health check"),
        (_, Some(_)) => None,
    }
}

/// Whether the fields of a service ask for health checks.
fn is_checked(fields: &Map) -> bool {
    fields.map("health_check").and_then(|check| check.get("port")).and_then(Value::as_int).is_some_and(|port| port != 0)
}
