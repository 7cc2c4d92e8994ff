//! The layout of keys: from entities to keys, and back.
//!
//! `hosts/HOST/host`, `hosts/HOST/containers/ID`, `hosts/HOST/services/STACK/SERVICE[/SIDEKICK]`,
//! `hosts/HOST/networks/NAME`, `hosts/HOST/stacks/NAME`, `hosts/HOST/password`, `intents/HOST`, `config/labels.reserved`,
//! `config/network`, `config/network.accept`, `claims/subnet/SUBNET`, `claims/host/HOST`, `health/CHECKER/HOST/ID`,
//! `evicted/HOST/ID`, `documents/NAME`, `empty`. A segment is a name with every byte escaped (`%2F`) that is no letter, digit, `-`, `.`, `_` or `~`; a
//! name has one form only, so no two keys mean the same. What is under `ledger/` is the schedulers'; what is under `votes/`
//! (`votes/CHECKER/HOST/ID`) is read by HOST alone.

use std::borrow::Cow;

use etcd::{LEDGER, Span, prefix_end, segment};
use model::network_key::{NETWORK_ACCEPT, NETWORK_CONFIG};
use model::{About, NetworkKey, Pool, Text};

use crate::intents::{INTENTS, RESERVED_LABELS};

/// Longest key behind the prefix, in bytes: three names of 255 bytes, escaped.
const KEY_MAX: usize = 3 * 3 * 255 + 64;

/// The ranges of keys that are followed: all of ours but the votes, and what is between and behind, which is none of ours and is
/// reported.
pub(super) fn followed(prefix: &str) -> [Span; 3] {
    let [ledger, votes] = UNFOLLOWED.map(|path| format!("{prefix}{path}").into_bytes());
    let between = Span { from: prefix_end(&ledger), end: votes.clone() };
    let behind = Span { from: prefix_end(&votes), end: prefix_end(prefix.as_bytes()) };
    [Span { from: prefix.as_bytes().to_vec(), end: ledger }, between, behind]
}

/// What keys begin with that are not followed, in order.
const UNFOLLOWED: [&str; 2] = [LEDGER, VOTES];

/// The part of a followed key behind the prefix; `None` for those of others and those that are not followed.
pub(super) fn path_of<'k>(prefix: &str, key: &'k [u8]) -> Option<&'k [u8]> {
    let is_unfollowed = |path: &&[u8]| UNFOLLOWED.iter().any(|unfollowed| path.starts_with(unfollowed.as_bytes()));
    key.strip_prefix(prefix.as_bytes()).filter(|path| !is_unfollowed(path))
}

/// What the keys of votes begin with.
pub(super) const VOTES: &str = "votes/";

/// What the keys of overrides begin with.
const OVERRIDES: &str = "health/";

/// What the keys of evicted containers begin with.
const EVICTED: &str = "evicted/";

/// What all votes of a host about containers of another one begin with, behind the prefix; of all others without `owner`.
pub(super) fn votes_path(checker: &str, owner: Option<&str>) -> String {
    below(VOTES, checker, owner, None)
}

/// The key of a vote, behind the prefix.
pub(super) fn vote_path(checker: &str, about: &About) -> String {
    below(VOTES, checker, Some(&about.owner), Some(&about.container))
}

/// The key of an override, behind the prefix.
pub(super) fn override_path(checker: &str, about: &About) -> String {
    below(OVERRIDES, checker, Some(&about.owner), Some(&about.container))
}

/// What all overrides of a host begin with, behind the prefix.
pub(super) fn overrides_path(checker: &str) -> String {
    below(OVERRIDES, checker, None, None)
}

/// The key by which a container is evicted, behind the prefix.
fn evicted_path(about: &About) -> String {
    let mut path = below(EVICTED, &about.owner, None, None);
    escape(&about.container, &mut path);
    path
}

fn below(family: &str, checker: &str, owner: Option<&str>, container: Option<&str>) -> String {
    let mut path = family.to_owned();
    for (number, name) in [Some(checker), owner, container].into_iter().flatten().enumerate() {
        if number > 0 {
            path.push('/');
        }
        escape(name, &mut path);
    }
    if container.is_none() {
        path.push('/');
    }
    path
}

/// The uuid of the container that a key of a vote is about; `start` is [`votes_path`] behind the prefix.
pub(super) fn voted_about(start: &str, path: &[u8]) -> Option<Text> {
    let name = std::str::from_utf8(path.strip_prefix(start.as_bytes())?).ok()?;
    unescape(name).ok().map(Into::into)
}

/// Most segments of a key: those of a sidekick.
const SEGMENTS_MAX: usize = 6;

/// What a host has several of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
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
    pub(crate) const ALL: [Self; 4] = [Self::Stacks, Self::Services, Self::Containers, Self::Networks];

    /// The list of the document, which is the segment of the key too.
    pub(crate) fn list(self) -> &'static str {
        match self {
            Self::Containers => "containers",
            Self::Networks => "networks",
            Self::Services => "services",
            Self::Stacks => "stacks",
        }
    }
}

/// A part of the cluster: a host, or a document that a person wrote.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PartId {
    /// The host of this name.
    Host(Text),
    /// The document of this name.
    Document(Text),
    /// What operators want of a host.
    Intent(Text),
    /// The labels that only operators give.
    ReservedLabels,
    /// Something of the network between hosts, by its key.
    Network(Text),
    /// What a checker says of a container of a host that is silent.
    Override(Text, About),
    /// That another container has the place of this one, says a scheduler.
    Evicted(About),
}

impl PartId {
    /// `hosts/NAME` or `documents/NAME`.
    pub(crate) fn text(&self) -> Text {
        match self {
            Self::Host(name) => format!("hosts/{name}").into(),
            Self::Document(name) => format!("documents/{name}").into(),
            Self::Intent(host) => format!("{INTENTS}{host}").into(),
            Self::ReservedLabels => RESERVED_LABELS.into(),
            Self::Network(key) => key.clone(),
            Self::Override(checker, about) => override_path(checker, about).into(),
            Self::Evicted(about) => evicted_path(about).into(),
        }
    }

    /// What [`PartId::text`] was made of.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == RESERVED_LABELS {
            return Some(Self::ReservedLabels);
        }
        if NetworkKey::is_key(text) {
            return Some(Self::Network(text.into()));
        }
        match text.split_once('/')? {
            ("hosts", name) => Some(Self::Host(name.into())),
            ("documents", name) => Some(Self::Document(name.into())),
            ("intents", host) => Some(Self::Intent(host.into())),
            ("health" | "evicted", _) => Key::parse(text.as_bytes()).ok()?.part(),
            _ => None,
        }
    }
}

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// The host's own value; the host exists as long as this key.
    Host(Text),
    /// Something that a host has, named by its segments.
    Entity(Text, Kind, Vec<Text>),
    /// A document.
    Document(Text),
    /// What operators want of a host.
    Intent(Text),
    /// The labels that only operators give.
    ReservedLabels,
    /// Something of the network between hosts, by the key itself.
    Network(Text),
    /// What a checker says of a container of a host that is silent.
    Override(Text, About),
    /// That another container has the place of this one, says a scheduler.
    Evicted(About),
    /// A new password on its way to a host, which alone can read it.
    Password(Text),
    /// The word that the cluster is empty indeed.
    Empty,
}

impl Key {
    /// What it is part of; [`Key::Empty`] and [`Key::Password`] are part of nothing.
    pub(crate) fn part(&self) -> Option<PartId> {
        match self {
            Self::Host(host) | Self::Entity(host, ..) => Some(PartId::Host(host.clone())),
            Self::Document(name) => Some(PartId::Document(name.clone())),
            Self::Intent(host) => Some(PartId::Intent(host.clone())),
            Self::ReservedLabels => Some(PartId::ReservedLabels),
            Self::Network(key) => Some(PartId::Network(key.clone())),
            Self::Override(checker, about) => Some(PartId::Override(checker.clone(), about.clone())),
            Self::Evicted(about) => Some(PartId::Evicted(about.clone())),
            Self::Password(_) | Self::Empty => None,
        }
    }

    /// The key, behind the prefix.
    pub(crate) fn path(&self) -> String {
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
            Self::Intent(host) => {
                let mut path = INTENTS.to_owned();
                escape(host, &mut path);
                path
            }
            Self::ReservedLabels => RESERVED_LABELS.to_owned(),
            Self::Network(key) => key.to_string(),
            Self::Override(checker, about) => override_path(checker, about),
            Self::Evicted(about) => evicted_path(about),
            Self::Password(host) => format!("{}password", host_path(host)),
            Self::Empty => "empty".to_owned(),
        }
    }

    /// What the key `path`, behind the prefix, stands for.
    ///
    /// # Errors
    ///
    /// Fails if it is not a key of ours.
    pub(crate) fn parse(path: &[u8]) -> Result<Self, String> {
        Self::parse_with(path, &mut |name| name.into())
    }

    /// [`Key::parse`] that shares names with those before.
    pub(super) fn parse_shared(path: &[u8], pool: &mut Pool) -> Result<Self, String> {
        Self::parse_with(path, &mut |name| pool.text(name))
    }

    fn parse_with(path: &[u8], text: &mut dyn FnMut(&str) -> Text) -> Result<Self, String> {
        if path.len() > KEY_MAX {
            return Err(format!("a key has at most {KEY_MAX} bytes"));
        }
        let whole = std::str::from_utf8(path).map_err(|_| "no key of ours: it is not UTF-8".to_owned())?;
        let foreign = || "no key of ours".to_owned();
        let mut segments = [""; SEGMENTS_MAX];
        let mut count = 0;
        for segment in whole.split('/') {
            *segments.get_mut(count).ok_or_else(foreign)? = segment;
            count += 1;
        }
        let mut name = |segment: &str| unescape(segment).map(|name| text(&name));
        match segments[..count] {
            ["empty"] => Ok(Self::Empty),
            ["documents", document] => Ok(Self::Document(name(document)?)),
            ["config", "labels.reserved"] => Ok(Self::ReservedLabels),
            ["config", "network"] => Ok(Self::Network(NETWORK_CONFIG.into())),
            ["config", "network.accept"] => Ok(Self::Network(NETWORK_ACCEPT.into())),
            ["claims", "subnet" | "host", of] => name(of).map(|_| Self::Network(whole.into())),
            ["intents", host] => Ok(Self::Intent(name(host)?)),
            ["health", checker, owner, container] => {
                Ok(Self::Override(name(checker)?, About { owner: name(owner)?, container: name(container)? }))
            }
            ["evicted", owner, container] => {
                Ok(Self::Evicted(About { owner: name(owner)?, container: name(container)? }))
            }
            ["hosts", host, "host"] => Ok(Self::Host(name(host)?)),
            ["hosts", host, "password"] => Ok(Self::Password(name(host)?)),
            ["hosts", host, list, ref rest @ ..] => {
                let kind = Kind::ALL.into_iter().find(|kind| kind.list() == list).ok_or_else(foreign)?;
                let fits = match kind {
                    Kind::Services => matches!(rest.len(), 2 | 3),
                    _ => rest.len() == 1,
                };
                if !fits {
                    return Err(foreign());
                }
                let host = name(host)?;
                Ok(Self::Entity(host, kind, rest.iter().map(|segment| name(segment)).collect::<Result<_, _>>()?))
            }
            _ => Err(foreign()),
        }
    }
}

/// The key by which a part is there.
pub(super) fn own_key(id: &PartId) -> Key {
    match id {
        PartId::Override(checker, about) => Key::Override(checker.clone(), about.clone()),
        PartId::Evicted(about) => Key::Evicted(about.clone()),
        PartId::Host(host) => Key::Host(host.clone()),
        PartId::Document(name) => Key::Document(name.clone()),
        PartId::Intent(host) => Key::Intent(host.clone()),
        PartId::ReservedLabels => Key::ReservedLabels,
        PartId::Network(key) => Key::Network(key.clone()),
    }
}

/// What all keys of a host begin with, behind the prefix.
pub(crate) fn host_path(host: &str) -> String {
    let mut path = "hosts/".to_owned();
    escape(host, &mut path);
    path.push('/');
    path
}

fn escape(name: &str, path: &mut String) {
    segment::escape(name, segment::ESCAPED, path);
}

fn unescape(segment: &str) -> Result<Cow<'_, str>, String> {
    let name = segment::unescape(segment, segment::ESCAPED).filter(|name| !name.is_empty());
    name.ok_or_else(|| format!("no key of ours: {segment:?} is no escaped name"))
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
            ("hosts/win-1/password", Some(Key::Password("win-1".into()))),
            ("documents/outside", Some(Key::Document("outside".into()))),
            ("intents/win-1", Some(Key::Intent("win-1".into()))),
            ("intents/", None),
            ("config/labels.reserved", Some(Key::ReservedLabels)),
            ("config/other", None),
            ("config/network", Some(Key::Network("config/network".into()))),
            ("claims/subnet/10.42.7.0-24", Some(Key::Network("claims/subnet/10.42.7.0-24".into()))),
            ("claims/host/win%201", Some(Key::Network("claims/host/win%201".into()))),
            ("claims/host/win 1", None),
            ("claims/other/win-1", None),
            (
                "health/a/win%201/0a1b",
                Some(Key::Override("a".into(), About { owner: "win 1".into(), container: "0a1b".into() })),
            ),
            ("health/a/b", None),
            ("evicted/win%201/0a1b", Some(Key::Evicted(About { owner: "win 1".into(), container: "0a1b".into() }))),
            ("evicted/a", None),
            ("evicted/a/b/c", None),
            ("votes/a/b/c", None),
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

    #[test]
    fn what_is_followed_is_all_but_the_ledger() {
        let spans = followed("/p/");
        for (key, followed, span) in [
            ("/p/documents/d", true, Some(0)),
            ("/p/empty", true, Some(0)),
            ("/p/hosts/a/host", true, Some(0)),
            ("/p/ledger", true, Some(0)),
            ("/p/ledger/", false, None),
            ("/p/ledger/hosts/a", false, None),
            ("/p/ledger0", true, Some(1)),
            ("/p/other", true, Some(1)),
            ("/p/health/a/b/c", true, Some(0)),
            ("/p/votes", true, Some(1)),
            ("/p/votes/a/b/c", false, None),
            ("/p/votes0", true, Some(2)),
            ("/p0", false, None),
            ("/other/hosts/a/host", false, None),
        ] {
            let bytes = key.as_bytes().to_vec();
            let found = spans.iter().position(|span| span.from <= bytes && bytes < span.end);
            assert_eq!((path_of("/p/", &bytes).is_some(), found), (followed, span), "{key}");
        }
        // A key of ours in the second range would be taken in without regard to its revision.
        for key in [
            Key::Empty,
            Key::Document("~".into()),
            Key::Host("~".into()),
            Key::Intent("~".into()),
            Key::Network("claims/~".into()),
            Key::Override("~".into(), About { owner: "~".into(), container: "~".into() }),
        ] {
            assert!(*key.path() < *LEDGER, "{key:?}");
        }
    }

    #[test]
    fn votes_are_below_the_names_of_checker_and_owner() {
        let about = About { owner: "win 1".into(), container: "a/b".into() };
        let path = vote_path("x", &about);
        assert_eq!(path, "votes/x/win%201/a%2Fb");
        let start = votes_path("x", Some("win 1"));
        assert!(path.starts_with(&start) && start.starts_with(&votes_path("x", None)));
        assert_eq!(voted_about(&start, path.as_bytes()).as_deref(), Some("a/b"));
        assert_eq!(voted_about(&start, b"votes/x/win%201/a/b"), None);
        assert_eq!(override_path("x", &about), "health/x/win%201/a%2Fb");
        assert_eq!(overrides_path("x"), "health/x/");
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
