//! The stream between a client and hyper: heads are checked on the way in, and nothing may take for ever.
//!
//! hyper gets one head at a time, the next one when it has begun to answer.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::head::{Head, Heads};
use crate::resting::Rest;
use crate::service::Service;

/// How long a head may take from its first octet to its last.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// How long an answer may take from the moment when the client first does not take more of it.
pub(crate) const SEND_TIME_MAX: Duration = Duration::from_secs(30);

/// How long the rest of a request is read and thrown away, so that its answer is not lost with it.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);

/// How much of it.
const LINGER_OCTETS_MAX: usize = 1 << 20;

/// How much is read at once.
const READ_OCTETS: usize = 2 << 10;

/// The stream of one connection.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says another thing about the stream, in any combination")]
pub(crate) struct Wire {
    stream: TcpStream,
    heads: Heads,
    /// The head that hyper is reading, and how much of it was read.
    handed: (Vec<u8>, usize),
    /// Whether a head was handed over that is not being answered yet.
    in_flight: bool,
    /// Whether nothing more is handed over.
    ended: bool,
    /// Whether the client has ended its side: what it said before is answered all the same.
    half_closed: bool,
    /// Says the same to what waits on behalf of the client.
    client_ended: CancellationToken,
    /// Whether hyper has written something that it did not flush.
    unflushed: bool,
    /// How long the connection may rest between two requests.
    idle_max: Duration,
    /// Since when the connection rests, or the head is being read.
    since: Instant,
    /// Since when the client takes no more of an answer.
    blocked: Option<Instant>,
    /// What is left to read and throw away after the last answer.
    linger: Option<(Instant, usize)>,
    timer: Option<Pin<Box<Sleep>>>,
    service: Arc<Service>,
    /// How many answers are being sent whose bodies did not end yet.
    sending: Arc<AtomicUsize>,
    /// While it rests, so that it can be closed when others need the room.
    rest: Option<Rest>,
}

/// An answer that is being sent, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Sending(Arc<AtomicUsize>);

impl Sending {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Wire {
    /// The stream of a connection of which this was read already.
    ///
    /// `client_ended` is cancelled when the client ends its side.
    pub(crate) fn new(
        stream: TcpStream,
        read: Vec<u8>,
        client_ended: CancellationToken,
        service: &Arc<Service>,
    ) -> Self {
        let mut heads = Heads::default();
        *heads.buffer() = read;
        Self {
            stream,
            heads,
            handed: (Vec::new(), 0),
            in_flight: false,
            ended: false,
            half_closed: false,
            client_ended,
            unflushed: false,
            idle_max: Duration::from_secs(service.limits.idle.into()),
            since: Instant::now(),
            blocked: None,
            linger: None,
            timer: None,
            service: service.clone(),
            sending: Arc::default(),
            rest: None,
        }
    }

    /// Counts the answers that are being sent; see [`Sending`].
    pub(crate) fn sending(&self) -> Arc<AtomicUsize> {
        self.sending.clone()
    }

    /// Whether an answer is due or on its way: the end of the connection would make hyper give up on it.
    fn is_answering(&self) -> bool {
        self.in_flight || self.unflushed || self.sending.load(Ordering::Relaxed) > 0
    }

    /// Whether it waits for a request.
    fn rests(&self) -> bool {
        !self.in_flight
            && !self.ended
            && !self.half_closed
            && self.heads.is_empty()
            && self.sending.load(Ordering::Relaxed) == 0
    }

    fn hand_over(&mut self, head: Head) {
        self.handed = (head.octets, 0);
        self.ended = head.last;
        self.in_flight = true;
    }

    /// Whether the connection rests and has to go; it is woken when it has to later.
    fn is_evicted(&mut self, cx: &Context<'_>) -> bool {
        if !self.rests() {
            return false;
        }
        let since = self.since.saturating_duration_since(self.service.started);
        let rest = || self.service.evictions.rest(since, cx.waker().clone());
        self.rest.get_or_insert_with(rest).is_over()
    }

    /// Ready when `deadline` has passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        // Mostly the deadline moves on before it comes, so the timer follows only when it fires.
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }

    /// Reads what there is; ready with 0 at the end.
    fn poll_octets(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let buffer = self.heads.buffer();
            buffer.reserve(READ_OCTETS);
            match self.stream.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Never ready but with an error: notices that the client ends its side while the last answer is due.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.half_closed && self.heads.buffer().len() < READ_OCTETS {
            if ready!(self.poll_octets(cx))? == 0 {
                self.half_closed = true;
                self.client_ended.cancel();
            }
        }
        Poll::Pending
    }

    /// Fails when the client has taken too little for too long.
    fn poll_blocked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let since = *self.blocked.get_or_insert_with(Instant::now);
        ready!(self.poll_deadline(cx, since + SEND_TIME_MAX));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn written(&mut self, cx: &Context<'_>, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        self.unflushed = true;
        if self.in_flight {
            self.in_flight = false;
            self.since = Instant::now();
            if self.ended || !self.heads.is_empty() {
                // hyper was told to wait for the socket, which has nothing to tell any more.
                cx.waker().wake_by_ref();
            }
        }
        Poll::Ready(result)
    }
}

impl Read for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut cursor: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        loop {
            let (octets, read) = &mut wire.handed;
            if *read < octets.len() {
                let part = &octets[*read..];
                let part = &part[..part.len().min(cursor.remaining())];
                cursor.put_slice(part);
                *read += part.len();
                if *read == octets.len() {
                    wire.handed = (Vec::new(), 0);
                }
                return Poll::Ready(Ok(()));
            }
            if wire.ended {
                // While an answer is due the end would make hyper give up on it.
                return if wire.in_flight { wire.poll_end(cx) } else { Poll::Ready(Ok(())) };
            }
            if !wire.in_flight
                && let Some(head) = wire.heads.take()
            {
                wire.hand_over(head);
                continue;
            }
            if wire.half_closed {
                // Flushing wakes this up.
                return if wire.is_answering() { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
            if wire.in_flight && wire.heads.is_full() {
                return Poll::Pending;
            }
            let first = wire.heads.is_empty();
            let octets = wire.poll_octets(cx);
            if octets.is_ready() {
                wire.rest = None;
            }
            match octets {
                Poll::Ready(Ok(0)) => {
                    wire.half_closed = true;
                    wire.client_ended.cancel();
                }
                Poll::Ready(Ok(_)) if first => wire.since = Instant::now(),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if wire.in_flight || wire.sending.load(Ordering::Relaxed) > 0 => {
                    // hyper asks before it answers, and then not again until it is woken: at the latest by this.
                    let _ = wire.poll_deadline(cx, Instant::now() + wire.idle_max);
                    return Poll::Pending;
                }
                Poll::Pending => {
                    let rests = wire.heads.is_empty();
                    let most = if rests { wire.idle_max } else { HEAD_TIME_MAX };
                    if !wire.is_evicted(cx) {
                        ready!(wire.poll_deadline(cx, wire.since + most));
                    }
                    wire.rest = None;
                    if rests {
                        wire.ended = true;
                    } else {
                        wire.hand_over(Head::refusal(408));
                    }
                }
            }
        }
    }
}

impl Write for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        match Pin::new(&mut wire.stream).poll_write(cx, octets) {
            Poll::Ready(result) => wire.written(cx, result),
            Poll::Pending => wire.poll_blocked(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        match Pin::new(&mut wire.stream).poll_write_vectored(cx, parts) {
            Poll::Ready(result) => wire.written(cx, result),
            Poll::Pending => wire.poll_blocked(cx),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        // hyper flushes when the kernel has taken everything; it may have asked for the next request before.
        wire.blocked = None;
        if std::mem::take(&mut wire.unflushed) && wire.half_closed {
            // hyper is told of the end when it has nothing to send any more.
            cx.waker().wake_by_ref();
        }
        if wire.rests() && wire.rest.is_none() {
            wire.since = Instant::now();
            wire.is_evicted(cx);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        if wire.linger.is_none() {
            ready!(Pin::new(&mut wire.stream).poll_shutdown(cx))?;
            wire.linger = Some((Instant::now() + LINGER_TIME_MAX, 0));
        }
        if wire.half_closed || !wire.ended && wire.heads.is_empty() {
            return Poll::Ready(Ok(()));
        }
        // Closing with octets unread would reset the connection, and the client lose the answer.
        while let Some((until, discarded)) = wire.linger {
            wire.heads.buffer().clear();
            match wire.poll_octets(cx) {
                Poll::Ready(Ok(length)) if length > 0 && discarded + length <= LINGER_OCTETS_MAX => {
                    wire.linger = Some((until, discarded + length));
                }
                Poll::Ready(_) => break,
                Poll::Pending => {
                    ready!(wire.poll_deadline(cx, until));
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
