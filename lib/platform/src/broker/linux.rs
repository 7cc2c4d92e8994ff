//! Requests and answers as text, one for each message of a Unix socket, with a descriptor where one belongs to it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::str::{FromStr, SplitAsciiWhitespace};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::address::Addresses;
use crate::stop::{ReloadEvents, RestartEvents, StopEvents};
use crate::{descriptors, handover, ingress, redirect, socket};

/// Longest wait for an answer: what is asked takes milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Longest message: a filter for 1000 interfaces has their numbers.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Most processes that ask one broker: a service, and its successor while both run.
const ASKING_MAX: usize = 4;

/// What a broker does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Nothing, but to answer.
    Ready,
    /// Puts an address on the interface of this number, with Berth's mark; the answer says whether no other program was faster.
    Add(IpAddr, u32),
    /// Takes it away.
    Remove(IpAddr, u32),
    /// Leads what arrives for this port of the address to the port [behind](redirect::behind) it; the answer has the socket that the
    /// rules live by.
    Redirect(Ipv4Addr, u16),
    /// Has the socket that comes with it take packets from the interfaces of these numbers alone.
    TakeFrom(Vec<u32>),
    /// Gives the socket that comes with it the room for datagrams that those of services have.
    ReceiveBuffer,
    /// Another way to ask, which comes with the answer.
    Another,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Add(address, interface) => write!(f, "add {address} {interface}"),
            Self::Remove(address, interface) => write!(f, "remove {address} {interface}"),
            Self::Redirect(address, port) => write!(f, "redirect {address} {port}"),
            Self::TakeFrom(interfaces) => {
                f.write_str("take-from")?;
                interfaces.iter().try_for_each(|interface| write!(f, " {interface}"))
            }
            Self::ReceiveBuffer => f.write_str("receive-buffer"),
            Self::Another => f.write_str("another"),
        }
    }
}

impl FromStr for Request {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        fn next<T: FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<T> {
            words.next()?.parse().ok()
        }
        let mut words = text.split_ascii_whitespace();
        let request = match words.next().unwrap_or_default() {
            "ready" => Some(Self::Ready),
            "add" => next(&mut words).zip(next(&mut words)).map(|(address, interface)| Self::Add(address, interface)),
            "remove" => {
                next(&mut words).zip(next(&mut words)).map(|(address, interface)| Self::Remove(address, interface))
            }
            "redirect" => next(&mut words).zip(next(&mut words)).map(|(address, port)| Self::Redirect(address, port)),
            "take-from" => words.by_ref().map(|word| word.parse().ok()).collect::<Option<_>>().map(Self::TakeFrom),
            "receive-buffer" => Some(Self::ReceiveBuffer),
            "another" => Some(Self::Another),
            _ => None,
        };
        let request = request.filter(|_| words.next().is_none());
        request.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, format!("no request of a broker: {text:?}")))
    }
}

/// What a broker has done.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// For [`Request::Add`].
    pub(crate) added: bool,
    pub(crate) descriptor: Option<OwnedFd>,
}

/// An answer in one word and a value: `done true`, `code 1` or `failed WHY`.
fn write_answer(answer: &io::Result<Answer>) -> String {
    match answer {
        Ok(answer) => format!("done {}", answer.added),
        Err(error) => match error.raw_os_error() {
            Some(code) => format!("code {code}"),
            None => format!("failed {error}"),
        },
    }
}

fn read_answer(text: &str, descriptor: Option<OwnedFd>) -> io::Result<Answer> {
    match text.split_once(' ') {
        Some(("done", added)) => Ok(Answer { added: added == "true", descriptor }),
        Some(("code", code)) => Err(code.parse().map_or_else(io::Error::other, io::Error::from_raw_os_error)),
        Some(("failed", why)) => Err(io::Error::other(why.to_owned())),
        _ => Err(io::Error::other(format!("no answer of a broker: {text:?}"))),
    }
}

/// The broker of this process. What a process may do is one fact of all of it, and so is whom it asks instead.
static BROKER: OnceLock<Channel> = OnceLock::new();

/// A way to ask a broker, one question at a time.
#[derive(Debug)]
struct Channel {
    asking: Mutex<Asking>,
    /// Another handle of the same, to look whether the broker is there while another thread waits for an answer.
    looking: Socket,
}

#[derive(Debug)]
struct Asking {
    socket: Socket,
    /// Answers that were given up, and may come before the next one.
    late: usize,
}

impl Channel {
    fn over(socket: Socket) -> io::Result<Self> {
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self { looking: socket.try_clone()?, asking: Mutex::new(Asking { socket, late: 0 }) })
    }

    fn ask(&self, request: &Request, descriptor: Option<BorrowedFd<'_>>) -> io::Result<Answer> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors::send(&asking.socket, None, request.to_string().as_bytes(), descriptor.as_slice())
            .map_err(|error| silent(&error))?;
        loop {
            match descriptors::receive(&asking.socket, MESSAGE_BYTES_MAX) {
                Ok((bytes, _)) if bytes.is_empty() => {
                    return Err(io::Error::new(
                        io::ErrorKind::BrokenPipe,
                        "the process with the capability NET_ADMIN has ended",
                    ));
                }
                Ok(_) if asking.late > 0 => asking.late -= 1,
                Ok((bytes, descriptor)) => return read_answer(&String::from_utf8_lossy(&bytes), descriptor),
                Err(error) => {
                    asking.late += 1;
                    return Err(silent(&error));
                }
            }
        }
    }

    fn is_gone(&self) -> bool {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        match self.looking.recv_with_flags(&mut [std::mem::MaybeUninit::uninit()], flags) {
            Ok(length) => length == 0,
            // Another error says that it ended with a question unread.
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }
}

/// Why there is no answer.
fn silent(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the process with the capability NET_ADMIN does not answer: {error}"))
}

pub(super) fn start(mut command: Command) -> io::Result<()> {
    let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    let mut child = command.spawn()?;
    // It has the only handle of the other end, so that its end is noticed.
    drop(command);
    let channel = Channel::over(ours)?;
    if let Err(error) = channel.ask(&Request::Ready, None) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    BROKER.set(channel).map_err(|_| io::Error::other("this process has a broker already"))
}

pub(super) fn run_again() -> io::Error {
    match BROKER.get() {
        Some(channel) => handover::run_again(&channel.looking),
        None => io::Error::other("this process has no broker"),
    }
}

pub(super) fn is_used() -> bool {
    BROKER.get().is_some()
}

pub(super) fn is_gone() -> bool {
    BROKER.get().is_some_and(Channel::is_gone)
}

/// Asks the broker of the process before this one, from now on.
pub(crate) fn take_over(channel: Socket) -> io::Result<()> {
    BROKER.set(Channel::over(channel)?).map_err(|_| io::Error::other("this process has a broker already"))
}

/// A way to ask for a successor of this process, if this one has a broker.
pub(crate) fn another() -> io::Result<Option<Socket>> {
    let Some(answer) = answered(&Request::Another, None) else { return Ok(None) };
    Ok(answer?.descriptor.map(Socket::from))
}

/// What the broker of this process answers; `None` if it has none, and does by itself what it may do.
pub(crate) fn answered(request: &Request, descriptor: Option<BorrowedFd<'_>>) -> Option<io::Result<Answer>> {
    BROKER.get().map(|channel| channel.ask(request, descriptor))
}

/// [`answered`] for what may wait.
pub(crate) async fn asked(request: Request) -> Option<io::Result<Answer>> {
    if !is_used() {
        return None;
    }
    let answer = tokio::task::spawn_blocking(move || answered(&request, None)).await;
    answer.unwrap_or_else(|failure| Some(Err(io::Error::other(failure))))
}

pub(super) fn serve(services: &[SocketAddr]) -> io::Result<()> {
    let runtime = runtime()?;
    {
        let _within = runtime.enter();
        // It ends with those that ask, and not because all processes of a service are asked to stop or to start again.
        std::mem::forget((StopEvents::new()?, ReloadEvents::new()?, RestartEvents::new()?));
    }
    let channel = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    if channel.r#type()? != Type::SEQPACKET {
        return Err(io::Error::other("standard input is not the socket of a process that asks"));
    }
    let broker = Broker { services, added: Mutex::default(), asking: Mutex::new(1) };
    // The descriptor of standard input itself stays open, which is no handle of the end that asks.
    thread::scope(|scope| broker.answer_all(scope, &channel));
    Ok(())
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// What the threads of a broker share.
struct Broker<'a> {
    /// What it may change the addresses of, and redirect.
    services: &'a [SocketAddr],
    /// What it has put on which interface. Addresses of IPv6 have no mark.
    added: Mutex<Vec<(IpAddr, u32)>>,
    /// How many ways to ask there are.
    asking: Mutex<usize>,
}

impl<'a> Broker<'a> {
    /// Answers until no process has the other end any more.
    fn answer_all<'s>(&'s self, scope: &'s thread::Scope<'s, 'a>, channel: &Socket) {
        // What cannot be received was no request.
        while let Ok((bytes, descriptor)) = descriptors::receive(channel, MESSAGE_BYTES_MAX) {
            if bytes.is_empty() {
                break;
            }
            let request = String::from_utf8_lossy(&bytes).parse();
            let answer = request.and_then(|request| match request {
                Request::Another => self.another(scope),
                request => self.done(&request, descriptor),
            });
            let sent = answer.as_ref().ok().and_then(|answer| answer.descriptor.as_ref()).map(OwnedFd::as_fd);
            if descriptors::send(channel, None, write_answer(&answer).as_bytes(), sent.as_slice()).is_err() {
                break;
            }
        }
        *self.asking.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
    }

    fn another<'s>(&'s self, scope: &'s thread::Scope<'s, 'a>) -> io::Result<Answer> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if *asking == ASKING_MAX {
            return Err(io::Error::other(format!("{ASKING_MAX} processes can ask already")));
        }
        let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        thread::Builder::new().spawn_scoped(scope, move || self.answer_all(scope, &ours))?;
        *asking += 1;
        Ok(Answer { descriptor: Some(theirs.into()), ..Answer::default() })
    }

    fn added(&self) -> MutexGuard<'_, Vec<(IpAddr, u32)>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self, request: &Request, descriptor: Option<OwnedFd>) -> io::Result<Answer> {
        let refused = |why: String| Err(io::Error::other(why));
        let own = |address: IpAddr| {
            // Those of the loopback interface are there by themselves.
            let known = !address.is_loopback() && self.services.iter().any(|service| service.ip() == address);
            if known { Ok(()) } else { refused(format!("{address} is none of this service's addresses")) }
        };
        let given = || descriptor.map(Socket::from).ok_or_else(|| io::Error::other("a request without its socket"));
        match request {
            Request::Ready | Request::Another => {}
            Request::Add(address, interface) => {
                own(*address)?;
                let added = runtime()?.block_on(async {
                    let mut system = Addresses::open()?;
                    let interfaces = system.interfaces().await?;
                    let interface = interfaces.iter().find(|known| known.index == *interface);
                    let interface = interface.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
                    system.add_here(*address, interface).await
                })?;
                if added {
                    self.added().push((*address, *interface));
                }
                return Ok(Answer { added, ..Answer::default() });
            }
            Request::Remove(address, interface) => {
                own(*address)?;
                let place = (*address, *interface);
                runtime()?.block_on(async {
                    let mut system = Addresses::open()?;
                    let is_ours = self.added().contains(&place) || system.is_marked(*address, *interface).await?;
                    if is_ours {
                        system.remove_here(*address, *interface).await
                    } else {
                        refused(format!("{address} was added by something else"))
                    }
                })?;
                self.added().retain(|added| *added != place);
            }
            Request::Redirect(address, port) => {
                let address = SocketAddr::from((*address, *port));
                let behind = redirect::behind(address).filter(|_| self.services.contains(&address));
                let behind = behind.ok_or_else(|| io::Error::other(format!("{address} is none of this service's")))?;
                let owner = redirect::rules_here(address, behind)?;
                return Ok(Answer { descriptor: Some(owner.into()), ..Answer::default() });
            }
            Request::TakeFrom(interfaces) => ingress::take_from_here(&given()?, interfaces)?,
            Request::ReceiveBuffer => socket::extend_receive_buffer_here(&given()?)?,
        }
        Ok(Answer::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: &str = "192.0.2.250:80";

    /// A broker for [`SERVICE`] on a thread of its own, and what asks it.
    fn asked(test: impl FnOnce(&Channel)) {
        let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let serving = thread::spawn(move || {
            let services = [SERVICE.parse().unwrap()];
            let broker = Broker { services: &services, added: Mutex::default(), asking: Mutex::new(1) };
            thread::scope(|scope| broker.answer_all(scope, &theirs));
        });
        test(&Channel::over(ours).unwrap());
        serving.join().unwrap();
    }

    #[test]
    fn requests_are_read_as_they_are_written_and_nothing_else_is_one() {
        let address: IpAddr = "192.0.2.250".parse().unwrap();
        for request in [
            Request::Ready,
            Request::Add(address, 3),
            Request::Remove("2001:db8::1".parse().unwrap(), u32::MAX),
            Request::Redirect([192, 0, 2, 250].into(), 80),
            Request::TakeFrom(vec![]),
            Request::TakeFrom(vec![1, 2, 3]),
            Request::ReceiveBuffer,
            Request::Another,
        ] {
            assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
        }
        for text in [
            "",
            "ready now",
            "add",
            "add 192.0.2.250",
            "add 192.0.2.250 -1",
            "redirect 2001:db8::1 80",
            "take-from a",
            "route",
        ] {
            assert!(text.parse::<Request>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_the_services_own_addresses_and_ports_are_changed() {
        asked(|channel| {
            let refused = |request: &Request| channel.ask(request, None).unwrap_err().to_string();
            for request in [
                Request::Add("192.0.2.251".parse().unwrap(), 1),
                Request::Remove("10.0.0.1".parse().unwrap(), 1),
                Request::Add("127.0.0.1".parse().unwrap(), 1),
                Request::Redirect([192, 0, 2, 250].into(), 22),
                Request::Redirect([192, 0, 2, 251].into(), 80),
                Request::Redirect([127, 0, 0, 1].into(), 80),
            ] {
                let why = refused(&request);
                assert!(why.contains("none of this service's"), "{request}: {why}");
            }
            // On no interface it has the mark.
            assert!(refused(&Request::Remove("192.0.2.250".parse().unwrap(), 1)).contains("added by something else"));
            assert!(refused(&Request::ReceiveBuffer).contains("without its socket"));
            channel.ask(&Request::Ready, None).unwrap();
        });
    }

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_the_next_one() {
        let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let channel = Channel::over(ours).unwrap();
        channel.asking.lock().unwrap().socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let late = channel.ask(&Request::Ready, None).unwrap_err();
        assert!(late.to_string().contains("does not answer"), "{late}");
        assert!(!channel.is_gone());
        for answer in ["done false", "done true"] {
            descriptors::send(&theirs, None, answer.as_bytes(), &[]).unwrap();
        }
        assert!(channel.ask(&Request::Ready, None).unwrap().added);
        drop(theirs);
        assert!(channel.is_gone());
        assert!(channel.ask(&Request::Ready, None).is_err());
    }

    #[test]
    fn whoever_asks_may_have_another_way_and_not_any_number() {
        asked(|channel| {
            let ways: Vec<_> = std::iter::from_fn(|| channel.ask(&Request::Another, None).ok()).collect();
            assert_eq!(ways.len(), ASKING_MAX - 1);
            let way = ways.into_iter().next().and_then(|answer| answer.descriptor).unwrap();
            let other = Channel::over(Socket::from(way)).unwrap();
            other.ask(&Request::Ready, None).unwrap();
            drop(other);
            // A moment later there is room for one.
            while channel.ask(&Request::Another, None).is_err() {
                thread::yield_now();
            }
        });
    }
}
