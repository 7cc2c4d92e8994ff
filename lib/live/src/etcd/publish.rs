//! Publishes this host's document under a lease, and writes only what changed.
//!
//! The host's own key is the claim to its name: every transaction holds only while that key is as we wrote it last. So
//! two hosts of one name never mix; the second one waits, and reports it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd::{At, Compare, EtcdClient, EtcdError, KeyChange, Lease, Op, Pair, Txn};
use model::{Map, Text};
use source::backoff::Backoff;
use source::{ETCD_WRITES, PUBLISHED, Readiness, Revision, Store};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::follow::BACKOFF;
use super::identity::Identity;
use super::own_keys::{HostKeys, OwnKeys};
use super::plan::plan;
use super::value::{Published, Values};
use crate::host::HostDocument;
use crate::leave::{self, LeaveRequests, Left, Reply};
use crate::metrics::Metrics;
use crate::moment;

/// How often our keys are compared with what they should be: a follower with this client notices at once when
/// another process changes one, but may have missed it.
const COMPARE_INTERVAL: Duration = Duration::from_mins(1);

/// Shortest time between two listings of our keys because of changes by others, so that a program that writes them in a loop
/// does not occupy etcd.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How often it is looked whether a name that another host has is free.
const TAKEN_INTERVAL: Duration = Duration::from_secs(3);

/// Longest time that leaving may take; the lease expires by itself.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// The identity of the publisher, and how it is asked to end.
#[derive(Debug)]
pub struct Publishing {
    /// The identity that our keys carry.
    pub identity: Identity,
    /// Asks the host to leave the cluster, which ends this.
    pub leaving: LeaveRequests,
    /// What is counted.
    pub metrics: Metrics,
    /// How this host gets a new password, if it has one.
    pub exchange: Option<Arc<dyn PasswordExchange>>,
}

/// How operators give this host a new password that no other reader of etcd learns.
pub trait PasswordExchange: Send + Sync + std::fmt::Debug {
    /// The public key by which the next password is to be sealed.
    fn key(&self) -> Text;

    /// Stores the password in the value of this key, to be tried when etcd refuses the present one. Blocks.
    ///
    /// # Errors
    ///
    /// Fails if it was sealed for another key, or cannot be stored.
    fn store(&self, key: &str, value: &[u8]) -> Result<(), String>;
}

/// Publishes each document that `documents` gets, until the host is asked to leave. What it is called with is not ready from the call
/// on.
///
/// # Cancel safety
///
/// May be dropped at any time. The keys stay for the lease then: containers run on while an agent is updated, and an
/// agent that starts within that time takes the keys over.
pub fn publish(
    client: EtcdClient,
    documents: Arc<Store<HostDocument>>,
    publishing: Publishing,
    readiness: Arc<Readiness>,
) -> impl Future<Output = ()> + Send {
    readiness.not_ready(PUBLISHED, "this host was not published yet");
    async move {
        let Publishing { identity, mut leaving, metrics, exchange } = publishing;
        let mut publisher = Publisher::new(client, documents, identity, readiness, metrics);
        publisher.exchange = exchange;
        let reply = publisher.run(&mut leaving).await;
        // The caller may have gone.
        let _ = reply.send(publisher.leave().await);
    }
}

struct Publisher {
    client: EtcdClient,
    documents: Arc<Store<HostDocument>>,
    identity: Identity,
    readiness: Arc<Readiness>,
    metrics: Metrics,
    /// The host that is published.
    host: Option<Text>,
    /// Where the cluster was at its last answer.
    at: At,
    lease: Lease,
    /// Its keys, when they are compared, and when they were listed last.
    keys: OwnKeys,
    compare_at: Instant,
    looked_at: Instant,
    /// Whether our value of the host was in etcd during this run.
    held: bool,
    /// How this host gets a new password, and the one that is there for it.
    exchange: Option<Arc<dyn PasswordExchange>>,
    password: Option<Pair>,
    reported: Vec<model::Defect>,
}

/// Why the host is not published.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("{0}")]
    Etcd(#[from] EtcdError),
    /// Another machine has the name.
    #[error(
        "the host {host} is published by another machine{address} since {since} (machine {machine}): give one of them another name"
    )]
    Taken { host: Text, machine: Text, address: String, since: String },
    /// This machine, or a copy of it, publishes the name as well.
    #[error(
        "the host {host} was taken over{address} at {since} by another agent with the identity of this one: stop one of them, or give a copied machine a state directory of its own"
    )]
    TakenOver { host: Text, address: String, since: String },
    /// The host's key was written by hand.
    #[error("the key {0} has no owner: delete it")]
    Unowned(String),
    /// The keys changed between our read and our write.
    #[error("the keys of this host were changed by another process")]
    Changed,
}

impl Publisher {
    fn new(
        client: EtcdClient,
        documents: Arc<Store<HostDocument>>,
        identity: Identity,
        readiness: Arc<Readiness>,
        metrics: Metrics,
    ) -> Self {
        let now = Instant::now();
        let lease = Lease::new(client.clone(), client.options().lease);
        Self {
            client,
            documents,
            identity,
            readiness,
            metrics,
            host: None,
            at: At::default(),
            lease,
            keys: OwnKeys::default(),
            compare_at: now,
            looked_at: now,
            held: false,
            exchange: None,
            password: None,
            reported: Vec::new(),
        }
    }

    /// Publishes until the host is asked to leave; the caller of that waits for the result.
    async fn run(&mut self, leaving: &mut LeaveRequests) -> Reply {
        let documents = self.documents.clone();
        let mut watcher = documents.watch();
        while watcher.seen() == Revision::NONE {
            tokio::select! {
                () = watcher.changed() => {}
                reply = leave::next(leaving) => return reply,
            }
        }
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        let mut failing: Option<String> = None;
        let (mut histories, mut changes) = (self.client.histories(), self.client.changes());
        loop {
            let _ = watcher.seen();
            match self.round().await {
                Ok(()) => {
                    backoff.reset();
                    if failing.take().is_some() {
                        info!("this host is published again");
                        self.readiness.ready(ETCD_WRITES);
                    }
                    self.readiness.ready(PUBLISHED);
                    let due = self.lease.due().map_or(self.compare_at, |due| due.min(self.compare_at));
                    tokio::select! {
                        () = watcher.changed() => {}
                        // The sender is the client, which is ours.
                        _ = histories.changed() => {
                            self.keys.there = None;
                            self.compare_at = Instant::now();
                        }
                        () = self.foreign_change(&mut changes) => self.look_soon(),
                        () = tokio::time::sleep_until(due) => {}
                        reply = leave::next(leaving) => return reply,
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if failing.as_ref() != Some(&text) {
                        warn!(error = %text, "this host is not published");
                    }
                    if matches!(error, PublishError::Etcd(EtcdError::Refused(_))) {
                        self.look_at_alarms().await;
                    }
                    self.readiness.not_ready(PUBLISHED, text.clone());
                    failing = Some(text);
                    let wait = match error {
                        PublishError::Etcd(_) | PublishError::Changed => backoff.wait(),
                        PublishError::Taken { .. } | PublishError::TakenOver { .. } | PublishError::Unowned(_) => {
                            TAKEN_INTERVAL
                        }
                    };
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        reply = leave::next(leaving) => return reply,
                    }
                }
            }
        }
    }

    /// Brings etcd up to date with the document, and renews the lease when it is time.
    async fn round(&mut self) -> Result<(), PublishError> {
        let document = self.documents.load_full();
        if self.host.as_ref() != Some(&document.host) {
            // Under its name of before the host is gone.
            self.lease.revoke().await?;
            self.publish_as(document.host.clone());
        }
        let compare = Instant::now() >= self.compare_at;
        // Missing keys may have gone with the lease, so that is checked first.
        if let Some(lease) = self.lease.id()
            && (compare || self.lease.due().is_some_and(|due| Instant::now() >= due))
        {
            match self.lease.renew(lease).await {
                Ok(at) if at.follows(self.at) => {
                    self.at = at;
                    self.look_at_alarms().await;
                }
                // etcd was set up again, or from a backup, or this member lags behind: the keys will show which.
                Ok(_) => self.keys.there = None,
                Err(EtcdError::LeaseGone) => {
                    warn!("the lease of this host expired; publishing again");
                    self.keys.there = None;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let there = match self.keys.there.take() {
            Some(there) if !compare => there,
            known => {
                let there = self.look(&document.host).await?;
                self.report_changed(known.as_ref(), &there);
                there
            }
        };
        if let Some(pair) = self.password.take() {
            self.take_password(pair).await?;
        }
        let lease = self.lease.get_or_grant().await?;
        let written = match self.write(&document, there, lease).await {
            // Another process was faster: the keys show which.
            Err(PublishError::Changed) => {
                let there = self.look(&document.host).await?;
                self.write(&document, there, lease).await
            }
            other => other,
        };
        if matches!(written, Err(PublishError::Etcd(EtcdError::LeaseGone))) {
            self.lease.forget(lease);
        }
        written
    }

    /// Says whether etcd takes writes: while its database is full it answers, and other hosts cannot say anything.
    async fn look_at_alarms(&self) {
        // A user who may not ask learns it from the first write.
        let alarms = self.client.alarms().await.unwrap_or_default();
        if alarms.is_empty() {
            self.readiness.ready(ETCD_WRITES);
        } else {
            let alarms = alarms.join("; ");
            self.readiness.not_ready(ETCD_WRITES, format!("etcd takes no writes: {}", alarms.trim()));
        }
    }

    /// Stores the password that an operator gives this host, and then deletes its key: only after that the operator changes
    /// the password in etcd.
    async fn take_password(&mut self, pair: Pair) -> Result<(), PublishError> {
        let Some(exchange) = self.exchange.clone() else { return Ok(()) };
        let stored = tokio::task::spawn_blocking({
            let pair = pair.clone();
            move || exchange.store(&String::from_utf8_lossy(&pair.key), &pair.value)
        });
        match stored.await.map_err(|_| EtcdError::stopping())? {
            Ok(()) => {
                let compare = vec![Compare::unchanged(pair.key.clone(), pair.mod_revision)];
                let success = vec![Op::Delete(pair.key)];
                let outcome = self.client.txn(Txn { compare, success, failure: Vec::new() }).await?;
                self.keys.written(outcome.revision);
                info!("an operator gives this host a new password for etcd");
            }
            // It goes with its lease.
            Err(problem) => warn!(problem, "cannot take the new password for etcd that an operator gives this host"),
        }
        Ok(())
    }

    /// Publishes the host of this name from now on.
    fn publish_as(&mut self, host: Text) {
        self.keys = OwnKeys::new(&self.client.options().prefix, &host);
        self.client.publishes(self.keys.prefix.clone());
        (self.host, self.held) = (Some(host), false);
    }

    /// Waits until another process has changed one of our keys, or may have.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; no change is lost.
    async fn foreign_change(&self, changes: &mut broadcast::Receiver<KeyChange>) {
        loop {
            match changes.recv().await {
                Ok(change) if self.keys.is_foreign(&change) => return,
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => return,
                // The sender is the client, which is ours.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Our keys are to be listed at once, or shortly after the last time.
    fn look_soon(&mut self) {
        self.compare_at = self.compare_at.min(Instant::now().max(self.looked_at + LOOK_INTERVAL));
    }

    /// Logs which of our keys another process deleted or wrote; they are written again next.
    fn report_changed(&self, known: Option<&HostKeys>, there: &HostKeys) {
        // In another history than ours, as of a backup, nothing was changed.
        let Some(known) = known.filter(|_| self.held) else { return };
        let prefix = &self.keys.prefix;
        let deleted = there.deleted_since(known);
        if deleted > 0 {
            warn!(
                keys = deleted,
                prefix, "keys of this host were deleted in etcd by another process; writing them again"
            );
            let reason =
                format!("{deleted} keys under {prefix} were deleted by another process and are being written again");
            self.readiness.not_ready(PUBLISHED, reason);
            self.metrics.deleted.inc_by(deleted as u64);
        }
        let written = there.written_since(known);
        if written > 0 {
            warn!(keys = written, prefix, "keys of this host were written in etcd by another process; correcting them");
            let reason =
                format!("{written} keys under {prefix} were written by another process and are being corrected");
            self.readiness.not_ready(PUBLISHED, reason);
        }
    }

    /// What etcd has of our host, when it is ours to write; a lease of a life before is taken over.
    async fn look(&mut self, host: &Text) -> Result<HostKeys, PublishError> {
        let listing = self.client.list(self.keys.prefix.as_bytes(), false).await?;
        if !listing.at.follows(self.at) {
            // Another history, perhaps from a backup: an earlier life that it contains is over.
            self.held = false;
        }
        self.at = listing.at;
        self.looked_at = Instant::now();
        self.keys.listed(listing.at.revision);
        let mut there = HostKeys::default();
        for pair in listing.pairs {
            if pair.key == self.keys.host {
                self.claim(host, &pair).await?;
                there.host = Some(((pair.value, pair.lease), pair.mod_revision));
            } else if pair.key == self.keys.password {
                self.password = Some(pair);
            } else {
                there.entities.insert(pair.key, (pair.value, pair.lease));
            }
        }
        self.compare_at = Instant::now() + COMPARE_INTERVAL;
        Ok(there)
    }

    /// Whether the host's key is ours, or that of a life before.
    async fn claim(&mut self, host: &Text, pair: &Pair) -> Result<(), PublishError> {
        let Some(published) = published(&pair.value) else {
            // An unreadable value is overwritten.
            return Ok(());
        };
        if published.by.is_empty() {
            return Err(PublishError::Unowned(String::from_utf8_lossy(&pair.key).into_owned()));
        }
        let address = published.address.as_ref().map_or_else(String::new, |address| format!(" at {address}"));
        let since = published.at.and_then(moment::write).unwrap_or_else(|| "an unknown time".to_owned());
        if published.by != self.identity.machine {
            self.release(pair.lease).await;
            return Err(PublishError::Taken { host: host.clone(), machine: published.by, address, since });
        }
        if published.life != self.identity.life {
            if self.held {
                self.release(pair.lease).await;
                return Err(PublishError::TakenOver { host: host.clone(), address, since });
            }
            let length = i64::try_from(self.client.options().lease.as_secs()).unwrap_or(i64::MAX);
            if self.lease.id().is_none() && pair.lease != 0 && published.lease == length && !published.leaving {
                match self.lease.renew(pair.lease).await {
                    Ok(_) => info!(host = %host, "taking over what an earlier run of this agent published"),
                    Err(EtcdError::LeaseGone) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Ends our lease, so that nothing of ours stands among what another host publishes.
    ///
    /// The process that took our keys over may renew our lease too, and then needs it.
    async fn release(&mut self, theirs: i64) {
        self.lease.forget(theirs);
        // It runs out all the same.
        let _ = self.lease.revoke().await;
    }

    async fn write(&mut self, document: &HostDocument, mut there: HostKeys, lease: i64) -> Result<(), PublishError> {
        let values = Values::of(document);
        self.report_defects(&values);
        let prefix = &self.client.options().prefix;
        let wanted =
            values.entities.iter().map(|(key, value)| (format!("{prefix}{}", key.path()).into_bytes(), value.clone()));
        let wanted: BTreeMap<_, _> = wanted.collect();
        let mut lists = plan(&there.entities, &wanted, lease);
        let mut published = self.published(&values.host);
        // A word that still is true is not said again, not even with the time of today.
        let before = there.host.as_ref().and_then(|((value, _), _)| self::published(value));
        let said = before.as_ref().map(|before| Published { at: before.at, ..published.clone() });
        let is_stored = |said: &Published| {
            there.host.as_ref().is_some_and(|((value, with), _)| *value == values.host_value(said) && *with == lease)
        };
        let own_due = !said.is_some_and(|said| is_stored(&said));
        if lists.is_empty() && own_due {
            lists.push(Vec::new());
        }
        // Where nothing exists yet, no follower is to see a part of it.
        let in_parts = lists.len() > 1 && before.is_none_or(|before| before.partial);
        let own = self.keys.host.clone();
        let count = lists.len();
        for (index, mut ops) in lists.into_iter().enumerate() {
            published.partial = in_parts && index + 1 < count;
            // The first one claims the name, the last one says that all is there.
            if own_due && (index == 0 || in_parts && index + 1 == count) {
                ops.push(Op::Put { key: own.clone(), value: values.host_value(&published), lease });
            }
            let fence = match &there.host {
                Some((_, put)) => Compare::unchanged(own.clone(), *put),
                None => Compare::absent(own.clone()),
            };
            let txn = Txn { compare: vec![fence], success: ops.clone(), failure: Vec::new() };
            let outcome = self.client.txn(txn).await?;
            if !outcome.succeeded {
                return Err(PublishError::Changed);
            }
            self.held = true;
            self.at.revision = self.at.revision.max(outcome.revision);
            self.keys.written(outcome.revision);
            there.apply(ops, outcome.revision, &own);
        }
        self.keys.there = Some(there);
        Ok(())
    }

    fn published(&self, host: &Map) -> Published {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        Published {
            by: self.identity.machine.clone(),
            life: self.identity.life.clone(),
            at: now.and_then(|now| i64::try_from(now.as_secs()).ok()),
            address: host.text("agent_ip").cloned(),
            lease: i64::try_from(self.client.options().lease.as_secs()).unwrap_or(i64::MAX),
            partial: false,
            leaving: false,
            exchange: self.exchange.as_ref().map(|exchange| exchange.key()),
        }
    }

    fn report_defects(&mut self, values: &Values) {
        if self.reported != values.defects {
            for defect in &values.defects {
                warn!(%defect, "not published");
            }
            self.reported.clone_from(&values.defects);
        }
    }

    /// Marks the host as leaving, so that no follower waits for its return, and ends its lease.
    async fn leave(&mut self) -> Result<Left, String> {
        let Some(lease) = self.lease.id() else { return Ok(Left::Unpublished) };
        let there = self.keys.there.take();
        let left = timeout(LEAVE_LIMIT, async {
            // Without knowing what etcd has the lease is ended all the same, and followers wait for a grace.
            if let Some((_, put)) = there.and_then(|there| there.host) {
                let own = self.keys.host.clone();
                let values = Values::of(&self.documents.load_full());
                let published = Published { leaving: true, ..self.published(&values.host) };
                let put_own = Op::Put { key: own.clone(), value: values.host_value(&published), lease };
                let compare = vec![Compare::unchanged(own, put)];
                self.client.txn(Txn { compare, success: vec![put_own], failure: Vec::new() }).await?;
            }
            self.lease.revoke().await
        });
        match left.await {
            Ok(outcome) => outcome.map(|()| Left::Announced).map_err(|error| error.to_string()),
            Err(_) => Err(format!("etcd does not answer within {} s", LEAVE_LIMIT.as_secs())),
        }
    }
}

/// What a host's value says about its keys; `None` when it is no such value.
fn published(value: &[u8]) -> Option<Published> {
    let value: Map = serde_json::from_slice(value).ok()?;
    Some(Published::read(&value))
}

#[cfg(test)]
mod tests {
    use etcd::{EtcdOptions, Event};

    use super::*;

    /// A publisher of `hosts/a/` that listed its keys as of revision 10.
    fn publisher() -> Publisher {
        let client = EtcdClient::new(EtcdOptions::parse("http://192.0.2.1:2379").unwrap()).unwrap();
        let identity = Identity { machine: "m".into(), life: "l".into() };
        let documents = Arc::new(Store::new(HostDocument::default()));
        let mut publisher = Publisher::new(client, documents, identity, Arc::default(), Metrics::default());
        publisher.publish_as("a".into());
        publisher.keys.there = Some(HostKeys::default());
        publisher.keys.listed(10);
        publisher
    }

    #[tokio::test]
    async fn own_keys_that_others_change_are_listed_and_no_other_key_is() {
        for (key, revision, expected) in [
            ("hosts/a/host", 13, true),
            ("hosts/a/containers/x", 11, true),
            ("hosts/a/containers/x", 10, false),
            // Keys of others.
            ("hosts/ab/host", 13, false),
            ("documents/a", 13, false),
        ] {
            let publisher = publisher();
            let mut changes = publisher.client.changes();
            let key = format!("/berth/v1/{key}").into_bytes();
            let pair = Pair { key, mod_revision: revision, ..Pair::default() };
            publisher.client.was_changed(&Event { pair, deleted: false });
            let heard = tokio::select! {
                biased;
                () = publisher.foreign_change(&mut changes) => true,
                () = std::future::ready(()) => false,
            };
            assert_eq!(heard, expected, "{revision}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_foreign_changes_is_one_listing_in_a_while() {
        let mut publisher = publisher();
        publisher.compare_at = Instant::now() + COMPARE_INTERVAL;
        publisher.look_soon();
        assert_eq!(publisher.compare_at, Instant::now() + LOOK_INTERVAL);
        tokio::time::advance(Duration::from_secs(1)).await;
        publisher.compare_at = Instant::now() + COMPARE_INTERVAL;
        publisher.look_soon();
        assert_eq!(publisher.compare_at, Instant::now());
    }
}
