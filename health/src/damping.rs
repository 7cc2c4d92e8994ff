//! Flapping: what was unhealthy often has to be well for longer until it is healthy again. Unhealthy it is at once.

use std::time::Duration;

/// After this time a penalty is half of what it was.
const HALF_LIFE: Duration = Duration::from_mins(5);

/// A penalty from which on good results count for less.
const FLAPPING: f64 = 3.0;

/// Most times as many good results as the check says.
const FACTOR_MAX: u32 = 16;

/// How often a container became unhealthy, the last times counting most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Penalty {
    amount: f64,
    at: Duration,
}

impl Penalty {
    /// Adds a change to unhealthy; `now` is the time since any fixed moment.
    pub fn add(&mut self, now: Duration) {
        *self = Self { amount: self.amount(now) + 1.0, at: now };
    }

    fn amount(&self, now: Duration) -> f64 {
        let halves = now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.amount * (-halves).exp2()
    }

    /// How many times as many good results as the check says make the container healthy.
    pub fn factor(&self, now: Duration) -> u32 {
        // Two changes in a row have not quite the penalty 2 a moment later.
        const NEARLY: f64 = 0.05;
        let (mut factor, mut step) = (1, FLAPPING - NEARLY);
        while factor < FACTOR_MAX && self.amount(now) >= step {
            factor *= 2;
            step += 1.0;
        }
        factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_doubles_what_is_wanted_and_time_forgives() {
        let mut penalty = Penalty::default();
        let mut factors = Vec::new();
        for second in 0..8 {
            penalty.add(Duration::from_secs(second));
            factors.push(penalty.factor(Duration::from_secs(second)));
        }
        assert_eq!(factors, [1, 1, 2, 4, 8, 16, 16, 16]);
        // 8, then 4, 2 and 1.
        let later = |minutes: u64| penalty.factor(Duration::from_secs(7 + 60 * minutes));
        assert_eq!([later(5), later(10), later(15)], [4, 1, 1]);
    }

    #[test]
    fn what_fails_once_in_five_minutes_is_not_flapping() {
        let mut penalty = Penalty::default();
        for number in 0..100 {
            penalty.add(HALF_LIFE * number);
            assert_eq!(penalty.factor(HALF_LIFE * number), 1);
        }
    }
}
