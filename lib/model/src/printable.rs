//! Text from outside for a line of a log, a table or a terminal.

use std::fmt::Write as _;

/// The first `most` characters of a text that another program wrote, without those that would begin a line or steer a terminal.
pub fn printable(text: &str, most: usize) -> String {
    text.chars().filter(|char| !steers(*char)).take(most).collect()
}

/// The same of several lines, whole.
pub fn printable_lines(text: &str) -> String {
    text.chars().filter(|char| *char == '\n' || !steers(*char)).collect()
}

/// A JSON text in which such characters are written as escapes, so that it means the same.
pub fn printable_json(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for char in text.chars() {
        // Outside of strings there is none of them but line feeds.
        if char != '\n' && steers(char) {
            let _ = write!(printable, "\\u{:04x}", u32::from(char));
        } else {
            printable.push(char);
        }
    }
    printable
}

/// Whether a character does something to a terminal: a control character, or one that turns the direction of text
/// (Unicode Standard Annex 9, section 2), by which a line can be made to look like another.
fn steers(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_steers_a_terminal() {
        let evil = "a\u{1b}[2J\u{7f}\u{9b}31m\u{202e}\u{2066}\u{200f}\u{61c}\r\nb\u{fc}";
        assert_eq!(printable(evil, 100), "a[2J31mb\u{fc}");
        assert_eq!(printable(evil, 3), "a[2");
        assert_eq!(printable_lines(evil), "a[2J31m\nb\u{fc}");
        let json = serde_json::json!({ "id": evil });
        let text = printable_json(&format!("{json:#}\n"));
        assert!(text.chars().all(|char| char == '\n' || !steers(char)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), json);
    }
}
