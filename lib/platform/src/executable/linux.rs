//! `/proc`, modes and signals.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Rights of a new executable, while nothing is known of it.
const PRIVATE: u32 = 0o700;

pub(super) fn obstacle() -> Option<&'static str> {
    None
}

pub(super) fn is_of(process: u32, path: &Path) -> io::Result<bool> {
    Ok(runs(process)? == number(&fs::metadata(path)?))
}

pub(super) fn is_of_file(process: u32, file: &File) -> io::Result<bool> {
    Ok(runs(process)? == number(&file.metadata()?))
}

/// What a process runs.
fn runs(process: u32) -> io::Result<(u64, u64)> {
    // The link leads to the file itself, also when its name leads elsewhere now.
    Ok(number(&fs::metadata(PathBuf::from(format!("/proc/{process}/exe")))?))
}

/// Identifies a file for as long as it exists.
fn number(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path)
}

pub(super) fn take_rights(file: &File, of: &Path) -> io::Result<()> {
    let (own, known) = (file.metadata()?, fs::metadata(of)?);
    if (own.uid(), own.gid()) != (known.uid(), known.gid()) {
        fchown(file, Some(known.uid()), Some(known.gid()))?;
    }
    file.set_permissions(known.permissions())
}

pub(super) fn restart(process: u32) -> io::Result<()> {
    // 0 and negative numbers mean groups of processes.
    let process = libc::pid_t::try_from(process).ok().filter(|process| *process > 1);
    let process = process.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: kill touches no memory of this process.
    #[expect(unsafe_code, reason = "std sends no signals")]
    let sent = unsafe { libc::kill(process, libc::SIGUSR2) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_process_runs_its_own_executable_and_no_other() {
        let (own, here) = (std::env::current_exe().unwrap(), std::process::id());
        assert!(is_of(here, &own).unwrap() && is_of_file(here, &File::open(&own).unwrap()).unwrap());
        assert!(!is_of_file(here, &File::open("/bin/sh").unwrap()).unwrap());
        assert!(!is_of(here, Path::new("/bin/sh")).unwrap());
        assert!(is_of(here, Path::new("/nowhere")).is_err());
        assert!(is_of(u32::MAX, &own).is_err());
    }

    #[test]
    fn a_new_executable_is_its_owners_alone_until_it_has_the_rights_of_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&old, "old").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let file = create(&new).unwrap();
        assert_eq!(mode(&new), 0o700);
        assert_eq!(create(&new).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        take_rights(&file, &old).unwrap();
        assert_eq!(mode(&new), 0o755);
    }

    #[test]
    fn no_group_of_processes_gets_a_signal() {
        for process in [0, 1, u32::MAX] {
            assert_eq!(restart(process).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
