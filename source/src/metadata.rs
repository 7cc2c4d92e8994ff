//! Following a metadata service over HTTP, Berth's or the predecessor's: read `/2016-07-29`, then wait for `version` to change.
//!
//! A change is a hint to read everything again; the version inside what was read is the one waited on, so a
//! change during the reading is seen at once.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use model::{Defect, Snapshot, Value, tree};
use thiserror::Error;

/// The version of the metadata API that is followed: the newest one the predecessor has.
const API_VERSION: &str = "2016-07-29";

/// Longest wait for a connection: the service is on this host or the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for the whole tree: 200 MB over a slow link.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// Seconds after which an unchanged version is answered all the same; the predecessor takes up to 5 s more.
///
/// Then everything is read again, which repairs whatever a lost event left behind.
const WAIT_SECONDS: u64 = 60;

/// Longest wait for the answer to a long poll.
const WAIT_TIMEOUT: Duration = Duration::from_secs(WAIT_SECONDS + 10);

/// Largest answer that is read, in octets.
const BODY_MAX: usize = 512 << 20;

/// Where a metadata service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataAddress {
    authority: String,
}

impl FromStr for MetadataAddress {
    type Err = String;

    /// Parses `HOST[:PORT]`, also with `http://` before it and a path behind it, which is not used.
    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix("http://").unwrap_or(text);
        if bare.contains("://") {
            return Err(format!("{text:?} is no http address"));
        }
        let authority = bare.split('/').next().unwrap_or_default();
        let parsed: Result<hyper::http::uri::Authority, _> = authority.parse();
        match parsed {
            Ok(parsed) if !parsed.host().is_empty() => Ok(Self { authority: authority.to_owned() }),
            _ => Err(format!("{text:?} is no HOST[:PORT]")),
        }
    }
}

impl fmt::Display for MetadataAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

/// Why nothing was read.
#[derive(Debug, Error)]
pub(crate) enum MetadataError {
    #[error("cannot reach {server}: {problem}")]
    Unreachable { server: String, problem: String },
    #[error("{server} has no data yet")]
    NoData { server: String },
    #[error("{server} answered {status} to {path}")]
    Status { server: String, path: String, status: StatusCode },
    #[error("{server} answered something else than metadata to {path}: {problem}")]
    Body { server: String, path: String, problem: String },
}

/// A client of one metadata service.
pub(crate) struct MetadataClient {
    server: MetadataAddress,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl MetadataClient {
    pub(crate) fn new(server: MetadataAddress) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(connector);
        Self { server, client }
    }

    /// The snapshot behind everything the service shows now.
    pub(crate) async fn read(&self) -> Result<(Snapshot, Vec<Defect>), MetadataError> {
        let path = format!("/{API_VERSION}");
        let body = self.get(&path, READ_TIMEOUT).await?;
        let server = self.server.to_string();
        let parse = move || -> Result<_, MetadataError> {
            let wrong = |problem: String| MetadataError::Body { server: server.clone(), path: path.clone(), problem };
            let value: Value = serde_json::from_slice(&body).map_err(|error| wrong(error.to_string()))?;
            let tree = value.as_map().ok_or_else(|| wrong(format!("expected a map, found {}", value.kind())))?;
            Ok(tree::read(tree))
        };
        tokio::task::spawn_blocking(parse).await.map_err(|error| self.unreachable(&error))?
    }

    /// Waits until the service's version is another than `known`, or some time.
    pub(crate) async fn changed(&self, known: &str) -> Result<(), MetadataError> {
        let known = known.bytes().fold(String::new(), |mut escaped, octet| {
            let _ = write!(escaped, "%{octet:02X}");
            escaped
        });
        let path = format!("/{API_VERSION}/version?wait=true&value={known}&maxWait={WAIT_SECONDS}");
        self.get(&path, WAIT_TIMEOUT).await.map(drop)
    }

    async fn get(&self, path: &str, timeout: Duration) -> Result<Bytes, MetadataError> {
        let uri: Uri = format!("{}{path}", self.server).parse().map_err(|error| self.unreachable(&error))?;
        let request = Request::get(uri).header(header::ACCEPT, "application/json").body(Empty::new());
        let request = request.map_err(|error| self.unreachable(&error))?;
        let exchange = async {
            let response: Response<Incoming> =
                self.client.request(request).await.map_err(|error| self.unreachable(&root(&error)))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
            let body = body.map_err(|error| self.unreachable(&error))?.to_bytes();
            match status {
                StatusCode::OK => Ok(body),
                StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => {
                    Err(MetadataError::NoData { server: self.server.to_string() })
                }
                status => {
                    let path = path.split('?').next().unwrap_or_default().to_owned();
                    Err(MetadataError::Status { server: self.server.to_string(), path, status })
                }
            }
        };
        let late = |_| self.unreachable(&format_args!("no answer within {} s", timeout.as_secs()));
        tokio::time::timeout(timeout, exchange).await.map_err(late)?
    }

    fn unreachable(&self, problem: &dyn fmt::Display) -> MetadataError {
        MetadataError::Unreachable { server: self.server.to_string(), problem: problem.to_string() }
    }
}

/// The innermost cause, which says more than `client error`.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_or_without_a_port() {
        for (text, parsed) in [
            ("169.254.169.250", Some("http://169.254.169.250")),
            ("localhost:8250", Some("http://localhost:8250")),
            ("http://rancher-metadata/2016-07-29", Some("http://rancher-metadata")),
            ("[::1]:80", Some("http://[::1]:80")),
            ("https://example.org", None),
            ("", None),
            ("a b", None),
        ] {
            let got = text.parse::<MetadataAddress>().ok().map(|address| address.to_string());
            assert_eq!(got.as_deref(), parsed, "{text}");
        }
    }
}
