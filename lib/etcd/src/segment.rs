//! Names as segments of keys: what is not plain is written as `%` and two hexadecimal digits.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What is escaped in a segment: everything but letters, digits and `-._~`.
pub const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Writes a name behind `path`.
pub fn escape(name: &str, escaped: &'static AsciiSet, path: &mut String) {
    path.extend(utf8_percent_encode(name, escaped));
}

/// The name that a segment stands for; `None` when it is none or not written as [`escape`] writes it with the same set,
/// so that no two segments mean the same.
pub fn unescape<'s>(segment: &'s str, escaped: &'static AsciiSet) -> Option<Cow<'s, str>> {
    let name = percent_decode_str(segment).decode_utf8().ok()?;
    let again = utf8_percent_encode(&name, escaped).flat_map(str::bytes);
    again.eq(segment.bytes()).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COLON: &AsciiSet = &ESCAPED.remove(b':');
    const BRACKETS: &AsciiSet = &ESCAPED.remove(b'[').remove(b']');

    #[test]
    fn a_name_has_one_form() {
        for (segment, escaped, name) in [
            ("win-1.a_b~", ESCAPED, Some("win-1.a_b~")),
            ("", ESCAPED, Some("")),
            ("a%2Fb%20%C3%A4", ESCAPED, Some("a/b ä")),
            ("[%3A%3A1]%3A80", BRACKETS, Some("[::1]:80")),
            ("a:b", COLON, Some("a:b")),
            ("a%3Ab", ESCAPED, Some("a:b")),
            // Other forms of the same, and what is none.
            ("a%3Ab", COLON, None),
            ("a:b", ESCAPED, None),
            ("a%2fb", ESCAPED, None),
            ("%41", ESCAPED, None),
            ("a%2", ESCAPED, None),
            ("%+1", ESCAPED, None),
            ("%FF", ESCAPED, None),
            ("a b", ESCAPED, None),
        ] {
            assert_eq!(unescape(segment, escaped).as_deref(), name, "{segment}");
        }
    }

    proptest! {
        #[test]
        fn what_is_escaped_comes_back(name in ".{0,40}", colon in any::<bool>()) {
            let escaped = if colon { COLON } else { ESCAPED };
            let mut segment = String::new();
            escape(&name, escaped, &mut segment);
            prop_assert!(segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte) || colon && byte == b':'));
            prop_assert_eq!(unescape(&segment, escaped), Some(name.into()));
        }
    }
}
