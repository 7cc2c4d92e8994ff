//! Giving up root: another user, two capabilities and fewer system calls, without a way back.

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

/// Lets a program go on when a terminal interrupts this one, which ends it by itself.
pub fn in_own_group(command: &mut Command) {
    system::in_own_group(command);
}

/// Becomes this user: without other groups and without capabilities but those to change addresses and routes and to bind
/// ports below 1024, without a way to get any, and without system calls that serve to start programs, to look into other
/// processes or to change the system.
///
/// # Errors
///
/// Fails if this process is not root's, or has more than one thread: only the calling one would change.
pub fn become_user(user: User) -> io::Result<()> {
    system::become_user(user)
}
