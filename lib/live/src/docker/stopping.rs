//! Containers that were sent their stop signal: the engine goes on calling them running until they have ended, but they answer what
//! they have begun and nothing new.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use model::Text;

use super::facts::Facts;
use crate::moment::Moment;

/// A container that runs for longer after the signal than this and its own grace has ignored it, and is taken for running again.
/// `docker stop` may allow it more time than it states itself, and what it was given is in no event.
const IGNORED_AFTER: Duration = Duration::from_mins(10);

/// What ends a container whatever it does about it.
const KILL: u8 = 9;

/// What engines send where a container states no other.
const TERM: u8 = 15;

/// The names of signals on Linux, which an engine takes for those of Windows containers too.
const SIGNALS: [(&str, u8); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", KILL),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", TERM),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// The first of the signals without a name of their own, as C libraries count them (signal(7)).
const FIRST_REAL_TIME: u8 = 34;

/// The number of a signal: `15`, `SIGTERM`, `TERM`, `SIGRTMIN+3`.
pub(super) fn signal(text: &str) -> Option<u8> {
    let text = text.to_ascii_uppercase();
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    if let Some(behind) = name.strip_prefix("RTMIN") {
        let steps = if behind.is_empty() { 0 } else { behind.strip_prefix('+')?.parse().ok()? };
        return FIRST_REAL_TIME.checked_add(steps);
    }
    name.parse().ok().or_else(|| Some(SIGNALS.iter().find(|(known, _)| *known == name)?.1))
}

/// The signal that stops a container which states this one.
pub(super) fn stop_signal(stated: Option<&str>) -> u8 {
    stated.and_then(signal).unwrap_or(TERM)
}

/// One that was sent its stop signal.
#[derive(Debug)]
struct Asked {
    /// Which start of it was meant.
    started: Option<Moment>,
    /// When it counts as having ignored it.
    until: Duration,
}

/// Containers that were asked to stop, by id. Times are those since any fixed moment.
#[derive(Debug, Default)]
pub(super) struct Stopping(HashMap<Text, Asked>);

impl Stopping {
    /// A container was sent a signal; returns whether it is stopping from now on.
    pub(super) fn sent(&mut self, facts: &Facts, signal: u8, now: Duration) -> bool {
        if !facts.runs() || (signal != facts.stop_signal && signal != KILL) {
            return false;
        }
        let asked = Asked { started: facts.started, until: now + facts.stop_timeout + IGNORED_AFTER };
        self.0.insert(facts.id.clone(), asked).is_none()
    }

    /// Forgets a container that has ended, or was started again since.
    pub(super) fn see(&mut self, facts: &Facts) {
        if self.0.get(&facts.id).is_some_and(|asked| !facts.runs() || asked.started != facts.started) {
            self.0.remove(&facts.id);
        }
    }

    /// Forgets a container that is gone.
    pub(super) fn forget(&mut self, id: &Text) {
        self.0.remove(id);
    }

    /// Forgets those that have ignored the signal; returns whether there are any.
    pub(super) fn give_up(&mut self, now: Duration) -> bool {
        let count = self.0.len();
        self.0.retain(|_, asked| asked.until > now);
        self.0.len() < count
    }

    /// When the next one will have ignored it.
    pub(super) fn next(&self) -> Option<Duration> {
        self.0.values().map(|asked| asked.until).min()
    }

    /// What is shown of a container.
    pub(super) fn shown<'f>(&self, facts: &'f Facts) -> Cow<'f, Facts> {
        if !self.0.contains_key(&facts.id) || !facts.runs() {
            return Cow::Borrowed(facts);
        }
        Cow::Owned(Facts { state: "stopping", health: None, failing: None, ..facts.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker::baked::Baked;
    use serde_json::json;

    fn facts(started: &str, status: &str, signal: &str) -> Facts {
        let response = json!({
            "Id": "c1", "Name": "/web", "State": {"Status": status, "StartedAt": started, "Health": {"Status": "healthy"}},
            "Config": {"StopSignal": signal, "StopTimeout": 30}
        });
        Facts::of("c1", &serde_json::from_value(response).unwrap(), &Baked::nothing()).unwrap()
    }

    const FIRST: &str = "2026-11-20T18:32:09Z";
    const SECOND: &str = "2026-11-20T18:32:10Z";

    #[test]
    fn signals_are_numbers_and_names() {
        for (text, expected) in [
            ("15", Some(15)),
            ("SIGTERM", Some(15)),
            ("quit", Some(3)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMIN", Some(34)),
            ("SIGRTMIN+250", None),
            ("RTMIN3", None),
            ("", None),
            ("SIGNAL", None),
            ("-1", None),
        ] {
            assert_eq!(signal(text), expected, "{text}");
        }
        assert_eq!([stop_signal(None), stop_signal(Some("")), stop_signal(Some("SIGINT"))], [15, 15, 2]);
    }

    #[test]
    fn a_container_is_stopping_from_its_stop_signal_to_its_end() {
        let now = Duration::from_secs(7);
        let running = facts(FIRST, "running", "SIGQUIT");
        let mut stopping = Stopping::default();
        for other in [1, 15, 28] {
            assert!(!stopping.sent(&running, other, now), "{other}");
        }
        assert!(stopping.sent(&running, 3, now) && !stopping.sent(&running, KILL, now));
        let shown = stopping.shown(&running);
        assert_eq!((shown.state, shown.health, running.health), ("stopping", None, Some("healthy")));
        stopping.see(&running);
        assert_eq!(stopping.shown(&running).state, "stopping", "it runs on for a while");
        stopping.see(&facts(SECOND, "running", "SIGQUIT"));
        assert_eq!(stopping.shown(&running).state, "running", "it was started again");
        stopping.sent(&running, KILL, now);
        stopping.see(&facts(FIRST, "exited", "SIGQUIT"));
        assert_eq!((stopping.shown(&running).state, stopping.next()), ("running", None));
    }

    #[test]
    fn one_that_ignores_the_signal_counts_as_running_again() {
        let now = Duration::from_secs(7);
        let running = facts(FIRST, "running", "");
        let mut stopping = Stopping::default();
        assert!(stopping.sent(&running, TERM, now));
        let end = now + Duration::from_secs(30) + IGNORED_AFTER;
        assert_eq!(stopping.next(), Some(end));
        assert!(!stopping.give_up(now + IGNORED_AFTER) && stopping.give_up(end));
        assert_eq!(stopping.shown(&running).state, "running");
        assert!(!stopping.sent(&facts(FIRST, "paused", ""), TERM, now), "it does not run");
    }
}
