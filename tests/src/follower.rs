//! A follower of the change stream (`GET /v1/changes`), written by hand: it reads lines as they come and applies them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use model::{ChangeLine, Snapshot, Value};

use crate::http;
use crate::wait::scaled;

/// Longest wait for something that is to come at once.
const LIMIT: Duration = Duration::from_secs(10);

/// What a follower was told.
#[derive(Clone, Debug)]
pub enum Told {
    /// Nothing changed; this revision is current.
    Heartbeat(String),
    /// A whole change, in the lines that it came in.
    Change(Vec<ChangeLine>),
}

/// A follower with what it knows.
#[derive(Debug)]
pub struct Follower {
    stream: TcpStream,
    /// What came and was not looked at.
    unread: Vec<u8>,
    /// The content of chunks that was not looked at.
    content: Vec<u8>,
    /// What came, as text.
    pub received: String,
    /// The revision it has; `None` when it has nothing.
    pub revision: Option<String>,
    /// What it has.
    pub snapshot: Snapshot,
}

impl Follower {
    /// One that has nothing yet.
    pub fn new(metadata: SocketAddr) -> Self {
        Self::resume(metadata, None, Snapshot::default())
    }

    /// One that has this snapshot of the revision `known`.
    pub fn resume(metadata: SocketAddr, known: Option<&str>, snapshot: Snapshot) -> Self {
        let after = known.map(|known| format!("?after={known}")).unwrap_or_default();
        let mut stream = http::connect(None, metadata, scaled(LIMIT)).expect("the service listens");
        let request = format!("GET /v1/changes{after} HTTP/1.1\r\nHost: {metadata}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("the service reads");
        let (unread, content, received) = (Vec::new(), Vec::new(), String::new());
        let mut follower = Self { stream, unread, content, received, revision: known.map(ToOwned::to_owned), snapshot };
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push_str(&follower.raw_line().expect("a whole head"));
        }
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(head.contains("\r\ntransfer-encoding: chunked\r\n"), "{head}");
        follower
    }

    /// The same follower on a new connection, with what it has.
    #[must_use]
    pub fn again(&self, metadata: SocketAddr) -> Self {
        Self::resume(metadata, self.revision.as_deref(), self.snapshot.clone())
    }

    /// Waits for what it is told next, and applies it.
    pub fn told(&mut self) -> Told {
        self.told_within(LIMIT).expect("something is told in time")
    }

    /// Waits for the next change, past heartbeats: a slow machine may have some before it.
    pub fn change(&mut self) -> Vec<ChangeLine> {
        loop {
            if let Told::Change(lines) = self.told_within(3 * LIMIT).expect("a change comes in time") {
                return lines;
            }
        }
    }

    /// [`Follower::told`] with another limit, which is scaled.
    ///
    /// # Errors
    ///
    /// When nothing comes in time, or the stream ends.
    pub fn told_within(&mut self, limit: Duration) -> io::Result<Told> {
        self.told_for(scaled(limit))
    }

    /// What it is told while it listens for so long, whatever the machine.
    ///
    /// # Errors
    ///
    /// When nothing comes, or the stream ends.
    pub fn told_for(&mut self, time: Duration) -> io::Result<Told> {
        self.stream.set_read_timeout(Some(time))?;
        let mut lines = Vec::new();
        let mut building = None;
        loop {
            let line = self.line()?;
            match &line {
                ChangeLine::Heartbeat { revision, .. } => {
                    assert!(lines.is_empty(), "a heartbeat inside a change");
                    assert_eq!(self.revision.as_deref(), Some(&**revision), "the revision it was led to");
                    return Ok(Told::Heartbeat(revision.to_string()));
                }
                ChangeLine::Change { revision, from, delta, more } => {
                    let base = building.take().unwrap_or_else(|| match from.as_deref() {
                        None => Snapshot::default(),
                        Some(from) => {
                            assert_eq!(Some(from), self.revision.as_deref(), "a change of what it has");
                            self.snapshot.clone()
                        }
                    });
                    let next = delta.apply(&base).expect("a change applies");
                    let (revision, more) = (revision.to_string(), *more);
                    lines.push(line);
                    if more {
                        building = Some(next);
                        continue;
                    }
                    (self.snapshot, self.revision) = (next, Some(revision));
                    return Ok(Told::Change(lines));
                }
            }
        }
    }

    /// Reads until it knows something that fits.
    pub fn until(&mut self, fits: impl Fn(&Snapshot) -> bool) {
        while !fits(&self.snapshot) {
            self.told();
        }
    }

    fn line(&mut self) -> io::Result<ChangeLine> {
        let end = loop {
            match self.content.iter().position(|octet| *octet == b'\n') {
                Some(end) => break end,
                None => self.chunk()?,
            }
        };
        let line: Vec<u8> = self.content.drain(..=end).collect();
        self.received.push_str(&String::from_utf8_lossy(&line));
        let value: Value = serde_json::from_slice(&line).map_err(io::Error::other)?;
        ChangeLine::from_value(&value).map_err(io::Error::other)
    }

    /// Reads one more chunk of the content.
    fn chunk(&mut self) -> io::Result<()> {
        let size = usize::from_str_radix(self.raw_line()?.trim_end(), 16).map_err(io::Error::other)?;
        if size == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ended"));
        }
        let chunk = self.octets(size)?;
        self.content.extend(chunk);
        assert_eq!(self.octets(2)?, b"\r\n", "the end of a chunk");
        Ok(())
    }

    fn raw_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|octet| *octet == b'\n') {
                return Ok(String::from_utf8_lossy(&self.octets(end + 1)?).into_owned());
            }
            self.fill()?;
        }
    }

    fn octets(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < count {
            self.fill()?;
        }
        Ok(self.unread.drain(..count).collect())
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut octets = [0; 1 << 14];
        match self.stream.read(&mut octets)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream was closed")),
            length => {
                self.unread.extend_from_slice(&octets[..length]);
                Ok(())
            }
        }
    }
}
