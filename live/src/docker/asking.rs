//! Questions to an engine: each with a time limit, and what to do when there is no good answer.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, EventMessage, ImageInspect, Network, SystemInfo};
use bollard::query_parameters::{
    EventsOptionsBuilder, InspectContainerOptions, InspectNetworkOptions, ListContainersOptionsBuilder,
    ListNetworksOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::Stream;
use model::Text;
use source::cause::chain;
use tokio::time::timeout;

use super::connect::{Certificates, ConnectError, connect, io_kind};
use super::endpoint::Endpoint;
use crate::moment::Moment;

/// Longest wait for an answer about one thing; engines answer within milliseconds, or hang.
const ASK_TIME: Duration = Duration::from_secs(5);

/// Longest wait for a list: of ten thousand containers an engine needs some seconds.
const LIST_TIME: Duration = Duration::from_secs(30);

/// Oldest version of the API that has all that is asked (Docker 1.12 of 2016).
const OLDEST_API: (u32, u32) = (1, 24);

/// The engine's own bridge by which containers leave the host that are only on networks without a gateway, as overlays are.
const GATEWAY_BRIDGE: &str = "docker_gwbridge";

/// Kinds of events that say something about what is shown.
const EVENTS: [&str; 3] = ["container", "daemon", "network"];

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    /// There is no such thing.
    #[error("there is no such thing")]
    Absent,
    /// No good answer to this question; another one may get it.
    #[error("{0}")]
    NoAnswer(String),
    /// The engine cannot be asked.
    #[error("{0}")]
    Lost(String),
}

/// An engine that answered once.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    docker: Docker,
    endpoint: Endpoint,
}

impl Asking {
    /// Connects, and agrees about a version of the API.
    pub(super) async fn connect(endpoint: &Endpoint, certificates: Option<&Certificates>) -> Result<Self, Trouble> {
        let docker = match connect(endpoint, certificates) {
            Ok(docker) => docker,
            Err(ConnectError::Client(error)) => return Err(trouble(endpoint, &error)),
            Err(error) => return Err(Trouble::Lost(error.to_string())),
        };
        let docker = within(endpoint, ASK_TIME, docker.negotiate_version()).await.map_err(Trouble::lost)?;
        let asking = Self { docker, endpoint: endpoint.clone() };
        let version = asking.ask(ASK_TIME, asking.docker.version()).await.map_err(Trouble::lost)?;
        let newest = format!("{API_DEFAULT_VERSION}");
        check_version(version.api_version.as_deref(), version.min_api_version.as_deref(), &newest)
            .map_err(|problem| Trouble::Lost(format!("the engine at {endpoint} {problem}")))?;
        Ok(asking)
    }

    /// What the engine says of itself.
    pub(super) async fn info(&self) -> Result<SystemInfo, Trouble> {
        self.ask(LIST_TIME, self.docker.info()).await
    }

    /// The ids of all containers, running or not.
    pub(super) async fn list(&self) -> Result<Vec<Text>, Trouble> {
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let found = self.ask(LIST_TIME, self.docker.list_containers(Some(options))).await?;
        Ok(found.into_iter().filter_map(|one| one.id).filter(|id| !id.is_empty()).map(Text::from).collect())
    }

    /// All networks.
    pub(super) async fn networks(&self) -> Result<Vec<Network>, Trouble> {
        self.ask(LIST_TIME, self.docker.list_networks(None::<ListNetworksOptions>)).await
    }

    /// One container.
    pub(super) async fn inspect(&self, id: &str) -> Result<ContainerInspectResponse, Trouble> {
        self.ask(ASK_TIME, self.docker.inspect_container(id, None::<InspectContainerOptions>)).await
    }

    /// The address of a container on the bridge by which those on overlays leave the host; `None` where it is not there.
    ///
    /// No inspection of the container shows it.
    pub(super) async fn address_on_gateway_bridge(&self, id: &str) -> Result<Option<IpAddr>, Trouble> {
        let question = self.docker.inspect_network(GATEWAY_BRIDGE, None::<InspectNetworkOptions>);
        let containers = match self.ask(ASK_TIME, question).await {
            Ok(network) => network.containers.unwrap_or_default(),
            Err(Trouble::Absent) => return Ok(None),
            Err(problem) => return Err(problem),
        };
        let address = containers.get(id).and_then(|on| on.ipv4_address.as_deref()).unwrap_or_default();
        Ok(address.split('/').next().and_then(|address| address.parse().ok()))
    }

    /// One image.
    pub(super) async fn image(&self, id: &str) -> Result<ImageInspect, Trouble> {
        self.ask(ASK_TIME, self.docker.inspect_image(id)).await
    }

    /// Whether the engine still answers.
    pub(super) async fn ping(&self) -> Result<(), Trouble> {
        self.ask(ASK_TIME, self.docker.ping()).await.map(drop).map_err(Trouble::lost)
    }

    /// What happens from this moment of the engine's clock on.
    ///
    /// The engine tells what happened between that moment and the question too, so that nothing is missed in between.
    pub(super) fn events(&self, since: Option<Moment>) -> impl Stream<Item = Result<EventMessage, Trouble>> + use<> {
        let filters = HashMap::from([("type", EVENTS.to_vec())]);
        let mut options = EventsOptionsBuilder::default().filters(&filters);
        if let Some(since) = since {
            options = options.since(&since.since());
        }
        let endpoint = self.endpoint.clone();
        futures_util::StreamExt::map(self.docker.events(Some(options.build())), move |event| {
            event.map_err(|error| trouble(&endpoint, &error).lost())
        })
    }

    async fn ask<T>(&self, limit: Duration, question: impl Future<Output = Result<T, Error>>) -> Result<T, Trouble> {
        within(&self.endpoint, limit, question).await
    }
}

impl Trouble {
    /// The same where without this answer nothing goes on.
    fn lost(self) -> Self {
        match self {
            Self::Absent | Self::NoAnswer(_) => Self::Lost(self.to_string()),
            Self::Lost(_) => self,
        }
    }
}

async fn within<T>(
    endpoint: &Endpoint,
    limit: Duration,
    question: impl Future<Output = Result<T, Error>>,
) -> Result<T, Trouble> {
    match timeout(limit, question).await {
        Ok(answer) => answer.map_err(|error| trouble(endpoint, &error)),
        Err(_) => Err(Trouble::NoAnswer(format!("no answer from {endpoint} within {} s", limit.as_secs()))),
    }
}

/// What an error means, and what to do about it.
fn trouble(endpoint: &Endpoint, error: &Error) -> Trouble {
    match error {
        Error::DockerResponseServerError { status_code: 404, .. } => Trouble::Absent,
        Error::DockerResponseServerError { message, .. } => Trouble::NoAnswer(format!("the engine says: {message}")),
        Error::JsonDataError { .. } | Error::JsonSerdeError { .. } | Error::StrParseError { .. } => {
            Trouble::NoAnswer(format!("the engine's answer is not understood: {}", chain(error)))
        }
        Error::RequestTimeoutError => Trouble::NoAnswer(format!("no answer from {endpoint}")),
        Error::APIVersionParseError {} => {
            Trouble::Lost(format!("what listens at {endpoint} tells no version: is it a Docker Engine?"))
        }
        Error::SocketNotFoundError(_) => Trouble::Lost(absent(endpoint)),
        _ => Trouble::Lost(match io_kind(error) {
            Some(ErrorKind::NotFound) => absent(endpoint),
            Some(ErrorKind::PermissionDenied) => {
                format!("not permitted to open {endpoint}: {}", platform::engine::WHO_MAY)
            }
            Some(ErrorKind::ConnectionRefused) => {
                format!("nobody listens at {endpoint}: is the engine running, and does it listen there?")
            }
            _ => format!("lost the engine at {endpoint}: {}", chain(error)),
        }),
    }
}

fn absent(endpoint: &Endpoint) -> String {
    format!(
        "there is no {endpoint}: start the engine, mount its socket or pipe into this container, or name another endpoint"
    )
}

/// Whether versions of the API are old and new enough; what is wrong names both sides.
fn check_version(engine: Option<&str>, oldest_of_engine: Option<&str>, ours: &str) -> Result<(), String> {
    let parse = |text: &str| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    let (major, minor) = OLDEST_API;
    if let Some(version) = engine.filter(|version| parse(version).is_some_and(|version| version < OLDEST_API)) {
        return Err(format!(
            "speaks version {version} of the API, {major}.{minor} is the oldest that will do: upgrade it"
        ));
    }
    let too_new = |version: &&str| parse(version).zip(parse(ours)).is_some_and(|(oldest, ours)| oldest > ours);
    match oldest_of_engine.filter(too_new) {
        Some(version) => Err(format!(
            "wants version {version} of the API or newer, this program speaks {ours}: upgrade this program"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_do_not_fit_are_both_named() {
        for (engine, oldest, expected) in [
            (Some("1.41"), Some("1.12"), &[][..]),
            (Some("1.60"), Some("1.53"), &[]),
            (None, None, &[]),
            (Some("strange"), Some(""), &[]),
            (Some("1.23"), None, &["1.23", "1.24"]),
            (Some("1.70"), Some("1.60"), &["1.60", "1.53"]),
        ] {
            match check_version(engine, oldest, "1.53") {
                Ok(()) => assert!(expected.is_empty(), "{engine:?}"),
                Err(problem) => {
                    assert!(!expected.is_empty() && expected.iter().all(|part| problem.contains(part)), "{problem}");
                }
            }
        }
    }

    #[tokio::test]
    async fn who_cannot_connect_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let endpoint = Endpoint::Local(socket.display().to_string());
        let told = Asking::connect(&endpoint, None).await.unwrap_err().to_string();
        assert!(told.contains(&endpoint.to_string()) && told.contains("start the engine"), "{told}");
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let told = Asking::connect(&Endpoint::Plain(unused.to_string()), None).await.unwrap_err().to_string();
        assert!(told.contains("is the engine running"), "{told}");
        let told = Asking::connect(&Endpoint::Tls("192.0.2.1:2376".into()), None).await.unwrap_err().to_string();
        assert!(told.contains("--docker-certs"), "{told}");
    }
}
