//! What the predecessor's second file, `rancher-compose.yml`, says of services: how many, how they are checked and updated. ◇
//!
//! It describes the same services as the compose file beside it, so its keys are keys of these. A compose file may have them too.

use model::{Map, Text, Value};

use crate::cli::compose::Compose;
use crate::cli::compose::deploy::MONITOR_DEFAULT;
use crate::cli::compose::section::{Draft, Section, unsupported};
use crate::cli::compose::service::{integer, truth, truth_of};
use crate::place::invalid::Invalid;

/// Its keys, besides `scale`, which compose has too.
pub(super) const KEYS: &[&str] = &[
    "certs",
    "default_cert",
    "drain_timeout_ms",
    "health_check",
    "lb_config",
    "load_balancer_config",
    "metadata",
    "retain_ip",
    "scale_policy",
    "start_on_create",
    "upgrade_strategy",
];

/// Keys that are read and do nothing, and where it is said instead.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("certs", OF_BALANCERS),
    ("default_cert", OF_BALANCERS),
    ("drain_timeout_ms", OF_BALANCERS),
    ("lb_config", OF_BALANCERS),
    ("load_balancer_config", OF_BALANCERS),
    ("metadata", "metadata of a service is what a cluster file says (docs/document.md)"),
];

const OF_BALANCERS: &str = "balancers follow the lb_config of a cluster file (docs/balancer.md)";

/// Numbers of a health check, which become labels of the same name; times are milliseconds in both.
const CHECK_NUMBERS: [&str; 7] = [
    "healthy_threshold",
    "initializing_timeout",
    "interval",
    "port",
    "reinitializing_timeout",
    "response_timeout",
    "unhealthy_threshold",
];

/// The services that such a file describes.
///
/// # Errors
///
/// Fails if it is no such file: its top has services, or with a version `services` and what the catalog says.
pub(super) fn services(file: &Value) -> Result<Map, Invalid> {
    if file.is_null() {
        return Ok(Map::default());
    }
    let file = Section::new(String::new(), file)?;
    let is_versioned = file.get("services").is_some() || file.get("version").is_some();
    let services = if is_versioned {
        file.only(&[".catalog", "catalog", "services", "version"])?;
        file.below("services")?.map_or_else(Map::default, |section| section.map.clone())
    } else {
        file.map.without(".catalog").without("catalog")
    };
    let top = if is_versioned { "services." } else { "" };
    for (name, value) in services.iter().filter(|(_, value)| !value.is_null()) {
        Section::new(format!("{top}{name}"), value)?;
    }
    Ok(services)
}

/// A service with what both files say: of one key the second file's value, of maps the entries of both.
fn joined(service: &Value, more: &Map) -> Value {
    let Some(map) = service.as_map() else { return service.clone() };
    let entry = |(key, value): &(Text, Value)| match (map.get(key), value) {
        (Some(Value::Map(own)), Value::Map(more)) => (key.clone(), own.with(more.iter().cloned()).into()),
        _ => (key.clone(), value.clone()),
    };
    map.with(more.iter().filter(|(_, value)| !value.is_null()).map(entry)).into()
}

impl Compose<'_> {
    /// These services with what the second file says of them.
    pub(super) fn with_rancher(&self, services: &Map) -> Result<Map, Invalid> {
        let Some(file) = self.rancher else { return Ok(services.clone()) };
        let more = self::services(file)?;
        for (name, _) in more.iter().filter(|(name, _)| services.get(name).is_none()) {
            self.warn(format!("{}{name}", self.top), "no such service in the compose file: without effect");
        }
        let both = |(name, service): &(Text, Value)| match more.map(name) {
            Some(more) => (name.clone(), joined(service, more)),
            None => (name.clone(), service.clone()),
        };
        Ok(Map::new(services.iter().map(both).collect()))
    }

    /// Checks those of its keys that become no field of a request.
    pub(super) fn check_rancher(&self, service: &Section<'_>) -> Result<(), Invalid> {
        for (key, instead) in WITHOUT_EFFECT {
            if service.get(key).is_some() {
                self.warn(service.at(key), &format!("without effect: {instead}"));
            }
        }
        if truth(service, "retain_ip")?.is_some() {
            let why = "without effect: a new container has an address of its own, and names lead to it";
            self.warn(service.at("retain_ip"), why);
        }
        Ok(())
    }

    /// `false` if no unit is started when a stack gets the service.
    pub(super) fn start_on_create(&self, service: &Section<'_>, is_global: bool) -> Result<Option<Value>, Invalid> {
        const KEY: &str = "start_on_create";
        truth(service, KEY)?;
        let value = service.get(KEY);
        if value.and_then(Value::as_bool).or_else(|| truth_of(value?.as_str()?)) != Some(false) {
            return Ok(None);
        }
        let wrong = |expected: &str| Err(Invalid::new(service.at(KEY), "false is not supported", expected));
        if !self.for_stack {
            return wrong("true: only stacks (`scheduler up`) have services that are started later");
        }
        if is_global {
            return wrong("true: a global service runs on every host that fits");
        }
        Ok(Some(false.into()))
    }

    /// How many units there are to be.
    pub(super) fn scale(&self, service: &Section<'_>) -> Result<Option<Value>, Invalid> {
        let scale = integer(service, "scale")?;
        let Some(policy) = service.below("scale_policy")? else { return Ok(scale.map(Value::Int)) };
        policy.only(&["increment", "max", "min"])?;
        let (least, most) = (integer(&policy, "min")?, integer(&policy, "max")?);
        integer(&policy, "increment")?;
        let count = scale.or(least).unwrap_or(1).max(least.unwrap_or(1));
        if most.is_some_and(|most| most > count) {
            self.warn(service.at("scale_policy"), &format!("it stays at {count}: `scheduler scale` changes that"));
        }
        Ok(Some(Value::Int(count)))
    }

    /// How units are replaced by those of another version.
    pub(super) fn upgrade(&self, service: &Section<'_>) -> Result<Option<Value>, Invalid> {
        let Some(rules) = service.below("upgrade_strategy")? else { return Ok(None) };
        rules.only(&["batch_size", "interval_millis", "start_first"])?;
        let mut update: Draft = Vec::new();
        update.extend(integer(&rules, "batch_size")?.map(|batch| ("batch".into(), Value::Int(batch))));
        if rules.get("start_first").is_some() {
            let order = if truth(&rules, "start_first")?.is_some() { "start-first" } else { "stop-first" };
            update.push(("order".into(), order.into()));
        }
        if let Some(pause) = integer(&rules, "interval_millis")? {
            // The next batch begins when this one has been good for a while: that is the pause.
            let seconds = pause.max(0).saturating_add(999) / 1000;
            update.push(("monitor".into(), Value::Int(seconds.max(MONITOR_DEFAULT))));
        }
        if !self.for_stack {
            self.warn(service.at("upgrade_strategy"), "without effect: only stacks (`scheduler up`) are updated");
            return Ok(None);
        }
        // What compose itself says of updates counts.
        let deploy = service.get("deploy").and_then(Value::as_map);
        Ok(deploy.is_none_or(|map| map.get("update_config").is_none()).then(|| Map::new(update).into()))
    }
}

/// The labels of its health check, but for those that it has.
pub(super) fn health(service: &Section<'_>, labels: &[(Text, Value)]) -> Result<Vec<(Text, Value)>, Invalid> {
    let Some(check) = service.below("health_check")? else { return Ok(Vec::new()) };
    let words = ["recreate_on_quorum_strategy_config", "request_line", "strategy"];
    check.only(&[&CHECK_NUMBERS[..], &words].concat())?;
    let mut found: Draft = Vec::new();
    for key in CHECK_NUMBERS {
        let Some(number) = integer(&check, key)? else { continue };
        let most = if key == "port" { i64::from(u16::MAX) } else { i64::from(u32::MAX) };
        if !(1..=most).contains(&number) {
            return Err(Invalid::new(check.at(key), format!("found {number}"), format!("1 to {most}")));
        }
        found.push((key.into(), Value::text(number.to_string())));
    }
    found.extend(
        check
            .text("request_line")?
            .filter(|line| !line.trim().is_empty())
            .map(|line| ("request_line".into(), line.into())),
    );
    if let Some(strategy) = check.text("strategy")?.filter(|strategy| !strategy.is_empty()) {
        let known = ["none", "recreate", "recreateOnQuorum"];
        if !known.contains(&&*strategy) {
            return Err(unsupported(check.at("strategy"), &known));
        }
        found.push(("strategy".into(), Value::Text(strategy)));
    }
    if let Some(config) = check.below("recreate_on_quorum_strategy_config")? {
        config.only(&["quorum"])?;
        found.extend(integer(&config, "quorum")?.map(|quorum| ("quorum".into(), Value::text(quorum.to_string()))));
    }
    let named = found.into_iter().map(|(key, value)| (Text::from(format!("{}{key}", model::health::LABEL)), value));
    Ok(named.filter(|(key, _)| !labels.iter().any(|(own, _)| own == key)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::compose::{Reading, requests};

    type Read = (Vec<serde_json::Value>, Vec<String>);

    fn read_for(for_stack: bool, compose: &str, rancher: &str) -> Result<Read, Invalid> {
        let value = |text: &str| source::format::parse(text).unwrap().value(model::scalar::core);
        let variable = |name: &str| (name == "N").then(|| "3".to_owned());
        let rancher = value(rancher);
        let reading = Reading { variable: &variable, for_stack, rancher: Some(&rancher), ..Reading::of_tests() };
        let mut warnings = Vec::new();
        let found = requests(&[value(compose)], &reading, &mut warnings)?;
        let found = found.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
        Ok((found, warnings.iter().map(|told| format!("{}: {}", told.field, told.text)).collect()))
    }

    fn one(rancher: &str) -> Result<Read, Invalid> {
        read_for(true, "version: '2'\nservices: {web: {image: web}}\n", &format!("services: {{web: {{{rancher}}}}}\n"))
    }

    fn check_wrong(rancher: &str, field: &str, part: &str) {
        let error = one(rancher).unwrap_err();
        assert_eq!(error.field, field, "{rancher}: {error}");
        assert!(error.to_string().contains(part), "{rancher}: {error}");
    }

    #[test]
    fn what_it_says_becomes_fields_of_the_service() {
        for (rancher, field, expected) in [
            ("scale: 2", "/count", json!(2)),
            ("scale: '${N}'", "/count", json!(3)),
            ("scale: 2, scale_policy: {min: 3, max: 3}", "/count", json!(3)),
            ("scale_policy: {min: 2, max: 2, increment: 1}", "/count", json!(2)),
            ("start_on_create: true", "/count", json!(null)),
            ("retain_ip: false", "/count", json!(null)),
            ("health_check: {port: '80', interval: 2000}", "/labels/io.berth.health.port", json!("80")),
            ("health_check: {port: 80, interval: 2000}", "/labels/io.berth.health.interval", json!("2000")),
            (
                "health_check: {port: 80, request_line: '\"GET\" / HTTP/1.0'}",
                "/labels/io.berth.health.request_line",
                json!("\"GET\" / HTTP/1.0"),
            ),
            ("health_check: {port: 80, request_line: ''}", "/labels/io.berth.health.request_line", json!(null)),
            ("health_check: {port: 80, strategy: none}", "/labels/io.berth.health.strategy", json!("none")),
            (
                "health_check: {port: 80, recreate_on_quorum_strategy_config: {quorum: 2}}",
                "/labels/io.berth.health.quorum",
                json!("2"),
            ),
            (
                "upgrade_strategy: {start_first: true, batch_size: 2}",
                "/update",
                json!({"batch": 2, "order": "start-first"}),
            ),
            ("upgrade_strategy: {start_first: false}", "/update", json!({"order": "stop-first"})),
            ("upgrade_strategy: {interval_millis: 2000}", "/update", json!({"monitor": 10})),
            ("upgrade_strategy: {interval_millis: 30500}", "/update", json!({"monitor": 31})),
            // Keys of compose may stand in either file; this one wins.
            ("image: other, environment: {A: 1}", "/image", json!("other")),
        ] {
            let (found, _) = one(rancher).unwrap_or_else(|error| panic!("{rancher}: {error}"));
            let value = found[0].pointer(field).cloned().unwrap_or_default();
            assert_eq!(value, expected, "{rancher}: {}", found[0]);
        }
        // A label that says it is not overruled.
        let compose = "web: {image: a, labels: {io.berth.health.port: 81}, health_check: {port: 80, interval: 5}}\n";
        let (found, _) = read_for(true, compose, "{}\n").unwrap();
        assert_eq!(found[0]["labels"], json!({"io.berth.health.port": 81, "io.berth.health.interval": "5"}));
    }

    #[test]
    fn what_is_wrong_in_it_is_named() {
        for (rancher, field, part) in [
            ("scale: many", "services.web.scale", "a whole number"),
            ("start_on_create: 5", "services.web.start_on_create", "true or false"),
            ("scale_policy: {least: 1}", "services.web.scale_policy.least", "not supported"),
            ("health_check: {port: 70000}", "services.web.health_check.port", "1 to 65535"),
            ("health_check: {prot: 80}", "services.web.health_check.prot", "not supported"),
            ("health_check: {port: 80, strategy: pray}", "services.web.health_check.strategy", "recreate"),
            ("upgrade_strategy: {batch: 2}", "services.web.upgrade_strategy.batch", "not supported"),
            ("upgrade_strategy: {start_first: 5}", "services.web.upgrade_strategy.start_first", "true or false"),
            ("external_ips: [192.0.2.1]", "services.web.external_ips", "not supported"),
            ("network_driver: {name: a}", "services.web.network_driver", "not supported"),
            ("vcpu: 2", "services.web.vcpu", "not supported"),
        ] {
            check_wrong(rancher, field, part);
        }
        let top = |rancher: &str| read_for(true, "web: {image: web}\n", rancher).unwrap_err();
        assert_eq!(top("version: '2'\nservises: {}\n").field, "servises");
        assert_eq!(top("web: 5\n").field, "web");
        assert_eq!(top("- a\n").field, "");
        let value = |text: &str| source::format::parse(text).unwrap().value(model::scalar::core);
        let rancher = value("{}");
        let reading = Reading { stack: "a", rancher: Some(&rancher), ..Reading::of_tests() };
        let error = requests(&[value("id: a\nimage: b\n")], &reading, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("one compose file"), "{error}");
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let warned = |rancher: &str| one(rancher).unwrap().1.join("; ");
        for (rancher, part) in [
            ("retain_ip: true", "services.web.retain_ip: without effect"),
            ("metadata: {a: 1}", "services.web.metadata: without effect"),
            ("lb_config: {port_rules: []}", "docs/balancer.md"),
            ("scale_policy: {min: 1, max: 3}", "it stays at 1"),
            ("image: '${NOBODY}b'", "services.web.image: nothing sets NOBODY"),
            (
                "labels: {io.rancher.container.create_agent: true}",
                "labels.io.rancher.container.create_agent: a label like any other",
            ),
        ] {
            assert!(warned(rancher).contains(part), "{rancher}: {}", warned(rancher));
        }
        assert_eq!(warned("scale: 1, labels: {io.rancher.scheduler.global: true, a: b}"), "");
        let (found, told) =
            read_for(true, "web: {image: a}\n", "web:\nold: {scale: 2}\n.catalog: {name: a}\n").unwrap();
        assert_eq!((found.len(), told.len()), (1, 1), "{told:?}");
        assert!(told[0].starts_with("old: no such service"), "{told:?}");
        let strategy = "services: {web: {upgrade_strategy: {batch_size: 2}}}\n";
        let (found, told) = read_for(false, "services: {web: {image: a}}\n", strategy).unwrap();
        assert!(found[0]["update"].is_null() && told[0].contains("scheduler up"), "{told:?}");
    }

    #[test]
    fn sidekicks_have_the_scale_of_their_unit() {
        let compose = "web: {image: a, labels: {io.rancher.sidekicks: side}}\nside: {image: b}\n";
        for side in ["scale: 1", "scale: 3", "scale: 1, upgrade_strategy: {start_first: true}, start_on_create: true"] {
            let rancher = format!("web: {{scale: 3}}\nside: {{{side}}}\n");
            let (found, _) = read_for(true, compose, &rancher).unwrap_or_else(|error| panic!("{side}: {error}"));
            assert_eq!((found.len(), &found[0]["count"]), (1, &json!(3)), "{side}");
            assert!(found[0]["sidekicks"][0].get("update").is_none(), "{}", found[0]);
        }
        let error = read_for(true, compose, "web: {scale: 3}\nside: {scale: 2}\n").unwrap_err();
        assert_eq!(error.field, "side.scale");
    }

    #[test]
    fn names_of_volumes_may_have_variables() {
        let compose = "version: '2'\nvolumes: {'data${N}': {driver: nfs}}\nservices: {a: {image: a, volumes: ['data${N}:/data']}}\n";
        let (found, _) = read_for(true, compose, "{}\n").unwrap();
        assert_eq!(found[0]["engine"]["volume_driver"], "nfs");
    }

    #[test]
    fn each_unit_of_a_stack_may_have_a_volume_of_its_own() {
        let compose = "version: '2'\nvolumes: {data: {driver: nfs, per_container: true}, all: {per_container: false}}\n\
                       services: {a: {image: a, volumes: ['data:/data:ro', 'all:/all', '/data:/x']}}\n";
        let (found, _) = read_for(true, compose, "{}\n").unwrap();
        assert_eq!(found[0]["volumes"], json!(["shop-data-${index}:/data:ro", "all:/all", "/data:/x"]));
        assert_eq!(found[0]["engine"]["volume_driver"], "nfs");
        let error = read_for(false, compose, "{}\n").unwrap_err();
        assert_eq!(error.field, "volumes.all.per_container");
    }
}
