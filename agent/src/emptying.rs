//! When a host that units of stacks leave is empty: by what it shows, and by what the ledger of a scheduler has. ◇

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::printable::printable;
use scheduler::DrainLeft;

/// How soon each scheduler knows that a host gets nothing new. What one has begun to place before, its ledger has by then.
const HEARD: Duration = Duration::from_secs(1);

/// How long a host without units has to stay so where no scheduler answers: what is being started is shown by then.
const QUIET: Duration = Duration::from_secs(5);

/// How often a scheduler is asked while units are there.
const SURVEY: Duration = Duration::from_secs(5);

/// How long nothing has changed until what stays is not waited for any more: a move takes less, from one step to the next.
const STANDSTILL: Duration = Duration::from_mins(1);

/// Most names in one line.
const NAMES_MAX: usize = 10;

/// Most characters of a name that are shown: names of units are shorter, and a line of them is to be one that can be read.
const SHOWN_MAX: usize = 64;

/// Units that leave a host. All times are since that began.
#[derive(Debug, Default)]
pub(crate) struct Emptying {
    units: BTreeSet<String>,
    changed: Duration,
    asked: Option<Duration>,
    /// What a scheduler said last of what stays, with the reasons.
    stays: BTreeMap<String, String>,
    /// Whether the scheduler has had some of the units, so that its ledger is theirs.
    knows: bool,
}

/// What a look at the host comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing is left.
    Empty,
    /// These are left, some of them with the reason why they stay as it is now.
    Waits(BTreeMap<String, Option<String>>),
    /// These are left, and stay, each with its reason.
    Stays(BTreeMap<String, String>),
}

impl Emptying {
    /// Whether a scheduler is to be asked before the next look, at which the host shows these units.
    pub(crate) fn asks(&self, units: &BTreeSet<String>, now: Duration) -> bool {
        units.is_empty() || self.asked.is_none_or(|asked| now >= asked + SURVEY)
    }

    /// Looks at the units that the host shows, and at what a scheduler answered, if it was asked and did.
    pub(crate) fn look(&mut self, units: &BTreeSet<String>, answer: Option<&DrainLeft>, now: Duration) -> Look {
        if *units != self.units {
            self.units.clone_from(units);
            self.changed = now;
        }
        let Some(left) = answer else {
            let is_quiet = units.is_empty() && now >= self.changed + QUIET;
            return if is_quiet { Look::Empty } else { self.waits(units) };
        };
        self.asked = Some(now);
        if !left.stays.keys().eq(self.stays.keys()) {
            self.changed = now;
        }
        self.stays.clone_from(&left.stays);
        let is_known = |name: &&String| left.moves.contains(*name) || left.stays.contains_key(*name);
        self.knows |= units.iter().any(|name| is_known(&name));
        // Anybody can give a container the label of a stack.
        let known: BTreeSet<String> = units.iter().filter(|name| !self.knows || is_known(name)).cloned().collect();
        let stays = |name: &String| Some((name.clone(), left.stays.get(name)?.clone()));
        if !known.is_empty() {
            let stay: BTreeMap<_, _> = known.iter().filter_map(stays).collect();
            let stands = stay.len() == known.len() && now >= self.changed + STANDSTILL;
            return if stands { Look::Stays(stay) } else { self.waits(&known) };
        }
        // What is being started there leaves, too.
        if left.moves.is_empty() && now >= HEARD { Look::Empty } else { self.waits(&left.moves) }
    }

    fn waits(&self, units: &BTreeSet<String>) -> Look {
        Look::Waits(units.iter().map(|name| (name.clone(), self.stays.get(name).cloned())).collect())
    }
}

/// The names of what is left, and below them what stays and why.
pub(crate) fn waited(units: &BTreeMap<String, Option<String>>) -> String {
    let stays = units.iter().filter_map(|(name, why)| Some((name.clone(), why.clone()?))).collect();
    names(units.keys()) + &listed(&stays)
}

/// The first names, and how many more there are.
pub(crate) fn names<'a>(all: impl ExactSizeIterator<Item = &'a String>) -> String {
    if all.len() == 0 {
        return "nothing".to_owned();
    }
    let more = all.len().saturating_sub(NAMES_MAX);
    let first: Vec<String> = all.take(NAMES_MAX).map(|name| printable(name, SHOWN_MAX)).collect();
    first.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// What stays and why, a line each, below what is said of it.
pub(crate) fn listed(stays: &BTreeMap<String, String>) -> String {
    let lines = stays.iter().map(|(name, why)| format!("\n  {name}: {why}"));
    lines.collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn left(moves: &[&str], stays: &[&str]) -> DrainLeft {
        let stays = stays.iter().map(|name| ((*name).to_owned(), "a volume".to_owned())).collect();
        DrainLeft { moves: set(moves), stays }
    }

    /// Looks each second; the first look that is no wait, and when.
    fn first(
        units: impl Fn(u64) -> BTreeSet<String>,
        answer: impl Fn(u64) -> Option<DrainLeft>,
    ) -> Option<(u64, Look)> {
        let mut emptying = Emptying::default();
        (0..300).find_map(|second| {
            let (units, now) = (units(second), Duration::from_secs(second));
            let answer = answer(second).filter(|_| emptying.asks(&units, now));
            let look = emptying.look(&units, answer.as_ref(), now);
            (!matches!(look, Look::Waits(_))).then_some((second, look))
        })
    }

    #[test]
    fn many_names_are_a_few_and_a_number() {
        let said = |count: usize| names((0..count).map(|at| format!("c{at}")).collect::<Vec<_>>().iter());
        assert_eq!(said(0), "nothing");
        assert_eq!(said(2), "c0, c1");
        assert_eq!(said(12), "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 2 more");
    }

    #[test]
    fn a_host_is_empty_when_the_ledger_has_nothing_there_either() {
        assert_eq!(first(|_| set(&[]), |_| Some(left(&[], &[]))), Some((1, Look::Empty)));
        let starting = |second| Some(if second < 9 { left(&["a"], &[]) } else { left(&[], &[]) });
        assert_eq!(first(|_| set(&[]), starting), Some((9, Look::Empty)));
        let shown = |second| if (3..20).contains(&second) { set(&["a"]) } else { set(&[]) };
        assert_eq!(
            first(shown, |second| Some(left(if second < 20 { &["a"] } else { &[] }, &[]))),
            Some((20, Look::Empty))
        );
    }

    #[test]
    fn without_a_scheduler_it_is_empty_when_it_has_been_so_for_a_while() {
        assert_eq!(first(|_| set(&[]), |_| None), Some((5, Look::Empty)));
        let shown = |second| if (3..20).contains(&second) { set(&["a"]) } else { set(&[]) };
        assert_eq!(first(shown, |_| None), Some((25, Look::Empty)));
        assert_eq!(first(|_| set(&["a"]), |_| None), None);
    }

    #[test]
    fn what_stays_is_waited_for_until_nothing_changes_any_more() {
        let shown = |second| if second < 30 { set(&["a", "b"]) } else { set(&["a"]) };
        let answer = |second| Some(if second < 30 { left(&["b"], &["a"]) } else { left(&[], &["a"]) });
        let (second, look) = first(shown, answer).unwrap();
        assert!((90..=95).contains(&second), "{second}");
        assert_eq!(look, Look::Stays([("a".to_owned(), "a volume".to_owned())].into()));
        // What it waits for is known meanwhile.
        let look = Emptying::default().look(&shown(30), answer(30).as_ref(), Duration::from_secs(30));
        assert_eq!(look, Look::Waits([("a".to_owned(), Some("a volume".to_owned()))].into()));
        // One that could go is waited for.
        assert_eq!(first(|_| set(&["a", "b"]), |_| Some(left(&["b"], &["a"]))), None);
    }

    #[test]
    fn what_failed_to_move_is_tried_for_a_while_more() {
        let answer = |second| Some(if second < 100 { left(&["a"], &[]) } else { left(&[], &["a"]) });
        let (second, look) = first(|_| set(&["a"]), answer).unwrap();
        assert!((160..=165).contains(&second), "{second} {look:?}");
    }

    #[test]
    fn a_container_that_only_says_to_be_of_a_stack_is_not_waited_for() {
        let shown = |second| if second < 10 { set(&["a", "own"]) } else { set(&["own"]) };
        let answer = |second| Some(left(if second < 10 { &["a"] } else { &[] }, &[]));
        assert!(matches!(first(shown, answer), Some((10..=15, Look::Empty))));
        // The ledger may be another one.
        assert_eq!(first(|_| set(&["own"]), |_| Some(left(&[], &[]))), None);
    }
}
