//! What a scheduler remembers of its stacks beside the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::Text;
use stacks::{Stack, World};

use crate::stack::counts::UnitCounts;
use crate::start::credentials::RequestCredentials;

/// Pause before what could not be placed or has ended is tried again; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(10);

/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_mins(5);

/// After how long in health the pauses begin again.
pub(crate) const WELL: Duration = Duration::from_mins(10);

/// What is remembered of all stacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) stacks: BTreeMap<Text, StackMemory>,
    /// Since when hosts are gone, by uuid.
    pub(crate) gone: BTreeMap<Text, Duration>,
    /// Since when nothing is done for any stack.
    pub(crate) halted_since: Option<Duration>,
    /// Stacks to be looked at.
    pub(crate) touched: BTreeSet<Text>,
    /// Whether all are.
    pub(crate) touched_all: bool,
}

/// What is remembered of one stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackMemory {
    /// Since when units are healthy, by id.
    pub(crate) healthy: BTreeMap<Text, Duration>,
    /// Since when they are on their way, by id.
    pub(crate) begun: BTreeMap<Text, Duration>,
    /// Units that could not be placed or started while their service was updated, by id.
    pub(crate) failed: BTreeMap<Text, FailedUnit>,
    /// What is added to ids of units that placements of others have, by the id.
    pub(crate) suffixes: BTreeMap<Text, Text>,
    /// When what failed while its service was as it should be is tried again, by service and index.
    pub(crate) retries: BTreeMap<(Text, Text), Retry>,
    /// Steps that are being done, by the id of the unit.
    pub(crate) in_flight: BTreeMap<Text, Flight>,
    /// Revisions of services whose images are on their hosts, or come to them: by service and digest.
    pub(crate) images: BTreeMap<(Text, Text), Images>,
    /// Since when no host fits a service, which engines and clusters may just not show yet.
    pub(crate) hopeless: BTreeMap<Text, Duration>,
    /// What was found out about room, and when.
    pub(crate) room: Option<(Duration, Room)>,
    /// How many units there were at the last look.
    pub(crate) counts: UnitCounts,
    /// Containers, by their engines' ids, about which these are being asked.
    pub(crate) asked: BTreeSet<Text>,
    /// Why nothing is done.
    pub(crate) halted: Option<String>,
    /// Why volumes of a stack that is removed are still there.
    pub(crate) volumes_left: Vec<String>,
    /// Credentials for registries that came with the last request.
    pub(crate) brought: RequestCredentials,
}

/// What a plan has to know of hosts, as in [`stacks::World`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    pub(crate) hosts: BTreeMap<Text, BTreeSet<Text>>,
    pub(crate) fits_beside: BTreeSet<Text>,
    pub(crate) hopeless: BTreeMap<Text, Text>,
}

/// A unit that could not be placed or started.
#[derive(Clone, Debug)]
pub(crate) struct FailedUnit {
    pub(crate) service: Text,
    pub(crate) index: Text,
    pub(crate) digest: Text,
    pub(crate) why: Text,
}

/// A step that is being done.
#[derive(Clone, Debug)]
pub(crate) enum Flight {
    /// It is being placed.
    Placing { service: Text, index: Text, digest: Text },
    /// It is being started again.
    Starting,
    /// It is being stopped or removed.
    Ending,
}

/// When something is tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retry {
    times: u32,
    pub(crate) not_before: Duration,
    pub(crate) why: String,
    /// The unit whose place it was to take, by id; none if it was missing.
    pub(crate) instead_of: Option<Text>,
}

/// Whether images are on their hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Images {
    /// Their registries were asked for which systems they are.
    Asked,
    Coming,
    There,
    /// They did not come.
    Missing(Text),
}

impl Retry {
    /// The next one, after another failure.
    pub(crate) fn next(&self, why: String, instead_of: Option<Text>, now: Duration) -> Self {
        let pause = PAUSE_MIN.saturating_mul(2_u32.saturating_pow(self.times)).min(PAUSE_MAX);
        Self { times: self.times.saturating_add(1), not_before: now.saturating_add(pause), why, instead_of }
    }
}

impl StackMemory {
    /// Notes that something has failed of a service, or of a step, that is as it should be.
    pub(crate) fn fail_later(&mut self, key: (Text, Text), why: String, instead_of: Option<Text>, now: Duration) {
        let next = self.retries.get(&key).cloned().unwrap_or_default().next(why, instead_of, now);
        self.retries.insert(key, next);
    }

    /// Forgets what failed of a service, since something else is wanted of it.
    pub(crate) fn forgive(&mut self, service: &str) {
        self.failed.retain(|_, unit| *unit.service != *service);
        self.retries.retain(|(own, _), _| **own != *service);
        self.forget_images(service);
        self.hopeless.remove(service);
    }

    /// Forgets how often it failed to move units that are no longer to leave their hosts: what fails next, and the next move, waits no longer
    /// for that.
    pub(crate) fn forget_moves(&mut self, world: &World) {
        let leaves = |id: &Text| world.units.iter().any(|unit| unit.id == *id && world.leaving.contains(&unit.host));
        let first = world.now.saturating_add(PAUSE_MIN);
        for retry in self.retries.values_mut() {
            if retry.instead_of.take_if(|id| !leaves(id)).is_some() {
                (retry.times, retry.not_before) = (0, retry.not_before.min(first));
            }
        }
    }

    /// Forgets what failed of all services, so that it is tried again.
    pub(crate) fn forget_failures(&mut self) {
        self.failed.clear();
        self.retries.clear();
        self.hopeless.clear();
        self.images.retain(|_, images| *images == Images::Coming);
    }

    /// Has the images of a service pulled again, should they be needed.
    pub(crate) fn forget_images(&mut self, service: &str) {
        self.images.retain(|(own, _), _| **own != *service);
    }

    /// The services of a stack whose images did not come, and why; what is known of other revisions is forgotten.
    pub(crate) fn missing_images(&mut self, stack: &Stack) -> BTreeMap<Text, Text> {
        let is_wanted = |name: &Text, digest: &Text| {
            stack.services.iter().any(|one| one.wanted.name == *name && one.wanted.digest == *digest)
        };
        self.images.retain(|(name, digest), _| is_wanted(name, digest));
        let missing = self.images.iter().filter_map(|((name, _), images)| match images {
            Images::Missing(why) => Some((name.clone(), why.clone())),
            Images::Asked | Images::Coming | Images::There => None,
        });
        missing.collect()
    }
}

#[cfg(test)]
mod tests {
    use stacks::{State, Unit};

    use super::*;

    #[test]
    fn pauses_of_moves_end_with_them() {
        let key = |index: &str| (Text::from("web"), Text::from(index));
        let mut memory = StackMemory::default();
        for _ in 0..3 {
            memory.fail_later(key("1"), "late".into(), Some("web-1".into()), Duration::ZERO);
            memory.fail_later(key("2"), "it ended".into(), None, Duration::ZERO);
        }
        let pauses =
            |memory: &StackMemory| memory.retries.values().map(|retry| retry.not_before.as_secs()).collect::<Vec<_>>();
        let (host, state) = (Text::from("a"), State::Starting);
        let (id, service, index, digest) = ("web-1".into(), "web".into(), "1".into(), "d".into());
        let (made, placed) = (Duration::ZERO, Duration::ZERO);
        let unit = Unit { id, service, index, digest, host: host.clone(), made, placed, state };
        let mut world = World { units: vec![unit], leaving: [host].into(), ..World::default() };
        memory.forget_moves(&world);
        assert_eq!(pauses(&memory), [40, 40]);
        world.leaving.clear();
        memory.forget_moves(&world);
        memory.forget_moves(&World { now: Duration::from_secs(5), ..world });
        assert_eq!(pauses(&memory), [10, 40]);
        memory.fail_later(key("1"), "it ended".into(), None, Duration::ZERO);
        assert_eq!(pauses(&memory), [10, 40]);
    }

    #[test]
    fn pauses_grow_and_end() {
        let mut retry = Retry::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            retry = retry.next(String::new(), None, Duration::ZERO);
            pauses.push(retry.not_before.as_secs());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300, 300]);
    }
}
