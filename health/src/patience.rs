//! How patient this host is: while its own checks are late, it gives containers more time to answer (Lifeguard's local health).

/// Highest score: time-outs are at most nine times as long.
const SCORE_MAX: u32 = 8;

/// What the last checks say of this host itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    score: u32,
    /// Checks in a row that were on time.
    on_time: usize,
}

impl Patience {
    /// By how much time-outs are longer.
    pub(crate) fn factor(&self) -> u32 {
        self.score + 1
    }

    /// A check began or ended too late, by this host's fault. What a container or its host can bring about is none.
    pub(crate) fn add_late(&mut self) {
        self.score = (self.score + 1).min(SCORE_MAX);
        self.on_time = 0;
    }

    /// A check was on time. After a round, one check of each of `targets`, time-outs are a step shorter.
    pub(crate) fn add_on_time(&mut self, targets: usize) {
        self.on_time += 1;
        if self.on_time >= targets {
            self.score = self.score.saturating_sub(1);
            self.on_time = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `!` is late, `.` on time, with three targets; the factor after each.
    fn check(checks: &str, factors: &str) {
        let mut patience = Patience::default();
        let after = checks.chars().map(|check| {
            if check == '!' {
                patience.add_late();
            } else {
                patience.add_on_time(3);
            }
            patience.factor().to_string()
        });
        assert_eq!(after.collect::<String>(), factors, "{checks}");
    }

    #[test]
    fn each_late_check_is_a_step_up_and_each_round_on_time_one_down() {
        check("....", "1111");
        check("!...", "2221");
        check("!!..!......", "23334443332");
        check("!!!!!!!!!!", "2345678999");
    }
}
