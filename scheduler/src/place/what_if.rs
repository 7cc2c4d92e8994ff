//! What if: hosts lost, hosts added, more replicas; what no longer fits. Nothing is promised and nothing is moved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{Entity, Host, Map, Snapshot, Text, Value};
use serde::Serialize;

use crate::ledger::book::Book;
use crate::ledger::record::Record;
use crate::place::Placer;
use crate::place::answer::{HostName, failure};
use crate::place::fields::Fields;
use crate::place::filter::Need;
use crate::place::invalid::Invalid;
use crate::place::inventory::Inventory;
use crate::place::refusal::Refusal;
use crate::place::replica::member_names;
use crate::place::request::Request;
use crate::place::request::limits::COUNT_MAX;
use crate::place::unit::Unit;

/// Most hosts that are lost or added at once.
pub(crate) const HOSTS_MAX: usize = 1024;
/// Most different requests for more.
pub(crate) const PLACE_MAX: usize = 64;
/// Most units that are considered: each costs a pass over the hosts, and together they take a few seconds.
pub(crate) const UNITS_MAX: usize = 20_000;
/// Most units whose failure is explained by all hosts: the others say only that no host fits.
const EXPLAINED_MAX: usize = 16;

/// What would happen.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIf {
    /// Whether everything has a place.
    pub fits: bool,
    /// How many hosts there would be.
    pub hosts: usize,
    /// Units of lost hosts and where they would go.
    pub moved: Vec<Moved>,
    /// Units of lost hosts that would have no place.
    pub stranded: Vec<Stranded>,
    /// What was asked for besides, and where it would go.
    pub placed: Vec<Placed>,
    /// What was asked for and would have no place.
    pub unplaced: Vec<Unplaced>,
    /// Units that end with their host: those of global services, and those that named it.
    pub ended: Vec<Ended>,
}

/// A unit that goes to another host.
#[derive(Clone, Debug, Serialize)]
pub struct Moved {
    /// Its containers.
    pub containers: Vec<Text>,
    /// Where it is.
    pub from: HostName,
    /// Where it would be.
    pub to: HostName,
}

/// A unit that would have no place.
#[derive(Clone, Debug, Serialize)]
pub struct Stranded {
    /// Its containers.
    pub containers: Vec<Text>,
    /// Where it is.
    pub from: HostName,
    /// Why.
    pub error: String,
    /// The smallest changes that would help.
    pub changes: Vec<String>,
}

/// A unit that ends with its host.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    /// Its containers.
    pub containers: Vec<Text>,
    /// Where it is.
    pub from: HostName,
}

/// A replica that was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Placed {
    /// Index in `place`.
    pub place: usize,
    /// The containers' names.
    pub containers: Vec<Text>,
    /// Where it would be.
    pub host: HostName,
}

/// Replicas that were asked for and have no place.
#[derive(Clone, Debug, Serialize)]
pub struct Unplaced {
    /// Index in `place`.
    pub place: usize,
    /// How many.
    pub count: u32,
    /// Why.
    pub error: String,
    /// The smallest changes that would help.
    pub changes: Vec<String>,
}

/// What is asked.
#[derive(Debug, Default)]
struct WhatIfRequest {
    lose: Vec<Text>,
    add: Vec<Added>,
    place: Vec<Request>,
    more: Vec<More>,
}

#[derive(Debug)]
struct Added {
    at: String,
    fields: Map,
    like: Option<Text>,
    count: u32,
}

#[derive(Debug)]
struct More {
    at: String,
    service: Text,
    count: u32,
}

impl WhatIfRequest {
    fn parse(value: &Value) -> Result<Self, Invalid> {
        let fields = Fields::of(value)?;
        fields.only(&[&["add", "lose", "place", "replicas"]])?;
        let mut question = Self { lose: fields.texts("lose")?, ..Self::default() };
        for (at, item) in fields.list("add", HOSTS_MAX)?.iter().enumerate() {
            question.add.push(Added::parse(&fields.entry("add", at, item)?)?);
        }
        for (at, item) in fields.list("place", PLACE_MAX)?.iter().enumerate() {
            let request = Request::parse(item).map_err(|error| {
                let field = if error.field.is_empty() { String::new() } else { format!(".{}", error.field) };
                Invalid { field: format!("place[{at}]{field}"), ..error }
            })?;
            if request.global {
                return Err(Invalid::new(format!("place[{at}].global"), "true", "a count"));
            }
            question.place.push(request);
        }
        for (at, item) in fields.list("replicas", PLACE_MAX)?.iter().enumerate() {
            let entry = fields.entry("replicas", at, item)?;
            entry.only(&[&["count", "service"]])?;
            let service = entry.text("service")?.filter(|path| path.contains('/'));
            let service = service.ok_or_else(|| Invalid::new(entry.at("service"), "missing", "stack/service"))?;
            let count = count_of(&entry)?;
            question.more.push(More { at: entry.at("service"), service, count });
        }
        if question.lose.is_empty() && question.add.is_empty() && question.place.is_empty() && question.more.is_empty()
        {
            return Err(Invalid::new("", "nothing is asked", "lose, add, place or replicas"));
        }
        Ok(question)
    }
}

impl Added {
    fn parse(fields: &Fields<'_>) -> Result<Self, Invalid> {
        fields.only(&[&["count", "labels", "like", "memory", "milli_cpu", "name", "storage_mb"]])?;
        let mut own: Vec<(Text, Value)> = Vec::new();
        for (field, key) in [("memory", "memory"), ("milli_cpu", "milli_cpu"), ("storage_mb", "local_storage_mb")] {
            own.extend(fields.amount(field)?.map(|amount| (key.into(), Value::Int(amount))));
        }
        let labels = fields.labels()?.into_iter().map(|(key, value)| (key, Value::Text(value)));
        let labels: Map = labels.collect();
        if !labels.is_empty() {
            own.push(("labels".into(), labels.into()));
        }
        own.push(("name".into(), fields.text("name")?.unwrap_or_else(|| "added".into()).into()));
        let like = fields.text("like")?;
        Ok(Self { at: fields.at("like"), fields: Map::new(own), like, count: count_of(fields)? })
    }
}

fn count_of(fields: &Fields<'_>) -> Result<u32, Invalid> {
    Ok(fields.int("count", 1, COUNT_MAX)?.and_then(|count| u32::try_from(count).ok()).unwrap_or(1))
}

impl Placer {
    /// Says what would no longer fit with other hosts and more replicas.
    pub fn what_if(&self, value: &Value, now: Duration) -> Result<WhatIf, Refusal> {
        let question = WhatIfRequest::parse(value)?;
        // The ledger is free again before the long work begins.
        let book = self.with(now, |book| Ok(book.clone()))?;
        let before = book.inventory().clone();
        let hosts = before.hosts();
        let mut lost = crate::place::bits::Bits::none(hosts.len());
        for (at, word) in question.lose.iter().enumerate() {
            let host = hosts.find(word).ok_or_else(|| {
                Invalid::new(format!("lose[{at}]"), format!("no host {word}"), "the name or uuid of a host")
            })?;
            lost.insert(host);
        }
        let mut snapshot = before.snapshot();
        add_hosts(&mut snapshot, &question.add, &before)?;
        for host in lost.iter() {
            snapshot.hosts.remove(&hosts.facts(host).uuid);
        }
        let units = Unit::on(&before, |host| lost.contains(host));
        let wanted =
            question.place.iter().map(|request| request.count).chain(question.more.iter().map(|more| more.count));
        let looked_at = units.len() + wanted.map(|count| count as usize).sum::<usize>();
        if looked_at > UNITS_MAX {
            let expected = format!("at most {UNITS_MAX} containers at once");
            // What there is more of is what to ask less of.
            let field = if units.len() > looked_at / 2 { "lose" } else { "place" };
            return Err(Invalid::new(field, format!("{looked_at} containers are concerned"), expected).into());
        }
        let lost_uuids: Vec<_> = lost.iter().map(|host| hosts.facts(host).uuid.clone()).collect();
        let gone = before
            .containers()
            .values()
            .filter(|container| container.host_uuid().is_some_and(|uuid| lost_uuids.contains(uuid)));
        let gone: Vec<_> = gone.map(|container| container.uuid().clone()).collect();
        for uuid in &gone {
            snapshot.containers.remove(uuid);
        }
        let (scratch, promised) = book.moved(Arc::new(before.succeeding(&snapshot)));
        let mut trial = Trial { placer: self, book: scratch, explained: 0 };
        let mut answer = WhatIf {
            fits: true,
            hosts: trial.book.inventory().hosts().len(),
            moved: Vec::new(),
            stranded: Vec::new(),
            placed: Vec::new(),
            unplaced: Vec::new(),
            ended: Vec::new(),
        };
        for unit in &units {
            let (containers, from) = (unit.names(), name_of(&before, unit.host));
            if unit.is_bound() {
                answer.ended.push(Ended { containers, from });
                continue;
            }
            let outcome = match Request::parse(&unit.request(&before).into()) {
                Ok(request) => trial.place(&request, "unit"),
                Err(error) => Err((error.to_string(), Vec::new())),
            };
            answer.add(containers, from, outcome);
        }
        for (id, at) in promised {
            let Some(record) = book.record(&id) else { continue };
            let replica = &record.replicas[at];
            let containers = replica.members.iter().map(|held| held.name.clone()).collect();
            let from = HostName { uuid: replica.host.clone(), name: replica.host_name.clone() };
            let outcome = match Request::parse(&record.asked.clone().into()) {
                Ok(request) => trial.place(&Request { subject: record.subject.clone(), ..request }, &id),
                Err(error) => Err((error.to_string(), Vec::new())),
            };
            answer.add(containers, from, outcome);
        }
        let mut wanted = question.place;
        for more in &question.more {
            let request = another(&book, &more.service).ok_or_else(|| {
                let problem = format!("no container of {} runs or is promised", more.service);
                Invalid::new(&*more.at, problem, "a service that has containers")
            })?;
            wanted.push(Request { count: more.count, ..Request::parse(&request.into())? });
        }
        for (place, request) in wanted.iter().enumerate() {
            for number in 1..=request.count {
                match trial.place(request, &format!("new-{number}")) {
                    Ok((host, containers)) => answer.placed.push(Placed { place, containers, host }),
                    Err((error, changes)) => {
                        // The next one finds no more than this one did.
                        let count = request.count - (number - 1);
                        answer.unplaced.push(Unplaced { place, count, error, changes });
                        break;
                    }
                }
            }
        }
        answer.fits = answer.stranded.is_empty() && answer.unplaced.is_empty();
        Ok(answer)
    }
}

/// Why a unit has no place, and what would help.
type NoPlace = (String, Vec<String>);

impl WhatIf {
    fn add(&mut self, containers: Vec<Text>, from: HostName, outcome: Result<(HostName, Vec<Text>), NoPlace>) {
        match outcome {
            Ok((to, _)) => self.moved.push(Moved { containers, from, to }),
            Err((error, changes)) => self.stranded.push(Stranded { containers, from, error, changes }),
        }
    }
}

/// A book in which anything may be tried.
struct Trial<'a> {
    placer: &'a Placer,
    book: Book,
    explained: usize,
}

impl Trial<'_> {
    fn place(&mut self, request: &Request, id: &str) -> Result<(HostName, Vec<Text>), NoPlace> {
        let names = member_names(request, id, None);
        let need = Need::new(request, self.book.inventory(), &names);
        if let Some(replica) = self.placer.find(&mut self.book, request, &need, &names) {
            return Ok((HostName { uuid: replica.host, name: replica.host_name }, names));
        }
        if self.explained == EXPLAINED_MAX {
            return Err(("no host fits".to_owned(), Vec::new()));
        }
        self.explained += 1;
        let explanation = self.placer.why_not(&self.book, request, &need);
        Err((failure(1, 0, Some(&explanation)), explanation.changes))
    }
}

fn name_of(inventory: &Inventory, host: u32) -> HostName {
    let facts = inventory.hosts().facts(host);
    HostName { uuid: facts.uuid.clone(), name: facts.name.clone() }
}

fn add_hosts(snapshot: &mut Snapshot, added: &[Added], inventory: &Inventory) -> Result<(), Invalid> {
    let mut number = 0_u32;
    for one in added {
        let like = match &one.like {
            None => Map::default(),
            Some(word) => {
                let host = inventory.hosts().find(word);
                let host = host.and_then(|host| snapshot.hosts.get(&*inventory.hosts().facts(host).uuid));
                let expected = "the name or uuid of a host";
                host.ok_or_else(|| Invalid::new(&*one.at, format!("no host {word}"), expected))?.fields().clone()
            }
        };
        for copy in 1..=one.count {
            number += 1;
            if number as usize > HOSTS_MAX {
                return Err(Invalid::new("add", "too many hosts", format!("at most {HOSTS_MAX}")));
            }
            let name = one.fields.text("name").map_or("added", |name| name);
            let name = if one.count == 1 { name.to_owned() } else { format!("{name}-{copy}") };
            let uuid: Text = format!("added-{number:04}-{name}").into();
            let labels = like.map("labels").cloned().unwrap_or_default();
            let own = one.fields.map("labels").into_iter().flatten().cloned();
            let fields = like.with(one.fields.iter().cloned()).with([
                ("uuid".into(), uuid.into()),
                ("name".into(), Value::text(name)),
                ("state".into(), "active".into()),
                ("agent_state".into(), "active".into()),
                ("labels".into(), labels.with(own).into()),
            ]);
            if let Some(host) = Host::new(fields, u32::MAX) {
                snapshot.hosts.insert(Arc::new(host));
            }
        }
    }
    Ok(())
}

/// The request by which one more container of a service would be placed.
fn another(book: &Book, service: &str) -> Option<Map> {
    let inventory = book.inventory();
    let key = crate::place::inventory::key::key(crate::place::inventory::key::Kind::Service, &[service]);
    let hosts: BTreeMap<u32, u32> = inventory.occurrences(&key).iter().copied().collect();
    let units = Unit::on(inventory, |host| hosts.contains_key(&host));
    let of_service = |unit: &&Unit| {
        let accounts = unit.containers.iter().filter_map(|one| inventory.account(one.uuid()));
        accounts.flat_map(|account| &account.keys).any(|own| *own == key)
    };
    // What no source reports yet the ledger knows.
    let is_promised = |record: &&Record| record.replicas.iter().any(|replica| replica.promises(&key));
    let promised = || book.records().map(|(_, record)| record).find(is_promised).map(|record| record.asked.clone());
    let request = units.iter().find(of_service).map(|unit| unit.request(inventory)).or_else(promised)?;
    // A new one gets a name of its own.
    Some(request.without("name"))
}
