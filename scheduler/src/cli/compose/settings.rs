//! What only an engine has to do with: settings of a service that a request carries as they are. ◇

use std::net::IpAddr;

use model::{Map, Text, Value};

use crate::cli::compose::Compose;
use crate::cli::compose::deploy::thousandths;
use crate::cli::compose::section::{Draft, Section, the_same};
use crate::cli::compose::service::{integer, said, truth};
use crate::cli::compose::volumes::{in_memory, volume_driver, without_driver};
use crate::place::invalid::Invalid;
use crate::place::request::engine;

/// Settings that are numbers.
const COUNTS: [&str; 8] = [
    "cpu_count",
    "cpu_percent",
    "cpu_period",
    "cpu_quota",
    "cpu_shares",
    "mem_swappiness",
    "oom_score_adj",
    "pids_limit",
];

impl Compose<'_> {
    /// What only an engine has to do with, from keys of the service itself.
    pub(super) fn settings(&self, service: &Section<'_>) -> Result<Option<Value>, Invalid> {
        let mut settings: Draft = Vec::new();
        for name in engine::names() {
            let Some(value) = service.get(name) else { continue };
            let value = match (name, value) {
                // An empty variable says nothing.
                (_, Value::Text(text)) if text.trim().is_empty() => continue,
                // Two ways to write one list.
                ("extra_hosts", Value::Map(map)) => {
                    let mut hosts = Vec::new();
                    for (name, value) in map {
                        for address in value.as_list().unwrap_or_else(|| std::slice::from_ref(value)) {
                            hosts.extend(host(service, name, &address.scalar_text().unwrap_or_default())?);
                        }
                    }
                    Value::list(hosts)
                }
                ("storage_opt" | "sysctls", Value::List(_)) => Map::new(service.pairs(name)?).into(),
                ("init" | "oom_kill_disable" | "privileged" | "read_only", _) => {
                    truth(service, name)?.unwrap_or(Value::Bool(false))
                }
                ("extra_hosts", Value::List(_)) => {
                    let named = |text: Text| {
                        let equal = text.split_once('=').filter(|(name, _)| !name.contains(':'));
                        let (name, address) = equal.or_else(|| text.split_once(':')).unwrap_or((&text, "?"));
                        host(service, name, address).transpose()
                    };
                    Value::list(said(service, name)?.into_iter().filter_map(named).collect::<Result<Vec<_>, _>>()?)
                }
                ("ipc" | "pid" | "uts", Value::Text(text)) if text.starts_with("service:") => {
                    let expected = "host, or none: a unit shares networks (network_mode) and volumes (volumes_from)";
                    return Err(Invalid::new(service.at(name), format!("{text} is not supported"), expected));
                }
                (name, Value::Text(_)) if COUNTS.contains(&name) => number(service, name)?,
                ("memswap_limit" | "shm_size", value) => match bytes(value) {
                    Some(value) => value,
                    None => continue,
                },
                ("ulimits", value) => numbers(value),
                // So is a driver without a name.
                ("logging", Value::Map(map)) if map.get("driver").and_then(Value::as_str) == Some("") => {
                    map.without("driver").into()
                }
                ("devices", Value::List(_)) => devices(service)?,
                (
                    "cap_add" | "cap_drop" | "device_cgroup_rules" | "dns_opt" | "security_opt" | "tmpfs",
                    Value::List(_),
                ) => Value::list(said(service, name)?.into_iter().map(Value::Text)),
                ("cpuset", _) => service.text(name)?.map_or(Value::Null, Value::Text),
                ("group_add", _) => Value::list(said(service, name)?.into_iter().map(Value::Text).collect::<Vec<_>>()),
                _ => value.clone(),
            };
            settings.push((name.into(), value));
        }
        let in_memory = in_memory(service)?;
        if !in_memory.is_empty() {
            let own = match service.get("tmpfs") {
                Some(Value::Text(path)) => vec![Value::Text(path.clone())],
                _ => said(service, "tmpfs")?.into_iter().map(Value::Text).collect(),
            };
            settings.retain(|(name, _)| &**name != "tmpfs");
            settings.push(("tmpfs".into(), Value::list(own.into_iter().chain(in_memory))));
        }
        if let Some(option) = credentials(service)? {
            let at = settings.iter().position(|(name, _)| &**name == "security_opt");
            let own = at.map(|at| settings.remove(at).1);
            let own = own.iter().flat_map(|own| own.as_list().unwrap_or_else(|| std::slice::from_ref(own))).cloned();
            settings.push(("security_opt".into(), Value::list(own.chain([option]).collect::<Vec<_>>())));
        }
        if let Some((amount, at)) = pids_of_deploy(service)? {
            let own = settings.iter().position(|(name, _)| &**name == "pids_limit").map(|own| settings.remove(own).1);
            let amount = the_same(own, (Some(amount), at), "pids_limit")?;
            settings.extend(amount.map(|amount| ("pids_limit".into(), amount)));
        }
        if service.get("log_driver").is_some() || service.get("log_opt").is_some() {
            if service.get("logging").is_some() {
                return Err(Invalid::new(service.at("log_driver"), "given with logging", "one of them"));
            }
            let driver = service.text("log_driver")?.filter(|driver| !driver.is_empty());
            let driver = driver.map(|driver| ("driver".into(), Value::Text(driver)));
            let options = [("options".into(), Map::new(service.pairs("log_opt")?).into())];
            settings.push(("logging".into(), Map::new(driver.into_iter().chain(options).collect()).into()));
        }
        if let Some(driver) = volume_driver(service, &self.volumes.drivers)? {
            let own = service.text("volume_driver")?.unwrap_or_default();
            for at in if own == driver { Vec::new() } else { without_driver(service, &self.volumes)? } {
                let text = format!("made by {driver} too: an engine takes one driver for all volumes of a container");
                self.warn(service.at(&format!("volumes[{at}]")), &text);
            }
            settings.retain(|(name, _)| &**name != "volume_driver");
            settings.push(("volume_driver".into(), Value::Text(driver)));
        }
        Ok((!settings.is_empty()).then(|| Map::new(settings).into()))
    }
}

/// A name and its address, which stands in brackets or not if it is one of IPv6. Without an address, as an empty variable leaves it, it
/// is nothing.
fn host(service: &Section<'_>, name: &str, address: &str) -> Result<Option<Value>, Invalid> {
    if address.is_empty() {
        return Ok(None);
    }
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    if name.is_empty() || (bare != "host-gateway" && bare.parse::<IpAddr>().is_err()) {
        let problem = format!("found {name:?}, with the address {address:?}");
        return Err(Invalid::new(service.at("extra_hosts"), problem, "NAME:ADDRESS, or NAME:host-gateway"));
    }
    Ok(Some(Value::text(format!("{name}:{bare}"))))
}

/// Devices, each as a line or as `source`, `target` and `permissions`.
fn devices(service: &Section<'_>) -> Result<Value, Invalid> {
    const KEY: &str = "devices";
    let mut found = Vec::new();
    for (at, item) in service.get(KEY).and_then(Value::as_list).unwrap_or_default().iter().enumerate() {
        let path = service.at(&format!("{KEY}[{at}]"));
        match item {
            Value::Map(map) => {
                let device = Section { path, map };
                device.only(&["permissions", "source", "target"])?;
                let source = device.text("source")?;
                let source =
                    source.ok_or_else(|| Invalid::new(device.at("source"), "missing", "a device of the host"))?;
                let target = device.text("target")?.unwrap_or_else(|| source.clone());
                let permissions = device.text("permissions")?.map(|word| format!(":{word}")).unwrap_or_default();
                found.push(Value::text(format!("{source}:{target}{permissions}")));
            }
            Value::Text(text) if text.trim().is_empty() => {}
            Value::Text(text) => found.push(Value::Text(text.clone())),
            other => return Err(Invalid::new(path, format!("found {}", other.kind()), "a device such as /dev/fuse")),
        }
    }
    Ok(Value::list(found))
}

/// Bytes, of which a file may write a part: `1.5g`. An empty variable says nothing.
pub(super) fn bytes(value: &Value) -> Option<Value> {
    let Value::Text(text) = value else { return Some(value.clone()) };
    let digits = text.trim().trim_end_matches(|char: char| char.is_ascii_alphabetic());
    if text.trim().is_empty() {
        return None;
    }
    let unit = text.trim()[digits.len()..].to_ascii_lowercase();
    let shift = ["", "k", "m", "g", "t"].iter().position(|known| *known == unit.trim_end_matches(['b', 'i']));
    let whole = thousandths(digits).filter(|_| digits.contains('.')).zip(shift);
    let bytes = whole.and_then(|(milli, shift)| Some(milli.checked_mul(1 << (10 * shift))? / 1000));
    Some(bytes.map_or_else(|| Value::text(text.trim()), Value::Int))
}

/// Numbers that are written as text, as variables are.
fn numbers(value: &Value) -> Value {
    match value {
        Value::Text(text) => text.trim().parse().map_or_else(|_| value.clone(), Value::Int),
        Value::Map(map) => Map::new(map.iter().map(|(key, value)| (key.clone(), numbers(value))).collect()).into(),
        other => other.clone(),
    }
}

/// The account of a domain that a container of Windows has, as its engine takes it.
fn credentials(service: &Section<'_>) -> Result<Option<Value>, Invalid> {
    let Some(spec) = service.below("credential_spec")? else { return Ok(None) };
    spec.only(&["file", "registry"])?;
    let expected = || "file: a file in the engine's folder CredentialSpecs, or registry: a value of the registry";
    match (spec.text("file")?, spec.text("registry")?) {
        (Some(file), None) => Ok(Some(Value::text(format!("credentialspec=file://{file}")))),
        (None, Some(value)) => Ok(Some(Value::text(format!("credentialspec=registry://{value}")))),
        (Some(_), Some(_)) => Err(Invalid::new(spec.at("registry"), "given with file", expected())),
        (None, None) => Err(Invalid::new(service.at("credential_spec"), "is empty", expected())),
    }
}

/// The most processes that `deploy` allows, and where it says so.
fn pids_of_deploy(service: &Section<'_>) -> Result<Option<(Value, String)>, Invalid> {
    let Some(deploy) = service.below("deploy")? else { return Ok(None) };
    let Some(resources) = deploy.below("resources")? else { return Ok(None) };
    let Some(limits) = resources.below("limits")? else { return Ok(None) };
    Ok(integer(&limits, "pids")?.map(|amount| (Value::Int(amount), limits.at("pids"))))
}

/// A number, or text that is one, as variables are.
fn number(service: &Section<'_>, key: &str) -> Result<Value, Invalid> {
    let text = service.text(key)?.unwrap_or_default();
    let number =
        text.trim().parse().map_err(|_| Invalid::new(service.at(key), format!("found {text:?}"), "a number"))?;
    Ok(Value::Int(number))
}
