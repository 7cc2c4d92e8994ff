//! When which check is due, and what came of those before.

use std::collections::BTreeSet;
use std::time::Duration;

use foldhash::HashMap;
use futures_util::future::AbortHandle;
use model::Text;
use model::checkers::phase;

use crate::damping::Penalty;
use crate::opinion::{Opinion, Outcome, Results, Sample};
use crate::target::Target;

/// How much later than its time-outs allow a check may end. One that ends later was held up by this host, so that a failure says
/// nothing about the container.
const LATE: Duration = Duration::from_millis(250);

/// One container that is checked, and what is known of it.
#[derive(Clone, Debug)]
pub struct Check {
    /// What is checked.
    pub target: Target,
    /// What came of it.
    pub results: Results,
    /// When the opinion became what it is, by the wheel's clock.
    pub since: Duration,
    penalty: Penalty,
    due: Duration,
    /// When the one that is due was due at first, if it was put off.
    first_due: Option<Duration>,
    is_running: bool,
    /// Ends the one that is being made.
    end: Option<AbortHandle>,
    /// The checker's rank among those of the container.
    rank: usize,
    /// Which one of all checks that were ever begun, so that no other's result is taken for one of this.
    number: u64,
}

impl Check {
    fn period(&self) -> Duration {
        let spec = &self.target.spec;
        match self.results.opinion() {
            Opinion::Initializing => spec.initializing_interval(),
            _ if self.results.is_in_transition() => spec.fast_interval.unwrap_or(spec.interval),
            _ => spec.interval,
        }
    }

    /// The first moment from `from` on at which this checker is to ask; `origin` is the wheel's zero since 1970 (UTC).
    fn next_slot(&self, origin: Duration, from: Duration) -> Duration {
        let period = self.period();
        let whole = period.as_nanos().max(1);
        let past = (origin + from).as_nanos() + whole - phase(&self.target.uuid, self.rank, period).as_nanos();
        let left = (whole - past % whole) % whole;
        from + Duration::from_nanos(u64::try_from(left).unwrap_or_default())
    }

    /// Good results in a row that are wanted at this moment.
    pub fn healthy_threshold(&self, now: Duration) -> u32 {
        self.target.spec.healthy_threshold.saturating_mul(self.penalty.factor(now))
    }

    /// Whether it was unhealthy so often that more good results are wanted than it says.
    pub fn is_flapping(&self, now: Duration) -> bool {
        self.penalty.factor(now) > 1
    }
}

/// A check that is to be made now.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is checked.
    pub target: Target,
    /// Its place in the wheel.
    number: u64,
    /// When it was due.
    due: Duration,
    /// The time between two of them.
    period: Duration,
    /// Whether it has not been well yet.
    pub is_initializing: bool,
    /// Whether it had to wait for others to end.
    pub is_put_off: bool,
}

impl Job {
    /// How long it has been due.
    pub fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.due)
    }

    /// Whether it is too late to ask: by then the next one is nearer.
    pub fn is_stale(&self, now: Duration) -> bool {
        self.waited(now) > self.period / 2
    }

    /// After which time without an answer it is asked a second time as well: what is just starting may lose a question, and the
    /// next check would have to wait for the end of this one.
    pub fn second_attempt(&self) -> Option<Duration> {
        self.is_initializing.then_some(self.period)
    }

    /// What its outcome says, given how long it took with time-outs `patience` times as long.
    pub fn judged(&self, outcome: Outcome, took: Duration, patience: u32) -> Outcome {
        let spec = &self.target.spec;
        match outcome {
            Outcome::Fail(reason) | Outcome::Unreached(reason)
                if took > (spec.connect_timeout() + spec.response_timeout) * patience + LATE =>
            {
                Outcome::Unsure(format!("this host was held up: {reason}"))
            }
            outcome => outcome,
        }
    }
}

/// All checks of one process. Times are those since any fixed moment.
#[derive(Debug, Default)]
pub struct Wheel {
    /// The time since 1970 (UTC) at that moment, from which checkers on other hosts count too, so that they stay a third of an interval
    /// apart: most of them then notice a failure after the same time, whenever it happens.
    origin: Duration,
    /// In boxes, since nearly half of a table is empty.
    checks: HashMap<Text, Box<Check>>,
    due: BTreeSet<(Duration, Text)>,
    begun: u64,
}

impl Wheel {
    /// One whose zero is `origin`, a time since 1970 (UTC).
    pub fn starting_at(origin: Duration) -> Self {
        Self { origin, ..Self::default() }
    }

    /// From now on this container is checked; `rank` is the checker's among those of the container, `before` the opinion to begin
    /// with. What is known of it stays if it is checked as before; where that is no opinion yet, the one that it is up will do.
    pub fn set(&mut self, target: Target, rank: usize, before: Opinion, now: Duration) {
        if let Some(check) = self.checks.get_mut(&target.uuid)
            && check.target.is_same_check(&target)
        {
            (check.target, check.rank) = (target, rank);
            if before == Opinion::Up {
                check.results.agree_that_it_is_up();
            }
            return;
        }
        let penalty = self.remove(&target.uuid).map(|check| check.penalty).unwrap_or_default();
        self.begun += 1;
        let (uuid, number) = (target.uuid.clone(), self.begun);
        let results = Results::new(before);
        let mut check = Check {
            target,
            results,
            since: now,
            penalty,
            due: now,
            first_due: None,
            is_running: false,
            end: None,
            rank,
            number,
        };
        check.due = check.next_slot(self.origin, now);
        self.due.insert((check.due, uuid.clone()));
        self.checks.insert(uuid, Box::new(check));
    }

    /// From now on it is not checked; the check that is being made ends.
    pub fn remove(&mut self, uuid: &Text) -> Option<Check> {
        let check = self.checks.remove(uuid)?;
        check.end.iter().for_each(AbortHandle::abort);
        self.due.remove(&(check.due, uuid.clone()));
        Some(*check)
    }

    /// Removes all but those for which `keeps` is true.
    pub fn retain(&mut self, keeps: impl Fn(&Text) -> bool) {
        let gone: Vec<_> = self.checks.keys().filter(|uuid| !keeps(uuid)).cloned().collect();
        for uuid in gone {
            self.remove(&uuid);
        }
    }

    /// The check of a container.
    pub fn get(&self, uuid: &str) -> Option<&Check> {
        self.checks.get(uuid).map(Box::as_ref)
    }

    /// All checks, in no order.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.checks.values().map(Box::as_ref)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.checks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// When the next check is due.
    pub fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// A check that is due now, which is running until [`Self::finish`].
    pub fn take_due(&mut self, now: Duration) -> Option<Job> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        let (due, uuid) = self.due.pop_first()?;
        let check = self.checks.get_mut(&uuid)?;
        check.is_running = true;
        let is_initializing = check.results.opinion() == Opinion::Initializing;
        let first_due = check.first_due.take();
        Some(Job {
            target: check.target.clone(),
            number: check.number,
            due: first_due.unwrap_or(due),
            period: check.period(),
            is_initializing,
            is_put_off: first_due.is_some(),
        })
    }

    /// A check is being made, which `end` ends.
    pub fn begun(&mut self, job: &Job, end: AbortHandle) {
        if let Some(check) = self.checks.get_mut(&job.target.uuid).filter(|check| check.number == job.number) {
            check.end = Some(end);
        }
    }

    /// A check that is due cannot be made before `until`.
    pub fn put_off(&mut self, job: &Job, until: Duration) {
        let uuid = &job.target.uuid;
        let Some(check) = self.checks.get_mut(uuid).filter(|check| check.number == job.number) else { return };
        (check.is_running, check.first_due, check.due) = (false, Some(job.due), until);
        self.due.insert((until, uuid.clone()));
    }

    /// Takes in what came of a check and plans the next one; `spread` makes intervals a little shorter or longer.
    ///
    /// Returns the opinion if it is another one now. A result of a check that is no longer wanted counts for nothing.
    pub fn finish(
        &mut self,
        job: &Job,
        sample: Sample,
        now: Duration,
        spread: impl FnOnce(Duration) -> Duration,
    ) -> Option<Opinion> {
        let uuid = &job.target.uuid;
        let check = self.checks.get_mut(uuid).filter(|check| check.number == job.number && check.is_running)?;
        (check.is_running, check.end) = (false, None);
        let (begun, healthy_threshold, period_before) = (sample.at, check.healthy_threshold(now), check.period());
        let has_changed = check.results.add(sample, healthy_threshold, check.target.spec.unhealthy_threshold);
        let period = check.period();
        // What may change the opinion is not put off: thresholds times the interval is the longest time that it takes. Otherwise two
        // checks are an interval apart, give or take a tenth; after another interval, the first may come earlier. No slot is passed over
        // but the one that this check was in, or most checkers would be late where a container fails just after its start.
        let due = if check.results.is_in_transition() {
            begun + period
        } else {
            let from = if period == period_before { begun + period / 10 } else { begun };
            (check.next_slot(self.origin, from) + spread(period) / 2).saturating_sub(period / 2)
        };
        check.due = due.max(now);
        self.due.insert((check.due, uuid.clone()));
        if !has_changed {
            return None;
        }
        check.since = now;
        let opinion = check.results.opinion();
        if opinion == Opinion::Down {
            check.penalty.add(now);
        }
        Some(opinion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::HealthState;
    use std::sync::Arc;

    const MS: Duration = Duration::from_millis(1);

    fn target(uuid: &str, start: i64, fields: &str) -> Target {
        let fields = serde_json::from_str(fields).unwrap();
        let spec = crate::Spec::of_fields(&fields).unwrap().unwrap();
        let address = ([127, 0, 0, 1], spec.port).into();
        let known = None::<HealthState>;
        let is_elsewhere = false;
        Target {
            uuid: uuid.into(),
            name: uuid.into(),
            host: "h".into(),
            address,
            is_elsewhere,
            spec: Arc::new(spec),
            start,
            known,
        }
    }

    fn plain(uuid: &str) -> Target {
        target(uuid, 1, r#"{"port": 80}"#)
    }

    /// Makes the checks that become due until `end`, each taking no time; returns when they began and the changes of opinions.
    fn turn(wheel: &mut Wheel, end: Duration, outcome: impl Fn(Duration) -> Outcome) -> (Vec<u128>, Vec<Opinion>) {
        let (mut begun, mut changes) = (Vec::new(), Vec::new());
        while let Some(now) = wheel.next_due().filter(|due| *due <= end) {
            let job = wheel.take_due(now).unwrap();
            begun.push(now.as_millis());
            let sample = Sample { at: now, took: Duration::ZERO, outcome: outcome(now) };
            changes.extend(wheel.finish(&job, sample, now, |period| period));
        }
        (begun, changes)
    }

    fn fail() -> Outcome {
        Outcome::Fail("refused".into())
    }

    #[test]
    fn intervals_follow_the_opinion() {
        let mut wheel = Wheel::default();
        let fast = target("a", 1, r#"{"port": 80, "interval": 2000, "fast_interval": 300}"#);
        wheel.set(fast, 0, Opinion::Initializing, Duration::ZERO);
        let first = wheel.next_due().unwrap().as_millis();
        assert!(first < 500, "{first}");
        let well_from = 1200 * MS;
        let outcome = |now| if now > well_from { Outcome::Pass } else { fail() };
        let (begun, changes) = turn(&mut wheel, 6000 * MS, outcome);
        assert_eq!(changes, [Opinion::Up]);
        let gaps: Vec<_> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps[..3], [500, 500, 500][..gaps.len().min(3)]);
        assert_eq!(gaps.last(), Some(&2000));
        let (begun, changes) = turn(&mut wheel, 12_000 * MS, |_| fail());
        assert_eq!(changes, [Opinion::Down]);
        assert_eq!(begun.windows(2).take(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>(), [300, 300]);
    }

    #[test]
    fn what_is_put_off_is_as_late_as_it_is_and_what_is_removed_ends() {
        let mut wheel = Wheel::default();
        wheel.set(plain("a"), 0, Opinion::Up, Duration::ZERO);
        let due = wheel.next_due().unwrap();
        let job = wheel.take_due(due).unwrap();
        assert!(!job.is_put_off);
        wheel.put_off(&job, due + 50 * MS);
        assert!(wheel.take_due(due + 49 * MS).is_none());
        let again = wheel.take_due(due + 50 * MS).unwrap();
        assert!(again.is_put_off);
        assert_eq!(again.waited(due + 50 * MS), 50 * MS);
        let (end, _registration) = AbortHandle::new_pair();
        wheel.begun(&again, end.clone());
        wheel.finish(&again, Sample { at: due, took: Duration::ZERO, outcome: Outcome::Pass }, due, |period| period);
        assert!(!wheel.take_due(due + 3000 * MS).unwrap().is_put_off);
        wheel.begun(&again, end.clone());
        wheel.remove(&"a".into());
        assert!(end.is_aborted());
    }

    #[test]
    fn what_may_change_the_opinion_is_never_later_than_the_interval() {
        let mut wheel = Wheel::default();
        wheel.set(plain("a"), 0, Opinion::Up, Duration::ZERO);
        let pauses = [fail(), fail(), Outcome::Pass].map(|outcome| {
            let at = wheel.next_due().unwrap();
            let job = wheel.take_due(at).unwrap();
            assert_eq!(job.second_attempt(), None);
            wheel.finish(&job, Sample { at, took: Duration::ZERO, outcome }, at, |period| period * 11 / 10);
            wheel.next_due().unwrap().abs_diff(at)
        });
        assert_eq!(pauses, [2000 * MS, 2000 * MS, 2100 * MS]);
        wheel.set(plain("b"), 0, Opinion::Initializing, Duration::ZERO);
        assert_eq!(wheel.take_due(500 * MS).unwrap().second_attempt(), Some(500 * MS));
    }

    #[test]
    fn checkers_stay_a_third_of_an_interval_apart_whenever_they_began() {
        // Three hosts whose processes began at different times, each with other intervals each time.
        let mut wheels =
            [0_u64, 777, 86_399].map(|origin| Wheel::starting_at(Duration::from_secs(1_700_000_000 + origin)));
        for (rank, wheel) in wheels.iter_mut().enumerate() {
            wheel.set(plain("a"), rank, Opinion::Up, Duration::ZERO);
            for step in 0..200 {
                let at = wheel.next_due().unwrap();
                let job = wheel.take_due(at).unwrap();
                let sample = Sample { at, took: Duration::ZERO, outcome: Outcome::Pass };
                let spread = 9 + (step * (u32::try_from(rank).unwrap() + 1)) % 3;
                wheel.finish(&job, sample, at, |period| period * spread / 10);
            }
        }
        // Where in the interval each of them asks; each by a twentieth at most earlier or later.
        let places = wheels.map(|wheel| (wheel.origin + wheel.next_due().unwrap()).as_millis() % 2000);
        let apart = |one: u128, other: u128| (other + 2000 - one) % 2000;
        let thirds = [apart(places[0], places[1]), apart(places[1], places[2]), apart(places[2], places[0])];
        assert!(thirds.iter().all(|third| third.abs_diff(667) <= 201), "{thirds:?}");
    }

    #[test]
    fn most_checkers_ask_soon_again_what_is_just_well() {
        // The time without an answer that most of them need a check for: less than two thirds of an interval and what they are early.
        let longest = (0..500_u64).map(|number| {
            let uuid = format!("c{number}");
            let mut due = [0, 1, 2].map(|rank| {
                let mut wheel = Wheel::starting_at(Duration::from_millis(1_700_000_000_000 + number * 7));
                wheel.set(plain(&uuid), rank, Opinion::Initializing, Duration::ZERO);
                let at = wheel.next_due().unwrap();
                // The two that were first are enough, and the third one agrees.
                let job = wheel.take_due(at).unwrap();
                let sample = Sample { at, took: Duration::ZERO, outcome: Outcome::Pass };
                assert_eq!(wheel.finish(&job, sample, at, |period| period), Some(Opinion::Up));
                (at, wheel.next_due().unwrap())
            });
            due.sort();
            let well_at = due[1].0;
            let mut asked = due.map(|(_, next)| next);
            asked.sort();
            asked[1].saturating_sub(well_at)
        });
        let longest = longest.max().unwrap();
        assert!(longest <= 2000 * MS * 2 / 3 + 200 * MS, "{longest:?}");
    }

    #[test]
    fn a_checker_without_an_opinion_takes_what_is_published() {
        let mut wheel = Wheel::default();
        wheel.set(plain("a"), 0, Opinion::Initializing, Duration::ZERO);
        assert_eq!(turn(&mut wheel, 5000 * MS, |_| fail()).1, []);
        // Others saw it well, and it fails for all from now on.
        wheel.set(plain("a"), 0, Opinion::Up, 5000 * MS);
        assert_eq!(turn(&mut wheel, 11_000 * MS, |_| fail()).1, [Opinion::Down]);
        // An opinion of its own is not changed by what others say.
        wheel.set(plain("a"), 0, Opinion::Up, 11_000 * MS);
        assert_eq!(wheel.get("a").unwrap().results.opinion(), Opinion::Down);
    }

    #[test]
    fn what_is_checked_as_before_keeps_its_results_and_its_time() {
        let mut wheel = Wheel::default();
        wheel.set(plain("a"), 0, Opinion::Up, Duration::ZERO);
        turn(&mut wheel, 3000 * MS, |_| fail());
        let due = wheel.next_due();
        wheel.set(Target { name: "renamed".into(), ..plain("a") }, 0, Opinion::Initializing, 3000 * MS);
        assert_eq!((wheel.next_due(), &*wheel.get("a").unwrap().target.name), (due, "renamed"));
        assert!(wheel.get("a").unwrap().results.is_in_transition());
        // It was started again.
        wheel.set(target("a", 2, r#"{"port": 80}"#), 0, Opinion::Initializing, 3000 * MS);
        assert_eq!(wheel.get("a").unwrap().results.opinion(), Opinion::Initializing);
        assert_eq!(wheel.checks().count(), 1);
        wheel.retain(|uuid| **uuid != *"a");
        assert_eq!((wheel.next_due(), wheel.checks().count()), (None, 0));
    }

    #[test]
    fn a_result_of_the_process_before_counts_for_nothing() {
        let mut wheel = Wheel::default();
        wheel.set(plain("a"), 0, Opinion::Initializing, Duration::ZERO);
        let job = wheel.take_due(500 * MS).unwrap();
        assert!(wheel.take_due(5000 * MS).is_none(), "never two at once");
        wheel.set(target("a", 2, r#"{"port": 80}"#), 0, Opinion::Initializing, 600 * MS);
        let pass = Sample { at: 500 * MS, took: Duration::ZERO, outcome: Outcome::Pass };
        assert_eq!(wheel.finish(&job, pass.clone(), 700 * MS, |period| period), None);
        assert_eq!(wheel.get("a").unwrap().results.samples().count(), 0);
        let job = wheel.take_due(2000 * MS).unwrap();
        assert_eq!(wheel.finish(&job, pass, 2000 * MS, |period| period), Some(Opinion::Up));
    }

    #[test]
    fn what_ends_later_than_its_timeouts_says_nothing() {
        let mut wheel = Wheel::default();
        wheel.set(plain("a"), 0, Opinion::Up, Duration::ZERO);
        let job = wheel.take_due(2000 * MS).unwrap();
        assert_eq!(job.judged(fail(), 4200 * MS, 1), fail());
        assert!(matches!(job.judged(fail(), 4300 * MS, 1), Outcome::Unsure(_)));
        assert_eq!(job.judged(fail(), 8200 * MS, 2), fail());
        assert!(matches!(job.judged(fail(), 8300 * MS, 2), Outcome::Unsure(_)));
        assert_eq!(job.judged(Outcome::Pass, 9000 * MS, 1), Outcome::Pass);
        let due = (2000 * MS).saturating_sub(job.waited(2000 * MS));
        assert!(!job.is_stale(due + 900 * MS) && job.is_stale(due + 1100 * MS));
    }

    #[test]
    fn what_is_unhealthy_often_has_to_be_well_for_longer() {
        let mut wheel = Wheel::default();
        wheel.set(target("a", 1, r#"{"port": 80, "interval": 100}"#), 0, Opinion::Up, Duration::ZERO);
        let mut now = Duration::ZERO;
        let wanted: Vec<_> = (0..5)
            .map(|_| {
                while turn(&mut wheel, now, |_| fail()).1.is_empty() {
                    now += 100 * MS;
                }
                let mut good = 0;
                while wheel.get("a").unwrap().results.opinion() == Opinion::Down {
                    now += 100 * MS;
                    good += turn(&mut wheel, now, |_| Outcome::Pass).0.len();
                }
                good
            })
            .collect();
        assert_eq!(wanted, [2, 2, 4, 8, 16]);
        assert!(wheel.get("a").unwrap().is_flapping(now));
    }
}
