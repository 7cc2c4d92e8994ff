//! What both transports do with a message: read it, find its answer in the zone or ask upstreams, write the response.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::Guard;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use process::Clients;
use source::Store;
use tokio::time::Instant as TokioInstant;

use crate::answer::{Answer, End};
use crate::cache::Wanted;
use crate::edns::{Extra, UDP_ANSWER_MAX};
use crate::forward::{Asking, Begun, Client, Forwarder, Waiting};
use crate::hold::Hold;
use crate::metrics::{Answered, BY, By, Metrics, Mine, TRANSPORTS, Transport, code_label};
use crate::name::Folded;
use crate::query::{Query, Reading};
use crate::reply::{Forward, Reply};
use crate::respond::Responder;
use crate::response_rate::{Class, ResponseRate, Verdict};
use crate::view::View;
use crate::write::{TCP_ANSWER_MAX, Written, write_body, write_refusal, write_reply, write_truncated};
use crate::zone::{Scope, Zone};

/// The reason of a service that has no data yet (RFC 8914 section 4.15).
const NOT_READY: u16 = 14;

/// How long a client waits for a datagram with records; what is known later is cached for its next query, and not sent.
///
/// Answers that are held back for seconds can be made to arrive all at once at a victim whose address was forged ("DNS bomb").
/// Resolvers ask again after 2 s or more; Unbound drops answers after the same time. That there is no answer is said at any
/// time: it is as short as the query, and a client that waits for it need not ask again.
const UDP_PATIENCE: Duration = Duration::from_millis(1900);

/// What all transports use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) views: Arc<Store<View>>,
    pub(crate) forwarder: Forwarder,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) responder: Responder,
    pub(crate) hold: Hold,
    /// Who is answered, besides the containers of the zone.
    pub(crate) clients: Clients,
    pub(crate) rate: ResponseRate,
    /// The address that this host asks itself from: the one that is served.
    pub(crate) own: IpAddr,
    pub(crate) started: Instant,
    /// Log one query in this many; 0 logs none.
    pub(crate) query_log_every: u32,
}

/// What is to be done about a message.
#[derive(Debug)]
pub(crate) enum Handled {
    /// Nothing.
    Ignore,
    /// To send these bytes of the room, which are about a name of the cluster's domain or not.
    Send { bytes: usize, own: bool },
    /// To wait for upstreams, or until the client is known.
    Wait(Box<Later>),
}

/// Queries that are answered one after the other from the same view.
#[derive(Debug)]
pub(crate) struct Batch<'v> {
    zone: Option<&'v Zone>,
    clients: &'v Clients,
    /// Who asked last: a client that asks for one name mostly asks for another type next.
    last: Option<(IpAddr, Seen<'v>)>,
}

/// What a client with some address gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'v> {
    /// Whether it is answered: it is a container of the zone, or in a network that is served.
    pub(crate) is_served: bool,
    /// What only this client sees.
    pub(crate) scope: Option<&'v Scope>,
}

impl<'v> Seen<'v> {
    /// What a client with this address gets of a zone, once there is one.
    pub(crate) fn new(zone: Option<&'v Zone>, clients: &Clients, client: IpAddr) -> Self {
        let scope = zone.and_then(|zone| zone.scope(client)).map(|scope| &**scope);
        Self { is_served: scope.is_some() || clients.contains(client), scope }
    }
}

impl<'v> Batch<'v> {
    /// Queries of any clients to this view.
    pub(crate) fn of(view: &'v View, clients: &'v Clients) -> Self {
        Self { zone: view.zone(), clients, last: None }
    }

    /// What a client with this address gets.
    fn seen_from(&mut self, client: IpAddr) -> Seen<'v> {
        match self.last {
            Some((last, seen)) if last == client => seen,
            _ => self.last.insert((client, Seen::new(self.zone, self.clients, client))).1,
        }
    }
}

/// How a message came in.
#[derive(Clone, Copy, Debug)]
struct Came {
    client: SocketAddr,
    transport: Transport,
    bytes: usize,
    /// Whether the rate of responses is limited, since the address may be forged.
    is_limited: bool,
}

impl Came {
    fn is_connected(&self) -> bool {
        self.transport != Transport::Udp
    }

    /// Room for the longest response.
    fn room(&self) -> Vec<u8> {
        vec![0; usize::from(if self.is_connected() { TCP_ANSWER_MAX } else { UDP_ANSWER_MAX })]
    }
}

/// A response that has to wait.
#[derive(Debug)]
pub(crate) struct Later {
    message: Box<[u8]>,
    came: Came,
    awaited: Awaited,
}

/// What a response waits for.
#[derive(Debug)]
enum Awaited {
    /// It has to be known which container the client is.
    Client,
    Upstreams(Box<Upstreams>),
}

/// Upstreams are needed for a response.
#[derive(Debug)]
struct Upstreams {
    forward: Forward,
    waiting: Waiting,
    /// Whether it is about a name of the cluster's domain.
    own: bool,
    begun: TokioInstant,
}

impl Later {
    /// The bytes of the response; none when it would come too late.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(crate) async fn reply(self, shared: &Shared) -> Vec<u8> {
        let _counted = CountedPanic(&shared.metrics);
        let Self { message, came, awaited } = self;
        let upstreams = match awaited {
            Awaited::Upstreams(upstreams) => upstreams,
            Awaited::Client => {
                shared.hold.wait(&shared.views, came.client.ip(), &message).await;
                match shared.handle_now(&message, came) {
                    Ok(bytes) => return bytes,
                    Err(upstreams) => upstreams,
                }
            }
        };
        let Upstreams { forward, waiting, own, begun } = *upstreams;
        let reply = waiting.reply(&forward).await;
        let has_records = !reply.answers.is_empty() || !reply.authority.is_empty();
        if has_records && !came.is_connected() && begun.elapsed() >= UDP_PATIENCE {
            shared.metrics.late.inc();
            return Vec::new();
        }
        // It was read as a query before.
        let Reading::Query(query) = Query::read(&message) else { return Vec::new() };
        let extra = shared.responder.extra(&query, came.client.ip(), came.is_connected());
        let mut room = came.room();
        let tally = shared.metrics.tally();
        let written = write_reply(&query, &reply, extra, &mut room);
        let handled = shared.count(&tally, came, Some(&query), written, (own, By::Forward), &mut room);
        room.truncate(if let Handled::Send { bytes, .. } = handled { bytes } else { 0 });
        tally.took(own, 1, begun.elapsed());
        room
    }
}

/// Counts the panic of a task that ends in one.
struct CountedPanic<'m>(&'m Metrics);

impl Drop for CountedPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panics.inc();
        }
    }
}

impl Shared {
    /// What is served at the moment; finish with it before waiting for anything.
    pub(crate) fn load(&self) -> Guard<Arc<View>> {
        self.views.load()
    }

    /// Handles one message, whose response is written to `room`; a panic is counted and costs this message only.
    ///
    /// `room` has at least the bytes of the longest answer over UDP.
    pub(crate) fn handle(
        &self,
        batch: &mut Batch<'_>,
        message: &[u8],
        (client, transport): (SocketAddr, Transport),
        tally: &Mine,
        room: &mut [u8],
    ) -> Handled {
        let came = Came { client, transport, bytes: message.len(), is_limited: false };
        let handled = catch_unwind(AssertUnwindSafe(|| self.handle_unguarded(batch, message, came, true, tally, room)));
        handled.unwrap_or_else(|_| {
            self.metrics.panics.inc();
            Handled::Ignore
        })
    }

    /// The response to a message that came alone; `None` when that is no query.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(crate) async fn answer(&self, message: &[u8], from: (SocketAddr, Transport)) -> Option<Vec<u8>> {
        let later = {
            let begun = Instant::now();
            let (tally, mut room) = (self.metrics.tally(), vec![0; usize::from(TCP_ANSWER_MAX)]);
            let view = self.load();
            match self.handle(&mut Batch::of(&view, &self.clients), message, from, &tally, &mut room) {
                Handled::Ignore => return None,
                Handled::Send { bytes, own } => {
                    tally.took(own, 1, begun.elapsed());
                    room.truncate(bytes);
                    return Some(room);
                }
                Handled::Wait(later) => later,
            }
        };
        Some(later.reply(self).await)
    }

    /// Handles a message that was held: the bytes of the response, or the upstreams that are needed for it.
    fn handle_now(&self, message: &[u8], came: Came) -> Result<Vec<u8>, Box<Upstreams>> {
        let begun = Instant::now();
        let (tally, mut room) = (self.metrics.tally(), came.room());
        let view = self.load();
        match self.handle_unguarded(&mut Batch::of(&view, &self.clients), message, came, false, &tally, &mut room) {
            Handled::Send { bytes, own } => {
                room.truncate(bytes);
                tally.took(own, 1, begun.elapsed());
                Ok(room)
            }
            Handled::Wait(later) => match later.awaited {
                Awaited::Upstreams(upstreams) => Err(upstreams),
                Awaited::Client => Ok(Vec::new()),
            },
            Handled::Ignore => Ok(Vec::new()),
        }
    }

    fn handle_unguarded(
        &self,
        batch: &mut Batch<'_>,
        message: &[u8],
        mut came: Came,
        may_hold: bool,
        tally: &Mine,
        room: &mut [u8],
    ) -> Handled {
        let reading = Query::read(message);
        let client = came.client.ip();
        let seen = batch.seen_from(client);
        // Addresses of this host and its containers can be forged by its containers only, each other's.
        came.is_limited = seen.scope.is_none() && !came.is_connected() && self.is_limited(client);
        let query = match reading {
            Reading::Query(query) => query,
            Reading::Ignore => return Handled::Ignore,
            Reading::Refuse(refusal) => {
                let written = write_refusal(&refusal, room);
                return self.count(tally, came, None, written, (false, By::Nobody), room);
            }
        };
        came.is_limited &= !self.responder.is_proven(&query, client);
        if !seen.is_served {
            return self.refuse(&query, came, tally, room);
        }
        let extra = self.responder.extra(&query, client, came.is_connected());
        let Some(zone) = batch.zone else {
            // Not even the existence of a name is known: a denial would be cached.
            let reply = Reply::empty(ResponseCode::ServFail).because(NOT_READY);
            let written = write_reply(&query, &reply, extra, room);
            return self.count(tally, came, Some(&query), written, (false, By::Nobody), room);
        };
        let (written, answer) = self.responder.respond((zone, seen.scope), &query, extra, room);
        if may_hold && self.hold.wants(zone, client, &query, &answer) {
            return Handled::Wait(Box::new(Later { message: message.into(), came, awaited: Awaited::Client }));
        }
        if written.is_some() {
            return self.count(tally, came, Some(&query), written, (answer.apex.is_some(), By::Zone), room);
        }
        self.forward(message, &query, &answer, (came, extra), tally, room)
    }

    /// Refuses a client that is not served.
    ///
    /// Over UDP too: the response is never longer than the query, so that forging its address gains nothing, and a client
    /// that is refused by mistake does not run into a timeout.
    #[cold]
    fn refuse(&self, query: &Query<'_>, came: Came, tally: &Mine, room: &mut [u8]) -> Handled {
        self.clients.log_refusal("dns", came.client.ip());
        let written = write_reply(query, &Reply::empty(ResponseCode::Refused), Extra::default(), room);
        self.count(tally, came, Some(query), written, (false, By::Nobody), room)
    }

    /// Answers what the zone does not know, from what upstreams said before or by asking them.
    #[inline(never)]
    fn forward(
        &self,
        message: &[u8],
        query: &Query<'_>,
        answer: &Answer<'_>,
        (came, extra): (Came, Extra<'_>),
        tally: &Mine,
        room: &mut [u8],
    ) -> Handled {
        let (own, asking) = (answer.apex.is_some(), Asking::of(query.wishes));
        // Stored answers are written as they are: for a name in small letters, without aliases of ours before them.
        if let End::Elsewhere { upstreams, .. } = answer.end
            && answer.aliases.is_empty()
            && asking.recursion_desired
            && !query.name.iter().any(u8::is_ascii_uppercase)
        {
            let Asking { dnssec_ok, checking_disabled, .. } = asking;
            let wanted = Wanted { name: query.name, kind: query.kind, upstreams, dnssec_ok, checking_disabled };
            let written = write_body(query, |room| self.forwarder.write_kept(&wanted, room), extra, room);
            if written.is_some() {
                return self.count(tally, came, Some(query), written, (own, By::Cache), room);
            }
        }
        let Some(forward) = Forward::of(query, answer, self.responder.next_turn()) else { return Handled::Ignore };
        let address = came.client.ip();
        let is_proven = came.is_connected() || self.responder.is_proven(query, address);
        match self.forwarder.begin(&forward, asking, Client { address, is_proven }) {
            Begun::Known(reply) => {
                let by = if reply.upstream.is_some() { By::Cache } else { By::Nobody };
                let written = write_reply(query, &reply, extra, room);
                self.count(tally, came, Some(query), written, (own, by), room)
            }
            Begun::Unproven => {
                // Clients that know cookies repeat the query with the one in this response (RFC 7873 section 5.2.3), others over TCP.
                let written = match extra.cookie {
                    Some(_) => write_reply(query, &Reply::empty(ResponseCode::BADCOOKIE), extra, room),
                    None => write_truncated(query, extra, room),
                };
                self.count(tally, came, Some(query), written, (own, By::Nobody), room)
            }
            Begun::Waiting(waiting) => {
                let upstreams = Upstreams { forward, waiting, own, begun: TokioInstant::now() };
                let awaited = Awaited::Upstreams(Box::new(upstreams));
                Handled::Wait(Box::new(Later { message: message.into(), came, awaited }))
            }
        }
    }

    /// Whether responses to this client count, as long as it has not proven its address.
    fn is_limited(&self, client: IpAddr) -> bool {
        self.rate.is_on() && !client.to_canonical().is_loopback() && client != self.own
    }

    /// What is left of a response to a client whose address may be forged.
    #[inline(never)]
    fn limit(&self, came: Came, query: Option<&Query<'_>>, written: Written, room: &mut [u8]) -> Option<Written> {
        let (client, class) = (came.client.ip(), Class::of(&written));
        let verdict = self.rate.verdict(client, class, self.started.elapsed());
        if verdict != Verdict::Sent {
            self.metrics.limited[usize::from(verdict == Verdict::Slipped)].inc();
        }
        match (verdict, query) {
            (Verdict::Dropped, _) => None,
            (Verdict::Slipped, Some(query)) if class != Class::Failure => {
                // With a cookie, so that a client that knows them is not limited next time.
                write_truncated(query, self.responder.extra(query, client, false), room)
            }
            (Verdict::Slipped | Verdict::Sent, _) => Some(written),
        }
    }

    /// Counts and logs a response that was written to `room`, if it is to be sent.
    fn count(
        &self,
        tally: &Mine,
        came: Came,
        query: Option<&Query<'_>>,
        written: Option<Written>,
        (own, by): (bool, By),
        room: &mut [u8],
    ) -> Handled {
        let limited = |written| if came.is_limited { self.limit(came, query, written, room) } else { Some(written) };
        let Some(Written { bytes, code, answers }) = written.and_then(limited) else { return Handled::Ignore };
        let answered = Answered {
            transport: came.transport,
            client: came.client,
            own,
            kind: query.map_or(0, |query| query.kind.into()),
            dnssec_ok: query.is_some_and(|query| query.wishes.dnssec_ok()),
            code,
            by,
            empty: answers == 0,
            request: came.bytes,
            response: bytes,
        };
        tally.count(&answered);
        if self.query_log_every > 0 && tally.is_told(self.query_log_every) {
            log_query(query.map_or(&[0], |query| query.name), &answered);
        }
        Handled::Send { bytes, own }
    }
}

/// Logs the query for a name in wire format.
fn log_query(name: &[u8], answered: &Answered) {
    tracing::info!(
        target: "dns::queries",
        client = %answered.client.ip(),
        transport = TRANSPORTS[answered.transport as usize],
        name = %Folded::verbatim(name),
        kind = %RecordType::from(answered.kind),
        code = code_label(answered.code),
        by = BY[answered.by as usize],
        "question"
    );
}
