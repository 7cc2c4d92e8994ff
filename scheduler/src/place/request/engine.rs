//! What only a container engine has to do with: settings of a container in the words of compose files, and which of them reach
//! into the host. ◇
//!
//! They are checked here, carried as the engine's own `HostConfig`, and never looked at when a place is sought.

use model::{Map, Text, Value};
use serde_json::{Map as Json, Value as JsonValue, json};

use crate::place::fields::Fields;
use crate::place::invalid::Invalid;

/// Settings of a container as fields of the engine's `HostConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineSettings(Json<String, JsonValue>);

/// What a setting is.
#[derive(Clone, Copy)]
enum Form {
    Truth,
    Text,
    Texts,
    /// A number between these.
    Int(i64, i64),
    /// Bytes; -1 is without a limit.
    Amount,
    Pairs,
    /// `HOST[:CONTAINER[:PERMISSIONS]]`, each.
    Devices,
    /// `driver` and `options`.
    Log,
    /// `PATH[:OPTIONS]`, each.
    Tmpfs,
    /// A number, or `soft` and `hard`, by name; -1 is without a limit.
    Ulimits,
}

/// The settings: as a request calls them, as the engine does, and what they are.
const SETTINGS: [(&str, &str, Form); 35] = [
    ("cap_add", "CapAdd", Form::Texts),
    ("cap_drop", "CapDrop", Form::Texts),
    ("cgroup", "CgroupnsMode", Form::Text),
    ("cgroup_parent", "CgroupParent", Form::Text),
    ("cpu_count", "CpuCount", Form::Int(0, 4096)),
    ("cpu_percent", "CpuPercent", Form::Int(0, 100)),
    ("cpu_period", "CpuPeriod", Form::Int(0, 1_000_000)),
    ("cpu_quota", "CpuQuota", Form::Int(-1, i64::MAX)),
    ("cpu_shares", "CpuShares", Form::Int(0, 262_144)),
    ("cpuset", "CpusetCpus", Form::Text),
    ("device_cgroup_rules", "DeviceCgroupRules", Form::Texts),
    ("devices", "Devices", Form::Devices),
    ("dns_opt", "DnsOptions", Form::Texts),
    ("extra_hosts", "ExtraHosts", Form::Texts),
    ("group_add", "GroupAdd", Form::Texts),
    ("init", "Init", Form::Truth),
    ("ipc", "IpcMode", Form::Text),
    ("logging", "LogConfig", Form::Log),
    ("mem_swappiness", "MemorySwappiness", Form::Int(-1, 100)),
    ("memswap_limit", "MemorySwap", Form::Amount),
    ("oom_kill_disable", "OomKillDisable", Form::Truth),
    ("oom_score_adj", "OomScoreAdj", Form::Int(-1000, 1000)),
    ("pid", "PidMode", Form::Text),
    ("pids_limit", "PidsLimit", Form::Int(-1, i64::MAX)),
    ("privileged", "Privileged", Form::Truth),
    ("read_only", "ReadonlyRootfs", Form::Truth),
    ("security_opt", "SecurityOpt", Form::Texts),
    ("shm_size", "ShmSize", Form::Amount),
    ("storage_opt", "StorageOpt", Form::Pairs),
    ("sysctls", "Sysctls", Form::Pairs),
    ("tmpfs", "Tmpfs", Form::Tmpfs),
    ("ulimits", "Ulimits", Form::Ulimits),
    ("userns_mode", "UsernsMode", Form::Text),
    ("uts", "UTSMode", Form::Text),
    ("volume_driver", "VolumeDriver", Form::Text),
];

/// Settings that engines refuse or drop for containers of Windows.
const LINUX_ONLY: [&str; 25] = [
    "cap_add",
    "cap_drop",
    "cgroup",
    "cgroup_parent",
    "cpu_period",
    "cpu_quota",
    "cpuset",
    "device_cgroup_rules",
    "group_add",
    "init",
    "ipc",
    "mem_swappiness",
    "memswap_limit",
    "oom_kill_disable",
    "oom_score_adj",
    "pid",
    "pids_limit",
    "privileged",
    "read_only",
    "shm_size",
    "sysctls",
    "tmpfs",
    "ulimits",
    "userns_mode",
    "uts",
];

/// Drivers of logs that write nowhere but into the engine's own folders and the host's journal.
const OWN_LOGS: [&str; 5] = ["", "json-file", "local", "journald", "none"];

/// Beginnings of kernel parameters that each container has for itself.
const OWN_SYSCTLS: [&str; 5] = ["net.", "kernel.msg", "kernel.sem", "kernel.shm", "fs.mqueue."];

/// The security option that only takes rights away; `:false` would give some that the engine denies by default.
const NO_NEW_PRIVILEGES: [&str; 3] = ["no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"];

/// Namespaces that a container has for itself.
const OWN_NAMESPACES: [&str; 4] = ["", "none", "private", "shareable"];

/// The names of the settings, as requests and compose files call them.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(name, ..)| *name)
}

impl EngineSettings {
    /// The settings in these fields.
    ///
    /// # Errors
    ///
    /// Says which one is wrong.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Invalid> {
        let known: Vec<_> = names().collect();
        fields.only(&[&known])?;
        let mut settings = Json::new();
        for (name, field, form) in SETTINGS {
            if fields.get(name).is_some_and(|value| !value.is_null()) {
                settings.insert(field.to_owned(), read(fields, name, form)?);
            }
        }
        Ok(Self(settings))
    }

    /// Those among the fields of a `HostConfig`.
    pub(crate) fn of_engine(host: &Json<String, JsonValue>) -> Self {
        Self(
            host.iter()
                .filter(|(field, _)| Self::is_field(field))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        )
    }

    /// Whether a field of a `HostConfig` is one of them.
    pub(crate) fn is_field(field: &str) -> bool {
        SETTINGS.iter().any(|(_, own, _)| *own == field)
    }

    /// The name of the first setting that says how much processor time a container gets in each period.
    pub(super) fn quota(&self) -> Option<&'static str> {
        let said = |field: &&str| self.0.get(*field).and_then(JsonValue::as_i64).is_some_and(|number| number > 0);
        [("cpu_quota", "CpuQuota"), ("cpu_period", "CpuPeriod")]
            .iter()
            .find(|(_, field)| said(field))
            .map(|(name, _)| *name)
    }

    /// Whether nothing can be written into its own layer.
    pub(super) fn is_read_only(&self) -> bool {
        self.0.get("ReadonlyRootfs").and_then(JsonValue::as_bool) == Some(true)
    }

    /// Where memory is mounted.
    pub(super) fn tmpfs(&self) -> impl Iterator<Item = &str> {
        self.0.get("Tmpfs").and_then(JsonValue::as_object).into_iter().flat_map(Json::keys).map(String::as_str)
    }

    /// As fields of a `HostConfig`.
    pub(crate) fn as_json(&self) -> JsonValue {
        JsonValue::Object(self.0.clone())
    }

    /// The names of those that containers of Windows do not have; what says nothing is none.
    pub(crate) fn linux_only(&self) -> impl Iterator<Item = &'static str> {
        let says = |value: &JsonValue| match value {
            JsonValue::Null => false,
            JsonValue::Bool(truth) => *truth,
            JsonValue::Number(number) => number.as_i64().is_none_or(|number| number > 0),
            JsonValue::String(text) => !OWN_NAMESPACES.contains(&text.as_str()),
            JsonValue::Array(list) => !list.is_empty(),
            JsonValue::Object(fields) => !fields.is_empty(),
        };
        // Most containers have no settings at all, and nothing is looked for then.
        let said = self.0.iter().filter(move |(_, value)| says(value));
        let names = said.filter_map(|(field, _)| SETTINGS.iter().find(|(_, own, _)| own == field));
        names.map(|(name, ..)| *name).filter(|name| LINUX_ONLY.contains(name))
    }

    /// Whether a container has its host's own name.
    pub(crate) fn has_name_of_host(&self) -> bool {
        self.0.get("UTSMode").and_then(JsonValue::as_str) == Some("host")
    }

    /// What they let a container do that others on its host would notice, as a policy calls each: `privileged`,
    /// `cap_add=NET_ADMIN`, `pid=host`.
    ///
    /// A value of another type than the engine expects is one too, since its effect is not known here.
    pub(crate) fn privileges(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, field, _) in SETTINGS {
            let Some(value) = self.0.get(field).filter(|value| !value.is_null()) else { continue };
            let texts =
                || value.as_array().map(|all| all.iter().map(|one| one.as_str().unwrap_or("?")).collect::<Vec<_>>());
            let unknown = || vec![format!("{name}=?")];
            found.extend(match name {
                "privileged" | "oom_kill_disable" => match value.as_bool() {
                    Some(false) => Vec::new(),
                    Some(true) => vec![name.to_owned()],
                    None => unknown(),
                },
                "cap_add" | "device_cgroup_rules" | "security_opt" => texts().map_or_else(unknown, |texts| {
                    let harmless = |text: &&str| name == "security_opt" && NO_NEW_PRIVILEGES.contains(text);
                    texts.into_iter().filter(|text| !harmless(text)).map(|text| format!("{name}={text}")).collect()
                }),
                "devices" => value.as_array().map_or_else(unknown, |all| {
                    let known =
                        |one: &&JsonValue| has_only(one, &["CgroupPermissions", "PathInContainer", "PathOnHost"]);
                    let path = |one: &JsonValue| {
                        Some(one).filter(known).and_then(|one| one["PathOnHost"].as_str()).unwrap_or("?").to_owned()
                    };
                    all.iter().map(|one| format!("{name}={}", path(one))).collect()
                }),
                "cgroup" | "ipc" | "pid" | "userns_mode" | "uts" => match value.as_str() {
                    Some(mode) if OWN_NAMESPACES.contains(&mode) => Vec::new(),
                    mode => vec![format!("{name}={}", mode.unwrap_or("?"))],
                },
                "cgroup_parent" => match value.as_str() {
                    Some("") => Vec::new(),
                    parent => vec![format!("{name}={}", parent.unwrap_or("?"))],
                },
                "logging" => match value["Type"].as_str().filter(|_| has_only(value, &["Config", "Type"])) {
                    Some(driver) if OWN_LOGS.contains(&driver) => Vec::new(),
                    driver => vec![format!("{name}={}", driver.unwrap_or("?"))],
                },
                "oom_score_adj" => match value.as_i64() {
                    Some(0..) => Vec::new(),
                    _ => vec![name.to_owned()],
                },
                "sysctls" => value.as_object().map_or_else(unknown, |all| {
                    let own = |key: &&String| OWN_SYSCTLS.iter().any(|beginning| key.starts_with(beginning));
                    all.keys().filter(|key| !own(key)).map(|key| format!("{name}={key}")).collect()
                }),
                "volume_driver" => match value.as_str() {
                    Some("" | "local") => Vec::new(),
                    driver => vec![format!("{name}={}", driver.unwrap_or("?"))],
                },
                _ => Vec::new(),
            });
        }
        found
    }
}

/// Whether an object has no other keys: the engine takes `type` for `Type`, and of both the last one.
fn has_only(object: &JsonValue, known: &[&str]) -> bool {
    object.as_object().is_some_and(|object| object.keys().all(|key| known.contains(&key.as_str())))
}

/// A setting as the engine takes it.
fn read(fields: &Fields<'_>, name: &str, form: Form) -> Result<JsonValue, Invalid> {
    let none = Value::Null;
    let value = fields.get(name).unwrap_or(&none);
    Ok(match form {
        // The client's type has these alone, and forgets all settings for another one.
        Form::Text if name == "cgroup" => {
            let modes = [("host", "host"), ("private", "private")];
            fields.word(name, &modes)?.unwrap_or_default().into()
        }
        Form::Truth => fields.truth(name)?.into(),
        Form::Text => fields.text(name)?.map_or_else(String::new, |text| text.to_string()).into(),
        Form::Texts => fields.texts(name)?.iter().map(ToString::to_string).collect::<Vec<_>>().into(),
        Form::Int(least, most) => fields.int(name, least, most)?.into(),
        Form::Amount if value.as_int() == Some(-1) => (-1).into(),
        Form::Amount => fields.amount(name)?.into(),
        Form::Pairs => pairs(fields, name)?.into(),
        Form::Devices => fields.texts(name)?.iter().map(|text| device(text)).collect::<Vec<_>>().into(),
        Form::Log => {
            let Value::Map(map) = value else { return fields.wrong(name, value, "a map with driver and options") };
            let log = Fields { path: fields.at(name), map };
            log.only(&[&["driver", "options"]])?;
            let driver = log.text("driver")?.map_or_else(String::new, |text| text.to_string());
            json!({ "Type": driver, "Config": pairs(&log, "options")? })
        }
        Form::Tmpfs => {
            let all = fields.texts(name)?;
            let pair = |text: &Text| {
                let (path, options) = text.split_once(':').unwrap_or((text, ""));
                (path.to_owned(), JsonValue::from(options))
            };
            all.iter().map(pair).collect::<Json<_, _>>().into()
        }
        Form::Ulimits => {
            let Value::Map(map) = value else { return fields.wrong(name, value, "a map of limits by name") };
            let limits = Fields { path: fields.at(name), map };
            map.iter().map(|(key, _)| ulimit(&limits, key)).collect::<Result<Vec<_>, _>>()?.into()
        }
    })
}

/// A map of texts, as in `options`.
fn pairs(fields: &Fields<'_>, name: &str) -> Result<Json<String, JsonValue>, Invalid> {
    let none = Map::default();
    let map = match fields.get(name) {
        None | Some(Value::Null) => &none,
        Some(Value::Map(map)) => map,
        Some(other) => return fields.wrong(name, other, "a map of texts"),
    };
    let below = Fields { path: fields.at(name), map };
    let pair = |(key, value): &(Text, Value)| match crate::place::hosts::label(&(key.clone(), value.clone())) {
        Some((key, value)) => Ok((key.to_string(), JsonValue::from(&*value))),
        None => below.wrong(key, value, "text"),
    };
    map.iter().map(pair).collect()
}

/// `/dev/fuse`, `/dev/sda:/dev/xvda` or `/dev/sda:/dev/xvda:r`.
fn device(text: &str) -> JsonValue {
    let mut parts = text.splitn(3, ':');
    let host = parts.next().unwrap_or_default();
    let second = parts.next();
    // `/dev/fuse:rwm` has no other name inside.
    let (inside, permissions) = match second {
        Some(inside) if inside.starts_with('/') => (inside, parts.next()),
        permissions => (host, permissions),
    };
    json!({ "PathOnHost": host, "PathInContainer": inside, "CgroupPermissions": permissions.unwrap_or("rwm") })
}

/// A limit, which has to be there.
fn number(fields: &Fields<'_>, key: &str) -> Result<i64, Invalid> {
    fields.int(key, -1, i64::MAX)?.ok_or_else(|| Invalid::new(fields.at(key), "missing", "a number"))
}

fn ulimit(limits: &Fields<'_>, name: &str) -> Result<JsonValue, Invalid> {
    let (soft, hard) = if let Some(Value::Map(map)) = limits.get(name) {
        let limit = Fields { path: limits.at(name), map };
        limit.only(&[&["hard", "soft"]])?;
        let (soft, hard) = (number(&limit, "soft")?, number(&limit, "hard")?);
        if hard >= 0 && !(0..=hard).contains(&soft) {
            return Err(Invalid::new(
                limit.at("soft"),
                format!("found {soft}"),
                format!("at most the hard one, {hard}"),
            ));
        }
        (soft, hard)
    } else {
        let both = number(limits, name)?;
        (both, both)
    };
    Ok(json!({ "Name": name, "Soft": soft, "Hard": hard }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: &str) -> Result<EngineSettings, Invalid> {
        let map: Map = serde_json::from_str(json).unwrap();
        EngineSettings::read(&Fields { path: String::new(), map: &map })
    }

    #[test]
    fn settings_become_fields_of_the_engine() {
        let all = settings(
            r#"{"privileged": true, "cap_add": ["NET_ADMIN"], "devices": ["/dev/fuse", "/dev/a:/dev/b:r", "/dev/c:rwm"],
                "logging": {"driver": "syslog", "options": {"tag": "a", "n": 1}}, "tmpfs": ["/run", "/tmp:size=1m"], "shm_size": "64m",
                "memswap_limit": -1, "ulimits": {"nproc": 5, "memlock": {"soft": -1, "hard": -1}}, "sysctls": {"net.core.somaxconn": 1024},
                "volume_driver": "nfs", "init": false, "pid": null}"#,
        );
        assert_eq!(
            all.unwrap().as_json(),
            json!({
                "Privileged": true, "CapAdd": ["NET_ADMIN"], "Init": false, "VolumeDriver": "nfs", "MemorySwap": -1, "ShmSize": 64 << 20,
                "Devices": [
                    { "PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse", "CgroupPermissions": "rwm" },
                    { "PathOnHost": "/dev/a", "PathInContainer": "/dev/b", "CgroupPermissions": "r" },
                    { "PathOnHost": "/dev/c", "PathInContainer": "/dev/c", "CgroupPermissions": "rwm" },
                ],
                "LogConfig": { "Type": "syslog", "Config": { "tag": "a", "n": "1" } },
                "Tmpfs": { "/run": "", "/tmp": "size=1m" },
                "Sysctls": { "net.core.somaxconn": "1024" },
                "Ulimits": [{ "Name": "memlock", "Soft": -1, "Hard": -1 }, { "Name": "nproc", "Soft": 5, "Hard": 5 }],
            })
        );
        for (json, field) in [
            (r#"{"privileged": "maybe"}"#, "privileged"),
            (r#"{"cap_add": 5}"#, "cap_add"),
            (r#"{"ulimits": {"nproc": {"soft": 1}}}"#, "ulimits.nproc.hard"),
            (r#"{"ulimits": {"nproc": {"soft": 6, "hard": 5}}}"#, "ulimits.nproc.soft"),
            (r#"{"ulimits": {"nproc": {"soft": -1, "hard": 5}}}"#, "ulimits.nproc.soft"),
            (r#"{"ulimits": 5}"#, "ulimits"),
            (r#"{"logging": {"drive": "x"}}"#, "logging.drive"),
            (r#"{"shm_size": "much"}"#, "shm_size"),
            (r#"{"runtime": "nvidia"}"#, "runtime"),
            (r#"{"cgroup": "other"}"#, "cgroup"),
        ] {
            assert_eq!(settings(json).unwrap_err().field, field, "{json}");
        }
    }

    #[test]
    fn what_reaches_into_the_host_is_a_privilege() {
        let found = |json: &str| settings(json).unwrap().privileges();
        for (json, privileges) in [
            (r#"{"privileged": true}"#, &["privileged"][..]),
            (r#"{"privileged": false, "cap_drop": ["ALL"], "read_only": true, "tmpfs": "/run", "init": true}"#, &[]),
            (r#"{"cap_add": ["NET_ADMIN", "SYS_TIME"]}"#, &["cap_add=NET_ADMIN", "cap_add=SYS_TIME"]),
            (r#"{"devices": ["/dev/a:/dev/b"]}"#, &["devices=/dev/a"]),
            (r#"{"pid": "host", "ipc": "shareable", "uts": "host"}"#, &["pid=host", "uts=host"]),
            (r#"{"cgroup": "host", "cpu_quota": 5, "dns_opt": ["ndots:1"]}"#, &["cgroup=host"]),
            (r#"{"cgroup": "private", "device_cgroup_rules": ["c 1:3 r"]}"#, &["device_cgroup_rules=c 1:3 r"]),
            (r#"{"ipc": "container:other"}"#, &["ipc=container:other"]),
            (r#"{"security_opt": ["no-new-privileges:true", "label:disable"]}"#, &["security_opt=label:disable"]),
            (r#"{"security_opt": ["no-new-privileges:false"]}"#, &["security_opt=no-new-privileges:false"]),
            (r#"{"logging": {"driver": "json-file"}}"#, &[]),
            (r#"{"logging": {"driver": "syslog"}}"#, &["logging=syslog"]),
            (r#"{"sysctls": {"net.ipv4.ip_forward": 1, "vm.swappiness": 1}}"#, &["sysctls=vm.swappiness"]),
            (r#"{"volume_driver": "local"}"#, &[]),
            (r#"{"volume_driver": "nfs"}"#, &["volume_driver=nfs"]),
            (r#"{"oom_score_adj": -5}"#, &["oom_score_adj"]),
            (r#"{"oom_score_adj": 5, "cgroup_parent": "/a"}"#, &["cgroup_parent=/a"]),
        ] {
            assert_eq!(found(json), privileges, "{json}");
        }
    }

    #[test]
    fn what_nobody_can_read_is_a_privilege_too() {
        let of = |host: JsonValue| EngineSettings::of_engine(host.as_object().unwrap()).privileges();
        for (host, expected) in [
            (json!({ "Privileged": "yes" }), "privileged=?"),
            (json!({ "CapAdd": "ALL" }), "cap_add=?"),
            (json!({ "CapAdd": [5] }), "cap_add=?"),
            (json!({ "Devices": [{}] }), "devices=?"),
            (json!({ "PidMode": 1 }), "pid=?"),
            (json!({ "LogConfig": {} }), "logging=?"),
            (json!({ "LogConfig": { "Type": "local", "type": "syslog" } }), "logging=?"),
            (json!({ "Devices": [{ "PathOnHost": "/dev/fuse", "pathonhost": "/dev/sda" }] }), "devices=?"),
            (json!({ "Sysctls": [] }), "sysctls=?"),
            (json!({ "VolumeDriver": {} }), "volume_driver=?"),
        ] {
            assert_eq!(of(host.clone()), [expected], "{host}");
        }
        assert_eq!(of(json!({ "Binds": ["/:/h"], "Privileged": false, "PidMode": "" })), [""; 0]);
    }
}
