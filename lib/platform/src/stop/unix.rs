//! Stop, reload and restart by signals.

use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(8);

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

/// Requests by one signal.
#[derive(Debug)]
pub(super) struct Requests(Signal);

impl Requests {
    pub(super) fn reload() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    pub(super) fn restart() -> io::Result<Self> {
        signal(SignalKind::user_defined2()).map(Self)
    }

    pub(super) async fn requested(&mut self) {
        if self.0.recv().await.is_none() {
            pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn send(signal: &str) {
        let _starting = crate::programs::starting();
        let status = Command::new("sh").args(["-c", &format!("kill -{signal} $PPID")]).status().unwrap();
        assert!(status.success());
    }

    #[tokio::test]
    async fn stop_is_named_even_if_it_came_before_anybody_waited() {
        let mut stop = StopEvents::new().unwrap();
        for (signal, name) in [("TERM", "SIGTERM"), ("INT", "SIGINT")] {
            send(signal);
            assert_eq!(stop.requested().await, name);
        }
    }

    #[tokio::test]
    async fn hangup_asks_to_reload_each_time() {
        let mut reload = Requests::reload().unwrap();
        for _ in 0..2 {
            send("HUP");
            reload.requested().await;
        }
    }

    #[tokio::test]
    async fn the_second_user_signal_asks_to_start_again() {
        let mut restart = Requests::restart().unwrap();
        send("USR2");
        restart.requested().await;
    }
}
