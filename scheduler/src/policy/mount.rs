//! What a volume of a request mounts, as an engine of Linux or of Windows reads it.
//!
//! A request does not know its host yet. Where the two systems read a volume differently, both readings count.

use crate::place::request::volume::{drive_length, fields};
use crate::policy::host_path::HostPath;

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A volume of the engine.
    Volume(String),
    /// A folder or a file of the host.
    Path(HostPath),
    /// Neither, as far as can be said.
    Unclear(String),
}

/// Where engines listen, and the runtimes below them.
const SOCKETS: [&str; 10] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/var/run/containerd/containerd.sock",
    "/run/docker/containerd/containerd.sock",
    "/var/run/docker/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/var/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/var/run/crio/crio.sock",
];

/// Ending of a socket's name.
const SOCKET: &str = ".sock";

/// What a volume such as `/srv/data:/data:ro` mounts; nothing if the engine makes a new volume for it.
pub(super) fn sources(volume: &str) -> Vec<Source> {
    let linux: Vec<&str> = volume.split(':').collect();
    let readings = [
        reading(&linux, |target| target.starts_with('/')),
        reading(&fields(volume), |target| {
            drive_length(target).is_some() || target.starts_with("\\\\") || target.starts_with("//")
        }),
    ];
    if readings.iter().all(Option::is_none) {
        return vec![Source::Unclear(volume.to_owned())];
    }
    let mut found: Vec<_> = readings.into_iter().flatten().flatten().collect();
    found.dedup();
    found
}

/// The source in the fields of a volume, if there is one: `[SOURCE:]TARGET[:MODE]`; `None` if no engine of this system
/// takes it.
fn reading(fields: &[&str], is_target: impl Fn(&str) -> bool) -> Option<Vec<Source>> {
    match *fields {
        [_] => Some(Vec::new()),
        // A second part that is no path says how.
        [_, mode] if !mode.contains(['/', '\\']) => Some(Vec::new()),
        [source, target] | [source, target, _] if is_target(target) => Some(vec![source_of(source)]),
        _ => None,
    }
}

fn source_of(source: &str) -> Source {
    let is_name = source.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
        && source.starts_with(|first: char| first.is_ascii_alphanumeric());
    if is_name { Source::Volume(source.to_owned()) } else { path_of(source) }
}

fn path_of(source: &str) -> Source {
    HostPath::parse(source).map_or_else(|| Source::Unclear(source.to_owned()), Source::Path)
}

/// Whether a path is that of a socket or pipe. Who may mount an engine's may do anything on its host.
pub(super) fn is_socket(path: &HostPath) -> bool {
    path.is_pipe() || path.name().is_some_and(|name| name.ends_with(SOCKET))
}

/// The sockets of engines that a mount of this path gives access to, each by all its paths: the path itself, or those
/// below it. `endpoints` are sockets and pipes besides those that are known by themselves, of which the first one stands
/// for all.
pub(super) fn engine_sockets(path: &HostPath, endpoints: &[String]) -> Vec<Vec<HostPath>> {
    if is_socket(path) {
        return vec![vec![path.clone()]];
    }
    let known = SOCKETS.iter().filter_map(|socket| HostPath::parse(socket)).find(|socket| path.contains(socket));
    let paths = |endpoint: &String| {
        // One is a link to the other.
        let other = match endpoint.strip_prefix("/var/run/") {
            Some(rest) => Some(format!("/run/{rest}")),
            None => endpoint.strip_prefix("/run/").map(|rest| format!("/var/run/{rest}")),
        };
        let paths = std::iter::once(endpoint).chain(&other).filter_map(|text| HostPath::parse(text));
        paths.collect::<Vec<_>>()
    };
    let below = endpoints.iter().map(paths).filter(|paths| paths.iter().any(|socket| path.contains(socket)));
    known.map(|socket| vec![socket]).into_iter().chain(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_read_as_engines_read_them() {
        let path = |text: &str| Source::Path(HostPath::parse(text).unwrap());
        let volume = |text: &str| Source::Volume(text.to_owned());
        let unclear = |text: &str| Source::Unclear(text.to_owned());
        for (text, expected) in [
            ("/data", vec![]),
            ("/data:ro", vec![]),
            ("C:\\data", vec![]),
            ("/etc:/data", vec![path("/etc")]),
            ("/etc/:/data:ro,rshared", vec![path("/etc")]),
            ("data:/data", vec![volume("data")]),
            ("data:C:\\data", vec![volume("data")]),
            ("C:\\a:C:\\b", vec![path("C:\\a")]),
            ("c:/a:c:/b:ro", vec![path("C:\\a")]),
            ("c:/etc", vec![volume("c")]),
            ("\\\\.\\pipe\\docker_engine:\\\\.\\pipe\\x", vec![path("\\\\.\\pipe\\docker_engine")]),
            ("//./pipe/docker_engine://./pipe/x", vec![path("\\\\.\\pipe\\docker_engine")]),
            ("\\\\?\\C:\\a:C:\\b", vec![path("C:\\a")]),
            ("../etc:/data", vec![unclear("../etc")]),
            ("/data/../etc:/data", vec![unclear("/data/../etc")]),
            (".:/data", vec![unclear(".")]),
            ("\\\\host\\share:C:\\b", vec![unclear("\\\\host\\share")]),
            ("\\etc:C:\\b", vec![unclear("\\etc")]),
            ("/etc:C:\\b", vec![path("/etc")]),
            ("c:/etc:ro", vec![volume("c")]),
            ("/etc:/a:ro:b", vec![unclear("/etc:/a:ro:b")]),
            ("/etc:b/c", vec![unclear("/etc:b/c")]),
        ] {
            assert_eq!(sources(text), expected, "{text}");
        }
    }
}
