//! Answers: status, headers and body for a question, given a view.

use model::Value;

use crate::negotiate::Format;
use crate::node::Node;
use crate::path::{self, BadTarget, Place, Route};
use crate::query::Wait;
use crate::render;
use crate::sniff;
use crate::tree::{Client, Missing, Tree};

/// Longest body, in octets, that is announced with its length; longer ones are sent in chunks.
///
/// The predecessor's buffer was this large.
pub(crate) const SIZED_MAX: usize = 2048;

/// An answer, before HTTP's own headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    pub(crate) content_type: Option<&'static str>,
    /// Where the client should have asked.
    pub(crate) location: Option<String>,
    /// Whether scripts of any page may read it.
    pub(crate) cors: bool,
    /// Whether it is an error, of which nobody shall guess another content type.
    pub(crate) error: bool,
    /// Whether asking again in a second helps.
    pub(crate) retry: bool,
    /// Whether the connection ends with it.
    pub(crate) close: bool,
}

/// What a request asks, with everything that the answer depends on but the view.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    place: Place,
    client: Client,
    format: Format,
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// An answer at once.
    Answer(Answer),
    /// An answer when the value is another one.
    Wait(Question, Wait),
}

impl Outcome {
    /// What becomes of the request with this target; `reads` for GET and HEAD.
    pub(crate) fn of(tree: &Tree, reads: bool, target: &[u8], client: Client, format: Format) -> Self {
        Self::Answer(match path::route(reads, target) {
            Err(BadTarget) => Answer::refusal(400),
            Ok(Route::Clean(location)) => Answer { location: Some(location), ..Answer::new(301, String::new()) },
            Ok(Route::NoPage) => Answer::no_page(),
            Ok(Route::Versions) => Answer { cors: true, ..Answer::found(versions(tree, format)) },
            Ok(Route::Place(place)) => {
                let wait = place.query.as_deref().and_then(Wait::of);
                let question = Question { place, client, format };
                match wait {
                    Some(wait) if question.finds_version(tree) => return Self::Wait(question, wait),
                    _ => question.answer(tree),
                }
            }
        })
    }
}

impl Question {
    /// The answer as things are.
    pub(crate) fn answer(&self, tree: &Tree) -> Answer {
        match self.find(tree) {
            Ok(node) => self.found(&node),
            Err(missing) => self.missing(missing),
        }
    }

    /// The answer, when the value is there and another one than `known`.
    pub(crate) fn answer_unless(&self, tree: &Tree, known: &[u8]) -> Option<Answer> {
        let node = self.find(tree).ok()?;
        (render::plain(&node).as_bytes() != known).then(|| self.found(&node))
    }

    fn finds_version(&self, tree: &Tree) -> bool {
        !matches!(tree.root(&self.place.version, &self.client), Err(Missing::Version))
    }

    /// The place asked for; with all names in lower case when it is not there as it is written.
    fn find<'t>(&self, tree: &'t Tree) -> Result<Node<'t>, Missing> {
        let root = tree.root(&self.place.version, &self.client)?;
        let steps = self.place.steps.as_ref().ok_or(Missing::Value)?;
        let lowered = || steps.iter().map(|step| crate::lower::lower(step));
        root.clone().walk(steps).or_else(|| root.walk(lowered())).ok_or(Missing::Value)
    }

    fn found(&self, node: &Node<'_>) -> Answer {
        Answer { cors: true, ..Answer::found(render::body(node, self.format)) }
    }

    fn missing(&self, missing: Missing) -> Answer {
        let message = match missing {
            Missing::Version => "Invalid version",
            Missing::Value => "Not found",
        };
        Answer { cors: true, ..Answer::error(404, message, self.format) }
    }
}

impl Answer {
    fn new(status: u16, body: String) -> Self {
        let content_type = None;
        let (cors, error, retry, close) = (false, false, false, false);
        Self { status, body, content_type, location: None, cors, error, retry, close }
    }

    fn found(body: String) -> Self {
        let content_type = sniff::content_type(body.as_bytes());
        Self { content_type, ..Self::new(200, body) }
    }

    fn error(status: u16, message: &str, format: Format) -> Self {
        let body = match format {
            Format::Text => message.to_owned(),
            Format::Json | Format::Yaml => {
                let fields =
                    [("code", Value::Int(status.into())), ("message", message.into()), ("type", "error".into())];
                let error = Value::Map(fields.into_iter().map(|(key, value)| (key.into(), value)).collect());
                render::body(&Node::of(&error), format)
            }
        };
        Self { content_type: Some(sniff::TEXT), error: true, ..Self::new(status, body + "\n") }
    }

    fn no_page() -> Self {
        Self::error(404, "404 page not found", Format::Text)
    }

    /// Nothing can be said yet.
    pub(crate) fn unavailable() -> Self {
        Self { retry: true, ..Self::error(503, "No data yet", Format::Text) }
    }

    /// Something went wrong that must not.
    pub(crate) fn failure() -> Self {
        Self { close: true, ..Self::error(500, "Internal error", Format::Text) }
    }

    /// A request that is not even HTTP as it should be; the connection ends with it.
    pub(crate) fn refusal(status: u16) -> Self {
        let reason = match status {
            408 => "408 Request Timeout",
            414 => "414 URI Too Long",
            431 => "431 Request Header Fields Too Large",
            501 => "501 Not Implemented",
            503 => "503 Service Unavailable",
            505 => "505 HTTP Version Not Supported",
            _ => "400 Bad Request",
        };
        let retry = status == 503;
        Self { content_type: Some(sniff::TEXT), retry, close: true, ..Self::new(status, reason.to_owned()) }
    }
}

/// The list of versions.
fn versions(tree: &Tree, format: Format) -> String {
    let names = tree.version_names();
    let paths = names.into_iter().map(|name| (name.into(), Value::text(format!("/{name}"))));
    render::body(&Node::of(&Value::Map(paths.collect())), format)
}
