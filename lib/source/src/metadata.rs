//! A client of a metadata service, Berth's or the predecessor's: the whole tree, the long poll, the change stream.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use http_client::Client;
use http_client::cause::innermost;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use model::change_line::LINE_BYTES_MAX;
use model::{ChangeLine, Defect, Pool, Snapshot, Value, ValueSeed, tree};
use percent_encoding::{AsciiSet, utf8_percent_encode};
use serde::de::DeserializeSeed;
use thiserror::Error;

/// The version of the metadata API that is followed: the newest one the predecessor has.
const API_VERSION: &str = "2016-07-29";

/// Longest wait for a connection: the service is on this host or the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for the whole tree: 200 MB over a slow link.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// Seconds after which an unchanged version is answered all the same; the predecessor takes up to 5 s more.
///
/// Then everything is read again, which repairs what a lost event left behind.
const WAIT_SECONDS: u64 = 60;

/// Longest wait for the answer to a long poll.
const WAIT_TIMEOUT: Duration = Duration::from_secs(WAIT_SECONDS + 10);

/// Longest silence of a change stream; the service says something every 10 s.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest answer that is read, in bytes.
const BODY_MAX: usize = 512 << 20;

/// The header with a session token, and the one by which it is asked for.
const TOKEN: HeaderName = HeaderName::from_static("x-aws-ec2-metadata-token");
const TOKEN_LIFETIME: HeaderName = HeaderName::from_static("x-aws-ec2-metadata-token-ttl-seconds");

/// For how many seconds a token is asked for, the most that there is; a new one is asked for when it is over.
const TOKEN_SECONDS: u16 = 21_600;

/// Longest token that is read, in bytes: Berth's have 56.
const TOKEN_MAX: usize = 1024;

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
    client: Client,
    /// The session token, once the service has wanted one.
    token: Mutex<Option<HeaderValue>>,
}

impl MetadataClient {
    pub(crate) fn new(server: MetadataAddress) -> Self {
        Self { server, client: Client::new(http_client::connector(CONNECT_TIMEOUT)), token: Mutex::default() }
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
        let path = format!("/{API_VERSION}/version?wait=true&value={}&maxWait={WAIT_SECONDS}", escaped(known));
        self.get(&path, WAIT_TIMEOUT).await.map(drop)
    }

    /// The stream of changes since `known`; `None` where there is none, as the predecessor's service has none.
    pub(crate) async fn changes(&self, known: Option<&str>) -> Result<Option<ChangeStream>, MetadataError> {
        let path = format!("/v1/changes?after={}", known.map(escaped).unwrap_or_default());
        let response = tokio::time::timeout(READ_TIMEOUT, self.send(&path)).await;
        let response = response.map_err(|_| self.late(READ_TIMEOUT))??;
        match response.status() {
            StatusCode::OK => Ok(Some(ChangeStream {
                server: self.server.to_string(),
                body: response.into_body(),
                unread: BytesMut::new(),
                pool: Pool::default(),
            })),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(self.status(&path, status)),
        }
    }

    /// The answer to a request; with a session token from the service if it wants one.
    async fn send(&self, path: &str) -> Result<Response<Incoming>, MetadataError> {
        let response = self.send_once(path).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        // It wants one now, or does not know the old one any more, as after a restart.
        let Some(token) = self.new_token().await? else { return Ok(response) };
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
        self.send_once(path).await
    }

    async fn send_once(&self, path: &str) -> Result<Response<Incoming>, MetadataError> {
        let mut request = Request::get(format!("{}{path}", self.server)).header(header::ACCEPT, "application/json");
        if let Some(token) = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            request = request.header(TOKEN, token);
        }
        self.client.send(request, Bytes::new()).await.map_err(|error| self.unreachable(&error))
    }

    /// A session token; `None` if the service gives none.
    async fn new_token(&self) -> Result<Option<HeaderValue>, MetadataError> {
        let request = Request::put(format!("{}/latest/api/token", self.server)).header(TOKEN_LIFETIME, TOKEN_SECONDS);
        let unreachable = |error| self.unreachable(&error);
        let response = self.client.send(request, Bytes::new()).await.map_err(unreachable)?;
        if response.status() != StatusCode::OK {
            return Ok(None);
        }
        let body = http_client::body(response, TOKEN_MAX).await.map_err(unreachable)?;
        let Ok(mut token) = HeaderValue::from_maybe_shared(body) else { return Ok(None) };
        token.set_sensitive(true);
        Ok(Some(token))
    }

    async fn get(&self, path: &str, timeout: Duration) -> Result<Bytes, MetadataError> {
        let exchange = async {
            let response = self.send(path).await?;
            let status = response.status();
            let body = http_client::body(response, BODY_MAX).await.map_err(|error| self.unreachable(&error))?;
            if status == StatusCode::OK { Ok(body) } else { Err(self.status(path, status)) }
        };
        tokio::time::timeout(timeout, exchange).await.map_err(|_| self.late(timeout))?
    }

    fn status(&self, path: &str, status: StatusCode) -> MetadataError {
        let server = self.server.to_string();
        match status {
            StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => MetadataError::NoData { server },
            status => {
                let path = path.split('?').next().unwrap_or_default().to_owned();
                MetadataError::Status { server, path, status }
            }
        }
    }

    fn late(&self, timeout: Duration) -> MetadataError {
        self.unreachable(&format_args!("no answer within {} s", timeout.as_secs()))
    }

    fn unreachable(&self, problem: &dyn fmt::Display) -> MetadataError {
        MetadataError::Unreachable { server: self.server.to_string(), problem: problem.to_string() }
    }
}

/// Changes as they come.
pub(crate) struct ChangeStream {
    server: String,
    body: Incoming,
    unread: BytesMut,
    /// What its lines have in common.
    pool: Pool,
}

impl ChangeStream {
    /// The next line.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time: what was received by then stays for the next call.
    pub(crate) async fn next(&mut self) -> Result<ChangeLine, MetadataError> {
        let unreachable =
            |server: &str, problem: String| MetadataError::Unreachable { server: server.to_owned(), problem };
        let mut searched = 0;
        loop {
            if let Some(end) = self.unread[searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.unread.split_to(searched + end + 1);
                let mut deserializer = serde_json::Deserializer::from_slice(&line);
                let value = ValueSeed(&mut self.pool).deserialize(&mut deserializer);
                let value = value.and_then(|value| deserializer.end().map(|()| value));
                let line = value.map_err(|error| error.to_string());
                let line = line.and_then(|value| ChangeLine::from_value(&value).map_err(|error| error.to_string()));
                return line.map_err(|problem| self.wrong(problem));
            }
            searched = self.unread.len();
            // The line end comes with the frame that completes the longest line.
            if searched >= LINE_BYTES_MAX {
                return Err(self.wrong(format!("a line of more than {LINE_BYTES_MAX} bytes")));
            }
            match tokio::time::timeout(STREAM_TIMEOUT, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.unread.extend_from_slice(&bytes);
                    }
                }
                Ok(Some(Err(error))) => return Err(unreachable(&self.server, innermost(&error))),
                Ok(None) => return Err(unreachable(&self.server, "the stream of changes ended".into())),
                Err(_) => return Err(unreachable(&self.server, "the stream of changes is silent".into())),
            }
        }
    }

    /// What the stream said makes no sense.
    pub(crate) fn wrong(&self, problem: String) -> MetadataError {
        MetadataError::Body { server: self.server.clone(), path: "/v1/changes".into(), problem }
    }
}

/// Everything: which characters mean something to a service is not known.
const EVERY_BYTE: &AsciiSet = &AsciiSet::EMPTY.complement();

/// Text for a query, every byte escaped.
fn escaped(text: &str) -> String {
    utf8_percent_encode(text, EVERY_BYTE).to_string()
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
