//! One Docker Engine: requests to start, find and remove containers, and their outcomes.
//!
//! A name is unique on an engine, so a container is created by the name it was promised under: asking twice is found
//! out by the engine. Everything has a time limit, and every failure says whether the engine may have heard.

pub(crate) mod inside;
mod presence;
mod stored_images;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, CreateImageInfo, NetworkConnectRequest, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    ListVolumesOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder, RemoveVolumeOptions,
    StartContainerOptions, StopContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use engine::{ASK_TIME, Certificates, Endpoint, Engine, EngineError, Guard, InImage, is_given};
use futures_util::StreamExt;
use hyper::header::{HeaderName, HeaderValue};
use model::Text;
pub(crate) use model::health::REQUEST_LABEL;
use model::printable::printable;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::place::inventory::PLACEMENT_LABEL;
use crate::place::life::Life;
use crate::place::request::member::ImagePlatform;
use crate::place::request::networks::JoinedNetwork;
use crate::start::container_body::endpoint;
use crate::start::credentials::Credentials;
use crate::start::platforms::of_index;

/// Container label with the id of the attempt that created it, which is not known before.
pub(crate) const ATTEMPT_LABEL: &str = "io.berth.attempt";

/// Container label with the name of the ledger that has its placement.
pub(crate) const LEDGER_LABEL: &str = "io.berth.ledger";

/// Header with the credentials for the registry that an engine is to ask.
const AUTH_HEADER: HeaderName = HeaderName::from_static("x-registry-auth");

/// Longest wait for creating or starting: engines unpack and, on Windows, boot a kernel.
const START_TIME: Duration = Duration::from_secs(30);

/// Most images that are pulled at once on a host before they are needed: an engine extracts layers one after the other, and
/// what runs there needs its network and its disk.
const PULLS_AHEAD_MAX: usize = 2;

/// Longest silence during a pull.
const PULL_SILENCE: Duration = Duration::from_mins(2);

/// Grace of a container that says nothing of its own: how long engines wait before they kill it.
const GRACE_DEFAULT: Duration = Duration::from_secs(10);

/// Last lines of the log of a container that ended at once: enough for an error and what led to it.
const LAST_LINES: &str = "5";

/// Most bytes of these lines that are held: some may be whole documents.
const LAST_LINES_MAX: usize = 64 << 10;

/// Longest text that is shown of them, in characters.
const LAST_WORDS_MAX: usize = 1000;

/// Last lines of the log of a container that is replaced.
const STORED_LINES: &str = "10000";

/// Most requests to one engine at once: engines do them one after another anyway, and each takes a connection.
const REQUESTS_MAX: usize = 32;

/// Most containers that one engine stops at once: each takes a connection for as long as its grace, so these do not
/// wait among the other requests.
const STOPS_MAX: usize = 128;
/// Most questions to one engine at once that it passes on to registries: a unit has at most that many images.
const REGISTRY_REQUESTS_MAX: usize = 32;

/// The error of a request that this scheduler may not send any more.
pub(super) const OVERTAKEN: EngineError = EngineError::Denied(LOST_LEASE);

const LOST_LEASE: &str = "this scheduler lost its lease in etcd, and another one may have taken over";

/// A container that the scheduler has on an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InspectedContainer {
    /// The engine's id.
    pub(crate) id: Text,
    /// The name under which it was promised.
    pub(crate) placement: Option<Text>,
    /// The request by which it was started.
    pub(crate) request: Option<Text>,
    /// The ledger of the scheduler that started it.
    pub(crate) ledger: Option<Text>,
    /// The attempt that created it.
    pub(crate) attempt: Option<Text>,
    /// The digest of its image.
    pub(crate) image: Option<Text>,
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
    /// The request by which it was started.
    pub(crate) request: Option<Text>,
    /// The ledger of the scheduler that started it.
    pub(crate) ledger: Option<Text>,
}

/// One engine. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct DockerEngine {
    engine: Engine,
    slots: Arc<Semaphore>,
    stops: Arc<Semaphore>,
    /// For questions that it passes on to registries, so that no start waits for a registry that is away.
    registry_slots: Arc<Semaphore>,
    /// For images that are pulled before they are needed.
    pulls: Arc<Semaphore>,
    /// When it last answered anything.
    heard: Arc<Mutex<Option<Instant>>>,
}

impl DockerEngine {
    /// The engine there; nothing is asked of it yet.
    pub(crate) fn new(endpoint: Endpoint, certificates: Option<Certificates>) -> Self {
        let [slots, stops, registry_slots, pulls] = [REQUESTS_MAX, STOPS_MAX, REGISTRY_REQUESTS_MAX, PULLS_AHEAD_MAX]
            .map(|places| Arc::new(Semaphore::new(places)));
        let engine = Engine::new(endpoint, certificates);
        Self { engine, slots, stops, registry_slots, pulls, heard: Arc::default() }
    }

    /// The same engine, asked only while `may_act` is true; otherwise the error is [`OVERTAKEN`].
    #[must_use]
    pub(crate) fn guarded(&self, may_act: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { engine: self.engine.guarded(Guard::new(may_act, LOST_LEASE)), ..self.clone() }
    }

    /// Creates a container of this name; returns the engine's id.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<Text, EngineError> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        // A large body would make each future around it large.
        let body = Box::new(body);
        let created = self.ask(START_TIME, |docker| async move { docker.create_container(Some(options), *body).await });
        Ok(self.watched(created).await?.id.into())
    }

    /// Puts a container into a further network; that it is in it already is no error.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn join(&self, container: &str, network: &JoinedNetwork) -> Result<(), EngineError> {
        let config = NetworkConnectRequest {
            container: container.to_owned(),
            endpoint_config: Some(endpoint(&network.aliases)),
        };
        let joined = self.ask(START_TIME, |docker| async move { docker.connect_network(&network.name, config).await });
        match self.watched(joined).await {
            Err(EngineError::Refused(why) | EngineError::Conflict(why))
                if why.contains("already exists in network") =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Puts the files of an archive into it, below its root; folders that are missing are made, and one that stands where a file is to
    /// be is an error: an engine would delete it, and what is mounted below.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn put(&self, container: &str, archive: Vec<u8>) -> Result<(), EngineError> {
        let options = UploadToContainerOptionsBuilder::default().path("/").no_overwrite_dir_non_dir("true").build();
        let body = bollard::body_full(archive.into());
        let put = |docker: Docker| async move { docker.upload_to_container(container, Some(options), body).await };
        self.watched(self.ask(START_TIME, put)).await
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
            ledger: label(LEDGER_LABEL),
            attempt: label(ATTEMPT_LABEL),
            image: found.image.map(Text::from),
            life: Life::of_engine(&found.state.unwrap_or_default()),
            restarts: found.restart_count.unwrap_or_default(),
            grace: grace.map_or(GRACE_DEFAULT, Duration::from_secs),
        })
    }

    /// Whether a container's label with its ledger was given when it was created.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn is_ledger_given(&self, container: &InspectedContainer) -> Result<bool, EngineError> {
        let (Some(ledger), Some(image)) = (&container.ledger, &container.image) else { return Ok(false) };
        let found = match self.ask(ASK_TIME, |docker| async move { docker.inspect_image(image).await }).await {
            Err(EngineError::Absent(_)) => return Ok(is_given(ledger, InImage::Unknown)),
            found => found?,
        };
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        Ok(is_given(ledger, InImage::known(labels.get(LEDGER_LABEL).map(String::as_str))))
    }

    /// The last lines of a container's log in one; empty when there are none to be had.
    pub(crate) async fn last_words(&self, container: &str) -> String {
        let end = self.end_of_log(container, LAST_LINES, LAST_LINES_MAX).await;
        let lines = String::from_utf8_lossy(&end);
        let lines: Vec<_> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        printable(&lines.join(" | "), LAST_WORDS_MAX)
    }

    /// The end of a container's log, at most so many bytes; what could be read of it.
    pub(crate) async fn log(&self, container: &str, most: usize) -> Vec<u8> {
        self.end_of_log(container, STORED_LINES, most).await
    }

    async fn end_of_log(&self, container: &str, lines: &str, most: usize) -> Vec<u8> {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail(lines).build();
        let Ok(docker) = self.engine.client().await else { return Vec::new() };
        let mut log = docker.logs(container, Some(options));
        let mut end = Vec::new();
        let read = async {
            while let Some(Ok(line)) = log.next().await {
                end.extend_from_slice(&line.into_bytes());
                if end.len() > 2 * most {
                    end.drain(..end.len() - most);
                }
            }
        };
        // What was read until then will do.
        let _ = timeout(ASK_TIME, read).await;
        end.drain(..end.len().saturating_sub(most));
        end
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
        let listed = found.into_iter().map(|one| {
            let mut labels = one.labels.unwrap_or_default();
            let mut label = |key: &str| labels.remove(key).map(Text::from);
            ListedContainer {
                id: one.id.unwrap_or_default().into(),
                state: one.state.map_or_else(String::new, |state| state.to_string()).into(),
                placement: label(PLACEMENT_LABEL),
                request: label(REQUEST_LABEL),
                ledger: label(LEDGER_LABEL),
            }
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
        let docker = self.engine.client().await?.with_timeout(limit);
        let stopping = async {
            match timeout(limit, docker.stop_container(&found.id, options)).await {
                Ok(stopped) => stopped.map_err(|error| self.engine.error(error)),
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
        self.remove_with(container, true).await
    }

    /// The same with a container that does not run; the engine refuses when it does.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn remove_stopped(&self, container: &str) -> Result<(), EngineError> {
        self.remove_with(container, false).await
    }

    async fn remove_with(&self, container: &str, force: bool) -> Result<(), EngineError> {
        let options = RemoveContainerOptionsBuilder::default().force(force).v(true).build();
        let removed =
            self.ask(START_TIME, |docker| async move { docker.remove_container(container, Some(options)).await });
        match self.watched(removed).await {
            Err(EngineError::Absent(_)) => Ok(()),
            other => other,
        }
    }

    /// Makes a volume with these labels; one that is there already stays as it is.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn make_volume(
        &self,
        name: &str,
        driver: Option<&str>,
        options: &[(Text, Text)],
        labels: &[(&str, &str)],
    ) -> Result<(), EngineError> {
        let text = |(key, value): &(Text, Text)| (key.to_string(), value.to_string());
        let options: HashMap<String, String> = options.iter().map(text).collect();
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = VolumeCreateRequest {
            name: Some(name.to_owned()),
            driver: driver.map(ToOwned::to_owned),
            labels: Some(labels),
            driver_opts: (!options.is_empty()).then(|| options.clone()),
            ..VolumeCreateRequest::default()
        };
        let made = self.ask(START_TIME, |docker| async move { docker.create_volume(request).await });
        // Of one that is there already the engine says what it is, and changes nothing.
        let there = self.watched(made).await?.options;
        if !options.is_empty() && there != options {
            let text = format!(
                "the volume {name} is there already, with other options than driver_opts: remove it, or name another"
            );
            return Err(EngineError::Refused(text));
        }
        Ok(())
    }

    /// Whether there is a volume of this name.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn has_volume(&self, name: &str) -> Result<bool, EngineError> {
        // Of those whose names contain it.
        Ok(self.listed_volumes("name", vec![name.to_owned()]).await?.iter().any(|own| **own == *name))
    }

    /// The names of volumes that have all these labels.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn volumes_with(&self, labels: &[(&str, &str)]) -> Result<Vec<Text>, EngineError> {
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut names = self.listed_volumes("label", labels).await?;
        names.sort_unstable();
        Ok(names)
    }

    /// The names of volumes that pass a filter of the engine.
    async fn listed_volumes(&self, filter: &str, values: Vec<String>) -> Result<Vec<Text>, EngineError> {
        let filters = HashMap::from([(filter, values)]);
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let found = self.ask(ASK_TIME, |docker| async move { docker.list_volumes(Some(options)).await }).await?;
        Ok(found.volumes.unwrap_or_default().into_iter().map(|one| one.name.into()).collect())
    }

    /// Removes a volume; that there is none is no error.
    ///
    /// # Errors
    ///
    /// What the engine said; [`EngineError::Conflict`] while a container has it.
    pub(crate) async fn remove_volume(&self, name: &str) -> Result<(), EngineError> {
        let none = None::<RemoveVolumeOptions>;
        let removed = self.ask(START_TIME, |docker| async move { docker.remove_volume(name, none).await });
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

    /// Whether the engine has an image of this name.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn has_image(&self, image: &str) -> Result<bool, EngineError> {
        match self.ask(ASK_TIME, |docker| async move { docker.inspect_image(image).await }).await {
            Ok(_) => Ok(true),
            Err(EngineError::Absent(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The turn to pull an image that is not needed yet, until it is dropped.
    pub(crate) async fn turn_to_pull(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.pulls.acquire().await.ok()
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
        let docker = bearing(self.engine.client().await?, credentials);
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
                Ok(Some(Err(error))) => return Err(self.engine.error(error)),
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
        let answer = self.engine.ask(limit, question).await;
        self.note_answer(&answer);
        answer
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
