//! The response to a placement request: which unit got which host, and why another one got none.

use std::time::{Duration, UNIX_EPOCH};

use model::health::failed;
use model::{Container, Map, Text, Value};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::ledger::record::{ImageEntry, PromiseState, Record, Replica, Stage};
use crate::place::explain::Explanation;
use crate::place::inventory::PLACEMENT_LABEL;
use crate::place::life::{GONE, Life};

/// The answer to a placement request.
#[derive(Clone, Debug, Serialize)]
pub struct Placement {
    /// The id of the request.
    pub id: Text,
    /// `placed`, `partial`, `unplaceable`, `failed`, `released` or `unreadable`.
    pub state: &'static str,
    /// Whether nothing was reserved.
    pub dry_run: bool,
    /// Whether this is the answer to an earlier request with this id.
    pub repeated: bool,
    /// The units that have a place.
    pub placements: Vec<PlacedUnit>,
    /// How many have none.
    pub unplaced: u32,
    /// What went wrong, in a sentence, when nothing was placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Hosts on which starting failed, and what their engines said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailedStart>,
    /// Why, for those without a place or when it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
}

/// A host on which a unit could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedStart {
    /// The host.
    pub host: HostName,
    /// The container.
    pub container: Text,
    /// What its engine said.
    pub error: String,
}

/// One unit and its place.
#[derive(Clone, Debug, Serialize)]
pub struct PlacedUnit {
    /// The host.
    pub host: HostName,
    /// The containers.
    pub containers: Vec<PlacedContainer>,
    /// What spoke against the host that the request named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overridden: Vec<String>,
    /// What was done about its failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Replaced>,
}

/// How often a unit was replaced or started again since it was last healthy for 10 minutes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replaced {
    /// How often.
    pub times: u32,
    /// When that was last begun (RFC 3339).
    pub at: String,
    /// Why.
    pub why: Text,
    /// Before when it is not done again (RFC 3339).
    pub not_before: String,
}

/// How a host is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostName {
    /// Its uuid.
    pub uuid: Text,
    /// Its name.
    pub name: Text,
}

/// One container and what it gets.
#[derive(Clone, Debug, Serialize)]
pub struct PlacedContainer {
    /// The name it is to have.
    pub name: Text,
    /// `reserved`, `starting`, `started`, `settled`, `stopping`, `removing`, `replacing` or `over`; of what was started or has settled
    /// and does not run `exited`, `restarting`, `paused`, `created` or `dead`, and `unknown` when its engine does not answer.
    pub state: &'static str,
    /// How it is, as its engine or the source of the cluster says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub life: Option<Life>,
    /// What it waits for, or why its state is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Its uuid, once it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Text>,
    /// The engine's id for it, once the scheduler has started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Text>,
    /// Labels it is to have, so that it is recognised.
    pub labels: std::collections::BTreeMap<&'static str, Text>,
    /// Its ports.
    pub ports: Vec<PlacedPort>,
    /// Its image as it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_name: Option<Text>,
    /// The entry of its image to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageEntry>,
}

impl PlacedContainer {
    /// Whether a scheduler starts or removes it just now.
    pub(crate) fn is_at_work(&self) -> bool {
        matches!(self.state, "starting" | "removing" | RESTARTING | REPLACING | STOPPING)
    }

    /// Says how it is, what it waits for, and why its engine says nothing.
    pub(crate) fn describe(
        &mut self,
        life: Option<Life>,
        waits: Option<String>,
        away: Option<&String>,
        shown: Option<&Container>,
    ) {
        match self.state {
            "starting" | RESTARTING | REPLACING | STOPPING => self.detail = waits,
            "removing" => {
                // While it is being stopped it still runs.
                if waits.as_ref().is_some_and(|what| what.starts_with(STOPPING)) {
                    self.state = STOPPING;
                }
                self.detail = waits;
            }
            "started" | "settled" => {
                if let Some(why) = away {
                    self.state = "unknown";
                    self.detail = Some(why.clone());
                } else if let Some(life) = life.as_ref().filter(|life| !life.runs()) {
                    self.state = match &*life.state {
                        "exited" => "exited",
                        "restarting" => "restarting",
                        "paused" => "paused",
                        "created" => "created",
                        GONE => "over",
                        _ => "dead",
                    };
                }
                let is_unhealthy = shown.and_then(Container::health_state).is_some_and(|state| state == UNHEALTHY);
                self.life = life.map(|life| {
                    // Its checkers know more than its engine.
                    if is_unhealthy && life.runs() { Life { health: Some(UNHEALTHY.into()), ..life } } else { life }
                });
                let failed = || shown.and_then(failed).map(|why| why.to_string());
                self.detail = self.detail.take().or_else(failed);
            }
            _ => {}
        }
    }
}

/// State of a container that was asked to end, and the beginning of its detail.
pub(crate) const STOPPING: &str = "stopping";

/// Health of a container that is not well.
const UNHEALTHY: &str = "unhealthy";

/// States of a container that failed and is started again, or of which another one takes the place.
const RESTARTING: &str = "restarting";
const REPLACING: &str = "replacing";

/// State of a container that was stopped to be started again.
const KEPT: &str = "kept";

/// One published port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacedPort {
    /// The address.
    pub ip: std::net::IpAddr,
    /// The port outside.
    pub public: u16,
    /// The port inside.
    pub private: u16,
    /// The transport.
    pub protocol: &'static str,
}

pub(crate) fn answer_of(id: Text, record: &Record, repeated: bool) -> Placement {
    let unplaced = record.without_place();
    let standing = record.replicas.iter().filter(|replica| !replica.is_given_up());
    Placement {
        id,
        state: if unplaced == 0 { "placed" } else { "partial" },
        dry_run: false,
        repeated,
        placements: standing.map(|replica| placed_unit(replica, &record.asked)).collect(),
        unplaced,
        error: None,
        failures: Vec::new(),
        explanation: None,
    }
}

/// The name of the image that a request, or a sidekick of one, asks for.
pub(crate) fn image_name(map: &Map) -> Option<Text> {
    match map.get("image")? {
        Value::Map(image) => image.text("name").cloned(),
        other => other.as_text().cloned(),
    }
}

/// The names of the images that a request asks for, container by container.
fn images(asked: &Map) -> impl Iterator<Item = Option<Text>> {
    let sidekicks = asked.get("sidekicks").and_then(Value::as_list).unwrap_or_default();
    let sidekicks = sidekicks.iter().map(move |sidekick| sidekick.as_map().and_then(image_name));
    std::iter::once(image_name(asked)).chain(sidekicks)
}

/// A unit and its place, of a request that was asked like this.
pub(crate) fn placed_unit(replica: &Replica, asked: &Map) -> PlacedUnit {
    let images = images(asked).chain(std::iter::repeat(None));
    let containers = replica.members.iter().zip(images).map(|(held, image_name)| PlacedContainer {
        name: held.name.clone(),
        state: match (&held.state, replica.stage) {
            (_, Stage::Undoing) => "removing",
            (_, Stage::Restarting) => RESTARTING,
            (_, Stage::Replacing) => REPLACING,
            (_, Stage::Stopping) => STOPPING,
            (_, Stage::Kept) => KEPT,
            (PromiseState::Settled(_), _) => "settled",
            (PromiseState::Over, _) => "over",
            (PromiseState::Reserved, Stage::Reserved) => "reserved",
            (PromiseState::Reserved, Stage::Begun) => "starting",
            (PromiseState::Reserved, Stage::Started) => "started",
        },
        uuid: match &held.state {
            PromiseState::Settled(uuid) => Some(uuid.clone()),
            PromiseState::Reserved | PromiseState::Over => None,
        },
        container: held.container.clone(),
        labels: [(PLACEMENT_LABEL, held.name.clone())].into(),
        ports: held.bound.iter().map(placed_port).collect(),
        life: None,
        detail: None,
        image_name,
        image: held.system.clone(),
    });
    PlacedUnit {
        host: HostName { uuid: replica.host.clone(), name: replica.host_name.clone() },
        containers: containers.collect(),
        overridden: replica.overridden.clone(),
        replaced: replica.replaced.as_ref().map(|replaced| Replaced {
            times: replaced.times,
            at: rfc3339(replaced.begun()),
            why: replaced.why.clone(),
            not_before: rfc3339(replaced.not_before()),
        }),
    }
}

/// A time since 1970 as people read it, in whole seconds.
pub(crate) fn rfc3339(time: Duration) -> String {
    let moment = OffsetDateTime::from(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    moment.format(&Rfc3339).unwrap_or_default()
}

pub(crate) fn placed_port(bound: &crate::place::port::Bound) -> PlacedPort {
    PlacedPort { ip: bound.address, public: bound.public, private: bound.private, protocol: bound.protocol.name() }
}

/// A placement of which what is stored cannot be read.
pub(crate) fn unreadable_answer(id: Text, why: &str) -> Placement {
    Placement {
        id,
        state: "unreadable",
        dry_run: false,
        repeated: true,
        placements: Vec::new(),
        unplaced: 0,
        error: Some(format!("what the ledger has of it cannot be read: {why}")),
        failures: Vec::new(),
        explanation: None,
    }
}

/// Why nothing was placed, with the most frequent reasons.
pub(crate) fn failure(unplaced: u32, fitting: usize, explanation: Option<&Explanation>) -> String {
    let reasons = explanation.into_iter().flat_map(|explanation| explanation.reasons.iter().take(3));
    let reasons: Vec<_> = reasons.map(|group| format!("{} ({})", group.reason, group.count)).collect();
    let reasons = if reasons.is_empty() { "there are no hosts".to_owned() } else { reasons.join(", ") };
    match fitting {
        0 => format!("no host fits: {reasons}"),
        _ => format!("only {fitting} of {} fit: {reasons}", fitting + unplaced as usize),
    }
}
