//! The view: the zone that is served at the moment, made from what a source publishes.

use std::sync::Arc;

use model::{Defect, Snapshot};
use source::{Derivation, Store, derive};

use crate::metrics::Metrics;
use crate::zone::answers::DnsAnswers;
use crate::zone::{Settings, Zone, snapshot};

/// What is served at the moment.
#[derive(Debug, Default)]
pub struct View {
    /// `None` until something was published.
    zone: Option<Zone>,
}

impl View {
    /// The zone, once there is one.
    pub fn zone(&self) -> Option<&Zone> {
        self.zone.as_ref()
    }

    /// What is wrong in what the zone was built from.
    pub fn defects(&self) -> Vec<Defect> {
        self.zone().map(Zone::defects).unwrap_or_default()
    }

    fn of(zone: Zone, metrics: &Metrics) -> Self {
        metrics.names.set(count(zone.count()));
        Self { zone: Some(zone) }
    }

    fn next_serial(&self) -> u32 {
        self.zone().map_or(1, |zone| zone.serial.wrapping_add(1))
    }
}

/// Where the names come from.
#[derive(Debug)]
pub(crate) enum Content {
    Snapshots(Arc<Store<Snapshot>>),
    Answers(Arc<Store<DnsAnswers>>),
}

impl Content {
    /// Keeps the view up to date. Never ends.
    pub(crate) fn follow(self, settings: Settings, views: Arc<Store<View>>, metrics: Arc<Metrics>) -> Derivation {
        match self {
            Self::Snapshots(snapshots) => {
                let build = move |new: &Arc<Snapshot>, _: &Arc<Snapshot>, view: &Arc<View>| {
                    let next = view.zone().and_then(|zone| snapshot::advance(zone, new));
                    let zone = next.unwrap_or_else(|| snapshot::build(new, &settings, view.next_serial()));
                    Some(View::of(zone, &metrics))
                };
                derive(snapshots, views, build)
            }
            Self::Answers(answers) => {
                let build = move |new: &Arc<DnsAnswers>, _: &Arc<DnsAnswers>, view: &Arc<View>| {
                    Some(View::of(new.zone(&settings, view.next_serial()), &metrics))
                };
                derive(answers, views, build)
            }
        }
    }
}

/// A number as metrics have it.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
