//! The lease by which others know that this scheduler is alive, by its own clock: until when no other scheduler can
//! have taken over what it owns.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long a silent scheduler counts as alive: an election, and a restart by hand, take less; a client that waits for
/// what it had begun does not wait longer.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// How long before its lease runs out a scheduler stops to act: what it asks of an engine then is on its way before
/// another scheduler begins, and clocks of two machines run differently by far less.
const MARGIN: Duration = Duration::from_secs(2);

/// What is known of the lease.
#[derive(Debug)]
pub(super) struct Lease(watch::Sender<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// When the last successful renewal was sent.
    asked: Option<Instant>,
    /// Whether our presence is in etcd, and all was learned that happened before.
    present: bool,
}

impl State {
    fn holds(&self) -> bool {
        self.present && self.asked.is_some_and(|asked| asked.elapsed() < LEASE.saturating_sub(MARGIN))
    }
}

impl Lease {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(State::default()))
    }

    /// The lease was granted or renewed by a request sent at `asked`; `None` if it was lost since.
    pub(super) fn renewed(&self, asked: Option<Instant>) {
        self.0.send_modify(|state| state.asked = asked);
    }

    /// Our presence is in etcd, and the book knows what others did before.
    pub(super) fn present(&self) {
        self.0.send_modify(|state| state.present = true);
    }

    /// It ran out, or our presence is gone: others take over what we have.
    pub(super) fn ended(&self) {
        self.0.send_modify(|state| state.present = false);
    }

    /// Whether no other scheduler can have taken over what we own.
    pub(super) fn holds(&self) -> bool {
        self.0.borrow().holds()
    }

    /// Waits until no other scheduler can have taken over what we own according to the book.
    pub(super) async fn held(&self) {
        // The sender is ours, so there is always one.
        let _ = self.0.subscribe().wait_for(State::holds).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_stood_still_for_as_long_as_its_lease_may_do_nothing_before_it_has_learned() {
        let lease = Lease::new();
        lease.renewed(Some(Instant::now()));
        assert!(!lease.holds(), "nothing was learned yet");
        lease.present();
        assert!(lease.holds());
        tokio::time::advance(LEASE.saturating_sub(MARGIN)).await;
        assert!(!lease.holds(), "it stood still");
        // The lease did not expire in etcd.
        lease.renewed(Some(Instant::now()));
        assert!(lease.holds());
        // It did: another one may have taken over, and a new lease alone does not show that.
        lease.ended();
        lease.renewed(Some(Instant::now()));
        assert!(!lease.holds());
        let waiting = async { tokio::time::timeout(Duration::from_secs(1), lease.held()).await };
        assert!(waiting.await.is_err());
        lease.present();
        lease.held().await;
        assert!(lease.holds());
    }
}
