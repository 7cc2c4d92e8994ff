//! The readiness of a process, the reasons against it, and warnings about what it answers all the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The part of the readiness that says whether etcd is there.
pub const ETCD: &str = "etcd";

/// The part of the readiness that says whether this host is published, so that others know of it.
pub const PUBLISHED: &str = "publish";

/// The part of the readiness that says whether etcd takes what is written.
pub const ETCD_WRITES: &str = "etcd writes";

/// The reasons why a process is not ready, one per part; none means ready.
#[derive(Debug, Default)]
pub struct Readiness {
    reasons: watch::Sender<Reasons>,
    warnings: watch::Sender<Reasons>,
}

/// Reasons by part.
pub type Reasons = Arc<BTreeMap<&'static str, String>>;

impl Readiness {
    /// From now on the process is not ready because of `part`.
    pub fn not_ready(&self, part: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        self.reasons.send_modify(|reasons| {
            Arc::make_mut(reasons).insert(part, reason);
        });
    }

    /// From now on `part` is ready.
    pub fn ready(&self, part: &'static str) {
        self.reasons.send_if_modified(|reasons| {
            let known = reasons.contains_key(part);
            if known {
                Arc::make_mut(reasons).remove(part);
            }
            known
        });
    }

    /// The reasons by part, and whenever they change.
    pub fn watch(&self) -> watch::Receiver<Reasons> {
        self.reasons.subscribe()
    }

    /// The reasons by part.
    pub fn reasons(&self) -> Reasons {
        self.reasons.borrow().clone()
    }

    /// From now on there is this warning about what `part` answers, or none.
    pub fn warn(&self, part: &'static str, warning: Option<String>) {
        self.warnings.send_if_modified(|warnings| {
            if warnings.get(part) == warning.as_ref() {
                return false;
            }
            let warnings = Arc::make_mut(warnings);
            match warning {
                Some(warning) => drop(warnings.insert(part, warning)),
                None => drop(warnings.remove(part)),
            }
            true
        });
    }

    /// The warnings by part: the process is ready with them.
    pub fn warnings(&self) -> Reasons {
        self.warnings.borrow().clone()
    }

    /// The warnings by part, and whenever they change.
    pub fn watch_warnings(&self) -> watch::Receiver<Reasons> {
        self.warnings.subscribe()
    }

    /// Waits until there is no reason.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wait_until_ready(&self) {
        self.wait_until_ready_but_for(&[]).await;
    }

    /// Waits until there is no reason but for these parts.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wait_until_ready_but_for(&self, parts: &[&str]) {
        let is_ready = |reasons: &Reasons| reasons.keys().all(|part| parts.contains(part));
        // It cannot fail: the sender is `self`.
        let _ = self.reasons.subscribe().wait_for(is_ready).await;
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
        readiness.warn("names", Some("some are left out".to_owned()));
        assert_eq!((readiness.reasons().len(), readiness.warnings().len()), (1, 1));
        readiness.warn("names", None);
        assert_eq!(readiness.warnings().len(), 0);
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
        readiness.wait_until_ready_but_for(&["address", "source"]).await;
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        readiness.ready("source");
        waiting.await.unwrap();
    }
}
