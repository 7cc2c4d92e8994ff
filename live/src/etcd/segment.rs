//! Names as segments of keys: what is not plain is written as `%` and two hexadecimal digits.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether an octet stands for itself in a segment: a letter, a digit, `-`, `.`, `_`, `~`, or one of `also`.
fn is_plain(octet: u8, also: &[u8]) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b'~') || also.contains(&octet)
}

/// Writes a name behind `path`; besides letters, digits and `-._~` the octets in `also` stay as they are.
pub fn escape(name: &str, also: &[u8], path: &mut String) {
    for octet in name.bytes() {
        if is_plain(octet, also) {
            path.push(char::from(octet));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(path, "%{octet:02X}");
        }
    }
}

/// The name that a segment stands for; `None` when it is none or not written as [`escape`] writes it with the same `also`,
/// so that no two segments mean the same.
pub fn unescape<'s>(segment: &'s str, also: &[u8]) -> Option<Cow<'s, str>> {
    if segment.bytes().all(|octet| is_plain(octet, also)) {
        return Some(Cow::Borrowed(segment));
    }
    let mut octets = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first == b'%' {
            let (digits, behind) = behind.split_at_checked(2)?;
            octets.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = behind;
        } else {
            octets.push(*first);
            rest = behind;
        }
    }
    let name = String::from_utf8(octets).ok()?;
    let mut again = String::with_capacity(segment.len());
    escape(&name, also, &mut again);
    (again == segment).then_some(Cow::Owned(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_has_one_form() {
        for (segment, also, name) in [
            ("win-1.a_b~", &b""[..], Some("win-1.a_b~")),
            ("", b"", Some("")),
            ("a%2Fb%20%C3%A4", b"", Some("a/b ä")),
            ("[%3A%3A1]%3A80", b"[]", Some("[::1]:80")),
            ("a:b", b":", Some("a:b")),
            ("a%3Ab", b"", Some("a:b")),
            // Other forms of the same, and what is none.
            ("a%3Ab", b":", None),
            ("a:b", b"", None),
            ("a%2fb", b"", None),
            ("%41", b"", None),
            ("a%2", b"", None),
            ("%+1", b"", None),
            ("%FF", b"", None),
            ("a b", b"", None),
        ] {
            assert_eq!(unescape(segment, also).as_deref(), name, "{segment}");
        }
    }

    proptest! {
        #[test]
        fn what_is_escaped_comes_back(name in ".{0,40}", colon in any::<bool>()) {
            let also = if colon { &b":"[..] } else { b"" };
            let mut segment = String::new();
            escape(&name, also, &mut segment);
            prop_assert!(segment.bytes().all(|octet| is_plain(octet, also) || octet == b'%'));
            prop_assert_eq!(unescape(&segment, also), Some(name.into()));
        }
    }
}
