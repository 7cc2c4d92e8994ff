//! Files by times; their numbers are not within reach of stable std.

use std::env;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::MetadataExt;
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use windows_sys::Win32::Foundation::{ERROR_ACCESS_DENIED, ERROR_LOCK_VIOLATION, ERROR_SHARING_VIOLATION};
use windows_sys::Win32::Storage::FileSystem::{FILE_TYPE_CHAR, FILE_TYPE_DISK, FILE_TYPE_PIPE, GetFileType};

use super::FileKind;
use crate::rights;

/// How long to wait before each further attempt to rename.
///
/// A scanner or an indexer holds a new file for some milliseconds, a reader for as long as it reads; all together a second.
const RETRY_AFTER: [Duration; 9] = [
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(60),
    Duration::from_millis(150),
    Duration::from_millis(250),
    Duration::from_millis(250),
    Duration::from_millis(250),
];

pub(super) fn kind_of_path(path: &Path) -> io::Result<FileKind> {
    fs::metadata(path).map(|metadata| kind(&metadata))
}

/// std lets others read, write, rename and delete meanwhile.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

pub(super) fn kind_of_file(file: &File) -> io::Result<FileKind> {
    // SAFETY: the handle is open because `file` is borrowed; no pointers to memory are passed.
    #[expect(unsafe_code, reason = "std does not distinguish pipes from files")]
    let file_type = unsafe { GetFileType(file.as_raw_handle()) };
    Ok(match file_type {
        FILE_TYPE_DISK => kind(&file.metadata()?),
        FILE_TYPE_PIPE => FileKind::Fifo,
        FILE_TYPE_CHAR => FileKind::Device,
        _ => FileKind::Unknown,
    })
}

fn kind(metadata: &Metadata) -> FileKind {
    if metadata.is_file() {
        FileKind::Regular
    } else if metadata.is_dir() {
        FileKind::Directory
    } else {
        FileKind::Unknown
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    size: u64,
    modified: u64,
    created: u64,
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self { size: metadata.file_size(), modified: metadata.last_write_time(), created: metadata.creation_time() }
    }
}

/// There is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reported {}

pub(super) fn reported(_: &Path) -> Option<Reported> {
    None
}

pub(super) fn replace(from: &Path, to: &Path) -> io::Result<()> {
    for delay in RETRY_AFTER {
        match fs::rename(from, to) {
            Err(error) if is_in_use(&error) => thread::sleep(delay),
            result => return result,
        }
    }
    fs::rename(from, to)
}

fn is_in_use(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(i32::cast_unsigned),
        Some(ERROR_ACCESS_DENIED | ERROR_LOCK_VIOLATION | ERROR_SHARING_VIOLATION)
    )
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

pub(super) fn create_private(path: &Path) -> io::Result<File> {
    File::create(path)
}

pub(super) fn append_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

pub(super) fn restrict(path: &Path) -> io::Result<()> {
    rights::close_file(path)
}

pub(super) fn create_private_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        create_private_folder(above)?;
    }
    match rights::create_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

pub(super) fn must_be_own(path: &Path) -> io::Result<()> {
    rights::folder_must_be_own(path)
}

pub(super) fn is_of_service(_: &Path) -> bool {
    false
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn take_over(_: &Path) -> io::Result<()> {
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn must_be_writable(_: &Path) -> io::Result<()> {
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn must_be_unchangeable(_: &Path) -> io::Result<()> {
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
pub(super) fn must_lead_where_it_leads(_: &Path) -> io::Result<()> {
    Ok(())
}

pub(super) fn must_be_secret(path: &Path) -> io::Result<()> {
    must_be_unchangeable(path)
}

pub(super) fn user_state_folder() -> Option<PathBuf> {
    Some(PathBuf::from(env::var_os("LOCALAPPDATA")?).join("Berth"))
}

#[cfg(test)]
mod tests {
    use std::os::windows::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn replace_waits_for_a_reader_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        fs::write(&old, "old").unwrap();
        fs::write(&new, "new").unwrap();
        let reader = OpenOptions::new().read(true).share_mode(0).open(&old).unwrap();
        assert!(is_in_use(&fs::rename(&new, &old).unwrap_err()));
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                drop(reader);
            });
            replace(&new, &old).unwrap();
        });
        assert_eq!(fs::read_to_string(&old).unwrap(), "new");
    }

    #[test]
    fn devices_are_no_files() {
        assert_ne!(kind_of_file(&open(Path::new("NUL")).unwrap()).unwrap(), FileKind::Regular);
    }
}
