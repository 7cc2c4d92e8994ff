//! Following what etcd says: a watch, and now and then all of it. One that fails begins again, and until it has read all
//! nothing is promised and the process is not ready.

use std::collections::BTreeSet;
use std::time::Duration;

use live::etcd::{At, EtcdError, Event, Pair, Watch};
use source::backoff::jittered;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{Ledger, PAUSE_MAX, PAUSE_MIN, survived};
use crate::ledger::share::Told;
use crate::shared_keys::Key;

/// How often all of it is read and compared with what was learned; a tenth more or less, so that not all do it at once.
const COMPARISON: Duration = Duration::from_mins(1);

/// How long nothing is promised after etcd was found to be set up anew: by then every scheduler has told what it has.
const ANEW: Duration = Duration::from_secs(5);

/// Most keys that are reported as none of ours; there may be any number.
const REPORTED_MAX: usize = 1000;

/// Follows what etcd says.
pub(super) struct Follower {
    ledger: Ledger,
    at: At,
    /// Until when nothing is promised, because etcd was set up anew.
    mute_until: Option<Instant>,
    /// Keys that are none of ours, each reported once.
    reported: BTreeSet<Vec<u8>>,
}

impl Follower {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self { ledger, at: At::default(), mute_until: None, reported: BTreeSet::new() }
    }

    pub(super) async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let begun = Instant::now();
            match survived(self.follow()).await {
                Some(Ok(())) => continue,
                Some(Err(error)) => self.ledger.shared.is_away(&error),
                None => self.ledger.shared.has_failed(),
            }
            if begun.elapsed() > COMPARISON / 2 {
                pause = PAUSE_MIN;
            }
            sleep(pause + self.ledger.shared.some_of(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Reads all and follows, until the watch is lost or all is to be read anew.
    async fn follow(&mut self) -> Result<(), EtcdError> {
        let root = self.ledger.keys.root().as_bytes().to_vec();
        let revision = self.read().await?;
        let mut watch = self.ledger.client.watch(&root, revision + 1).await?;
        let rest = jittered(COMPARISON);
        let mut comparison = Instant::now() + rest;
        loop {
            let due = self.mute_until.map_or(comparison, |until| until.min(comparison));
            tokio::select! {
                events = events(&mut watch) => {
                    let (events, now) = (events?, self.ledger.clock.now());
                    let told = events.into_iter().filter_map(|event| self.told(event.pair, event.deleted)).collect();
                    self.ledger.learn(|book| book.learn(told, now));
                }
                () = tokio::time::sleep_until(due) => {
                    comparison = Instant::now() + rest;
                    self.read().await?;
                }
                () = self.ledger.shared.again.notified() => {
                    self.ledger.client.avoid(watch.endpoint());
                    return Ok(());
                }
            }
        }
    }

    /// Reads all, and compares it with what was learned; gives the revision.
    async fn read(&mut self) -> Result<i64, EtcdError> {
        let listing = self.ledger.client.list(self.ledger.keys.root().as_bytes(), false).await?;
        let told: Vec<Told> = listing.pairs.into_iter().filter_map(|pair| self.told(pair, false)).collect();
        let ledger = &self.ledger;
        let (first, now) = (self.at == At::default(), ledger.clock.now());
        // The watch may have told more than the last list.
        let learned = *ledger.shared.learned.borrow();
        let before = At { revision: learned.max(self.at.revision), ..self.at };
        let anew = !first && !listing.at.follows(before);
        self.at = listing.at;
        let behind = learned < listing.at.revision;
        let drift = ledger.learn(|book| {
            if anew {
                book.unlearn();
            }
            book.learn_all(told, listing.at.revision, now)
        });
        if anew {
            warn!("etcd was set up anew: what this scheduler has promised is written once more");
            self.mute_until = Some(Instant::now() + ANEW);
            let reason = "etcd was set up anew and has to be told of all promises first: nothing is promised";
            ledger.shared.is_away_until_read(reason);
        } else if drift > 0 && !behind {
            warn!(drift, "the watch of etcd had not told everything");
        }
        if self.mute_until.is_none_or(|until| until <= Instant::now()) {
            self.mute_until = None;
            ledger.shared.is_back();
        }
        ledger.shared.something_changed();
        Ok(listing.at.revision)
    }

    fn told(&mut self, pair: Pair, deleted: bool) -> Option<Told> {
        if let Some(key) = self.ledger.keys.parse(&pair.key) {
            if deleted && matches!(&key, Key::Scheduler(id) if *id == self.ledger.shared.me) {
                self.ledger.shared.is_absent();
            }
            return Some(Told { key, revision: pair.mod_revision, value: (!deleted).then_some(pair.value) });
        }
        if self.reported.len() < REPORTED_MAX && self.reported.insert(pair.key.clone()) {
            warn!(key = %String::from_utf8_lossy(&pair.key), "a key in etcd is none of the ledger's, and is left alone");
        }
        None
    }
}

/// The next changes, whole revisions of them.
///
/// # Cancel safety
///
/// When this is dropped between two parts of one revision, the first is lost: then all has to be read anew.
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
