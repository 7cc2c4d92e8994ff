//! The lane: one thread that accepts connections and answers usual requests in place, where that takes microseconds.
//!
//! A request is read right after its connection was accepted, answered from the view, and the connection closed or
//! put among those that rest, without a task, a timer or a buffer of its own. Whatever is not usual leaves the lane with
//! the octets that were read, for hyper: heads in pieces, bodies, requests that wait, values that take time to write,
//! clients that do not take their answers. There it stays. Both ways give the same octets.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use platform::socket::send_last;
use process::Parts;
use process::accept::{Failures, PAUSE};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use crate::head;
use crate::metrics::Counted;
use crate::recent::{Given, Recent};
use crate::reply;
use crate::resting::Resting;
use crate::server::{Accepted, Leftover, continue_with, refuse};
use crate::service::{Crowded, Ends, Service, Visitor};
use crate::view::View;

/// How much is read at once: as much as the longest head has.
const READ_OCTETS: usize = 16 << 10;

/// Most reads of one connection in a row: who always has more to say is not to keep others waiting.
const READS_MAX: usize = 4;

/// About how much is written at once, of answers to requests that came together.
const WRITE_OCTETS: usize = 64 << 10;

/// Most connections that are accepted before others are looked at.
const ACCEPTED_MAX: usize = 64;

/// Most events that are taken at once.
const EVENTS_MAX: usize = 256;

const LISTENER: Token = Token(usize::MAX);
const STOP: Token = Token(usize::MAX - 1);

/// Serves a listener until the service stops, on a thread of its own that is one of `parts`; connections that leave the
/// lane are tasks of `tasks`.
///
/// # Errors
///
/// When the system refuses what it takes.
pub(crate) fn serve(
    listener: StdListener,
    arrival: Option<SocketAddr>,
    service: Arc<Service>,
    tasks: &TaskTracker,
    parts: &mut Parts,
) -> io::Result<()> {
    let mut listener = TcpListener::from_std(listener);
    let poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let waker = Arc::new(Waker::new(poll.registry(), STOP)?);
    let stop = service.stop.clone();
    let lane = Lane {
        poll,
        _waker: waker.clone(),
        resting: Resting::new(),
        desk: Desk::new(service),
        listener,
        arrival,
        accepts: Accepts::At(Duration::ZERO),
        failures: Failures::of("accepting connections"),
        now: Duration::ZERO,
        tasks: tasks.clone(),
        runtime: Handle::current(),
        stops: false,
    };
    parts.spawn_thread("http", move || lane.run())?;
    tasks.spawn(async move {
        stop.cancelled().await;
        if let Err(error) = waker.wake() {
            error!(%error, "the thread that accepts connections does not stop");
        }
    });
    Ok(())
}

struct Lane {
    poll: Poll,
    /// Its event would be lost with it.
    _waker: Arc<Waker>,
    resting: Resting<Connection>,
    desk: Desk,
    listener: TcpListener,
    /// Where connections arrive; each knows its own address when this is `None`.
    arrival: Option<SocketAddr>,
    accepts: Accepts,
    failures: Failures,
    /// Since the service started.
    now: Duration,
    tasks: TaskTracker,
    runtime: Handle,
    /// Whether the service stops.
    stops: bool,
}

/// When to accept.
#[derive(Clone, Copy, PartialEq)]
enum Accepts {
    /// When the listener has something.
    Told,
    /// From this time on; there may be more.
    At(Duration),
}

/// What is needed to answer.
struct Desk {
    service: Arc<Service>,
    /// Where requests are read.
    read: Vec<u8>,
    /// Where answers are written.
    written: Vec<u8>,
    /// The date as of now, and of which second since 1970 it is.
    date: String,
    second: u64,
    /// `None` when the answer to a request does not only depend on who asks what.
    recent: Option<Recent>,
}

/// A connection in the lane.
struct Connection {
    stream: TcpStream,
    visitor: Visitor,
    counted: Counted,
}

/// What becomes of a connection.
enum Next {
    Rest,
    Close,
    Leave(Leftover),
}

impl Lane {
    fn run(mut self) {
        // Times are those of the runtime, and tasks are spawned from here.
        let runtime = self.runtime.clone();
        let _runtime = runtime.enter();
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !self.stops {
            // What panics in single requests is caught there; nothing else may end the thread either.
            if catch_unwind(AssertUnwindSafe(|| self.turn(&mut events))).is_err() {
                self.desk.service.metrics.panics.inc();
            }
        }
    }

    /// Waits until there is something to do, and does it.
    fn turn(&mut self, events: &mut Events) {
        match self.poll.poll(events, self.patience()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            Err(error) => {
                self.failures.note(&error);
                return thread::sleep(PAUSE);
            }
        }
        self.now = self.desk.service.started.elapsed();
        self.desk.look_at_the_clock();
        for event in &*events {
            match event.token() {
                LISTENER => self.accepts = Accepts::At(self.now),
                STOP => self.stops = true,
                Token(number) => self.continue_with(number, event),
            }
        }
        if let Accepts::At(time) = self.accepts
            && time <= self.now
        {
            self.accept();
        }
        let idle = Duration::from_secs(self.desk.service.limits.idle.into());
        while let Some((number, since)) = self.resting.oldest()
            && since + idle <= self.now
        {
            self.resting.remove(number);
        }
    }

    /// How long to wait at most.
    fn patience(&self) -> Option<Duration> {
        let idle = Duration::from_secs(self.desk.service.limits.idle.into());
        let tired = self.resting.oldest().map(|(_, since)| since + idle);
        let next = match self.accepts {
            Accepts::Told => tired,
            Accepts::At(time) => Some(tired.map_or(time, |tired| tired.min(time))),
        };
        next.map(|next| next.saturating_sub(self.now))
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_MAX {
            match self.listener.accept() {
                Ok((stream, peer)) => self.begin(stream, peer),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.accepts = Accepts::Told,
                Err(error) => {
                    if self.failures.note(&error) {
                        // Room for the next one, when there is somebody who makes no use of his.
                        evict(&mut self.resting, &self.desk.service);
                        return self.accepts = Accepts::At(self.now + PAUSE);
                    }
                }
            }
        }
    }

    /// Serves a new connection.
    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        // The connection is gone already when its own address is not known.
        let Some(local) = self.arrival.or_else(|| stream.local_addr().ok()) else { return };
        let ends = Ends { peer: peer.ip(), port: peer.port(), local };
        let Self { desk, resting, .. } = self;
        match desk.service.let_in(ends, || evict(resting, &desk.service)) {
            Ok((counted, share)) => {
                let mut connection = Connection { stream, visitor: Visitor::new(ends, share), counted };
                match self.desk.serve(&mut connection, false) {
                    Next::Rest => self.rest(connection),
                    Next::Close => {}
                    Next::Leave(leftover) => self.leave(connection, leftover),
                }
            }
            Err(why) => self.refuse(stream, why),
        }
    }

    /// Puts a connection among those that rest.
    fn rest(&mut self, mut connection: Connection) {
        let number = self.resting.next();
        let registered = self.poll.registry().register(&mut connection.stream, Token(number), Interest::READABLE);
        match registered {
            Ok(()) => _ = self.resting.insert(connection, self.now),
            Err(error) => warn!(%error, "a connection is closed that cannot be waited for"),
        }
    }

    /// Serves a connection that rested.
    fn continue_with(&mut self, number: usize, event: &Event) {
        // It may have been closed by what happened just before.
        let Some(connection) = self.resting.get_mut(number) else { return };
        match self.desk.serve(connection, event.is_read_closed() || event.is_error()) {
            Next::Rest => self.resting.renew(number, self.now),
            Next::Close => drop(self.resting.remove(number)),
            Next::Leave(leftover) => {
                if let Some(mut connection) = self.resting.remove(number)
                    && self.poll.registry().deregister(&mut connection.stream).is_ok()
                {
                    self.leave(connection, leftover);
                }
            }
        }
    }

    /// Lets hyper go on with a connection.
    fn leave(&self, connection: Connection, leftover: Leftover) {
        let Connection { stream, visitor, counted } = connection;
        let accepted = Accepted { stream: stream.into(), visitor, counted };
        self.tasks.spawn_on(continue_with(accepted, leftover, self.desk.service.clone()), &self.runtime);
    }

    fn refuse(&self, stream: TcpStream, why: Crowded) {
        refuse(stream.into(), why, &self.desk.service, &self.tasks);
    }
}

/// Closes the connection that rests longest, in the lane or with hyper; returns whether there was one.
fn evict(resting: &mut Resting<Connection>, service: &Service) -> bool {
    let elsewhere = service.evictions.oldest();
    match resting.oldest() {
        Some((number, since)) if elsewhere.is_none_or(|elsewhere| since <= elsewhere) => {
            resting.remove(number).is_some()
        }
        _ => service.evictions.evict(),
    }
}

impl Desk {
    fn new(service: Arc<Service>) -> Self {
        Self {
            recent: service.is_open().then(Recent::new),
            service,
            read: vec![0; READ_OCTETS],
            written: Vec::with_capacity(WRITE_OCTETS),
            date: String::new(),
            second: 0,
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = SystemTime::now();
        let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.second {
            (self.date, self.second) = (httpdate::fmt_http_date(now), second);
        }
    }

    /// Answers what came on a connection. `ended` says that nothing more will come than what has come.
    fn serve(&mut self, connection: &mut Connection, ended: bool) -> Next {
        for _ in 0..READS_MAX {
            let length = match connection.stream.read(&mut self.read) {
                Ok(0) => return Next::Close,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::Rest,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Next::Close,
            };
            self.written.clear();
            let (mut answered, mut last) = (0, false);
            while answered < length
                && !last
                && let Some((octets, closes)) = self.answer(&connection.visitor, answered..length)
            {
                (answered, last) = (answered + octets, closes);
            }
            let sending = match last {
                _ if self.written.is_empty() => Ok(0),
                // What was sent goes out with the end of the connection, which comes at once.
                true => send_last(&connection.stream, &self.written),
                false => connection.stream.write(&self.written),
            };
            let sent = match sending {
                Ok(sent) => sent,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
                Err(_) => return Next::Close,
            };
            if sent < self.written.len() || answered < length {
                let unsent = self.written[sent..].to_vec();
                return Next::Leave(Leftover { unsent, read: self.read[answered..length].to_vec(), last });
            }
            if last {
                return Next::Close;
            }
            // A short read took all there was; whatever comes later is told.
            if length < self.read.len() && !ended {
                return Next::Rest;
            }
        }
        Next::Leave(Leftover { unsent: Vec::new(), read: Vec::new(), last: false })
    }

    /// Writes the answer to the first request in a part of what was read, when it is usual; returns its length and whether
    /// the connection ends with it.
    fn answer(&mut self, visitor: &Visitor, part: Range<usize>) -> Option<(usize, bool)> {
        if self.written.len() > WRITE_OCTETS {
            return None;
        }
        let view = self.service.views.load();
        if let Some(answered) = self.answer_again(&view, visitor, part.clone()) {
            return Some(answered);
        }
        let octets = &self.read[part];
        let (mut request, length) = head::plain(octets)?;
        let last = request.is_last();
        if last && length < octets.len() {
            return None;
        }
        let longest = reply::longest(&request);
        let asked = request.asked();
        let answer = self.service.answer_at_once(&view, visitor, &asked, longest)?;
        let start = self.written.len();
        let date_at = reply::push(&mut self.written, &answer, &request, self.service.cors, &self.date);
        if let Some(recent) = &mut self.recent
            && length == octets.len()
            && !asked.is_forwarded()
        {
            let given = || Given { octets: self.written[start..].into(), date_at, status: answer.status, last };
            recent.remember(visitor.ends.peer, octets, given);
        }
        Some((length, last))
    }

    /// Writes the answer to a request that is all of a part of what was read, when the client got it before.
    fn answer_again(&mut self, view: &View, visitor: &Visitor, part: Range<usize>) -> Option<(usize, bool)> {
        let recent = self.recent.as_mut()?;
        let length = part.len();
        if view.tree.is_empty() {
            // Then more than the view counts.
            return None;
        }
        let given = recent.answer(view.tree.version(), visitor.ends.peer, &self.read[part])?;
        let date = self.written.len() + given.date_at;
        self.written.extend_from_slice(&given.octets);
        self.written[date..date + self.date.len()].copy_from_slice(self.date.as_bytes());
        self.service.metrics.answered(given.status);
        Some((length, given.last))
    }
}

#[cfg(test)]
mod tests;
