//! What the source asks an engine.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, EventMessage, ImageInspect, Network, SystemInfo};
use bollard::query_parameters::{
    EventsOptionsBuilder, InspectContainerOptions, InspectNetworkOptions, ListContainersOptionsBuilder,
    ListNetworksOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use engine::{ASK_TIME, Certificates, Endpoint, Engine, EngineError};
use futures_util::Stream;
use model::Text;

use crate::moment::Moment;

/// Longest wait for a list: of ten thousand containers an engine needs some seconds.
const LIST_TIME: Duration = Duration::from_secs(30);

/// Oldest version of the API that has all that is asked (Docker 1.12 of 2016).
const OLDEST_API: (u32, u32) = (1, 24);

/// The engine's own bridge by which containers leave the host that are only on networks without a gateway, as overlays
/// are.
pub(super) const GATEWAY_BRIDGE: &str = "docker_gwbridge";

/// Kinds of events that say something about what is shown.
const EVENTS: [&str; 3] = ["container", "daemon", "network"];

/// An engine that answered once.
#[derive(Clone, Debug)]
pub(super) struct EngineClient {
    engine: Engine,
    docker: Docker,
}

impl EngineClient {
    /// Connects, and agrees about a version of the API.
    pub(super) async fn connect(endpoint: &Endpoint, certificates: Option<&Certificates>) -> Result<Self, EngineError> {
        let engine = Engine::new(endpoint.clone(), certificates.cloned());
        let docker = engine.client().await?;
        let version = engine.ask(ASK_TIME, |docker| async move { docker.version().await }).await?;
        let newest = format!("{API_DEFAULT_VERSION}");
        check_version(version.api_version.as_deref(), version.min_api_version.as_deref(), &newest)
            .map_err(|problem| EngineError::Refused(format!("the engine at {endpoint} {problem}")))?;
        Ok(Self { engine, docker })
    }

    /// What the engine says of itself.
    pub(super) async fn info(&self) -> Result<SystemInfo, EngineError> {
        self.engine.ask(LIST_TIME, |docker| async move { docker.info().await }).await
    }

    /// The ids of all containers, running or not.
    pub(super) async fn list(&self) -> Result<Vec<Text>, EngineError> {
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let found =
            self.engine.ask(LIST_TIME, |docker| async move { docker.list_containers(Some(options)).await }).await?;
        Ok(found.into_iter().filter_map(|one| one.id).filter(|id| !id.is_empty()).map(Text::from).collect())
    }

    /// All networks.
    pub(super) async fn networks(&self) -> Result<Vec<Network>, EngineError> {
        let all = None::<ListNetworksOptions>;
        self.engine.ask(LIST_TIME, |docker| async move { docker.list_networks(all).await }).await
    }

    /// One container.
    pub(super) async fn inspect(&self, id: &str) -> Result<ContainerInspectResponse, EngineError> {
        let none = None::<InspectContainerOptions>;
        self.engine.ask(ASK_TIME, |docker| async move { docker.inspect_container(id, none).await }).await
    }

    /// The address of a container on the bridge by which those on overlays leave the host; `None` where it is not there.
    ///
    /// No inspection of the container shows it.
    pub(super) async fn address_on_gateway_bridge(&self, id: &str) -> Result<Option<IpAddr>, EngineError> {
        let none = None::<InspectNetworkOptions>;
        let question = |docker: Docker| async move { docker.inspect_network(GATEWAY_BRIDGE, none).await };
        let containers = match self.engine.ask(ASK_TIME, question).await {
            Ok(network) => network.containers.unwrap_or_default(),
            Err(EngineError::Absent(_)) => return Ok(None),
            Err(problem) => return Err(problem),
        };
        let address = containers.get(id).and_then(|on| on.ipv4_address.as_deref()).unwrap_or_default();
        Ok(address.split('/').next().and_then(|address| address.parse().ok()))
    }

    /// One image.
    pub(super) async fn image(&self, id: &str) -> Result<ImageInspect, EngineError> {
        self.engine.ask(ASK_TIME, |docker| async move { docker.inspect_image(id).await }).await
    }

    /// Whether the engine still answers.
    pub(super) async fn ping(&self) -> Result<(), EngineError> {
        self.engine.ask(ASK_TIME, |docker| async move { docker.ping().await }).await.map(drop)
    }

    /// What happens from this moment of the engine's clock on.
    ///
    /// The engine sends what happened between that moment and the request too, so that nothing is missed in between.
    pub(super) fn events(
        &self,
        since: Option<Moment>,
    ) -> impl Stream<Item = Result<EventMessage, EngineError>> + use<> {
        let filters = HashMap::from([("type", EVENTS.to_vec())]);
        let mut options = EventsOptionsBuilder::default().filters(&filters);
        if let Some(since) = since {
            options = options.since(&since.since());
        }
        let engine = self.engine.clone();
        futures_util::StreamExt::map(self.docker.events(Some(options.build())), move |event| {
            event.map_err(|error| engine.error(error))
        })
    }
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
        let error = EngineClient::connect(&endpoint, None).await.unwrap_err().to_string();
        assert!(error.contains(&endpoint.to_string()) && error.contains("start the engine"), "{error}");
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = EngineClient::connect(&Endpoint::Plain(unused.to_string()), None).await.unwrap_err().to_string();
        assert!(error.contains("is it running?"), "{error}");
        let error = EngineClient::connect(&Endpoint::Tls("192.0.2.1:2376".into()), None).await.unwrap_err().to_string();
        assert!(error.contains("--docker-certs"), "{error}");
    }
}
