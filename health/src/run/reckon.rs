//! What follows from the results of checks: verdicts, votes, and doubt of this host's own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::health::REQUEST_LABEL;
use model::unwell::WhyUnhealthy;
use model::{Snapshot, Text};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Health, Known, PART, Turn};
use crate::assigned::Scope;
use crate::giving_up::{GivenUp, Unwell};
use crate::metrics::Sums;
use crate::opinion::Opinion;
use crate::reckoning::{Said, cast, poll, published, sure, why_down};
use crate::suspicion::{Seen, Unreached, suspicion};
use crate::verdict::HealthState;
use crate::verdicts::Verdict;

/// How often it is looked whether containers still flap, of which nothing but the metrics depends.
const FLAPPING_LOOK: Duration = Duration::from_secs(30);

impl Health {
    /// Makes verdicts and votes of all that is known, and publishes what is new.
    pub(super) fn reckon(&self, turn: &mut Turn) {
        let now = self.now();
        (turn.has_news, turn.reckoned, turn.due) = (false, Instant::now(), None);
        let mut known = self.known();
        self.doubt(&mut known, now);
        let heard = self.exchange.as_ref().map(|exchange| exchange.heard.load_full()).unwrap_or_default();
        let quorum = self.exchange.as_ref().map(|exchange| exchange.quorum).unwrap_or_default();
        let is_suspect = known.suspicion.is_some();
        let of_host =
            |uuid: &Text| turn.before.containers.get(uuid).map_or(HealthState::Initializing, |it| published(it));
        turn.verdicts.is_suspect = is_suspect;
        let mut unwell = Vec::new();
        let mut disagreeing = BTreeMap::new();
        for (uuid, one) in known.assigned.iter().filter(|(_, one)| one.owner.is_none()) {
            let check = known.wheel.get(uuid);
            let start = one.target.start;
            let before = turn.verdicts.state(uuid, start);
            // Votes differ from what all read; what this host alone thinks does not depend on that.
            let said = one.target.known.filter(|_| self.scope == Scope::All);
            let base = if one.checkers.is_empty() {
                before.or(said).unwrap_or(HealthState::Initializing)
            } else {
                of_host(uuid)
            };
            let opinion = check.map(|check| check.results.opinion());
            let own = check.map(|check| (check.results.opinion(), check.results.reason().map(Text::from)));
            let sure = sure(one, own.as_ref(), &heard, &known.roster, is_suspect);
            let poll = poll(one, opinion, &sure);
            let state = poll.verdict(base, quorum);
            disagreeing.extend(dissenters(state, &sure).map(|checker| {
                let dissent = (uuid.clone(), checker.clone());
                let since = known.disagreeing.get(&dissent).copied().unwrap_or(now);
                (dissent, since)
            }));
            // Nothing is decided until there is something to decide by.
            let is_decided = before.is_some() || state != base || !one.checkers.is_empty();
            let mut votes = one.checkers.iter().filter_map(|checker| heard.0.get(&(checker.clone(), uuid.clone())));
            let of_vote = || votes.find_map(|vote| vote.text("reason")).map(|reason| &**reason);
            let reason = check.and_then(|check| check.results.reason()).or_else(of_vote);
            if before != Some(state) && is_decided {
                info!(container = %one.target.name, state = state.word(), reason, "health");
                self.metrics.count_verdict(state, one.checkers.is_empty());
                turn.verdicts.insert(uuid.clone(), Verdict { state, start });
                if state == HealthState::Unhealthy {
                    let reason = why_down(base, reason, &sure);
                    turn.verdicts.explain(uuid.clone(), WhyUnhealthy { reason, since: seconds_since_1970() });
                }
            }
            // Of others it would be one more write without a reader.
            if state != HealthState::Healthy && is_placed(&turn.before, uuid) {
                let is_of_start = turn.verdicts.is_of_start(uuid, start);
                let (is_down_for_all, spec) = (poll.is_down_for_all(state), &one.target.spec);
                unwell.push(Unwell { uuid, start, state, is_of_start, is_down_for_all, reason, spec });
            }
        }
        let GivenUp { failed, due: given_up_at } = turn.giving_up.decide(unwell, now);
        turn.verdicts.give_up(failed);
        let voted = known.assigned.iter().filter_map(|(uuid, one)| Some((one, known.wheel.get(uuid)?, of_host(uuid))));
        let before = self.exchange.as_ref().map(|exchange| exchange.cast.load_full()).unwrap_or_default();
        let (said, due) = cast(voted, &before, &mut turn.standing, is_suspect, now);
        let checkers = known.assigned.values().flat_map(|one| &one.checkers);
        let checkers: BTreeSet<Text> =
            checkers.filter(|name| known.roster.own.as_ref() != Some(name)).cloned().collect();
        let sums = sums(&known, &disagreeing, now);
        known.disagreeing = disagreeing;
        drop(known);
        self.metrics.set(sums);
        let forgiven_at = (sums.flapping > 0).then_some(now + FLAPPING_LOOK);
        turn.due = due.into_iter().chain(given_up_at).chain(forgiven_at).min();
        if **self.verdicts.load() != turn.verdicts {
            self.verdicts.publish(Arc::new(turn.verdicts.clone()));
        }
        let Some(exchange) = &self.exchange else { return };
        if *before != said {
            self.metrics.votes.set(said.votes.len().try_into().unwrap_or(i64::MAX));
            let begun = said.overrides.keys().filter(|about| !before.overrides.contains_key(*about)).count();
            self.metrics.overrides.inc_by(begun.try_into().unwrap_or(u64::MAX));
            exchange.cast.publish(Arc::new(said));
        }
        if **exchange.checkers.load() != checkers {
            exchange.checkers.publish(Arc::new(checkers));
        }
    }

    /// Looks whether this host is to doubt its own results.
    fn doubt(&self, known: &mut Known, now: Duration) {
        if self.exchange.is_none() {
            return;
        }
        let seen = known.assigned.iter().filter_map(|(uuid, one)| {
            let results = &known.wheel.get(uuid)?.results;
            let (unreached_since, interval) = (results.unreached_since(), one.target.spec.interval);
            Some(Seen { owner: one.owner.as_ref()?, unreached_since, interval })
        });
        let found = suspicion(seen, known.suspicion.is_some(), now);
        match (&known.suspicion, &found) {
            (None, Some(Unreached { silent, targets, hosts })) => {
                let reason =
                    format!("cannot reach {silent} of {targets} containers on {hosts} hosts: this host's network?");
                warn!(%reason, "this host says nothing of the health of other hosts' containers");
                self.readiness.not_ready(PART, reason);
            }
            (Some(_), None) => {
                info!("this host reaches containers of other hosts again");
                self.readiness.ready(PART);
            }
            _ => {}
        }
        self.metrics.suspect.set(found.is_some().into());
        known.suspicion = found;
    }
}

/// The checkers that say another thing than the verdict. What a checker does not know yet is no other thing.
fn dissenters<'s>(state: HealthState, sure: &'s [(&'s Text, Option<Said>)]) -> impl Iterator<Item = &'s Text> {
    let verdict = state.opinion();
    let is_other = move |(opinion, _): &Said| *opinion != Opinion::Initializing && *opinion != verdict;
    sure.iter().filter(move |(_, said)| said.as_ref().is_some_and(is_other)).map(|(checker, _)| *checker)
}

/// What is counted of all checks.
fn sums(known: &Known, disagreeing: &BTreeMap<(Text, Text), Duration>, now: Duration) -> Sums {
    let mut sums = Sums::default();
    for check in known.wheel.checks() {
        if known.assigned.get(&check.target.uuid).is_some_and(|one| one.owner.is_some()) {
            sums.others += 1;
        } else {
            sums.own += 1;
        }
        let opinion = match check.results.opinion() {
            Opinion::Up => 0,
            Opinion::Down => 1,
            Opinion::Initializing => 2,
        };
        sums.opinions[opinion] += 1;
        sums.flapping += usize::from(check.is_flapping(now));
    }
    let containers: BTreeSet<&Text> = disagreeing.keys().map(|(uuid, _)| uuid).collect();
    Sums { disagreements: containers.len(), ..sums }
}

/// Whether a scheduler started a container.
fn is_placed(snapshot: &Snapshot, uuid: &str) -> bool {
    let labels = snapshot.containers.get(uuid).and_then(|container| container.labels());
    labels.is_some_and(|labels| labels.get(REQUEST_LABEL).is_some())
}

/// The time for people.
fn seconds_since_1970() -> Option<u64> {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().map(|time| time.as_secs())
}
