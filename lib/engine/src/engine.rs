//! One Docker Engine: connected when it is first needed, each request with a time limit, each error by what to do about
//! it.
//!
//! What an engine says is quoted as it is; what a library says of a connection is said in our own words.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bollard::Docker;
use bollard::errors::Error;
use http_client::cause::{chain, innermost};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use crate::connect::{CLIENT_TIME, Certificates, ConnectError, connect, io_kind};
use crate::endpoint::Endpoint;

/// Longest wait for an answer about one thing; engines answer within milliseconds, or hang.
pub const ASK_TIME: Duration = Duration::from_secs(5);

/// An error of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// There is no such thing.
    #[error("{0}")]
    Absent(String),
    /// The name is taken.
    #[error("{0}")]
    Conflict(String),
    /// It will not, and will not if asked again.
    #[error("{0}")]
    Refused(String),
    /// It could not; it may if asked again.
    #[error("{0}")]
    Failed(String),
    /// There was no connection, so it has not received the request.
    #[error("{0}")]
    Unreached(String),
    /// The connection broke: it may have done it.
    #[error("{0}")]
    Lost(String),
    /// It has not answered in time, and may do it yet.
    #[error("its Docker Engine has not answered within {} s", .0.as_secs())]
    Silent(Duration),
    /// The [`Guard`] did not allow the request, for this reason; nothing was sent.
    #[error("{0}")]
    Denied(&'static str),
}

impl EngineError {
    /// Whether asking again at once may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Lost(_))
    }

    /// Whether the engine is not there, or says nothing.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unreached(_) | Self::Silent(_))
    }

    /// Whether there is no connection any more, or never was one.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Unreached(_) | Self::Lost(_))
    }

    /// Whether the engine has certainly not done what it was asked.
    pub fn is_undone(&self) -> bool {
        matches!(self, Self::Absent(_) | Self::Conflict(_) | Self::Refused(_) | Self::Unreached(_))
    }
}

/// Whether an engine may be asked for something just now.
#[derive(Clone)]
pub struct Guard {
    may: Arc<dyn Fn() -> bool + Send + Sync>,
    otherwise: &'static str,
}

impl Guard {
    /// One that asks `may` before each request; if that is false, the request fails with the reason `otherwise`.
    pub fn new(may: impl Fn() -> bool + Send + Sync + 'static, otherwise: &'static str) -> Self {
        Self { may: Arc::new(may), otherwise }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&(self.may)()).finish()
    }
}

/// One engine. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Engine {
    endpoint: Endpoint,
    /// The endpoint in the words in which it is given.
    shown: String,
    certificates: Option<Certificates>,
    client: Arc<OnceCell<Docker>>,
    /// When it could last not be reached at all, and why.
    unreachable: Arc<ArcSwapOption<(Instant, EngineError)>>,
    guard: Option<Guard>,
}

impl Engine {
    /// The engine there; nothing is asked of it yet.
    pub fn new(endpoint: Endpoint, certificates: Option<Certificates>) -> Self {
        let shown = endpoint.to_string();
        let network = shown.strip_prefix("https://").or_else(|| shown.strip_prefix("http://"));
        let shown = network.map_or_else(|| shown.clone(), |address| format!("tcp://{address}"));
        Self { endpoint, shown, certificates, client: Arc::default(), unreachable: Arc::default(), guard: None }
    }

    /// The same engine, of which `guard` allows each single request; otherwise it is [`EngineError::Denied`].
    #[must_use]
    pub fn guarded(&self, guard: Guard) -> Self {
        Self { guard: Some(guard), ..self.clone() }
    }

    /// Asks something and waits at most this long for the answer.
    ///
    /// # Errors
    ///
    /// [`EngineError::Silent`] after `limit`.
    pub async fn ask<T, F>(&self, limit: Duration, question: impl FnOnce(Docker) -> F) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let docker = self.client().await?;
        // The client's futures are larger than all of ours together.
        match timeout(limit, Box::pin(question(docker))).await {
            Ok(answer) => answer.map_err(|error| self.error(error)),
            Err(_) => Err(EngineError::Silent(limit)),
        }
    }

    /// The client, once the engine has said which version of its API it speaks.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached, or the guard does not let it be asked.
    pub async fn client(&self) -> Result<Docker, EngineError> {
        let begun = Instant::now();
        let negotiate = || async {
            // A caller that waited in vain while another one tried does not wait again.
            if let Some((at, error)) = self.unreachable.load().as_deref()
                && *at >= begun
            {
                return Err(error.clone());
            }
            let client = connect(&self.endpoint, self.certificates.as_ref()).map_err(|error| match error {
                ConnectError::NoCertificates(_) => EngineError::Refused(error.to_string()),
                ConnectError::Client(error) => self.error(error),
            })?;
            // It has not been asked to do anything yet.
            match timeout(ASK_TIME, client.negotiate_version()).await {
                Ok(client) => client.map_err(|error| match self.error(error) {
                    EngineError::Lost(why) => EngineError::Unreached(why),
                    other => other,
                }),
                Err(_) => Err(self.silent(ASK_TIME)),
            }
        };
        let client = self.client.get_or_try_init(|| async {
            let client = negotiate().await;
            if let Err(error) = &client {
                self.unreachable.store(Some(Arc::new((Instant::now(), error.clone()))));
            }
            client
        });
        let client = client.await.cloned()?;
        // Last of all, since the caller may have waited for the connection.
        match &self.guard {
            Some(guard) if !(guard.may)() => Err(EngineError::Denied(guard.otherwise)),
            _ => Ok(client),
        }
    }

    /// What an error of the client means.
    pub fn error(&self, error: Error) -> EngineError {
        let at = &self.shown;
        match error {
            Error::DockerResponseServerError { status_code, message } => match status_code {
                404 => EngineError::Absent(message),
                409 => EngineError::Conflict(message),
                400..=499 => EngineError::Refused(message),
                _ => EngineError::Failed(message),
            },
            Error::DockerStreamError { error } => EngineError::Failed(error),
            Error::RequestTimeoutError => EngineError::Silent(CLIENT_TIME),
            Error::SocketNotFoundError(_) => self.unreached(NO_SOCKET, START_IT),
            Error::HyperLegacyError { err } if err.is_connect() => {
                let advice = match io_kind(&err) {
                    Some(ErrorKind::NotFound) => START_IT,
                    Some(ErrorKind::PermissionDenied) => platform::engine::WHO_MAY,
                    _ => IS_IT_RUNNING,
                };
                self.unreached(&plain_cause(&err), advice)
            }
            Error::JsonDataError { .. } | Error::JsonSerdeError { .. } | Error::StrParseError { .. } => {
                let why = chain(&error);
                EngineError::Failed(format!("the answer of the Docker Engine at {at} is not understood: {why}"))
            }
            Error::APIVersionParseError {} => {
                EngineError::Lost(format!("what listens at {at} states no version: is it a Docker Engine?"))
            }
            other => {
                let why = plain_cause(&other);
                EngineError::Lost(format!("the connection to the Docker Engine at {at} broke: {why}"))
            }
        }
    }

    /// The error of an engine that answers not even a ping, and so has received no request.
    pub fn silent(&self, limit: Duration) -> EngineError {
        self.unreached(&format!("no answer within {} s", limit.as_secs()), IS_IT_RUNNING)
    }

    fn unreached(&self, why: &str, advice: &str) -> EngineError {
        EngineError::Unreached(format!("the Docker Engine at {} cannot be reached: {why}; {advice}", self.shown))
    }
}

/// What is said of an endpoint without a socket or pipe.
const NO_SOCKET: &str = "there is no such socket";

const START_IT: &str =
    "is it running? Otherwise start the engine, mount its socket or pipe into this container, or name another endpoint";

const IS_IT_RUNNING: &str = "is it running?";

/// The innermost cause in words that need no knowledge of the system.
fn plain_cause(error: &(dyn std::error::Error + 'static)) -> String {
    match io_kind(error) {
        Some(ErrorKind::ConnectionRefused) => "connection refused".into(),
        Some(ErrorKind::NotFound) => NO_SOCKET.into(),
        Some(ErrorKind::TimedOut) => "no connection in time".into(),
        Some(ErrorKind::PermissionDenied) => "permission denied".into(),
        Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof) => "it was closed".into(),
        _ => innermost(error),
    }
}
