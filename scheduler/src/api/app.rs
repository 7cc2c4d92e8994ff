//! What the handlers of requests share.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::response::Response;
use model::Text;
use tokio::sync::Semaphore;
use tracing::error;

use crate::api::caller::Gate;
use crate::api::metrics::Metrics;
use crate::api::reply::{Reply, bug};
use crate::audit::line::{Action, AuditLine};
use crate::clock::Clock;
use crate::place::Placer;
use crate::start::Starter;
use crate::subject::Subject;

/// What the handlers share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) placer: Arc<Placer>,
    pub(super) starter: Arc<Starter>,
    pub(super) metrics: Metrics,
    /// Which clients may ask, and which may change something.
    pub(super) gate: Gate,
    /// Names by which clients may call the API if they need no credential for asking.
    pub(super) names: Vec<String>,
    pub(super) clock: Clock,
    pub(super) random: RandomState,
    pub(super) requests: AtomicU64,
    /// Pieces of [`BODY_PIECE`] that bodies may still take.
    pub(super) bodies: Arc<Semaphore>,
}

impl App {
    /// The response to a request that needs a credential and has none; notes it.
    pub(super) fn unauthorized(&self, action: Action, request: Text) -> Response {
        self.note_stranger(action, request, "no valid credential".to_owned());
        self.gate.refusal()
    }

    /// Notes that a client was refused before anybody knew who it is.
    pub(super) fn note_stranger(&self, action: Action, request: Text, reason: String) {
        let line = AuditLine { request, reason, ..AuditLine::new(action, &Subject::default(), "refused") };
        self.placer.audit().put(&line);
    }

    /// Notes a request that was refused as it is written.
    pub(super) fn note_invalid(&self, subject: Option<&Subject>, action: Action, request: Text, reply: &Reply) {
        let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let reason = body["error"].as_str().unwrap_or_default().to_owned();
        let subject = subject.cloned().unwrap_or_default();
        self.placer.audit().put(&AuditLine { request, reason, ..AuditLine::new(action, &subject, "invalid") });
    }

    /// A unique id for a request without one.
    pub(super) fn new_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("p-{:016x}", self.random.hash_one(number))
    }
}

/// The response when answering has panicked.
pub(super) fn panicked(app: &App) -> Reply {
    app.metrics.panicked();
    error!("answering a request panicked");
    bug()
}
