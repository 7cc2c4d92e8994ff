//! `POST /v1/placements`: the answer at once, or with progress before it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::{Text, Value};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::api::app::{App, panicked};
use crate::api::body::json;
use crate::api::caller::Caller;
use crate::api::metrics::Outcome;
use crate::api::reply::{Reply, bug};
use crate::audit::UNSETTLED;
use crate::audit::line::{Action, AuditLine, AuditedImage, digest_in};
use crate::place::answer::Placement;
use crate::place::invalid::Invalid;
use crate::place::promise::{PATIENCE, undecided};
use crate::place::refusal::Refusal;
use crate::place::request::Request as PlacementRequest;
use crate::start::credentials::{REQUEST_HEADER, RequestCredentials};
use crate::start::progress::{PROGRESS_MAX, ProgressSender};

pub(super) async fn place(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let streaming = wants_progress(&request);
    let brought = match brought(&request) {
        Ok(brought) => brought,
        Err(invalid) => return malformed(&app, &caller, None, Refusal::from(invalid).into()),
    };
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => return malformed(&app, &caller, None, reply),
    };
    let mut request = match PlacementRequest::parse_new(&value).and_then(PlacementRequest::without_files) {
        Ok(request) => request,
        Err(invalid) => return malformed(&app, &caller, Some(&value), Refusal::from(invalid).into()),
    };
    let id: Text = request.id.clone().unwrap_or_else(|| app.new_id().into());
    if caller.0.is_none() && !request.dry_run {
        return app.unauthorized(Action::Place, id);
    }
    request.subject = caller.0.unwrap_or_default();
    if let Err(refusal) = app.placer.permit(&request) {
        return counted(&app, &request, &id, Err(refusal)).into_response();
    }
    if !request.start {
        return answered(&app.clone(), false, |_| reserved(app, request, id)).await;
    }
    app.starter.complete(&mut request, &brought).await;
    let starting = {
        let app = app.clone();
        move |progress: ProgressSender| async move {
            let answer = app.starter.place(&request, &id, brought, progress).await;
            counted(&app, &request, &id, answer)
        }
    };
    answered(&app, streaming, starting).await
}

/// The credentials for registries that come with a request.
pub(super) fn brought(request: &Request) -> Result<RequestCredentials, Invalid> {
    let Some(header) = request.headers().get(REQUEST_HEADER) else { return Ok(RequestCredentials::default()) };
    RequestCredentials::parse(header.as_bytes()).map_err(|problem| {
        Invalid::new(REQUEST_HEADER, problem, "base64 of a JSON map from registries to username and password")
    })
}

/// The response to what is no request for a placement; notes it, unless it says that it is a dry run.
fn malformed(app: &App, caller: &Caller, value: Option<&Value>, reply: Reply) -> Response {
    app.metrics.count(Outcome::Invalid);
    let asked = value.and_then(Value::as_map);
    if asked.and_then(|asked| asked.get("dry_run")).is_none_or(|value| value.as_bool() != Some(true)) {
        let id = asked.and_then(|asked| asked.text("id")).cloned().unwrap_or_default();
        app.note_invalid(caller.0.as_ref(), Action::Place, id, &reply);
    }
    reply.into_response()
}

/// Promises room. Clients do not wait for longer than etcd usually takes; what it promises after that is noted, too.
async fn reserved(app: Arc<App>, request: PlacementRequest, id: Text) -> Reply {
    let mut promising = {
        let (placer, request, id, clock) = (app.placer.clone(), request.clone(), id.clone(), app.clock);
        Box::pin(async move { placer.promise(&request, &id, clock).await })
    };
    if let Ok(answer) = timeout(PATIENCE, &mut promising).await {
        return counted(&app, &request, &id, answer);
    }
    let reply = counted(&app, &request, &id, Err(undecided()));
    tokio::spawn(async move { note(&app, &request, &id, &promising.await) });
    reply
}

/// Whether the client wants progress.
pub(super) fn wants_progress(request: &Request) -> bool {
    request.headers().get(header::ACCEPT).is_some_and(|accept| accept == PROGRESS_TYPE)
}

/// The answer to what changes something, at once or with progress before it. The work goes on when the client goes away,
/// so it also notes its own result.
pub(super) async fn answered<W: Future<Output = Reply> + Send + 'static>(
    app: &App,
    streaming: bool,
    work: impl FnOnce(ProgressSender) -> W,
) -> Response {
    if !streaming {
        let working = app.starter.spawn(work(None));
        return working.await.unwrap_or_else(|_| panicked(app)).into_response();
    }
    let (sender, receiver) = mpsc::channel(PROGRESS_MAX);
    progress_lines(receiver, app.starter.spawn(work(Some(sender))))
}

/// The media type of progress: a JSON object a line, the answer last.
const PROGRESS_TYPE: &str = "application/x-ndjson";

/// Lines of progress, then one with the status and the answer.
pub(super) fn progress_lines<P: Serialize + Send + 'static>(
    progress: mpsc::Receiver<P>,
    end: JoinHandle<Reply>,
) -> Response {
    let lines = futures_util::stream::unfold(Some((progress, end)), |state| async move {
        let (mut receiver, mut end) = state?;
        // What was begun may go on, and report progress, when the answer is there.
        let reply = tokio::select! {
            biased;
            Some(progress) = receiver.recv() => Err(progress),
            reply = &mut end => Ok(reply.unwrap_or_else(|_| bug())),
        };
        let (line, next) = match reply {
            Err(progress) => (serde_json::json!({ "progress": progress }), Some((receiver, end))),
            Ok(reply) => {
                let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
                (serde_json::json!({ "status": reply.status.as_u16(), "answer": answer }), None)
            }
        };
        Some((Ok::<_, std::convert::Infallible>(format!("{line}\n")), next))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(PROGRESS_TYPE));
    response
}

/// Notes the answer to a placement request, unless nothing was to be changed.
fn note(app: &App, request: &PlacementRequest, id: &Text, answer: &Result<Placement, Refusal>) {
    if request.dry_run {
        return;
    }
    let outcome = match answer {
        Err(Refusal::Unsettled(_)) => UNSETTLED,
        answer => Outcome::of(answer).word(),
    };
    let image = |name: &Text| AuditedImage { name: name.clone(), digest: digest_in(name) };
    let images = request.members.iter().filter_map(|member| member.image.as_ref()).map(image);
    let line = AuditLine { images: images.collect(), ..AuditLine::new(Action::Place, &request.subject, outcome) };
    app.placer.audit().put(&line.about(id, answer));
}

/// Counts and notes the answer to a placement request, and puts it into words.
fn counted(app: &App, request: &PlacementRequest, id: &Text, answer: Result<Placement, Refusal>) -> Reply {
    app.metrics.count(Outcome::of(&answer));
    note(app, request, id, &answer);
    match answer {
        Ok(answer) => {
            let status = match &answer {
                Placement { state: "failed", .. } => StatusCode::BAD_GATEWAY,
                Placement { state: "unplaceable", .. } => StatusCode::CONFLICT,
                Placement { dry_run: true, .. } | Placement { repeated: true, .. } => StatusCode::OK,
                _ => StatusCode::CREATED,
            };
            Reply::json(status, &answer)
        }
        Err(refusal) => refusal.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::Snapshot;
    use prometheus_client::registry::Registry;
    use source::Store;
    use tokio::sync::oneshot;

    use crate::{Options, Server};

    use super::*;

    #[tokio::test]
    async fn no_client_ends_by_going_away_what_it_began() {
        let state = tempfile::tempdir().unwrap();
        let options = Options { state: Some(state.path().into()), ..Options::default() };
        let snapshots = Arc::new(Store::new(Snapshot::default()));
        let server = Server::new(&options, snapshots, &mut Registry::default()).unwrap();
        let (begin, waiting) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let working = |_| async move {
            waiting.await.unwrap();
            end.send(()).unwrap();
            bug()
        };
        let answering = answered(&server.app, false, working);
        assert!(timeout(Duration::from_millis(1), answering).await.is_err(), "it waits");
        begin.send(()).unwrap();
        ended.await.unwrap();
    }
}
