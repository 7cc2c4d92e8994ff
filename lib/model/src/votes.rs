//! What hosts say of the health of other hosts' containers.
//!
//! A checker whose opinion differs from what the owner of a container publishes *votes*; only the owner reads votes. While the owner
//! is silent, the checker *overrides*: all hosts read that, and a container that most of its checkers override is hidden.

use std::collections::BTreeMap;

use crate::value::{Map, Text};

/// Field of a container that its checkers override: what its own host says of its health. Not shown on the wire.
pub const SAID_BY_HOST: &str = "health_state_of_host";

/// Field of a vote and of an override: the start of the container for which it counts, [`start`].
pub const START: &str = "start";

/// Field of a container: when it was started, in microseconds from the beginning of 1970 by its host's clock. Not shown on the wire.
pub const STARTED: &str = "started";

/// Which start of a container is meant: what was said for one says nothing of another. Engines count only the restarts that they make
/// themselves, so the time counts where it is known.
pub fn start(container: &Map) -> i64 {
    container.int(STARTED).or_else(|| container.int("start_count")).unwrap_or_default()
}

/// A container of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct About {
    /// The name of its host.
    pub owner: Text,
    /// Its uuid.
    pub container: Text,
}

/// What one host says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cast {
    /// Its votes.
    pub votes: BTreeMap<About, Map>,
    /// The containers that it overrides.
    pub overrides: BTreeMap<About, Map>,
}

/// The votes of others about the containers of one host, by checker and container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard(pub BTreeMap<(Text, Text), Map>);
