//! A stack in the ledger, and which unit of a stack a placement is.
//!
//! A stack is stored as the placements are: by its owner alone, sealed in etcd, taken over when that is gone. Its id has a
//! slash, which no request can have.

use std::collections::BTreeMap;

use model::Text;
use serde::{Deserialize, Serialize};
use stacks::{Service, Stack};

use crate::subject::Subject;

/// What ids of stacks begin with.
const PREFIX: &str = "stacks/";

/// Revisions of a stack that are kept, as Kubernetes keeps 10 for a deployment.
const REVISIONS_MAX: usize = 10;

/// Most bytes of the services of a stack: what is wanted, what was before and one older revision fit into a value of etcd.
pub(crate) const SERVICES_BYTES_MAX: usize = 256 << 10;

/// What the outcome of a revision begins with that is removed as a whole because a part of it failed.
pub(crate) const UNDONE: &str = "removed, since ";

/// Most bytes of older revisions; the oldest go first.
const HISTORY_BYTES_MAX: usize = 384 << 10;

/// A stack, and what it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StackRecord {
    pub(crate) stack: Stack,
    /// Its revisions, the oldest first; the last one is what is wanted.
    pub(crate) history: Vec<StackRevision>,
    /// Answers to the questions of the catalog's template that it is from; none that is a password or a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) answers: BTreeMap<Text, Text>,
}

/// A stack as somebody wanted it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StackRevision {
    pub(crate) revision: u64,
    /// When it was asked for, in ms since 1970.
    pub(crate) made: u64,
    /// Who asked.
    pub(crate) subject: Subject,
    pub(crate) services: Vec<Service>,
    /// What has come of it, in words; empty while that is open.
    pub(crate) outcome: Text,
    /// The answers that it was made with, as those of the stack; earlier releases did not note them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answers: Option<BTreeMap<Text, Text>>,
}

/// Which unit of a stack a placement is. Only the scheduler says so, and no label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StackUnit {
    pub(crate) stack: Text,
    pub(crate) service: Text,
    pub(crate) index: Text,
    /// Of the service's revision.
    pub(crate) digest: Text,
    /// Whether another unit has its place, since its host was gone for too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) evicted: bool,
    /// Since when, in ms since 1970.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) evicted_at: u64,
    /// Whether others of its service answer in its place while it is being stopped, and when it is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) covered: bool,
    /// Whether it is a job that has ended without an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) done: bool,
}

impl StackRecord {
    /// Who asked for it as it is wanted.
    pub(crate) fn subject(&self) -> Subject {
        self.history.last().map(|revision| revision.subject.clone()).unwrap_or_default()
    }

    /// Why all of it is removed, if nobody asked for that: the first revision failed, and was to be all or nothing.
    pub(crate) fn undone(&self) -> Option<&Text> {
        let outcome = &self.history.last().filter(|_| self.stack.removing)?.outcome;
        outcome.starts_with(UNDONE).then_some(outcome)
    }

    /// The same stack, of these answers.
    pub(crate) fn answered(mut self, answers: BTreeMap<Text, Text>) -> Self {
        if let Some(last) = self.history.last_mut() {
            last.answers = Some(answers.clone());
        }
        Self { answers, ..self }
    }

    /// Adds a revision, and forgets the oldest ones as far as they are too many or too large.
    pub(crate) fn add(&mut self, revision: StackRevision) {
        if let Some(last) = self.history.last_mut().filter(|last| last.outcome.is_empty()) {
            last.outcome = format!("replaced by revision {}", revision.revision).into();
        }
        self.history.push(revision);
        let size = |revision: &StackRevision| serde_json::to_vec(revision).map_or(0, |bytes| bytes.len());
        let mut bytes: usize = self.history.iter().map(size).sum();
        while self.history.len() > 1 && (self.history.len() > REVISIONS_MAX || bytes > HISTORY_BYTES_MAX) {
            bytes -= size(&self.history.remove(0));
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The id of a stack in the ledger.
pub(crate) fn stack_id(name: &str) -> Text {
    format!("{PREFIX}{name}").into()
}

/// The stack that has this id.
pub(crate) fn stack_of(id: &str) -> Option<&str> {
    id.strip_prefix(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_revisions_are_kept_and_fewer_large_ones() {
        let revision = |number: u64, bytes: usize| {
            let request = serde_json::json!({ "service": "web", "image": "i".repeat(bytes) });
            let service = Service::parse(&serde_json::from_value(request).unwrap()).unwrap();
            let (subject, outcome) = (Subject::default(), Text::default());
            StackRevision { revision: number, made: 0, subject, services: vec![service], outcome, answers: None }
        };
        let kept = |bytes: usize| {
            let mut record = StackRecord { stack: Stack::default(), history: Vec::new(), answers: BTreeMap::new() };
            (1..=20).for_each(|number| record.add(revision(number, bytes)));
            assert!(record.history[..record.history.len() - 1].iter().all(|old| old.outcome.starts_with("replaced")));
            record.history.iter().map(|revision| revision.revision).collect::<Vec<_>>()
        };
        assert_eq!(kept(10), (11..=20).collect::<Vec<_>>());
        assert_eq!(kept(150 << 10), [19, 20]);
        assert_eq!(kept(500 << 10), [20]);
    }

    #[test]
    fn ids_of_stacks_are_none_of_requests() {
        assert_eq!(stack_of(&stack_id("shop")), Some("shop"));
        let value = serde_json::json!({ "id": &*stack_id("shop"), "image": "i" });
        let request = crate::place::request::Request::parse(&serde_json::from_value(value).unwrap());
        assert_eq!(request.unwrap_err().field, "id");
    }
}
