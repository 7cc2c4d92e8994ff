//! What a process tells about itself: whether it is ready, and if not, why not.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

/// The reasons why a process is not ready, one per part; none means ready.
#[derive(Debug, Default)]
pub struct Readiness(ArcSwap<BTreeMap<&'static str, String>>);

impl Readiness {
    /// From now on `part` keeps the process from being ready.
    pub fn not_ready(&self, part: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        self.0.rcu(|reasons| {
            let mut reasons = BTreeMap::clone(reasons);
            reasons.insert(part, reason.clone());
            reasons
        });
    }

    /// From now on `part` is ready.
    pub fn ready(&self, part: &'static str) {
        if self.0.load().contains_key(part) {
            self.0.rcu(|reasons| {
                let mut reasons = BTreeMap::clone(reasons);
                reasons.remove(part);
                reasons
            });
        }
    }

    /// The reasons by part.
    pub fn reasons(&self) -> Arc<BTreeMap<&'static str, String>> {
        self.0.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_ready_on_their_own() {
        let readiness = Readiness::default();
        readiness.not_ready("source", "no snapshot yet");
        readiness.not_ready("address", "not there");
        readiness.ready("source");
        readiness.ready("source");
        assert_eq!(readiness.reasons().iter().collect::<Vec<_>>(), [(&"address", &"not there".to_owned())]);
    }
}
