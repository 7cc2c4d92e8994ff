//! UDP: threads of their own, each with its own socket, that take and answer datagrams by the batch.
//!
//! Nothing here waits for anything but datagrams. A usual question is answered straight from the zone; any other by the
//! general path, on the same thread, since that does not wait either: without a queue between the two nothing can be lost
//! there, and whoever asks too much fills the buffer of the socket. What upstreams are needed for becomes a task.

use std::io;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use platform::batch::{DATAGRAMS, Datagram, Incoming, Outgoing, fetch, make_blocking, reply};
use platform::memory::about_to_fill;
use process::Parts;
use process::accept::{Failures, PAUSE};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::direct::Limit;
use crate::metrics::Transport;
use crate::recent::{Recent, Spot};
use crate::server::{Batch, Handled, Shared, Worker};
use crate::wire::UDP_ANSWER_MAX;

/// Longest query that is read; what is longer is thrown away.
const QUERY_MAX: usize = 4096;

/// Fewest datagrams that are looked at twice: of fewer the first answer is needed before memory could be ahead.
const PREPARED_MIN: usize = 4;

/// Serves one of so many sockets until `stop`, on a thread of its own that is one of `parts`; replies that wait are tasks
/// of `tasks`.
///
/// # Errors
///
/// When the system refuses a thread, or the socket is of no use to it.
pub(crate) fn serve(
    socket: UdpSocket,
    sockets: usize,
    shared: Arc<Shared>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    parts: &mut Parts,
) -> io::Result<()> {
    make_blocking(&socket)?;
    let server = Server { socket: Arc::new(socket), shared, tasks: tasks.clone(), runtime: Handle::current() };
    let recent = Recent::new(sockets, about_to_fill);
    let stop = stop.clone();
    parts.spawn_thread("dns-udp", move || server.serve(&stop, recent))
}

struct Server {
    socket: Arc<UdpSocket>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    runtime: Handle,
}

impl Server {
    fn serve(&self, stop: &CancellationToken, recent: Recent) {
        // Questions to upstreams are spawned from here.
        let _runtime = self.runtime.enter();
        let mut queries = Incoming::new(QUERY_MAX);
        let mut replies = Outgoing::grouping(&self.socket, usize::from(UDP_ANSWER_MAX));
        let mut spots = Vec::with_capacity(DATAGRAMS);
        let mut worker = Worker { tally: self.shared.metrics.tally(), recent: Some(recent) };
        let mut failures = Failures::of("receiving datagrams");
        while !stop.is_cancelled() {
            // What panics in single questions is caught there; nothing else may end the thread either.
            let batch = catch_unwind(AssertUnwindSafe(|| {
                self.serve_batch(&mut queries, &mut replies, &mut worker, &mut spots)
            }));
            match batch {
                Ok(Ok(())) => {}
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

    /// Takes what has arrived, and answers it.
    fn serve_batch(
        &self,
        queries: &mut Incoming,
        replies: &mut Outgoing,
        worker: &mut Worker,
        spots: &mut Vec<Spot>,
    ) -> io::Result<()> {
        if queries.receive(&self.socket)? == 0 {
            return Ok(());
        }
        let arrived = Instant::now();
        // How many are about names of others, and how many about ours.
        let mut answers = [0; 2];
        // Once for all of them; whoever publishes a view frees the one before, so that this does not happen here.
        let view = self.shared.load();
        worker.serve(&view, &self.shared);
        spots.clear();
        if let Some(recent) = worker.recent.as_ref().filter(|_| queries.iter().len() >= PREPARED_MIN) {
            spots.extend(queries.iter().map(|query| recent.prepare(query.octets, fetch)));
        }
        let mut spots = spots.iter().copied();
        let mut batch = Batch::of(&view);
        for query in queries.iter() {
            // There are as many slots as datagrams.
            let Some(slot) = replies.slot() else { break };
            let (octets, from) = (query.octets, (query.ends.peer, spots.next()));
            match self.shared.answer_directly(&mut batch, octets, from, worker, slot.room, Limit::Datagram) {
                Some(written) => {
                    answers[usize::from(written.own)] += 1;
                    slot.fill(written.octets, Some(query.ends));
                }
                None => self.answer_generally(query, replies, &mut answers),
            }
        }
        drop(view);
        let sent = replies.send(&self.socket);
        if let Some(error) = sent.error {
            tracing::debug!(%error, lost = sent.lost, "replies were not sent");
        }
        let time = arrived.elapsed();
        for (own, answers) in [(false, answers[0]), (true, answers[1])] {
            if answers > 0 {
                worker.tally.took(own, answers, time);
            }
        }
        Ok(())
    }

    /// Answers what is not usual.
    fn answer_generally(&self, query: Datagram<'_>, replies: &mut Outgoing, answers: &mut [u64; 2]) {
        match self.shared.handle(query.octets, query.ends.peer, Transport::Udp) {
            Handled::Ignore => {}
            Handled::Send(octets, own) => {
                answers[usize::from(own)] += 1;
                // No reply is longer than the room.
                if let Some(slot) = replies.slot()
                    && let Some(room) = slot.room.get_mut(..octets.len())
                {
                    room.copy_from_slice(&octets);
                    slot.fill(octets.len(), Some(query.ends));
                }
            }
            Handled::Wait(later) => {
                let (socket, shared, ends) = (self.socket.clone(), self.shared.clone(), query.ends);
                self.tasks.spawn(async move {
                    let octets = later.reply(&shared).await;
                    // The socket may block, but for no longer than the network card needs for a packet.
                    if let Err(error) = reply(&socket, &octets, ends) {
                        tracing::debug!(%error, client = %ends.peer, "a reply was not sent");
                    }
                });
            }
        }
    }
}
