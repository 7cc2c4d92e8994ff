//! From a request's target to what is asked for, by the predecessor's routes.

use std::borrow::Cow;

use crate::{escape, query};

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// GET or HEAD.
    Read,
    Options,
    Put,
    /// Anything else, for which there are no pages.
    Other,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route<'t> {
    /// Whether the server is there at all (`OPTIONS *`).
    Server,
    /// Something that the predecessor's router redirected: the same path written cleanly.
    Clean(String),
    /// The list of versions, or the page for people with its query.
    Versions(Option<&'t [u8]>),
    /// A place in a tree.
    Place(Place<'t>),
    /// The stream of changes, after the revision that the client has; Berth's own.
    Changes(Option<String>),
    /// The plan of a balancer for Traefik, with its query; Berth's own.
    Traefik(Option<&'t [u8]>),
    /// The description of the API; Berth's own.
    Description,
    /// Nothing that there is a page for.
    NoPage,
}

/// A place in a version's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place<'t> {
    /// The version as the client calls it.
    pub(crate) version: Cow<'t, str>,
    /// The steps from the root; `None` when one is no UTF-8, which no key equals.
    pub(crate) steps: Option<Vec<Cow<'t, str>>>,
    /// The query, when the path is one that a client may wait for.
    pub(crate) query: Option<&'t [u8]>,
}

impl Place<'_> {
    /// The same place without its query, with owned contents.
    pub(crate) fn kept(self) -> Place<'static> {
        let keep = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let steps = self.steps.map(|steps| steps.into_iter().map(keep).collect());
        Place { version: keep(self.version), steps, query: None }
    }
}

/// The target is none of HTTP's, or has an escape that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadTarget;

/// What the request with this method and target asks for.
pub(crate) fn route(method: Method, target: &[u8]) -> Result<Route<'_>, BadTarget> {
    if method == Method::Options && target == b"*" {
        return Ok(Route::Server);
    }
    if method == Method::Read
        && let Some(place) = plain(target)
    {
        return Ok(Route::Place(place));
    }
    let target = Target::parse(target)?;
    let path = escape::path(target.path).map_err(|_| BadTarget)?;
    let clean = clean(&path);
    if clean != path {
        return Ok(Route::Clean(target.with_path(&clean)));
    }
    if path == b"/favicon.ico" || method != Method::Read {
        return Ok(Route::NoPage);
    }
    let Some(name) = path.strip_prefix(b"/").filter(|name| !name.is_empty()) else {
        return Ok(Route::Versions(target.query));
    };
    match name {
        b"v1/changes" => return Ok(Route::Changes(target.query.and_then(query::revision))),
        b"v1/traefik" => return Ok(Route::Traefik(target.query)),
        b"v1/openapi.json" => return Ok(Route::Description),
        _ => {}
    }
    let (version, key) = split(name);
    if key.is_some_and(|key| key.contains(&b'\n')) {
        // The router's pattern for keys ends at a line end.
        return Ok(Route::NoPage);
    }
    Ok(Route::Place(Place {
        version: String::from_utf8_lossy(version).into_owned().into(),
        steps: steps(target.path, &path),
        query: key.and(target.query),
    }))
}

/// The place that most targets name: one with nothing in it that needs another look, and no query.
///
/// It is what [`route`] finds otherwise, only sooner.
fn plain(target: &[u8]) -> Option<Place<'_>> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/' | b':');
    let path = std::str::from_utf8(target).ok().filter(|_| target.iter().all(is_plain))?.strip_prefix('/')?;
    let mut elements = path.split('/');
    let version = elements.next().filter(|version| !matches!(*version, "" | "." | ".." | "v1" | "favicon.ico"))?;
    let mut steps = Vec::with_capacity(USUAL_STEPS);
    for element in elements {
        if matches!(element, "" | "." | "..") {
            return None;
        }
        steps.push(Cow::Borrowed(element));
    }
    Some(Place { version: Cow::Borrowed(version), steps: Some(steps), query: None })
}

/// Room for the steps that usual paths have.
const USUAL_STEPS: usize = 6;

/// The host that a target names, which it mostly does not.
pub(crate) fn host(target: &[u8]) -> Option<&[u8]> {
    let origin = Target::parse(target).ok()?.origin;
    let scheme = origin.windows(3).position(|part| part == b"://")?;
    Some(&origin[scheme + 3..])
}

/// Whether session tokens are given out here.
pub(crate) fn is_token(target: &[u8]) -> bool {
    Target::parse(target).is_ok_and(|target| target.path == b"/latest/api/token")
}

/// The parts of a target.
struct Target<'t> {
    /// Scheme and host, of a target that names them.
    origin: &'t [u8],
    path: &'t [u8],
    query: Option<&'t [u8]>,
}

impl<'t> Target<'t> {
    fn parse(target: &'t [u8]) -> Result<Self, BadTarget> {
        if target.iter().any(|byte| *byte < b'!' || *byte == 0x7f) {
            return Err(BadTarget);
        }
        let at = target.iter().position(|byte| *byte == b'?');
        let (rest, query) = at.map_or((target, None), |at| (&target[..at], Some(&target[at + 1..])));
        if rest.starts_with(b"/") || target == b"*" {
            return Ok(Self { origin: b"", path: rest, query });
        }
        let colon = rest.windows(3).position(|part| part == b"://").ok_or(BadTarget)?;
        let (scheme, behind) = (&rest[..colon], &rest[colon + 3..]);
        let (host, _) = split(behind);
        let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
            && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
        if !is_scheme || !host.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(byte)) {
            return Err(BadTarget);
        }
        let (origin, path) = rest.split_at(colon + 3 + host.len());
        Ok(Self { origin, path, query })
    }

    /// The same target with another path.
    fn with_path(&self, path: &[u8]) -> String {
        let mut target = String::from_utf8_lossy(self.origin).into_owned();
        target.push_str(&escape::for_path(path));
        if let Some(query) = self.query {
            target.push('?');
            for byte in query {
                if byte.is_ascii() {
                    target.push(char::from(*byte));
                } else {
                    target.push_str(&escape::for_path(&[*byte]));
                }
            }
        }
        target
    }
}

/// What stands before the first `/`, and what behind it.
fn split(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    match path.iter().position(|byte| *byte == b'/') {
        Some(at) => (&path[..at], Some(&path[at + 1..])),
        None => (path, None),
    }
}

/// The path without empty, `.` and `..` elements; a `/` at the end stays.
fn clean(path: &[u8]) -> Vec<u8> {
    let mut elements: Vec<&[u8]> = Vec::new();
    for element in path.split(|byte| *byte == b'/') {
        match element {
            b"" | b"." => {}
            b".." => drop(elements.pop()),
            element => elements.push(element),
        }
    }
    let mut clean = Vec::with_capacity(path.len() + 1);
    for element in &elements {
        clean.push(b'/');
        clean.extend_from_slice(element);
    }
    if clean.is_empty() || path.ends_with(b"/") {
        clean.push(b'/');
    }
    clean
}

/// The steps behind the version.
///
/// The predecessor took them from the path as it was sent, and unescaped them as parts of a query: `+` is a
/// space, and `/` stands in a key when it is escaped. A path with bytes that should have been escaped it first
/// unescaped and escaped again, so that there is no difference between `/` and its escape in such a path.
fn steps(raw: &[u8], path: &[u8]) -> Option<Vec<Cow<'static, str>>> {
    let again;
    let raw = if is_escaped(raw) {
        raw
    } else {
        again = escape::for_path(path);
        again.as_bytes()
    };
    let end = raw.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let elements = raw[..end].strip_prefix(b"/").unwrap_or_default().split(|byte| *byte == b'/');
    elements.skip(1).map(|element| String::from_utf8(escape::query(element).ok()?).ok().map(Cow::Owned)).collect()
}

/// Whether a path has only bytes that may stand in a path unescaped, or begin an escape.
fn is_escaped(path: &[u8]) -> bool {
    path.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~/!$&'()*+,;=:@[]%".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(target: &str, expected: &str) {
        let route = match route(Method::Read, target.as_bytes()) {
            Err(BadTarget) => "bad".to_owned(),
            Ok(Route::Clean(to)) => format!("-> {to}"),
            Ok(Route::Server) => "server".to_owned(),
            Ok(Route::Versions(None)) => "versions".to_owned(),
            Ok(Route::Versions(Some(query))) => format!("versions ?{}", query.escape_ascii()),
            Ok(Route::NoPage) => "no page".to_owned(),
            Ok(Route::Changes(after)) => format!("changes after {after:?}"),
            Ok(Route::Traefik(_)) => "traefik".to_owned(),
            Ok(Route::Description) => "description".to_owned(),
            Ok(Route::Place(Place { version, steps, query })) => {
                let query = query.map(|query| format!(" ?{}", query.escape_ascii())).unwrap_or_default();
                let steps = steps.map_or_else(|| "no utf-8".to_owned(), |steps| steps.join("|"));
                format!("{version}: {steps}{query}")
            }
        };
        assert_eq!(route, expected, "{target}");
    }

    #[test]
    fn targets_become_places() {
        for (target, expected) in [
            ("/v1/changes", "changes after None"),
            ("/v1/changes?x=1&after=a%2Db", "changes after Some(\"a-b\")"),
            ("/v1/changes/", "v1: changes"),
            ("/v1/openapi.json", "description"),
            ("/v1/self", "v1: self"),
            ("/", "versions"),
            ("/?x=1", "versions ?x=1"),
            ("/favicon.ico", "no page"),
            ("/latest", "latest: "),
            ("/latest/", "latest: "),
            ("/latest?wait=true", "latest: "),
            ("/latest/?wait=true", "latest:  ?wait=true"),
            ("/latest/self/container", "latest: self|container"),
            ("/latest/self/container/", "latest: self|container"),
            ("/%6Catest/name", "latest: name"),
            ("/latest%2Fself", "latest: "),
            ("/latest%2Fself/host/name", "latest: host|name"),
            ("/latest/self%2Fhost", "latest: self/host"),
            ("/latest/with+space/a%2Bb", "latest: with space|a+b"),
            ("/latest/per%25cent", "latest: per%cent"),
            ("/latest/ключ", "latest: ключ"),
            ("/latest/ключ%2Fx+y%2Bz", "latest: ключ|x y z"),
            ("/latest/name#frag", "latest: name#frag"),
            ("/latest/name;v=1", "latest: name;v=1"),
            ("/latest/%E6", "latest: no utf-8"),
            ("/latest/%00", "latest: \0"),
            ("/latest/a%0Ab", "no page"),
            ("/a%0Ab", "a\nb: "),
            ("http://169.254.169.250/latest/name", "latest: name"),
            ("http://other.host:99/latest/name?x", "latest: name ?x"),
        ] {
            check(target, expected);
        }
    }

    #[test]
    fn plain_targets_are_what_they_are_the_long_way() {
        for elements in
            ["", "/", "latest", "v1", "..", ".", "self/container", "a:b", "x~y_z", "self/", "//", "favicon.ico", "..."]
        {
            for prefix in ["/", "/latest/", "/v1/", "/./", "/a.b/../"] {
                let target = format!("{prefix}{elements}");
                if let Some(place) = plain(target.as_bytes()) {
                    // An escape takes the short way away, and means the same.
                    let long = target.replacen('l', "%6C", 1).replacen('a', "%61", 1).replacen('x', "%78", 1);
                    if long != target {
                        assert_eq!(route(Method::Read, long.as_bytes()), Ok(Route::Place(place)), "{target}");
                    }
                }
            }
        }
        assert!(plain(b"/latest/self").is_some() && plain(b"/latest/").is_none() && plain(b"/latest?x").is_none());
    }

    #[test]
    fn unclean_paths_are_redirected() {
        for (target, expected) in [
            ("//latest/name", "-> /latest/name"),
            ("/latest//", "-> /latest/"),
            ("/latest/./name", "-> /latest/name"),
            ("/latest/../latest/name?a=b", "-> /latest/name?a=b"),
            ("/../../etc/passwd", "-> /etc/passwd"),
            ("/latest/self/%2e%2e", "-> /latest"),
            ("/latest/self/%2E%2E/", "-> /latest/"),
            ("/latest/a%2F..%2Fb+c%20", "-> /latest/b+c%20"),
            ("/latest//ü?ü", "-> /latest/%C3%BC?%C3%BC"),
            ("/..", "-> /"),
            ("*", "-> /%2A"),
            ("http://example.org", "-> http://example.org/"),
            ("http://example.org//a?b", "-> http://example.org/a?b"),
        ] {
            check(target, expected);
        }
    }

    #[test]
    fn bad_targets_are_refused() {
        for target in [
            "",
            "latest/name",
            "/latest/%",
            "/latest/%zz",
            "/la test",
            "/a\u{7f}",
            "example.org:443",
            "?",
            "**",
            "1a://x/",
            "http://a\"b/",
        ] {
            check(target, "bad");
        }
    }

    #[test]
    fn targets_name_hosts_and_the_page_of_tokens() {
        for (target, named, tokens) in [
            ("/latest/api/token", None, true),
            ("/latest/api/token?x", None, true),
            ("http://h:1/latest/api/token", Some("h:1"), true),
            ("http://h", Some("h"), false),
            ("http:///x", Some(""), false),
            ("/latest/api/token/", None, false),
            ("/latest/api//token", None, false),
            ("/x?http://h/", None, false),
            ("latest", None, false),
            ("*", None, false),
        ] {
            assert_eq!(host(target.as_bytes()), named.map(str::as_bytes), "{target}");
            assert_eq!(is_token(target.as_bytes()), tokens, "{target}");
        }
    }

    #[test]
    fn only_reading_finds_pages_but_all_are_redirected() {
        for method in [Method::Options, Method::Put, Method::Other] {
            assert_eq!(route(method, b"/latest/name"), Ok(Route::NoPage));
            assert_eq!(route(method, b"//latest"), Ok(Route::Clean("/latest".to_owned())));
        }
        assert_eq!(route(Method::Options, b"*"), Ok(Route::Server));
    }
}
