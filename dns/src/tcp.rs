//! TCP: many questions on one connection, answered as they become known (RFC 7766).
//!
//! Every message has one deadline from its first octet to its last, every idle connection and every write has one,
//! and who does not read his answers is not read either.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::direct::{Limit, Written};
use crate::metrics::Counts;
use crate::server::{Handled, Shared, Transport};
use crate::wire::UDP_ANSWER_MAX;

/// How long a connection may stay idle (RFC 7766 section 6.2.3: a few seconds).
const IDLE_MAX: Duration = Duration::from_secs(10);

/// How long a message may take from its first octet to its last.
const MESSAGE_MAX: Duration = Duration::from_secs(5);

/// Longest message that is read: a query is far shorter, and who announces more has none.
const MESSAGE_OCTETS_MAX: usize = 4096;

/// How long writing may be stuck, since the client does not read.
const WRITE_MAX: Duration = Duration::from_secs(5);

/// Most connections at once: at some 10 KiB each they cost 100 MiB at worst.
const CONNECTIONS_MAX: usize = 10_000;

/// Most questions of one connection that wait for upstreams; then it is not read until one is answered.
const WAITING_MAX: usize = 100;

/// Octets of answers after which they are written before further questions are looked at, and others get their turn.
const WRITE_AHEAD: usize = 16 << 10;

/// Room for questions that is read into at once.
const READ_AHEAD: usize = 4096;

/// Pause after running out of descriptors, in which connections end.
const DESCRIPTORS_PAUSE: Duration = Duration::from_millis(50);

/// How long a connection was idle that is closed when others need its descriptor.
const SHED_AFTER: Duration = Duration::from_millis(200);

/// Accepts connections until `stop`. Each is a task of `tasks`.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken, tasks: TaskTracker) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Bumped when descriptors are short: idle connections then end.
    let (pressure, _) = watch::channel(());
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, client)) => {
                let Ok(permit) = room.clone().try_acquire_owned() else {
                    pressure.send_replace(());
                    drop(stream);
                    continue;
                };
                let connection = Connection {
                    counts: Counts::new(&shared.metrics, Transport::Tcp),
                    stream,
                    client,
                    shared: shared.clone(),
                    stop: stop.clone(),
                    pressure: pressure.subscribe(),
                };
                tasks.spawn(async move {
                    let _permit = permit;
                    if let Err(error) = connection.serve().await {
                        tracing::debug!(%error, %client, "a connection ended");
                    }
                });
            }
            Err(error) => {
                shared.metrics.receive_errors.inc();
                if platform::socket::is_out_of_descriptors(&error) {
                    pressure.send_replace(());
                    tokio::time::sleep(DESCRIPTORS_PAUSE).await;
                } else if !platform::socket::is_transient(&error) {
                    tracing::error!(%error, "cannot accept; trying again");
                    tokio::time::sleep(DESCRIPTORS_PAUSE).await;
                }
            }
        }
    }
}

struct Connection {
    stream: TcpStream,
    client: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    pressure: watch::Receiver<()>,
    counts: Counts,
}

impl Connection {
    /// Serves until the client has had enough, or took too long.
    async fn serve(mut self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        let mut unread = BytesMut::new();
        let mut waiting = JoinSet::new();
        let mut ended = false;
        let mut since = Instant::now();
        let mut begun = None;
        loop {
            let more = self.answer(&mut unread, &mut waiting, &mut begun, &mut since).await?;
            if !more {
                ended = true;
                unread.clear();
            }
            if ended && waiting.is_empty() {
                return self.stream.shutdown().await;
            }
            let deadline = match begun {
                Some(begun) => begun + MESSAGE_MAX,
                None => since + IDLE_MAX,
            };
            tokio::select! {
                Some(reply) = waiting.join_next(), if !waiting.is_empty() => {
                    since = Instant::now();
                    // One that panicked counted that itself.
                    if let Ok(reply) = reply {
                        self.write(&framed(&reply)).await?;
                    }
                }
                read = self.stream.read_buf(&mut unread), if !ended && waiting.len() < WAITING_MAX => {
                    ended = read? == 0;
                    begun = begun.or_else(|| (!unread.is_empty()).then(Instant::now));
                }
                () = sleep_until(deadline), if begun.is_some() || waiting.is_empty() => return Ok(()),
                () = self.stop.cancelled(), if !ended => ended = true,
                Ok(()) = self.pressure.changed(), if begun.is_none() && waiting.is_empty() => {
                    if since.elapsed() >= SHED_AFTER {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Answers the whole messages that were read; `false` when one was such that nothing after it can be trusted.
    async fn answer(
        &mut self,
        unread: &mut BytesMut,
        waiting: &mut JoinSet<Vec<u8>>,
        begun: &mut Option<Instant>,
        since: &mut Instant,
    ) -> io::Result<bool> {
        let mut replies = Replies::default();
        let mut more = true;
        while let Some(message) = next_message(unread) {
            match self.answer_directly(message, replies.room()) {
                Some(written) => {
                    self.counts.answered(written.code);
                    replies.fill(written.octets);
                }
                None => match self.shared.handle(message, self.client, Transport::Tcp) {
                    Handled::Ignore => {
                        more = false;
                        break;
                    }
                    Handled::Send(reply) => replies.push(&reply),
                    Handled::Wait(later) => {
                        let shared = self.shared.clone();
                        waiting.spawn(async move { later.reply(&shared).await });
                    }
                },
            }
            let length = message.len();
            unread.advance(2 + length);
            *since = Instant::now();
            *begun = (!unread.is_empty()).then_some(*since);
            if replies.octets().len() >= WRITE_AHEAD {
                self.write(replies.octets()).await?;
                replies.clear();
                // Writing need not wait as long as the client reads; other clients wait all the same.
                tokio::task::yield_now().await;
            }
            if waiting.len() >= WAITING_MAX {
                break;
            }
        }
        if !replies.octets().is_empty() {
            self.write(replies.octets()).await?;
        }
        self.counts.flush();
        unread.reserve(READ_AHEAD);
        let announced = unread.first_chunk::<2>().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
        Ok(more && announced <= MESSAGE_OCTETS_MAX)
    }

    fn answer_directly(&self, message: &[u8], room: &mut [u8]) -> Option<Written> {
        self.shared.answer_directly(&self.shared.load(), message, self.client.ip(), room, Limit::Room)
    }

    async fn write(&mut self, octets: &[u8]) -> io::Result<()> {
        match timeout(WRITE_MAX, self.stream.write_all(octets)).await {
            Ok(written) => written,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
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
        let needed = start + usize::from(UDP_ANSWER_MAX);
        if self.buffer.len() < needed {
            self.buffer.resize(2 * needed, 0);
        }
        &mut self.buffer[start..needed]
    }

    /// Lets so many octets of the room leave.
    fn fill(&mut self, octets: usize) {
        // No message is longer than its writer allows.
        let length = u16::try_from(octets).unwrap_or(u16::MAX);
        self.buffer[self.end..self.end + 2].copy_from_slice(&length.to_be_bytes());
        self.end += 2 + usize::from(length);
    }

    /// Lets this one leave.
    fn push(&mut self, reply: &[u8]) {
        let whole = framed(reply);
        self.buffer.truncate(self.end);
        self.buffer.extend_from_slice(&whole);
        self.end += whole.len();
    }

    fn octets(&self) -> &[u8] {
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
