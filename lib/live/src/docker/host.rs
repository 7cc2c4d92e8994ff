//! The host of an engine: what the engine knows of it, and what its owner says.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bollard::models::{LocalNodeState, SystemInfo, SystemInfoIsolationEnum};
use model::{Defect, Map, Text, Value};

use super::labels::bounded;
use crate::host::HostOptions;

/// Longest name of a host, that of a DNS name (RFC 1035 section 2.3.4).
const NAME_BYTES_MAX: usize = 253;

/// Labels by which the scheduler knows what a host can run.
const OS: &str = "io.rancher.host.os";
const ARCHITECTURE: &str = "io.rancher.host.arch";
const ISOLATION: &str = "io.rancher.host.isolation";
const WINDOWS_BUILD: &str = "io.rancher.host.windows_build";
const WINDOWS_REVISION: &str = "io.rancher.host.windows_ubr";
const WINDOWS_KERNEL: &str = "io.rancher.host.windows_kernel_version";
const LINUX_KERNEL: &str = "io.rancher.host.linux_kernel_version";
const ENGINE_VERSION: &str = "io.rancher.host.docker_version";

/// The host of an engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Host {
    pub(super) name: Text,
    /// The entry of the document.
    pub(super) fields: Map,
    /// Under which other hosts reach it.
    pub(super) address: Option<IpAddr>,
    pub(super) environment: Option<Text>,
    /// Whether its engine is in a swarm: then it takes networks that it does not list yet.
    pub(super) is_in_swarm: bool,
    pub(super) defects: Vec<Defect>,
}

impl Host {
    /// The host of this engine; `address` is its own where neither its owner nor the engine states one.
    pub(crate) fn of(info: &SystemInfo, options: &HostOptions, address: Option<IpAddr>) -> Self {
        let filled = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(Text::from);
        let mut defects = Vec::new();
        let hostname = filled(&info.name);
        let name = options.name.clone().filter(|name| !name.is_empty()).or_else(|| hostname.clone());
        // An engine without a name has an id at least; a host without both is the only one there is.
        let name = name.or_else(|| filled(&info.id)).unwrap_or_else(|| "localhost".into());
        let name = if name.len() > NAME_BYTES_MAX {
            let start: String = name.chars().take(NAME_BYTES_MAX / char::MAX.len_utf8()).collect();
            defects.push(Defect::ignored("host", format!("its name is cut to {start}: it has {} bytes", name.len())));
            start.into()
        } else {
            name
        };
        let swarm = info.swarm.as_ref().and_then(|swarm| swarm.node_addr.as_deref()?.parse::<IpAddr>().ok());
        let usable = |address: &IpAddr| !address.is_unspecified() && !address.is_loopback();
        let address = options.public_ip.or_else(|| swarm.filter(usable)).or_else(|| address.filter(usable));
        let path = format!("hosts/{name}");
        let labels = labels(info, options);
        let labels = bounded(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())), &path, &mut defects);
        let positive = |number: Option<i64>| number.filter(|number| *number > 0).map(Value::Int);
        let fields = [
            ("name", Some(Value::Text(name.clone()))),
            ("hostname", hostname.map(Value::Text)),
            ("agent_ip", address.map(|address| Value::text(address.to_string()))),
            ("labels", Some(labels.into())),
            ("milli_cpu", positive(info.ncpu.and_then(|count| count.checked_mul(1000)))),
            ("memory", positive(info.mem_total)),
        ];
        let fields = fields.into_iter().filter_map(|(key, value)| Some((key.into(), value?))).collect();
        let state = info.swarm.as_ref().and_then(|swarm| swarm.local_node_state);
        let is_in_swarm = state.is_some_and(|state| state == LocalNodeState::ACTIVE);
        Self { name, fields, address, environment: options.environment.clone(), is_in_swarm, defects }
    }

    /// The same host without its address, which it has on its side of this network: other hosts have a network with the
    /// same address, so that it leads each of them to itself.
    pub(super) fn without_address(&self, network: &str, defects: &mut Vec<Defect>) -> Self {
        if let Some(address) = self.address {
            let problem = format!(
                "{address} is its address in its own network {network}, and leads every other host to itself: start its \
                 agent with an address that other hosts reach, --public-ip ADDRESS"
            );
            defects.push(Defect::ignored(format!("hosts/{}/agent_ip", self.name), problem));
        }
        Self { fields: self.fields.without("agent_ip"), address: None, ..self.clone() }
    }
}

/// Labels: what the engine is, what its configuration says, what the owner of the host says; the later one wins.
fn labels(info: &SystemInfo, options: &HostOptions) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut add = |key: &str, value: String| labels.insert(key.to_owned(), value);
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().to_lowercase();
    let os = text(&info.os_type);
    let kernel = info.kernel_version.as_deref().unwrap_or_default();
    if !os.is_empty() {
        add(OS, os.clone());
    }
    match text(&info.architecture).as_str() {
        "" => {}
        "x86_64" | "x86-64" => drop(add(ARCHITECTURE, "amd64".to_owned())),
        "aarch64" => drop(add(ARCHITECTURE, "arm64".to_owned())),
        other => drop(add(ARCHITECTURE, other.to_owned())),
    }
    if let Some(version) = major_and_minor(info.server_version.as_deref().unwrap_or_default()) {
        add(ENGINE_VERSION, version);
    }
    if os == "windows" {
        let (build, revision) = windows_build(info);
        if let Some(build) = build {
            add(WINDOWS_BUILD, build.to_string());
        }
        if let Some(revision) = revision {
            add(WINDOWS_REVISION, revision.to_string());
        }
        if let Some(version) = major_and_minor(kernel) {
            add(WINDOWS_KERNEL, version);
        }
        match info.isolation {
            Some(SystemInfoIsolationEnum::HYPERV) => drop(add(ISOLATION, "hyperv".to_owned())),
            Some(SystemInfoIsolationEnum::PROCESS) => drop(add(ISOLATION, "process".to_owned())),
            _ => {}
        }
    } else if let Some(version) = major_and_minor(kernel) {
        add(LINUX_KERNEL, version);
    }
    for label in info.labels.iter().flatten() {
        let (key, value) = label.split_once('=').unwrap_or((label, ""));
        add(key, value.to_owned());
    }
    for (key, value) in &options.labels {
        add(key, value.to_string());
    }
    labels
}

/// `20.10` of `20.10.24+dfsg1`, as the predecessor's agent reported versions.
fn major_and_minor(version: &str) -> Option<String> {
    let mut numbers = version.trim_start_matches('v').split(|char: char| !char.is_ascii_digit());
    let (major, minor) = (numbers.next()?, numbers.next()?);
    (!major.is_empty() && !minor.is_empty()).then(|| format!("{major}.{minor}"))
}

/// The build of Windows and its revision (UBR).
///
/// Only the name of the system has the revision: `Microsoft Windows Server Version 21H2 (OS Build 20348.2113)`. The
/// version is `10.0.20348`, that of the kernel `10.0 20348 (20348.1.amd64fre.fe_release.210507-1500)`.
fn windows_build(info: &SystemInfo) -> (Option<u32>, Option<u32>) {
    let system = info.operating_system.as_deref().unwrap_or_default();
    let named = system.rsplit_once("OS Build ").map(|(_, rest)| rest.trim_end_matches(')'));
    let mut parts = named.unwrap_or_default().split('.').map(|part| part.trim().parse::<u32>().ok());
    if let Some(Some(build)) = parts.next() {
        return (Some(build), parts.next().flatten());
    }
    for version in [&info.os_version, &info.kernel_version].into_iter().flatten() {
        let numbers: Vec<Option<u32>> =
            version.split(['.', ' ']).take(4).map_while(|part| Some(part.parse().ok())).collect();
        if let [Some(_), Some(_), Some(build), rest @ ..] = &numbers[..] {
            return (Some(*build), rest.first().copied().flatten());
        }
    }
    (None, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(json: &str, options: &HostOptions, address: Option<&str>) -> Host {
        let info: SystemInfo = serde_json::from_str(json).unwrap();
        Host::of(&info, options, address.map(|text| text.parse().unwrap()))
    }

    fn label<'h>(host: &'h Host, key: &str) -> Option<&'h str> {
        host.fields.map("labels")?.text(key).map(|text| &**text)
    }

    #[test]
    fn an_engine_describes_its_host() {
        let linux = r#"{"Name": "box", "NCPU": 4, "MemTotal": 1073741824, "OSType": "linux", "Architecture": "x86_64",
                        "KernelVersion": "6.1.0-18-amd64", "ServerVersion": "20.10.24+dfsg1", "Labels": ["zone=a", "flag"]}"#;
        let found = host(linux, &HostOptions::default(), Some("192.0.2.7"));
        assert_eq!(
            (&*found.name, found.fields.int("milli_cpu"), found.fields.int("memory")),
            ("box", Some(4000), Some(1 << 30))
        );
        assert_eq!(found.fields.text("agent_ip").map(|text| &**text), Some("192.0.2.7"));
        for (key, value) in [
            (OS, Some("linux")),
            (ARCHITECTURE, Some("amd64")),
            (LINUX_KERNEL, Some("6.1")),
            (ENGINE_VERSION, Some("20.10")),
            ("zone", Some("a")),
            ("flag", Some("")),
            (WINDOWS_BUILD, None),
        ] {
            assert_eq!(label(&found, key), value, "{key}");
        }
        let options = HostOptions {
            name: Some("one".into()),
            labels: vec![("zone".into(), "b".into()), (OS.into(), "plan9".into())],
            public_ip: Some("198.51.100.1".parse().unwrap()),
            environment: Some("prod".into()),
            ..HostOptions::default()
        };
        let found = host(linux, &options, Some("192.0.2.7"));
        assert_eq!((&*found.name, found.fields.text("hostname").map(|text| &**text)), ("one", Some("box")));
        assert_eq!(found.fields.text("agent_ip").map(|text| &**text), Some("198.51.100.1"));
        assert_eq!((label(&found, "zone"), label(&found, OS)), (Some("b"), Some("plan9")));
    }

    #[test]
    fn addresses_are_taken_from_the_owner_then_the_swarm_then_the_system() {
        let swarm = r#"{"Name": "a", "Swarm": {"NodeAddr": "192.0.2.2"}}"#;
        for (json, own, expected) in [
            (swarm, Some("192.0.2.3"), Some("192.0.2.2")),
            (r#"{"Swarm": {"NodeAddr": ""}}"#, Some("192.0.2.3"), Some("192.0.2.3")),
            (r#"{"Swarm": {"NodeAddr": "0.0.0.0"}}"#, Some("127.0.0.1"), None),
            ("{}", None, None),
        ] {
            let found = host(json, &HostOptions::default(), own);
            assert_eq!(found.address, expected.map(|text: &str| text.parse().unwrap()), "{json}");
        }
    }

    #[test]
    fn windows_tells_its_build_in_one_way_or_another() {
        for (json, build, revision) in [
            (
                r#""OperatingSystem": "Microsoft Windows Server Version 21H2 (OS Build 20348.2113)""#,
                Some("20348"),
                Some("2113"),
            ),
            (r#""OSVersion": "10.0.17763""#, Some("17763"), None),
            (r#""OSVersion": "", "KernelVersion": "10.0.20348.2113""#, Some("20348"), Some("2113")),
            (r#""KernelVersion": "10.0 20348 (20348.1.amd64fre.fe_release.210507-1500)""#, Some("20348"), None),
            (r#""KernelVersion": "ten", "OperatingSystem": "Windows (OS Build x.y)""#, None, None),
            (r#""Isolation": "hyperv""#, None, None),
        ] {
            let found = host(&format!(r#"{{"OSType": "windows", {json}}}"#), &HostOptions::default(), None);
            assert_eq!((label(&found, WINDOWS_BUILD), label(&found, WINDOWS_REVISION)), (build, revision), "{json}");
            assert_eq!((label(&found, OS), label(&found, LINUX_KERNEL)), (Some("windows"), None));
            assert_eq!(label(&found, ISOLATION), json.contains("hyperv").then_some("hyperv"));
        }
    }
}
