//! Giving up root, or a capability: another user, one capability and fewer system calls, without a way back.

use std::io;
use std::path::Path;
use std::process::Command;

#[cfg_attr(target_os = "linux", path = "privilege/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "privilege/other.rs")]
mod system;

/// A user of this system, and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The number of the user.
    pub id: u32,
    /// The number of its group.
    pub group: u32,
}

/// The user of this name, or with this number, whose group then has the same number if the system does not know it.
///
/// # Errors
///
/// Fails if there is none, if it is root, and on systems where no process can become another user.
pub fn user(name: &str) -> io::Result<User> {
    system::user(name)
}

/// Makes a folder that this user may enter and not read, and the others neither.
///
/// # Errors
///
/// What the system says, also if something is there.
pub fn create_folder_for(user: User, path: &Path) -> io::Result<()> {
    system::create_folder_for(user, path)
}

/// Gives a folder of root's to this user, with what is in it. One that is the user's stays as it is.
///
/// # Errors
///
/// Fails if it is a third user's, or has anything but files and folders in it: who can write there could lead root to
/// other files.
pub fn hand_over(user: User, folder: &Path) -> io::Result<()> {
    system::hand_over(user, folder)
}

/// Whether a folder, if it is there, is this user's.
///
/// # Errors
///
/// What the system says.
pub fn owns(user: User, folder: &Path) -> io::Result<bool> {
    system::owns(user, folder)
}

/// Lets a program go on when a terminal interrupts this one, which ends it by itself.
pub fn in_own_group(command: &mut Command) {
    system::in_own_group(command);
}

/// The capability that a process goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Listening on ports below 1024 (`NET_BIND_SERVICE`).
    Ports,
    /// Changing addresses, routes and filters (`NET_ADMIN`).
    Network,
}

/// Becomes this user: without other groups and without capabilities but this one, without a way to get any, and without
/// system calls that serve to start programs, to look into other processes or to change the system.
///
/// # Errors
///
/// Fails if this process is not root's, or has more than one thread: only the calling one would change.
pub fn become_user(user: User, capability: Capability) -> io::Result<()> {
    system::become_user(user, capability)
}

/// Whether this process is not root's and passes `NET_ADMIN` on to programs that it runs, as a manager of services has it do (ambient
/// capabilities).
///
/// # Errors
///
/// Fails if the system does not say what the process may do.
pub fn passes_network_on() -> io::Result<bool> {
    system::passes_network_on()
}

/// Starts a program that gets `NET_ADMIN` of what this process passes on, and nothing else.
///
/// # Errors
///
/// What `start` says, or the system.
pub fn starting_with_network<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    system::starting_with_network(start)
}

/// Passes `NET_ADMIN` on no more. What this process runs in its own place then does not have it.
///
/// # Errors
///
/// Fails if this process has more than one thread: only the calling one would change.
pub fn pass_network_on_no_more() -> io::Result<()> {
    system::pass_network_on_no_more()
}

/// Gives up the system calls that [`become_user`] gives up, for a process that was started with `NET_ADMIN` alone.
///
/// # Errors
///
/// Fails if this process has another capability, or more than one thread: only the calling one would change.
pub fn keep_network_alone() -> io::Result<()> {
    system::keep_network_alone()
}
