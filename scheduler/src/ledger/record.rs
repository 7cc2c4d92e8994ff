//! A record of the ledger: what one request was promised, unit by unit and container by container.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{Fingerprint, Map, Text, engine_uuid};

use crate::ledger::replacements::Replacements;
use crate::ledger::stack::{StackRecord, StackUnit};
use crate::place::filter::choice::Choice;
use crate::place::hosts::{CPU, INSTANCES, MEMORY};
use crate::place::inventory::Inventory;
use crate::place::port::Bound;
use crate::place::room::{Promised, bound_keys};
use crate::subject::Subject;

/// A placement that was promised.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Stands for the request.
    pub(crate) fingerprint: Fingerprint,
    /// When it was promised.
    pub(crate) made: Duration,
    pub(crate) replicas: Vec<Replica>,
    /// How many units found no place.
    pub(crate) unplaced: u32,
    /// Who asked.
    pub(crate) subject: Subject,
    /// The request as it was written.
    pub(crate) asked: Map,
    /// Which unit of a stack it is.
    pub(crate) unit: Option<StackUnit>,
    /// The stack that is stored here in place of a placement: it has no units, and stays until it is deleted.
    pub(crate) stack: Option<Box<StackRecord>>,
    /// The host, by its name or uuid, that is being evacuated: stored here in place of a placement, until no unit of it is left to move.
    pub(crate) evacuates: Option<Text>,
}

/// What ids of evacuations begin with. No request can have an id with a slash.
const EVACUATIONS: &str = "evacuations/";

/// The id of the evacuation of a host in the ledger.
pub(crate) fn evacuation_id(host: &str) -> Text {
    format!("{EVACUATIONS}{host}").into()
}

/// How long an engine may still do what it was asked and has not answered.
pub(crate) const LATE: Duration = Duration::from_mins(1);

/// How far the scheduler itself got with a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The client starts it, and the promise lapses when it does not.
    #[default]
    Reserved,
    /// It is being created and started.
    Begun,
    /// Its engine has started it.
    Started,
    /// It is being removed.
    Undoing,
    /// Its containers are stopped and started again.
    Restarting,
    /// Its containers are removed, and created again where there is room.
    Replacing,
    /// Its containers are being stopped, and are then kept.
    Stopping,
    /// Its containers are stopped, and can be started again where they are. It has no room and no host ports, so that
    /// others can have them; it has its names, which its engine gives to no other containers.
    Kept,
}

impl Record {
    /// A stack.
    pub(crate) fn of_stack(stack: StackRecord, made: Duration) -> Self {
        let asked = Map::default();
        let (replicas, subject) = (Vec::new(), Subject::default());
        let (fingerprint, stack) = (Fingerprint::of(&asked), Some(Box::new(stack)));
        Self { fingerprint, made, replicas, unplaced: 0, subject, asked, unit: None, stack, evacuates: None }
    }

    /// The evacuation of a host.
    pub(crate) fn of_evacuation(host: Text, subject: Subject, made: Duration) -> Self {
        let asked = Map::default();
        let (fingerprint, replicas, evacuates) = (Fingerprint::of(&asked), Vec::new(), Some(host));
        Self { fingerprint, made, replicas, unplaced: 0, subject, asked, unit: None, stack: None, evacuates }
    }

    /// Whether it is what was promised to a request, and not something else that is stored as such.
    pub(crate) fn is_placement(&self) -> bool {
        self.stack.is_none() && self.evacuates.is_none()
    }

    /// Whether nothing of it is left that was promised.
    pub(crate) fn is_over(&self) -> bool {
        let mut members = self.replicas.iter().flat_map(|replica| &replica.members);
        self.is_placement()
            && !self.is_done()
            && !self.is_at_work()
            && members.all(|held| held.state == PromiseState::Over)
    }

    /// Whether it is a job that is done, which it stays without its container.
    pub(crate) fn is_done(&self) -> bool {
        self.unit.as_ref().is_some_and(|unit| unit.done)
    }

    /// Whether the scheduler works on one of the units.
    pub(crate) fn is_at_work(&self) -> bool {
        self.replicas.iter().any(Replica::is_at_work)
    }

    /// Whether engines are asked because of it. In etcd it then counts from its second put on: who saw the first one could put it
    /// again when it is gone.
    pub(crate) fn is_acted_on(&self) -> bool {
        self.is_at_work() || !self.is_placement()
    }

    /// Its containers that no name leads to: another unit has their place, since their host was gone for too long, or they are about to be
    /// stopped and others answer.
    pub(crate) fn evictions(&self) -> BTreeSet<Eviction> {
        let Some(unit) = &self.unit else { return BTreeSet::new() };
        let evicted = self.replicas.iter().filter(|replica| unit.evicted || unit.covered && replica.is_leaving());
        evicted.flat_map(Replica::containers).collect()
    }

    /// How many units have no place, as a response states it.
    ///
    /// Those that were given up are counted in `unplaced`; while the placement is removed, those that are gone already
    /// are not missing.
    pub(crate) fn without_place(&self) -> u32 {
        let given_up = self.replicas.iter().filter(|replica| replica.is_given_up()).count();
        let mut others = self.replicas.iter().filter(|replica| !replica.is_given_up()).peekable();
        if others.peek().is_some() && others.all(|replica| replica.stage == Stage::Undoing) {
            return self.unplaced.saturating_sub(u32::try_from(given_up).unwrap_or(u32::MAX));
        }
        self.unplaced
    }
}

/// A container that no name leads to, as hosts know it in etcd.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Eviction {
    /// The name of its host.
    pub(crate) host: Text,
    /// Its uuid.
    pub(crate) container: Text,
}

/// One unit and its host.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    /// How far the scheduler itself got.
    pub(crate) stage: Stage,
    pub(crate) host: Text,
    pub(crate) host_name: Text,
    pub(crate) members: Vec<PromisedContainer>,
    /// Identifies this attempt to start it: a label of its containers that cannot be guessed. `None` if the client
    /// starts it, and in records of a release that had none.
    pub(crate) attempt: Option<Text>,
    /// What spoke against the host that the request named.
    pub(crate) overridden: Vec<String>,
    /// Until when its engine may still do what a scheduler asked that died before it was answered.
    pub(crate) unclear_until: Option<Duration>,
    /// What the scheduler that works on it waits for, once that takes long: for the others.
    pub(crate) waits: Option<Waiting>,
    /// What was done about its failures.
    pub(crate) replaced: Option<Replacements>,
}

/// What something waits for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Waiting {
    pub(crate) what: Text,
    /// Since when, in milliseconds since 1970.
    pub(crate) since: u64,
}

impl Replica {
    /// Notes that this scheduler goes on with it instead of one that died.
    pub(crate) fn inherited(&mut self, now: Duration) {
        self.unclear_until = self.is_at_work().then(|| now.saturating_add(LATE));
    }

    /// Whether the scheduler could not start it, or has removed it: it counts as unplaced, and has no containers.
    pub(crate) fn is_given_up(&self) -> bool {
        // Only what a scheduler starts has an attempt, and that is reserved only once it was given up.
        self.stage == Stage::Reserved && self.attempt.is_some()
    }

    /// Whether something is promised that is found by this key.
    pub(crate) fn promises(&self, key: &Fingerprint) -> bool {
        self.members.iter().any(|held| held.promise.keys.contains(key))
    }

    /// Whether the scheduler works on it: starts it, or removes it.
    pub(crate) fn is_at_work(&self) -> bool {
        matches!(self.stage, Stage::Begun | Stage::Undoing | Stage::Restarting | Stage::Replacing | Stage::Stopping)
    }

    /// Whether clients are to ask it no more: its containers are about to be stopped, or were.
    fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Undoing | Stage::Stopping | Stage::Kept)
    }

    /// Its containers, as hosts know them.
    pub(crate) fn containers(&self) -> impl Iterator<Item = Eviction> {
        let ids = self.members.iter().filter_map(|held| held.container.as_ref());
        ids.map(|id| Eviction { host: self.host_name.clone(), container: engine_uuid(id) })
    }

    /// Whether it has containers, or is to have them: one that is being replaced has none for a while.
    pub(crate) fn stands(&self) -> bool {
        self.members.iter().any(|held| held.state != PromiseState::Over)
    }

    /// Whether room is promised to it: one that is kept has none.
    pub(crate) fn has_room(&self) -> bool {
        self.stands() && self.stage != Stage::Kept
    }
}

/// One container of a unit.
#[derive(Clone, Debug)]
pub(crate) struct PromisedContainer {
    /// The name it is to have.
    pub(crate) name: Text,
    pub(crate) bound: Vec<Bound>,
    /// The entry of its image that the host would run.
    pub(crate) system: Option<ImageEntry>,
    /// The engine's id for it, once it is started.
    pub(crate) container: Option<Text>,
    /// What is still promised.
    pub(crate) promise: Promise,
    /// How far it got.
    pub(crate) state: PromiseState,
}

/// The entry of an image that a host would run, in words.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageEntry {
    pub(crate) os: Text,
    /// The entry's version, when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) os_version: Option<String>,
    /// The entry's architecture, when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) architecture: Option<Text>,
    /// How the container is isolated, on Windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) isolation: Option<Text>,
    /// What may go wrong all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warning: Option<String>,
}

impl From<Choice<'_>> for ImageEntry {
    fn from(choice: Choice<'_>) -> Self {
        Self {
            os: choice.platform.os.clone(),
            os_version: choice.platform.build.map(|build| format!("10.0.{build}")),
            architecture: choice.platform.architecture.clone(),
            isolation: choice.isolation.map(|isolation| isolation.name().into()),
            warning: choice.warning,
        }
    }
}

/// How far a container got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromiseState {
    Reserved,
    /// There, under this uuid.
    Settled(Text),
    /// Never seen within [`LAPSE`], or gone again.
    Over,
}

/// What is reserved on a host, or given back early when negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Promise {
    /// Amounts by the pool's name.
    pub(crate) amounts: Vec<(Text, i64)>,
    pub(crate) bound: Vec<Bound>,
    /// Ports that the inventory still shows and their owner let go of.
    pub(crate) released: Vec<Bound>,
    /// What it is found by.
    pub(crate) keys: Vec<Fingerprint>,
}

impl Promise {
    /// What is left of it once these containers are there: no snapshot shows disk and the like, so that stays promised
    /// as long as they are.
    pub(super) fn not_in_snapshots<'a>(
        &self,
        inventory: &Inventory,
        containers: impl IntoIterator<Item = &'a Text>,
    ) -> Self {
        let hosts = inventory.hosts();
        let accounts: Vec<_> = containers.into_iter().filter_map(|uuid| inventory.account(uuid)).collect();
        let shown = |name: &Text| {
            let known = matches!(&**name, INSTANCES | CPU | MEMORY);
            let named = |(pool, _): &(usize, i64)| hosts.pools.get(*pool) == Some(name);
            known || accounts.iter().any(|account| account.amounts.iter().any(named))
        };
        Self { amounts: self.amounts.iter().filter(|(name, _)| !shown(name)).cloned().collect(), ..Self::default() }
    }

    pub(super) fn apply(&self, promised: &mut Promised, inventory: &Inventory, host: &str, more: bool) {
        let hosts = inventory.hosts();
        // A host that went away has no sums; if it comes back, they are computed again.
        let Some(host) = hosts.index(host) else { return };
        for (pool, amount) in &self.amounts {
            if let Some(pool) = hosts.pool(pool) {
                promised.add_amount(pool, host, if more { *amount } else { -amount });
            }
        }
        for bound in &self.bound {
            if more {
                promised.add_bound(host, bound.clone());
            } else {
                promised.remove_bound(host, bound);
            }
        }
        for bound in &self.released {
            if more {
                promised.add_released(host, bound.clone());
            } else {
                promised.remove_released(host, bound);
            }
        }
        for key in self.keys.iter().copied().chain(bound_keys(&self.bound)) {
            promised.count(key, host, more);
        }
    }
}
