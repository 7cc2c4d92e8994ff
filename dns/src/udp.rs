//! UDP: threads of their own, each with its own socket, that take and answer datagrams by the batch.
//!
//! Nothing here waits for anything but datagrams. Queries are answered on the thread that received them: without a queue
//! nothing can be lost in it, and a client that asks too much fills the buffer of the socket. What upstreams are needed for
//! becomes a task.

use std::io;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use platform::batch::{Ends, Incoming, Outgoing, Sleep, make_blocking, reply};
use platform::schedule;
use process::Parts;
use process::accept::{Failures, PAUSE};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::edns::UDP_ANSWER_MAX;
use crate::metrics::{Mine, Transport};
use crate::shared::{Batch, Handled, Later, Shared};

/// Longest query that is read; what is longer is thrown away.
const QUERY_MAX: usize = 4096;

/// Serves a socket until `stop`, on a thread of its own that is one of `parts`; replies that wait are tasks of `tasks`.
///
/// # Errors
///
/// When the system refuses a thread, or the socket is of no use to it.
pub(crate) fn serve(
    socket: UdpSocket,
    shared: Arc<Shared>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    parts: &mut Parts,
) -> io::Result<()> {
    make_blocking(&socket)?;
    let (sleep, alarm) = Sleep::new()?;
    let server = Server { socket: Arc::new(socket), shared, tasks: tasks.clone(), runtime: Handle::current(), sleep };
    let (stop, stopped) = (stop.clone(), stop.clone());
    tokio::spawn(async move {
        stopped.cancelled().await;
        drop(alarm);
    });
    parts.spawn_thread("dns-udp", move || server.serve(&stop))
}

struct Server {
    socket: Arc<UdpSocket>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    runtime: Handle,
    sleep: Sleep,
}

impl Server {
    fn serve(&self, stop: &CancellationToken) {
        // An answer does not wait while the process reads a file or draws a page on the same processor.
        if let Err(error) = schedule::shorten_slice() {
            debug!(%error, "answers wait their turn: no short slice");
        }
        // Questions to upstreams are spawned from here.
        let _runtime = self.runtime.enter();
        let mut queries = Incoming::new(QUERY_MAX);
        let mut replies = Outgoing::grouping(&self.socket, usize::from(UDP_ANSWER_MAX));
        let tally = self.shared.metrics.tally();
        let mut failures = Failures::of("receiving datagrams");
        while !stop.is_cancelled() {
            // What panics in single queries is caught there; nothing else may end the thread either.
            let batch = catch_unwind(AssertUnwindSafe(|| self.serve_batch(&mut queries, &mut replies, &tally)));
            match batch {
                Ok(Ok(0)) => self.sleep.wait(&self.socket),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    self.shared.metrics.receive_errors.inc();
                    // What a client did to earlier replies says nothing about this socket.
                    if failures.note(&error) {
                        thread::sleep(PAUSE);
                    }
                }
                Err(_) => drop(self.shared.metrics.panics.inc()),
            }
        }
    }

    /// Takes what has arrived, and answers it; returns how much that was.
    fn serve_batch(&self, queries: &mut Incoming, replies: &mut Outgoing, tally: &Mine) -> io::Result<usize> {
        let count = queries.receive(&self.socket)?;
        if count == 0 {
            return Ok(0);
        }
        let arrived = Instant::now();
        // How many are about names of others, and how many about ours.
        let mut answers = [0; 2];
        // Once for all of them; a publisher frees the view before, so that this does not happen here.
        let view = self.shared.load();
        let mut batch = Batch::of(&view, &self.shared.clients);
        for query in queries.iter() {
            // There are as many slots as datagrams.
            let Some(slot) = replies.slot() else { break };
            let from = (query.ends.peer, Transport::Udp);
            match self.shared.handle(&mut batch, query.bytes, from, tally, slot.room) {
                Handled::Ignore => {}
                Handled::Send { bytes, own } => {
                    answers[usize::from(own)] += 1;
                    slot.fill(bytes, Some(query.ends));
                }
                Handled::Wait(later) => self.answer_later(*later, query.ends),
            }
        }
        drop(view);
        let sent = replies.send(&self.socket);
        if let Some(error) = sent.error {
            debug!(%error, lost = sent.lost, "replies were not sent");
        }
        let time = arrived.elapsed();
        for (own, answers) in [(false, answers[0]), (true, answers[1])] {
            if answers > 0 {
                tally.took(own, answers, time);
            }
        }
        Ok(count)
    }

    /// Answers once upstreams did.
    fn answer_later(&self, later: Later, ends: Ends) {
        let (socket, shared) = (self.socket.clone(), self.shared.clone());
        self.tasks.spawn(async move {
            let bytes = later.reply(&shared).await;
            if bytes.is_empty() {
                return;
            }
            // The socket may block, but for no longer than the network card needs for a packet.
            if let Err(error) = reply(&socket, &bytes, ends) {
                debug!(%error, client = %ends.peer, "a reply was not sent");
            }
        });
    }
}
