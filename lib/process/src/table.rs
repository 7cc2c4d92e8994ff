//! Tables for people: columns as wide as they have to be.

use model::printable::printable;

/// The lines of a table; the first row is its head. No cell begins a line or steers a terminal, and those before the last
/// column are cut to `most` characters: a longer one would push the other columns out of sight.
pub fn table(rows: &[impl AsRef<[String]>], most: usize) -> String {
    let last = rows.first().map_or(0, |head| head.as_ref().len().saturating_sub(1));
    let cell = |(column, cell): (usize, &String)| match printable(cell, usize::MAX) {
        long if column < last && long.chars().count() > most => printable(&long, most - 1) + "…",
        cell => cell,
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.as_ref().iter().enumerate().map(cell).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 128;

    #[test]
    fn no_cell_begins_a_line_or_pushes_others_out_of_sight() {
        let row = |id: &str, state: &str| vec![id.to_owned(), state.to_owned()];
        let text = table(
            &[row("ID", "STATE"), row(&"i".repeat(3000), "unreadable"), row("a\n\u{1b}[1mb", "x\u{202e}y")],
            MOST,
        );
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("iii") && lines[1].ends_with("i…  unreadable"), "{text}");
        assert_eq!(lines[1].chars().count(), MOST + 2 + "unreadable".len());
        assert!(lines.len() == 3 && lines[2].starts_with("a[1mb ") && lines[2].ends_with(" xy"), "{text}");
    }

    #[test]
    fn columns_are_as_wide_as_they_have_to_be() {
        let row = |cells: &[&str]| -> Vec<String> { cells.iter().map(ToString::to_string).collect() };
        let text = table(&[row(&["HOST", "STATE"]), row(&["a-long-name", "active"]), row(&["ü"])], MOST);
        assert_eq!(text, "HOST         STATE\na-long-name  active\nü\n");
    }
}
