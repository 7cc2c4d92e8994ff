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

use crate::server::{Handled, Shared, Transport};

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
        let mut replies = Vec::new();
        let mut more = true;
        while let Some(message) = take_message(unread) {
            *since = Instant::now();
            *begun = (!unread.is_empty()).then_some(*since);
            match self.shared.handle(&message, self.client, Transport::Tcp) {
                Handled::Ignore => {
                    more = false;
                    break;
                }
                Handled::Send(reply) => replies.extend_from_slice(&framed(&reply)),
                Handled::Wait(later) => {
                    let shared = self.shared.clone();
                    waiting.spawn(async move { later.reply(&shared).await });
                }
            }
            if replies.len() >= WRITE_AHEAD {
                self.write(&replies).await?;
                replies.clear();
                // Writing need not wait as long as the client reads; other clients wait all the same.
                tokio::task::yield_now().await;
            }
            if waiting.len() >= WAITING_MAX {
                break;
            }
        }
        if !replies.is_empty() {
            self.write(&replies).await?;
        }
        unread.reserve(READ_AHEAD);
        let announced = unread.first_chunk::<2>().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
        Ok(more && announced <= MESSAGE_OCTETS_MAX)
    }

    async fn write(&mut self, octets: &[u8]) -> io::Result<()> {
        match timeout(WRITE_MAX, self.stream.write_all(octets)).await {
            Ok(written) => written,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// The next whole message, when there is one.
fn take_message(unread: &mut BytesMut) -> Option<BytesMut> {
    let length = usize::from(u16::from_be_bytes(*unread.first_chunk::<2>()?));
    if unread.len() < 2 + length {
        return None;
    }
    unread.advance(2);
    Some(unread.split_to(length))
}

/// A message behind its length (RFC 1035 section 4.2.2).
fn framed(message: &[u8]) -> Vec<u8> {
    // No message is longer than its encoder allows.
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], message].concat()
}
