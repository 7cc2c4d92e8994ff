//! Descriptors in messages of Unix sockets (`SCM_RIGHTS`, unix(7)).

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use socket2::{MaybeUninitSlice, MsgHdr, MsgHdrMut, SockAddr, Socket};

/// Bytes before the descriptors of a control message: its length, as wide as a register, then the level and the type (`struct cmsghdr`).
const HEADER_BYTES: usize = size_of::<usize>() + 2 * size_of::<libc::c_int>();

/// Room for a control message with one descriptor; there may be room for two then.
const CONTROL_BYTES: usize = (HEADER_BYTES + size_of::<RawFd>()).next_multiple_of(size_of::<usize>());

/// Sends a message with descriptors: to the other end, or to an address.
pub(crate) fn send(
    from: &Socket,
    to: Option<&SockAddr>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let control = control(descriptors);
    let bytes = [IoSlice::new(bytes)];
    let message = MsgHdr::new().with_buffers(&bytes);
    let message = if descriptors.is_empty() { message } else { message.with_control(&control) };
    let message = match to {
        Some(address) => message.with_addr(address),
        None => message,
    };
    // Without a signal if there is no receiver any more.
    from.sendmsg(&message, libc::MSG_NOSIGNAL).map(drop)
}

/// Receives a message of at most `most` bytes and the descriptor that came with it; of several, the first. Empty at the end.
pub(crate) fn receive(from: &Socket, most: usize) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = vec![MaybeUninit::new(0); most];
    let mut control = [MaybeUninit::new(0); CONTROL_BYTES];
    let (length, control_length, cut) = {
        let mut parts = [MaybeUninitSlice::new(&mut bytes)];
        let mut message = MsgHdrMut::new().with_buffers(&mut parts).with_control(&mut control);
        let length = from.recvmsg(&mut message, libc::MSG_CMSG_CLOEXEC)?;
        (length, message.control_len(), message.flags().is_truncated())
    };
    let mut descriptors = descriptors(initialised(control.get(..control_length).unwrap_or_default()));
    if cut {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of more than {most} bytes")));
    }
    let first = if descriptors.is_empty() { None } else { Some(descriptors.swap_remove(0)) };
    Ok((initialised(bytes.get(..length).unwrap_or_default()).to_vec(), first))
}

/// What was received into bytes that had a value before.
fn initialised(bytes: &[MaybeUninit<u8>]) -> &[u8] {
    // SAFETY: both callers made them of zeros, and receiving only writes values.
    #[expect(unsafe_code, reason = "socket2 takes bytes that may have no value")]
    unsafe {
        bytes.assume_init_ref()
    }
}

/// The descriptors of a control message that was just received.
fn descriptors(control: &[u8]) -> Vec<OwnedFd> {
    let number = |at: usize| control.get(at..at + size_of::<libc::c_int>()).and_then(|bytes| bytes.try_into().ok());
    let number = |at| number(at).map(libc::c_int::from_ne_bytes);
    let level_at = size_of::<usize>();
    if number(level_at) != Some(libc::SOL_SOCKET)
        || number(level_at + size_of::<libc::c_int>()) != Some(libc::SCM_RIGHTS)
    {
        return Vec::new();
    }
    let Some(length) = control.first_chunk().map(|bytes| usize::from_ne_bytes(*bytes)) else { return Vec::new() };
    let places = (HEADER_BYTES..length.min(control.len())).step_by(size_of::<RawFd>());
    let received = |descriptor| {
        // SAFETY: the kernel has made it for this process in the very call that gave the message, which is read once.
        #[expect(unsafe_code, reason = "a descriptor that was received is a number")]
        unsafe {
            OwnedFd::from_raw_fd(descriptor)
        }
    };
    places.filter_map(number).map(received).collect()
}

/// A control message with descriptors.
fn control(descriptors: &[BorrowedFd<'_>]) -> Vec<u8> {
    let length = HEADER_BYTES + descriptors.len() * size_of::<RawFd>();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
    bytes.extend(libc::SCM_RIGHTS.to_ne_bytes());
    bytes.extend(descriptors.iter().flat_map(|descriptor| descriptor.as_raw_fd().to_ne_bytes()));
    // The kernel looks at headers in steps of a register.
    bytes.resize(length.next_multiple_of(size_of::<usize>()), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use socket2::{Domain, Type};

    use super::*;

    fn pair() -> (Socket, Socket) {
        Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap()
    }

    #[test]
    fn a_control_message_is_as_the_kernel_wants_it() {
        // SAFETY: both only compute.
        #[expect(unsafe_code, reason = "macros of C that libc has as unsafe functions")]
        let (length, space) = unsafe { (libc::CMSG_LEN(12), libc::CMSG_SPACE(12)) };
        let input = io::stdin();
        let bytes = control(&[input.as_fd(); 3]);
        assert_eq!(bytes.len(), space as usize);
        assert_eq!(bytes[..size_of::<usize>()], (length as usize).to_ne_bytes());
    }

    #[test]
    fn a_message_arrives_with_its_descriptor_and_no_other_one_stays_open() {
        let (ours, theirs) = pair();
        let (kept, closed) = (pair(), pair());
        send(&ours, None, b"take this", &[kept.0.as_fd(), closed.0.as_fd()]).unwrap();
        drop((kept.0, closed.0));
        let (bytes, descriptor) = receive(&theirs, 100).unwrap();
        assert_eq!(bytes, b"take this");
        let received = Socket::from(descriptor.unwrap());
        received.send(b"here").unwrap();
        assert_eq!(receive(&kept.1, 100).unwrap().0, b"here");
        assert_eq!(receive(&closed.1, 100).unwrap().0, b"", "the second descriptor was closed");

        send(&ours, None, b"nothing beside", &[]).unwrap();
        let (bytes, descriptor) = receive(&theirs, 100).unwrap();
        assert_eq!((&*bytes, descriptor.is_none()), (&b"nothing beside"[..], true));
        send(&ours, None, &[b'a'; 101], &[received.as_fd()]).unwrap();
        assert!(receive(&theirs, 100).unwrap_err().to_string().contains("more than 100 bytes"));
        drop((ours, received));
        assert_eq!(receive(&theirs, 100).unwrap().0, b"");
        assert_eq!(receive(&kept.1, 100).unwrap().0, b"", "that of a message that was refused is closed too");
    }
}
