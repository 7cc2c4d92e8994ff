//! From when until when a process takes questions, which differs from its life when another process has its sockets as well.

use tokio_util::sync::CancellationToken;

/// The time in which connections are accepted. Clones share it.
#[derive(Clone, Debug)]
pub struct Accepting {
    /// Cancelled when questions are taken from now on: everything is there to answer them.
    pub begin: CancellationToken,
    /// Cancelled when no connection is accepted any more, since another process accepts them. What was accepted is served
    /// until the stop.
    pub end: CancellationToken,
}

impl Accepting {
    /// From now on.
    pub fn now() -> Self {
        let accepting = Self::later();
        accepting.begin.cancel();
        accepting
    }

    /// Not before it is said.
    pub(crate) fn later() -> Self {
        Self { begin: CancellationToken::new(), end: CancellationToken::new() }
    }
}
