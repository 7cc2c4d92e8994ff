//! A client of HTTP services: of metadata services, admin pages, etcd and schedulers.
//!
//! Connecting has a time limit and a body has a bound; how long a whole exchange may take is for the caller to limit.

pub mod cause;

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::Response;
use hyper::body::Incoming;
use hyper::http::request::Builder;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use thiserror::Error;

use crate::cause::innermost;

/// How long an idle connection stays open.
const IDLE: Duration = Duration::from_mins(1);

/// A client with its connections.
#[derive(Debug)]
pub struct Client<C = HttpConnector>(legacy::Client<C, Full<Bytes>>);

/// Why there is no response.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The request cannot be written.
    #[error("no request can be made: {0}")]
    Invalid(String),
    /// There was no connection, so the service has not received the request.
    #[error("{0}")]
    Unreached(String),
    /// The connection broke; the service may have done what was asked.
    #[error("{0}")]
    Lost(String),
    /// The body is longer than the caller accepts.
    #[error("the response has more than {0} bytes")]
    TooLarge(usize),
}

/// Makes connections over TCP, each within `limit`; also the ones below TLS.
pub fn connector(limit: Duration) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(limit));
    connector.set_nodelay(true);
    connector.enforce_http(false);
    connector
}

impl<C: Connect + Clone + Send + Sync + 'static> Client<C> {
    /// A client that connects by `connector`; no connection is made yet.
    pub fn new(connector: C) -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        Self(builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build(connector))
    }

    /// Sends a request and waits for the head of the response.
    pub async fn send(&self, request: Builder, body: Bytes) -> Result<Response<Incoming>, HttpError> {
        let request = request.body(Full::new(body)).map_err(|error| HttpError::Invalid(error.to_string()))?;
        self.0.request(request).await.map_err(|error| {
            let problem = if is_late(&error) { "no connection in time".to_owned() } else { innermost(&error) };
            if error.is_connect() { HttpError::Unreached(problem) } else { HttpError::Lost(problem) }
        })
    }
}

/// Whether a time limit ended it.
fn is_late(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut))
}

/// Waits for the whole body of a response, of at most `most` bytes.
pub async fn body(response: Response<Incoming>, most: usize) -> Result<Bytes, HttpError> {
    match Limited::new(response.into_body(), most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(HttpError::TooLarge(most)),
        Err(error) => Err(HttpError::Lost(innermost(&*error))),
    }
}
