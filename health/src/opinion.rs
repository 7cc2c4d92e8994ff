//! The opinion of one checker of one container, after thresholds.

use std::collections::VecDeque;
use std::time::Duration;

/// Results that are stored of each check: enough to see how it came to the opinion.
const RESULTS_MAX: usize = 10;

/// Longest reason that is stored, in bytes: a line in a table.
const REASON_MAX: usize = 120;

/// What a checker thinks of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// There was no good result yet.
    Initializing,
    /// It is well.
    Up,
    /// It is not.
    Down,
}

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is well.
    Pass,
    /// It answered, and is not, for this reason.
    Fail(String),
    /// Nothing answered at its address, for this reason: it is not well, unless it is the checker's network that fails.
    Unreached(String),
    /// The check says nothing about the container, for this reason: the checker had no socket, or was late itself.
    Unsure(String),
}

impl Opinion {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

impl Outcome {
    /// Whether it speaks against the container.
    pub fn is_bad(&self) -> bool {
        matches!(self, Self::Fail(_) | Self::Unreached(_))
    }

    /// The word for it, and the reason if there is one.
    pub fn words(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Pass => ("pass", None),
            Self::Fail(reason) | Self::Unreached(reason) => ("fail", Some(reason)),
            Self::Unsure(reason) => ("unsure", Some(reason)),
        }
    }
}

/// One result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the check began, by the checker's clock; for people.
    pub at: Duration,
    /// How long it took.
    pub took: Duration,
    /// What came of it.
    pub outcome: Outcome,
}

/// What the results of one check add up to.
#[derive(Clone, Debug)]
pub struct Results {
    opinion: Opinion,
    /// Results in a row that speak against the opinion.
    against: u32,
    samples: VecDeque<Sample>,
}

impl Results {
    /// Those of a check without results. After a restart of the checker, `opinion` is what was published.
    pub fn new(opinion: Opinion) -> Self {
        Self { opinion, against: 0, samples: VecDeque::new() }
    }

    /// What the checker thinks.
    pub fn opinion(&self) -> Opinion {
        self.opinion
    }

    /// Takes what others say for the own opinion, if there is none yet: otherwise this checker would never say that it is down.
    pub fn agree_that_it_is_up(&mut self) {
        if self.opinion == Opinion::Initializing {
            self.opinion = Opinion::Up;
        }
    }

    /// Whether the last result was against the opinion, so that the next one may change it.
    pub fn is_in_transition(&self) -> bool {
        self.against > 0
    }

    /// Since when nothing has answered, by the time at which those checks began; `None` if the last one was answered, well or badly.
    /// What says nothing is passed over.
    pub fn unreached_since(&self) -> Option<Duration> {
        let sure = self.samples.iter().rev().filter(|sample| !matches!(sample.outcome, Outcome::Unsure(_)));
        sure.take_while(|sample| matches!(sample.outcome, Outcome::Unreached(_))).last().map(|sample| sample.at)
    }

    /// Why the last bad result was bad, if the last one was.
    pub fn reason(&self) -> Option<&str> {
        self.samples.back().and_then(|sample| sample.outcome.words().1)
    }

    /// The last results, the oldest first.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// Adds a result; returns whether the opinion is another one now.
    ///
    /// From initializing one good result is enough, and a bad one changes nothing. An unsure one changes no count.
    pub fn add(&mut self, mut sample: Sample, healthy_threshold: u32, unhealthy_threshold: u32) -> bool {
        if let Outcome::Fail(reason) | Outcome::Unreached(reason) | Outcome::Unsure(reason) = &mut sample.outcome {
            reason.truncate(reason.floor_char_boundary(REASON_MAX));
        }
        let (next, wanted) = match (self.opinion, &sample.outcome) {
            (_, Outcome::Unsure(_)) => (None, 0),
            (Opinion::Initializing, Outcome::Pass) => (Some(Opinion::Up), 1),
            (Opinion::Up, Outcome::Fail(_) | Outcome::Unreached(_)) => (Some(Opinion::Down), unhealthy_threshold),
            (Opinion::Down, Outcome::Pass) => (Some(Opinion::Up), healthy_threshold),
            _ => {
                self.against = 0;
                (None, 0)
            }
        };
        if self.samples.len() == RESULTS_MAX {
            self.samples.pop_front();
        } else {
            // No room for more than that.
            self.samples.reserve_exact(RESULTS_MAX - self.samples.len());
        }
        self.samples.push_back(sample);
        let Some(next) = next else { return false };
        self.against += 1;
        if self.against < wanted {
            return false;
        }
        self.against = 0;
        self.opinion = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(mark: char) -> Outcome {
        match mark {
            '+' => Outcome::Pass,
            '-' => Outcome::Fail("refused".into()),
            '.' => Outcome::Unreached("no answer".into()),
            _ => Outcome::Unsure("late".into()),
        }
    }

    /// Thresholds of 2 good and 3 bad ones: `+` passes, `-` fails, `.` is not reached, `?` is unsure; the opinion after each.
    fn check(first: Opinion, outcomes: &str, opinions: &str) {
        let mut results = Results::new(first);
        let after = outcomes.chars().map(|mark| {
            let sample = Sample { at: Duration::ZERO, took: Duration::ZERO, outcome: outcome(mark) };
            let before = results.opinion();
            let changed = results.add(sample, 2, 3);
            assert_eq!(changed, before != results.opinion());
            match results.opinion() {
                Opinion::Initializing => 'i',
                Opinion::Up => 'u',
                Opinion::Down => 'd',
            }
        });
        assert_eq!(after.collect::<String>(), opinions, "{outcomes}");
        assert!(results.samples().count() <= RESULTS_MAX);
    }

    #[test]
    fn thresholds_count_results_in_a_row() {
        check(Opinion::Initializing, "---+", "iiiu");
        check(Opinion::Up, "--+---+-++", "uuuuuddddu");
        check(Opinion::Down, "+-++", "dddu");
        check(Opinion::Up, "-+-+-+-+---+++", "uuuuuuuuuudduu");
        check(Opinion::Up, ".-.+..+", "uuddddd");
    }

    #[test]
    fn an_unsure_result_changes_no_count() {
        check(Opinion::Up, "-?-?-", "uuuud");
        check(Opinion::Down, "+?+", "ddu");
        check(Opinion::Initializing, "???+", "iiiu");
    }

    #[test]
    fn only_silence_is_not_reached_and_any_answer_ends_it() {
        for (outcomes, since) in [
            ("..", Some(0)),
            ("+-..?.", Some(2)),
            ("..-", None),
            ("..+", None),
            ("--", None),
            ("..?", Some(0)),
            ("", None),
        ] {
            let mut results = Results::new(Opinion::Up);
            for (second, mark) in outcomes.chars().enumerate() {
                let at = Duration::from_secs(second as u64);
                results.add(Sample { at, took: Duration::ZERO, outcome: outcome(mark) }, 2, 3);
            }
            assert_eq!(results.unreached_since().map(|since| since.as_secs()), since, "{outcomes}");
        }
    }

    #[test]
    fn reasons_are_cut_between_characters() {
        let mut results = Results::new(Opinion::Up);
        let reason = "ä".repeat(100);
        results.add(Sample { at: Duration::ZERO, took: Duration::ZERO, outcome: Outcome::Fail(reason) }, 2, 3);
        let Some(Sample { outcome: Outcome::Fail(reason), .. }) = results.samples().next() else { panic!() };
        assert_eq!(reason.len(), REASON_MAX);
        assert!(results.is_in_transition());
    }
}
