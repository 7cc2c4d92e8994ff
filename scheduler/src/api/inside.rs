//! `POST /v1/logs`, `/v1/exec`, `/v1/inspect`, `/v1/restart`, `/v1/stop` and `/v1/images/prune`: what is done by hand with containers that were
//! started, and with images.
//!
//! Logs and output are lines of progress, as those of a start are, with the answer last.

use std::sync::{Arc, LazyLock};

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use model::{Text, Value};
use process::quota::{Places, Quota};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::api::app::App;
use crate::api::body::json;
use crate::api::caller::Caller;
use crate::api::placing::{answered, progress_lines, wants_progress};
use crate::api::reply::{Reply, bug};
use crate::audit::line::{Action, AuditLine};
use crate::place::fields::Fields;
use crate::place::invalid::Invalid;
use crate::place::refusal::Refusal;
use crate::start::inside::{DescribedTarget, LINES_MAX, Output, Target};
use crate::start::logs::LOGS_MAX;
use crate::start::progress::ProgressSender;
use crate::start::prune::PrunedHost;
use crate::subject::Subject;

/// Most requests at once that read logs or run a command: each has connections to engines for as long as it lasts, so that one subject
/// does not have the places of all others.
const INSIDE: Places = Places { per_client: 16, in_all: 128 };

/// The subjects that have such requests.
static PLACES: LazyLock<Quota<Subject>> = LazyLock::new(|| Quota::new(INSIDE));

/// Requests at once that stop or restart containers of one placement: a second one would only repeat the first.
const BY_HAND: Places = Places { per_client: 1, in_all: 4096 };

/// The placements that have such a request.
static AT_WORK: LazyLock<Quota<Text>> = LazyLock::new(|| Quota::new(BY_HAND));

/// Most last lines of a log.
const TAIL_MAX: i64 = 1_000_000;

/// Most images of a repository that are to stay.
const KEEP_MAX: i64 = 1000;

/// What a request is about.
struct Asked {
    of: Text,
    tail: Option<u32>,
    follow: bool,
    command: Vec<String>,
}

#[derive(Serialize)]
struct Ran {
    host: Text,
    container: Text,
    /// `null` if its engine does not say.
    exit_code: Option<i64>,
}

#[derive(Serialize)]
struct Done {
    containers: Vec<Text>,
}

impl Asked {
    fn parse(value: &Value, keys: &[&str]) -> Result<Self, Invalid> {
        let fields = Fields::of(value)?;
        fields.only(&[&["of"], keys])?;
        let expected = "the id of a placement, STACK/SERVICE[/INDEX][/SIDEKICK], or the name of a container";
        let of = fields.text("of")?.ok_or_else(|| Invalid::new("of", "missing", expected))?;
        let command: Vec<String> = fields.text_list("command")?.iter().map(ToString::to_string).collect();
        if keys.contains(&"command") && command.is_empty() {
            return Err(Invalid::new("command", "missing", "a list of words, the program first"));
        }
        let tail = fields.int("tail", 0, TAIL_MAX)?.and_then(|lines| u32::try_from(lines).ok());
        Ok(Self { of, tail, follow: fields.truth("follow")?, command })
    }
}

/// Reads a request and finds its containers; otherwise the response, which is noted.
async fn found(
    app: &Arc<App>,
    (action, keys): (Action, &[&str]),
    caller: Caller,
    request: Request,
) -> Result<(Asked, Vec<Target>, Subject), Response> {
    let Some(subject) = caller.0 else { return Err(app.unauthorized(action, Text::default())) };
    let noted = |of: Text, reply: Reply| {
        app.note_invalid(Some(&subject), action, of, &reply);
        reply.into_response()
    };
    let value = json(app, request).await.map_err(|reply| noted(Text::default(), reply))?;
    let asked = Asked::parse(&value, keys).map_err(|wrong| noted(Text::default(), Refusal::from(wrong).into()))?;
    let targets = app.starter.targets(&asked.of).map_err(|refusal| noted(asked.of.clone(), refusal.into()))?;
    for placement in targets.chunk_by(|one, next| one.id == next.id) {
        let what = placement[0].asked.clone();
        if let Err(refusal) = app.placer.permit_inside(&subject, what, action == Action::Exec) {
            note(app, (action, &subject, "refused"), &asked.of, placement, refusal.to_string());
            return Err(Reply::from(refusal).into_response());
        }
    }
    Ok((asked, targets, subject))
}

fn note(app: &App, (action, by, outcome): (Action, &Subject, &str), of: &Text, targets: &[Target], reason: String) {
    let mut hosts: Vec<Text> = targets.iter().map(|target| target.host_name.clone()).collect();
    hosts.dedup();
    let line = AuditLine::new(action, by, outcome);
    app.placer.audit().put(&AuditLine { request: of.clone(), hosts, reason, ..line });
}

/// The response to a request about more containers than are asked for at once.
fn too_many(of: &str, containers: usize) -> Response {
    let expected = format!("at most {LOGS_MAX}: name a unit or a container");
    Reply::error(StatusCode::BAD_REQUEST, &format!("{of} is {containers} containers"), "of", &expected).into_response()
}

/// The response while too many read already, which is noted.
fn busy(app: &App, action: Action, subject: &Subject, of: &Text) -> Response {
    let Places { per_client, in_all } = INSIDE;
    let expected = format!("at most {per_client} that read logs or run commands at once, and {in_all} of all subjects");
    let problem = format!("too many requests of {subject} or of all read logs or run commands");
    note(app, (action, subject, "refused"), of, &[], problem.clone());
    Reply::error(StatusCode::SERVICE_UNAVAILABLE, &problem, "", &expected).into_response()
}

/// The response that has output before its answer. Without a client that reads it line by line, only the answer is sent.
async fn with_output<W: Future<Output = Reply> + Send + 'static>(
    app: &App,
    streaming: bool,
    work: impl FnOnce(mpsc::Sender<Output>) -> W,
) -> Response {
    let (sender, mut receiver) = mpsc::channel(LINES_MAX);
    let end = app.starter.spawn(work(sender));
    if streaming {
        return progress_lines(receiver, end);
    }
    while receiver.recv().await.is_some() {}
    end.await.unwrap_or_else(|_| bug()).into_response()
}

/// What containers write.
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let streaming = wants_progress(&request);
    let (asked, targets, subject) = match found(&app, (Action::Logs, &["follow", "tail"]), caller, request).await {
        Ok(found) => found,
        Err(response) => return response,
    };
    if targets.len() > LOGS_MAX {
        return too_many(&asked.of, targets.len());
    }
    let Some(place) = PLACES.take_for(subject.clone()) else {
        return busy(&app, Action::Logs, &subject, &asked.of);
    };
    note(&app, (Action::Logs, &subject, "read"), &asked.of, &targets, String::new());
    let own = app.clone();
    with_output(&app, streaming, move |lines| async move {
        let found = || own.starter.targets(&asked.of).unwrap_or_default();
        let may_read = |target: &Target| own.placer.permit_inside(&subject, target.asked.clone(), false).is_ok();
        let follow = asked.follow.then_some((found, may_read));
        let read = own.starter.read_logs(targets, asked.tail, follow, &lines).await;
        drop((place, lines));
        let status = if read.failed.len() == read.containers { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
        Reply::json(status, &read)
    })
    .await
}

/// A command in one container: the first one of the first unit, unless the request names another.
pub(super) async fn exec(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let streaming = wants_progress(&request);
    let (asked, targets, subject) = match found(&app, (Action::Exec, &["command"]), caller, request).await {
        Ok(found) => found,
        Err(response) => return response,
    };
    let Some(target) = targets.into_iter().next() else { return bug().into_response() };
    let Some(place) = PLACES.take_for(subject.clone()) else {
        return busy(&app, Action::Exec, &subject, &asked.of);
    };
    // Its arguments may be secrets.
    let what = format!("{} with {} arguments in {}", asked.command[0], asked.command.len() - 1, target.name);
    note(&app, (Action::Exec, &subject, "begun"), &asked.of, std::slice::from_ref(&target), what.clone());
    let own = app.clone();
    with_output(&app, streaming, move |lines| async move {
        let ran = own.starter.run_command(&target, &asked.command, &lines).await;
        drop((place, lines));
        let (outcome, reason) = match &ran {
            Ok(Some(code)) => ("ended", format!("{what}: exit code {code}")),
            Ok(None) => ("ended", what),
            Err(error) => ("failed", format!("{what}: {error}")),
        };
        note(&own, (Action::Exec, &subject, outcome), &asked.of, std::slice::from_ref(&target), reason);
        match ran {
            Ok(exit_code) => {
                let ran = Ran { host: target.host_name, container: target.name, exit_code };
                Reply::json(StatusCode::OK, &ran)
            }
            Err(error) => {
                let problem = format!("{} on {}: {error}", target.name, target.host_name);
                Reply::error(StatusCode::BAD_GATEWAY, &problem, "", "an engine that runs it")
            }
        }
    })
    .await
}

#[derive(Serialize)]
struct Described {
    containers: Vec<DescribedTarget>,
}

/// What engines say of containers.
pub(super) async fn inspect(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let (asked, targets, subject) = match found(&app, (Action::Inspect, &[]), caller, request).await {
        Ok(found) => found,
        Err(response) => return response,
    };
    if targets.len() > LOGS_MAX {
        return too_many(&asked.of, targets.len());
    }
    note(&app, (Action::Inspect, &subject, "read"), &asked.of, &targets, String::new());
    Reply::json(StatusCode::OK, &Described { containers: app.starter.describe_targets(targets).await }).into_response()
}

/// Containers are stopped and started again.
pub(super) async fn restart(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    by_hand(app, (Action::Restart, "restarted"), caller, request).await
}

/// Containers are stopped and kept.
pub(super) async fn stop(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    by_hand(app, (Action::Stop, "stopped"), caller, request).await
}

async fn by_hand(app: Arc<App>, (action, word): (Action, &'static str), caller: Caller, request: Request) -> Response {
    let streaming = wants_progress(&request);
    let (asked, targets, subject) = match found(&app, (action, &[]), caller, request).await {
        Ok(found) => found,
        Err(response) => return response,
    };
    let mut at_work = Vec::new();
    for placement in targets.chunk_by(|one, next| one.id == next.id) {
        let id = &placement[0].id;
        let Some(place) = AT_WORK.take_for(id.clone()) else {
            let problem = format!("another request stops or restarts {id}");
            note(&app, (action, &subject, "refused"), &asked.of, &targets, problem.clone());
            let reply = Reply::error(StatusCode::CONFLICT, &problem, "of", "to be asked again when that is over");
            return reply.into_response();
        };
        at_work.push(place);
    }
    let own = app.clone();
    answered(&app, streaming, move |progress: ProgressSender| async move {
        let _at_work = at_work;
        let done = match action {
            Action::Stop => own.starter.stop_targets(&targets, &progress).await,
            _ => own.starter.restart_targets(&targets, &progress).await,
        };
        let (outcome, reason) = match &done {
            Ok(()) => (word, String::new()),
            Err(refusal) => ("failed", refusal.to_string()),
        };
        note(&own, (action, &subject, outcome), &asked.of, &targets, reason);
        done.map(|()| Done { containers: targets.iter().map(|target| target.name.clone()).collect() }).into()
    })
    .await
}

#[derive(Serialize)]
struct Pruned {
    hosts: Vec<PrunedHost>,
}

/// Removes old images from hosts, or says which: `{"keep_last": 2, "dry_run": true, "host": "win-1"}`.
pub(super) async fn prune_images(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let Some(subject) = caller.0 else { return app.unauthorized(Action::Prune, Text::default()) };
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => return reply.into_response(),
    };
    let asked = || -> Result<(usize, bool, Option<Text>), Invalid> {
        let fields = Fields::of(&value)?;
        fields.only(&[&["dry_run", "host", "keep_last"]])?;
        let keep = fields.int("keep_last", 1, KEEP_MAX)?.and_then(|count| usize::try_from(count).ok());
        let keep = keep.ok_or_else(|| Invalid::new("keep_last", "missing", "how many of each repository stay"))?;
        Ok((keep, fields.truth("dry_run")?, fields.text("host")?))
    };
    let (keep, dry_run, host) = match asked() {
        Ok(asked) => asked,
        Err(wrong) => {
            let reply = Reply::from(Refusal::from(wrong));
            app.note_invalid(Some(&subject), Action::Prune, Text::default(), &reply);
            return reply.into_response();
        }
    };
    // It is about images of anyone.
    if let Err(refusal) = app.placer.permit_everything(&subject) {
        note(&app, (Action::Prune, &subject, "refused"), &Text::default(), &[], refusal.to_string());
        return Reply::from(refusal).into_response();
    }
    let own = app.clone();
    // What was begun is noted, though its client goes away.
    let pruning = app.starter.spawn(async move {
        let pruned = own.starter.prune_images((keep, dry_run), host.as_deref()).await;
        if !dry_run {
            let removed = |host: &PrunedHost| host.images.iter().filter(|image| image.error.is_none()).count();
            let (outcome, reason) = match &pruned {
                Ok(hosts) => ("pruned", format!("{} images", hosts.iter().map(removed).sum::<usize>())),
                Err(refusal) => ("failed", refusal.to_string()),
            };
            note(&own, (Action::Prune, &subject, outcome), &host.unwrap_or_default(), &[], reason);
        }
        Reply::from(pruned.map(|hosts| Pruned { hosts }))
    });
    pruning.await.unwrap_or_else(|_| bug()).into_response()
}
