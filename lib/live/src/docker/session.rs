//! One conversation with an engine: what was asked, what is to be asked next, and when.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, EndpointSettings, Network, SystemInfo};
use engine::EngineError;
use futures_util::stream::FuturesUnordered;
use model::Text;
use source::backoff::{Backoff, jittered};
use tokio::time::Instant;

use super::baked::{Baked, Images};
use super::client::EngineClient;
use super::facts::gateways;
use super::labels::is_membership_label;

/// Waits before what could not be inspected is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Time between full readings, give or take a tenth so that many hosts do not do it at once.
const READING_INTERVAL: Duration = Duration::from_mins(1);

/// Silence after which the engine is asked whether it is there: of one that hangs, or whose connection lost its other
/// end, nothing else shows it. With the wait for the answer it is noticed after 8 s; the request costs an engine at rest
/// next to nothing.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(3);

/// Most inspections at a time: the engine does them on its own locks, more only wait there.
const INSPECTIONS_MAX: usize = 16;

/// Most of them for a full reading while all is well, so that what events name does not wait for it.
const QUIET_INSPECTIONS_MAX: usize = 2;

/// Shortest time between two publications, so that a burst of events is published in few of them.
const PUBLICATION_GAP: Duration = Duration::from_millis(10);

/// How much longer than making a document took nothing is published, so that it takes no more than a quarter of a
/// processor on hosts with tens of thousands of containers.
const PUBLICATION_REST: u32 = 3;

/// One conversation with an engine.
pub(super) struct Session {
    client: EngineClient,
    pub(super) answers: FuturesUnordered<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    /// Whether nothing of this session was published yet, since not all was read.
    first: bool,
    /// The full reading that is going on.
    pub(super) reading: Option<Reading>,
    /// Whether one was requested since it began.
    pub(super) read_again: bool,
    pub(super) next_reading: Instant,
    /// Containers to be inspected at once, and when there is room.
    now: VecDeque<Text>,
    pub(super) later: VecDeque<Text>,
    /// Containers that are being inspected, and whether they changed meanwhile.
    pub(super) busy: HashMap<Text, bool>,
    /// Containers of which there was no good answer, and when they are asked again.
    failed: HashSet<Text>,
    pub(super) next_retry: Option<Instant>,
    retry: Backoff,
    pub(super) networks_asked: Asked,
    pub(super) host_asked: Asked,
    /// When the engine last said anything.
    pub(super) heard: Instant,
    /// Whether something is to be published, and not before when.
    pub(super) changed: bool,
    next_publication: Instant,
}

/// A question of which one is on its way at most, since the next one would get the same answer.
#[derive(Default)]
pub(super) struct Asked {
    busy: bool,
    /// Whether something changed since it was asked.
    again: bool,
}

impl Asked {
    /// Whether to ask now.
    fn ask(&mut self) -> bool {
        self.again = self.busy;
        !std::mem::replace(&mut self.busy, true)
    }

    /// It was answered; returns whether to ask again.
    pub(super) fn answered(&mut self) -> bool {
        self.busy = false;
        std::mem::take(&mut self.again)
    }
}

/// What a full reading has still to see.
#[derive(Default)]
pub(super) struct Reading {
    listed: bool,
    networks: bool,
    host: bool,
    pub(super) left: HashSet<Text>,
}

impl Reading {
    pub(super) fn is_complete(&self) -> bool {
        self.listed && self.networks && self.host && self.left.is_empty()
    }
}

/// Parts of a full reading besides the containers.
#[derive(Clone, Copy)]
pub(super) enum Step {
    List,
    Networks,
    Host,
}

/// What an engine answered.
pub(super) enum Answer {
    Alive(Result<(), EngineError>),
    Host(Box<Result<SystemInfo, EngineError>>),
    Networks(Result<Vec<Network>, EngineError>),
    List(Result<Vec<Text>, EngineError>),
    Container(Text, Box<Result<Inspected, EngineError>>),
}

/// A container as the engine describes it.
pub(super) struct Inspected {
    pub(super) response: ContainerInspectResponse,
    /// Its address on the engine's bridge for those on overlays.
    pub(super) on_gateway_bridge: Option<IpAddr>,
    /// The labels of its image, as far as they matter.
    pub(super) baked: Baked,
    /// Whether they were asked for, and what came of it.
    pub(super) image: Image,
}

/// Whether a container's image was asked about.
pub(super) enum Image {
    /// It was not: it is known, or no label of the container depends on it.
    NotAsked,
    /// It was, and has this id.
    Learned(Text),
    /// It was, without a good answer: it is to be asked about again.
    NoAnswer,
}

impl Session {
    pub(super) fn new(client: EngineClient) -> Self {
        let now = Instant::now();
        Self {
            client,
            answers: FuturesUnordered::new(),
            first: true,
            reading: None,
            read_again: false,
            next_reading: now + READING_INTERVAL,
            now: VecDeque::new(),
            later: VecDeque::new(),
            busy: HashMap::new(),
            failed: HashSet::new(),
            next_retry: None,
            retry: Backoff::new(RETRY.0, RETRY.1),
            networks_asked: Asked::default(),
            host_asked: Asked::default(),
            heard: now,
            changed: false,
            next_publication: now,
        }
    }

    /// Begins a full reading, when none is going on; else there is one more after it.
    pub(super) fn read_all(&mut self) {
        if self.reading.is_some() {
            self.read_again = true;
            return;
        }
        self.reading = Some(Reading::default());
        let client = self.client.clone();
        self.answers.push(Box::pin(async move { Answer::List(client.list().await) }));
        self.networks();
        self.host();
    }

    pub(super) fn networks(&mut self) {
        if self.networks_asked.ask() {
            let client = self.client.clone();
            self.answers.push(Box::pin(async move { Answer::Networks(client.networks().await) }));
        }
    }

    pub(super) fn host(&mut self) {
        if self.host_asked.ask() {
            let client = self.client.clone();
            self.answers.push(Box::pin(async move { Answer::Host(Box::new(client.info().await)) }));
        }
    }

    pub(super) fn ping(&mut self) {
        // On any outcome the next one is due a while later.
        self.heard = Instant::now();
        let client = self.client.clone();
        self.answers.push(Box::pin(async move { Answer::Alive(client.ping().await) }));
    }

    /// Has a container inspected at once, or again when it is being inspected.
    pub(super) fn look_at(&mut self, id: Text) {
        match self.busy.get_mut(&id) {
            Some(again) => *again = true,
            None if self.now.contains(&id) => {}
            None => self.now.push_back(id),
        }
    }

    /// Asks what is to be asked and has room.
    pub(super) fn ask(&mut self, images: &Images) {
        while self.busy.len() < INSPECTIONS_MAX
            && let Some(id) = self.now.pop_front()
        {
            self.inspect(id, images);
        }
        let most = if self.first { INSPECTIONS_MAX } else { QUIET_INSPECTIONS_MAX };
        while self.busy.len() < most
            && let Some(id) = self.later.pop_front()
        {
            self.inspect(id, images);
        }
    }

    fn inspect(&mut self, id: Text, images: &Images) {
        if let Some(again) = self.busy.get_mut(&id) {
            *again = true;
            return;
        }
        self.busy.insert(id.clone(), false);
        let (client, images) = (self.client.clone(), images.clone());
        self.answers.push(Box::pin(async move {
            let outcome = inspected(&client, &id, &images).await;
            Answer::Container(id, Box::new(outcome))
        }));
    }

    pub(super) fn step(&mut self, step: Step) {
        if let Some(reading) = &mut self.reading {
            match step {
                Step::List => reading.listed = true,
                Step::Networks => reading.networks = true,
                Step::Host => reading.host = true,
            }
        }
    }

    /// The full reading is over.
    pub(super) fn was_read(&mut self) {
        self.reading = None;
        self.next_reading = Instant::now() + jittered(READING_INTERVAL);
        if self.failed.is_empty() {
            self.retry.reset();
        }
        if std::mem::take(&mut self.first) {
            self.changed = true;
        }
    }

    /// There was no good answer about a container.
    pub(super) fn has_failed(&mut self, id: Text) {
        self.failed.insert(id);
        let retry = &mut self.retry;
        self.next_retry.get_or_insert_with(|| Instant::now() + retry.wait());
    }

    /// Asks again about containers of which there was no good answer.
    pub(super) fn try_again(&mut self) {
        self.next_retry = None;
        self.later.extend(std::mem::take(&mut self.failed));
    }

    /// What changed is published, which took so long.
    pub(super) fn was_published(&mut self, took: Duration) {
        self.next_publication = Instant::now() + (took * PUBLICATION_REST).max(PUBLICATION_GAP);
    }

    /// When something is to be published; nothing before all was read once.
    pub(super) fn publication(&self) -> Option<Instant> {
        (self.changed && !self.first).then_some(self.next_publication)
    }
}

/// Asks about a container, and about its image where one of its labels may have come with that.
async fn inspected(client: &EngineClient, id: &str, images: &Images) -> Result<Inspected, EngineError> {
    let response = client.inspect(id).await?;
    let labels = response.config.as_ref().and_then(|config| config.labels.as_ref());
    let has_membership = labels.is_some_and(|labels| labels.keys().any(|key| is_membership_label(key)));
    let (baked, image) = match response.image.as_deref().filter(|image| !image.is_empty()) {
        _ if !has_membership => (Baked::nothing(), Image::NotAsked),
        None => (Baked::Unknown("the engine does not say which image it is".into()), Image::NotAsked),
        Some(image) => match images.get(image) {
            Some(known) => (known.clone(), Image::NotAsked),
            None => match client.image(image).await {
                Ok(found) => {
                    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
                    (Baked::of(labels), Image::Learned(image.into()))
                }
                Err(EngineError::Absent(_)) => {
                    (Baked::Unknown("there is no such image any more".into()), Image::NotAsked)
                }
                Err(lost) if lost.is_lost() => return Err(lost),
                Err(problem) => (Baked::Unknown(problem.to_string().into()), Image::NoAnswer),
            },
        },
    };
    let on_gateway_bridge =
        if leaves_by_gateway_bridge(&response) { client.address_on_gateway_bridge(id).await? } else { None };
    Ok(Inspected { response, on_gateway_bridge, baked, image })
}

/// Whether a container runs and is only on networks without a gateway, as overlays are.
fn leaves_by_gateway_bridge(response: &ContainerInspectResponse) -> bool {
    let runs = response.state.as_ref().and_then(|state| state.running).unwrap_or_default();
    let networks = response.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
    let has_address = |on: &EndpointSettings| on.ip_address.as_ref().is_some_and(|address| !address.is_empty());
    runs && networks
        .is_some_and(|networks| networks.values().any(has_address) && networks.values().all(|on| gateways(on) == 0))
}
