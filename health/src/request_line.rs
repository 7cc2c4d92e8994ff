//! The request of an HTTP check, from the line in which the predecessor's users wrote it.
//!
//! The predecessor copied the line into `option httpchk` of `HAProxy`, so its words are `HAProxy`'s (configuration manual,
//! section 2.2): separated by blanks, with quotes and backslashes, up to a `#`. One word is the target, two are method and
//! target, three add the version, behind which headers and a body may follow as `\r\n`. What is sent equals `HAProxy` 2.6's byte
//! for byte (`tests/fixtures/requests.json`), but for lines that could not be a request: they are refused here. Variables of
//! the environment are not replaced.

use thiserror::Error;

/// Longest line, in bytes: `HAProxy` takes 2 KiB for a line of its configuration.
pub const LINE_MAX: usize = 4096;

/// Methods whose requests have no `content-length` unless there is a body.
const WITHOUT_BODY: [&str; 4] = ["GET", "HEAD", "OPTIONS", "DELETE"];

/// Why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadRequestLine {
    /// It is too long.
    #[error("{0} bytes are too long, at most {LINE_MAX} are taken")]
    Long(usize),
    /// It has a control character, written as it is or as `\r`, `\n` or `\xHH` where none may be.
    #[error("a control character in the {0}: write each header behind the version as \"HTTP/1.1\\r\\nName: value\"")]
    Control(&'static str),
    /// A quote has no end.
    #[error("a quotation mark has no second one")]
    Quote,
    /// `\x` is not followed by two hexadecimal digits.
    #[error("\\x wants two hexadecimal digits")]
    Hex,
    /// There are more than three words.
    #[error("more than three words, expected [METHOD] TARGET [VERSION]: quote a word with blanks")]
    Words,
    /// The method is no token (RFC 9110, section 5.6.2).
    #[error("{0:?} is no method")]
    Method(String),
    /// The version has blanks or is longer than any.
    #[error("{0:?} is no version of HTTP, expected HTTP/1.0 or HTTP/1.1")]
    Version(String),
    /// A header has no name or no colon, is folded, or may not be there.
    #[error("{0:?} is no header that can be sent")]
    Header(String),
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    method: String,
    target: Vec<u8>,
    version: String,
    /// Names are in lower case.
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Request {
    /// Whether the method asks and changes nothing (RFC 9110, section 9.2.1).
    pub fn is_safe(&self) -> bool {
        matches!(&*self.method, "GET" | "HEAD" | "OPTIONS")
    }

    /// The request of a line.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be one.
    pub fn parse(line: &str) -> Result<Self, BadRequestLine> {
        if line.len() > LINE_MAX {
            return Err(BadRequestLine::Long(line.len()));
        }
        if line.bytes().any(|byte| is_control(byte) && byte != b'\t') {
            return Err(BadRequestLine::Control("line"));
        }
        let [first, second, third] = words(line)?;
        let (method, target) = if second.is_empty() { (Vec::new(), first) } else { (first, second) };
        let method = if method.is_empty() { b"OPTIONS".to_vec() } else { method };
        let target = if target.is_empty() { b"/".to_vec() } else { target };
        if target.iter().any(|byte| is_control(*byte) && *byte != b'\t') {
            return Err(BadRequestLine::Control("target"));
        }
        let method = token(&method).ok_or_else(|| BadRequestLine::Method(printed(&method)))?;
        let (head, body) = split(&third, b"\r\n\r\n");
        let (version, headers) = split(head, b"\r\n");
        let mut request =
            Self { method, target, version: version_of(version)?, headers: Vec::new(), body: body.to_vec() };
        let mut rest = headers;
        while !rest.is_empty() {
            let (header, behind) = split(rest, b"\r\n");
            request.add_line(header)?;
            rest = behind;
        }
        Ok(request)
    }

    /// Adds a header, unless the request has one of this name.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be sent.
    pub fn add_header(&mut self, name: &str, value: &str) -> Result<(), BadRequestLine> {
        if self.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        self.add_line(format!("{name}: {value}").as_bytes())
    }

    fn add_line(&mut self, line: &[u8]) -> Result<(), BadRequestLine> {
        let wrong = || BadRequestLine::Header(printed(line));
        let colon = line.iter().position(|byte| *byte == b':').ok_or_else(wrong)?;
        let name = token(&line[..colon]).ok_or_else(wrong)?.to_ascii_lowercase();
        let value = line[colon + 1..].trim_ascii();
        if value.iter().any(|byte| is_control(*byte) && *byte != b'\t') {
            return Err(BadRequestLine::Control("header"));
        }
        let is_second_host = name == "host" && self.headers.iter().any(|(other, _)| *other == name);
        // The body has a length; two ways to say where it ends would be one too many.
        if is_second_host || name == "transfer-encoding" {
            return Err(wrong());
        }
        self.headers.push((name, value.to_vec()));
        Ok(())
    }

    /// What is sent.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(self.method.as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(&self.target);
        bytes.push(b' ');
        bytes.extend_from_slice(self.version.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        let mut connection: &[u8] = b"";
        for (name, value) in &self.headers {
            if name == "connection" {
                connection = value;
            } else if !value.is_empty() {
                header(&mut bytes, name, value);
            }
        }
        if !self.body.is_empty() || !WITHOUT_BODY.contains(&self.method.as_str()) {
            header(&mut bytes, "content-length", self.body.len().to_string().as_bytes());
        }
        // Each version's own default is not written.
        match (self.version == "HTTP/1.1", connection.eq_ignore_ascii_case(b"keep-alive")) {
            (true, false) => header(&mut bytes, "connection", b"close"),
            (false, true) => header(&mut bytes, "connection", b"keep-alive"),
            _ => {}
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

fn header(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}

/// The version as it is sent. `HAProxy` writes all from 1.1 on as 1.1.
fn version_of(word: &[u8]) -> Result<String, BadRequestLine> {
    /// `HTTP/1.0` and some room for what `HAProxy` passes on as it is.
    const LENGTH_MAX: usize = 16;
    if word.is_empty() {
        return Ok("HTTP/1.0".to_owned());
    }
    if word.len() > LENGTH_MAX || !word.iter().all(u8::is_ascii_graphic) {
        return Err(BadRequestLine::Version(printed(word)));
    }
    let is_newer = word.len() == 8 && (word[5] > b'1' || (word[5] == b'1' && word[7] >= b'1'));
    Ok(if is_newer { "HTTP/1.1".to_owned() } else { printed(word) })
}

/// The words of a line, empty where there are fewer than three.
fn words(line: &str) -> Result<[Vec<u8>; 3], BadRequestLine> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut rest = line.as_bytes();
    while let [byte, behind @ ..] = rest {
        rest = behind;
        match (*byte, quote) {
            (b' ' | b'\t', None) => words.extend(word.take()),
            (b'#', None) => break,
            (mark @ (b'"' | b'\''), None) => {
                quote = Some(mark);
                word.get_or_insert_default();
            }
            (mark, Some(open)) if mark == open => quote = None,
            (b'\\', None | Some(b'"')) => {
                let word = word.get_or_insert_default();
                rest = escaped(word, rest)?;
            }
            (byte, _) => word.get_or_insert_default().push(byte),
        }
    }
    if quote.is_some() {
        return Err(BadRequestLine::Quote);
    }
    words.extend(word);
    words.resize_with(words.len().max(3), Vec::new);
    words.try_into().map_err(|_| BadRequestLine::Words)
}

/// Adds what a backslash before `rest` stands for, and returns what follows.
fn escaped<'l>(word: &mut Vec<u8>, rest: &'l [u8]) -> Result<&'l [u8], BadRequestLine> {
    let (byte, taken) = match rest {
        [byte @ (b' ' | b'\\' | b'#' | b'"' | b'\''), ..] => (*byte, 1),
        [b'n', ..] => (b'\n', 1),
        [b'r', ..] => (b'\r', 1),
        [b't', ..] => (b'\t', 1),
        [b'x', digits @ ..] => {
            let digit = |at: usize| digits.get(at).and_then(|digit| char::from(*digit).to_digit(16));
            let value = digit(0).zip(digit(1)).map(|(high, low)| high * 16 + low);
            (value.and_then(|value| value.try_into().ok()).ok_or(BadRequestLine::Hex)?, 3)
        }
        _ => (b'\\', 0),
    };
    word.push(byte);
    Ok(&rest[taken..])
}

/// What stands before and behind the first `mark`.
fn split<'b>(bytes: &'b [u8], mark: &[u8]) -> (&'b [u8], &'b [u8]) {
    let at = bytes.windows(mark.len()).position(|window| window == mark);
    at.map_or((bytes, &[]), |at| (&bytes[..at], &bytes[at + mark.len()..]))
}

/// A token of RFC 9110, section 5.6.2.
fn token(bytes: &[u8]) -> Option<String> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    (!bytes.is_empty() && bytes.iter().all(is_token)).then(|| printed(bytes))
}

fn is_control(byte: u8) -> bool {
    byte < b' ' || byte == 0x7f
}

fn printed(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Lines that `HAProxy` sends and that are refused here: they are no requests, or change with the environment.
    const REFUSED: [(&str, &str); 11] = [
        (r"GET /ping 'HTTP/1.1\r\nHost: example.org'", "is no version"),
        (r#"GET /ping "HTTP/1.1\nHost: a""#, "is no version"),
        (r#"GET /ping "HTTP/1.1\r\nX Y: a""#, "is no header"),
        (r#"GET /ping "HTTP/1.1\r\nHost : a""#, "is no header"),
        (r#"GET /ping "HTTP/1.1\r\nX: a\r\n b""#, "is no header"),
        (r#"GET /ping "HTTP/1.1\r\nTransfer-Encoding: chunked""#, "is no header"),
        ("G(T /ping", "is no method"),
        (r"GET /a\nb", "control character in the target"),
        (r#"GET /ping "HTTP/1.1\r\nX: a\x00b""#, "control character in the header"),
        ("GET /ping\r\nHost: a", "control character in the line"),
        (r"GET /\xg1", "two hexadecimal digits"),
    ];

    /// Lines of which other bytes are sent than by `HAProxy`: it replaces variables by what its environment has, and says
    /// that a body follows in chunks although there is none.
    const DIFFERENT: [(&str, &str); 2] = [
        (r#"GET "/$x""#, "GET /$x HTTP/1.0\r\n\r\n"),
        (r#"GET /ping "HTTP/1.1\r\n\r\n""#, "GET /ping HTTP/1.1\r\nconnection: close\r\n\r\n"),
    ];

    fn sent(line: &str) -> Result<Vec<u8>, String> {
        Request::parse(line).map(|request| request.bytes()).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn bytes_are_those_that_haproxy_sends() {
        let recorded: Value = serde_json::from_str(include_str!("../tests/fixtures/requests.json")).unwrap();
        let recorded = recorded.as_array().unwrap();
        assert!(recorded.len() >= 80);
        for case in recorded {
            let line = case["line"].as_str().unwrap();
            if REFUSED.iter().chain(&DIFFERENT).any(|(other, _)| *other == line) {
                continue;
            }
            match case["sent"].as_str() {
                // Each character of the recording is a byte.
                Some(bytes) => {
                    let bytes: Vec<u8> = bytes.chars().map(|byte| u8::try_from(u32::from(byte)).unwrap()).collect();
                    assert_eq!(sent(line), Ok(bytes), "{line}");
                }
                None => assert!(sent(line).is_err(), "{line}"),
            }
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_reason() {
        for (line, reason) in REFUSED {
            let error = sent(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
        assert!(sent(&"a".repeat(LINE_MAX + 1)).is_err());
        for (line, bytes) in DIFFERENT {
            assert_eq!(sent(line).unwrap(), bytes.as_bytes(), "{line}");
        }
    }

    #[test]
    fn header_is_added_where_the_line_has_none() {
        let mut request = Request::parse("GET / HTTP/1.1").unwrap();
        request.add_header("Host", "example.org").unwrap();
        request.add_header("HOST", "other.example").unwrap();
        assert_eq!(request.bytes(), b"GET / HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n");
        assert!(request.add_header("X", "a\r\nY: b").is_err());
        assert!(request.add_header("X\r\nY", "a").is_err());
    }

    proptest! {
        #[test]
        fn no_line_makes_more_than_one_request(line in "[ -~\\\\\"'#rnx0-9a\t]{0,80}") {
            if let Ok(request) = Request::parse(&line) {
                let bytes = request.bytes();
                let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
                prop_assert_eq!(bytes.len() - head - 4, request.body.len());
                let lines = bytes[..head].split(|byte| *byte == b'\n').count();
                prop_assert!(lines <= 3 + request.headers.len());
                prop_assert!(!bytes[..head].contains(&0));
            }
        }
    }
}
