//! Follows an engine; on failure the last good document stays published.
//!
//! Changes are announced by events, and each event is a hint: what it names is inspected again, and nothing else.
//! A full reading at the beginning of every session, and one in a while, repairs what events missed. Containers
//! leave when the engine itself says that they are gone, never because a list is short.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::SystemInfo;
use engine::{Certificates, Endpoint, EngineError};
use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use model::{Defect, Text, Value};
use platform::disk::DiskRoom;
use source::backoff::Backoff;
use source::follow::ReloadRequests;
use source::{Readiness, Revision, StateDir, Store};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::baked::Images;
use super::client::EngineClient;
use super::disk;
use super::facts::Facts;
use super::hints::Hint;
use super::host::Host;
use super::mapping::{NetworkFacts, document};
use super::session::{Answer, Image, Inspected, PING_INTERVAL, Reading, Session, Step};
use super::stopping::Stopping;
use crate::host::{HostDocument, HostOptions};
use crate::label_files::LabelFiles;
use crate::moment::Moment;
use crate::stored_host;

/// The part of the readiness that an engine speaks for.
const PART: &str = "engine";

/// Waits between tries to reach an engine: it is on this host mostly, and its restart takes a second or two.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often it is looked whether files with labels changed: a few small files, and only a person waits for it.
const LABELS_INTERVAL: Duration = Duration::from_millis(500);

/// How often the room on the engine's disk is measured: that is one call of the system, and a disk is full within minutes.
const DISK_INTERVAL: Duration = Duration::from_secs(10);

/// Most defects that are logged at a time; the document has them all.
const REPORTS_MAX: usize = 50;

/// Follows the engine at `endpoint`: `documents` receives the document of its host whenever that changed, `readiness`
/// why there is none or an old one, under the part `engine`. A reload is answered when everything was read again and is
/// visible.
///
/// `stored` is the folder with the document of before, which is published if the engine does not answer at first.
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
    documents: Arc<Store<HostDocument>>,
    stored: Option<StateDir>,
    readiness: Arc<Readiness>,
    requests: ReloadRequests,
) -> impl Future<Output = ()> + Send {
    readiness.not_ready(PART, format!("{endpoint} was not read yet"));
    let following = Following {
        endpoint,
        certificates,
        options: host,
        labels: LabelFiles::default(),
        low_disk: None,
        documents,
        stored,
        readiness,
        view: View::default(),
        images: Images::default(),
        replies: Vec::new(),
        failing: None,
        start: Instant::now(),
        backoff: Backoff::new(BACKOFF.0, BACKOFF.1),
    };
    following.run(requests)
}

/// Answers a request for reading everything again.
type Reply = oneshot::Sender<Result<(), String>>;

/// The next request; never completes once all senders are gone.
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
    /// What the files with labels said last.
    labels: LabelFiles,
    /// What is said of its disk, if that is nearly full.
    low_disk: Option<Text>,
    documents: Arc<Store<HostDocument>>,
    /// Where the document of before is, until it is known whether the engine answers.
    stored: Option<StateDir>,
    readiness: Arc<Readiness>,
    view: View,
    images: Images,
    /// Where the results of a full reading are sent.
    replies: Vec<Reply>,
    failing: Option<String>,
    backoff: Backoff,
    /// The moment from which times are counted that pure code is given.
    start: Instant,
}

/// What was read of an engine.
#[derive(Default)]
struct View {
    host: Option<Host>,
    networks: Vec<NetworkFacts>,
    containers: BTreeMap<Text, Seen>,
    stopping: Stopping,
}

impl View {
    /// Publishes the document of what was read, unless that was published already.
    fn publish(&self, documents: &Store<HostDocument>) {
        let Some(host) = &self.host else { return };
        let facts = self.containers.values().filter_map(|seen| Some(self.stopping.shown(seen.facts.as_ref()?)));
        let facts: Vec<_> = facts.collect();
        let lost = self.containers.values().filter_map(|seen| seen.defect.clone());
        let document = document(host, &self.networks, facts.iter().map(|facts| &**facts), lost);
        let known = documents.load_full();
        if *known != document {
            report(&known.defects, &document.defects);
            debug!(containers = self.containers.len(), "the engine's containers changed");
            documents.publish(Arc::new(document));
        }
    }
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
            self.restore().await;
            self.failed(&trouble.to_string());
            let wait = Instant::now() + self.backoff.wait();
            tokio::select! {
                () = sleep_until(wait) => {}
                reply = next_request(&mut requests) => self.replies.push(reply),
            }
        }
    }

    /// Follows until the engine is lost.
    async fn session(&mut self, requests: &mut ReloadRequests) -> Result<Infallible, EngineError> {
        let client = EngineClient::connect(&self.endpoint, self.certificates.as_ref()).await?;
        let info = client.info().await?;
        self.read_labels().await;
        // From this moment on nothing is missed, by the engine's own clock.
        let since = info.system_time.as_deref().and_then(Moment::parse);
        let mut events = pin!(client.events(since));
        let mut session = Session::new(client);
        self.read_all(&mut session);
        self.see_host(&info);
        let mut next_labels = Instant::now() + LABELS_INTERVAL;
        // Only of an engine on this machine we see the disk, and not even that from within a container.
        let folder = info.docker_root_dir.filter(|folder| !folder.is_empty() && self.endpoint.is_local());
        let (mut next_disk, mut measured) = (Instant::now(), None);
        loop {
            session.ask(&self.images);
            let (due, ignored) = (session.publication(), self.view.stopping.next());
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => {
                        session.heard = Instant::now();
                        if let Some(hint) = Hint::of(&event?) {
                            debug!(?hint, "event of the engine");
                            self.take(hint, &mut session);
                        }
                    }
                    None => return Err(EngineError::Lost(format!("{} ended the stream of events", self.endpoint))),
                },
                Some(answer) = session.answers.next() => self.accept(answer, &mut session).await?,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.publish(&mut session).await?;
                }
                () = sleep_until(session.next_reading), if session.reading.is_none() => self.read_all(&mut session),
                () = sleep_until(session.next_retry.unwrap_or_else(Instant::now)), if session.next_retry.is_some() => {
                    session.try_again();
                }
                () = sleep_until(session.heard + PING_INTERVAL) => session.ping(),
                () = sleep_until(self.start + ignored.unwrap_or_default()), if ignored.is_some() => {
                    session.changed |= self.view.stopping.give_up(self.start.elapsed());
                }
                () = sleep_until(next_labels), if self.options.label_files.is_some() => {
                    if self.read_labels().await {
                        session.host();
                    }
                    next_labels = Instant::now() + LABELS_INTERVAL;
                }
                () = sleep_until(next_disk), if folder.is_some() && measured.is_none() => {
                    // One that does not answer is waited for here, and by nothing else.
                    let path = PathBuf::from(folder.as_deref().unwrap_or_default());
                    measured = Some(tokio::task::spawn_blocking(move || DiskRoom::of(&path)));
                    next_disk = Instant::now() + DISK_INTERVAL;
                }
                Some(room) = OptionFuture::from(measured.as_mut()) => {
                    measured = None;
                    let room = room.ok().and_then(Result::ok);
                    if self.see_disk(folder.as_deref().unwrap_or_default(), room) {
                        session.host();
                    }
                }
                reply = next_request(requests) => {
                    self.replies.push(reply);
                    next_disk = Instant::now();
                    self.read_labels().await;
                    self.read_all(&mut session);
                }
            }
        }
    }

    /// Begins a full reading. It asks about images again: one may be removed while its container lives, and then nothing that
    /// was known of it counts, here as for all others who ask the engine.
    fn read_all(&mut self, session: &mut Session) {
        self.images = Images::default();
        session.read_all();
    }

    /// Looks at what a hint names.
    fn take(&mut self, hint: Hint, session: &mut Session) {
        match hint {
            Hint::Container(id) => session.look_at(id),
            Hint::Signal(id, signal) => {
                let now = self.start.elapsed();
                let facts = self.view.containers.get(&id).and_then(|seen| seen.facts.as_ref());
                session.changed |= facts.is_some_and(|facts| self.view.stopping.sent(facts, signal, now));
            }
            Hint::Gone(id) => {
                self.view.stopping.forget(&id);
                session.changed |= self.view.containers.remove(&id).is_some();
                // Responses on their way may still contain it.
                if session.busy.contains_key(&id) {
                    session.look_at(id);
                }
            }
            Hint::Networks => session.networks(),
            Hint::Host => session.host(),
        }
    }

    /// Takes an answer in.
    async fn accept(&mut self, answer: Answer, session: &mut Session) -> Result<(), EngineError> {
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
            self.complete(session).await?;
        }
        Ok(())
    }

    fn accept_container(
        &mut self,
        id: Text,
        outcome: Result<Inspected, EngineError>,
        session: &mut Session,
    ) -> Result<(), EngineError> {
        let again = session.busy.remove(&id).unwrap_or_default();
        let seen = match outcome {
            Err(EngineError::Absent(_)) => None,
            Err(lost) if lost.is_lost() => return Err(lost),
            Err(problem) => {
                // What it was is more likely than that it is gone.
                let facts = self.view.containers.get(&id).and_then(|seen| seen.facts.clone());
                let (path, what) = match &facts {
                    Some(facts) => (facts.path(), "as it was before"),
                    None => (format!("containers/{id}"), "unknown"),
                };
                let problem = format!("it could not be inspected and is {what}: {problem}");
                let defect =
                    if facts.is_some() { Defect::ignored(path, problem) } else { Defect::hidden(path, problem) };
                session.has_failed(id.clone());
                Some(Seen { facts, defect: Some(defect) })
            }
            Ok(Inspected { response, on_gateway_bridge, baked, image }) => {
                let seen = match Facts::of(&id, &response, &baked) {
                    Ok(facts) => Seen { facts: Some(Facts { on_gateway_bridge, ..facts }), defect: None },
                    Err(defect) => Seen { facts: None, defect: Some(defect) },
                };
                match image {
                    Image::NotAsked => {}
                    Image::Learned(image) => self.images.learn(image, baked),
                    Image::NoAnswer => session.has_failed(id.clone()),
                }
                Some(seen)
            }
        };
        if let Some(facts) = seen.as_ref().and_then(|seen| seen.facts.as_ref()) {
            self.view.stopping.see(facts);
        }
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

    /// Reads the engine's description of the host; returns whether it changed.
    fn see_host(&mut self, info: &SystemInfo) -> bool {
        let address = self.endpoint.remote_address().or_else(|| self.endpoint.is_local().then(own_address).flatten());
        let mut options = self.options.clone();
        options.labels.extend(self.labels.labels.iter().cloned());
        let mut host = Host::of(info, &options, address);
        host.defects.extend(self.labels.defects.iter().cloned());
        let low_disk = self.low_disk.clone().map(|why| ("agent_state".into(), Value::Text(why)));
        host.fields = host.fields.with(low_disk);
        let host = Some(host);
        let changed = host != self.view.host;
        self.view.host = host;
        changed
    }

    /// Learns the room on the disk of the engine, if it is known; returns whether the host says something else of it than before.
    fn see_disk(&mut self, folder: &str, room: Option<DiskRoom>) -> bool {
        let low = room.and_then(|room| disk::low(folder, (room.free, room.total), self.low_disk.is_some()));
        let changed = low != self.low_disk;
        match &low {
            Some(why) if changed => warn!("{why}: schedulers place nothing here"),
            None if changed => info!(folder, "the disk has room again"),
            _ => {}
        }
        self.low_disk = low;
        changed
    }

    /// Reads the files with labels; returns whether they say something else than before.
    async fn read_labels(&mut self) -> bool {
        let Some(folder) = self.options.label_files.clone() else { return false };
        let read = tokio::task::spawn_blocking(move || LabelFiles::read(&folder)).await;
        let Ok(labels) = read else { return false };
        let changed = labels != self.labels;
        self.labels = labels;
        changed
    }

    /// Everything was read: what there is can be shown.
    async fn complete(&mut self, session: &mut Session) -> Result<(), EngineError> {
        session.was_read();
        if session.changed {
            self.publish(session).await?;
        }
        self.backoff.reset();
        self.readiness.ready(PART);
        if self.failing.take().is_some() {
            info!(endpoint = %self.endpoint, "the engine is back");
        }
        if std::mem::take(&mut session.read_again) {
            self.read_all(session);
            return Ok(());
        }
        for reply in self.replies.drain(..) {
            let documents = self.documents.clone();
            tokio::spawn(async move {
                documents.settled().await;
                let _ = reply.send(Ok(()));
            });
        }
        Ok(())
    }

    /// Publishes what there is, unless that was published already.
    async fn publish(&mut self, session: &mut Session) -> Result<(), EngineError> {
        session.changed = false;
        let begun = Instant::now();
        let (view, documents) = (std::mem::take(&mut self.view), self.documents.clone());
        // Aside, since 10,000 containers take a tenth of a second, which this thread owes to others.
        let published = tokio::task::spawn_blocking(move || {
            view.publish(&documents);
            view
        });
        // Should it panic, everything is read again; what was published before stays.
        let unfit = |_| EngineError::Lost("the responses of the engine cannot be mapped".to_owned());
        self.view = published.await.map_err(unfit)?;
        session.was_published(begun.elapsed());
        Ok(())
    }

    /// Publishes the document of before, unless the engine has answered since the start.
    async fn restore(&mut self) {
        let Some(state) = self.stored.take().filter(|_| self.documents.revision() == Revision::NONE) else { return };
        let name = self.options.name.clone();
        let loaded = tokio::task::spawn_blocking(move || stored_host::load(&state, name.as_ref()));
        if let Ok(Some(stored)) = loaded.await {
            info!(host = %stored.host, "publishing what is stored on disk of this host");
            self.documents.publish(Arc::new(stored));
        }
    }

    fn failed(&mut self, problem: &str) {
        if self.failing.as_deref() != Some(problem) {
            warn!(endpoint = %self.endpoint, problem, "the engine cannot be followed; keeping its last known state");
            self.readiness.not_ready(PART, problem);
            self.failing = Some(problem.to_owned());
        }
        // For schedulers of other hosts, which would find out one placement after the other.
        let known = self.documents.load_full();
        let away = known.without_engine();
        if *known != away && !known.host.is_empty() {
            self.documents.publish(Arc::new(away));
        }
        for reply in self.replies.drain(..) {
            let _ = reply.send(Err(problem.to_owned()));
        }
    }
}

/// Logs defects that are new, once.
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
