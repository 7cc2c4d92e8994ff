//! Keys: what containers are found by, ignoring case.

use std::hash::{Hash, Hasher};

use model::Fingerprint;

use crate::place::port::Protocol;

/// Labels that differ for every container, or for none: no index, they are looked for one by one.
///
/// Each indexed label costs about 0.5 us per change of a container.
const UNINDEXED_LABELS: [&str; 6] = [
    "io.rancher.container.uuid",
    "io.rancher.container.name",
    "io.rancher.container.mac_address",
    "io.rancher.container.ip",
    "io.rancher.service.deployment.unit",
    "io.rancher.environment.uuid",
];

/// What containers are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Name,
    /// A label and its value.
    Label,
    /// `stack/service`.
    Service,
    Image,
    Port,
}

/// The key under which these words are found; case does not matter.
pub(crate) fn key(kind: Kind, words: &[&str]) -> Fingerprint {
    Fingerprint::of(&(kind, Folded(words)))
}

/// The key under which a published port is found.
pub(crate) fn port_key(protocol: Protocol, public: u16) -> Fingerprint {
    Fingerprint::of(&(Kind::Port, protocol, public))
}

/// Whether containers are found by this label.
pub(crate) fn is_indexed(label: &str) -> bool {
    !UNINDEXED_LABELS.iter().any(|known| known.eq_ignore_ascii_case(label))
}

struct Folded<'a>(&'a [&'a str]);

impl Hash for Folded<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for word in self.0 {
            if word.is_ascii() {
                let mut chunk = [0; 64];
                for piece in word.as_bytes().chunks(chunk.len()) {
                    let folded = &mut chunk[..piece.len()];
                    folded.copy_from_slice(piece);
                    folded.make_ascii_lowercase();
                    state.write(folded);
                }
            } else {
                state.write(word.to_lowercase().as_bytes());
            }
            state.write_u8(0xff);
        }
    }
}
