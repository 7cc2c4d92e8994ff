//! Files by inode.

use std::env;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions, Permissions};
use std::io;
#[cfg(target_os = "linux")]
use std::mem::MaybeUninit;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

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

/// Device and inode of a folder.
pub(super) type Reported = (u64, u64);

/// File systems of one machine that report each change, by their magic numbers (statfs(2)): ext2 to ext4, XFS, btrfs, F2FS,
/// tmpfs, ZFS, and overlayfs, on which containers are. Network file systems report only what this machine changes.
#[cfg(target_os = "linux")]
const REPORTING: [u32; 7] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0x2fc1_2fc1, 0x794c_7630];

pub(super) fn reported(path: &Path) -> Option<Reported> {
    let path = std::path::absolute(path).ok()?;
    // A link leads to another folder than the one that is watched, and may be led elsewhere.
    if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
        return None;
    }
    let folder = path.parent()?;
    if fs::canonicalize(folder).ok()? != folder {
        return None;
    }
    let open = File::open(folder).ok()?;
    let metadata = open.metadata().ok()?;
    is_reporting(&open).then(|| (metadata.dev(), metadata.ino()))
}

#[cfg(target_os = "linux")]
fn is_reporting(folder: &File) -> bool {
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open because `folder` is borrowed; the pointer is to room for what the call writes, which lives
    // until it returns.
    #[expect(unsafe_code, reason = "std does not say of which kind a file system is")]
    let code = unsafe { libc::fstatfs(folder.as_raw_fd(), found.as_mut_ptr()) };
    if code != 0 {
        return false;
    }
    // SAFETY: the call has succeeded, so it has written all of it.
    #[expect(unsafe_code, reason = "as above")]
    let kind = unsafe { found.assume_init() }.f_type;
    // As wide as a register, with the sign of 32 bits on some.
    REPORTING.iter().any(|known| i64::from(*known) == (kind & 0xffff_ffff))
}

#[cfg(not(target_os = "linux"))]
fn is_reporting(_: &File) -> bool {
    false
}

pub(super) fn replace(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Reading and writing for the owner.
const PRIVATE_FILE: u32 = 0o600;

/// The same, and looking into it.
const PRIVATE_FOLDER: u32 = 0o700;

/// Only who owns a file in a folder renames it.
const STICKY: u32 = 0o1000;

/// Writing for the group and for everybody.
const WRITABLE_BY_OTHERS: u32 = 0o022;

pub(super) fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(path)
}

pub(super) fn append_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(PRIVATE_FILE).open(path)
}

pub(super) fn restrict(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(PRIVATE_FILE))
}

pub(super) fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(path)
}

pub(super) fn must_be_writable(folder: &Path) -> io::Result<()> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero byte and lives until the call has returned, which only reads it.
    #[expect(unsafe_code, reason = "std asks nothing of a folder without making something in it")]
    let denied = unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) };
    if denied == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reading, too.
const USABLE_BY_OTHERS: u32 = 0o066;

pub(super) fn must_be_own(path: &Path) -> io::Result<()> {
    let folder = |problem: io::Error| io::Error::new(problem.kind(), format!("{problem}, or give another folder"));
    must_be_closed(path, WRITABLE_BY_OTHERS, "change what is stored there: chmod go-w").map_err(folder)
}

pub(super) fn must_be_unchangeable(path: &Path) -> io::Result<()> {
    if_there(must_be_closed(path, WRITABLE_BY_OTHERS, "change what is stored there: chmod go-w"))
}

pub(super) fn must_lead_where_it_leads(path: &Path) -> io::Result<()> {
    let is_sticky = |folder: &Path| fs::metadata(folder).is_ok_and(|found| found.mode() & STICKY != 0);
    let path = fs::canonicalize(path)?;
    let mut open = path.ancestors().skip(1).filter(|folder| !is_sticky(folder));
    open.try_for_each(|folder| must_be_closed(folder, WRITABLE_BY_OTHERS, "change where it leads: chmod go-w"))
}

pub(super) fn must_be_secret(path: &Path) -> io::Result<()> {
    if_there(must_be_closed(path, USABLE_BY_OTHERS, "read what is stored there: chmod go-rw"))
}

/// Opening the file reports that there is none.
fn if_there(checked: io::Result<()>) -> io::Result<()> {
    checked.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Where systemd keeps the state of services with users of their own; only root gets there, and each service to its own.
const SERVICES: &str = "/var/lib/private";

pub(super) fn is_of_service(folder: &Path) -> bool {
    let owned = fs::metadata(folder).is_ok_and(|found| found.uid() != 0);
    owned && fs::canonicalize(folder).is_ok_and(|folder| folder.starts_with(SERVICES))
}

pub(super) fn take_over(folder: &Path) -> io::Result<()> {
    let mut folders = vec![folder.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.get(seen) {
        seen += 1;
        for entry in fs::read_dir(folder)? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            if kind.is_dir() {
                folders.push(path);
            } else if !kind.is_file() {
                return Err(io::Error::other(format!("{} is no file of Berth's: remove it", path.display())));
            }
        }
    }
    folders.iter().try_for_each(|folder| chown(folder, Some(0), Some(0)))
}

/// Refuses what belongs to another user than root and this one, or has one of these rights.
fn must_be_closed(path: &Path, rights: u32, advice: &str) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    let (owner, mode) = (metadata.uid(), metadata.mode());
    // SAFETY: geteuid has no preconditions and cannot fail.
    #[expect(unsafe_code, reason = "std does not tell which user this process runs as")]
    let own = unsafe { libc::geteuid() };
    let problem = if owner != own && owner != 0 {
        format!("it belongs to user {owner}, who can change what is stored there: chown {own} {}", path.display())
    } else if mode & rights != 0 {
        format!("other users can {advice} {}", path.display())
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with windows.rs")]
pub(super) fn user_state_folder() -> Option<PathBuf> {
    let folder = |variable| env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    Some(state.unwrap_or_else(|| "/var/lib".into()).join("berth"))
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
        let _starting = crate::programs::starting();
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
    fn what_is_private_nobody_else_may_read() {
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("a/b");
        super::super::create_private_folder(&folder).unwrap();
        super::super::create_private_folder(&folder).unwrap();
        assert_eq!((mode(&folder), mode(folder.parent().unwrap())), (0o700, 0o700));
        let [new, old] = ["new", "old"].map(|name| folder.join(name));
        fs::write(&old, "text").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        for path in [&folder.join("log"), &old] {
            super::super::append_private(path).unwrap();
            assert_eq!(mode(path), 0o600);
        }
        fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        for path in [&new, &old] {
            super::super::create_private(path).unwrap();
            assert_eq!((mode(path), fs::read(path).unwrap().len()), (0o600, 0));
        }
        fs::set_permissions(&old, Permissions::from_mode(0o666)).unwrap();
        super::super::restrict(&old);
        assert_eq!(mode(&old), 0o600);
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("state");
        super::super::create_private_folder(&folder).unwrap();
        for (mode, fine) in [(0o755, true), (0o775, false), (0o1777, false), (0o700, true)] {
            fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            let made = super::super::create_private_folder(&folder);
            assert_eq!(made.is_ok(), fine, "{mode:o}");
            assert!(made.err().is_none_or(|error| error.to_string().contains("chmod go-w ")), "{mode:o}");
        }
        // Only root can give a folder away.
        if chown(&folder, Some(65_534), None).is_ok() {
            let error = super::super::create_private_folder(&folder).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534") && error.contains("chown "), "{error}");
        }
    }

    #[test]
    fn no_file_of_another_user_or_open_to_others_is_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        assert!(must_be_secret(&path).is_ok(), "whoever opens it says that it is not there");
        fs::write(&path, "text").unwrap();
        for (mode, policy, secret) in [
            (0o600, true, true),
            (0o644, true, false),
            (0o640, true, false),
            (0o620, false, false),
            (0o666, false, false),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for (checked, fine, advice) in [
                (must_be_unchangeable(&path), policy, "chmod go-w /"),
                (must_be_secret(&path), secret, "chmod go-rw /"),
            ] {
                assert_eq!(checked.is_ok(), fine, "{mode:o}");
                assert!(checked.err().is_none_or(|error| error.to_string().contains(advice)), "{mode:o}");
            }
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // Only root can give a file away.
        if chown(&path, Some(65_534), None).is_ok() {
            let error = must_be_secret(&path).unwrap_err().to_string();
            assert!(
                error.contains("belongs to user 65534") && error.contains("chown ") && error.contains("tokens"),
                "{error}"
            );
        }
    }

    #[test]
    fn no_folder_that_others_can_rename_is_on_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let [outer, inner] = ["outer", "outer/inner"].map(|name| directory.path().join(name));
        fs::create_dir_all(&inner).unwrap();
        let file = inner.join("agent");
        assert!(must_lead_where_it_leads(&file).is_err(), "there is none");
        fs::write(&file, "text").unwrap();
        for (mode, fine) in [(0o755, true), (0o775, false), (0o777, false), (0o1777, true), (0o700, true)] {
            fs::set_permissions(&outer, Permissions::from_mode(mode)).unwrap();
            let checked = must_lead_where_it_leads(&file);
            assert_eq!(checked.is_ok(), fine, "{mode:o}");
            assert!(checked.err().is_none_or(|error| error.to_string().contains("outer")), "{mode:o}");
        }
        // By a link, too.
        fs::set_permissions(&outer, Permissions::from_mode(0o777)).unwrap();
        let link = directory.path().join("link");
        symlink(&inner, &link).unwrap();
        assert!(must_lead_where_it_leads(&link.join("agent")).is_err());
    }

    #[test]
    fn no_link_in_a_folder_leads_root_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let (folder, elsewhere) = (directory.path().join("state"), directory.path().join("elsewhere"));
        fs::create_dir_all(folder.join("labels.d")).unwrap();
        fs::write(folder.join("password"), "text").unwrap();
        fs::write(&elsewhere, "text").unwrap();
        assert!(!super::super::is_of_service(&folder), "it is not where systemd keeps such folders");
        for link in ["password.new", "labels.d/join.env"] {
            symlink(&elsewhere, folder.join(link)).unwrap();
            let error = super::super::take_over(&folder).unwrap_err().to_string();
            assert!(error.contains(&format!("{link} is no file")), "{error}");
            fs::remove_file(folder.join(link)).unwrap();
        }
        // Only root can give a folder away, and take it.
        if chown(&folder, Some(65_534), None).is_ok() {
            super::super::take_over(&folder).unwrap();
            assert_eq!(fs::metadata(&folder).unwrap().uid(), 0);
        }
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
