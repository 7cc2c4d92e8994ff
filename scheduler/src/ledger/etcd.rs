//! A ledger in etcd that several schedulers share.
//!
//! One task follows etcd, one writes, one transaction at a time, and one renews the lease by which others know that
//! this scheduler is alive. The book learns even of our own writes from the follower alone, so it is always the state
//! of etcd at one revision.
//!
//! Each transaction expects the revision of this scheduler's presence key. That makes a lost response harmless: the
//! presence is put again, after which the lost transaction can no longer succeed, and what it did is known once that
//! revision was learned. A scheduler that was suspended until its lease expired cannot write either.
//!
//! Records of placements are sealed with the ledger's key (`seal`, `key_file`). A scheduler that has another key, or
//! none, neither follows nor writes.

mod follow;
pub(crate) mod key_file;
pub(crate) mod keys;
mod lease;
pub(crate) mod seal;
pub(crate) mod unsealed;
mod write;

use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd::{EtcdClient, EtcdError};
use futures_util::FutureExt;
use model::Text;
use source::Readiness;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::ledger::book::Book;
use crate::ledger::draft::{CommitError, TakeOver};
use crate::ledger::etcd::key_file::KeyError;
use crate::ledger::etcd::keys::{Key, Keys};
use crate::lock::lock;
use crate::place::Placer;
use follow::Follower;
use lease::Lease;
use write::Writer;

/// How long a silent scheduler counts as alive: an election, and a restart by hand, take less; a client that waits for
/// what it had begun does not wait longer.
const LEASE: Duration = Duration::from_secs(10);

/// How long the watch may take to report a transaction before everything is read again: it takes milliseconds.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Longest wait for what etcd has of one key: as long as one member is asked, and some more for the next one.
const LOOK_UP: Duration = Duration::from_secs(3);

/// Pause after the first failure of etcd; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause after a failure of etcd.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Most commit requests in the writer's queue; further ones wait for a place in it.
const REQUESTS_MAX: usize = 4096;

/// How long the last writes may take when this scheduler stops.
const FAREWELL: Duration = Duration::from_millis(500);

/// The error after a panic of a task that follows or writes the ledger.
const FAILED: &str = "what follows the ledger in etcd failed, which is a bug";

/// The output of a future; `None` when it panicked, which must not end the synchronisation.
async fn survived<T>(work: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(work).catch_unwind().await.ok()
}

/// A caller waits until a placement is committed.
#[derive(Debug)]
struct CommitRequest {
    id: Text,
    take: Option<TakeOver>,
    reply: oneshot::Sender<Result<(), CommitError>>,
}

/// The handle by which other tasks use the shared ledger.
#[derive(Debug)]
pub(crate) struct EtcdStore {
    me: Text,
    client: EtcdClient,
    keys: Keys,
    /// Where the ledger's key is.
    key_file: PathBuf,
    /// The fingerprint of the ledger's key, once it is known.
    ledger: Mutex<Option<Text>>,
    /// Whether the ledger is sealed with another key, so that this scheduler has no part in it.
    barred: AtomicBool,
    requests: mpsc::Sender<CommitRequest>,
    changed: Notify,
    /// Everything is to be read again.
    again: Notify,
    /// Placements of other schedulers became ours.
    adopted: Notify,
    /// The revision of etcd up to which the book is current.
    learned: watch::Sender<i64>,
    /// Set while nothing is promised.
    away: watch::Sender<Option<Outage>>,
    lease: etcd::Lease,
    /// Whether the key by which others know that this scheduler lives was seen to be deleted.
    absent: AtomicBool,
    /// Until when no other scheduler can have taken over what is ours.
    held: Lease,
    random: RandomState,
    drawn: AtomicU64,
}

/// A time in which nothing is promised, and its reason.
#[derive(Clone, Debug)]
struct Outage {
    reason: Text,
    /// Whether only a new reading of everything ends it: a transaction that goes through shows that etcd is there, not
    /// that all schedulers have written what they promised.
    until_read: bool,
    /// Whether this is because etcd did not answer the last time it was asked.
    unreachable: bool,
}

impl EtcdStore {
    /// The id of this scheduler: another one each time it is started.
    pub(crate) fn me(&self) -> &Text {
        &self.me
    }

    /// The fingerprint of the ledger's key, once it is known that this scheduler has it.
    pub(crate) fn ledger(&self) -> Option<Text> {
        lock(&self.ledger).clone()
    }

    /// The whole key of what a placement claims.
    pub(crate) fn key_of(&self, claim: Text) -> Text {
        self.keys.of(&Key::Claim(claim)).into()
    }

    /// Wakes the writer.
    pub(crate) fn something_changed(&self) {
        self.changed.notify_one();
    }

    /// Waits until the placement is in etcd as it is in the book.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be committed as it is, or etcd cannot be reached.
    pub(crate) async fn settled(&self, id: &str, take: Option<TakeOver>) -> Result<(), CommitError> {
        let stopping = || CommitError::Unavailable("this scheduler stops".into());
        let (reply, replied) = oneshot::channel();
        self.requests.send(CommitRequest { id: id.into(), take, reply }).await.map_err(|_| stopping())?;
        replied.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Fails while etcd is known to be unreachable.
    ///
    /// # Errors
    ///
    /// The reason for which nothing can be promised.
    pub(crate) fn reachable(&self) -> Result<(), Text> {
        self.away.borrow().as_ref().map_or(Ok(()), |away| Err(away.reason.clone()))
    }

    /// Watches the revision of etcd up to which the book is current.
    pub(crate) fn watch(&self) -> watch::Receiver<i64> {
        self.learned.subscribe()
    }

    /// Waits until the book knows what etcd has of a placement now; returns whether there is a record.
    ///
    /// # Errors
    ///
    /// Fails if etcd does not answer, or the book does not catch up in time.
    pub(crate) async fn look_up(&self, id: &str) -> Result<bool, Text> {
        Ok(self.look_at(&Key::Placement(id.into())).await?.is_some())
    }

    /// Waits until the book knows of all freed room; returns whether some was freed after `revision`.
    pub(crate) async fn look_for_room(&self, revision: i64) -> bool {
        self.look_at(&Key::Freed).await.is_ok_and(|freed| freed.is_some_and(|freed| freed > revision))
    }

    /// Waits until the book knows of the last change of a key; returns its revision, or `None` if there is no such key.
    ///
    /// A majority of etcd's members answers, so this is what was there when it was asked, or later.
    async fn look_at(&self, key: &Key) -> Result<Option<i64>, Text> {
        self.reachable()?;
        let cannot_reach = |error: &dyn std::fmt::Display| Text::from(format!("cannot reach etcd ({error})"));
        let key = self.keys.of(key);
        let (pair, _) = match timeout(LOOK_UP, self.client.get(key.as_bytes())).await {
            Ok(answer) => answer.map_err(|error| cannot_reach(&error))?,
            Err(_) => return Err(cannot_reach(&format_args!("no answer within {} s", LOOK_UP.as_secs()))),
        };
        let Some(revision) = pair.map(|pair| pair.mod_revision) else { return Ok(None) };
        let mut learned = self.learned.subscribe();
        let caught_up = timeout(CATCH_UP, learned.wait_for(|learned| *learned >= revision)).await;
        if caught_up.is_ok_and(|learned| learned.is_ok()) {
            return Ok(Some(revision));
        }
        self.again.notify_one();
        let learned = *self.learned.borrow();
        Err(format!("this scheduler knows etcd as of revision {learned}, and {revision} is asked for").into())
    }

    /// Whether no other scheduler can have taken over what this scheduler owns according to the book.
    pub(crate) fn holds_lease(&self) -> bool {
        self.held.holds()
    }

    /// Waits until [`EtcdStore::holds_lease`] is true.
    pub(crate) async fn leased(&self) {
        self.held.held().await;
    }

    /// Waits until placements of other schedulers have become ours.
    pub(crate) async fn adopted(&self) {
        self.adopted.notified().await;
    }

    /// A random duration up to `most`.
    pub(crate) fn some_of(&self, most: Duration) -> Duration {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        let share = u32::try_from(self.random.hash_one(number) >> 48).unwrap_or_default();
        most * share / (1 << 16)
    }

    /// The ledger is not sealed with the key of this scheduler, which does nothing until it is.
    fn is_barred(&self, why: &KeyError) {
        let reason: Text = format!("{why}: nothing is promised or started").into();
        let known = self.away.borrow().as_ref().is_some_and(|away| away.reason == reason);
        if !self.barred.swap(true, Ordering::Relaxed) || !known {
            error!("{reason}");
        }
        self.is_away_until_read(&reason);
        self.held.ended();
        // Before it acts again, it has to learn what others did.
        self.absent.store(true, Ordering::Relaxed);
    }

    fn is_away(&self, error: &EtcdError) {
        let reason: Text = format!("cannot reach etcd ({error}): nothing is promised").into();
        let before = self.away.borrow().clone();
        let until_read = before.as_ref().is_some_and(|away| away.until_read);
        self.away.send_replace(Some(Outage { reason, until_read, unreachable: true }));
        if !before.is_some_and(|away| away.unreachable) {
            warn!(%error, "etcd cannot be reached: nothing is promised, what was begun goes on");
        }
    }

    /// A task panicked, and is restarted.
    fn has_failed(&self) {
        error!("{FAILED}: it begins again");
        self.is_away_until_read(&format!("{FAILED}: nothing is promised until everything was read again"));
    }

    /// Nothing is promised until the follower has read everything.
    fn is_away_until_read(&self, reason: &str) {
        self.away.send_replace(Some(Outage { reason: reason.into(), until_read: true, unreachable: false }));
    }

    /// The key by which others know that this scheduler lives is gone: they take over what it has. The writer puts it again.
    fn is_absent(&self) {
        if self.held.holds() {
            warn!("the key of this scheduler in etcd was deleted by another client; writing it again");
        }
        self.held.ended();
        self.absent.store(true, Ordering::Relaxed);
        self.something_changed();
    }

    /// A transaction went through; the follower may still wait until it reads again.
    fn is_back_after_write(&self) {
        if self.away.borrow().as_ref().is_some_and(|away| !away.until_read) {
            self.is_back();
        }
    }

    fn is_back(&self) {
        if self.away.send_if_modified(|away| away.take().is_some()) {
            info!("etcd can be reached: promises are made");
        }
    }
}

/// The synchronisation with etcd, before it has begun.
#[derive(Debug)]
pub(crate) struct EtcdSync {
    shared: Arc<EtcdStore>,
    client: EtcdClient,
    keys: Keys,
    requests: mpsc::Receiver<CommitRequest>,
}

impl EtcdSync {
    /// A synchronisation that is not running yet.
    pub(crate) fn new(client: EtcdClient, key_file: PathBuf) -> Self {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let random = RandomState::new();
        let me: Text = format!("s-{:016x}", random.hash_one(std::process::id())).into();
        let keys = Keys::new(&client.options().prefix);
        let shared = EtcdStore {
            me,
            client: client.clone(),
            keys: keys.clone(),
            key_file,
            ledger: Mutex::default(),
            barred: AtomicBool::new(false),
            requests,
            changed: Notify::new(),
            again: Notify::new(),
            adopted: Notify::new(),
            learned: watch::Sender::new(0),
            away: watch::Sender::new(Some(Outage {
                reason: "the ledger in etcd was not read yet: nothing is promised".into(),
                until_read: true,
                unreachable: false,
            })),
            lease: etcd::Lease::new(client.clone(), LEASE),
            absent: AtomicBool::new(false),
            held: Lease::new(),
            random,
            drawn: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), client, keys, requests: received }
    }

    /// The handle for other tasks.
    pub(crate) fn shared(&self) -> &Arc<EtcdStore> {
        &self.shared
    }

    /// Follows and writes the ledger until `stop`.
    pub(crate) async fn run(
        self,
        placer: Arc<Placer>,
        clock: Clock,
        readiness: Option<Arc<Readiness>>,
        stop: CancellationToken,
    ) {
        let Self { shared, client, keys, requests } = self;
        info!(scheduler = %shared.me, etcd = %client, "the ledger is shared");
        let context = SyncContext { shared: shared.clone(), client, keys, placer, clock };
        let following = tokio::spawn(Follower::new(context.clone()).run());
        let renewing = tokio::spawn(context.clone().renew());
        let reporting = readiness.map(|readiness| tokio::spawn(report(shared.away.subscribe(), readiness)));
        Writer::new(context, requests).run(stop).await;
        following.abort();
        renewing.abort();
        if let Some(reporting) = reporting {
            reporting.abort();
        }
        // An error is the cancellation that was just asked for.
        let _ = tokio::join!(following, renewing);
        // What is ours can be taken over at once; otherwise when the lease has run out.
        let _ = timeout(FAREWELL, shared.lease.revoke()).await;
    }
}

/// The part of the process that is not ready while nothing can be promised.
const PART: &str = "ledger";

/// The process is ready while promises are made.
async fn report(mut away: watch::Receiver<Option<Outage>>, readiness: Arc<Readiness>) {
    loop {
        match &*away.borrow_and_update() {
            Some(away) => readiness.not_ready(PART, &*away.reason),
            None => readiness.ready(PART),
        }
        if away.changed().await.is_err() {
            return;
        }
    }
}

/// What the tasks share.
#[derive(Clone, Debug)]
struct SyncContext {
    shared: Arc<EtcdStore>,
    client: EtcdClient,
    keys: Keys,
    placer: Arc<Placer>,
    clock: Clock,
}

impl SyncContext {
    fn book<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        self.placer.with_any(self.clock.now(), act)
    }

    /// Lets the book learn something, and wakes the tasks that wait for it.
    fn learn<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        let (done, revision, adopted, orphans, remarks) = self.book(|book| {
            let done = act(book);
            (
                done,
                book.revision(),
                book.take_adopted(),
                !book.orphans().is_empty(),
                book.take_remarks(self.clock.now()),
            )
        });
        for (id, remark) in remarks {
            warn!(%id, "in the ledger: {remark}");
        }
        self.shared.learned.send_replace(revision);
        for id in &adopted {
            self.placer.audit_take_over(id, "adopted", self.clock.now());
        }
        if !adopted.is_empty() {
            self.shared.adopted.notify_one();
        }
        if orphans {
            self.shared.something_changed();
        }
        done
    }

    async fn renew(self) {
        let lease = &self.shared.lease;
        loop {
            sleep(lease.interval()).await;
            let Some(id) = lease.id() else { continue };
            match lease.renew(id).await {
                Ok(_) => {
                    self.shared.held.renewed(lease.asked());
                    // A watch that hung without breaking does not report that etcd is back.
                    self.shared.is_back_after_write();
                }
                Err(EtcdError::LeaseGone) => {
                    self.shared.held.ended();
                    self.shared.something_changed();
                }
                Err(error) => self.shared.is_away(&error),
            }
        }
    }
}

#[cfg(test)]
impl EtcdStore {
    /// Etcd counts as reachable.
    pub(crate) fn answers(&self) {
        self.is_back();
    }
}

#[cfg(test)]
impl EtcdSync {
    /// Answers the next commit request with success.
    pub(crate) async fn settle_one(&mut self) {
        if let Some(request) = self.requests.recv().await {
            let _ = request.reply.send(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use etcd::EtcdOptions;

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_ends_no_conversation() {
        assert_eq!(survived(async { 1 }).await, Some(1));
        assert_eq!(survived(async { Vec::<u8>::new()[0] }).await, None);
    }

    /// After etcd was reset all schedulers need time to write what they promised.
    #[tokio::test]
    async fn no_transaction_ends_the_time_in_which_nothing_is_promised() {
        let client = EtcdClient::new(EtcdOptions::parse("http://192.0.2.1:2379").unwrap()).unwrap();
        let shared = EtcdSync::new(client, PathBuf::new()).shared;
        shared.answers();
        shared.is_away(&EtcdError::LeaseGone);
        assert!(shared.reachable().is_err());
        shared.is_back_after_write();
        assert!(shared.reachable().is_ok());
        shared.is_away_until_read("etcd was reset");
        shared.is_away(&EtcdError::LeaseGone);
        shared.is_back_after_write();
        assert!(shared.reachable().is_err());
        shared.is_back();
        assert!(shared.reachable().is_ok());
    }
}
