//! Remarks: what the log should say of values in etcd, so much a minute at most.
//!
//! A client of etcd that writes others all the time must not fill the log, nor silence it for longer than it does so.

use std::time::Duration;

use model::Text;

/// Most remarks in a [`SPAN`]: a person reads no more.
const REMARKS_MAX: usize = 100;

/// After how long there is room for others.
const SPAN: Duration = Duration::from_mins(1);

/// Remarks about keys or placements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remarks {
    waiting: Vec<(Text, String)>,
    /// When the span began, and how much was said in it.
    since: Duration,
    said: usize,
    /// How many there was no room for in it, and since remarks were taken last.
    unsaid: usize,
    dropped: usize,
}

impl Remarks {
    pub(crate) fn add(&mut self, id: &Text, remark: impl Into<String>) {
        if self.waiting.len() < REMARKS_MAX {
            self.waiting.push((id.clone(), remark.into()));
        } else {
            self.dropped += 1;
        }
    }

    /// What is to be logged now.
    pub(crate) fn take(&mut self, now: Duration) -> Vec<(Text, String)> {
        let mut taken = Vec::new();
        if now.saturating_sub(self.since) >= SPAN {
            if self.unsaid > 0 {
                taken.push((Text::default(), format!("{} more remarks like those before are left out", self.unsaid)));
            }
            (self.since, self.said, self.unsaid) = (now, 0, 0);
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let room = REMARKS_MAX - self.said;
        self.unsaid += std::mem::take(&mut self.dropped) + waiting.len().saturating_sub(room);
        waiting.truncate(room);
        self.said += waiting.len();
        taken.append(&mut waiting);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_silences_nothing_that_comes_later() {
        let mut remarks = Remarks::default();
        let start = Duration::from_secs(1000);
        for number in 0..1000 {
            remarks.add(&format!("junk-{number}").into(), "cannot be read");
        }
        assert_eq!(remarks.take(start).len(), REMARKS_MAX);
        remarks.add(&"late".into(), "cannot be read");
        assert_eq!(remarks.take(start + SPAN / 2), []);
        remarks.add(&"web".into(), "was replaced");
        let said = remarks.take(start + SPAN);
        let text = "901 more remarks like those before are left out";
        assert_eq!(said, [(Text::default(), text.to_owned()), ("web".into(), "was replaced".to_owned())]);
        assert_eq!(remarks.take(start + 3 * SPAN), []);
    }
}
