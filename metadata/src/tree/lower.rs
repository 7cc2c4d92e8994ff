//! Lower case as the predecessor meant it: each character for itself.

use std::borrow::Cow;

/// The text in lower case, character by character.
///
/// Unlike [`str::to_lowercase`] it does not look at neighbours (`Σ` is `σ` at the end of a word too) and never
/// makes one character into two (`İ` is `i`).
pub(crate) fn lower(text: &str) -> Cow<'_, str> {
    if is_lower(text) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(lower_char).collect())
}

/// Whether [`lower`] would give the same text.
pub(crate) fn is_lower(text: &str) -> bool {
    text.chars().all(|char| if char.is_ascii() { !char.is_ascii_uppercase() } else { lower_char(char) == char })
}

fn lower_char(char: char) -> char {
    // The first of two characters is the letter without its combining mark.
    char.to_lowercase().next().unwrap_or(char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_character_for_itself() {
        for (text, expected) in [
            ("", ""),
            ("web-1", "web-1"),
            ("Shop-Web", "shop-web"),
            ("ÜNÏ", "ünï"),
            ("ΟΔΟΣ", "οδοσ"),
            ("İ", "i"),
            ("日本", "日本"),
        ] {
            assert_eq!(lower(text), expected);
            assert_eq!(is_lower(text), text == expected);
        }
    }
}
