//! The style sheet and the script, under addresses that say what is in them, so that browsers may keep them for ever.

use std::sync::LazyLock;

use ring::digest;

use crate::compressed::Content;

/// A file for browsers.
#[derive(Debug)]
pub(crate) struct Asset {
    /// Its address.
    pub(crate) path: String,
    /// Its media type.
    pub(crate) kind: &'static str,
    /// Its content.
    pub(crate) content: Content,
}

impl Asset {
    fn new(extension: &str, kind: &'static str, content: &'static str) -> Self {
        let digest = digest::digest(&digest::SHA256, content.as_bytes());
        let name = model::hex(&digest.as_ref()[..8]);
        Self { path: format!("/ui/a/{name}.{extension}"), kind, content: Content::new(content) }
    }
}

const STYLE_TEXT: &str = include_str!("../assets/style.css");
const SCRIPT_TEXT: &str = include_str!("../assets/live.js");

/// How pages look.
pub(crate) static STYLE: LazyLock<Asset> = LazyLock::new(|| Asset::new("css", "text/css; charset=utf-8", STYLE_TEXT));

/// What keeps open pages up to date.
pub(crate) static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("js", "text/javascript; charset=utf-8", SCRIPT_TEXT));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_small_and_makes_no_markup_of_text() {
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "setAttribute('on",
            "http://",
            "https://",
        ] {
            assert!(!SCRIPT_TEXT.contains(word), "{word}");
        }
        assert!(SCRIPT_TEXT.len() + STYLE_TEXT.len() <= 21_000);
        assert!(!STYLE_TEXT.contains("url(") && !STYLE_TEXT.contains("@import"));
    }
}
