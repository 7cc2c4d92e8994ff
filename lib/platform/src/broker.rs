//! A broker for the capability `NET_ADMIN`: a process that has it, for one that has given it up.
//!
//! What containers talk to has to put its addresses on interfaces, lead their ports elsewhere and set filters on its sockets; with the
//! capability for that, it could as well change every route and firewall of the host. So it starts a broker first, gives the
//! capability up, and from then on asks: the functions of [`address`](crate::address), [`redirect`](crate::redirect),
//! [`ingress`](crate::ingress) and [`socket`](crate::socket) do so by themselves in a process that has a broker. The broker knows
//! [these requests](Request) and no others, for the addresses and ports that it was started with. It ends with the last process that can ask
//! it: the one that started it, or a successor of that ([`handover`](crate::handover)). Linux only.

#[cfg_attr(target_os = "linux", path = "broker/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "broker/other.rs")]
mod system;

use std::io;
use std::net::SocketAddr;
use std::process::Command;

#[cfg(target_os = "linux")]
pub(crate) use system::{Request, another, answered, asked, take_over};

/// Starts `command` as the broker of this process, which has to call [`serve`].
///
/// # Errors
///
/// Fails if it does not answer, if this process has a broker already, and on systems without capabilities.
pub fn start(command: Command) -> io::Result<()> {
    system::start(command)
}

/// Runs this program again in place of this process, which goes on as what it was, with its broker. Returns only if that fails.
pub fn run_again() -> io::Error {
    system::run_again()
}

/// Does what is asked on standard input, for these services alone, until no process can ask any more.
///
/// To be called by the process that [`start`] has started, while it has one thread.
///
/// # Errors
///
/// Fails if standard input is something else.
pub fn serve(services: &[SocketAddr]) -> io::Result<()> {
    system::serve(services)
}

/// Whether this process has a broker.
pub fn is_used() -> bool {
    system::is_used()
}

/// Whether this process has a broker that has ended.
pub fn is_gone() -> bool {
    system::is_gone()
}
