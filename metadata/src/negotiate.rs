//! Which of its formats a client gets, from its `Accept` lines, with the oddities of the predecessor's library.

/// The formats of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    /// A listing.
    Text,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What is offered; of equally good ones the first.
const OFFERS: [(&str, Format); 6] = [
    ("text/plain", Format::Text),
    ("application/json", Format::Json),
    ("application/yaml", Format::Yaml),
    ("application/x-yaml", Format::Yaml),
    ("text/yaml", Format::Yaml),
    ("text/x-yaml", Format::Yaml),
];

/// The format for these `Accept` lines.
///
/// The highest quality wins, then the more exact match, then the order of the offers. A line is read up to
/// its first fault; a parameter other than the quality is one.
pub(crate) fn format<'a>(accept: impl IntoIterator<Item = &'a [u8]>) -> Format {
    let ranges: Vec<Range<'a>> = accept.into_iter().flat_map(ranges).collect();
    let mut best = (Format::Text, -1.0, Match::Any);
    for (offer, format) in OFFERS {
        for range in &ranges {
            let Some(how) = range.matches(offer.as_bytes()) else { continue };
            if range.quality == 0.0 || range.quality < best.1 {
                continue;
            }
            if range.quality > best.1 || how > best.2 {
                best = (format, range.quality, how);
            }
        }
    }
    best.0
}

/// Whether the first that these `Accept` lines name is HTML, as browsers do and programs do not.
pub(crate) fn prefers_page<'a>(accept: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let first = accept.into_iter().next().unwrap_or_default();
    let range = first.split(|byte| *byte == b',').next().unwrap_or_default();
    let name = range.split(|byte| *byte == b';').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(b"text/html")
}

/// How exactly a range names an offer.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Match {
    Any,
    Type,
    Exact,
}

/// One element of an `Accept` line.
struct Range<'a> {
    name: &'a [u8],
    quality: f64,
}

impl Range<'_> {
    fn matches(&self, offer: &[u8]) -> Option<Match> {
        let kind = self.name.strip_suffix(b"*").filter(|kind| kind.ends_with(b"/"));
        match kind {
            Some(b"*/") => Some(Match::Any),
            Some(kind) => offer.starts_with(kind).then_some(Match::Type),
            None => (self.name == offer).then_some(Match::Exact),
        }
    }
}

fn ranges(line: &[u8]) -> Vec<Range<'_>> {
    let mut ranges = Vec::new();
    let mut rest = line;
    loop {
        let name;
        (name, rest) = token(spaces(rest), |byte| is_token(byte) || byte == b'/');
        if name.is_empty() {
            return ranges;
        }
        rest = spaces(rest);
        let mut quality = 1.0;
        if let Some(parameter) = rest.strip_prefix(b";") {
            let Some(number) = spaces(parameter).strip_prefix(b"q=") else { return ranges };
            let Some((value, after)) = quality_value(number) else { return ranges };
            (quality, rest) = (value, spaces(after));
        }
        ranges.push(Range { name, quality });
        match rest.strip_prefix(b",") {
            Some(after) => rest = after,
            None => return ranges,
        }
    }
}

/// A quality: one digit, and decimals of which any number may follow.
fn quality_value(text: &[u8]) -> Option<(f64, &[u8])> {
    let (first, rest) = text.split_first().filter(|(first, _)| matches!(first, b'0' | b'1'))?;
    let whole = f64::from(first - b'0');
    let Some(decimals) = rest.strip_prefix(b".") else { return Some((whole, rest)) };
    let (digits, rest) = token(decimals, |byte| byte.is_ascii_digit());
    // Digits that a float cannot hold change nothing.
    let digits = &digits[..digits.len().min(DECIMALS_MAX)];
    let (number, scale) = digits
        .iter()
        .fold((0.0, 1.0), |(number, scale), digit| (number * 10.0 + f64::from(digit - b'0'), scale * 10.0));
    let fraction = number / scale;
    Some((whole + fraction, rest))
}

/// How many decimals of a quality count.
const DECIMALS_MAX: usize = 15;

fn spaces(text: &[u8]) -> &[u8] {
    token(text, |byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')).1
}

/// The bytes at the beginning that `is` accepts, and the rest.
fn token(text: &[u8], is: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| is(**byte)).count())
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_prefer_the_page() {
        for (accept, expected) in [
            (&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"][..], true),
            (&["Text/HTML; charset=utf-8"], true),
            (&[" text/html ", "application/json"], true),
            (&["*/*"], false),
            (&["text/*"], false),
            (&["text/plain, text/html"], false),
            (&["application/json", "text/html"], false),
            (&["text/htmlx"], false),
            (&[""], false),
            (&[], false),
        ] {
            assert_eq!(prefers_page(accept.iter().map(|line| line.as_bytes())), expected, "{accept:?}");
        }
    }

    #[test]
    fn formats_are_chosen_as_recorded() {
        use Format::{Json, Text, Yaml};
        for (accept, expected) in [
            (&[][..], Text),
            (&["application/json"], Json),
            (&["APPLICATION/JSON"], Text),
            (&["application/json; charset=utf-8"], Text),
            (&["text/yaml, application/json; charset=utf-8"], Yaml),
            (&["application/json, text/plain"], Text),
            (&["application/json;q=0.5, text/plain;q=0.4"], Json),
            (&["application/json;q=0.4, text/plain;q=0.5"], Text),
            (&["application/*"], Json),
            (&["text/*"], Text),
            (&["*/*"], Text),
            (&["*/*, application/json"], Json),
            (&["image/png"], Text),
            (&["text/x-yaml"], Yaml),
            (&["application/json, application/yaml"], Json),
            (&["application/yaml, application/json"], Json),
            (&["application/*;q=0.3, text/yaml"], Yaml),
            (&["json"], Text),
            (&[", application/json"], Text),
            (&["application/json ; q=1.0"], Json),
            (&["application/json;q=0"], Text),
            (&["application/json;q=1.5, text/plain"], Json),
            (&["application/json;q=x, text/yaml"], Text),
            (&["*"], Text),
            (&["application/vnd.api+json"], Text),
            (&["text/plain;q=0.1, */*;q=0.2"], Text),
            (&["text/html", "application/json"], Json),
            (&["application/json;version=1;q=1"], Text),
            (&["application/json;q=1;v=1, text/yaml"], Json),
        ] {
            assert_eq!(format(accept.iter().map(|line| line.as_bytes())), expected, "{accept:?}");
        }
    }
}
