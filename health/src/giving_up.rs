//! Which containers that a scheduler placed are given up, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Text;

use crate::spec::Spec;
use crate::verdict::HealthState;

/// A container that is not well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwell<'a> {
    pub(crate) uuid: &'a Text,
    pub(crate) start: i64,
    pub(crate) state: HealthState,
    /// Whether the state was decided in this start of it.
    pub(crate) is_of_start: bool,
    /// Whether all who are sure agree that it is down.
    pub(crate) is_down_for_all: bool,
    /// What was said against it last.
    pub(crate) reason: Option<&'a str>,
    pub(crate) spec: &'a Spec,
}

/// Since when containers have not been well, by uuid.
#[derive(Debug, Default)]
pub(crate) struct GivingUp(BTreeMap<Text, Since>);

#[derive(Debug)]
struct Since {
    /// In which of its starts.
    start: i64,
    /// By the wheel's clock.
    at: Duration,
    /// The last thing that was said against it.
    reason: Option<Text>,
}

/// What follows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GivenUp {
    /// Why containers are given up, by uuid.
    pub(crate) failed: BTreeMap<Text, Text>,
    /// When the next one is, if nothing changes.
    pub(crate) due: Option<Duration>,
}

impl GivingUp {
    /// Decides about all containers that are not well; those that are not among them are forgotten.
    pub(crate) fn decide<'a>(&mut self, unwell: impl IntoIterator<Item = Unwell<'a>>, now: Duration) -> GivenUp {
        let mut before = std::mem::take(&mut self.0);
        let mut given_up = GivenUp::default();
        for one in unwell {
            let known = before.remove(one.uuid).filter(|known| known.start == one.start);
            let mut since = known.unwrap_or(Since { start: one.start, at: now, reason: None });
            since.reason = one.reason.map(Text::from).or(since.reason);
            if one.state == HealthState::Unhealthy && one.is_of_start {
                if one.is_down_for_all {
                    let why = since.reason.clone();
                    let why = why.unwrap_or_else(|| "its checkers say that it is unhealthy".into());
                    given_up.failed.insert(one.uuid.clone(), why);
                }
            } else {
                // It has not been well since it was started.
                let limit = match one.state {
                    HealthState::Initializing => one.spec.initializing_timeout,
                    _ => one.spec.reinitializing_timeout,
                };
                let due = since.at + limit;
                if now >= due {
                    let why = format!("not well within {} s of its start", limit.as_secs_f64());
                    given_up.failed.insert(one.uuid.clone(), why.into());
                } else {
                    given_up.due = Some(given_up.due.map_or(due, |other| other.min(due)));
                }
            }
            self.0.insert(one.uuid.clone(), since);
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::HealthState::{Initializing, Reinitializing, Unhealthy};
    use super::*;

    /// The first start has the default to become well, every other one 30 s.
    fn spec() -> Spec {
        let fields = r#"{"port": 80, "reinitializing_timeout": 30000}"#;
        Spec::of_fields(&serde_json::from_str(fields).unwrap()).unwrap().unwrap()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// When a container with these states would be given up, and why it is.
    fn decide(
        giving_up: &mut GivingUp,
        state: HealthState,
        start: i64,
        now: Duration,
    ) -> (Option<Text>, Option<Duration>) {
        let (uuid, spec) = (Text::from("a"), spec());
        let (is_of_start, is_down_for_all) = (state == Unhealthy, start > 0);
        let one = Unwell { uuid: &uuid, start, state, is_of_start, is_down_for_all, reason: None, spec: &spec };
        let mut given_up = giving_up.decide([one], now);
        (given_up.failed.remove(&uuid), given_up.due)
    }

    #[test]
    fn what_is_not_well_in_time_after_its_start_is_given_up_and_not_a_moment_before() {
        let mut giving_up = GivingUp::default();
        let before = Duration::new(59, 999_999_999);
        assert_eq!(decide(&mut giving_up, Initializing, 1, seconds(0)), (None, Some(seconds(60))));
        assert_eq!(decide(&mut giving_up, Initializing, 1, before), (None, Some(seconds(60))));
        let why = Some("not well within 60 s of its start".into());
        assert_eq!(decide(&mut giving_up, Initializing, 1, seconds(60)), (why, None));
        // The next start has its own time, and the other limit.
        assert_eq!(decide(&mut giving_up, Reinitializing, 2, seconds(61)), (None, Some(seconds(91))));
        // Who was well in between has it again.
        assert_eq!(giving_up.decide([], seconds(70)), GivenUp::default());
        assert_eq!(decide(&mut giving_up, Reinitializing, 2, seconds(80)), (None, Some(seconds(110))));
    }

    #[test]
    fn what_was_well_is_given_up_when_all_agree_and_waits_for_no_limit() {
        let mut giving_up = GivingUp::default();
        assert_eq!(decide(&mut giving_up, Unhealthy, 0, seconds(0)), (None, None));
        let why = Some("its checkers say that it is unhealthy".into());
        assert_eq!(decide(&mut giving_up, Unhealthy, 1, seconds(0)), (why, None));
    }

    #[test]
    fn the_reason_is_the_last_one_that_was_given() {
        let (uuid, spec) = (Text::from("a"), spec());
        let mut giving_up = GivingUp::default();
        for (reason, expected) in [(Some("refused"), "refused"), (Some("timed out"), "timed out"), (None, "timed out")]
        {
            let one = Unwell {
                uuid: &uuid,
                start: 1,
                state: Unhealthy,
                is_of_start: true,
                is_down_for_all: true,
                reason,
                spec: &spec,
            };
            assert_eq!(giving_up.decide([one], seconds(1)).failed.get("a").map(|why| &**why), Some(expected));
        }
    }
}
