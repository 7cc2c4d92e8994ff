//! Asking upstreams: everything that is no name of the cluster.
//!
//! Only configured upstreams are queried. Equal queries in flight are one query; the next upstream is queried when the first
//! one takes longer than it usually does, and the first good answer wins. Of a response only what answers the question is
//! used.

mod exchange;
mod flight;
mod judge;
mod rebinding;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use process::quota::{Place, Places, Quota, fitting};
use source::Store;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::cache::{Cache, Counts, Key, Wanted};
use crate::config::Options;
use crate::name::{Folded, is_within};
use crate::query::Wishes;
use crate::reply::{Forward, Reply};
use crate::view::View;
use crate::write::Body;
pub(crate) use exchange::{decode, is_reply};
use flight::{Flight, SOCKETS_PER_UPSTREAM_MAX};
pub(crate) use flight::{Known, Upstream};
use judge::Answer;
pub(crate) use judge::{Heard, judge};

/// Most questions of clients that wait for upstreams; more are refused at once.
///
/// At 4 s each this is 1,000 unanswered questions a second, for which the memory stays below 32 MiB.
const WAITING_MAX: usize = 4_000;

/// Most of these from one client: with a sixteenth, a few hostile ones do not take the places of all.
const WAITING_PER_CLIENT_MAX: usize = WAITING_MAX / 16;

/// Most of these from all clients that have not proven their address: forged addresses take no more of them.
///
/// In flight at once, they are some 20,000 questions a second that no cache answers. Further clients are asked to prove
/// theirs, by TCP or a cookie.
const UNPROVEN_MAX: usize = WAITING_MAX / 8;

/// Most of these from one such client: a program that looks up hundreds of names at once need not prove anything.
const UNPROVEN_PER_CLIENT_MAX: usize = WAITING_MAX / 20;

/// How long a client waits for upstreams when there is an old answer for him (RFC 8767 section 5).
const STALE_AFTER: Duration = Duration::from_millis(1800);

/// Most sockets towards all upstreams, below the descriptors that a process gets.
const SOCKETS_MAX: usize = 4_096;

/// Most upstreams of one client that are asked, as many as a resolver usually takes.
const UPSTREAMS_MAX: usize = 4;

/// Most upstreams of which something is known: more than a cluster names at a time.
const UPSTREAMS_KNOWN_MAX: usize = 1024;

/// How long after a line about a dropped answer there is no further one: anybody can cause them.
const WARNING_PAUSE: Duration = Duration::from_mins(1);

/// Reasons why there is no answer (RFC 8914 section 5.2).
mod reason {
    /// The upstreams did not answer.
    pub(super) const NO_REACHABLE_AUTHORITY: u16 = 22;
    /// There is no upstream, or forwarding is disabled.
    pub(super) const PROHIBITED: u16 = 18;
    /// Too much is waiting already.
    pub(super) const NOT_READY: u16 = 14;
    /// The answer is one that no name of others may have.
    pub(super) const BLOCKED: u16 = 15;
}

/// Asks upstreams for all clients; cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    configured: Arc<[SocketAddr]>,
    /// Upstreams of single domains, for all clients.
    private: Vec<(Folded, Arc<[SocketAddr]>)>,
    /// Domains whose names may lead to any address.
    trusted: Vec<Folded>,
    /// What says which addresses are containers'.
    views: Arc<Store<View>>,
    never: Vec<IpAddr>,
    /// Where this service listens itself.
    own: OnceLock<Vec<SocketAddr>>,
    timeout: Duration,
    sockets: Arc<Semaphore>,
    start: Instant,
    flights: TaskTracker,
    /// Held for a lookup or a change, never while anything is awaited.
    state: Mutex<State>,
    /// The places of clients with a proven address that wait.
    proven: Quota,
    /// Those of all others, apart: a forged address takes none of the places that its owner has.
    unproven: Quota,
}

#[derive(Debug)]
struct State {
    cache: Cache,
    flights: HashMap<Arc<Key>, watch::Receiver<Option<Arc<Reply>>>, foldhash::fast::RandomState>,
    upstreams: HashMap<SocketAddr, Upstream, foldhash::fast::RandomState>,
    /// How many were refused since too many waited.
    refused: u64,
    /// How many were sent back, to come again with a proof of their address.
    unproven: u64,
    rebinding: Rebinding,
}

/// Answers that were dropped, since they lead where no name of others may.
#[derive(Debug, Default)]
struct Rebinding {
    dropped: u64,
    logged: Option<Instant>,
}

impl Forwarder {
    /// A forwarder that asks these upstreams for clients without their own; `views` say which addresses are containers'.
    pub(crate) fn new(options: &Options, configured: Vec<SocketAddr>, views: Arc<Store<View>>) -> Self {
        let state = State {
            cache: Cache::new(options.cache_capacity),
            flights: HashMap::default(),
            upstreams: HashMap::default(),
            refused: 0,
            unproven: 0,
            rebinding: Rebinding::default(),
        };
        let descriptors = platform::limits::descriptors();
        let proven = Places { per_client: WAITING_PER_CLIENT_MAX, in_all: WAITING_MAX - UNPROVEN_MAX };
        let unproven = Places { per_client: UNPROVEN_PER_CLIENT_MAX, in_all: UNPROVEN_MAX };
        Self(Arc::new(Shared {
            configured: configured.into(),
            private: private_upstreams(options),
            trusted: options.private_upstreams.iter().map(|private| private.domain.clone()).collect(),
            views,
            never: options.never_recurse_to.clone(),
            own: OnceLock::new(),
            timeout: options.recurser_timeout,
            sockets: Arc::new(Semaphore::new(fitting(SOCKETS_MAX, descriptors))),
            start: Instant::now(),
            flights: TaskTracker::new(),
            state: Mutex::new(state),
            proven: Quota::new(proven.within(descriptors)),
            unproven: Quota::new(unproven.within(descriptors)),
        }))
    }

    /// Names the addresses on which this service listens; nobody is sent there.
    pub(crate) fn listens_on(&self, own: Vec<SocketAddr>) {
        // Said once, before the first question.
        let _ = self.0.own.set(own);
    }

    /// The answer when it is known, or will not be asked for; otherwise a place to wait at.
    pub(crate) fn begin(&self, forward: &Forward, asking: Asking, client: Client) -> Begun {
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
            if state.cache.is_due(&key, now)
                && let Some(place) = self.place(client)
            {
                self.flight(&mut state, &key, &place);
            }
            return Begun::Known(complete(forward, reply));
        }
        let Some(place) = self.place(client) else {
            if !client.is_proven {
                state.unproven += 1;
                return Begun::Unproven;
            }
            state.refused += 1;
            return Begun::Known(complete(forward, Reply::empty(ResponseCode::ServFail).because(reason::NOT_READY)));
        };
        let expired = state.cache.stale(&key, now);
        let receiver = self.flight(&mut state, &key, &place);
        if let Some(expired) = expired.clone().filter(|_| state.all_failing(&key)) {
            // No client waits for upstreams that failed before; if one answers now, the next client gets its answer.
            state.cache.served_stale();
            return Begun::Known(complete(forward, expired));
        }
        Begun::Waiting(Waiting { receiver, expired, _place: place })
    }

    /// Writes the answer behind the question to `room`, when it is known and there is nothing to be done about it.
    pub(crate) fn write_kept(&self, wanted: &Wanted<'_>, room: &mut [u8]) -> Option<Body> {
        let upstreams = self.wanted(wanted.name, wanted.upstreams);
        if upstreams.is_empty() || !self.all_allowed(upstreams) {
            return None;
        }
        let now = self.0.start.elapsed();
        self.0.state().cache.write(&Wanted { upstreams, ..*wanted }, now, room)
    }

    /// A place for a question of this client.
    fn place(&self, client: Client) -> Option<Arc<Place>> {
        let quota = if client.is_proven { &self.0.proven } else { &self.0.unproven };
        quota.take(client.address).map(Arc::new)
    }

    /// The question that is in flight, from now on at the latest; it holds the place until it is over, since a client may be
    /// gone before that.
    fn flight(&self, state: &mut State, key: &Arc<Key>, place: &Arc<Place>) -> watch::Receiver<Option<Arc<Reply>>> {
        if let Some(receiver) = state.flights.get(key) {
            return receiver.clone();
        }
        let (sender, receiver) = watch::channel(None);
        state.flights.insert(key.clone(), receiver.clone());
        let flight = Flight { shared: self.0.clone(), key: key.clone(), _place: place.clone() };
        self.0.flights.spawn(async move {
            let reply = flight.run().await;
            // All receivers may have been dropped.
            let _ = sender.send(Some(reply));
        });
        receiver
    }

    /// Waits until no question is in flight.
    pub(crate) async fn finish(&self) {
        self.0.flights.close();
        self.0.flights.wait().await;
    }

    /// The state of the cache and the upstreams, for metrics and admin pages.
    pub(crate) fn look(&self) -> Look {
        let waiting = self.0.proven.total() + self.0.unproven.total();
        let state = self.0.state();
        let mut upstreams: Vec<_> = state.upstreams.iter().map(|(address, known)| (*address, known.clone())).collect();
        upstreams.sort_by_key(|(address, _)| *address);
        Look {
            cached: state.cache.len(),
            cache: state.cache.counts(),
            waiting,
            refused: state.refused,
            unproven: state.unproven,
            rebinding: state.rebinding.dropped,
            upstreams,
        }
    }

    /// Who is asked for clients without upstreams of their own.
    pub(crate) fn configured(&self) -> &[SocketAddr] {
        &self.0.configured
    }

    /// Who is asked about which domains.
    pub(crate) fn private(&self) -> impl Iterator<Item = (&Folded, &[SocketAddr])> {
        self.0.private.iter().map(|(domain, upstreams)| (domain, &**upstreams))
    }

    /// Whom to ask about a name, for a client that names these.
    pub(crate) fn upstreams(&self, name: &Folded, own: &[SocketAddr]) -> Arc<[SocketAddr]> {
        let wanted = self.wanted(name.wire(), own);
        wanted.iter().copied().filter(|upstream| self.is_allowed(upstream)).take(UPSTREAMS_MAX).collect()
    }

    /// The domain with upstreams of its own that a name belongs to.
    pub(crate) fn private_domain(&self, name: &[u8]) -> Option<(&Folded, &[SocketAddr])> {
        self.private()
            .filter(|(domain, _)| is_within(name, domain.wire()))
            .max_by_key(|(domain, _)| domain.wire().len())
    }

    /// The upstreams that are configured for a name, whether they may be queried or not.
    fn wanted<'u>(&'u self, name: &[u8], own: &'u [SocketAddr]) -> &'u [SocketAddr] {
        match self.private_domain(name) {
            Some((_, upstreams)) => upstreams,
            None if own.is_empty() => &self.0.configured,
            None => own,
        }
    }

    fn all_allowed(&self, upstreams: &[SocketAddr]) -> bool {
        upstreams.len() <= UPSTREAMS_MAX && upstreams.iter().all(|upstream| self.is_allowed(upstream))
    }

    fn is_allowed(&self, upstream: &SocketAddr) -> bool {
        !self.0.never.contains(&upstream.ip().to_canonical()) && !self.0.is_own(upstream)
    }
}

/// What happened at the upstreams so far.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// How many answers with records are cached, and how many without.
    pub(crate) cached: (usize, usize),
    pub(crate) cache: Counts,
    /// How many questions of clients wait.
    pub(crate) waiting: usize,
    /// How many were refused since too many waited.
    pub(crate) refused: u64,
    /// How many were sent back, to come again with a proof of their address.
    pub(crate) unproven: u64,
    /// How many answers were dropped, since they lead where no name of others may.
    pub(crate) rebinding: u64,
    pub(crate) upstreams: Vec<(SocketAddr, Upstream)>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) address: IpAddr,
    /// Whether the address is certainly the client's: it came by a connection, or with a cookie of ours.
    pub(crate) is_proven: bool,
}

/// The upstreams of each domain, in the order of the command line.
fn private_upstreams(options: &Options) -> Vec<(Folded, Arc<[SocketAddr]>)> {
    let mut domains: Vec<(Folded, Vec<SocketAddr>)> = Vec::new();
    for private in &options.private_upstreams {
        let Some(upstream) = private.upstream.map(|upstream| upstream.0) else { continue };
        match domains.iter_mut().find(|(domain, _)| *domain == private.domain) {
            Some((_, upstreams)) => upstreams.push(upstream),
            None => domains.push((private.domain.clone(), vec![upstream])),
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

impl Asking {
    /// What this query asks for.
    pub(crate) fn of(wishes: Wishes) -> Self {
        Self {
            recursion_desired: wishes.recursion_desired(),
            dnssec_ok: wishes.dnssec_ok(),
            checking_disabled: wishes.checking_disabled(),
        }
    }
}

/// How a question begins.
#[derive(Debug)]
pub(crate) enum Begun {
    /// With its answer.
    Known(Reply),
    /// With waiting for it.
    Waiting(Waiting),
    /// Not yet: the client is to come again with a proof of its address.
    Unproven,
}

/// A place to wait for an answer at.
#[derive(Debug)]
pub(crate) struct Waiting {
    receiver: watch::Receiver<Option<Arc<Reply>>>,
    /// The response when it takes too long.
    expired: Option<Reply>,
    _place: Arc<Place>,
}

impl Waiting {
    /// The answer.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; the question goes on for others.
    pub(crate) async fn reply(mut self, forward: &Forward) -> Reply {
        let patience = if self.expired.is_some() { STALE_AFTER } else { Duration::MAX };
        let reply = match timeout(patience, self.receiver.wait_for(Option::is_some)).await {
            Ok(Ok(reply)) => reply.as_deref().cloned(),
            // The flight panicked, or takes too long.
            Ok(Err(_)) | Err(_) => self.expired,
        };
        complete(forward, reply.unwrap_or_else(|| Reply::empty(ResponseCode::ServFail)))
    }
}

/// What the client gets of an upstream's answer: the aliases that led to it in front, its own spelling of the name.
pub(crate) fn complete(forward: &Forward, mut reply: Reply) -> Reply {
    if let Some(fallback) = &forward.fallback
        && (reply.code != ResponseCode::NoError || reply.answers.is_empty())
    {
        return fallback.clone();
    }
    reply.spell(&forward.question.name);
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

    /// What is left of an answer that leads where no name of others may: that the name has no such records.
    ///
    /// The whole answer is dropped, since a browser tries all addresses of one. It is not NXDOMAIN, which would deny the
    /// names below it, too (RFC 8020).
    fn without_rebinding(&self, state: &mut State, key: &Key, answer: Answer) -> Answer {
        if self.trusted.iter().any(|domain| key.name.is_within(domain)) {
            return answer;
        }
        let view = self.views.load();
        let is_container = |address| view.zone().is_some_and(|zone| zone.is_container(address));
        let Some(address) = rebinding::forbidden(&key.name, &answer.reply, is_container) else { return answer };
        let Rebinding { dropped, logged } = &mut state.rebinding;
        *dropped += 1;
        if logged.is_none_or(|last| last.elapsed() >= WARNING_PAUSE) {
            *logged = Some(Instant::now());
            tracing::warn!(
                name = %key.name,
                %address,
                upstream = ?answer.reply.upstream,
                "dropped the answer of an upstream that leads to this host, its metadata service or a container; if the \
                 name may, allow it: --private-upstream {}",
                key.name
            );
        }
        let dropped = Some(address);
        let reply = Reply { upstream: answer.reply.upstream, dropped, ..Reply::empty(ResponseCode::NoError) };
        Answer { reply: reply.because(reason::BLOCKED), lifetime: judge::NEGATIVE_TTL, bytes: 0 }
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

    /// Whether all who could answer did not do so when they were asked last.
    fn all_failing(&self, key: &Key) -> bool {
        key.upstreams.iter().all(|address| self.upstreams.get(address).is_some_and(Upstream::is_failing))
    }

    /// An upstream that denies a name because it has no IPv6 address would hide the IPv4 one (RFC 4074 section 4.2).
    fn softened(&self, key: &Arc<Key>, mut reply: Reply, now: Duration) -> Reply {
        if key.kind == RecordType::AAAA && reply.code == ResponseCode::NXDomain {
            let other = Arc::new(Key { kind: RecordType::A, ..Key::clone(key) });
            if self.cache.has_records(&other, now) {
                reply.code = ResponseCode::NoError;
            }
        }
        reply
    }
}

#[cfg(test)]
mod tests;
