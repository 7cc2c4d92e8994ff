//! The choice among the entries of an image: which of them a host would run, and how isolated.

use crate::place::hosts::Facts;
use crate::place::request::member::ImagePlatform;
use crate::place::windows::{self, Isolation};

/// The entry of an image that a host would run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice<'a> {
    pub(crate) platform: &'a ImagePlatform,
    /// The isolation, on Windows.
    pub(crate) isolation: Option<Isolation>,
    /// What may go wrong all the same.
    pub(crate) warning: Option<String>,
}

/// The best entry of an image for a host; `None` when it runs none of them.
///
/// Without a stated isolation, process isolation comes before Hyper-V unless the host's own default is Hyper-V; newer
/// images come before older ones, and revisions that are not newer than the host's before those that are.
pub(crate) fn choose<'a>(
    facts: &Facts,
    platforms: &'a [ImagePlatform],
    isolation: Option<Isolation>,
) -> Option<Choice<'a>> {
    let system = &facts.system;
    let suits = |platform: &&ImagePlatform| {
        let architecture = platform.architecture.as_ref().zip(system.architecture.as_ref());
        platform.os == system.os && architecture.is_none_or(|(image, host)| image == host)
    };
    if &*system.os != "windows" {
        let platform = platforms.iter().find(suits)?;
        return Some(Choice { platform, isolation: None, warning: None });
    }
    let order = match (isolation, system.isolation) {
        (Some(isolation), _) => vec![isolation],
        (None, Isolation::Hyperv) => vec![Isolation::Hyperv, Isolation::Process],
        (None, Isolation::Process) => vec![Isolation::Process, Isolation::Hyperv],
    };
    order.into_iter().filter(|isolation| *isolation == Isolation::Process || system.hyperv).find_map(|isolation| {
        let starts = |platform: &&ImagePlatform| match (system.build, platform.build) {
            (Some(host), Some(image)) => windows::compatible(host, image, isolation),
            // An image without a build is assumed to fit; a host without one cannot be.
            (_, None) => true,
            (None, Some(_)) => false,
        };
        let newer = |platform: &ImagePlatform| {
            system.build.zip(platform.build).is_some_and(|(host, image)| windows::is_newer_revision(host, image))
        };
        let platform = platforms
            .iter()
            .filter(suits)
            .filter(starts)
            .max_by_key(|platform| (platform.build.map(|build| build.number), !newer(platform), platform.build))?;
        let warning =
            newer(platform).then(|| "the image's revision is newer than the host's: it may fail to start".to_owned());
        Some(Choice { platform, isolation: Some(isolation), warning })
    })
}
