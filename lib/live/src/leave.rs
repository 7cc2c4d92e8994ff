//! Leaving the cluster for good: an operator's word, from the admin page to what publishes this host.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::post;
use model::{Entity as _, Snapshot};
use process::Launch;
use serde::Deserialize;
use source::Store;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The page on which a host is asked to leave.
pub const PATH: &str = "/v1/leave";

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
    leave: Option<Leave>,
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
pub(crate) fn add_page(launch: &mut Launch, leave: Option<Leave>, snapshots: Arc<Store<Snapshot>>) {
    let stop = launch.stop.clone();
    launch.add_pages(Router::new().route(PATH, post(page)).with_state(Leaving { leave, snapshots, stop }));
}

async fn page(
    State(Leaving { leave, snapshots, stop }): State<Leaving>,
    Query(Parameters { now }): Query<Parameters>,
    headers: HeaderMap,
) -> (StatusCode, String) {
    // Browsers name the page that sends a POST; none of them has business here.
    if headers.contains_key(header::ORIGIN) {
        return (StatusCode::FORBIDDEN, "web pages may not ask for this\n".into());
    }
    let Some(leave) = leave else {
        let text = "this host publishes nothing in etcd, so there is nothing to leave: just stop the process\n";
        return (StatusCode::NOT_FOUND, text.into());
    };
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
