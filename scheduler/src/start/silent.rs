//! Hosts whose Docker Engine does not answer: nothing is placed there until it does again.
//!
//! A host gets here when its engine could not be reached, or did not answer; a task then asks the engine again and
//! again, and removes the host as soon as it answers. The lock is held for a look into a map.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use model::Text;
use tokio::time::Instant;

use crate::lock::lock;

/// The hosts whose engine does not answer.
#[derive(Debug, Default)]
pub(crate) struct SilentEngines(Mutex<BTreeMap<Text, (Instant, String)>>);

impl SilentEngines {
    /// Records that the engine of a host does not answer, and why; returns whether that is news.
    pub(crate) fn insert(&self, host: &Text, why: String) -> bool {
        let mut hosts = self.hosts();
        let known = hosts.get(host).map(|(since, _)| *since);
        hosts.insert(host.clone(), (known.unwrap_or_else(Instant::now), why));
        known.is_none()
    }

    /// Notes that it answers again.
    pub(crate) fn remove(&self, host: &str) {
        self.hosts().remove(host);
    }

    /// Why nothing is placed on a host, in a sentence; `None` when its engine answers as far as anything is known.
    pub(crate) fn why(&self, host: &str) -> Option<String> {
        self.hosts().get(host).map(sentence)
    }

    /// All hosts whose engine does not answer, and why.
    pub(crate) fn list(&self) -> Vec<(Text, String)> {
        self.hosts().iter().map(|(host, away)| (host.clone(), sentence(away))).collect()
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<Text, (Instant, String)>> {
        lock(&self.0)
    }
}

fn sentence((since, why): &(Instant, String)) -> String {
    format!("its Docker Engine has not answered for {} s: {why}", since.elapsed().as_secs())
}
