//! Volumes of a compose file: those of a service, and what the file says of volumes with names.

use model::{Map, Text, Value};

use crate::cli::compose::section::{Section, unsupported};
use crate::cli::compose::service::truth;
use crate::place::invalid::Invalid;
use crate::place::request::volume::named_volume;
use crate::stack::unit::INDEX;

/// What a file says of volumes with names.
#[derive(Default)]
pub(super) struct Described {
    /// Their drivers, by name; `local` and none are the engine's own.
    pub(super) drivers: Vec<(Text, Text)>,
    /// Those that each unit has one of.
    pub(super) of_units: Vec<Text>,
    /// Those that others have made, and keep.
    pub(super) external: Vec<Text>,
}

/// The volumes that the file describes.
///
/// # Errors
///
/// Refuses what would not be honoured: the engine makes a volume by its name and driver alone.
pub(super) fn described(volumes: &Section<'_>, for_stack: bool) -> Result<Described, Invalid> {
    let mut described = Described::default();
    let known = ["driver", "external", "labels", "name"];
    // Only units of stacks have an index.
    let of_stacks: &[&str] = if for_stack { &["per_container"] } else { &[] };
    for (name, value) in volumes.map {
        if value.is_null() {
            continue;
        }
        let volume = Section::new(volumes.at(name), value)?;
        volume.only(&[&known[..], of_stacks].concat())?;
        if truth(&volume, "per_container")?.is_some() {
            described.of_units.push(name.clone());
        }
        if volume.text("name")?.is_some_and(|own| own != *name) {
            return Err(unsupported(volume.at("name"), &[name]));
        }
        if is_external(name, &volume)? {
            if described.of_units.contains(name) {
                let problem = "given with external";
                return Err(Invalid::new(
                    volume.at("per_container"),
                    problem,
                    "one of them: each unit's own is made here",
                ));
            }
            described.external.push(name.clone());
        }
        if let Some(driver) = volume.text("driver")?.filter(|driver| !matches!(&**driver, "" | "local")) {
            described.drivers.push((name.clone(), driver));
        }
    }
    Ok(described)
}

/// Whether others have made a volume: `true`, or a map with its name.
fn is_external(name: &Text, volume: &Section<'_>) -> Result<bool, Invalid> {
    if !matches!(volume.get("external"), Some(Value::Map(_))) {
        return Ok(truth(volume, "external")?.is_some());
    }
    let Some(external) = volume.below("external")? else { return Ok(true) };
    external.only(&["name"])?;
    match external.text("name")? {
        Some(own) if own != *name => Err(unsupported(external.at("name"), &[name])),
        _ => Ok(true),
    }
}

/// The names among the volumes of a service that others have made.
pub(super) fn external(volumes: &Value, all: &[Text]) -> Option<Value> {
    let names = volumes.as_list().unwrap_or_default().iter().filter_map(|volume| named_volume(volume.as_str()?));
    let mut names: Vec<&str> = names.filter(|name| all.iter().any(|own| **own == **name)).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| Value::list(names.into_iter().map(Value::text)))
}

/// Networks with names: they have to be on the engines already.
pub(super) fn check_networks(file: &Section<'_>) -> Result<(), Invalid> {
    let Some(networks) = file.below("networks")? else { return Ok(()) };
    for (name, value) in networks.map.iter().filter(|(_, value)| !value.is_null()) {
        let network = Section::new(networks.at(name), value)?;
        network.only(&["external", "name"])?;
        if network.text("name")?.is_some_and(|own| own != *name) {
            return Err(unsupported(network.at("name"), &[name]));
        }
    }
    Ok(())
}

/// The volumes of a service of a stack, in which those of units have the stack's name and an index.
pub(super) fn named(volumes: &Value, stack: &str, of_units: &[Text]) -> Value {
    let named = |volume: &Value| match volume.as_str().and_then(|text| text.split_once(':')) {
        Some((name, rest)) if of_units.iter().any(|own| **own == *name) => {
            Value::text(format!("{stack}-{name}-{INDEX}:{rest}"))
        }
        _ => volume.clone(),
    };
    Value::list(volumes.as_list().unwrap_or_default().iter().map(named))
}

/// The volumes of a service, as `docker run --volume` takes them.
pub(super) fn volumes(service: &Section<'_>) -> Result<Value, Invalid> {
    let items = match service.get("volumes") {
        None => return Ok(Value::list([])),
        Some(Value::List(items)) => items,
        Some(other) => return Err(Invalid::new(service.at("volumes"), format!("found {}", other.kind()), "a list")),
    };
    let volume = |(at, item): (usize, &Value)| match item {
        Value::Map(map) => long(service.at(&format!("volumes[{at}]")), map),
        Value::Text(_) => Ok(item.clone()),
        other => {
            let field = service.at(&format!("volumes[{at}]"));
            Err(Invalid::new(field, format!("found {}", other.kind()), "text such as \"/host:/container:ro\""))
        }
    };
    Ok(Value::list(items.iter().enumerate().map(volume).collect::<Result<Vec<_>, _>>()?))
}

/// `{type: bind, source: /srv, target: /data, read_only: true}`.
fn long(path: String, map: &Map) -> Result<Value, Invalid> {
    let volume = Section { path, map };
    volume.only(&["read_only", "source", "target", "type"])?;
    if !matches!(volume.text("type")?.as_deref(), Some("bind" | "volume")) {
        return Err(unsupported(volume.at("type"), &["bind", "volume"]));
    }
    let needed =
        |key: &str, expected: &str| volume.text(key)?.ok_or_else(|| Invalid::new(volume.at(key), "missing", expected));
    let target = needed("target", "where it appears in the container")?;
    let source = needed("source", "a folder of the host, or the name of a volume")?;
    let mode = match volume.get("read_only") {
        None | Some(Value::Bool(false)) => "",
        Some(Value::Bool(true)) => ":ro",
        Some(other) => {
            return Err(Invalid::new(volume.at("read_only"), format!("found {}", other.kind()), "true or false"));
        }
    };
    Ok(Value::text(format!("{source}:{target}{mode}")))
}

/// The driver that the volumes with names of a service have: an engine takes one for all of a container.
pub(super) fn volume_driver(service: &Section<'_>, drivers: &[(Text, Text)]) -> Result<Option<Text>, Invalid> {
    let mut found = service.text("volume_driver")?.filter(|driver| !matches!(&**driver, "" | "local"));
    if drivers.is_empty() {
        return Ok(found);
    }
    let volumes = volumes(service)?;
    for (at, volume) in volumes.as_list().unwrap_or_default().iter().enumerate() {
        let name = volume.as_str().and_then(|text| text.split_once(':')).map_or("", |(name, _)| name);
        let Some((_, driver)) = drivers.iter().find(|(own, _)| **own == *name) else { continue };
        if let Some(other) = found.replace(driver.clone()).filter(|other| other != driver) {
            let problem = format!("its driver is {driver}, and that of another one {other}");
            let expected = "one driver for all volumes of a service";
            return Err(Invalid::new(service.at(&format!("volumes[{at}]")), problem, expected));
        }
    }
    Ok(found)
}
