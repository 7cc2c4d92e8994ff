//! What the checks of one process count.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::opinion::Outcome;
use crate::spec::{Probe, Spec};
use crate::verdict::HealthState;

/// Bounds of the durations of checks: from a connection on this host to the longest time-out by default.
const DURATIONS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0];

/// The kind of a check and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    r#type: &'static str,
    outcome: &'static str,
}

/// What a verdict says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct To {
    to: &'static str,
}

/// What is counted. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) targets: Gauge,
    pub(crate) running: Gauge,
    pub(crate) late: Histogram,
    checks: Family<Kind, Counter>,
    durations: Histogram,
    verdicts: Family<To, Counter>,
    pub(crate) votes: Gauge,
    pub(crate) overrides: Gauge,
    pub(crate) suspect: Gauge,
    pub(crate) patience: Gauge,
    pub(crate) panic: Gauge,
}

impl Metrics {
    /// Nothing is counted yet; adds all of them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            targets: Gauge::default(),
            running: Gauge::default(),
            late: Histogram::new(DURATIONS),
            checks: Family::default(),
            durations: Histogram::new(DURATIONS),
            verdicts: Family::default(),
            votes: Gauge::default(),
            overrides: Gauge::default(),
            suspect: Gauge::default(),
            patience: Gauge::default(),
            panic: Gauge::default(),
        };
        registry.register("health_targets", "Containers that this process checks", metrics.targets.clone());
        registry.register("health_in_flight", "Checks that are being made", metrics.running.clone());
        registry.register("health_late_seconds", "How long checks waited after they were due", metrics.late.clone());
        registry.register("health_checks", "Checks that were made", metrics.checks.clone());
        registry.register("health_check_duration_seconds", "How long checks took", metrics.durations.clone());
        let about_others = "of other hosts' containers";
        let votes = format!("Votes {about_others} that differ from what their hosts publish");
        registry.register("health_votes", votes, metrics.votes.clone());
        let overrides = format!("Votes {about_others} that all hosts read, since theirs are silent");
        registry.register("health_overrides", overrides, metrics.overrides.clone());
        let suspect = "Whether this host doubts its own results, since too many checks fail at once";
        registry.register("health_suspect", suspect, metrics.suspect.clone());
        let patience = "How many times as long time-outs are, since this host's own checks are late";
        registry.register("health_patience", patience, metrics.patience.clone());
        let panic = "Whether so few containers of the cluster are well that their health is ignored";
        registry.register("health_panic", panic, metrics.panic.clone());
        registry.register("health_verdicts", "Changes of the health of containers", metrics.verdicts.clone());
        metrics
    }

    pub(crate) fn count(&self, spec: &Spec, outcome: &Outcome, took: Duration) {
        let r#type = spec.probe.word();
        let (outcome, _) = outcome.words();
        self.checks.get_or_create(&Kind { r#type, outcome }).inc();
        self.durations.observe(took.as_secs_f64());
    }

    pub(crate) fn count_verdict(&self, state: HealthState) {
        self.verdicts.get_or_create(&To { to: state.word() }).inc();
    }
}

impl Probe {
    /// The word for it in labels.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http { tls: false, .. } => "http",
            Self::Http { tls: true, .. } => "https",
        }
    }
}
