//! Names of stacks and services. ◇
//!
//! A service is addressed as STACK/SERVICE, and ids of units have both names, an index and a digest.

use model::Text;

/// Longest name of a stack or a service, in bytes.
const NAME_MAX: usize = 40;

/// What such a name is.
pub(crate) const EXPECTED_NAME: &str = "1 to 40 letters, digits, '_', '.' and '-', a letter or digit first";

/// The name of a stack or a service; `None` if it is none.
pub(crate) fn name(text: &str) -> Option<Text> {
    let fine = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
    let first = text.starts_with(|first: char| first.is_ascii_alphanumeric());
    (first && text.len() <= NAME_MAX && text.chars().all(fine)).then(|| text.into())
}

/// The name in an option of the command line.
///
/// # Errors
///
/// Fails with what was expected.
pub(crate) fn given_name(text: &str) -> Result<String, String> {
    name(text).map(|name| name.to_string()).ok_or_else(|| format!("expected {EXPECTED_NAME}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_letters_and_no_slash() {
        assert!(["a", "1", "Shop.v2_b-c", &"x".repeat(NAME_MAX)].iter().all(|text| name(text).is_some()));
        let long = "x".repeat(NAME_MAX + 1);
        for text in ["", "a/b", "/", ".x", "-x", "a b", "\u{e9}", "a\n", &long] {
            assert_eq!((name(text), given_name(text)), (None, Err(format!("expected {EXPECTED_NAME}"))), "{text:?}");
        }
    }
}
