//! No reports: a look at a fixed interval.

use std::time::Duration;

/// Time between two looks, each of which lists the network adapters.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Events;

impl Events {
    pub(super) fn open() -> Self {
        Self
    }

    pub(super) async fn next(&mut self) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
