//! The readiness of a process, and the reasons against it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The reasons why a process is not ready, one per part; none means ready.
#[derive(Debug, Default)]
pub struct Readiness(watch::Sender<Reasons>);

/// Reasons by part.
type Reasons = Arc<BTreeMap<&'static str, String>>;

impl Readiness {
    /// From now on the process is not ready because of `part`.
    pub fn not_ready(&self, part: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        self.0.send_modify(|reasons| {
            Arc::make_mut(reasons).insert(part, reason);
        });
    }

    /// From now on `part` is ready.
    pub fn ready(&self, part: &'static str) {
        self.0.send_if_modified(|reasons| {
            let known = reasons.contains_key(part);
            if known {
                Arc::make_mut(reasons).remove(part);
            }
            known
        });
    }

    /// The reasons by part.
    pub fn reasons(&self) -> Reasons {
        self.0.borrow().clone()
    }

    /// Waits until there is no reason.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wait_until_ready(&self) {
        // It cannot fail: the sender is `self`.
        let _ = self.0.subscribe().wait_for(|reasons| reasons.is_empty()).await;
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

    #[tokio::test]
    async fn who_waits_is_told_when_no_part_has_a_reason_left() {
        let readiness = Arc::new(Readiness::default());
        readiness.wait_until_ready().await;
        readiness.not_ready("source", "no snapshot yet");
        let waiting = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.wait_until_ready().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        readiness.ready("source");
        waiting.await.unwrap();
    }
}
