//! Requests to etcd that are on their way beside a watch.

use std::pin::Pin;

use etcd::{At, EtcdError};
use tokio::time::{Instant, sleep_until};

/// A request to etcd beside the watch.
type Request<T> = Pin<Box<dyn Future<Output = Result<T, EtcdError>> + Send>>;

/// A request that is on its way, and what was known when it was sent.
pub(super) struct Pending<T> {
    request: Request<T>,
    sent: Instant,
    /// What the response has to follow. By the time it is read, the watch may have delivered later changes.
    before: At,
}

impl<T> Pending<T> {
    /// A request that is sent when it is polled first; `before` is what is known now.
    pub(super) fn new(before: At, request: impl Future<Output = Result<T, EtcdError>> + Send + 'static) -> Self {
        Self { request: Box::pin(request), sent: Instant::now(), before }
    }
}

/// The response to a pending request, when it was sent, and what was known then; never completes without a request.
pub(super) async fn answered<T>(pending: &mut Option<Pending<T>>) -> (Result<T, EtcdError>, Instant, At) {
    let Some(waiting) = pending else { return std::future::pending().await };
    let response = ((&mut waiting.request).await, waiting.sent, waiting.before);
    *pending = None;
    response
}

/// Waits until a moment; never completes without one.
pub(super) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
