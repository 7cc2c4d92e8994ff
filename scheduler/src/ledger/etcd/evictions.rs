//! The keys under `evicted/`, by which all hosts know that another container has the place of one whose host was gone.
//!
//! The transaction that marks a placement as evicted puts its keys, so they are there before anything is started in its
//! place. Here they are looked after: what is missing is put again, and what no placement wants is deleted: at once
//! where a placement has the container and shows it, otherwise not before its host has stopped publishing the container:
//! names would lead to both for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use etcd::{Compare, EtcdError, Op, Txn};
use model::Text;
use source::Readiness;
use source::backoff::jittered;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::ledger::etcd::context::{SyncContext, survived};
use crate::ledger::etcd::keys::{Evicted, Key};
use crate::ledger::record::Eviction;

/// How often the keys are listed while nothing happens: somebody may have deleted one by hand, or given the right.
const LOOK: Duration = Duration::from_mins(1);

/// How often they are before the first time, and while one of them is to be deleted: its host needs a moment to publish that
/// the container is gone.
const SOON: Duration = Duration::from_secs(2);

/// For how long a container stays hidden that its host publishes and no placement has: nobody is going to remove it.
const UNCLAIMED: Duration = Duration::from_mins(10);

/// For how long a unit that was evicted waits for its host. One that is away for longer is not expected back: its
/// containers would be ones that no ledger knows.
const FORGET: Duration = Duration::from_hours(30 * 24);

/// The part of the process that warns.
const PART: &str = "evictions";

/// Looks after the keys.
pub(super) struct Evictions {
    context: SyncContext,
    readiness: Option<Arc<Readiness>>,
    /// Whether it is known that etcd's user may put the keys.
    may: Option<bool>,
    /// Since when keys are there that no placement wants.
    unclaimed: BTreeMap<Eviction, Instant>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Put(Eviction, Text),
    /// The key, and in which revision it was put.
    Delete(Eviction, i64),
}

impl Evictions {
    pub(super) fn new(context: SyncContext, readiness: Option<Arc<Readiness>>) -> Self {
        Self { context, readiness, may: None, unclaimed: BTreeMap::new() }
    }

    pub(super) async fn run(mut self) {
        let mut learned = self.context.shared.watch();
        let mut known = BTreeSet::new();
        loop {
            // A failure of etcd is reported by those who write more; the next look may be better.
            let _ = survived(self.look()).await;
            let is_hidden = self.context.book(|book| book.hidden().is_some());
            let is_settled = self.may.is_some() && self.unclaimed.is_empty() && !is_hidden;
            let pause = if is_settled { jittered(LOOK) } else { SOON };
            let changed = async {
                while learned.changed().await.is_ok() {
                    let now = self.context.book(|book| book.evicting());
                    if now != known {
                        known = now;
                        return;
                    }
                }
                std::future::pending::<()>().await;
            };
            let shared = self.context.shared.clone();
            let told = async {
                tokio::select! {
                    () = changed => {}
                    () = shared.evictions.notified() => {}
                }
            };
            // Late: it is simply time.
            let _ = timeout(pause, told).await;
        }
    }

    /// Lists the keys, and does what is to be done.
    async fn look(&mut self) -> Result<(), EtcdError> {
        let SyncContext { shared, client, keys, clock, .. } = self.context.clone();
        if shared.reachable().is_err() {
            return Ok(());
        }
        if self.may != Some(true) || !self.context.book(|book| book.may_evict()) {
            let may = self.has_right().await?;
            self.tell(may);
        }
        if self.may != Some(true) {
            return Ok(());
        }
        let listing = client.list(keys.evictions().as_bytes(), true).await?;
        let there = listing.pairs.iter().filter_map(|pair| Some((keys.eviction(&pair.key)?, pair.mod_revision)));
        let there: BTreeMap<Eviction, i64> = there.collect();
        let (wanted, revisions, shown, as_of, forgotten) = self.context.book(|book| {
            let forgotten = book.forget_evicted(FORGET, clock.now());
            let wanted = book.evictions();
            let shown = book.shown(there.keys().filter(|eviction| !wanted.contains_key(eviction)));
            // Of the records as they are known now, so that an eviction that is over meanwhile stays so.
            let revision = |id: &Text| (id.clone(), book.record_revision(id));
            let revisions: BTreeMap<Text, i64> = wanted.values().map(revision).collect();
            (wanted, revisions, shown, book.revision(), forgotten)
        });
        for id in forgotten {
            warn!(%id, days = FORGET.as_secs() / 86_400, "it was evicted so long ago, and its host did not come back: it is forgotten");
            shared.something_changed();
        }
        self.unclaimed.retain(|eviction, _| there.contains_key(eviction) && !wanted.contains_key(eviction));
        for step in steps(&wanted, &there, as_of) {
            match step {
                Step::Put(eviction, id) => {
                    let revision = revisions.get(&id).copied().unwrap_or_default();
                    self.put(eviction, &id, revision).await?;
                }
                Step::Delete(eviction, revision) => {
                    self.delete(&eviction, revision, shown.contains(&eviction)).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether etcd's user may put keys of evictions; nothing is put.
    async fn has_right(&self) -> Result<bool, EtcdError> {
        let SyncContext { client, keys, .. } = &self.context;
        let key = format!("{}-/-", keys.evictions()).into_bytes();
        // No key has this revision; rights to all operations are asked for nevertheless.
        let never = Compare::unchanged(key.clone(), -1);
        let put = Op::Put { key, value: Vec::new(), lease: 0 };
        match client.txn(Txn { compare: vec![never], success: vec![put], failure: Vec::new() }).await {
            Ok(_) => Ok(true),
            Err(EtcdError::Refused(why)) if is_denied(&why) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Notes whether the user has the right, and says what follows where it has not.
    fn tell(&mut self, may: bool) {
        let SyncContext { shared, keys, .. } = &self.context;
        self.context.book(|book| book.set_may_evict(may));
        let before = self.may.replace(may);
        let family = keys.evictions();
        let text = format!(
            "etcd's user of this scheduler may not write {family}: names lead to a unit until the moment at which it is \
             stopped, and what was hidden is not started again; when a dead host comes back, they lead for a moment both to a unit \
             there and to the one that has its place. Renew its role: `agent invite HOST --again --role \
             host,scheduler`, or etcdctl role grant-permission ROLE --prefix=true readwrite {family}"
        );
        if !may && before != Some(false) {
            warn!("{text}");
        }
        if may && before == Some(false) {
            info!("etcd's user of this scheduler may write {family} now");
            // What was to be shown again has waited.
            shared.something_changed();
        }
        if let Some(readiness) = &self.readiness {
            readiness.warn(PART, (!may).then_some(text));
        }
    }

    /// Puts a key that is missing, if the record that wants it is the one that was put in this revision.
    async fn put(&self, eviction: Eviction, id: &Text, revision: i64) -> Result<(), EtcdError> {
        let SyncContext { client, keys, .. } = &self.context;
        let key = keys.of(&Key::Evicted(eviction)).into_bytes();
        let placement = keys.of(&Key::Placement(id.clone()));
        let compare = vec![Compare::absent(key.clone()), Compare::unchanged(placement.into_bytes(), revision)];
        let success = vec![Op::Put { key, value: Evicted::written(id), lease: 0 }];
        client.txn(Txn { compare, success, failure: Vec::new() }).await?;
        Ok(())
    }

    /// Deletes a key that no placement wants, once its host does not publish the container any more; at once where a placement shows it.
    async fn delete(&mut self, eviction: &Eviction, revision: i64, is_shown: bool) -> Result<(), EtcdError> {
        let SyncContext { client, keys, .. } = self.context.clone();
        let key = keys.of(&Key::Evicted(eviction.clone())).into_bytes();
        let since = *self.unclaimed.entry(eviction.clone()).or_insert_with(Instant::now);
        let mut compare = vec![Compare::unchanged(key.clone(), revision)];
        let is_late = !is_shown && since.elapsed() >= UNCLAIMED;
        if is_late {
            let Eviction { host, container } = eviction;
            warn!(%host, %container, "no placement has it any more, and it is still there: it is shown again");
        } else if !is_shown {
            compare.push(Compare::absent(keys.published(eviction).into_bytes()));
        }
        let outcome = client.txn(Txn { compare, success: vec![Op::Delete(key)], failure: Vec::new() }).await;
        match outcome {
            Ok(outcome) if outcome.succeeded => drop(self.unclaimed.remove(eviction)),
            Ok(_) => {}
            // A role made by hand may not read what hosts publish: then the time decides.
            Err(EtcdError::Refused(why)) if is_denied(&why) && !is_late => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Whether etcd refuses for want of a right.
pub(super) fn is_denied(why: &str) -> bool {
    why.contains("permission denied")
}

/// What is to be done, as of this revision of the ledger: what was put later may be wanted by what is not known yet.
fn steps(wanted: &BTreeMap<Eviction, Text>, there: &BTreeMap<Eviction, i64>, as_of: i64) -> Vec<Step> {
    let missing = wanted.iter().filter(|(eviction, _)| !there.contains_key(eviction));
    let puts = missing.map(|(eviction, id)| Step::Put(eviction.clone(), id.clone()));
    let unwanted = there.iter().filter(|(eviction, revision)| **revision <= as_of && !wanted.contains_key(eviction));
    puts.chain(unwanted.map(|(eviction, revision)| Step::Delete(eviction.clone(), *revision))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eviction(container: &str) -> Eviction {
        Eviction { host: "a".into(), container: container.into() }
    }

    #[test]
    fn what_is_missing_is_put_and_what_nothing_wants_is_deleted_as_far_as_it_is_known() {
        let wanted = ["kept", "missing"].map(|name| (eviction(name), Text::from("web-1"))).into();
        let there = [("kept", 5), ("over", 6), ("newer", 9)].map(|(name, revision)| (eviction(name), revision)).into();
        let expected = [Step::Put(eviction("missing"), "web-1".into()), Step::Delete(eviction("over"), 6)];
        assert_eq!(steps(&wanted, &there, 8), expected);
        assert_eq!(steps(&BTreeMap::new(), &BTreeMap::new(), 8), []);
    }
}
