//! Heads of requests: found in what a connection sends, and checked strictly.
//!
//! The service reads no bodies: it closes the connection after a request that has one, so that nothing in a body can pass
//! for a request.

use crate::http::asked::{Asked, Field};
use crate::path::Method;

/// Longest head, in bytes; the predecessor took a megabyte, real ones are below one kilobyte.
pub(crate) const HEAD_MAX: usize = 16 << 10;

/// Longest request line, in bytes. Paths go down to labels, which may be long; 8,000 is RFC 9110's (section
/// 4.1) recommended least.
const REQUEST_LINE_MAX: usize = 8 << 10;

/// Most header lines in a head.
const HEADERS_MAX: usize = 100;

/// Room for the header lines that usual requests have and that are looked at.
const USUAL_LINES: usize = 4;

/// Most line ends before a head; some old clients send one too many.
const BLANK_LINES_MAX: usize = 4;

/// What was read of a connection, until heads have been taken out of it.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    bytes: Vec<u8>,
    /// Where the next head begins.
    start: usize,
    blank_lines: usize,
    /// How far behind its beginning no end of the next head was found.
    searched: usize,
}

/// One head, taken apart.
#[derive(Debug)]
pub(crate) struct Head<'h> {
    method: Method,
    target: &'h [u8],
    /// The header lines that are looked at, in order.
    fields: Vec<(Field, &'h [u8])>,
    pub(crate) terms: Terms,
    keeps_alive: bool,
}

/// How a client wants its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) version: Version,
    /// Whether it wants the head of the response only.
    pub(crate) head_only: bool,
    /// Whether the connection ends with the response.
    pub(crate) last: bool,
    /// Whether something may follow the head that is not read.
    pub(crate) has_body: bool,
}

/// The versions of HTTP, as far as they make a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    Http11,
}

/// Why a head is refused, as the status to answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) u16);

const BAD: Refused = Refused(400);

impl Heads {
    /// Where more bytes go.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.start);
        self.start = 0;
        &mut self.bytes
    }

    /// The same, with room for this many.
    pub(crate) fn buffer_for(&mut self, room: usize) -> &mut Vec<u8> {
        let buffer = self.buffer();
        buffer.reserve(room);
        buffer
    }

    /// What was read and not taken out.
    pub(crate) fn left(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The last bytes that were taken out, if nothing has been read since.
    pub(crate) fn taken(&self, length: usize) -> &[u8] {
        &self.bytes[self.start.saturating_sub(length)..self.start]
    }

    /// Whether not one byte of a head is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Whether so much is there that no more is to be read before a head is taken out.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() - self.start > HEAD_MAX
    }

    /// Takes the next head out, when it is there as a whole or already certain to be refused.
    ///
    /// Nothing behind a head that is refused is to be taken for another one.
    pub(crate) fn take(&mut self) -> Option<Result<Head<'_>, Refused>> {
        while let Some(length) = line_end(&self.bytes[self.start..]) {
            self.start += length;
            self.blank_lines += 1;
            self.searched = 0;
        }
        if self.blank_lines > BLANK_LINES_MAX {
            return Some(Err(BAD));
        }
        if self.is_empty() {
            // A client that rests or waits for minutes needs no buffer meanwhile.
            (self.bytes, self.start) = (Vec::new(), 0);
            return None;
        }
        let left = &self.bytes[self.start..];
        let from = self.searched.saturating_sub(3);
        let Some(end) = end(&left[from..]) else {
            self.searched = left.len();
            let has_line = left.iter().take(REQUEST_LINE_MAX).any(|byte| *byte == b'\n');
            return match left.len() {
                length if length > REQUEST_LINE_MAX && !has_line => Some(Err(Refused(414))),
                length if length > HEAD_MAX => Some(Err(Refused(431))),
                _ => None,
            };
        };
        let head = &left[..from + end];
        self.start += head.len();
        (self.searched, self.blank_lines) = (0, 0);
        Some(parse(head))
    }
}

/// How long the line end is that the bytes begin with.
fn line_end(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

/// Where a head ends: behind the first empty line.
fn end(bytes: &[u8]) -> Option<usize> {
    let ends = |(at, _): (usize, &u8)| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    };
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').find_map(ends)
}

fn parse(head: &[u8]) -> Result<Head<'_>, Refused> {
    if head.len() > HEAD_MAX {
        return Err(Refused(431));
    }
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut head = request_line(lines.next().unwrap_or_default())?;
    let mut framing = Framing::default();
    for (count, line) in lines.take_while(|line| !line.is_empty()).enumerate() {
        if count == HEADERS_MAX {
            return Err(Refused(431));
        }
        let (name, value) = header(line)?;
        match Field::named(name) {
            Some(field) => {
                if field == Field::Host {
                    framing.host(value)?;
                }
                head.fields.push((field, value));
            }
            None if name.eq_ignore_ascii_case(b"connection") => head.connection(value),
            None => framing.line(head.terms.version, name, value)?,
        }
    }
    let Terms { version, .. } = head.terms;
    head.terms.has_body = framing.has_body(version)?;
    head.terms.last |= head.terms.has_body || (version == Version::Http10 && !head.keeps_alive);
    Ok(head)
}

impl<'h> Head<'h> {
    /// What does not only concern the connection.
    pub(crate) fn asked(self) -> Asked<'h> {
        Asked { method: self.method, target: self.target, fields: self.fields }
    }

    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            self.terms.last |= option.eq_ignore_ascii_case(b"close");
            self.keeps_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }
}

impl Terms {
    /// Of a head that was refused, of which nothing is known.
    pub(crate) const REFUSED: Self = Self { version: Version::Http11, head_only: false, last: true, has_body: true };
}

fn request_line(line: &[u8]) -> Result<Head<'_>, Refused> {
    if line.len() > REQUEST_LINE_MAX {
        return Err(Refused(414));
    }
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(BAD);
    };
    if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
        return Err(BAD);
    }
    let version = match version {
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0'..=b'9'] => Version::Http11,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Err(Refused(505)),
        _ => return Err(BAD),
    };
    let terms = Terms { version, head_only: method == b"HEAD", last: false, has_body: false };
    let method = match method {
        b"GET" | b"HEAD" => Method::Read,
        b"OPTIONS" => Method::Options,
        b"PUT" => Method::Put,
        _ => Method::Other,
    };
    Ok(Head { method, target, fields: Vec::with_capacity(USUAL_LINES), terms, keeps_alive: false })
}

/// Name and value of a header line.
fn header(line: &[u8]) -> Result<(&[u8], &[u8]), Refused> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(BAD)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return Err(BAD);
    }
    if value.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f) {
        return Err(BAD);
    }
    Ok((name, value.trim_ascii()))
}

/// What the header lines said so far about where the request ends, and whom it is for.
#[derive(Default)]
struct Framing {
    hosts: usize,
    length: Option<u64>,
    transfer_encodings: usize,
}

impl Framing {
    fn host(&mut self, value: &[u8]) -> Result<(), Refused> {
        self.hosts += 1;
        if self.hosts > 1 || !value.iter().all(|byte| HOST[usize::from(*byte)]) { Err(BAD) } else { Ok(()) }
    }

    /// A line that is not looked at for anything else.
    fn line(&mut self, version: Version, name: &[u8], value: &[u8]) -> Result<(), Refused> {
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
            let length = length.ok_or(BAD)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(BAD);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.transfer_encodings += 1;
            if version == Version::Http10 || self.transfer_encodings > 1 {
                return Err(BAD);
            }
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Refused(501));
            }
        }
        Ok(())
    }

    fn has_body(&self, version: Version) -> Result<bool, Refused> {
        if version == Version::Http11 && self.hosts == 0 {
            return Err(BAD);
        }
        if self.transfer_encodings > 0 && (self.length.is_some() || version == Version::Http10) {
            return Err(BAD);
        }
        Ok(self.transfer_encodings > 0 || self.length.is_some_and(|length| length > 0))
    }
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

/// The bytes of tokens.
const TOKEN: [bool; 256] = table(b"!#$%&'*+-.^_`|~");

/// The bytes of hosts with their ports.
const HOST: [bool; 256] = table(b"!$%&()*+,-.:;=@[]'_~");

/// Letters, digits and these.
const fn table(others: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte: u8 = 0;
    while byte < 0x80 {
        table[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = true;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What these bytes become, one line each: a target or the status of a refusal, `close` when it is the last one.
    fn heads(bytes: &[u8]) -> Vec<String> {
        // However the bytes are cut, the heads are the same.
        let whole = read(bytes, bytes.len().max(1));
        for size in [1, 2, 3, 7, 64] {
            assert_eq!(read(bytes, size), whole, "{} cut to {size}", bytes.escape_ascii());
        }
        whole
    }

    fn read(bytes: &[u8], size: usize) -> Vec<String> {
        let mut heads = Heads::default();
        let mut found = Vec::new();
        for part in bytes.chunks(size) {
            heads.buffer().extend_from_slice(part);
            while let Some(head) = heads.take() {
                let (text, last) = match head {
                    Ok(head) => (head.target.escape_ascii().to_string(), head.terms.has_body),
                    Err(Refused(status)) => (status.to_string(), true),
                };
                found.push(if last { format!("{text} close") } else { text });
                if last {
                    return found;
                }
            }
        }
        found
    }

    #[test]
    fn heads_are_cut_and_targets_survive() {
        for (bytes, expected) in [
            (&b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"[..], &["/a"][..]),
            (b"GET /a HTTP/1.1\nHost: x\n\n", &["/a"]),
            (b"\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost:\r\n\r\n", &["/a", "/b"]),
            (b"GET /a#b?c%zz\xd0\xba HTTP/1.0\r\n\r\n", &["/a#b?c%zz\\xd0\\xba"]),
            (b"GET http://h/!414 HTTP/1.1\r\nHost: x\r\n\r\n", &["http://h/!414"]),
            (b"GET !414 HTTP/1.1\r\nHost: x\r\n\r\n", &["!414"]),
            (b"FOO * HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", &["*"]),
            (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", &["/a close"]),
            (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", &["/a close"]),
            (b"GET /a HTTP/1.1\r\nHost: x\r\n", &[]),
        ] {
            assert_eq!(heads(bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn faults_are_refused() {
        for (bytes, status) in [
            (&b"GET /a HTTP/1.1\r\n\r\n"[..], 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost : x\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\n y: z\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\n Host: x\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\ngarbage\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nA: b\0\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\rHost: x\r\n\r\n", 400),
            (b"GET /a\r\n\r\n", 400),
            (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            (b"GET /a http/1.1\r\nHost: x\r\n\r\n", 400),
            (b"GET /a HTTP/1.10\r\nHost: x\r\n\r\n", 400),
            (b"G(T /a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
            (b"GET /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n", 501),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551621\r\n\r\n", 400),
            (b"\r\n\r\n\r\n\r\n\r\n\r\n", 400),
        ] {
            assert_eq!(heads(bytes), [format!("{status} close")], "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn large_heads_are_refused_before_they_end() {
        let line = |length: usize| [b"GET /".to_vec(), vec![b'a'; length]].concat();
        assert_eq!(heads(&line(REQUEST_LINE_MAX)), ["414 close"]);
        let fields = b"GET / HTTP/1.1\r\nHost: x\r\nA: ".to_vec();
        assert_eq!(heads(&[fields, vec![b'a'; HEAD_MAX]].concat()), ["431 close"]);
        let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX));
        assert_eq!(heads(many.as_bytes()), ["431 close"]);
    }

    #[test]
    fn only_what_is_looked_at_is_handed_on() {
        let mut heads = Heads::default();
        heads.buffer().extend_from_slice(
            b"DELETE /x?y HTTP/1.0\r\nHost: h\r\naccept: text/\xff\r\nCookie: secret\r\nX-Forwarded-For:  1.2.3.4 \r\nConnection: Keep-Alive, x\r\n\r\n",
        );
        let head = heads.take().unwrap().unwrap();
        let Terms { version, head_only, last, has_body } = head.terms;
        assert_eq!((version, head_only, last, has_body), (Version::Http10, false, false, false));
        let asked = head.asked();
        assert_eq!((asked.method, asked.target), (Method::Other, &b"/x?y"[..]));
        let fields: [(Field, &[u8]); 3] =
            [(Field::Host, b"h"), (Field::Accept, b"text/\xff"), (Field::ForwardedFor, b"1.2.3.4")];
        assert_eq!(asked.fields, fields);
    }

    #[test]
    fn the_connection_ends_when_the_client_or_its_version_says_so() {
        for (line, headers, last) in [
            ("GET / HTTP/1.1", "", false),
            ("GET / HTTP/1.1", "Connection: x, Close\r\n", true),
            ("GET / HTTP/1.1", "Content-Length: 0\r\n", false),
            ("GET / HTTP/1.1", "Content-Length: 1\r\n", true),
            ("GET / HTTP/1.0", "", true),
            ("HEAD / HTTP/1.0", "Connection: keep-alive\r\n", false),
            ("GET / HTTP/1.0", "Connection: keep-alive, close\r\n", true),
        ] {
            let mut heads = Heads::default();
            heads.buffer().extend_from_slice(format!("{line}\r\nHost: x\r\n{headers}\r\n").as_bytes());
            let terms = heads.take().unwrap().unwrap().terms;
            assert_eq!((terms.last, terms.head_only), (last, line.starts_with("HEAD")), "{line} {headers}");
        }
    }
}
