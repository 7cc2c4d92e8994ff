//! Web servers to balance, and requests to balancers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long one of twenty answers takes.
const SLOW: Duration = Duration::from_millis(300);

/// How often a connection that waits for a request looks whether the server is stopping, and one with an answer for `/hold`
/// whether that is let go.
const LOOK: Duration = Duration::from_millis(20);

/// How long a new connection may be without a request though the server is stopping: on a busy machine the request comes late, and a
/// proxy that finds the connection closed may give its client an error.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// A web server that keeps connections, answers every request with its name, and one of twenty slowly.
pub(crate) struct Web {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    hold: Arc<Hold>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The answer for `/hold`.
#[derive(Default)]
struct Hold {
    /// Whether one was asked for.
    is_asked: AtomicBool,
    /// Whether it may be given.
    is_over: AtomicBool,
}

impl Web {
    /// Serves at this address of loopback.
    pub(crate) fn start(number: u8, port: u16, name: &str) -> Self {
        let ip = IpAddr::V4(Ipv4Addr::new(127, 98, 1, number));
        let listener = TcpListener::bind((ip, port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stopping, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let hold = Arc::new(Hold::default());
        let name: Arc<str> = name.into();
        let thread = std::thread::spawn({
            let (stopping, served, hold) = (stopping.clone(), served.clone(), hold.clone());
            move || {
                loop {
                    // What the kernel has taken by then is served.
                    let is_last = stopping.load(Ordering::Relaxed);
                    let Ok((stream, _)) = listener.accept() else {
                        if is_last {
                            return;
                        }
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    };
                    let (name, stopping, served) = (name.clone(), stopping.clone(), served.clone());
                    let hold = hold.clone();
                    std::thread::spawn(move || answer(stream, &name, &stopping, &served, &hold));
                }
            }
        });
        Self { address, stopping, served, hold, thread: Some(thread) }
    }

    /// Its address.
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// How many requests it has answered.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Whether it has a request for `/hold`, for `eventually`.
    pub(crate) fn holds(&self) -> Option<()> {
        self.hold.is_asked.load(Ordering::Relaxed).then_some(())
    }

    /// Gives the answer for `/hold`.
    pub(crate) fn let_go(&self) {
        self.hold.is_over.store(true, Ordering::Relaxed);
    }

    /// As at SIGTERM: takes no new connections and ends those that wait for a request; answers are finished.
    pub(crate) fn stop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stop();
    }
}

fn answer(stream: TcpStream, name: &str, stopping: &AtomicBool, served: &AtomicU64, hold: &Hold) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(LOOK));
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    let mut head: Vec<u8> = Vec::new();
    let (begun, mut is_kept) = (Instant::now(), false);
    loop {
        let before = head.len();
        match reader.read_until(b'\n', &mut head) {
            Ok(0) => return,
            Ok(_) if head.len() - before == 2 => {}
            Ok(_) => continue,
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                let waits = is_kept || begun.elapsed() > FIRST_REQUEST;
                if head.is_empty() && waits && stopping.load(Ordering::Relaxed) {
                    return;
                }
                continue;
            }
            Err(_) => return,
        }
        if head.starts_with(b"GET /hold") {
            hold.is_asked.store(true, Ordering::Relaxed);
            while !hold.is_over.load(Ordering::Relaxed) && !stopping.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
        }
        head.clear();
        if served.fetch_add(1, Ordering::Relaxed).is_multiple_of(20) {
            std::thread::sleep(SLOW);
        }
        let text =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{name}", name.len());
        if writer.write_all(text.as_bytes()).is_err() {
            return;
        }
        is_kept = true;
    }
}

/// The status and the body of an answer to a request for this host and path.
pub(crate) fn ask(proxy: SocketAddr, host: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&proxy, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text.split_once("\r\n\r\n")?.1.to_owned()))
}

/// The body of an answer that is fine.
pub(crate) fn body(proxy: SocketAddr, host: &str, path: &str) -> Option<String> {
    ask(proxy, host, path).filter(|(status, _)| *status == 200).map(|(_, body)| body)
}
