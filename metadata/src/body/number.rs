//! Floating point numbers in the four ways the predecessor wrote them.

/// In a listing: six decimals, less the zeros at the end.
pub(crate) fn fixed(float: f64) -> String {
    let text = format!("{float:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// In JSON: the shortest text that reads as the same number, with an exponent below 1e-6 and from 1e21 on.
pub(crate) fn json(float: f64) -> String {
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let shortest = format!("{float:e}");
        let (mantissa, exponent) = scientific(&shortest);
        return format!("{mantissa}e{}{}", sign(exponent), exponent.unsigned_abs());
    }
    format!("{float}")
}

/// In YAML: the shortest text that reads as the same number of 32 bits.
pub(crate) fn yaml(float: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "the predecessor wrote numbers of 32 bits")]
    let short = float as f32;
    match short {
        short if short.is_nan() => ".nan".to_owned(),
        f32::INFINITY => ".inf".to_owned(),
        f32::NEG_INFINITY => "-.inf".to_owned(),
        short => general(&format!("{short:e}"), || format!("{short}")),
    }
}

/// Where a waiting client compares: the shortest text of the number of 64 bits.
pub(crate) fn plain(float: f64) -> String {
    general(&format!("{float:e}"), || format!("{float}"))
}

/// A shortest text, with an exponent of at least two digits unless the exponent is from -4 to 5.
fn general(scientific_form: &str, decimal: impl Fn() -> String) -> String {
    let (mantissa, exponent) = scientific(scientific_form);
    if (-4..6).contains(&exponent) {
        return decimal();
    }
    format!("{mantissa}e{}{:02}", sign(exponent), exponent.unsigned_abs())
}

fn scientific(text: &str) -> (&str, i32) {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    (mantissa, exponent.parse().unwrap_or_default())
}

fn sign(exponent: i32) -> char {
    if exponent < 0 { '-' } else { '+' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_ways_to_write_a_number() {
        for (float, in_listing, in_json, in_yaml, when_waiting) in [
            (0.0, "0", "0", "0", "0"),
            (-0.0, "-0", "-0", "-0", "-0"),
            (42.0, "42", "42", "42", "42"),
            (2.5, "2.5", "2.5", "2.5", "2.5"),
            (2.718_281_9, "2.718282", "2.7182819", "2.718282", "2.7182819"),
            (1e-9, "0", "1e-9", "1e-09", "1e-09"),
            (0.000_1, "0.0001", "0.0001", "0.0001", "0.0001"),
            (0.000_01, "0.00001", "0.00001", "1e-05", "1e-05"),
            (0.000_000_5, "0", "5e-7", "5e-07", "5e-07"),
            (999_999.5, "999999.5", "999999.5", "999999.5", "999999.5"),
            (1_000_000.5, "1000000.5", "1000000.5", "1.0000005e+06", "1.0000005e+06"),
            (1e15, "1000000000000000", "1000000000000000", "1e+15", "1e+15"),
            (1e20, "100000000000000000000", "100000000000000000000", "1e+20", "1e+20"),
            (1e21, "1000000000000000000000", "1e+21", "1e+21", "1e+21"),
            (1e30, "1000000000000000019884624838656", "1e+30", "1e+30", "1e+30"),
            (-1.5e-10, "-0", "-1.5e-10", "-1.5e-10", "-1.5e-10"),
        ] {
            let written = (fixed(float), json(float), yaml(float), plain(float));
            let expected = (in_listing, in_json, in_yaml, when_waiting);
            assert_eq!((&*written.0, &*written.1, &*written.2, &*written.3), expected, "{float:e}");
        }
        assert_eq!(yaml(1e300), ".inf");
        assert_eq!(yaml(-1e300), "-.inf");
        assert_eq!(json(f64::MAX), "1.7976931348623157e+308");
    }
}
