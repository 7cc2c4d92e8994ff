//! Filters of sockets (classic BPF), which the kernel asks before it takes a packet.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use rtnetlink::MulticastGroup;
use socket2::Socket;

use crate::address::{Addresses, Interface};
use crate::broker::{self, Request};

/// Most interfaces that packets are taken from. A filter has two instructions for each, and the kernel takes 4096.
const INTERFACES_MAX: usize = 1000;

/// Pause after a change of interfaces before they are listed: a new network or container comes with several changes.
const SETTLE: Duration = Duration::from_millis(10);

/// Longest time without a look at the interfaces, should the kernel have had no room to report a change.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

pub(super) async fn install(
    sockets: Vec<Socket>,
    interface: Option<String>,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    // First watch, then look: a change in between is seen twice, never missed.
    let (connection, handle, mut changes) = rtnetlink::new_multicast_connection(&[MulticastGroup::Link])?;
    tokio::spawn(connection);
    let mut addresses = Addresses::over(handle);
    let mut inside = inside(&mut addresses, interface.as_deref()).await?;
    let sockets = Arc::new(sockets);
    attach_all(sockets.clone(), inside.clone()).await?;
    Ok(async move {
        loop {
            // An error means that the time is over.
            if let Ok(None) = tokio::time::timeout(LOOK_AGAIN, changes.next()).await {
                // The kernel reports nothing any more; looking goes on.
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            tokio::time::sleep(SETTLE).await;
            while changes.try_recv().is_ok() {}
            // What cannot be listed or set now is tried again, and the filters stay as they are.
            let Ok(now) = self::inside(&mut addresses, interface.as_deref()).await else { continue };
            if now != inside && attach_all(sockets.clone(), now.clone()).await.is_ok() {
                inside = now;
            }
        }
    })
}

/// The interfaces that packets are taken from: those of containers, the machine's own, and the one with this name.
async fn inside(addresses: &mut Addresses, named: Option<&str>) -> io::Result<Vec<u32>> {
    let interfaces = addresses.interfaces().await?;
    let inside = |interface: &&Interface| interface.containers || interface.loopback || Some(&*interface.name) == named;
    Ok(interfaces.iter().filter(inside).map(|interface| interface.index).take(INTERFACES_MAX).collect())
}

/// [`attach`] for all of them, off the threads that serve: a broker may be slow.
async fn attach_all(sockets: Arc<Vec<Socket>>, interfaces: Vec<u32>) -> io::Result<()> {
    let attaching = move || sockets.iter().try_for_each(|socket| attach(socket, &interfaces));
    tokio::task::spawn_blocking(attaching).await.map_err(io::Error::other)?
}

/// Makes a socket take packets from these interfaces only, instead of those it took them from before.
fn attach(socket: &Socket, interfaces: &[u32]) -> io::Result<()> {
    match broker::answered(&Request::TakeFrom(interfaces.to_vec()), Some(socket.as_fd())) {
        Some(answer) => answer.map(drop),
        None => take_from_here(socket, interfaces),
    }
}

/// [`attach`] by this very process. Newer versions of Linux ask for `NET_ADMIN` where the socket is one of TCP.
pub(crate) fn take_from_here(socket: &Socket, interfaces: &[u32]) -> io::Result<()> {
    let mut instructions = program(interfaces);
    let program = libc::sock_fprog {
        len: u16::try_from(instructions.len()).map_err(io::Error::other)?,
        filter: instructions.as_mut_ptr(),
    };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open because `socket` is borrowed; the option takes a sock_fprog, which points to as many
    // instructions as it says; both live until the call returns, and the kernel copies what it needs.
    #[expect(unsafe_code, reason = "socket2 does not offer filters that can change")]
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A filter that takes what arrives on one of these interfaces, whole, and drops the rest.
fn program(interfaces: &[u32]) -> Vec<libc::sock_filter> {
    const TAKE: u32 = u32::MAX;
    const DROP: u32 = 0;
    let instruction = |code: u32, if_false: u8, operand: u32| libc::sock_filter {
        // Codes of instructions have 16 bits, and libc has them as wider numbers.
        code: u16::try_from(code).unwrap_or_default(),
        jt: 0,
        jf: if_false,
        k: operand,
    };
    let verdict = |verdict| instruction(libc::BPF_RET | libc::BPF_K, 0, verdict);
    // Ancillary data lie at negative offsets, which are given as unsigned numbers.
    let arrived_on = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX).cast_unsigned();
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, arrived_on)];
    for interface in interfaces {
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, *interface));
        program.push(verdict(TAKE));
    }
    program.push(verdict(DROP));
    program
}
