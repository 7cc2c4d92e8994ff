//! Percent escapes as the predecessor's language has them: in paths, in queries, in listings.

use std::fmt::Write as _;

/// There is a `%` without two hexadecimal digits behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadEscape;

/// What stands for `+` while unescaping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    Plus,
    Space,
}

/// Unescapes a path: `+` is a plus.
pub(crate) fn path(escaped: &[u8]) -> Result<Vec<u8>, BadEscape> {
    unescape(escaped, Plus::Plus)
}

/// Unescapes a part of a query: `+` is a space.
pub(crate) fn query(escaped: &[u8]) -> Result<Vec<u8>, BadEscape> {
    unescape(escaped, Plus::Space)
}

fn unescape(escaped: &[u8], plus: Plus) -> Result<Vec<u8>, BadEscape> {
    let mut plain = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => match tail {
                [high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    plain.push(digit(*high) << 4 | digit(*low));
                    rest = after;
                }
                _ => return Err(BadEscape),
            },
            b'+' if plus == Plus::Space => plain.push(b' '),
            other => plain.push(*other),
        }
    }
    Ok(plain)
}

fn digit(hex: u8) -> u8 {
    match hex {
        b'0'..=b'9' => hex - b'0',
        b'a'..=b'f' => hex - b'a' + 10,
        _ => hex - b'A' + 10,
    }
}

/// Appends text escaped for a query: `A-Za-z0-9-_.~` stay, a space becomes `+`.
pub(crate) fn push_query(out: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            _ => push_escape(out, byte),
        }
    }
}

/// Escapes bytes for a path: `A-Za-z0-9-_.~` and `$&+,/:;=@` stay.
pub(crate) fn for_path(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(byte) {
            out.push(char::from(*byte));
        } else {
            push_escape(&mut out, *byte);
        }
    }
    out
}

fn push_escape(out: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(out, "%{byte:02X}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        for (escaped, in_path, in_query) in [
            ("", "", ""),
            ("a+b", "a+b", "a b"),
            ("a%2Bb", "a+b", "a+b"),
            ("%6Catest", "latest", "latest"),
            ("sl%2fa%2Fsh", "sl/a/sh", "sl/a/sh"),
            ("per%25cent", "per%cent", "per%cent"),
            ("%d0%ba", "к", "к"),
        ] {
            assert_eq!(path(escaped.as_bytes()).unwrap(), in_path.as_bytes(), "{escaped}");
            assert_eq!(query(escaped.as_bytes()).unwrap(), in_query.as_bytes(), "{escaped}");
        }
        assert_eq!(path(b"%E6%00").unwrap(), b"\xe6\0");
    }

    #[test]
    fn bad_escapes_are_refused() {
        for escaped in ["a%zzb", "a%", "a%2", "%\"x", "%é", "%%41"] {
            assert_eq!(query(escaped.as_bytes()), Err(BadEscape), "{escaped}");
        }
    }

    #[test]
    fn names_are_escaped_for_listings() {
        for (name, escaped) in [
            ("shop-web_1.~", "shop-web_1.~"),
            ("with space", "with+space"),
            ("a/b", "a%2Fb"),
            ("plus+", "plus%2B"),
            ("日", "%E6%97%A5"),
            ("\u{1}\u{7f}", "%01%7F"),
            ("*!'()", "%2A%21%27%28%29"),
        ] {
            let mut out = String::new();
            push_query(&mut out, name);
            assert_eq!(out, escaped);
        }
    }

    #[test]
    fn paths_keep_their_delimiters() {
        assert_eq!(for_path("/a b/*?#ü+;=@".as_bytes()), "/a%20b/%2A%3F%23%C3%BC+;=@");
    }
}
