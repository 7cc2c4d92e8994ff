//! What clients ask while something else happens, and what became of it.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::wait::seconds;
use crate::{Question, http};

/// A name of the cluster file `shop`.
pub const NAME: &str = "db.data";
/// The answer to [`NAME`].
pub const ADDRESS: &str = "NOERROR 127.42.2.21";

/// What became of what was asked.
#[derive(Debug, Default)]
pub struct Counts {
    /// Answered well.
    pub answered: usize,
    /// Not answered, or otherwise: after how long and why.
    pub lost: Vec<String>,
    /// Connections that were refused.
    pub refused: usize,
    /// Requests on a connection that had ended before one byte of the response, which clients repeat (RFC 9110 section 9.2.2).
    pub repeated: usize,
    /// Longest time until an answer.
    pub longest: Duration,
}

impl Counts {
    /// Counts something that began then.
    pub fn count(&mut self, begun: Instant, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => {
                self.answered += 1;
                self.longest = self.longest.max(begun.elapsed());
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self.refused += 1,
            Err(error) => self.lost.push(format!("after {:?}: {error}", begun.elapsed())),
        }
    }

    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.lost.extend(other.lost);
        self.refused += other.refused;
        self.repeated += other.repeated;
        self.longest = self.longest.max(other.longest);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, lost, refused, repeated, longest } = self;
        let (lost, longest) = (lost.len(), longest.as_secs_f64() * 1e3);
        write!(f, "{answered} answered, {lost} lost, {refused} refused, {repeated} repeated, longest {longest:.1} ms")
    }
}

/// Threads that ask until they are told to end.
#[derive(Debug, Default)]
pub struct Askers {
    end: Arc<AtomicBool>,
    threads: Vec<(&'static str, JoinHandle<Counts>)>,
}

impl Askers {
    /// Starts one more thread, which counts as this kind.
    pub fn add(&mut self, what: &'static str, ask: impl FnOnce(&AtomicBool) -> Counts + Send + 'static) {
        let end = self.end.clone();
        let thread = thread::Builder::new().stack_size(256 << 10).spawn(move || ask(&end));
        let thread = thread.expect("the system has room");
        self.threads.push((what, thread));
    }

    /// Ends them; gives what each kind counted.
    pub fn end(self) -> Vec<(&'static str, Counts)> {
        self.end.store(true, Ordering::Relaxed);
        let mut all: Vec<(&str, Counts)> = Vec::new();
        for (what, thread) in self.threads {
            let counts = thread.join().expect("it does not panic");
            match all.iter_mut().find(|(known, _)| *known == what) {
                Some((_, sum)) => sum.add(counts),
                None => all.push((what, counts)),
            }
        }
        all
    }
}

/// Does something at a rate, until the end.
pub fn at_rate(rate: u32, end: &AtomicBool, mut ask: impl FnMut(&mut Counts)) -> Counts {
    let (begun, mut done, mut counts) = (Instant::now(), 0_u32, Counts::default());
    while !end.load(Ordering::Relaxed) {
        let due = begun + Duration::from_secs(1) * done / rate;
        sleep(due.saturating_duration_since(Instant::now()));
        ask(&mut counts);
        done += 1;
    }
    counts
}

/// How often it is looked whether an answer is still waited for.
const ANSWER_LOOK: Duration = Duration::from_millis(50);

/// Questions by datagram, whether those before were answered or not.
pub fn ask_udp(to: SocketAddr, rate: u32, end: &AtomicBool) -> Counts {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("the system has room");
    socket.connect(to).expect("the system has room");
    let question = Question::a(NAME).message();
    let sent: Arc<Mutex<Vec<Option<Instant>>>> = Arc::new(Mutex::new(vec![None; 1 << 16]));
    let over = Arc::new(AtomicBool::new(false));
    let answers = thread::spawn({
        let (socket, sent) = (socket.try_clone().expect("the system has room"), sent.clone());
        let over = over.clone();
        socket.set_read_timeout(Some(ANSWER_LOOK)).expect("the system has room");
        move || {
            let (mut counts, mut answer) = (Counts::default(), [0; 1500]);
            let mut last = Instant::now();
            loop {
                let length = match socket.recv(&mut answer) {
                    Ok(length) => length,
                    Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                        let sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
                        let is_over = over.load(Ordering::Relaxed);
                        if is_over && (sent.iter().all(Option::is_none) || last.elapsed() > seconds(1)) {
                            return counts;
                        }
                        continue;
                    }
                    Err(_) => return counts,
                };
                last = Instant::now();
                let id = usize::from(u16::from_be_bytes([answer[0], answer[1]]));
                let begun = sent.lock().unwrap_or_else(PoisonError::into_inner)[id].take();
                // An answer with records, and no second one.
                let is_good = length > question_length() && answer[3] % 16 == 0 && answer[7] > 0;
                if let (Some(begun), true) = (begun, is_good) {
                    counts.count(begun, Ok(()));
                }
            }
        }
    });
    let mut id = 0_u16;
    let mut counts = at_rate(rate, end, |counts| {
        id = id.wrapping_add(1);
        let mut question = question.clone();
        question[..2].copy_from_slice(&id.to_be_bytes());
        // Of a question that long ago there is no answer any more.
        let before = sent.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(id)].replace(Instant::now());
        if let Some(before) = before {
            counts.count(before, Err(io::ErrorKind::TimedOut.into()));
        }
        // An error is that of an answer which says that nobody listens.
        if let Err(error) = socket.send(&question) {
            counts.count(Instant::now(), Err(error));
        }
    });
    over.store(true, Ordering::Relaxed);
    counts.add(answers.join().expect("it does not panic"));
    for unanswered in sent.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
        counts.count(*unanswered, Err(io::ErrorKind::TimedOut.into()));
    }
    counts
}

fn question_length() -> usize {
    Question::a(NAME).message().len()
}

/// Asks by a connection of its own.
pub fn ask_tcp(to: SocketAddr) -> io::Result<()> {
    let line = Question::a(NAME).tcp().within(seconds(10)).send(to)?.line();
    if line == ADDRESS { Ok(()) } else { Err(io::Error::other(line)) }
}

/// Requests by a connection of its own.
pub fn ask_http(to: SocketAddr) -> io::Result<()> {
    let response = http::get("/latest/containers/data-db-1/name").within(seconds(10)).send(to)?;
    let is_good = response.status == 200 && response.text() == "data-db-1";
    if is_good { Ok(()) } else { Err(io::Error::other(format!("{} {}", response.status, response.text()))) }
}

/// A connection that is used again and again, as clients of HTTP do.
#[derive(Debug, Default)]
pub struct KeptConnection(Option<BufReader<TcpStream>>);

impl KeptConnection {
    /// Requests, on a new connection if there is none or it has ended.
    pub fn ask(&mut self, to: SocketAddr, counts: &mut Counts) {
        let begun = Instant::now();
        if let Some(mut kept) = self.0.take() {
            match request(&mut kept) {
                Ok(Some(is_kept)) => {
                    self.0 = is_kept.then_some(kept);
                    return counts.count(begun, Ok(()));
                }
                Ok(None) => counts.repeated += 1,
                Err(error) => return counts.count(begun, Err(error)),
            }
        }
        let outcome = http::connect(None, to, seconds(10)).and_then(|stream| {
            let mut stream = BufReader::new(stream);
            let is_kept = request(&mut stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            self.0 = is_kept.then_some(stream);
            Ok(())
        });
        counts.count(begun, outcome);
    }
}

/// Sends a request; whether the connection can be used again, or `None` if it had ended before the response began.
fn request(stream: &mut BufReader<TcpStream>) -> io::Result<Option<bool>> {
    let sent = stream.get_mut().write_all(b"GET /latest/containers/data-db-1/name HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut line = String::new();
    if sent.is_err() || !matches!(stream.read_line(&mut line), Ok(1..)) {
        return Ok(None);
    }
    let (mut length, mut is_kept) = (0, true);
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(line));
    }
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        let header = header.trim_end().to_ascii_lowercase();
        match header.split_once(": ") {
            Some(("content-length", text)) => length = text.parse().map_err(io::Error::other)?,
            Some(("connection", "close")) => is_kept = false,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    if body == b"data-db-1" { Ok(Some(is_kept)) } else { Err(io::Error::other("another body")) }
}

/// Waits for a change that does not come, again and again: each wait has to be answered, though it is by a stop.
pub fn wait(to: SocketAddr, end: &AtomicBool) -> Counts {
    waits(end, |_| wait_once(to))
}

/// The same, and asks again where a wait was not answered: another one may end that before it is over, too.
pub fn wait_or_again(to: SocketAddr, end: &AtomicBool) -> Counts {
    waits(end, |counts| {
        loop {
            match wait_once(to) {
                Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => counts.repeated += 1,
                outcome => return outcome,
            }
        }
    })
}

fn waits(end: &AtomicBool, wait: impl Fn(&mut Counts) -> io::Result<()>) -> Counts {
    let mut counts = Counts::default();
    while !end.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let outcome = wait(&mut counts);
        // How long it took is no matter of the service.
        counts.count(begun, outcome);
        counts.longest = Duration::ZERO;
    }
    counts
}

fn wait_once(to: SocketAddr) -> io::Result<()> {
    let target = "/latest/containers/data-db-1/name?wait=true&value=data-db-1&maxWait=5";
    http::get(target).within(seconds(20)).send(to).and_then(|response| match response.status {
        200 | 503 => Ok(()),
        status => Err(io::Error::other(status.to_string())),
    })
}

/// Asks, and a second time where that was not answered, as clients do.
///
/// # Errors
///
/// Fails if neither was.
pub fn again(counts: &mut Counts, mut ask: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    ask().or_else(|_| {
        counts.repeated += 1;
        ask()
    })
}
