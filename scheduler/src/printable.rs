//! Text from outside for a line of a log or a table.

/// The first `most` characters of a text that somebody else wrote, without those that would begin a line or steer a terminal.
pub(crate) fn printable(text: &str, most: usize) -> String {
    text.chars().filter(|char| !char.is_control()).take(most).collect()
}
