//! Follows what all hosts publish: lists the keys, then watches from that revision on; recovers from any failure of
//! etcd.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd::{At, EtcdClient, EtcdError, EventBatch, Listing, Watch};
use source::backoff::Backoff;
use source::follow::ReloadRequests;
use source::{ETCD, Readiness, StateDir};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{info, warn};

use super::compare::{self, Differing};
use super::keys::followed;
use super::mirror::KeyMirror;
use super::part::{Batch, PartChange};
use super::pending::{Pending, answered, until};
use super::reading::Reader;
use super::stored::{self, Saving};

/// How long changes are gathered before they are published, so that one write of a host arrives as one change.
const GATHER: Duration = Duration::from_millis(5);

/// Silence after which a member is probed.
const PROBE_SILENCE: Duration = Duration::from_secs(2);

/// From so many differences on everything is read again instead of key by key.
const DIFFERENCES_MAX: usize = 256;

/// Waits between tries to reach etcd. All followers lose it together and must not return together; a new leader takes a
/// second.
pub(super) const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How long a watch has to last so that its loss is no failure yet: the next member is tried at once, and only then is
/// etcd away.
const STEADY: Duration = Duration::from_secs(1);

/// Where the result of a reload is sent.
type Reply = oneshot::Sender<Result<(), String>>;

/// Follows everything under the prefix of `client`.
///
/// Each batch holds what changed since the one before; the first one holds everything. With a state directory what was
/// published last is published again at a start, before etcd answers. Ends when `batches` is closed; drop it to stop.
/// Then, and from time to time before, what is published is stored on disk.
///
/// # Cancel safety
///
/// May be dropped at any time. A save that is due is made on the thread that drops it.
pub async fn follow(
    client: EtcdClient,
    state: Option<StateDir>,
    batches: mpsc::Sender<Batch>,
    readiness: Arc<Readiness>,
    requests: ReloadRequests,
) {
    let prefix = client.options().prefix.clone();
    let mut mirror = KeyMirror::new(prefix.clone(), client.options().lease);
    readiness.not_ready(ETCD, "etcd was not read yet");
    let mut first = Vec::new();
    if let Some(state) = state.clone() {
        let prefix = prefix.clone();
        let parts = tokio::task::spawn_blocking(move || stored::load(&state, &prefix)).await.unwrap_or_default();
        if !parts.is_empty() {
            info!(parts = parts.len(), "using the state stored on disk until etcd answers");
        }
        for (id, document) in parts {
            mirror.restore(id, document);
        }
        first = mirror.restored();
    }
    if !first.is_empty() && batches.send(Batch { changes: first, restored: true, done: None }).await.is_err() {
        return;
    }
    let follower = Follower {
        client,
        mirror,
        batches,
        readiness,
        requests,
        replies: Vec::new(),
        at: At::default(),
        position: 0,
        listed: false,
        published: false,
        saving: Saving::new(state, prefix),
        watching: None,
        begun: Instant::now(),
    };
    follower.run().await;
}

struct Follower {
    client: EtcdClient,
    mirror: KeyMirror,
    batches: mpsc::Sender<Batch>,
    readiness: Arc<Readiness>,
    requests: ReloadRequests,
    replies: Vec<Reply>,
    /// Where the cluster was at its last answer.
    at: At,
    /// The last revision of which all changes are known.
    position: i64,
    /// Whether the mirror is that of the list at `position` and all changes since.
    listed: bool,
    /// Whether anything was published since the first answer of etcd.
    published: bool,
    saving: Saving,
    /// Since when there is a watch of a member that is in sync.
    watching: Option<Instant>,
    /// From when on the time of the world is counted.
    begun: Instant,
}

/// Why a session with one member is over.
enum End {
    /// The receiver of the batches is gone.
    Stop,
    /// Everything has to be read again.
    Again,
    /// The same, and nothing of before counts.
    Reset,
    /// The member or all of etcd failed.
    Failed(String),
}

impl From<EtcdError> for End {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::Compacted => Self::Again,
            // Nothing was to be done, so nothing can have been.
            EtcdError::Lost(problem) => Self::Failed(format!("the connection to etcd broke: {problem}")),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl Follower {
    async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        let mut failing: Option<String> = None;
        loop {
            self.watching = None;
            let end = self.session(&mut failing).await;
            let steady = self.watching.is_some_and(|since| since.elapsed() >= STEADY);
            if steady {
                backoff.reset();
            }
            let error = match end {
                End::Stop => return,
                again @ (End::Again | End::Reset) => {
                    if matches!(again, End::Reset) {
                        self.at = At::default();
                    }
                    self.listed = false;
                    info!("reading everything of etcd again");
                    if !steady {
                        tokio::time::sleep(backoff.wait()).await;
                    }
                    continue;
                }
                End::Failed(error) => error,
            };
            self.mirror.pause();
            if steady {
                // There may be another member, and then nothing is missing.
                info!(%error, "trying the next member of etcd");
                continue;
            }
            self.readiness.not_ready(ETCD, error.clone());
            if failing.as_ref() != Some(&error) {
                warn!(%error, "etcd cannot be followed; keeping the last known state");
            }
            for reply in self.replies.drain(..) {
                let _ = reply.send(Err(error.clone()));
            }
            failing = Some(error);
            let wait = tokio::time::sleep(backoff.wait());
            tokio::pin!(wait);
            tokio::select! {
                () = &mut wait => {}
                request = self.requests.recv(), if !self.requests.is_closed() => self.replies.extend(request),
                () = self.batches.closed() => return,
            }
        }
    }

    /// Follows one member until something is wrong with it.
    async fn session(&mut self, failing: &mut Option<String>) -> End {
        let mut proven = false;
        if !self.listed || !self.replies.is_empty() {
            if let Err(end) = self.list().await {
                return end;
            }
            proven = true;
        }
        let prefix = self.client.options().prefix.clone();
        let mut watch = match self.client.watch_spans(&followed(&prefix), self.position + 1).await {
            Ok(watch) => watch,
            Err(error) => return error.into(),
        };
        // A member that lags behind, or has lost all others, opens a watch like any other; but it cannot ask its leader.
        if !proven || !watch.opened().follows(self.known()) {
            let before = self.known();
            match self.client.probe(watch.endpoint()).await {
                Ok(at) if at.follows(before) => {}
                Ok(at) => return self.another_history(at, before),
                Err(error) => return self.failed(watch.endpoint(), error),
            }
        }
        self.heard(watch.opened());
        self.watching = Some(Instant::now());
        if failing.take().is_some() {
            info!(endpoint = %self.client.endpoints()[watch.endpoint()], "etcd is back");
        }
        self.mirror.resume(self.now());
        self.say_ready();
        self.watch(&mut watch).await
    }

    /// Reads everything and publishes what differs.
    async fn list(&mut self) -> Result<(), End> {
        let prefix = self.client.options().prefix.clone();
        // Compacted while we were reading page by page: a second try is a new revision.
        let (at, again, reader) = match self.read(&prefix).await {
            Err(EtcdError::Compacted) => self.read(&prefix).await?,
            other => other?,
        };
        let now = self.now();
        // Aside, because a large cluster takes a second; nothing else is known of the world meanwhile.
        let options = self.client.options();
        let placeholder = KeyMirror::new(options.prefix.clone(), options.lease);
        let mut mirror = std::mem::replace(&mut self.mirror, placeholder);
        let due = std::mem::take(&mut self.saving.due);
        let listed = tokio::task::spawn_blocking(move || {
            mirror.list(reader, again, now);
            let changes = mirror.take();
            (mirror, changes)
        });
        // It does not panic, so it ends early only with the runtime.
        let (mirror, changes) = listed.await.map_err(|_| End::Stop)?;
        self.mirror = mirror;
        self.saving.due = due;
        (self.at, self.position, self.listed) = (at, at.revision, true);
        if let Some(parts) = self.mirror.suspicious() {
            warn!(parts, "etcd has no keys at all; keeping the last known state");
        }
        let batches = self.batches.clone();
        let permit = batches.reserve().await.map_err(|_| End::Stop)?;
        self.publish(permit, changes);
        Ok(())
    }

    /// All keys, as of when, and whether that is the same history as before.
    async fn read(&self, prefix: &str) -> Result<(At, bool, Reader), EtcdError> {
        let mut pages = self.client.pages(&followed(prefix), false);
        let mut reader = self.mirror.reader();
        let mut page = pages.next().await?;
        let again = self.at != At::default() && pages.at().follows(self.at);
        while let Some(pairs) = page {
            // A page is read aside while etcd makes the next one, which takes it as long.
            let reading = tokio::task::spawn_blocking(move || {
                reader.page(pairs, again);
                reader
            });
            page = pages.next().await?;
            reader = reading.await.map_err(|_| EtcdError::stopping())?;
        }
        Ok((pages.at(), again, reader))
    }

    async fn watch(&mut self, watch: &mut Watch) -> End {
        let batches = self.batches.clone();
        let mut heard = Instant::now();
        let mut next_compare = Instant::now() + compare::interval(self.mirror.keys());
        let mut publish_at = None;
        let mut continued = false;
        let mut probing: Option<Pending<At>> = None;
        let mut comparing: Option<Pending<Listing>> = None;
        let mut differing: Option<Differing> = None;
        loop {
            let going = self.mirror.next_to_go().map(|going| self.begun + going);
            if publish_at.is_none() && self.mirror.has_changes() {
                publish_at = Some(Instant::now() + GATHER);
            }
            let next_probe = going.map_or(heard + PROBE_SILENCE, |going| going.min(heard + PROBE_SILENCE));
            tokio::select! {
                events = watch.next() => {
                    let events = match events {
                        Ok(events) => events,
                        Err(error) => return self.failed(watch.endpoint(), error),
                    };
                    heard = Instant::now();
                    if events.span == 0 {
                        continued = events.to_be_continued;
                    }
                    if self.apply(&events, watch.opened()) && comparing.is_none() {
                        warn!("the watch of etcd has missed changes; comparing all keys");
                        next_compare = Instant::now();
                    }
                }
                permit = permitted(publish_at, &batches), if publish_at.is_some() && !continued => {
                    let Ok(permit) = permit else { return End::Stop };
                    publish_at = None;
                    let changes = self.mirror.take();
                    self.publish(permit, changes);
                }
                // No host is removed before etcd has answered again.
                () = tokio::time::sleep_until(next_probe), if probing.is_none() => {
                    let (client, endpoint) = (self.client.clone(), watch.endpoint());
                    probing = Some(self.pending(async move { client.probe(endpoint).await }));
                }
                (answer, sent, before) = answered(&mut probing), if probing.is_some() => {
                    match answer.map(|at| self.probed(at, before)) {
                        Ok(None) => {}
                        Ok(Some(end)) => return end,
                        Err(error) => return self.failed(watch.endpoint(), error),
                    }
                    heard = Instant::now();
                    self.mirror.expire(sent.duration_since(self.begun));
                }
                () = tokio::time::sleep_until(next_compare), if comparing.is_none() && differing.is_none() => {
                    next_compare = Instant::now() + compare::interval(self.mirror.keys());
                    let (client, prefix) = (self.client.clone(), self.client.options().prefix.clone());
                    comparing = Some(self.pending(async move { client.list_spans(&followed(&prefix), true).await }));
                }
                (answer, _, before) = answered(&mut comparing), if comparing.is_some() => {
                    // Failures of etcd are the watch's to notice.
                    if let Ok(listing) = answer {
                        match self.compare(listing, before) {
                            Ok(found) => differing = found,
                            Err(end) => return end,
                        }
                    }
                }
                () = until(differing.as_ref().map(|differing| differing.settled)), if differing.is_some() => {
                    if let Some(differing) = differing.take()
                        && let Err(end) = self.settle(differing).await
                    {
                        return end;
                    }
                }
                request = self.requests.recv(), if !self.requests.is_closed() => {
                    self.replies.extend(request);
                    if !self.replies.is_empty() && let Err(end) = self.list().await {
                        return end;
                    }
                    self.say_ready();
                    publish_at = None;
                }
                () = until(self.saving.next()), if self.saving.next().is_some() => {
                    self.saving.save(self.mirror.shown());
                }
                () = self.saving.saved() => {}
                () = batches.closed() => return End::Stop,
            }
        }
    }

    /// Applies changes; returns whether some before them must have been missed.
    fn apply(&mut self, events: &EventBatch, opened: At) -> bool {
        let now = self.now();
        let Some(last) = events.events.last().map(|event| event.pair.mod_revision) else { return false };
        let mut missed = false;
        // What is behind our own keys comes in no order with them. It is only reported, so it may come again.
        let ours = events.span == 0;
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let clock = clock.and_then(|clock| i64::try_from(clock.as_secs()).ok());
        for event in &events.events {
            let revision = event.pair.mod_revision;
            if ours && revision <= self.position {
                continue;
            }
            self.client.was_changed(event);
            if event.deleted {
                self.mirror.delete(&event.pair.key, revision, now);
            } else {
                missed |= self.mirror.has_missed(&event.pair);
                // What was put before the watch began says nothing about the clock of its host.
                self.mirror.put(&event.pair, now, clock.filter(|_| revision > opened.revision));
            }
        }
        if !ours {
            return missed;
        }
        // Of a revision that is not complete the changes are asked for again if the watch is lost now.
        let complete = if events.to_be_continued { last - 1 } else { last };
        self.position = self.position.max(complete);
        self.at.revision = self.at.revision.max(complete);
        missed
    }

    /// Publishes what changed, and answers reloads once it is visible.
    fn publish(&mut self, permit: mpsc::Permit<'_, Batch>, changes: Vec<PartChange>) {
        let replies = std::mem::take(&mut self.replies);
        if !changes.is_empty() {
            self.saving.due = true;
        }
        // The first answer of etcd is published even when nothing changed.
        let first = !std::mem::replace(&mut self.published, true);
        let mut done = None;
        if !replies.is_empty() {
            let (sender, receiver) = oneshot::channel();
            done = Some(sender);
            // Detached: it ends when the receiver of the batch drops the other end.
            drop(tokio::spawn(async move {
                let outcome = receiver.await.map_err(|_| "stopping".to_owned());
                for reply in replies {
                    let _ = reply.send(outcome.clone());
                }
            }));
        }
        if first || done.is_some() || !changes.is_empty() {
            permit.send(Batch { changes, restored: false, done });
        }
        self.say_ready();
    }

    fn say_ready(&self) {
        match self.mirror.suspicious() {
            None => self.readiness.ready(ETCD),
            Some(parts) => {
                let prefix = &self.client.options().prefix;
                let reason = format!(
                    "etcd has nothing under {prefix} any more; {parts} hosts and documents stay; if they are really gone, put the key {prefix}empty"
                );
                self.readiness.not_ready(ETCD, reason);
            }
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn heard(&mut self, at: At) {
        let (revision, term) = (self.at.revision.max(at.revision), self.at.term.max(at.term));
        self.at = At { cluster: at.cluster, revision, term };
    }

    fn failed(&self, endpoint: usize, error: EtcdError) -> End {
        self.client.avoid(endpoint);
        error.into()
    }

    /// Up to where all changes are known: what is asked of etcd now is answered as of then or later.
    fn known(&self) -> At {
        At { revision: self.position, ..self.at }
    }

    fn pending<T>(&self, request: impl Future<Output = Result<T, EtcdError>> + Send + 'static) -> Pending<T> {
        Pending::new(self.known(), request)
    }

    /// Takes in where a probed member is; `before` is what was known when it was asked.
    fn probed(&mut self, at: At, before: At) -> Option<End> {
        if !at.follows(before) {
            return Some(self.another_history(at, before));
        }
        self.heard(at);
        None
    }

    /// Compares all keys of etcd with those that are known; `before` is what was known when they were asked for.
    fn compare(&self, listing: Listing, before: At) -> Result<Option<Differing>, End> {
        if !listing.at.follows(before) || self.mirror.contradicts(&listing.pairs, listing.at.revision) {
            return Err(self.another_history(listing.at, before));
        }
        Ok(Differing::of(&self.mirror, listing))
    }

    /// Makes the keys what etcd says of them that still differ.
    async fn settle(&mut self, differing: Differing) -> Result<(), End> {
        let keys = differing.lasting(&self.mirror);
        let Some(first) = keys.iter().next() else { return Ok(()) };
        warn!(keys = keys.len(), first = %String::from_utf8_lossy(first), "the watch of etcd has missed changes; repairing them");
        if keys.len() > DIFFERENCES_MAX {
            return Err(End::Again);
        }
        for key in keys {
            let (pair, at) = self.client.get(&key).await?;
            let now = self.now();
            match pair {
                Some(pair) => self.mirror.put(&pair, now, None),
                None => self.mirror.delete(&key, at.revision, now),
            }
        }
        Ok(())
    }

    /// What follows when etcd was set up again, or from a backup: nothing of before is known to be true.
    fn another_history(&self, at: At, before: At) -> End {
        warn!(%at, %before, "etcd was set up again, or from a backup");
        self.client.history_broke();
        End::Reset
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.saving.last(self.mirror.shown());
    }
}

/// Room for a batch, not before a moment.
async fn permitted(at: Option<Instant>, batches: &mpsc::Sender<Batch>) -> Result<mpsc::Permit<'_, Batch>, ()> {
    until(at).await;
    batches.reserve().await.map_err(drop)
}

#[cfg(test)]
mod tests {
    use etcd::{EtcdOptions, Event, Pair};

    use super::*;

    /// A follower that knows everything up to a revision.
    fn follower(at: At) -> Follower {
        let client = EtcdClient::new(EtcdOptions::parse("http://192.0.2.1:2379").unwrap()).unwrap();
        let options = client.options();
        let (prefix, lease) = (options.prefix.clone(), options.lease);
        Follower {
            client,
            mirror: KeyMirror::new(prefix.clone(), lease),
            batches: mpsc::channel(1).0,
            readiness: Arc::default(),
            requests: mpsc::channel(1).1,
            replies: Vec::new(),
            at,
            position: at.revision,
            listed: true,
            published: true,
            saving: Saving::new(None, prefix),
            watching: None,
            begun: Instant::now(),
        }
    }

    /// The change that makes a revision, as the watch delivers it.
    fn change(revision: i64) -> EventBatch {
        let key = b"/berth/v1/documents/a".to_vec();
        let pair = Pair { key, value: b"{}".to_vec(), mod_revision: revision, ..Pair::default() };
        EventBatch { events: vec![Event { deleted: false, pair }], ..EventBatch::default() }
    }

    /// While a response is on its way, the watch delivers changes that it cannot contain.
    #[tokio::test]
    async fn a_response_is_judged_by_what_was_known_when_it_was_asked_for() {
        let at = |revision| At { cluster: 1, revision, term: 3 };
        let listing = |revision| Listing { at: at(revision), pairs: Vec::new() };
        let mut follower = follower(at(458));
        let before = follower.known();
        follower.apply(&change(459), at(458));
        follower.heard(At { term: 4, ..at(459) });
        assert_eq!(follower.known(), At { term: 4, ..at(459) });
        assert!(follower.probed(at(458), before).is_none());
        assert!(matches!(follower.compare(listing(458), before), Ok(None)));
        // An earlier revision than was known then is one of another history.
        assert!(matches!(follower.probed(at(457), before), Some(End::Reset)));
        assert!(matches!(follower.compare(listing(457), before), Err(End::Reset)));
        let now = follower.known();
        assert!(matches!(follower.probed(at(458), now), Some(End::Reset)));
    }
}
