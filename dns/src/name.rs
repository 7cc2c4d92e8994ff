//! Folded names: DNS names as lookup keys, in wire format and lower case (RFC 4343).
//!
//! Only ASCII letters are folded, as names are compared on the wire; all other octets stand for themselves.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;

use hickory_proto::rr::Name;
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use thiserror::Error;

/// Longest name on the wire, its root label included (RFC 1035 section 2.3.4).
pub(crate) const NAME_OCTETS_MAX: usize = 255;

/// Longest label (RFC 1035 section 2.3.4).
pub(crate) const LABEL_OCTETS_MAX: usize = 63;

/// A fully qualified name in wire format, lower case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Folded(Arc<[u8]>);

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
        Ok(Self(room[..=end].into()))
    }

    /// The name of these octets, which are a whole uncompressed name.
    pub(crate) fn from_wire(wire: &[u8]) -> Self {
        Self(wire.to_ascii_lowercase().into())
    }

    /// The name of these octets, which are a whole uncompressed name, with its letters as they are.
    pub(crate) fn verbatim(wire: &[u8]) -> Name {
        Name::read(&mut BinDecoder::new(wire)).unwrap_or_default()
    }

    /// The folded form of a name.
    pub(crate) fn of(name: &Name) -> Self {
        let mut wire = Vec::with_capacity(name.len() + 1);
        for label in name {
            // Labels of a `Name` are at most 63 octets.
            wire.push(u8::try_from(label.len()).unwrap_or(0));
            wire.extend(label.iter().map(u8::to_ascii_lowercase));
        }
        wire.push(0);
        Self(wire.into())
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
        let whole = end + self.0.len();
        room.get_mut(end..whole).ok_or(BadName::TooLong)?.copy_from_slice(&self.0);
        Ok(Self(room[..whole].into()))
    }

    /// The octets of the name.
    pub fn wire(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.len() == 1
    }

    /// The name and its ancestors, the root included.
    pub(crate) fn with_ancestors(&self) -> impl Iterator<Item = &[u8]> {
        ancestors(&self.0)
    }

    /// Whether this is `apex` or below it.
    pub(crate) fn is_within(&self, apex: &Self) -> bool {
        is_within(&self.0, apex)
    }

    /// The name as a record holds it.
    pub(crate) fn name(&self) -> Name {
        Self::verbatim(&self.0)
    }
}

impl Borrow<[u8]> for Folded {
    fn borrow(&self) -> &[u8] {
        &self.0
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
        let mut rest = &*self.0;
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
pub(crate) fn is_within(wire: &[u8], apex: &Folded) -> bool {
    let mut not_shorter = ancestors(wire).skip_while(|ancestor| ancestor.len() > apex.0.len());
    not_shorter.next().is_some_and(|ancestor| *ancestor == *apex.0)
}

/// How many dots the text of a name in wire format has without its final one.
pub(crate) fn dots(wire: &[u8]) -> usize {
    // The name itself and the root are among the ancestors.
    ancestors(wire).count().saturating_sub(2)
}

/// `wire.suffix`, written to `room`; `None` when that would be too long for a name.
pub(crate) fn joined<'r>(wire: &[u8], suffix: &Folded, room: &'r mut [u8; NAME_OCTETS_MAX]) -> Option<&'r [u8]> {
    let labels = &wire[..wire.len() - 1];
    let whole = room.get_mut(..labels.len() + suffix.0.len())?;
    let (front, back) = whole.split_at_mut(labels.len());
    front.copy_from_slice(labels);
    back.copy_from_slice(&suffix.0);
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
fn put_plain_labels(text: &str, mut end: usize, room: &mut [u8; NAME_OCTETS_MAX]) -> Result<usize, BadName> {
    for label in text.split('.') {
        let is_lower = label.bytes().all(|octet| octet.is_ascii() && !octet.is_ascii_uppercase());
        let label = if is_lower { Cow::Borrowed(label) } else { Cow::Owned(label.to_lowercase()) };
        let length = match u8::try_from(label.len()) {
            Ok(0) => return Err(BadName::EmptyLabel),
            Ok(length) if usize::from(length) <= LABEL_OCTETS_MAX => length,
            _ => return Err(BadName::LabelTooLong),
        };
        let after = end + 1 + label.len();
        if after >= NAME_OCTETS_MAX {
            return Err(BadName::TooLong);
        }
        room[end] = length;
        room[end + 1..after].copy_from_slice(label.as_bytes());
        end = after;
    }
    Ok(end)
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
