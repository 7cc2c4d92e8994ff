//! Writes changes to etcd: one transaction at a time, and no further one while the outcome of the last is unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use etcd::{Compare, EtcdError, Op, OpResult, Txn};
use model::Text;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::ledger::draft::{CommitError, TakeOver, TxnDraft};
use crate::ledger::etcd::context::{FAREWELL, PAUSE_MAX, PAUSE_MIN, SyncContext, survived};
use crate::ledger::etcd::evictions::is_denied;
use crate::ledger::etcd::keys::{Key, Keys, Presence};
use crate::ledger::etcd::store::{CATCH_UP, CommitRequest, EtcdStore};

/// Writes what changes.
pub(super) struct Writer {
    context: SyncContext,
    requests: mpsc::Receiver<CommitRequest>,
    waiting: HashMap<Text, Vec<oneshot::Sender<Result<(), CommitError>>>>,
    takes: BTreeMap<Text, TakeOver>,
    /// In which revision our presence was put; 0: it is to be put.
    presence: i64,
    /// Whether the last transaction may have been done.
    in_doubt: bool,
    turns: Turns,
}

impl Writer {
    pub(super) fn new(context: SyncContext, requests: mpsc::Receiver<CommitRequest>) -> Self {
        let (waiting, takes) = (HashMap::new(), BTreeMap::new());
        Self { context, requests, waiting, takes, presence: 0, in_doubt: false, turns: Turns::default() }
    }

    pub(super) async fn run(self, stop: CancellationToken) {
        let too_late = async {
            stop.cancelled().await;
            sleep(FAREWELL).await;
        };
        tokio::select! {
            () = self.work(stop.clone()) => {}
            () = too_late => warn!("not everything was written to etcd before the stop: the other schedulers find out"),
        }
    }

    /// Waits for something to write, and writes it; once more after `stop`.
    async fn work(mut self, stop: CancellationToken) {
        let mut pause = PAUSE_MIN;
        loop {
            tokio::select! {
                () = stop.cancelled() => {}
                request = self.requests.recv() => if let Some(request) = request { self.accept(request) },
                () = self.context.shared.changed.notified() => {}
            }
            while let Ok(request) = self.requests.try_recv() {
                self.accept(request);
            }
            match survived(self.write()).await {
                Some(Ok(())) => pause = PAUSE_MIN,
                failed => {
                    match failed {
                        Some(Err(error)) => self.context.shared.is_away(&error),
                        _ => self.has_failed(),
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    self.context.shared.something_changed();
                }
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }

    fn accept(&mut self, request: CommitRequest) {
        if let Some(take) = request.take {
            self.takes.insert(request.id.clone(), take);
        }
        self.waiting.entry(request.id).or_default().push(request.reply);
    }

    fn answer(&mut self, id: &Text, result: &Result<(), CommitError>) {
        self.takes.remove(id);
        for waiter in self.waiting.remove(id).into_iter().flatten() {
            // The receiver may have gone away.
            let _ = waiter.send(result.clone());
        }
    }

    /// Writes all there is to write.
    async fn write(&mut self) -> Result<(), EtcdError> {
        if self.context.shared.barred.load(Ordering::Relaxed) || self.context.book(|book| book.is_unread()) {
            // The follower says why, and when that is over.
            self.refuse(&self.context.shared.reachable().err().unwrap_or_default());
            return Ok(());
        }
        let mut ids = BTreeSet::new();
        let written = self.write_these(&mut ids).await;
        if let Err(error) = &written {
            self.context.book(|book| book.change_again(ids));
            if !self.in_doubt {
                self.refuse(&format!("cannot reach etcd ({error}): nothing is promised"));
            }
        }
        written
    }

    /// The writer panicked: it is unknown whether something was done, so everything is written and read again.
    fn has_failed(&mut self) {
        self.presence = 0;
        self.in_doubt = true;
        // The callers get no answer that nothing was done, and ask again.
        self.waiting.clear();
        self.takes.clear();
        self.context.shared.has_failed();
        self.context.shared.again.notify_one();
        self.context.book(|book| {
            let all: Vec<Text> = book.records().map(|(id, _)| id.clone()).collect();
            book.change_again(all);
        });
    }

    /// Answers all waiting requests that nothing was done for them.
    fn refuse(&mut self, why: &str) {
        let waiting: Vec<Text> = self.waiting.keys().cloned().collect();
        for id in waiting {
            self.answer(&id, &Err(CommitError::Unavailable(why.to_owned())));
        }
    }

    async fn write_these(&mut self, ids: &mut BTreeSet<Text>) -> Result<(), EtcdError> {
        loop {
            self.be_present().await?;
            // What came while the last transaction was done need not wait for a large placement to be written.
            while let Ok(request) = self.requests.try_recv() {
                self.accept(request);
            }
            ids.extend(self.waiting.keys().cloned());
            let drafted = self.context.book(|book| {
                ids.extend(book.take_changed());
                ids.extend(book.orphans());
                book.draft(&self.turns.order(ids), &self.takes, self.presence)
            });
            let refused = drafted.refused.into_iter().map(|(id, why)| (id, Err(why)));
            for (id, result) in drafted.done.into_iter().map(|id| (id, Ok(()))).chain(refused) {
                ids.remove(&id);
                self.turns.large.remove(&id);
                self.answer(&id, &result);
            }
            if drafted.draft.is_empty() {
                return Ok(());
            }
            self.turns.take(&drafted.draft);
            let draft = drafted.draft;
            let is_eviction = |key: &Key| matches!(key, Key::Evicted(_));
            let evicts = draft.puts.keys().chain(&draft.deletes).any(is_eviction);
            let keys: Vec<(Key, i64)> = draft.expects.iter().map(|(key, is)| (key.clone(), *is)).collect();
            match self.context.client.txn(transaction(&self.context.keys, draft)).await {
                Ok(outcome) if outcome.succeeded => {
                    self.context.shared.is_back_after_write();
                    self.caught_up(outcome.revision, false).await;
                }
                // The book learns what is different, and the next draft says what follows from that.
                Ok(outcome) => {
                    let (mut latest, mut missing) = (0, false);
                    for ((key, expected), result) in keys.into_iter().zip(outcome.results) {
                        let OpResult::Pairs(pairs) = result else { continue };
                        let is = pairs.first().map_or(0, |pair| pair.mod_revision);
                        if is == expected {
                            continue;
                        }
                        if let Key::Scheduler(id) = &key
                            && *id == self.context.shared.me
                        {
                            self.presence = 0;
                            self.context.shared.held.ended();
                        }
                        latest = latest.max(is);
                        missing |= is == 0;
                    }
                    let target = if missing { outcome.revision } else { latest };
                    self.caught_up(target, missing).await;
                }
                Err(EtcdError::Refused(why)) if evicts && is_denied(&why) => {
                    self.context.book(|book| book.set_may_evict(false));
                    self.context.shared.evictions.notify_one();
                }
                Err(error) => {
                    self.in_doubt = matches!(error, EtcdError::Lost(_) | EtcdError::TooLarge);
                    if self.in_doubt {
                        self.presence = 0;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Puts the presence of this scheduler; a transaction whose response was lost can no longer succeed afterwards.
    async fn be_present(&mut self) -> Result<(), EtcdError> {
        let shared = self.context.shared.clone();
        if self.presence != 0 && shared.lease.id().is_some() && !shared.absent.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.presence = 0;
        match self.put_presence(&shared).await {
            // It expired unnoticed, for example because this process was suspended: the next one is granted at once.
            Err(EtcdError::LeaseGone) => self.put_presence(&shared).await,
            other => other,
        }
    }

    async fn put_presence(&mut self, shared: &EtcdStore) -> Result<(), EtcdError> {
        if shared.lease.id().is_none() {
            shared.held.ended();
        }
        let lease = shared.lease.get_or_grant().await?;
        shared.held.renewed(shared.lease.asked());
        let key = self.context.keys.of(&Key::Scheduler(shared.me.clone()));
        let value = Presence::written(std::process::id(), self.context.clock.now(), shared.secrets.clone());
        match self.context.client.put(key.as_bytes(), &value, lease).await {
            Ok(revision) => {
                self.caught_up(revision, false).await;
                self.presence = revision;
                self.in_doubt = false;
                shared.held.present();
                Ok(())
            }
            Err(error) => {
                if error == EtcdError::LeaseGone {
                    shared.held.ended();
                    shared.lease.forget(lease);
                }
                Err(error)
            }
        }
    }

    /// Waits until the book is as of this revision at least.
    async fn caught_up(&self, revision: i64, reread: bool) {
        let shared = &self.context.shared;
        let mut learned = shared.watch();
        if reread {
            shared.again.notify_one();
        }
        while timeout(CATCH_UP, learned.wait_for(|learned| *learned >= revision)).await.is_err() {
            shared.again.notify_one();
        }
    }
}

/// Whose turn it is: placements that are too large for one transaction take turns with all others, so that these do not
/// wait for hundreds of transactions.
#[derive(Debug, Default)]
struct Turns {
    /// Of which a piece was written.
    large: BTreeSet<Text>,
    /// Which ones the last transaction was about.
    last: Vec<Text>,
    /// Whether it was a piece.
    was_piece: bool,
}

impl Turns {
    /// In which order the next transaction is to be drafted.
    fn order(&self, ids: &BTreeSet<Text>) -> Vec<Text> {
        let is_large = |id: &&Text| self.large.contains(*id);
        // Those that are done by now take no room, and learn it at once.
        let last = || self.last.iter().filter(|id| ids.contains(*id) && !is_large(id));
        let others = ids.iter().filter(|id| !is_large(id) && !self.last.contains(*id));
        let large = ids.iter().filter(is_large);
        if self.was_piece {
            last().chain(others).chain(large).cloned().collect()
        } else {
            last().chain(large).chain(others).cloned().collect()
        }
    }

    /// Notes what the next transaction is about.
    fn take(&mut self, draft: &TxnDraft) {
        self.last.clone_from(&draft.parts);
        self.was_piece = draft.is_piece;
        if draft.is_piece {
            self.large.extend(draft.parts.first().cloned());
        }
    }
}

fn transaction(keys: &Keys, draft: TxnDraft) -> Txn {
    let bytes = |key: &Key| keys.of(key).into_bytes();
    let compare = draft.expects.iter().map(|(key, revision)| Compare::unchanged(bytes(key), *revision)).collect();
    let failure = draft.expects.keys().map(|key| Op::Get(bytes(key))).collect();
    let puts = draft.puts.into_iter().map(|(key, value)| Op::Put { key: bytes(&key), value, lease: 0 });
    let deletes = draft.deletes.iter().map(|key| Op::Delete(bytes(key)));
    Txn { compare, success: puts.chain(deletes).collect(), failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placement_waits_for_all_of_a_large_one() {
        let ids = |words: &str| words.split(' ').map(Text::from).collect::<Vec<_>>();
        let mut turns = Turns::default();
        // What waits, what is drafted of that, and whether that is a piece of a large one.
        for (waiting, order, parts, is_piece) in [
            ("a big", "a big", "a", false),
            ("a big", "a big", "big", true),
            ("a big", "a big", "a", false),
            // While there are always others it gets every second transaction.
            ("a b big", "a big b", "big", true),
            ("b big", "b big", "b", false),
            ("b big c huge", "b big c huge", "big", true),
            // Another large one is known as such as soon as a piece of it was written.
            ("big c huge", "c huge big", "c", false),
            ("big c huge", "c big huge", "big", true),
            ("big huge", "huge big", "huge", true),
            ("big d huge", "d big huge", "d", false),
            ("big d e huge", "d big huge e", "big", true),
        ] {
            assert_eq!(turns.order(&ids(waiting).into_iter().collect()), ids(order), "{waiting}");
            let mut draft = TxnDraft::default();
            (draft.parts, draft.is_piece) = (ids(parts), is_piece);
            turns.take(&draft);
        }
    }
}
