//! What `agent doctor` finds out about the engine and its containers: the answers that they get.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::ListContainersOptions;
use engine::{Endpoint, io_kind};
use hickory_proto::op::ResponseCode;
use http_client::cause::innermost;
use live::config::Engine;
use model::METADATA_NAME;

use super::ask::{self, ANSWER_WITHIN};
use super::{Finding, Outcome, bound_port, on_windows};

/// Most containers that are looked at; the first wrong one is enough.
const CONTAINERS_MAX: usize = 200;

/// Most containers that are asked from inside; each may take some seconds when nothing answers.
const PROBED_MAX: usize = 20;

/// Most containers that are listed as having got no or a wrong answer; what is wrong with more is the same.
const WRONG_MAX: usize = 3;

/// What was found out about the engine.
pub(super) struct Looked {
    pub(super) findings: Vec<Finding>,
    /// Whether there is one, whether it answers or not.
    pub(super) is_there: bool,
    pub(super) containers: Vec<ContainerInspectResponse>,
}

/// Asks the engine.
pub(super) async fn look(engine: &Engine) -> Looked {
    let absent = |finding| Looked { findings: vec![finding], is_there: false, containers: Vec::new() };
    let (endpoint, certificates) = match live::follow::reach(engine, None) {
        Ok(reached) => reached,
        Err(failure) => return absent(no_engine(&failure.to_string())),
    };
    let docker = match engine::connect(&endpoint, certificates.as_ref()) {
        Ok(docker) => docker,
        Err(failure) => return absent(no_engine(&failure.to_string())),
    };
    match tokio::time::timeout(ANSWER_WITHIN, ask_engine(docker)).await {
        Ok(Ok((version, containers))) => {
            let found = format!("version {version}, {} containers run", containers.len());
            Looked { findings: vec![Finding::good("engine", found)], is_there: true, containers }
        }
        Ok(Err(failure)) => {
            let kind = io_kind(&failure);
            let why = format!("{endpoint}: {}", innermost(&failure));
            let finding = if kind == Some(ErrorKind::PermissionDenied) { not_permitted(&why) } else { no_engine(&why) };
            Looked { is_there: kind != Some(ErrorKind::NotFound), ..absent(finding) }
        }
        Err(_) => Looked { findings: vec![hung(&endpoint)], is_there: true, containers: Vec::new() },
    }
}

async fn ask_engine(docker: Docker) -> Result<(String, Vec<ContainerInspectResponse>), Error> {
    let docker = docker.negotiate_version().await?;
    let version = docker.version().await?.version.unwrap_or_default();
    let mut containers = Vec::new();
    for container in docker.list_containers(None::<ListContainersOptions>).await?.into_iter().take(CONTAINERS_MAX) {
        let Some(id) = &container.id else { continue };
        // One that has just gone does not matter.
        containers.extend(docker.inspect_container(id, None).await.ok());
    }
    Ok((version, containers))
}

fn not_permitted(why: &str) -> Finding {
    let advice = if on_windows() { "run agent doctor as administrator" } else { "run agent doctor as root" };
    Finding::new("engine", Outcome::Odd, format!("the Docker Engine may not be asked: {why}"), advice)
}

fn no_engine(why: &str) -> Finding {
    let advice = "start Docker, or ignore this where there is none";
    Finding::new("engine", Outcome::Odd, format!("no Docker Engine answers here: {why}"), advice)
}

fn hung(endpoint: &Endpoint) -> Finding {
    Finding::new(
        "engine",
        Outcome::Bad,
        format!("the Docker Engine at {endpoint} hangs: it gave no answer within {} s", ANSWER_WITHIN.as_secs()),
        format!(
            "{}; until it answers, Berth serves what it knew last",
            if on_windows() { "Restart-Service docker" } else { "systemctl restart docker" }
        ),
    )
}

impl Looked {
    /// Whether the containers ask Berth for names first.
    pub(super) fn name_servers(&self, dns: IpAddr) -> Option<Finding> {
        let asks_us = |container: &&ContainerInspectResponse| {
            let servers = container.host_config.as_ref().and_then(|config| config.dns.as_ref());
            servers.and_then(|servers| servers.first()?.parse().ok()) == Some(dns)
        };
        let others: Vec<_> = self.containers.iter().filter(|container| !asks_us(container)).map(name).collect();
        match &others[..] {
            [] if self.containers.is_empty() => None,
            [] => Some(Finding::good("containers' DNS", "all containers ask Berth first")),
            others => Some(Finding::new(
                "containers' DNS",
                Outcome::Odd,
                format!("Berth's DNS is not the first server of {}", others.join(", ")),
                format!("start them with --dns {dns} --dns-search rancher.internal"),
            )),
        }
    }

    /// Asks from inside of containers who they are and where they are, and compares with what the engine says.
    ///
    /// `start` is what to type where nothing answers; `None` when the services answer on the host itself.
    pub(super) fn probe(&self, metadata: SocketAddr, dns: SocketAddr, start: Option<&str>) -> Vec<Finding> {
        // In a container's network no port of the host is seen.
        let service = |transport, address| {
            let advice = start.map_or_else(|| blocked(transport, address), ToOwned::to_owned);
            Service { transport, address, advice }
        };
        let (metadata, dns) = (service("TCP", metadata), service("UDP", dns));
        let (mut right, mut findings) = (0, Vec::new());
        for container in self.containers.iter().filter(|container| has_own_network(container)).take(PROBED_MAX) {
            let Some(probe) = Probe::of(container) else { continue };
            match platform::namespace::within(probe.pid, || probe.ask(&metadata, &dns)) {
                Ok(Ok(())) => right += 1,
                Ok(Err(wrong)) => {
                    let subject = format!("asked in {}", probe.name);
                    findings.push(Finding::new(subject, wrong.outcome, wrong.found, wrong.advice));
                }
                // Then other findings have to do.
                Err(error) if error.kind() == ErrorKind::Unsupported => return Vec::new(),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    let advice = "run agent doctor as root to ask as containers do";
                    return vec![Finding::new(
                        "asked in containers",
                        Outcome::Odd,
                        format!("not done: {error}"),
                        advice,
                    )];
                }
                // It has just gone.
                Err(_) => {}
            }
            if findings.len() >= WRONG_MAX {
                break;
            }
        }
        if right > 0 {
            let found = format!("{right} get their own metadata and find their own names");
            findings.push(Finding::good("asked in containers", found));
        }
        findings
    }
}

/// Whether it is known by an address of its own.
fn has_own_network(container: &ContainerInspectResponse) -> bool {
    let mode = container.host_config.as_ref().and_then(|config| config.network_mode.as_deref()).unwrap_or_default();
    !(mode == "host" || mode == "none" || mode.starts_with("container:"))
}

pub(super) fn name(container: &ContainerInspectResponse) -> &str {
    container.name.as_deref().unwrap_or_default().trim_start_matches('/')
}

/// What the engine says of a container that is asked from inside.
struct Probe<'c> {
    name: &'c str,
    id: &'c str,
    pid: u32,
    addresses: Vec<IpAddr>,
}

/// A service as containers ask it.
struct Service {
    transport: &'static str,
    address: SocketAddr,
    /// What to type where it does not answer.
    advice: String,
}

/// An answer to a container that differs from what the engine says.
struct Wrong {
    outcome: Outcome,
    found: String,
    advice: String,
}

impl<'c> Probe<'c> {
    fn of(container: &'c ContainerInspectResponse) -> Option<Self> {
        let state = container.state.as_ref()?;
        // Only what runs has a name, and it cannot ask for it either.
        if state.paused == Some(true) {
            return None;
        }
        let pid = state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)?;
        let networks = container.network_settings.as_ref()?.networks.as_ref()?;
        let addresses = networks.values().filter_map(|network| network.ip_address.as_ref()?.parse().ok()).collect();
        Some(Self { name: name(container), id: container.id.as_deref()?, pid, addresses })
    }

    fn ask(&self, metadata: &Service, dns: &Service) -> Result<(), Wrong> {
        let Self { name, id, .. } = self;
        let said = |found: String, advice: &str| Wrong { outcome: Outcome::Bad, found, advice: advice.to_owned() };
        let own = "/latest/self/container/external_id";
        let (status, answer) = ask::http(metadata.address, own, "*/*").map_err(|error| metadata.unanswered(&error))?;
        if status != 200 {
            let addresses: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
            let found = format!("metadata does not know who it is (status {status}, address {})", addresses.join(", "));
            return Err(said(found, "its log and its /readyz say whether it follows this engine"));
        }
        if answer != *id {
            let (_, other) = ask::http(metadata.address, "/latest/self/container/name", "*/*").unwrap_or_default();
            let found = format!("metadata takes it for {other} (id {answer:.12} instead of {id:.12})");
            return Err(said(found, "two containers have this address: give each network addresses of its own"));
        }
        let full = format!("{name}.rancher.internal");
        // A name that is none in DNS (docs/docker.md): the container is found by that of its service.
        if !ask::is_name(&full) {
            return Ok(());
        }
        let (code, addresses) = ask::udp(dns.address, &full).map_err(|error| dns.unanswered(&error))?;
        if code != ResponseCode::NoError || !addresses.iter().any(|address| self.addresses.contains(address)) {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let found = format!("dns answers {code} {} for {full}", addresses.join(", "));
            if name.contains('.') || *name == METADATA_NAME {
                return Err(Wrong {
                    outcome: Outcome::Odd,
                    found: format!("{found}: a service, a host or Berth itself has this name"),
                    advice: "no other container is affected; give it another name to find it by its own".to_owned(),
                });
            }
            return Err(said(
                found,
                "its log and its /readyz say whether it has data; with --domain names end differently",
            ));
        }
        Ok(())
    }
}

impl Service {
    fn unanswered(&self, error: &std::io::Error) -> Wrong {
        let Self { transport, address, advice } = self;
        if error.kind() == ErrorKind::NetworkUnreachable {
            let advice = "give it a network with a gateway, if it is meant to ask: docker network connect";
            let found = format!("it has no route to {address}");
            return Wrong { outcome: Outcome::Odd, found, advice: advice.to_owned() };
        }
        let found = format!("no answer from {address} over {transport}: {error}");
        Wrong { outcome: Outcome::Bad, found, advice: advice.clone() }
    }
}

/// What to do about a service that answers on the host and not in a container.
fn blocked(transport: &str, service: SocketAddr) -> String {
    let port = bound_port(service);
    format!("it answers on the host: let containers through the host's firewall to {transport} port {port}")
}
