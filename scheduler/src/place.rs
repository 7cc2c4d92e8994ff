//! The placement core: answers requests from the inventory and the ledger.

pub(crate) mod answer;
pub(crate) mod bits;
mod constraint;
mod difference;
pub(crate) mod evacuate;
mod explain;
pub(crate) mod fields;
pub(crate) mod filter;
pub(crate) mod hosts;
pub(crate) mod invalid;
pub(crate) mod inventory;
mod keep;
pub(crate) mod life;
pub(crate) mod name;
pub(crate) mod port;
pub(crate) mod promise;
mod rebalance;
pub(crate) mod refusal;
pub(crate) mod rehearsal;
pub(crate) mod replica;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod room;
pub(crate) mod score;
pub(crate) mod strategy;
mod taint;
mod unit;
mod what_if;
pub(crate) mod windows;
pub(crate) mod work;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use model::{Text, Value};
use source::{Revision, Store, Watcher};

use crate::audit::Audit;
use crate::audit::line::{Action, AuditLine};
use crate::clock::Clock;
use crate::ledger::Ledger;
use crate::ledger::book::Book;
use crate::ledger::record::{Record, Replica, Stage};
use crate::place::answer::{FailedStart, Placement, answer_of, failure, placed_unit, unreadable_answer};
use crate::place::bits::Bits;
use crate::place::difference::differences;
use crate::place::explain::{Explanation, explain};
use crate::place::filter::Need;
use crate::place::filter::check::Check;
use crate::place::inventory::Inventory;
use crate::place::promise::unreadable;
use crate::place::refusal::Refusal;
use crate::place::replica::{member_names, promised_replica};
use crate::place::report::{HostDetails, HostReport, HostSummary, image_report, ports, report, summary};
use crate::place::request::Request;
use crate::place::room::Room;
use crate::place::score::{Queue, Ranking, Ties};
use crate::place::strategy::{Order, Strategy};
use crate::policy::{Denial, Policy};
use crate::start::credentials::RequestCredentials;
use crate::start::endpoint::Endpoints;
use crate::start::platforms::Platforms;
use crate::start::silent::SilentEngines;
use crate::subject::Subject;

/// The placement core.
#[derive(Debug)]
pub struct Placer {
    inventories: Arc<Store<Inventory>>,
    ledger: Ledger,
    ranking: Ranking,
    endpoints: Endpoints,
    platforms: Platforms,
    silent_engines: SilentEngines,
    policy: Arc<Store<Policy>>,
    audit: Audit,
}

impl Placer {
    /// A placer over these inventories.
    pub fn new(inventories: Arc<Store<Inventory>>, order: Order, strategy: Strategy) -> Self {
        Self {
            inventories,
            ledger: Ledger::new(),
            ranking: Ranking { order, strategy, ties: Ties::First },
            endpoints: Endpoints::default(),
            platforms: Platforms::default(),
            silent_engines: SilentEngines::default(),
            policy: Arc::new(Store::new(Policy::default())),
            audit: Audit::default(),
        }
    }

    /// The same, with endpoints of engines besides the labels of hosts.
    #[must_use]
    pub(crate) fn with_endpoints(self, endpoints: Endpoints) -> Self {
        Self { endpoints, ..self }
    }

    /// The same with what this says of who may do what.
    #[must_use]
    pub(crate) fn with_policy(self, policy: Arc<Store<Policy>>) -> Self {
        Self { policy, ..self }
    }

    /// The same with a log of who had what done.
    #[must_use]
    pub(crate) fn with_audit(self, audit: Audit) -> Self {
        Self { audit, ..self }
    }

    /// Who may do what.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// The log of who had what done.
    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Notes that this scheduler goes on with a placement from here on.
    pub(crate) fn audit_take_over(&self, id: &Text, outcome: &str, now: Duration) {
        let known = self.with_any(now, |book| {
            let record = book.record(id)?;
            let subject = record.stack.as_ref().map_or_else(|| record.subject.clone(), |stack| stack.subject());
            Some((subject, answer_of(id.clone(), record, true)))
        });
        let Some((subject, placement)) = known else { return };
        let hosts = placement.placements.iter().map(|unit| unit.host.name.clone()).collect();
        self.audit.put(&AuditLine {
            request: id.clone(),
            hosts,
            ..AuditLine::new(Action::TakeOver, &subject, outcome)
        });
    }

    /// Notes what is done about a unit that failed.
    pub(crate) fn audit_failure(&self, (id, at): (&Text, usize), action: Action, why: &str, now: Duration) {
        let known = self.with_any(now, |book| {
            let record = book.record(id)?;
            Some((record.subject.clone(), record.replicas.get(at)?.host_name.clone()))
        });
        let Some((subject, host)) = known else { return };
        self.audit.put(&AuditLine {
            request: id.clone(),
            hosts: vec![host],
            reason: why.to_owned(),
            ..AuditLine::new(action, &subject, "begun")
        });
    }

    /// The same with another ledger.
    #[must_use]
    pub(crate) fn with_ledger(self, ledger: Ledger) -> Self {
        Self { ledger, ..self }
    }

    /// What was promised.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How hosts are compared for a request, when no other scheduler promises room on them.
    pub(crate) fn ranking(&self, request: &Request) -> Ranking {
        Ranking { strategy: request.strategy.unwrap_or(self.ranking.strategy), ..self.ranking }
    }

    /// How hosts are compared when there is no request.
    pub(crate) fn usual_ranking(&self) -> Ranking {
        self.ranking
    }

    /// Places what the value asks for; `fallback_id` names it when it has no id.
    pub fn place(&self, value: &Value, fallback_id: &str, now: Duration) -> Result<Placement, Refusal> {
        let request = Request::parse(value)?;
        self.place_request(&request, fallback_id, now)
    }

    /// [`Placer::place`] for a request that is already parsed.
    pub fn place_request(&self, request: &Request, fallback_id: &str, now: Duration) -> Result<Placement, Refusal> {
        let id: Text = request.id.clone().unwrap_or_else(|| fallback_id.into());
        self.with(now, |book| self.place_in(book, request, &id, now))
    }

    /// [`Placer::place_request`] for a caller that has the book.
    pub(crate) fn place_in(
        &self,
        book: &mut Book,
        request: &Request,
        id: &Text,
        now: Duration,
    ) -> Result<Placement, Refusal> {
        if !request.dry_run
            && let Some(answer) = self.repeat(book, request, id)?
        {
            return Ok(answer);
        }
        let (replicas, unplaced, explanation) = self.place_all(book, request, id)?;
        let record = !request.dry_run && !has_failed(request, &replicas, unplaced);
        let answer = decided(request, id, &replicas, unplaced, explanation);
        if record {
            let replicas = replicas.into_iter().map(|replica| begun(request, replica)).collect();
            let (fingerprint, subject, asked) = (request.fingerprint, request.subject.clone(), request.asked.clone());
            let (unit, stack, evacuates) = (request.unit.clone(), None, None);
            let record = Record { fingerprint, made: now, replicas, unplaced, subject, asked, unit, stack, evacuates };
            book.enter(id.clone(), record);
        } else {
            forget_all(book, &replicas);
        }
        Ok(answer)
    }

    /// The answer given before to the same request. Only the ledger proves it: any client can set any label.
    fn repeat(&self, book: &Book, request: &Request, id: &Text) -> Result<Option<Placement>, Refusal> {
        let Some(record) = book.record(id) else {
            return book.unreadable(id).map_or(Ok(None), |why| Err(unreadable(id, why)));
        };
        if record.fingerprint == request.fingerprint {
            return Ok(Some(answer_of(id.clone(), record, true)));
        }
        let asked = Request::parse(&record.asked.clone().into());
        let policy = self.policy.load_full();
        // What another one's request has is not to be found out by guessing.
        let may_see = asked.is_ok_and(|asked| policy.check_removal(&request.subject, &asked).is_ok());
        Err(Refusal::Taken(if may_see {
            let differing = differences(&record.asked, &request.asked).join(", ");
            format!(
                "id {id} belongs to a different request, which differs in {differing}: take another id, or first remove what has this one (scheduler rm {id})"
            )
        } else {
            format!("id {id} belongs to a request that you may not see: take another id")
        }))
    }

    /// Explains for every host whether the unit fits, and why not.
    pub fn explain(&self, value: &Value, now: Duration) -> Result<Explanation, Refusal> {
        self.explain_request(&Request::parse(value)?, now)
    }

    /// [`Placer::explain`] for a request that is already parsed.
    pub(crate) fn explain_request(&self, request: &Request, now: Duration) -> Result<Explanation, Refusal> {
        // The ledger is free again before the long work begins.
        let (inventory, promised) = self.with(now, |book| Ok((book.inventory().clone(), book.promised().clone())))?;
        let room = Room { inventory: &inventory, promised: &promised };
        let need = self.need(request, &inventory, &member_names(request, "container", None), &[]);
        Ok(explain(&need, &room, self.ranking(request)))
    }

    /// The hosts where a unit of a request fits: those that [`Placer::explain`] counts, without why others do not.
    ///
    /// # Errors
    ///
    /// As [`Placer::explain`].
    pub(crate) fn fitting_hosts(&self, request: &Request, now: Duration) -> Result<Vec<Text>, Refusal> {
        let (inventory, promised) = self.with(now, |book| Ok((book.inventory().clone(), book.promised().clone())))?;
        let room = Room { inventory: &inventory, promised: &promised };
        let need = self.need(request, &inventory, &member_names(request, "container", None), &[]);
        let fitting = need.candidates(&room);
        Ok(fitting.iter().map(|host| inventory.hosts().facts(host).name.clone()).collect())
    }

    /// The placement with this id.
    pub fn placement(&self, id: &str, now: Duration) -> Result<Placement, Refusal> {
        self.with(now, |book| match (book.record(id), book.unreadable(id)) {
            (Some(_), _) if book.is_pending(id) => {
                Err(Refusal::Uncertain(format!("placement {id} is being written to the ledger: ask again")))
            }
            (Some(record), _) if record.is_placement() => Ok(answer_of(id.into(), record, true)),
            (None, Some(why)) => Ok(unreadable_answer(id.into(), why)),
            (Some(_) | None, _) => Err(Refusal::Unknown(id.into())),
        })
    }

    /// All placements that are held, by id.
    pub(crate) fn placements(&self, now: Duration) -> Result<Vec<Placement>, Refusal> {
        self.with(now, |book| {
            let readable = book.records().filter(|(id, record)| record.is_placement() && !book.is_pending(id));
            let readable = readable.map(|(id, record)| answer_of(id.clone(), record, true));
            let unreadable = book.all_unreadable().map(|(id, why)| unreadable_answer(id.clone(), why));
            let mut all: Vec<_> = readable.chain(unreadable).collect();
            all.sort_by(|a, b| a.id.cmp(&b.id));
            Ok(all)
        })
    }

    /// Frees the room of a placement. Its containers, if there are any, occupy theirs until they are gone.
    pub fn release_placement(&self, id: &str, now: Duration) -> Result<Placement, Refusal> {
        self.with(now, |book| {
            let answer = match (book.release(id), book.delete_unreadable(id)) {
                (Some(record), _) => answer_of(id.into(), &record, false),
                (None, Some(why)) => unreadable_answer(id.into(), &why),
                (None, None) => return Err(Refusal::Unknown(id.into())),
            };
            Ok(Placement { state: "released", repeated: false, ..answer })
        })
    }

    /// What is known of every host, by id.
    pub fn hosts(&self, now: Duration) -> Result<Vec<HostReport>, Refusal> {
        let (inventory, promised) = self.with(now, |book| Ok((book.inventory().clone(), book.promised().clone())))?;
        let room = Room { inventory: &inventory, promised: &promised };
        let reports = (0..count(inventory.hosts().len())).map(|host| report(&room, host));
        let reported = |report: HostReport| {
            let away = self.silent_engines.why(&report.uuid);
            report.without(away)
        };
        Ok(reports.map(reported).collect())
    }

    /// The same in short.
    pub(crate) fn host_summaries(&self, now: Duration) -> Result<Vec<HostSummary>, Refusal> {
        let (inventory, promised) = self.with(now, |book| Ok((book.inventory().clone(), book.promised().clone())))?;
        let room = Room { inventory: &inventory, promised: &promised };
        let summaries = (0..count(inventory.hosts().len())).map(|host| summary(&room, host));
        let refused = |host: HostSummary| {
            let refusal = host.refusal.or_else(|| self.silent_engines.why(&host.uuid));
            HostSummary { refusal, ..host }
        };
        Ok(summaries.map(refused).collect())
    }

    /// The details of a host; none if there is no such host.
    ///
    /// What a registry said to a client with credentials of its own is not used.
    pub fn host_details(&self, host: &str, now: Duration) -> Result<HostDetails, Refusal> {
        let (inventory, promised, asked) = self.with(now, |book| {
            let placements = book.records().filter(|(_, record)| record.is_placement() && !record.is_over());
            let asked: Vec<_> = placements.map(|(_, record)| record.asked.clone()).collect();
            Ok((book.inventory().clone(), book.promised().clone(), asked))
        })?;
        let room = Room { inventory: &inventory, promised: &promised };
        let Some(host) = inventory.hosts().find(host) else { return Ok(HostDetails::default()) };
        let mut images = BTreeSet::new();
        for asked in asked {
            let Ok(mut request) = Request::parse(&asked.into()) else { continue };
            self.platforms.fill(&mut request, &RequestCredentials::default());
            let isolation = request.isolation;
            let members = request.members.into_iter();
            images.extend(members.filter_map(|member| Some((member.image?, member.platforms, isolation))));
        }
        let images = images.into_iter().map(|image| image_report(&room, host, image)).collect();
        Ok(HostDetails { ports: ports(&room, host), images })
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
            let why = self.ledger.store().shared().and_then(|shared| shared.reachable().err());
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
        let ranking = self.ranking(request);
        let inventory = book.inventory().clone();
        let mut need = self.need(request, &inventory, &member_names(request, id, None), &[]);
        let mut explanation = request.explain.then(|| explain(&need, &book.room(), ranking));
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
                queue = Queue::new(&need, &room, Ranking { ties: book.ties(), ..ranking });
            }
            let best = if let Some(queue) = &mut queue {
                // Only now: what stands in the way of the next one is what the last one has.
                if let Some(last) = last {
                    queue.put_back(&need, &room, last);
                }
                queue.pop()
            } else {
                let ranking = Ranking { ties: book.ties(), ..ranking };
                score::best(&need, &room, &need.candidates(&room), ranking)
            };
            let Some(host) = best else {
                // The next one finds no more than this one did.
                unplaced = wanted - (number - 1);
                explanation = explanation.or_else(|| Some(explain(&need, &room, ranking)));
                break;
            };
            if request.global {
                names = member_names(request, id, Some(&inventory.hosts().facts(host).name));
            }
            if let Some(problem) = names.iter().find_map(|name| book.name_taken(name)).filter(|_| !request.dry_run) {
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
                explanation = Some(explain(&need, &book.room(), ranking));
            }
        }
        Ok((replicas, unplaced, explanation))
    }

    /// Whether the policy allows a request, as far as that does not depend on the host.
    ///
    /// # Errors
    ///
    /// [`Refusal::Forbidden`] with the rule that it breaks.
    pub(crate) fn permit(&self, request: &Request) -> Result<(), Refusal> {
        let policy = self.policy.load_full();
        let inventory = self.inventories.load_full();
        policy.check(request, &self.endpoints.local(inventory.hosts())).map_err(Box::new)?;
        let requested = request.requested_host.as_ref().and_then(|word| inventory.hosts().find(word));
        if let Some(facts) = requested.map(|host| inventory.hosts().facts(host)) {
            policy.check_host(&request.subject, &facts.name, &facts.uuid).map_err(Box::new)?;
        }
        Ok(())
    }

    /// Whether the policy allows to start a unit where it is promised; another scheduler may have promised it, or this
    /// one under another policy.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn permit_start(&self, request: &Request, replica: &Replica) -> Result<(), Denial> {
        let policy = self.policy.load_full();
        policy.check(request, &self.endpoints.local(self.inventories.load_full().hosts()))?;
        policy.check_host(&request.subject, &replica.host_name, &replica.host)
    }

    /// Whether the policy allows a subject to remove a placement.
    ///
    /// # Errors
    ///
    /// [`Refusal::Forbidden`] with the rule that it breaks, and [`Refusal::Uncertain`] if it is unknown what was asked.
    pub(crate) async fn permit_removal(&self, subject: &Subject, id: &str, clock: Clock) -> Result<(), Refusal> {
        let policy = self.policy.load_full();
        if policy.rules(subject).take_any_stack() {
            return Ok(());
        }
        self.look_up(id, clock).await?;
        let (asked, unreadable) = self.with_any(clock.now(), |book| {
            (book.record(id).map(|record| record.asked.clone()), book.unreadable(id).is_some())
        });
        let Some(asked) = asked else {
            // What cannot be read may be of any stack.
            return if unreadable { self.permit_everything(subject) } else { Ok(()) };
        };
        let request = Request::parse(&asked.into())?;
        Ok(policy.check_removal(subject, &request).map_err(Box::new)?)
    }

    /// Whether the policy allows a subject to see and restart containers that were asked for so, and to run commands in them if
    /// `exec` is set.
    ///
    /// # Errors
    ///
    /// [`Refusal::Forbidden`] with the rule that it breaks.
    pub(crate) fn permit_inside(&self, subject: &Subject, asked: model::Map, exec: bool) -> Result<(), Refusal> {
        let request = Request::parse(&asked.into())?;
        Ok(self.policy.load_full().check_inside(subject, &request, exec).map_err(Box::new)?)
    }

    /// Whether the policy allows a subject to reserve and release room by events.
    ///
    /// # Errors
    ///
    /// [`Refusal::Forbidden`] with the rule that it breaks.
    pub(crate) fn permit_event(&self, subject: &Subject) -> Result<(), Refusal> {
        Ok(self.policy.load_full().check_nameless(subject).map_err(Box::new)?)
    }

    /// Whether the policy allows a subject to touch placements of every stack on every host.
    ///
    /// # Errors
    ///
    /// [`Refusal::Forbidden`] with the rule that it breaks.
    pub(crate) fn permit_everything(&self, subject: &Subject) -> Result<(), Refusal> {
        Ok(self.policy.load_full().check_everything(subject).map_err(Box::new)?)
    }

    /// What a request needs, of hosts that can start it when it is to be started.
    pub(crate) fn need(&self, request: &Request, inventory: &Inventory, names: &[Text], tried: &[FailedStart]) -> Need {
        let mut need = Need::new(request, inventory, names);
        let policy = self.policy.load_full();
        let rules = policy.rules(&request.subject);
        if !rules.take_any_host() {
            let mut hosts = Bits::all(inventory.hosts().len());
            hosts.retain(|host| rules.take_host(inventory.hosts().facts(host)));
            need.checks.push(Check::Permitted { hosts, subject: request.subject.clone() });
        }
        if request.start {
            need.checks.push(Check::Engine(self.endpoints.known(inventory.hosts())));
        }
        let away = self.silent_engines.list();
        if !away.is_empty() {
            let host = |(host, why): (Text, String)| Some((inventory.hosts().index(&host)?, why));
            need.checks.push(Check::Answering(away.into_iter().filter_map(host).collect()));
        }
        if !tried.is_empty() {
            let host =
                |failure: &FailedStart| Some((inventory.hosts().index(&failure.host.uuid)?, failure.error.clone()));
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

    /// The hosts whose engines do not answer.
    pub(crate) fn silent_engines(&self) -> &SilentEngines {
        &self.silent_engines
    }

    /// What is known of hosts and containers.
    pub(crate) fn inventory(&self) -> Arc<Inventory> {
        self.inventories.load_full()
    }

    /// Says when the hosts or containers change.
    pub(crate) fn watch_inventories(&self) -> Watcher {
        self.inventories.watch()
    }

    /// What is known of images.
    pub(crate) fn platforms(&self) -> &Platforms {
        &self.platforms
    }

    /// Promises one unit the best host there is for it; `None` when there is none.
    pub(crate) fn find(&self, book: &mut Book, request: &Request, need: &Need, names: &[Text]) -> Option<Replica> {
        let room = book.room();
        let ranking = Ranking { ties: book.ties(), ..self.ranking(request) };
        let host = score::best(need, &room, &need.candidates(&room), ranking)?;
        let replica = promised_replica(request, &room, host, names);
        book.promise(&replica);
        Some(replica)
    }

    /// [`Self::find`] for a unit that was on a host before: one of those of which each host has one stays there.
    pub(crate) fn find_again(
        &self,
        book: &mut Book,
        request: &Request,
        need: &Need,
        before: &str,
        names: &[Text],
    ) -> Option<Replica> {
        if !request.global {
            return self.find(book, request, need, names);
        }
        let room = book.room();
        let host = room.inventory.hosts().index(before).filter(|host| need.candidates(&room).contains(*host))?;
        let replica = promised_replica(request, &room, host, names);
        book.promise(&replica);
        Some(replica)
    }

    /// Why a unit fits nowhere, and what would help.
    pub(crate) fn why_not(&self, book: &Book, request: &Request, need: &Need) -> Explanation {
        explain(need, &book.room(), self.ranking(request))
    }
}

/// Whether nothing is promised of a request that was placed like this.
fn has_failed(request: &Request, replicas: &[Replica], unplaced: u32) -> bool {
    unplaced > 0 && (replicas.is_empty() || request.atomic)
}

/// The answer to a request that was placed like this.
fn decided(
    request: &Request,
    id: &Text,
    replicas: &[Replica],
    unplaced: u32,
    explanation: Option<Explanation>,
) -> Placement {
    let failed = has_failed(request, replicas, unplaced);
    let placed = |replica| placed_unit(replica, &request.asked);
    Placement {
        id: id.clone(),
        state: match unplaced {
            _ if failed => "unplaceable",
            0 => "placed",
            _ => "partial",
        },
        dry_run: request.dry_run,
        repeated: false,
        placements: if failed { Vec::new() } else { replicas.iter().map(placed).collect() },
        unplaced: if failed { unplaced + count(replicas.len()) } else { unplaced },
        error: failed.then(|| failure(unplaced, replicas.len(), explanation.as_ref())),
        failures: Vec::new(),
        explanation,
    }
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

/// A unit as it is recorded: one that the scheduler starts itself is begun, by an attempt that cannot be guessed.
pub(crate) fn begun(request: &Request, replica: Replica) -> Replica {
    if !request.start {
        return Replica { stage: Stage::Reserved, ..replica };
    }
    // Keys of the standard library's hashes are random, and cannot be derived from any value.
    let [one, other] = [0, 1].map(|half| RandomState::new().hash_one(half));
    Replica { stage: Stage::Begun, attempt: Some(format!("{one:016x}{other:016x}").into()), ..replica }
}

pub(crate) fn forget_all(book: &mut Book, replicas: &[Replica]) {
    for replica in replicas {
        book.forget(replica);
    }
}

pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
