//! Stop and reload by signals.

use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct StopEvents {
    interrupt: Signal,
    terminate: Signal,
}

impl StopEvents {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub(super) async fn requested(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.interrupt.recv() => "SIGINT",
            Some(()) = self.terminate.recv() => "SIGTERM",
            else => pending().await,
        }
    }
}

#[derive(Debug)]
pub(super) struct ReloadEvents(Signal);

impl ReloadEvents {
    pub(super) fn new() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    pub(super) async fn requested(&mut self) {
        if self.0.recv().await.is_none() {
            pending::<()>().await;
        }
    }
}
