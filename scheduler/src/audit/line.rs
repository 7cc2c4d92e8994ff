//! One line of the audit log.

use std::time::SystemTime;

use model::Text;
use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::place::answer::Placement;
use crate::place::refusal::Refusal;
use crate::start::log_end::without_log;
use crate::subject::Subject;

/// Longest line, in bytes: 32 images with their digests fit. What a request may hold must not push out what others did.
const LINE_MAX: usize = 8 << 10;

/// Most characters of an id; no request can have a longer one, but a path can.
const ID_MAX: usize = 128;

/// Most characters of the name or the digest of an image.
const NAME_MAX: usize = 256;

/// Most characters of a reason.
const REASON_MAX: usize = 1024;

/// Outcomes of requests that change nothing, so that a client can have as many of them as it likes.
pub(super) const NOTHING_CHANGED: [&str; 4] = ["invalid", "refused", "repeated", "unplaceable"];

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// A request for a placement.
    Place,
    /// A unit is started by its engine.
    Start,
    /// A container failed, so its unit is started again.
    Restart,
    /// A container failed, so another unit takes the place of its own.
    Replace,
    /// A placement is removed.
    Remove,
    /// This scheduler goes on with what another one, or itself before a restart, has begun.
    TakeOver,
    /// A container of this ledger is removed, of which the ledger knows nothing.
    Sweep,
    /// A request that only asks, of a client that may not even do that.
    Ask,
    /// A stack is wanted otherwise.
    Stack,
    /// What containers write is read.
    Logs,
    /// What engines say of containers is read.
    Inspect,
    /// A command is run in a container.
    Exec,
    /// Containers are stopped by hand, and kept.
    Stop,
    /// Old images are removed.
    Prune,
    /// The predecessor's events.
    Event,
    /// Lines that are missing.
    Lost,
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AuditLine {
    /// RFC 3339.
    pub(crate) time: String,
    pub(crate) action: Action,
    pub(crate) subject: Subject,
    /// The id of the request; empty if it has none.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) request: Text,
    /// Names of hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hosts: Vec<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) images: Vec<AuditedImage>,
    /// How many hosts and images there was no room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) omitted: Option<usize>,
    pub(crate) outcome: String,
    /// Why, if it was refused or failed, without what a log says; the name of an event.
    #[serde(skip_serializing_if = "String::is_empty", serialize_with = "as_without_log")]
    pub(crate) reason: String,
}

/// An image by its name, and by its digest as far as that is known.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AuditedImage {
    pub(crate) name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<Text>,
}

fn as_without_log<S: Serializer>(reason: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&without_log(reason))
}

impl AuditLine {
    pub(crate) fn new(action: Action, subject: &Subject, outcome: impl Into<String>) -> Self {
        Self {
            time: OffsetDateTime::from(SystemTime::now()).format(&Rfc3339).unwrap_or_default(),
            action,
            subject: subject.clone(),
            request: Text::default(),
            hosts: Vec::new(),
            images: Vec::new(),
            omitted: None,
            outcome: outcome.into(),
            reason: String::new(),
        }
    }

    /// The line about a placement: where it is, or why not.
    pub(crate) fn about(mut self, id: &Text, answer: &Result<Placement, Refusal>) -> Self {
        self.request = id.clone();
        match answer {
            Ok(answer) => {
                self.hosts = answer.placements.iter().map(|unit| unit.host.name.clone()).collect();
                self.reason = answer.error.clone().unwrap_or_default();
            }
            Err(refusal) => self.reason = refusal.to_string(),
        }
        self
    }

    /// Whether this is about a request that changed nothing.
    pub(super) fn changed_nothing(&self) -> bool {
        let is_request = matches!(
            self.action,
            Action::Place
                | Action::Remove
                | Action::Ask
                | Action::Event
                | Action::Logs
                | Action::Inspect
                | Action::Exec
                | Action::Restart
                | Action::Stop
                | Action::Prune
        );
        is_request && NOTHING_CHANGED.contains(&&*self.outcome)
    }

    /// The line as it is written, in at most [`LINE_MAX`] bytes.
    pub(super) fn written(&self) -> Vec<u8> {
        let mut line = self.clone();
        line.request = shortened(&line.request, ID_MAX);
        line.reason = shortened(&line.reason, REASON_MAX).to_string();
        for image in &mut line.images {
            image.name = shortened(&image.name, NAME_MAX);
            image.digest = image.digest.as_ref().map(|digest| shortened(digest, NAME_MAX));
        }
        loop {
            let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
            bytes.push(b'\n');
            let (hosts, images) = (line.hosts.len(), line.images.len());
            if bytes.len() <= LINE_MAX || hosts + images == 0 {
                return bytes;
            }
            line.hosts.truncate(hosts * 3 / 4);
            line.images.truncate(images * 3 / 4);
            let fewer = hosts + images - line.hosts.len() - line.images.len();
            line.omitted = Some(line.omitted.unwrap_or_default() + fewer);
        }
    }
}

/// The first `most` characters.
fn shortened(text: &str, most: usize) -> Text {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// The digest in the name of an image.
pub(crate) fn digest_in(image: &str) -> Option<Text> {
    image.split_once('@').map(|(_, digest)| digest.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_request_makes_a_line_longer_than_the_bound() {
        let line = AuditLine::new(Action::Place, &Subject::of_token(None), "placed");
        let name = Text::from("\u{1}".repeat(4096));
        let image = AuditedImage { name: name.clone(), digest: Some(name.clone()) };
        let long = AuditLine {
            request: name.clone(),
            reason: name.to_string(),
            images: vec![image; 32],
            hosts: vec!["host".into(); 10_000],
            ..line.clone()
        };
        let bytes = long.written();
        assert!(bytes.len() <= LINE_MAX && bytes.ends_with(b"\n"), "{}", bytes.len());
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let counted = |key: &str| value[key].as_array().map_or(0, Vec::len);
        assert_eq!(value["omitted"], 10_032 - counted("hosts") - counted("images"));
        // A usual one is whole.
        let image = AuditedImage {
            name: "registry.example.org/shop/web:1.2.3".into(),
            digest: Some(format!("sha256:{:064}", 0).into()),
        };
        let bytes = AuditLine { images: vec![image; 32], ..line }.written();
        assert!(!String::from_utf8(bytes).unwrap().contains("omitted"));
    }
}
