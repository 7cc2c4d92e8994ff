//! What of the engine's responses is passed on: a closed list of fields for each of them, namely those that Berth reads.
//!
//! The rest may be secret: environments, the output of health checks, options of drivers, proxies with passwords, and the commands
//! that run inside containers.

use serde_json::{Map, Value};

/// What is passed on of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// All of it.
    Whole,
    /// A text up to the first colon: `exec_create: sh -c …` is a command.
    Word,
    /// These fields of an object.
    Fields(&'static [(&'static str, Self)]),
    /// This of each element of a list, or each value of an object.
    Each(&'static Self),
}

use Shape::{Each, Fields, Whole, Word};

/// The responses that are not passed on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// One container.
    Container,
    /// All containers.
    Containers,
    /// One image.
    Image,
    /// One network.
    Network,
    /// All networks.
    Networks,
    /// One volume.
    Volume,
    /// All volumes.
    Volumes,
    /// The engine and its host.
    Info,
    /// What happens, one object after the other.
    Events,
}

const HEALTH: Shape =
    Fields(&[("Status", Whole), ("FailingStreak", Whole), ("Log", Each(&Fields(&[("ExitCode", Whole)])))]);

const STATE: Shape = Fields(&[
    ("Status", Whole),
    ("Running", Whole),
    ("Paused", Whole),
    ("Restarting", Whole),
    ("ExitCode", Whole),
    ("StartedAt", Whole),
    ("FinishedAt", Whole),
    ("Pid", Whole),
    ("Health", HEALTH),
]);

const CONFIG: Shape = Fields(&[
    ("Labels", Whole),
    ("Hostname", Whole),
    ("Image", Whole),
    ("ExposedPorts", Whole),
    ("StopSignal", Whole),
    ("StopTimeout", Whole),
]);

const HOST_CONFIG: Shape = Fields(&[
    ("NetworkMode", Whole),
    ("Links", Whole),
    ("PortBindings", Whole),
    ("Dns", Whole),
    ("DnsSearch", Whole),
    ("Memory", Whole),
    ("MemoryReservation", Whole),
    ("CpuShares", Whole),
    ("CpuQuota", Whole),
    ("CpuPeriod", Whole),
    ("CpuCount", Whole),
    ("NanoCpus", Whole),
]);

const ATTACHMENT: Shape = Fields(&[
    ("IPAddress", Whole),
    ("GlobalIPv6Address", Whole),
    ("Gateway", Whole),
    ("IPv6Gateway", Whole),
    ("GwPriority", Whole),
    ("MacAddress", Whole),
    ("Links", Whole),
    ("Aliases", Whole),
]);

const CONTAINER: Shape = Fields(&[
    ("Id", Whole),
    ("Name", Whole),
    ("Created", Whole),
    ("Image", Whole),
    ("RestartCount", Whole),
    ("State", STATE),
    ("Config", CONFIG),
    ("HostConfig", HOST_CONFIG),
    ("NetworkSettings", Fields(&[("Ports", Whole), ("Networks", Each(&ATTACHMENT))])),
]);

const LISTED: Shape = Fields(&[
    ("Id", Whole),
    ("Names", Whole),
    ("Image", Whole),
    ("Created", Whole),
    ("State", Whole),
    ("Labels", Whole),
]);

const IMAGE: Shape = Fields(&[("Id", Whole), ("Config", Fields(&[("Labels", Whole)]))]);

const NETWORK: Shape = Fields(&[
    ("Id", Whole),
    ("Name", Whole),
    ("Driver", Whole),
    ("Scope", Whole),
    ("Internal", Whole),
    ("EnableIPv6", Whole),
    ("Ingress", Whole),
    ("Options", Fields(&[("com.docker.network.bridge.default_bridge", Whole)])),
    ("Labels", Whole),
    ("IPAM", Fields(&[("Config", Each(&Fields(&[("Subnet", Whole), ("Gateway", Whole)])))])),
    ("Containers", Each(&Fields(&[("IPv4Address", Whole)]))),
]);

/// Options of drivers, which may be passwords, are left out; that there are such has to be said.
const VOLUME: Shape = Fields(&[
    ("Name", Whole),
    ("Driver", Whole),
    ("Mountpoint", Whole),
    ("Scope", Whole),
    ("Labels", Whole),
    ("Options", Fields(&[])),
]);

const INFO: Shape = Fields(&[
    ("ID", Whole),
    ("Name", Whole),
    ("SystemTime", Whole),
    ("DockerRootDir", Whole),
    ("Swarm", Fields(&[("NodeAddr", Whole)])),
    ("Labels", Whole),
    ("OSType", Whole),
    ("OSVersion", Whole),
    ("OperatingSystem", Whole),
    ("Architecture", Whole),
    ("KernelVersion", Whole),
    ("NCPU", Whole),
    ("MemTotal", Whole),
    ("ServerVersion", Whole),
    ("Isolation", Whole),
]);

const EVENT: Shape = Fields(&[
    ("Type", Whole),
    ("Action", Word),
    ("Actor", Fields(&[("ID", Whole), ("Attributes", Fields(&[("container", Whole), ("signal", Whole)]))])),
    ("time", Whole),
    ("timeNano", Whole),
]);

impl Shown {
    /// What is passed on of a response, or of one event.
    pub(crate) fn of(self, response: Value) -> Value {
        reduced(
            response,
            match self {
                Self::Container => CONTAINER,
                Self::Containers => Each(&LISTED),
                Self::Image => IMAGE,
                Self::Network => NETWORK,
                Self::Networks => Each(&NETWORK),
                Self::Volume => VOLUME,
                Self::Volumes => Fields(&[("Volumes", Each(&VOLUME))]),
                Self::Info => INFO,
                Self::Events => EVENT,
            },
        )
    }
}

/// What is passed on of a value; what has another form than it should is left out.
fn reduced(value: Value, shape: Shape) -> Value {
    match (shape, value) {
        (Whole, value) => value,
        (Word, Value::String(text)) => text.split(':').next().unwrap_or_default().into(),
        (Fields(known), Value::Object(mut object)) => {
            let found = known.iter().filter_map(|(name, shape)| {
                let value = object.remove(*name)?;
                Some(((*name).to_owned(), reduced(value, *shape)))
            });
            Value::Object(found.collect::<Map<_, _>>())
        }
        (Each(shape), Value::Array(list)) => list.into_iter().map(|value| reduced(value, *shape)).collect(),
        (Each(shape), Value::Object(object)) => {
            object.into_iter().map(|(name, value)| (name, reduced(value, *shape))).collect::<Map<_, _>>().into()
        }
        (Word | Fields(_) | Each(_), _) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_listed_is_passed_on() {
        let container = json!({
            "Id": "c1", "Path": "secret", "Args": ["secret"], "Mounts": [{"Source": "secret"}], "LogPath": "secret",
            "Config": {"Env": ["secret"], "Cmd": ["secret"], "Labels": {"a": "b"}, "Healthcheck": {"Test": ["secret"]}},
            "HostConfig": {"NetworkMode": "host", "LogConfig": {"Config": {"key": "secret"}}, "Binds": ["secret"]},
            "State": {"Status": "running", "Error": "secret", "Health": {"Status": "healthy", "FailingStreak": 0, "Log": [{"ExitCode": 0, "Output": "secret"}]}},
            "NetworkSettings": {"Ports": {}, "Networks": {"n": {"IPAddress": "10.0.0.1", "DriverOpts": {"key": "secret"}}}},
        });
        let shown = json!({
            "Id": "c1", "Config": {"Labels": {"a": "b"}}, "HostConfig": {"NetworkMode": "host"},
            "State": {"Status": "running", "Health": {"Status": "healthy", "FailingStreak": 0, "Log": [{"ExitCode": 0}]}},
            "NetworkSettings": {"Ports": {}, "Networks": {"n": {"IPAddress": "10.0.0.1"}}},
        });
        assert_eq!(Shown::Container.of(container), shown);
        for (shown, response, expected) in [
            (Shown::Containers, json!([{"Id": "c1", "Command": "secret", "Mounts": []}]), json!([{"Id": "c1"}])),
            (
                Shown::Volume,
                json!({"Name": "v", "Options": {"o": "secret"}, "Labels": null, "Status": {"key": "secret"}}),
                json!({"Name": "v", "Options": {}, "Labels": null}),
            ),
            (
                Shown::Image,
                json!({"Id": "i", "Config": {"Env": ["secret"], "Labels": null}}),
                json!({"Id": "i", "Config": {"Labels": null}}),
            ),
            (
                Shown::Networks,
                json!([{"Name": "n", "Options": {"key": "secret"}, "IPAM": {"Options": {"key": "secret"}, "Config": null}}]),
                json!([{"Name": "n", "Options": {}, "IPAM": {"Config": null}}]),
            ),
            (Shown::Info, json!({"Name": "h", "HttpProxy": "http://u:secret@p"}), json!({"Name": "h"})),
            (
                Shown::Events,
                json!({"status": "exec_create: secret", "id": "c1", "Type": "container", "Action": "exec_create: secret",
                    "Actor": {"ID": "c1", "Attributes": {"signal": "15", "label": "secret"}}, "timeNano": 1}),
                json!({"Type": "container", "Action": "exec_create", "Actor": {"ID": "c1", "Attributes": {"signal": "15"}},
                    "timeNano": 1}),
            ),
            (Shown::Network, json!("secret"), Value::Null),
            (
                Shown::Container,
                json!({"State": "secret", "Config": ["secret"]}),
                json!({"State": null, "Config": null}),
            ),
        ] {
            assert_eq!(shown.of(response), expected, "{shown:?}");
        }
    }
}
