//! Changes as rtnetlink reports them.

use std::fmt;
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use rtnetlink::{Handle, MulticastGroup};

/// Pause after a change, so that the several reports of one change cause one look.
const SETTLE: Duration = Duration::from_millis(10);

/// Longest time without a look: the kernel drops reports that it has no room for.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Time between two looks when there are no reports.
const LOOK_WITHOUT_REPORTS: Duration = Duration::from_secs(1);

/// Reports of the kernel; `None` when it makes none.
pub(super) struct Events(Option<Reports>);

struct Reports {
    changes: Box<dyn Stream<Item = ()> + Send + Unpin>,
    /// The connection ends when this is dropped.
    _connection: Handle,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("reported", &self.0.is_some()).finish()
    }
}

impl Events {
    pub(super) fn open() -> Self {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let Ok((connection, handle, changes)) = rtnetlink::new_multicast_connection(&groups) else { return Self(None) };
        tokio::spawn(connection);
        Self(Some(Reports { changes: Box::new(changes.map(drop)), _connection: handle }))
    }

    pub(super) async fn next(&mut self) {
        let Some(Reports { changes, .. }) = &mut self.0 else { return tokio::time::sleep(LOOK_WITHOUT_REPORTS).await };
        match tokio::time::timeout(LOOK_AGAIN, changes.next()).await {
            Ok(None) => {
                self.0 = None;
                tokio::time::sleep(LOOK_WITHOUT_REPORTS).await;
            }
            Ok(Some(())) => {
                tokio::time::sleep(SETTLE).await;
                while changes.next().now_or_never().flatten().is_some() {}
            }
            // Nothing was reported.
            Err(_) => {}
        }
    }
}
