//! Routes, and which clients may ask.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use model::{Text, Value};
use process::{WebPage, refuse_web_page};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::api::app::{App, panicked};
use crate::api::body::json;
use crate::api::caller::{Caller, PeerName};
use crate::api::event::PRIORITIZE;
use crate::api::inside;
use crate::api::placing::{answered, place, wants_progress};
use crate::api::reply::{Reply, bug};
use crate::api::stacks;
use crate::audit::UNSETTLED;
use crate::audit::line::{Action, AuditLine};
use crate::place::answer::Placement;
use crate::place::evacuate::Evacuation;
use crate::place::fields::Fields;
use crate::place::invalid::Invalid;
use crate::place::refusal::Refusal;
use crate::place::request::Request as PlacementRequest;
use crate::place::request::limits::GRACE_MAX;
use crate::stack::store::Command;
use crate::start::progress::ProgressSender;

/// The description of the API.
const OPENAPI: &str = include_str!("../../openapi.json");

type Routes = [(&'static str, fn() -> MethodRouter<Arc<App>>, &'static [&'static str]); 26];

/// What may take seconds is done one at a time.
pub(super) static PLANNING: Semaphore = Semaphore::const_new(1);

/// What paths of stacks begin with.
const STACKS: &str = "/v1/stacks/";

/// Paths, what answers there, and to which methods.
const ROUTES: Routes = [
    ("/v1/placements", || get(list).post(place), &["get", "post"]),
    ("/v1/placements/{id}", || get(show).delete(release), &["get", "delete"]),
    ("/v1/hosts", || get(hosts), &["get"]),
    ("/v1/explain", || post(explain), &["post"]),
    ("/v1/what-if", || post(what_if), &["post"]),
    ("/v1/rebalance", || post(rebalance), &["post"]),
    ("/v1/evacuate", || post(evacuate), &["post"]),
    ("/v1/logs", || post(inside::logs), &["post"]),
    ("/v1/exec", || post(inside::exec), &["post"]),
    ("/v1/inspect", || post(inside::inspect), &["post"]),
    ("/v1/restart", || post(inside::restart), &["post"]),
    ("/v1/stop", || post(inside::stop), &["post"]),
    ("/v1/images/prune", || post(inside::prune_images), &["post"]),
    ("/v1/events/{name}", || post(event), &["post"]),
    ("/v1/stacks", || get(stacks::list), &["get"]),
    ("/v1/stacks/{name}", || get(stacks::show).put(stacks::put).delete(stacks::remove), &["get", "put", "delete"]),
    ("/v1/stacks/{name}/answers", || get(stacks::answers), &["get"]),
    ("/v1/stacks/{name}/plan", || post(stacks::plan), &["post"]),
    ("/v1/stacks/{name}/scale", || post(stacks::scale), &["post"]),
    ("/v1/stacks/{name}/rollback", || post(stacks::roll_back), &["post"]),
    ("/v1/stacks/{name}/pause", || post(pause), &["post"]),
    ("/v1/stacks/{name}/resume", || post(resume), &["post"]),
    ("/v1/stacks/{name}/confirm", || post(confirm), &["post"]),
    ("/v1/stacks/{name}/history", || get(stacks::history).post(stacks::diff), &["get", "post"]),
    ("/v1/token", || get(token), &["get"]),
    ("/v1/openapi.json", || get(openapi), &["get"]),
];

pub(super) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (path, methods, _) in ROUTES {
        router = router.route(path, methods());
    }
    router
        .fallback(async || Reply::error(StatusCode::NOT_FOUND, "no such page", "", "a path of /v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            Reply::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed here", "", "a method of /v1/openapi.json")
        })
        .layer(middleware::from_fn_with_state(app.clone(), admit))
        .with_state(app)
}

/// What is answered without changing anything, for other parts of this process, which ask on behalf of no subject. Thousands of
/// hosts are only summed up here: their ports and labels are 13 MB of JSON for 5,000 hosts with 100,000 containers.
pub(super) fn questions(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/placements", get(list))
        .route("/v1/hosts", get(host_summaries))
        .route("/v1/hosts/{host}", get(host_details))
        .route("/v1/stacks", get(stacks::list))
        .route("/v1/stacks/{name}", get(stacks::show))
        .route("/v1/explain", post(explain))
        .route("/v1/what-if", post(what_if))
        .route("/v1/rebalance", post(rebalance))
        .layer(Extension(Caller(None)))
        .with_state(app)
}

/// Refuses clients that may not ask.
async fn admit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let page = refuse_web_page(request.headers(), &app.names).err();
    // No page knows the token, and no page's name is in the certificate.
    if let Some(WebPage(field)) = page.filter(|page| !(app.gate.always && page.0 == "Host")) {
        let expected = if field == "Host" { "an address, localhost or a name of --api-name" } else { "no such header" };
        let problem = "requests of web pages are refused";
        match action_of(request.method(), request.uri()) {
            // A page may ask all day, and changes nothing.
            Action::Ask => {}
            action => app.note_stranger(action, Text::default(), format!("{field}: {problem}")),
        }
        return Reply::error(StatusCode::FORBIDDEN, problem, field, expected).into_response();
    }
    match app.gate.admit(request.headers(), request.extensions().get::<PeerName>()) {
        Ok(caller) => request.extensions_mut().insert(caller),
        // The body of a client without a credential is not read, so the id is unknown.
        Err(()) => return app.unauthorized(action_of(request.method(), request.uri()), Text::default()),
    };
    next.run(request).await
}

fn action_of(method: &Method, uri: &Uri) -> Action {
    match *method {
        Method::PUT | Method::DELETE if uri.path().starts_with(STACKS) => Action::Stack,
        Method::POST if uri.path().starts_with(STACKS) => match uri.path().rsplit('/').next() {
            Some("plan" | "history") => Action::Ask,
            _ => Action::Stack,
        },
        Method::POST if uri.path().starts_with("/v1/events/") => Action::Event,
        Method::DELETE => Action::Remove,
        Method::POST if uri.path() == "/v1/placements" => Action::Place,
        Method::POST if uri.path() == "/v1/evacuate" => Action::Replace,
        Method::POST if uri.path() == "/v1/logs" => Action::Logs,
        Method::POST if uri.path() == "/v1/exec" => Action::Exec,
        Method::POST if uri.path() == "/v1/inspect" => Action::Inspect,
        Method::POST if uri.path() == "/v1/restart" => Action::Restart,
        Method::POST if uri.path() == "/v1/stop" => Action::Stop,
        Method::POST if uri.path() == "/v1/images/prune" => Action::Prune,
        _ => Action::Ask,
    }
}

/// The part of a path that names something.
pub(super) struct Segment(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Reply;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Reply> {
        let segment = Path::<String>::from_request_parts(parts, state).await.map(|Path(text)| Self(text));
        let wrong =
            |_| Reply::error(StatusCode::BAD_REQUEST, "its bytes are not UTF-8", "path", "UTF-8, percent-encoded");
        segment.map_err(wrong)
    }
}

async fn list(State(app): State<Arc<App>>, uri: Uri) -> Reply {
    if let Err(reply) = refreshed(&app, &uri).await {
        return reply;
    }
    let described = |mut placements: Vec<Placement>| {
        app.starter.describe(&mut placements);
        Placements { placements, warning: app.placer.outdated() }
    };
    guarded(&app, || app.placer.placements(app.clock.now()).map(described).into())
}

/// Asks engines how containers are just now, when the client wants to know.
async fn refreshed(app: &App, uri: &Uri) -> Result<(), Reply> {
    match uri.query() {
        None => Ok(()),
        Some("refresh=true") => {
            app.starter.refresh().await;
            Ok(())
        }
        Some(other) => {
            Err(Reply::error(StatusCode::BAD_REQUEST, &format!("found {other:?}"), "query", "nothing, or refresh=true"))
        }
    }
}

#[derive(Serialize)]
struct Placements {
    placements: Vec<Placement>,
    /// Why others may have changed some of it since.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

async fn show(State(app): State<Arc<App>>, Segment(id): Segment, uri: Uri) -> Reply {
    if let Err(reply) = refreshed(&app, &uri).await {
        return reply;
    }
    if let Err(uncertain) = app.placer.look_up(&id, app.clock).await {
        return uncertain.into();
    }
    let described = |mut placement: Placement| {
        app.starter.describe(std::slice::from_mut(&mut placement));
        placement
    };
    guarded(&app, || app.placer.placement(&id, app.clock.now()).map(described).into())
}

async fn release(
    State(app): State<Arc<App>>,
    Segment(id): Segment,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let id: Text = id.into();
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Remove, id) };
    // What cannot be read of a stack or an evacuation is deleted as that of a placement is.
    let is_unreadable = || app.placer.with_any(app.clock.now(), |book| book.unreadable(&id).is_some());
    // No placement has such an id.
    if id.contains('/') && !is_unreadable() {
        return Reply::from(Refusal::Unknown(id)).into_response();
    }
    let noted = {
        let (audit, id, subject) = (app.placer.audit().clone(), id.clone(), subject.clone());
        move |answer: &Result<Placement, Refusal>| {
            let outcome = match answer {
                Ok(answer) => answer.state,
                Err(Refusal::Unsettled(_)) => UNSETTLED,
                Err(_) => "refused",
            };
            audit.put(&AuditLine::new(Action::Remove, &subject, outcome).about(&id, answer));
        }
    };
    if let Err(refusal) = app.placer.permit_removal(&subject, &id, app.clock).await {
        let answer = Err(refusal);
        noted(&answer);
        return Reply::from(answer).into_response();
    }
    let streaming = wants_progress(&request);
    let query = request.uri().query();
    let seconds = query.and_then(|query| query.strip_prefix("time=")).and_then(|text| text.parse().ok());
    let starter = app.starter.clone();
    match (query, seconds.filter(|seconds| *seconds <= GRACE_MAX)) {
        (None, grace) | (Some(_), grace @ Some(_)) => {
            let grace = grace.map(Duration::from_secs);
            let releasing = move |progress: ProgressSender| async move {
                Reply::from(starter.release(&id, grace, progress, noted).await)
            };
            answered(&app, streaming, releasing).await
        }
        (Some("force=true"), _) => {
            let forgetting = move |_| async move {
                let answer = starter.forget(&id).await;
                noted(&answer);
                Reply::from(answer)
            };
            answered(&app, false, forgetting).await
        }
        (Some(other), None) => {
            let (problem, expected) =
                (format!("found {other:?}"), format!("nothing, force=true, or time= and 0 to {GRACE_MAX} seconds"));
            let reply = Reply::error(StatusCode::BAD_REQUEST, &problem, "query", &expected);
            app.note_invalid(Some(&subject), Action::Remove, id, &reply);
            reply.into_response()
        }
    }
}

async fn pause(app: State<Arc<App>>, name: Segment, caller: Extension<Caller>, request: Request) -> Response {
    stacks::command(app.0, name.0, caller.0, stacks::wants_to_wait(&request), Command::Pause).await
}

async fn resume(app: State<Arc<App>>, name: Segment, caller: Extension<Caller>, request: Request) -> Response {
    stacks::command(app.0, name.0, caller.0, stacks::wants_to_wait(&request), Command::Resume).await
}

async fn confirm(app: State<Arc<App>>, name: Segment, caller: Extension<Caller>, request: Request) -> Response {
    stacks::command(app.0, name.0, caller.0, stacks::wants_to_wait(&request), Command::Confirm).await
}

async fn hosts(State(app): State<Arc<App>>) -> Reply {
    guarded(&app, || app.placer.hosts(app.clock.now()).map(|hosts| Hosts { hosts }).into())
}

#[derive(Serialize)]
struct Hosts<T> {
    hosts: Vec<T>,
}

async fn host_summaries(State(app): State<Arc<App>>) -> Reply {
    guarded(&app, || app.placer.host_summaries(app.clock.now()).map(|hosts| Hosts { hosts }).into())
}

async fn host_details(State(app): State<Arc<App>>, Segment(host): Segment) -> Reply {
    guarded(&app, || app.placer.host_details(&host, app.clock.now()).into())
}

async fn explain(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, request: Request) -> Reply {
    match json(&app, request).await {
        Ok(value) => guarded(&app, || {
            let explained = PlacementRequest::parse_new(&value).map_err(Refusal::from).and_then(|mut request| {
                request.subject = caller.0.unwrap_or_default();
                app.placer.permit(&request)?;
                app.placer.explain_request(&request, app.clock.now())
            });
            explained.into()
        }),
        Err(reply) => reply,
    }
}

async fn what_if(State(app): State<Arc<App>>, request: Request) -> Reply {
    planned(app, request, |app, value| app.placer.what_if(value, app.clock.now()).into()).await
}

async fn rebalance(State(app): State<Arc<App>>, request: Request) -> Reply {
    planned(app, request, |app, value| app.placer.rebalance(value, app.clock.now()).into()).await
}

/// Has what is on a host that is gone for good started elsewhere, or says what would be; also of one that is to be drained.
async fn evacuate(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, request: Request) -> Response {
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Replace, Text::default()) };
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => return reply.into_response(),
    };
    let asked = || -> Result<(Text, bool, bool), Refusal> {
        let fields = Fields::of(&value)?;
        fields.only(&[&["drain", "dry_run", "host"]])?;
        let host = fields.text("host")?.ok_or_else(|| Invalid::new("host", "missing", "the name or uuid of a host"))?;
        let (dry_run, drain) = (fields.truth("dry_run")?, fields.truth("drain")?);
        if drain && !dry_run {
            return Err(Invalid::new("drain", "given without dry_run", "dry_run: `agent drain` has it done").into());
        }
        Ok((host, dry_run, drain))
    };
    let (host, dry_run, drain) = match asked() {
        Ok(asked) => asked,
        Err(refusal) => return Reply::from(refusal).into_response(),
    };
    // It is about placements of anyone.
    if let Err(refusal) = app.placer.permit_everything(&subject) {
        let reason = format!("evacuate {host}: {refusal}");
        app.placer.audit().put(&AuditLine { reason, ..AuditLine::new(Action::Replace, &subject, "refused") });
        return Reply::from(refusal).into_response();
    }
    let Ok(_turn) = PLANNING.acquire().await else { return bug().into_response() };
    if dry_run {
        let (app, now) = (app.clone(), app.clock.now());
        let plan = move |app: &App| {
            if drain { app.starter.plan_drain(&host, now) } else { app.placer.plan_evacuation(&host, now) }
        };
        let planning = tokio::task::spawn_blocking(move || guarded(&app, || evacuation_reply(plan(&app))));
        return planning.await.unwrap_or_else(|_| bug()).into_response();
    }
    let starter = app.starter.clone();
    // What was begun is not left half done when the client goes away.
    let evacuating = app.starter.spawn(async move { starter.evacuate(&host, &subject).await });
    evacuating.await.map_or_else(|_| bug(), evacuation_reply).into_response()
}

/// The answer to an evacuation: what is taken is the host, and no id.
fn evacuation_reply(done: Result<Evacuation, Refusal>) -> Reply {
    match done {
        Err(Refusal::Taken(why)) => Reply::error(StatusCode::CONFLICT, &why, "host", "a host that is gone for good"),
        done => done.into(),
    }
}

/// Answers what may take seconds, one at a time and beside everything else.
async fn planned(app: Arc<App>, request: Request, answer: fn(&App, &Value) -> Reply) -> Reply {
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => return reply,
    };
    let Ok(_turn) = PLANNING.acquire().await else { return bug() };
    let planning = tokio::task::spawn_blocking(move || guarded(&app, || answer(&app, &value)));
    planning.await.unwrap_or_else(|_| bug())
}

async fn event(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    if name == PRIORITIZE {
        let reply = match json(&app, request).await {
            Ok(value) => guarded(&app, || app.placer.event(&name, &value, app.clock.now()).into()),
            Err(reply) => reply,
        };
        return reply.into_response();
    }
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Event, Text::default()) };
    let noted = |refusal: Option<&Refusal>| {
        let (outcome, reason) = match refusal {
            None => ("done", name.clone()),
            Some(refusal) => ("refused", format!("{name}: {refusal}")),
        };
        app.placer.audit().put(&AuditLine { reason, ..AuditLine::new(Action::Event, &subject, outcome) });
    };
    if let Err(refusal) = app.placer.permit_event(&subject) {
        noted(Some(&refusal));
        return Reply::from(refusal).into_response();
    }
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => {
            app.note_invalid(Some(&subject), Action::Event, Text::default(), &reply);
            return reply.into_response();
        }
    };
    let reply = guarded(&app, || {
        let answer = app.placer.event(&name, &value, app.clock.now());
        noted(answer.as_ref().err());
        answer.into()
    });
    reply.into_response()
}

/// Where the scheduler's own token is: a command that is about to need it asks for that first, and is not refused.
async fn token(State(app): State<Arc<App>>) -> Reply {
    let file = app.gate.own.as_ref().ok().and_then(Option::as_ref).map(|file| file.display().to_string());
    Reply::json(StatusCode::OK, &serde_json::json!({ "token_file": file }))
}

async fn openapi() -> Reply {
    Reply { status: StatusCode::OK, retry: None, body: Bytes::from_static(OPENAPI.as_bytes()) }
}

/// Answers, also when answering panics.
fn guarded(app: &App, answer: impl FnOnce() -> Reply) -> Reply {
    std::panic::catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| panicked(app))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let openapi: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = openapi["paths"].as_object().unwrap();
        // Each event asks for something else, so it is described by itself.
        let events = ["prioritize", "reserve", "release"].map(|event| format!("/v1/events/scheduler.{event}"));
        let described_as = |path: &str| match path {
            "/v1/events/{name}" => events.to_vec(),
            path => vec![path.to_owned()],
        };
        let all: Vec<_> = ROUTES
            .iter()
            .flat_map(|(path, _, methods)| described_as(path).into_iter().map(move |path| (path, methods)))
            .collect();
        assert_eq!(paths.len(), all.len());
        for (path, methods) in all {
            let described = paths[&path].as_object().unwrap().keys().filter(|key| *key != "parameters");
            let mut described: Vec<_> = described.cloned().collect();
            described.sort();
            let mut methods = methods.to_vec();
            methods.sort_unstable();
            assert_eq!(described, methods, "{path}");
        }
    }
}
