//! Answers: status, headers and body for a question, given a view.

use model::{Text, Value};

use crate::body::page;
use crate::body::parts::{Part, parts};
use crate::body::render;
use crate::body::weight::is_light;
use crate::config::Cors;
use crate::http::access::Denial;
use crate::http::limits::Exhausted;
use crate::http::sniff;
use crate::negotiate::Format;
use crate::path::{self, BadTarget, Method, Place, Route};
use crate::query::{self, Wait};
use crate::traefik::Balancer;
use crate::tree::node::Node;
use crate::tree::{Client, Missing, Tree};

/// Longest body, in bytes, that is announced with its length; longer ones are sent in chunks.
///
/// The predecessor's buffer was this large.
pub(crate) const SIZED_MAX: usize = 2048;

/// What browsers may do with a value: show it, without running or loading anything, and apart from all other pages.
const VALUE_POLICY: &str = "default-src 'none'; sandbox";

/// An answer, before HTTP's own headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    kind: Kind,
}

/// What kind of answer it is; the headers follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// A value of a tree.
    Value,
    /// There is no such value.
    NoValue,
    /// Where the client should have asked.
    Redirect(String),
    /// There is no such page, or the service failed.
    NoPage,
    /// Nothing but that the service is there.
    Nothing,
    /// There will be an answer soon.
    Later,
    /// The description of the API.
    Description,
    /// The page for people.
    Page,
    /// A session token that is good for this many seconds.
    Token(u32),
    /// The client is not let in.
    Denial,
    /// The client is not let in without a session token.
    TokenDenial,
    /// The client has as much as it may have, and may try again after these seconds.
    Exhausted(u64),
    /// The request was not even HTTP as it should be; the connection ends.
    Refusal,
}

/// The headers that HTTP does not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    AllowOrigin,
    ContentType,
    ContentTypeOptions,
    Location,
    SecurityPolicy,
    ReferrerPolicy,
    CacheControl,
    RetryAfter,
    TokenLifetime,
    Authenticate,
}

impl Header {
    /// Its name as it is sent.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllowOrigin => "Access-Control-Allow-Origin",
            Self::ContentType => "Content-Type",
            Self::ContentTypeOptions => "X-Content-Type-Options",
            Self::Location => "Location",
            Self::SecurityPolicy => "Content-Security-Policy",
            Self::ReferrerPolicy => "Referrer-Policy",
            Self::CacheControl => "Cache-Control",
            Self::RetryAfter => "Retry-After",
            Self::TokenLifetime => "X-Aws-Ec2-Metadata-Token-Ttl-Seconds",
            Self::Authenticate => "Www-Authenticate",
        }
    }
}

/// What a request asks, with everything that the answer depends on but the view.
#[derive(Clone, Debug)]
pub(crate) struct Question<'t> {
    place: Place<'t>,
    client: Client,
    format: Format,
}

/// In which form a client wants its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) format: Format,
    /// Whether it rather has the page for people, where there is one.
    pub(crate) page: bool,
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Outcome<'t> {
    /// An answer at once.
    Answer(Answer),
    /// A value that takes time to show.
    Show(Question<'t>),
    /// An answer when the value is another one.
    Wait(Question<'t>, Wait),
    /// An answer when the client is known, or after a while: see [`Question::awaits_client`].
    Hold(Question<'t>),
    /// What changes after the revision that the client has.
    Changes(Option<String>),
    /// The plan of a balancer, when it is another one than this connection was sent.
    Balancer(Balancer),
}

impl<'t> Outcome<'t> {
    /// What becomes of the request with this method and target.
    pub(crate) fn of(tree: &Tree, method: Method, target: &'t [u8], client: Client, wanted: Wanted) -> Self {
        let format = wanted.format;
        Self::Answer(match path::route(method, target) {
            Err(BadTarget) => Answer::refusal(400),
            Ok(Route::Clean(location)) => Answer { status: 301, body: String::new(), kind: Kind::Redirect(location) },
            Ok(Route::Server) => Answer { status: 200, body: String::new(), kind: Kind::Nothing },
            Ok(Route::NoPage) => Answer::no_page(),
            Ok(Route::Changes(after)) => return Self::Changes(after),
            Ok(Route::Traefik(query)) => return Self::Balancer(Balancer::of(query, client)),
            Ok(Route::Description) => Answer::description(),
            Ok(Route::Versions(query)) if wanted.page => Answer::page(tree, query.unwrap_or_default(), client),
            Ok(Route::Versions(_)) => Answer::found(versions(tree, format)),
            Ok(Route::Place(place)) => {
                let wait = place.query.and_then(Wait::of);
                let question = Question { place, client, format };
                return match wait {
                    Some(wait) if question.finds_version(tree) => Self::Wait(question, wait),
                    _ if question.awaits_client(tree) => Self::Hold(question),
                    _ => question.outcome(tree),
                };
            }
        })
    }
}

impl Outcome<'_> {
    /// The same, with owned contents.
    pub(crate) fn kept(self) -> Outcome<'static> {
        match self {
            Self::Answer(answer) => Outcome::Answer(answer),
            Self::Show(question) => Outcome::Show(question.kept()),
            Self::Wait(question, wait) => Outcome::Wait(question.kept(), wait),
            Self::Hold(question) => Outcome::Hold(question.kept()),
            Self::Changes(known) => Outcome::Changes(known),
            Self::Balancer(balancer) => Outcome::Balancer(balancer),
        }
    }
}

impl<'q> Question<'q> {
    /// The same question, with owned contents.
    pub(crate) fn kept(self) -> Question<'static> {
        Question { place: self.place.kept(), client: self.client, format: self.format }
    }

    /// What becomes of it as things are.
    pub(crate) fn outcome(self, tree: &Tree) -> Outcome<'q> {
        match self.find(tree) {
            Ok(node) if is_light(&node, self.format) => Outcome::Answer(self.found(&node)),
            Ok(_) => Outcome::Show(self),
            Err(missing) => Outcome::Answer(self.missing(missing)),
        }
    }

    /// Says which container asks, by the id that its engine has given it.
    pub(crate) fn asked_by(&mut self, engine_id: Text) {
        self.client.engine_id = Some(engine_id);
    }

    /// Whether a client whose container may become known soon asks for itself, and no container has its address yet.
    pub(crate) fn awaits_client(&self, tree: &Tree) -> bool {
        if !self.client.awaited {
            return false;
        }
        let mut steps = self.place.steps.iter().flatten().map(|step| &**step);
        // The host is the same for all clients.
        steps.next() == Some("self") && steps.next() != Some("host") && !tree.knows(&self.client)
    }

    /// Whether it takes time to compare the value with what a client knows.
    pub(crate) fn is_heavy(&self, tree: &Tree) -> bool {
        // The compared form contains everything below, in all formats.
        self.find(tree).is_ok_and(|node| !is_light(&node, Format::Json))
    }

    /// Whether the value is there and another one than `known`.
    pub(crate) fn differs(&self, tree: &Tree, known: &[u8]) -> bool {
        self.find(tree).is_ok_and(|node| match node.text() {
            Some(text) => text.as_bytes() != known,
            None => render::plain(&node).as_bytes() != known,
        })
    }

    /// The parts of the body of a value that takes time to show.
    pub(crate) fn parts(&self, tree: &Tree) -> Vec<Part> {
        self.find(tree).map_or_else(|_| Vec::new(), |node| parts(&node, self.format))
    }

    /// One of these parts: what is found from the value by these keys.
    pub(crate) fn part(&self, tree: &Tree, keys: &[String]) -> String {
        let found = self.find(tree).ok().and_then(|node| node.walk(keys));
        found.map(|node| render::body(&node, self.format)).unwrap_or_default()
    }

    fn finds_version(&self, tree: &Tree) -> bool {
        !matches!(tree.root(&self.place.version, &self.client), Err(Missing::Version))
    }

    /// The place asked for; with all names in lower case when it is not there as it is written.
    fn find<'t>(&self, tree: &'t Tree) -> Result<Node<'t>, Missing> {
        let root = tree.root(&self.place.version, &self.client)?;
        let steps = self.place.steps.as_ref().ok_or(Missing::Value)?;
        let lowered = || steps.iter().map(|step| crate::tree::lower::lower(step));
        root.clone().walk(steps).or_else(|| root.walk(lowered())).ok_or(Missing::Value)
    }

    fn found(&self, node: &Node<'_>) -> Answer {
        Answer::found(render::body(node, self.format))
    }

    fn missing(&self, missing: Missing) -> Answer {
        let message = match missing {
            Missing::Version => "Invalid version",
            Missing::Value => "Not found",
        };
        Answer::error(404, message, self.format, Kind::NoValue)
    }
}

impl Answer {
    /// A value with this body.
    pub(crate) fn found(body: String) -> Self {
        Self { status: 200, body, kind: Kind::Value }
    }

    fn error(status: u16, message: &str, format: Format, kind: Kind) -> Self {
        let body = match format {
            Format::Text => message.to_owned(),
            Format::Json | Format::Yaml => {
                let fields =
                    [("code", Value::Int(status.into())), ("message", message.into()), ("type", "error".into())];
                let error = Value::Map(fields.into_iter().map(|(key, value)| (key.into(), value)).collect());
                render::body(&Node::of(&error), format)
            }
        };
        Self { status, body: body + "\n", kind }
    }

    fn no_page() -> Self {
        Self::error(404, "404 page not found", Format::Text, Kind::NoPage)
    }

    /// The page for people, with the place that the query names.
    fn page(tree: &Tree, query: &[u8], client: Client) -> Self {
        let path = query::path(query);
        let place = match path::route(Method::Read, if path.is_empty() { b"/" } else { &path }) {
            Ok(Route::Versions(_)) => {
                let body = page::versions(tree.version_names());
                return Self { status: 200, body, kind: Kind::Page };
            }
            Ok(Route::Place(place)) => place,
            _ => return Self { status: 404, body: page::nothing(&[]), kind: Kind::Page },
        };
        let question = Question { place, client, format: Format::Text };
        let names = question.place.steps.iter().flatten().map(|step| &**step);
        let names: Vec<_> = std::iter::once(&*question.place.version).chain(names).collect();
        match question.find(tree) {
            Ok(node) => Self { status: 200, body: page::page(&names, &node), kind: Kind::Page },
            Err(_) => Self { status: 404, body: page::nothing(&names), kind: Kind::Page },
        }
    }

    fn description() -> Self {
        Self { status: 200, body: include_str!("../openapi.json").to_owned(), kind: Kind::Description }
    }

    /// Nothing can be said yet.
    pub(crate) fn unavailable() -> Self {
        Self::error(503, "No data yet", Format::Text, Kind::Later)
    }

    /// There is no such balancer, which may be so for a moment: whoever asks stays with what it has.
    pub(crate) fn no_balancer() -> Self {
        Self::error(503, "No service of that name has an lb_config: ?service=stack/name", Format::Text, Kind::Later)
    }

    /// So many requests wait already that no more can.
    pub(crate) fn too_many_wait() -> Self {
        Self::error(503, "Too many requests wait", Format::Text, Kind::Later)
    }

    /// Clients have left so much unread that no more can be written.
    pub(crate) fn too_much_unread() -> Self {
        Self::error(503, "Too many bytes are unread", Format::Text, Kind::Later)
    }

    /// The client has as much as it may have.
    pub(crate) fn exhausted(what: &str, exhausted: Exhausted) -> Self {
        Self::error(429, what, Format::Text, Kind::Exhausted(exhausted.retry))
    }

    /// A new session token and the seconds of its life.
    pub(crate) fn token(token: String, seconds: u32) -> Self {
        Self { status: 200, body: token, kind: Kind::Token(seconds) }
    }

    /// The client is not let in.
    pub(crate) fn denied(denial: Denial) -> Self {
        let kind = if denial.status() == 401 { Kind::TokenDenial } else { Kind::Denial };
        Self::error(denial.status(), denial.reason(), Format::Text, kind)
    }

    /// Something went wrong that must not.
    pub(crate) fn failure() -> Self {
        Self::error(500, "Internal error", Format::Text, Kind::NoPage)
    }

    /// A request that is not even HTTP as it should be.
    pub(crate) fn refusal(status: u16) -> Self {
        Self { status, body: status_line(status).to_owned(), kind: Kind::Refusal }
    }

    /// Whether the service closes the connection after it.
    pub(crate) fn is_last(&self) -> bool {
        self.kind == Kind::Refusal
    }

    /// Calls `each` with every header that HTTP does not require, of a value whose body begins so.
    pub(crate) fn each_header_of_value(beginning: &[u8], cors: Cors, mut each: impl FnMut(Header, &str)) {
        // Scripts of any page may read the values, as they could the predecessor's.
        if cors == Cors::On {
            each(Header::AllowOrigin, "*");
        }
        if let Some(kind) = sniff::content_type(beginning) {
            each(Header::ContentType, kind);
        }
        // Labels of containers become values, and a browser would run one that looks like a page.
        each(Header::ContentTypeOptions, "nosniff");
        each(Header::SecurityPolicy, VALUE_POLICY);
    }

    /// Calls `each` with every header that HTTP does not require.
    pub(crate) fn each_header(&self, cors: Cors, mut each: impl FnMut(Header, &str)) {
        if self.kind == Kind::Value {
            return Self::each_header_of_value(self.body.as_bytes(), cors, each);
        }
        if cors == Cors::On && matches!(self.kind, Kind::NoValue | Kind::Description) {
            each(Header::AllowOrigin, "*");
        }
        match self.kind {
            Kind::Value | Kind::Redirect(_) | Kind::Nothing => {}
            Kind::Description => each(Header::ContentType, "application/json"),
            Kind::Page => each(Header::ContentType, "text/html; charset=utf-8"),
            _ => each(Header::ContentType, sniff::TEXT),
        }
        if !matches!(self.kind, Kind::Redirect(_) | Kind::Description | Kind::Nothing | Kind::Refusal) {
            each(Header::ContentTypeOptions, "nosniff");
        }
        match &self.kind {
            Kind::Redirect(location) => each(Header::Location, location),
            Kind::Page => {
                each(Header::SecurityPolicy, page::POLICY);
                each(Header::ReferrerPolicy, "no-referrer");
                each(Header::CacheControl, "no-store");
            }
            Kind::Later => each(Header::RetryAfter, "1"),
            Kind::Token(seconds) => {
                each(Header::TokenLifetime, &seconds.to_string());
                each(Header::CacheControl, "no-store");
            }
            Kind::Exhausted(seconds) => each(Header::RetryAfter, &seconds.to_string()),
            Kind::TokenDenial => each(Header::Authenticate, "X-aws-ec2-metadata-token"),
            _ => {}
        }
    }
}

/// A status with its words.
pub(crate) fn status_line(status: u16) -> &'static str {
    match status {
        200 => "200 OK",
        301 => "301 Moved Permanently",
        400 => "400 Bad Request",
        401 => "401 Unauthorized",
        403 => "403 Forbidden",
        404 => "404 Not Found",
        408 => "408 Request Timeout",
        414 => "414 URI Too Long",
        429 => "429 Too Many Requests",
        431 => "431 Request Header Fields Too Large",
        501 => "501 Not Implemented",
        503 => "503 Service Unavailable",
        505 => "505 HTTP Version Not Supported",
        _ => "500 Internal Server Error",
    }
}

/// The list of versions.
fn versions(tree: &Tree, format: Format) -> String {
    let names = tree.version_names();
    let paths = names.into_iter().map(|name| (name.into(), Value::text(format!("/{name}"))));
    render::body(&Node::of(&Value::Map(paths.collect())), format)
}
