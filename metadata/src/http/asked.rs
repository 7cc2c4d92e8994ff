//! What a request says: the method, the target, and the header lines that count.

use crate::path::Method;

/// The header lines that are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Host,
    Accept,
    /// `X-Forwarded-For`.
    ForwardedFor,
    Forwarded,
    /// A session token.
    Token,
    /// The life asked for a new session token.
    Lifetime,
}

/// The names of the header lines that are looked at.
const NAMES: [(&str, Field); 8] = [
    ("host", Field::Host),
    ("accept", Field::Accept),
    ("x-forwarded-for", Field::ForwardedFor),
    ("forwarded", Field::Forwarded),
    ("x-aws-ec2-metadata-token", Field::Token),
    ("x-metadata-token", Field::Token),
    ("x-aws-ec2-metadata-token-ttl-seconds", Field::Lifetime),
    ("x-metadata-token-ttl-seconds", Field::Lifetime),
];

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Asked<'r> {
    pub(crate) method: Method,
    pub(crate) target: &'r [u8],
    /// In the order in which they came.
    pub(crate) fields: Vec<(Field, &'r [u8])>,
}

impl Field {
    /// The header line with this name, when it is looked at.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        let found = NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        found.map(|(_, field)| *field)
    }
}

impl<'r> Asked<'r> {
    /// All lines of a kind.
    pub(crate) fn all(&self, field: Field) -> impl Iterator<Item = &'r [u8]> + '_ {
        self.fields.iter().filter(move |(own, _)| *own == field).map(|(_, value)| *value)
    }

    /// The first line of a kind.
    pub(crate) fn first(&self, field: Field) -> Option<&'r [u8]> {
        self.all(field).next()
    }

    /// The only line of a kind; `None` also when there are several.
    pub(crate) fn only(&self, field: Field) -> Option<&'r [u8]> {
        let mut all = self.all(field);
        all.next().filter(|_| all.next().is_none())
    }

    /// Whether a proxy says on whose behalf it asks.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.fields.iter().any(|(field, _)| matches!(field, Field::ForwardedFor | Field::Forwarded))
    }
}
