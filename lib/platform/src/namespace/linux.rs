//! setns(2) on a thread of its own.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;

pub(super) fn within<T: Send>(pid: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // SAFETY: takes no pointers, and the descriptor is open because `namespace` is borrowed. Only this thread
            // moves, and it ends with `work`.
            #[expect(unsafe_code, reason = "std does not know namespaces")]
            let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            if result == 0 { Ok(work()) } else { Err(io::Error::last_os_error()) }
        });
        worker.join().unwrap_or_else(|_| Err(io::Error::other("the work in the namespace panicked")))
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::{Command, Stdio};

    use super::*;

    /// The name of the network namespace that the calling thread is in.
    fn own() -> String {
        std::fs::read_link("/proc/thread-self/ns/net").unwrap().display().to_string()
    }

    #[test]
    fn work_is_done_in_the_namespace_of_the_process_and_the_caller_stays_where_it_was() {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo there; exec sleep 60"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let started = {
            let _starting = crate::programs::starting();
            command.spawn()
        };
        let Ok(mut other) = started else { return println!("there is no unshare (util-linux)") };
        let mut there = [0; 6];
        if io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut there).is_err() {
            other.wait().unwrap();
            return println!("no network namespace without root");
        }
        let before = own();
        let inside = within(other.id(), || (own(), UdpSocket::bind("127.0.0.1:0").is_ok())).unwrap();
        let its_own = std::fs::read_link(format!("/proc/{}/ns/net", other.id())).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(inside.0, its_own.display().to_string());
        assert_ne!(inside.0, before);
        assert_eq!(own(), before);
    }

    #[test]
    fn a_process_that_has_gone_is_an_error() {
        assert_eq!(within(u32::MAX, || ()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
