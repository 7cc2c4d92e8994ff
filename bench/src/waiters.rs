//! Many clients that wait for a change: connections with a long poll each, and one with the stream of changes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Failure;

/// Longest wait for the answers of all.
const LIMIT: Duration = Duration::from_secs(30);

/// Connections from one address; a service may refuse more.
const FROM_EACH: usize = 50;

/// Connections that are made at the same time.
const CONNECTING: usize = 64;

/// Clients that wait, on a thread of their own.
pub(crate) struct Waiters {
    answers: JoinHandle<Result<Vec<Instant>, Failure>>,
}

impl Waiters {
    /// Connects `count` clients that wait until `path` is answered, and returns when all have asked.
    pub(crate) fn start(server: SocketAddr, path: &str, count: usize) -> Result<Self, Failure> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let asked = Arc::new(AtomicUsize::new(0));
        let answers = thread::spawn({
            let asked = asked.clone();
            move || {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(wait(server, request, count, asked))
            }
        });
        let end = Instant::now() + LIMIT;
        while asked.load(Ordering::Acquire) < count {
            if Instant::now() > end || answers.is_finished() {
                return match answers.is_finished().then(|| answers.join()) {
                    Some(Ok(Err(failure))) => Err(failure),
                    _ => Err(format!("{} of {count} clients could ask", asked.load(Ordering::Acquire)).into()),
                };
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { answers })
    }

    /// When each was answered.
    pub(crate) fn answered(self) -> Result<Vec<Instant>, Failure> {
        self.answers.join().map_err(|_| "the clients panicked")?
    }
}

async fn wait(
    server: SocketAddr,
    request: String,
    count: usize,
    asked: Arc<AtomicUsize>,
) -> Result<Vec<Instant>, Failure> {
    let request: Arc<[u8]> = request.into_bytes().into();
    let mut clients = JoinSet::new();
    for number in 0..count {
        let mut stream = connect(server, number).await?;
        stream.write_all(&request).await?;
        asked.fetch_add(1, Ordering::Release);
        clients.spawn(async move { answer(&mut stream).await });
        if number % CONNECTING == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut answers = Vec::with_capacity(count);
    while let Some(answer) = timeout(LIMIT, clients.join_next()).await? {
        answers.push(answer??);
    }
    Ok(answers)
}

async fn connect(server: SocketAddr, number: usize) -> Result<TcpStream, Failure> {
    let from = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 20, 0, 1)) + u32::try_from(number / FROM_EACH)?);
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(IpAddr::V4(from), 0))?;
    Ok(socket.connect(server).await?)
}

/// When the head of the answer arrived, which must be a good one.
async fn answer(stream: &mut TcpStream) -> Result<Instant, Failure> {
    let mut buffer = [0; 1024];
    let length = stream.read(&mut buffer).await?;
    let now = Instant::now();
    if buffer[..length].starts_with(b"HTTP/1.1 200") {
        return Ok(now);
    }
    Err(format!("a client that waited got {:?}", String::from_utf8_lossy(&buffer[..length.min(80)])).into())
}

/// A follower of the stream of changes.
pub(crate) struct Follower {
    line: JoinHandle<Result<Option<Instant>, Failure>>,
}

impl Follower {
    /// Follows from now on, if there is such a stream.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let line = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { timeout(LIMIT, follow(server)).await? })
        });
        Self { line }
    }

    /// When the line after the whole state arrived; nothing where there is no stream.
    pub(crate) fn line(self) -> Result<Option<Instant>, Failure> {
        self.line.join().map_err(|_| "the follower panicked")?
    }
}

async fn follow(server: SocketAddr) -> Result<Option<Instant>, Failure> {
    let mut stream = connect(server, 0).await?;
    stream.write_all(b"GET /v1/changes?after= HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let mut lines = BufReader::new(stream).lines();
    if lines.next_line().await?.is_none_or(|status| !status.contains(" 200")) {
        return Ok(None);
    }
    // The state may be many lines; the first change is the one that starts from somewhere.
    while let Some(line) = lines.next_line().await? {
        let now = Instant::now();
        if line.contains("\"from\":\"") {
            return Ok(Some(now));
        }
    }
    Err("the stream of changes ended".into())
}
