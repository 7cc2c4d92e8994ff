//! The conversation with etcd about a ledger that several schedulers share.
//!
//! One task follows what etcd says, one writes, one transaction at a time, and one keeps the lease by which others know
//! that this scheduler lives. The book learns even of our own writes from the follower alone, so it is never anything
//! but what etcd was at one revision.
//!
//! Each transaction expects this scheduler's presence as it was put last. That is what makes a lost answer harmless:
//! the presence is put anew, after which the lost transaction can do nothing any more, and what it did is known once
//! that revision was learned. A scheduler whose lease ran out while it stood still can write nothing either.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use live::etcd::{At, Compare, EtcdClient, EtcdError, Op, OpResult, Txn, Watch};
use model::Text;
use source::Readiness;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::engine::Engine;
use crate::ledger::Book;
use crate::ledger::share::{Draft, Take, Told, Unkept};
use crate::server::Clock;
use crate::shared_keys::{Key, Keys, Presence};

/// How long a scheduler is taken to live when nothing is heard of it: an election, and a scheduler that is restarted
/// by hand, take less; whoever waits for what it had begun does not wait longer.
const LEASE: Duration = Duration::from_secs(10);

/// How often the lease is renewed: three times before it runs out.
const RENEWAL: Duration = Duration::from_secs(3);

/// How often all of it is read and compared with what was learned; a tenth more or less, so that not all do it at once.
const COMPARISON: Duration = Duration::from_mins(1);

/// How long the watch may take to tell what a transaction did, before all is read anew: it takes milliseconds.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Pause after the first failure of etcd; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause after a failure of etcd.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long nothing is promised after etcd was found to be set up anew: by then every scheduler has told what it has.
const ANEW: Duration = Duration::from_secs(5);

/// Most who wait for the writer at once without having been heard; more wait for their turn.
const ASKS_MAX: usize = 4096;

/// How long the last words may take when this scheduler stops.
const FAREWELL: Duration = Duration::from_millis(500);

/// Somebody waits until a placement is kept.
#[derive(Debug)]
struct Ask {
    id: Text,
    take: Option<Take>,
    tell: oneshot::Sender<Result<(), Unkept>>,
}

/// What everybody has of the conversation.
#[derive(Debug)]
pub struct Shared {
    me: Text,
    client: EtcdClient,
    keys: Keys,
    asks: mpsc::Sender<Ask>,
    changed: Notify,
    /// That all is to be read anew.
    again: Notify,
    /// That placements of other schedulers became ours.
    adopted: Notify,
    /// As of which revision the book is.
    learned: watch::Sender<i64>,
    /// Why nothing is promised.
    away: watch::Sender<Option<Text>>,
    lease: AtomicI64,
    random: RandomState,
    drawn: AtomicU64,
}

impl Shared {
    /// The id of this scheduler: another one each time it is started.
    pub fn me(&self) -> &Text {
        &self.me
    }

    /// Tells the writer that there is something to write.
    pub(crate) fn something_changed(&self) {
        self.changed.notify_one();
    }

    /// Waits until the placement is in etcd as it is in the book.
    ///
    /// # Errors
    ///
    /// Why it is not, and will not be without further ado.
    pub async fn settled(&self, id: &str, take: Option<Take>) -> Result<(), Unkept> {
        let stopping = || Unkept::Away("this scheduler stops".into());
        let (tell, told) = oneshot::channel();
        self.asks.send(Ask { id: id.into(), take, tell }).await.map_err(|_| stopping())?;
        told.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Refuses while etcd is known to be away.
    ///
    /// # Errors
    ///
    /// Why nothing can be promised.
    pub fn reachable(&self) -> Result<(), Text> {
        self.away.borrow().clone().map_or(Ok(()), Err)
    }

    /// Watches as of which revision the book is.
    pub fn watch(&self) -> watch::Receiver<i64> {
        self.learned.subscribe()
    }

    /// Waits until the book knows what etcd has of a placement now; for as long as it can be reached.
    pub(crate) async fn look_up(&self, id: &str) {
        if self.reachable().is_err() {
            return;
        }
        let key = self.keys.of(&Key::Placement(id.into()));
        if let Ok((Some(pair), _)) = self.client.get(key.as_bytes()).await {
            let mut learned = self.learned.subscribe();
            let _ = timeout(CATCH_UP, learned.wait_for(|learned| *learned >= pair.mod_revision)).await;
        }
    }

    /// Waits until placements of other schedulers have become ours.
    pub(crate) async fn adopted(&self) {
        self.adopted.notified().await;
    }

    /// Some time up to `most`.
    pub(crate) fn some_of(&self, most: Duration) -> Duration {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        let share = u32::try_from(self.random.hash_one(number) >> 48).unwrap_or_default();
        most * share / (1 << 16)
    }

    fn is_away(&self, error: &EtcdError) {
        let text: Text = format!("cannot reach etcd ({error}): nothing is promised").into();
        let news = self.away.send_if_modified(|away| {
            let news = away.is_none();
            *away = Some(text.clone());
            news
        });
        if news {
            warn!(%error, "etcd cannot be reached: nothing is promised, what was begun goes on");
        }
    }

    fn is_back(&self) {
        if self.away.send_if_modified(|away| away.take().is_some()) {
            info!("etcd can be reached: promises are made");
        }
    }
}

/// The conversation, before it has begun.
#[derive(Debug)]
pub struct Conversation {
    shared: Arc<Shared>,
    client: EtcdClient,
    keys: Keys,
    asks: mpsc::Receiver<Ask>,
}

impl Conversation {
    /// A conversation that nobody has begun yet.
    pub fn new(client: EtcdClient) -> Self {
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let random = RandomState::new();
        let me: Text = format!("s-{:016x}", random.hash_one(std::process::id())).into();
        let keys = Keys::new(&client.options().prefix);
        let shared = Shared {
            me,
            client: client.clone(),
            keys: keys.clone(),
            asks,
            changed: Notify::new(),
            again: Notify::new(),
            adopted: Notify::new(),
            learned: watch::Sender::new(0),
            away: watch::Sender::new(Some("the ledger in etcd was not read yet: nothing is promised".into())),
            lease: AtomicI64::new(0),
            random,
            drawn: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), client, keys, asks: asked }
    }

    /// What everybody has of it.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Speaks with etcd until `stop`.
    pub(crate) async fn run(
        self,
        engine: Arc<Engine>,
        clock: Clock,
        readiness: Option<Arc<Readiness>>,
        stop: CancellationToken,
    ) {
        let Self { shared, client, keys, asks } = self;
        info!(scheduler = %shared.me, etcd = ?client, "the ledger is shared");
        let ledger = Ledger { shared: shared.clone(), client: client.clone(), keys, engine, clock };
        let follower = Follower { ledger: ledger.clone(), readiness, at: At::default(), mute_until: None };
        let following = tokio::spawn(follower.run());
        let renewing = tokio::spawn(ledger.clone().renew());
        let (waiting, takes) = (HashMap::new(), BTreeMap::new());
        Writer { ledger, asks, waiting, takes, presence: 0, in_doubt: false }.run(stop).await;
        following.abort();
        renewing.abort();
        // An error is the cancellation that was just asked for.
        let _ = tokio::join!(following, renewing);
        let lease = shared.lease.load(Ordering::Relaxed);
        if lease != 0 {
            // What is ours can be taken over at once; otherwise when the lease has run out.
            let _ = timeout(FAREWELL, client.revoke(lease)).await;
        }
    }
}

/// What the tasks share.
#[derive(Clone, Debug)]
struct Ledger {
    shared: Arc<Shared>,
    client: EtcdClient,
    keys: Keys,
    engine: Arc<Engine>,
    clock: Clock,
}

impl Ledger {
    fn book<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        self.engine.with_any(self.clock.now(), act)
    }

    /// Lets the book learn something, and wakes who waits for it.
    fn learn<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        let (done, revision, adopted, orphans) = self.book(|book| {
            let done = act(book);
            (done, book.revision(), book.has_adopted(), !book.orphans().is_empty())
        });
        self.shared.learned.send_replace(revision);
        if adopted {
            self.shared.adopted.notify_one();
        }
        if orphans {
            self.shared.something_changed();
        }
        done
    }

    fn told(&self, pair: live::etcd::Pair, deleted: bool) -> Option<Told> {
        let Some(key) = self.keys.parse(&pair.key) else {
            warn!(key = %String::from_utf8_lossy(&pair.key), "a key in etcd is none of the ledger's, and is left alone");
            return None;
        };
        Some(Told { key, revision: pair.mod_revision, value: (!deleted).then_some(pair.value) })
    }

    async fn renew(self) {
        loop {
            sleep(RENEWAL).await;
            let lease = self.shared.lease.load(Ordering::Relaxed);
            if lease == 0 {
                continue;
            }
            match self.client.keep_alive(lease).await {
                Ok(_) => {}
                Err(EtcdError::LeaseGone) => {
                    let _ = self.shared.lease.compare_exchange(lease, 0, Ordering::Relaxed, Ordering::Relaxed);
                    self.shared.something_changed();
                }
                Err(error) => self.shared.is_away(&error),
            }
        }
    }
}

/// Follows what etcd says.
struct Follower {
    ledger: Ledger,
    readiness: Option<Arc<Readiness>>,
    at: At,
    /// Until when nothing is promised, because etcd was set up anew.
    mute_until: Option<Instant>,
}

/// The part of the process that is not ready before the ledger was read.
const PART: &str = "ledger";

impl Follower {
    async fn run(mut self) {
        self.not_ready("was not read from etcd yet");
        let mut pause = PAUSE_MIN;
        loop {
            let begun = Instant::now();
            let Err(error) = self.follow().await else { continue };
            self.ledger.shared.is_away(&error);
            if self.at == At::default() {
                self.not_ready(&error.to_string());
            }
            if begun.elapsed() > COMPARISON / 2 {
                pause = PAUSE_MIN;
            }
            sleep(pause + self.ledger.shared.some_of(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn not_ready(&self, reason: &str) {
        if let Some(readiness) = &self.readiness {
            readiness.not_ready(PART, reason);
        }
    }

    /// Reads all and follows, until the watch is lost or all is to be read anew.
    async fn follow(&mut self) -> Result<(), EtcdError> {
        let root = self.ledger.keys.root().as_bytes().to_vec();
        let revision = self.read().await?;
        let mut watch = self.ledger.client.watch(&root, revision + 1).await?;
        let rest = COMPARISON * 9 / 10 + self.ledger.shared.some_of(COMPARISON / 5);
        let mut comparison = Instant::now() + rest;
        loop {
            let due = self.mute_until.map_or(comparison, |until| until.min(comparison));
            tokio::select! {
                told = told(&self.ledger, &mut watch) => {
                    let (told, now) = (told?, self.ledger.clock.now());
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
        let ledger = &self.ledger;
        let listing = ledger.client.list(ledger.keys.root().as_bytes(), false).await?;
        let (first, now) = (self.at == At::default(), ledger.clock.now());
        // The watch may have told more than the last list.
        let learned = *ledger.shared.learned.borrow();
        let before = At { revision: learned.max(self.at.revision), ..self.at };
        let anew = !first && !listing.at.follows(before);
        self.at = listing.at;
        let behind = learned < listing.at.revision;
        let told: Vec<Told> = listing.pairs.into_iter().filter_map(|pair| ledger.told(pair, false)).collect();
        let drift = ledger.learn(|book| {
            if anew {
                book.unlearn();
            }
            book.learn_all(told, listing.at.revision, now)
        });
        if anew {
            warn!("etcd was set up anew: what this scheduler has promised is written once more");
            self.mute_until = Some(Instant::now() + ANEW);
            let text = "etcd was set up anew and has to be told of all promises first: nothing is promised";
            ledger.shared.away.send_replace(Some(text.into()));
        } else if drift > 0 && !behind {
            warn!(drift, "the watch of etcd had not told everything");
        }
        if self.mute_until.is_none_or(|until| until <= Instant::now()) {
            self.mute_until = None;
            ledger.shared.is_back();
        }
        if let Some(readiness) = &self.readiness {
            readiness.ready(PART);
        }
        ledger.shared.something_changed();
        Ok(listing.at.revision)
    }
}

/// The next changes, whole revisions of them.
///
/// # Cancel safety
///
/// May not be dropped between parts of one revision; then nothing was learned, and all is read anew.
async fn told(ledger: &Ledger, watch: &mut Watch) -> Result<Vec<Told>, EtcdError> {
    let mut told = Vec::new();
    loop {
        let events = watch.next().await?;
        told.extend(events.events.into_iter().filter_map(|event| ledger.told(event.pair, event.deleted)));
        if !events.to_be_continued {
            return Ok(told);
        }
    }
}

/// Writes what changes.
struct Writer {
    ledger: Ledger,
    asks: mpsc::Receiver<Ask>,
    waiting: HashMap<Text, Vec<oneshot::Sender<Result<(), Unkept>>>>,
    takes: BTreeMap<Text, Take>,
    /// In which revision our presence was put; 0: it is to be put.
    presence: i64,
    /// Whether the last transaction may have been done.
    in_doubt: bool,
}

impl Writer {
    async fn run(self, stop: CancellationToken) {
        let too_late = async {
            stop.cancelled().await;
            sleep(FAREWELL).await;
        };
        tokio::select! {
            () = self.work(stop.clone()) => {}
            () = too_late => warn!("etcd was not told of everything: the other schedulers find out"),
        }
    }

    /// Waits for something to write, and writes it; once more after `stop`.
    async fn work(mut self, stop: CancellationToken) {
        let mut pause = PAUSE_MIN;
        loop {
            tokio::select! {
                () = stop.cancelled() => {}
                ask = self.asks.recv() => if let Some(ask) = ask { self.hear(ask) },
                () = self.ledger.shared.changed.notified() => {}
            }
            while let Ok(ask) = self.asks.try_recv() {
                self.hear(ask);
            }
            match self.write().await {
                Ok(()) => pause = PAUSE_MIN,
                Err(error) => {
                    self.ledger.shared.is_away(&error);
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    self.ledger.shared.something_changed();
                }
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }

    fn hear(&mut self, ask: Ask) {
        if let Some(take) = ask.take {
            self.takes.insert(ask.id.clone(), take);
        }
        self.waiting.entry(ask.id).or_default().push(ask.tell);
    }

    fn tell(&mut self, id: &Text, result: &Result<(), Unkept>) {
        self.takes.remove(id);
        for waiter in self.waiting.remove(id).into_iter().flatten() {
            // Who went away does not need to know.
            let _ = waiter.send(result.clone());
        }
    }

    /// Writes all there is to write.
    async fn write(&mut self) -> Result<(), EtcdError> {
        if self.ledger.book(|book| book.is_unread()) {
            // The follower says why, and when that is over.
            self.refuse(&self.ledger.shared.reachable().err().unwrap_or_default());
            return Ok(());
        }
        let mut ids: BTreeSet<Text> = self.ledger.book(|book| {
            let mut ids = book.take_changed();
            ids.extend(book.orphans());
            ids
        });
        ids.extend(self.waiting.keys().cloned());
        let written = self.write_these(&mut ids).await;
        if let Err(error) = &written {
            self.ledger.book(|book| book.change_again(ids));
            if !self.in_doubt {
                self.refuse(&format!("cannot reach etcd ({error}): nothing is promised"));
            }
        }
        written
    }

    /// Tells all who wait that nothing of theirs was done.
    fn refuse(&mut self, why: &str) {
        let waiting: Vec<Text> = self.waiting.keys().cloned().collect();
        for id in waiting {
            self.tell(&id, &Err(Unkept::Away(why.to_owned())));
        }
    }

    async fn write_these(&mut self, ids: &mut BTreeSet<Text>) -> Result<(), EtcdError> {
        loop {
            self.be_present().await?;
            let list: Vec<Text> = ids.iter().cloned().collect();
            let drafted = self.ledger.book(|book| book.draft(&list, &self.takes, self.presence));
            for id in drafted.done {
                ids.remove(&id);
                self.tell(&id, &Ok(()));
            }
            for (id, why) in drafted.refused {
                ids.remove(&id);
                self.tell(&id, &Err(why));
            }
            if drafted.draft.is_empty() {
                return Ok(());
            }
            let keys: Vec<(Key, i64)> = drafted.draft.expects.iter().map(|(key, is)| (key.clone(), *is)).collect();
            match self.ledger.client.txn(transaction(&self.ledger.keys, drafted.draft)).await {
                Ok(outcome) if outcome.succeeded => {
                    self.ledger.shared.is_back_after_write();
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
                            && *id == self.ledger.shared.me
                        {
                            self.presence = 0;
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

    /// Says that this scheduler lives; a transaction whose answer was lost can do nothing afterwards.
    async fn be_present(&mut self) -> Result<(), EtcdError> {
        let shared = self.ledger.shared.clone();
        let mut lease = shared.lease.load(Ordering::Relaxed);
        if self.presence != 0 && lease != 0 {
            return Ok(());
        }
        self.presence = 0;
        if lease == 0 {
            lease = self.ledger.client.grant(LEASE).await?;
            shared.lease.store(lease, Ordering::Relaxed);
        }
        let key = self.ledger.keys.of(&Key::Scheduler(shared.me.clone()));
        let value = Presence::written(self.ledger.clock.now());
        match self.ledger.client.put(key.as_bytes(), &value, lease).await {
            Ok(revision) => {
                self.caught_up(revision, false).await;
                self.presence = revision;
                self.in_doubt = false;
                Ok(())
            }
            Err(error) => {
                if error == EtcdError::LeaseGone {
                    shared.lease.store(0, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// Waits until the book is as of this revision at least.
    async fn caught_up(&self, revision: i64, anew: bool) {
        let shared = &self.ledger.shared;
        let mut learned = shared.watch();
        if anew {
            shared.again.notify_one();
        }
        while timeout(CATCH_UP, learned.wait_for(|learned| *learned >= revision)).await.is_err() {
            shared.again.notify_one();
        }
    }
}

impl Shared {
    /// A transaction went through; the follower may still wait until it reads again.
    fn is_back_after_write(&self) {
        if self.away.borrow().as_ref().is_some_and(|away| away.starts_with("cannot reach")) {
            self.is_back();
        }
    }
}

fn transaction(keys: &Keys, draft: Draft) -> Txn {
    let octets = |key: &Key| keys.of(key).into_bytes();
    let compare = draft.expects.iter().map(|(key, revision)| Compare::unchanged(octets(key), *revision)).collect();
    let failure = draft.expects.keys().map(|key| Op::Get(octets(key))).collect();
    let puts = draft.puts.into_iter().map(|(key, value)| Op::Put { key: octets(&key), value, lease: 0 });
    let deletes = draft.deletes.iter().map(|key| Op::Delete(octets(key)));
    Txn { compare, success: puts.chain(deletes).collect(), failure }
}
