//! Following an engine: whatever becomes of it, the last good document stays published.
//!
//! What happens there is told by events, and each event is a hint: what it names is inspected again, and nothing else.
//! A full reading at the beginning of every session, and one in a while, repairs what events did not tell. Containers
//! leave when the engine itself says that they are gone, never because a list is short.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, UdpSocket};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, Network, SystemInfo};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::{Defect, Text};
use source::backoff::Backoff;
use source::follow::ReloadRequests;
use source::{Readiness, Store};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::asking::{Asking, Trouble};
use super::connect::Certificates;
use super::endpoint::Endpoint;
use super::facts::Facts;
use super::hints::Hint;
use super::host::Host;
use super::mapping::{NetworkFacts, document};
use super::time::Moment;
use crate::host::{HostDocument, HostOptions};

/// The part of the readiness that an engine speaks for.
pub const PART: &str = "engine";

/// Waits between tries to reach an engine: it is on this host mostly, and its restart takes a second or two.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Waits before what could not be inspected is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Time between full readings, give or take a tenth so that many hosts do not do it at once.
const READING_INTERVAL: Duration = Duration::from_mins(1);

/// Silence after which the engine is asked whether it is there: of a connection that lost its other end nothing else
/// tells.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Most inspections at a time: the engine does them on its own locks, more only wait there.
const INSPECTIONS_MAX: usize = 16;

/// Most of them for a full reading while all is well, so that what events name does not wait for it.
const QUIET_INSPECTIONS_MAX: usize = 2;

/// Shortest time between two publications, so that a burst of events is told in few of them.
const PUBLICATION_GAP: Duration = Duration::from_millis(10);

/// How much longer than making a document took nothing is published, so that it takes no more than a quarter of a
/// processor on hosts with tens of thousands of containers.
const PUBLICATION_REST: u32 = 3;

/// Most defects that are logged at a time; the document has them all.
const REPORTS_MAX: usize = 50;

/// Follows the engine at `endpoint`: `told` gets the document of its host whenever that changed, `readiness` why there
/// is none or an old one, under the part [`PART`]. A reload is answered when everything was read again and is visible.
///
/// From the call on `readiness` says that nothing was read yet. The future never ends; drop it to stop.
///
/// # Cancel safety
///
/// May be dropped at any time: a document is published whole or not at all.
pub fn follow(
    endpoint: Endpoint,
    certificates: Option<Certificates>,
    host: HostOptions,
    told: Arc<Store<HostDocument>>,
    readiness: Arc<Readiness>,
    requests: ReloadRequests,
) -> impl Future<Output = ()> + Send {
    readiness.not_ready(PART, format!("{endpoint} was not read yet"));
    let following = Following {
        endpoint,
        certificates,
        options: host,
        told,
        readiness,
        view: View::default(),
        replies: Vec::new(),
        failing: None,
        backoff: Backoff::new(BACKOFF.0, BACKOFF.1),
    };
    following.run(requests)
}

/// Answers a request for reading everything again.
type Reply = oneshot::Sender<Result<(), String>>;

/// The next request; pends for ever once nobody can ask any more.
async fn next_request(requests: &mut ReloadRequests) -> Reply {
    match requests.recv().await {
        Some(reply) => reply,
        None => std::future::pending().await,
    }
}

/// An engine being followed, across sessions.
struct Following {
    endpoint: Endpoint,
    certificates: Option<Certificates>,
    options: HostOptions,
    told: Arc<Store<HostDocument>>,
    readiness: Arc<Readiness>,
    view: View,
    /// Who waits for a full reading.
    replies: Vec<Reply>,
    failing: Option<String>,
    backoff: Backoff,
}

/// What was read of an engine.
#[derive(Default)]
struct View {
    host: Option<Host>,
    networks: Vec<NetworkFacts>,
    containers: BTreeMap<Text, Seen>,
}

/// What was read of a container.
#[derive(Default, PartialEq)]
struct Seen {
    /// What it said when it was last asked with success.
    facts: Option<Facts>,
    /// Why it was not, the last time.
    defect: Option<Defect>,
}

impl Following {
    /// Follows one session after the other.
    async fn run(mut self, mut requests: ReloadRequests) {
        loop {
            let Err(trouble) = self.session(&mut requests).await;
            self.failed(&trouble.to_string());
            let wait = Instant::now() + self.backoff.wait();
            tokio::select! {
                () = sleep_until(wait) => {}
                reply = next_request(&mut requests) => self.replies.push(reply),
            }
        }
    }

    /// Follows until the engine is lost.
    async fn session(&mut self, requests: &mut ReloadRequests) -> Result<Infallible, Trouble> {
        let asking = Asking::connect(&self.endpoint, self.certificates.as_ref()).await?;
        let info = asking.info().await?;
        // From this moment on nothing is missed, by the engine's own clock.
        let since = info.system_time.as_deref().and_then(Moment::parse);
        let mut events = pin!(asking.events(since));
        let mut session = Session::new(asking);
        session.read_all();
        self.see_host(&info);
        loop {
            session.ask();
            let due = session.publication();
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => {
                        session.heard = Instant::now();
                        if let Some(hint) = Hint::of(&event?) {
                            debug!(?hint, "the engine tells of a change");
                            self.take(hint, &mut session);
                        }
                    }
                    None => return Err(Trouble::Lost(format!("{} ended the stream of events", self.endpoint))),
                },
                Some(answer) = session.answers.next() => self.accept(answer, &mut session)?,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.publish(&mut session);
                }
                () = sleep_until(session.next_reading), if session.reading.is_none() => session.read_all(),
                () = sleep_until(session.next_retry.unwrap_or_else(Instant::now)), if session.next_retry.is_some() => {
                    session.next_retry = None;
                    session.later.extend(std::mem::take(&mut session.failed));
                }
                () = sleep_until(session.heard + PING_INTERVAL) => session.ping(),
                reply = next_request(requests) => {
                    self.replies.push(reply);
                    session.read_all();
                }
            }
        }
    }

    /// Looks at what a hint names.
    fn take(&mut self, hint: Hint, session: &mut Session) {
        match hint {
            Hint::Container(id) => session.look_at(id),
            Hint::Gone(id) => {
                session.changed |= self.view.containers.remove(&id).is_some();
                // What is on its way may still tell of it.
                if session.busy.contains_key(&id) {
                    session.look_at(id);
                }
            }
            Hint::Networks => session.networks(),
            Hint::Host => session.host(),
        }
    }

    /// Takes an answer in.
    fn accept(&mut self, answer: Answer, session: &mut Session) -> Result<(), Trouble> {
        session.heard = Instant::now();
        match answer {
            Answer::Alive(outcome) => outcome?,
            Answer::Host(outcome) => {
                session.changed |= self.see_host(&(*outcome)?);
                if session.host_asked.answered() {
                    session.host();
                } else {
                    session.step(Step::Host);
                }
            }
            Answer::Networks(outcome) => {
                let networks = NetworkFacts::of(&outcome?);
                session.changed |= networks != self.view.networks;
                self.view.networks = networks;
                if session.networks_asked.answered() {
                    session.networks();
                } else {
                    session.step(Step::Networks);
                }
            }
            Answer::List(outcome) => {
                let listed = outcome?;
                // Those that are not listed are asked about too: they are gone when the engine says so.
                let known = self.view.containers.keys().cloned();
                let all: BTreeSet<Text> = listed.into_iter().chain(known).collect();
                if let Some(reading) = &mut session.reading {
                    reading.left.extend(all.iter().cloned());
                }
                session.later.extend(all);
                session.step(Step::List);
            }
            Answer::Container(id, outcome) => self.accept_container(id, *outcome, session)?,
        }
        if session.reading.as_ref().is_some_and(Reading::is_complete) {
            self.complete(session);
        }
        Ok(())
    }

    fn accept_container(
        &mut self,
        id: Text,
        outcome: Result<ContainerInspectResponse, Trouble>,
        session: &mut Session,
    ) -> Result<(), Trouble> {
        let again = session.busy.remove(&id).unwrap_or_default();
        let seen = match outcome {
            Err(Trouble::Absent) => None,
            Err(Trouble::NoAnswer(problem)) => {
                // What it was is more likely than that it is gone.
                let facts = self.view.containers.get(&id).and_then(|seen| seen.facts.clone());
                let (path, what) = match &facts {
                    Some(facts) => (facts.path(), "as it was before"),
                    None => (format!("containers/{id}"), "unknown"),
                };
                let problem = format!("it could not be inspected and is {what}: {problem}");
                let defect =
                    if facts.is_some() { Defect::ignored(path, problem) } else { Defect::hidden(path, problem) };
                session.failed.insert(id.clone());
                session.next_retry.get_or_insert_with(|| Instant::now() + session.retry.wait());
                Some(Seen { facts, defect: Some(defect) })
            }
            Err(lost @ Trouble::Lost(_)) => return Err(lost),
            Ok(inspection) => Some(match Facts::of(&id, &inspection) {
                Ok(facts) => Seen { facts: Some(facts), defect: None },
                Err(defect) => Seen { facts: None, defect: Some(defect) },
            }),
        };
        match seen {
            Some(seen) if self.view.containers.get(&id) != Some(&seen) => {
                session.changed = true;
                self.view.containers.insert(id.clone(), seen);
            }
            Some(_) => {}
            None => session.changed |= self.view.containers.remove(&id).is_some(),
        }
        if again {
            session.look_at(id);
        } else if let Some(reading) = &mut session.reading {
            reading.left.remove(&id);
        }
        Ok(())
    }

    /// Takes in what the engine says of itself; tells whether that is new.
    fn see_host(&mut self, info: &SystemInfo) -> bool {
        let address = self.endpoint.remote_address().or_else(|| self.endpoint.is_local().then(own_address).flatten());
        let host = Some(Host::of(info, &self.options, address));
        let changed = host != self.view.host;
        self.view.host = host;
        changed
    }

    /// Everything was read: what there is can be shown.
    fn complete(&mut self, session: &mut Session) {
        session.reading = None;
        session.next_reading = Instant::now() + jittered(READING_INTERVAL);
        if session.failed.is_empty() {
            session.retry.reset();
        }
        if session.first {
            session.first = false;
            session.changed = true;
        }
        if session.changed {
            self.publish(session);
        }
        self.backoff.reset();
        self.readiness.ready(PART);
        if self.failing.take().is_some() {
            info!(endpoint = %self.endpoint, "the engine is back");
        }
        if std::mem::take(&mut session.read_again) {
            session.read_all();
            return;
        }
        for reply in self.replies.drain(..) {
            let told = self.told.clone();
            tokio::spawn(async move {
                told.settled().await;
                let _ = reply.send(Ok(()));
            });
        }
    }

    /// Publishes what there is, unless that was published already.
    fn publish(&mut self, session: &mut Session) {
        session.changed = false;
        let Some(host) = &self.view.host else { return };
        let begun = Instant::now();
        let seen = self.view.containers.values();
        let lost = self.view.containers.values().filter_map(|seen| seen.defect.clone());
        let document = document(host, &self.view.networks, seen.filter_map(|seen| seen.facts.as_ref()), lost);
        let known = self.told.load_full();
        if *known != document {
            report(&known.defects, &document.defects);
            debug!(containers = self.view.containers.len(), "the engine's containers changed");
            self.told.publish(Arc::new(document));
        }
        session.next_publication = Instant::now() + (begun.elapsed() * PUBLICATION_REST).max(PUBLICATION_GAP);
    }

    fn failed(&mut self, problem: &str) {
        if self.failing.as_deref() != Some(problem) {
            warn!(endpoint = %self.endpoint, problem, "keeping what the engine said last");
            self.readiness.not_ready(PART, problem);
            self.failing = Some(problem.to_owned());
        }
        for reply in self.replies.drain(..) {
            let _ = reply.send(Err(problem.to_owned()));
        }
    }
}

/// One conversation with an engine.
struct Session {
    asking: Asking,
    answers: FuturesUnordered<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    /// Whether nothing of this session was published yet, since not all was read.
    first: bool,
    /// The full reading that is going on.
    reading: Option<Reading>,
    /// Whether somebody asked for one since it began.
    read_again: bool,
    next_reading: Instant,
    /// Containers to be inspected at once, and when there is room.
    now: VecDeque<Text>,
    later: VecDeque<Text>,
    /// Containers that are being inspected, and whether they changed meanwhile.
    busy: HashMap<Text, bool>,
    /// Containers of which there was no good answer, and when they are asked again.
    failed: HashSet<Text>,
    next_retry: Option<Instant>,
    retry: Backoff,
    networks_asked: Asked,
    host_asked: Asked,
    /// When the engine last said anything.
    heard: Instant,
    /// Whether something is to be published, and not before when.
    changed: bool,
    next_publication: Instant,
}

/// A question of which one is on its way at most, since the next one would get the same answer.
#[derive(Default)]
struct Asked {
    busy: bool,
    /// Whether something changed since it was asked.
    again: bool,
}

impl Asked {
    /// Whether to ask now.
    fn ask(&mut self) -> bool {
        self.again = self.busy;
        !std::mem::replace(&mut self.busy, true)
    }

    /// It was answered; tells whether to ask again.
    fn answered(&mut self) -> bool {
        self.busy = false;
        std::mem::take(&mut self.again)
    }
}

/// What a full reading has still to see.
#[derive(Default)]
struct Reading {
    listed: bool,
    networks: bool,
    host: bool,
    left: HashSet<Text>,
}

impl Reading {
    fn is_complete(&self) -> bool {
        self.listed && self.networks && self.host && self.left.is_empty()
    }
}

/// Parts of a full reading besides the containers.
#[derive(Clone, Copy)]
enum Step {
    List,
    Networks,
    Host,
}

/// What an engine answered.
enum Answer {
    Alive(Result<(), Trouble>),
    Host(Box<Result<SystemInfo, Trouble>>),
    Networks(Result<Vec<Network>, Trouble>),
    List(Result<Vec<Text>, Trouble>),
    Container(Text, Box<Result<ContainerInspectResponse, Trouble>>),
}

impl Session {
    fn new(asking: Asking) -> Self {
        let now = Instant::now();
        Self {
            asking,
            answers: FuturesUnordered::new(),
            first: true,
            reading: None,
            read_again: false,
            next_reading: now + READING_INTERVAL,
            now: VecDeque::new(),
            later: VecDeque::new(),
            busy: HashMap::new(),
            failed: HashSet::new(),
            next_retry: None,
            retry: Backoff::new(RETRY.0, RETRY.1),
            networks_asked: Asked::default(),
            host_asked: Asked::default(),
            heard: now,
            changed: false,
            next_publication: now,
        }
    }

    /// Begins a full reading, when none is going on; else there is one more after it.
    fn read_all(&mut self) {
        if self.reading.is_some() {
            self.read_again = true;
            return;
        }
        self.reading = Some(Reading::default());
        let asking = self.asking.clone();
        self.answers.push(Box::pin(async move { Answer::List(asking.list().await) }));
        self.networks();
        self.host();
    }

    fn networks(&mut self) {
        if self.networks_asked.ask() {
            let asking = self.asking.clone();
            self.answers.push(Box::pin(async move { Answer::Networks(asking.networks().await) }));
        }
    }

    fn host(&mut self) {
        if self.host_asked.ask() {
            let asking = self.asking.clone();
            self.answers.push(Box::pin(async move { Answer::Host(Box::new(asking.info().await)) }));
        }
    }

    fn ping(&mut self) {
        // Whatever comes of it, the next one is due a while later.
        self.heard = Instant::now();
        let asking = self.asking.clone();
        self.answers.push(Box::pin(async move { Answer::Alive(asking.ping().await) }));
    }

    /// Has a container inspected at once, or again when it is being inspected.
    fn look_at(&mut self, id: Text) {
        match self.busy.get_mut(&id) {
            Some(again) => *again = true,
            None if self.now.contains(&id) => {}
            None => self.now.push_back(id),
        }
    }

    /// Asks what is to be asked and has room.
    fn ask(&mut self) {
        while self.busy.len() < INSPECTIONS_MAX
            && let Some(id) = self.now.pop_front()
        {
            self.inspect(id);
        }
        let most = if self.first { INSPECTIONS_MAX } else { QUIET_INSPECTIONS_MAX };
        while self.busy.len() < most
            && let Some(id) = self.later.pop_front()
        {
            self.inspect(id);
        }
    }

    fn inspect(&mut self, id: Text) {
        if let Some(again) = self.busy.get_mut(&id) {
            *again = true;
            return;
        }
        self.busy.insert(id.clone(), false);
        let asking = self.asking.clone();
        self.answers.push(Box::pin(async move {
            let outcome = asking.inspect(&id).await;
            Answer::Container(id, Box::new(outcome))
        }));
    }

    fn step(&mut self, step: Step) {
        if let Some(reading) = &mut self.reading {
            match step {
                Step::List => reading.listed = true,
                Step::Networks => reading.networks = true,
                Step::Host => reading.host = true,
            }
        }
    }

    /// When something is to be published; nothing before all was read once.
    fn publication(&self) -> Option<Instant> {
        (self.changed && !self.first).then_some(self.next_publication)
    }
}

/// Tells what is newly wrong, once.
fn report(known: &[Defect], now: &[Defect]) {
    if known == now {
        return;
    }
    let new: Vec<&Defect> = now.iter().filter(|defect| !known.contains(defect)).collect();
    for defect in new.iter().take(REPORTS_MAX) {
        warn!(%defect, "a container or its host says something that cannot be used");
    }
    if let Some(more @ 1..) = new.len().checked_sub(REPORTS_MAX) {
        warn!(more, "containers say more that cannot be used");
    }
}

/// The address from which this machine reaches others: that of the default route. Nothing is sent for it.
fn own_address() -> Option<IpAddr> {
    // Addresses of documentation (RFC 5737, RFC 3849), to which there is no route but the default one.
    for (local, far) in [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")] {
        let own = UdpSocket::bind(local).and_then(|socket| {
            socket.connect(far)?;
            socket.local_addr()
        });
        if let Ok(own) = own {
            return Some(own.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified());
        }
    }
    None
}

/// About this time: up to a tenth less or more.
fn jittered(time: Duration) -> Duration {
    let mut random = [u8::MAX / 2];
    // Without randomness it is just this time.
    let _ = getrandom::fill(&mut random);
    time * 9 / 10 + time / 5 * u32::from(random[0]) / u32::from(u8::MAX)
}
