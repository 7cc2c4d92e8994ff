//! Stop by console events, which `docker stop` sends too, and by the service control manager.

use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown,
};
use tokio::sync::Notify;

/// Notified when the system asks this process to stop as a service.
pub(crate) static SERVICE_STOP: Notify = Notify::const_new();

pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct StopEvents {
    c: CtrlC,
    r#break: CtrlBreak,
    close: CtrlClose,
    shutdown: CtrlShutdown,
}

impl StopEvents {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { c: ctrl_c()?, r#break: ctrl_break()?, close: ctrl_close()?, shutdown: ctrl_shutdown()? })
    }

    pub(super) async fn requested(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.c.recv() => "Ctrl-C",
            Some(()) = self.r#break.recv() => "Ctrl-Break",
            Some(()) = self.close.recv() => "console closed",
            Some(()) = self.shutdown.recv() => "system shutdown",
            () = SERVICE_STOP.notified() => "service stop",
            else => pending().await,
        }
    }
}

/// There are none.
#[derive(Debug)]
pub(super) struct Requests;

impl Requests {
    #[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
    pub(super) fn reload() -> io::Result<Self> {
        Ok(Self)
    }

    #[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
    pub(super) fn restart() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn requested(&mut self) {
        pending::<()>().await;
    }
}
