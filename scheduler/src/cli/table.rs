//! Tables for people: columns as wide as they have to be.

/// The lines of a table; the first row is its head.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
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

/// An amount of bytes in the unit that suits it.
pub(crate) fn octets(octets: i64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| octets >= 1 << shift) {
        Some((shift, unit)) => {
            let tenths = (i128::from(octets) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{octets} B"),
    }
}

/// Thousandths as a decimal number.
pub(crate) fn thousandths(milli: i64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli.rem_euclid(1000));
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_have_to_be() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect();
        let text = table(&[row(&["HOST", "STATE"]), row(&["a-long-name", "active"]), row(&["ü"])]);
        assert_eq!(text, "HOST         STATE\na-long-name  active\nü\n");
        assert_eq!((octets(512), octets(3 << 29), octets(0)), ("512 B".into(), "1.5 GiB".into(), "0 B".into()));
        assert_eq!((thousandths(1500), thousandths(0)), ("1.5".into(), "0".into()));
    }
}
