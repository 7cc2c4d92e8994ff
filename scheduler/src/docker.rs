//! One Docker Engine: what is asked of it to start, find and remove containers, and what became of that.
//!
//! A name is unique on an engine, so a container is created by the name it was promised under: asking twice is found
//! out by the engine. Everything has a time limit, and every failure says whether the engine may have heard.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, CreateImageInfo};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use futures_util::StreamExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use model::Text;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::inventory::PLACEMENT_LABEL;

/// Container label with the id of the request by which it was started.
pub const REQUEST_LABEL: &str = "io.berth.request";

/// Longest wait for creating or starting: engines unpack and, on Windows, boot a kernel.
const START_TIME: Duration = Duration::from_secs(30);

/// Longest wait for anything else.
const ASK_TIME: Duration = Duration::from_secs(5);

/// Longest silence during a pull.
const PULL_SILENCE: Duration = Duration::from_mins(2);

/// Most requests to one engine at once: engines do them one after another anyway, and each takes a connection.
const REQUESTS_MAX: usize = 32;

/// Limit of the client itself, above all others.
const CLIENT_SECONDS: u64 = 120;

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
            Error::RequestTimeoutError => Self::Silent(Duration::from_secs(CLIENT_SECONDS)),
            Error::SocketNotFoundError(path) => Self::Lost(format!("there is no engine at {path}")),
            other => Self::Lost(chain(&other)),
        }
    }
}

/// An error with what caused it: the outermost rarely says more than that there was one.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
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

/// The certificates by which engines know us and we know them.
#[derive(Clone, Debug)]
pub struct Certificates(Arc<rustls::ClientConfig>);

impl Certificates {
    /// `ca.pem`, `cert.pem` and `key.pem` in a folder, as Docker's own client has them.
    ///
    /// # Errors
    ///
    /// Which file is wrong.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let path = |name: &str| folder.join(name);
        let list = |path: &PathBuf| -> Result<Vec<CertificateDer<'static>>, String> {
            let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let found = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
            let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| wrong(&error))?;
            if found.is_empty() { Err(wrong(&"no certificate")) } else { Ok(found) }
        };
        let mut roots = rustls::RootCertStore::empty();
        // Only who has a certificate of this authority is an engine of ours, whatever the system trusts.
        for certificate in list(&path("ca.pem"))? {
            roots.add(certificate).map_err(|error| format!("{}: {error}", path("ca.pem").display()))?;
        }
        let key = PrivateKeyDer::from_pem_file(path("key.pem"))
            .map_err(|error| format!("{}: {error}", path("key.pem").display()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_client_auth_cert(list(&path("cert.pem"))?, key)
            .map_err(|error| format!("{}: {error}", path("cert.pem").display()))?;
        Ok(Self(Arc::new(config)))
    }
}

/// One engine.
#[derive(Debug)]
pub struct DockerEngine {
    endpoint: Endpoint,
    certificates: Option<Certificates>,
    client: OnceCell<Docker>,
    slots: Semaphore,
}

impl DockerEngine {
    /// The engine there; nothing is asked of it yet.
    pub fn new(endpoint: Endpoint, certificates: Option<Certificates>) -> Self {
        Self { endpoint, certificates, client: OnceCell::new(), slots: Semaphore::new(REQUESTS_MAX) }
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

    /// Pulls an image, and tells how far it got.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub async fn pull(&self, image: &str, mut tell: impl FnMut(CreateImageInfo)) -> Result<(), Trouble> {
        let docker = self.client().await?;
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
    async fn ask<T, F>(&self, limit: Duration, question: impl FnOnce(Docker) -> F) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, Error>>,
    {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        let docker = self.client().await?;
        match timeout(limit, question(docker)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Trouble::Silent(limit)),
        }
    }

    /// The client, once the engine has said which version of its API it speaks.
    async fn client(&self) -> Result<Docker, Trouble> {
        let negotiate = || async {
            let client = self.connect()?;
            match timeout(ASK_TIME, client.negotiate_version()).await {
                Ok(client) => Ok(client?),
                // It has not been asked to do anything yet.
                Err(_) => Err(Trouble::Failed(format!("no answer within {} s", ASK_TIME.as_secs()))),
            }
        };
        self.client.get_or_try_init(negotiate).await.cloned()
    }

    fn connect(&self) -> Result<Docker, Trouble> {
        Ok(match (&self.endpoint, &self.certificates) {
            (Endpoint::Local(path), _) => Docker::connect_with_socket(path, CLIENT_SECONDS, API_DEFAULT_VERSION)?,
            (Endpoint::Plain(address), _) => {
                Docker::connect_with_http(&format!("http://{address}"), CLIENT_SECONDS, API_DEFAULT_VERSION)?
            }
            (Endpoint::Tls(_), None) => return Err(Trouble::Refused("there are no certificates for it".into())),
            (Endpoint::Tls(address), Some(Certificates(config))) => {
                let connector: HttpsConnector<HttpConnector> = HttpsConnectorBuilder::new()
                    .with_tls_config((**config).clone())
                    .https_only()
                    .enable_http1()
                    .build();
                let client = Client::builder(TokioExecutor::new()).build(connector);
                let transport = move |request: BollardRequest| {
                    let client = client.clone();
                    async move { client.request(request).await.map_err(Error::from) }
                };
                let address = Some(format!("https://{address}"));
                Docker::connect_with_custom_transport(transport, address, CLIENT_SECONDS, API_DEFAULT_VERSION)?
            }
        })
    }
}

fn described(id: Option<String>, labels: &HashMap<String, String>) -> Found {
    let label = |key: &str| labels.get(key).map(|value| Text::from(value.as_str()));
    Found { id: id.unwrap_or_default().into(), placement: label(PLACEMENT_LABEL), request: label(REQUEST_LABEL) }
}
