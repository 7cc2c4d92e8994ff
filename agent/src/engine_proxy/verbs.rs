//! The requests to a Docker Engine that are passed on: a closed list, by method, path and query.

use hyper::Method;
use percent_encoding::percent_decode_str;

use crate::engine_proxy::shown::Shown;

/// What a request is about, as far as it has to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Nothing more to look at, also in the response.
    Read,
    /// Something is shown, of which not all is passed on.
    Show(Shown),
    /// Something is done to a container, which has to be one that a scheduler started; `after` follows its name in the
    /// path.
    Own { name: String, after: &'static str },
    /// Files are put into a container, which has to be one that a scheduler created and that was not started yet.
    PutFiles { name: String },
    /// A container is created.
    Create,
    /// A volume is made, which has to be one of a stack.
    MakeVolume,
    /// A volume is removed, which has to be one that a scheduler made for a stack.
    RemoveVolume { name: String },
    /// A registry is asked for an image, by pulling it or for what it has: the engine connects to the host that its name says.
    Registry { image: String },
}

/// Longest path with its query; names of images have at most 255 bytes, filters are short.
const TARGET_MAX: usize = 4096;

/// The verb of a request; `None` if it is not passed on.
pub(crate) fn verb(method: &Method, path: &str, query: &str) -> Option<Verb> {
    if path.len() + query.len() > TARGET_MAX {
        return None;
    }
    let mut segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    if !segments.iter().all(|segment| is_plain(segment)) {
        return None;
    }
    if segments[0].strip_prefix("v1.").is_some_and(|minor| minor.bytes().all(|byte| byte.is_ascii_digit())) {
        segments.remove(0);
    }
    let own = |name: &str, after| Verb::Own { name: name.to_owned(), after };
    let (verb, keys): (Verb, &[&str]) = match (method.as_str(), segments.as_slice()) {
        ("GET" | "HEAD", ["_ping"]) | ("GET", ["version"]) => (Verb::Read, &[]),
        ("GET", ["info"]) => (Verb::Show(Shown::Info), &[]),
        ("GET", ["events"]) => (Verb::Show(Shown::Events), &["since", "until", "filters"]),
        ("GET", ["containers", "json"]) => (Verb::Show(Shown::Containers), &["all", "limit", "size", "filters"]),
        ("GET", ["networks"]) => (Verb::Show(Shown::Networks), &["filters"]),
        ("GET", ["networks", _]) => (Verb::Show(Shown::Network), &["verbose", "scope"]),
        ("GET", ["images", name @ .., "json"]) if !name.is_empty() => (Verb::Show(Shown::Image), &["manifests"]),
        ("GET", ["distribution", name @ .., "json"]) if !name.is_empty() => {
            (Verb::Registry { image: name.join("/") }, &[])
        }
        ("GET", ["containers", _, "json"]) => (Verb::Show(Shown::Container), &["size"]),
        ("GET", ["containers", name, "logs"]) => {
            (own(name, "/logs"), &["follow", "stdout", "stderr", "since", "until", "timestamps", "tail"])
        }
        ("POST", ["containers", "create"]) => (Verb::Create, &["name", "platform"]),
        ("PUT", ["containers", name, "archive"]) => {
            (Verb::PutFiles { name: (*name).to_owned() }, &["path", "noOverwriteDirNonDir", "copyUIDGID"])
        }
        ("POST", ["containers", name, "start"]) => (own(name, "/start"), &[]),
        ("POST", ["containers", name, "stop"]) => (own(name, "/stop"), &["t", "signal"]),
        ("DELETE", ["containers", name]) => (own(name, ""), &["v", "force"]),
        ("GET", ["volumes"]) => (Verb::Show(Shown::Volumes), &["filters"]),
        ("POST", ["volumes", "create"]) => (Verb::MakeVolume, &[]),
        // Without `force`: then an engine says so while a container has it.
        ("DELETE", ["volumes", name]) => (Verb::RemoveVolume { name: (*name).to_owned() }, &[]),
        ("POST", ["images", "create"]) => (Verb::Registry { image: pulled(query)? }, &["fromImage", "tag", "platform"]),
        _ => return None,
    };
    // A library writes out what is not wanted.
    let is_known = |pair: &str| {
        matches!(pair, "" | "link=false") || pair.split_once('=').is_some_and(|(key, _)| keys.contains(&key))
    };
    query.split('&').all(is_known).then_some(verb)
}

/// Whether a part of a path is only what it looks like: nothing is encoded, and it leads nowhere else.
fn is_plain(segment: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-:@".contains(&byte);
    !segment.is_empty() && segment.bytes().all(plain) && segment != "." && segment != ".."
}

/// The image that a query names; `None` if it names one in two ways, or imports one.
fn pulled(query: &str) -> Option<String> {
    let value = |wanted: &str| {
        let mut found = query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(key, _)| *key == wanted);
        let first = found.next().map(|(_, value)| value);
        if found.next().is_some() { None } else { Some(first) }
    };
    let decoded = |text: &str| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
    let name = decoded(value("fromImage")??)?;
    let tag = value("tag")?.map_or(Some(String::new()), decoded)?;
    Some(match tag.as_str() {
        "" => name,
        digest if digest.contains(':') => format!("{name}@{digest}"),
        tag => format!("{name}:{tag}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, target: &str) -> Option<Verb> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        verb(&method.parse().unwrap(), path, query)
    }

    fn own(name: &str, after: &'static str) -> Verb {
        Verb::Own { name: name.into(), after }
    }

    #[test]
    fn what_berth_asks_for_is_passed_on() {
        for (method, target, verb) in [
            ("GET", "/_ping", Verb::Read),
            ("HEAD", "/_ping", Verb::Read),
            ("GET", "/v1.49/info", Verb::Show(Shown::Info)),
            ("GET", "/v1.49/events?since=1&filters=%7B%7D", Verb::Show(Shown::Events)),
            ("GET", "/v1.49/containers/json?all=true", Verb::Show(Shown::Containers)),
            ("GET", "/v1.49/images/shop/web:1/json", Verb::Show(Shown::Image)),
            (
                "GET",
                "/v1.49/distribution/registry:5000/shop/web@sha256:00/json",
                Verb::Registry { image: "registry:5000/shop/web@sha256:00".into() },
            ),
            ("GET", "/v1.49/containers/web/json?size=false", Verb::Show(Shown::Container)),
            ("GET", "/v1.49/containers/web/logs?stdout=true&tail=5", own("web", "/logs")),
            ("POST", "/v1.49/containers/create?name=web", Verb::Create),
            ("GET", "/v1.49/volumes?filters=%7B%7D", Verb::Show(Shown::Volumes)),
            ("POST", "/v1.49/volumes/create", Verb::MakeVolume),
            ("DELETE", "/v1.49/volumes/data", Verb::RemoveVolume { name: "data".into() }),
            ("PUT", "/v1.49/containers/web/archive?path=%2F", Verb::PutFiles { name: "web".into() }),
            ("POST", "/v1.49/containers/web/start", own("web", "/start")),
            ("POST", "/containers/web/stop?t=10", own("web", "/stop")),
            ("DELETE", "/v1.49/containers/web?v=true&force=true&link=false", own("web", "")),
            ("POST", "/v1.49/images/create?fromImage=shop%2Fweb&tag=1", Verb::Registry { image: "shop/web:1".into() }),
            (
                "POST",
                "/v1.49/images/create?fromImage=web&tag=sha256%3A00",
                Verb::Registry { image: "web@sha256:00".into() },
            ),
            ("POST", "/v1.49/images/create?fromImage=web", Verb::Registry { image: "web".into() }),
        ] {
            assert_eq!(of(method, target), Some(verb), "{method} {target}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for (method, target) in [
            ("POST", "/containers/web/exec"),
            ("POST", "/exec/1/start"),
            ("GET", "/containers/web/archive?path=/etc/shadow"),
            ("PUT", "/containers/web/archive?path=/&x=1"),
            ("PUT", "/containers/web/files?path=/"),
            ("GET", "/containers/web/export"),
            ("POST", "/containers/web/attach?stream=1"),
            ("POST", "/containers/web/update"),
            ("POST", "/containers/web/rename?name=x"),
            ("POST", "/containers/web/start?detachKeys=a"),
            ("DELETE", "/containers/web?link=true"),
            ("POST", "/build"),
            ("POST", "/commit?container=web"),
            ("POST", "/volumes/create?x=1"),
            ("POST", "/volumes/prune"),
            ("PUT", "/volumes/data"),
            ("GET", "/volumes/data"),
            ("DELETE", "/volumes/data?force=true"),
            ("DELETE", "/volumes/../images/web"),
            ("DELETE", "/volumes"),
            ("POST", "/networks/create"),
            ("POST", "/networks/1/connect"),
            ("POST", "/swarm/init"),
            ("POST", "/plugins/pull"),
            ("POST", "/session"),
            ("GET", "/secrets"),
            ("POST", "/images/create?fromSrc=http://192.0.2.1/x.tar"),
            ("POST", "/images/create?fromImage=a&fromImage=b"),
            ("POST", "/images/create?fromImage=a&changes=x"),
            ("POST", "/images/web/push"),
            ("DELETE", "/images/web"),
            ("GET", "/images/get"),
            ("GET", "/containers/../info"),
            ("GET", "/containers/%2e%2e/json"),
            ("GET", "//info"),
            ("GET", "/v1.49//info"),
            ("GET", "/v2.0/info"),
            ("GET", "info"),
            ("GET", ""),
            ("POST", "/info"),
            ("get", "/info"),
            ("GET", "/info?x"),
        ] {
            assert_eq!(of(method, target), None, "{method} {target}");
        }
    }
}
