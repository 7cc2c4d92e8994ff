//! Responses as bytes. Names, order and chunks are those of the recordings, as hyper would send them.

use crate::config::Cors;
use crate::http::head::{Terms, Version};
use crate::respond::{Answer, Header, SIZED_MAX, status_line};

/// Ends a body in chunks.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// How a body of several pieces is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// Not at all: only the head is wanted.
    HeadOnly,
    Chunks,
    /// It ends with the connection.
    UntilClosed,
}

impl BodyFraming {
    pub(crate) fn of(terms: Terms) -> Self {
        match terms {
            Terms { head_only: true, .. } => Self::HeadOnly,
            Terms { version: Version::Http11, .. } => Self::Chunks,
            Terms { version: Version::Http10, .. } => Self::UntilClosed,
        }
    }

    /// Appends the bytes before a piece of this length; returns those behind it.
    pub(crate) fn push_piece_head(self, out: &mut Vec<u8>, length: usize) -> &'static [u8] {
        if self != Self::Chunks {
            return b"";
        }
        put(out, &[format!("{length:X}\r\n").as_bytes()]);
        b"\r\n"
    }

    /// Appends the bytes behind the last piece.
    pub(crate) fn push_end(self, out: &mut Vec<u8>) {
        if self == Self::Chunks {
            out.extend_from_slice(LAST_CHUNK);
        }
    }
}

/// Appends the response that carries an answer; returns whether the connection ends with it.
pub(crate) fn push(out: &mut Vec<u8>, answer: &Answer, terms: Terms, cors: Cors, date: &str) -> bool {
    let body = answer.body.as_bytes();
    let mut head = ResponseHead::begin(out, answer.status, terms);
    answer.each_header(cors, |header, value| head.header(header, value));
    head.ends = answer.is_last();
    if body.len() <= SIZED_MAX {
        let last = head.end(Some(body.len()), date);
        if !terms.head_only {
            out.extend_from_slice(body);
        }
        return last;
    }
    let last = head.end(None, date);
    let framing = BodyFraming::of(terms);
    if framing != BodyFraming::HeadOnly {
        let behind = framing.push_piece_head(out, body.len());
        put(out, &[body, behind]);
        framing.push_end(out);
    }
    last
}

/// The head of a response that is being written.
#[derive(Debug)]
pub(crate) struct ResponseHead<'o> {
    out: &'o mut Vec<u8>,
    terms: Terms,
    /// Whether the service closes the connection, even if the client wants to keep it.
    ends: bool,
}

impl<'o> ResponseHead<'o> {
    /// Writes the first line.
    pub(crate) fn begin(out: &'o mut Vec<u8>, status: u16, terms: Terms) -> Self {
        let version: &[u8] = if terms.version == Version::Http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " };
        put(out, &[version, status_line(status).as_bytes(), b"\r\n"]);
        Self { out, terms, ends: false }
    }

    pub(crate) fn header(&mut self, header: Header, value: &str) {
        put(self.out, &[header.name().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }

    /// Writes what HTTP asks for, of a body of this length, or of pieces; returns whether the connection ends with it.
    pub(crate) fn end(self, length: Option<usize>, date: &str) -> bool {
        let Self { out, terms, ends } = self;
        match terms.version {
            _ if ends => out.extend_from_slice(b"Connection: close\r\n"),
            Version::Http11 if terms.last => out.extend_from_slice(b"Connection: close\r\n"),
            Version::Http10 if !terms.last => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            _ => {}
        }
        match length {
            // Of a body that is not sent and would be empty nothing is said, as the predecessor did.
            Some(0) if terms.head_only => {}
            Some(length) => {
                out.extend_from_slice(b"Content-Length: ");
                put_number(out, length);
                out.extend_from_slice(b"\r\n");
            }
            None if BodyFraming::of(terms) == BodyFraming::Chunks => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            }
            None => {}
        }
        put(out, &[b"Date: ", date.as_bytes(), b"\r\n\r\n"]);
        ends || terms.last || (length.is_none() && BodyFraming::of(terms) == BodyFraming::UntilClosed)
    }
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// A number in decimal digits.
fn put_number(out: &mut Vec<u8>, number: usize) {
    if number > 9 {
        put_number(out, number / 10);
    }
    out.push(b'0' + u8::try_from(number % 10).unwrap_or_default());
}
