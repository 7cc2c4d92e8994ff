//! Files as services need them: opened without ever waiting, compared, replaced whole.

#[cfg_attr(unix, path = "file/unix.rs")]
#[cfg_attr(windows, path = "file/windows.rs")]
mod system;

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// Opens a regular file for reading, following links.
///
/// Never waits for somebody to write into a FIFO, and never touches a device.
pub fn open_regular(path: &Path) -> Result<File, OpenError> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { path: path.to_owned() },
        _ => OpenError::Unreadable { path: path.to_owned(), error },
    };
    let irregular = |kind| OpenError::Irregular { path: path.to_owned(), kind };
    // Looked at twice: opening alone may already do something to a device, and between the two it may be replaced.
    match system::kind_of_path(path).map_err(unreadable)? {
        FileKind::Regular => {}
        kind => return Err(irregular(kind)),
    }
    let file = system::open(path).map_err(unreadable)?;
    match system::kind_of_file(&file).map_err(unreadable)? {
        FileKind::Regular => Ok(file),
        kind => Err(irregular(kind)),
    }
}

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such file; it may come.
    #[error("{} does not exist", .path.display())]
    Missing {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// There is something else under that name.
    #[error("{} is {kind}, not a regular file", .path.display())]
    Irregular {
        /// The path that was asked for.
        path: PathBuf,
        /// What it is.
        kind: FileKind,
    },
    /// The system refuses to open it.
    #[error("cannot open {}: {error}", .path.display())]
    Unreadable {
        /// The path that was asked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::Missing { .. } => io::ErrorKind::NotFound,
            OpenError::Irregular { kind: FileKind::Directory, .. } => io::ErrorKind::IsADirectory,
            OpenError::Irregular { .. } => io::ErrorKind::InvalidInput,
            OpenError::Unreadable { error, .. } => error.kind(),
        };
        Self::new(kind, error)
    }
}

/// What a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file with contents of its own.
    Regular,
    /// A directory.
    Directory,
    /// A FIFO or another pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// Something the system does not describe.
    Unknown,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "a regular file",
            Self::Directory => "a directory",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Unknown => "of an unknown kind",
        })
    }
}

/// What changes when a file is edited or replaced.
///
/// Equal stamps do not prove equal contents: times have a grain of some milliseconds, and a new file may get the number of
/// the old one. Unequal ones are a reason to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(system::Stamp);

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self(metadata.into())
    }
}

/// Renames `from` to `to`, replacing what is there in one step.
///
/// Both must be on the same file system. On Windows somebody who has the old file open may be in the way for a moment, so
/// it is tried for up to a second: call it where blocking is allowed.
pub fn replace(from: &Path, to: &Path) -> io::Result<()> {
    system::replace(from, to)
}

/// Makes the names in a directory survive a loss of power; on Windows, where there is no such call, does nothing.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    system::sync_directory(path)
}
