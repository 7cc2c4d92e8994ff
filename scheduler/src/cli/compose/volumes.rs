//! Volumes of a compose file: those of a service, and what the file says of volumes with names.

use model::{Map, Text, Value};

use crate::cli::compose::networks::real_name;
use crate::cli::compose::section::{Section, unsupported};
use crate::cli::compose::service::truth;
use crate::place::invalid::Invalid;
use crate::place::request::volume::{fields, mount_point, named_volume};
use crate::stack::unit::INDEX;

/// What a file says of volumes with names.
#[derive(Default)]
pub(super) struct Described {
    /// Their drivers, by name; `local` and none are the engine's own.
    pub(super) drivers: Vec<(Text, Text)>,
    /// Those that each unit has one of.
    pub(super) of_units: Vec<Text>,
    /// What the engines call those that others have made, and keep.
    pub(super) external: Vec<Text>,
    /// What the engines call those that the file calls otherwise.
    pub(super) names: Vec<(Text, Text)>,
    /// Driver options of those that are made here.
    options: Vec<(Text, Value)>,
}

impl Described {
    /// The options of these volumes of a service, as engines call them; `None` if there are none.
    pub(super) fn options_of(&self, volumes: &Value, stack: &str) -> Option<Value> {
        let mut found: Vec<(Text, Value)> = Vec::new();
        for volume in volumes.as_list().unwrap_or_default() {
            let Some(name) = volume.as_str().and_then(named_volume) else { continue };
            let Some((_, options)) = self.options.iter().find(|(own, _)| **own == *name) else { continue };
            let real = self.named(volume.as_str().unwrap_or_default(), stack);
            let real = real.as_deref().unwrap_or_default();
            let real = named_volume(real).unwrap_or(name);
            if !found.iter().any(|(own, _)| **own == *real) {
                found.push((real.into(), options.clone()));
            }
        }
        (!found.is_empty()).then(|| Map::new(found).into())
    }

    /// A volume of a service as engines call it, where the file calls it otherwise.
    fn named(&self, volume: &str, stack: &str) -> Option<String> {
        let (name, rest) = volume.split_once(':')?;
        if self.of_units.iter().any(|own| **own == *name) {
            return Some(format!("{stack}-{name}-{INDEX}:{rest}"));
        }
        let (_, real) = self.names.iter().find(|(own, _)| **own == *name)?;
        Some(format!("{real}:{rest}"))
    }
}

/// The volumes that the file describes.
///
/// # Errors
///
/// Refuses what would not be honoured: the engine makes a volume by its name and driver alone.
pub(super) fn described(
    volumes: &Section<'_>,
    for_stack: bool,
    warn: &dyn Fn(String, &str),
) -> Result<Described, Invalid> {
    let mut described = Described::default();
    let known = ["driver", "external", "labels", "name"];
    // Only units of stacks have an index.
    let of_stacks: &[&str] = if for_stack { &["per_container"] } else { &[] };
    for (name, value) in volumes.map {
        if value.is_null() {
            continue;
        }
        let volume = Section::new(volumes.at(name), value)?;
        let is_external =
            matches!(volume.get("external"), Some(Value::Map(_))) || truth(&volume, "external")?.is_some();
        if volume.get("driver_opts").is_some() {
            if is_external {
                warn(volume.at("driver_opts"), "without effect: the volume is there, as `external` says");
            } else if for_stack {
                let options = options(&volume)?;
                described.options.extend(options.map(|options| (name.clone(), options)));
            } else {
                let expected = "external: true, and a volume that is made on the hosts (`docker volume create --opt`), or \
                                `scheduler up`: only stacks have volumes of their own";
                return Err(Invalid::new(volume.at("driver_opts"), "is not supported", expected));
            }
        }
        volume.only(&[&known[..], &["driver_opts"], of_stacks].concat())?;
        if truth(&volume, "per_container")?.is_some() {
            described.of_units.push(name.clone());
        }
        let own = real_name(&volume)?.unwrap_or_else(|| name.clone());
        if own != *name {
            if described.of_units.contains(name) {
                return Err(unsupported(volume.at("name"), &[name]));
            }
            described.names.push((name.clone(), own.clone()));
        }
        if is_external {
            if described.of_units.contains(name) {
                let problem = "given with external";
                return Err(Invalid::new(
                    volume.at("per_container"),
                    problem,
                    "one of them: each unit's own is made here",
                ));
            }
            described.external.push(own);
        }
        if let Some(driver) = volume.text("driver")?.filter(|driver| !matches!(&**driver, "" | "local")) {
            described.drivers.push((name.clone(), driver));
        }
    }
    Ok(described)
}

/// Driver options of a volume; `None` if it has none.
fn options(volume: &Section<'_>) -> Result<Option<Value>, Invalid> {
    let Some(all) = volume.below("driver_opts")? else { return Ok(None) };
    let mut options = Vec::new();
    for (key, _) in all.map {
        // An empty one, as a variable may be, says nothing.
        let text = all.text(key)?.filter(|text| !text.is_empty());
        options.extend(text.map(|text| (key.clone(), Value::Text(text))));
    }
    Ok((!options.is_empty()).then(|| Map::new(options).into()))
}

/// The names among these volumes, as engines call them, that others have made.
pub(super) fn external(volumes: &[Value], all: &[Text]) -> Option<Value> {
    let names = volumes.iter().filter_map(|volume| named_volume(volume.as_str()?));
    let mut names: Vec<&str> = names.filter(|name| all.iter().any(|own| **own == **name)).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| Value::list(names.into_iter().map(Value::text)))
}

/// The volumes of a service as engines call them: those of units have the stack's name and an index.
pub(super) fn named(volumes: &Value, stack: &str, described: &Described) -> Vec<Value> {
    let named = |volume: &Value| {
        let own = volume.as_str().and_then(|text| described.named(text, stack));
        own.map_or_else(|| volume.clone(), Value::text)
    };
    volumes.as_list().unwrap_or_default().iter().map(named).collect()
}

/// The volumes of a service, as `docker run --volume` takes them.
pub(super) fn volumes(service: &Section<'_>) -> Result<Value, Invalid> {
    let items = match service.get("volumes") {
        None => return Ok(Value::list([])),
        Some(Value::List(items)) => items,
        Some(other) => return Err(Invalid::new(service.at("volumes"), format!("found {}", other.kind()), "a list")),
    };
    let is_tmpfs =
        |item: &&Value| item.as_map().and_then(|map| map.text("type")).is_some_and(|kind| &**kind == "tmpfs");
    let items = items.iter().enumerate().filter(|(_, item)| !is_tmpfs(item) && item.as_str() != Some(""));
    let volume = |(at, item): (usize, &Value)| match item {
        Value::Map(map) => long(service.at(&format!("volumes[{at}]")), map),
        Value::Text(_) => Ok(item.clone()),
        other => {
            let field = service.at(&format!("volumes[{at}]"));
            Err(Invalid::new(field, format!("found {}", other.kind()), "text such as \"/host:/container:ro\""))
        }
    };
    Ok(Value::list(items.map(volume).collect::<Result<Vec<_>, _>>()?))
}

/// Checks of mounts what only an engine would refuse, when units before this one run already.
pub(super) fn check_mounts(service: &Section<'_>, mounts: &[Value]) -> Result<(), Invalid> {
    /// What an engine knows behind the place in the container.
    const MODES: [&str; 14] = [
        "Z",
        "cached",
        "consistent",
        "delegated",
        "nocopy",
        "private",
        "ro",
        "rprivate",
        "rshared",
        "rslave",
        "rw",
        "shared",
        "slave",
        "z",
    ];
    let mut places = Vec::new();
    for mount in mounts.iter().filter_map(Value::as_str) {
        let wrong = |problem: String, expected: String| Err(Invalid::new(service.at("volumes"), problem, expected));
        match fields(mount)[..] {
            [_, _, modes] => {
                // An empty one, as a variable may be, says nothing.
                if let Some(mode) = modes.split(',').find(|mode| !mode.is_empty() && !MODES.contains(mode)) {
                    return wrong(format!("found {mode:?} in {mount:?}"), format!("of {}", MODES.join(", ")));
                }
                if ["ro", "rw"].iter().all(|mode| modes.split(',').any(|own| own == *mode)) {
                    return wrong(format!("found {mount:?}"), "ro or rw".into());
                }
            }
            [_, _, _, ..] => return wrong(format!("found {mount:?}"), "source, place in the container, modes".into()),
            _ => {}
        }
        let place = mount_point(mount).trim_end_matches('/').to_owned();
        if places.contains(&place) {
            return wrong(format!("two appear at {place}"), "one at each place in the container".into());
        }
        places.push(place);
    }
    Ok(())
}

/// `{type: bind, source: /srv, target: /data, read_only: true}`.
fn long(path: String, map: &Map) -> Result<Value, Invalid> {
    let volume = Section { path, map };
    volume.only(&["bind", "consistency", "read_only", "source", "target", "type", "volume"])?;
    let kind = volume.text("type")?;
    if !matches!(kind.as_deref(), Some("bind" | "npipe" | "volume")) {
        return Err(unsupported(volume.at("type"), &["bind", "npipe", "tmpfs", "volume"]));
    }
    let target = target_of(&volume)?;
    let mut modes: Vec<String> = truth(&volume, "read_only")?.map(|_| "ro".to_owned()).into_iter().collect();
    if let Some(bind) = volume.below("bind")? {
        bind.only(&["create_host_path", "propagation", "selinux"])?;
        if bind.get("create_host_path").is_some() && truth(&bind, "create_host_path")?.is_none() {
            let expected = "true: engines make a folder that is not there";
            return Err(Invalid::new(bind.at("create_host_path"), "false is not supported", expected));
        }
        modes.extend(bind.text("propagation")?.map(|mode| mode.to_string()));
        modes.extend(bind.text("selinux")?.map(|mode| mode.to_string()));
    }
    if let Some(options) = volume.below("volume")? {
        options.only(&["nocopy"])?;
        modes.extend(truth(&options, "nocopy")?.map(|_| "nocopy".to_owned()));
    }
    let colon = if modes.is_empty() { "" } else { ":" };
    Ok(match volume.text("source")? {
        Some(source) => Value::text(format!("{source}:{target}{colon}{}", modes.join(","))),
        // One without a name.
        None if kind.as_deref() == Some("volume") && modes.is_empty() => Value::Text(target),
        None if kind.as_deref() == Some("volume") => {
            let key = if volume.get("read_only").is_some() { "read_only" } else { "volume" };
            let expected = "a source, the name of a volume: one without a name is empty, and its container's alone";
            return Err(Invalid::new(volume.at(key), "is not supported without a source", expected));
        }
        None => {
            return Err(Invalid::new(volume.at("source"), "missing", "a folder of the host, or the name of a volume"));
        }
    })
}

fn target_of(volume: &Section<'_>) -> Result<Text, Invalid> {
    let target = volume.text("target")?;
    target.ok_or_else(|| Invalid::new(volume.at("target"), "missing", "where it appears in the container"))
}

/// The volumes of a service that are in memory, as `tmpfs` has them.
pub(super) fn in_memory(service: &Section<'_>) -> Result<Vec<Value>, Invalid> {
    let mut found = Vec::new();
    for (at, item) in service.get("volumes").and_then(Value::as_list).unwrap_or_default().iter().enumerate() {
        let Value::Map(map) = item else { continue };
        let volume = Section { path: service.at(&format!("volumes[{at}]")), map };
        if volume.text("type")?.as_deref() != Some("tmpfs") {
            continue;
        }
        volume.only(&["consistency", "read_only", "target", "tmpfs", "type"])?;
        let mut options: Vec<String> = truth(&volume, "read_only")?.map(|_| "ro".to_owned()).into_iter().collect();
        if let Some(more) = volume.below("tmpfs")? {
            more.only(&["mode", "size"])?;
            for key in ["mode", "size"] {
                options.extend(more.text(key)?.map(|value| format!("{key}={value}")));
            }
        }
        let colon = if options.is_empty() { "" } else { ":" };
        found.push(Value::text(format!("{}{colon}{}", target_of(&volume)?, options.join(","))));
    }
    Ok(found)
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

/// The volumes with names of a service that its driver makes too, although the file gives them none: their places in the list.
pub(super) fn without_driver(service: &Section<'_>, described: &Described) -> Result<Vec<usize>, Invalid> {
    let volumes = volumes(service)?;
    let is_made_here = |name: &str| {
        let real = described.names.iter().find(|(own, _)| **own == *name).map_or(name, |(_, real)| real);
        described.drivers.iter().all(|(own, _)| **own != *name) && described.external.iter().all(|own| **own != *real)
    };
    let named = volumes
        .as_list()
        .unwrap_or_default()
        .iter()
        .enumerate()
        .filter(|(_, volume)| volume.as_str().and_then(named_volume).is_some_and(is_made_here));
    Ok(named.map(|(at, _)| at).collect())
}
