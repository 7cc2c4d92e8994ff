//! TCP, with or without TLS: many questions on one connection, answered as they become known (RFC 7766, RFC 7858).
//!
//! Every message has one deadline from its first byte to its last, every idle connection and every write has one,
//! and a client that does not read its responses is not read either.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::io::poll_read_buf;

use crate::connection_end::{self, Ends, IDLE_MAX, MESSAGE_BYTES_MAX, MESSAGE_MAX, SHED_AFTER, WRITE_MAX, pressed};
use crate::metrics::Transport;
use crate::shared::{Batch, Handled, Shared};
use crate::write::TCP_ANSWER_MAX;

/// Most questions of one connection that wait for upstreams; then it is not read until one is answered.
pub(crate) const WAITING_MAX: usize = 100;

/// Bytes of answers after which they are written before further questions are looked at, and others get their turn.
const WRITE_AHEAD: usize = 64 << 10;

/// Bytes of questions that are read at once.
const READ_AHEAD: usize = 64 << 10;

/// One connection.
pub(crate) struct Connection<S> {
    stream: S,
    from: (SocketAddr, Transport),
    shared: Arc<Shared>,
    /// What was read and not looked at yet.
    unread: Vec<u8>,
    /// Replies that wait for upstreams.
    waiting: JoinSet<Vec<u8>>,
}

thread_local! {
    /// Where connections read to and write from: none of them needs room of its own while it waits.
    static READ: RefCell<Vec<u8>> = RefCell::default();
    static WRITE: RefCell<Replies> = RefCell::default();
}

/// The result for the messages that were read.
struct Answered {
    /// What is to be written once the client takes more; it is empty when only TLS has not sent yet what it took.
    unwritten: Option<Vec<u8>>,
    /// Whether whole messages are left, which are to be looked at once the others are written.
    left: bool,
    /// Whether one was such that nothing after it can be trusted.
    spoilt: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// One of this client, over this transport; what is written has to leave at once (`TCP_NODELAY`).
    pub(crate) fn new(stream: S, from: (SocketAddr, Transport), shared: Arc<Shared>) -> Self {
        Self { stream, from, shared, unread: Vec::new(), waiting: JoinSet::new() }
    }

    /// Serves until the client has had enough, or took too long.
    pub(crate) async fn serve(mut self, ends: Ends) -> io::Result<()> {
        let mut stopped = pin!(ends.stop.cancelled());
        let mut pressed = pin!(pressed(ends.pressure));
        let mut ended = false;
        let mut since = Instant::now();
        let mut begun = None;
        // Reset only when it ends too late, or ended too early: mostly queries arrive sooner.
        let mut alarm = pin!(sleep_until(since + IDLE_MAX));
        loop {
            if ended && self.waiting.is_empty() {
                return within(WRITE_MAX, self.stream.shutdown()).await;
            }
            let deadline = begun.map_or(since + IDLE_MAX, |begun| begun + MESSAGE_MAX);
            if deadline < alarm.deadline() {
                alarm.as_mut().reset(deadline);
            }
            let reads = !ended && self.waiting.len() < WAITING_MAX;
            tokio::select! {
                Some(reply) = self.waiting.join_next(), if !self.waiting.is_empty() => {
                    since = Instant::now();
                    // One that panicked counted that itself.
                    if let Ok(reply) = reply {
                        self.write(&framed(&reply)).await?;
                    }
                    if self.waiting.len() + 1 < WAITING_MAX {
                        continue;
                    }
                }
                read = poll_fn(|context| poll_read(&mut self.stream, &mut self.unread, context)), if reads => ended = read? == 0,
                () = alarm.as_mut(), if begun.is_some() || self.waiting.is_empty() => {
                    if deadline <= Instant::now() {
                        return Ok(());
                    }
                    alarm.as_mut().reset(deadline);
                    continue;
                }
                () = stopped.as_mut(), if !ended => {
                    ended = true;
                    // What has arrived by now is answered.
                    let (stream, unread) = (&mut self.stream, &mut self.unread);
                    let read = poll_fn(|context| Poll::Ready(poll_read(stream, unread, context))).await;
                    if !matches!(read, Poll::Ready(Ok(1..))) {
                        continue;
                    }
                }
                receiver = pressed.as_mut(), if begun.is_none() && self.waiting.is_empty() => {
                    if since.elapsed() >= SHED_AFTER {
                        return Ok(());
                    }
                    pressed.set(connection_end::pressed(receiver));
                    continue;
                }
            }
            // Something new to look at: bytes, or a place for one more that waits.
            loop {
                let before = self.unread.len();
                let answered = self.answer();
                if self.unread.len() < before {
                    since = Instant::now();
                    begun = None;
                }
                if let Some(unwritten) = answered.unwritten {
                    self.write(&unwritten).await?;
                }
                if answered.spoilt {
                    self.unread = Vec::new();
                    ended = true;
                }
                if !answered.left {
                    break;
                }
                // Writing need not wait as long as the client reads; other clients wait all the same.
                tokio::task::yield_now().await;
            }
            if begun.is_none() && !self.unread.is_empty() {
                begun = Some(Instant::now());
            }
        }
    }

    /// Answers the whole messages that were read, and writes as much as the client takes.
    fn answer(&mut self) -> Answered {
        let arrived = std::time::Instant::now();
        WRITE.with_borrow_mut(|replies| {
            replies.clear();
            let view = self.shared.load();
            let tally = self.shared.metrics.tally();
            let mut batch = Batch::of(&view, &self.shared.clients);
            // How many are about names of others, and how many about ours.
            let mut counts = [0; 2];
            let (mut at, mut left, mut spoilt) = (0, false, false);
            while let Some(message) = next_message(&self.unread[at..]) {
                if replies.bytes().len() >= WRITE_AHEAD || self.waiting.len() >= WAITING_MAX {
                    left = self.waiting.len() < WAITING_MAX;
                    break;
                }
                match self.shared.handle(&mut batch, message, self.from, &tally, replies.room()) {
                    Handled::Ignore => {
                        spoilt = true;
                        break;
                    }
                    Handled::Send { bytes, own } => {
                        counts[usize::from(own)] += 1;
                        replies.fill(bytes);
                    }
                    Handled::Wait(later) => {
                        let shared = self.shared.clone();
                        self.waiting.spawn(async move { later.reply(&shared).await });
                    }
                }
                at += 2 + message.len();
            }
            drop(view);
            let unread = self.unread[at..].to_vec();
            give_back(std::mem::replace(&mut self.unread, unread));
            let announced = self.unread.first_chunk().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
            spoilt |= announced > MESSAGE_BYTES_MAX;
            let unwritten = self.try_write(replies.bytes());
            let time = arrived.elapsed();
            for (own, count) in [(false, counts[0]), (true, counts[1])] {
                if count > 0 {
                    tally.took(own, count, time);
                }
            }
            Answered { unwritten, left, spoilt }
        })
    }

    /// Writes what the client takes without waiting; returns the rest, unless everything has left.
    fn try_write(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if bytes.is_empty() {
            return None;
        }
        let (mut stream, mut context) = (Pin::new(&mut self.stream), Context::from_waker(Waker::noop()));
        // What goes wrong goes wrong again, where it can be waited for.
        let written = match stream.as_mut().poll_write(&mut context, bytes) {
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        let left = matches!(stream.poll_flush(&mut context), Poll::Ready(Ok(()))) && written == bytes.len();
        if left { None } else { Some(bytes[written..].to_vec()) }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(WRITE_MAX, async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        })
        .await
    }
}

/// Fails if it takes longer.
async fn within(limit: Duration, written: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    timeout(limit, written).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Reads what is there, behind what was there already; returns how many bytes.
fn poll_read(
    stream: &mut (impl AsyncRead + Unpin),
    unread: &mut Vec<u8>,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    // A connection has this for as long as it takes to answer what was read, which nearly always is until it waits again.
    let mut room = READ.take();
    room.clear();
    room.reserve(READ_AHEAD);
    room.extend_from_slice(unread);
    let read = poll_read_buf(Pin::new(stream), context, &mut room);
    if matches!(read, Poll::Ready(Ok(bytes)) if bytes > 0) {
        *unread = room;
    } else {
        give_back(room);
    }
    read
}

/// Returns a buffer, for other connections to read to.
fn give_back(room: Vec<u8>) {
    if room.capacity() >= READ_AHEAD {
        READ.set(room);
    }
}

/// Answers that leave together, each behind its length (RFC 1035 section 4.2.2).
#[derive(Debug, Default)]
struct Replies {
    /// Longer than what is written, so that answers can be written where they leave from.
    buffer: Vec<u8>,
    end: usize,
}

impl Replies {
    /// Room for the next one.
    fn room(&mut self) -> &mut [u8] {
        let start = self.end + 2;
        let needed = start + usize::from(TCP_ANSWER_MAX);
        if self.buffer.len() < needed {
            // Once for each thread: no more is ever written ahead.
            self.buffer.resize(needed.max(WRITE_AHEAD + 2 + usize::from(TCP_ANSWER_MAX)), 0);
        }
        &mut self.buffer[start..needed]
    }

    /// Lets so many bytes of the room leave.
    fn fill(&mut self, bytes: usize) {
        // No message is longer than its writer allows.
        let length = u16::try_from(bytes).unwrap_or(u16::MAX);
        self.buffer[self.end..self.end + 2].copy_from_slice(&length.to_be_bytes());
        self.end += 2 + usize::from(length);
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.end]
    }

    fn clear(&mut self) {
        self.end = 0;
    }
}

/// The next whole message, when there is one.
fn next_message(unread: &[u8]) -> Option<&[u8]> {
    let length = usize::from(u16::from_be_bytes(*unread.first_chunk::<2>()?));
    unread.get(2..2 + length)
}

/// A message behind its length (RFC 1035 section 4.2.2).
fn framed(message: &[u8]) -> Vec<u8> {
    // No message is longer than its encoder allows.
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], message].concat()
}
