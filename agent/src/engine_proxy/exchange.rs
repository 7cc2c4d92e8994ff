//! One request to the engine and its response.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use engine::{InImage, is_given};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use platform::engine::Accepted;
use scheduler::EnginePolicy;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::engine_proxy::places::Place;
use crate::engine_proxy::shown::Shown;
use crate::engine_proxy::verbs::{Verb, verb};

/// Largest body of a request: what creates a container.
const REQUEST_MAX: usize = 1 << 20;

/// Largest response that is read as a whole: the list of 10,000 containers with 3 KiB each.
const RESPONSE_MAX: usize = 32 << 20;

/// Longest event: it has all labels of a container.
const EVENT_MAX: usize = 1 << 20;

/// Longest wait for the head of a request. Clients of a local socket send it at once.
const HEAD_TIME: Duration = Duration::from_secs(2);

/// Longest wait for the body of a request after its head.
const BODY_TIME: Duration = Duration::from_secs(10);

/// Longest wait for what the engine says of one container.
const INSPECT_TIME: Duration = Duration::from_secs(10);

/// The driver of the network that is the host's own, which the policy calls so.
const HOST_NETWORK: &str = "host";

/// Headers of requests that engines need.
const PASSED_ON: [&str; 4] = ["accept", "content-type", "user-agent", "x-registry-auth"];

type AnyBody = BoxBody<Bytes, hyper::Error>;

/// Passes requests on to an engine.
pub(super) struct Exchange {
    /// The engine's socket.
    pub(super) socket: String,
    pub(super) policy: EnginePolicy,
}

/// Why a request is not passed on: a status and a reason, which the client sees as the engine's.
struct Refused(StatusCode, String);

impl Refused {
    fn forbidden(why: impl Into<String>) -> Self {
        Self(StatusCode::FORBIDDEN, why.into())
    }

    /// The engine has no such thing; in its own words.
    fn missing(what: &str, name: &str) -> Self {
        Self(StatusCode::NOT_FOUND, format!("No such {what}: {name}"))
    }

    /// The engine cannot be asked.
    fn away(error: &dyn std::fmt::Display) -> Self {
        Self(StatusCode::BAD_GATEWAY, format!("the engine proxy cannot ask the engine: {error}"))
    }
}

impl Exchange {
    /// Serves the one request of a connection, so that none waits for its next one in a place.
    pub(super) async fn serve(&self, stream: Accepted, place: &Place) {
        let answer = service_fn(|request| async { Ok::<_, Infallible>(self.answer(request, place).await) });
        let mut server = hyper::server::conn::http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).keep_alive(false);
        let connection = server.serve_connection(TokioIo::new(stream), answer);
        match place.ended.run_until_cancelled(connection).await {
            Some(Err(error)) => debug!(%error, "a connection ended"),
            Some(Ok(())) => {}
            None => debug!("a connection ended for later ones, since its request had not arrived"),
        }
    }

    async fn answer(&self, request: Request<Incoming>, place: &Place) -> Response<AnyBody> {
        let (method, target) = (request.method().clone(), request.uri().to_string());
        match self.pass_on(request, place).await {
            Ok(response) => response,
            Err(Refused(status, why)) => {
                if status == StatusCode::FORBIDDEN {
                    warn!(%method, target, why, "refused");
                }
                let mut response = Response::new(whole(&json!({ "message": why })));
                *response.status_mut() = status;
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
        }
    }

    async fn pass_on(&self, request: Request<Incoming>, place: &Place) -> Result<Response<AnyBody>, Refused> {
        let (head, body) = request.into_parts();
        // First, because a client that is still writing would not read a refusal.
        let body = tokio::time::timeout(BODY_TIME, Limited::new(body, REQUEST_MAX).collect()).await;
        place.arrived().await;
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let refused = || Refused::forbidden(format!("the engine proxy does not pass {} {path} on", head.method));
        // An absolute target is for proxies of another kind.
        let verb = verb(&head.method, path, query).filter(|_| head.uri.scheme().is_none()).ok_or_else(refused)?;
        let Ok(Ok(body)) = body else {
            return Err(Refused(
                StatusCode::BAD_REQUEST,
                format!("a body of at most {REQUEST_MAX} bytes was expected"),
            ));
        };
        let body = body.to_bytes();
        let mut target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let body = match &verb {
            Verb::Create => {
                let body = self.allowed(&body).await?;
                let request = EnginePolicy::request_of(&body).unwrap_or_default();
                info!(request, image = body["Image"].as_str().unwrap_or_default(), "a container is created");
                // As it was read, so that the engine reads the same.
                body.to_string().into()
            }
            Verb::Own { name, after } => {
                let id = self.own(name).await?;
                let query = if query.is_empty() { String::new() } else { format!("?{query}") };
                target = format!("/containers/{id}{after}{query}");
                info!(container = name, method = %head.method, what = after.trim_start_matches('/'), "passed on");
                Bytes::new()
            }
            Verb::PutFiles { name } => {
                let id = self.own_and_not_started(name).await?;
                target = format!("/containers/{id}/archive?{query}");
                info!(container = name, "files are put into it");
                body
            }
            Verb::MakeVolume => {
                let body: Value = serde_json::from_slice(&body).map_err(|error| not_json(&error))?;
                self.policy.check_volume(&body).map_err(Refused::forbidden)?;
                info!(volume = body["Name"].as_str().unwrap_or_default(), "a volume is made");
                body.to_string().into()
            }
            Verb::RemoveVolume { name } => {
                let found = self.found(&format!("/volumes/{name}"), name).await?;
                let found = found.ok_or_else(|| Refused::missing("volume", name))?;
                self.policy.check_volume_removal(&found).map_err(Refused::forbidden)?;
                target = format!("/volumes/{name}");
                info!(volume = name, "a volume is removed");
                Bytes::new()
            }
            Verb::Registry { image } => {
                self.policy.check_pull(image).map_err(Refused::forbidden)?;
                Bytes::new()
            }
            Verb::Read | Verb::Show(_) => Bytes::new(),
        };
        let mut passed = Request::new(Full::new(body));
        *passed.method_mut() = head.method;
        *passed.uri_mut() = target.parse().map_err(|_| Refused::forbidden("its path is none"))?;
        for name in PASSED_ON {
            // Engines write events as other texts for those that accept them.
            let is_wanted = verb != Verb::Show(Shown::Events) || name != ACCEPT.as_str();
            if let Some(value) = head.headers.get(name).filter(|_| is_wanted) {
                passed.headers_mut().insert(name, value.clone());
            }
        }
        let response = self.ask(passed).await?;
        match verb {
            Verb::Show(Shown::Events) if response.status() == StatusCode::OK => Ok(events(response)),
            Verb::Show(shown) if response.status() == StatusCode::OK => reduced(response, shown).await,
            // It may be one that somebody else has made.
            Verb::MakeVolume if response.status().is_success() => reduced(response, Shown::Volume).await,
            _ => Ok(response.map(BodyExt::boxed)),
        }
    }

    /// The body of a container that may be created.
    async fn allowed(&self, body: &[u8]) -> Result<Value, Refused> {
        let body: Value = serde_json::from_slice(body).map_err(|error| not_json(&error))?;
        let request = EnginePolicy::request_of(&body);
        // The policy is about names, and the engine takes ids and the beginnings of ids as well.
        let (mut names, mut own) = (BTreeMap::new(), Vec::new());
        for name in EnginePolicy::joined(&body) {
            let found = self.container(name).await?.ok_or_else(|| Refused::missing("container", name))?;
            let full = found["Name"].as_str().unwrap_or_default().trim_start_matches('/').to_owned();
            if request.is_some() && self.request_given(&found).await? == request {
                own.push(full.clone());
            }
            names.insert(name, full);
        }
        let mut network = None;
        if let Some(name) = EnginePolicy::network(&body) {
            let found = self.found(&format!("/networks/{name}"), name).await?;
            let found = found.ok_or_else(|| Refused::missing("network", name))?;
            let is_host = found["Driver"] == HOST_NETWORK;
            network = Some(if is_host { HOST_NETWORK } else { found["Name"].as_str().unwrap_or_default() }.to_owned());
        }
        let judged = EnginePolicy::named(&body, &names, network.as_deref());
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        self.policy.check_create(&judged, &own).map_err(Refused::forbidden)?;
        Ok(body)
    }

    /// The id of a container that a scheduler created and that was not started yet: what is in one that runs is its own.
    async fn own_and_not_started(&self, name: &str) -> Result<String, Refused> {
        let found = self.own_container(name).await?;
        if found["State"]["Status"] != "created" {
            let why = format!("the container {name} was started already: the engine proxy puts no files into it");
            return Err(Refused::forbidden(why));
        }
        Ok(id_of(&found))
    }

    /// The id of a container that a scheduler started.
    async fn own(&self, name: &str) -> Result<String, Refused> {
        self.own_container(name).await.map(|found| id_of(&found))
    }

    async fn own_container(&self, name: &str) -> Result<Value, Refused> {
        let found = self.container(name).await?;
        let found = found.ok_or_else(|| Refused::missing("container", name))?;
        if self.request_given(&found).await?.is_none() {
            let why = format!(
                "the container {name} was not started by a scheduler, or its image is gone so that nothing shows it: the engine proxy leaves it alone"
            );
            return Err(Refused::forbidden(why));
        }
        Ok(found)
    }

    /// The request that a container was created for: a label that may have come with its image says nothing. An image may have the
    /// same request by its name alone; then the label of the attempt is the one that was given.
    async fn request_given<'c>(&self, container: &'c Value) -> Result<Option<&'c str>, Refused> {
        let Some(request) = EnginePolicy::request_of(&container["Config"]) else { return Ok(None) };
        let Some((algorithm, id)) = container["Image"].as_str().and_then(|image| image.split_once(':')) else {
            return Ok(None);
        };
        let image = self.found(&format!("/images/{algorithm}:{id}/json"), id).await?;
        let image = image.as_ref().map(|image| &image["Config"]);
        let given = |label: fn(&Value) -> Option<&str>| {
            let in_image = image.map_or(InImage::Unknown, |image| InImage::known(label(image)));
            label(&container["Config"]).is_some_and(|value| is_given(value, in_image))
        };
        Ok((given(EnginePolicy::request_of) || given(EnginePolicy::attempt_of)).then_some(request))
    }

    /// What the engine has of a container.
    async fn container(&self, name: &str) -> Result<Option<Value>, Refused> {
        self.found(&format!("/containers/{name}/json"), name).await
    }

    /// What the engine has at a path, in which this name or id is.
    async fn found(&self, path: &str, name: &str) -> Result<Option<Value>, Refused> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if matches!(name, "" | "." | "..") || !name.bytes().all(plain) {
            return Ok(None);
        }
        let question = Request::get(path).body(Full::default());
        let question = question.map_err(|error| Refused::away(&error))?;
        let asked = async {
            let response = self.ask(question).await?;
            match response.status() {
                StatusCode::OK => json_of(response).await.map(Some),
                StatusCode::NOT_FOUND => Ok(None),
                status => Err(Refused::away(&status)),
            }
        };
        tokio::time::timeout(INSPECT_TIME, asked).await.map_err(|elapsed| Refused::away(&elapsed))?
    }

    /// Sends one request over a connection of its own, which ends with the response.
    async fn ask(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Refused> {
        let stream = platform::engine::connect(&self.socket).await.map_err(|error| Refused::away(&error))?;
        let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(|error| Refused::away(&error))?;
        tokio::spawn(connection);
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        sender.send_request(request).await.map_err(|error| Refused::away(&error))
    }
}

fn id_of(container: &Value) -> String {
    container["Id"].as_str().unwrap_or_default().to_owned()
}

fn not_json(error: &serde_json::Error) -> Refused {
    Refused(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}"))
}

async fn json_of(response: Response<Incoming>) -> Result<Value, Refused> {
    let body =
        Limited::new(response.into_body(), RESPONSE_MAX).collect().await.map_err(|error| Refused::away(&error))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| Refused::away(&error))
}

/// A response without what is not passed on of it.
async fn reduced(response: Response<Incoming>, shown: Shown) -> Result<Response<AnyBody>, Refused> {
    let (mut head, body) = response.into_parts();
    let whole_response = json_of(Response::new(body)).await?;
    head.headers.remove(CONTENT_LENGTH);
    head.headers.remove(TRANSFER_ENCODING);
    Ok(Response::from_parts(head, whole(&shown.of(whole_response))))
}

/// The engine's events without what is not passed on of them, as they arrive: one a line.
fn events(response: Response<Incoming>) -> Response<AnyBody> {
    let (mut head, body) = response.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    head.headers.remove(TRANSFER_ENCODING);
    let lines = futures_util::stream::unfold((body, Vec::new()), |(mut body, mut begun)| async move {
        loop {
            if let Some(end) = begun.iter().rposition(|byte| *byte == b'\n') {
                let rest = begun.split_off(end + 1);
                return Some((Ok(Frame::data(shown_events(&begun).into())), (body, rest)));
            }
            // The client connects again, and is sent what it has missed.
            if begun.len() > EVENT_MAX {
                return None;
            }
            match body.frame().await? {
                Ok(frame) => begun.extend(frame.into_data().unwrap_or_default()),
                Err(error) => return Some((Err(error), (body, Vec::new()))),
            }
        }
    });
    Response::from_parts(head, BodyExt::boxed(StreamBody::new(lines)))
}

/// What is passed on of some events; of what is none, nothing.
fn shown_events(lines: &[u8]) -> Vec<u8> {
    let mut shown = Vec::new();
    for event in lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()) {
        shown.extend(Shown::Events.of(event).to_string().into_bytes());
        shown.push(b'\n');
    }
    shown
}

/// A value as a body.
fn whole(value: &Value) -> AnyBody {
    Full::from(value.to_string()).map_err(|never| match never {}).boxed()
}
