//! What should run: the services of a stack, and how far each is on its way to a revision.

use std::collections::BTreeMap;
use std::time::Duration;

use model::hex;
use model::{Map, Text, Value};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::update::{Invalid, Update};

/// Bytes of the digest of a revision: 48 bits distinguish the revisions of one service.
const DIGEST_BYTES: usize = 6;

/// Most units of a service, as of one request.
const SCALE_MAX: i64 = 10_000;

/// After how many seconds units of a host that is gone run elsewhere, unless the service says otherwise.
const DEAD_AFTER: u64 = 300;

/// One service as it should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Its name in the stack.
    pub name: Text,
    /// How many units.
    pub scale: u32,
    /// Whether there is one unit on every host that fits, whatever `scale` says.
    pub global: bool,
    /// Whether a unit that ended without an error is done.
    pub job: bool,
    /// Services that have to run before, or to be done.
    pub after: Vec<Text>,
    /// Those of them that have to be done: jobs whose units have ended without an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after_end: Vec<Text>,
    /// How its units are replaced.
    pub update: Update,
    /// How they are replaced by the old ones again.
    pub rollback: Update,
    /// After how many seconds units of a host that is gone run elsewhere; `None` for never.
    pub dead_after: Option<u64>,
    /// The request of one unit.
    pub request: Map,
    /// Stands for the request; a label of the containers.
    pub digest: Text,
}

/// Fields of a service that are not told to an engine, so that a change of them replaces no container.
const OF_SERVICE: [&str; 9] =
    ["count", "dead_after", "depends_on", "global", "id", "job", "rollback", "start", "update"];

impl Service {
    /// The service in a request.
    ///
    /// # Errors
    ///
    /// Fails with the field that is wrong. What concerns the container is checked by the caller.
    pub fn parse(map: &Map) -> Result<Self, Invalid> {
        let name = map.text("service").filter(|name| !name.is_empty()).cloned();
        let name = name.ok_or_else(|| Invalid::new("service", "missing", "the name of the service"))?;
        let truth = |key: &str| match map.get(key) {
            None => Ok(false),
            Some(value) => {
                value.as_bool().ok_or_else(|| Invalid::new(key, format!("found {}", value.kind()), "true or false"))
            }
        };
        let rules = |key: &str| match map.get(key) {
            None => Ok(None),
            Some(Value::Map(rules)) => Update::parse(rules, key).map(Some),
            Some(value) => Err(Invalid::new(key, format!("found {}", value.kind()), "a map")),
        };
        let scale = match map.get("count") {
            None => 1,
            Some(value) => value.as_int().filter(|count| (0..=SCALE_MAX).contains(count)).ok_or_else(|| {
                Invalid::new("count", format!("found {}", value.kind()), format!("a whole number up to {SCALE_MAX}"))
            })?,
        };
        let dead_after = match map.get("dead_after") {
            None => Some(DEAD_AFTER),
            Some(value) if value.as_str() == Some("never") => None,
            Some(value) => {
                let seconds = value.as_int().and_then(|seconds| u64::try_from(seconds).ok());
                let wrong = || Invalid::new("dead_after", format!("found {}", value.kind()), "seconds, or never");
                Some(seconds.ok_or_else(wrong)?)
            }
        };
        let (after, after_end) = depends_on(map)?;
        let update = rules("update")?.unwrap_or_default();
        let rollback = rules("rollback")?.unwrap_or_else(|| update.clone());
        let request: Map = map.iter().filter(|(key, _)| !OF_SERVICE.contains(&&**key)).cloned().collect();
        Ok(Self {
            name,
            scale: u32::try_from(scale).unwrap_or(u32::MAX),
            global: truth("global")?,
            job: truth("job")?,
            after,
            after_end,
            update,
            rollback,
            dead_after,
            digest: digest(&request),
            request,
        })
    }
}

/// The services that one waits for, and those of them that have to be done: each a name, or a map of `service` and
/// `condition` in the words of compose files.
fn depends_on(map: &Map) -> Result<(Vec<Text>, Vec<Text>), Invalid> {
    let (mut after, mut after_end) = (Vec::new(), Vec::new());
    let items = match map.get("depends_on") {
        None => return Ok((after, after_end)),
        Some(Value::List(items)) => items,
        Some(other) => return Err(Invalid::new("depends_on", format!("found {}", other.kind()), "a list")),
    };
    for (at, item) in items.iter().enumerate() {
        let wrong = |key: &str, problem: String, expected: &str| {
            Err(Invalid::new(&format!("depends_on[{at}]{key}"), problem, expected))
        };
        let map = match item {
            Value::Text(name) => {
                after.push(name.clone());
                continue;
            }
            Value::Map(map) => map,
            other => return wrong("", format!("found {}", other.kind()), "the name of a service, or a map"),
        };
        let known = "a map of service and condition";
        if let Some((key, _)) = map.iter().find(|(key, _)| !matches!(&**key, "condition" | "service")) {
            return wrong("", format!("{key} is unknown"), known);
        }
        let Some(name) = map.text("service") else { return wrong(".service", "missing".into(), known) };
        after.push(name.clone());
        match map.text("condition").map_or("service_started", |word| &**word) {
            "service_completed_successfully" => after_end.push(name.clone()),
            "service_healthy" | "service_started" => {}
            other => {
                let words = "service_started, service_healthy or service_completed_successfully";
                return wrong(".condition", format!("found {other:?}"), words);
            }
        }
    }
    Ok((after, after_end))
}

/// The digest of what an engine is told: equal requests have equal ones, in every release.
fn digest(request: &Map) -> Text {
    let json = serde_json::to_vec(request).unwrap_or_default();
    hex(&Sha256::digest(&json)[..DIGEST_BYTES]).into()
}

/// How far a service is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its units become those that are wanted.
    #[default]
    Updating,
    /// They are, and stay so.
    Steady,
    /// They are, and the old ones stay until a person confirms or rolls back.
    Unconfirmed,
    /// The update failed, and the units become what they were.
    RollingBack(Text),
    /// The update failed, and they are what they were.
    RolledBack(Text),
    /// A person has to decide.
    Stuck(Text),
}

impl Stage {
    /// Whether its units become others.
    pub fn is_changing(&self) -> bool {
        matches!(self, Self::Updating | Self::RollingBack(_))
    }

    /// Whether its units are what they are to be, and stay so: what fails now is not the fault of an update.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Steady | Self::Unconfirmed | Self::RolledBack(_))
    }
}

/// One service on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// What it is to become.
    pub wanted: Service,
    /// What it was before.
    pub previous: Option<Service>,
    /// How far it is.
    pub stage: Stage,
    /// When a person asked once more for what had failed, since 1970.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub asked: Duration,
    /// The hosts, by uuid, on which units with volumes have run, by the unit's index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub homes: BTreeMap<Text, Text>,
}

impl Rollout {
    /// A service that begins.
    pub fn new(wanted: Service) -> Self {
        Self { wanted, previous: None, stage: Stage::Updating, asked: Duration::ZERO, homes: BTreeMap::new() }
    }

    /// Another revision is wanted. What a failed update left behind is not what there is to go back to.
    pub fn change(&mut self, wanted: Service) {
        if self.wanted.digest != wanted.digest {
            let old = std::mem::replace(&mut self.wanted, wanted);
            if self.stage.is_settled() {
                self.previous = Some(old);
            }
            self.stage = Stage::Updating;
        } else if self.wanted != wanted {
            if self.stage.is_settled() {
                // Another number of units is nothing to go back from to an older revision.
                self.previous = None;
            }
            self.wanted = wanted;
            self.stage = Stage::Updating;
        }
    }

    /// Goes back to what the service was; `false` when it was nothing. Its scale stays what is wanted now.
    pub fn roll_back(&mut self, why: Text) -> bool {
        let Some(previous) = self.previous.take() else { return false };
        let scale = self.wanted.scale;
        self.wanted = Service { scale, ..previous };
        self.stage = Stage::RollingBack(why);
        true
    }
}

/// A stack as it should be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a wish of its own, and none depends on another")]
pub struct Stack {
    /// Its name.
    pub name: Text,
    /// How often it was changed.
    pub revision: u64,
    /// Its services, each after those that it depends on.
    pub services: Vec<Rollout>,
    /// Whether nothing is done until a person resumes it.
    pub paused: bool,
    /// Whether all of it is to go.
    pub removing: bool,
    /// Whether its volumes go as well, at the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub volumes: bool,
    /// Whether units of services that it does not have are removed.
    pub prune: bool,
    /// Whether all services go back when one does.
    pub atomic: bool,
}
