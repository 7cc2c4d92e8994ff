//! What a compose file says of where a service runs, how much it takes and when it is started again.

use model::{Map, Value};

use crate::cli::compose::section::{Draft, Section, the_same, unsupported};
use crate::cli::compose::service::integer;
use crate::cli::compose::settings::bytes;
use crate::place::invalid::Invalid;
use crate::place::request::limits::COUNT_MAX;

/// Seconds in health until a unit is good, unless the update says otherwise.
pub(super) const MONITOR_DEFAULT: i64 = 10;

pub(super) fn placement_of(placement: &Section<'_>) -> Result<(Value, Value), Invalid> {
    placement.only(&["constraints", "preferences"])?;
    let list = |key: &str| match placement.get(key) {
        None => Ok(&[][..]),
        Some(Value::List(items)) => Ok(&**items),
        Some(other) => Err(Invalid::new(placement.at(key), format!("found {}", other.kind()), "a list")),
    };
    for (at, item) in list("constraints")?.iter().enumerate() {
        let key = item.as_str().unwrap_or_default().trim();
        let known = ["node.id", "node.hostname", "node.labels.", "node.platform.os", "node.platform.arch"];
        let theirs = key.starts_with("node.") || key.starts_with("engine.");
        if theirs && !known.iter().any(|known| key.starts_with(known)) {
            return Err(unsupported(placement.at(&format!("constraints[{at}]: {key}")), &known));
        }
    }
    let mut spread = Vec::new();
    for (at, item) in list("preferences")?.iter().enumerate() {
        let preference = Section::new(placement.at(&format!("preferences[{at}]")), item)?;
        preference.only(&["spread"])?;
        let label = preference.text("spread")?;
        let label = label.ok_or_else(|| Invalid::new(preference.at("spread"), "missing", "node.labels.NAME"))?;
        spread.push(Value::text(label.strip_prefix("node.labels.").unwrap_or(&label)));
    }
    Ok((Value::list(list("constraints")?.iter().cloned()), Value::list(spread)))
}

/// Keys of a restart policy that have no effect: an engine has pauses of its own.
pub(super) const PAUSES: [&str; 2] = ["delay", "window"];

pub(super) fn restart(policy: &Section<'_>) -> Result<Value, Invalid> {
    policy.only(&[&["condition", "max_attempts"][..], &PAUSES].concat())?;
    let times = policy.text("max_attempts")?;
    Ok(match policy.text("condition")?.as_deref() {
        Some("none") => "no".into(),
        Some("on-failure") => match times {
            Some(times) => Value::text(format!("on-failure:{times}")),
            None => "on-failure".into(),
        },
        None | Some("any") if times.is_none() => "always".into(),
        None | Some("any") => {
            let expected = "condition: on-failure, the only one whose attempts an engine counts";
            return Err(Invalid::new(policy.at("max_attempts"), "is not supported with the condition any", expected));
        }
        _ => return Err(unsupported(policy.at("condition"), &["none", "on-failure", "any"])),
    })
}

/// How the units of a service of a stack are replaced.
pub(super) fn update(rules: &Section<'_>) -> Result<Value, Invalid> {
    rules.only(&["delay", "failure_action", "max_failure_ratio", "monitor", "order", "parallelism"])?;
    let mut update: Draft = Vec::new();
    // None is all at once.
    let batch = integer(rules, "parallelism")?.map(|batch| if batch == 0 { COUNT_MAX } else { batch });
    update.extend(batch.map(|batch| ("batch".into(), Value::Int(batch))));
    let time = |key: &str| -> Result<Option<i64>, Invalid> {
        let Some(text) = rules.text(key)? else { return Ok(None) };
        let wrong = || Invalid::new(rules.at(key), format!("found {text:?}"), "a time such as 10s or 1m30s");
        seconds(&text).or_else(|| (&*text == "0").then_some(0)).ok_or_else(wrong).map(Some)
    };
    // The next batch begins when this one has been good for a while: that is the pause.
    let pause = time("delay")?.filter(|pause| *pause > 0).map(|pause| pause.max(MONITOR_DEFAULT));
    update.extend(time("monitor")?.max(pause).map(|monitor| ("monitor".into(), Value::Int(monitor))));
    for (key, field) in [("order", "order"), ("failure_action", "on_failure")] {
        update.extend(rules.text(key)?.map(|word| (field.into(), Value::Text(word))));
    }
    if rules.text("max_failure_ratio")?.is_some_and(|text| !text.trim_end_matches(['.', '0']).is_empty()) {
        return Err(unsupported(rules.at("max_failure_ratio"), &["0"]));
    }
    Ok(Map::new(update).into())
}

/// What a service takes, and the most that it may take.
pub(super) fn amounts(service: &Section<'_>) -> Result<(Value, Value), Invalid> {
    let section = service.below("deploy")?.map_or(Ok(None), |deploy| deploy.below("resources"))?;
    if let Some(section) = &section {
        section.only(&["limits", "reservations"])?;
    }
    let below = |key| section.as_ref().map_or(Ok(None), |section| section.below(key));
    let reserved = ("milli_cpu_reservation", integer(service, "milli_cpu_reservation")?.map(Value::Int));
    let known = ["cpus", "memory", "pids"];
    let resources = amounts_of(below("reservations")?, &known[..2], (service, "mem_reservation"), reserved)?;
    let most = ("cpus", processors(service, "cpus")?);
    Ok((resources, amounts_of(below("limits")?, &known, (service, "mem_limit"), most)?))
}

/// Memory and processors as keys of a service say them, or a section of `deploy`.
fn amounts_of(
    deploy: Option<Section<'_>>,
    known: &[&str],
    (service, memory_key): (&Section<'_>, &str),
    (cpus_key, mut cpus): (&str, Option<Value>),
) -> Result<Value, Invalid> {
    let mut memory = service.get(memory_key).and_then(bytes);
    if let Some(deploy) = deploy {
        deploy.only(known)?;
        let more = deploy.get("memory").and_then(bytes);
        memory = the_same(memory, (more, deploy.at("memory")), memory_key)?;
        cpus = the_same(cpus, (processors(&deploy, "cpus")?, deploy.at("cpus")), cpus_key)?;
    }
    let fields = [("memory", memory), ("milli_cpu", cpus)];
    Ok(Map::new(fields.into_iter().filter_map(|(name, value)| Some((name.into(), value?))).collect()).into())
}

fn processors(section: &Section<'_>, key: &str) -> Result<Option<Value>, Invalid> {
    let Some(text) = section.text(key)? else { return Ok(None) };
    match thousandths(&text) {
        Some(milli) => Ok(Some(Value::Int(milli))),
        None => Err(Invalid::new(section.at(key), format!("found {text:?}"), "processors such as 0.5")),
    }
}

/// Thousandths in a decimal number such as `0.5`.
pub(crate) fn thousandths(text: &str) -> Option<i64> {
    let (whole, part) = text.trim().split_once('.').unwrap_or_else(|| (text.trim(), "0"));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || !text.contains(|char: char| char.is_ascii_digit()) {
        return None;
    }
    let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: i64 = format!("{part:0<3}")[..3].parse().ok()?;
    whole.checked_mul(1000)?.checked_add(part)
}

/// The seconds of a time such as `1m30s`, rounded up: engines count whole ones.
pub(super) fn seconds(text: &str) -> Option<i64> {
    Some(micros(text)?.checked_add(999_999)? / 1_000_000)
}

/// The millionths of a second of a time.
pub(super) fn micros(text: &str) -> Option<i64> {
    let mut rest = text.trim();
    let mut micros: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let unit = rest[digits..].find(|char: char| char.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let each = match &rest[digits..unit] {
            "us" => 1,
            "ms" => 1000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            _ => return None,
        };
        micros = micros.checked_add(thousandths(&rest[..digits])?.checked_mul(each)? / 1000)?;
        rest = &rest[unit..];
    }
    (!text.trim().is_empty()).then_some(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_between_batches_is_time_in_health() {
        for (rules, monitor) in [
            ("{delay: 30s}", Some(30)),
            ("{delay: 2s}", Some(10)),
            ("{delay: 2s, monitor: 5s}", Some(10)),
            ("{delay: 10s, monitor: 1m}", Some(60)),
            ("{monitor: 1s}", Some(1)),
            ("{delay: 0s, monitor: 1s}", Some(1)),
            ("{delay: 0}", None),
            ("{order: start-first}", None),
        ] {
            let value = source::format::parse(rules).unwrap().value(model::scalar::core);
            let update = update(&Section::new("update_config".into(), &value).unwrap()).unwrap();
            assert_eq!(update.as_map().unwrap().int("monitor"), monitor, "{rules}");
        }
    }

    #[test]
    fn times_are_read_as_compose_writes_them() {
        for (text, expected) in [
            ("10s", Some(10)),
            ("1m30s", Some(90)),
            ("1.5s", Some(2)),
            ("500ms", Some(1)),
            ("0s", Some(0)),
            ("2h", Some(7200)),
            ("10", None),
            ("", None),
            ("s", None),
            ("1d", None),
            ("99999999999999999h", None),
        ] {
            assert_eq!(seconds(text), expected, "{text:?}");
        }
    }
}
