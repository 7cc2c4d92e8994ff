//! A random cluster: two hosts of the tenant red, one of the tenant blue, documents of an operator, and what blue does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::LazyLock;

use live::docker::fuzzing::document;
use live::etcd::fuzzing::written;
use live::{HostDocument, HostOptions};
use model::checkers::{CHECKER, CHECKS};
use scheduler::fuzzing::KeptUnit;
use serde_json::{Value, json};

use crate::dice::Dice;

/// The hosts of red.
pub(crate) const RED: [&str; 2] = ["b", "m"];

/// The stacks of red, where stacks have owners. All others are open to everybody.
pub(crate) const OWNED: [&str; 2] = ["shop", "data"];

/// The host at balancers that is red's there.
pub(crate) const HOSTNAME: &str = "shop.example.com";

/// What red calls its containers, and blue too.
const NAMES: [&str; 8] = ["web-1", "db-1", "cache", "one", "github.com", "rancher-metadata", "db", "app.dev"];

/// What blue calls its own besides: names of its own, and those that nobody may have.
const EVIL_NAMES: [&str; 4] = ["evil-0", "evil-1", "b.hosts.dns", "ns.dns"];

/// Services by stack and name.
const SERVICES: [(&str, &str); 8] = [
    ("shop", "web"),
    ("data", "db"),
    ("free", "web"),
    ("free", "cache"),
    ("SHOP", "Web"),
    ("dev", "app"),
    ("com", "github"),
    ("evil", "db"),
];

/// Further names on a network.
const ALIASES: [&str; 8] = ["db", "alias", "cache", "rancher-metadata", "github.com", "web.shop", "web", "app.dev"];

/// Where external services lead: out of the cluster, to names that are links for some clients, to short and dotted names.
const TARGETS: [&str; 6] =
    ["mail.example.org", "db.data.rancher.internal", "web.shop", "github.com", "cache", "evil-1.rancher.internal"];

/// The addresses of blue's host and containers, besides those that every host has or that are forged.
pub(crate) const BLUE: [&str; 3] = ["192.0.2.66", "10.66.", "172.17.66."];

/// What nobody but an operator may lead to.
pub(crate) const STOLEN: [&str; 3] = ["192.0.2.67", "stolen", "evil.example.org"];

/// The uuids that follow from names: of the environment, and of the hosts of red, services and stacks.
static DERIVED: LazyLock<(String, Vec<String>)> = LazyLock::new(|| {
    let hosts: Vec<_> = RED.iter().map(|name| json!({"name": name})).collect();
    let services: Vec<_> = SERVICES[..4].iter().map(|(stack, name)| json!({"stack": stack, "name": name})).collect();
    let document = serde_json::from_value(json!({"hosts": hosts, "services": services})).unwrap();
    let (snapshot, _) = model::document::resolve_value(&document).unwrap();
    let environment = snapshot.environment.unwrap().text("uuid").unwrap().to_string();
    let services = snapshot.services.values().map(|service| service.uuid().to_string());
    let uuids = snapshot.hosts.keys().chain(snapshot.stacks.keys()).map(ToString::to_string);
    (environment, uuids.chain(services).collect())
});

/// Something that blue does with the rights of its own host.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Its engine has these containers from now on: inspections, and labels of images.
    Engine(Vec<Inspected>),
    /// It puts a key of its own.
    Put(String, Value),
    /// It deletes one of its keys.
    Delete(String),
    /// Its lease ends, and it comes back.
    Lapse,
    /// The image of a container on the host that is asked gets these labels.
    Image(HashMap<String, String>),
    /// A neighbour on the host that is asked asks, and says that it is another.
    Ask(usize),
}

/// What an agent says, and the keys that it writes.
type Said = (HostDocument, BTreeMap<String, Vec<u8>>);

/// An inspection, and the labels of its image.
type Inspected = (Value, HashMap<String, String>);

/// A cluster before and after blue came.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one choice of the dice")]
pub(crate) struct World {
    pub(crate) blue: &'static str,
    /// Whether stacks have owners.
    pub(crate) owned: bool,
    /// The host that is asked; none reports no host.
    pub(crate) asked: Option<&'static str>,
    /// Whether blue was there first.
    pub(crate) early: bool,
    /// Whether the source of metadata is the engine of the host.
    pub(crate) live: bool,
    /// Whether the scheduler is asked, not metadata.
    pub(crate) places: bool,
    /// Documents by name.
    pub(crate) documents: BTreeMap<String, Value>,
    /// Containers of the hosts of red: inspections, and labels of images.
    pub(crate) red: BTreeMap<&'static str, Vec<Inspected>>,
    /// What the agents of these hosts say, and the keys that they write.
    pub(crate) said: BTreeMap<&'static str, Said>,
    pub(crate) acts: Vec<Act>,
    /// Keys of schedulers: whose containers have another in their place.
    pub(crate) evicted: Vec<String>,
    /// Words that blue uses as names.
    pub(crate) words: BTreeSet<String>,
    /// Where external services lead.
    pub(crate) targets: BTreeMap<String, String>,
    /// For questions.
    pub(crate) dice: Dice,
}

impl World {
    /// The world of a seed; over sockets, the addresses of containers are of loopback, so that a test can ask from there.
    pub(crate) fn new(seed: u64, sockets: bool) -> Self {
        let mut dice = Dice::new(seed);
        // What nobody owns is whose it is first.
        let (early, owned) = [(true, true), (false, true), (false, true), (false, true), (false, false)][dice.below(5)];
        let early = early && !sockets;
        let asked = if sockets { None } else { [Some(RED[0]), Some(RED[0]), Some(RED[1]), None][dice.below(4)] };
        let mut world = Self {
            blue: dice.one(&["a", "z"]),
            owned,
            asked,
            early,
            live: dice.in_percent(50),
            places: dice.in_percent(30),
            documents: BTreeMap::new(),
            red: BTreeMap::new(),
            said: BTreeMap::new(),
            acts: Vec::new(),
            evicted: Vec::new(),
            words: BTreeSet::new(),
            targets: BTreeMap::new(),
            dice: dice.clone(),
        };
        if world.owned {
            let blue = json!({"hosts": ["a", "z"], "stacks": ["evil"]});
            let tenants = json!({"red": {"hosts": RED, "stacks": OWNED, "hostnames": [HOSTNAME]}, "blue": blue});
            world.documents.insert("owners".into(), json!({"tenants": tenants}));
        }
        world.document(&mut dice);
        for (number, host) in RED.into_iter().enumerate() {
            // Few of everything: what is found in large worlds is found in small ones, of which there is time for many.
            let count = 1 + dice.below(2);
            let containers: Vec<_> = (0..count).map(|at| world.honest(&mut dice, number, at, sockets)).collect();
            let document = host_document(host, Vec::clone(&containers));
            world.said.insert(host, (document.clone(), written(&document)));
            world.red.insert(host, containers);
        }
        for _ in 0..=dice.below(2) {
            let act = world.act(&mut dice, sockets);
            world.acts.push(act);
        }
        world.evict(seed);
        for act in &world.acts {
            if let Act::Engine(containers) = act {
                for (container, _) in containers {
                    words(container, &mut world.words);
                }
            } else if let Act::Put(path, value) = act {
                words(value, &mut world.words);
                world.words.extend(path.split('/').map(str::to_lowercase));
            }
        }
        world.dice = dice;
        world
    }

    /// A container of red, or one of blue that calls itself the same, has another in its place; and blue says so of red's.
    fn evict(&mut self, seed: u64) {
        // Dice of its own, so that all else of a world stays as it was.
        let mut dice = Dice::new(!seed);
        // Not of the host that is asked: what does not run there leaves its own name, without a service, to the newest container
        // elsewhere (docs/security.md, "Who may write what in etcd").
        let Some(asked) = self.asked else { return };
        let host = if asked == RED[0] { RED[1] } else { RED[0] };
        let keys = self.said[host].1.keys();
        let uuids: Vec<_> = keys.filter_map(|key| key.split_once("containers/")).map(|(_, uuid)| uuid).collect();
        let uuid = uuids[dice.below(uuids.len())].to_owned();
        match dice.below(10) {
            0 => self.evicted.push(format!("evicted/{host}/{uuid}")),
            1 => self.evicted.push(format!("evicted/{}/{uuid}", self.blue)),
            // No role of a host has the key itself.
            2 => self
                .acts
                .push(Act::Put(format!("hosts/{}/evicted/{host}/{uuid}", self.blue), json!({"placement": "p"}))),
            _ => {}
        }
    }

    /// What an operator wrote.
    fn document(&mut self, dice: &mut Dice) {
        let mut services = Vec::new();
        for _ in 0..dice.below(4) {
            let target = dice.one(&TARGETS);
            services.push(match dice.below(5) {
                0 => {
                    // Of two entries for one service the first counts.
                    self.targets.entry("mail.outside".into()).or_insert_with(|| target.into());
                    json!({"name": "mail", "stack": "outside", "kind": "externalService", "hostname": target})
                }
                1 => json!({"name": "ext", "stack": "shop", "kind": "externalService", "external_ips": ["198.51.100.7"]}),
                2 => json!({
                    "name": "db", "stack": "data", "vip": "10.1.1.1", "token": "secret", "links": {"shop/web": "w"},
                    "metadata": {"k": "v"}, "labels": {"of": "document"},
                }),
                3 => json!({"name": "alias", "stack": "free", "kind": "dnsService", "links": {"data/db": "db"}}),
                _ => json!({"name": "lb", "stack": "free", "kind": "loadBalancerService", "vip": "10.1.1.2", "token": "lb"}),
            });
        }
        if !services.is_empty() {
            self.documents.insert("d".into(), json!({"services": services}));
        }
        let rules = json!([
            {"source_port": 80, "hostname": "www.example.org", "service": "shop/web", "target_port": 80},
            {"source_port": 80, "selector": "io.berth.lb=edge", "target_port": 80},
            {"source_port": 80, "service": "data/db", "target_port": 80},
        ]);
        let balancer =
            json!({"name": "lb", "stack": "edge", "kind": "loadBalancerService", "lb_config": {"port_rules": rules}});
        self.documents.insert("balancer".into(), json!({"services": [balancer]}));
    }

    fn act(&self, dice: &mut Dice, sockets: bool) -> Act {
        match dice.below(10) {
            0..=3 => Act::Engine((0..=dice.below(2)).map(|at| self.evil_container(dice, at, sockets)).collect()),
            4..=6 => self.evil_key(dice),
            7 if dice.in_percent(50) => Act::Delete(format!("hosts/{}/host", self.blue)),
            7 => Act::Lapse,
            8 => {
                let (stack, service) = SERVICES[dice.below(SERVICES.len())];
                Act::Image(membership(dice, stack, service))
            }
            _ => Act::Ask(dice.below(100)),
        }
    }

    /// A container of red.
    fn honest(&self, dice: &mut Dice, host: usize, at: usize, sockets: bool) -> Inspected {
        let name = NAMES[(at * 3 + dice.below(3)) % NAMES.len()];
        let (stack, service) = SERVICES[dice.below(4)];
        let labels = if dice.in_percent(80) { membership(dice, stack, service) } else { HashMap::new() };
        // A machine may be a copy of another one, with its containers.
        let machine = if dice.in_percent(25) { 0 } else { host };
        let mut container = inspection(&id(machine, at), name, "2026-11-20T18:00:00Z", &labels);
        let bridge = if sockets { format!("127.17.{host}.{}", at + 2) } else { format!("172.17.0.{}", at + 2) };
        attach(dice, &mut container, &bridge, &format!("10.9.{host}.{}", at + 2));
        // Where anybody may join, one that is healthy stands in for those that are not.
        if !self.is_free(stack) && dice.in_percent(20) {
            container["State"]["Health"] = json!({"Status": dice.one(&["healthy", "unhealthy"])});
        }
        if stack == "shop" && self.owned {
            container["Config"]["Labels"]["io.berth.lb"] = "edge".into();
            container["Config"]["Labels"]["io.berth.lb.host"] = HOSTNAME.into();
        }
        // Only what is checked can be called unhealthy by others.
        if dice.in_percent(50) {
            container["Config"]["Labels"]["io.berth.health.port"] = "80".into();
        }
        (container, HashMap::new())
    }

    /// A container that the engine of blue has.
    fn evil_container(&self, dice: &mut Dice, at: usize, sockets: bool) -> Inspected {
        let name = if dice.in_percent(30) { dice.one(&EVIL_NAMES) } else { dice.one(&NAMES) };
        let (stack, service) = SERVICES[dice.below(SERVICES.len())];
        let labels = if dice.in_percent(80) { membership(dice, stack, service) } else { HashMap::new() };
        // The same as of a container of red, or before or after all of these.
        let id = match dice.below(4) {
            0 if !self.early => id(dice.below(2), dice.below(2)),
            _ => id(9, at),
        };
        let created = dice.one(&["1971-01-01T00:00:00Z", "2026-11-20T18:00:00Z", "2099-01-01T00:00:00Z"]);
        // As every host has them, unless the one that is asked has no addresses of its own.
        let bridge = if sockets {
            format!("127.66.0.{}", at + 2)
        } else if self.asked.is_some() && dice.in_percent(70) {
            format!("172.17.0.{}", at + 2)
        } else {
            format!("172.17.66.{}", at + 2)
        };
        let lan = match dice.below(3) {
            // Forged.
            0 if !sockets => format!("10.9.{}.{}", dice.below(2), dice.below(2) + 2),
            _ => format!("10.66.0.{}", at + 2),
        };
        let mut container = inspection(&id, name, created, &labels);
        container["Config"]["Labels"]["io.berth.placement"] = "unit-1".into();
        container["Config"]["Labels"]["app"] = "web".into();
        // What it would have a balancer lead to itself.
        let hosts = ["www.example.org", "*", "*.example.org", HOSTNAME, "*.example.com", "SHOP.*", "shop.example.com."];
        let host = hosts[(at + name.len()) % hosts.len()];
        let wanted = [
            ("io.berth.lb", "edge"),
            ("io.berth.lb.host", host),
            ("io.berth.lb.path", "/"),
            ("io.berth.lb.priority", "1"),
        ];
        for (label, value) in wanted {
            container["Config"]["Labels"][label] = value.into();
        }
        attach(dice, &mut container, &bridge, &lan);
        if dice.in_percent(30) {
            container["HostConfig"]["NetworkMode"] = format!("container:{}", NAMES[dice.below(NAMES.len())]).into();
        }
        if dice.in_percent(30) {
            container["HostConfig"]["Links"] = json!([format!("/{}:/{name}/db", NAMES[dice.below(NAMES.len())])]);
        }
        (container, HashMap::new())
    }

    /// A key that only the role of blue's host lets it write, with a value that no agent writes.
    fn evil_key(&self, dice: &mut Dice) -> Act {
        let blue = self.blue;
        let (stack, name) = SERVICES[dice.below(SERVICES.len())];
        let host = dice.one(&["a", "b", "m", "z"]);
        let uuid = self.uuid(dice);
        let called = if dice.in_percent(30) { dice.one(&EVIL_NAMES) } else { dice.one(&NAMES) };
        let index = if dice.in_percent(50) { 0 } else { i64::MAX };
        let environments = [
            json!(null),
            json!({"name": "other"}),
            json!({"name": "default", "uuid": "e"}),
            json!({"name": "other", "uuid": DERIVED.0}),
        ];
        let environment = &environments[dice.below(4)];
        match dice.below(7) {
            0 => Act::Put(
                format!("hosts/{blue}/host"),
                json!({
                    "name": dice.one(&[blue, host]), "uuid": uuid, "agent_ip": dice.one(&["192.0.2.66", "192.0.2.1"]),
                    "environment": environment, "health_checks": dice.one(&["made", "suspect"]), "tenant_of_host": "red",
                    "state": dice.one(&["active", "inactive", "deactivating"]), "intended_state": "cordoned by red",
                    "labels": {"io.rancher.scheduler.ips": "192.0.2.1", "io.berth.admin/tenant": "red", "tenant": "red"}, "memory": 1_000_000,
                    "published": {"partial": dice.in_percent(10), "leaving": dice.in_percent(10), "lease": 0},
                }),
            ),
            1 | 2 => {
                let key = match &uuid {
                    Value::String(uuid) => uuid.replace('@', "%40"),
                    _ => called.to_owned(),
                };
                Act::Put(
                    format!("hosts/{blue}/containers/{key}"),
                    json!({
                        "name": called, "uuid": uuid, "host": host, "host_uuid": uuid, "service": format!("{stack}/{name}"),
                        "primary_ip": "172.17.66.9", "ips": ["172.17.66.9"], "routed_ips": [], "state": "running",
                        "links": {"db": "evil-1"}, "network_from": dice.one(&NAMES), "create_index": index,
                        "labels": {"io.berth.placement": "unit-1"}, "ports": ["80:80/tcp"], "memory_reservation": 1_i64 << 40,
                        "health_reason": "a lie", "health_since": index,
                    }),
                )
            }
            3 | 4 => Act::Put(
                format!("hosts/{blue}/services/{stack}/{name}"),
                json!({
                    "name": name, "stack": stack, "uuid": uuid, "kind": dice.one(&["service", "externalService", "dnsService", "loadBalancerService"]),
                    "vip": "192.0.2.67", "token": "stolen", "hostname": "evil.example.org", "external_ips": ["192.0.2.67"],
                    "metadata": {"k": "stolen"}, "labels": {"of": "evil", "io.berth.lb": "edge", "io.berth.lb.host": "www.example.org"}, "fqdn": "evil.example.org", "lb_config": {"evil": true},
                    "health_check": {"port": 1}, "state": "removed", "system": true, "create_index": index,
                    "links": {"shop/web": "db", "evil/db": "cache"}, "ports": ["7:7/udp"], "containers": [self.uuid(dice)],
                }),
            ),
            // What it says of a container of red while that host seems to be silent.
            _ if dice.in_percent(40) => {
                let owner = RED[dice.below(2)];
                let uuid = self.uuid_of(dice, owner).unwrap_or_else(|| uuid.as_str().unwrap_or("none").to_owned());
                let about = format!("{owner}/{}", uuid.replace('@', "%40"));
                let key = format!("{}/{blue}/{about}", dice.one(&["health", "health", "votes"]));
                Act::Put(
                    key,
                    json!({"health_state": "unhealthy", "opinion": "down", "reason": "a lie", "start": dice.below(3)}),
                )
            }
            _ if dice.in_percent(20) => Act::Put(
                format!("claims/host/{blue}"),
                json!({"subnet": dice.one(&["172.17.0.0/16", "10.9.0.0/24"]), "via": "192.0.2.1", "machine": "red"}),
            ),
            _ if dice.in_percent(50) => {
                Act::Put(format!("hosts/{blue}/stacks/{stack}"), json!({"name": stack, "uuid": uuid, "system": true}))
            }
            _ => Act::Put(
                format!("hosts/{blue}/networks/bridge"),
                json!({"name": "bridge", "uuid": "n", "is_default": true, "metadata": {"driver": "stolen"}}),
            ),
        }
    }

    /// A uuid that this host of red has, or none.
    fn uuid_of(&self, dice: &mut Dice, owner: &str) -> Option<String> {
        let keys = self.said.get(owner).filter(|_| !self.early && dice.in_percent(70))?.1.keys();
        let uuids: Vec<_> = keys.filter_map(|key| key.split_once("containers/")).map(|(_, uuid)| uuid).collect();
        (!uuids.is_empty()).then(|| uuids[dice.below(uuids.len())].to_owned())
    }

    /// A uuid that red has, or none.
    fn uuid(&self, dice: &mut Dice) -> Value {
        let keys = self.said.values().flat_map(|(_, keys)| keys.keys());
        let uuids: Vec<_> = keys.filter_map(|key| key.split_once("containers/")).map(|(_, uuid)| uuid).collect();
        if dice.in_percent(40) {
            return DERIVED.1[dice.below(DERIVED.1.len())].clone().into();
        }
        if self.early || uuids.is_empty() || dice.in_percent(30) {
            return Value::Null;
        }
        let uuid = uuids[dice.below(uuids.len())];
        if dice.in_percent(40) { format!("{uuid}@{}", RED[dice.below(2)]).into() } else { uuid.into() }
    }

    /// The names and the addresses on a network of the containers of a host of red.
    pub(crate) fn clients(&self, host: &str, network: &str) -> Vec<(String, String)> {
        let of = |container: &Value| {
            let address = container["NetworkSettings"]["Networks"][network]["IPAddress"].as_str()?;
            Some((container["Name"].as_str()?.trim_start_matches('/').to_owned(), address.to_owned()))
        };
        self.red.get(host).into_iter().flatten().filter_map(|(container, _)| of(container)).collect()
    }

    /// The containers of red that a scheduler has started, as units of a stack.
    pub(crate) fn units(&self) -> Vec<KeptUnit> {
        let of = |host: &&'static str| {
            let host = *host;
            self.red.get(host).into_iter().flatten().map(move |(container, _)| {
                let text = |key: &str| container[key].as_str().unwrap_or_default().trim_start_matches('/').to_owned();
                KeptUnit { host: host.to_owned(), container: (text("Name"), text("Id")) }
            })
        };
        RED.iter().flat_map(of).collect()
    }

    /// Whether a document names a stack, so that all clients search it.
    pub(crate) fn is_documented(&self, stack: &str) -> bool {
        let services = self.documents.get("d").and_then(|document| document["services"].as_array());
        services.into_iter().flatten().any(|service| service["stack"] == *stack)
    }

    /// Whether blue was first to say that the name of a record is an alias: in a stack without an owner the oldest key says
    /// whether a name is a service or an alias, unless a document does (docs/security.md, "What is not promised").
    pub(crate) fn was_alias_first(&self, record: &str) -> bool {
        let Some((name, rest)) = record.split_once('.') else { return false };
        let stack = rest.split('.').next().unwrap_or_default();
        let in_document = |service: &Value| service["stack"] == *stack && service["name"] == *name;
        let services = self.documents.get("d").and_then(|document| document["services"].as_array());
        if !self.early || !self.is_free(stack) || services.into_iter().flatten().any(in_document) {
            return false;
        }
        let path = format!("hosts/{}/services/{stack}/{name}", self.blue);
        self.acts.iter().any(|act| match act {
            Act::Put(put, value) => *put.to_lowercase() == path && value["kind"] == "dnsService",
            Act::Engine(containers) => containers.iter().any(|(container, _)| is_alias(container, stack, name)),
            _ => false,
        })
    }

    /// Whether a name is one of a service that anybody may have.
    pub(crate) fn may_be_free(&self, name: &str) -> bool {
        SERVICES.iter().any(|(stack, service)| *service == name && self.is_free(stack))
    }

    /// Whether a stack is open to everybody.
    pub(crate) fn is_free(&self, stack: &str) -> bool {
        !self.owned || !OWNED.contains(&&*stack.to_lowercase())
    }
}

/// Whether a container of this stack has this further name on a network.
fn is_alias(container: &Value, stack: &str, name: &str) -> bool {
    let labels = &container["Config"]["Labels"];
    let path = labels["io.rancher.stack_service.name"].as_str().and_then(|path| path.split('/').next());
    let is_in =
        labels["com.docker.compose.project"].as_str().or(path).is_some_and(|own| own.eq_ignore_ascii_case(stack));
    let networks = container["NetworkSettings"]["Networks"].as_object();
    let mut aliases =
        networks.into_iter().flat_map(|networks| networks.values()).filter_map(|network| network["Aliases"].as_array());
    is_in && aliases.any(|aliases| aliases.iter().any(|alias| alias == name))
}

/// The document of a host whose engine has these containers.
pub(crate) fn host_document(host: &str, containers: Vec<Inspected>) -> HostDocument {
    let address = match host {
        "b" => "192.0.2.1",
        "m" => "192.0.2.2",
        _ => BLUE[0],
    };
    let options = HostOptions { name: Some(host.into()), public_ip: address.parse().ok(), ..HostOptions::default() };
    let networks = json!([
        {"Name": "bridge", "Driver": "bridge", "Options": {"com.docker.network.bridge.default_bridge": "true"}},
        {"Name": "front", "Driver": "bridge"},
        {"Name": "lan", "Driver": "macvlan"},
    ]);
    let made = document(&options, networks, containers);
    // All hosts check each other's containers.
    let hosts = made.document.list("hosts").iter().filter_map(model::Value::as_map);
    let hosts = hosts.map(|host| host.with([(CHECKER.into(), model::Value::text(CHECKS))]).into());
    let document = made.document.with([("hosts".into(), model::Value::list(hosts.collect::<Vec<model::Value>>()))]);
    HostDocument { document, ..made }
}

fn id(host: usize, at: usize) -> String {
    format!("{:0>64}", format!("c{host}{at}"))
}

fn inspection(id: &str, name: &str, created: &str, labels: &HashMap<String, String>) -> Value {
    json!({
        "Id": id, "Name": format!("/{name}"), "Created": created, "State": {"Status": "running"},
        "Config": {"Labels": labels, "ExposedPorts": {"80/tcp": {}}}, "HostConfig": {"NetworkMode": "bridge"},
        "NetworkSettings": {"Networks": {}},
    })
}

/// Puts a container on networks, under further names, and publishes its port.
fn attach(dice: &mut Dice, container: &mut Value, bridge: &str, lan: &str) {
    let networks = &mut container["NetworkSettings"]["Networks"];
    networks["bridge"] = json!({"IPAddress": bridge, "Gateway": "172.17.0.1"});
    if dice.in_percent(40) {
        networks["front"] = json!({"IPAddress": bridge.replace("172.17", "172.20"), "Aliases": [dice.one(&ALIASES), dice.one(&ALIASES)]});
    }
    if dice.in_percent(30) {
        networks["lan"] = json!({"IPAddress": lan, "Aliases": [dice.one(&ALIASES)]});
    }
    if dice.in_percent(40) {
        let bindings = json!({"80/tcp": [{"HostIp": "0.0.0.0", "HostPort": dice.one(&["80", "8080"])}]});
        container["NetworkSettings"]["Ports"] = bindings.clone();
        container["HostConfig"]["PortBindings"] = bindings;
    }
}

/// Labels that make a container a member.
fn membership(dice: &mut Dice, stack: &str, service: &str) -> HashMap<String, String> {
    let text = str::to_owned;
    if dice.in_percent(50) {
        return [(text("io.rancher.stack_service.name"), format!("{stack}/{service}"))].into();
    }
    [
        (text("com.docker.compose.project"), text(stack)),
        (text("com.docker.compose.service"), text(service)),
        (text("com.docker.compose.config-hash"), text("8f3a")),
    ]
    .into()
}

/// All words of a value that may be names.
fn words(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => found.extend(text.split(['/', ':']).map(str::to_lowercase)),
        Value::Array(values) => values.iter().for_each(|value| words(value, found)),
        Value::Object(values) => values.values().for_each(|value| words(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
