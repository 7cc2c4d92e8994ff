//! Requests to the members of etcd: which one is asked, for how long, and as whom.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http_client::Client;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;
use tracing::warn;

use crate::error::{BODY_MAX, EtcdError, UNAUTHENTICATED, classified};
use crate::options::{EtcdOptions, OptionsError};
use crate::wire::{AuthenticateRequest, AuthenticateResponse, Failure};

/// Longest wait for a connection: members are in the same site.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Longest wait for an answer of one member. A request without a leader is lost silently; an election takes
/// one second, so one that says nothing for longer has lost it or hangs.
pub(crate) const ASK_LIMIT: Duration = Duration::from_secs(2);

/// The path of watches.
pub(crate) const WATCH: &str = "watch";

/// Largest explanation of a failure, in bytes.
const EXPLANATION_MAX: usize = 64 << 10;

/// Answers from this size on are read aside, so that they hold up nothing else, in bytes.
const ASIDE: usize = 256 << 10;

/// Most changes of own keys that wait to be looked at. A receiver that misses some looks at everything.
const CHANGES_MAX: usize = 256;

/// What etcd says of users where it has none.
const NO_USERS: &str = "authentication is not enabled";

/// Largest password, in bytes.
const PASSWORD_MAX: usize = 4096;

/// The way to the members.
pub(crate) struct Transport {
    pub(crate) options: EtcdOptions,
    http: Client<HttpsConnector<HttpConnector>>,
    /// The member that is tried first.
    preferred: AtomicUsize,
    token: ArcSwapOption<String>,
    /// How often another history than the one before was seen.
    pub(crate) histories: watch::Sender<u64>,
    /// What the keys begin with that are published with this client.
    pub(crate) published: ArcSwapOption<String>,
    /// Changes of these keys, also our own.
    pub(crate) changes: broadcast::Sender<KeyChange>,
}

/// A change of a key as a follower with the same client saw it.
#[derive(Clone, Debug)]
pub struct KeyChange {
    /// The key.
    pub key: Vec<u8>,
    /// The revision of the change.
    pub revision: i64,
    /// Whether the key was deleted.
    pub deleted: bool,
}

/// Whether a request may be sent to a second member when the first one may have got it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    Yes,
    No,
}

impl Transport {
    pub(crate) fn new(options: EtcdOptions) -> Result<Self, OptionsError> {
        options.check()?;
        if let Some(exposure) = options.exposure() {
            warn!("etcd is not protected: {exposure}");
        }
        let http = Client::new(tls::connector(http_client::connector(CONNECT_LIMIT), options.tls()?));
        // Clients with the same list of members begin at different ones. Without randomness: at the first.
        let mut random = [0];
        let _ = getrandom::fill(&mut random);
        let preferred = AtomicUsize::new(usize::from(random[0]) % options.endpoints.len());
        let (histories, changes) = (watch::channel(0).0, broadcast::channel(CHANGES_MAX).0);
        let (token, published) = (ArcSwapOption::empty(), ArcSwapOption::empty());
        Ok(Self { options, http, preferred, token, histories, published, changes })
    }

    /// From now on this member is tried first.
    pub(crate) fn prefer(&self, endpoint: usize) {
        self.preferred.store(endpoint, Ordering::Relaxed);
    }

    /// From now on another member is asked first than this one.
    pub(crate) fn avoid(&self, endpoint: usize) {
        let next = (endpoint + 1) % self.options.endpoints.len();
        // Another task may have found a better one in the meantime.
        let _ = self.preferred.compare_exchange(endpoint, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// One member's answer to a question without body, and the time that stands in its head.
    pub(crate) async fn ask_member<T: DeserializeOwned>(
        &self,
        endpoint: usize,
        path: &str,
    ) -> Result<(T, Option<SystemTime>), EtcdError> {
        let answer = timeout(ASK_LIMIT, async {
            let response = self.signed_in(endpoint, path, &Bytes::from_static(b"{}")).await?;
            let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok());
            let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
            Ok((parsed(&http_client::body(response, BODY_MAX).await?)?, date))
        });
        answer.await.unwrap_or_else(|_| Err(EtcdError::Unavailable(silence(ASK_LIMIT))))
    }

    /// What the first member answers that can.
    pub(crate) async fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
        request: &impl Serialize,
        limit: Duration,
        again: Again,
    ) -> Result<T, EtcdError> {
        parsed_aside(self.ask_bytes(path, &encoded(request)?, limit, again).await?).await
    }

    /// The same, not read yet.
    pub(crate) async fn ask_bytes(
        &self,
        path: &str,
        body: &Bytes,
        limit: Duration,
        again: Again,
    ) -> Result<Bytes, EtcdError> {
        let mut failures = Vec::new();
        for endpoint in self.in_order() {
            match self.ask_one(endpoint, path, body, limit).await {
                Ok(answer) => {
                    self.prefer(endpoint);
                    return Ok(answer);
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
    pub(crate) fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let members = self.options.endpoints.len();
        let first = self.preferred.load(Ordering::Relaxed);
        (0..members).map(move |step| (first + step) % members)
    }

    pub(crate) fn failure(&self, endpoint: usize, problem: &str) -> String {
        let advice = match &self.options.pem {
            _ if !problem.contains("certificate") => String::new(),
            Some(pem) => format!(" (its certificate does not fit {})", pem.origin.display()),
            None => " (is --etcd-ca of its authority?)".to_owned(),
        };
        format!("{}: {problem}{advice}", self.options.endpoints[endpoint])
    }

    /// What one member answers.
    pub(crate) async fn ask_one(
        &self,
        endpoint: usize,
        path: &str,
        body: &Bytes,
        limit: Duration,
    ) -> Result<Bytes, EtcdError> {
        let answer = timeout(limit, async {
            Ok(http_client::body(self.signed_in(endpoint, path, body).await?, BODY_MAX).await?)
        });
        answer.await.unwrap_or_else(|_| Err(EtcdError::Lost(silence(limit))))
    }

    /// The answer to a request, for which we sign in when that is asked for.
    pub(crate) async fn signed_in(
        &self,
        endpoint: usize,
        path: &str,
        body: &Bytes,
    ) -> Result<Response<Incoming>, EtcdError> {
        let known = self.token.load_full();
        let known = if known.is_none() && self.options.user.is_some() { self.sign_in(endpoint).await? } else { known };
        let response = self.send(endpoint, path, body, known.as_deref()).await?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let explanation = http_client::body(response, EXPLANATION_MAX).await?;
        let failure: Failure = serde_json::from_slice(&explanation).unwrap_or_else(|_| Failure {
            code: 0,
            message: format!("{status} and {:?}", String::from_utf8_lossy(&explanation[..explanation.len().min(200)])),
        });
        // A member that was restarted has forgotten all tokens, and changed rights make them stale.
        let forgotten = status == StatusCode::UNAUTHORIZED
            || failure.code == UNAUTHENTICATED
            || ["auth store is old", "user name is empty"].iter().any(|text| failure.message.contains(text));
        if !forgotten || self.options.user.is_none() {
            return Err(classified(status, &failure));
        }
        let token = self.sign_in(endpoint).await?;
        let response = self.send(endpoint, path, body, token.as_deref()).await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => {
                let failure =
                    serde_json::from_slice(&http_client::body(response, EXPLANATION_MAX).await?).unwrap_or_default();
                Err(classified(status, &failure))
            }
        }
    }

    /// Signs in again with the next request; returns whether there was a token.
    pub(crate) fn forget_token(&self) -> bool {
        self.token.swap(None).is_some()
    }

    /// Signs in; `None` when this cluster knows no users.
    async fn sign_in(&self, endpoint: usize) -> Result<Option<Arc<String>>, EtcdError> {
        let options = &self.options;
        let Some(name) = &options.user else { return Ok(None) };
        let Some(path) = options.password_file.as_ref().filter(|_| options.password.is_none()) else {
            let password = options.password.as_ref().map_or("", |password| &password.0);
            return self.sign_in_with(endpoint, name, password).await;
        };
        let refused = match self.sign_in_with(endpoint, name, &read_password(path).await?).await {
            Err(EtcdError::Refused(problem)) => EtcdError::Refused(problem),
            other => return other,
        };
        // An operator has given this user another password, which this process has stored before.
        let next = next_password(path);
        let Ok(password) = read_password(&next).await else { return Err(refused) };
        let token = self.sign_in_with(endpoint, name, &password).await.map_err(|_| refused)?;
        if let Err(error) = tokio::fs::rename(&next, path).await {
            warn!(%error, path = %path.display(), "cannot replace the password of before");
        }
        Ok(token)
    }

    async fn sign_in_with(
        &self,
        endpoint: usize,
        name: &str,
        password: &str,
    ) -> Result<Option<Arc<String>>, EtcdError> {
        let body = encoded(&AuthenticateRequest { name, password })?;
        let response = self.send(endpoint, "auth/authenticate", &body, None).await?;
        let status = response.status();
        let answer = http_client::body(response, EXPLANATION_MAX).await?;
        if status != StatusCode::OK {
            let failure: Failure = serde_json::from_slice(&answer).unwrap_or_default();
            if failure.message.contains(NO_USERS) {
                return Ok(None);
            }
            return Err(match classified(status, &failure) {
                EtcdError::Refused(problem) => EtcdError::Refused(format!("cannot sign in as {name}: {problem}")),
                other => other,
            });
        }
        let AuthenticateResponse { token } = parsed(&answer)?;
        let token = Arc::new(token);
        self.token.store(Some(token.clone()));
        Ok(Some(token))
    }

    /// Whether etcd requires users. Asked without signing in: releases before 3.5 have no request for it.
    pub(crate) async fn has_users(&self) -> Result<bool, EtcdError> {
        let body = encoded(&AuthenticateRequest { name: "-", password: "-" })?;
        let mut failures = Vec::new();
        for endpoint in self.in_order() {
            let answer = timeout(ASK_LIMIT, async {
                let response = self.send(endpoint, "auth/authenticate", &body, None).await?;
                let status = response.status();
                let answer = http_client::body(response, EXPLANATION_MAX).await?;
                let failure: Failure = serde_json::from_slice(&answer).unwrap_or_default();
                match classified(status, &failure) {
                    EtcdError::Refused(problem) => Ok(!problem.contains(NO_USERS)),
                    other => Err(other),
                }
            });
            match answer.await {
                Ok(Ok(known)) => return Ok(known),
                Ok(Err(EtcdError::Unavailable(problem) | EtcdError::Lost(problem))) => {
                    failures.push(self.failure(endpoint, &problem));
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => failures.push(self.failure(endpoint, &silence(ASK_LIMIT))),
            }
        }
        Err(EtcdError::Unavailable(failures.join("; ")))
    }

    async fn send(
        &self,
        endpoint: usize,
        path: &str,
        body: &Bytes,
        token: Option<&String>,
    ) -> Result<Response<Incoming>, EtcdError> {
        let mut request = Request::post(format!("{}/v3/{path}", self.options.endpoints[endpoint]))
            .header(header::CONTENT_TYPE, "application/json");
        if path == WATCH {
            // Else etcd's server throws away what it has not read of the request when it begins to answer, and the later ones of
            // several ranges would never be watched. The connection is used for nothing else anyway.
            request = request.header(header::CONNECTION, "close");
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        Ok(self.http.send(request, body.clone()).await?)
    }
}

async fn read_password(path: &Path) -> Result<String, EtcdError> {
    let read = tokio::fs::read_to_string(path).await;
    let password = read.map_err(|error| EtcdError::Refused(format!("{}: {error}", path.display())))?;
    if password.len() > PASSWORD_MAX {
        return Err(EtcdError::Refused(format!("{}: more than {PASSWORD_MAX} bytes", path.display())));
    }
    Ok(password.trim_end_matches(['\r', '\n']).to_owned())
}

/// The file of the password that may take the place of that in `path`.
pub fn next_password(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    name.into()
}

pub(crate) fn encoded(request: &impl Serialize) -> Result<Bytes, EtcdError> {
    let body = serde_json::to_vec(request);
    body.map(Bytes::from).map_err(|error| EtcdError::Refused(format!("no request can be made: {error}")))
}

pub(crate) fn parsed<T: DeserializeOwned>(answer: &[u8]) -> Result<T, EtcdError> {
    // What is no answer of etcd comes from something else at its address: a proxy, a member that stops.
    serde_json::from_slice(answer).map_err(|error| EtcdError::Lost(format!("that is no answer of etcd: {error}")))
}

/// The same of an answer of any size, which holds up nothing else.
pub(crate) async fn parsed_aside<T: DeserializeOwned + Send + 'static>(answer: Bytes) -> Result<T, EtcdError> {
    if answer.len() < ASIDE {
        return parsed(&answer);
    }
    let aside = tokio::task::spawn_blocking(move || parsed(&answer)).await;
    aside.unwrap_or_else(|_| Err(EtcdError::stopping()))
}

pub(crate) fn silence(limit: Duration) -> String {
    format!("no answer within {} s", limit.as_secs())
}
