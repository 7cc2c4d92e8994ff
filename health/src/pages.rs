//! The admin page about health: what is asked where, what came of it, and what follows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::response::Json;
use axum::routing::get;
use model::entity::is_unhealthy_state;
use model::health::failed;
use model::unwell::WhyUnhealthy;
use model::votes::Heard;
use model::{Container, Entity as _, Snapshot, Text};
use serde::{Deserialize, Serialize};
use source::Store;

use crate::assigned::{Assigned, Scope};
use crate::opinion::Sample;
use crate::run::{Health, Known};
use crate::vote::Vote;
use crate::wheel::Check;

/// The path of the page.
pub const PATH: &str = "/v1/health";

/// What the `HEALTHCHECK`s of this host's containers that fail wrote last, by the uuids of the containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs(pub BTreeMap<Text, Text>);

/// Which containers are shown; all without a parameter.
#[derive(Deserialize)]
struct Parameters {
    /// The name or uuid of a container.
    container: Option<String>,
    /// The name of a service, or `stack/service`.
    service: Option<String>,
    /// Either of them.
    name: Option<String>,
}

/// The health of a container as the page shows it.
#[derive(Serialize)]
struct Shown {
    container: Text,
    uuid: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    /// What all see: the engine's own check counts too; none while it counts as unchecked.
    #[serde(skip_serializing_if = "Option::is_none")]
    health_state: Option<Text>,
    /// Who says why it is unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Text>,
    /// What its `HEALTHCHECK` wrote last, if that fails; only on its own host.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Text>,
    /// Why its host gave it up.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<Text>,
    /// Why its check is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Its host, if it is another one, which decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Text>,
    /// The hosts that check it; none where this host alone does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    checkers: Vec<ShownChecker>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<ShownCheck>,
}

/// What one of the checkers of a container of this host thinks of it.
#[derive(Serialize)]
struct ShownChecker {
    host: Text,
    /// `up`, `down`; `agrees` with the state, of which nothing is sent; `suspect` while it doubts its own results.
    opinion: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Text>,
    /// For how long it has said another thing than the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    disagrees_for_ms: Option<f64>,
}

/// The check of a container from here.
#[derive(Serialize)]
struct ShownCheck {
    r#type: &'static str,
    address: String,
    interval_ms: f64,
    /// `up`, `down` or `initializing`.
    opinion: &'static str,
    for_ms: f64,
    /// Whether it has to be well for longer than it says, since it was unhealthy so often.
    flapping: bool,
    /// Good results in a row after which it is healthy.
    healthy_threshold: u32,
    unhealthy_threshold: u32,
    /// What came of the last check.
    last: Option<ShownResult>,
    /// The last results, the oldest first; only where the page is asked for some of the containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    results: Option<Vec<ShownResult>>,
}

/// One result.
#[derive(Serialize)]
struct ShownResult {
    ago_ms: f64,
    took_ms: f64,
    /// `pass`, `fail` or `unsure`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The page `GET /v1/health`.
pub(crate) fn router(health: Health, shown: Arc<Store<Snapshot>>, outputs: Arc<Store<Outputs>>) -> Router {
    Router::new().route(PATH, get(page)).with_state((health, shown, outputs))
}

/// What the page is made of: the checks, the cluster as everything else sees it, and what `HEALTHCHECK`s wrote.
type Sources = (Health, Arc<Store<Snapshot>>, Arc<Store<Outputs>>);

async fn page(State((health, shown, outputs)): State<Sources>, Query(wanted): Query<Parameters>) -> Json<Vec<Shown>> {
    let (snapshot, outputs) = (shown.load_full(), outputs.load_full());
    let services = services(&snapshot);
    let service = |container: &Container| services.get(container.uuid()).cloned();
    let is_wanted = |container: &Container| {
        let service = service(container);
        let is_container =
            |name: &String| container.name().is_some_and(|own| **own == **name) || **container.uuid() == **name;
        let is_service = |name: &String| {
            service.as_deref().is_some_and(|path| path == name || path.rsplit('/').next() == Some(name))
        };
        wanted.container.as_ref().is_none_or(is_container)
            && wanted.service.as_ref().is_none_or(is_service)
            && wanted.name.as_ref().is_none_or(|name| is_container(name) || is_service(name))
    };
    let is_about_some = [&wanted.container, &wanted.service, &wanted.name].iter().any(|name| name.is_some());
    let now = health.now();
    let heard = health.exchange.as_ref().map(|exchange| exchange.heard.load_full()).unwrap_or_default();
    // What states its health without a check of ours has it from its engine.
    let local = snapshot.local_host.as_ref().filter(|_| health.scope != Scope::All).map(|host| host.uuid());
    let has_healthcheck = |container: &Container| {
        container.host_uuid().is_some_and(|host| Some(host) == local) && container.health_state().is_some()
    };
    let why = |container: &Container| {
        let is_unhealthy = container.health_state().is_some_and(is_unhealthy_state);
        WhyUnhealthy::of(container).filter(|_| is_unhealthy).map(|why| why.reason)
    };
    let known = health.known();
    let containers = snapshot.containers.values().filter(|container| is_wanted(container));
    let mut shown: Vec<_> = containers
        .filter_map(|container| {
            let (check, wrong) = (known.wheel.get(container.uuid()), known.wrong.get(container.uuid()));
            let one = known.assigned.get(container.uuid());
            (one.is_some() || wrong.is_some() || has_healthcheck(container)).then(|| Shown {
                container: container.name().unwrap_or_else(|| container.uuid()).clone(),
                uuid: container.uuid().clone(),
                service: service(container),
                health_state: container.health_state().map(Text::from),
                reason: why(container),
                output: outputs.0.get(container.uuid()).cloned(),
                failed: failed(container),
                problem: wrong.map(ToString::to_string),
                owner: one.and_then(|one| one.owner.clone()),
                checkers: one.map(|one| checkers(one, check, &known, &heard, now)).unwrap_or_default(),
                check: check.map(|check| shown_check(check, now, is_about_some)),
            })
        })
        .collect();
    drop(known);
    shown.sort_by(|a, b| a.container.cmp(&b.container));
    Json(shown)
}

/// What the checkers of a container of this host think of it.
fn checkers(one: &Assigned, own: Option<&Check>, known: &Known, heard: &Heard, now: Duration) -> Vec<ShownChecker> {
    let roster = &known.roster;
    let shown = one.checkers.iter().map(|host| {
        let vote = heard.0.get(&(host.clone(), one.target.uuid.clone())).and_then(Vote::of_map);
        let vote = vote.filter(|vote| vote.start == one.target.start);
        let is_suspect = roster.hosts.find(host).is_some_and(|host| roster.hosts.is_suspect(host));
        let (opinion, reason) = match (own.filter(|_| roster.own.as_ref() == Some(host)), vote) {
            _ if is_suspect => ("suspect", None),
            (Some(check), _) => (check.results.opinion().word(), check.results.reason().map(Text::from)),
            (None, Some(vote)) => (vote.opinion.word(), vote.reason),
            (None, None) => ("agrees", None),
        };
        let since = known.disagreeing.get(&(one.target.uuid.clone(), host.clone()));
        let disagrees_for_ms = since.map(|since| ms(now.saturating_sub(*since)));
        ShownChecker { host: host.clone(), opinion, reason, disagrees_for_ms }
    });
    shown.collect()
}

/// `stack/service` by the uuids of its containers.
fn services(snapshot: &Snapshot) -> HashMap<&Text, String> {
    let paths = snapshot.services.values().flat_map(|service| {
        let name = service.name().map_or("", |name| name);
        let path = service.stack_name().map_or_else(|| name.to_owned(), |stack| format!("{stack}/{name}"));
        service.members().iter().map(move |uuid| (uuid, path.clone()))
    });
    paths.collect()
}

fn shown_check(check: &Check, now: Duration, has_results: bool) -> ShownCheck {
    let spec = &check.target.spec;
    let results = || check.results.samples().map(|sample| shown_result(sample, now));
    ShownCheck {
        r#type: spec.probe.word(),
        address: check.target.address.to_string(),
        interval_ms: ms(spec.interval),
        opinion: check.results.opinion().word(),
        for_ms: ms(now.saturating_sub(check.since)),
        flapping: check.is_flapping(now),
        healthy_threshold: check.healthy_threshold(now),
        unhealthy_threshold: spec.unhealthy_threshold,
        last: results().last(),
        results: has_results.then(|| results().collect()),
    }
}

fn shown_result(sample: &Sample, now: Duration) -> ShownResult {
    let (outcome, reason) = sample.outcome.words();
    let reason = reason.map(str::to_owned);
    ShownResult { ago_ms: ms(now.saturating_sub(sample.at)), took_ms: ms(sample.took), outcome, reason }
}

/// Milliseconds, to the microsecond.
fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
