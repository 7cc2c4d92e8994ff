//! Whether the response to a check is a good one, as its bytes arrive.
//!
//! The status line is enough (RFC 9112, section 4), with or without a line end behind it once the server has closed. Redirects are
//! not followed. Text that is wanted is looked for in the body as it was sent.

use std::ops::RangeInclusive;

/// Longest head: what servers send at most by default.
const HEAD_MAX: usize = 8 * 1024;

/// Most of a body that is read.
const BODY_MAX: usize = 5 * 1024;

/// Longest part of a status line that a reason shows, in bytes.
const SHOWN_MAX: usize = 60;

/// What is expected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'s> {
    /// The codes that are good.
    pub(crate) status: &'s RangeInclusive<u16>,
    /// Text that the body has to have.
    pub(crate) body: Option<&'s str>,
}

/// Judges a response as its bytes arrive. Each is looked at about once, however few come at a time.
#[derive(Debug)]
pub(crate) struct Judge<'s> {
    expected: Expected<'s>,
    /// Bytes that were looked at.
    seen: usize,
    code: Option<u16>,
    /// Where the body begins.
    body: Option<usize>,
}

impl<'s> Judge<'s> {
    /// One that has not seen anything.
    pub(crate) fn new(expected: Expected<'s>) -> Self {
        Self { expected, seen: 0, code: None, body: None }
    }

    /// Judges all the bytes that have arrived; `is_end` when no more will. `None` asks for more.
    pub(crate) fn judge(&mut self, bytes: &[u8], is_end: bool) -> Option<Result<(), String>> {
        let from = std::mem::replace(&mut self.seen, bytes.len());
        let code = match self.code {
            Some(code) => code,
            None => match status_line(bytes, from, is_end)? {
                Ok(code) => *self.code.insert(code),
                Err(problem) => return Some(Err(problem)),
            },
        };
        if !self.expected.status.contains(&code) {
            return Some(Err(format!("status {code}")));
        }
        let Some(text) = self.expected.body.filter(|text| !text.is_empty()) else { return Some(Ok(())) };
        if self.body.is_none() {
            self.body = head_end(bytes, from);
        }
        let start = self.body.unwrap_or(bytes.len());
        let body = &bytes[start..(start + BODY_MAX).min(bytes.len())];
        // It may have begun in what was looked at.
        let new = (from + 1).saturating_sub(start + text.len()).min(body.len());
        if body[new..].windows(text.len()).any(|window| window == text.as_bytes()) {
            return Some(Ok(()));
        }
        let is_over = is_end || body.len() == BODY_MAX || (body.is_empty() && bytes.len() >= HEAD_MAX);
        is_over
            .then(|| Err(format!("status {code}, without the text {text:?} in the first {BODY_MAX} bytes of its body")))
    }
}

/// The code in the first line, whose end is looked for behind the first `from` bytes.
fn status_line(bytes: &[u8], from: usize, is_end: bool) -> Option<Result<u16, String>> {
    let line = match bytes[from..].iter().position(|byte| *byte == b'\n') {
        Some(end) => &bytes[..from + end],
        None if is_end || bytes.len() >= HEAD_MAX => bytes,
        None => return None,
    };
    if bytes.is_empty() {
        return Some(Err("closed without a response".to_owned()));
    }
    Some(code(line).ok_or_else(|| {
        let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN_MAX)]).trim_end().escape_debug().to_string();
        format!("no HTTP: {shown}")
    }))
}

/// The code of a status line: `HTTP/1.1 200 OK`.
fn code(line: &[u8]) -> Option<u16> {
    let version = line.strip_prefix(b"HTTP/")?;
    let (version, behind) = version.split_at(version.iter().position(|byte| *byte == b' ')?);
    let is_version = !version.is_empty() && version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let digits = behind.get(1..4).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let is_alone = behind.get(4).is_none_or(u8::is_ascii_whitespace);
    let code = digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    (is_version && is_alone && code >= 100).then_some(code)
}

/// Where the body begins, if the head does not end within the first `from` bytes.
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let ends = [&b"\r\n\r\n"[..], b"\n\n"].into_iter().filter_map(|mark| {
        let start = (from + 1).saturating_sub(mark.len());
        Some(start + bytes[start..].windows(mark.len()).position(|part| part == mark)? + mark.len())
    });
    ends.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The response piece by piece, then its end: what is decided, and after how many bytes.
    fn check(response: &str, body: Option<&str>, expected: &str) {
        let status = 200..=399;
        let wanted = Expected { status: &status, body };
        let bytes = response.as_bytes();
        let mut judge = Judge::new(wanted);
        let early =
            (0..=bytes.len()).find_map(|length| judge.judge(&bytes[..length], false).map(|result| (length, result)));
        let (length, result) =
            early.unwrap_or_else(|| (bytes.len() + 1, judge.judge(bytes, true).expect("the end decides")));
        let result = result.map_or_else(|reason| reason, |()| "pass".to_owned());
        let when = if length > bytes.len() { "at the end" } else { "early" };
        assert_eq!(format!("{when}: {result}"), expected, "{response:?}");
        // More bytes at once lead to the same.
        let at_once = Judge::new(wanted).judge(bytes, true);
        assert_eq!(at_once.map(|result| result.is_ok()), Some(expected.ends_with("pass")));
        // As do some at a time.
        for some in 2..12 {
            let mut judge = Judge::new(wanted);
            let ends = (1..=bytes.len() / some).map(|number| number * some);
            let early = ends.into_iter().find_map(|end| judge.judge(&bytes[..end], false));
            let result = early.or_else(|| judge.judge(bytes, true));
            assert_eq!(result.map(|result| result.is_ok()), Some(expected.ends_with("pass")), "{some} at a time");
        }
    }

    #[test]
    fn status_line_is_enough() {
        check("HTTP/1.1 200 OK\r\n\r\n", None, "early: pass");
        check("HTTP/1.0 302 Found\r\nLocation: /x\r\n\r\n", None, "early: pass");
        check("HTTP/1.1 200\n", None, "early: pass");
        check("HTTP/1.1 200", None, "at the end: pass");
        check("HTTP/1.1 500 Internal Server Error\r\n\r\n", None, "early: status 500");
        check("HTTP/1.1 199 \r\n", None, "early: status 199");
    }

    #[test]
    fn what_is_no_http_is_shown() {
        check("", None, "at the end: closed without a response");
        check("SSH-2.0-OpenSSH_9.2\r\n", None, "early: no HTTP: SSH-2.0-OpenSSH_9.2");
        check("HTTP/1.1 2000 OK\r\n", None, "early: no HTTP: HTTP/1.1 2000 OK");
        check("HTTP/1.1 20", None, "at the end: no HTTP: HTTP/1.1 20");
        check("HTTP/x 200 OK\n", None, "early: no HTTP: HTTP/x 200 OK");
        check("\u{1b}[2J\n", None, "early: no HTTP: \\u{1b}[2J");
        check(&"a".repeat(HEAD_MAX + 1), None, &format!("early: no HTTP: {}", "a".repeat(SHOWN_MAX)));
    }

    #[test]
    fn text_is_looked_for_in_the_body() {
        check("HTTP/1.1 200 OK\r\nX: fine\r\n\r\nall is fine\n", Some("fine"), "early: pass");
        let missing = "at the end: status 200, without the text \"fine\" in the first 5120 bytes of its body";
        check("HTTP/1.1 200 OK\r\nX: fine\r\n\r\nbroken", Some("fine"), missing);
        check("HTTP/1.1 200 OK\nX: y\n\nfine", Some("fine"), "early: pass");
        let late = format!("HTTP/1.1 200 OK\r\n\r\n{}fine", "-".repeat(BODY_MAX));
        check(&late, Some("fine"), &missing.replace("at the end", "early"));
        check("HTTP/1.1 503 No\r\n\r\nfine", Some("fine"), "early: status 503");
    }
}
