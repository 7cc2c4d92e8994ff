//! The request of one unit of a stack. ◇

use model::{Map, Text, Value};
use stacks::Service;

use crate::ledger::stack::StackUnit;
use crate::place::invalid::Invalid;
use crate::place::request::volume::named_volume;
use crate::place::request::{GLOBAL_LABEL, Request};
use crate::subject::Subject;

/// Labels of the containers of units, for people and programs; nothing here believes them.
pub(crate) const STACK_LABEL: &str = "io.berth.stack";
pub(crate) const UNIT_LABEL: &str = "io.berth.unit";
pub(crate) const REVISION_LABEL: &str = "io.berth.revision";

/// What stands for the index of a unit in the name of a volume.
pub(crate) const INDEX: &str = "${index}";

/// One unit, as the scheduler places it.
#[derive(Clone, Debug)]
pub(crate) struct UnitRequest<'a> {
    pub(crate) stack: &'a str,
    pub(crate) service: &'a Service,
    pub(crate) index: &'a str,
    pub(crate) id: &'a Text,
    /// The host, by uuid, where it has to be.
    pub(crate) host: Option<&'a str>,
}

impl UnitRequest<'_> {
    /// Which unit it is.
    pub(crate) fn unit(&self) -> StackUnit {
        StackUnit {
            stack: self.stack.into(),
            service: self.service.name.clone(),
            index: self.index.into(),
            digest: self.service.digest.clone(),
            evicted: false,
            evicted_at: 0,
            covered: false,
            done: false,
        }
    }

    /// The request as a client would write it.
    pub(crate) fn asked(&self) -> Map {
        let service = &self.service.request;
        let old = service.text("name");
        let id = Value::Text(self.id.clone());
        let mut changes = vec![
            ("id".into(), id.clone()),
            ("name".into(), id),
            ("stack".into(), Value::text(self.stack)),
            ("start".into(), Value::Bool(true)),
            ("labels".into(), self.labels(service)),
        ];
        if let Some(host) = self.host {
            let constraints = service.list("constraints").iter().cloned();
            let constraints = constraints.chain([Value::text(format!("node.id = {host}"))]);
            changes.push(("constraints".into(), Value::list(constraints)));
        }
        changes.extend(with_index(service, self.index));
        let sidekicks = service.list("sidekicks");
        if !sidekicks.is_empty() {
            let of_unit = |sidekick: &Value| {
                let sidekick = old.map_or_else(|| sidekick.clone(), |old| renamed(sidekick, old, self.id));
                let Some(map) = sidekick.as_map() else { return sidekick.clone() };
                map.with(with_index(map, self.index)).with([("labels".into(), self.labels(map))]).into()
            };
            changes.push(("sidekicks".into(), Value::list(sidekicks.iter().map(of_unit))));
        }
        service.with(changes)
    }

    /// The labels of one of its containers, with those that say which unit it is of.
    fn labels(&self, container: &Map) -> Value {
        let of_unit = [
            (STACK_LABEL, self.stack.into()),
            (UNIT_LABEL, format!("{}/{}", self.service.name, self.index).into()),
            (REVISION_LABEL, self.service.digest.clone()),
        ];
        let own = container.map("labels").into_iter().flatten().cloned();
        let own = own.filter(|(key, _)| !key.eq_ignore_ascii_case(GLOBAL_LABEL));
        Map::new(own.chain(of_unit.map(|(key, value)| (key.into(), Value::Text(value)))).collect()).into()
    }

    /// The request, as this subject asks for it.
    pub(crate) fn request(&self, subject: &Subject) -> Result<Request, Invalid> {
        let request = Request::parse_new(&self.asked().into())?;
        Ok(Request { unit: Some(self.unit()), subject: subject.clone(), ..request })
    }
}

/// The request of any unit of a service, to ask what is true of all.
pub(crate) fn any_unit(stack: &str, service: &Service, subject: &Subject) -> Result<Request, Invalid> {
    UnitRequest { stack, service, index: "1", id: &"unit".into(), host: None }.request(subject)
}

/// The volumes of a container, and their options, with the index of its unit where they name it.
fn with_index(map: &Map, index: &str) -> Vec<(Text, Value)> {
    let volumes = map.list("volumes");
    if !volumes.iter().any(|volume| volume.as_str().is_some_and(|volume| volume.contains(INDEX))) {
        return Vec::new();
    }
    let named = |volume: &Value| match volume.as_str() {
        Some(text) => Value::text(text.replace(INDEX, index)),
        None => volume.clone(),
    };
    let mut changes = vec![("volumes".into(), Value::list(volumes.iter().map(named)))];
    if let Some(options) = map.map("volume_options") {
        let named = |(name, value): &(Text, Value)| (name.replace(INDEX, index).into(), value.clone());
        changes.push(("volume_options".into(), Map::new(options.iter().map(named).collect()).into()));
    }
    changes
}

/// A sidekick whose primary container is called otherwise.
fn renamed(sidekick: &Value, old: &str, new: &Text) -> Value {
    let Some(map) = sidekick.as_map() else { return sidekick.clone() };
    let mut changes = Vec::new();
    if map.text("network_from").is_some_and(|from| **from == *old) {
        changes.push(("network_from".into(), Value::Text(new.clone())));
    }
    if let Some(after) = map.get("start_after") {
        let other = |from: &Value| if from.as_str() == Some(old) { Value::Text(new.clone()) } else { from.clone() };
        let all = after.as_list().unwrap_or_else(|| std::slice::from_ref(after));
        changes.push(("start_after".into(), Value::list(all.iter().map(other))));
    }
    if map.get("volumes_from").is_some() {
        let other = |from: &Value| match from.as_str().and_then(|from| from.strip_prefix(old)) {
            Some(mode) if mode.is_empty() || mode.starts_with(':') => Value::text(format!("{new}{mode}")),
            _ => from.clone(),
        };
        changes.push(("volumes_from".into(), Value::list(map.list("volumes_from").iter().map(other))));
    }
    map.with(changes).into()
}

/// Whether a service has a volume of its host's engine, so that its units belong where that is.
pub(crate) fn is_pinned(service: &Service) -> bool {
    let sidekicks = service.request.list("sidekicks").iter().filter_map(Value::as_map);
    let volumes = std::iter::once(&service.request).chain(sidekicks).flat_map(|map| map.list("volumes"));
    volumes.filter_map(Value::as_str).any(|volume| named_volume(volume).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(json: serde_json::Value) -> Service {
        Service::parse(&serde_json::from_value(json).unwrap()).unwrap()
    }

    #[test]
    fn a_unit_is_the_service_once_under_a_name_of_its_own() {
        let service = service(serde_json::json!({
            "service": "web", "name": "shop-web", "image": "i", "count": 3, "constraints": ["disk = ssd"],
            "volumes": ["shop-data-${index}:/data:ro", "/srv:/srv"],
            "labels": { "a": "b", "io.rancher.scheduler.global": "true" },
            "sidekicks": [{ "name": "log", "image": "i", "network_from": "shop-web",
                "volumes_from": ["shop-web:ro", "shop-webs"], "volumes": ["log-${index}:/log"],
                "volume_options": { "log-${index}": { "size": "5" } }, "start_after": "shop-web" }],
        }));
        let id = Text::from("shop-web-2-abc");
        let unit = UnitRequest { stack: "shop", service: &service, index: "2", id: &id, host: Some("u1") };
        let asked = serde_json::to_value(unit.asked()).unwrap();
        let sidekick = &asked["sidekicks"][0];
        assert_eq!((&asked["name"], &asked["count"]), (&"shop-web-2-abc".into(), &serde_json::Value::Null));
        assert_eq!(sidekick["labels"][STACK_LABEL], "shop");
        assert_eq!(sidekick["labels"][UNIT_LABEL], "web/2");
        assert_eq!(sidekick["network_from"], "shop-web-2-abc");
        assert_eq!(sidekick["volumes_from"], serde_json::json!(["shop-web-2-abc:ro", "shop-webs"]));
        assert_eq!(asked["volumes"], serde_json::json!(["shop-data-2:/data:ro", "/srv:/srv"]));
        assert_eq!(sidekick["volumes"], serde_json::json!(["log-2:/log"]));
        assert_eq!(sidekick["volume_options"], serde_json::json!({ "log-2": { "size": "5" } }));
        assert_eq!(sidekick["start_after"], serde_json::json!(["shop-web-2-abc"]));
        assert_eq!(asked["labels"]["io.berth.unit"], "web/2");
        assert_eq!(asked["constraints"], serde_json::json!(["disk = ssd", "node.id = u1"]));
        assert!(!asked.to_string().contains("scheduler.global"), "{asked}");
    }

    #[test]
    fn volumes_with_names_belong_to_their_host() {
        for (volume, pinned) in [
            ("data:/data", true),
            ("data:C:\\data", true),
            ("/data", false),
            ("/srv:/data:ro", false),
            ("C:\\srv:C:\\data", false),
            ("c:\\data", false),
        ] {
            let service = service(serde_json::json!({ "service": "db", "image": "i", "volumes": [volume] }));
            assert_eq!(is_pinned(&service), pinned, "{volume}");
        }
    }
}
