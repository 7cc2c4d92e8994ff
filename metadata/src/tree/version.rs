//! The versions of the tree: each shows the same cluster a little differently.

/// A version of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Version {
    /// Services list their containers, and stacks their services, by name only.
    V20150725,
    /// Services contain their containers, and stacks their services.
    V20151219,
    /// Names are in lower case; other environments are shown.
    V20160729,
}

/// The name under which clients ask for the newest version.
pub(crate) const LATEST: &str = "latest";

impl Version {
    /// All versions by the names clients use, in the order of their names.
    pub(crate) const NAMED: [(&'static str, Self); 4] = [
        ("2015-07-25", Self::V20150725),
        ("2015-12-19", Self::V20151219),
        ("2016-07-29", Self::V20160729),
        (LATEST, Self::V20160729),
    ];

    /// The version that a client calls by this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(own, _)| *own == name).map(|(_, version)| *version)
    }

    /// Whether names of containers, services and stacks are in lower case.
    pub(crate) fn lowers(self) -> bool {
        self == Self::V20160729
    }

    /// Whether services and stacks only name what they contain.
    pub(crate) fn names_only(self) -> bool {
        self == Self::V20150725
    }
}
