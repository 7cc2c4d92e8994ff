//! The places of the proxy's connections: those whose request has arrived, and those of which it is still awaited.
//!
//! A client that sends half a request does not stop others: connections whose request has not arrived have places of their own,
//! and one more of them ends the oldest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Most connections at once. Each has at most two descriptors, so that a limit of 1024 leaves room for files.
const CONNECTIONS_MAX: usize = 256;

/// Most connections of which the request is still awaited. Berth sends its requests at once, so it has few of them, and
/// three quarters of all connections stay for requests that have arrived.
const AWAITED_MAX: usize = 64;

/// Most requests in hand at once. Berth has few; the others wait.
const REQUESTS_MAX: usize = 64;

pub(super) struct Places {
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    awaited: Mutex<Awaited>,
}

/// The connections of which the request is awaited, the oldest first, with what ends them.
#[derive(Default)]
struct Awaited {
    connections: BTreeMap<u64, CancellationToken>,
    next: u64,
}

/// Room for one connection.
pub(super) struct Free(OwnedSemaphorePermit);

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    _connection: OwnedSemaphorePermit,
    request: Mutex<Option<OwnedSemaphorePermit>>,
    number: u64,
    /// Cancelled when the connection has to end, since later ones need its place and its request has not arrived.
    pub(super) ended: CancellationToken,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            awaited: Mutex::default(),
        }
    }
}

impl Places {
    /// Room for one more connection, once there is some.
    ///
    /// # Cancel safety
    ///
    /// No room is taken.
    pub(super) async fn free(&self) -> Free {
        Free(self.connections.clone().acquire_owned().await.expect("it is never closed"))
    }

    /// The place of a connection that was accepted.
    pub(super) fn place(self: &Arc<Self>, Free(connection): Free) -> Place {
        let ended = CancellationToken::new();
        let mut awaited = locked(&self.awaited);
        let number = awaited.next;
        awaited.next += 1;
        awaited.connections.insert(number, ended.clone());
        if awaited.connections.len() > AWAITED_MAX
            && let Some((_, oldest)) = awaited.connections.pop_first()
        {
            oldest.cancel();
        }
        drop(awaited);
        Place { places: self.clone(), _connection: connection, request: Mutex::default(), number, ended }
    }
}

impl Place {
    /// The request has arrived as a whole: waits until it may be handled.
    pub(super) async fn arrived(&self) {
        locked(&self.places.awaited).connections.remove(&self.number);
        let request = self.places.requests.clone().acquire_owned().await.expect("it is never closed");
        *locked(&self.request) = Some(request);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.places.awaited).connections.remove(&self.number);
    }
}

/// A panic elsewhere leaves nothing half done here.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_connection_too_many_ends_the_oldest_whose_request_has_not_arrived() {
        let places = Arc::new(Places::default());
        let first = places.place(places.free().await);
        first.arrived().await;
        let mut others = Vec::new();
        for _ in 0..=AWAITED_MAX {
            others.push(places.place(places.free().await));
        }
        let ended: Vec<bool> = others.iter().map(|place| place.ended.is_cancelled()).collect();
        assert_eq!((ended[0], ended[1..].contains(&true), first.ended.is_cancelled()), (true, false, false));
        // What went away by itself counts no more.
        others.pop();
        let _last = places.place(places.free().await);
        assert!(!others[1].ended.is_cancelled());
    }

    #[tokio::test]
    async fn requests_beyond_the_bound_wait() {
        let places = Arc::new(Places::default());
        let mut busy = Vec::new();
        for _ in 0..REQUESTS_MAX {
            busy.push(places.place(places.free().await));
            busy[busy.len() - 1].arrived().await;
        }
        let next = places.place(places.free().await);
        assert!(next.arrived().now_or_never().is_none() && !next.ended.is_cancelled());
        busy.pop();
        next.arrived().await;
    }
}
