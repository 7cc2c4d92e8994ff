//! This host's own side of the network: what is there is read, and the steps of a plan are done and undone.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bollard::models::{Ipam, IpamConfig, NetworkCreateRequest};
use bollard::query_parameters::ListContainersOptions;
use engine::{Engine, EngineError};
use model::reach::ROUTED_LABEL;
use platform::route::{self, Link, MARKS_ROUTES, Route, RouteChange, RouteError, RouteTable, Routes};

use crate::claim::NETWORK;
use crate::fault;
use crate::firewall_program as firewall;
use crate::ledger::{Changed, Ledger, OwnRoute};
use crate::plan::{self, EngineNetwork, FORWARDING, Facts, NETWORK_LABEL, Plan};
use crate::step::{NetworkSpec, Step};

/// Longest wait for each answer of the engine. Making a network takes it a second or two.
const ENGINE_TIME: Duration = Duration::from_secs(20);

/// The setting of the kernel that is another one after each start of the machine.
const BOOT: &str = "kernel.random.boot_id";

/// Why something of this host could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        error: io::Error,
    },
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A route was not changed.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// The network of this host.
#[derive(Debug)]
pub struct HostNetwork {
    host: String,
    routes: Routes,
    engine: Option<Engine>,
    /// The state directory.
    folder: PathBuf,
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> HostError {
    let what = what.into();
    move |error| HostError::System { what, error }
}

impl HostNetwork {
    /// That of the host of this name, whose ledger is in a state directory.
    ///
    /// # Errors
    ///
    /// Fails if the system does not let its routes be read.
    pub fn open(host: String, engine: Option<Engine>, folder: PathBuf) -> Result<Self, HostError> {
        let routes = Routes::open().map_err(system("reading routes"))?;
        Ok(Self { host, routes, engine, folder })
    }

    /// The ledger.
    ///
    /// # Errors
    ///
    /// Fails if it is damaged: then nothing may be changed.
    pub fn ledger(&self) -> Result<Ledger, HostError> {
        let mut ledger = Ledger::load(&self.folder).map_err(system("the ledger of the network"))?;
        ledger.at_boot(platform::sysctl::read(BOOT).ok());
        Ok(ledger)
    }

    /// Routes and interfaces.
    pub fn routes(&mut self) -> &mut Routes {
        &mut self.routes
    }

    /// Interfaces and routes, of which those are ours that have the mark, and that the ledger has where the system's mark is
    /// not enough.
    ///
    /// # Errors
    ///
    /// Fails if the system does not let its routes be read, or the ledger is damaged.
    pub async fn table(&mut self) -> Result<RouteTable, HostError> {
        let mut table = self.routes.read().await.map_err(system("reading routes"))?;
        if !MARKS_ROUTES {
            let ledger = self.ledger()?;
            let RouteTable { links, routes } = &mut table;
            for route in routes.iter_mut().filter(|route| route.marked) {
                route.marked = own_route(links, route).is_some_and(|own| ledger.routes.contains(&own));
            }
        }
        Ok(table)
    }

    /// What is there.
    ///
    /// # Errors
    ///
    /// Fails if something of it cannot be read.
    pub async fn facts(&mut self) -> Result<Facts, HostError> {
        let (engine, engine_failure) = match &self.engine {
            Some(engine) => match engine_facts(engine).await {
                Ok(facts) => (Some(facts), None),
                // Routes do not wait for it.
                Err(error) => (None, Some(error.to_string())),
            },
            None => (None, None),
        };
        let has_firewall = engine.is_some() && !is_windows();
        let firewall = if has_firewall { blocking(firewall::digest).await? } else { None };
        let rules = if has_firewall { blocking(firewall::rules).await? } else { None };
        let table = self.table().await?;
        let forwarding = platform::sysctl::read(FORWARDING).ok();
        let forwards = |link: &&Link| route::forwarding(link).is_ok_and(|on| on);
        let windows = is_windows().then(|| table.links.iter().filter(forwards).map(|link| link.index).collect());
        Ok(Facts { host: self.host.clone(), table, forwarding, windows, engine, engine_failure, firewall, rules })
    }

    /// Does the steps, and gives those that failed with the reasons; the others were done all the same.
    ///
    /// # Errors
    ///
    /// Fails if the ledger cannot be stored: then no step was begun.
    pub async fn apply(&mut self, plan: &Plan) -> Result<Vec<(Step, HostError)>, HostError> {
        let mut ledger = self.ledger()?;
        let before = ledger.clone();
        self.settle(&mut ledger).await;
        ledger.intend(plan.steps.iter().filter(|step| !step.undoes()).map(Step::changed));
        (ledger.subnet, ledger.loss) = (plan.subnet.or(ledger.subnet), plan.loss.clone());
        fault::point();
        if ledger != before {
            ledger.store(&self.folder).map_err(system("the ledger of the network"))?;
        }
        let mut failed = Vec::new();
        let mut changes: Vec<(&Step, RouteChange)> = Vec::new();
        let links = if MARKS_ROUTES { Vec::new() } else { self.table().await?.links };
        for step in &plan.steps {
            if let Step::Route(change) = step {
                changes.push((step, *change));
                continue;
            }
            fault::point();
            match self.step(step).await {
                Ok(what) if step.undoes() => ledger.forget(&what),
                Ok(what) => ledger.done(&what),
                Err(error) => failed.push((step.clone(), error)),
            }
        }
        fault::point();
        if !changes.is_empty() {
            let wanted: Vec<RouteChange> = changes.iter().map(|(_, change)| *change).collect();
            let added = wanted.iter().filter_map(after).filter_map(|route| own_route(&links, &route));
            let known = ledger.routes.len();
            ledger.routes.extend(added);
            if ledger.routes.len() > known {
                ledger.store(&self.folder).map_err(system("the ledger of the network"))?;
            }
            let outcomes = self.routes.apply(&wanted).await;
            ledger.done(&Changed::Routes);
            for ((step, change), outcome) in changes.into_iter().zip(outcomes) {
                match (outcome, change) {
                    (Err(error), _) => failed.push((step.clone(), error.into())),
                    (Ok(()), RouteChange::Add(_)) => {}
                    (Ok(()), RouteChange::Replace { route, .. } | RouteChange::Remove(route)) => {
                        if let Some(own) = own_route(&links, &route) {
                            ledger.routes.remove(&own);
                        }
                    }
                }
            }
        }
        fault::point();
        if ledger != before {
            ledger.store(&self.folder).map_err(system("the ledger of the network"))?;
        }
        fault::point();
        Ok(failed)
    }

    /// Settles what was begun and may not have been done: what is there was done, and the rest is forgotten. So what another
    /// program changes after that is not taken for ours.
    async fn settle(&self, ledger: &mut Ledger) {
        let begun: Vec<Changed> =
            ledger.steps.iter().filter(|entry| !entry.done).map(|entry| entry.changed.clone()).collect();
        for changed in begun {
            match self.is_there(&changed).await {
                Some(true) => ledger.done(&changed),
                Some(false) => ledger.forget(&changed),
                None => {}
            }
        }
    }

    /// Whether the system is as a change leaves it; `None` if that is not known.
    async fn is_there(&self, changed: &Changed) -> Option<bool> {
        match changed {
            Changed::Sysctl { name, after, .. } => platform::sysctl::read(name).ok().map(|now| now == *after),
            Changed::Network { .. } => {
                let networks = engine_facts(self.engine.as_ref()?).await.ok()?.networks;
                Some(networks.iter().any(|network| network.name == NETWORK && network.ours))
            }
            Changed::Table { .. } => blocking(firewall::digest).await.ok().map(|digest| digest.is_some()),
            Changed::Rule { words } => {
                let rules = blocking(firewall::rules).await.ok()?;
                Some(rules.is_some_and(|rules| rules.contains(words)))
            }
            Changed::Routes => MARKS_ROUTES.then_some(true),
            // Undoing these looks first.
            Changed::Forwarding { .. } | Changed::Address { .. } => None,
        }
    }

    /// What carries our mark besides routes, as if the ledger had it: for a ledger that was lost.
    async fn marked(&self) -> Vec<Changed> {
        let mut marked = vec![Changed::Network { name: NETWORK.to_owned(), id: None }];
        if !is_windows() {
            let rules = blocking(firewall::rules).await.ok().flatten().unwrap_or_default();
            marked.extend(rules.into_iter().map(|words| Changed::Rule { words }));
            marked.push(Changed::Table { name: crate::firewall::TABLE.to_owned() });
        }
        let mut there = Vec::new();
        for changed in marked {
            if self.is_there(&changed).await == Some(true) {
                there.push(changed);
            }
        }
        there
    }

    /// Does one step that is no route, and gives what was changed.
    async fn step(&self, step: &Step) -> Result<Changed, HostError> {
        match step {
            Step::Sysctl { name, after, .. } => {
                platform::sysctl::write(name, after).map_err(system(format!("setting {name}")))?;
            }
            Step::Forwarding(link) => {
                let what = format!("having {} pass packets on", link.name);
                route::set_forwarding(link, true).map_err(system(what))?;
            }
            Step::Address { link, address } => {
                route::put_address(link, *address).map_err(system(format!("putting {address} on {}", link.name)))?;
            }
            Step::Network(spec) => {
                // Without an engine there is no such step.
                let Some(engine) = &self.engine else { return Ok(step.changed()) };
                if let Some(old) = &spec.instead_of {
                    engine.ask(ENGINE_TIME, |docker| async move { docker.remove_network(old).await }).await?;
                    fault::point();
                }
                let id = Some(create(engine, spec).await?);
                return Ok(Changed::Network { name: NETWORK.to_owned(), id });
            }
            Step::Rule { words } => {
                let rule = words.clone();
                blocking(move || firewall::insert(&rule)).await?;
            }
            Step::Unrule { words } => {
                let rule = words.clone();
                blocking(move || firewall::take_out(&rule)).await?;
            }
            Step::Firewall(wanted) => {
                let text = wanted.text();
                blocking(move || firewall::replace(&text)).await?;
            }
            // All of them are changed together.
            Step::Route(_) => {}
        }
        Ok(step.changed())
    }

    /// Undoes all that the ledger has, the newest change first, and all that carries our mark; gives a line for each thing that
    /// was undone, and what is left with the reasons.
    ///
    /// # Errors
    ///
    /// Fails if the ledger cannot be read or stored.
    pub async fn remove(&mut self) -> Result<(Vec<String>, Vec<String>), HostError> {
        let mut ledger = self.ledger()?;
        let (mut undone, mut left) = (Vec::new(), Vec::new());
        let (own, links) = if MARKS_ROUTES {
            (self.routes.read_own().await.map_err(system("reading routes"))?, Vec::new())
        } else {
            let RouteTable { links, routes } = self.table().await?;
            (routes.into_iter().filter(|route| route.marked).collect(), links)
        };
        let changes: Vec<RouteChange> = own.iter().map(|route| RouteChange::Remove(*route)).collect();
        fault::point();
        let outcomes = self.routes.apply(&changes).await;
        fault::point();
        let failed = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect::<Vec<_>>();
        left.extend(failed.iter().map(ToString::to_string));
        if !own.is_empty() {
            undone.push(format!("removed {} routes", own.len() - failed.len()));
        }
        if failed.is_empty() {
            ledger.forget(&Changed::Routes);
            ledger.routes.clear();
        }
        ledger.intend(self.marked().await);
        for entry in ledger.steps.clone().into_iter().rev() {
            match self.undo(&entry.changed, &links).await {
                Ok(word) => {
                    fault::point();
                    undone.extend(word);
                    ledger.forget(&entry.changed);
                    ledger.store(&self.folder).map_err(system("the ledger of the network"))?;
                    fault::point();
                }
                Err(why) => left.push(why),
            }
        }
        ledger.store(&self.folder).map_err(system("the ledger of the network"))?;
        Ok((undone, left))
    }

    /// Undoes one change where the system still is as it was changed; gives what was done, or why it is left.
    async fn undo(&self, changed: &Changed, links: &[Link]) -> Result<Option<String>, String> {
        match changed {
            Changed::Sysctl { name, before, after } => {
                let now = platform::sysctl::read(name).map_err(|error| format!("{name}: {error}"))?;
                if now != *after {
                    return Ok(None);
                }
                platform::sysctl::write(name, before).map_err(|error| format!("{name}: {error}"))?;
                Ok(Some(format!("set {name} back to {before}")))
            }
            Changed::Network { .. } => {
                let Some(engine) = &self.engine else {
                    return Err(format!("the network {NETWORK}: the engine is not known; give --docker"));
                };
                let named = |error: EngineError| format!("the network {NETWORK}: {error}");
                let facts = engine_facts(engine).await.map_err(named)?;
                let Some(network) = facts.networks.iter().find(|network| network.name == NETWORK && network.ours)
                else {
                    return Ok(None);
                };
                if network.containers > 0 {
                    return Err(format!(
                        "the network {NETWORK}: {} containers are on it; stop them, then type this again",
                        network.containers
                    ));
                }
                let id = network.id.clone();
                engine
                    .ask(ENGINE_TIME, |docker| async move { docker.remove_network(&id).await })
                    .await
                    .map_err(named)?;
                Ok(Some(format!("removed the network {NETWORK}")))
            }
            Changed::Table { name } => {
                let was_there = blocking(firewall::delete).await.map_err(|error| error.to_string())?;
                Ok(was_there.then(|| format!("deleted the firewall's table {name}")))
            }
            Changed::Rule { words } => {
                let there = blocking(firewall::rules).await.map_err(|error| error.to_string())?;
                if !there.is_some_and(|rules| rules.contains(words)) {
                    return Ok(None);
                }
                let rule = words.clone();
                blocking(move || firewall::take_out(&rule)).await.map_err(|error| error.to_string())?;
                Ok(Some(format!("took out the rule {}", words.join(" "))))
            }
            Changed::Forwarding { id, before } => {
                let Some(link) = links.iter().find(|link| link.id == *id).filter(|_| !before) else { return Ok(None) };
                let named = |error: io::Error| format!("forwarding of {}: {error}", link.name);
                if !route::forwarding(link).map_err(named)? {
                    return Ok(None);
                }
                route::set_forwarding(link, false).map_err(named)?;
                Ok(Some(format!("{} no longer passes packets on", link.name)))
            }
            Changed::Address { id, address } => {
                let has = |link: &&Link| link.id == *id && link.addresses.contains(address);
                let Some(link) = links.iter().find(has) else { return Ok(None) };
                route::take_address(link, *address).map_err(|error| format!("{address} on {}: {error}", link.name))?;
                Ok(Some(format!("took {address} off {}", link.name)))
            }
            Changed::Routes => Ok(None),
        }
    }
}

fn is_windows() -> bool {
    std::env::consts::OS == "windows"
}

/// The route that there is after a change.
fn after(change: &RouteChange) -> Option<Route> {
    match *change {
        RouteChange::Add(route) => Some(route),
        RouteChange::Replace { route, via, link } => Some(Route { via: Some(via), link, ..route }),
        RouteChange::Remove(_) => None,
    }
}

/// A route as the ledger has it; `None` where the system marks routes itself.
fn own_route(links: &[Link], route: &Route) -> Option<OwnRoute> {
    let link = links.iter().find(|link| !MARKS_ROUTES && link.index == route.link)?;
    Some(OwnRoute { prefix: route.prefix, via: route.via?, link: link.id.clone() })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, HostError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::from).and_then(|done| done);
    done.map_err(system("the firewall"))
}

async fn engine_facts(engine: &Engine) -> Result<plan::Engine, EngineError> {
    let version = engine.ask(ENGINE_TIME, |docker| async move { docker.version().await }).await?;
    let first = version.version.as_deref().and_then(|text| text.split('.').next()?.parse().ok());
    let listed = engine.ask(ENGINE_TIME, |docker| async move { docker.list_networks(None).await }).await?;
    let mut networks = Vec::new();
    for network in listed {
        let (name, id) = (network.name.unwrap_or_default(), network.id.unwrap_or_default());
        let ours = network.labels.is_some_and(|labels| labels.contains_key(NETWORK_LABEL));
        let ranges = network.ipam.and_then(|ipam| ipam.config).unwrap_or_default();
        let subnets = ranges.iter().filter_map(|range| range.subnet.as_deref()?.parse().ok()).collect();
        let containers = if ours { containers_on(engine, &name).await? } else { 0 };
        networks.push(EngineNetwork { name, id, ours, subnets, containers });
    }
    networks.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(plan::Engine { version: first.unwrap_or_default(), networks })
}

/// How many containers are on a network. An inspection of the network would leave out those that are stopped, which cannot be
/// started again once it is gone.
async fn containers_on(engine: &Engine, network: &str) -> Result<usize, EngineError> {
    let filters = [("network".to_owned(), vec![network.to_owned()])].into();
    let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
    let asked = |docker: bollard::Docker| async move { docker.list_containers(Some(options)).await };
    Ok(engine.ask(ENGINE_TIME, asked).await?.len())
}

async fn create(engine: &Engine, spec: &NetworkSpec) -> Result<String, EngineError> {
    let request = request(spec);
    let asked = |docker: bollard::Docker| async move { docker.create_network(request).await };
    Ok(engine.ask(ENGINE_TIME, asked).await?.id)
}

/// What the engine is asked for.
fn request(spec: &NetworkSpec) -> NetworkCreateRequest {
    let range = IpamConfig {
        subnet: Some(spec.subnet.to_string()),
        gateway: Some(spec.gateway.to_string()),
        ..IpamConfig::default()
    };
    NetworkCreateRequest {
        name: NETWORK.to_owned(),
        driver: Some(spec.driver.to_owned()),
        ipam: Some(Ipam { config: Some(vec![range]), ..Ipam::default() }),
        options: Some(spec.options.iter().cloned().collect()),
        labels: Some([NETWORK_LABEL, ROUTED_LABEL].map(|label| (label.to_owned(), "true".to_owned())).into()),
        ..NetworkCreateRequest::default()
    }
}
