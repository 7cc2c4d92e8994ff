//! The verdict: what the opinions of all checkers of a container make of its `health_state`.

use crate::opinion::Opinion;

/// A container's `health_state` as far as checks lead to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthState {
    /// There was no good result yet.
    Initializing,
    /// It was started again, and there was no good result since.
    Reinitializing,
    /// It is well.
    Healthy,
    /// It is not.
    Unhealthy,
}

impl HealthState {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Reinitializing => "reinitializing",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }

    /// The state of a word on the wire; the predecessor's `updating-…` count as what they are updated from.
    pub fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "initializing" => Self::Initializing,
            "reinitializing" => Self::Reinitializing,
            "healthy" | "updating-healthy" => Self::Healthy,
            "unhealthy" | "updating-unhealthy" => Self::Unhealthy,
            _ => return None,
        })
    }

    /// The opinion that says the same; a checker whose opinion this is casts no vote.
    pub fn opinion(self) -> Opinion {
        match self {
            Self::Initializing | Self::Reinitializing => Opinion::Initializing,
            Self::Healthy => Opinion::Up,
            Self::Unhealthy => Opinion::Down,
        }
    }

    /// The state once the container has been started again.
    #[must_use]
    pub fn restarted(self) -> Self {
        match self {
            Self::Healthy => Self::Reinitializing,
            other => other,
        }
    }

    /// The state of a container that is checked in two ways, by its engine (`HEALTHCHECK`) and by checkers: unhealthy if
    /// either says so, initializing if either is, healthy if both say so.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let worse = |state| match state {
            Self::Unhealthy => 3,
            Self::Initializing => 2,
            Self::Reinitializing => 1,
            Self::Healthy => 0,
        };
        if worse(other) > worse(self) { other } else { self }
    }
}

/// How many opinions make a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quorum {
    /// More than half.
    #[default]
    Majority,
    /// All for unhealthy, one for healthy: the predecessor's way.
    All,
}

/// The opinions of a container's checkers. One that casts no vote agrees with the state that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Checkers that are there and do not suspect themselves.
    pub sure: usize,
    /// Checkers that the cluster could have for it, at most three: in a cluster of one host one word has to be enough.
    pub possible: usize,
    /// Votes of the sure ones that it is well.
    pub up: usize,
    /// Votes of the sure ones that it is not.
    pub down: usize,
}

impl Poll {
    /// How many think that it is well, and how many that it is not; those who agree with what is published have not voted.
    fn opinions(self, published: HealthState) -> (usize, usize) {
        let agreeing = self.sure.saturating_sub(self.up + self.down);
        match published.opinion() {
            Opinion::Up => (self.up + agreeing, self.down),
            Opinion::Down => (self.up, self.down + agreeing),
            Opinion::Initializing => (self.up, self.down),
        }
    }

    /// Whether all who are sure think that it is not well: enough to end it, and not only to name it no more.
    pub fn is_down_for_all(self, published: HealthState) -> bool {
        let (_, down) = self.opinions(published);
        down == self.sure && down >= self.possible.clamp(1, 2)
    }

    /// The state that follows on `published`.
    #[must_use]
    pub fn verdict(self, published: HealthState, quorum: Quorum) -> HealthState {
        let (up, down) = self.opinions(published);
        let majority = self.sure / 2 + 1;
        let (is_up, is_down) = match quorum {
            Quorum::Majority => (up >= majority, down >= majority.max(self.possible.min(2))),
            Quorum::All => (up > 0, up == 0 && down > 0 && down == self.sure),
        };
        match (is_up, is_down) {
            (true, _) => HealthState::Healthy,
            (false, true) => HealthState::Unhealthy,
            (false, false) => published,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HealthState::{Healthy, Initializing, Reinitializing, Unhealthy};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn truth_table_of_the_majority() {
        // published, sure, possible, votes up, votes down
        for (published, sure, possible, up, down, expected) in [
            (Healthy, 3, 3, 0, 0, Healthy),
            (Healthy, 3, 3, 0, 1, Healthy),
            (Healthy, 3, 3, 0, 2, Unhealthy),
            (Healthy, 3, 3, 0, 3, Unhealthy),
            // Two of three are gone or suspect themselves: one alone takes nothing out of DNS.
            (Healthy, 1, 3, 0, 1, Healthy),
            (Healthy, 2, 3, 0, 1, Healthy),
            (Healthy, 2, 3, 0, 2, Unhealthy),
            (Healthy, 2, 2, 0, 1, Healthy),
            (Healthy, 2, 2, 0, 2, Unhealthy),
            (Healthy, 1, 1, 0, 1, Unhealthy),
            (Healthy, 0, 3, 0, 0, Healthy),
            (Unhealthy, 3, 3, 0, 0, Unhealthy),
            (Unhealthy, 3, 3, 1, 0, Unhealthy),
            (Unhealthy, 3, 3, 2, 0, Healthy),
            (Unhealthy, 1, 3, 1, 0, Healthy),
            (Unhealthy, 0, 3, 0, 0, Unhealthy),
            (Initializing, 3, 3, 0, 0, Initializing),
            (Initializing, 3, 3, 1, 0, Initializing),
            (Initializing, 3, 3, 2, 0, Healthy),
            (Initializing, 3, 3, 1, 2, Unhealthy),
            (Initializing, 1, 1, 1, 0, Healthy),
            (Reinitializing, 3, 3, 2, 1, Healthy),
            (Reinitializing, 3, 3, 1, 1, Reinitializing),
        ] {
            let poll = Poll { sure, possible, up, down };
            assert_eq!(poll.verdict(published, Quorum::Majority), expected, "{published:?} {poll:?}");
        }
    }

    #[test]
    fn only_what_is_down_for_all_who_are_sure_is_ended() {
        for (published, sure, possible, up, down, expected) in [
            (Unhealthy, 3, 3, 0, 0, true),
            (Unhealthy, 3, 3, 1, 0, false),
            (Unhealthy, 3, 3, 1, 2, false),
            (Unhealthy, 2, 3, 0, 0, true),
            (Unhealthy, 1, 3, 0, 0, false),
            (Unhealthy, 1, 1, 0, 1, true),
            (Unhealthy, 0, 1, 0, 0, false),
            (Unhealthy, 0, 0, 0, 0, false),
            (Healthy, 3, 3, 0, 2, false),
        ] {
            let poll = Poll { sure, possible, up, down };
            assert_eq!(poll.is_down_for_all(published), expected, "{published:?} {poll:?}");
        }
    }

    #[test]
    fn truth_table_of_the_predecessors_way() {
        for (published, up, down, expected) in [
            (Initializing, 1, 0, Healthy),
            (Initializing, 1, 2, Healthy),
            (Initializing, 0, 0, Initializing),
            (Initializing, 0, 2, Initializing),
            (Healthy, 0, 2, Healthy),
            (Healthy, 0, 3, Unhealthy),
            (Unhealthy, 1, 0, Healthy),
            (Unhealthy, 0, 0, Unhealthy),
        ] {
            let poll = Poll { sure: 3, possible: 3, up, down };
            assert_eq!(poll.verdict(published, Quorum::All), expected, "{published:?} {poll:?}");
        }
    }

    #[test]
    fn truth_table_of_two_ways_to_check() {
        for (one, other, expected) in [
            (Healthy, Healthy, Healthy),
            (Healthy, Unhealthy, Unhealthy),
            (Healthy, Initializing, Initializing),
            (Healthy, Reinitializing, Reinitializing),
            (Unhealthy, Initializing, Unhealthy),
            (Unhealthy, Reinitializing, Unhealthy),
            (Initializing, Reinitializing, Initializing),
        ] {
            assert_eq!((one.and(other), other.and(one)), (expected, expected));
        }
        for state in [Healthy, Unhealthy, Initializing, Reinitializing] {
            assert_eq!((state.and(state), HealthState::of_word(state.word())), (state, Some(state)));
        }
        assert_eq!(
            [Healthy, Unhealthy, Initializing].map(HealthState::restarted),
            [Reinitializing, Unhealthy, Initializing]
        );
    }

    proptest! {
        /// However the votes stand: unhealthy only if fewer than half of those who are sure are well.
        #[test]
        fn a_majority_that_is_up_is_never_overruled(up in 0usize..6, down in 0usize..6, others in 0usize..6) {
            let sure = up + down + others;
            for published in [Healthy, Unhealthy, Initializing, Reinitializing] {
                let verdict = Poll { sure, possible: 3, up, down }.verdict(published, Quorum::Majority);
                let well = if published == Healthy { sure - down } else { up };
                if 2 * well > sure {
                    prop_assert_eq!(verdict, Healthy);
                }
                if verdict == Unhealthy && published != Unhealthy {
                    prop_assert!(2 * down > sure && down >= 2);
                }
            }
        }
    }
}
