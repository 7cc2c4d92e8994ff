//! The admin pages, on loopback and nowhere else: reload, health, readiness, metrics.

use std::fmt;
use std::future::{Future, ready};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::json;
use source::{Readiness, Reload, Store};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::accept::Acceptor;
use crate::connections::serve_connections;
use crate::quota::Places;
use crate::restart::{Attempts, Made};
use crate::web_page::refuse_web_page;

/// What the admin pages show and do.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    /// Why the process is not ready.
    pub(crate) readiness: Arc<Readiness>,
    /// What it counted.
    pub(crate) registry: Arc<Registry>,
    /// How its source is read again; `None` where there is nothing to read.
    pub(crate) reload: Option<Reload>,
    /// What has to catch up with the source before the process is ready.
    pub(crate) settling: Vec<Arc<dyn Settle>>,
    /// Which process this is.
    pub(crate) identity: Identity,
}

/// Which process serves, and whether another one can take its place.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Its executable, as it was found at the start.
    pub(crate) program: Option<PathBuf>,
    /// Why it does not start again in place.
    pub(crate) refused: Option<String>,
    /// What became of starting again so far.
    pub(crate) attempts: Attempts,
}

/// Something published, from which views are built.
pub trait Settle: fmt::Debug + Send + Sync {
    /// Waits until anything was published.
    fn known(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Waits until the views have caught up.
    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

impl<T: Send + Sync> Settle for Store<T> {
    fn known(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut watcher = self.watch();
        Box::pin(async move { watcher.first().await })
    }

    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(Self::settled(self))
    }
}

/// Most connections to one listener: browsers, scrapers and checks of health. On loopback all of them have one address.
const PLACES: Places = Places { per_client: 128, in_all: 128 };

/// Why no other start in place begins now.
const UNDER_WAY: &str = "it is starting again already, which can take 40 s";

/// Longest wait for views when a client asks whether the process is ready.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);

impl Admin {
    /// The routes: `POST /v1/reload`, `GET /v1/process`, `/healthz`, `/readyz` and `/metrics`.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/v1/reload", post(reload))
            .route("/v1/process", get(process))
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

/// Serves `router` on `listener` until `stop`, but not to web pages.
///
/// # Errors
///
/// Fails if the runtime refuses the listener.
pub(crate) async fn serve_programs(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    serve(listener, router.layer(middleware::from_fn(admit)), stop).await
}

/// Serves `router` on `listener` until `stop`; requests in flight then have a second.
///
/// # Errors
///
/// Fails if the runtime refuses the listener.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> std::io::Result<()> {
    let open = move |stream| ready(Some((stream, router.clone())));
    serve_connections(Acceptor::new(listener)?, PLACES, open, stop).await;
    Ok(())
}

/// Refuses an admin address that others could reach.
///
/// # Errors
///
/// Fails if the address is not loopback.
pub(crate) fn check_address(address: SocketAddr) -> Result<(), String> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    Err(format!("--admin {address}: the admin pages have no protection of their own; give a loopback address"))
}

async fn admit(request: Request, next: Next) -> Response {
    match refuse_web_page(request.headers(), &[]) {
        Ok(()) => next.run(request).await,
        Err(page) => (StatusCode::FORBIDDEN, format!("{page}\n")).into_response(),
    }
}

/// `OK` if the current state of the source is visible, as the predecessors answered; otherwise the reason.
async fn reload(State(admin): State<Admin>) -> Response {
    let Some(reload) = admin.reload else {
        return (StatusCode::NOT_FOUND, "nothing to reload\n").into_response();
    };
    match reload.request().await {
        Ok(()) => "OK".into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Whether answers show the current state of the source; if not, the reasons.
async fn readyz(State(admin): State<Admin>) -> Response {
    // First: what is published after this look need not have been built when the views are looked at.
    let mut reasons = admin.readiness.reasons();
    let settled = async {
        for settling in &admin.settling {
            settling.known().await;
            settling.settled().await;
        }
    };
    if reasons.is_empty() && tokio::time::timeout(SETTLE_LIMIT, settled).await.is_err() {
        Arc::make_mut(&mut reasons).insert("views", "still being built".into());
    }
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let warnings = admin.readiness.warnings();
    (status, Json(json!({ "ready": reasons.is_empty(), "reasons": *reasons, "warnings": *warnings }))).into_response()
}

/// Which process this is, of which version, and what became of starting again in place.
async fn process(State(admin): State<Admin>) -> Response {
    let Identity { program, refused, attempts } = &admin.identity;
    let Made { failed, reason, under_way } = attempts.made();
    let under_way = under_way.then(|| UNDER_WAY.to_owned());
    let refused = refused.clone().or(under_way);
    Json(json!({
        "process": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "executable": program.as_deref().and_then(Path::to_str),
        "restart": { "refused": refused, "failed": failed, "reason": reason },
    }))
    .into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &admin.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => {
            warn!(%error, "the metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_when_the_views_of_what_was_published_are_there() {
        let store = Arc::new(Store::new(()));
        let follower = store.follower();
        let identity = Identity { program: None, refused: None, attempts: Attempts::default() };
        let (readiness, registry) = (Arc::default(), Arc::default());
        let admin = Admin { readiness, registry, reload: None, settling: vec![store.clone()], identity };
        let status = async || readyz(State(admin.clone())).await.status();
        assert_eq!(status().await, StatusCode::SERVICE_UNAVAILABLE, "nothing is published");
        store.publish(Arc::new(()));
        assert_eq!(status().await, StatusCode::SERVICE_UNAVAILABLE, "no view was built of it");
        follower.reached(store.revision());
        assert_eq!(status().await, StatusCode::OK);
    }

    #[tokio::test]
    async fn web_pages_reach_no_admin_page() {
        let listener = platform::socket::tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let router = Router::new().route("/v1/reload", post(async || "OK"));
        let serving = tokio::spawn(serve_programs(listener, router, stop.clone()));
        let own = address.to_string();
        for (host, line, status) in [
            (&*own, "", "200"),
            ("example.org", "", "403"),
            (&own, "Origin: http://example.org\r\n", "403"),
            (&own, "Sec-Fetch-Site: cross-site\r\n", "403"),
        ] {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let head = format!("POST /v1/reload HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{line}\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host} {line} {answer}");
        }
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
