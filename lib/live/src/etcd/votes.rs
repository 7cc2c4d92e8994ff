//! Votes and overrides in etcd: this host's own are written under a lease, and those of others about its containers are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use etcd::{EtcdClient, EtcdError, Lease, Pair, Span, Txn};
use model::votes::{Cast, Heard};
use model::{Map, Text, Value};
use source::backoff::Backoff;
use source::{PUBLISHED, Readiness, Reasons, Store};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::follow::BACKOFF;
use super::keys::{override_path, overrides_path, vote_path, voted_about, votes_path};
use super::plan::{Leased, plan};
use crate::host::HostDocument;

/// Largest vote, in bytes: some fields and a reason of one line.
const VOTE_MAX: usize = 1024;

/// Most votes that are read of one checker: one for each of the most containers that a host may have. What one checker writes takes no
/// room from the votes of others.
const VOTES_OF_CHECKER_MAX: usize = 20_000;

/// How often what was written is compared with what is there: nothing else notices what another process deletes.
const COMPARE_INTERVAL: Duration = Duration::from_mins(1);

/// Longest silence of the watch of votes; then it is opened again, and what was missed is read.
const WATCH_MAX: Duration = Duration::from_mins(1);

/// What this host says of containers of others, and what others say of its own.
#[derive(Clone, Debug)]
pub struct Voting {
    /// What this host says.
    pub cast: Arc<Store<Cast>>,
    /// The checkers of this host's containers, whose votes count.
    pub checkers: Arc<Store<BTreeSet<Text>>>,
    /// Their votes.
    pub heard: Arc<Store<Heard>>,
}

/// Writes this host's votes and reads those about its containers, under the name that `documents` say, until it is dropped. While the
/// host is not published it says nothing: another machine may have the name.
///
/// # Cancel safety
///
/// May be dropped at any time; what was written goes with its lease.
pub async fn vote(client: EtcdClient, documents: Arc<Store<HostDocument>>, voting: Voting, readiness: Arc<Readiness>) {
    let mut reasons = readiness.watch();
    let is_published = |reasons: &Reasons| !reasons.contains_key(PUBLISHED);
    let mut watcher = documents.watch();
    watcher.first().await;
    // The sender is ours.
    while reasons.wait_for(is_published).await.is_ok() {
        let host = documents.load().host.clone();
        let cast = cast_votes(client.clone(), host.clone(), voting.cast.clone());
        let hear = hear_votes(client.clone(), host.clone(), voting.checkers.clone(), voting.heard.clone());
        let renamed = async {
            while documents.load().host == host {
                watcher.changed().await;
            }
        };
        tokio::select! {
            () = cast => {}
            () = hear => {}
            () = renamed => {}
            _ = reasons.wait_for(|reasons| !is_published(reasons)) => {}
        }
    }
}

/// Writes what `cast` says, about containers of other hosts, until it is dropped.
///
/// With nothing to say there is no lease and no key.
///
/// # Cancel safety
///
/// May be dropped at any time; what was written goes with its lease.
async fn cast_votes(client: EtcdClient, host: Text, cast: Arc<Store<Cast>>) {
    let mut writer = Writer {
        lease: Lease::new(client.clone(), client.options().lease),
        client,
        host,
        there: None,
        compare_at: Instant::now(),
    };
    let (mut watcher, mut histories) = (cast.watch(), writer.client.histories());
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let mut failing = None;
    loop {
        watcher.seen();
        let wait = match writer.round(&cast.load_full()).await {
            Ok(()) => {
                backoff.reset();
                if failing.take().is_some() {
                    info!("the votes of this host are in etcd again");
                }
                writer.due()
            }
            Err(error) => {
                let text = error.to_string();
                if failing.as_ref() != Some(&text) {
                    warn!(%error, "cannot vote on the health of other hosts' containers");
                }
                failing = Some(text);
                writer.there = None;
                Some(Instant::now() + backoff.wait())
            }
        };
        tokio::select! {
            () = watcher.changed(), if failing.is_none() => {}
            // The sender is the client, which is ours.
            _ = histories.changed() => writer.there = None,
            () = sleep_until(wait.unwrap_or_else(Instant::now)), if wait.is_some() => {}
        }
    }
}

struct Writer {
    client: EtcdClient,
    lease: Lease,
    host: Text,
    /// What etcd has, when that is known.
    there: Option<BTreeMap<Vec<u8>, Leased>>,
    compare_at: Instant,
}

impl Writer {
    /// Brings etcd up to date, and renews the lease when it is time.
    async fn round(&mut self, cast: &Cast) -> Result<(), EtcdError> {
        if let Some(lease) = self.lease.id()
            && self.lease.due().is_some_and(|due| Instant::now() >= due)
        {
            match self.lease.renew(lease).await {
                Ok(_) => {}
                Err(EtcdError::LeaseGone) => self.there = None,
                Err(error) => return Err(error),
            }
        }
        let prefix = self.client.options().prefix.clone();
        let mut there = match self.there.take() {
            Some(there) if Instant::now() < self.compare_at || there.is_empty() => there,
            _ => {
                let spans = [votes_path(&self.host, None), overrides_path(&self.host)]
                    .map(|path| Span::of_prefix(format!("{prefix}{path}").as_bytes()));
                let pairs = self.client.list_spans(&spans, false).await?.pairs;
                self.compare_at = Instant::now() + COMPARE_INTERVAL;
                pairs.into_iter().map(|pair| (pair.key, (pair.value, pair.lease))).collect()
            }
        };
        let votes = cast.votes.iter().map(|(about, vote)| (vote_path(&self.host, about), vote));
        let overrides = cast.overrides.iter().map(|(about, value)| (override_path(&self.host, about), value));
        let wanted: BTreeMap<Vec<u8>, Vec<u8>> = votes
            .chain(overrides)
            .map(|(path, value)| (format!("{prefix}{path}").into_bytes(), written(value)))
            .collect();
        if wanted.is_empty() && there.is_empty() {
            self.there = Some(there);
            return self.lease.revoke().await;
        }
        let lease = if wanted.is_empty() { 0 } else { self.lease.get_or_grant().await? };
        for ops in plan(&there, &wanted, lease) {
            let txn = Txn { compare: Vec::new(), success: ops.clone(), failure: Vec::new() };
            if let Err(error) = self.client.txn(txn).await {
                if matches!(error, EtcdError::LeaseGone) {
                    self.lease.forget(lease);
                }
                return Err(error);
            }
        }
        there = wanted.into_iter().map(|(key, value)| (key, (value, lease))).collect();
        if there.is_empty() {
            self.lease.revoke().await?;
        }
        self.there = Some(there);
        Ok(())
    }

    /// When there is something to do although nothing has changed.
    fn due(&self) -> Option<Instant> {
        let compare = self.there.as_ref().filter(|there| !there.is_empty()).map(|_| self.compare_at);
        self.lease.due().into_iter().chain(compare).min()
    }
}

fn written(value: &Map) -> Vec<u8> {
    let value = value.with([("berth".into(), Value::Int(model::document::FORMAT))]);
    // Maps with text keys and finite numbers can always be written.
    serde_json::to_vec(&value).unwrap_or_default()
}

/// Publishes in `heard` the votes of the hosts in `checkers` about the containers of `host`, until it is dropped. Before etcd has
/// answered, and while it is away, there are none: what is published stays, and a vote of before is not counted later.
///
/// # Cancel safety
///
/// May be dropped at any time.
async fn hear_votes(client: EtcdClient, host: Text, checkers: Arc<Store<BTreeSet<Text>>>, heard: Arc<Store<Heard>>) {
    let (mut watcher, mut histories) = (checkers.watch(), client.histories());
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    loop {
        watcher.seen();
        let of = checkers.load_full();
        let session = async {
            if of.is_empty() {
                heard.publish(Arc::default());
                return std::future::pending().await;
            }
            hear(&client, &host, &of, &heard, &mut backoff).await
        };
        let ended: Result<(), EtcdError> = tokio::select! {
            ended = session => ended,
            () = watcher.changed() => Ok(()),
            _ = histories.changed() => Ok(()),
        };
        if let Err(error) = ended {
            // The follower of the cluster reports that etcd is away.
            tracing::debug!(%error, "the votes about this host's containers cannot be followed");
            heard.publish(Arc::default());
            tokio::time::sleep(backoff.wait()).await;
        }
    }
}

/// Reads all votes, then follows them until the watch ends.
async fn hear(
    client: &EtcdClient,
    host: &Text,
    checkers: &BTreeSet<Text>,
    heard: &Store<Heard>,
    backoff: &mut Backoff,
) -> Result<(), EtcdError> {
    let prefix = &client.options().prefix;
    let starts: Vec<(Text, String)> = checkers
        .iter()
        .map(|checker| (checker.clone(), format!("{prefix}{}", votes_path(checker, Some(host)))))
        .collect();
    let spans: Vec<Span> = starts.iter().map(|(_, start)| Span::of_prefix(start.as_bytes())).collect();
    let about = |key: &[u8]| {
        let (checker, start) = starts.iter().find(|(_, start)| key.starts_with(start.as_bytes()))?;
        Some((checker.clone(), voted_about(start, key)?))
    };
    let listing = client.list_spans(&spans, false).await?;
    let mut votes = Votes::default();
    let take = |votes: &mut Votes, pair: &Pair, is_deleted: bool| {
        let Some((checker, container)) = about(&pair.key) else { return };
        votes.set(checker, container, if is_deleted { None } else { read(&pair.value) });
    };
    listing.pairs.iter().for_each(|pair| take(&mut votes, pair, false));
    votes.publish(heard);
    let mut watch = client.watch_spans(&spans, listing.at.revision + 1).await?;
    backoff.reset();
    loop {
        let Ok(batch) = tokio::time::timeout(WATCH_MAX, watch.next()).await else { return Ok(()) };
        batch?.events.iter().for_each(|event| take(&mut votes, &event.pair, event.deleted));
        votes.publish(heard);
    }
}

/// The votes that are there.
#[derive(Debug, Default)]
struct Votes {
    /// By checker and container.
    heard: Heard,
    /// How many there are of each checker.
    counts: BTreeMap<Text, usize>,
}

impl Votes {
    /// From now on a checker has this vote about a container, or none.
    fn set(&mut self, checker: Text, container: Text, vote: Option<Map>) {
        let about = (checker.clone(), container);
        let is_known = self.heard.0.contains_key(&about);
        let count = self.counts.entry(checker).or_default();
        match vote {
            Some(vote) if is_known => drop(self.heard.0.insert(about, vote)),
            Some(vote) if *count < VOTES_OF_CHECKER_MAX => {
                *count += 1;
                self.heard.0.insert(about, vote);
            }
            None if is_known => {
                *count -= 1;
                self.heard.0.remove(&about);
            }
            Some(_) | None => {}
        }
    }

    fn publish(&self, heard: &Store<Heard>) {
        if **heard.load() != self.heard {
            heard.publish(Arc::new(self.heard.clone()));
        }
    }
}

/// A vote, if it is one.
fn read(value: &[u8]) -> Option<Map> {
    if value.len() > VOTE_MAX {
        return None;
    }
    serde_json::from_slice(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_checker_takes_no_room_from_the_votes_of_another() {
        let (liar, honest) = (Text::from("liar"), Text::from("honest"));
        let vote = |json: &str| Some(serde_json::from_str::<Map>(json).unwrap());
        let mut votes = Votes::default();
        for number in 0..VOTES_OF_CHECKER_MAX + 10 {
            votes.set(liar.clone(), format!("c{number}").into(), vote("{}"));
        }
        assert_eq!(votes.heard.0.len(), VOTES_OF_CHECKER_MAX);
        votes.set(honest.clone(), "c1".into(), vote(r#"{"opinion": "down"}"#));
        assert!(votes.heard.0.contains_key(&(honest, "c1".into())));
        // What is there can change, and what goes makes room.
        votes.set(liar.clone(), "c1".into(), vote(r#"{"opinion": "up"}"#));
        assert!(votes.heard.0[&(liar.clone(), "c1".into())].text("opinion").is_some());
        votes.set(liar.clone(), "c0".into(), None);
        votes.set(liar.clone(), "c0".into(), None);
        votes.set(liar.clone(), "new".into(), vote("{}"));
        votes.set(liar.clone(), "newer".into(), vote("{}"));
        assert!(votes.heard.0.contains_key(&(liar.clone(), "new".into())));
        assert!(!votes.heard.0.contains_key(&(liar, "newer".into())));
    }

    #[test]
    fn what_is_too_long_is_no_vote() {
        let of = |length: usize| format!(r#"{{"reason": "{}"}}"#, "x".repeat(length));
        assert!(read(of(VOTE_MAX / 2).as_bytes()).is_some() && read(of(VOTE_MAX).as_bytes()).is_none());
    }
}
