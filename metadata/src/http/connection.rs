//! One connection: its requests are read and answered in order, until the client, a limit or the service ends it.
//!
//! Requests that come with a new connection are answered by the task that accepts it, before the runtime knows the socket:
//! most clients send one request and close. A connection that stays open becomes a task. One that rests or waits has no buffers.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream as StdStream;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Buf;
use platform::socket::send_last;
use platform::stop::DRAIN_LIMIT;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use crate::config::Cors;
use crate::http::changes::Line;
use crate::http::head::{Heads, Refused, Terms};
use crate::http::limits::Unread;
use crate::http::reply::{self, BodyFraming, ResponseHead};
use crate::http::resting::Rest;
use crate::http::service::{Reply, Service, Visitor};
use crate::metrics::Counted;
use crate::respond::{Answer, Header, Outcome, SIZED_MAX};
use crate::view::View;

/// How long a head may take from its first byte to its last.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a service that stops waits for the rest of a head: half a head is no request under way, and nothing listens
/// meanwhile.
pub(crate) const STOPPING_HEAD_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a service that stops goes on sending to a client that does not read: a little less than the process waits.
pub(crate) const STOPPING_SEND_TIME_MAX: Duration = DRAIN_LIMIT.saturating_sub(Duration::from_secs(1));

/// How long a client may take to receive what does not fit into the buffers of the system.
const SEND_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a client may take to receive a body of several pieces, however often it reads some of it; Berth's own followers
/// give up after as long.
const BODY_TIME_MAX: Duration = Duration::from_mins(1);

/// How long the rest of a request is read and thrown away, so that its response is not lost with it.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);

/// How much of it.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// How much is read at once: usual requests have some hundred bytes, and allocators are quick to give buffers of this size.
const READ_BYTES: usize = 1 << 10;

/// About how much is sent at once, of responses to requests that came together.
const SEND_BYTES: usize = 64 << 10;

/// Longest request and response together that are stored in case the client asks the same again.
const REPEATED_BYTES_MAX: usize = 1 << 10;

/// Length of a date, as RFC 9110 (section 5.6.7) has it.
const DATE_BYTES: usize = 29;

/// Room for a usual response.
const RESPONSE_BYTES: usize = 512;

/// A connection that was accepted and let in.
#[derive(Debug)]
pub(crate) struct Connection {
    service: Arc<Service>,
    visitor: Visitor,
    /// Read, but not answered yet.
    heads: Heads,
    /// Written, but not sent yet.
    unsent: Vec<u8>,
    /// The last response, when the same request would get it again.
    last: Option<Response>,
    /// Since when the rest of a head is waited for.
    head_since: Option<Instant>,
    /// That it may have to go between two requests.
    rest: Rest,
    /// Whether the client has ended its side: what it said before is answered all the same.
    half_closed: bool,
    _counted: Counted,
}

/// A response that depends on nothing but the view, the client and the request.
#[derive(Debug)]
struct Response {
    view: Weak<View>,
    request: Box<[u8]>,
    bytes: Box<[u8]>,
    /// Where the date stands.
    date_at: usize,
    status: u16,
}

/// What is next on a connection, when everything written has been sent.
#[derive(Debug)]
enum Next {
    /// Everything that was read has been answered.
    Read,
    /// There may be more to answer.
    Answer,
    /// A response that takes time.
    Respond(Terms, Outcome<'static>),
    /// The connection ends; something that is not read may be left.
    End { unread: bool },
}

impl Response {
    /// The response with these bytes, of which the last are the body; `None` when it is too long, or more than the view
    /// counts because there are no data yet.
    fn new(view: Weak<View>, request: &[u8], bytes: &[u8], body: usize, status: u16) -> Option<Self> {
        let is_short = body <= SIZED_MAX && request.len() + bytes.len() <= REPEATED_BYTES_MAX;
        let has_data = view.upgrade().is_some_and(|view| !view.tree.is_empty());
        // The date is the last header.
        let date_at = bytes.len().checked_sub(body + DATE_BYTES + b"\r\n\r\n".len())?;
        (is_short && has_data).then(|| Self { view, request: request.into(), bytes: bytes.into(), date_at, status })
    }
}

impl Connection {
    pub(crate) fn new(service: Arc<Service>, visitor: Visitor, counted: Counted) -> Self {
        let (heads, unsent) = (Heads::default(), Vec::new());
        Self {
            service,
            visitor,
            heads,
            unsent,
            last: None,
            head_since: None,
            rest: Rest::default(),
            half_closed: false,
            _counted: counted,
        }
    }

    /// Serves a new connection; goes on in a task when it stays open or something has to be waited for.
    pub(crate) fn begin(mut self, stream: StdStream, tasks: &TaskTracker) {
        let Some(next) = self.serve_at_once(&stream) else { return };
        // Fails only for a connection that is gone already.
        if let Ok(stream) = TcpStream::from_std(stream) {
            tasks.spawn(self.run(stream, next));
        }
    }

    /// Answers what has come with a new connection; `None` when the connection is over with that.
    fn serve_at_once(&mut self, mut stream: &StdStream) -> Option<Next> {
        let waits = |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        let buffer = self.heads.buffer();
        buffer.resize(READ_BYTES, 0);
        let read = stream.read(buffer);
        buffer.truncate(*read.as_ref().unwrap_or(&0));
        let next = match read {
            Ok(0) => return None,
            Ok(_) => self.answer(),
            Err(error) if waits(&error) => Next::Read,
            Err(_) => return None,
        };
        let over = matches!(next, Next::End { unread: false });
        let sent = match over {
            _ if self.unsent.is_empty() => Ok(0),
            // What is sent goes out with the end of the connection, which comes at once.
            true => send_last(stream, &self.unsent),
            false => stream.write(&self.unsent),
        };
        match sent {
            Ok(sent) if sent == self.unsent.len() => self.unsent = Vec::new(),
            Ok(sent) => drop(self.unsent.drain(..sent)),
            Err(error) if waits(&error) => {}
            Err(_) => return None,
        }
        (!over || !self.unsent.is_empty()).then_some(next)
    }

    async fn run(mut self, mut stream: TcpStream, next: Next) {
        // An error is the client's, or ends what the client ended.
        let _ = self.serve(&mut stream, next).await;
    }

    /// Serves the connection to its end.
    async fn serve(&mut self, stream: &mut TcpStream, mut next: Next) -> io::Result<()> {
        // Fails only for a connection that is gone already.
        let _ = stream.set_nodelay(true);
        loop {
            self.send(stream).await?;
            next = match next {
                Next::Read => self.read(stream).await?,
                Next::Answer => self.answer(),
                Next::Respond(terms, outcome) => Box::pin(self.respond(stream, terms, outcome)).await?,
                Next::End { unread: false } => return Ok(()),
                Next::End { unread: true } => return Box::pin(self.linger(stream)).await,
            };
        }
    }

    /// Answers requests that were read, up to one whose response takes time.
    fn answer(&mut self) -> Next {
        loop {
            if self.unsent.len() > SEND_BYTES {
                return Next::Answer;
            }
            if self.answer_again() {
                return Next::Read;
            }
            let (length, written) = (self.heads.left().len(), self.unsent.len());
            let view = Arc::downgrade(&self.service.views.load());
            let (terms, outcome, is_forwarded) = match self.heads.take() {
                None => return Next::Read,
                Some(Ok(head)) => {
                    let (terms, asked) = (head.terms, head.asked());
                    (terms, self.service.outcome(&self.visitor, &asked), asked.is_forwarded())
                }
                Some(Err(Refused(status))) => (Terms::REFUSED, Outcome::Answer(Answer::refusal(status)), false),
            };
            self.head_since = None;
            let Outcome::Answer(answer) = outcome else { return Next::Respond(terms, outcome) };
            if let end @ Next::End { .. } = self.push(&answer, terms) {
                return end;
            }
            // Most clients that keep a connection ask the same again and again.
            if self.heads.is_empty() && !is_forwarded && self.service.is_open() {
                let body = if terms.head_only { 0 } else { answer.body.len() };
                self.last = Response::new(view, self.heads.taken(length), &self.unsent[written..], body, answer.status);
            }
        }
    }

    /// Answers what was read when it is the request that was answered last, and the view is the same.
    fn answer_again(&mut self) -> bool {
        let Some(last) = &self.last else { return false };
        let is_same = *last.request == *self.heads.left()
            && std::ptr::eq(last.view.as_ptr(), Arc::as_ptr(&self.service.views.load()))
            && !self.service.is_ending();
        if is_same {
            let start = self.unsent.len();
            self.unsent.extend_from_slice(&last.bytes);
            let date_at = start + last.date_at;
            with_date(|date| self.unsent[date_at..date_at + date.len()].copy_from_slice(date.as_bytes()));
            self.service.metrics.answered(last.status);
            (self.heads, self.head_since) = (Heads::default(), None);
        }
        is_same
    }

    /// Writes the response that carries an answer.
    fn push(&mut self, answer: &Answer, terms: Terms) -> Next {
        self.service.metrics.answered(answer.status);
        self.unsent.reserve(RESPONSE_BYTES);
        let terms = self.closing(terms);
        let last = with_date(|date| reply::push(&mut self.unsent, answer, terms, self.service.cors, date));
        self.after(terms, last)
    }

    /// The connections of a service that stops, or whose place another one takes, end with the next response.
    fn closing(&self, terms: Terms) -> Terms {
        Terms { last: terms.last || self.service.is_ending(), ..terms }
    }

    /// What is next after a response.
    fn after(&self, terms: Terms, last: bool) -> Next {
        let unread = terms.has_body || !self.heads.is_empty();
        if last { Next::End { unread: unread && !self.half_closed } } else { Next::Answer }
    }

    /// Reads what comes next, and answers it.
    async fn read(&mut self, stream: &mut TcpStream) -> io::Result<Next> {
        let read = if self.half_closed {
            0
        } else if self.heads.is_empty() {
            self.rest(stream).await?
        } else {
            let until = *self.head_since.get_or_insert_with(Instant::now) + HEAD_TIME_MAX;
            let stopping = async {
                self.service.stop.cancelled().await;
                sleep(STOPPING_HEAD_TIME_MAX).await;
            };
            let read = tokio::select! {
                biased;
                read = timeout_at(until, stream.read_buf(self.heads.buffer_for(READ_BYTES))) => read,
                () = stopping => return Ok(Next::End { unread: false }),
            };
            match read {
                Ok(read) => read?,
                Err(_) => return Ok(self.push(&Answer::refusal(408), Terms::REFUSED)),
            }
        };
        if read == 0 {
            return Ok(Next::End { unread: false });
        }
        if read >= READ_BYTES {
            // A client that always has more to say must not keep others waiting.
            yield_now().await;
        }
        Ok(self.answer())
    }

    /// Waits for the next request; returns 0 when the connection ends, also because it has to.
    async fn rest(&mut self, stream: &mut TcpStream) -> io::Result<usize> {
        let Self { heads, service, rest, .. } = self;
        let mut rests = false;
        let read = poll_fn(|cx| {
            let read = poll_read(heads, stream, cx);
            if read.is_ready() {
                return read;
            }
            if !rests {
                rest.begin(&service.evictions, service.started.elapsed(), cx.waker());
                rests = true;
            }
            if rest.is_over() { Poll::Ready(Ok(0)) } else { Poll::Pending }
        })
        .await;
        if rests {
            rest.end();
        }
        read
    }

    /// Waits for what a request comes to, and sends it.
    async fn respond(&mut self, stream: &mut TcpStream, terms: Terms, outcome: Outcome<'static>) -> io::Result<Next> {
        let Self { service, visitor, heads, half_closed, .. } = self;
        let reply = service.reply(visitor, outcome);
        let reply = while_reading(heads, half_closed, visitor, stream, pin!(reply)).await?;
        let terms = self.closing(terms);
        let framing = BodyFraming::of(terms);
        let last = match reply {
            Reply::Answer(answer) => return Ok(self.push(&answer, terms)),
            Reply::Pieces(pieces, _unread) => {
                let until = Instant::now() + BODY_TIME_MAX;
                let beginning = pieces.first().map_or(&b""[..], |piece| &piece[..piece.len().min(SIZED_MAX)]);
                let last = self.push_head(terms, |cors, each| Answer::each_header_of_value(beginning, cors, each));
                for piece in &pieces {
                    self.send_piece(stream, framing, piece, until).await?;
                }
                last
            }
            Reply::Changes(changes) => {
                let last = self.push_head(terms, |_, each| each(Header::ContentType, "application/x-ndjson"));
                self.send(stream).await?;
                self.send_changes(stream, framing, changes).await?;
                last || self.service.evictions.are_closed()
            }
        };
        framing.push_end(&mut self.unsent);
        Ok(self.after(terms, last))
    }

    /// Writes the head of a response of several pieces with these headers; returns whether the connection ends with it.
    fn push_head(&mut self, terms: Terms, headers: impl FnOnce(Cors, &mut dyn FnMut(Header, &str))) -> bool {
        self.service.metrics.answered(200);
        let mut head = ResponseHead::begin(&mut self.unsent, 200, terms);
        headers(self.service.cors, &mut |header: Header, value: &str| head.header(header, value));
        with_date(|date| head.end(None, date))
    }

    /// Sends changes as they come.
    async fn send_changes(
        &mut self,
        stream: &mut TcpStream,
        framing: BodyFraming,
        mut changes: Receiver<Line>,
    ) -> io::Result<()> {
        if framing == BodyFraming::HeadOnly {
            return Ok(());
        }
        let mut left = BODY_TIME_MAX;
        loop {
            let Self { visitor, heads, half_closed, .. } = self;
            let line = while_reading(heads, half_closed, visitor, stream, pin!(changes.recv())).await?;
            let Some(line) = line else { return Ok(()) };
            if line.begins {
                left = BODY_TIME_MAX;
            }
            // What the service takes to write the next line is not the client's time.
            let begun = Instant::now();
            self.send_piece(stream, framing, &line.bytes, begun + left).await?;
            left = left.saturating_sub(begun.elapsed());
        }
    }

    /// Sends a piece of a body, behind what is still to be sent.
    async fn send_piece(
        &mut self,
        stream: &mut TcpStream,
        framing: BodyFraming,
        piece: &[u8],
        until: Instant,
    ) -> io::Result<()> {
        if piece.is_empty() || framing == BodyFraming::HeadOnly {
            return Ok(());
        }
        let behind = framing.push_piece_head(&mut self.unsent, piece.len());
        let mut whole = Buf::chain(Buf::chain(&self.unsent[..], piece), behind);
        let sent = timeout_at(until, stream.write_all_buf(&mut whole));
        let sent = self.until_stopped(sent).await;
        self.unsent.clear();
        sent.map_or_else(|| reset(stream), |sent| sent?)
    }

    /// Sends what was written.
    async fn send(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let unsent = std::mem::take(&mut self.unsent);
        let sent = match stream.try_write(&unsent) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            sent => sent?,
        };
        if sent < unsent.len() {
            let (mut unread, left) =
                (Unread::new(&self.service.usage, self.visitor.share.as_ref()), unsent.len() - sent);
            // Each connection may have a usual buffer. A client with too much unread data beyond it is disconnected: it would not read
            // an error either.
            if left > SEND_BYTES {
                unread.add(left).map_err(|_| ErrorKind::QuotaExceeded)?;
            }
            let sent = timeout(SEND_TIME_MAX, stream.write_all(&unsent[sent..]));
            return self.until_stopped(sent).await.map_or_else(|| reset(stream), |sent| sent?);
        }
        Ok(())
    }

    /// What `send` returns; `None` when the service has been stopping for too long.
    async fn until_stopped<T>(&self, send: impl Future<Output = T>) -> Option<T> {
        let stopped = async {
            self.service.stop.cancelled().await;
            sleep(STOPPING_SEND_TIME_MAX).await;
        };
        tokio::select! {
            biased;
            result = send => Some(result),
            () = stopped => None,
        }
    }

    /// Ends the connection without losing the last response: closing with bytes unread would reset it.
    async fn linger(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        stream.shutdown().await?;
        let discard = async {
            let mut discarded = 0;
            while discarded <= LINGER_BYTES_MAX {
                self.heads = Heads::default();
                match stream.read_buf(self.heads.buffer_for(READ_BYTES)).await? {
                    0 => break,
                    read => discarded += read,
                }
            }
            Ok(())
        };
        timeout(LINGER_TIME_MAX, discard).await?
    }
}

/// Ends a connection although its client has not read everything. The client learns it at once: the service's address may be
/// taken away next, and then nothing reaches the client any more.
fn reset(stream: &TcpStream) -> io::Result<()> {
    stream.set_zero_linger()?;
    Err(ErrorKind::TimedOut.into())
}

/// Waits for what `work` gives, and meanwhile reads on, so that it is noticed when the client is gone or ends its side.
async fn while_reading<T>(
    heads: &mut Heads,
    half_closed: &mut bool,
    visitor: &Visitor,
    stream: &mut TcpStream,
    mut work: Pin<&mut impl Future<Output = T>>,
) -> io::Result<T> {
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            if *half_closed || heads.is_full() {
                return Poll::Pending;
            }
            if ready!(poll_read(heads, stream, cx))? == 0 {
                *half_closed = true;
                visitor.ended.cancel();
            }
        }
    })
    .await
}

/// Reads what there is; there is a buffer for it only when there is something.
fn poll_read(heads: &mut Heads, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    ready!(stream.poll_read_ready(cx))?;
    pin!(stream.read_buf(heads.buffer_for(READ_BYTES))).poll(cx)
}

/// Gives the date of this second, as responses bear it.
fn with_date<T>(write: impl FnOnce(&str) -> T) -> T {
    thread_local! {
        static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    DATE.with_borrow_mut(|(written, date)| {
        if *written != second || date.is_empty() {
            (*written, *date) = (second, httpdate::fmt_http_date(now));
        }
        write(date)
    })
}

#[cfg(test)]
mod tests;
