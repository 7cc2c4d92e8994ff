//! `nobody` and `nogroup`: the user and the group of what has none of its own, which therefore get access to nothing.

use std::io;

/// Their number, by which the kernel shows all users and groups that it cannot name.
const NOBODY: u32 = 65534;

/// Refuses them as the user or the group of something.
///
/// # Errors
///
/// Fails if `user` or `group` is that number; the text names the way out.
pub(crate) fn refuse(user: u32, group: u32) -> io::Result<()> {
    if ![user, group].contains(&NOBODY) {
        return Ok(());
    }
    let why = format!(
        "its user or group is {NOBODY} (nobody, nogroup), which other programs run as, too, so they would have the same rights: \
         make a user for this alone (useradd --system berth)"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}
