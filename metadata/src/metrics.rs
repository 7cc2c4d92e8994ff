//! What the service counts.

use std::sync::{Arc, OnceLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counters and gauges of the service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) requests: Family<Status, Counter>,
    pub(crate) connections: Gauge,
    pub(crate) waiters: Gauge,
    pub(crate) panics: Counter,
    pub(crate) refusals: Family<Reason, Counter>,
    pub(crate) tokens: Family<Token, Counter>,
    pub(crate) forwarded: Counter,
    pub(crate) evicted: Counter,
    /// That of the requests answered with 200, which are most.
    found: Arc<OnceLock<Counter>>,
}

/// Why a request or a connection was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Reason {
    pub(crate) reason: &'static str,
}

/// What became of a session token, or that there was none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Token {
    pub(crate) token: &'static str,
}

/// The status of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Status {
    pub(crate) status: u16,
}

/// Counts one thing more in a gauge for as long as it lives.
#[derive(Debug)]
pub(crate) struct Counted(Gauge);

impl Metrics {
    /// The metrics, registered under their names.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("metadata_requests", "Requests answered, by status", metrics.requests.clone());
        registry.register("metadata_connections", "Open connections", metrics.connections.clone());
        registry.register("metadata_waiters", "Requests that wait for a change", metrics.waiters.clone());
        registry.register("metadata_panics", "Requests that failed inside the service", metrics.panics.clone());
        registry.register(
            "metadata_refusals",
            "Requests and connections refused by rules and limits, by reason",
            metrics.refusals.clone(),
        );
        registry.register(
            "metadata_tokens",
            "Session tokens issued, valid, invalid and missing",
            metrics.tokens.clone(),
        );
        registry.register(
            "metadata_forwarded",
            "Requests with X-Forwarded-For or Forwarded, refused or not",
            metrics.forwarded.clone(),
        );
        registry.register(
            "metadata_evictions",
            "Connections that rested and were closed because others needed the room",
            metrics.evicted.clone(),
        );
        metrics
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, status: u16) {
        let counter = || self.requests.get_or_create_owned(&Status { status });
        if status == 200 {
            self.found.get_or_init(counter).inc()
        } else {
            counter().inc()
        };
    }

    /// Counts a refusal.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&Reason { reason }).inc();
    }

    /// Counts what became of a session token.
    pub(crate) fn token(&self, token: &'static str) {
        self.tokens.get_or_create(&Token { token }).inc();
    }
}

impl Counted {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
