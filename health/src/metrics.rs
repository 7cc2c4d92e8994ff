//! What the checks of one process count.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::opinion::{Opinion, Outcome};
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

/// What a verdict says, and who it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decided {
    to: &'static str,
    /// `votes` of several hosts, or this host `alone`.
    reason: &'static str,
}

/// Whose containers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Whose {
    /// `own` ones of this host, or those of `others`.
    from: &'static str,
}

/// What this host thinks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Thought {
    opinion: &'static str,
}

/// What the checks of a process add up to at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Containers of this host that it checks itself, and those of others.
    pub(crate) own: usize,
    pub(crate) others: usize,
    /// Opinions of them: up, down, initializing.
    pub(crate) opinions: [usize; 3],
    /// Those that have to be well for longer than their checks say.
    pub(crate) flapping: usize,
    /// Containers of this host about which a checker says another thing than the verdict.
    pub(crate) disagreements: usize,
}

/// What is counted. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    targets: Family<Whose, Gauge>,
    opinions: Family<Thought, Gauge>,
    flapping: Gauge,
    disagreements: Gauge,
    pub(crate) running: Gauge,
    pub(crate) late: Histogram,
    checks: Family<Kind, Counter>,
    durations: Histogram,
    verdicts: Family<Decided, Counter>,
    pub(crate) votes: Gauge,
    pub(crate) overrides: Counter,
    pub(crate) suspect: Gauge,
    pub(crate) patience: Gauge,
    pub(crate) panic: Gauge,
}

impl Metrics {
    /// Nothing is counted yet; adds all of them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            targets: Family::default(),
            opinions: Family::default(),
            flapping: Gauge::default(),
            disagreements: Gauge::default(),
            running: Gauge::default(),
            late: Histogram::new(DURATIONS),
            checks: Family::default(),
            durations: Histogram::new(DURATIONS),
            verdicts: Family::default(),
            votes: Gauge::default(),
            overrides: Counter::default(),
            suspect: Gauge::default(),
            patience: Gauge::default(),
            panic: Gauge::default(),
        };
        registry.register("health_targets", "Containers that this process checks", metrics.targets.clone());
        registry.register("health_opinions", "What this process thinks of those", metrics.opinions.clone());
        let flapping = "Those that failed so often that they have to be well for longer";
        registry.register("health_flapping", flapping, metrics.flapping.clone());
        let disagreements =
            "Containers of this host about which one of their checkers says something else than the verdict";
        registry.register("health_disagreements", disagreements, metrics.disagreements.clone());
        registry.register("health_in_flight", "Checks that are being made", metrics.running.clone());
        registry.register("health_late_seconds", "How long checks waited after they were due", metrics.late.clone());
        registry.register("health_checks", "Checks that were made", metrics.checks.clone());
        registry.register("health_check_duration_seconds", "How long checks took", metrics.durations.clone());
        let about_others = "of other hosts' containers";
        let votes = format!("Votes {about_others} that differ from what their hosts publish");
        registry.register("health_votes", votes, metrics.votes.clone());
        let overrides =
            format!("How often this host said to all {about_others} that they are down, since theirs were silent");
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

    pub(crate) fn count_verdict(&self, state: HealthState, is_alone: bool) {
        let reason = if is_alone { "alone" } else { "votes" };
        self.verdicts.get_or_create(&Decided { to: state.word(), reason }).inc();
    }

    pub(crate) fn set(&self, sums: Sums) {
        let number = |count: usize| count.try_into().unwrap_or(i64::MAX);
        for (from, count) in [("own", sums.own), ("others", sums.others)] {
            self.targets.get_or_create(&Whose { from }).set(number(count));
        }
        let opinions = [Opinion::Up, Opinion::Down, Opinion::Initializing].map(Opinion::word);
        for (opinion, count) in opinions.into_iter().zip(sums.opinions) {
            self.opinions.get_or_create(&Thought { opinion }).set(number(count));
        }
        self.flapping.set(number(sums.flapping));
        self.disagreements.set(number(sums.disagreements));
    }
}

impl Probe {
    /// The word for it in labels.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Grpc { .. } => "grpc",
            Self::Http { tls: false, .. } => "http",
            Self::Http { tls: true, .. } => "https",
        }
    }
}
