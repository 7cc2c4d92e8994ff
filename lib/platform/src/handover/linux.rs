//! fork(2) and execve(2) with descriptors, as `sd_listen_fds(3)` describes it.

use std::env;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, parent_id};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use socket2::Socket;
use tokio::io::AsyncReadExt as _;

pub(super) use super::store::keep;
use crate::broker;

use super::{FAILED, Inherited, Predecessor, SERVING, SOCKETS_MAX};

/// Longest reason of a successor that is read.
const REASON_BYTES_MAX: u64 = 4096;

/// The first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// How many there are, their names, and for which process they are. Without the last they are for a child of the process that
/// [`PREDECESSOR`] names.
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
const PROCESS: &str = "LISTEN_PID";

/// The number of the predecessor, and the addresses that it has put on interfaces.
const PREDECESSOR: &str = "BERTH_RESTART";

/// The name of the link.
const LINK: &str = "berth-restart";

/// The name of the way to ask the [`broker`](crate::broker), if the predecessor has one.
const BROKER: &str = "berth-broker";

/// The process that is watched by systemd: the successor is another one.
const WATCHED: &str = "WATCHDOG_PID";

/// Longest wait for the end of a process that has closed its link.
const END_LIMIT: Duration = Duration::from_secs(2);
const END_INTERVAL: Duration = Duration::from_millis(5);

/// Whether [`take`] was called.
static TAKEN: AtomicBool = AtomicBool::new(false);

pub(super) fn obstacle() -> Option<&'static str> {
    (std::process::id() == 1).then_some(
        "this process is the first one of its container, which ends with it; start another container beside this one instead",
    )
}

/// The number of the predecessor, and the addresses that it has put on interfaces.
type Before = (u32, Vec<IpAddr>);

/// What was handed to this process: the names, one for each descriptor from [`FIRST`] on, and the predecessor that did so.
fn handed() -> Option<(Vec<String>, Option<Before>)> {
    let text = |name| env::var(name).ok();
    let predecessor = text(PREDECESSOR).unwrap_or_default();
    let mut words = predecessor.split(' ');
    let process = words.next().and_then(|number| number.parse::<u32>().ok());
    let ours = match text(PROCESS) {
        Some(process) => process.parse() == Ok(std::process::id()),
        None => process == Some(parent_id()),
    };
    let count = text(COUNT)?.parse::<usize>().ok()?;
    if !ours || count > SOCKETS_MAX + 2 {
        return None;
    }
    let mut names: Vec<_> = text(NAMES).unwrap_or_default().split(':').map(str::to_owned).collect();
    names.resize(count, String::new());
    let addresses = words.filter_map(|address| address.parse().ok()).collect();
    Some((names, process.map(|process| (process, addresses))))
}

/// Whether a descriptor is open.
fn is_open(descriptor: RawFd) -> bool {
    // SAFETY: F_GETFD only looks whether the descriptor is open.
    #[expect(unsafe_code, reason = "std has no call for it")]
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
    flags >= 0
}

pub(super) fn take() -> Option<Inherited> {
    let (names, predecessor) = handed()?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    let (mut sockets, mut link, mut asking) = (Vec::new(), None, None);
    for (descriptor, name) in (FIRST..).zip(names) {
        if !is_open(descriptor) {
            continue;
        }
        // SAFETY: the descriptor is open. Whoever started this process says in its environment that it is handed over to this
        // very process, so nothing else in it was given the number; the flag above lets it be taken once.
        #[expect(unsafe_code, reason = "a descriptor that was inherited is a number")]
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let socket = Socket::from(descriptor);
        // Programs that this process starts are not to have it. What is no socket has no local address, and is closed.
        if socket.set_cloexec(true).is_err() || socket.local_addr().is_err() {
            continue;
        }
        if name == BROKER {
            // The process before puts its own last, behind whatever a manager has kept under that name.
            asking = Some(socket);
        } else if name == LINK {
            link = Some(UnixStream::from(OwnedFd::from(socket)));
        } else if socket.set_nonblocking(true).is_ok() {
            // Those of a manager's own units may block.
            sockets.push((name, socket));
        }
    }
    if let Some(asking) = asking {
        // The first one of this process.
        let _ = broker::take_over(asking);
    }
    let predecessor = predecessor.zip(link).map(|((process, addresses), link)| Predecessor {
        link: Link(Arc::new(link)),
        process,
        addresses,
    });
    Some(Inherited { sockets, predecessor })
}

/// What was open of what was handed to this process before it opened anything itself, see [`keep_to_itself`].
static KEPT: OnceLock<Vec<(String, RawFd)>> = OnceLock::new();

/// Has programs that this process starts from now on not get what was handed to it.
pub(super) fn keep_to_itself() {
    let names = handed().map(|(names, _)| names).unwrap_or_default();
    let open: Vec<_> = names.into_iter().zip(FIRST..).filter(|(_, descriptor)| is_open(*descriptor)).collect();
    for (_, descriptor) in &open {
        // SAFETY: changes a flag of a descriptor that is open, and touches no memory.
        #[expect(unsafe_code, reason = "it is taken later, by who has the sockets")]
        unsafe {
            libc::fcntl(*descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
    // There is one beginning.
    let _ = KEPT.set(open);
}

/// Runs this program again in place of this process, with the same arguments, what was handed to it, and a way to ask a broker. Returns
/// only if that fails.
pub(crate) fn run_again(broker: &Socket) -> io::Error {
    let is_successor = handed().is_some_and(|(_, predecessor)| predecessor.is_some());
    // Only this process knows its broker.
    let kept = KEPT.get().into_iter().flatten().filter(|(name, _)| name != BROKER);
    let (kept, handed): (Vec<&str>, Vec<RawFd>) =
        kept.map(|(name, descriptor)| (name.as_str(), *descriptor)).chain([(BROKER, broker.as_raw_fd())]).unzip();
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut words = env::args_os();
    let mut command = Command::new(program);
    command.arg0(words.next().unwrap_or_default()).args(words);
    command.env(COUNT, kept.len().to_string()).env(NAMES, kept.join(":"));
    if !is_successor {
        command.env(PROCESS, std::process::id().to_string());
    }
    place(&mut command, handed);
    command.exec()
}

/// The successor's end of the link.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<UnixStream>);

impl Link {
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&*self.0).write_all(bytes)
    }

    pub(super) async fn ended(&self) {
        let link = self.0.try_clone().and_then(|link| {
            link.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(link)
        });
        // Without another descriptor nothing can be waited for: then it counts as gone, and what it still holds is refused.
        let Ok(mut link) = link else { return };
        // It says nothing.
        while let Ok(1..) = link.read(&mut [0; 16]).await {}
    }
}

#[derive(Debug)]
pub(super) struct Successor {
    child: Child,
    link: tokio::net::UnixStream,
    serves: bool,
}

impl Successor {
    pub(super) fn start(program: &Path, sockets: &[(String, Socket)], addresses: &[IpAddr]) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let link = tokio::net::UnixStream::from_std(ours)?;
        let broker = broker::another()?;
        let own = [(LINK, theirs.as_raw_fd())].into_iter().chain(broker.iter().map(|way| (BROKER, way.as_raw_fd())));
        let all = sockets.iter().map(|(name, socket)| (name.as_str(), socket.as_raw_fd())).chain(own);
        let (names, handed): (Vec<&str>, Vec<RawFd>) = all.unzip();
        let predecessor =
            std::iter::once(std::process::id().to_string()).chain(addresses.iter().map(IpAddr::to_string));
        let mut words = env::args_os();
        let mut command = Command::new(program);
        command.arg0(words.next().unwrap_or_default()).args(words);
        command
            .env(COUNT, handed.len().to_string())
            .env(NAMES, names.join(":"))
            .env_remove(PROCESS)
            .env_remove(WATCHED);
        command.env(PREDECESSOR, predecessor.collect::<Vec<_>>().join(" "));
        place(&mut command, handed);
        let child = command.spawn()?;
        // Until here the descriptors had to be open.
        drop((theirs, broker));
        Ok(Self { child, link, serves: false })
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn stop(&self) -> io::Result<()> {
        let process = libc::pid_t::try_from(self.child.id()).map_err(io::Error::other)?;
        // SAFETY: the call takes two numbers. The process is our child and was not waited for, so that its number is no other's.
        #[expect(unsafe_code, reason = "std only kills")]
        let sent = unsafe { libc::kill(process, libc::SIGTERM) };
        if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) async fn serving(&mut self) -> Result<(), String> {
        let mut word = [0];
        match self.link.read(&mut word).await {
            Ok(1) if word[0] == SERVING => {
                self.serves = true;
                Ok(())
            }
            Ok(1) if word[0] == FAILED => Err(self.reason().await),
            _ => Err(self.end().await),
        }
    }

    /// Why it does not serve, in its own words.
    async fn reason(&mut self) -> String {
        let mut reason = Vec::new();
        // What was read before an error is a reason, too.
        let _ = (&mut self.link).take(REASON_BYTES_MAX).read_to_end(&mut reason).await;
        String::from_utf8_lossy(&reason).into_owned()
    }

    /// How a process ended that has closed its link.
    async fn end(&mut self) -> String {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return format!("it ended ({status}); what it wrote stands in the log or on standard error");
                }
                Ok(None) if begun.elapsed() < END_LIMIT => tokio::time::sleep(END_INTERVAL).await,
                _ => return "it closed its link".to_owned(),
            }
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.serves {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Gives the program these descriptors as those from [`FIRST`] on; they have to be open until it was started.
fn place(command: &mut Command, handed: Vec<RawFd>) {
    let mut aside = vec![-1; handed.len()];
    let after = FIRST + RawFd::try_from(handed.len()).unwrap_or(RawFd::MAX - FIRST);
    let placed = move || {
        // Out of the way first: a descriptor may stand where another one is to be.
        for (from, aside) in handed.iter().zip(&mut aside) {
            // SAFETY: duplicates a descriptor, and touches no memory.
            #[expect(unsafe_code, reason = "std has no call for it")]
            let copy = unsafe { libc::fcntl(*from, libc::F_DUPFD_CLOEXEC, after) };
            if copy < 0 {
                return Err(io::Error::last_os_error());
            }
            *aside = copy;
        }
        for (to, aside) in (FIRST..).zip(&aside) {
            // SAFETY: what stood there is this child's own copy of a descriptor, which would be closed by execve in any case:
            // all that Rust opens is. The copy that is made stays open.
            #[expect(unsafe_code, reason = "std has no call for it")]
            let copy = unsafe { libc::dup2(*aside, to) };
            if copy < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and execve in a process with threads only async-signal-safe functions may be called: these are
    // fcntl and dup2, and what is written to was allocated before. `last_os_error` reads errno and allocates nothing.
    #[expect(unsafe_code, reason = "nothing else chooses the descriptors of a program")]
    unsafe {
        command.pre_exec(placed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;

    /// A program that prints which sockets it has from [`FIRST`] on.
    fn listing() -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "for fd in 3 4 5; do readlink /proc/$$/fd/$fd || echo none; done"]).stdout(Stdio::piped());
        command
    }

    #[test]
    fn descriptors_are_placed_in_order_also_where_they_stand_in_each_others_place() {
        let pairs: Vec<_> = (0..2).map(|_| UnixStream::pair().unwrap()).collect();
        let name = |descriptor: RawFd| std::fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap();
        let [first, second] = [pairs[0].0.as_raw_fd(), pairs[1].0.as_raw_fd()];
        for handed in [[first, second], [second, first]] {
            let _starting = crate::programs::starting();
            let mut command = listing();
            place(&mut command, handed.to_vec());
            let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let expected: Vec<_> = handed.iter().map(|descriptor| name(*descriptor).display().to_string()).collect();
            assert_eq!(output.lines().take(2).collect::<Vec<_>>(), expected, "{output}");
        }
    }

    #[test]
    fn nothing_was_handed_to_a_process_that_no_predecessor_started() {
        assert!(take().is_none());
    }

    #[tokio::test]
    async fn a_successor_that_ends_is_reported_with_its_exit_code_and_one_that_speaks_in_its_words() {
        // The arguments are those of this test, of which `true` and `false` make nothing.
        for (program, expected) in
            [("/bin/true", "it ended (exit status: 0)"), ("/bin/false", "it ended (exit status: 1)")]
        {
            let starting = crate::programs::starting();
            let mut successor = Successor::start(Path::new(program), &[], &[]).unwrap();
            drop(starting);
            let reason = successor.serving().await.unwrap_err();
            assert!(reason.starts_with(expected), "{reason}");
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let link = tokio::net::UnixStream::from_std(ours).unwrap();
        let starting = crate::programs::starting();
        let child = Command::new("/bin/true").spawn().unwrap();
        drop(starting);
        let mut successor = Successor { child, link, serves: false };
        let predecessor = Predecessor { link: Link(Arc::new(theirs)), process: 1, addresses: Vec::new() };
        predecessor.report_failure("no such file");
        drop(predecessor);
        assert_eq!(successor.serving().await.unwrap_err(), "no such file");
    }

    #[tokio::test]
    async fn a_predecessor_is_gone_when_its_end_of_the_link_is_closed() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let predecessor = Predecessor { link: Link(Arc::new(theirs)), process: 1, addresses: Vec::new() };
        predecessor.report_serving().unwrap();
        let mut word = [0];
        ours.read_exact(&mut word).unwrap();
        assert_eq!(word, [SERVING]);
        assert!(tokio::time::timeout(Duration::from_millis(10), predecessor.gone()).await.is_err());
        drop(ours);
        predecessor.gone().await;
        assert!(predecessor.report_serving().is_err());
    }
}
