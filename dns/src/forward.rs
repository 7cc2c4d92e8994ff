//! Asking upstreams: everything that is no name of the cluster.
//!
//! Nobody but configured upstreams is ever asked. Equal questions in flight are one question; the next upstream is
//! asked when the first one takes longer than it usually does, and the first good answer wins. What an upstream says
//! is believed only about what it was asked.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::TaskTracker;

use crate::answer::{Forward, Reply};
use crate::cache::{Cache, Key};
use crate::config::Options;
use crate::name::Folded;
use crate::wire::{HEADER_OCTETS, UDP_ANSWER_MAX};

/// Most questions of clients that wait for upstreams; more are refused at once.
///
/// At 4 s each this is 1,000 unanswered questions a second, for which the memory stays below 32 MiB.
const WAITING_MAX: usize = 4_000;

/// Most sockets towards one upstream: a silent one must not take those that others need.
const SOCKETS_PER_UPSTREAM_MAX: usize = 256;

/// Most sockets towards all upstreams, well below the descriptors that a process gets.
const SOCKETS_MAX: usize = 512;

/// Most upstreams of one client that are asked, as many as a resolver usually takes.
const UPSTREAMS_MAX: usize = 4;

/// Most upstreams of which something is known: more than a cluster names at a time.
const UPSTREAMS_KNOWN_MAX: usize = 1024;

/// How long an upstream that never answered yet may take before the next one is asked too.
const PATIENCE: Duration = Duration::from_millis(300);

/// Bounds of that time once it is known how fast the upstream is.
const PATIENCE_MIN: Duration = Duration::from_millis(50);

/// First time for which a failed upstream is asked last; doubled with every failure.
const PENALTY: Duration = Duration::from_secs(2);

/// Longest such time.
const PENALTY_MAX: Duration = Duration::from_secs(30);

/// Wrong replies on one socket after which somebody is guessing, and TCP is used, where guessing does not help.
const WRONG_REPLIES_MAX: usize = 8;

/// Longest TTL that is believed (RFC 8767 section 4: about a week; a day is plenty).
const TTL_MAX: u32 = 86_400;

/// Longest time for which a negative answer is kept (RFC 2308 section 5: one to three hours).
const NEGATIVE_TTL_MAX: u32 = 3_600;

/// Time for which a negative answer is kept that does not say so itself.
const NEGATIVE_TTL: u32 = 5;

/// Longest chain of aliases in an answer, like our own.
const CHAIN_MAX: usize = 16;

/// Longest reply over UDP that is read, larger than what is asked for.
const UDP_REPLY_MAX: usize = 4096;

/// Reasons why there is no answer (RFC 8914 section 5.2).
mod reason {
    /// The upstreams did not answer.
    pub(super) const NO_REACHABLE_AUTHORITY: u16 = 22;
    /// Too much is waiting already, or there is nobody to ask.
    pub(super) const PROHIBITED: u16 = 18;
    /// The service has other work to do.
    pub(super) const NOT_READY: u16 = 14;
    /// The answer is older than it should be.
    pub(super) const STALE: u16 = 3;
}

/// Asks upstreams for all clients; cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    configured: Arc<[SocketAddr]>,
    /// Upstreams of single domains, for all clients.
    private: Vec<(Folded, Arc<[SocketAddr]>)>,
    never: Vec<IpAddr>,
    /// Where this service listens itself.
    own: OnceLock<Vec<SocketAddr>>,
    timeout: Duration,
    waiting: Arc<Semaphore>,
    sockets: Arc<Semaphore>,
    start: Instant,
    flights: TaskTracker,
    /// The only lock here: held for a lookup or a change, never while anything is awaited.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    cache: Cache,
    flights: HashMap<Arc<Key>, watch::Receiver<Option<Arc<Reply>>>, foldhash::fast::RandomState>,
    upstreams: HashMap<SocketAddr, Upstream, foldhash::fast::RandomState>,
}

/// What is known about one upstream.
#[derive(Clone, Debug)]
struct Upstream {
    /// How long it usually takes.
    usual: Option<Duration>,
    failures: u32,
    /// Asked last until then.
    penalty: Option<Instant>,
    sockets: Arc<Semaphore>,
}

impl Upstream {
    fn new() -> Self {
        let sockets = Arc::new(Semaphore::new(SOCKETS_PER_UPSTREAM_MAX));
        Self { usual: None, failures: 0, penalty: None, sockets }
    }

    fn patience(&self) -> Duration {
        self.usual.map_or(PATIENCE, |usual| (usual * 3).clamp(PATIENCE_MIN, PATIENCE))
    }
}

impl Forwarder {
    /// A forwarder that asks these upstreams for clients without their own.
    pub(crate) fn new(options: &Options, configured: Vec<SocketAddr>) -> Self {
        let state = State {
            cache: Cache::new(options.cache_capacity),
            flights: HashMap::default(),
            upstreams: HashMap::default(),
        };
        Self(Arc::new(Shared {
            configured: configured.into(),
            private: private_upstreams(options),
            never: options.never_recurse_to.clone(),
            own: OnceLock::new(),
            timeout: options.recurser_timeout,
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            sockets: Arc::new(Semaphore::new(SOCKETS_MAX)),
            start: Instant::now(),
            flights: TaskTracker::new(),
            state: Mutex::new(state),
        }))
    }

    /// Names the addresses on which this service listens; nobody is sent there.
    pub(crate) fn listens_on(&self, own: Vec<SocketAddr>) {
        // Said once, before the first question.
        let _ = self.0.own.set(own);
    }

    /// The answer when it is known, or will not be asked for; otherwise a place to wait at.
    pub(crate) fn begin(&self, forward: &Forward, asking: Asking) -> Begun {
        if !asking.recursion_desired {
            return Begun::Known(Reply::empty(ResponseCode::Refused).because(reason::PROHIBITED));
        }
        let upstreams = self.upstreams(&forward.question.folded, &forward.upstreams);
        if upstreams.is_empty() {
            return Begun::Known(complete(forward, Reply::empty(ResponseCode::Refused).because(reason::PROHIBITED)));
        }
        let key = Arc::new(Key {
            name: forward.question.folded.clone(),
            kind: forward.question.kind,
            upstreams,
            dnssec_ok: asking.dnssec_ok,
            checking_disabled: asking.checking_disabled,
        });
        let now = self.0.start.elapsed();
        let mut state = self.0.state();
        if let Some(reply) = state.cache.get(&key, now) {
            let reply = state.softened(&key, reply, now);
            if state.cache.is_due(&key, now) {
                self.flight(&mut state, &key);
            }
            return Begun::Known(complete(forward, reply));
        }
        let Ok(permit) = self.0.waiting.clone().try_acquire_owned() else {
            return Begun::Known(complete(forward, Reply::empty(ResponseCode::ServFail).because(reason::NOT_READY)));
        };
        let receiver = self.flight(&mut state, &key);
        Begun::Waiting(Waiting { receiver, _permit: permit })
    }

    /// The question that is in flight, from now on at the latest.
    fn flight(&self, state: &mut State, key: &Arc<Key>) -> watch::Receiver<Option<Arc<Reply>>> {
        if let Some(receiver) = state.flights.get(key) {
            return receiver.clone();
        }
        let (sender, receiver) = watch::channel(None);
        state.flights.insert(key.clone(), receiver.clone());
        let flight = Flight { shared: self.0.clone(), key: key.clone() };
        self.0.flights.spawn(async move {
            let reply = flight.run().await;
            // Nobody may be waiting any more.
            let _ = sender.send(Some(reply));
        });
        receiver
    }

    /// Waits until no question is in flight.
    pub(crate) async fn finish(&self) {
        self.0.flights.close();
        self.0.flights.wait().await;
    }

    /// How many answers are kept.
    pub(crate) fn cached(&self) -> usize {
        self.0.state().cache.len()
    }

    /// Whom to ask about a name, for a client that names these.
    fn upstreams(&self, name: &Folded, own: &Arc<[SocketAddr]>) -> Arc<[SocketAddr]> {
        let private = self.0.private.iter().filter(|(domain, _)| name.is_within(domain));
        let private = private.max_by_key(|(domain, _)| domain.wire().len()).map(|(_, upstreams)| upstreams);
        let wanted = private.unwrap_or(if own.is_empty() { &self.0.configured } else { own });
        let allowed =
            |upstream: &SocketAddr| !self.0.never.contains(&upstream.ip().to_canonical()) && !self.0.is_own(upstream);
        if wanted.len() <= UPSTREAMS_MAX && wanted.iter().all(allowed) {
            return wanted.clone();
        }
        wanted.iter().copied().filter(allowed).take(UPSTREAMS_MAX).collect()
    }
}

/// The upstreams of each domain, in the order of the command line.
fn private_upstreams(options: &Options) -> Vec<(Folded, Arc<[SocketAddr]>)> {
    let mut domains: Vec<(Folded, Vec<SocketAddr>)> = Vec::new();
    for private in &options.private_upstreams {
        match domains.iter_mut().find(|(domain, _)| *domain == private.domain) {
            Some((_, upstreams)) => upstreams.push(private.upstream.0),
            None => domains.push((private.domain.clone(), vec![private.upstream.0])),
        }
    }
    domains.into_iter().map(|(domain, upstreams)| (domain, upstreams.into())).collect()
}

/// What a client wants besides the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) recursion_desired: bool,
    pub(crate) dnssec_ok: bool,
    pub(crate) checking_disabled: bool,
}

/// How a question begins.
#[derive(Debug)]
pub(crate) enum Begun {
    /// With its answer.
    Known(Reply),
    /// With waiting for it.
    Waiting(Waiting),
}

/// A place to wait for an answer at.
#[derive(Debug)]
pub(crate) struct Waiting {
    receiver: watch::Receiver<Option<Arc<Reply>>>,
    _permit: OwnedSemaphorePermit,
}

impl Waiting {
    /// The answer.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; the question goes on for others.
    pub(crate) async fn reply(mut self, forward: &Forward) -> Reply {
        let reply = match self.receiver.wait_for(Option::is_some).await {
            Ok(reply) => reply.as_deref().cloned(),
            // The flight panicked.
            Err(_) => None,
        };
        complete(forward, reply.unwrap_or_else(|| Reply::empty(ResponseCode::ServFail)))
    }
}

/// What the client gets of an upstream's answer: the aliases that led to it in front, its own spelling of the name.
fn complete(forward: &Forward, mut reply: Reply) -> Reply {
    if let Some(fallback) = &forward.fallback
        && (reply.code != ResponseCode::NoError || reply.answers.is_empty())
    {
        return fallback.clone();
    }
    for record in &mut reply.answers {
        if record.name == forward.question.name {
            record.name.clone_from(&forward.question.name);
        }
    }
    if !forward.aliases.is_empty() {
        reply.answers.splice(0..0, forward.aliases.iter().cloned());
        // The name of the question is ours, so that what others proved does not prove it.
        reply.authentic = false;
    }
    reply
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held left at worst one entry less.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether asking there would be asking ourselves.
    fn is_own(&self, upstream: &SocketAddr) -> bool {
        self.own.get().is_some_and(|own| {
            own.iter().any(|own| {
                own.port() == upstream.port()
                    && (own.ip() == upstream.ip() || own.ip().is_unspecified() && upstream.ip().is_loopback())
            })
        })
    }
}

impl State {
    fn upstream(&mut self, address: SocketAddr) -> &mut Upstream {
        if self.upstreams.len() >= UPSTREAMS_KNOWN_MAX && !self.upstreams.contains_key(&address) {
            // Those of containers that are gone; of the others the next question finds out again.
            self.upstreams.retain(|_, upstream| upstream.sockets.available_permits() < SOCKETS_PER_UPSTREAM_MAX);
        }
        self.upstreams.entry(address).or_insert_with(Upstream::new)
    }

    /// An upstream that denies a name because it has no IPv6 address would hide the IPv4 one (RFC 4074 section 4.2).
    fn softened(&self, key: &Key, mut reply: Reply, now: Duration) -> Reply {
        if key.kind == RecordType::AAAA && reply.code == ResponseCode::NXDomain {
            let other = Key { kind: RecordType::A, ..key.clone() };
            if self.cache.has_records(&other, now) {
                reply.code = ResponseCode::NoError;
            }
        }
        reply
    }
}

/// One question on its way to upstreams.
struct Flight {
    shared: Arc<Shared>,
    key: Arc<Key>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.shared.state().flights.remove(&self.key);
    }
}

impl Flight {
    async fn run(self) -> Arc<Reply> {
        let outcome = self.ask_all().await;
        let now = self.shared.start.elapsed();
        let mut state = self.shared.state();
        match outcome {
            Ok(answer) => {
                let reply = Arc::new(answer.reply);
                let lifetime = Duration::from_secs(answer.lifetime.into());
                state.cache.insert(&self.key, reply.clone(), lifetime, answer.octets, now);
                if reply.code == ResponseCode::NXDomain && self.key.kind == RecordType::AAAA {
                    return Arc::new(state.softened(&self.key, Reply::clone(&reply), now));
                }
                reply
            }
            Err(failure) => {
                let failure = Arc::new(failure);
                match state.cache.fail(&self.key, &failure, now) {
                    Some(expired) => Arc::new(expired.because(reason::STALE)),
                    None => failure,
                }
            }
        }
    }

    /// Asks upstreams until one gives a good answer.
    async fn ask_all(&self) -> Result<Answer, Reply> {
        let deadline = Instant::now() + self.shared.timeout * 2;
        let (order, probes) = self.order();
        let mut attempts = JoinSet::new();
        let mut pending: Vec<(SocketAddr, Instant)> = Vec::new();
        let mut failure = Reply::empty(ResponseCode::ServFail).because(reason::NO_REACHABLE_AUTHORITY);
        // Everybody is asked a second time: datagrams get lost.
        let twice =
            order.iter().map(|upstream| (*upstream, false)).chain(order.iter().map(|upstream| (*upstream, true)));
        let mut queue: VecDeque<(SocketAddr, bool)> = twice.collect();
        for probe in probes {
            self.start(&mut attempts, probe, deadline);
        }
        let mut next_start = Instant::now();
        loop {
            if Instant::now() >= next_start
                && let Some((upstream, _)) = queue.pop_front()
            {
                self.start(&mut attempts, upstream, deadline);
                pending.push((upstream, Instant::now()));
                let patience = self.shared.state().upstream(upstream).patience();
                next_start = Instant::now()
                    + if queue.front().is_some_and(|(_, again)| *again) {
                        (self.shared.timeout / 2).max(patience)
                    } else {
                        patience
                    };
            }
            if attempts.is_empty() && queue.is_empty() {
                return Err(failure);
            }
            tokio::select! {
                Some(ended) = attempts.join_next(), if !attempts.is_empty() => {
                    let Ok((upstream, result)) = ended else { continue };
                    pending.retain(|(other, _)| *other != upstream);
                    match result {
                        Ok(Heard::Good(answer)) => {
                            self.outrun(&pending);
                            return Ok(*answer);
                        }
                        Ok(Heard::Bad(code)) => {
                            queue.retain(|(other, _)| *other != upstream);
                            if failure.code == ResponseCode::ServFail && code != ResponseCode::ServFail {
                                failure = Reply::empty(code);
                            }
                        }
                        Err(error) => tracing::debug!(%upstream, %error, name = %self.key.name, "no answer"),
                    }
                    if queue.front().is_some_and(|(_, again)| !again) || queue.is_empty() {
                        next_start = Instant::now();
                    }
                }
                () = sleep_until(next_start), if !queue.is_empty() => {}
                () = sleep_until(deadline) => return Err(failure),
            }
        }
    }

    /// In which order upstreams are asked, and which of the others to try in passing.
    fn order(&self) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let now = Instant::now();
        let mut state = self.shared.state();
        let mut probes = Vec::new();
        let mut order: Vec<(bool, SocketAddr)> = Vec::with_capacity(self.key.upstreams.len());
        for address in self.key.upstreams.iter() {
            let upstream = state.upstream(*address);
            let failing = upstream.penalty.is_some();
            if upstream.penalty.is_some_and(|until| until <= now) {
                // One question finds out; the others go on as before.
                upstream.penalty = Some(now + PENALTY_MAX);
                probes.push(*address);
            }
            order.push((failing, *address));
        }
        if order.iter().all(|(failing, _)| *failing) {
            probes.clear();
        }
        order.sort_by_key(|(failing, _)| *failing);
        let order: Vec<_> = order.into_iter().map(|(_, address)| address).collect();
        (order, probes)
    }

    fn start(&self, attempts: &mut JoinSet<(SocketAddr, io::Result<Heard>)>, upstream: SocketAddr, deadline: Instant) {
        let (shared, key) = (self.shared.clone(), self.key.clone());
        let own = shared.state().upstream(upstream).sockets.clone();
        attempts.spawn(async move {
            let deadline = deadline.min(Instant::now() + shared.timeout);
            let begun = Instant::now();
            let result = timeout_at(deadline, async {
                // Neither semaphore is ever closed.
                let _own = own.acquire_owned().await.map_err(io::Error::other)?;
                let _any = shared.sockets.acquire().await.map_err(io::Error::other)?;
                ask(upstream, &key).await
            });
            let result = result.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let mut state = shared.state();
            let known = state.upstream(upstream);
            match &result {
                Ok(_) => {
                    let took = begun.elapsed();
                    known.usual = Some(known.usual.map_or(took, |usual| (usual * 7 + took) / 8));
                    known.failures = 0;
                    known.penalty = None;
                }
                Err(_) => punish(known),
            }
            drop(state);
            (upstream, result)
        });
    }

    /// Notes that these upstreams were overtaken although they had their time.
    fn outrun(&self, pending: &[(SocketAddr, Instant)]) {
        let mut state = self.shared.state();
        for (upstream, since) in pending {
            let known = state.upstream(*upstream);
            if since.elapsed() >= known.patience() {
                punish(known);
            }
        }
    }
}

fn punish(upstream: &mut Upstream) {
    let penalty = (PENALTY * 2u32.saturating_pow(upstream.failures.min(8))).min(PENALTY_MAX);
    upstream.failures = upstream.failures.saturating_add(1);
    upstream.penalty = Some(Instant::now() + penalty);
}

/// What an upstream said.
#[derive(Debug)]
enum Heard {
    /// An answer, positive or negative.
    Good(Box<Answer>),
    /// That it will not or cannot.
    Bad(ResponseCode),
}

/// A good answer and for how many seconds it may be kept.
#[derive(Debug)]
struct Answer {
    reply: Reply,
    lifetime: u32,
    octets: usize,
}

/// Asks one upstream.
async fn ask(upstream: SocketAddr, key: &Key) -> io::Result<Heard> {
    let mut edns = true;
    loop {
        let (message, octets) = match ask_udp(upstream, key, edns).await? {
            Some((message, octets)) if !message.metadata.truncation => (message, octets),
            _ => ask_tcp(upstream, key, edns).await?,
        };
        let code = message.metadata.response_code;
        if edns && message.edns.is_none() && matches!(code, ResponseCode::FormErr | ResponseCode::NotImp) {
            // A server from before EDNS (RFC 6891 section 7).
            edns = false;
            continue;
        }
        return Ok(judge(message, octets, key));
    }
}

/// The query as octets, with its id.
fn query(key: &Key, edns: bool) -> io::Result<(u16, Vec<u8>)> {
    let mut random = [0; 2];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let id = u16::from_be_bytes(random);
    let mut octets = Vec::with_capacity(HEADER_OCTETS + key.name.wire().len() + 15);
    let flags = 0x0100 | if key.checking_disabled { 0x0010 } else { 0 };
    for word in [id, flags, 1, 0, 0, u16::from(edns)] {
        octets.extend_from_slice(&word.to_be_bytes());
    }
    octets.extend_from_slice(key.name.wire());
    for word in [u16::from(key.kind), 1] {
        octets.extend_from_slice(&word.to_be_bytes());
    }
    if edns {
        octets.push(0);
        let flags = if key.dnssec_ok { 0x8000 } else { 0 };
        for word in [u16::from(RecordType::OPT), UDP_ANSWER_MAX, 0, flags, 0] {
            octets.extend_from_slice(&word.to_be_bytes());
        }
    }
    Ok((id, octets))
}

/// Whether this is the reply to a query: its id and its question, and nothing else, say so.
fn is_reply(reply: &[u8], id: u16, key: &Key) -> bool {
    let name = key.name.wire();
    let end = HEADER_OCTETS + name.len();
    let (Some(header), Some(question), Some(fixed)) =
        (reply.get(..HEADER_OCTETS), reply.get(HEADER_OCTETS..end), reply.get(end..end + 4))
    else {
        return false;
    };
    header[..2] == id.to_be_bytes()
        && header[2] & 0xf8 == 0x80
        && header[4..6] == [0, 1]
        && question.eq_ignore_ascii_case(name)
        && fixed[..2] == u16::from(key.kind).to_be_bytes()
        && fixed[2..] == [0, 1]
}

/// `None` when somebody else's replies come in: then only TCP can tell.
async fn ask_udp(upstream: SocketAddr, key: &Key, edns: bool) -> io::Result<Option<(Message, usize)>> {
    let local = match upstream {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::from_std(platform::socket::udp_client_socket(SocketAddr::new(local, 0))?)?;
    socket.connect(upstream).await?;
    let (id, octets) = query(key, edns)?;
    socket.send(&octets).await?;
    for _ in 0..WRONG_REPLIES_MAX {
        socket.readable().await?;
        if let Some(read) = receive(&socket, id, key)? {
            return Ok(Some(read));
        }
    }
    Ok(None)
}

/// Receives one datagram; `None` when it is not the reply. The buffer lives on the stack only while it is used.
fn receive(socket: &UdpSocket, id: u16, key: &Key) -> io::Result<Option<(Message, usize)>> {
    let mut buffer = [0; UDP_REPLY_MAX];
    let reply = match socket.try_recv(&mut buffer) {
        Ok(length) => &buffer[..length],
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    if is_reply(reply, id, key) { decode(reply).map(Some) } else { Ok(None) }
}

async fn ask_tcp(upstream: SocketAddr, key: &Key, edns: bool) -> io::Result<(Message, usize)> {
    let mut stream = TcpStream::connect(upstream).await?;
    let (id, octets) = query(key, edns)?;
    let length = u16::try_from(octets.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &octets].concat()).await?;
    let mut reply = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut reply).await?;
    if is_reply(&reply, id, key) {
        decode(&reply)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "a reply to another question"))
    }
}

fn decode(reply: &[u8]) -> io::Result<(Message, usize)> {
    let message = Message::from_vec(reply).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    if message.metadata.op_code != OpCode::Query {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a reply to another operation"));
    }
    Ok((message, reply.len()))
}

/// What a reply is worth: of its records only those are believed that the question is about.
fn judge(message: Message, octets: usize, key: &Key) -> Heard {
    let code = message.metadata.response_code;
    if !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
        return Heard::Bad(code);
    }
    let (answers, last) = chain(message.answers, key);
    let positive = answers.iter().any(|record| record.record_type() == key.kind);
    let mut authority = Vec::new();
    if !positive {
        let proof = |record: &Record| {
            record.record_type() == RecordType::SOA
                || key.dnssec_ok
                    && matches!(record.record_type(), RecordType::NSEC | RecordType::NSEC3 | RecordType::RRSIG)
        };
        let within =
            |record: &Record| last.is_within(&Folded::of(&record.name)) || record.record_type() != RecordType::SOA;
        authority.extend(message.authorities.iter().filter(|record| proof(record) && within(record)).cloned());
        let referral = message.authorities.iter().any(|record| record.record_type() == RecordType::NS);
        if answers.is_empty() && authority.is_empty() && referral && !message.metadata.recursion_available {
            // It knows somebody who knows; we follow nobody.
            return Heard::Bad(ResponseCode::Refused);
        }
    }
    let mut reply = Reply { answers, authority, authentic: message.metadata.authentic_data, ..Reply::empty(code) };
    for record in reply.answers.iter_mut().chain(&mut reply.authority) {
        // A TTL with the top bit set is none (RFC 2181 section 8).
        record.ttl = if record.ttl > i32::MAX.unsigned_abs() { 0 } else { record.ttl.min(TTL_MAX) };
    }
    let mut lifetime = reply.answers.iter().map(|record| record.ttl).min().unwrap_or(TTL_MAX);
    if !positive {
        let soa = reply.authority.iter_mut().find_map(|record| match &record.data {
            RData::SOA(soa) => {
                record.ttl = record.ttl.min(soa.minimum).min(NEGATIVE_TTL_MAX);
                Some(record.ttl)
            }
            _ => None,
        });
        lifetime = lifetime.min(soa.unwrap_or(NEGATIVE_TTL));
    }
    // What a decoded record takes in memory is a multiple of its octets.
    let octets = octets + size_of::<Record>() * (reply.answers.len() + reply.authority.len());
    Heard::Good(Box::new(Answer { reply, lifetime, octets }))
}

/// The records that lead from the question to its answer, in order, and the name where they end.
fn chain(records: Vec<Record>, key: &Key) -> (Vec<Record>, Folded) {
    let mut name = key.name.clone();
    let mut seen = vec![name.clone()];
    let mut aliases: HashMap<Folded, Name> = HashMap::new();
    for record in &records {
        if let RData::CNAME(target) = &record.data {
            aliases.entry(Folded::of(&record.name)).or_insert_with(|| target.0.clone());
        }
    }
    if key.kind != RecordType::CNAME {
        while let Some(target) = aliases.get(&name) {
            name = Folded::of(target);
            if seen.contains(&name) || seen.len() >= CHAIN_MAX {
                break;
            }
            seen.push(name.clone());
        }
    }
    let mut places: Vec<(usize, Record)> = Vec::with_capacity(records.len());
    for record in records {
        let folded = Folded::of(&record.name);
        let kind = record.record_type();
        let place = seen.iter().position(|name| *name == folded);
        let place = match (place, kind) {
            (Some(place), _) if kind == key.kind || kind == RecordType::CNAME => Some(place),
            (Some(place), RecordType::RRSIG) if key.dnssec_ok => Some(place),
            // An alias of a whole domain, from which aliases of names follow (RFC 6672).
            (None, RecordType::Unknown(39) | RecordType::RRSIG) => seen.iter().position(|name| name.is_within(&folded)),
            _ => None,
        };
        places.extend(place.map(|place| (place, record)));
    }
    places.sort_by_key(|(place, _)| *place);
    (places.into_iter().map(|(_, record)| record).collect(), name)
}

#[cfg(test)]
mod tests;
