//! Amounts as people read them.

/// An amount of bytes in the unit that suits it.
pub(crate) fn bytes(bytes: i64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) => {
            let tenths = (i128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
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
    fn amounts_have_the_unit_that_suits_them() {
        assert_eq!((bytes(512), bytes(3 << 29), bytes(0)), ("512 B".into(), "1.5 GiB".into(), "0 B".into()));
        assert_eq!((thousandths(1500), thousandths(0)), ("1.5".into(), "0".into()));
    }
}
