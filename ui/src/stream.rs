//! The stream that keeps an open page up to date: server-sent events with what its view shows differently.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, sleep_until, timeout};

use crate::page::Shown;
use crate::query::Query;
use crate::server::{App, VIEWERS_MAX};

/// Shortest time between two messages to one page: a person sees no more, and changes in between become one message.
const PAUSE: Duration = Duration::from_millis(250);

/// After which time without a change the view is looked at all the same: it also shows what no snapshot says, such as
/// promises, and a browser has to notice that a connection is dead.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// The stream of a view; `at` is the address that the browser shows.
pub(crate) async fn stream(State(app): State<Arc<App>>, request: Request) -> Response {
    let asked = Query::parse("", request.uri().query().unwrap_or_default());
    let (path, query) = asked.get("at").split_once('?').unwrap_or_else(|| (asked.get("at"), ""));
    let Some(path) = path.strip_prefix("/ui/") else {
        return (StatusCode::BAD_REQUEST, "at: expected an address below /ui/\n").into_response();
    };
    let query = Query::parse(path, query);
    let Ok(permit) = app.viewers.clone().try_acquire_owned() else {
        let text = format!("{VIEWERS_MAX} pages are open, which is the most: close one\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let watcher = app.worlds.watch();
    let viewer = (app, query, Shown::default(), watcher, permit, None);
    let events =
        futures_util::stream::unfold(viewer, |(app, query, mut shown, mut watcher, permit, last)| async move {
            if let Some(last) = last {
                let stop = app.stop.clone();
                stop.run_until_cancelled(async {
                    let _ = timeout(HEARTBEAT, watcher.changed()).await;
                    sleep_until(last + PAUSE).await;
                })
                .await?;
            }
            watcher.seen();
            let page = app.view(&app.context().await, &query).await;
            let event = match shown.next(&page) {
                Some(pieces) => Bytes::from(format!("data: {pieces}\n\n")),
                None => Bytes::from_static(b"data: {}\n\n"),
            };
            let next = (app, query, shown, watcher, permit, Some(Instant::now()));
            Some((Ok::<_, std::convert::Infallible>(event), next))
        });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}
