//! From a document to objects: references become uuids, defaults become values.

use std::collections::{HashMap, HashSet};

use super::fields::{CONTAINER, ENVIRONMENT, HOST, LISTS, NETWORK, SERVICE, STACK};
use super::reader::{self, Fields};
use super::{FORMAT, HEAD, Refusal};
use crate::defect::Defect;
use crate::fingerprint::Fingerprint;
use crate::node::Node;
use crate::objects;
use crate::snapshot::{Snapshot, object};
use crate::value::{Map, Text, Value};

/// The domain that search lists end in.
const DOMAIN: &str = "rancher.internal";

pub(super) fn resolve(document: &Node) -> Result<(Snapshot, Vec<Defect>), Refusal> {
    let Some(entries) = document.entries() else {
        let problem = format!("expected a map with hosts, services and containers, found {}", document.kind_name());
        return Err(Refusal::new(problem, document.at));
    };
    let mut defects = Vec::new();
    if let Some(format) = document.get("berth")
        && format.to_value(crate::scalar::core).as_int() != Some(FORMAT)
    {
        let problem = format!("berth: this program reads documents of format {FORMAT}");
        return Err(Refusal::new(problem, format.at));
    }
    for (key, node) in entries {
        let known = || HEAD.iter().copied().chain(LISTS.iter().map(|(list, _)| *list));
        if LISTS.iter().any(|(list, _)| **list == **key) {
            if !node.is_null() && node.items().is_none() {
                return Err(Refusal::new(format!("{key}: expected a list, found {}", node.kind_name()), node.at));
            }
        } else if !known().any(|known| *known == **key) {
            let problem = format!("unknown key{}", reader::suggestion(key, known()));
            defects.push(Defect::ignored(key.to_string(), problem).at(node.at));
        }
    }
    let mut resolving = Resolving::new(document, &mut defects);
    resolving.hosts();
    resolving.networks();
    resolving.services();
    resolving.containers();
    let objects = resolving.finish();
    let (snapshot, more, _) = objects::read(objects);
    defects.extend(more);
    let confirmed = document.get("empty").and_then(Node::scalar).is_some_and(|text| &**text == "true");
    if snapshot.is_empty() && !confirmed {
        let problem = match defects.iter().find(|defect| defect.at.is_some()).or_else(|| defects.first()) {
            Some(defect) => format!("not one good entity; the first defect is: {defect}"),
            None => "not one entity; write `empty: true` if the cluster is really empty".to_owned(),
        };
        return Err(Refusal::new(problem, document.at));
    }
    Ok((snapshot, defects))
}

/// Uuids of entities by name, with their place in their list.
type Named = HashMap<Text, (Text, usize)>;

struct Resolving<'d> {
    defects: &'d mut Vec<Defect>,
    environment: Map,
    environment_uuid: Text,
    local_host: Option<Text>,
    source_version: Value,
    hosts: Vec<Fields>,
    stacks: Vec<Fields>,
    services: Vec<Fields>,
    containers: Vec<Fields>,
    networks: Vec<Fields>,
    host_uuids: Named,
    network_uuids: Named,
    stack_uuids: Named,
    /// By `stack/service` and `stack/service/sidekick`.
    service_uuids: Named,
    container_uuids: Named,
    objects: Vec<Map>,
}

impl<'d> Resolving<'d> {
    fn new(document: &Node, defects: &'d mut Vec<Defect>) -> Self {
        let mut list = |name: &str, fields| {
            let items = document.get(name).and_then(Node::items).unwrap_or_default();
            let read = |(index, node)| reader::read(name, index, node, fields, defects);
            items.iter().enumerate().filter_map(read).collect::<Vec<_>>()
        };
        let (hosts, stacks, services) = (list("hosts", HOST), list("stacks", STACK), list("services", SERVICE));
        let (containers, networks) = (list("containers", CONTAINER), list("networks", NETWORK));
        let environment = document.get("environment").filter(|node| !node.is_null());
        let environment = environment.and_then(|node| reader::read("environment", 0, node, ENVIRONMENT, defects));
        let name = environment.as_ref().map_or("default", |environment| environment.name()).to_lowercase();
        let given = environment.as_ref().and_then(|environment| environment.text("uuid").cloned());
        let environment_uuid = given.unwrap_or_else(|| Fingerprint::of(&("environment", &name)).to_string().into());
        let region = environment.as_ref().and_then(|environment| environment.text("region_name"));
        let environment = object(
            "environment",
            [
                ("name", Value::text(name)),
                ("uuid", Value::Text(environment_uuid.clone())),
                ("region_name", region.map(|region| Text::from(region.to_lowercase())).into()),
            ],
        );
        let version = document.get("version").and_then(Node::scalar);
        Self {
            defects,
            environment,
            environment_uuid,
            local_host: document.get("host").and_then(Node::scalar).cloned(),
            source_version: version.map_or_else(|| Value::text(""), |version| Value::Text(version.clone())),
            hosts,
            stacks,
            services,
            containers,
            networks,
            host_uuids: Named::new(),
            network_uuids: Named::new(),
            stack_uuids: Named::new(),
            service_uuids: Named::new(),
            container_uuids: Named::new(),
            objects: Vec::new(),
        }
    }

    /// The uuid of an entity: its own, or one derived from what names it.
    fn uuid(&self, kind: &str, fields: &Fields, name: &str) -> Text {
        let derived = || Fingerprint::of(&(&self.environment_uuid, kind, name)).to_string().into();
        fields.text("uuid").cloned().unwrap_or_else(derived)
    }

    /// Gives entities their names and uuids, and leaves out those whose name or uuid another one has.
    fn name(&mut self, kind: &str, mut entities: Vec<Fields>, key: impl Fn(&Fields) -> Text) -> (Vec<Fields>, Named) {
        let mut named = Named::new();
        let mut uuids = HashSet::new();
        entities.retain(|fields| {
            let name = key(fields);
            let uuid = self.uuid(kind, fields, &name);
            // Containers may share a name as long as their uuids differ, as during an upgrade.
            let twin = if kind == "container" { uuids.contains(&uuid) } else { named.contains_key(&name) };
            if twin {
                let problem = format!("there already is a {kind} {name} with this name or uuid");
                self.defects.push(Defect::hidden(fields.path.clone(), problem).at(fields.node.at));
                return false;
            }
            uuids.insert(uuid.clone());
            named.insert(name, (uuid, uuids.len() - 1));
            true
        });
        (entities, named)
    }

    fn hosts(&mut self) {
        let hosts = std::mem::take(&mut self.hosts);
        (self.hosts, self.host_uuids) = self.name("host", hosts, |fields| fields.name().clone());
        for fields in &self.hosts {
            let uuid = self.uuid("host", fields, fields.name());
            let labels = fields.get("labels").cloned().unwrap_or_else(|| Map::default().into());
            let mut fields = self.wire("host", fields, HOST, [("uuid", Value::Text(uuid)), ("labels", labels)]);
            if fields.get("state").is_none_or(Value::is_null) {
                fields = fields.with([("state".into(), Value::text("active"))]);
            }
            self.objects.push(fields);
        }
    }

    fn networks(&mut self) {
        let networks = std::mem::take(&mut self.networks);
        (self.networks, self.network_uuids) = self.name("network", networks, |fields| fields.name().clone());
        for fields in &self.networks {
            let uuid = self.uuid("network", fields, fields.name());
            let [is_default, host_ports] =
                ["is_default", "host_ports"].map(|key| (key, fields.get(key).cloned().unwrap_or(Value::Bool(false))));
            self.objects.push(self.wire(
                "network",
                fields,
                NETWORK,
                [("uuid", Value::Text(uuid)), is_default, host_ports],
            ));
        }
    }

    /// Services and the stacks that they imply.
    fn services(&mut self) {
        let stacks = std::mem::take(&mut self.stacks);
        (self.stacks, self.stack_uuids) = self.name("stack", stacks, |fields| fields.name().clone());
        for fields in &self.stacks {
            let uuid = self.uuid("stack", fields, fields.name());
            self.objects.push(self.stack(fields.name(), &uuid, fields.get("system").cloned()));
        }
        let services = std::mem::take(&mut self.services);
        (self.services, self.service_uuids) = self.name("service", services, path_of);
        let services = std::mem::take(&mut self.services);
        let mut sidekicks: HashMap<Text, Vec<Value>> = HashMap::new();
        for fields in &services {
            if let (Some(stack), Some(primary)) = (fields.text("stack"), fields.text("sidekick_of")) {
                let primary = Text::from(format!("{stack}/{primary}"));
                sidekicks.entry(primary).or_default().push(Value::Text(fields.name().clone()));
            }
        }
        let mut members: HashMap<Text, i64> = HashMap::new();
        for path in self.containers.iter().filter_map(|container| container.text("service")) {
            *members.entry(path.clone()).or_default() += 1;
        }
        for (index, fields) in services.iter().enumerate() {
            let path = path_of(fields);
            let sidekicks = sidekicks.remove(&path).unwrap_or_default();
            self.service(index, fields, sidekicks, members.get(&path).copied().unwrap_or_default());
        }
        self.services = services;
    }

    fn stack(&self, name: &Text, uuid: &Text, system: Option<Value>) -> Map {
        object(
            "stack",
            [
                ("name", Value::Text(name.clone())),
                ("uuid", Value::Text(uuid.clone())),
                ("system", system.unwrap_or(Value::Bool(false))),
                ("environment_name", self.environment.get("name").cloned().unwrap_or_default()),
                ("environment_uuid", Value::Text(self.environment_uuid.clone())),
            ],
        )
    }

    fn stack_uuid(&mut self, name: &Text) -> Text {
        if let Some((uuid, _)) = self.stack_uuids.get(name) {
            return uuid.clone();
        }
        let uuid = Text::from(Fingerprint::of(&(&self.environment_uuid, "stack", name)).to_string());
        self.stack_uuids.insert(name.clone(), (uuid.clone(), usize::MAX));
        self.objects.push(self.stack(name, &uuid, None));
        uuid
    }

    fn service(&mut self, index: usize, fields: &Fields, sidekicks: Vec<Value>, members: i64) {
        let stack = fields.text("stack").expect("services without a stack were left out").clone();
        let stack_uuid = self.stack_uuid(&stack);
        let (name, path) = (fields.name(), path_of(fields));
        let mut primary = (name.clone(), self.service_uuids[&path].0.clone());
        if let Some(of) = fields.text("sidekick_of") {
            if let Some((uuid, _)) = self.service_uuids.get(&*format!("{stack}/{of}")) {
                primary = (of.clone(), uuid.clone());
            } else {
                let problem = format!("there is no service {of} in the stack {stack}");
                self.defects.push(fields.defect("sidekick_of", problem));
            }
        }
        self.service_uuids.insert(path.clone(), (primary.1.clone(), index));
        let derived = [
            ("uuid", Value::Text(primary.1.clone())),
            ("stack_name", Value::Text(stack.clone())),
            ("stack_uuid", Value::Text(stack_uuid)),
            ("primary_service_name", Value::Text(primary.0)),
            ("sidekicks", Value::list(sidekicks)),
        ];
        let mut wire = self.wire("service", fields, SERVICE, derived);
        let index = i64::try_from(index).unwrap_or(i64::MAX);
        let defaults = [
            ("kind", Value::text("service")),
            ("state", Value::text("active")),
            ("system", Value::Bool(false)),
            ("scale", Value::Int(members)),
            ("create_index", Value::Int(index + 1)),
            ("labels", Map::default().into()),
            ("metadata", Map::default().into()),
            ("external_ips", Value::list([])),
            ("ports", Value::list([])),
            ("expose", Value::list([])),
        ];
        wire = with_defaults(&wire, defaults).without("stack").without("sidekick_of").without("links");
        self.objects.push(wire);
        if fields.text("sidekick_of").is_none() {
            for (target, alias) in fields.get("links").and_then(Value::as_map).into_iter().flatten() {
                self.objects.push(object(
                    "serviceLink",
                    [
                        ("service_uuid", Value::Text(primary.1.clone())),
                        ("key", Value::Text(target.clone())),
                        ("value", alias.clone()),
                    ],
                ));
            }
        }
    }

    fn containers(&mut self) {
        let containers = std::mem::take(&mut self.containers);
        (self.containers, self.container_uuids) = self.name("container", containers, |fields| fields.name().clone());
        let containers = std::mem::take(&mut self.containers);
        let mut counts: HashMap<Text, usize> = HashMap::new();
        for (index, fields) in containers.iter().enumerate() {
            self.container(index, fields, &mut counts);
        }
        self.containers = containers;
    }

    fn container(&mut self, index: usize, fields: &Fields, counts: &mut HashMap<Text, usize>) {
        let uuid = self.uuid("container", fields, fields.name());
        let mut service = None;
        if let Some(path) = fields.text("service") {
            if let Some((uuid, at)) = self.service_uuids.get(path) {
                service = Some((path.clone(), uuid.clone(), *at));
            } else {
                let problem = format!("there is no service {path} (written as stack/service)");
                self.defects.push(fields.defect("service", problem));
            }
        }
        let host_uuid = Self::reference(fields, "host", &self.host_uuids);
        let network_uuid = Self::reference(fields, "network", &self.network_uuids);
        let network_from = Self::reference(fields, "network_from", &self.container_uuids);
        let [host_uuid, network_uuid, network_from] = [host_uuid, network_uuid, network_from].map(|found| {
            found.unwrap_or_else(|defect| {
                self.defects.push(defect);
                Value::Null
            })
        });
        let host_ip = fields.text("host").and_then(|name| self.hosts.get(self.host_uuids.get(name)?.1));
        let host_ip = host_ip.and_then(|host| host.get("agent_ip").cloned()).unwrap_or_default();
        let checkers: Vec<Value> =
            (fields.get("health_check_hosts").and_then(Value::as_list).unwrap_or_default().iter())
                .filter_map(|name| self.host_uuids.get(name.as_str()?).map(|(uuid, _)| Value::Text(uuid.clone())))
                .collect();
        let primary_ip = fields.get("primary_ip").cloned();
        let service_fields = service.as_ref().map(|(_, _, at)| &self.services[*at]);
        let inherited = |key: &str| service_fields.and_then(|service| service.get(key).cloned());
        let number = service.as_ref().map(|(path, ..)| {
            let count = counts.entry(path.clone()).or_default();
            *count += 1;
            *count
        });
        let derived = [
            ("uuid", Value::Text(uuid.clone())),
            ("host_uuid", host_uuid),
            ("host_ip", host_ip),
            ("network_uuid", network_uuid),
            ("network_from_container_uuid", network_from),
            ("health_check_hosts", Value::List(checkers.into())),
            ("labels", labels(fields, service_fields)),
            ("service_name", Value::Null),
            ("stack_name", Value::Null),
            ("stack_uuid", Value::Null),
        ];
        let wire = self.wire("container", fields, CONTAINER, derived);
        let search = service_fields.map_or_else(|| vec![DOMAIN.to_owned()], search);
        let defaults = [
            ("ips", Value::list(primary_ip)),
            ("ports", inherited("ports").unwrap_or_else(|| Value::list([]))),
            ("health_check", inherited("health_check").unwrap_or_default()),
            ("state", Value::text("running")),
            ("start_count", Value::Int(1)),
            ("create_index", Value::Int(i64::try_from(index + 1).unwrap_or(i64::MAX))),
            ("service_index", number.map(|number| Value::text(number.to_string())).unwrap_or_default()),
            ("system", Value::Bool(false)),
            ("dns", Value::list([])),
            ("dns_search", Value::list(search.into_iter().map(Value::text))),
        ];
        let removed = ["service", "host", "network", "network_from", "links"];
        let wire = removed.iter().fold(with_defaults(&wire, defaults), |wire, key| wire.without(key));
        self.objects.push(wire);
        if let Some((_, service_uuid, at)) = service {
            let name = self.services[at].name().clone();
            self.objects.push(object(
                "serviceContainerLink",
                [
                    ("service_uuid", Value::Text(service_uuid)),
                    ("service_name", Value::Text(name)),
                    ("container_uuid", Value::Text(uuid.clone())),
                ],
            ));
        }
        for (link, target) in fields.get("links").and_then(Value::as_map).into_iter().flatten() {
            let found = target.as_str().and_then(|name| self.container_uuids.get(name));
            if found.is_none() {
                self.defects
                    .push(fields.defect("links", format!("the link {link} names no container of the document")));
            }
            self.objects.push(object(
                "containerLink",
                [
                    ("container_uuid", Value::Text(uuid.clone())),
                    ("key", Value::Text(link.clone())),
                    ("value", found.map(|(uuid, _)| uuid.clone()).into()),
                ],
            ));
        }
    }

    /// The uuid of what a field names; null when it was left out.
    fn reference(fields: &Fields, key: &str, named: &Named) -> Result<Value, Defect> {
        let Some(name) = fields.text(key) else { return Ok(Value::Null) };
        match named.get(name) {
            Some((uuid, _)) => Ok(Value::Text(uuid.clone())),
            None => Err(fields.defect(key, format!("the document has no {name:?} to refer to"))),
        }
    }

    /// The object of an entity: every field of the table, null when it was left out, and what was derived.
    fn wire(
        &self,
        kind: &'static str,
        fields: &Fields,
        table: &[super::fields::Field],
        derived: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Map {
        let given = table.iter().map(|field| (field.key, fields.get(field.key).cloned().unwrap_or_default()));
        let environment = ("environment_uuid", Value::Text(self.environment_uuid.clone()));
        object(kind, given.chain(derived).chain([environment]))
    }

    fn finish(mut self) -> Vec<Map> {
        let mut own = Value::Null;
        // Without a word which host this is, there is one only where there is no choice.
        let local = self.local_host.clone().or_else(|| match &self.hosts[..] {
            [only] => Some(only.name().clone()),
            _ => None,
        });
        if let Some(name) = local {
            let is_it = |object: &&Map| {
                object.text("name") == Some(&name) && object.text("metadata_kind").is_some_and(|kind| &**kind == "host")
            };
            match self.objects.iter().find(is_it) {
                Some(host) => own = Value::Map(Map::new(vec![("host".into(), Value::Map(host.clone()))])),
                None => self.defects.push(Defect::ignored("host", format!("there is no host {name}"))),
            }
        }
        let has_entities = !self.objects.is_empty();
        self.objects.push(object("defaultData", [("version", self.source_version), ("self", own)]));
        if has_entities {
            self.objects.push(self.environment);
        }
        self.objects
    }
}

/// `stack/service`, or `stack/service/sidekick`.
fn path_of(fields: &Fields) -> Text {
    let stack = fields.text("stack").map_or("", |stack| stack);
    match fields.text("sidekick_of") {
        Some(primary) => format!("{stack}/{primary}/{}", fields.name()).into(),
        None => format!("{stack}/{}", fields.name()).into(),
    }
}

/// A container's labels and those that its service gives it, as the predecessor's server set them.
fn labels(fields: &Fields, service: Option<&Fields>) -> Value {
    let own = fields.get("labels").and_then(Value::as_map).cloned().unwrap_or_default();
    let mut added = vec![("io.rancher.container.name", fields.name().to_string())];
    if let Some(service) = service {
        let path = path_of(service);
        added.push(("io.rancher.stack_service.name", path.to_string()));
        added.push(("io.rancher.stack.name", path.split('/').next().unwrap_or_default().to_owned()));
    }
    let added = added.into_iter().filter(|(key, _)| own.get(key).is_none());
    own.with(added.map(|(key, text)| (key.into(), Value::text(text)))).into()
}

/// The search list of a service's containers.
fn search(service: &Fields) -> Vec<String> {
    let stack = service.text("stack").map_or("", |stack| stack).to_lowercase();
    let name = service.text("sidekick_of").unwrap_or_else(|| service.name()).to_lowercase();
    vec![format!("{name}.{stack}.{DOMAIN}"), format!("{stack}.{DOMAIN}"), DOMAIN.to_owned()]
}

/// The object with these values where it has none.
fn with_defaults(object: &Map, defaults: impl IntoIterator<Item = (&'static str, Value)>) -> Map {
    let missing = defaults.into_iter().filter(|(key, _)| object.get(key).is_none_or(Value::is_null));
    object.with(missing.map(|(key, value)| (key.into(), value)))
}
