//! Requests and answers as text, one for each message of a Unix socket, with a descriptor where one belongs to it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::str::{FromStr, SplitAsciiWhitespace};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::address::Addresses;
use crate::stop::{ReloadEvents, StopEvents};
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
struct Channel(Mutex<Socket>);

impl Channel {
    fn over(socket: Socket) -> io::Result<Self> {
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self(Mutex::new(socket)))
    }

    fn ask(&self, request: &Request, descriptor: Option<BorrowedFd<'_>>) -> io::Result<Answer> {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let received = descriptors::send(&socket, None, request.to_string().as_bytes(), descriptor.as_slice())
            .and_then(|()| descriptors::receive(&socket, MESSAGE_BYTES_MAX));
        match received {
            Ok((bytes, _)) if bytes.is_empty() => {
                Err(io::Error::new(io::ErrorKind::BrokenPipe, "the process with the capability NET_ADMIN has ended"))
            }
            Ok((bytes, descriptor)) => read_answer(&String::from_utf8_lossy(&bytes), descriptor),
            Err(error) => {
                // A late answer is not to be taken for that of the next question.
                let _ = socket.shutdown(std::net::Shutdown::Both);
                Err(io::Error::new(
                    error.kind(),
                    format!("the process with the capability NET_ADMIN does not answer: {error}"),
                ))
            }
        }
    }

    fn is_gone(&self) -> bool {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let looked =
            socket.recv_with_flags(&mut [std::mem::MaybeUninit::uninit()], libc::MSG_PEEK | libc::MSG_DONTWAIT);
        looked.is_ok_and(|length| length == 0)
    }
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
        Some(channel) => handover::run_again(&channel.0.lock().unwrap_or_else(PoisonError::into_inner)),
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

pub(super) fn serve(addresses: &[IpAddr]) -> io::Result<()> {
    close_others()?;
    let runtime = runtime()?;
    {
        let _within = runtime.enter();
        // It ends with those that ask, and not because all processes of a service are asked to stop.
        std::mem::forget((StopEvents::new()?, ReloadEvents::new()?));
    }
    let channel = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    if channel.r#type()? != Type::SEQPACKET {
        return Err(io::Error::other("standard input is not the socket of a process that asks"));
    }
    let broker = Broker { addresses, asking: Mutex::new(1) };
    // The descriptor of standard input itself stays open, which is no handle of the end that asks.
    thread::scope(|scope| broker.answer_all(scope, &channel));
    Ok(())
}

/// Closes what the process that started this one had open, sockets for clients among it.
fn close_others() -> io::Result<()> {
    let first = libc::c_uint::try_from(libc::STDERR_FILENO + 1).map_err(io::Error::other)?;
    // SAFETY: this is the beginning of a process that has opened nothing itself: what is closed was inherited, and nothing here
    // knows its numbers.
    #[expect(unsafe_code, reason = "std has no call for it")]
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// What the threads of a broker share.
struct Broker<'a> {
    addresses: &'a [IpAddr],
    /// How many ways to ask there are.
    asking: Mutex<usize>,
}

impl<'a> Broker<'a> {
    /// Answers until nobody has the other end any more.
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

    fn done(&self, request: &Request, descriptor: Option<OwnedFd>) -> io::Result<Answer> {
        let own = |address: IpAddr| {
            let known = self.addresses.contains(&address);
            known
                .then_some(())
                .ok_or_else(|| io::Error::other(format!("{address} is none of this service's addresses")))
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
                return Ok(Answer { added, ..Answer::default() });
            }
            Request::Remove(address, interface) => {
                own(*address)?;
                runtime()?.block_on(async { Addresses::open()?.remove_here(*address, *interface).await })?;
            }
            Request::Redirect(address, port) => {
                own((*address).into())?;
                let address = SocketAddr::from((*address, *port));
                let behind =
                    redirect::behind(address).ok_or_else(|| io::Error::other("that port is never redirected"))?;
                let owner = redirect::rules_here(address, behind)?;
                return Ok(Answer { descriptor: Some(owner.into()), ..Answer::default() });
            }
            Request::TakeFrom(interfaces) => ingress::take_from_here(&given()?, interfaces)?,
            Request::ReceiveBuffer => socket::extend_receive_buffer_here(&given()?)?,
        }
        Ok(Answer::default())
    }
}
