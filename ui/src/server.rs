//! The server of the page: who may see it, and what is asked of other parts of the process for a view.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Redirect, Response};
use axum::routing::get;
use model::Snapshot;
use process::quota::Places;
use process::{Acceptor, Failure, serve_connections};
use source::{Readiness, Store, derive};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::answers::{Host, Hosts};
use crate::ask::ask;
use crate::assets::{Asset, SCRIPT, STYLE};
use crate::compressed::Content;
use crate::guard;
use crate::hidden::Hidden;
use crate::html::Html;
use crate::options::{Tls, UiOptions};
use crate::page::{Page, Pieces};
use crate::query::Query;
use crate::stream;
use crate::ticket::{Door, RANDOM, SESSION_TIME};
use crate::views::{self, Context, overview, placements};
use crate::world::World;

/// How old what the scheduler says of hosts may be: one answer then serves all that look.
const HOSTS_AGE: Duration = Duration::from_secs(1);

/// How old a view of the same cluster may be: it also shows what no snapshot says, such as promises.
const VIEW_AGE: Duration = Duration::from_millis(250);

/// The same of a cluster that has changed since: those who look at the same moment then share it, however fast it changes.
const OLD_VIEW_AGE: Duration = Duration::from_millis(50);

/// How many times as long as a view took to make it is not made again: it then takes a fiftieth of a processor, however fast the cluster
/// changes.
const VIEW_REST: u32 = 50;

/// Questions to the scheduler at once: one over thousands of hosts takes a processor for 15 ms and more.
const QUESTIONS_MAX: usize = 2;

/// How old an answer of the scheduler may be at least.
const ANSWER_AGE: Duration = Duration::from_secs(1);

/// How many times as old as it took: twenty leave a page that stays open a twentieth of a processor.
const ANSWER_REST: u32 = 20;

/// Answers that are remembered: as many as pages are open; each may be some hundred kilobytes.
const ANSWERS_MAX: usize = VIEWERS_MAX;

/// Open pages at once; each holds what it shows.
pub(crate) const VIEWERS_MAX: usize = 64;

/// Connections at once over TLS: a browser opens up to six, and most views are closed soon. Without TLS, those of admin pages count.
const PLACES: Places = Places { per_client: 64, in_all: 512 };

/// The other parts of the process, as far as the page shows them.
#[derive(Debug)]
pub struct Sources {
    /// The cluster.
    pub snapshots: Arc<Store<Snapshot>>,
    /// Why the process is not ready.
    pub readiness: Arc<Readiness>,
    /// The admin pages of the services: `GET /v1/query`, `GET /v1/upstreams` and `GET /v1/health`.
    pub pages: Router,
    /// What the scheduler answers without changing anything.
    pub scheduler: Router,
}

/// What requests share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) worlds: Arc<Store<World>>,
    sources: Sources,
    hidden: Arc<Hidden>,
    hosts: tokio::sync::Mutex<Option<KnownHosts>>,
    views: Mutex<HashMap<Query, SharedView>>,
    pub(crate) begun: Instant,
    questions: Arc<Semaphore>,
    answers: tokio::sync::Mutex<HashMap<(&'static str, String), KnownAnswer>>,
    pub(crate) viewers: Arc<Semaphore>,
    door: Option<Mutex<Door>>,
    names: Vec<String>,
    cookie: String,
    secure: &'static str,
    pub(crate) stop: CancellationToken,
}

/// A view that is made, or was a moment ago.
#[derive(Debug)]
struct SharedView {
    /// No reason to hold a world that is over.
    world: Weak<World>,
    begun: Instant,
    made: Arc<OnceCell<Arc<View>>>,
}

/// A page as all are shown it, whatever their session: as a document, and its pieces for those who have it open.
#[derive(Debug)]
pub(crate) struct View {
    world: Weak<World>,
    page: Page,
    /// How long it took to make.
    took: Duration,
    document: OnceLock<Content>,
    pieces: OnceLock<Pieces>,
}

impl View {
    /// Whether it was made of this world.
    pub(crate) fn is_of(&self, world: &Arc<World>) -> bool {
        self.world.as_ptr() == Arc::as_ptr(world)
    }

    /// How long those who have it wait before they ask again.
    pub(crate) fn rest(&self) -> Duration {
        self.took * VIEW_REST
    }

    pub(crate) fn pieces(&self) -> &Pieces {
        self.pieces.get_or_init(|| Pieces::of(&self.page))
    }
}

/// What the scheduler answered to a form, when, and how long that took.
type KnownAnswer = (Instant, Duration, Arc<placements::Answer>);

/// What the scheduler said of hosts, by uuid, and when.
type KnownHosts = (Instant, Arc<HashMap<String, Host>>);

/// The page.
#[derive(Debug)]
pub struct Server {
    app: App,
    derived: source::Derivation,
}

impl Server {
    /// The page over these sources, for a listener at this port.
    ///
    /// # Errors
    ///
    /// Fails if the file of the token cannot be read, or holds none.
    pub fn new(options: &UiOptions, port: u16, sources: Sources) -> Result<Self, Failure> {
        let door = match &options.ui_token_file {
            None => None,
            Some(path) => Some(Mutex::new(Door::new(process::token::read(path)?, now()))),
        };
        let worlds = Arc::new(Store::new(World::empty()));
        let build = |new: &Arc<Snapshot>, _: &Arc<Snapshot>, world: &Arc<World>| Some(world.next(new, now()));
        let derived = derive(sources.snapshots.clone(), worlds.clone(), build);
        let app = App {
            worlds,
            sources,
            hidden: Arc::new(Hidden::new(&options.ui_hide_labels)),
            hosts: tokio::sync::Mutex::default(),
            views: Mutex::default(),
            begun: Instant::now(),
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            answers: tokio::sync::Mutex::default(),
            viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
            door,
            names: options.ui_host.clone(),
            cookie: format!("berth-ui-{port}"),
            // A browser then sends the session over TLS alone.
            secure: if options.ui_tls_certs.is_some() { "; Secure" } else { "" },
            stop: CancellationToken::new(),
        };
        Ok(Self { app, derived })
    }

    /// Serves until `stop`, over TLS if [`UiOptions::tls`] gives something for it.
    ///
    /// # Errors
    ///
    /// Fails if the listener cannot be used.
    pub async fn run(self, listener: TcpListener, tls: Option<Tls>, stop: CancellationToken) -> Result<(), Failure> {
        let app = Arc::new(App { stop: stop.clone(), ..self.app });
        let deriving = tokio::spawn(self.derived);
        let router = router(app);
        let served = match tls {
            None => process::serve(listener, router, stop).await,
            Some(tls) => serve_over_tls(listener, tls, router, stop).await,
        };
        deriving.abort();
        Ok(served?)
    }
}

async fn serve_over_tls(
    listener: TcpListener,
    tls: Tls,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let tls = TlsAcceptor::from(tls);
    let open = move |stream| {
        let (agreeing, router) = (tls.accept(stream), router.clone());
        async move {
            let stream = agreeing.await.inspect_err(|error| debug!(%error, "no TLS")).ok()?;
            Some((stream, router))
        }
    };
    serve_connections(Acceptor::new(listener)?, PLACES, open, stop).await;
    Ok(())
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(async || Redirect::to("/ui/")))
        .route("/ui", get(async || Redirect::to("/ui/")))
        // Browsers ask for it whatever the page says, and complain if it is not there.
        .route("/favicon.ico", get(async || StatusCode::NO_CONTENT))
        .route("/ui/v1/stream", get(stream::stream))
        .route("/ui/v1/hosts", get(host_names))
        .route(&STYLE.path, get(async |headers| asset(&headers, &STYLE)))
        .route(&SCRIPT.path, get(async |headers| asset(&headers, &SCRIPT)))
        .fallback(document)
        .layer(middleware::from_fn_with_state(app.clone(), admit))
        .with_state(app)
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match guard::admit(request.method(), request.headers(), &app.names) {
        Err(refusal) => refusal.into_response(),
        Ok(()) => match &app.door {
            Some(door) => at_door(&app, door, request, next).await,
            None => next.run(request).await,
        },
    };
    guard::protect(response.headers_mut());
    response
}

/// Lets in those who have a session or a ticket for one.
async fn at_door(app: &App, door: &Mutex<Door>, request: Request, next: Next) -> Response {
    let uri = request.uri();
    let ticket = uri.query().and_then(|query| query.split('&').find_map(|part| part.strip_prefix("t=")));
    if let Some(ticket) = ticket.filter(|_| uri.path() == "/ui/") {
        let mut random = [0; RANDOM];
        let session = getrandom::fill(&mut random)
            .ok()
            .and_then(|()| door.lock().unwrap_or_else(PoisonError::into_inner).buy(ticket, now(), &random));
        if let Some(session) = session {
            let cookie = format!(
                "{}={session}; HttpOnly; SameSite=Strict; Path=/ui; Max-Age={SESSION_TIME}{}",
                app.cookie, app.secure
            );
            let mut response = Redirect::to("/ui/").into_response();
            if let Ok(cookie) = HeaderValue::from_str(&cookie) {
                response.headers_mut().insert(header::SET_COOKIE, cookie);
            }
            return response;
        }
    }
    let admitted = {
        let mut door = door.lock().unwrap_or_else(PoisonError::into_inner);
        sessions_of(request.headers(), &app.cookie).any(|session| door.admits(session, now()))
    };
    if admitted {
        return next.run(request).await;
    }
    let text = "This page needs an address that works once: type `agent ui --token-file FILE` on its host.\n";
    (StatusCode::UNAUTHORIZED, text).into_response()
}

/// The sessions that a browser has. Another server of the machine can give it a cookie of this name, which comes before ours.
fn sessions_of<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let cookies = cookies.flat_map(|cookies| cookies.split(';'));
    cookies.filter_map(move |cookie| cookie.trim().strip_prefix(name)?.strip_prefix('='))
}

fn asset(headers: &HeaderMap, asset: &'static Asset) -> Response {
    let for_ever = "public, max-age=31536000, immutable";
    let of_it = [(header::CONTENT_TYPE, asset.kind), (header::CACHE_CONTROL, for_ever)];
    (of_it, asset.content.body_for(headers)).into_response()
}

async fn host_names(State(app): State<Arc<App>>, request: Request) -> Json<serde_json::Value> {
    let query = Query::parse("hosts", request.uri().query().unwrap_or_default());
    Json(views::hosts::names(&app.context().await, &query))
}

/// A view as a document.
async fn document(State(app): State<Arc<App>>, request: Request) -> Response {
    let uri = request.uri();
    let Some(path) = uri.path().strip_prefix("/ui/") else {
        return (StatusCode::NOT_FOUND, "the page is at /ui/\n").into_response();
    };
    let query = Query::parse(path, uri.query().unwrap_or_default());
    let context = app.context().await;
    let view = app.shared_view(&context, &query).await;
    let page = &view.page;
    let status = if page.is_missing { StatusCode::NOT_FOUND } else { StatusCode::OK };
    let document = view.document.get_or_init(|| Content::new(written(&context, page, &query)));
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (status, kind, document.body_for(request.headers())).into_response()
}

impl App {
    /// What views are made of, as of now.
    pub(crate) async fn context(&self) -> Context {
        let hosts = self.hosts().await;
        Context { world: self.worlds.load_full(), hosts, hidden: self.hidden.clone(), now: now() }
    }

    async fn hosts(&self) -> Arc<HashMap<String, Host>> {
        let mut known = self.hosts.lock().await;
        if let Some((at, hosts)) = &*known
            && at.elapsed() < HOSTS_AGE
        {
            return hosts.clone();
        }
        let hosts: Hosts = ask(&self.sources.scheduler, "/v1/hosts", None).await.unwrap_or_default();
        let hosts = Arc::new(hosts.hosts.into_iter().map(|host| (host.uuid.clone(), host)).collect::<HashMap<_, _>>());
        *known = Some((Instant::now(), hosts.clone()));
        hosts
    }

    /// The view that a query asks for, made once for all who ask at about the same time.
    pub(crate) async fn shared_view(&self, context: &Context, query: &Query) -> Arc<View> {
        let made = {
            let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
            let world = Arc::downgrade(&context.world);
            views.retain(|_, view| {
                view.begun.elapsed() < if view.world.ptr_eq(&world) { VIEW_AGE } else { OLD_VIEW_AGE }
            });
            if views.len() >= VIEWERS_MAX {
                views.clear();
            }
            let begun = || SharedView { world, begun: Instant::now(), made: Arc::default() };
            views.entry(query.clone()).or_insert_with(begun).made.clone()
        };
        let view = async || {
            let begun = Instant::now();
            let (world, page) = (Arc::downgrade(&context.world), self.view(context, query).await);
            Arc::new(View { world, page, took: begun.elapsed(), document: OnceLock::new(), pieces: OnceLock::new() })
        };
        made.get_or_init(view).await.clone()
    }

    /// The view that a query asks for.
    async fn view(&self, context: &Context, query: &Query) -> Page {
        let path: Vec<&str> = query.path.iter().map(|step| &**step).collect();
        match &path[..] {
            [] => {
                let upstreams = ask(&self.sources.pages, "/v1/upstreams", None).await.unwrap_or_default();
                let (reasons, warnings) = (self.sources.readiness.reasons(), self.sources.readiness.warnings());
                overview::overview(context, &overview::Process { reasons, warnings, upstreams })
            }
            ["hosts"] => views::hosts::hosts(context, query),
            ["hosts", uuid] => {
                let path = format!("/v1/hosts/{}", crate::query::part(uuid));
                let details = ask(&self.sources.scheduler, &path, None).await.ok();
                views::hosts::host(context, query, uuid, details)
            }
            ["services"] => views::services::services(context, query),
            ["services", id] => {
                let name = context.world.snapshot.services.get(*id).map(|service| {
                    let stack = service.stack_name().map_or("", |name| name);
                    format!("{stack}/{}", views::name_of(&**service))
                });
                let health = self.health("service", &name.unwrap_or_default()).await;
                views::services::service(context, query, id, &health)
            }
            ["containers", uuid] => {
                let health = self.health("container", uuid).await;
                views::containers::container(context, uuid, health.first())
            }
            ["stacks"] => views::stacks::stacks(ask(&self.sources.scheduler, "/v1/stacks", None).await),
            ["stacks", name] => {
                let path = format!("/v1/stacks/{}", crate::query::part(name));
                views::stacks::stack(context, ask(&self.sources.scheduler, &path, None).await)
            }
            ["names"] => self.names(context, query).await,
            ["placements"] | ["placements", _] => self.placements(context, query).await,
            ["changes"] => views::changes::changes(context, query),
            ["search"] => views::search::search(context, query.get("q")),
            _ => views::nothing("", "There is no such page."),
        }
    }

    async fn health(&self, key: &str, value: &str) -> Vec<crate::answers::Health> {
        let path = format!("/v1/health?{key}={}", crate::query::part(value));
        // Where nothing is checked there is no such page.
        ask(&self.sources.pages, &path, None).await.unwrap_or_default()
    }

    async fn names(&self, context: &Context, query: &Query) -> Page {
        let (mut answer, mut others) = (None, Vec::new());
        match views::names::question(context, query) {
            Ok(None) => {}
            Err(problem) => answer = Some(Err(problem)),
            Ok(Some(path)) => answer = Some(ask(&self.sources.pages, &path, None).await),
        }
        // What goes to upstreams is the same for most, and is not asked so often.
        let is_own =
            matches!(&answer, Some(Ok(crate::answers::Resolution { answered_by, .. })) if answered_by == "zone");
        if is_own && query.get("compare") == "services" {
            for (client, path) in views::names::others(context, query) {
                if let Ok(answer) = ask(&self.sources.pages, &path, None).await {
                    others.push((client, answer));
                }
            }
        }
        views::names::names(query, answer, &others)
    }

    async fn placements(&self, context: &Context, query: &Query) -> Page {
        let answer = match placements::question(query, &self.hidden) {
            Ok(None) => None,
            Ok(Some((path, body))) => Some(self.answer(path, body).await),
            Err(wrong) => Some(Err(wrong)),
        };
        let known = ask(&self.sources.scheduler, "/v1/placements", None).await;
        placements::placements(context, query, known, answer)
    }

    /// What the scheduler answers to a form. An answer serves all who ask the same until it is so old that making it again takes a small share of
    /// a processor, since an open page asks again and again.
    async fn answer(&self, path: &'static str, body: serde_json::Value) -> Result<Arc<placements::Answer>, String> {
        let asked = (path, body.to_string());
        let mut known = self.answers.lock().await;
        known.retain(|_, (made, took, _)| made.elapsed() < ANSWER_AGE.max(*took * ANSWER_REST));
        if let Some((_, _, answer)) = known.get(&asked) {
            return Ok(answer.clone());
        }
        drop(known);
        let (scheduler, questions, begun) = (self.sources.scheduler.clone(), self.questions.clone(), Instant::now());
        // To its end also if who asked has left: it computes on, and has its place until then.
        let answering = tokio::spawn(async move {
            // It cannot fail: the semaphore is never closed.
            let _turn = questions.acquire_owned().await;
            match path {
                "/v1/explain" => placements::Answer::Explained(ask(&scheduler, path, Some(body)).await),
                "/v1/what-if" => placements::Answer::WhatIf(ask(&scheduler, path, Some(body)).await),
                _ => placements::Answer::Rebalance(ask(&scheduler, path, Some(body)).await),
            }
        });
        let answer = Arc::new(answering.await.map_err(|error| error.to_string())?);
        let mut known = self.answers.lock().await;
        if known.len() < ANSWERS_MAX {
            known.insert(asked, (Instant::now(), begun.elapsed(), answer.clone()));
        }
        Ok(answer)
    }
}

/// Sections of the page: name, path, label and key.
const SECTIONS: [(&str, &str, &str); 7] = [
    ("overview", "/ui/", "Overview"),
    ("hosts", "/ui/hosts", "Hosts"),
    ("services", "/ui/services", "Services"),
    ("stacks", "/ui/stacks", "Stacks"),
    ("names", "/ui/names", "Names"),
    ("placements", "/ui/placements", "Placements"),
    ("changes", "/ui/changes", "Changes"),
];

/// A page as a whole document.
fn written(context: &Context, page: &Page, query: &Query) -> String {
    let mut html = Html::default();
    html.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.raw("<meta name=\"color-scheme\" content=\"light dark\">\n<title>")
        .text(&page.title)
        .raw(" · Berth</title>\n");
    html.raw("<link rel=\"stylesheet\"").attribute("href", &STYLE.path).raw(">\n");
    html.raw("<script defer").attribute("src", &SCRIPT.path).raw("></script>\n</head>\n<body>\n");
    html.raw("<a class=\"skip\" href=\"#main\">Skip to the content</a>\n<header>\n");
    html.raw("<a class=\"brand\" href=\"/ui/\"><svg viewBox=\"0 0 20 20\" aria-hidden=\"true\"><path d=\"M2 12h16l-3 6H5zM9 2h2v8H9zM12 4h4v6h-4z\"/></svg>Berth</a>\n");
    html.raw("<nav aria-label=\"Sections\">");
    for (section, path, label) in SECTIONS {
        html.raw("<a").attribute("href", path);
        html.raw(if section == page.section { " aria-current=\"page\">" } else { ">" }).raw(label).raw("</a>");
    }
    html.raw("</nav>\n<form role=\"search\" action=\"/ui/search\" method=\"get\"><input type=\"search\" name=\"q\" id=\"search\" aria-label=\"Search hosts, services and containers\" placeholder=\"Search  /\" autocomplete=\"off\" spellcheck=\"false\"");
    let sought = if page.section == "search" { query.get("q") } else { "" };
    html.attribute("value", sought).raw("></form>\n</header>\n<main id=\"main\" tabindex=\"-1\"");
    html.attribute("data-at", &query.address())
        .attribute("data-frame", &page.frame().to_string())
        .raw(">\n<div class=\"title\"><h1>")
        .text(&page.title)
        .raw("</h1>");
    html.raw("<p id=\"lead\">").text(&page.lead).raw("</p></div>\n");
    page.write(&mut html);
    html.raw("</main>\n<footer>\n<p>");
    let local = context.world.snapshot.local_host.as_ref().map(|host| views::name_of(&**host).to_string());
    html.text(
        &local.map_or_else(|| "The whole cluster".to_owned(), |host| format!("The whole cluster as seen by {host}")),
    );
    html.raw(" · <span id=\"live\">as of the last load</span></p>\n");
    if let Some(command) = &page.command {
        html.raw("<p class=\"command\">Same in a terminal: <code id=\"command\">")
            .text(command)
            .raw("</code> <button type=\"button\" id=\"copy\" hidden>Copy</button></p>\n");
    }
    html.raw(
        "<form id=\"settings\" hidden><label>Theme <select id=\"theme\"><option value=\"\">as the system</option>\
         <option value=\"light\">light</option><option value=\"dark\">dark</option></select></label>\
         <label><input type=\"checkbox\" id=\"keys\" checked> Single keys</label>\
         <label><input type=\"checkbox\" id=\"speak\" checked> Announce changes</label></form>\n\
         <details id=\"help\"><summary>Keys</summary><p><kbd>/</kbd> search, <kbd>g</kbd> then <kbd>o</kbd> <kbd>h</kbd> <kbd>s</kbd> \
         <kbd>k</kbd> <kbd>n</kbd> <kbd>p</kbd> <kbd>c</kbd> opens a section, <kbd>↑</kbd> <kbd>↓</kbd> move through a table, <kbd>Enter</kbd> \
         opens, <kbd>Esc</kbd> leaves the search, <kbd>?</kbd> shows this.</p></details>\n\
         <p id=\"said\" role=\"status\" aria-live=\"polite\"></p>\n</footer>\n</body>\n</html>\n",
    );
    html.into_string()
}

#[cfg(test)]
mod tests;
