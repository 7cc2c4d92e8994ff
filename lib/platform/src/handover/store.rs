//! The descriptor store of systemd: sockets that outlive their process (`sd_pid_notify_with_fds(3)`).
//!
//! The manager keeps another handle of each, and hands them to the next process of the service as it does sockets of its own. It needs
//! `FileDescriptorStoreMax=` in the unit; without it the manager closes what it gets.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::descriptors;

/// The socket of the manager.
const MANAGER: &str = "NOTIFY_SOCKET";

/// Has the manager of services forget the sockets of these names, then keep these. Does nothing for a process that is no service. What
/// the manager does not receive, it does not keep: there is nothing to do about an error.
pub(super) fn keep(sockets: &[(String, Socket)], forgotten: &[String]) {
    if let Some(manager) = std::env::var_os(MANAGER) {
        let _ = keep_at(Path::new(&manager), sockets, forgotten);
    }
}

fn keep_at(manager: &Path, sockets: &[(String, Socket)], forgotten: &[String]) -> io::Result<()> {
    let (from, manager) = (Socket::new(Domain::UNIX, Type::DGRAM, None)?, SockAddr::unix(manager)?);
    // By name: those that are still served follow in the next messages.
    for name in forgotten {
        let text = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        descriptors::send(&from, Some(&manager), text.as_bytes(), &[])?;
    }
    for (name, socket) in sockets {
        // Without the last line the manager drops a socket which has an error to tell, as one for datagrams has when a client is gone.
        let text = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        descriptors::send(&from, Some(&manager), text.as_bytes(), &[socket.as_fd()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn the_manager_is_told_what_to_forget_and_gets_each_socket_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let listener = crate::socket::tcp_listener(([127, 0, 0, 1], 0).into()).unwrap();
        keep_at(&path, &[("metadata".to_owned(), listener.into())], &["dns-tcp".to_owned()]).unwrap();
        let mut text = [0; 200];
        for expected in ["FDSTOREREMOVE=1\nFDNAME=dns-tcp", "FDSTORE=1\nFDNAME=metadata\nFDPOLL=0"] {
            let length = manager.recv(&mut text).unwrap();
            assert_eq!(String::from_utf8_lossy(&text[..length]), expected);
        }
        assert!(keep_at(&folder.path().join("nowhere"), &[], &["a".to_owned()]).is_err());
    }
}
