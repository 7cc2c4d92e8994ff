//! For which systems an image is there: what requests do not say, and registries do.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bollard::models::OciPlatform;
use model::Text;

use crate::hosts::architecture;
use crate::request::Request;
use crate::request::member::ImagePlatform;
use crate::windows::Build;

/// How long a registry's word is taken for true: an image gets entries for new versions of Windows every few weeks.
const FRESH: Duration = Duration::from_mins(5);

/// Most images of which something is known; beyond that all is forgotten and asked again.
const KNOWN_MAX: usize = 4096;

/// What is known of images.
#[derive(Debug, Default)]
pub(crate) struct Platforms(Mutex<HashMap<Text, Known>>);

#[derive(Debug)]
struct Known {
    since: Duration,
    platforms: Vec<ImagePlatform>,
}

impl Platforms {
    /// The images of a request of which it does not say for which systems they are, and nobody knows now.
    pub(crate) fn unknown(&self, request: &Request, now: Duration) -> Vec<Text> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stale = |image: &Text| known.get(image).is_none_or(|known| now.saturating_sub(known.since) > FRESH);
        let images = request.members.iter().filter(|member| member.platforms.is_empty());
        images.filter_map(|member| member.image.clone()).filter(stale).collect()
    }

    /// Notes for which systems an image is; empty when no registry tells.
    pub(crate) fn learn(&self, image: Text, platforms: Vec<ImagePlatform>, now: Duration) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(image, Known { since: now, platforms });
    }

    /// Says in a request what is known of its images. However old it is: a request keeps what it was placed by.
    pub(crate) fn fill(&self, request: &mut Request) {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for member in request.members.iter_mut().filter(|member| member.platforms.is_empty()) {
            if let Some(known) = member.image.as_ref().and_then(|image| known.get(image)) {
                member.platforms.clone_from(&known.platforms);
            }
        }
    }
}

/// The entries of an image's index that a container can be made of; attestations and the like are for nobody.
pub(crate) fn of_index(entries: &[OciPlatform]) -> Vec<ImagePlatform> {
    let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty() && text != "unknown");
    let entry = |entry: &OciPlatform| {
        let os = filled(&entry.os)?.to_lowercase();
        let build = filled(&entry.os_version).filter(|_| os == "windows").and_then(|version| Build::parse(&version));
        let architecture = filled(&entry.architecture).map(|word| architecture(&word));
        Some(ImagePlatform { os: os.into(), architecture, build })
    };
    entries.iter().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(os: &str, version: &str, architecture: &str) -> OciPlatform {
        let text = |text: &str| Some(text.to_owned());
        OciPlatform {
            os: text(os),
            os_version: text(version),
            architecture: text(architecture),
            ..OciPlatform::default()
        }
    }

    #[test]
    fn an_index_is_read_without_what_is_for_nobody() {
        let entries = [
            entry("windows", "10.0.20348.2113", "amd64"),
            entry("Linux", "", "x86_64"),
            entry("unknown", "", "unknown"),
            OciPlatform::default(),
        ];
        let told: Vec<_> = of_index(&entries)
            .into_iter()
            .map(|entry| (entry.os.to_string(), entry.build.map(|build| build.to_string()), entry.architecture))
            .collect();
        let amd64 = || Some(architecture("amd64"));
        let expected =
            [("windows".to_owned(), Some("20348.2113".to_owned()), amd64()), ("linux".to_owned(), None, amd64())];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_known_fills_what_the_request_leaves_open() {
        let parse = |json: &str| Request::parse(&serde_json::from_str(json).unwrap()).unwrap();
        let platforms = Platforms::default();
        let mut open = parse(r#"{"image": "web"}"#);
        let (start, later) = (Duration::ZERO, FRESH + Duration::from_secs(1));
        assert_eq!(platforms.unknown(&open, start), ["web".into()]);
        platforms.learn("web".into(), of_index(&[entry("linux", "", "amd64")]), start);
        assert!(platforms.unknown(&open, start).is_empty());
        assert_eq!(platforms.unknown(&open, later), ["web".into()]);
        platforms.fill(&mut open);
        assert_eq!(&*open.members[0].platforms[0].os, "linux");
        let mut said = parse(r#"{"image": {"name": "web", "platforms": [{"os": "windows"}]}}"#);
        assert!(platforms.unknown(&said, later).is_empty());
        platforms.fill(&mut said);
        assert_eq!(&*said.members[0].platforms[0].os, "windows");
    }
}
