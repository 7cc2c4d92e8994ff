//! The metrics of the scheduler.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::clock::Clock;
use crate::place::Placer;
use crate::place::answer::Placement;
use crate::place::refusal::Refusal;
use crate::start::Starter;

/// What is counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    placements: Family<Labels, Counter>,
    panics: Counter,
}

/// How a placement request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// All units have a place.
    Placed,
    /// Some have.
    Partial,
    /// None has.
    Unplaceable,
    /// Engines could not start it.
    Failed,
    /// A dry run.
    DryRun,
    /// It was asked and answered before.
    Repeated,
    /// The request was wrong.
    Invalid,
    /// There was no answer: no data, or too much.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    outcome: Outcome,
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(self.word())
    }
}

impl Outcome {
    /// Its word in metrics and in the audit log.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Partial => "partial",
            Self::Unplaceable => "unplaceable",
            Self::Failed => "failed",
            Self::DryRun => "dry_run",
            Self::Repeated => "repeated",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
        }
    }

    /// The outcome of this answer.
    pub(crate) fn of(answer: &Result<Placement, Refusal>) -> Self {
        match answer {
            Ok(Placement { state: "unplaceable", .. }) => Self::Unplaceable,
            Ok(Placement { state: "failed", .. }) => Self::Failed,
            Ok(Placement { dry_run: true, .. }) => Self::DryRun,
            Ok(Placement { repeated: true, .. }) => Self::Repeated,
            Ok(Placement { state: "partial", .. }) => Self::Partial,
            Ok(_) => Self::Placed,
            Err(Refusal::Invalid(_)) => Self::Invalid,
            Err(_) => Self::Refused,
        }
    }
}

impl Metrics {
    /// Metrics that `registry` shows.
    pub(crate) fn register(registry: &mut Registry, placer: Arc<Placer>, clock: Clock) -> Self {
        let metrics = Self::default();
        let own = registry.sub_registry_with_prefix("berth_scheduler");
        own.register("placements", "Placement requests by outcome", metrics.placements.clone());
        own.register("panics", "Requests that ended in a panic", metrics.panics.clone());
        own.register_collector(Box::new(Sizes { placer, clock }));
        metrics
    }

    /// Adds what is counted of replacing containers and of stacks to `registry`.
    pub(crate) fn register_actions(registry: &mut Registry, starter: &Arc<Starter>) {
        let own = registry.sub_registry_with_prefix("berth_scheduler");
        let help = "What was done about containers that failed, by action and outcome";
        own.register("health_actions", help, starter.actions().clone());
        let help = "Units of stacks that were evicted, since their host was gone for too long";
        own.register("evictions", help, starter.evictions.clone());
        own.register_collector(Box::new(Stacks { starter: starter.clone() }));
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.placements.get_or_create(&Labels { outcome }).inc();
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }
}

/// What this scheduler keeps of stacks, looked up when metrics are collected.
#[derive(Debug)]
struct Stacks {
    starter: Arc<Starter>,
}

impl Collector for Stacks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.starter.stack_counts();
        let gauge = |count: usize| ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
        let help = "Stacks that this scheduler keeps, by state";
        let mut stacks = encoder.encode_descriptor("stacks", help, None, MetricType::Gauge)?;
        for (state, count) in counts.stacks() {
            gauge(count).encode(stacks.encode_family(&[("state", state)])?)?;
        }
        for (name, help, count) in [
            ("stack_units_wanted", "Units of these stacks that are to run", counts.units.wanted),
            ("stack_units_healthy", "Units of these stacks that run and are healthy", counts.units.healthy),
            ("stack_units_evicted", "Units whose place another one has until their host is back", counts.units.evicted),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(count).encode(metric)?;
        }
        Ok(())
    }
}

/// Sizes, looked up when metrics are collected: promises also end by themselves.
#[derive(Debug)]
struct Sizes {
    placer: Arc<Placer>,
    clock: Clock,
}

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(lost) = self.placer.audit().lost() {
            let counter = ConstCounter::new(lost);
            let help = "Lines that are missing in the audit log";
            let metric = encoder.encode_descriptor("audit_lines_lost", help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let (hosts, reservations) = self.placer.sizes(self.clock.now());
        let mut sizes = vec![
            ("hosts", "Hosts known", hosts),
            ("reservations", "Units and events with reserved room", reservations),
        ];
        let unreadable = self.placer.with_any(self.clock.now(), |book| book.all_unreadable().count());
        let help = "Placements in the ledger that cannot be read, or have no valid seal";
        sizes.push(("ledger_unreadable", help, unreadable));
        if let Some(shared) = self.placer.ledger().store().shared() {
            let reachable = usize::from(shared.reachable().is_ok());
            sizes.push(("ledger_reachable", "Whether the etcd with the ledger can be reached", reachable));
        }
        for (name, help, size) in sizes {
            let gauge = ConstGauge::new(i64::try_from(size).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}
