//! `GET /v1/traefik`: a balancer's plan for Traefik's HTTP provider.
//!
//! Traefik asks again and again over one connection; an answer is held until it is another one. It applies whatever it gets, so
//! that only a plan of a known balancer is ever answered with 200.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::lb::{LbConfig, LbPlan, Viewpoint, find, traefik};
use model::{Entity as _, Fingerprint};

use crate::query;
use crate::tree::{Client, Tree};

/// How long an answer is held when the request does not say so: below Traefik's own limit of 5 s.
const HELD_DEFAULT: Duration = Duration::from_secs(4);

/// Longest time that an answer is held.
const HELD_MAX: Duration = Duration::from_mins(1);

/// What a request for a balancer's plan asks.
#[derive(Clone, Debug)]
pub(crate) struct Balancer {
    /// `stack/service`; without it the service of the container that asks.
    service: Option<String>,
    /// The host that counts as the balancer's own.
    host: Option<String>,
    pub(crate) client: Client,
    /// How long it waits for another answer.
    pub(crate) held: Duration,
}

impl Balancer {
    /// The request with this query.
    pub(crate) fn of(query: Option<&[u8]>, client: Client) -> Self {
        let query = query.unwrap_or_default();
        let seconds = query::text(query, b"wait").and_then(|text| text.parse().ok());
        let held = seconds.map_or(HELD_DEFAULT, Duration::from_secs).min(HELD_MAX);
        Self { service: query::text(query, b"service"), host: query::text(query, b"host"), client, held }
    }

    /// The body of the answer; `None` when there is no such balancer.
    pub(crate) fn body(&self, tree: &Tree) -> Option<String> {
        let snapshot = tree.snapshot()?;
        let service = match &self.service {
            Some(path) => find(snapshot, path)?,
            None => tree.service_of(&self.client)?,
        };
        service.fields().get("lb_config").filter(|config| LbConfig::says_rules(config))?;
        let host = match &self.host {
            Some(name) => {
                let is_it = |own: &model::Text| own.eq_ignore_ascii_case(name);
                let host = snapshot.hosts.values().find(|host| host.name().is_some_and(is_it))?;
                Some(host.uuid().clone())
            }
            None => None,
        };
        let plan = LbPlan::of(snapshot, service, &Viewpoint { host, ..Viewpoint::default() });
        Some(format!("{}\n", traefik::document(&plan)))
    }
}

/// What a connection was answered last.
#[derive(Debug, Default)]
pub(crate) struct LastAnswer(Mutex<Option<Fingerprint>>);

impl LastAnswer {
    /// Whether this is another answer.
    pub(crate) fn differs(&self, body: &str) -> bool {
        *self.last() != Some(Fingerprint::of(body))
    }

    /// This is sent now.
    pub(crate) fn set(&self, body: &str) {
        *self.last() = Some(Fingerprint::of(body));
    }

    fn last(&self) -> MutexGuard<'_, Option<Fingerprint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_that_was_sent_last_is_held_back() {
        let last = LastAnswer::default();
        assert!(last.differs("a") && last.differs(""));
        last.set("a");
        assert!(!last.differs("a") && last.differs("b"));
        last.set("b");
        assert!(!last.differs("b") && last.differs("a"));
    }
}
