//! What a plain (unquoted) scalar of a YAML file means, in the two dialects that matter.

use crate::value::Value;

/// YAML 1.2, core schema (YAML 1.2.2 section 10.3.2): Berth's own documents.
pub fn core(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let based = |digits: &str, radix| u64::from_str_radix(digits, radix).ok().map(Value::from);
    let number = if let Some(digits) = text.strip_prefix("0x") {
        based(digits, 16)
    } else if let Some(digits) = text.strip_prefix("0o") {
        based(digits, 8)
    } else {
        decimal(text).or_else(|| float(text))
    };
    number.unwrap_or_else(|| Value::text(text))
}

/// YAML 1.1 as the predecessor's parser read it: `yes` and `off` are truth values, `010` is eight,
/// `1_000` a thousand, `0b1` one.
pub fn yaml11(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => return Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return Value::text(text);
    }
    let plain: String = text.chars().filter(|char| *char != '_').collect();
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let based = |digits: &str, radix| {
        let magnitude = u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))?;
        if negative { 0i64.checked_sub_unsigned(magnitude).map(Value::Int) } else { Some(Value::from(magnitude)) }
    };
    let number = if let Some(digits) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        based(digits, 16)
    } else if let Some(digits) = digits.strip_prefix("0b") {
        based(digits, 2)
    } else if let Some(octal) = digits.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        // A leading zero that is not octal (`08`, `0.5`) may still be a float.
        based(octal, 8).or_else(|| float(&plain))
    } else {
        decimal(&plain).or_else(|| float(&plain))
    };
    number.unwrap_or_else(|| Value::text(text))
}

fn decimal(text: &str) -> Option<Value> {
    text.parse::<i64>().map(Value::Int).or_else(|_| text.parse::<u64>().map(Value::from)).ok()
}

/// A float of digits, dot and exponent; words such as `inf` that Rust would read are text.
fn float(text: &str) -> Option<Value> {
    let numeric = |char: char| char.is_ascii_digit() || matches!(char, '+' | '-' | '.' | 'e' | 'E');
    if !text.chars().all(numeric) || !text.contains(|char: char| char.is_ascii_digit()) {
        return None;
    }
    text.parse::<f64>().ok().filter(|float| float.is_finite()).map(Value::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_differ_where_they_should() {
        for (text, in_core, in_yaml11) in [
            ("yes", Value::text("yes"), Value::Bool(true)),
            ("n", Value::text("n"), Value::Bool(false)),
            ("010", Value::Int(10), Value::Int(8)),
            ("08", Value::Int(8), Value::Float(8.0)),
            ("1_000", Value::text("1_000"), Value::Int(1000)),
            ("0x1F", Value::Int(31), Value::Int(31)),
            ("-0x10", Value::text("-0x10"), Value::Int(-16)),
            ("0o17", Value::Int(15), Value::text("0o17")),
            ("~", Value::Null, Value::Null),
            ("1e3", Value::Float(1000.0), Value::Float(1000.0)),
            ("-5", Value::Int(-5), Value::Int(-5)),
            ("18446744073709551615", Value::Uint(u64::MAX), Value::Uint(u64::MAX)),
            ("inf", Value::text("inf"), Value::text("inf")),
            ("-inf", Value::text("-inf"), Value::text("-inf")),
            ("1.2.3.4", Value::text("1.2.3.4"), Value::text("1.2.3.4")),
            ("-", Value::text("-"), Value::text("-")),
            ("web", Value::text("web"), Value::text("web")),
        ] {
            assert_eq!((core(text), yaml11(text)), (in_core, in_yaml11), "{text}");
        }
    }
}
