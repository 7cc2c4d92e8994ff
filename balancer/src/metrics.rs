//! What a process that keeps HAProxy counts.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Bounds of the times of applying, in seconds: a few commands, a thousand, a reload.
const TIMES: [f64; 8] = [0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0];

/// How a change came to HAProxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By commands at its socket.
    Socket,
    /// By a reload.
    Reload,
    /// Not at all: HAProxy would not take it.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Applied {
    how: &'static str,
}

/// What is counted. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Rules of the plan.
    pub rules: Gauge,
    /// Members of all backends.
    pub members: Gauge,
    /// What is wrong with the rules.
    pub defects: Gauge,
    /// Members that are draining.
    pub draining: Gauge,
    /// Times that HAProxy was started.
    pub starts: Counter,
    applied: Family<Applied, Counter>,
    times: Histogram,
}

impl Metrics {
    /// Nothing is counted yet; adds all of them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            rules: Gauge::default(),
            members: Gauge::default(),
            defects: Gauge::default(),
            draining: Gauge::default(),
            starts: Counter::default(),
            applied: Family::default(),
            times: Histogram::new(TIMES),
        };
        let Self { rules, members, defects, draining, starts, applied, times } = metrics.clone();
        registry.register("berth_lb_rules", "Rules of the balancer", rules);
        registry.register("berth_lb_members", "Members of all backends", members);
        registry.register("berth_lb_defects", "What is wrong with the rules", defects);
        registry.register("berth_lb_draining", "Members that are stopping and have sessions", draining);
        registry.register("berth_lb_starts", "Times that HAProxy was started", starts);
        registry.register("berth_lb_applied", "Changes by the way in which they came to HAProxy", applied);
        registry.register("berth_lb_apply_seconds", "Time from a snapshot until HAProxy follows it", times);
        metrics
    }

    /// A change came to HAProxy, or was refused, after this time.
    pub fn applied(&self, how: How, time: Duration) {
        let how = match how {
            How::Socket => "socket",
            How::Reload => "reload",
            How::Refused => "refused",
        };
        self.applied.get_or_create(&Applied { how }).inc();
        self.times.observe(time.as_secs_f64());
    }
}
