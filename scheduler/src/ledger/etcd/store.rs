//! The handle of the ledger in etcd.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use etcd::{EtcdClient, EtcdError};
use model::Text;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::ledger::draft::{CommitError, TakeOver};
use crate::ledger::etcd::key_file::KeyError;
use crate::ledger::etcd::keys::{Key, Keys};
use crate::ledger::etcd::lease::{LEASE, Lease};
use crate::lock::lock;

/// How long the watch may take to report a transaction before everything is read again: it takes milliseconds.
pub(super) const CATCH_UP: Duration = Duration::from_secs(1);

/// Longest wait for what etcd has of one key: as long as one member is asked, and some more for the next one.
const LOOK_UP: Duration = Duration::from_secs(3);

/// Most commit requests in the writer's queue; further ones wait for a place in it.
const REQUESTS_MAX: usize = 4096;

/// The error after a panic of a task that follows or writes the ledger.
const FAILED: &str = "what follows the ledger in etcd failed, which is a bug";

/// A caller waits until a placement is committed.
#[derive(Debug)]
pub(super) struct CommitRequest {
    pub(super) id: Text,
    pub(super) take: Option<TakeOver>,
    pub(super) reply: oneshot::Sender<Result<(), CommitError>>,
}

/// The handle by which other tasks use the shared ledger.
#[derive(Debug)]
pub(crate) struct EtcdStore {
    pub(super) me: Text,
    pub(super) client: EtcdClient,
    pub(super) keys: Keys,
    /// Where the ledger's key is.
    pub(super) key_file: PathBuf,
    /// The fingerprint of the key with which contents of files are sealed.
    pub(super) secrets: Option<Text>,
    /// The fingerprint of the ledger's key, once it is known.
    pub(super) ledger: Mutex<Option<Text>>,
    /// Whether the ledger, or contents of files, are sealed with another key, so that this scheduler has no part in it.
    pub(super) barred: AtomicBool,
    pub(super) requests: mpsc::Sender<CommitRequest>,
    pub(super) changed: Notify,
    /// Everything is to be read again.
    pub(super) again: Notify,
    /// Placements of other schedulers became ours.
    pub(super) adopted: Notify,
    /// The keys of evictions are to be looked at.
    pub(super) evictions: Notify,
    /// The revision of etcd up to which the book is current.
    pub(super) learned: watch::Sender<i64>,
    /// Set while nothing is promised.
    pub(super) away: watch::Sender<Option<Outage>>,
    pub(super) lease: etcd::Lease,
    /// Whether the key by which others know that this scheduler lives was seen to be deleted.
    pub(super) absent: AtomicBool,
    /// Until when no other scheduler can have taken over what is ours.
    pub(super) held: Lease,
    pub(super) random: RandomState,
    pub(super) drawn: AtomicU64,
}

/// A time in which nothing is promised, and its reason.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    pub(super) reason: Text,
    /// Whether only a new reading of everything ends it: a transaction that goes through shows that etcd is there, not
    /// that all schedulers have written what they promised.
    pub(super) until_read: bool,
    /// Whether this is because etcd did not answer the last time it was asked.
    pub(super) unreachable: bool,
}

impl EtcdStore {
    /// The handle, and what callers ask of the writer.
    pub(super) fn new(
        client: EtcdClient,
        key_file: PathBuf,
        secrets: Option<Text>,
    ) -> (Self, mpsc::Receiver<CommitRequest>) {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let random = RandomState::new();
        let me: Text = format!("s-{:016x}", random.hash_one(std::process::id())).into();
        let keys = Keys::new(&client.options().prefix);
        let store = Self {
            me,
            keys: keys.clone(),
            key_file,
            secrets,
            ledger: Mutex::default(),
            barred: AtomicBool::new(false),
            requests,
            changed: Notify::new(),
            again: Notify::new(),
            adopted: Notify::new(),
            evictions: Notify::new(),
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
            client,
        };
        (store, received)
    }

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

    /// The ledger is not sealed with the key of this scheduler, or contents of files are by others with another one; it does nothing
    /// until they are.
    pub(super) fn is_barred(&self, why: &KeyError) {
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

    pub(super) fn is_away(&self, error: &EtcdError) {
        let reason: Text = format!("cannot reach etcd ({error}): nothing is promised").into();
        let before = self.away.borrow().clone();
        let until_read = before.as_ref().is_some_and(|away| away.until_read);
        self.away.send_replace(Some(Outage { reason, until_read, unreachable: true }));
        if !before.is_some_and(|away| away.unreachable) {
            warn!(%error, "etcd cannot be reached: nothing is promised, what was begun goes on");
        }
    }

    /// A task panicked, and is restarted.
    pub(super) fn has_failed(&self) {
        error!("{FAILED}: it begins again");
        self.is_away_until_read(&format!("{FAILED}: nothing is promised until everything was read again"));
    }

    /// Nothing is promised until the follower has read everything.
    pub(super) fn is_away_until_read(&self, reason: &str) {
        self.away.send_replace(Some(Outage { reason: reason.into(), until_read: true, unreachable: false }));
    }

    /// The key by which others know that this scheduler lives is gone: they take over what it has. The writer puts it again.
    pub(super) fn is_absent(&self) {
        if self.held.holds() {
            warn!("the key of this scheduler in etcd was deleted by another client; writing it again");
        }
        self.held.ended();
        self.absent.store(true, Ordering::Relaxed);
        self.something_changed();
    }

    /// A transaction went through; the follower may still wait until it reads again.
    pub(super) fn is_back_after_write(&self) {
        if self.away.borrow().as_ref().is_some_and(|away| !away.until_read) {
            self.is_back();
        }
    }

    pub(super) fn is_back(&self) {
        if self.away.send_if_modified(|away| away.take().is_some()) {
            info!("etcd can be reached: promises are made");
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
