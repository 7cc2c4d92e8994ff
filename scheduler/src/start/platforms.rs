//! For which systems an image is there: what requests do not say, and registries do.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bollard::models::OciPlatform;
use model::Text;

use crate::lock::lock;
use crate::place::hosts::architecture;
use crate::place::request::Request;
use crate::place::request::member::ImagePlatform;
use crate::place::windows::Build;
use crate::start::credentials::RequestCredentials;
use crate::start::registry::Registry;

/// How long a registry's word is taken for true: an image gets entries for new versions of Windows every few weeks.
const FRESH: Duration = Duration::from_mins(5);

/// How long no registry is asked again when none answered: a registry that is away does not delay each start, and a
/// `docker login` soon counts.
const UNKNOWN_TIME: Duration = Duration::from_secs(30);

/// Most images of which something is known; beyond that all is forgotten and asked again.
const KNOWN_MAX: usize = 4096;

/// What is known of images.
#[derive(Debug, Default)]
pub(crate) struct Platforms {
    known: Mutex<HashMap<ImageQuestion, Known>>,
    random: RandomState,
}

/// What a registry is asked, and as which user: answers differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ImageQuestion {
    pub(crate) image: Text,
    /// Stands for the credentials that came with the request; `None` when the scheduler asks with its own.
    caller: Option<u64>,
}

#[derive(Debug)]
struct Known {
    until: Duration,
    platforms: Vec<ImagePlatform>,
}

impl Platforms {
    /// What there is to ask about the images of a request of which it does not say for which systems they are.
    pub(crate) fn unknown(&self, request: &Request, brought: &RequestCredentials, now: Duration) -> Vec<ImageQuestion> {
        let images = request.members.iter().filter(|member| member.platforms.is_empty());
        let questions = images.filter_map(|member| Some(self.question(member.image.as_ref()?, brought)));
        questions.filter(|question| !self.is_known(question, now)).collect()
    }

    /// Whether all of this was asked before, however long ago and whatever the answer.
    pub(crate) fn has_asked(&self, request: &Request, brought: &RequestCredentials) -> bool {
        self.unknown(request, brought, Duration::ZERO).is_empty()
    }

    /// Whether the answer is known, and fresh.
    pub(crate) fn is_known(&self, question: &ImageQuestion, now: Duration) -> bool {
        self.lock().get(question).is_some_and(|known| now <= known.until)
    }

    /// Records which systems an image supports; empty when no registry answered.
    pub(crate) fn learn(&self, question: ImageQuestion, platforms: Vec<ImagePlatform>, now: Duration) {
        let mut known = self.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        let until = now + if platforms.is_empty() { UNKNOWN_TIME } else { FRESH };
        known.insert(question, Known { until, platforms });
    }

    /// Completes a request with what is known of its images, however old: what it was placed by stays in force.
    pub(crate) fn fill(&self, request: &mut Request, brought: &RequestCredentials) {
        let known = self.lock();
        for member in request.members.iter_mut().filter(|member| member.platforms.is_empty()) {
            let question = member.image.as_ref().map(|image| self.question(image, brought));
            if let Some(known) = question.and_then(|question| known.get(&question)) {
                member.platforms.clone_from(&known.platforms);
            }
        }
    }

    fn question(&self, image: &Text, brought: &RequestCredentials) -> ImageQuestion {
        let caller = brought.get(&Registry::of_image(image)).map(|credentials| self.random.hash_one(credentials));
        ImageQuestion { image: image.clone(), caller }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ImageQuestion, Known>> {
        lock(&self.known)
    }
}

/// The entries of an image's index that a container can be made of, without attestations and the like.
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
        let found: Vec<_> = of_index(&entries)
            .into_iter()
            .map(|entry| (entry.os.to_string(), entry.build.map(|build| build.to_string()), entry.architecture))
            .collect();
        let amd64 = || Some(architecture("amd64"));
        let expected =
            [("windows".to_owned(), Some("20348.2113".to_owned()), amd64()), ("linux".to_owned(), None, amd64())];
        assert_eq!(found, expected);
    }

    fn parse(json: &str) -> Request {
        Request::parse(&serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn what_is_known_fills_what_the_request_leaves_open() {
        let anonymous = RequestCredentials::default();
        let platforms = Platforms::default();
        let mut open = parse(r#"{"image": "web"}"#);
        let (start, later) = (Duration::ZERO, FRESH + Duration::from_secs(1));
        let unknown = platforms.unknown(&open, &anonymous, start);
        assert_eq!(unknown, [platforms.question(&"web".into(), &anonymous)]);
        platforms.learn(unknown[0].clone(), of_index(&[entry("linux", "", "amd64")]), start);
        assert!(platforms.unknown(&open, &anonymous, start).is_empty());
        assert_eq!(platforms.unknown(&open, &anonymous, later), unknown);
        platforms.fill(&mut open, &anonymous);
        assert_eq!(&*open.members[0].platforms[0].os, "linux");
        let mut said = parse(r#"{"image": {"name": "web", "platforms": [{"os": "windows"}]}}"#);
        assert!(platforms.unknown(&said, &anonymous, later).is_empty());
        platforms.fill(&mut said, &anonymous);
        assert_eq!(&*said.members[0].platforms[0].os, "windows");
    }

    #[test]
    fn what_a_registry_told_one_caller_is_not_told_another() {
        let of = |header: &str| RequestCredentials::parse(base64_of(header).as_bytes()).unwrap();
        let mine = of(r#"{"registry:5000": {"username": "me", "password": "a"}}"#);
        let yours = of(r#"{"registry:5000": {"username": "me", "password": "b"}}"#);
        let anonymous = RequestCredentials::default();
        let platforms = Platforms::default();
        let request = || parse(r#"{"image": "registry:5000/web"}"#);
        // A refusal does not hide the image from a user who may see it.
        platforms.learn(
            platforms.unknown(&request(), &anonymous, Duration::ZERO)[0].clone(),
            Vec::new(),
            Duration::ZERO,
        );
        let unknown = platforms.unknown(&request(), &mine, Duration::ZERO);
        platforms.learn(unknown[0].clone(), of_index(&[entry("linux", "", "amd64")]), Duration::ZERO);
        for (own, count, asked) in [(&mine, 1, 0), (&yours, 0, 1), (&anonymous, 0, 0)] {
            let mut request = request();
            assert_eq!(platforms.unknown(&request, own, Duration::ZERO).len(), asked);
            platforms.fill(&mut request, own);
            assert_eq!(request.members[0].platforms.len(), count);
        }
        // Nor for long from any user.
        assert_eq!(platforms.unknown(&request(), &anonymous, UNKNOWN_TIME + Duration::from_secs(1)).len(), 1);
    }

    fn base64_of(text: &str) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE.encode(text)
    }
}
