//! The executable of a process, in whose place another one is put while it runs (Linux).

#[cfg_attr(target_os = "linux", path = "executable/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "executable/other.rs")]
mod system;

use std::fs::File;
use std::io;
use std::path::Path;

/// Why no process on this system starts again in place from another executable; `None` if one does.
pub fn obstacle() -> Option<&'static str> {
    system::obstacle()
}

/// Whether the file of this path is what a process runs. A file that was replaced is not.
///
/// # Errors
///
/// Fails if there is no such process or file, or this user may not know.
pub fn is_of(process: u32, path: &Path) -> io::Result<bool> {
    system::is_of(process, path)
}

/// Whether this file, whatever it is called now, is what a process runs.
///
/// # Errors
///
/// As [`is_of`].
pub fn is_of_file(process: u32, file: &File) -> io::Result<bool> {
    system::is_of_file(process, file)
}

/// Creates a file that only its owner can run, read and write. It must not be there.
///
/// # Errors
///
/// Fails if it is, or the folder takes no file.
pub fn create(path: &Path) -> io::Result<File> {
    system::create(path)
}

/// Gives a file the owner and the rights of the one whose place it is to take.
///
/// # Errors
///
/// Fails if this user may not.
pub fn take_rights(file: &File, of: &Path) -> io::Result<()> {
    system::take_rights(file, of)
}

/// Asks a process to start again in place (SIGUSR2).
///
/// # Errors
///
/// Fails if there is no such process, or this user may not.
pub fn restart(process: u32) -> io::Result<()> {
    system::restart(process)
}
