//! The names of the DNS scenario, the questions for them, and the zone in which the peers keep them.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use serde_json::json;

/// How many names there are.
pub(crate) const NAMES: usize = 10_000;

/// The domain of them all.
pub(crate) const ZONE: &str = "rancher.internal";

/// One of so many questions is for a name that does not exist.
const MISSES: usize = 10;

/// A step that visits all numbers below [`NAMES`] in no order that a cache could like.
const STEP: usize = 7919;

/// The label of a service.
pub(crate) fn label(number: usize) -> String {
    format!("s{number:05}")
}

/// The full name of a service, without the dot at the end.
pub(crate) fn name(number: usize) -> String {
    format!("{}.shop.{ZONE}", label(number))
}

/// A name that does not exist.
fn missing(number: usize) -> String {
    format!("x{number:05}.shop.{ZONE}")
}

/// The address of the only container of a service.
pub(crate) fn address(number: usize) -> Ipv4Addr {
    let first = u32::from(Ipv4Addr::new(10, 64, 0, 1));
    Ipv4Addr::from(first + u32::try_from(number).unwrap_or_default())
}

/// All names with their addresses.
pub(crate) fn all() -> impl Iterator<Item = (String, Ipv4Addr)> {
    (0..NAMES).map(|number| (name(number), address(number)))
}

/// All names as the zone file that knot, nsd and pdns read, with the short times that we have.
pub(crate) fn zone_file() -> String {
    let mut zone =
        format!("$ORIGIN {ZONE}.\n@ 1 IN SOA ns hostmaster 1 3600 600 86400 1\n@ 1 IN NS ns\nns 1 IN A 127.0.0.1\n");
    for (name, address) in all() {
        let _ = writeln!(zone, "{name}. 1 IN A {address}");
    }
    zone
}

/// All names as the predecessor's DNS service reads them.
pub(crate) fn answers() -> String {
    let addresses: serde_json::Map<_, _> =
        all().map(|(name, address)| (format!("{name}."), json!({ "answer": [address] }))).collect();
    json!({ "default": { "authoritative": [format!("{ZONE}.")], "recurse": [], "a": addresses } }).to_string()
}

/// A question as a datagram, with the identifier still to be set.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) bytes: Vec<u8>,
    /// Whether the name exists, so that the answer must hold an address; otherwise it must be NXDOMAIN.
    pub(crate) exists: bool,
}

impl Question {
    /// Asks for the IPv4 address of a name.
    pub(crate) fn new(name: &str, exists: bool) -> Self {
        Self::of_kind(name, 1, exists)
    }

    /// Asks for the records of a kind, by its number (RFC 1035 section 3.2.2).
    pub(crate) fn of_kind(name: &str, kind: u8, exists: bool) -> Self {
        let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).unwrap_or_default());
            bytes.extend(label.as_bytes());
        }
        bytes.extend([0, 0, kind, 0, 1]);
        Self { bytes, exists }
    }

    /// Says that the asker takes 1232 bytes (EDNS, RFC 6891).
    #[must_use]
    pub(crate) fn with_edns(mut self) -> Self {
        self.bytes[11] = 1;
        self.bytes.extend([0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);
        self
    }

    /// Whether `reply` is what a server has to say to this.
    pub(crate) fn is_answered_by(&self, reply: &[u8]) -> bool {
        let [_, _, flags, code, _, _, _, answers, ..] = reply else { return false };
        let said = (code & 0x0f, *answers > 0);
        flags & 0x80 != 0 && said == if self.exists { (0, true) } else { (3, false) }
    }
}

/// Which names are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Nine that exist, one that does not.
    Both,
    Hits,
    Misses,
}

impl Mix {
    /// The names in the order of asking, and whether they exist.
    pub(crate) fn names(self) -> impl Iterator<Item = (String, bool)> {
        (0..NAMES).map(move |turn| {
            let number = turn * STEP % NAMES;
            let exists = match self {
                Self::Both => turn % MISSES != 0,
                Self::Hits => true,
                Self::Misses => false,
            };
            (if exists { name(number) } else { missing(number) }, exists)
        })
    }

    pub(crate) fn questions(self) -> Vec<Question> {
        self.names().map(|(name, exists)| Question::new(&name, exists)).collect()
    }

    /// The names as dnsperf reads them.
    pub(crate) fn lines(self) -> String {
        self.names().fold(String::new(), |lines, (name, _)| lines + &name + " A\n")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_mix_asks_for_as_many_different_names() {
        for (mix, hits) in [(Mix::Both, 9000), (Mix::Hits, NAMES), (Mix::Misses, 0)] {
            let names: HashSet<_> = mix.names().map(|(name, _)| name).collect();
            assert_eq!(names.len(), NAMES);
            assert_eq!(mix.questions().iter().filter(|question| question.exists).count(), hits);
        }
    }

    #[test]
    fn answers_are_told_from_errors() {
        let [hit, miss] = [true, false].map(|exists| Question::new("a.b", exists));
        assert_eq!(hit.bytes[12..], *b"\x01a\x01b\0\0\x01\0\x01");
        for (reply, answers_hit, answers_miss) in [
            (&b"\0\0\x81\x80\0\x01\0\x01\0\0\0\0"[..], true, false),
            (b"\0\0\x81\x83\0\x01\0\0\0\x01\0\0", false, true),
            (b"\0\0\x81\x82\0\x01\0\0\0\0\0\0", false, false),
            (b"\0\0\x01\x00\0\x01\0\x01\0\0\0\0", false, false),
            (b"\0\0\x81", false, false),
        ] {
            assert_eq!(
                (hit.is_answered_by(reply), miss.is_answered_by(reply)),
                (answers_hit, answers_miss),
                "{reply:?}"
            );
        }
    }
}
