//! YAML as the predecessor's library of 2016 wrote it (libyaml's emitter with its choices of style):
//! block style, two columns of indentation, lists not indented within maps, text folded behind column 80.
//!
//! Its oddities: numbers of 32 bits, an own order of keys, characters beyond U+FFFF escaped, text quoted
//! that YAML 1.1 would take for something else.

use std::cmp::Ordering;
use std::fmt::Write as _;

use model::{Value, scalar};

use crate::body::number;
use crate::tree::node::Node;

/// Columns of one level.
const INDENT: usize = 2;

/// Text is folded at the first space behind this column.
const WIDTH: usize = 80;

/// Longest key, in bytes, that stands on one line with its value.
const SIMPLE_KEY_MAX: usize = 128;

/// A place as YAML, with a line end.
pub(crate) fn yaml(node: &Node<'_>) -> String {
    let mut emitter = Emitter { out: String::new(), column: 0, blank: true, indentation: true };
    emitter.node(node, None, Within::Document);
    emitter.indent(0);
    emitter.out
}

/// Where a node stands.
#[derive(Clone, Copy, PartialEq)]
enum Within {
    Document,
    List,
    Map,
    /// As a key, on one line with its value.
    Key,
}

/// The styles of a text that hold it unchanged, beside double quotes, which hold any.
#[derive(Clone, Copy)]
enum Styles {
    /// None.
    None,
    Plain,
    SingleQuoted,
    /// Lines as they are.
    Literal,
    SingleQuotedOrLiteral,
}

struct Emitter {
    out: String,
    column: usize,
    /// Whether the last thing written was white space.
    blank: bool,
    /// Whether nothing but indentation and indicators stands on the line.
    indentation: bool,
}

impl Emitter {
    /// Writes a node below something indented by `indent`; `None` at the root.
    fn node(&mut self, node: &Node<'_>, indent: Option<usize>, within: Within) {
        if let Some(value) = node.scalar() {
            return self.scalar(value, indent, within);
        }
        if let Some(mut entries) = node.entries() {
            if entries.is_empty() {
                return self.indicator("{}", true, false);
            }
            entries.sort_by(|a, b| natural(&a.0, &b.0));
            let indent = indent.map_or(0, |indent| indent + INDENT);
            for (key, value) in &entries {
                self.indent(indent);
                if key.len() <= SIMPLE_KEY_MAX && !key.contains(is_break) {
                    self.text(key, indent, Within::Key);
                    self.indicator(":", false, false);
                } else {
                    self.indicator("?", true, true);
                    self.text(key, indent, Within::Map);
                    self.indent(indent);
                    self.indicator(":", true, true);
                }
                self.node(value, Some(indent), Within::Map);
            }
        } else if let Some(elements) = node.elements() {
            let mut elements = elements.peekable();
            if elements.peek().is_none() {
                return self.indicator("[]", true, false);
            }
            let indent = match indent {
                None => 0,
                // A list that begins behind its key is not indented further than the key.
                Some(indent) if within == Within::Map && !self.indentation => indent,
                Some(indent) => indent + INDENT,
            };
            for element in elements {
                self.indent(indent);
                self.indicator("-", true, true);
                self.node(&element, Some(indent), Within::List);
            }
        } else {
            self.indicator(if matches!(node, Node::NoMap) { "{}" } else { "[]" }, true, false);
        }
    }

    fn scalar(&mut self, value: &Value, indent: Option<usize>, within: Within) {
        let plain = match value {
            Value::Text(text) => return self.text(text, indent.unwrap_or_default(), within),
            Value::Bool(bool) => bool.to_string(),
            Value::Int(int) => int.to_string(),
            Value::Uint(uint) => uint.to_string(),
            Value::Float(float) => number::yaml(*float),
            Value::Null | Value::List(_) | Value::Map(_) => "null".to_owned(),
        };
        self.indicator(&plain, true, false);
    }

    /// Writes text in the first style that can hold it; the rest of several lines is indented below `indent`.
    fn text(&mut self, text: &str, indent: usize, within: Within) {
        let below = if within == Within::Document { INDENT } else { indent + INDENT };
        let folds = within != Within::Key;
        match styles(text) {
            _ if looks_otherwise(text) => self.double_quoted(text, below, folds),
            Styles::Literal | Styles::SingleQuotedOrLiteral if text.contains('\n') => self.literal(text, below),
            _ if text.contains('\n') => self.double_quoted(text, below, folds),
            Styles::Plain => self.plain(text, below, folds),
            Styles::SingleQuoted | Styles::SingleQuotedOrLiteral => self.single_quoted(text, below, folds),
            Styles::Literal | Styles::None => self.double_quoted(text, below, folds),
        }
    }

    fn plain(&mut self, text: &str, indent: usize, folds: bool) {
        if !self.blank {
            self.put(' ');
        }
        let mut spaces = false;
        let mut chars = text.chars().peekable();
        while let Some(char) = chars.next() {
            if char == ' ' && folds && !spaces && self.column > WIDTH && chars.peek() != Some(&' ') {
                self.indent(indent);
            } else {
                self.put(char);
            }
            spaces = char == ' ';
            self.indentation &= spaces;
        }
        (self.blank, self.indentation) = (false, false);
    }

    fn single_quoted(&mut self, text: &str, indent: usize, folds: bool) {
        self.indicator("'", true, false);
        let (mut spaces, mut breaks) = (false, false);
        let mut chars = text.char_indices().peekable();
        while let Some((at, char)) = chars.next() {
            let next = chars.peek().map(|(_, next)| *next);
            if char == ' ' {
                let inside = at > 0 && next.is_some() && next != Some(' ');
                if folds && !spaces && self.column > WIDTH && inside {
                    self.indent(indent);
                } else {
                    self.put(char);
                }
                spaces = true;
            } else if is_break(char) {
                self.put_break(char);
                (self.indentation, breaks) = (true, true);
            } else {
                if breaks {
                    self.indent(indent);
                }
                if char == '\'' {
                    self.put('\'');
                }
                self.put(char);
                (self.indentation, spaces, breaks) = (false, false, false);
            }
        }
        self.indicator("'", false, false);
        (self.blank, self.indentation) = (false, false);
    }

    fn double_quoted(&mut self, text: &str, indent: usize, folds: bool) {
        self.indicator("\"", true, false);
        let mut spaces = false;
        let mut chars = text.char_indices().peekable();
        while let Some((at, char)) = chars.next() {
            let next = chars.peek().map(|(_, next)| *next);
            if !is_printable(char) || is_break(char) || matches!(char, '"' | '\\') {
                self.escape(char);
                spaces = false;
            } else if char == ' ' {
                if folds && !spaces && self.column > WIDTH && at > 0 && next.is_some() {
                    self.indent(indent);
                    if next == Some(' ') {
                        self.put('\\');
                    }
                } else {
                    self.put(char);
                }
                spaces = true;
            } else {
                self.put(char);
                spaces = false;
            }
        }
        self.indicator("\"", false, false);
        (self.blank, self.indentation) = (false, false);
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.indicator("|", true, false);
        if text.starts_with(|first| first == ' ' || is_break(first)) {
            self.indicator("2", false, false);
        }
        let ends = text.chars().rev().take_while(|char| is_break(*char)).count();
        if ends == 0 {
            self.indicator("-", false, false);
        } else if ends > 1 || text.chars().count() == 1 {
            self.indicator("+", false, false);
        }
        self.put_break('\n');
        (self.blank, self.indentation) = (true, true);
        let mut breaks = true;
        for char in text.chars() {
            if is_break(char) {
                self.put_break(char);
                (self.indentation, breaks) = (true, true);
            } else {
                if breaks {
                    self.indent(indent);
                }
                self.put(char);
                (self.indentation, breaks) = (false, false);
            }
        }
    }

    fn escape(&mut self, char: char) {
        let short = match char {
            '\0' => "\\0",
            '\u{7}' => "\\a",
            '\u{8}' => "\\b",
            '\t' => "\\t",
            '\n' => "\\n",
            '\u{b}' => "\\v",
            '\u{c}' => "\\f",
            '\r' => "\\r",
            '\u{1b}' => "\\e",
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{85}' => "\\N",
            '\u{a0}' => "\\_",
            '\u{2028}' => "\\L",
            '\u{2029}' => "\\P",
            _ => "",
        };
        let before = self.out.len();
        let code = u32::from(char);
        // Writing to a string cannot fail.
        let _ = match code {
            _ if !short.is_empty() => self.out.write_str(short),
            0..=0xff => write!(self.out, "\\x{code:02X}"),
            0x100..=0xffff => write!(self.out, "\\u{code:04X}"),
            _ => write!(self.out, "\\U{code:08X}"),
        };
        self.column += self.out.len() - before;
    }

    /// Writes something that stands by itself, behind a space when it needs one.
    fn indicator(&mut self, text: &str, spaced: bool, keeps_indentation: bool) {
        if spaced && !self.blank {
            self.put(' ');
        }
        self.out.push_str(text);
        self.column += text.chars().count();
        self.blank = false;
        self.indentation &= keeps_indentation;
    }

    /// Goes to the column `indent`, on a new line unless nothing but indentation stands on this one.
    fn indent(&mut self, indent: usize) {
        if !self.indentation || self.column > indent || (self.column == indent && !self.blank) {
            self.put_break('\n');
        }
        while self.column < indent {
            self.put(' ');
        }
        (self.blank, self.indentation) = (true, true);
    }

    fn put(&mut self, char: char) {
        self.out.push(char);
        self.column += 1;
    }

    fn put_break(&mut self, char: char) {
        self.out.push(char);
        self.column = 0;
    }
}

/// The styles that hold a text unchanged.
fn styles(text: &str) -> Styles {
    let (Some(first), Some(last)) = (text.chars().next(), text.chars().next_back()) else {
        return Styles::Plain;
    };
    let mut indicators = text.starts_with("---") || text.starts_with("...");
    let (mut special, mut breaks, mut space_break, mut break_space) = (false, false, false, false);
    let mut previous = None;
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let blank_follows = chars.peek().is_none_or(|next| is_blank(*next));
        indicators |= match (previous, char) {
            (None, char) if ",[]{}#&*!|>'\"%@`".contains(char) => true,
            (None, '?' | '-') | (_, ':') => blank_follows,
            (Some(before), '#') => is_blank(before) || is_break(before),
            _ => false,
        };
        special |= !is_printable(char);
        breaks |= is_break(char);
        space_break |= is_break(char) && previous == Some(' ');
        break_space |= char == ' ' && previous.is_some_and(is_break);
        previous = Some(char);
    }
    let outer = |char| char == ' ' || is_break(char);
    if special || space_break {
        Styles::None
    } else if !(indicators || breaks || outer(first) || outer(last)) {
        Styles::Plain
    } else {
        match (!break_space, last != ' ') {
            (true, true) => Styles::SingleQuotedOrLiteral,
            (true, false) => Styles::SingleQuoted,
            (false, true) => Styles::Literal,
            (false, false) => Styles::None,
        }
    }
}

/// Whether the predecessor's parser would take the plain text for something else than text.
fn looks_otherwise(text: &str) -> bool {
    !matches!(scalar::yaml11(text), Value::Text(_)) || is_special_float(text) || is_base_60(text)
}

/// The names of floats that are no numbers; behind a sign also as the predecessor's language spells them.
fn is_special_float(text: &str) -> bool {
    let signed = text.strip_prefix(['+', '-']);
    if matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    if matches!(signed.unwrap_or(text), ".inf" | ".Inf" | ".INF") {
        return true;
    }
    signed.is_some_and(|name| ["inf", "infinity"].iter().any(|known| name.eq_ignore_ascii_case(known)))
}

/// A number of sixtieths in YAML 1.1: `1:30`.
fn is_base_60(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').map_or((digits, ""), |(whole, fraction)| (whole, fraction));
    let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or_default();
    let sixtieth = |part: &str| match part.as_bytes() {
        [unit] => unit.is_ascii_digit(),
        [ten, unit] => matches!(ten, b'0'..=b'5') && unit.is_ascii_digit(),
        _ => false,
    };
    let mut rest = parts.peekable();
    first.starts_with(|first: char| first.is_ascii_digit())
        && number(first)
        && number(fraction)
        && rest.peek().is_some()
        && rest.all(sixtieth)
}

fn is_break(char: char) -> bool {
    matches!(char, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_blank(char: char) -> bool {
    matches!(char, ' ' | '\t')
}

fn is_printable(char: char) -> bool {
    matches!(char, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

/// The order of keys: letters behind everything else, digits as numbers.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    for (at, (own, other)) in a.iter().zip(&b).enumerate() {
        if own == other {
            continue;
        }
        return match (own.is_alphabetic(), other.is_alphabetic()) {
            (true, true) => own.cmp(other),
            (own_is, other_is) if own_is != other_is => own_is.cmp(&other_is),
            _ => {
                let (own_number, own_digits) = leading_number(&a[at..]);
                let (other_number, other_digits) = leading_number(&b[at..]);
                own_number.cmp(&other_number).then(own_digits.cmp(&other_digits)).then(own.cmp(other))
            }
        };
    }
    a.len().cmp(&b.len())
}

/// The number that the characters begin with, and of how many digits it is; too long ones wrap around.
fn leading_number(chars: &[char]) -> (i64, usize) {
    let digits = chars.iter().map_while(|char| char.to_digit(10));
    digits.fold((0i64, 0), |(number, count), digit| (number.wrapping_mul(10).wrapping_add(i64::from(digit)), count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expected: &str) {
        let value: Value = serde_json::from_str(json).unwrap();
        assert_eq!(yaml(&Node::of(&value)), expected, "{json}");
    }

    #[test]
    fn scalars() {
        for (json, expected) in [
            ("null", "null\n"),
            ("true", "true\n"),
            ("42", "42\n"),
            ("18446744073709551615", "18446744073709551615\n"),
            ("42.0", "42\n"),
            ("1000000.5", "1.0000005e+06\n"),
            (r#""shop""#, "shop\n"),
            (r#""""#, "\"\"\n"),
            (r#""2015-07-25""#, "2015-07-25\n"),
            (r#""1.2.3.4""#, "1.2.3.4\n"),
            (r#""80:8080/tcp""#, "80:8080/tcp\n"),
        ] {
            check(json, expected);
        }
    }

    #[test]
    fn text_that_could_be_something_else_is_quoted() {
        for text in [
            "yes",
            "n",
            "Off",
            "null",
            "~",
            "007",
            "1_000",
            "0x1f",
            "0b1",
            "-5",
            "+1.5",
            "1e3",
            ".5",
            ".inf",
            "-.INF",
            "+Infinity",
            ".NaN",
            "1:30",
            "-1:59:59.5",
            "8:0",
        ] {
            check(&format!("\"{text}\""), &format!("\"{text}\"\n"));
        }
        for text in ["nope", "1.2.3", "8443:8443", "1:60", "0x", "--5", "inf", "nan", "<<", "=", "+", "1e400"] {
            check(&format!("\"{text}\""), &format!("{text}\n"));
        }
    }

    #[test]
    fn text_with_indicators_is_in_single_quotes() {
        for text in [
            "a: b", "-", "?", "#x", "a #b", "- x", "? x", "*a", "&a", "!a", "|a", ">a", "@a", "`a", "%a", "[a", "{a",
            ",a", "]a", "}a", " a", "a ", "---", "...x", ": x", "a:",
        ] {
            check(&format!("\"{text}\""), &format!("'{text}'\n"));
        }
        check(r#""it's: x""#, "'it''s: x'\n");
        check(r#""\"a\"""#, "'\"a\"'\n");
        for text in ["a:b", "a#b", "-x", "?x", ":x", "a,b", "a]b", "<a href=x>", "a'b", "a\\\"b", "..", "x- y"] {
            check(&format!("\"{text}\""), &format!("{}\n", text.replace("\\\"", "\"")));
        }
    }

    #[test]
    fn text_with_special_characters_is_in_double_quotes() {
        for (json, expected) in [
            (r#""a\tb""#, "\"a\\tb\"\n"),
            (r#""a\r\nb""#, "\"a\\r\\nb\"\n"),
            (r#""a\u0001b\u007f""#, "\"a\\x01b\\x7F\"\n"),
            (r#""\u0000\u0007\u0008\u000b\u000c\u001b\"\\""#, "\"\\0\\a\\b\\v\\f\\e\\\"\\\\\"\n"),
            (r#""\u0085\ufeff""#, "\"\\N\\uFEFF\"\n"),
            (r#""🚀""#, "\"\\U0001F680\"\n"),
            (r#""日本\u00a0""#, "日本\u{a0}\n"),
        ] {
            check(json, expected);
        }
    }

    #[test]
    fn lines_are_kept_as_lines() {
        for (json, expected) in [
            (r#""line 1\nline 2\n""#, "|\n  line 1\n  line 2\n"),
            (r#""line 1\nline 2""#, "|-\n  line 1\n  line 2\n"),
            (r#""a\n\n""#, "|+\n  a\n\n"),
            (r#""\n""#, "|2+\n\n"),
            (r#"" a\nb""#, "|2-\n   a\n  b\n"),
            (r#""a \nb""#, "\"a \\nb\"\n"),
            (r#""a\nb ""#, "\"a\\nb \"\n"),
            (r#""a\n b""#, "|-\n  a\n   b\n"),
            (r#"{"k":"a\nb\n"}"#, "k: |\n  a\n  b\n"),
            (r#"{"k":["a\nb\n"]}"#, "k:\n- |\n  a\n  b\n"),
            (r#"{"a\nb":1}"#, "? |-\n  a\n  b\n: 1\n"),
            (r#"{"ls":"a\u2028b"}"#, "ls: 'a\u{2028}  b'\n"),
        ] {
            check(json, expected);
        }
    }

    #[test]
    fn long_text_is_folded_behind_column_80() {
        let words = "0123456789 ".repeat(10);
        let words = words.trim_end();
        let folded = format!("{}\n  0123456789 0123456789\n", "0123456789 ".repeat(8).trim_end());
        check(&format!("\"{words}\""), &folded);
        check(&format!("{{\"k\":\"{words}\"}}"), &format!("k: {folded}"));
        check(
            &format!("\"# {words}\""),
            &format!("'# {}\n  0123456789 0123456789'\n", "0123456789 ".repeat(8).trim_end()),
        );
        check(
            &format!("\"\\t {words}\""),
            &format!("\"\\t {}\n  0123456789 0123456789\"\n", "0123456789 ".repeat(8).trim_end()),
        );
        check(&format!("{{\"{words}\":1}}"), &format!("{words}: 1\n"));
        check(&format!("{{\"{}\":1}}", "k".repeat(129)), &format!("? {}\n: 1\n", "k".repeat(129)));
        check(&format!("\"{}\"", "x".repeat(200)), &format!("{}\n", "x".repeat(200)));
    }

    #[test]
    fn maps_and_lists() {
        for (json, expected) in [
            ("[]", "[]\n"),
            ("{}", "{}\n"),
            (r#"{"a":[],"b":{},"c":null}"#, "a: []\nb: {}\nc: null\n"),
            ("[[1,2],[3],[]]", "- - 1\n  - 2\n- - 3\n- []\n"),
            (r#"[{"a":1,"b":[1]},{"c":{"d":2}}]"#, "- a: 1\n  b:\n  - 1\n- c:\n    d: 2\n"),
            (r#"{"a":{"b":[{"c":{"d":[1]}}]}}"#, "a:\n  b:\n  - c:\n      d:\n      - 1\n"),
            ("[[{\"a\":1}]]", "- - a: 1\n"),
        ] {
            check(json, expected);
        }
        assert_eq!((yaml(&Node::NoList), yaml(&Node::NoMap)), ("[]\n".to_owned(), "{}\n".to_owned()));
    }

    #[test]
    fn keys_are_in_natural_order() {
        let keys = [
            "",
            "-1",
            "..",
            "0",
            "2",
            "10",
            "MiXed",
            "UPPER",
            "a_b",
            "a1",
            "a2",
            "a10",
            "ab",
            "float",
            "float_int",
            "trail ",
            "ünï",
            "日本",
        ];
        let map = keys.iter().rev().map(|key| ((*key).into(), Value::Null)).collect();
        let body = yaml(&Node::of(&Value::Map(map)));
        let found: Vec<_> =
            body.lines().map(|line| line.trim_end_matches(": null").trim_matches(['"', '\''])).collect();
        assert_eq!(found, keys);
    }
}
