//! One Docker Engine: requests to start, find and remove containers, and their outcomes.
//!
//! A name is unique on an engine, so a container is created by the name it was promised under: asking twice is found
//! out by the engine. Everything has a time limit, and every failure says whether the engine may have heard.
//! What an engine says is quoted as it is; what a library says of a connection is said in our own words.

mod presence;

use std::collections::HashMap;
use std::fmt;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, CreateImageInfo};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    LogsOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions, StopContainerOptionsBuilder,
};
use futures_util::StreamExt;
use hyper::header::{HeaderName, HeaderValue};
use live::docker::{CLIENT_TIME, Certificates, ConnectError, Endpoint, connect};
use model::Text;
use source::cause::{chain, innermost};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{Instant, timeout};

use crate::lock::lock;
use crate::place::inventory::PLACEMENT_LABEL;
use crate::place::life::Life;
use crate::place::request::member::ImagePlatform;
use crate::start::credentials::Credentials;
use crate::start::platforms::of_index;

/// Container label with the id of the request by which it was started.
pub(crate) const REQUEST_LABEL: &str = "io.berth.request";

/// Container label with the id of the attempt that created it, which is not known before.
pub(crate) const ATTEMPT_LABEL: &str = "io.berth.attempt";

/// Header with the credentials for the registry that an engine is to ask.
const AUTH_HEADER: HeaderName = HeaderName::from_static("x-registry-auth");

/// Longest wait for creating or starting: engines unpack and, on Windows, boot a kernel.
const START_TIME: Duration = Duration::from_secs(30);

/// Longest wait for anything else.
const ASK_TIME: Duration = Duration::from_secs(5);

/// Longest silence during a pull.
const PULL_SILENCE: Duration = Duration::from_mins(2);

/// Grace of a container that says nothing of its own: how long engines wait before they kill it.
const GRACE_DEFAULT: Duration = Duration::from_secs(10);

/// Last lines of the log of a container that ended at once: enough for an error and what led to it.
const LOG_LINES: &str = "5";

/// Longest text of these lines, in characters.
const LOG_MAX: usize = 1000;

/// Most requests to one engine at once: engines do them one after another anyway, and each takes a connection.
const REQUESTS_MAX: usize = 32;

/// Most containers that one engine stops at once: each takes a connection for as long as its grace, so these do not
/// wait among the other requests.
const STOPS_MAX: usize = 128;
/// Most questions to one engine at once that it passes on to registries: a unit has at most that many images.
const REGISTRY_REQUESTS_MAX: usize = 32;

/// Why an engine did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EngineError {
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
    /// There was no connection, so it has not heard of it.
    #[error("{0}")]
    Unreached(String),
    /// The connection broke: it may have done it.
    #[error("{0}")]
    Lost(String),
    /// It has not answered in time, and may do it yet.
    #[error("its Docker Engine has not answered within {} s", .0.as_secs())]
    Silent(Duration),
    /// It was not asked, because another scheduler may have taken over.
    #[error("this scheduler lost its lease in etcd, and another one may have taken over")]
    Overtaken,
}

impl EngineError {
    /// Whether asking again at once may help.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Lost(_))
    }

    /// Whether the engine is not there, or says nothing.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Self::Unreached(_) | Self::Silent(_))
    }

    /// Whether the engine has certainly not done what it was asked.
    pub(crate) fn is_undone(&self) -> bool {
        matches!(self, Self::Absent(_) | Self::Conflict(_) | Self::Refused(_) | Self::Unreached(_))
    }
}

/// A container that the scheduler has on an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InspectedContainer {
    /// The engine's id.
    pub(crate) id: Text,
    /// The name under which it was promised.
    pub(crate) placement: Option<Text>,
    /// The request by which it was started.
    pub(crate) request: Option<Text>,
    /// The attempt that created it.
    pub(crate) attempt: Option<Text>,
    /// How it is.
    pub(crate) life: Life,
    /// How often the engine has started it again.
    pub(crate) restarts: i64,
    /// How long it has to end when it is stopped.
    pub(crate) grace: Duration,
}

/// A container in the list of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedContainer {
    /// The engine's id.
    pub(crate) id: Text,
    /// Its state in the engine's word.
    pub(crate) state: Text,
    /// The name under which it was promised.
    pub(crate) placement: Option<Text>,
}

/// Whether an engine may be asked for something just now.
#[derive(Clone)]
pub(crate) struct Guard(Arc<dyn Fn() -> bool + Send + Sync>);

impl Guard {
    pub(crate) fn new(may: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may))
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&(self.0)()).finish()
    }
}

/// One engine. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct DockerEngine {
    endpoint: Endpoint,
    /// The endpoint in the words in which it is given.
    shown: String,
    certificates: Option<Certificates>,
    client: Arc<OnceCell<Docker>>,
    slots: Arc<Semaphore>,
    stops: Arc<Semaphore>,
    /// For questions that it passes on to registries, so that no start waits for a registry that is away.
    registry_slots: Arc<Semaphore>,
    /// When it last answered anything.
    heard: Arc<Mutex<Option<Instant>>>,
    /// When it could last not be reached at all, and why.
    unreachable: Arc<Mutex<Option<(Instant, EngineError)>>>,
    guard: Option<Guard>,
}

impl DockerEngine {
    /// The engine there; nothing is asked of it yet.
    pub(crate) fn new(endpoint: Endpoint, certificates: Option<Certificates>) -> Self {
        let shown = endpoint.to_string();
        let network = shown.strip_prefix("https://").or_else(|| shown.strip_prefix("http://"));
        let shown = network.map_or_else(|| shown.clone(), |address| format!("tcp://{address}"));
        let [slots, stops, registry_slots] =
            [REQUESTS_MAX, STOPS_MAX, REGISTRY_REQUESTS_MAX].map(|places| Arc::new(Semaphore::new(places)));
        let (client, heard, unreachable) = (Arc::default(), Arc::default(), Arc::default());
        Self { endpoint, shown, certificates, client, slots, stops, registry_slots, heard, unreachable, guard: None }
    }

    /// The same engine, of which `guard` allows each single question; otherwise it is [`EngineError::Overtaken`].
    #[must_use]
    pub(crate) fn guarded(&self, guard: Guard) -> Self {
        Self { guard: Some(guard), ..self.clone() }
    }

    /// Creates a container of this name; returns the engine's id.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<Text, EngineError> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.ask(START_TIME, |docker| async move { docker.create_container(Some(options), body).await });
        Ok(self.watched(created).await?.id.into())
    }

    /// Starts it; that it runs already is no error.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn start(&self, container: &str) -> Result<(), EngineError> {
        let none = None::<StartContainerOptions>;
        self.watched(self.ask(START_TIME, |docker| async move { docker.start_container(container, none).await })).await
    }

    /// The container of this name.
    ///
    /// # Errors
    ///
    /// What the engine said; [`EngineError::Absent`] when there is none.
    pub(crate) async fn find(&self, name: &str) -> Result<InspectedContainer, EngineError> {
        let none = None::<InspectContainerOptions>;
        let found = self.ask(ASK_TIME, |docker| async move { docker.inspect_container(name, none).await }).await?;
        let config = found.config.unwrap_or_default();
        let labels = config.labels.unwrap_or_default();
        let label = |key: &str| labels.get(key).map(|value| Text::from(value.as_str()));
        let grace = config.stop_timeout.and_then(|seconds| u64::try_from(seconds).ok());
        Ok(InspectedContainer {
            id: found.id.unwrap_or_default().into(),
            placement: label(PLACEMENT_LABEL),
            request: label(REQUEST_LABEL),
            attempt: label(ATTEMPT_LABEL),
            life: Life::of_engine(&found.state.unwrap_or_default()),
            restarts: found.restart_count.unwrap_or_default(),
            grace: grace.map_or(GRACE_DEFAULT, Duration::from_secs),
        })
    }

    /// The last lines of a container's log in one; empty when there are none to be had.
    pub(crate) async fn last_words(&self, container: &str) -> String {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail(LOG_LINES).build();
        let Ok(docker) = self.client().await else { return String::new() };
        let mut log = docker.logs(container, Some(options));
        let mut lines = String::new();
        let read = async {
            while let Some(Ok(line)) = log.next().await {
                lines.push_str(&line.to_string());
            }
        };
        // What was read until then will do.
        let _ = timeout(ASK_TIME, read).await;
        let lines: Vec<_> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines.join(" | ").chars().filter(|char| !char.is_control()).take(LOG_MAX).collect()
    }

    /// All containers that schedulers started there.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn list(&self) -> Result<Vec<ListedContainer>, EngineError> {
        self.list_with(PLACEMENT_LABEL.to_owned()).await
    }

    /// All containers there that were started for a request, even if they were renamed.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn list_of(&self, request: &str) -> Result<Vec<ListedContainer>, EngineError> {
        self.list_with(format!("{REQUEST_LABEL}={request}")).await
    }

    async fn list_with(&self, label: String) -> Result<Vec<ListedContainer>, EngineError> {
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let found = self.ask(ASK_TIME, |docker| async move { docker.list_containers(Some(options)).await }).await?;
        let listed = found.into_iter().map(|one| ListedContainer {
            id: one.id.unwrap_or_default().into(),
            state: one.state.map_or_else(String::new, |state| state.to_string()).into(),
            placement: one.labels.and_then(|mut labels| labels.remove(PLACEMENT_LABEL)).map(Text::from),
        });
        Ok(listed.collect())
    }

    /// Asks a container to end by its own signal, waits for `grace`, or for its own when there is none, and kills it
    /// then.
    ///
    /// # Errors
    ///
    /// What the engine said; [`EngineError::Absent`] when there is none.
    pub(crate) async fn stop(&self, found: &InspectedContainer, grace: Option<Duration>) -> Result<(), EngineError> {
        let limit = grace.unwrap_or(found.grace) + START_TIME;
        let options = grace.map(|grace| {
            let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
            StopContainerOptionsBuilder::default().t(seconds).build()
        });
        // The semaphore is never closed.
        let _slot = self.stops.acquire().await;
        let docker = self.client().await?.with_timeout(limit);
        let stopping = async {
            match timeout(limit, docker.stop_container(&found.id, options)).await {
                Ok(stopped) => stopped.map_err(|error| self.trouble(error)),
                Err(_) => Err(EngineError::Silent(limit)),
            }
        };
        self.watched(stopping).await
    }

    /// Removes a container, running or not; that there is none is no error.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn remove(&self, container: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed =
            self.ask(START_TIME, |docker| async move { docker.remove_container(container, Some(options)).await });
        match self.watched(removed).await {
            Err(EngineError::Absent(_)) => Ok(()),
            other => other,
        }
    }

    /// For which systems an image is there, as its registry says.
    ///
    /// # Errors
    ///
    /// What the engine said, as when there is no such registry.
    pub(crate) async fn platforms(
        &self,
        image: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Vec<ImagePlatform>, EngineError> {
        let index = self.ask_among(&self.registry_slots, ASK_TIME, |docker| async move {
            bearing(docker, credentials).inspect_registry_image(image, None).await
        });
        Ok(of_index(&index.await?.platforms))
    }

    /// Pulls an image and reports progress.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn pull(
        &self,
        image: &str,
        credentials: Option<&Credentials>,
        mut on_progress: impl FnMut(CreateImageInfo),
    ) -> Result<(), EngineError> {
        let docker = bearing(self.client().await?, credentials);
        let tail = image.rsplit('/').next().unwrap_or(image);
        // Without a tag engines pull all there are.
        let image = if tail.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") };
        let options = CreateImageOptionsBuilder::default().from_image(&image).build();
        let mut pulling = docker.create_image(Some(options), None, None);
        loop {
            let next = async { Ok(timeout(PULL_SILENCE, pulling.next()).await) };
            match self.watched(next).await? {
                Ok(None) => return Ok(()),
                Ok(Some(Ok(info))) => match info.error_detail.as_ref().and_then(|detail| detail.message.clone()) {
                    Some(message) => return Err(EngineError::Failed(message)),
                    None => on_progress(info),
                },
                Ok(Some(Err(error))) => return Err(self.trouble(error)),
                Err(_) => return Err(EngineError::Silent(PULL_SILENCE)),
            }
        }
    }

    /// Asks something, when it is our turn.
    fn ask<T, F>(
        &self,
        limit: Duration,
        question: impl FnOnce(Docker) -> F,
    ) -> impl Future<Output = Result<T, EngineError>>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.ask_among(&self.slots, limit, question)
    }

    async fn ask_among<T, F>(
        &self,
        slots: &Semaphore,
        limit: Duration,
        question: impl FnOnce(Docker) -> F,
    ) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        // The semaphore is never closed.
        let _slot = slots.acquire().await;
        let docker = self.client().await?;
        // The client's futures are larger than all of ours together.
        let answer = match timeout(limit, Box::pin(question(docker))).await {
            Ok(answer) => answer.map_err(|error| self.trouble(error)),
            Err(_) => Err(EngineError::Silent(limit)),
        };
        self.note_answer(&answer);
        answer
    }

    /// The error of a request, in our words where they are not the engine's.
    fn trouble(&self, error: Error) -> EngineError {
        match error {
            Error::DockerResponseServerError { status_code, message } => match status_code {
                404 => EngineError::Absent(message),
                409 => EngineError::Conflict(message),
                400..=499 => EngineError::Refused(message),
                _ => EngineError::Failed(message),
            },
            Error::DockerStreamError { error } => EngineError::Failed(error),
            Error::RequestTimeoutError => EngineError::Silent(CLIENT_TIME),
            Error::SocketNotFoundError(_) => self.unreached(NO_SOCKET),
            Error::HyperLegacyError { err } if err.is_connect() => self.unreached(&plain_cause(&err)),
            Error::JsonDataError { .. } | Error::JsonSerdeError { .. } | Error::StrParseError { .. } => {
                EngineError::Failed(format!(
                    "the answer of the Docker Engine at {} is not understood: {}",
                    self.shown,
                    chain(&error)
                ))
            }
            other => EngineError::Lost(format!(
                "the connection to the Docker Engine at {} broke: {}",
                self.shown,
                plain_cause(&other)
            )),
        }
    }

    fn unreached(&self, why: &str) -> EngineError {
        EngineError::Unreached(format!("the Docker Engine at {} cannot be reached: {why}; is it running?", self.shown))
    }

    /// The client, once the engine has said which version of its API it speaks.
    async fn client(&self) -> Result<Docker, EngineError> {
        let begun = Instant::now();
        let negotiate = || async {
            // A caller that waited for another one's failed try does not wait again.
            if let Some((at, trouble)) = &*lock(&self.unreachable)
                && *at >= begun
            {
                return Err(trouble.clone());
            }
            let client = connect(&self.endpoint, self.certificates.as_ref()).map_err(|error| match error {
                ConnectError::NoCertificates(_) => EngineError::Refused(error.to_string()),
                ConnectError::Client(error) => self.trouble(error),
            })?;
            // It has not been asked to do anything yet.
            match timeout(ASK_TIME, client.negotiate_version()).await {
                Ok(client) => client.map_err(|error| match self.trouble(error) {
                    EngineError::Lost(why) => EngineError::Unreached(why),
                    other => other,
                }),
                Err(_) => Err(self.unreached(&format!("no answer within {} s", ASK_TIME.as_secs()))),
            }
        };
        let client = self.client.get_or_try_init(|| async {
            let client = negotiate().await;
            if let Err(trouble) = &client {
                *lock(&self.unreachable) = Some((Instant::now(), trouble.clone()));
            }
            client
        });
        let client = client.await.cloned()?;
        // The last check before it is asked, after everything that may wait.
        if self.guard.as_ref().is_some_and(|guard| !(guard.0)()) { Err(EngineError::Overtaken) } else { Ok(client) }
    }
}

/// The client with credentials for the registry that the engine is to ask.
///
/// The header is ours: engines read only the alphabet of base64 that is safe in URLs, and the client writes the other.
fn bearing(docker: Docker, credentials: Option<&Credentials>) -> Docker {
    let header = credentials.and_then(|credentials| HeaderValue::from_str(&credentials.header()).ok());
    let Some(mut header) = header else { return docker };
    header.set_sensitive(true);
    docker.with_request_modifier(move |mut request| {
        request.headers_mut().insert(AUTH_HEADER, header.clone());
        request
    })
}

/// What is said of an endpoint without a socket or pipe.
const NO_SOCKET: &str = "there is no such socket";

/// The innermost cause in words that need no knowledge of the system.
fn plain_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    let io = causes.find_map(|cause| cause.downcast_ref::<std::io::Error>());
    match io.map(std::io::Error::kind) {
        Some(ErrorKind::ConnectionRefused) => "connection refused".into(),
        Some(ErrorKind::NotFound) => NO_SOCKET.into(),
        Some(ErrorKind::TimedOut) => "no connection in time".into(),
        Some(ErrorKind::PermissionDenied) => "permission denied".into(),
        Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof) => "it was closed".into(),
        _ => innermost(error),
    }
}
