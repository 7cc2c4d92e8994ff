//! Leaving the cluster for good: an operator's word, from the admin page to what publishes this host.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use model::{Entity as _, Snapshot};
use process::Launch;
use serde::Deserialize;
use serde_json::json;
use source::Store;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The page on which a host is asked to leave.
pub const PATH: &str = "/v1/leave";

/// Name of the file in the state directory with the token that a request needs.
pub const TOKEN_FILE: &str = "leave.token";

/// The token that a request needs and its file, or why there is none.
pub(crate) type Token = Result<(String, PathBuf), String>;

/// Requests that wait: there is one operator, and the first request ends the process.
const REQUESTS_MAX: usize = 1;

/// Most names of containers in a refusal; their number is stated as well.
const NAMES_MAX: usize = 10;

/// Where the outcome is sent.
pub type Reply = oneshot::Sender<Result<Left, String>>;

/// How a host left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The others can know it.
    Announced,
    /// Nothing of this host was in etcd: another machine has its name, or it was never published.
    Unpublished,
}

/// Where the requests of a [`Leave`] arrive.
pub type LeaveRequests = mpsc::Receiver<Reply>;

/// Asks what publishes this host to say that the host leaves, and to publish nothing after that.
#[derive(Clone, Debug)]
pub struct Leave(mpsc::Sender<Reply>);

impl Leave {
    /// A handle, and where its requests arrive.
    pub fn channel() -> (Self, LeaveRequests) {
        let (requests, arriving) = mpsc::channel(REQUESTS_MAX);
        (Self(requests), arriving)
    }

    /// Leaves the cluster; returns when the others can know it.
    ///
    /// # Errors
    ///
    /// Fails if the others could not be notified: then they drop the host when its lease has expired.
    pub async fn request(&self) -> Result<Left, String> {
        let (reply, answer) = oneshot::channel();
        let late = || "the host is leaving already".to_owned();
        self.0.send(reply).await.map_err(|_| late())?;
        answer.await.unwrap_or_else(|_| Err(late()))
    }
}

/// The next request; never completes once all senders are gone.
pub(crate) async fn next(requests: &mut LeaveRequests) -> Reply {
    match requests.recv().await {
        Some(reply) => reply,
        None => std::future::pending().await,
    }
}

/// What the page needs.
#[derive(Clone)]
struct Leaving {
    leave: Option<(Leave, Arc<Token>)>,
    snapshots: Arc<Store<Snapshot>>,
    stop: CancellationToken,
}

#[derive(Deserialize)]
struct Parameters {
    /// Whether to leave although containers run here.
    #[serde(default)]
    now: bool,
}

/// Adds the page `POST /v1/leave` to the admin pages; `leave` is `None` where this host publishes nothing.
pub(crate) fn add_page(launch: &mut Launch, leave: Option<(Leave, Token)>, snapshots: Arc<Store<Snapshot>>) {
    let (stop, leave) = (launch.stop.clone(), leave.map(|(leave, token)| (leave, Arc::new(token))));
    launch.add_pages(Router::new().route(PATH, post(page)).with_state(Leaving { leave, snapshots, stop }));
}

/// The response to a request that may not have this done. Any user of this machine, and any container on its network, reaches
/// the admin pages.
fn refusal(token: &Token, headers: &HeaderMap) -> Option<Response> {
    match token {
        Ok((token, file)) => {
            let given = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
            let body = || Json(json!({ "error": "this needs the token of the agent", "token_file": file }));
            (!process::token::is_bearer(given, token)).then(|| (StatusCode::UNAUTHORIZED, body()).into_response())
        }
        Err(why) => {
            let text = format!("this needs a token, and the agent has none: {why}; start it with --state-dir DIR\n");
            Some((StatusCode::FORBIDDEN, text).into_response())
        }
    }
}

async fn page(
    State(Leaving { leave, snapshots, stop }): State<Leaving>,
    Query(parameters): Query<Parameters>,
    headers: HeaderMap,
) -> Response {
    let Some((leave, token)) = leave else {
        let text = "this host publishes nothing in etcd, so there is nothing to leave: just stop the process\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    match refusal(&token, &headers) {
        Some(refusal) => refusal,
        None => answered(leave, &snapshots, &stop, &parameters).await.into_response(),
    }
}

async fn answered(
    leave: Leave,
    snapshots: &Store<Snapshot>,
    stop: &CancellationToken,
    &Parameters { now }: &Parameters,
) -> (StatusCode, String) {
    let snapshot = snapshots.load_full();
    let host = snapshot.local_host.as_ref().and_then(|host| host.name().cloned()).unwrap_or_else(|| "this host".into());
    let running = running(&snapshot);
    if !running.is_empty() && !now {
        let shown = running.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if running.len() > NAMES_MAX { ", ..." } else { "" };
        let text = format!(
            "{} containers run on {host} ({shown}{more}). They run on when it leaves, but no other host finds them any more.\nStop them first, or leave all the same: agent leave --now\n",
            running.len()
        );
        return (StatusCode::CONFLICT, text);
    }
    let outcome = leave.request().await;
    stop.cancel();
    match outcome {
        Ok(Left::Unpublished) => {
            info!(%host, "nothing of this host was published; stopping");
            let text = format!(
                "this process stops; the other hosts were not notified, since nothing of this machine was published as {host}\n"
            );
            (StatusCode::OK, text)
        }
        Ok(Left::Announced) => {
            info!(%host, "left the cluster; stopping");
            (StatusCode::OK, format!("{host} has left the cluster, and this process stops\n"))
        }
        Err(problem) => {
            warn!(%host, problem, "the other hosts could not be notified; stopping");
            let text = format!(
                "this process stops, but the other hosts could not be notified ({problem}): they drop {host} when its lease has expired\n"
            );
            (StatusCode::OK, text)
        }
    }
}

/// The names of the containers that run on this host, in order.
fn running(snapshot: &Snapshot) -> Vec<String> {
    let Some(host) = &snapshot.local_host else { return Vec::new() };
    let here = snapshot.containers.values().filter(|container| container.host_uuid() == Some(host.uuid()));
    let running = here.filter(|container| container.state() == "running");
    let mut names: Vec<String> = running.filter_map(|container| container.name().map(ToString::to_string)).collect();
    names.sort();
    names
}
