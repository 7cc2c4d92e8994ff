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

use crate::drain::Drain;

/// The page on which a host is asked to leave.
pub const PATH: &str = "/v1/leave";

/// The page that says what runs on this host, and has units of stacks run elsewhere. An agent of an earlier version has none, instead of
/// leaving at once.
pub const DRAIN_PATH: &str = "/v1/leave/drain";

/// By these labels schedulers mark what they have placed, and of that the units of stacks. They are for this report alone: what is moved
/// they know themselves.
const PLACED_LABEL: &str = "io.berth.request";
const STACK_LABEL: &str = "io.berth.stack";

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
    drain: Drain,
    snapshots: Arc<Store<Snapshot>>,
    stop: CancellationToken,
}

#[derive(Deserialize)]
struct Parameters {
    /// Whether to leave although containers run here.
    #[serde(default)]
    now: bool,
}

#[derive(Deserialize)]
struct DrainParameters {
    /// Whether units are to leave, or it is only asked which there are.
    #[serde(default)]
    begin: bool,
}

/// Adds the pages `POST /v1/leave` and `POST /v1/leave/drain` to the admin pages; `leave` is `None` where this host publishes nothing.
pub(crate) fn add_page(
    launch: &mut Launch,
    leave: Option<(Leave, Token)>,
    drain: Drain,
    snapshots: Arc<Store<Snapshot>>,
) {
    let (stop, leave) = (launch.stop.clone(), leave.map(|(leave, token)| (leave, Arc::new(token))));
    let router = Router::new().route(PATH, post(page)).route(DRAIN_PATH, post(drain_page));
    launch.add_pages(router.with_state(Leaving { leave, drain, snapshots, stop }));
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

/// Said where this host publishes nothing.
const NOTHING_TO_LEAVE: &str =
    "this host publishes nothing in etcd, so there is nothing to leave: just stop the process\n";

/// What runs on this host; has units of stacks run elsewhere, if that is wanted.
async fn drain_page(
    State(Leaving { leave, drain, snapshots, .. }): State<Leaving>,
    Query(DrainParameters { begin }): Query<DrainParameters>,
    headers: HeaderMap,
) -> Response {
    let Some((_, token)) = leave else { return (StatusCode::CONFLICT, NOTHING_TO_LEAVE).into_response() };
    if let Some(refusal) = refusal(&token, &headers) {
        return refusal;
    }
    if begin {
        drain.want();
    }
    Json(What::on(&snapshots.load()).json()).into_response()
}

/// What runs on a host, by the names of the containers.
#[derive(Debug, Default, PartialEq, Eq)]
struct What {
    host: String,
    /// Units of stacks.
    units: Vec<String>,
    /// Placed without a stack.
    placed: Vec<String>,
    /// Placed by no scheduler.
    others: Vec<String>,
}

impl What {
    fn on(snapshot: &Snapshot) -> Self {
        let mut what = Self::default();
        let Some(host) = &snapshot.local_host else { return what };
        what.host = host.name().map(ToString::to_string).unwrap_or_default();
        for container in snapshot.containers.values().filter(|container| container.host_uuid() == Some(host.uuid())) {
            // One that was told to stop is there until it has ended.
            if !matches!(container.state(), "running" | "restarting" | "stopping") {
                continue;
            }
            let has = |label: &str| container.labels().is_some_and(|labels| labels.get(label).is_some());
            let name = container.name().map(ToString::to_string).unwrap_or_default();
            let kind = if has(STACK_LABEL) {
                &mut what.units
            } else if has(PLACED_LABEL) {
                &mut what.placed
            } else {
                &mut what.others
            };
            kind.push(name);
        }
        for names in [&mut what.units, &mut what.placed, &mut what.others] {
            names.sort();
        }
        what
    }

    fn json(&self) -> serde_json::Value {
        json!({ "host": self.host, "units": self.units, "placed": self.placed, "others": self.others })
    }
}

async fn page(
    State(Leaving { leave, snapshots, stop, .. }): State<Leaving>,
    Query(parameters): Query<Parameters>,
    headers: HeaderMap,
) -> Response {
    let Some((leave, token)) = leave else { return (StatusCode::NOT_FOUND, NOTHING_TO_LEAVE).into_response() };
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
