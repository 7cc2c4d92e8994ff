//! The descriptor store of systemd: sockets that outlive their process (`sd_pid_notify_with_fds(3)`).
//!
//! The manager keeps another handle of each, and hands them to the next process of the service as it does sockets of its own. It needs
//! `FileDescriptorStoreMax=` in the unit; without it the manager closes what it gets.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;

use socket2::{Domain, MsgHdr, SockAddr, Socket, Type};

/// The socket of the manager.
const MANAGER: &str = "NOTIFY_SOCKET";

/// Bytes before the descriptors of a control message: its length, as wide as a register, then the level and the type (`struct cmsghdr`).
const HEADER_BYTES: usize = size_of::<usize>() + 2 * size_of::<libc::c_int>();

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
        send(&from, &manager, &format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])?;
    }
    for (name, socket) in sockets {
        // Without the last line the manager drops a socket which has an error to tell, as one for datagrams has when a client is gone.
        send(&from, &manager, &format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), &[socket.as_raw_fd()])?;
    }
    Ok(())
}

fn send(from: &Socket, manager: &SockAddr, text: &str, descriptors: &[RawFd]) -> io::Result<()> {
    let control = control(descriptors);
    let text = [IoSlice::new(text.as_bytes())];
    let message = MsgHdr::new().with_addr(manager).with_buffers(&text);
    let message = if descriptors.is_empty() { message } else { message.with_control(&control) };
    from.sendmsg(&message, 0).map(drop)
}

/// A control message with descriptors (`SCM_RIGHTS`).
fn control(descriptors: &[RawFd]) -> Vec<u8> {
    let length = HEADER_BYTES + size_of_val(descriptors);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
    bytes.extend(libc::SCM_RIGHTS.to_ne_bytes());
    bytes.extend(descriptors.iter().flat_map(|descriptor| descriptor.to_ne_bytes()));
    // The kernel looks at headers in steps of a register.
    bytes.resize(length.next_multiple_of(size_of::<usize>()), 0);
    bytes
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

    #[test]
    fn a_control_message_is_as_the_kernel_wants_it() {
        // SAFETY: both only compute.
        #[expect(unsafe_code, reason = "macros of C that libc has as unsafe functions")]
        let (length, space) = unsafe { (libc::CMSG_LEN(12), libc::CMSG_SPACE(12)) };
        let bytes = control(&[3, 4, 5]);
        assert_eq!(bytes.len(), space as usize);
        assert_eq!(bytes[..size_of::<usize>()], (length as usize).to_ne_bytes());
    }
}
