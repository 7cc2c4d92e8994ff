//! UDP: datagrams in, datagrams out; what takes longer does so elsewhere.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::server::{Handled, Shared, Transport};

/// Longest query that is read; what is longer is cut and then refused.
const QUERY_MAX: usize = 4096;

/// Datagrams after which others get their turn.
const BATCH: usize = 64;

/// Pause after an error of receiving that would come again at once.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// Serves one socket until `stop`. Waiting replies are tasks of `tasks`.
pub(crate) async fn serve(socket: Arc<UdpSocket>, shared: Arc<Shared>, stop: CancellationToken, tasks: TaskTracker) {
    let mut buffer = vec![0; QUERY_MAX];
    loop {
        let ready = tokio::select! {
            () = stop.cancelled() => return,
            ready = socket.readable() => ready,
        };
        let outcome = match ready {
            Ok(()) => drain(&socket, &shared, &tasks, &mut buffer).await,
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            shared.metrics.receive_errors.inc();
            if !platform::socket::is_transient(&error) {
                tracing::error!(%error, "cannot receive; trying again");
            }
            tokio::time::sleep(ERROR_PAUSE).await;
        }
        tokio::task::yield_now().await;
    }
}

/// Answers what has arrived.
async fn drain(
    socket: &Arc<UdpSocket>,
    shared: &Arc<Shared>,
    tasks: &TaskTracker,
    buffer: &mut [u8],
) -> io::Result<()> {
    for _ in 0..BATCH {
        let (length, client) = match socket.try_recv_from(buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // What a client did to earlier replies says nothing about this socket.
            Err(error)
                if platform::socket::is_transient(&error) && !platform::socket::is_out_of_descriptors(&error) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        match shared.handle(&buffer[..length], client, Transport::Udp) {
            Handled::Ignore => {}
            Handled::Send(reply) => send(socket, &reply, client).await,
            Handled::Wait(later) => {
                let (socket, shared) = (socket.clone(), shared.clone());
                tasks.spawn(async move {
                    let reply = later.reply(&shared).await;
                    send(&socket, &reply, client).await;
                });
            }
        }
    }
    Ok(())
}

/// Sends a reply; one that cannot be sent is lost, as datagrams may be.
async fn send(socket: &UdpSocket, reply: &[u8], client: std::net::SocketAddr) {
    if let Err(error) = socket.send_to(reply, client).await {
        tracing::debug!(%error, %client, "a reply was not sent");
    }
}
