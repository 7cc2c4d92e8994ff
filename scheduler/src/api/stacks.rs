//! `/v1/stacks`: what should run, how far that is, and what would follow from something else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use model::Text;
use serde::Serialize;
use serde_json::Value;
use stacks::{Difference, differences};
use tokio::time::{Instant, sleep};

use crate::api::app::App;
use crate::api::body::json;
use crate::api::caller::Caller;
use crate::api::placing::{answered, brought, wants_progress};
use crate::api::reply::{Reply, bug};
use crate::api::routes::{PLANNING, Segment};
use crate::audit::line::{Action, AuditLine};
use crate::ledger::stack::stack_id;
use crate::place::fields::Fields;
use crate::place::invalid::Invalid;
use crate::place::refusal::Refusal;
use crate::place::request::limits::{COUNT_MAX, LIST_MAX};
use crate::secret::with_sealed_files;
use crate::stack::store::Command;
use crate::stack::view::{RevisionView, StackView};
use crate::stack::wish::{Wish, stack_name};
use crate::start::log_end::hide_logs;
use crate::start::progress::{Progress, ProgressSender, send_progress};
use crate::subject::Subject;

/// Pause between two looks at a stack that a client waits for.
const LOOK: Duration = Duration::from_millis(200);

/// After this time the progress is sent again although nothing has changed: clients take a longer silence for the end of the scheduler.
const TELL_AGAIN: Duration = Duration::from_mins(1);

#[derive(Serialize)]
struct Stacks {
    stacks: Vec<Value>,
    /// Why others may have changed some of it since.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

#[derive(Serialize)]
struct History {
    revisions: Vec<RevisionView>,
}

#[derive(Serialize)]
struct Differences {
    differences: Vec<Difference>,
}

/// What is shown of a stack to who may read its logs, and without what these say to everybody else.
fn shown(app: &App, caller: &Caller, stack: &str, what: &impl Serialize) -> Value {
    let mut shown = serde_json::to_value(what).unwrap_or_default();
    if caller.0.as_ref().is_none_or(|subject| app.placer.permit_stack(stack, subject).is_err()) {
        hide_logs(&mut shown);
    }
    shown
}

pub(super) async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Reply {
    let names = app.placer.stack_names(app.clock.now());
    let stacks = names.map(|names| {
        // One that is removed meanwhile is none.
        let view = |name: &Text| Some(shown(&app, &caller, name, &app.starter.view_stack(name).ok()?));
        Stacks { stacks: names.iter().filter_map(view).collect(), warning: app.placer.outdated() }
    });
    stacks.into()
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
) -> Reply {
    let found = stack_name(&name).map_err(Refusal::from).and_then(|name| app.starter.view_stack(&name));
    found.map(|view| shown(&app, &caller, &name, &view)).into()
}

#[derive(Serialize)]
struct Answers {
    answers: BTreeMap<Text, Text>,
}

/// The answers with which a stack was brought up from a catalog, for those that may change it.
pub(super) async fn answers(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
) -> Response {
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Ask, stack_id(&name)) };
    let found = || -> Result<Answers, Refusal> {
        let name = stack_name(&name)?;
        app.placer.permit_stack(&name, &subject)?;
        Ok(Answers { answers: app.placer.stack(&name, app.clock.now())?.0.answers })
    };
    Reply::from(found()).into_response()
}

pub(super) async fn history(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
) -> Reply {
    let found = stack_name(&name).map_err(Refusal::from).and_then(|name| app.starter.history_of_stack(&name));
    found.map(|revisions| shown(&app, &caller, &name, &History { revisions })).into()
}

/// What differs between two revisions: `{"from": 1, "to": 2}`. It shows commands and labels, so the policy says who may ask.
pub(super) async fn diff(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Ask, stack_id(&name)) };
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => return reply.into_response(),
    };
    let found = || -> Result<Differences, Refusal> {
        let fields = Fields::of(&value)?;
        fields.only(&[&["from", "to"]])?;
        let stack = stack_name(&name)?;
        app.placer.permit_stack(&stack, &subject)?;
        let (record, _) = app.placer.stack(&stack, app.clock.now())?;
        let services = |key: &str| -> Result<_, Refusal> {
            let missing = || Invalid::new(key, "missing", "a revision");
            let number =
                fields.int(key, 1, i64::MAX)?.and_then(|number| u64::try_from(number).ok()).ok_or_else(missing)?;
            let known = record.history.iter().find(|revision| revision.revision == number);
            known.ok_or_else(|| Refusal::NoStack(format!("{name} with revision {number}").into()))
        };
        let differences = differences(&services("from")?.services, &services("to")?.services);
        Ok(Differences { differences })
    };
    Reply::from(found()).into_response()
}

/// What would change. A plan of a stack that is there shows what differs from it, so it needs a credential.
pub(super) async fn plan(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => return reply.into_response(),
    };
    let Ok(_turn) = PLANNING.acquire().await else { return bug().into_response() };
    if caller.0.is_none() && app.placer.stack(&name, app.clock.now()).is_ok() {
        return app.unauthorized(Action::Ask, stack_id(&name));
    }
    let planning = tokio::task::spawn_blocking(move || {
        let name = stack_name(&name)?;
        let wish = Wish::parse(&name, &with_sealed_files(app.starter.secrets(), &name, value)?)?;
        app.starter.preview_stack(&name, &wish, &caller.0.unwrap_or_default())
    });
    planning.await.map_or_else(|_| bug(), Reply::from).into_response()
}

pub(super) async fn put(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Stack, stack_id(&name)) };
    let streaming = wants_to_wait(&request);
    let brought = brought(&request).map_err(Refusal::from);
    let parsed = json(&app, request).await.and_then(|value| {
        let parse = || {
            let name = stack_name(&name)?;
            let value = with_sealed_files(app.starter.secrets(), &name, value)?;
            Ok::<_, Refusal>((brought?, Wish::parse(&name, &value)?))
        };
        parse().map_err(Reply::from)
    });
    let (brought, wish) = match parsed {
        Ok(parsed) => parsed,
        Err(reply) => return invalid(&app, &subject, &name, reply),
    };
    let name = Text::from(name);
    let own = app.clone();
    let (asked, by) = (name.clone(), subject.clone());
    let putting = async move {
        let revision = own.placer.put_stack(&asked, &wish, &by, own.clock).await?;
        own.starter.ask_for_stack(&asked, brought);
        Ok(revision)
    };
    act(app, (name, subject, "wanted"), streaming, putting).await
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let Some(subject) = caller.0.clone() else { return app.unauthorized(Action::Stack, stack_id(&name)) };
    let asked = match Removal::of(request.uri().query()) {
        Ok(asked) => asked,
        Err(wrong) => return invalid(&app, &subject, &name, Refusal::from(wrong).into()),
    };
    if !request.body().is_end_stream() {
        let problem =
            Invalid::new("", "found a body", "none: volumes=true, dry_run=true and detach=true are in the query");
        return invalid(&app, &subject, &name, Refusal::from(problem).into());
    }
    let text = Text::from(name.as_str());
    if asked.dry_run {
        let Ok(_turn) = PLANNING.acquire().await else { return bug().into_response() };
        return Reply::from(app.starter.preview_down(&text, asked.volumes, &subject).await).into_response();
    }
    if asked.volumes
        && let Err(refusal) = app.starter.permit_down(&text, &subject).await
    {
        let word = "removing";
        return act(app, (text, subject, word), false, async { Err(refusal) }).await;
    }
    let streaming = wants_progress(&request) && !asked.detach;
    command(app, name, caller, streaming, Command::Remove { volumes: asked.volumes }).await
}

/// How a stack is removed: the query of `DELETE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Removal {
    detach: bool,
    /// Also the volumes that were made for it.
    volumes: bool,
    /// Only shown.
    dry_run: bool,
}

impl Removal {
    fn of(query: Option<&str>) -> Result<Self, Invalid> {
        let mut asked = Self::default();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let wrong =
                || Invalid::new("query", format!("found {pair:?}"), "detach, volumes and dry_run, each true or false");
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            let value: bool = value.parse().map_err(|_| wrong())?;
            match key {
                "detach" => asked.detach = value,
                "volumes" => asked.volumes = value,
                "dry_run" => asked.dry_run = value,
                _ => return Err(wrong()),
            }
        }
        Ok(asked)
    }
}

/// Pauses, resumes or confirms a stack.
pub(super) async fn command(
    app: Arc<App>,
    name: String,
    caller: Caller,
    streaming: bool,
    command: Command,
) -> Response {
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Stack, stack_id(&name)) };
    let word = match command {
        Command::Pause => "paused",
        Command::Resume => "resumed",
        Command::Confirm => "confirmed",
        Command::Remove { volumes: false } => "removing",
        Command::Remove { volumes: true } => "removing with volumes",
    };
    let (own, name, by) = (app.clone(), Text::from(name), subject.clone());
    let asked = name.clone();
    let doing = async move { own.placer.command_stack(&asked, &command, &by, own.clock).await };
    act(app, (name, subject, word), streaming, doing).await
}

/// Another number of units: `{"web": 3}`.
pub(super) async fn scale(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let own = app.clone();
    changed(app, name, caller, request, "scaled", move |name, subject, value| async move {
        let fields = Fields::of(&value)?;
        if fields.map.is_empty() || fields.map.len() > LIST_MAX {
            return Err(Invalid::new("", "no service", "a map from services to numbers").into());
        }
        let mut scales = Vec::new();
        for (service, _) in fields.map {
            let scale = fields.int(service, 0, COUNT_MAX)?.and_then(|scale| u32::try_from(scale).ok());
            scales.push((service.clone(), scale.unwrap_or_default()));
        }
        own.placer.scale_stack(&name, &scales, &subject, own.clock).await
    })
    .await
}

/// An older revision: `{"to": 3}`, or the one before.
pub(super) async fn roll_back(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let own = app.clone();
    changed(app, name, caller, request, "rolled back", move |name, subject, value| async move {
        let fields = Fields::of(&value)?;
        fields.only(&[&["to"]])?;
        let to = fields.int("to", 1, i64::MAX)?.and_then(|to| u64::try_from(to).ok());
        own.placer.roll_back_stack(&name, to, &subject, own.clock).await
    })
    .await
}

/// Does what a body asks of a stack.
async fn changed<W: Future<Output = Result<u64, Refusal>> + Send + 'static>(
    app: Arc<App>,
    name: String,
    caller: Caller,
    request: Request,
    word: &'static str,
    change: impl FnOnce(Text, Subject, model::Value) -> W + Send + 'static,
) -> Response {
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Stack, stack_id(&name)) };
    let streaming = wants_to_wait(&request);
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => return invalid(&app, &subject, &name, reply),
    };
    let name = Text::from(name);
    let changing = change(name.clone(), subject.clone(), value);
    act(app, (name, subject, word), streaming, changing).await
}

/// The response to a request that was refused as it is written; notes it.
fn invalid(app: &App, subject: &Subject, name: &str, reply: Reply) -> Response {
    app.note_invalid(Some(subject), Action::Stack, stack_id(name), &reply);
    reply.into_response()
}

/// Does what changes a stack and notes it, then reports how far the stack is.
async fn act(
    app: Arc<App>,
    (name, subject, word): (Text, Subject, &'static str),
    streaming: bool,
    change: impl Future<Output = Result<u64, Refusal>> + Send + 'static,
) -> Response {
    let own = app.clone();
    let working = move |progress: ProgressSender| async move {
        let done = change.await;
        note(&own, &name, &subject, word, &done);
        match done {
            Ok(_) => {
                own.starter.touch_stack(&name);
                followed(&own, &name, progress).await
            }
            Err(refusal) => refusal.into(),
        }
    };
    answered(&app, streaming, working).await
}

/// Whether the client waits for what it asks for, and wants progress meanwhile.
pub(super) fn wants_to_wait(request: &Request) -> bool {
    wants_progress(request) && request.uri().query() != Some("detach=true")
}

/// Reports how far a stack is until nothing is to be waited for, if the client wants progress; answers with how it is.
async fn followed(app: &App, name: &Text, progress: ProgressSender) -> Reply {
    let mut told: BTreeMap<Text, String> = BTreeMap::new();
    let mut last: Option<StackView> = None;
    let mut again = Instant::now() + TELL_AGAIN;
    loop {
        if Instant::now() >= again {
            told.clear();
            again = Instant::now() + TELL_AGAIN;
        }
        let view = match app.starter.view_stack(name) {
            Ok(view) => view,
            Err(Refusal::NoStack(_)) => {
                let detail = last.map(|view| view.undone).unwrap_or_default();
                let gone = serde_json::json!({ "name": name, "state": "removed", "detail": detail });
                return Reply::json(StatusCode::OK, &gone);
            }
            Err(refusal) => return refusal.into(),
        };
        let is_heard = progress.as_ref().is_some_and(|progress| !progress.is_closed());
        if view.is_over || !is_heard {
            return Reply::json(StatusCode::OK, &view);
        }
        for service in &view.services {
            let waits = if service.waits.is_empty() { "as it should be" } else { &service.waits };
            let line = format!("{} of {} good, {waits}", service.good, service.wanted);
            tell(&mut told, &progress, &service.name, line);
        }
        if view.state != "updating" {
            tell(&mut told, &progress, name, format!("{} {}", view.state, view.detail));
        }
        last = Some(view);
        sleep(LOOK).await;
    }
}

fn tell(told: &mut BTreeMap<Text, String>, progress: &ProgressSender, about: &Text, line: String) {
    if told.get(about) != Some(&line) {
        send_progress(progress, Progress::of_service(about, line.clone()));
        told.insert(about.clone(), line);
    }
}

fn note(app: &App, name: &Text, subject: &Subject, done: &'static str, answer: &Result<u64, Refusal>) {
    let (outcome, reason) = match answer {
        Ok(revision) => (done, format!("revision {revision}")),
        Err(refusal) => ("refused", refusal.to_string()),
    };
    app.placer.audit().put(&AuditLine {
        request: stack_id(name),
        reason,
        ..AuditLine::new(Action::Stack, subject, outcome)
    });
}
