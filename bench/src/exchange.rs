//! One request or one question at a time, for looking whether something is there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::names::Question;

/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// Asks for a path and returns the status and the body.
pub(crate) fn get(server: SocketAddr, path: &str, accept: &str) -> Result<(u16, Vec<u8>), Failure> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(LIMIT))?;
    // At once: in pieces each would wait for the acknowledgement of the one before, 40 ms.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n").as_bytes())?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("no HTTP")?;
    let head = String::from_utf8_lossy(&response[..end]);
    let status = head.split(' ').nth(1).ok_or("no HTTP status")?.parse()?;
    Ok((status, response.split_off(end + 4)))
}

/// The text under a path, or nothing when it is not there.
pub(crate) fn text(server: SocketAddr, path: &str) -> Result<Option<String>, Failure> {
    let (status, body) = get(server, path, "text/plain")?;
    Ok((status == 200).then(|| String::from_utf8_lossy(&body).into_owned()))
}

/// Whether somebody answers the question, as it should be answered, within some time.
pub(crate) fn answers(server: SocketAddr, question: &Question) -> bool {
    ask(server, question).is_some_and(|(reply, _)| question.is_answered_by(&reply))
}

/// Asks one question and returns the reply and how long it took.
pub(crate) fn ask(server: SocketAddr, question: &Question) -> Option<(Vec<u8>, Duration)> {
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    socket.connect(server).ok()?;
    let start = Instant::now();
    socket.send(&question.bytes).ok()?;
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).ok()?;
    Some((buffer[..length].to_vec(), start.elapsed()))
}

/// Tries again and again until something is so, and returns how long that took.
pub(crate) fn until(
    what: &str,
    pause: Duration,
    mut is_so: impl FnMut() -> Result<bool, Failure>,
) -> Result<Duration, Failure> {
    let start = Instant::now();
    while !is_so()? {
        if start.elapsed() > LIMIT {
            return Err(format!("{what}: not within {} s", LIMIT.as_secs()).into());
        }
        sleep(pause);
    }
    Ok(start.elapsed())
}
