//! The engine's socket.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;

use crate::nobody;

pub(super) const DEFAULT_ENDPOINT: &str = "unix:///var/run/docker.sock";

pub(super) const WHO_MAY: &str = "run as root, or as a member of the group docker";

pub(super) use tokio::net::UnixStream as Stream;

pub(super) async fn connect(path: &str) -> io::Result<Stream> {
    Stream::connect(path).await
}

pub(super) use tokio::net::UnixStream as Accepted;

/// Who may use a socket: its user and its group.
const MODE: u32 = 0o660;

/// The pause after an accept that failed, mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Listener(UnixListener, PathBuf);

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.1);
    }
}

pub(super) fn listen(path: &str, group: Option<&str>) -> io::Result<Listener> {
    let path = Path::new(path);
    let group = group.map(group_id).transpose()?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something that is no socket"));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => return Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => {}
        Err(_) => fs::create_dir_all(path.parent().unwrap_or(path))?,
    }
    // Under another name until its permissions are right.
    let aside = path.with_extension("new");
    if fs::symlink_metadata(&aside).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(&aside)?;
    }
    let listener = UnixListener::bind(&aside)?;
    // Not called for nothing: a process that may not give files away may still listen.
    if group.is_some() {
        chown(&aside, None, group)?;
    }
    let owner = fs::symlink_metadata(&aside)?;
    if let Err(error) = nobody::refuse(owner.uid(), owner.gid()) {
        fs::remove_file(&aside)?;
        return Err(error);
    }
    fs::set_permissions(&aside, fs::Permissions::from_mode(MODE))?;
    fs::rename(&aside, path)?;
    Ok(Listener(listener, path.to_owned()))
}

impl Listener {
    pub(super) async fn accept(&self) -> Accepted {
        loop {
            match self.0.accept().await {
                Ok((stream, _)) => return stream,
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// The number of a group, from its name in `/etc/group` or from itself.
fn group_id(group: &str) -> io::Result<u32> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let known = fs::read_to_string("/etc/group")?;
    let line = known.lines().find_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let id = line.and_then(|rest| rest.split(':').nth(1)?.parse().ok());
    id.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no group {group}")))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_socket_is_connected_and_one_that_is_not_there_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.sock").display().to_string();
        assert_eq!(connect(&path).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = UnixListener::bind(&path).unwrap();
        let (near, far) = tokio::join!(connect(&path), listener.accept());
        near.unwrap().write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        far.unwrap().0.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ping");
    }

    #[tokio::test]
    async fn a_socket_is_for_its_group_and_replaces_only_one_that_was_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/engine.sock").display().to_string();
        let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let listener = listen(&path, None).unwrap();
        assert_eq!(mode(&path), MODE);
        let (near, mut far) = tokio::join!(connect(&path), listener.accept());
        near.unwrap().write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        far.read_exact(&mut heard).await.unwrap();
        assert_eq!(listen(&path, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // As after a crash: the file stays, and nothing accepts.
        drop(std::os::unix::net::UnixListener::bind(format!("{path}2")).unwrap());
        drop(listen(&format!("{path}2"), None).unwrap());
        assert!(fs::symlink_metadata(format!("{path}2")).is_err(), "it is removed at the end");
        fs::write(format!("{path}3"), "x").unwrap();
        assert_eq!(listen(&format!("{path}3"), None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(listen(&path, Some("no such group")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
