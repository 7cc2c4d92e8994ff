//! HTTP requests from an address of choice, one connection each, written by hand to see what really arrives.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::wait::seconds;

/// Longest wait for an answer that is not asked to take time, in seconds.
const ANSWER_LIMIT: u64 = 10;

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    method: &'static str,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    source: Option<IpAddr>,
    limit: Duration,
    /// Whether the own token of a scheduler is not to be sent.
    tokenless: bool,
}

/// `GET` of a path with its query.
pub fn get(target: impl Into<String>) -> Request {
    Request::new("GET", target)
}

/// `POST` to a path.
pub fn post(target: impl Into<String>, body: impl Into<Vec<u8>>) -> Request {
    Request::new("POST", target).content(body)
}

impl Request {
    /// A request with any method.
    pub fn new(method: &'static str, target: impl Into<String>) -> Self {
        let target = target.into();
        Self {
            method,
            target,
            headers: Vec::new(),
            body: Vec::new(),
            source: None,
            limit: seconds(ANSWER_LIMIT),
            tokenless: false,
        }
    }

    /// The same with content.
    #[must_use]
    pub fn content(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// The same from this address.
    #[must_use]
    pub fn from(mut self, source: &str) -> Self {
        self.source = Some(source.parse().expect("a source is an address"));
        self
    }

    /// The same with a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, asking for JSON.
    #[must_use]
    pub fn json(self) -> Self {
        self.header("Accept", "application/json")
    }

    /// The same with another limit.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The same without the token of a scheduler that wants one.
    #[must_use]
    pub fn tokenless(self) -> Self {
        Self { tokenless: true, ..self }
    }

    /// Sends it and waits for the answer; again with the token of a scheduler that names the file of its own one, as the
    /// scheduler's commands do.
    ///
    /// # Errors
    ///
    /// When there is no complete answer within the limit.
    pub fn send(&self, to: SocketAddr) -> io::Result<Response> {
        static KNOWN: Mutex<BTreeMap<SocketAddr, String>> = Mutex::new(BTreeMap::new());
        if self.tokenless {
            return self.send_once(to);
        }
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let bearing = |token: &str| self.clone().header("Authorization", &format!("Bearer {token}"));
        let token = known().get(&to).cloned();
        let response = token.map_or_else(|| self.clone(), |token| bearing(&token)).send_once(to)?;
        let Some(file) = token_file(&response) else { return Ok(response) };
        let token = std::fs::read_to_string(file)?.trim().to_owned();
        known().insert(to, token.clone());
        bearing(&token).send_once(to)
    }

    fn send_once(&self, to: SocketAddr) -> io::Result<Response> {
        let mut stream = connect(self.source, to, self.limit)?;
        stream.write_all(&self.bytes(to))?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Response::parse(&bytes, self.method == "HEAD")
    }

    /// Sends it; there has to be an answer.
    pub fn ask(&self, to: SocketAddr) -> Response {
        self.send(to).unwrap_or_else(|error| panic!("{} {} of {to}: {error}", self.method, self.target))
    }

    fn bytes(&self, to: SocketAddr) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        if !self.body.is_empty() || self.method == "POST" {
            let length = self.body.len().to_string();
            text.extend(["Content-Type: application/json\r\nContent-Length: ", &length, "\r\n"]);
        }
        text.push_str("\r\n");
        [text.as_bytes(), &self.body].concat()
    }
}

/// A connection from `source`.
///
/// # Errors
///
/// When nobody answers there within the limit.
pub fn connect(source: Option<IpAddr>, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect_timeout(&to.into(), limit)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The header fields as they came.
    pub headers: Vec<(String, String)>,
    /// The content.
    pub body: Vec<u8>,
}

impl Response {
    fn parse(bytes: &[u8], head_only: bool) -> io::Result<Self> {
        let broken = |what: &str| io::Error::new(io::ErrorKind::UnexpectedEof, what.to_owned());
        let end = find(bytes, b"\r\n\r\n").ok_or_else(|| broken("the connection was closed without an answer"))?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        let mut response = Self { status: status.ok_or_else(|| broken("no status line"))?, headers, body: Vec::new() };
        let rest = &bytes[end + 4..];
        response.body = if response.header("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            unchunk(rest).ok_or_else(|| broken("the content was cut off"))?
        } else {
            rest.to_vec()
        };
        let length = response.header("content-length").and_then(|length| length.parse::<usize>().ok());
        if !head_only && length.is_some_and(|length| length != response.body.len()) {
            return Err(broken("the content was cut off"));
        }
        Ok(response)
    }

    /// The value of a header field.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The content as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The content as JSON.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }
}

/// The file of the token that a scheduler wants.
fn token_file(response: &Response) -> Option<String> {
    let body: Value = serde_json::from_slice(&response.body).ok().filter(|_| response.status == 401)?;
    body["token_file"].as_str().map(ToOwned::to_owned)
}

fn unchunk(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = find(bytes, b"\r\n")?;
        let size = std::str::from_utf8(&bytes[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok())?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size + 2..)?;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
