//! A client of etcd, through its JSON gateway.
//!
//! Everything has a time limit and a bound. Of several members the one that answered last is asked first; when it
//! fails, the next one is. What may be done twice without harm is asked again, a transaction is not.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::options::{Endpoint, EtcdOptions, OptionsError};
use super::txn::{OPS_MAX, Pair, Txn, TxnOutcome};
use super::watch::Watch;
use super::wire::{
    AuthenticateRequest, AuthenticateResponse, DeleteRequest, DeleteResponse, Failure, Header, LeaseGrantRequest,
    LeaseRequest, LeaseResponse, Number, Octets, PutRequest, RangeRequest, RangeResponse, Streamed, TxnResponse,
    WatchCreate, WatchRequest, prefix_end,
};

/// Longest wait for a connection: members are in the same site.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Longest wait for an answer of one member. An election takes one second, so one that says nothing for longer hangs.
pub(super) const ASK_LIMIT: Duration = Duration::from_secs(3);

/// Longest wait for the word of a member that it keeps up; it costs little to go to the next one.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for a page of a list: some megabytes, which a busy member reads from its disk.
const PAGE_LIMIT: Duration = Duration::from_secs(15);

/// Keys in a page of a list: about ten megabytes. For each page etcd counts all keys that follow, so small ones take longer.
const PAGE_KEYS: i64 = 16_384;

/// Largest answer, in octets. A page that is larger is asked for in smaller pieces.
const BODY_MAX: usize = 64 << 20;

/// Largest explanation of a failure, in octets.
const EXPLANATION_MAX: usize = 64 << 10;

/// Answers from this size on are read aside, so that they hold up nothing else, in octets.
const ASIDE: usize = 256 << 10;

/// How long a connection without work is kept.
const IDLE: Duration = Duration::from_mins(1);

/// Most keys that one list may have: a hundred times the largest cluster that was tried.
const KEYS_MAX: usize = 10_000_000;

/// Largest password, in octets.
const PASSWORD_MAX: usize = 4096;

/// Codes of gRPC by which failures are told apart.
const NOT_FOUND: u32 = 5;
const OUT_OF_RANGE: u32 = 11;
const UNAUTHENTICATED: u32 = 16;
/// A deadline that passed, and no leader or a member that stops.
const PASSING: [u32; 2] = [4, 14];

/// Why etcd did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No member could; it may help to ask again.
    #[error("no member of etcd answers: {0}")]
    Unavailable(String),
    /// The answer to a transaction was lost: it may have been done.
    #[error("etcd may have done it, its answer was lost: {0}")]
    Lost(String),
    /// It will not.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// The revision that was asked for is there no more.
    #[error("etcd has forgotten that revision")]
    Compacted,
    /// The lease ran out or was revoked.
    #[error("the lease ran out")]
    LeaseGone,
    /// The answer is larger than anything that is read.
    #[error("an answer of etcd has more than {} MiB", BODY_MAX >> 20)]
    TooLarge,
}

/// Where in its history a cluster was when it answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Which cluster it is; one that was set up anew may have the same.
    pub cluster: u64,
    /// How many changes it has had.
    pub revision: i64,
    /// How many elections it has had.
    pub term: i64,
}

impl At {
    /// Whether `self` was seen after `before` of the same history; otherwise etcd was wiped or restored in between.
    pub fn follows(self, before: Self) -> bool {
        self.cluster == before.cluster && self.revision >= before.revision && self.term >= before.term
    }
}

impl From<Header> for At {
    fn from(header: Header) -> Self {
        Self { cluster: header.cluster_id.0, revision: header.revision.0, term: header.raft_term.0 }
    }
}

/// Keys that begin alike, all as of one revision.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// When.
    pub at: At,
    /// In the order of keys.
    pub pairs: Vec<Pair>,
}

/// A client of one cluster of etcd. Cloning is cheap, and all clones share connections.
#[derive(Clone)]
pub struct EtcdClient(Arc<Inner>);

struct Inner {
    options: EtcdOptions,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// The member that is asked first.
    preferred: AtomicUsize,
    token: ArcSwapOption<String>,
}

/// Whether a request may be sent to a second member when the first one may have got it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

impl EtcdClient {
    /// A client; nothing is asked of etcd yet.
    ///
    /// # Errors
    ///
    /// What is wrong with the options.
    pub fn new(options: EtcdOptions) -> Result<Self, OptionsError> {
        options.check()?;
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(options.tls()?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        // Many who have the same list of members begin at different ones. Without randomness: at the first.
        let mut random = [0];
        let _ = getrandom::fill(&mut random);
        let preferred = AtomicUsize::new(usize::from(random[0]) % options.endpoints.len());
        Ok(Self(Arc::new(Inner { options, http, preferred, token: ArcSwapOption::empty() })))
    }

    /// With what it was made.
    pub fn options(&self) -> &EtcdOptions {
        &self.0.options
    }

    /// One key, as of now; and when that was.
    ///
    /// # Errors
    ///
    /// Why it cannot be told.
    pub async fn get(&self, key: &[u8]) -> Result<(Option<Pair>, At), EtcdError> {
        let request = RangeRequest { key: Octets(key.to_vec()), ..RangeRequest::default() };
        let response: RangeResponse = self.ask("kv/range", &request, ASK_LIMIT, Again::Yes).await?;
        Ok((response.kvs.into_iter().next().map(Pair::from), response.header.into()))
    }

    /// All keys that begin so, as of one revision, with their values or without.
    ///
    /// # Errors
    ///
    /// Why they cannot be told.
    pub async fn list(&self, prefix: &[u8], keys_only: bool) -> Result<Listing, EtcdError> {
        // Compacted while we were reading page by page: a second try is a new revision.
        match self.list_once(prefix, keys_only).await {
            Err(EtcdError::Compacted) => self.list_once(prefix, keys_only).await,
            other => other,
        }
    }

    async fn list_once(&self, prefix: &[u8], keys_only: bool) -> Result<Listing, EtcdError> {
        let end = prefix_end(prefix);
        let mut listing = Listing::default();
        let (mut from, mut limit) = (prefix.to_vec(), PAGE_KEYS);
        loop {
            let request = RangeRequest {
                key: Octets(from.clone()),
                range_end: Octets(end.clone()),
                limit: Number(limit),
                revision: Number(listing.at.revision),
                keys_only,
                ..RangeRequest::default()
            };
            let page: RangeResponse = match self.ask("kv/range", &request, PAGE_LIMIT, Again::Yes).await {
                Err(EtcdError::TooLarge) if limit > 1 => {
                    limit = (limit / 16).max(1);
                    continue;
                }
                other => other?,
            };
            if listing.at == At::default() {
                listing.at = page.header.into();
            }
            listing.pairs.extend(page.kvs.into_iter().map(Pair::from));
            match listing.pairs.last() {
                Some(last) if page.more => {
                    from.clone_from(&last.key);
                    // The first key behind it.
                    from.push(0);
                }
                _ => return Ok(listing),
            }
            if listing.pairs.len() > KEYS_MAX {
                return Err(EtcdError::Refused(format!("more than {KEYS_MAX} keys")));
            }
        }
    }

    /// How many keys begin so.
    ///
    /// # Errors
    ///
    /// Why that cannot be told.
    pub async fn count(&self, prefix: &[u8]) -> Result<i64, EtcdError> {
        let (key, range_end) = (Octets(prefix.to_vec()), Octets(prefix_end(prefix)));
        let request = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        let response: RangeResponse = self.ask("kv/range", &request, ASK_LIMIT, Again::Yes).await?;
        Ok(response.count.0)
    }

    /// Puts a value with a lease (0: none); gives the revision.
    ///
    /// # Errors
    ///
    /// Why not; it may have been put all the same.
    pub async fn put(&self, key: &[u8], value: &[u8], lease: i64) -> Result<i64, EtcdError> {
        let (key, value) = (Octets(key.to_vec()), Octets(value.to_vec()));
        let request = PutRequest { key, value, lease: Number(lease) };
        let response: TxnResponse = self.ask("kv/put", &request, ASK_LIMIT, Again::Yes).await?;
        Ok(response.header.revision.0)
    }

    /// Deletes a key; tells whether there was one.
    ///
    /// # Errors
    ///
    /// Why not; it may have been deleted all the same.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, EtcdError> {
        let request = DeleteRequest { key: Octets(key.to_vec()), range_end: Octets::default() };
        let response: DeleteResponse = self.ask("kv/deleterange", &request, ASK_LIMIT, Again::Yes).await?;
        Ok(response.deleted.0 > 0)
    }

    /// Does a transaction.
    ///
    /// # Errors
    ///
    /// Why not; after [`EtcdError::Lost`] it may have been done all the same.
    pub async fn txn(&self, txn: Txn) -> Result<TxnOutcome, EtcdError> {
        if txn.success.len().max(txn.failure.len()).max(txn.compare.len()) > OPS_MAX {
            return Err(EtcdError::Refused(format!("a transaction has at most {OPS_MAX} operations")));
        }
        let response: TxnResponse = self.ask("kv/txn", &txn.request(), ASK_LIMIT, Again::No).await?;
        Ok(response.into())
    }

    /// A new lease of this length.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub async fn grant(&self, length: Duration) -> Result<i64, EtcdError> {
        let ttl = Number(i64::try_from(length.as_secs()).unwrap_or(i64::MAX));
        let response: LeaseResponse =
            self.ask("lease/grant", &LeaseGrantRequest { ttl }, ASK_LIMIT, Again::Yes).await?;
        Ok(response.id.0)
    }

    /// Keeps a lease alive; tells when etcd answered.
    ///
    /// # Errors
    ///
    /// [`EtcdError::LeaseGone`] when it is no more.
    pub async fn keep_alive(&self, lease: i64) -> Result<At, EtcdError> {
        let request = LeaseRequest { id: Number(lease) };
        let answer: Streamed<LeaseResponse> = self.ask("lease/keepalive", &request, ASK_LIMIT, Again::Yes).await?;
        match (answer.result, answer.error) {
            (Some(response), _) if response.ttl.0 > 0 => Ok(response.header.into()),
            (Some(_), _) => Err(EtcdError::LeaseGone),
            (None, failure) => {
                let failure = failure.unwrap_or_default();
                Err(classified(StatusCode::OK, &failure))
            }
        }
    }

    /// The seconds that a lease has left.
    ///
    /// # Errors
    ///
    /// [`EtcdError::LeaseGone`] when it is no more.
    pub async fn time_to_live(&self, lease: i64) -> Result<i64, EtcdError> {
        let request = LeaseRequest { id: Number(lease) };
        let response: LeaseResponse = self.ask("lease/timetolive", &request, ASK_LIMIT, Again::Yes).await?;
        if response.ttl.0 < 0 { Err(EtcdError::LeaseGone) } else { Ok(response.ttl.0) }
    }

    /// Ends a lease, and with it its keys.
    ///
    /// # Errors
    ///
    /// Why not; that it is no more is no error.
    pub async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        let request = LeaseRequest { id: Number(lease) };
        match self.ask::<LeaseResponse>("lease/revoke", &request, ASK_LIMIT, Again::Yes).await {
            Ok(_) | Err(EtcdError::LeaseGone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Watches all keys that begin so, from a revision on.
    ///
    /// # Errors
    ///
    /// Why that cannot be done.
    pub async fn watch(&self, prefix: &[u8], revision: i64) -> Result<Watch, EtcdError> {
        let create_request = WatchCreate {
            key: Octets(prefix.to_vec()),
            range_end: Octets(prefix_end(prefix)),
            start_revision: Number(revision),
            fragment: true,
        };
        let body = encoded(&WatchRequest { create_request })?;
        let mut failures = Vec::new();
        for endpoint in self.in_order() {
            let opened = timeout(ASK_LIMIT, async {
                let response = self.signed_in(endpoint, "watch", &body).await?;
                Watch::open(response.into_body(), endpoint).await
            });
            match opened.await {
                Ok(Ok(watch)) => {
                    self.0.preferred.store(endpoint, Ordering::Relaxed);
                    return Ok(watch);
                }
                Ok(Err(EtcdError::Unavailable(problem) | EtcdError::Lost(problem))) => {
                    failures.push(self.failure(endpoint, &problem));
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => failures.push(self.failure(endpoint, &silence(ASK_LIMIT))),
            }
        }
        Err(EtcdError::Unavailable(failures.join("; ")))
    }

    /// Asks one member for something that needs its leader, so that its answer proves that it keeps up.
    ///
    /// # Errors
    ///
    /// Why there was no answer.
    pub async fn probe(&self, endpoint: usize) -> Result<At, EtcdError> {
        let key = Octets(self.0.options.prefix.as_bytes().to_vec());
        let body = encoded(&RangeRequest { key, keys_only: true, limit: Number(1), ..RangeRequest::default() })?;
        let response: RangeResponse = parsed(&self.ask_one(endpoint, "kv/range", &body, PROBE_LIMIT).await?)?;
        Ok(response.header.into())
    }

    /// From now on another member is asked first than this one.
    pub fn avoid(&self, endpoint: usize) {
        let next = (endpoint + 1) % self.0.options.endpoints.len();
        // Somebody else may have found a better one in the meantime.
        let _ = self.0.preferred.compare_exchange(endpoint, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// One member's answer to a question without body, and the time that stands in its head.
    pub(super) async fn ask_member<T: DeserializeOwned>(
        &self,
        endpoint: usize,
        path: &str,
    ) -> Result<(T, Option<SystemTime>), EtcdError> {
        let answer = timeout(ASK_LIMIT, async {
            let response = self.signed_in(endpoint, path, &Bytes::from_static(b"{}")).await?;
            let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok());
            let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
            Ok((parsed(&whole(response, BODY_MAX).await?)?, date))
        });
        answer.await.unwrap_or_else(|_| Err(EtcdError::Unavailable(silence(ASK_LIMIT))))
    }

    async fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
        request: &impl Serialize,
        limit: Duration,
        again: Again,
    ) -> Result<T, EtcdError> {
        let body = encoded(request)?;
        let mut failures = Vec::new();
        for endpoint in self.in_order() {
            match self.ask_one(endpoint, path, &body, limit).await {
                Ok(answer) => {
                    self.0.preferred.store(endpoint, Ordering::Relaxed);
                    if answer.len() < ASIDE {
                        return parsed(&answer);
                    }
                    let aside = tokio::task::spawn_blocking(move || parsed(&answer)).await;
                    return aside.unwrap_or_else(|_| Err(EtcdError::Unavailable("stopping".into())));
                }
                Err(EtcdError::Lost(problem)) if again == Again::No => {
                    self.avoid(endpoint);
                    return Err(EtcdError::Lost(self.failure(endpoint, &problem)));
                }
                Err(EtcdError::Unavailable(problem) | EtcdError::Lost(problem)) => {
                    failures.push(self.failure(endpoint, &problem));
                }
                Err(error) => return Err(error),
            }
        }
        Err(EtcdError::Unavailable(failures.join("; ")))
    }

    /// The members by number, the preferred one first.
    fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let members = self.0.options.endpoints.len();
        let first = self.0.preferred.load(Ordering::Relaxed);
        (0..members).map(move |step| (first + step) % members)
    }

    fn failure(&self, endpoint: usize, problem: &str) -> String {
        format!("{}: {problem}", self.0.options.endpoints[endpoint])
    }

    async fn ask_one(&self, endpoint: usize, path: &str, body: &Bytes, limit: Duration) -> Result<Bytes, EtcdError> {
        let answer = timeout(limit, async { whole(self.signed_in(endpoint, path, body).await?, BODY_MAX).await });
        answer.await.unwrap_or_else(|_| Err(EtcdError::Lost(silence(limit))))
    }

    /// The answer to a request, for which we sign in when that is asked for.
    async fn signed_in(&self, endpoint: usize, path: &str, body: &Bytes) -> Result<Response<Incoming>, EtcdError> {
        let known = self.0.token.load_full();
        let known =
            if known.is_none() && self.0.options.user.is_some() { self.sign_in(endpoint).await? } else { known };
        let response = self.send(endpoint, path, body, known.as_deref()).await?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let explanation = whole(response, EXPLANATION_MAX).await?;
        let failure: Failure = serde_json::from_slice(&explanation).unwrap_or_else(|_| Failure {
            code: 0,
            message: format!("{status} and {:?}", String::from_utf8_lossy(&explanation[..explanation.len().min(200)])),
        });
        // A member that was restarted has forgotten all tokens, and changed rights make them stale.
        let forgotten = status == StatusCode::UNAUTHORIZED
            || failure.code == UNAUTHENTICATED
            || ["auth store is old", "user name is empty"].iter().any(|text| failure.message.contains(text));
        if !forgotten || self.0.options.user.is_none() {
            return Err(classified(status, &failure));
        }
        let token = self.sign_in(endpoint).await?;
        let response = self.send(endpoint, path, body, token.as_deref()).await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => {
                let failure = serde_json::from_slice(&whole(response, EXPLANATION_MAX).await?).unwrap_or_default();
                Err(classified(status, &failure))
            }
        }
    }

    /// Signs in; `None` when this cluster knows no users.
    async fn sign_in(&self, endpoint: usize) -> Result<Option<Arc<String>>, EtcdError> {
        let options = &self.0.options;
        let (Some(name), Some(path)) = (&options.user, &options.password_file) else { return Ok(None) };
        let read = tokio::fs::read_to_string(path).await;
        let password = read.map_err(|error| EtcdError::Refused(format!("{}: {error}", path.display())))?;
        if password.len() > PASSWORD_MAX {
            return Err(EtcdError::Refused(format!("{}: more than {PASSWORD_MAX} octets", path.display())));
        }
        let password = password.trim_end_matches(['\r', '\n']);
        let body = encoded(&AuthenticateRequest { name, password })?;
        let response = self.send(endpoint, "auth/authenticate", &body, None).await?;
        let status = response.status();
        let answer = whole(response, EXPLANATION_MAX).await?;
        if status != StatusCode::OK {
            let failure: Failure = serde_json::from_slice(&answer).unwrap_or_default();
            if failure.message.contains("authentication is not enabled") {
                return Ok(None);
            }
            return Err(match classified(status, &failure) {
                EtcdError::Refused(problem) => EtcdError::Refused(format!("cannot sign in as {name}: {problem}")),
                other => other,
            });
        }
        let AuthenticateResponse { token } = parsed(&answer)?;
        let token = Arc::new(token);
        self.0.token.store(Some(token.clone()));
        Ok(Some(token))
    }

    async fn send(
        &self,
        endpoint: usize,
        path: &str,
        body: &Bytes,
        token: Option<&String>,
    ) -> Result<Response<Incoming>, EtcdError> {
        let mut request = Request::post(format!("{}/v3/{path}", self.0.options.endpoints[endpoint]))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body.clone()));
        let request = request.map_err(|error| EtcdError::Refused(format!("no request can be made: {error}")))?;
        self.0.http.request(request).await.map_err(|error| {
            let problem = root(&error);
            if error.is_connect() { EtcdError::Unavailable(problem) } else { EtcdError::Lost(problem) }
        })
    }

    /// The members that are asked.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.0.options.endpoints
    }
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdClient").field("endpoints", &self.0.options.endpoints).finish_non_exhaustive()
    }
}

fn encoded(request: &impl Serialize) -> Result<Bytes, EtcdError> {
    let body = serde_json::to_vec(request);
    body.map(Bytes::from).map_err(|error| EtcdError::Refused(format!("no request can be made: {error}")))
}

fn parsed<T: DeserializeOwned>(answer: &[u8]) -> Result<T, EtcdError> {
    // What is no answer of etcd comes from something else at its address: a proxy, a member that stops.
    serde_json::from_slice(answer).map_err(|error| EtcdError::Lost(format!("that is no answer of etcd: {error}")))
}

async fn whole(response: Response<Incoming>, most: usize) -> Result<Bytes, EtcdError> {
    let mut body = Limited::new(response.into_body(), most);
    let mut octets = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    octets.extend_from_slice(&data);
                }
            }
            Err(error) if error.is::<LengthLimitError>() => return Err(EtcdError::TooLarge),
            Err(error) => return Err(EtcdError::Lost(root(&*error))),
        }
    }
    Ok(octets.freeze())
}

/// What a failure means to who asked.
pub(super) fn classified(status: StatusCode, failure: &Failure) -> EtcdError {
    let message = failure.message.strip_prefix("etcdserver: ").unwrap_or(&failure.message);
    let message = if message.is_empty() { status.to_string() } else { message.to_owned() };
    match failure.code {
        NOT_FOUND if message.contains("lease") => EtcdError::LeaseGone,
        OUT_OF_RANGE if message.contains("compacted") => EtcdError::Compacted,
        // A member that lags behind the one that told the revision.
        OUT_OF_RANGE if message.contains("future revision") => EtcdError::Unavailable(message),
        code if PASSING.contains(&code) => EtcdError::Lost(message),
        0 if status.is_server_error() => EtcdError::Lost(message),
        _ => EtcdError::Refused(message),
    }
}

fn silence(limit: Duration) -> String {
    format!("no answer within {} s", limit.as_secs())
}

/// The innermost cause, which says more than `client error`.
pub(super) fn root(error: &dyn std::error::Error) -> String {
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
    fn failures_are_told_apart_by_what_can_be_done() {
        let gone = EtcdError::LeaseGone;
        let refused = |problem: &str| EtcdError::Refused(problem.into());
        for (status, code, message, meaning) in [
            (404, 5, "etcdserver: requested lease not found", gone),
            (400, 11, "etcdserver: mvcc: required revision has been compacted", EtcdError::Compacted),
            (
                400,
                11,
                "etcdserver: mvcc: required revision is a future revision",
                EtcdError::Unavailable("mvcc: required revision is a future revision".into()),
            ),
            (503, 14, "etcdserver: no leader", EtcdError::Lost("no leader".into())),
            (429, 8, "etcdserver: mvcc: database space exceeded", refused("mvcc: database space exceeded")),
            (403, 7, "etcdserver: permission denied", refused("permission denied")),
            (502, 0, "", EtcdError::Lost("502 Bad Gateway".into())),
            (404, 0, "", refused("404 Not Found")),
        ] {
            let failure = Failure { code, message: message.into() };
            assert_eq!(classified(StatusCode::from_u16(status).unwrap(), &failure), meaning, "{message}");
        }
    }

    #[test]
    fn a_history_goes_forward() {
        let before = At { cluster: 1, revision: 10, term: 3 };
        for (after, follows) in [
            (At { revision: 11, ..before }, true),
            (At { term: 4, ..before }, true),
            (before, true),
            (At { revision: 2, ..before }, false),
            (At { revision: 99, term: 2, ..before }, false),
            (At { cluster: 2, revision: 99, ..before }, false),
        ] {
            assert_eq!(after.follows(before), follows, "{after:?}");
        }
    }
}
