//! How patient this host is: while its own checks are late, it gives containers more time to answer (Lifeguard's local health). ◇

use std::time::Duration;

/// Highest score: time-outs are at most nine times as long.
const SCORE_MAX: u32 = 8;

/// After how long without a late check time-outs are a step shorter: about what a round of frequent checks takes. It does not depend on
/// how many containers there are or how often they are checked, since those who run them decide that.
const STEP: Duration = Duration::from_secs(1);

/// What the last late checks say of this host itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    /// The score when the last check was late.
    score: u32,
    /// When that was.
    late_at: Duration,
}

impl Patience {
    fn score(&self, now: Duration) -> u32 {
        let steps = now.saturating_sub(self.late_at).as_nanos() / STEP.as_nanos();
        self.score.saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX))
    }

    /// By how much time-outs are longer.
    pub(crate) fn factor(&self, now: Duration) -> u32 {
        self.score(now) + 1
    }

    /// A check began or ended too late, by this host's fault. What a container or its host can bring about is none.
    pub(crate) fn add_late(&mut self, now: Duration) {
        (self.score, self.late_at) = ((self.score(now) + 1).min(SCORE_MAX), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `!` is late, `.` is half a second; the factor after each.
    fn check(checks: &str, factors: &str) {
        let (mut patience, mut now) = (Patience::default(), Duration::from_hours(1));
        let after = checks.chars().map(|check| {
            if check == '!' {
                patience.add_late(now);
            } else {
                now += STEP / 2;
            }
            patience.factor(now).to_string()
        });
        assert_eq!(after.collect::<String>(), factors, "{checks}");
    }

    #[test]
    fn each_late_check_is_a_step_up_and_each_second_without_one_down() {
        check("....", "1111");
        check("!...", "2211");
        check("!!..!......", "23323322111");
        check("!!!!!!!!!!", "2345678999");
    }
}
