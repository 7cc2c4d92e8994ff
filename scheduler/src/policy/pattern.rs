//! A pattern: text in which `*` stands for any characters.

use model::Text;

/// Text with `*` for any number of any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Text);

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// What fits everything.
    pub(super) fn any() -> Self {
        Self::new("*")
    }

    /// Whether it is this text, and nothing else.
    pub(super) fn is(&self, text: &str) -> bool {
        &*self.0 == text
    }

    /// Whether a text fits.
    pub(super) fn fits(&self, text: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else { return self.is(text) };
        let Some(mut text) = text.strip_prefix(first) else { return false };
        let mut pieces = rest.split('*').peekable();
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                return text.ends_with(piece);
            }
            // The first place leaves most for the others.
            let Some(at) = text.find(piece) else { return false };
            text = &text[at + piece.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, fitting, others) in [
            ("*", &["", "a", "a/b"][..], &[][..]),
            ("", &[""], &["a"]),
            ("shop", &["shop"], &["", "Shop", "shop2", "a-shop"]),
            ("shop-*", &["shop-", "shop-a-b"], &["shop", "a-shop-b"]),
            ("*-db", &["a-db", "-db"], &["a-db-b"]),
            ("a*b*c", &["abc", "a-b-c", "abbcc", "abcbc"], &["ac", "ab", "acb", "abcd"]),
            ("aa*aa", &["aaaa", "aabaa"], &["aa", "aaa"]),
        ] {
            let pattern = Pattern::new(pattern);
            assert!(fitting.iter().all(|text| pattern.fits(text)), "{pattern:?} {fitting:?}");
            assert!(!others.iter().any(|text| pattern.fits(text)), "{pattern:?} {others:?}");
        }
    }
}
