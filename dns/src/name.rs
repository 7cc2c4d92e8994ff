//! Folded names: DNS names as lookup keys, in wire format and lower case (RFC 4343).
//!
//! Only ASCII letters are folded, as names are compared on the wire; all other octets stand for themselves.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hickory_proto::rr::Name;
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use thiserror::Error;

/// Longest name on the wire, its root label included (RFC 1035 section 2.3.4).
pub(crate) const NAME_OCTETS_MAX: usize = 255;

/// Longest label (RFC 1035 section 2.3.4).
pub(crate) const LABEL_OCTETS_MAX: usize = 63;

/// Octets that processors put in lower case in one step.
const FOLDED_AT_ONCE: usize = 32;

/// Longest name that needs no memory of its own.
///
/// Most names of a cluster are shorter: `service.stack.domain` with the usual domain leaves the two 27 letters. A table of
/// names then has them at hand, where a pointer to each would be one more wait for memory; the whole of it has 48 octets.
const SHORT_OCTETS_MAX: usize = 46;

/// A fully qualified name in wire format, lower case.
#[derive(Clone)]
pub struct Folded(Octets);

/// The octets of a name.
#[derive(Clone)]
enum Octets {
    /// The first `length` of them.
    Short {
        length: u8,
        octets: [u8; SHORT_OCTETS_MAX],
    },
    Long(Arc<[u8]>),
}

const _: () = assert!(size_of::<Folded>() == 48);

impl Folded {
    /// The name of this text; a final dot changes nothing.
    ///
    /// # Errors
    ///
    /// When a label is empty or too long, or the name is too long.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let mut room = [0; NAME_OCTETS_MAX];
        let end = put_labels(text, 0, &mut room)?;
        // The root label behind them is there already.
        Ok(Self::at_start(&room, end + 1))
    }

    /// The name of the first octets of these, which are a whole uncompressed name in lower case.
    fn at_start(room: &[u8; NAME_OCTETS_MAX], octets: usize) -> Self {
        match (u8::try_from(octets), room.first_chunk()) {
            // A copy whose length is known beforehand costs a fraction of one that is not.
            (Ok(length), Some(first)) if octets <= SHORT_OCTETS_MAX => Self(Octets::Short { length, octets: *first }),
            _ => Self::new(&room[..octets]),
        }
    }

    /// The name of octets that are a whole uncompressed name in lower case.
    fn new(wire: &[u8]) -> Self {
        let mut octets = [0; SHORT_OCTETS_MAX];
        match (octets.get_mut(..wire.len()), u8::try_from(wire.len())) {
            (Some(place), Ok(length)) => {
                place.copy_from_slice(wire);
                Self(Octets::Short { length, octets })
            }
            _ => Self(Octets::Long(wire.into())),
        }
    }

    /// The name of these octets, which are a whole uncompressed name.
    pub(crate) fn from_wire(wire: &[u8]) -> Self {
        let mut name = Self::new(wire);
        match &mut name.0 {
            Octets::Short { octets, .. } => octets.make_ascii_lowercase(),
            Octets::Long(octets) => *octets = octets.to_ascii_lowercase().into(),
        }
        name
    }

    /// The name of these octets, which are a whole uncompressed name, with its letters as they are.
    pub(crate) fn verbatim(wire: &[u8]) -> Name {
        Name::read(&mut BinDecoder::new(wire)).unwrap_or_default()
    }

    /// The folded form of a name.
    pub(crate) fn of(name: &Name) -> Self {
        Self::from_wire(&wire_of(name))
    }

    /// `label.self`, where the label may hold several dots.
    pub(crate) fn under(&self, labels: &str) -> Result<Self, BadName> {
        self.under_all(&[labels])
    }

    /// `first.second.self`, where each may hold several dots and only the last one be empty.
    pub(crate) fn under_all(&self, labels: &[&str]) -> Result<Self, BadName> {
        let mut room = [0; NAME_OCTETS_MAX];
        let mut end = 0;
        if let Some((last, others)) = labels.split_last() {
            for labels in others {
                end = put_plain_labels(labels, end, &mut room)?;
            }
            end = put_labels(last, end, &mut room)?;
        }
        let whole = end + self.wire().len();
        room.get_mut(end..whole).ok_or(BadName::TooLong)?.copy_from_slice(self.wire());
        Ok(Self::at_start(&room, whole))
    }

    /// The octets of the name.
    pub fn wire(&self) -> &[u8] {
        match &self.0 {
            Octets::Short { length, octets } => &octets[..usize::from(*length)],
            Octets::Long(octets) => octets,
        }
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.wire().len() == 1
    }

    /// The name and its ancestors, the root included.
    pub(crate) fn with_ancestors(&self) -> impl Iterator<Item = &[u8]> {
        ancestors(self.wire())
    }

    /// Whether this is `apex` or below it.
    pub(crate) fn is_within(&self, apex: &Self) -> bool {
        is_within(self.wire(), apex.wire())
    }

    /// The name as a record holds it.
    pub(crate) fn name(&self) -> Name {
        Self::verbatim(self.wire())
    }
}

impl Borrow<[u8]> for Folded {
    fn borrow(&self) -> &[u8] {
        self.wire()
    }
}

impl PartialEq for Folded {
    fn eq(&self, other: &Self) -> bool {
        self.wire() == other.wire()
    }
}

impl Eq for Folded {}

impl Hash for Folded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.wire().hash(state);
    }
}

impl PartialOrd for Folded {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Folded {
    fn cmp(&self, other: &Self) -> Ordering {
        self.wire().cmp(other.wire())
    }
}

impl fmt::Debug for Folded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Folded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str(".");
        }
        let mut rest = self.wire();
        while let Some((&length, tail)) = rest.split_first().filter(|(length, _)| **length > 0) {
            let (label, tail) = tail.split_at(usize::from(length));
            write!(f, "{}.", String::from_utf8_lossy(label))?;
            rest = tail;
        }
        Ok(())
    }
}

/// Why a text is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadName {
    /// Two dots in a row, or one in front.
    #[error("a name must not have an empty label")]
    EmptyLabel,
    /// A label of more than 63 octets.
    #[error("a label of a name has at most {LABEL_OCTETS_MAX} octets")]
    LabelTooLong,
    /// More than 255 octets.
    #[error("a name has at most {NAME_OCTETS_MAX} octets")]
    TooLong,
    /// The name server's own name, or that of a host.
    #[error("this name is reserved for the name server or a host")]
    Reserved,
}

/// A name in wire format, spelled as it is.
pub(crate) fn wire_of(name: &Name) -> Box<[u8]> {
    let mut wire = Vec::with_capacity(name.len() + 1);
    for label in name {
        // Labels of a `Name` are at most 63 octets.
        wire.push(u8::try_from(label.len()).unwrap_or(0));
        wire.extend(label);
    }
    wire.push(0);
    wire.into()
}

/// A name in wire format in lower case, written to `room`; no name is longer than that.
pub(crate) fn fold<'r>(wire: &[u8], room: &'r mut [u8; NAME_OCTETS_MAX]) -> &'r [u8] {
    let length = wire.len().min(NAME_OCTETS_MAX);
    room[..length].copy_from_slice(&wire[..length]);
    // Octets behind the name are of no importance, and a whole number of steps needs no last one octet by octet.
    room[..length.next_multiple_of(FOLDED_AT_ONCE).min(NAME_OCTETS_MAX)].make_ascii_lowercase();
    &room[..length]
}

/// A name in wire format and its ancestors, the root included.
pub(crate) fn ancestors(wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(wire);
    std::iter::from_fn(move || {
        let name = rest?;
        let label = usize::from(name[0]);
        rest = (label > 0).then(|| &name[label + 1..]);
        Some(name)
    })
}

/// Whether a folded name in wire format is `apex` or below it.
pub(crate) fn is_within(wire: &[u8], apex: &[u8]) -> bool {
    wire.ends_with(apex) && is_label(wire, wire.len() - apex.len())
}

/// Whether a label of a name in wire format begins at `start`, which is only to be found out from the front.
pub(crate) fn is_label(wire: &[u8], start: usize) -> bool {
    let mut at = 0;
    while at < start {
        at += usize::from(wire[at]) + 1;
    }
    at == start
}

/// How many dots the text of a name in wire format has without its final one.
pub(crate) fn dots(wire: &[u8]) -> usize {
    // The name itself and the root are among the ancestors.
    ancestors(wire).count().saturating_sub(2)
}

/// `wire.suffix`, written to `room`; `None` when that would be too long for a name.
pub(crate) fn joined<'r>(wire: &[u8], suffix: &Folded, room: &'r mut [u8; NAME_OCTETS_MAX]) -> Option<&'r [u8]> {
    let labels = &wire[..wire.len() - 1];
    let whole = room.get_mut(..labels.len() + suffix.wire().len())?;
    let (front, back) = whole.split_at_mut(labels.len());
    front.copy_from_slice(labels);
    back.copy_from_slice(suffix.wire());
    Some(whole)
}

/// Writes the labels of a text in lower case behind others; returns where they end. A root label fits behind them.
///
/// A final dot changes nothing.
fn put_labels(text: &str, end: usize, room: &mut [u8; NAME_OCTETS_MAX]) -> Result<usize, BadName> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() { Ok(end) } else { put_plain_labels(text, end, room) }
}

/// The same without a final dot.
fn put_plain_labels(text: &str, end: usize, room: &mut [u8; NAME_OCTETS_MAX]) -> Result<usize, BadName> {
    if !text.is_ascii() {
        // A letter in lower case may have more octets or fewer.
        return text
            .split('.')
            .try_fold(end, |end, label| put_ascii_labels(label.to_lowercase().as_bytes(), end, room));
    }
    put_ascii_labels(text.as_bytes(), end, room)
}

/// The same for octets of which only ASCII letters may have to be put in lower case.
fn put_ascii_labels(text: &[u8], end: usize, room: &mut [u8; NAME_OCTETS_MAX]) -> Result<usize, BadName> {
    let first = end + 1;
    let after = first + text.len();
    let place = room[..NAME_OCTETS_MAX - 1].get_mut(first..after).ok_or(BadName::TooLong)?;
    for (place, octet) in place.iter_mut().zip(text) {
        *place = octet.to_ascii_lowercase();
    }
    // The length of a label stands where the dot before it was; there is room for the first one too.
    let mut start = end;
    let dots = text.iter().enumerate().filter(|(_, octet)| **octet == b'.').map(|(at, _)| first + at);
    for dot in dots.chain([after]) {
        room[start] = match u8::try_from(dot - start - 1) {
            Ok(0) => return Err(BadName::EmptyLabel),
            Ok(length) if usize::from(length) <= LABEL_OCTETS_MAX => length,
            _ => return Err(BadName::LabelTooLong),
        };
        start = dot;
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_lower_case_wire_format() {
        for (text, wire) in [
            ("Web.Shop.", &b"\x03web\x04shop\0"[..]),
            ("web.shop", b"\x03web\x04shop\0"),
            (".", b"\0"),
            ("standalone two.x", b"\x0estandalone two\x01x\0"),
        ] {
            let name = Folded::parse(text).unwrap();
            assert_eq!(name.wire(), wire, "{text}");
            assert_eq!(Folded::of(&name.name()), name, "{text}");
        }
    }

    #[test]
    fn names_of_every_length_are_names() {
        let label = "a".repeat(LABEL_OCTETS_MAX);
        let text = [&*label; 4].join(".");
        let names: Vec<Folded> = (1..NAME_OCTETS_MAX - 1)
            .filter_map(|length| Folded::parse(text.get(..length).filter(|text| !text.ends_with('.'))?).ok())
            .collect();
        assert_eq!(names.last().map(|name| name.wire().len()), Some(NAME_OCTETS_MAX));
        for (name, next) in names.iter().zip(&names[1..]) {
            assert_eq!((Folded::from_wire(name.wire()), Folded::of(&name.name())), (name.clone(), name.clone()));
            assert_ne!(name, next);
            assert_eq!(name.cmp(next), name.wire().cmp(next.wire()));
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "a".repeat(64);
        let longer = vec!["a".repeat(63); 4].join(".");
        for (text, error) in [
            ("a..b", BadName::EmptyLabel),
            (".a", BadName::EmptyLabel),
            (&*long, BadName::LabelTooLong),
            (&*longer, BadName::TooLong),
        ] {
            assert_eq!(Folded::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn ancestors_are_at_label_boundaries() {
        let name = |text| Folded::parse(text).unwrap();
        assert!(name("web.shop.internal").is_within(&name("shop.internal")));
        assert!(name("shop.internal").is_within(&name("shop.internal")));
        assert!(!name("webshop.internal").is_within(&name("shop.internal")));
        assert!(!name("internal").is_within(&name("shop.internal")));
        let dots = |text| dots(name(text).wire());
        assert_eq!((dots("a.b.c"), dots("a"), dots(".")), (2, 0, 0));
    }
}
