//! Follows the ledger in etcd: a watch, and now and then a whole reading. After a failure it begins again; until
//! everything was read nothing is promised and the process is not ready.

use std::sync::atomic::Ordering;
use std::time::Duration;

use etcd::{At, EtcdError, Event, Pair, Watch};
use source::backoff::jittered;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::ledger::etcd::context::{PAUSE_MAX, PAUSE_MIN, SyncContext, survived};
use crate::ledger::etcd::key_file::{KeyError, agree, agree_on_secrets};
use crate::ledger::etcd::keys::{Key, Presence};
use crate::ledger::etcd::seal::Put;
use crate::ledger::mirror::KeyChange;
use crate::ledger::remarks::Remarks;
use crate::lock::lock;

/// How often all of it is read and compared with what was learned; a tenth more or less, so that not all do it at once.
const COMPARISON: Duration = Duration::from_mins(1);

/// How long nothing is promised after etcd was reset: by then every scheduler has written what it has.
const RESET_PAUSE: Duration = Duration::from_secs(5);

/// Follows the ledger in etcd.
pub(super) struct Follower {
    context: SyncContext,
    at: At,
    /// Until when nothing is promised, because etcd was reset.
    mute_until: Option<Instant>,
    /// What the log should say about keys that are none of ours, and up to which revision they were seen.
    junk: Remarks,
    seen: i64,
}

impl Follower {
    pub(super) fn new(context: SyncContext) -> Self {
        Self { context, at: At::default(), mute_until: None, junk: Remarks::default(), seen: 0 }
    }

    pub(super) async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let begun = Instant::now();
            match survived(self.follow()).await {
                Some(Ok(())) => continue,
                Some(Err(error)) => self.context.shared.is_away(&error),
                None => self.context.shared.has_failed(),
            }
            if begun.elapsed() > COMPARISON / 2 {
                pause = PAUSE_MIN;
            }
            sleep(pause + self.context.shared.some_of(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Reads everything and follows, until the watch is lost, the ledger's key is another one or everything is to be
    /// read again.
    async fn follow(&mut self) -> Result<(), EtcdError> {
        let root = self.context.keys.root().as_bytes().to_vec();
        if self.has_other_key().await? {
            sleep(PAUSE_MAX).await;
            return Ok(());
        }
        let revision = self.read().await?;
        let mut watch = self.context.client.watch(&root, revision + 1).await?;
        let rest = jittered(COMPARISON);
        let mut comparison = Instant::now() + rest;
        loop {
            let due = self.mute_until.map_or(comparison, |until| until.min(comparison));
            tokio::select! {
                events = events(&mut watch) => {
                    let (events, now) = (events?, self.context.clock.now());
                    let of_key = |event: &Event| self.context.keys.parse(&event.pair.key) == Some(Key::Seal);
                    let key_changed = events.iter().any(of_key);
                    let has_other_begun = events.iter().any(|event| self.is_of_other(event));
                    let last = events.last().map_or(self.seen, |event| event.pair.mod_revision);
                    let changes = events.into_iter().filter_map(|event| self.key_change(event.pair, event.deleted)).collect();
                    self.report_junk(last);
                    self.context.learn(|book| book.learn(changes, now));
                    if key_changed || has_other_begun && self.has_other_key().await? {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep_until(due) => {
                    comparison = Instant::now() + rest;
                    if self.has_other_key().await? {
                        return Ok(());
                    }
                    self.read().await?;
                }
                () = self.context.shared.again.notified() => {
                    self.context.client.avoid(watch.endpoint());
                    return Ok(());
                }
            }
        }
    }

    /// Whether the ledger, or contents of files, are not sealed with the keys of this scheduler, which then has no part in it.
    async fn has_other_key(&self) -> Result<bool, EtcdError> {
        let SyncContext { shared, client, keys, .. } = &self.context;
        let agreed = async {
            let key = agree(client, keys, &shared.key_file, false).await?;
            agree_on_secrets(client, keys, &shared.me, shared.secrets.as_ref()).await?;
            Ok(key)
        };
        match agreed.await {
            Ok(key) => {
                *lock(&shared.ledger) = Some(key.fingerprint());
                self.context.book(|book| book.seal_with(key.seal(keys)));
                shared.barred.store(false, Ordering::Relaxed);
                Ok(false)
            }
            Err(KeyError::Etcd(error)) => Err(error),
            Err(other) => {
                shared.is_barred(&other);
                Ok(true)
            }
        }
    }

    /// Whether another scheduler has begun that seals contents of files, as this one does: its key may be another one.
    fn is_of_other(&self, event: &Event) -> bool {
        let shared = &self.context.shared;
        let is_other = || match self.context.keys.parse(&event.pair.key) {
            Some(Key::Scheduler(id)) => id != shared.me && Presence::secrets(&event.pair.value).is_some(),
            _ => false,
        };
        shared.secrets.is_some() && !event.deleted && is_other()
    }

    /// Reads everything and compares it with what was learned; returns the revision.
    async fn read(&mut self) -> Result<i64, EtcdError> {
        let listing = self.context.client.list(self.context.keys.root().as_bytes(), false).await?;
        let changes: Vec<KeyChange> =
            listing.pairs.into_iter().filter_map(|pair| self.key_change(pair, false)).collect();
        self.report_junk(listing.at.revision);
        let context = &self.context;
        let (first, now) = (self.at == At::default(), context.clock.now());
        // The watch may be ahead of the last list.
        let learned = *context.shared.learned.borrow();
        let before = At { revision: learned.max(self.at.revision), ..self.at };
        let reset = !first && !listing.at.follows(before);
        self.at = listing.at;
        let behind = learned < listing.at.revision;
        let drift = context.learn(|book| {
            if reset {
                book.unlearn();
            }
            book.learn_all(changes, listing.at.revision, now)
        });
        if reset {
            warn!("etcd was reset: the promises of this scheduler are written again");
            self.mute_until = Some(Instant::now() + RESET_PAUSE);
            let reason = "etcd was reset: nothing is promised until all schedulers have written their promises";
            context.shared.is_away_until_read(reason);
        } else if drift > 0 && !behind {
            warn!(drift, "the watch of etcd missed changes, which were repaired");
        }
        if self.mute_until.is_none_or(|until| until <= Instant::now()) {
            self.mute_until = None;
            context.shared.is_back();
        }
        context.shared.something_changed();
        Ok(listing.at.revision)
    }

    fn key_change(&mut self, pair: Pair, deleted: bool) -> Option<KeyChange> {
        if let Some(key) = self.context.keys.parse(&pair.key) {
            if deleted && matches!(&key, Key::Scheduler(id) if *id == self.context.shared.me) {
                self.context.shared.is_absent();
            }
            let put = Put { created: pair.create_revision, version: pair.version };
            return Some(KeyChange { key, revision: pair.mod_revision, put, value: (!deleted).then_some(pair.value) });
        }
        if !deleted && pair.mod_revision > self.seen {
            let key = String::from_utf8_lossy(&pair.key).into_owned();
            self.junk.add(&key.into(), "a key in etcd is none of the ledger's, and is left alone");
        }
        None
    }

    /// Logs which keys are none of ours; up to this revision all were seen.
    fn report_junk(&mut self, seen: i64) {
        self.seen = seen;
        for (key, remark) in self.junk.take(self.context.clock.now()) {
            warn!(%key, "{remark}");
        }
    }
}

/// The next changes, whole revisions of them.
///
/// # Cancel safety
///
/// When this is dropped between two parts of one revision, the first is lost: then everything has to be read again.
async fn events(watch: &mut Watch) -> Result<Vec<Event>, EtcdError> {
    let mut all = Vec::new();
    loop {
        let events = watch.next().await?;
        all.extend(events.events);
        if !events.to_be_continued {
            return Ok(all);
        }
    }
}
