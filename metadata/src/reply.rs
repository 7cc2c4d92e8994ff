//! Answers as octets, for connections that are served without hyper: the octets are those that hyper would send.

use std::fmt;
use std::io::Write as _;

use crate::config::Cors;
use crate::head::{Parts, Verb, Version};
use crate::respond::{Answer, SIZED_MAX};

/// Appends the answer to this request. The date is that of the header.
pub(crate) fn push(out: &mut Vec<u8>, answer: &Answer, request: &Parts<'_>, cors: Cors, date: &str) {
    let version = if request.version == Version::Http10 { "HTTP/1.0" } else { "HTTP/1.1" };
    put(out, format_args!("{version} {} {}\r\n", answer.status, reason(answer.status)));
    for (name, value) in answer.headers(cors) {
        let mut begins = true;
        for byte in name.bytes() {
            out.push(if begins { byte.to_ascii_uppercase() } else { byte });
            begins = byte == b'-';
        }
        put(out, format_args!(": {value}\r\n"));
    }
    match (request.version, request.is_last()) {
        (Version::Http11, true) => out.extend_from_slice(b"Connection: close\r\n"),
        (Version::Http10, false) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        _ => {}
    }
    let body = answer.body.as_bytes();
    if body.len() > SIZED_MAX {
        put(out, format_args!("Transfer-Encoding: chunked\r\nDate: {date}\r\n\r\n{:X}\r\n", body.len()));
        out.extend_from_slice(body);
        out.extend_from_slice(b"\r\n0\r\n\r\n");
        return;
    }
    // Of a body that is not sent and would be empty, hyper says nothing, as the predecessor.
    if request.verb != Verb::Head || !body.is_empty() {
        put(out, format_args!("Content-Length: {}\r\n", body.len()));
    }
    put(out, format_args!("Date: {date}\r\n\r\n"));
    if request.verb != Verb::Head {
        out.extend_from_slice(body);
    }
}

/// The longest body that is sent like this in answer to a request.
pub(crate) fn longest(request: &Parts<'_>) -> usize {
    if request.version == Version::Http11 && request.verb != Verb::Head { CHUNK_MAX } else { SIZED_MAX }
}

/// Longest body of one chunk: a container with everything about it.
const CHUNK_MAX: usize = 16 << 10;

fn put(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = out.write_fmt(text);
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        301 => "Moved Permanently",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}
