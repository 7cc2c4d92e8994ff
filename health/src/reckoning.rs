//! What follows from opinions and votes: verdicts about this host's containers, and votes about others'.

use std::collections::BTreeMap;
use std::time::Duration;

use model::checkers::uuid_of_host;
use model::unwell::reason_of;
use model::votes::{Cast, Heard, SAID_BY_HOST, START};
use model::{About, Container, Entity as _, Text, Value};

use crate::assigned::{Assigned, Roster};
use crate::opinion::Opinion;
use crate::verdict::{HealthState, Poll};
use crate::vote::Vote;
use crate::wheel::Check;

/// How long a host may leave a vote that its container is down without an answer, before the checker says so to all hosts.
const SILENCE: Duration = Duration::from_secs(2);

/// What a container's own host says of its health; `Initializing` if it says nothing.
pub(crate) fn published(container: &Container) -> HealthState {
    let of_host = match container.fields().get(SAID_BY_HOST) {
        Some(of_host) => of_host.as_text().map(|word| &**word),
        None => container.health_state(),
    };
    of_host.and_then(HealthState::of_word).unwrap_or(HealthState::Initializing)
}

/// What a checker says: its opinion, and why.
pub(crate) type Said = (Opinion, Option<Text>);

/// The checkers of a container of this host that are there and do not doubt themselves, with what they say; one that says nothing
/// agrees with what is published.
///
/// `own` is what this host says if it is one of them.
pub(crate) fn sure<'o>(
    one: &'o Assigned,
    own: Option<&Said>,
    heard: &Heard,
    roster: &Roster,
    is_suspect: bool,
) -> Vec<(&'o Text, Option<Said>)> {
    let checkers = one.checkers.iter().filter_map(|checker| {
        if roster.own.as_ref() == Some(checker) {
            return (!is_suspect).then(|| (checker, own.cloned()));
        }
        let host = roster.hosts.find(checker)?;
        if roster.hosts.is_suspect(host) {
            return None;
        }
        let vote = heard.0.get(&(checker.clone(), one.target.uuid.clone())).and_then(Vote::of_map);
        let vote = vote.filter(|vote| vote.start == one.target.start);
        Some((checker, vote.map(|vote| (vote.opinion, vote.reason))))
    });
    checkers.collect()
}

/// The opinions of those checkers, or of this host where it alone checks.
pub(crate) fn poll(one: &Assigned, own: Option<Opinion>, sure: &[(&Text, Option<Said>)]) -> Poll {
    let is_alone = one.checkers.is_empty();
    let count = |opinion: Opinion| {
        let said = sure.iter().filter(|(_, said)| said.as_ref().is_some_and(|(said, _)| *said == opinion));
        if is_alone { usize::from(own == Some(opinion)) } else { said.count() }
    };
    let sure = if is_alone { 1 } else { sure.len() };
    Poll { sure, possible: one.checkers.len().max(1), up: count(Opinion::Up), down: count(Opinion::Down) }
}

/// Why a container is down that these say is down, where one that says nothing agrees with `published`.
pub(crate) fn why_down(published: HealthState, own: Option<&str>, sure: &[(&Text, Option<Said>)]) -> Text {
    const NO_REASON: &str = "no reason";
    if sure.is_empty() {
        return own.unwrap_or(NO_REASON).into();
    }
    reason_of(sure.iter().map(|(name, said)| {
        let (opinion, reason) =
            said.as_ref().map_or_else(|| (published.opinion(), None), |(said, why)| (*said, why.as_deref()));
        (&***name, (opinion == Opinion::Down).then_some(reason.unwrap_or(NO_REASON)))
    }))
}

/// Votes that stand, and since when they have waited for an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing(BTreeMap<About, (HealthState, Duration)>);

/// What this host says of the containers of others, and when it has to say more if nothing changes.
///
/// `targets` are those that it checks, with what their hosts publish; `before` is what it said last. A suspect does not say that
/// anything is down.
pub(crate) fn cast<'t>(
    targets: impl Iterator<Item = (&'t Assigned, &'t Check, HealthState)>,
    before: &Cast,
    standing: &mut Standing,
    is_suspect: bool,
    now: Duration,
) -> (Cast, Option<Duration>) {
    let (mut cast, mut due) = (Cast::default(), None::<Duration>);
    let mut still = BTreeMap::new();
    for (one, check, published) in targets {
        let Some(owner) = &one.owner else { continue };
        let opinion = check.results.opinion();
        let is_silent = opinion == Opinion::Initializing || (is_suspect && opinion == Opinion::Down);
        if is_silent || opinion == published.opinion() {
            continue;
        }
        let about = About { owner: owner.clone(), container: uuid_of_host(&one.target.uuid).into() };
        let mut vote = Vote { opinion, start: one.target.start, reason: check.results.reason().map(Text::from) };
        // One that stands is not written again for another reason.
        if let Some(known) = before.votes.get(&about).and_then(Vote::of_map)
            && (known.opinion, known.start) == (vote.opinion, vote.start)
        {
            vote = known;
        }
        cast.votes.insert(about.clone(), vote.to_map());
        if opinion != Opinion::Down || published != HealthState::Healthy {
            continue;
        }
        let since = match standing.0.get(&about) {
            Some((said, since)) if *said == published => *since,
            _ => now,
        };
        if now >= since + SILENCE {
            let fields = [
                ("health_state", Some(Value::text(HealthState::Unhealthy.word()))),
                (START, Some(Value::Int(one.target.start))),
                ("reason", vote.reason.map(Value::Text)),
            ];
            let fields = fields.into_iter().filter_map(|(key, value)| Some((key.into(), value?)));
            cast.overrides.insert(about.clone(), fields.collect());
        } else {
            due = Some(due.map_or(since + SILENCE, |due| due.min(since + SILENCE)));
        }
        still.insert(about, (published, since));
    }
    standing.0 = still;
    (cast, due)
}

#[cfg(test)]
mod tests {
    use model::Map;
    use model::checkers::{Candidate, Hosts};

    use super::*;
    use crate::opinion::{Outcome, Sample};
    use crate::target::Target;
    use crate::verdict::Quorum;
    use crate::wheel::Wheel;

    const SECOND: Duration = Duration::from_secs(1);

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    fn target(starts: i64) -> Target {
        let fields = map(&format!(
            r#"{{"uuid": "c", "start_count": {starts}, "labels": {{"io.berth.health.port": "80", "io.berth.health.unhealthy_threshold": "1"}}}}"#
        ));
        let container = Container::new(fields, Map::default()).unwrap();
        let spec = crate::target::check_of(container.fields()).unwrap().unwrap();
        Target::new(&container, spec, ([192, 0, 2, 1], 80).into())
    }

    fn roster(suspect: &str) -> Roster {
        let candidate =
            |name: &str| Candidate { name: name.into(), zone: None, tenant: None, is_suspect: name == suspect };
        Roster { own: Some("own".into()), hosts: Hosts::new(["own", "x", "y", "z"].map(candidate)), is_alone: false }
    }

    fn heard(votes: &[(&str, Opinion, i64)]) -> Heard {
        let vote = |(checker, opinion, start): &(&str, Opinion, i64)| {
            let vote = Vote { opinion: *opinion, start: *start, reason: None };
            (((*checker).into(), "c".into()), vote.to_map())
        };
        Heard(votes.iter().map(vote).collect())
    }

    #[test]
    fn a_verdict_needs_most_of_the_checkers_that_are_sure() {
        use HealthState::{Healthy, Initializing, Unhealthy};
        use Opinion::{Down, Up};
        let one =
            Assigned { target: target(2), owner: None, checkers: ["x", "y", "z"].map(Text::from).to_vec(), rank: None };
        for (votes, suspect, published, expected) in [
            (&[][..], "", Healthy, Healthy),
            (&[("x", Down, 2)], "", Healthy, Healthy),
            (&[("x", Down, 2), ("y", Down, 2)], "", Healthy, Unhealthy),
            // Of an earlier start, of one that is no checker, and of one that doubts itself.
            (&[("x", Down, 2), ("y", Down, 1)], "", Healthy, Healthy),
            (&[("x", Down, 2), ("own", Down, 2)], "", Healthy, Healthy),
            (&[("x", Down, 2), ("y", Down, 2)], "y", Healthy, Healthy),
            (&[("x", Down, 2), ("y", Down, 2)], "z", Healthy, Unhealthy),
            (&[("x", Up, 2)], "", Initializing, Initializing),
            (&[("x", Up, 2), ("z", Up, 2)], "", Initializing, Healthy),
            // Those who do not vote agree with what is published.
            (&[("x", Up, 2)], "", Unhealthy, Unhealthy),
            (&[("x", Up, 2), ("y", Up, 2)], "", Unhealthy, Healthy),
        ] {
            let poll = poll(&one, None, &sure(&one, None, &heard(votes), &roster(suspect), false));
            assert_eq!(poll.verdict(published, Quorum::Majority), expected, "{votes:?} {suspect} {published:?}");
        }
    }

    #[test]
    fn own_host_counts_where_it_is_a_checker_and_is_enough_where_it_is_alone() {
        let mut one = Assigned { target: target(2), owner: None, checkers: Vec::new(), rank: Some(0) };
        let counted = |one: &Assigned, own: Option<Opinion>, votes: &[_], is_suspect| {
            let said = own.map(|own| (own, None));
            let poll = poll(one, own, &sure(one, said.as_ref(), &heard(votes), &roster(""), is_suspect));
            poll.verdict(HealthState::Healthy, Quorum::Majority)
        };
        assert_eq!(counted(&one, Some(Opinion::Down), &[], false), HealthState::Unhealthy);
        one.checkers = ["x", "own"].map(Text::from).to_vec();
        assert_eq!(counted(&one, Some(Opinion::Down), &[], false), HealthState::Healthy);
        let vote = [("x", Opinion::Down, 2)];
        assert_eq!(counted(&one, Some(Opinion::Down), &vote, false), HealthState::Unhealthy);
        assert_eq!(counted(&one, Some(Opinion::Down), &vote, true), HealthState::Healthy);
        assert_eq!(counted(&one, Some(Opinion::Initializing), &vote, false), HealthState::Healthy);
    }

    /// A check of a container of host `far` that has this opinion.
    fn check(opinion: Opinion) -> Wheel {
        let mut wheel = Wheel::default();
        let before = if opinion == Opinion::Down { Opinion::Up } else { opinion };
        wheel.set(target(2), 0, before, Duration::ZERO);
        if opinion == Opinion::Down {
            let job = wheel.take_due(10 * SECOND).unwrap();
            let sample = Sample { at: SECOND, took: SECOND, outcome: Outcome::Fail("refused".into()) };
            wheel.finish(&job, sample, SECOND, |period| period);
        }
        wheel
    }

    #[test]
    fn only_what_differs_is_voted_and_silence_is_overridden() {
        use HealthState::{Healthy, Initializing, Unhealthy};
        let one = Assigned { target: target(2), owner: Some("far".into()), checkers: Vec::new(), rank: Some(0) };
        let mut standing = Standing::default();
        let mut said = |opinion, published, is_suspect, seconds: u32| {
            let wheel = check(opinion);
            let targets = [(&one, wheel.get("c").unwrap(), published)];
            let before = Cast::default();
            let (cast, due) = cast(targets.into_iter(), &before, &mut standing, is_suspect, SECOND * seconds);
            (cast.votes.len(), cast.overrides.len(), due.map(|due| due.as_secs()))
        };
        assert_eq!(said(Opinion::Up, Healthy, false, 1), (0, 0, None));
        assert_eq!(said(Opinion::Up, Initializing, false, 1), (1, 0, None));
        assert_eq!(said(Opinion::Initializing, Healthy, false, 1), (0, 0, None));
        assert_eq!(said(Opinion::Down, Healthy, false, 10), (1, 0, Some(12)));
        assert_eq!(said(Opinion::Down, Healthy, false, 11), (1, 0, Some(12)));
        assert_eq!(said(Opinion::Down, Healthy, false, 12), (1, 1, None));
        // It answered; the next silence is counted from its beginning.
        assert_eq!(said(Opinion::Down, Unhealthy, false, 13), (0, 0, None));
        assert_eq!(said(Opinion::Down, Healthy, false, 14), (1, 0, Some(16)));
        // A suspect takes its word back.
        assert_eq!(said(Opinion::Down, Healthy, true, 20), (0, 0, None));
        assert_eq!(said(Opinion::Up, Unhealthy, true, 20), (1, 0, None));
    }

    #[test]
    fn a_vote_that_stands_is_not_written_again_for_another_reason() {
        let one = Assigned { target: target(2), owner: Some("far".into()), checkers: Vec::new(), rank: Some(0) };
        let wheel = check(Opinion::Down);
        let said = |before: &Cast| {
            let targets = [(&one, wheel.get("c").unwrap(), HealthState::Healthy)];
            cast(targets.into_iter(), before, &mut Standing::default(), false, SECOND).0
        };
        let first = said(&Cast::default());
        let about = first.votes.keys().next().unwrap().clone();
        let other = |opinion, start| {
            let vote = Vote { opinion, start, reason: Some("another".into()) };
            Cast { votes: [(about.clone(), vote.to_map())].into(), ..Cast::default() }
        };
        assert_eq!(said(&other(Opinion::Down, 2)), other(Opinion::Down, 2));
        // What says something else is.
        assert_eq!(said(&other(Opinion::Up, 2)), first);
        assert_eq!(said(&other(Opinion::Down, 1)), first);
    }

    #[test]
    fn what_its_host_says_counts_even_where_it_is_overridden() {
        for (fields, expected) in [
            (r#"{"uuid": "c", "health_state": "unhealthy", "health_state_of_host": "healthy"}"#, HealthState::Healthy),
            (r#"{"uuid": "c", "health_state": "unhealthy", "health_state_of_host": null}"#, HealthState::Initializing),
            (r#"{"uuid": "c", "health_state": "unhealthy"}"#, HealthState::Unhealthy),
            (r#"{"uuid": "c"}"#, HealthState::Initializing),
        ] {
            assert_eq!(published(&Container::new(map(fields), Map::default()).unwrap()), expected, "{fields}");
        }
    }
}
