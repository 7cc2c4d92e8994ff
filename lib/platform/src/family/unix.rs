//! A process group.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(super) fn prepare(command: &mut Command) {
    command.process_group(0);
}

/// The group of the process with this id, which leads it.
#[derive(Debug)]
pub(super) struct Family(libc::pid_t);

impl Family {
    pub(super) fn of(id: u32) -> io::Result<Self> {
        // 0 would be our own group.
        let id = libc::pid_t::try_from(id).ok().filter(|id| *id > 0);
        id.map(Self).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    #[expect(clippy::unused_self, reason = "as on Windows")]
    pub(super) fn leave(self) {}

    #[expect(unsafe_code, reason = "std sends no other signal than SIGKILL")]
    pub(super) fn ask_to_finish(&self) -> io::Result<()> {
        // SAFETY: `kill` takes two numbers and touches no memory of ours. No one has waited for the leader yet, so its id is
        // still its own.
        let sent = unsafe { libc::kill(self.0, libc::SIGUSR1) };
        if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[expect(unsafe_code, reason = "std signals single processes only")]
    pub(super) fn is_there(&self) -> bool {
        // SAFETY: `kill` takes two numbers and touches no memory of ours; signal 0 is only checked for, not sent.
        unsafe { libc::kill(-self.0, 0) == 0 }
    }

    #[expect(unsafe_code, reason = "std signals single processes only")]
    pub(super) fn end(self) {
        // That there is none any more is what is wanted. SAFETY: `kill` takes two numbers and touches no memory of
        // ours. No one has waited for the leader yet, so its id is still that of its group, and no other one's.
        let _ = unsafe { libc::kill(-self.0, libc::SIGKILL) };
    }
}
