//! Where in a compose file the fields of a request come from, for errors about the request. ◇

use crate::cli::compose::section::Section;

/// Fields of a container that a service says in one of several places, each with these in the order in which they count.
const RENAMED: [(&str, &[&str]); 15] = [
    ("constraints", &["deploy.placement.constraints"]),
    ("count", &["deploy.replicas", "scale", "scale_policy"]),
    ("limits.memory", &["deploy.resources.limits.memory", "mem_limit"]),
    ("limits.milli_cpu", &["deploy.resources.limits.cpus", "cpus"]),
    ("resources.memory", &["deploy.resources.reservations.memory", "mem_reservation"]),
    ("resources.milli_cpu", &["deploy.resources.reservations.cpus", "milli_cpu_reservation"]),
    ("rollback", &["deploy.rollback_config"]),
    ("rollback.batch", &["deploy.rollback_config.parallelism"]),
    ("rollback.on_failure", &["deploy.rollback_config.failure_action"]),
    ("spread", &["deploy.placement.preferences"]),
    ("start_after", &["depends_on"]),
    ("update", &["deploy.update_config", "upgrade_strategy"]),
    ("update.batch", &["deploy.update_config.parallelism", "upgrade_strategy.batch_size"]),
    ("update.on_failure", &["deploy.update_config.failure_action"]),
    ("update.order", &["deploy.update_config.order", "upgrade_strategy.start_first"]),
];

/// The way to fields in a request, each with the way to what has said it in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(Vec<(String, String)>);

impl Origins {
    /// Those of a request that stands in the file as it is, there.
    pub(super) fn itself(at: &str) -> Self {
        Self(vec![(String::new(), at.to_owned())])
    }

    /// Notes where a field, and all below it that is not noted itself, comes from.
    pub(super) fn put(&mut self, field: impl Into<String>, origin: impl Into<String>) {
        self.0.push((field.into(), origin.into()));
    }

    /// Notes the fields of a container, at `field` of a request, that this service calls otherwise.
    pub(super) fn put_renamed(&mut self, field: &str, service: &Section<'_>) {
        let is_there = |way: &&&str| {
            let mut keys = way.split('.');
            let first = keys.next().and_then(|key| service.get(key));
            keys.try_fold(first, |value, key| Some(value?.as_map()?.get(key))).flatten().is_some()
        };
        for (own, ways) in RENAMED {
            if let Some(way) = ways.iter().find(is_there) {
                self.put(joined(field, own), service.at(way));
            }
        }
    }

    /// The same in one of several documents.
    pub(super) fn within(mut self, place: impl Fn(&str) -> String) -> Self {
        for (_, origin) in &mut self.0 {
            *origin = place(origin);
        }
        self
    }

    /// The ways in the file.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, origin)| &**origin)
    }

    /// What of the file has said a field: the way to the closest that is noted, and the rest behind it.
    pub(crate) fn of(&self, field: &str) -> Option<(&str, String)> {
        let below = |own: &str| match field.strip_prefix(own)? {
            rest if own.is_empty() || rest.is_empty() => Some(rest),
            rest => rest.strip_prefix('.').or_else(|| rest.starts_with('[').then_some(rest)),
        };
        let noted = self.0.iter().filter_map(|(own, origin)| Some((own.len(), origin, below(own)?)));
        let (_, origin, rest) = noted.max_by_key(|(length, ..)| *length)?;
        Some((origin, as_in_compose(rest)))
    }
}

/// The way to a field of a container, where a compose file calls it otherwise than a request.
fn as_in_compose(field: &str) -> String {
    match field {
        // What of it is in the message.
        "engine" => "",
        other => other.strip_prefix("engine.").unwrap_or(other),
    }
    .to_owned()
}

/// Two parts of a way to a field.
pub(crate) fn joined(origin: &str, rest: &str) -> String {
    let dot = if origin.is_empty() || rest.is_empty() || rest.starts_with('[') { "" } else { "." };
    format!("{origin}{dot}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_name_that_the_service_gives_it() {
        for (service, field, expected) in [
            ("mem_limit: 1", "limits.memory", "services.web.mem_limit"),
            (
                "deploy: {resources: {limits: {memory: 1}}}",
                "limits.memory",
                "services.web.deploy.resources.limits.memory",
            ),
            ("scale: 2", "count", "services.web.scale"),
            ("deploy: {replicas: 2}, scale: 2", "count", "services.web.deploy.replicas"),
            ("deploy: {update_config: {order: a}}", "update.order", "services.web.deploy.update_config.order"),
            (
                "deploy: {update_config: {parallelism: 1}}",
                "update.batch",
                "services.web.deploy.update_config.parallelism",
            ),
            ("deploy: {update_config: {}}", "update.monitor", "services.web.deploy.update_config.monitor"),
            ("upgrade_strategy: {batch_size: 1}", "update.batch", "services.web.upgrade_strategy.batch_size"),
            (
                "deploy: {placement: {constraints: [a]}}",
                "constraints[0]",
                "services.web.deploy.placement.constraints[0]",
            ),
            ("image: a", "update.order", "services.web.update.order"),
        ] {
            let value = source::format::parse(&format!("{{{service}}}")).unwrap().value(model::scalar::core);
            let mut origins = Origins::default();
            origins.put("", "services.web");
            origins.put_renamed("", &Section::new("services.web".into(), &value).unwrap());
            let (origin, rest) = origins.of(field).unwrap();
            assert_eq!(joined(origin, &rest), expected, "{service}");
        }
    }

    #[test]
    fn a_field_is_found_in_what_has_said_it() {
        let mut origins = Origins::default();
        for (field, origin) in [
            ("", "services.web"),
            ("files[1]", "services.web.secrets[0]"),
            ("files[1].content", "secrets.pw.file"),
            ("sidekicks[0]", "services.log"),
        ] {
            origins.put(field, origin);
        }
        for (field, expected) in [
            ("image", "services.web.image"),
            ("", "services.web"),
            ("engine.cap_add[1]", "services.web.cap_add[1]"),
            ("engine", "services.web"),
            ("files[1]", "services.web.secrets[0]"),
            ("files[1].target", "services.web.secrets[0].target"),
            ("files[1].content", "secrets.pw.file"),
            ("files[1].content_base64", "services.web.secrets[0].content_base64"),
            ("files[10]", "services.web.files[10]"),
            ("sidekicks[0].volumes[2]", "services.log.volumes[2]"),
        ] {
            let (origin, rest) = origins.of(field).unwrap();
            assert_eq!(joined(origin, &rest), expected, "{field}");
        }
        let listed = Origins::itself("[2]");
        assert_eq!(listed.of("ports[0]"), Some(("[2]", "ports[0]".to_owned())));
    }
}
