//! Writes changes to etcd: one transaction at a time, and no further one while the outcome of the last is unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use etcd::{Compare, EtcdError, Op, OpResult, Txn};
use model::Text;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{CATCH_UP, CommitRequest, EtcdStore, FAREWELL, LEASE, PAUSE_MAX, PAUSE_MIN, SyncContext, survived};
use crate::ledger::draft::{CommitError, TakeOver, TxnDraft};
use crate::ledger::etcd::keys::{Key, Keys, Presence};

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
}

impl Writer {
    pub(super) fn new(context: SyncContext, requests: mpsc::Receiver<CommitRequest>) -> Self {
        let (waiting, takes) = (HashMap::new(), BTreeMap::new());
        Self { context, requests, waiting, takes, presence: 0, in_doubt: false }
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
        if self.context.book(|book| book.is_unread()) {
            // The follower says why, and when that is over.
            self.refuse(&self.context.shared.reachable().err().unwrap_or_default());
            return Ok(());
        }
        let mut ids: BTreeSet<Text> = self.context.book(|book| {
            let mut ids = book.take_changed();
            ids.extend(book.orphans());
            ids
        });
        ids.extend(self.waiting.keys().cloned());
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
            let list: Vec<Text> = ids.iter().cloned().collect();
            let drafted = self.context.book(|book| book.draft(&list, &self.takes, self.presence));
            for id in drafted.done {
                ids.remove(&id);
                self.answer(&id, &Ok(()));
            }
            for (id, why) in drafted.refused {
                ids.remove(&id);
                self.answer(&id, &Err(why));
            }
            if drafted.draft.is_empty() {
                return Ok(());
            }
            let keys: Vec<(Key, i64)> = drafted.draft.expects.iter().map(|(key, is)| (key.clone(), *is)).collect();
            match self.context.client.txn(transaction(&self.context.keys, drafted.draft)).await {
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
        if self.presence != 0
            && shared.lease.load(Ordering::Relaxed) != 0
            && !shared.absent.swap(false, Ordering::Relaxed)
        {
            return Ok(());
        }
        self.presence = 0;
        match self.put_presence(&shared).await {
            // It expired while nobody noticed, as when this process stood still: the next one is granted at once.
            Err(EtcdError::LeaseGone) => self.put_presence(&shared).await,
            other => other,
        }
    }

    async fn put_presence(&mut self, shared: &EtcdStore) -> Result<(), EtcdError> {
        let mut lease = shared.lease.load(Ordering::Relaxed);
        if lease == 0 {
            shared.held.ended();
            let asked = Instant::now();
            lease = self.context.client.grant(LEASE).await?;
            shared.held.renewed(asked);
            shared.lease.store(lease, Ordering::Relaxed);
        }
        let key = self.context.keys.of(&Key::Scheduler(shared.me.clone()));
        let value = Presence::written(std::process::id(), self.context.clock.now());
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
                    shared.lease.store(0, Ordering::Relaxed);
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

fn transaction(keys: &Keys, draft: TxnDraft) -> Txn {
    let bytes = |key: &Key| keys.of(key).into_bytes();
    let compare = draft.expects.iter().map(|(key, revision)| Compare::unchanged(bytes(key), *revision)).collect();
    let failure = draft.expects.keys().map(|key| Op::Get(bytes(key))).collect();
    let puts = draft.puts.into_iter().map(|(key, value)| Op::Put { key: bytes(&key), value, lease: 0 });
    let deletes = draft.deletes.iter().map(|key| Op::Delete(bytes(key)));
    Txn { compare, success: puts.chain(deletes).collect(), failure }
}
