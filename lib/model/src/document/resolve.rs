//! From a document to objects: references become uuids, defaults become values.

use std::sync::{Arc, LazyLock};

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use super::fields::{CONTAINER, ENVIRONMENT, HOST, LISTS, NETWORK, SERVICE, STACK};
use super::form::{CONTAINERS, HOSTS, MEMBERS, NETWORKS, SERVICES};
use super::reader::{self, Fields};
use super::written::Written;
use super::{FORMAT, HEAD, Refusal};
use crate::defect::Defect;
use crate::fingerprint::Fingerprint;
use crate::network_key::{ROUTER_LABEL, SUBNET_LABEL};
use crate::objects;
use crate::snapshot::{Snapshot, object};
use crate::value::{Map, Text, Value};

/// The domain that search lists end in.
const DOMAIN: &str = "rancher.internal";

pub(super) fn resolve<W: Written>(document: &W) -> Result<(Snapshot, Vec<Defect>), Refusal> {
    let Some(entries) = document.entries() else {
        let problem = format!("expected a map with hosts, services and containers, found {}", document.kind_name());
        return Err(Refusal::new(problem, document.at()));
    };
    let mut defects = Vec::new();
    if let Some(format) = document.get("berth")
        && format.value().as_int() != Some(FORMAT)
    {
        let problem = format!("berth: this program reads documents of format {FORMAT}");
        return Err(Refusal::new(problem, format.at()));
    }
    for (key, node) in entries {
        let known = || HEAD.iter().copied().chain(LISTS.iter().map(|(list, _)| *list));
        if LISTS.iter().any(|(list, _)| **list == **key) {
            if !node.is_null() && node.items().is_none() {
                return Err(Refusal::new(format!("{key}: expected a list, found {}", node.kind_name()), node.at()));
            }
        } else if !known().any(|known| *known == **key) {
            let problem = format!("unknown key{}", reader::suggestion(key, known()));
            defects.push(Defect::ignored(key.to_string(), problem).at(node.at()));
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
    let confirmed = document.get("empty").and_then(Written::scalar).is_some_and(|text| *text == *"true");
    if snapshot.is_empty() && !confirmed {
        let problem = match defects.iter().find(|defect| defect.at.is_some()).or_else(|| defects.first()) {
            Some(defect) => format!("not one good entity; the first defect is: {defect}"),
            None => "not one entity; write `empty: true` if the cluster is really empty".to_owned(),
        };
        return Err(Refusal::new(problem, document.at()));
    }
    Ok((snapshot, defects))
}

/// Uuids of entities by name, with their place in their list.
type Named = HashMap<Text, (Text, usize)>;

struct Resolving<'d, W> {
    defects: &'d mut Vec<Defect>,
    environment: Map,
    environment_uuid: Text,
    local_host: Option<Text>,
    source_version: Value,
    hosts: Vec<Fields<W>>,
    stacks: Vec<Fields<W>>,
    services: Vec<Fields<W>>,
    containers: Vec<Fields<W>>,
    networks: Vec<Fields<W>>,
    host_uuids: Named,
    network_uuids: Named,
    /// The uuid of the network of containers that name none; null without a default network.
    default_network: Value,
    stack_uuids: Named,
    /// By `stack/service` and `stack/service/sidekick`.
    service_uuids: Named,
    container_uuids: Named,
    /// What the containers of each service have from it, by its place in the list.
    shares: Vec<Share>,
    objects: Vec<Map>,
}

/// What a container has from its service.
struct Share {
    /// `stack/service`, or `stack/service/sidekick`, and what stands before the first slash.
    path: Text,
    stack: Text,
    search: Arc<[Value]>,
    /// How many containers got theirs so far.
    members: usize,
}

impl<'d, W: Written> Resolving<'d, W> {
    fn new(document: &W, defects: &'d mut Vec<Defect>) -> Self {
        let mut list = |name: &'static str, fields| {
            let items = document.get(name).and_then(Written::items).unwrap_or_default();
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
        let version = document.get("version").and_then(Written::scalar);
        Self {
            defects,
            environment,
            environment_uuid,
            local_host: document.get("host").and_then(Written::scalar),
            source_version: version.map_or_else(|| Value::text(""), Value::Text),
            hosts,
            stacks,
            services,
            containers,
            networks,
            host_uuids: Named::new(),
            network_uuids: Named::new(),
            default_network: Value::Null,
            stack_uuids: Named::new(),
            service_uuids: Named::new(),
            container_uuids: Named::new(),
            shares: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// The uuid of an entity: its own, or one derived from what names it.
    fn uuid(&self, kind: &str, fields: &Fields<W>, name: &str) -> Text {
        let derived = || Fingerprint::of(&(&self.environment_uuid, kind, name)).text();
        fields.uuid.clone().unwrap_or_else(derived)
    }

    /// Gives entities their names and uuids, and leaves out those whose name or uuid another one has.
    fn name(
        &mut self,
        kind: &str,
        mut entities: Vec<Fields<W>>,
        key: impl Fn(&Fields<W>) -> Text,
    ) -> (Vec<Fields<W>>, Named) {
        let mut named = Named::with_capacity(entities.len());
        let mut uuids = HashSet::with_capacity(entities.len());
        entities.retain_mut(|fields| {
            let name = key(fields);
            let uuid = self.uuid(kind, fields, &name);
            fields.uuid = Some(uuid.clone());
            // Containers may share a name as long as their uuids differ, as during an upgrade.
            let twin = if kind == "container" { uuids.contains(&uuid) } else { named.contains_key(&name) };
            if twin {
                let problem = format!("there already is a {kind} {name} with this name or uuid");
                self.defects.push(Defect::hidden(fields.path(), problem).at(fields.node.at()));
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
            let mut host = HOSTS.of(fields);
            host.set("uuid", uuid);
            host.set("environment_uuid", self.environment_uuid.clone());
            let of_network = [(SUBNET_LABEL, "subnet"), (ROUTER_LABEL, "router_ip")];
            let given =
                of_network.into_iter().filter_map(|(label, key)| Some((label.into(), fields.get(key)?.clone())));
            let given: Vec<(Text, Value)> = given.collect();
            if !given.is_empty() {
                let labels = fields.get("labels").and_then(Value::as_map).cloned().unwrap_or_default();
                host.set("labels", labels.with(given));
            }
            self.objects.push(host.finish());
        }
        self.shared_subnets();
    }

    /// Reports the subnets that several hosts have.
    fn shared_subnets(&mut self) {
        let mut first: HashMap<&Text, &Text> = HashMap::new();
        for fields in &self.hosts {
            let Some(subnet) = fields.text("subnet") else { continue };
            match first.get(subnet) {
                None => drop(first.insert(subnet, fields.name())),
                Some(other) => self.defects.push(fields.defect(
                    "subnet",
                    format!("{other} has it too: a route to it stays where it is, and no new one is made"),
                )),
            }
        }
    }

    fn networks(&mut self) {
        let networks = std::mem::take(&mut self.networks);
        (self.networks, self.network_uuids) = self.name("network", networks, |fields| fields.name().clone());
        for fields in &self.networks {
            let uuid = self.uuid("network", fields, fields.name());
            let is_default = fields.get("is_default").and_then(Value::as_bool) == Some(true);
            if is_default && self.default_network.is_null() {
                self.default_network = Value::Text(uuid.clone());
            }
            let mut network = NETWORKS.of(fields);
            network.set("uuid", uuid);
            network.set("environment_uuid", self.environment_uuid.clone());
            self.objects.push(network.finish());
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
        let uuid = Fingerprint::of(&(&self.environment_uuid, "stack", name)).text();
        self.stack_uuids.insert(name.clone(), (uuid.clone(), usize::MAX));
        self.objects.push(self.stack(name, &uuid, None));
        uuid
    }

    fn service(&mut self, index: usize, fields: &Fields<W>, sidekicks: Vec<Value>, members: i64) {
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
        let mut wire = SERVICES.of(fields);
        wire.set("uuid", primary.1.clone());
        wire.set("environment_uuid", self.environment_uuid.clone());
        wire.set("stack_name", stack.clone());
        wire.set("stack_uuid", stack_uuid);
        wire.set("primary_service_name", primary.0);
        wire.set("sidekicks", Value::list(sidekicks));
        wire.default("scale", || Value::Int(members));
        wire.default("create_index", || place(index));
        self.objects.push(wire.finish());
        let search = search(fields).map(Value::text).into_iter().collect();
        let stack = path.split_once('/').map_or_else(|| path.clone(), |(stack, _)| stack.into());
        self.shares.push(Share { path, stack, search, members: 0 });
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
        let domain = Arc::from([Value::text(DOMAIN)]);
        for (index, fields) in containers.iter().enumerate() {
            self.container(index, fields, &domain);
        }
        self.containers = containers;
    }

    /// Makes the object of a container; `domain` is the search list of those without a service.
    fn container(&mut self, index: usize, fields: &Fields<W>, domain: &Arc<[Value]>) {
        let uuid = self.uuid("container", fields, fields.name());
        let mut service = None;
        if let Some(path) = fields.text("service") {
            if let Some((uuid, at)) = self.service_uuids.get(path) {
                service = Some((uuid.clone(), *at));
            } else {
                let problem = format!("there is no service {path} (written as stack/service)");
                self.defects.push(fields.defect("service", problem));
            }
        }
        let host_uuid = Self::reference(fields, "host", &self.host_uuids);
        // A null is a value too: on no network of the document.
        let names_network = ["network", "network_from"].iter().any(|key| fields.node.get(key).is_some());
        let network_uuid = if names_network {
            Self::reference(fields, "network", &self.network_uuids)
        } else {
            Ok(self.default_network.clone())
        };
        let network_from = Self::reference(fields, "network_from", &self.container_uuids);
        let [host_uuid, network_uuid, network_from] = [host_uuid, network_uuid, network_from].map(|found| {
            found.unwrap_or_else(|defect| {
                self.defects.push(defect);
                Value::Null
            })
        });
        let host_ip = fields.text("host").and_then(|name| self.hosts.get(self.host_uuids.get(name)?.1));
        let host_ip = host_ip.and_then(|host| host.get("agent_ip").cloned()).unwrap_or_default();
        let checkers = (fields.get("health_check_hosts").and_then(Value::as_list).unwrap_or_default().iter())
            .filter_map(|name| self.host_uuids.get(name.as_str()?).map(|(uuid, _)| Value::Text(uuid.clone())));
        let mut wire = CONTAINERS.of(fields);
        wire.set("uuid", uuid.clone());
        wire.set("environment_uuid", self.environment_uuid.clone());
        wire.set("host_uuid", host_uuid);
        wire.set("host_ip", host_ip);
        wire.set("network_uuid", network_uuid);
        wire.set("network_from_container_uuid", network_from);
        wire.set("health_check_hosts", Value::list(checkers));
        wire.default("ips", || Value::list(fields.get("primary_ip").cloned()));
        wire.default("create_index", || place(index));
        if let Some((service_uuid, at)) = service {
            let (service, share) = (&self.services[at], &mut self.shares[at]);
            share.members += 1;
            for key in ["ports", "health_check"] {
                wire.default(key, || service.get(key).cloned().unwrap_or_default());
            }
            wire.set("labels", labels(fields, Some(share)));
            wire.default("service_index", || Value::text(share.members.to_string()));
            wire.default("dns_search", || Value::List(share.search.clone()));
            let mut member = MEMBERS.empty();
            member.set("service_uuid", service_uuid);
            member.set("service_name", service.name().clone());
            member.set("container_uuid", uuid.clone());
            self.objects.push(member.finish());
        } else {
            wire.set("labels", labels(fields, None));
            wire.default("dns_search", || Value::List(domain.clone()));
        }
        wire.default("ports", || Value::List(Arc::default()));
        self.objects.push(wire.finish());
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
    fn reference(fields: &Fields<W>, key: &str, named: &Named) -> Result<Value, Defect> {
        let Some(name) = fields.text(key) else { return Ok(Value::Null) };
        match named.get(name) {
            Some((uuid, _)) => Ok(Value::Text(uuid.clone())),
            None => Err(fields.defect(key, format!("the document has no {name:?} to refer to"))),
        }
    }

    fn finish(mut self) -> Vec<Map> {
        let mut own = Value::Null;
        // If the document does not say which host this is, there is one only where there is no choice.
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
fn path_of<W: Written>(fields: &Fields<W>) -> Text {
    let stack = fields.text("stack").map_or("", |stack| stack);
    match fields.text("sidekick_of") {
        Some(primary) => format!("{stack}/{primary}/{}", fields.name()).into(),
        None => format!("{stack}/{}", fields.name()).into(),
    }
}

/// A container's labels and those that its service gives it, as the predecessor's server set them.
fn labels<W: Written>(fields: &Fields<W>, share: Option<&mut Share>) -> Map {
    let own = fields.get("labels").and_then(Value::as_map).cloned().unwrap_or_default();
    let (path, stack) = share.map(|share| (&share.path, &share.stack)).unzip();
    let texts = [Some(fields.name()), path, stack];
    let added = LABELS.iter().zip(texts).filter_map(|(key, text)| Some((key, text?)));
    let added = added.filter(|(key, _)| own.get(key).is_none());
    own.with(added.map(|(key, text)| (key.clone(), Value::Text(text.clone()))))
}

/// The labels that name a container, its service and its stack: there once for all containers.
static LABELS: LazyLock<[Text; 3]> = LazyLock::new(|| {
    ["io.rancher.container.name", "io.rancher.stack_service.name", "io.rancher.stack.name"].map(Text::from)
});

/// The search list of a service's containers.
fn search<W: Written>(service: &Fields<W>) -> [String; 3] {
    let stack = service.text("stack").map_or("", |stack| stack).to_lowercase();
    let name = service.text("sidekick_of").unwrap_or_else(|| service.name()).to_lowercase();
    [format!("{name}.{stack}.{DOMAIN}"), format!("{stack}.{DOMAIN}"), DOMAIN.to_owned()]
}

/// A place in a list as a number, from 1.
fn place(index: usize) -> Value {
    Value::Int(i64::try_from(index).map_or(i64::MAX, |index| index + 1))
}
