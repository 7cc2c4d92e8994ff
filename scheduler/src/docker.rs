//! One Docker Engine: what is asked of it to start, find and remove containers, and what became of that.
//!
//! A name is unique on an engine, so a container is created by the name it was promised under: asking twice is found
//! out by the engine. Everything has a time limit, and every failure says whether the engine may have heard.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, CreateImageInfo};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions,
};
use futures_util::StreamExt;
use hyper::header::{HeaderName, HeaderValue};
use live::docker::{CLIENT_TIME, Certificates, ConnectError, Endpoint, connect};
use model::Text;
use source::cause::chain;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

use crate::credentials::Credentials;
use crate::inventory::PLACEMENT_LABEL;
use crate::platforms::of_index;
use crate::request::member::ImagePlatform;

/// Container label with the id of the request by which it was started.
pub const REQUEST_LABEL: &str = "io.berth.request";

/// Header with the credentials for the registry that an engine is to ask.
const AUTH_HEADER: HeaderName = HeaderName::from_static("x-registry-auth");

/// Longest wait for creating or starting: engines unpack and, on Windows, boot a kernel.
const START_TIME: Duration = Duration::from_secs(30);

/// Longest wait for anything else.
const ASK_TIME: Duration = Duration::from_secs(5);

/// Longest silence during a pull.
const PULL_SILENCE: Duration = Duration::from_mins(2);

/// Most requests to one engine at once: engines do them one after another anyway, and each takes a connection.
const REQUESTS_MAX: usize = 32;

/// Most questions to one engine at once that it passes on to registries: a unit has so many images at most.
const REGISTRY_REQUESTS_MAX: usize = 32;

/// Why an engine did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
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
    /// The connection broke or was never made: it may have done it.
    #[error("{0}")]
    Lost(String),
    /// It has not answered in time, and may do it yet.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
}

impl Trouble {
    /// Whether asking again may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Lost(_) | Self::Silent(_))
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { status_code, message } => match status_code {
                404 => Self::Absent(message),
                409 => Self::Conflict(message),
                400..=499 => Self::Refused(message),
                _ => Self::Failed(message),
            },
            Error::DockerStreamError { error } => Self::Failed(error),
            Error::RequestTimeoutError => Self::Silent(CLIENT_TIME),
            Error::SocketNotFoundError(path) => Self::Lost(format!("there is no engine at {path}")),
            other => Self::Lost(chain(&other)),
        }
    }
}

impl From<ConnectError> for Trouble {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::NoCertificates(_) => Self::Refused(error.to_string()),
            ConnectError::Client(error) => error.into(),
        }
    }
}

/// A container that the scheduler has on an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The engine's id.
    pub id: Text,
    /// The name under which it was promised.
    pub placement: Option<Text>,
    /// The request by which it was started.
    pub request: Option<Text>,
}

/// One engine.
#[derive(Debug)]
pub struct DockerEngine {
    endpoint: Endpoint,
    certificates: Option<Certificates>,
    client: OnceCell<Docker>,
    slots: Semaphore,
    /// For questions that it passes on to registries, so that no start waits for a registry that is away.
    registry_slots: Semaphore,
}

impl DockerEngine {
    /// The engine there; nothing is asked of it yet.
    pub fn new(endpoint: Endpoint, certificates: Option<Certificates>) -> Self {
        let (slots, registry_slots) = (Semaphore::new(REQUESTS_MAX), Semaphore::new(REGISTRY_REQUESTS_MAX));
        Self { endpoint, certificates, client: OnceCell::new(), slots, registry_slots }
    }

    /// Creates a container of this name; gives the engine's id.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<Text, Trouble> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.ask(START_TIME, |docker| async move { docker.create_container(Some(options), body).await });
        Ok(created.await?.id.into())
    }

    /// Starts it; that it runs already is no error.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub async fn start(&self, container: &str) -> Result<(), Trouble> {
        let none = None::<StartContainerOptions>;
        self.ask(START_TIME, |docker| async move { docker.start_container(container, none).await }).await
    }

    /// The container of this name.
    ///
    /// # Errors
    ///
    /// What the engine said; [`Trouble::Absent`] when there is none.
    pub async fn find(&self, name: &str) -> Result<Found, Trouble> {
        let none = None::<InspectContainerOptions>;
        let found = self.ask(ASK_TIME, |docker| async move { docker.inspect_container(name, none).await }).await?;
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        Ok(described(found.id, &labels))
    }

    /// All containers that schedulers started there.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub async fn list(&self) -> Result<Vec<Found>, Trouble> {
        let filters = HashMap::from([("label", vec![PLACEMENT_LABEL])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let found = self.ask(ASK_TIME, |docker| async move { docker.list_containers(Some(options)).await }).await?;
        Ok(found.into_iter().map(|one| described(one.id, &one.labels.unwrap_or_default())).collect())
    }

    /// Removes a container, running or not; that there is none is no error.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub async fn remove(&self, container: &str) -> Result<(), Trouble> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed =
            self.ask(START_TIME, |docker| async move { docker.remove_container(container, Some(options)).await });
        match removed.await {
            Err(Trouble::Absent(_)) => Ok(()),
            other => other,
        }
    }

    /// For which systems an image is there, as its registry says.
    ///
    /// # Errors
    ///
    /// What the engine said, as when there is no such registry.
    pub async fn platforms(
        &self,
        image: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Vec<ImagePlatform>, Trouble> {
        let index = self.ask_among(&self.registry_slots, ASK_TIME, |docker| async move {
            bearing(docker, credentials).inspect_registry_image(image, None).await
        });
        Ok(of_index(&index.await?.platforms))
    }

    /// Pulls an image, and tells how far it got.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub async fn pull(
        &self,
        image: &str,
        credentials: Option<&Credentials>,
        mut tell: impl FnMut(CreateImageInfo),
    ) -> Result<(), Trouble> {
        let docker = bearing(self.client().await?, credentials);
        let tail = image.rsplit('/').next().unwrap_or(image);
        // Without a tag engines pull all there are.
        let image = if tail.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") };
        let options = CreateImageOptionsBuilder::default().from_image(&image).build();
        let mut told = docker.create_image(Some(options), None, None);
        loop {
            match timeout(PULL_SILENCE, told.next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(Ok(info))) => match info.error_detail.as_ref().and_then(|detail| detail.message.clone()) {
                    Some(message) => return Err(Trouble::Failed(message)),
                    None => tell(info),
                },
                Ok(Some(Err(error))) => return Err(error.into()),
                Err(_) => return Err(Trouble::Silent(PULL_SILENCE)),
            }
        }
    }

    /// Asks something, when it is our turn.
    fn ask<T, F>(&self, limit: Duration, question: impl FnOnce(Docker) -> F) -> impl Future<Output = Result<T, Trouble>>
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
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, Error>>,
    {
        // The semaphore is never closed.
        let _slot = slots.acquire().await;
        let docker = self.client().await?;
        // The client's futures are larger than all of ours together.
        match timeout(limit, Box::pin(question(docker))).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Trouble::Silent(limit)),
        }
    }

    /// The client, once the engine has said which version of its API it speaks.
    async fn client(&self) -> Result<Docker, Trouble> {
        let negotiate = || async {
            let client = connect(&self.endpoint, self.certificates.as_ref())?;
            match timeout(ASK_TIME, client.negotiate_version()).await {
                Ok(client) => Ok(client?),
                // It has not been asked to do anything yet.
                Err(_) => Err(Trouble::Failed(format!("no answer within {} s", ASK_TIME.as_secs()))),
            }
        };
        self.client.get_or_try_init(negotiate).await.cloned()
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

fn described(id: Option<String>, labels: &HashMap<String, String>) -> Found {
    let label = |key: &str| labels.get(key).map(|value| Text::from(value.as_str()));
    Found { id: id.unwrap_or_default().into(), placement: label(PLACEMENT_LABEL), request: label(REQUEST_LABEL) }
}
