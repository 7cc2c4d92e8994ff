//! Heads of requests: read whole, checked strictly, and handed on with only what the service looks at.
//!
//! hyper reads heads well, but drops what stands behind a `#` in a target, and answers what it refuses with
//! an empty body; the predecessor did neither. So a head comes to hyper rewritten: the target is escaped as a
//! whole ([`target`] gives it back), and a head that is refused becomes a request for its refusal. That also
//! keeps everything about bodies away: the service reads none, and closes the connection after a request
//! that has one.

use std::fmt::Write as _;

use crate::asked::{Asked, Field};
use crate::escape;
use crate::path::Method;

/// Longest head, in octets; the predecessor took a megabyte, real ones are below one kilobyte.
const HEAD_MAX: usize = 16 << 10;

/// Longest request line, in octets. Paths go down to labels, which may be long; 8,000 is RFC 9110's (section
/// 4.1) recommended least.
const REQUEST_LINE_MAX: usize = 8 << 10;

/// Most header lines in a head.
const HEADERS_MAX: usize = 100;

/// Room for the header lines that usual requests have and that are looked at.
const USUAL_LINES: usize = 4;

/// Most line ends before a head; some old clients send one too many.
const BLANK_LINES_MAX: usize = 4;

/// The octets of a connection on their way to become heads.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    octets: Vec<u8>,
    blank_lines: usize,
    /// How far no end of a head was found.
    searched: usize,
}

/// One head, as hyper gets it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) octets: Vec<u8>,
    /// Whether nothing behind it is read: it was refused, or a body follows.
    pub(crate) last: bool,
}

/// A head, taken apart.
#[derive(Debug)]
pub(crate) struct Parts<'o> {
    pub(crate) verb: Verb,
    pub(crate) target: &'o [u8],
    pub(crate) version: Version,
    /// The header lines that are looked at, in order.
    fields: Vec<(Field, &'o [u8])>,
    /// Whether a body follows, so that nothing behind the head is read.
    pub(crate) has_body: bool,
    closes: bool,
    keeps_alive: bool,
}

/// The methods, as far as they make a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Head,
    Options,
    Put,
    /// All others get the same answers.
    Other,
}

/// The versions of HTTP, as far as they make a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    Http11,
}

/// Why a head is refused, as the status to answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused(u16);

const BAD: Refused = Refused(400);

impl Heads {
    /// Where more octets go.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.octets
    }

    /// Whether not one octet of a head is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// Whether so much is there that no more is to be read before a head is taken out.
    pub(crate) fn is_full(&self) -> bool {
        self.octets.len() > HEAD_MAX
    }

    /// Takes the next head out, when it is there as a whole or already certain to be refused.
    pub(crate) fn take(&mut self) -> Option<Head> {
        let refuse = |Refused(status)| Some(Head::refusal(status));
        while let Some(length) = line_end(&self.octets) {
            self.octets.drain(..length);
            self.blank_lines += 1;
            self.searched = 0;
        }
        if self.blank_lines > BLANK_LINES_MAX {
            return refuse(BAD);
        }
        let Some(end) = self.end() else {
            let line_ends = self.octets.iter().take(REQUEST_LINE_MAX).any(|byte| *byte == b'\n');
            return match self.octets.len() {
                length if length > REQUEST_LINE_MAX && !line_ends => refuse(Refused(414)),
                length if length > HEAD_MAX => refuse(Refused(431)),
                _ => None,
            };
        };
        let head = parse(&self.octets[..end]).map(|parts| parts.rewritten());
        self.octets.drain(..end);
        if self.octets.is_empty() {
            // A client that waits for minutes needs no buffer meanwhile.
            self.octets = Vec::new();
        }
        (self.searched, self.blank_lines) = (0, 0);
        head.map_or_else(refuse, Some)
    }

    /// Where the head ends.
    fn end(&mut self) -> Option<usize> {
        let from = self.searched.saturating_sub(3);
        let end = end(&self.octets[from..]);
        self.searched = self.octets.len();
        end.map(|end| from + end)
    }
}

impl Head {
    /// A request for the refusal with this status.
    pub(crate) fn refusal(status: u16) -> Self {
        let octets = format!("GET /!{status} HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n").into_bytes();
        Self { octets, last: true }
    }
}

/// How long the line end is that the octets begin with.
fn line_end(octets: &[u8]) -> Option<usize> {
    match octets {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

/// The target that a client sent, from the path that hyper saw; or the status with which it was refused.
pub(crate) fn target(path: &str) -> Result<Vec<u8>, u16> {
    let escaped = path.strip_prefix('/').unwrap_or(path);
    if let Some(status) = escaped.strip_prefix('!') {
        return Err(status.parse().unwrap_or(400));
    }
    escape::path(escaped.as_bytes()).map_err(|_| 400)
}

/// The first head in these octets and how long it is, when it is there as a whole and nothing is odd about it.
pub(crate) fn plain(octets: &[u8]) -> Option<(Parts<'_>, usize)> {
    // Line ends before a head are counted elsewhere.
    octets.first().filter(|first| is_token(**first))?;
    let end = end(octets)?;
    let parts = parse(&octets[..end]).ok()?;
    (!parts.has_body).then_some((parts, end))
}

/// Where a head ends: behind the first empty line.
fn end(octets: &[u8]) -> Option<usize> {
    let ends = |(at, _): (usize, &u8)| match &octets[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    };
    octets.iter().enumerate().filter(|(_, byte)| **byte == b'\n').find_map(ends)
}

fn parse(head: &[u8]) -> Result<Parts<'_>, Refused> {
    if head.len() > HEAD_MAX {
        return Err(Refused(431));
    }
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let (verb, target, version) = request_line(lines.next().unwrap_or_default())?;
    let mut parts = Parts {
        verb,
        target,
        version,
        fields: Vec::with_capacity(USUAL_LINES),
        has_body: false,
        closes: false,
        keeps_alive: false,
    };
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
                parts.fields.push((field, value));
            }
            None if name.eq_ignore_ascii_case(b"connection") => parts.connection(value),
            None => framing.line(version, name, value)?,
        }
    }
    parts.has_body = framing.has_body(version)?;
    Ok(parts)
}

impl<'o> Parts<'o> {
    /// Takes out what does not only concern the connection.
    pub(crate) fn asked(&mut self) -> Asked<'o> {
        let method = match self.verb {
            Verb::Get | Verb::Head => Method::Read,
            Verb::Options => Method::Options,
            Verb::Put => Method::Put,
            Verb::Other => Method::Other,
        };
        Asked { method, target: self.target, fields: std::mem::take(&mut self.fields) }
    }

    /// Whether the connection ends with the answer.
    pub(crate) fn is_last(&self) -> bool {
        self.has_body || self.closes || (self.version == Version::Http10 && !self.keeps_alive)
    }

    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            self.closes |= option.eq_ignore_ascii_case(b"close");
            self.keeps_alive |= self.version == Version::Http10 && option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    /// The head as hyper gets it.
    fn rewritten(&self) -> Head {
        let mut out = String::with_capacity(self.target.len() * 2 + 128);
        out.push_str(match self.verb {
            Verb::Get => "GET /",
            Verb::Head => "HEAD /",
            Verb::Options => "OPTIONS /",
            Verb::Put => "PUT /",
            Verb::Other => "POST /",
        });
        for byte in self.target {
            if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
                out.push(char::from(*byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out.push_str(if self.version == Version::Http10 { " HTTP/1.0\r\n" } else { " HTTP/1.1\r\n" });
        for (field, value) in &self.fields {
            out.push_str(field.name());
            out.push_str(": ");
            out.extend(value.iter().map(|byte| char::from(*byte)));
            out.push_str("\r\n");
        }
        if self.has_body || self.closes {
            out.push_str("connection: close\r\n");
        } else if self.keeps_alive {
            out.push_str("connection: keep-alive\r\n");
        }
        out.push_str("\r\n");
        // What was taken over is ASCII, or had each other octet made into one character.
        let octets = out.chars().map(|char| u8::try_from(u32::from(char)).unwrap_or(b'?')).collect();
        Head { octets, last: self.has_body }
    }
}

fn request_line(line: &[u8]) -> Result<(Verb, &[u8], Version), Refused> {
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
    let verb = match method {
        b"GET" => Verb::Get,
        b"HEAD" => Verb::Head,
        b"OPTIONS" => Verb::Options,
        b"PUT" => Verb::Put,
        _ => Verb::Other,
    };
    Ok((verb, target, version))
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

/// The octets of tokens.
const TOKEN: [bool; 256] = table(b"!#$%&'*+-.^_`|~");

/// The octets of hosts with their ports.
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

    /// The heads that these octets become, one line each: the first line, `close` when it is the last one.
    fn heads(octets: &[u8]) -> Vec<String> {
        // However the octets are cut, the heads are the same.
        let whole = read(octets, octets.len().max(1));
        for size in [1, 2, 3, 7, 64] {
            assert_eq!(read(octets, size), whole, "{} cut to {size}", octets.escape_ascii());
        }
        whole
    }

    fn read(octets: &[u8], size: usize) -> Vec<String> {
        let mut heads = Heads::default();
        let mut found = Vec::new();
        for part in octets.chunks(size) {
            heads.buffer().extend_from_slice(part);
            while let Some(head) = heads.take() {
                let text = String::from_utf8_lossy(&head.octets).into_owned();
                assert!(text.ends_with("\r\n\r\n"), "{text:?}");
                let target = text.split(' ').nth(1).map(target);
                let target = target.map(|target| target.map(|target| target.escape_ascii().to_string()));
                let target = target.unwrap().unwrap_or_else(|status| status.to_string());
                found.push(if head.last { format!("{target} close") } else { target });
                if head.last {
                    return found;
                }
            }
        }
        found
    }

    #[test]
    fn heads_are_cut_and_targets_survive() {
        for (octets, expected) in [
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
            assert_eq!(heads(octets), expected, "{}", octets.escape_ascii());
        }
    }

    #[test]
    fn faults_are_refused() {
        for (octets, status) in [
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
            assert_eq!(heads(octets), [format!("{status} close")], "{}", octets.escape_ascii());
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
        let head = heads.take().unwrap();
        assert_eq!(
            head.octets.escape_ascii().to_string(),
            "POST //x%3Fy HTTP/1.0\\r\\nhost: h\\r\\naccept: text/\\xff\\r\\nx-forwarded-for: 1.2.3.4\\r\\nconnection: keep-alive\\r\\n\\r\\n"
        );
    }
}
