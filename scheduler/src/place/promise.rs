//! Promising: a placement is committed to the ledger before a response names it.
//!
//! With a ledger of its own, a scheduler writes what it has decided. Where several share one in etcd, another may have
//! promised something on the same hosts in between: what was decided for those hosts is then taken back, and decided
//! again with what the other one promised.

use std::sync::Arc;
use std::time::Duration;

use model::Text;
use tokio::time::{Instant, sleep, timeout};

use crate::clock::Clock;
use crate::ledger::book::Book;
use crate::ledger::draft::{CommitError, TakeOver};
use crate::ledger::etcd::store::EtcdStore;
use crate::ledger::record::{Record, Replica};
use crate::ledger::store::{LedgerStore, PersistError};
use crate::place::answer::{Placement, answer_of, failure};
use crate::place::explain::Explanation;
use crate::place::invalid::Invalid;
use crate::place::refusal::{Refusal, TRIES};
use crate::place::request::Request;
use crate::place::{Placer, begun, count, forget_all};
use crate::start::docker::REQUEST_LABEL;

/// Longest pause between two tries, so that others come to an end.
const PAUSE: Duration = Duration::from_millis(40);

/// Longest wait of a client for etcd; then it has to ask again with the same id.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);

/// Pause between two looks at a placement that another request is about to promise.
const LOOK: Duration = Duration::from_millis(5);

/// Longest wait of a client for a placement that another scheduler starts.
const ELSEWHERE: Duration = Duration::from_secs(30);

/// The result of deciding again.
pub(crate) enum Replanned {
    /// It is promised elsewhere.
    Decided,
    /// There is no room any more.
    Unplaceable(Box<Placement>),
    /// It is no longer there, or another scheduler's.
    Gone,
}

impl From<PersistError> for Refusal {
    fn from(why: PersistError) -> Self {
        match why {
            PersistError::Disk(broken) => Self::WriteFailed(broken),
            PersistError::Etcd(CommitError::Unavailable(why)) => Self::Away(why.into()),
            PersistError::Etcd(CommitError::Foreign) => {
                Self::Unsettled("another scheduler works on it: ask again".into())
            }
            PersistError::Etcd(CommitError::Conflict) => Self::Contended,
            PersistError::Etcd(CommitError::Blocked { claim, holder }) => Self::Taken(blocked(&claim, &holder)),
            PersistError::Etcd(CommitError::TooLarge) => Invalid {
                field: "count".into(),
                problem: "the placement is too large for etcd".into(),
                expected: "fewer units, containers or ports at once".into(),
            }
            .into(),
        }
    }
}

impl Placer {
    /// Places a request and commits it, so that the answer is reliable. Takes as long as etcd does.
    ///
    /// # Cancel safety
    ///
    /// What was begun goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// As [`Placer::place_request`], and if it cannot be committed.
    pub(crate) async fn promise(
        self: &Arc<Self>,
        request: &Request,
        id: &Text,
        clock: Clock,
    ) -> Result<Placement, Refusal> {
        if request.dry_run {
            return self.place_request(request, id, clock.now());
        }
        let (placer, request, id) = (self.clone(), request.clone(), id.clone());
        let promising = tokio::spawn(async move {
            match placer.ledger().store().shared().cloned() {
                Some(shared) => placer.promise_beside(&shared, &request, &id, clock).await,
                None => placer.promise_alone(&request, &id, clock).await,
            }
        });
        promising
            .await
            .unwrap_or_else(|_| Err(Refusal::Unsettled("promising failed, which is a bug: ask again".into())))
    }

    /// [`Placer::promise`] without other schedulers.
    async fn promise_alone(&self, request: &Request, id: &Text, clock: Clock) -> Result<Placement, Refusal> {
        loop {
            let (answer, pending) = self.with(clock.now(), |book| {
                let answer = self.place_in(book, request, id, clock.now())?;
                let promised = !answer.repeated && answer.state != "unplaceable";
                if promised && matches!(self.ledger().store(), LedgerStore::Disk(_)) {
                    book.mark_unsaved(id);
                }
                Ok((answer, book.is_pending(id)))
            })?;
            if answer.repeated && pending {
                // The request that promises it commits it.
                sleep(LOOK).await;
                continue;
            }
            if pending {
                let saved = self.ledger().store().settled(id).await;
                self.with_any(clock.now(), |book| book.mark_saved(id, saved.is_ok()));
                saved?;
            }
            return Ok(answer);
        }
    }

    /// [`Placer::promise`] beside other schedulers.
    async fn promise_beside(
        &self,
        shared: &EtcdStore,
        request: &Request,
        id: &Text,
        clock: Clock,
    ) -> Result<Placement, Refusal> {
        let mut looked = false;
        loop {
            let (known, ending, revision) =
                self.with(clock.now(), |book| Ok((book.record(id).is_some(), book.is_ending(id), book.revision())))?;
            if !known {
                shared.reachable().map_err(Refusal::Away)?;
            }
            if ending {
                let ended = shared.settled(id, None).await;
                ended.map_err(PersistError::Etcd)?;
                continue;
            }
            let answer = self.place_request(request, id, clock.now());
            let refused = match &answer {
                Ok(answer) => answer.state == "unplaceable",
                Err(refusal) => matches!(refusal, Refusal::Taken(_)),
            };
            // Another scheduler may just have freed room or a name, or have promised or deleted this very placement.
            if refused && !looked {
                looked = true;
                let changed = request.id.is_some() && self.look_up(id, clock).await?;
                if changed || shared.look_for_room(revision).await {
                    continue;
                }
            }
            let answer = answer?;
            if refused {
                return Ok(answer);
            }
            if answer.repeated {
                if !self.with_any(clock.now(), |book| book.is_pending(id)) {
                    return Ok(answer);
                }
                // The request that promises it commits it.
                sleep(LOOK).await;
                continue;
            }
            if let Some(answer) = self.commit(shared, request, id, answer, clock).await? {
                return Ok(answer);
            }
        }
    }

    /// Commits what was decided, and decides again on a conflict; `None` when another scheduler has the id.
    async fn commit(
        &self,
        shared: &EtcdStore,
        request: &Request,
        id: &Text,
        answer: Placement,
        clock: Clock,
    ) -> Result<Option<Placement>, Refusal> {
        for attempt in 0..TRIES {
            let why = match shared.settled(id, None).await {
                Ok(()) => {
                    // Also when etcd was lost since: it is promised.
                    return Ok(self.with_any(clock.now(), |book| {
                        let own = book.record(id).filter(|record| record.fingerprint == request.fingerprint);
                        let committed = own.map(|record| answer_of(id.clone(), record, false));
                        committed.map(|committed| Placement { explanation: answer.explanation, ..committed })
                    }));
                }
                Err(CommitError::Foreign) => return Ok(None),
                Err(CommitError::Conflict) => {
                    sleep(shared.some_of(PAUSE * attempt / TRIES)).await;
                    match self.with(clock.now(), |book| {
                        book.split_hosts(clock.now());
                        self.replan(book, request, id)
                    }) {
                        Ok(Replanned::Decided) => continue,
                        Ok(Replanned::Unplaceable(answer)) => return Ok(Some(*answer)),
                        Ok(Replanned::Gone) => return Ok(None),
                        Err(refusal) => {
                            self.with_any(clock.now(), |book| book.release(id));
                            return Err(refusal);
                        }
                    }
                }
                Err(CommitError::Blocked { claim, holder }) => {
                    CommitError::Blocked { claim: shared.key_of(claim), holder }
                }
                Err(why) => why,
            };
            self.with_any(clock.now(), |book| book.release(id));
            return Err(PersistError::Etcd(why).into());
        }
        let wrong = self.with_any(clock.now(), |book| {
            let wrong = book.claim_without_right(id);
            book.release(id);
            wrong
        });
        Err(wrong.map_or(Refusal::Contended, |(claim, holder)| Refusal::Taken(claimed(&shared.key_of(claim), &holder))))
    }

    /// Finds new places for those units on whose hosts another scheduler promised something.
    pub(crate) fn replan(&self, book: &mut Book, request: &Request, id: &Text) -> Result<Replanned, Refusal> {
        if book.is_foreign(id) {
            return Ok(Replanned::Gone);
        }
        let Some((record, recalled)) = book.recall(id) else { return Ok(Replanned::Gone) };
        let mut replicas = record.replicas;
        let (mut lost, mut explanation) = (0, None);
        for old in recalled {
            let names: Vec<Text> = old.members.iter().map(|held| held.name.clone()).collect();
            if let Some(problem) = names.iter().find_map(|name| book.name_taken(name)) {
                forget_all(book, &replicas);
                return Err(Refusal::Taken(problem));
            }
            match self.replan_unit(book, request, &old, &names) {
                Ok(replica) => replicas.push(replica),
                Err(why) => {
                    lost += 1;
                    explanation = explanation.or(Some(why));
                }
            }
        }
        let unplaced = record.unplaced + lost;
        if unplaced > 0 && (replicas.is_empty() || request.atomic) {
            forget_all(book, &replicas);
            let error = failure(unplaced, replicas.len(), explanation.as_ref());
            return Ok(Replanned::Unplaceable(Box::new(Placement {
                id: id.clone(),
                state: "unplaceable",
                dry_run: false,
                repeated: false,
                placements: Vec::new(),
                unplaced: unplaced + count(replicas.len()),
                error: Some(error),
                failures: Vec::new(),
                explanation,
            })));
        }
        book.enter(id.clone(), Record { replicas, unplaced, ..record });
        Ok(Replanned::Decided)
    }

    fn replan_unit(
        &self,
        book: &mut Book,
        request: &Request,
        old: &Replica,
        names: &[Text],
    ) -> Result<Replica, Explanation> {
        let inventory = book.inventory().clone();
        let need = self.need(request, &inventory, names, &[]);
        let found = self.find_again(book, request, &need, &old.host, names);
        found.map(|found| begun(request, found)).ok_or_else(|| self.why_not(book, request, &need))
    }

    /// Why what is known of other schedulers' placements may be old; `None` while etcd answers.
    pub(crate) fn outdated(&self) -> Option<String> {
        let away = self.ledger().store().shared()?.reachable().err()?;
        Some(format!("this is what was known before, other schedulers may have changed it since: {away}"))
    }

    /// Asks etcd for a placement of which another scheduler decides: that may just have promised or deleted it. Returns
    /// whether the book has learned of it, or that it is gone.
    ///
    /// # Errors
    ///
    /// Fails if it is unknown whether there is such a placement; one that the book knows stands while etcd is away.
    pub(crate) async fn look_up(&self, id: &str, clock: Clock) -> Result<bool, Refusal> {
        let Some(shared) = self.ledger().store().shared() else { return Ok(false) };
        let known = |book: &mut Book| book.record(id).is_some() || book.unreadable(id).is_some();
        let (settled, known) = self.with_any(clock.now(), |book| {
            let known = known(book);
            (book.is_unread() || known && !book.is_foreign(id), known)
        });
        if settled || known && shared.reachable().is_err() {
            return Ok(false);
        }
        let uncertain =
            |why| Refusal::Uncertain(format!("it is not known just now whether there is a placement {id}: {why}"));
        let mut learned = shared.watch();
        let found = shared.look_up(id).await.map_err(uncertain)?;
        if known && !found {
            let dropped = async {
                while self.with_any(clock.now(), |book| book.is_foreign(id)) && learned.changed().await.is_ok() {}
            };
            let waited = timeout(PATIENCE, dropped).await;
            return waited.map(|()| true).map_err(|_| uncertain("another scheduler has deleted it".into()));
        }
        // What ended here and is still in etcd would begin again if this scheduler died now.
        if self.with_any(clock.now(), |book| book.is_ending(id)) {
            return Err(uncertain("its deletion is being written to etcd".into()));
        }
        Ok(found && !known)
    }

    /// Waits until the placement is this scheduler's, taking it over from another one that does not work on it.
    ///
    /// # Errors
    ///
    /// Fails if that one does, if etcd cannot be reached, or if its record cannot be read and `take` is not
    /// [`TakeOver::Forced`].
    pub(crate) async fn own(&self, id: &str, take: TakeOver, clock: Clock) -> Result<(), Refusal> {
        let readable = || self.with_any(clock.now(), |book| refuse_unreadable(book, id, take));
        let Some(shared) = self.ledger().store().shared() else { return readable().map(drop) };
        shared.reachable().map_err(Refusal::Away)?;
        if self.with_any(clock.now(), |book| book.is_ending(id)) {
            self.settled(id).await?;
        }
        self.look_up(id, clock).await?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if !readable()? {
                return Ok(());
            }
            let (foreign, pending) = self.with_any(clock.now(), |book| (book.is_foreign(id), book.is_pending(id)));
            if pending {
                sleep(LOOK).await;
            } else if foreign {
                match timeout(PATIENCE, shared.settled(id, Some(take))).await {
                    Ok(Err(CommitError::Foreign)) => return Err(self.is_at_work_elsewhere(id, clock)),
                    Ok(answer) => answer.map_err(PersistError::Etcd)?,
                    Err(_) => break,
                }
            } else {
                return Ok(());
            }
        }
        Err(Refusal::Unsettled("whose it is now is still being written to etcd: ask again".into()))
    }

    /// Waits until all changes of the placement are persistent.
    ///
    /// # Errors
    ///
    /// Fails if they cannot be stored, or etcd does not answer in time.
    pub(crate) async fn settled(&self, id: &str) -> Result<(), Refusal> {
        let unsettled = |_| Refusal::Unsettled("it is still being written to etcd: ask again".into());
        let settled = timeout(PATIENCE, self.ledger().store().settled(id)).await;
        Ok(settled.map_err(unsettled)??)
    }

    /// Whether an engine may be asked to do something for the placement: it is this scheduler's, and no other one can
    /// have taken it over. `undoing` it may also have ended.
    pub(crate) fn may_act(&self, id: &str, undoing: bool, now: Duration) -> bool {
        self.ledger().store().shared().is_none_or(|shared| shared.holds_lease())
            && self.with_any(now, |book| !book.is_foreign(id) && (undoing || book.record(id).is_some()))
    }

    /// Whether another scheduler works on the placement.
    pub(crate) fn works_elsewhere(&self, id: &str, now: Duration) -> bool {
        self.with_any(now, |book| book.is_foreign(id) && book.record(id).is_some_and(Record::is_at_work))
    }

    /// Waits while another scheduler works on the placement.
    ///
    /// # Errors
    ///
    /// Fails if that takes longer than [`ELSEWHERE`].
    pub(crate) async fn finished_elsewhere(&self, id: &str, clock: Clock) -> Result<(), Refusal> {
        let Some(shared) = self.ledger().store().shared() else { return Ok(()) };
        let mut learned = shared.watch();
        let landed = async {
            loop {
                learned.borrow_and_update();
                if !self.works_elsewhere(id, clock.now()) || learned.changed().await.is_err() {
                    return;
                }
            }
        };
        let waited = timeout(ELSEWHERE, landed).await;
        waited.map_err(|_| self.is_at_work_elsewhere(id, clock))
    }

    fn is_at_work_elsewhere(&self, id: &str, clock: Clock) -> Refusal {
        let words = self.work_elsewhere(id, None, clock.now());
        Refusal::Unsettled(words.unwrap_or_else(|| "another scheduler works on it".into()) + "; ask again")
    }
}

/// Whether the stored record of a placement can be read; if not, its containers are unknown, and only force deletes it.
fn refuse_unreadable(book: &Book, id: &str, take: TakeOver) -> Result<bool, Refusal> {
    match book.unreadable(id) {
        None => Ok(true),
        Some(_) if take == TakeOver::Forced => Ok(false),
        Some(why) => Err(unreadable(id, why)),
    }
}

/// The refusal when writing it takes long.
pub(crate) fn undecided() -> Refusal {
    Refusal::Unsettled("it is still being written to etcd, and promised only then: ask again with the same id".into())
}

/// Why a name or a port is blocked by a key in etcd.
fn blocked(key: &str, holder: &str) -> String {
    if holder.is_empty() {
        return format!(
            "the key {key} in etcd prevents it and does not say for which placement: when none has it, \
             `etcdctl del {key}`"
        );
    }
    format!(
        "the key {key} in etcd has it for placement {holder}, of which what is stored cannot be read: \
         `scheduler rm --force {}` deletes both",
        as_typed(holder)
    )
}

/// Why a name or a port is blocked by a key that says another placement than the one that may have it.
fn claimed(key: &str, holder: &str) -> String {
    format!("the key {key} in etcd has it for placement {holder}, which has no such name or port: `etcdctl del {key}`")
}

/// The refusal for a placement whose stored record cannot be read.
pub(crate) fn unreadable(id: &str, why: &str) -> Refusal {
    Refusal::Taken(format!(
        "what the ledger has of placement {id} cannot be read ({why}): `scheduler rm --force {}` deletes it, \
         and leaves alone what containers it may have (label {REQUEST_LABEL}={id})",
        as_typed(id)
    ))
}

/// An id in a command line. Ids of requests are plain, but a person may have written others.
fn as_typed(id: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if id.bytes().all(is_plain) { id.to_owned() } else { format!("{id:?}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use source::Store;

    use super::*;
    use crate::ledger::Ledger;
    use crate::ledger::journal::Journal;
    use crate::place::inventory::Inventory;
    use crate::place::strategy::{Order, Strategy};

    #[tokio::test]
    async fn what_the_disk_refused_is_not_promised_all_the_same() {
        let labels = json!({ "io.berth.docker.endpoint": "unix:///nowhere" });
        let cluster = json!({ "berth": 1, "hosts": [{ "name": "h", "uuid": "u", "memory": 8, "labels": labels }] });
        let (snapshot, _) = model::document::resolve_value(&serde_json::from_value(cluster).unwrap()).unwrap();
        let inventories = Arc::new(Store::new(Inventory::default()));
        inventories.publish(Arc::new(Inventory::new(&Arc::new(snapshot))));
        let placer = Placer::new(inventories, Order::default(), Strategy::default());
        let placer = Arc::new(placer.with_ledger(Ledger::on_disk(Journal::refusing(), [])));
        let request = json!({ "image": "i", "start": true, "ports": ["80:80"], "resources": { "memory": 8 } });
        let request = Request::parse(&serde_json::from_value(request).unwrap()).unwrap();
        let clock = Clock::start();
        let refused = placer.promise(&request, &"web".into(), clock).await;
        assert!(matches!(refused, Err(Refusal::WriteFailed(_))), "{refused:?}");
        assert!(matches!(placer.placement("web", clock.now()), Err(Refusal::Unknown(_))));
        assert_eq!(placer.sizes(clock.now()), (1, 0));
        // A repeated request for what was promised before is answered.
        placer.place_request(&request, "web", clock.now()).unwrap();
        assert!(placer.promise(&request, &"web".into(), clock).await.is_ok_and(|answer| answer.repeated));
    }
}
