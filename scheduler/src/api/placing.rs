//! `POST /v1/placements`: the answer at once, or with progress before it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use model::Text;
use tokio::sync::mpsc;

use crate::api::body::json;
use crate::api::caller::Caller;
use crate::api::metrics::Outcome;
use crate::api::reply::{Reply, bug};
use crate::api::routes::{App, panicked};
use crate::audit::{Action, AuditLine, AuditedImage, digest_in};
use crate::place::Refusal;
use crate::place::answer::Placement;
use crate::place::invalid::Invalid;
use crate::place::request::Request as PlacementRequest;
use crate::start::credentials::{REQUEST_HEADER, RequestCredentials};
use crate::start::progress::{PROGRESS_MAX, Progress, ProgressSender};

pub(super) async fn place(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let brought = match request.headers().get(REQUEST_HEADER).map(|header| RequestCredentials::parse(header.as_bytes()))
    {
        None => RequestCredentials::default(),
        Some(Ok(brought)) => brought,
        Some(Err(problem)) => {
            app.metrics.count(Outcome::Invalid);
            let expected = "base64 of a JSON map from registries to username and password";
            return Reply::from(Refusal::from(Invalid::new(REQUEST_HEADER, problem, expected))).into_response();
        }
    };
    let streaming = wants_progress(&request);
    let value = match json(&app, request).await {
        Ok(value) => value,
        Err(reply) => {
            app.metrics.count(Outcome::Invalid);
            return reply.into_response();
        }
    };
    let mut request = match PlacementRequest::parse(&value) {
        Ok(request) => request,
        Err(invalid) => {
            app.metrics.count(Outcome::Invalid);
            return Reply::from(Refusal::from(invalid)).into_response();
        }
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
        let promising = AssertUnwindSafe(app.placer.promise_soon(&request, &id, app.clock));
        let Ok(answer) = promising.catch_unwind().await else { return panicked(&app).into_response() };
        return counted(&app, &request, &id, answer).into_response();
    }
    app.starter.complete(&mut request, &brought).await;
    let starting = move |progress: ProgressSender| async move {
        let answer = app.starter.place(&request, &id, brought, progress).await;
        counted(&app, &request, &id, answer)
    };
    answered(streaming, starting).await
}

/// Whether the client wants progress.
pub(super) fn wants_progress(request: &Request) -> bool {
    request.headers().get(header::ACCEPT).is_some_and(|accept| accept == PROGRESS_TYPE)
}

/// The answer to what takes long, at once or with progress before it. It goes on when the client goes away.
pub(super) async fn answered<W: Future<Output = Reply> + Send + 'static>(
    streaming: bool,
    work: impl FnOnce(ProgressSender) -> W,
) -> Response {
    if !streaming {
        return work(None).await.into_response();
    }
    let (sender, receiver) = mpsc::channel(PROGRESS_MAX);
    let (ended, end) = tokio::sync::oneshot::channel();
    let working = work(Some(sender));
    tokio::spawn(async move {
        // A client that went away asks again with the same id.
        let _ = ended.send(working.await);
    });
    progress_lines(receiver, end)
}

/// The media type of progress: a JSON object a line, the answer last.
const PROGRESS_TYPE: &str = "application/x-ndjson";

/// Lines of progress, then one with the status and the answer.
fn progress_lines(progress: mpsc::Receiver<Progress>, end: tokio::sync::oneshot::Receiver<Reply>) -> Response {
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

/// Counts the answer to a placement request, notes it unless nothing was to be changed, and puts it into words.
fn counted(app: &App, request: &PlacementRequest, id: &Text, answer: Result<Placement, Refusal>) -> Reply {
    let outcome = Outcome::of(&answer);
    app.metrics.count(outcome);
    if !request.dry_run {
        let image = |name: &Text| AuditedImage { name: name.clone(), digest: digest_in(name) };
        let images = request.members.iter().filter_map(|member| member.image.as_ref()).map(image);
        let line =
            AuditLine { images: images.collect(), ..AuditLine::new(Action::Place, &request.subject, outcome.word()) };
        app.placer.audit().put(&line.about(id, &answer));
    }
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
