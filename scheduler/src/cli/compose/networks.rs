//! Networks of a compose file: those that a service is in, and what the file says of them. ◇

use model::{Map, Text, Value};

use crate::cli::compose::section::{Draft, Section, unsupported};
use crate::cli::compose::service::{integer, texts};
use crate::place::invalid::Invalid;

/// The network of services that name none: here, that of the engine.
const DEFAULT: &str = "default";

/// Names of networks in a file, and what the engines call them.
pub(super) type NetworkNames = Vec<(Text, Text)>;

/// What would make a network.
const OF_MAKING: [&str; 7] = ["attachable", "driver", "driver_opts", "enable_ipv4", "enable_ipv6", "ipam", "labels"];

/// Networks that the file describes. They have to be on the engines already: what would make one has no effect, and what would
/// keep its containers apart is refused.
pub(super) fn described(file: &Section<'_>, warn: &dyn Fn(String, &str)) -> Result<NetworkNames, Invalid> {
    let mut names = Vec::new();
    let Some(networks) = file.below("networks")? else { return Ok(names) };
    for (name, value) in networks.map.iter().filter(|(_, value)| !value.is_null()) {
        let network = Section::new(networks.at(name), value)?;
        network.only(&[&["external", "name"], &OF_MAKING[..]].concat()).map_err(|error| Invalid {
            expected: "external or name: networks are made on the hosts (`docker network create`), not here".into(),
            ..error
        })?;
        let own = real_name(&network)?;
        for key in OF_MAKING.iter().filter(|key| network.get(key).is_some()) {
            let text = match own.as_ref().unwrap_or(name) {
                name if **name == *DEFAULT => {
                    "without effect: services without `networks` are in the engine's own".into()
                }
                name => format!("without effect: the network {name} has to be on the hosts (`docker network create`)"),
            };
            warn(network.at(key), &text);
        }
        names.extend(own.map(|own| (name.clone(), own)));
    }
    Ok(names)
}

/// What the engine calls something: `name`, or that of `external` in files of version 2.
pub(super) fn real_name(section: &Section<'_>) -> Result<Option<Text>, Invalid> {
    let outside = if let Some(Value::Map(map)) = section.get("external") {
        let external = Section { path: section.at("external"), map };
        external.only(&["name"])?;
        external.text("name")?
    } else {
        super::service::truth(section, "external")?;
        None
    };
    Ok(section.text("name")?.or(outside))
}

/// The networks of a service, as a request has them: `network`, or `networks` where there is more to say.
pub(super) fn networks(service: &Section<'_>, names: &NetworkNames) -> Result<Option<(&'static str, Value)>, Invalid> {
    let real =
        |name: &Text| names.iter().find(|(own, _)| own == name).map_or_else(|| name.clone(), |(_, own)| own.clone());
    let mut joined: Vec<(i64, Text, Vec<Text>)> = Vec::new();
    match service.get("networks") {
        None => {}
        Some(Value::Map(map)) => {
            let all = Section { path: service.at("networks"), map };
            for (name, value) in map {
                if value.is_null() {
                    joined.push((0, name.clone(), Vec::new()));
                    continue;
                }
                let network = Section::new(all.at(name), value)?;
                network.only(&["aliases", "priority"])?;
                // Those of a higher one are joined first.
                let priority = integer(&network, "priority")?.unwrap_or_default();
                joined.push((priority.saturating_neg(), name.clone(), texts(&network, "aliases")?));
            }
            joined.sort_by_key(|(priority, ..)| *priority);
        }
        Some(Value::List(_)) => {
            joined.extend(texts(service, "networks")?.into_iter().map(|name| (0, name, Vec::new())));
        }
        Some(_) => return Err(unsupported(service.at("networks"), &["a list of networks", "a map of them"])),
    }
    if let [(_, name, aliases)] = &joined[..]
        && aliases.is_empty()
    {
        return Ok((**name != *DEFAULT).then(|| ("network", Value::Text(real(name)))));
    }
    if let Some((_, name, _)) = joined.iter().find(|(_, name, _)| **name == *DEFAULT && real(name) == *name) {
        let problem = "named beside others, or with aliases";
        let expected = "networks that the engines have by name: nothing makes a network for a stack";
        return Err(Invalid::new(service.at(&format!("networks.{name}")), problem, expected));
    }
    let network = |(_, name, aliases): &(i64, Text, Vec<Text>)| {
        let mut draft: Draft = vec![("name".into(), Value::Text(real(name)))];
        if !aliases.is_empty() {
            draft.push(("aliases".into(), Value::list(aliases.iter().cloned().map(Value::Text))));
        }
        Value::from(Map::new(draft))
    };
    Ok((!joined.is_empty()).then(|| ("networks", Value::list(joined.iter().map(network)))))
}
