//! The verdicts of one process, and what they do to a container's fields.

use std::collections::{BTreeMap, BTreeSet};

use model::health::{BadCheck, FAILED};
use model::unwell::{HEALTHCHECK_FAILS, REASON, WhyUnhealthy};
use model::votes::{START, start};
use model::{Map, Text, Value};

use crate::target::check_of;
use crate::verdict::HealthState;

/// Field of a container with its verdict.
const HEALTH_STATE: &str = "health_state";

/// The verdict about one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it is.
    pub state: HealthState,
    /// For which start of the container.
    pub start: i64,
}

/// Verdicts by the uuids of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    by_uuid: BTreeMap<Text, Verdict>,
    /// Containers that are given up, and why.
    failed: BTreeMap<Text, Text>,
    /// Who says why containers are unhealthy.
    unwell: BTreeMap<Text, WhyUnhealthy>,
    /// Whether this host doubts its own results about containers of others.
    pub is_suspect: bool,
}

/// What a verdict does to the state that the container has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It is that of the engine (`HEALTHCHECK`), and both count.
    OfEngine,
    /// It is the one to begin with, and the verdict replaces it.
    ToBeginWith,
}

impl Verdicts {
    /// The state of a container that was started so often; `None` if there is no verdict.
    pub fn state(&self, uuid: &str, start: i64) -> Option<HealthState> {
        let verdict = self.by_uuid.get(uuid)?;
        Some(if verdict.start == start { verdict.state } else { verdict.state.restarted() })
    }

    /// Puts a verdict in, in place of the one before.
    pub fn insert(&mut self, uuid: Text, verdict: Verdict) {
        if verdict.state != HealthState::Unhealthy {
            self.unwell.remove(&uuid);
        }
        self.by_uuid.insert(uuid, verdict);
    }

    /// Says why a container is unhealthy. It stays so until another verdict: that others say it too is not worth a write.
    pub(crate) fn explain(&mut self, uuid: Text, why: WhyUnhealthy) {
        self.unwell.insert(uuid, why);
    }

    /// Whether the verdict about a container is of this start of it.
    pub(crate) fn is_of_start(&self, uuid: &str, start: i64) -> bool {
        self.by_uuid.get(uuid).is_some_and(|verdict| verdict.start == start)
    }

    /// Gives containers up, and no others.
    pub(crate) fn give_up(&mut self, failed: BTreeMap<Text, Text>) {
        self.failed = failed;
    }

    /// Why a container is given up.
    pub(crate) fn failed(&self, uuid: &str) -> Option<&Text> {
        self.failed.get(uuid)
    }

    /// A container has ended.
    pub(crate) fn restart(&mut self, uuid: &str) {
        if let Some(verdict) = self.by_uuid.get_mut(uuid) {
            verdict.state = verdict.state.restarted();
        }
    }

    /// The containers of which these say something else than others do.
    pub fn differences<'a>(&'a self, others: &'a Self) -> BTreeSet<&'a Text> {
        let mut all = different(&self.by_uuid, &others.by_uuid);
        all.append(&mut different(&self.failed, &others.failed));
        all.append(&mut different(&self.unwell, &others.unwell));
        all
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_uuid.len()
    }

    /// Removes all but those of containers for which `keeps` is true.
    pub fn retain(&mut self, keeps: impl Fn(&Text) -> bool) {
        self.by_uuid.retain(|uuid, _| keeps(uuid));
        self.unwell.retain(|uuid, _| keeps(uuid));
    }

    /// The same containers' verdicts, as they are stored on disk.
    pub fn to_map(&self) -> Map {
        let entries = self.by_uuid.iter().map(|(uuid, verdict)| {
            let fields = [
                (Text::from(HEALTH_STATE), Value::text(verdict.state.word())),
                (Text::from(START), Value::Int(verdict.start)),
            ];
            let why = self.unwell.get(uuid).into_iter().flat_map(WhyUnhealthy::fields);
            (uuid.clone(), Value::Map(fields.into_iter().chain(why).collect()))
        });
        entries.collect()
    }

    /// The verdicts that were stored; what is none is passed over.
    pub fn of_map(map: &Map) -> Self {
        let mut verdicts = Self::default();
        for (uuid, fields) in map.iter().filter_map(|(uuid, value)| Some((uuid, value.as_map()?))) {
            let Some(state) = fields.text(HEALTH_STATE).and_then(|word| HealthState::of_word(word)) else { continue };
            verdicts.insert(uuid.clone(), Verdict { state, start: fields.int(START).unwrap_or_default() });
            if let (HealthState::Unhealthy, Some(why)) = (state, WhyUnhealthy::of_map(fields)) {
                verdicts.explain(uuid.clone(), why);
            }
        }
        verdicts
    }

    /// The fields of a container with its verdict, and why it is given up if it is; `None` if it is not checked. What has no
    /// verdict yet is initializing, so that it is not found before it was asked once.
    ///
    /// # Errors
    ///
    /// Fails if its check is wrong; then it counts as unchecked.
    pub fn over(&self, fields: &Map, word: Word) -> Result<Option<Map>, BadCheck> {
        if !fields.text("state").is_none_or(|state| model::entity::is_running_state(state)) {
            return Ok(None);
        }
        let known = fields.text(HEALTH_STATE).and_then(|word| HealthState::of_word(word));
        let is_by_engine = word == Word::OfEngine && known == Some(HealthState::Unhealthy);
        let of_engine = || fields.get(REASON).cloned().unwrap_or_else(|| Value::text(HEALTHCHECK_FAILS));
        let by_engine = |field: &str| is_by_engine.then(|| (field.into(), of_engine()));
        let (Some(uuid), Some(_)) = (fields.text("uuid"), check_of(fields)?) else {
            return Ok(is_by_engine.then(|| fields.with([FAILED, REASON].into_iter().filter_map(by_engine))));
        };
        let verdict = self.state(uuid, start(fields));
        let state = match word {
            Word::OfEngine => {
                let verdict = verdict.unwrap_or(HealthState::Initializing);
                known.map_or(verdict, |known| verdict.and(known))
            }
            Word::ToBeginWith => verdict.or(known).unwrap_or(HealthState::Initializing),
        };
        let failed = || Some((FAILED.into(), Value::Text(self.failed(uuid)?.clone())));
        let why = self.unwell.get(uuid).filter(|_| state == HealthState::Unhealthy);
        let why = why.into_iter().flat_map(WhyUnhealthy::fields).chain(by_engine(REASON).filter(|_| why.is_none()));
        let state = (HEALTH_STATE.into(), Value::text(state.word()));
        Ok(Some(fields.with([state].into_iter().chain(by_engine(FAILED).or_else(failed)).chain(why))))
    }
}

/// The keys that have not the same value in both.
fn different<'a, T: PartialEq>(one: &'a BTreeMap<Text, T>, other: &'a BTreeMap<Text, T>) -> BTreeSet<&'a Text> {
    let added = one.iter().filter(|(key, value)| other.get(*key) != Some(*value));
    let removed = other.iter().filter(|(key, _)| !one.contains_key(*key));
    added.chain(removed).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(more: &str) -> Map {
        let json =
            format!(r#"{{"uuid": "a", "state": "running", "start_count": 2, "health_check": {{"port": 80}}{more}}}"#);
        serde_json::from_str(&json).unwrap()
    }

    fn verdicts(state: HealthState, start: i64) -> Verdicts {
        let mut verdicts = Verdicts::default();
        verdicts.insert("a".into(), Verdict { state, start });
        verdicts
    }

    #[test]
    fn a_verdict_lies_over_the_state_of_a_running_container_with_a_check() {
        use HealthState::{Healthy, Unhealthy};
        for (verdicts, more, word, expected) in [
            (Verdicts::default(), "", Word::OfEngine, Some("initializing")),
            (Verdicts::default(), r#", "health_state": "healthy""#, Word::OfEngine, Some("initializing")),
            (Verdicts::default(), r#", "health_state": "healthy""#, Word::ToBeginWith, Some("healthy")),
            (Verdicts::default(), "", Word::ToBeginWith, Some("initializing")),
            (verdicts(Healthy, 2), "", Word::OfEngine, Some("healthy")),
            (verdicts(Healthy, 2), r#", "health_state": "unhealthy""#, Word::OfEngine, Some("unhealthy")),
            (verdicts(Healthy, 2), r#", "health_state": "unhealthy""#, Word::ToBeginWith, Some("healthy")),
            (verdicts(Healthy, 1), "", Word::OfEngine, Some("reinitializing")),
            (verdicts(Unhealthy, 1), "", Word::OfEngine, Some("unhealthy")),
            (verdicts(Unhealthy, 2), r#", "state": "stopped""#, Word::OfEngine, None),
            (verdicts(Unhealthy, 2), r#", "health_check": {}"#, Word::OfEngine, None),
        ] {
            let laid = verdicts.over(&fields(more), word).unwrap();
            let state = laid.as_ref().and_then(|laid| laid.text(HEALTH_STATE)).map(|state| &**state);
            assert_eq!(state, expected, "{more} {word:?}");
        }
        assert_eq!(
            verdicts(Healthy, 2).over(&fields(r#", "health_check": {"port": "x"}"#), Word::OfEngine).unwrap_err().field,
            "port"
        );
    }

    #[test]
    fn what_is_given_up_says_why() {
        let mut given_up = verdicts(HealthState::Unhealthy, 2);
        given_up.give_up([("a".into(), "status 503".into())].into());
        for (verdicts, more, expected) in [
            (&given_up, "", Some("status 503")),
            (&given_up, r#", "state": "stopped""#, None),
            (&given_up, r#", "health_state": "unhealthy""#, Some("its HEALTHCHECK fails")),
            (
                &given_up,
                r#", "health_state": "unhealthy", "health_reason": "its HEALTHCHECK fails: exit code 1""#,
                Some("its HEALTHCHECK fails: exit code 1"),
            ),
            (&verdicts(HealthState::Unhealthy, 2), "", None),
            // Its image alone checks it.
            (
                &Verdicts::default(),
                r#", "health_check": {}, "health_state": "unhealthy""#,
                Some("its HEALTHCHECK fails"),
            ),
            (&Verdicts::default(), r#", "health_check": {}, "health_state": "healthy""#, None),
        ] {
            let laid = verdicts.over(&fields(more), Word::OfEngine).unwrap();
            let failed = laid.as_ref().and_then(|laid| laid.text(FAILED)).map(|failed| &**failed);
            assert_eq!(failed, expected, "{more}");
        }
    }

    #[test]
    fn what_was_stored_is_known_again() {
        let mut stored = verdicts(HealthState::Healthy, 3);
        stored.insert("b".into(), Verdict { state: HealthState::Unhealthy, start: 1 });
        assert_eq!(Verdicts::of_map(&stored.to_map()), stored);
        let damaged = r#"{"a": {"health_state": "healthy", "start": 3}, "b": 7, "c": {"health_state": "odd"}}"#;
        assert_eq!(Verdicts::of_map(&serde_json::from_str(damaged).unwrap()), verdicts(HealthState::Healthy, 3));
        stored.retain(|uuid| **uuid == *"a");
        assert_eq!(stored, verdicts(HealthState::Healthy, 3));
    }
}
