//! The stream that keeps an open page up to date: server-sent events with what its view shows differently.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, sleep_until, timeout};

use crate::page::{RELOAD, Shown};
use crate::query::Query;
use crate::server::{App, VIEWERS_MAX};

/// Usual time between two messages to one page: a person sees no more, and changes in between become one message. All pages have the same
/// moments for them, so that what several show is made once.
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
    let frame = asked.get("frame").parse().ok();
    let Ok(permit) = app.viewers.clone().try_acquire_owned() else {
        let text = format!("{VIEWERS_MAX} pages are open, which is the most: close one\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let watcher = app.worlds.watch();
    let viewer = (app, query, Shown::nothing(), watcher, permit, None);
    let events =
        futures_util::stream::unfold(viewer, move |(app, query, shown, mut watcher, permit, last)| async move {
            if let Some((last, rest, is_current)) = last {
                let stop = app.stop.clone();
                stop.run_until_cancelled(async {
                    if is_current {
                        let _ = timeout(HEARTBEAT, watcher.changed()).await;
                    }
                    sleep_until(next_moment(app.begun, last, rest)).await;
                })
                .await?;
            }
            watcher.seen();
            let context = app.context().await;
            let view = app.shared_view(&context, &query).await;
            let pieces = view.pieces();
            // It may have become another one since the page was loaded.
            let is_old = last.is_none() && frame.is_some_and(|frame: u64| frame != pieces.frame);
            let event =
                if is_old { Bytes::from_static(RELOAD.as_bytes()) } else { Bytes::from_owner(pieces.event(&shown)) };
            let last = (Instant::now(), view.rest(), view.is_of(&context.world));
            let next = (app, query, pieces.shown().clone(), watcher, permit, Some(last));
            Some((Ok::<_, std::convert::Infallible>(event), next))
        });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

/// When the next message after one at `last` may be sent, of a view that is to rest so long.
fn next_moment(begun: Instant, last: Instant, rest: Duration) -> Instant {
    let past = (last + rest.saturating_sub(PAUSE) + PAUSE / 2).saturating_duration_since(begun).as_millis();
    let moments = u32::try_from(past / PAUSE.as_millis() + 1).unwrap_or(u32::MAX);
    begun + PAUSE * moments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pages_have_the_same_moments_and_none_two_at_once() {
        let begun = Instant::now();
        let at = |last: u64, rest: u64| {
            next_moment(begun, begun + Duration::from_millis(last), Duration::from_millis(rest)) - begun
        };
        let after = |last: u64| at(last, 20).as_millis();
        assert_eq!([0, 1, 124, 125, 200, 250, 1_000_000].map(after), [250, 250, 250, 500, 500, 500, 1_000_250]);
        let rested = |rest: u64| at(0, rest).as_millis();
        assert_eq!([250, 300, 376, 500, 1_000].map(rested), [250, 250, 500, 500, 1_000]);
    }
}
