//! Files by inode.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::FileKind;

pub(super) fn kind_of_path(path: &Path) -> io::Result<FileKind> {
    fs::metadata(path).map(|metadata| kind(metadata.file_type()))
}

/// Opens without waiting for a writer; on a regular file the flags mean nothing. std adds `O_CLOEXEC`.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

pub(super) fn kind_of_file(file: &File) -> io::Result<FileKind> {
    file.metadata().map(|metadata| kind(metadata.file_type()))
}

fn kind(file_type: FileType) -> FileKind {
    if file_type.is_file() {
        FileKind::Regular
    } else if file_type.is_dir() {
        FileKind::Directory
    } else if file_type.is_fifo() {
        FileKind::Fifo
    } else if file_type.is_socket() {
        FileKind::Socket
    } else if file_type.is_char_device() || file_type.is_block_device() {
        FileKind::Device
    } else {
        FileKind::Unknown
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

pub(super) fn replace(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::super::{OpenError, Stamp, open_regular, open_whatever_came};
    use super::*;

    fn check(path: &Path, expected: FileKind) {
        match open_regular(path).unwrap_err() {
            OpenError::Irregular { kind, .. } => assert_eq!(kind, expected),
            error => panic!("{error}"),
        }
    }

    #[test]
    fn fifo_is_refused_without_waiting_for_a_writer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        check(&path, FileKind::Fifo);
        assert!(matches!(open_whatever_came(&path), Err(OpenError::Irregular { kind: FileKind::Fifo, .. })));
    }

    #[test]
    fn sockets_and_devices_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        check(&path, FileKind::Socket);
        check(Path::new("/dev/null"), FileKind::Device);
    }

    #[test]
    fn links_are_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link, broken] = ["file", "link", "broken"].map(|name| directory.path().join(name));
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        symlink("nowhere", &broken).unwrap();
        open_regular(&link).unwrap();
        assert!(matches!(open_regular(&broken), Err(OpenError::Missing { .. })));
        check(Path::new("/proc/self/cwd"), FileKind::Directory);
    }

    #[test]
    fn stamp_tells_a_replaced_file_of_equal_size_and_time() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        fs::write(&old, "text").unwrap();
        fs::write(&new, "TEXT").unwrap();
        let before = fs::metadata(&old).unwrap();
        let writer = OpenOptions::new().write(true).open(&new).unwrap();
        writer.set_modified(before.modified().unwrap()).unwrap();
        replace(&new, &old).unwrap();
        assert_ne!(Stamp::from(&before), Stamp::from(&fs::metadata(&old).unwrap()));
    }
}
