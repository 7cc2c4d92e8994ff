//! What is there: units, and what the executor knows of the world around them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::Text;

use crate::service::Service;

/// A unit of a service that the ledger has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The id of its placement.
    pub id: Text,
    /// Its service.
    pub service: Text,
    /// Its number in the service; of a global service the host's name.
    pub index: Text,
    /// The digest of its revision.
    pub digest: Text,
    /// The host, by uuid.
    pub host: Text,
    /// When it was created, as far as the scheduler that has the stack knows.
    pub made: Duration,
    /// When it was placed, as the ledger says.
    pub placed: Duration,
    /// How it is.
    pub state: State,
}

/// How a unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being created or started, or its checks have not answered.
    Starting,
    /// It runs and is healthy, or has no check, since this time.
    Healthy(Duration),
    /// It runs and is not healthy, or does not run.
    Unhealthy,
    /// It could not be started, or a job of it ended with an error.
    Failed(Text),
    /// It ended, and is no job: somebody has to start it again.
    Ended(Text),
    /// A job that ended without an error.
    Done,
    /// It was stopped and is kept.
    Kept,
    /// Its host is gone since this time.
    Lost(Duration),
    /// Its host is gone, and it was evicted: another one takes its place.
    Evicted,
    /// It was evicted, and its host is back.
    Returned,
    /// It is being removed.
    Removing,
}

impl Unit {
    /// Whether it serves, or may do so soon.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, State::Kept | State::Evicted | State::Returned | State::Removing)
    }

    /// Whether it does what it is there for.
    pub fn is_healthy(&self) -> bool {
        matches!(self.state, State::Healthy(_) | State::Done)
    }

    /// Whether it has been healthy for `monitor`.
    pub(crate) fn is_good(&self, monitor: u64, now: Duration) -> bool {
        match self.state {
            State::Healthy(since) => now >= since.saturating_add(Duration::from_secs(monitor)),
            State::Done => true,
            _ => false,
        }
    }
}

/// What is there.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The units of the stack.
    pub units: Vec<Unit>,
    /// The names of hosts on which a unit of a global service belongs, by service.
    pub hosts: BTreeMap<Text, BTreeSet<Text>>,
    /// Services of which one more unit fits beside the old ones.
    pub fits_beside: BTreeSet<Text>,
    /// Services of which no unit fits even without the old ones, and why.
    pub hopeless: BTreeMap<Text, Text>,
    /// Hosts, by uuid, that units leave since an operator wants them to.
    pub leaving: BTreeSet<Text>,
    /// Hosts, by uuid, that get no more units, and on which what runs stays.
    pub cordoned: BTreeSet<Text>,
    /// Hosts, by uuid, that are gone and have units that are being removed.
    pub gone: BTreeSet<Text>,
    /// Services whose images did not come to their hosts, and why.
    pub missing_images: BTreeMap<Text, Text>,
    /// When what could not be placed, or did not become healthy, is tried again: by service and index.
    pub not_before: BTreeMap<(Text, Text), Duration>,
    /// What is added to ids that placements of others have.
    pub suffixes: BTreeMap<Text, Text>,
    /// Whether the scheduler sees etcd and at least half of all hosts: only then a host counts as dead.
    pub sees_most: bool,
    /// The time.
    pub now: Duration,
}

impl World {
    /// Whether a unit is to run on another host. One of a job is not: it would run twice, so its end is waited for.
    pub fn has_to_leave(&self, unit: &Unit, service: &Service) -> bool {
        !service.job && unit.state != State::Done && self.leaving.contains(&unit.host)
    }

    /// Whether a unit of a global service stays as it is although another revision is wanted: its host takes no new one.
    pub fn keeps_as_it_is(&self, unit: &Unit, service: &Service) -> bool {
        service.global && unit.digest != service.digest && self.cordoned.contains(&unit.host)
    }
}
