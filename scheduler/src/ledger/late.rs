//! Containers that an engine may still create although no job waits for them any more.
//!
//! A scheduler that dies while an engine is slow leaves a request that the engine may carry out a minute later. The
//! scheduler that continues the placement creates and removes containers of the same name, and the old request may be
//! carried out after that: so it remembers the name, and looks for it until the engine has answered for so long that no
//! old request can be pending.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Text;

use super::record::{LATE, Replica};

/// Most names to look for at once; those over soonest are forgotten first. A scheduler works on far fewer units when it
/// dies, and looking for one costs an engine a millisecond.
pub(super) const LATE_MAX: usize = 10_000;

/// How long an engine that does not answer is asked again and again. One that is away for that long was restarted, and
/// has forgotten what it was asked; one that hangs for longer has been noticed.
const PATIENCE: Duration = Duration::from_hours(24);

/// What may still come, by the host and the name.
pub(crate) type LateContainers = BTreeMap<(Text, Text), LateContainer>;

/// A container that may still come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LateContainer {
    pub(crate) id: Text,
    pub(crate) attempt: Option<Text>,
    /// Until when its engine may do what it was asked, as far as was known when the placement ended.
    pub(super) until: Duration,
    /// Since when its engine has answered without a break: one that hangs does what it was asked when it wakes up.
    answers_since: Option<Duration>,
}

impl LateContainer {
    fn new(id: Text, attempt: Option<Text>, until: Duration) -> Self {
        Self { id, attempt, until, answers_since: None }
    }

    /// Records a look at its engine, which has `answered` or not; returns whether it can no longer be created.
    pub(super) fn is_over(&mut self, answered: bool, now: Duration) -> bool {
        if !answered {
            self.answers_since = None;
            return now >= self.until.saturating_add(PATIENCE);
        }
        let since = *self.answers_since.get_or_insert(now);
        now >= self.until && now >= since.saturating_add(LATE)
    }
}

/// What may still come of a unit.
pub(super) fn coming(id: &Text, replica: &Replica) -> impl Iterator<Item = ((Text, Text), LateContainer)> {
    let names = replica.members.iter().map(|held| held.name.clone());
    let until = replica.unclear_until;
    let one = move || Some(LateContainer::new(id.clone(), replica.attempt.clone(), until?));
    names.filter_map(move |name| Some(((replica.host.clone(), name), one()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_has_just_woken_up_is_not_looked_at_only_once() {
        let at = Duration::from_secs;
        let mut coming = LateContainer::new("web".into(), None, at(60));
        // It hangs for longer than a question may be answered late, wakes up, hangs again and wakes up.
        for (second, answered, over) in [
            (10, true, false),
            (20, false, false),
            (300, false, false),
            (310, true, false),
            (320, true, false),
            (330, false, false),
            (340, true, false),
            (390, true, false),
            (400, true, true),
        ] {
            assert_eq!(coming.is_over(answered, at(second)), over, "after {second} s");
        }
        // An engine that never answers is asked for a limited time.
        let mut coming = LateContainer::new("web".into(), None, at(60));
        assert!(!coming.is_over(false, PATIENCE));
        assert!(coming.is_over(false, PATIENCE + at(60)));
    }
}
