//! Images by their full names: `web` is `docker.io/library/web`.

use std::fmt;

use crate::policy::pattern::Pattern;

/// The registry and the folder of an image that names none.
const HUB: &str = "docker.io";
const HUB_FOLDER: &str = "library";

/// Another name of the hub.
const HUB_ALIAS: &str = "index.docker.io";

/// Tag of an image that has neither a tag nor a digest.
const LATEST: &str = "latest";

/// Digits of a whole id.
const ID_LENGTH: usize = 64;

/// Digits of an id as engines list it.
const SHORT_ID_LENGTH: usize = 12;

/// An image, by its full name. One by the id that an engine has given it has neither a tag nor a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    name: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// Images that have something in common. A pattern without a tag or a digest takes any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImagePattern {
    name: Pattern,
    tag: Option<Pattern>,
    digest: Option<Pattern>,
}

impl Image {
    pub(super) fn of(text: &str) -> Self {
        let (name, tag, digest) = parts(text);
        if tag.is_none() && digest.is_none() && is_id(name) {
            return Self { name: name.to_owned(), tag, digest };
        }
        let tag = tag.or_else(|| digest.is_none().then(|| LATEST.to_owned()));
        Self { name: full_name(name), tag, digest }
    }

    /// Whether it may be any image that the engine has.
    fn is_id(&self) -> bool {
        self.tag.is_none() && self.digest.is_none()
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
        self.digest.iter().try_for_each(|digest| write!(f, "@{digest}"))
    }
}

impl ImagePattern {
    pub(super) fn new(text: &str) -> Self {
        let (name, tag, digest) = parts(text);
        let name = if name.is_empty() || name.starts_with('*') {
            Pattern::new(if name.is_empty() { "*" } else { name })
        } else if tag.is_none() && digest.is_none() && is_id(name) {
            Pattern::new(name)
        } else {
            Pattern::new(&full_name(name))
        };
        let pattern = |text: String| Pattern::new(&text);
        Self { name, tag: tag.map(pattern), digest: digest.map(pattern) }
    }

    /// What takes every image.
    pub(super) fn any() -> Self {
        Self::new("*")
    }

    /// Whether an image is one of these.
    pub(super) fn fits(&self, image: &Image) -> bool {
        if image.is_id() {
            return *self == Self::any() || self.name.is(&image.name);
        }
        let has = |pattern: Option<&Pattern>, text: Option<&String>| {
            pattern.is_none_or(|pattern| text.is_some_and(|text| pattern.fits(text)))
        };
        // Engines ignore a tag beside a digest, so there it says nothing about what runs.
        let is_limited = self.digest.is_some() || self.tag.is_none() || image.digest.is_none();
        is_limited
            && self.name.fits(&image.name)
            && has(self.tag.as_ref(), image.tag.as_ref())
            && has(self.digest.as_ref(), image.digest.as_ref())
    }
}

/// Name, tag and digest.
fn parts(text: &str) -> (&str, Option<String>, Option<String>) {
    let (text, digest) = text.split_once('@').map_or((text, None), |(name, digest)| (name, Some(digest.to_owned())));
    // A colon before the last slash is one of a port.
    let last = text.rfind('/').map_or(0, |at| at + 1);
    match text[last..].split_once(':') {
        // An engine takes this for one of its own images.
        Some(("sha256", _)) if last == 0 => (text, None, digest),
        Some((name, tag)) => (&text[..last + name.len()], Some(tag.to_owned()), digest),
        None => (text, None, digest),
    }
}

/// Whether an engine takes a name for an id, or the beginning of one, that it prints itself.
pub(super) fn may_be_id(name: &str) -> bool {
    (SHORT_ID_LENGTH..=ID_LENGTH).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether an engine takes a name without tag and digest for the beginning of an image's id, however short.
fn is_id(name: &str) -> bool {
    name.starts_with("sha256:")
        || ((1..=ID_LENGTH).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn full_name(name: &str) -> String {
    if name.starts_with("sha256:") || (name.len() == ID_LENGTH && is_id(name)) {
        return name.to_owned();
    }
    match name.split_once('/') {
        Some((HUB_ALIAS | HUB, rest)) if rest.contains('/') => format!("{HUB}/{rest}"),
        Some((HUB_ALIAS | HUB, rest)) => format!("{HUB}/{HUB_FOLDER}/{rest}"),
        // A folder of the hub has neither dot, colon nor capital letter.
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" || host.contains(char::is_uppercase) => {
            name.to_owned()
        }
        Some(_) => format!("{HUB}/{name}"),
        None => format!("{HUB}/{HUB_FOLDER}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_full_names() {
        let id = "0123456789abcdef".repeat(4);
        for (image, expected) in [
            ("web", "docker.io/library/web:latest"),
            ("web:1", "docker.io/library/web:1"),
            ("shop/web@sha256:00", "docker.io/shop/web@sha256:00"),
            ("docker.io/web", "docker.io/library/web:latest"),
            ("index.docker.io/shop/web:1@sha256:00", "docker.io/shop/web:1@sha256:00"),
            ("localhost/web", "localhost/web:latest"),
            ("registry:5000/web", "registry:5000/web:latest"),
            (&format!("sha256:{id}"), &format!("sha256:{id}")),
            (&id, &id),
            ("6cd116f46aab", "6cd116f46aab"),
            ("6cd116f46aab:1", "docker.io/library/6cd116f46aab:1"),
        ] {
            assert_eq!(Image::of(image).to_string(), expected);
        }
    }

    #[test]
    fn patterns_take_no_image_of_another_registry_or_digest() {
        for (pattern, fitting, others) in [
            ("*", &["web", "evil.example.org/web", "web@sha256:00"][..], &[][..]),
            (
                "web",
                &["web", "web:1", "docker.io/library/web@sha256:00"],
                &["shop/web", "webs", "evil.example.org/library/web"],
            ),
            ("shop/*", &["shop/web:1", "shop/a/b"], &["web", "evil.example.org/shop/web", "shops/web"]),
            (
                "registry:5000/shop/*",
                &["registry:5000/shop/web"],
                &["shop/web", "registry:5001/shop/web", "registry/shop/web"],
            ),
            ("*.example.org/web", &["a.example.org/web:1"], &["a.example.org/web/b", "example.org/web"]),
            ("web:1.*", &["web:1.2"], &["web", "web:2", "web@sha256:00"]),
            ("web@sha256:00", &["web@sha256:00", "web:1@sha256:00"], &["web", "web:1", "web@sha256:01"]),
            ("*@sha256:*", &["web@sha256:00", "a.example.org/b@sha256:01"], &["web", "web:1"]),
            ("library/*", &["web"], &["sha256:00"]),
        ] {
            let known = ImagePattern::new(pattern);
            assert!(fitting.iter().all(|text| known.fits(&Image::of(text))), "{pattern} {fitting:?}");
            assert!(!others.iter().any(|text| known.fits(&Image::of(text))), "{pattern} {others:?}");
        }
    }

    fn fits(pattern: &str, image: &str) -> bool {
        ImagePattern::new(pattern).fits(&Image::of(image))
    }

    #[test]
    fn no_tag_beside_a_digest_makes_an_image_fit() {
        for (pattern, fitting) in
            [("shop/web:1.*", false), ("shop/web:*", false), ("shop/web:1.2", false), ("shop/web", true), ("*", true)]
        {
            assert_eq!(fits(pattern, "shop/web:1.2@sha256:00"), fitting, "{pattern}");
        }
        assert!(fits("shop/web:1.*@sha256:00", "shop/web:1.2@sha256:00"));
        assert!(!fits("shop/web:1.*@sha256:01", "shop/web:1.2@sha256:00"));
    }

    #[test]
    fn no_id_of_an_engines_image_passes_as_a_name() {
        for id in ["6cd116f46aab", "6cd1", "a", "deadbeef", &"0123456789abcdef".repeat(4), "sha256:6cd116f46aab"] {
            for pattern in ["library/*", "docker.io/*", "*:latest", "*@*", "de*", "6*", "*b", "**"] {
                assert!(!fits(pattern, id), "{pattern} {id}");
            }
            assert!(fits("*", id) && fits(id, id), "{id}");
        }
        // An image of the library that is called so has to be named so that it is no id.
        for image in ["deadbeef:latest", "library/deadbeef", "deadbeef@sha256:00"] {
            assert!(fits("library/deadbeef", image) && fits("library/*", image) && !fits("deadbeef", image), "{image}");
        }
    }
}
