//! The engine: answers requests from the inventory and the ledger.

use std::sync::Arc;
use std::time::Duration;

use model::{Text, Value};
use serde::Serialize;
use source::{Revision, Store};

use crate::endpoint::Endpoints;
use crate::explain::{Explanation, explain};
use crate::filter::{Check, Need, choose};
use crate::inventory::{Inventory, Kind, PLACEMENT_LABEL, key};
use crate::journal::Broken;
use crate::ledger::{Book, Chosen, Full, Held, HeldState, Ledger, Promise, Record, Replica, Stage};
use crate::platforms::Platforms;
use crate::port::WILDCARD;
use crate::promise::TRIES;
use crate::request::{Invalid, Request};
use crate::room::{Addresses, PortGroup, Room};
use crate::score::{self, Order, Queue, Strategy};

/// Answers requests.
#[derive(Debug)]
pub struct Engine {
    inventories: Arc<Store<Inventory>>,
    ledger: Ledger,
    order: Order,
    strategy: Strategy,
    endpoints: Endpoints,
    platforms: Platforms,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing is known of any host yet: ask again.
    #[error("no snapshot yet: the source of the cluster has not answered")]
    NoData,
    /// The request is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The id or a name belongs to another request.
    #[error("{0}")]
    Taken(String),
    /// There is no such placement.
    #[error("no placement {0}")]
    Unknown(Text),
    /// The ledger is full: ask again later.
    #[error(transparent)]
    Full(#[from] Full),
    /// One of the predecessor's reservations does not fit.
    #[error("{0}")]
    DoesNotFit(String),
    /// The ledger cannot be written, so nothing is promised.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// What others promised was not read from etcd yet: ask again.
    #[error("{0}")]
    Unread(Text),
    /// Etcd cannot be reached, so nothing is promised.
    #[error("{0}")]
    Away(Text),
    /// Other schedulers promised room on the same hosts again and again, so nothing was promised: ask again.
    #[error("other schedulers promised room on the same hosts {TRIES} times in between: nothing was promised")]
    Contended,
    /// This is not done where several schedulers share a ledger.
    #[error("{0}")]
    Unshared(&'static str),
    /// Nobody knows yet what an engine did: ask again with the same id.
    #[error("{0}")]
    Unsettled(String),
}

/// The answer to a placement request.
#[derive(Clone, Debug, Serialize)]
pub struct Placement {
    /// The id of the request.
    pub id: Text,
    /// `placed`, `partial`, `unplaceable`, `failed` or `released`.
    pub state: &'static str,
    /// Whether nothing was kept.
    pub dry_run: bool,
    /// Whether this is the answer to an earlier request with this id.
    pub repeated: bool,
    /// The units that have a place.
    pub placements: Vec<PlacedUnit>,
    /// How many have none.
    pub unplaced: u32,
    /// What went wrong, in a sentence, when nothing was placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Hosts on which starting failed, and what their engines said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Why, for those without a place or when it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
}

/// A host on which a unit could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The host.
    pub host: HostName,
    /// The container.
    pub container: Text,
    /// What its engine said.
    pub error: String,
}

/// One unit and its place.
#[derive(Clone, Debug, Serialize)]
pub struct PlacedUnit {
    /// The host.
    pub host: HostName,
    /// The containers.
    pub containers: Vec<PlacedContainer>,
    /// What spoke against the host that the request named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overridden: Vec<String>,
}

/// How a host is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostName {
    /// Its uuid.
    pub uuid: Text,
    /// Its name.
    pub name: Text,
}

/// One container and what it gets.
#[derive(Clone, Debug, Serialize)]
pub struct PlacedContainer {
    /// The name it is to have.
    pub name: Text,
    /// `reserved`, `starting`, `started`, `removing`, `settled` or `over`.
    pub state: &'static str,
    /// Its uuid, once it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Text>,
    /// The engine's id for it, once the scheduler has started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Text>,
    /// Labels it is to have, so that it is recognised.
    pub labels: std::collections::BTreeMap<&'static str, Text>,
    /// Its ports.
    pub ports: Vec<PlacedPort>,
    /// The entry of its image to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Chosen>,
}

/// One published port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacedPort {
    /// The address.
    pub ip: std::net::IpAddr,
    /// The port outside.
    pub public: u16,
    /// The port inside.
    pub private: u16,
    /// The transport.
    pub protocol: &'static str,
}

/// What is told about a host.
#[derive(Clone, Debug, Serialize)]
pub struct HostReport {
    /// Its uuid.
    pub uuid: Text,
    /// Its name.
    pub name: Text,
    /// Its state as on the wire.
    pub state: Text,
    /// Whether it takes containers.
    pub eligible: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Operating system.
    pub os: Text,
    /// Windows build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Its labels.
    pub labels: std::collections::BTreeMap<Text, Text>,
    /// Containers on it, running or not.
    pub containers: u32,
    /// Room, by pool.
    pub pools: std::collections::BTreeMap<Text, PoolReport>,
    /// Where it publishes ports.
    pub addresses: Vec<std::net::IpAddr>,
    /// Ports taken or promised.
    pub ports: Vec<PortReport>,
}

/// What is told about a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolReport {
    /// All there is.
    pub total: i64,
    /// Used by containers.
    pub used: i64,
    /// Promised to containers that are not there yet; negative when more was given back.
    pub promised: i64,
    /// What is left.
    pub free: i64,
}

/// What is told about a taken port.
#[derive(Clone, Debug, Serialize)]
pub struct PortReport {
    /// The port.
    #[serde(flatten)]
    pub port: PlacedPort,
    /// Who has it.
    pub owner: Text,
}

impl Engine {
    /// An engine over these inventories.
    pub fn new(inventories: Arc<Store<Inventory>>, order: Order, strategy: Strategy) -> Self {
        Self {
            inventories,
            ledger: Ledger::new(),
            order,
            strategy,
            endpoints: Endpoints::default(),
            platforms: Platforms::default(),
        }
    }

    /// The same, with what is said of engines besides the labels of hosts.
    #[must_use]
    pub fn with_endpoints(self, endpoints: Endpoints) -> Self {
        Self { endpoints, ..self }
    }

    /// The same with another ledger.
    #[must_use]
    pub fn with_ledger(self, ledger: Ledger) -> Self {
        Self { ledger, ..self }
    }

    /// What was promised.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How hosts are compared.
    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// Which host is best when nobody says.
    pub(crate) fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Places what the value asks for; `fallback_id` names it when it has no id.
    pub fn place(&self, value: &Value, fallback_id: &str, now: Duration) -> Result<Placement, Refusal> {
        let request = Request::parse(value)?;
        self.place_request(&request, fallback_id, now)
    }

    /// [`Engine::place`] for a request that is already parsed.
    pub fn place_request(&self, request: &Request, fallback_id: &str, now: Duration) -> Result<Placement, Refusal> {
        let id: Text = request.id.clone().unwrap_or_else(|| fallback_id.into());
        self.with(now, |book| {
            if !request.dry_run
                && let Some(answer) = repeat(book, request, &id)?
            {
                return Ok(answer);
            }
            let (replicas, unplaced, explanation) = self.place_all(book, request, &id)?;
            let failed = unplaced > 0 && (replicas.is_empty() || request.atomic);
            let keep = !request.dry_run && !failed;
            let answer = Placement {
                id: id.clone(),
                state: match unplaced {
                    _ if failed => "unplaceable",
                    0 => "placed",
                    _ => "partial",
                },
                dry_run: request.dry_run,
                repeated: false,
                placements: if failed { Vec::new() } else { replicas.iter().map(placed_unit).collect() },
                unplaced: if failed { unplaced + count(replicas.len()) } else { unplaced },
                error: failed.then(|| failure(unplaced, replicas.len(), explanation.as_ref())),
                failures: Vec::new(),
                explanation,
            };
            if keep {
                let stage = if request.start { Stage::Begun } else { Stage::Reserved };
                let replicas = replicas.into_iter().map(|replica| Replica { stage, ..replica }).collect();
                let (fingerprint, asked) = (request.fingerprint, request.asked.clone());
                book.enter(id, Record { fingerprint, made: now, replicas, unplaced, asked });
            } else {
                forget_all(book, &replicas);
            }
            Ok(answer)
        })
    }

    /// Says about every host whether the unit fits, and why not.
    pub fn explain(&self, value: &Value, now: Duration) -> Result<Explanation, Refusal> {
        let request = Request::parse(value)?;
        // The ledger is free again before the long work begins.
        let (inventory, promised) = self.with(now, |book| Ok((book.inventory().clone(), book.promised().clone())))?;
        let room = Room { inventory: &inventory, promised: &promised };
        let need = self.need(&request, &inventory, &member_names(&request, "container", None), &[]);
        Ok(explain(&need, &room, self.order, request.strategy.unwrap_or(self.strategy)))
    }

    /// The placement with this id.
    pub fn placement(&self, id: &str, now: Duration) -> Result<Placement, Refusal> {
        self.with(now, |book| match book.record(id) {
            Some(_) if book.is_pending(id) => Err(Refusal::Unknown(id.into())),
            Some(record) => Ok(answer_of(id.into(), record, true)),
            None => settled_before(book, id).ok_or_else(|| Refusal::Unknown(id.into())),
        })
    }

    /// All placements that are held, by id.
    pub fn placements(&self, now: Duration) -> Result<Vec<Placement>, Refusal> {
        self.with(now, |book| {
            let told = book.records().filter(|(id, _)| !book.is_pending(id));
            Ok(told.map(|(id, record)| answer_of(id.clone(), record, true)).collect())
        })
    }

    /// Gives the room of a placement back. Its containers, if there are any, keep theirs until they are gone.
    pub fn release_placement(&self, id: &str, now: Duration) -> Result<Placement, Refusal> {
        self.with(now, |book| {
            let record = book.release(id).ok_or_else(|| Refusal::Unknown(id.into()))?;
            Ok(Placement { state: "released", ..answer_of(id.into(), &record, false) })
        })
    }

    /// What is known of every host, by id.
    pub fn hosts(&self, now: Duration) -> Result<Vec<HostReport>, Refusal> {
        let (inventory, promised) = self.with(now, |book| Ok((book.inventory().clone(), book.promised().clone())))?;
        let room = Room { inventory: &inventory, promised: &promised };
        Ok((0..count(inventory.hosts().len())).map(|host| report(&room, host)).collect())
    }

    /// How many hosts are known and how many promises are held.
    pub fn sizes(&self, now: Duration) -> (usize, usize) {
        self.ledger.with(|| self.inventories.load_full(), now, |book| (book.inventory().hosts().len(), book.held()))
    }

    /// Hands the book to `act`, unless nothing is known yet.
    pub(crate) fn with<T>(
        &self,
        now: Duration,
        act: impl FnOnce(&mut Book) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if self.inventories.revision() == Revision::NONE {
            return Err(Refusal::NoData);
        }
        let unread = || {
            let why = self.ledger.keeper().shared().and_then(|shared| shared.reachable().err());
            Refusal::Unread(why.unwrap_or_default())
        };
        let act = |book: &mut Book| if book.is_unread() { Err(unread()) } else { act(book) };
        self.ledger.with(|| self.inventories.load_full(), now, act)
    }

    /// Finds places one after another; all are promised when this returns without error.
    fn place_all(
        &self,
        book: &mut Book,
        request: &Request,
        id: &Text,
    ) -> Result<(Vec<Replica>, u32, Option<Explanation>), Refusal> {
        let strategy = request.strategy.unwrap_or(self.strategy);
        let inventory = book.inventory().clone();
        let mut need = self.need(request, &inventory, &member_names(request, id, None), &[]);
        let mut explanation = request.explain.then(|| explain(&need, &book.room(), self.order, strategy));
        let wanted = if request.global { global_hosts(&need, book) } else { request.count };
        book.admit(wanted as usize)?;
        let mut replicas: Vec<Replica> = Vec::new();
        let mut unplaced = 0;
        let mut queue: Option<Queue> = None;
        let mut last = None;
        for number in 1..=wanted {
            let numbered = (request.count > 1).then(|| number.to_string());
            let mut names = member_names(request, id, numbered.as_deref());
            need.rename(&names, request);
            let room = book.room();
            if number == 1 && wanted > 1 {
                queue = Queue::new(&need, &room, self.order, strategy);
            }
            let best = match &mut queue {
                Some(queue) => {
                    // Only now: what stands in the way of the next one is what the last one has.
                    if let Some(last) = last {
                        queue.put_back(&need, &room, strategy, last);
                    }
                    queue.pop()
                }
                None => score::best(&need, &room, &need.candidates(&room), self.order, strategy),
            };
            let Some(host) = best else {
                // The next one finds no more than this one did.
                unplaced = wanted - (number - 1);
                explanation = explanation.or_else(|| Some(explain(&need, &room, self.order, strategy)));
                break;
            };
            if request.global {
                names = member_names(request, id, Some(&inventory.hosts().facts(host).name));
            }
            if let Some(problem) = names.iter().find_map(|name| name_taken(book, name)).filter(|_| !request.dry_run) {
                forget_all(book, &replicas);
                return Err(Refusal::Taken(problem));
            }
            let replica = promised_replica(request, &book.room(), host, &names);
            book.promise(&replica);
            replicas.push(replica);
            last = Some(host);
        }
        if request.global {
            let left = u32::try_from(missing_globals(&need, book)).unwrap_or(u32::MAX);
            unplaced = left;
            if left > 0 && explanation.is_none() {
                explanation = Some(explain(&need, &book.room(), self.order, strategy));
            }
        }
        Ok((replicas, unplaced, explanation))
    }
}

impl Engine {
    /// What a request needs, of hosts that can start it when it is to be started.
    pub(crate) fn need(&self, request: &Request, inventory: &Inventory, names: &[Text], tried: &[Failure]) -> Need {
        let mut need = Need::new(request, inventory, names);
        if request.start {
            need.checks.push(Check::Engine(self.endpoints.known(inventory.hosts())));
        }
        if !tried.is_empty() {
            let host = |failure: &Failure| Some((inventory.hosts().index(&failure.host.uuid)?, failure.error.clone()));
            need.checks.push(Check::Untried(tried.iter().filter_map(host).collect()));
        }
        need
    }

    /// Hands the book to `act`, also before anything is known of hosts: what was begun before a crash is there then.
    pub(crate) fn with_any<T>(&self, now: Duration, act: impl FnOnce(&mut Book) -> T) -> T {
        self.ledger.with(|| self.inventories.load_full(), now, act)
    }

    /// Whether anything is known of hosts.
    pub(crate) fn has_data(&self) -> bool {
        self.inventories.revision() != Revision::NONE
    }

    /// The units of a placement on which the scheduler still works.
    pub(crate) fn units_at_work(&self, id: &str, now: Duration) -> Vec<usize> {
        let working = |replica: &Replica| matches!(replica.stage, Stage::Begun | Stage::Undoing);
        self.with_any(now, |book| {
            let own = book.record(id).filter(|_| !book.is_foreign(id) && !book.is_pending(id));
            let replicas = own.map_or(&[][..], |record| &record.replicas);
            replicas.iter().enumerate().filter(|(_, replica)| working(replica)).map(|(at, _)| at).collect()
        })
    }

    /// The placements on which the scheduler still works.
    pub(crate) fn at_work(&self, now: Duration) -> Vec<Text> {
        let working = |record: &&Record| {
            record.replicas.iter().any(|replica| matches!(replica.stage, Stage::Begun | Stage::Undoing))
        };
        self.with_any(now, |book| {
            let own = |id: &Text| !book.is_foreign(id) && !book.is_pending(id);
            book.records().filter(|(id, record)| working(record) && own(id)).map(|(id, _)| id.clone()).collect()
        })
    }

    /// A unit of a placement, and the request it belongs to.
    pub(crate) fn unit(&self, id: &str, at: usize, now: Duration) -> Option<(Request, Replica)> {
        let (asked, replica) = self.with_any(now, |book| {
            let record = book.record(id)?;
            Some((record.asked.clone(), record.replicas.get(at)?.clone()))
        })?;
        // It was read before, by this very function.
        let mut request = Request::parse(&asked.into()).ok()?;
        self.platforms.fill(&mut request);
        Some((request, replica))
    }

    /// What is known of images.
    pub(crate) fn platforms(&self) -> &Platforms {
        &self.platforms
    }

    /// Hosts whose engines can be asked, at most so many.
    pub(crate) fn with_engines(&self, most: usize) -> Vec<Text> {
        let inventory = self.inventories.load_full();
        let hosts = inventory.hosts();
        let facts = (0..count(hosts.len())).map(|host| hosts.facts(host));
        let reached = facts.filter(|facts| facts.refusal.is_none() && self.endpoints.of(facts).is_ok());
        reached.map(|facts| facts.uuid.clone()).take(most).collect()
    }

    /// Notes how far the scheduler got with a unit.
    pub(crate) fn reached(&self, id: &str, at: usize, stage: Stage, containers: &[Text], now: Duration) -> bool {
        self.with_any(now, |book| book.reached(id, at, stage, containers))
    }

    /// Puts a unit on another host than those where starting it failed; `false` when there is none.
    pub(crate) fn elsewhere(&self, id: &str, at: usize, tried: &[Failure], now: Duration) -> bool {
        let Some((request, replica)) = self.unit(id, at, now).filter(|_| self.has_data()) else { return false };
        let names: Vec<Text> = replica.members.iter().map(|held| held.name.clone()).collect();
        let found = self.with(now, |book| {
            book.vacate(id, at);
            let inventory = book.inventory().clone();
            let need = self.need(&request, &inventory, &names, tried);
            let next = self.find(book, &request, &need, &names);
            if let Some(next) = &next {
                book.forget(next);
            }
            let found = next.is_some();
            book.settle_in(id, at, next.map(|next| Replica { stage: Stage::Begun, ..next }));
            Ok(found)
        });
        // There are hosts, or nothing could have been tried on one.
        found.unwrap_or(false)
    }

    /// Gives up a unit: its containers are gone, and so is its promise.
    pub(crate) fn abandon(&self, id: &str, at: usize, now: Duration) {
        self.with_any(now, |book| {
            book.vacate(id, at);
            book.settle_in(id, at, None);
        });
    }

    /// Marks all that the scheduler started of a placement for removal; gives back at once what it did not.
    pub(crate) fn begin_release(&self, id: &str, now: Duration) -> Result<Placement, Refusal> {
        self.with(now, |book| {
            let Some(record) = book.record(id) else { return Err(Refusal::Unknown(id.into())) };
            let ours = |replica: &Replica| replica.stage != Stage::Reserved;
            let at: Vec<usize> =
                record.replicas.iter().enumerate().filter(|(_, replica)| ours(replica)).map(|(at, _)| at).collect();
            let answer = Placement { state: "released", ..answer_of(id.into(), record, false) };
            if at.is_empty() {
                book.release(id);
            }
            for at in at {
                book.reached(id, at, Stage::Undoing, &[]);
            }
            Ok(answer)
        })
    }

    /// Where the engine of a host listens.
    pub(crate) fn endpoint(&self, host: &str) -> Result<(live::docker::Endpoint, bool), String> {
        let inventory = self.inventories.load_full();
        let host = inventory.hosts().index(host).ok_or_else(|| format!("nothing is known of host {host}"))?;
        let facts = inventory.hosts().facts(host);
        Ok((self.endpoints.of(facts)?, &*facts.system.os == "windows"))
    }

    /// The units that engines run for the scheduler: by host, the id of the placement, which unit, its containers.
    pub(crate) fn started(&self, now: Duration) -> std::collections::BTreeMap<Text, Vec<(Text, usize, Vec<Text>)>> {
        self.with_any(now, |book| {
            let mut by_host: std::collections::BTreeMap<Text, Vec<_>> = std::collections::BTreeMap::new();
            for (id, record) in book.records().filter(|(id, _)| !book.is_foreign(id)) {
                let started = record.replicas.iter().enumerate().filter(|(_, replica)| replica.stage == Stage::Started);
                for (at, replica) in started {
                    let containers = replica.members.iter().filter_map(|held| held.container.clone()).collect();
                    by_host.entry(replica.host.clone()).or_default().push((id.clone(), at, containers));
                }
            }
            by_host
        })
    }

    /// Ends a unit whose containers its engine does not have any more, unless something else became of it since.
    pub(crate) fn gone(&self, id: &str, at: usize, containers: &[Text], now: Duration) {
        self.with_any(now, |book| {
            let same = book.record(id).and_then(|record| record.replicas.get(at)).is_some_and(|replica| {
                let own = replica.members.iter().filter_map(|held| held.container.as_ref());
                replica.stage == Stage::Started && own.eq(containers)
            });
            if same {
                book.vacate(id, at);
                book.settle_in(id, at, None);
            }
        });
    }

    /// Promises one unit the best host there is for it; `None` when there is none.
    pub(crate) fn find(&self, book: &mut Book, request: &Request, need: &Need, names: &[Text]) -> Option<Replica> {
        let room = book.room();
        let strategy = request.strategy.unwrap_or(self.strategy);
        let host = score::best(need, &room, &need.candidates(&room), self.order, strategy)?;
        let replica = promised_replica(request, &room, host, names);
        book.promise(&replica);
        Some(replica)
    }

    /// Why a unit fits nowhere, and what would help.
    pub(crate) fn why_not(&self, book: &Book, request: &Request, need: &Need) -> Explanation {
        explain(need, &book.room(), self.order, request.strategy.unwrap_or(self.strategy))
    }
}

/// The answer given before to the same request.
fn repeat(book: &Book, request: &Request, id: &Text) -> Result<Option<Placement>, Refusal> {
    if let Some(record) = book.record(id) {
        if record.fingerprint != request.fingerprint {
            return Err(Refusal::Taken(format!("id {id} belongs to a different request")));
        }
        return Ok(Some(answer_of(id.clone(), record, true)));
    }
    if request.id.is_none() {
        return Ok(None);
    }
    // After a restart the containers themselves tell what was placed.
    let names = all_names(request, id);
    let known: Vec<_> = names.iter().map(|name| book.inventory().placed(name)).collect();
    if known.iter().all(Option::is_some) && !known.is_empty() && !request.global {
        let units = names.chunks(request.members.len());
        let placements = units.filter_map(|names| settled_unit(book.inventory(), names)).collect();
        return Ok(Some(Placement {
            id: id.clone(),
            state: "placed",
            dry_run: false,
            repeated: true,
            placements,
            unplaced: 0,
            error: None,
            failures: Vec::new(),
            explanation: None,
        }));
    }
    Ok(None)
}

/// On how many hosts a global service still has to be and can be.
fn global_hosts(need: &Need, book: &Book) -> u32 {
    count(need.candidates(&book.room()).count())
}

/// On how many hosts a global service has to be and cannot, for want of room.
fn missing_globals(need: &Need, book: &Book) -> usize {
    let room = book.room();
    let mut wanted = need.clone();
    wanted.checks.retain(|check| !check.is_about_room());
    wanted.candidates(&room).count()
}

pub(crate) fn forget_all(book: &mut Book, replicas: &[Replica]) {
    for replica in replicas {
        book.forget(replica);
    }
}

/// Why nothing was placed, with the most frequent reasons.
pub(crate) fn failure(unplaced: u32, fitting: usize, explanation: Option<&Explanation>) -> String {
    let reasons = explanation.into_iter().flat_map(|explanation| explanation.reasons.iter().take(3));
    let reasons: Vec<_> = reasons.map(|group| format!("{} ({})", group.reason, group.count)).collect();
    let reasons = if reasons.is_empty() { "there are no hosts".to_owned() } else { reasons.join(", ") };
    match fitting {
        0 => format!("no host fits: {reasons}"),
        _ => format!("only {fitting} of {} fit: {reasons}", fitting + unplaced as usize),
    }
}

pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Why a container cannot have this name. Two of one name could not be told apart when they show up.
pub(crate) fn name_taken(book: &Book, name: &Text) -> Option<String> {
    if let Some(owner) = book.owner_of(name) {
        return Some(format!("container name {name} is promised to placement {owner}"));
    }
    let (host, _) = *book.inventory().occurrences(&key(Kind::Name, &[name])).first()?;
    let host = &book.inventory().hosts().facts(host).name;
    Some(format!("there is a container {name} on host {host} already"))
}

/// The names of a unit's containers; `which` tells several units apart.
pub(crate) fn member_names(request: &Request, id: &str, which: Option<&str>) -> Vec<Text> {
    let base = request.members[0].name.as_deref().unwrap_or(id);
    // Hosts may be called what no container can be.
    let plain = |char: char| if char.is_ascii_alphanumeric() || "_.-".contains(char) { char } else { '-' };
    let primary: Text = match which {
        None => base.into(),
        Some(which) => format!("{base}-{}", which.chars().map(plain).collect::<String>()).into(),
    };
    let sidekick = |name: &Text| format!("{primary}-{name}").into();
    let sidekicks = request.members[1..].iter().filter_map(|member| member.name.as_ref()).map(sidekick);
    std::iter::once(primary.clone()).chain(sidekicks).collect()
}

/// The names of all containers of a request, unit by unit.
fn all_names(request: &Request, id: &str) -> Vec<Text> {
    if request.count == 1 {
        return member_names(request, id, None);
    }
    (1..=request.count).flat_map(|number| member_names(request, id, Some(&number.to_string()))).collect()
}

pub(crate) fn promised_replica(request: &Request, room: &Room<'_>, host: u32, names: &[Text]) -> Replica {
    let facts = room.inventory.hosts().facts(host);
    let groups: Vec<PortGroup> = request
        .members
        .iter()
        .zip(names)
        .filter(|(member, _)| !member.ports.is_empty())
        .map(|(member, name)| PortGroup { owner: name.clone(), ports: member.ports.clone() })
        .collect();
    let bound = room.assign(host, &groups, Addresses::Own).unwrap_or_else(|| {
        // The request named the host: it gets its ports whoever else has them, as in the predecessor.
        forced(&groups)
    });
    let mut replica = replica_of(request, (facts.uuid.clone(), facts.name.clone()), names, &bound);
    for (held, member) in replica.members.iter_mut().zip(&request.members) {
        held.system = choose(facts, &member.platforms, request.isolation).map(|choice| Chosen {
            os: choice.platform.os.clone(),
            os_version: choice.platform.build.map(|build| format!("10.0.{build}")),
            architecture: choice.platform.architecture.clone(),
            isolation: choice.isolation.map(|isolation| isolation.name().into()),
            warning: choice.warning,
        });
    }
    if request.requested_host.is_some() {
        let mut free = request.clone();
        free.requested_host = None;
        let need = Need::new(&free, room.inventory, names);
        replica.overridden = need.reasons(room, host).into_iter().map(|reason| reason.detail).collect();
    }
    replica
}

/// One unit of the request on this host (uuid and name), with containers of these names and these ports.
pub(crate) fn replica_of(
    request: &Request,
    (host, host_name): (Text, Text),
    names: &[Text],
    bound: &[crate::port::Bound],
) -> Replica {
    let members = request.members.iter().zip(names).map(|(member, name)| {
        let own: Vec<_> = bound.iter().filter(|bound| bound.owner == *name).cloned().collect();
        let mut keys = Vec::with_capacity(member.keys.len() + 2);
        keys.push(key(Kind::Name, &[name]));
        keys.extend_from_slice(&member.keys);
        Held {
            name: name.clone(),
            system: None,
            container: None,
            promise: Promise { amounts: member.amounts.clone(), bound: own.clone(), keys, ..Promise::default() },
            bound: own,
            state: HeldState::Reserved,
        }
    });
    let mut members: Vec<_> = members.collect();
    // The service counts units, not containers.
    members[0].promise.keys.extend(request.service_key);
    for held in &mut members {
        held.promise.keys.sort_unstable();
        held.promise.keys.dedup();
    }
    Replica { stage: Stage::Reserved, host, host_name, members, overridden: Vec::new() }
}

fn forced(groups: &[PortGroup]) -> Vec<crate::port::Bound> {
    let ports = groups.iter().flat_map(|group| group.ports.iter().map(move |port| (group, port)));
    ports
        .filter(|(_, port)| port.public != 0)
        .map(|(group, port)| crate::port::Bound {
            address: port.address.unwrap_or(WILDCARD),
            public: port.public,
            private: port.private,
            protocol: port.protocol,
            owner: group.owner.clone(),
        })
        .collect()
}

pub(crate) fn answer_of(id: Text, record: &Record, repeated: bool) -> Placement {
    Placement {
        id,
        state: if record.unplaced == 0 { "placed" } else { "partial" },
        dry_run: false,
        repeated,
        placements: record.replicas.iter().map(placed_unit).collect(),
        unplaced: record.unplaced,
        error: None,
        failures: Vec::new(),
        explanation: None,
    }
}

fn placed_unit(replica: &Replica) -> PlacedUnit {
    let containers = replica.members.iter().map(|held| PlacedContainer {
        name: held.name.clone(),
        state: match (&held.state, replica.stage) {
            (_, Stage::Undoing) => "removing",
            (HeldState::Settled(_), _) => "settled",
            (HeldState::Over, _) => "over",
            (HeldState::Reserved, Stage::Reserved) => "reserved",
            (HeldState::Reserved, Stage::Begun) => "starting",
            (HeldState::Reserved, Stage::Started) => "started",
        },
        uuid: match &held.state {
            HeldState::Settled(uuid) => Some(uuid.clone()),
            HeldState::Reserved | HeldState::Over => None,
        },
        container: held.container.clone(),
        labels: [(PLACEMENT_LABEL, held.name.clone())].into(),
        ports: held.bound.iter().map(placed_port).collect(),
        image: held.system.clone(),
    });
    PlacedUnit {
        host: HostName { uuid: replica.host.clone(), name: replica.host_name.clone() },
        containers: containers.collect(),
        overridden: replica.overridden.clone(),
    }
}

fn placed_port(bound: &crate::port::Bound) -> PlacedPort {
    PlacedPort { ip: bound.address, public: bound.public, private: bound.private, protocol: bound.protocol.name() }
}

/// A placement of which only its container tells.
fn settled_before(book: &Book, id: &str) -> Option<Placement> {
    let unit = settled_unit(book.inventory(), &[id.into()])?;
    Some(Placement {
        id: id.into(),
        state: "placed",
        dry_run: false,
        repeated: true,
        placements: vec![unit],
        unplaced: 0,
        error: None,
        failures: Vec::new(),
        explanation: None,
    })
}

fn settled_unit(inventory: &Inventory, names: &[Text]) -> Option<PlacedUnit> {
    let hosts = inventory.hosts();
    let mut containers = Vec::new();
    let mut on = None;
    for name in names {
        let uuid = inventory.placed(name)?;
        let account = inventory.account(uuid)?;
        on = on.or(account.host);
        containers.push(PlacedContainer {
            name: name.clone(),
            state: "settled",
            uuid: Some(uuid.clone()),
            container: None,
            labels: [(PLACEMENT_LABEL, name.clone())].into(),
            ports: account.bound.iter().map(placed_port).collect(),
            image: None,
        });
    }
    let facts = hosts.facts(on?);
    let host = HostName { uuid: facts.uuid.clone(), name: facts.name.clone() };
    Some(PlacedUnit { host, containers, overridden: Vec::new() })
}

fn report(room: &Room<'_>, host: u32) -> HostReport {
    let hosts = room.inventory.hosts();
    let facts = hosts.facts(host);
    let pools = hosts.pools.iter().enumerate().filter(|(pool, _)| room.has_pool(*pool, host)).map(|(pool, name)| {
        let total = hosts.totals[pool][host as usize];
        let used = room.inventory.used(pool)[host as usize];
        let promised = room.promised.amount(pool, host);
        (name.clone(), PoolReport { total, used, promised, free: room.free(pool, host) })
    });
    let mut ports: Vec<_> =
        room.bound(host).map(|bound| PortReport { port: placed_port(bound), owner: bound.owner.clone() }).collect();
    ports.sort_by(|a, b| (a.port.protocol, a.port.public, a.port.ip).cmp(&(b.port.protocol, b.port.public, b.port.ip)));
    HostReport {
        uuid: facts.uuid.clone(),
        name: facts.name.clone(),
        state: facts.state.clone(),
        eligible: facts.refusal.is_none(),
        refusal: facts.refusal.clone(),
        os: facts.system.os.clone(),
        build: facts.system.build.map(|build| build.to_string()),
        labels: facts.labels.iter().cloned().collect(),
        containers: room.inventory.present()[host as usize],
        pools: pools.collect(),
        addresses: facts.addresses.clone(),
        ports,
    }
}
