//! How often a unit was replaced or started again, and when it may be again.

use std::time::Duration;

use model::Text;

/// Pauses between two replacements of a unit that fails again and again, in seconds; the last one stays.
const PAUSES: [u64; 7] = [0, 10, 20, 40, 80, 160, 300];

/// After this time in health a unit that fails counts as one that never did.
const WELL: Duration = Duration::from_mins(10);

/// A host where a unit failed so often within [`AVOIDED_FOR`] is its last choice.
const FAILURES_MAX: usize = 2;
const AVOIDED_FOR: Duration = Duration::from_mins(10);

/// Most failures that are remembered: more do not fit into [`AVOIDED_FOR`] with these pauses.
const REMEMBERED_MAX: usize = 8;

/// Most hosts on which something of a unit was left that are remembered; what is left on others is a stranger there.
const LEFT_MAX: usize = 8;

/// What was done about the failures of a unit since it was last well for long.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Replacements {
    /// How often it was replaced, or started again.
    pub(crate) times: u32,
    /// When that was last begun, in ms since 1970.
    pub(crate) at: u64,
    /// Why.
    pub(crate) why: Text,
    /// On which hosts it failed, the last time last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failures: Vec<Failure>,
    /// What was left of it on hosts that are gone, to be removed should they come back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<LeftBehind>,
}

/// Containers that were left on a host.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct LeftBehind {
    /// The uuid of the host.
    host: Text,
    /// The engine's ids.
    containers: Vec<Text>,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Failure {
    /// The uuid of the host.
    host: Text,
    /// In ms since 1970.
    at: u64,
}

impl Replacements {
    /// The same with one more, begun now on this host.
    #[must_use]
    pub(crate) fn and(&self, host: &Text, why: &str, now: Duration) -> Self {
        let at = millis(now);
        let mut failures = self.failures.clone();
        failures.push(Failure { host: host.clone(), at });
        failures.drain(..failures.len().saturating_sub(REMEMBERED_MAX));
        Self { times: self.times.saturating_add(1), at, why: why.into(), failures, left: self.left.clone() }
    }

    /// The same after its containers were left on this host, which is gone. That is no failure: another place is looked for at once.
    #[must_use]
    pub(crate) fn and_left(&self, host: &Text, containers: Vec<Text>, why: &str, now: Duration) -> Self {
        let mut left = self.left.clone();
        left.push(LeftBehind { host: host.clone(), containers });
        left.drain(..left.len().saturating_sub(LEFT_MAX));
        Self { times: 0, at: millis(now), why: why.into(), failures: self.failures.clone(), left }
    }

    /// What was left on this host, by the engine's ids.
    pub(crate) fn left_on(&self, host: &str) -> impl Iterator<Item = &Text> {
        self.left.iter().filter(move |left| *left.host == *host).flat_map(|left| &left.containers)
    }

    /// A container that was left on this host is gone.
    pub(crate) fn left_is_gone(&mut self, host: &str, container: &str) {
        for left in self.left.iter_mut().filter(|left| *left.host == *host) {
            left.containers.retain(|own| **own != *container);
        }
        self.left.retain(|left| !left.containers.is_empty());
    }

    /// The same after it was healthy for this time.
    #[must_use]
    pub(crate) fn after_health(&self, well: Duration) -> Self {
        if well >= WELL { Self { times: 0, ..self.clone() } } else { self.clone() }
    }

    /// When the last one was begun.
    pub(crate) fn begun(&self) -> Duration {
        Duration::from_millis(self.at)
    }

    /// Before when it is not replaced again.
    pub(crate) fn not_before(&self) -> Duration {
        let pause = PAUSES.get(self.times as usize).or(PAUSES.last()).copied().unwrap_or_default();
        self.begun().saturating_add(Duration::from_secs(pause))
    }

    /// The hosts that are its last choice.
    pub(crate) fn avoided(&self, now: Duration) -> Vec<Text> {
        let since = millis(now.saturating_sub(AVOIDED_FOR));
        let recent = || self.failures.iter().filter(|failure| failure.at >= since);
        let mut hosts: Vec<Text> = recent().map(|failure| failure.host.clone()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts.retain(|host| recent().filter(|failure| failure.host == *host).count() >= FAILURES_MAX);
        hosts
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_with_health() {
        let (host, mut now) = ("h".into(), Duration::from_secs(1_000_000));
        let mut replacements = Replacements::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            // It fails again at once, each time.
            let due = replacements.not_before().max(now);
            pauses.push(due.saturating_sub(now).as_secs());
            now = due;
            replacements = replacements.and(&host, "down", now);
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
        let short = replacements.after_health(Duration::from_millis(599_999));
        assert_eq!(short.not_before(), now + Duration::from_mins(5));
        assert_eq!(replacements.after_health(WELL).not_before(), now);
        // Where it fails that seldom is no reason against the host.
        assert!(replacements.failures.len() == REMEMBERED_MAX);
    }

    #[test]
    fn what_was_left_is_stored_and_forgotten_container_by_container() {
        let now = Duration::from_secs(1_000_000);
        let failed = Replacements::default().and(&"b".into(), "down", now);
        let left =
            failed.and_left(&"a".into(), vec!["x".into(), "y".into()], "gone", now).and(&"b".into(), "down", now);
        let mut stored: Replacements = serde_json::from_str(&serde_json::to_string(&left).unwrap()).unwrap();
        assert_eq!(stored, left);
        assert_eq!((stored.left_on("a").count(), stored.left_on("b").count(), stored.times), (2, 0, 1));
        stored.left_is_gone("b", "x");
        stored.left_is_gone("a", "x");
        assert_eq!(stored.left_on("a").map(|left| &**left).collect::<Vec<&str>>(), ["y"]);
        stored.left_is_gone("a", "y");
        assert!(!serde_json::to_string(&stored).unwrap().contains("left"));
    }

    #[test]
    fn a_host_where_it_failed_twice_within_ten_minutes_is_avoided() {
        let at = |seconds: u64| Duration::from_secs(1_000_000 + seconds);
        let failed = Replacements::default().and(&"a".into(), "", at(0)).and(&"b".into(), "", at(10));
        assert!(failed.avoided(at(10)).is_empty());
        let twice = failed.and(&"a".into(), "", at(30));
        assert_eq!(twice.avoided(at(30)), [Text::from("a")]);
        assert_eq!(twice.avoided(at(600)), [Text::from("a")]);
        assert!(twice.avoided(at(601)).is_empty());
    }
}
