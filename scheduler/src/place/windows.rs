//! Which Windows image starts on which Windows host: builds, revisions and isolation.
//!
//! The kernel is shared under process isolation, so the image's user mode must suit it; under Hyper-V
//! isolation the container brings its own kernel, which must not be newer than the host's.

use std::fmt;

/// A build of Windows with its revision (UBR) where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Build {
    /// The build number, such as 20348.
    pub number: u32,
    /// The update build revision, such as 2113.
    pub revision: Option<u32>,
}

impl Build {
    /// The build in `10.0.20348.2113`, `10.0.20348` or `20348`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let parts: Vec<u32> = text.trim().split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        match parts[..] {
            [number] | [_, _, number] => Some(Self { number, revision: None }),
            [_, _, number, revision] => Some(Self { number, revision: Some(revision) }),
            _ => None,
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)?;
        self.revision.map_or(Ok(()), |revision| write!(f, ".{revision}"))
    }
}

/// What separates a container from its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isolation {
    /// The host's kernel.
    Process,
    /// A kernel of its own in a small virtual machine.
    Hyperv,
}

impl Isolation {
    /// The word the engine uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Hyperv => "hyperv",
        }
    }
}

/// Whether an image of build `image` starts on a host of build `host`.
pub fn compatible(host: Build, image: Build, isolation: Isolation) -> bool {
    match isolation {
        Isolation::Hyperv => image.number <= host.number,
        Isolation::Process if host.number < STABLE_ABI_BUILD => {
            let revisions = image.revision.zip(host.revision).is_none_or(|(image, host)| image == host);
            image.number == host.number && (host.number != REVISION_BOUND_BUILD || revisions)
        }
        Isolation::Process => (oldest_image(host.number)..=host.number).contains(&image.number),
    }
}

/// Whether the image is of the host's build but newer in its revision, which may fail to start.
pub(crate) fn is_newer_revision(host: Build, image: Build) -> bool {
    image.number == host.number && image.revision.zip(host.revision).is_some_and(|(image, host)| image > host)
}

/// From this build on (Server 2022) a host also runs images of the long-term release before its own.
const STABLE_ABI_BUILD: u32 = 20348;

/// Long-term releases since then: Server 2022 and 2025.
const LONG_TERM_BUILDS: [u32; 2] = [20348, 26100];

/// Server 2016, which alone insists on equal revisions.
const REVISION_BOUND_BUILD: u32 = 14393;

/// The oldest image that a host from [`STABLE_ABI_BUILD`] on runs: the long-term release before the newest one
/// that is not above the host, or the first there is.
fn oldest_image(host: u32) -> u32 {
    let released = LONG_TERM_BUILDS.iter().filter(|build| **build <= host).count();
    LONG_TERM_BUILDS[released.saturating_sub(2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &str, image: &str, process: bool, hyperv: bool) {
        let (host, image) = (Build::parse(host).unwrap(), Build::parse(image).unwrap());
        let found = [Isolation::Process, Isolation::Hyperv].map(|isolation| compatible(host, image, isolation));
        assert_eq!(found, [process, hyperv], "image {image} on host {host}");
    }

    #[test]
    fn builds_decide() {
        check("17763", "10.0.17763.5000", true, true);
        check("10.0.17763", "14393", false, true);
        check("10.0.14393.1", "10.0.14393.2", false, true);
        check("10.0.14393.2", "10.0.14393.2", true, true);
        check("14393", "10.0.14393.2", true, true);
        check("25398", "20348", true, true);
        check("26200", "20348", true, true);
        check("20348", "25398", false, false);
    }

    #[test]
    fn what_is_no_build_is_none() {
        for text in ["", "10.0", "ltsc2022", "10.0.x", "10.0.1.2.3", "-1", "10.0.99999999999"] {
            assert_eq!(Build::parse(text), None, "{text}");
        }
    }

    #[test]
    fn newer_revisions_are_noticed() {
        let build = |text| Build::parse(text).unwrap();
        assert!(is_newer_revision(build("10.0.20348.1"), build("10.0.20348.2")));
        assert!(!is_newer_revision(build("10.0.20348"), build("10.0.20348.2")));
        assert!(!is_newer_revision(build("10.0.26100.1"), build("10.0.20348.2")));
    }
}
