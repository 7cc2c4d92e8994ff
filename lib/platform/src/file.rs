//! Files as services need them: opened without ever waiting, compared, replaced whole.

#[cfg_attr(unix, path = "file/unix.rs")]
#[cfg_attr(windows, path = "file/windows.rs")]
mod system;

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Opens a regular file for reading, following links.
///
/// Never waits for a writer of a FIFO, and never touches a device.
pub fn open_regular(path: &Path) -> Result<File, OpenError> {
    // Looked at before too: opening alone may already do something to a device.
    must_be_regular(path, system::kind_of_path(path))?;
    open_whatever_came(path)
}

/// Opens what may have taken the place of a regular file after it was looked at.
fn open_whatever_came(path: &Path) -> Result<File, OpenError> {
    let file = system::open(path).map_err(|error| OpenError::from_system(path, error))?;
    must_be_regular(path, system::kind_of_file(&file))?;
    Ok(file)
}

fn must_be_regular(path: &Path, kind: io::Result<FileKind>) -> Result<(), OpenError> {
    match kind {
        Ok(FileKind::Regular) => Ok(()),
        Ok(kind) => Err(OpenError::Irregular { path: path.to_owned(), kind }),
        Err(error) => Err(OpenError::from_system(path, error)),
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

impl OpenError {
    fn from_system(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            _ => Self::Unreadable { path, error },
        }
    }
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
/// Equal stamps do not prove equal contents: times have a grain of some milliseconds, and a new file may get the number
/// of the old one. Unequal ones are a reason to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(system::Stamp);

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self(metadata.into())
    }
}

/// Where a file is whose changes are all reported to a watcher of its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported(system::Reported);

/// Whether each change of a file is reported to a watcher of its folder, and where it is then: at a path without links, on a
/// file system of this machine. The same path may lead elsewhere later, which another value shows.
///
/// `None` too where that is not known, as on Windows, where a folder that is mounted into a container looks like any other.
pub fn reported(path: &Path) -> Option<Reported> {
    system::reported(path).map(Reported)
}

/// Renames `from` to `to`, replacing what is there in one step.
///
/// Both must be on the same file system. On Windows a process that has the old file open may be in the way for a
/// moment, so it is tried for up to a second: call it where blocking is allowed.
pub fn replace(from: &Path, to: &Path) -> io::Result<()> {
    system::replace(from, to)
}

/// Creates a file that only its owner may read, or empties the one that is there.
///
/// On Windows that is the system, administrators and this user.
pub fn create_private(path: &Path) -> io::Result<File> {
    let file = system::create_private(path)?;
    restrict(path);
    Ok(file)
}

/// Opens a file that only its owner may read for writing at its end; creates it when it is not there.
///
/// On Windows that is the system, administrators and this user.
pub fn append_private(path: &Path) -> io::Result<File> {
    let file = system::append_private(path)?;
    restrict(path);
    Ok(file)
}

/// Replaces a file by one with these contents that only its owner may read, in one step, and makes that survive a
/// loss of power. The contents are written to a file beside it first, which ends in `.new`.
///
/// Returns the file, open for writing. On failure the file before stays as it is. Blocks as [`replace`] does.
pub fn replace_private(path: &Path, contents: &[u8]) -> io::Result<File> {
    let aside = path.with_extension("new");
    let mut file = create_private(&aside)?;
    if let Err(error) = file.write_all(contents).and_then(|()| file.sync_all()) {
        // A disk that is full needs the room.
        let _ = std::fs::remove_file(&aside);
        return Err(error);
    }
    replace(&aside, path)?;
    sync_folder_of(path)?;
    Ok(file)
}

/// Makes the name of a file survive a loss of power; Windows has no call for that.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    system::sync_directory(folder.unwrap_or_else(|| Path::new(".")))
}

/// Makes a file with these contents that only its owner may read, in one step, and makes that survive a loss of power.
/// The contents are written to a file beside it first, which ends in `.new` and the number of this process.
///
/// # Errors
///
/// [`io::ErrorKind::AlreadyExists`] if there is one already, which stays as it is.
pub fn create_new_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(format!("new-{}", std::process::id()));
    let written = create_private(&aside)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        // Unlike a renaming this replaces nothing.
        .and_then(|()| std::fs::hard_link(&aside, path));
    let _ = std::fs::remove_file(&aside);
    written?;
    sync_folder_of(path)
}

/// Lets only its owner read a file that is there already, as [`create_private`] does; a file system without such
/// rights leaves it as it is.
pub fn restrict(path: &Path) {
    // A foreign file, or none: opening it reports that.
    let _ = system::restrict(path);
}

/// Whether a folder is the state of a service to which systemd gave a user of its own.
///
/// What that user has put there may lead root elsewhere, by links: see [`take_over`].
pub fn is_of_service(folder: &Path) -> bool {
    system::is_of_service(folder)
}

/// Gives the folder of a service that does not run to root; systemd gives it back to the service's user at its next start, with
/// all that is in it then.
///
/// # Errors
///
/// Fails if there is anything but files and folders in it, which root could be led elsewhere by, or if this is not root.
pub fn take_over(folder: &Path) -> io::Result<()> {
    system::take_over(folder)
}

/// Makes a folder that only its owner may look into, and those above it that are missing. One that is there stays as it
/// is, and only root and this user may be able to change it: what is stored there is trusted later.
///
/// On Windows the system and administrators may use it too, and this user only if it is not acting as an administrator.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    system::create_private_folder(path)?;
    system::must_be_own(path)
}

/// Fails if this user can make no files in a folder, or cannot make the folder where it is missing. Makes nothing.
///
/// On Windows only what stands in the place of the folder is looked at, not its rights.
pub fn must_take_files(folder: &Path) -> io::Result<()> {
    let there = folder.ancestors().find(|above| above.symlink_metadata().is_ok()).unwrap_or_else(|| Path::new("."));
    let found = std::fs::metadata(there).and_then(|found| {
        if found.is_dir() { system::must_be_writable(there) } else { Err(io::ErrorKind::NotADirectory.into()) }
    });
    let above = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", there.display()));
    if there == folder { found } else { found.map_err(above) }
}

/// Refuses a file that belongs to another user than root and this one, or that others can write to: what stands there
/// is obeyed. One that is not there is not refused.
///
/// On Windows every file passes: the rights of its folder decide.
pub fn must_be_unchangeable(path: &Path) -> io::Result<()> {
    system::must_be_unchangeable(path)
}

/// Refuses a path of which others can change a folder, so that it would lead elsewhere. One in which only owners of files can
/// rename them, as in `/tmp`, is not refused.
///
/// On Windows every path passes.
pub fn must_lead_where_it_leads(path: &Path) -> io::Result<()> {
    system::must_lead_where_it_leads(path)
}

/// The same for a file that others can not even read.
pub fn must_be_secret(path: &Path) -> io::Result<()> {
    system::must_be_secret(path)
}

/// The folder for what Berth stores for the user that it runs as, when it is given none: on Unix below
/// `$XDG_STATE_HOME` or `~/.local/state`, or `/var/lib/berth` for a service without a home; on Windows below
/// `%LOCALAPPDATA%`.
pub fn user_state_folder() -> Option<PathBuf> {
    system::user_state_folder()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;

    use super::*;

    #[test]
    fn regular_file_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("answers.json");
        fs::write(&path, "{}").unwrap();
        let mut text = String::new();
        open_regular(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn changes_are_reported_on_file_systems_of_this_machine_at_a_path_without_links() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.yml");
        let found = reported(&path);
        assert!(found.is_some(), "{} is on none", path.display());
        fs::write(&path, "{}").unwrap();
        assert_eq!(reported(&path), found);

        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(reported(&link), None);
        let folder = directory.path().join("folder");
        std::os::unix::fs::symlink(directory.path(), &folder).unwrap();
        assert_eq!(reported(&folder.join("cluster.yml")), None);
        assert_eq!(reported(Path::new("/proc/uptime")), None);
        assert_eq!(reported(&directory.path().join("none/cluster.yml")), None);
    }

    #[test]
    fn missing_file_and_directory_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("answers.json");
        let error = open_regular(&path).unwrap_err();
        assert!(matches!(error, OpenError::Missing { .. }));
        assert_eq!(error.to_string(), format!("{} does not exist", path.display()));
        let error = open_regular(directory.path()).unwrap_err();
        assert!(matches!(error, OpenError::Irregular { kind: FileKind::Directory, .. }));
        assert_eq!(error.to_string(), format!("{} is a directory, not a regular file", directory.path().display()));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn stamp_tells_an_edited_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("answers.json");
        let stamp = || Stamp::from(&fs::metadata(&path).unwrap());
        fs::write(&path, "old").unwrap();
        let before = stamp();
        assert_eq!(before, stamp());
        fs::write(&path, "newer").unwrap();
        assert_ne!(before, stamp());
    }

    #[test]
    fn private_file_is_replaced_whole_or_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        for text in ["first", "2"] {
            let mut file = replace_private(&path, text.as_bytes()).unwrap();
            file.write_all(b"+").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{text}+"));
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        }
        assert!(replace_private(&directory.path().join("missing/state.json"), b"").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "2+");
    }

    #[test]
    fn a_new_private_file_takes_no_place_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.key");
        create_new_private(&path, b"first").unwrap();
        assert_eq!(create_new_private(&path, b"2").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(create_new_private(&directory.path().join("missing/key"), b"").is_err());
    }

    #[test]
    fn a_folder_takes_files_if_it_or_the_one_above_it_does() {
        let directory = tempfile::tempdir().unwrap();
        let [there, plain, missing] = ["there", "plain", "a/b/c"].map(|name| directory.path().join(name));
        fs::create_dir(&there).unwrap();
        fs::write(&plain, "").unwrap();
        for folder in [&there, &missing, &there.join("below")] {
            must_take_files(folder).unwrap();
        }
        assert_eq!(must_take_files(&plain).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        let error = must_take_files(&plain.join("a/b")).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{}: ", plain.display())), "{error}");
        assert!(
            !missing.exists() && !directory.path().join("a").exists() && fs::read_dir(&there).unwrap().count() == 0
        );
    }

    #[test]
    fn replace_takes_the_place_of_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        for text in ["first", "second"] {
            fs::write(&new, text).unwrap();
            replace(&new, &old).unwrap();
            assert_eq!(fs::read_to_string(&old).unwrap(), text);
            assert!(!new.exists());
        }
        assert_eq!(replace(&new, &old).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
