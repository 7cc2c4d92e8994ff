//! Answers as octets, for connections that are served without hyper: the octets are those that hyper would send.

use crate::config::Cors;
use crate::head::{Parts, Verb, Version};
use crate::respond::{Answer, SIZED_MAX};

/// Appends the answer to this request, and returns where in it the date stands, which is that of the header.
pub(crate) fn push(out: &mut Vec<u8>, answer: &Answer, request: &Parts<'_>, cors: Cors, date: &str) -> usize {
    let start = out.len();
    out.extend_from_slice(if request.version == Version::Http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(status(answer.status).as_bytes());
    out.extend_from_slice(b"\r\n");
    answer.each_header(cors, |header, value| {
        put(out, &[header.name().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    });
    match (request.version, request.is_last()) {
        (Version::Http11, true) => out.extend_from_slice(b"Connection: close\r\n"),
        (Version::Http10, false) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        _ => {}
    }
    let body = answer.body.as_bytes();
    if body.len() > SIZED_MAX {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    } else if request.verb != Verb::Head || !body.is_empty() {
        // Of a body that is not sent and would be empty, hyper says nothing, as the predecessor.
        out.extend_from_slice(b"Content-Length: ");
        put_number(out, body.len());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"Date: ");
    let date_at = out.len() - start;
    put(out, &[date.as_bytes(), b"\r\n\r\n"]);
    if body.len() > SIZED_MAX {
        put(out, &[format!("{:X}\r\n", body.len()).as_bytes(), body, b"\r\n0\r\n\r\n"]);
    } else if request.verb != Verb::Head {
        out.extend_from_slice(body);
    }
    date_at
}

/// The longest body that is sent like this in answer to a request.
pub(crate) fn longest(request: &Parts<'_>) -> usize {
    if request.version == Version::Http11 && request.verb != Verb::Head { CHUNK_MAX } else { SIZED_MAX }
}

/// Longest body of one chunk: a container with everything about it.
const CHUNK_MAX: usize = 16 << 10;

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

/// A status with its words.
fn status(status: u16) -> &'static str {
    match status {
        200 => "200 OK",
        301 => "301 Moved Permanently",
        400 => "400 Bad Request",
        401 => "401 Unauthorized",
        403 => "403 Forbidden",
        404 => "404 Not Found",
        429 => "429 Too Many Requests",
        503 => "503 Service Unavailable",
        _ => "500 Internal Server Error",
    }
}
