//! The layout of keys: what stands under which key, and back.
//!
//! `hosts/HOST/host`, `hosts/HOST/containers/ID`, `hosts/HOST/services/STACK/SERVICE[/SIDEKICK]`, `hosts/HOST/networks/NAME`,
//! `hosts/HOST/stacks/NAME`, `documents/NAME`, `empty`. A segment is a name with every octet escaped (`%2F`) that is no letter,
//! digit, `-`, `.`, `_` or `~`; a name has one form only, so no two keys mean the same.

use std::fmt::Write as _;

use model::Text;

/// Longest key behind the prefix, in octets: three names of 255 octets, escaped.
pub const KEY_MAX: usize = 3 * 3 * 255 + 64;

/// What a host has several of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Containers, by uuid, or by name where they have none.
    Containers,
    /// Networks, by name.
    Networks,
    /// Services, by stack and name, sidekicks also by their primary.
    Services,
    /// Stacks, by name.
    Stacks,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Stacks, Self::Services, Self::Containers, Self::Networks];

    /// The list of the document, which is the segment of the key too.
    pub fn list(self) -> &'static str {
        match self {
            Self::Containers => "containers",
            Self::Networks => "networks",
            Self::Services => "services",
            Self::Stacks => "stacks",
        }
    }
}

/// What speaks for itself: a host, or a document that somebody wrote.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartId {
    /// The host of this name.
    Host(Text),
    /// The document of this name.
    Document(Text),
}

impl PartId {
    /// `hosts/NAME` or `documents/NAME`.
    pub fn text(&self) -> Text {
        match self {
            Self::Host(name) => format!("hosts/{name}").into(),
            Self::Document(name) => format!("documents/{name}").into(),
        }
    }

    /// What [`PartId::text`] was made of.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once('/')? {
            ("hosts", name) => Some(Self::Host(name.into())),
            ("documents", name) => Some(Self::Document(name.into())),
            _ => None,
        }
    }
}

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A host's word about itself; while it is there, the host is.
    Host(Text),
    /// Something that a host has, named by its segments.
    Entity(Text, Kind, Vec<Text>),
    /// A document.
    Document(Text),
    /// The word that the cluster is empty indeed.
    Empty,
}

impl Key {
    /// What it is part of; [`Key::Empty`] is part of nothing.
    pub fn part(&self) -> Option<PartId> {
        match self {
            Self::Host(host) | Self::Entity(host, ..) => Some(PartId::Host(host.clone())),
            Self::Document(name) => Some(PartId::Document(name.clone())),
            Self::Empty => None,
        }
    }

    /// The key, behind the prefix.
    pub fn path(&self) -> String {
        match self {
            Self::Host(host) => format!("{}host", host_path(host)),
            Self::Entity(host, kind, names) => {
                let mut path = host_path(host);
                path.push_str(kind.list());
                for name in names {
                    path.push('/');
                    escape(name, &mut path);
                }
                path
            }
            Self::Document(name) => {
                let mut path = "documents/".to_owned();
                escape(name, &mut path);
                path
            }
            Self::Empty => "empty".to_owned(),
        }
    }

    /// What the key `path`, behind the prefix, stands for.
    ///
    /// # Errors
    ///
    /// Why it is none of ours.
    pub fn parse(path: &[u8]) -> Result<Self, String> {
        if path.len() > KEY_MAX {
            return Err(format!("a key has at most {KEY_MAX} octets"));
        }
        let text = std::str::from_utf8(path).map_err(|_| "no key of ours: it is not UTF-8".to_owned())?;
        let segments: Vec<&str> = text.split('/').collect();
        let names = |segments: &[&str]| segments.iter().map(|segment| unescape(segment)).collect::<Result<Vec<_>, _>>();
        let foreign = || "no key of ours".to_owned();
        match segments[..] {
            ["empty"] => Ok(Self::Empty),
            ["documents", name] => Ok(Self::Document(unescape(name)?)),
            ["hosts", host, "host"] => Ok(Self::Host(unescape(host)?)),
            ["hosts", host, list, ref rest @ ..] => {
                let kind = Kind::ALL.into_iter().find(|kind| kind.list() == list).ok_or_else(foreign)?;
                let fits = match kind {
                    Kind::Services => matches!(rest.len(), 2 | 3),
                    _ => rest.len() == 1,
                };
                if fits { Ok(Self::Entity(unescape(host)?, kind, names(rest)?)) } else { Err(foreign()) }
            }
            _ => Err(foreign()),
        }
    }
}

/// What all keys of a host begin with, behind the prefix.
pub fn host_path(host: &str) -> String {
    let mut path = "hosts/".to_owned();
    escape(host, &mut path);
    path.push('/');
    path
}

fn stays(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b'~')
}

fn escape(name: &str, path: &mut String) {
    for octet in name.bytes() {
        if stays(octet) {
            path.push(char::from(octet));
        } else {
            let _ = write!(path, "%{octet:02X}");
        }
    }
}

fn unescape(segment: &str) -> Result<Text, String> {
    let wrong = || format!("no key of ours: {segment:?} is no escaped name");
    let mut octets = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(wrong)?;
            octets.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
            rest = &tail[2..];
        } else {
            octets.push(*first);
            rest = tail;
        }
    }
    let name = String::from_utf8(octets).map_err(|_| wrong())?;
    let mut again = String::new();
    escape(&name, &mut again);
    // Any other form of the name would be a second key for the same thing.
    if name.is_empty() || again != segment { Err(wrong()) } else { Ok(name.into()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_stand_for_entities() {
        let entity = |kind, names: &[&str]| {
            Some(Key::Entity("win-1".into(), kind, names.iter().map(|name| (*name).into()).collect()))
        };
        for (path, key) in [
            ("hosts/win-1/host", Some(Key::Host("win-1".into()))),
            ("hosts/win-1/containers/0a1b", entity(Kind::Containers, &["0a1b"])),
            ("hosts/win-1/containers/a%2Fb%20%C3%A4", entity(Kind::Containers, &["a/b ä"])),
            ("hosts/win-1/services/shop/web", entity(Kind::Services, &["shop", "web"])),
            ("hosts/win-1/services/shop/web/log", entity(Kind::Services, &["shop", "web", "log"])),
            ("hosts/win-1/networks/nat", entity(Kind::Networks, &["nat"])),
            ("hosts/win-1/stacks/shop", entity(Kind::Stacks, &["shop"])),
            ("documents/outside", Some(Key::Document("outside".into()))),
            ("empty", Some(Key::Empty)),
            ("", None),
            ("hosts", None),
            ("hosts/win-1", None),
            ("hosts//host", None),
            ("hosts/win-1/host/x", None),
            ("hosts/win-1/containers", None),
            ("hosts/win-1/containers/", None),
            ("hosts/win-1/containers/a/b", None),
            ("hosts/win-1/services/shop", None),
            ("hosts/win-1/pods/a", None),
            ("hosts/win 1/host", None),
            ("hosts/win%2d1/host", None),
            ("hosts/win%41/host", None),
            ("hosts/win%F", None),
            ("documents/%FF", None),
            ("other", None),
        ] {
            assert_eq!(Key::parse(path.as_bytes()).ok(), key, "{path}");
            if let Some(key) = key {
                assert_eq!(key.path(), path);
            }
        }
    }

    proptest! {
        #[test]
        fn any_name_has_a_key(host in ".{1,40}", names in prop::collection::vec(".{1,40}", 2..=3)) {
            let names: Vec<Text> = names.into_iter().map(Text::from).collect();
            let key = Key::Entity(host.into(), Kind::Services, names);
            prop_assert_eq!(Key::parse(key.path().as_bytes()), Ok(key));
        }
    }
}
