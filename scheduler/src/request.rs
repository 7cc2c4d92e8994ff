//! The placement request: a unit of containers, how often, and what its place must be like.
//!
//! Whoever wrote the request is told which field is wrong and what it should have been; a field that
//! nobody knows is wrong too, since it would silently not be honoured.

use std::collections::{HashMap, HashSet};

use model::{Fingerprint, Map, Text, Value};

use crate::constraint::{self, AFFINITY_LABEL_PREFIX, Constraint, Macros, WEIGHT_DEFAULT, WEIGHT_MAX};
use crate::fields::Fields;
use crate::hosts::{CPU, INSTANCES, MEMORY, STORAGE, architecture, label};
use crate::inventory::{Kind, key};
use crate::port::{Port, Protocol};
use crate::score::Strategy;
use crate::taint::Toleration;
use crate::windows::{Build, Isolation};

/// Label that asks for one unit on every host.
pub const GLOBAL_LABEL: &str = "io.rancher.scheduler.global";
/// Label with the host on which the unit has to be.
pub const REQUESTED_HOST_LABEL: &str = "io.rancher.service.requested.host.id";

/// Most replicas of one request: more would hold the ledger for longer than other callers should wait.
pub const COUNT_MAX: i64 = 10_000;
/// Most containers of one unit; a stack of that many sidekicks is a mistake.
pub const MEMBERS_MAX: usize = 32;
/// Most constraints of one request, after labels are taken apart: each costs a pass over the hosts.
pub const CONSTRAINTS_MAX: usize = 256;
/// Most labels of one container.
pub const LABELS_MAX: usize = 1024;
/// Most ports of one container.
pub const PORTS_MAX: usize = 256;
/// Most entries of any other list.
pub const LIST_MAX: usize = 256;
/// Longest text, in octets.
pub const TEXT_MAX: usize = 4096;
/// Longest id and name, in octets: engines take names of that length, and URLs carry them.
pub const ID_MAX: usize = 128;
/// Most hosts on which starting is tried: each may take a pull and half a minute of silence.
pub const ATTEMPTS_MAX: i64 = 16;
/// On how many hosts starting is tried when nobody says.
const ATTEMPTS_DEFAULT: u32 = 3;
/// Largest amount, 1 PiB of memory: far from where sums overflow.
pub const AMOUNT_MAX: i64 = 1 << 50;

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}, expected {expected}")]
pub struct Invalid {
    /// The field, with the way to it: `sidekicks[0].ports[1]`.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What it should have been.
    pub expected: String,
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), expected: expected.into() }
    }
}

/// What is to be placed.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the wire, and none depends on another")]
pub struct Request {
    /// Names the request, so that asking again gives the same answer.
    pub id: Option<Text>,
    /// Whether nothing is to be kept.
    pub dry_run: bool,
    /// Whether the answer is to say everything about every host.
    pub explain: bool,
    /// Whether fewer replicas than asked for are worse than none.
    pub atomic: bool,
    /// How many units.
    pub count: u32,
    /// Whether there is to be one unit on every host.
    pub global: bool,
    /// Whether the containers are to be started, not only their room kept.
    pub start: bool,
    /// On how many hosts starting is tried, one after another.
    pub attempts: u32,
    /// `stack/service` of the unit.
    pub service: Option<Text>,
    /// Under which key the service's containers are found.
    pub service_key: Option<Fingerprint>,
    /// The host on which it has to be, whatever speaks against it.
    pub requested_host: Option<Text>,
    /// Which of the hosts that fit is best; `None` as the scheduler was started.
    pub strategy: Option<Strategy>,
    /// How the containers are to be isolated; `None` as suits the host.
    pub isolation: Option<Isolation>,
    /// What hosts must be like.
    pub constraints: Vec<Constraint>,
    /// Which taints do not matter.
    pub tolerations: Vec<Toleration>,
    /// Over which label's values the service is spread.
    pub spread: Vec<Spread>,
    /// The containers of the unit, the primary one first.
    pub members: Vec<Member>,
    /// Stands for the content of the request.
    pub fingerprint: Fingerprint,
    /// The request as it was written.
    pub asked: Map,
}

/// How evenly a service is spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The host label (folded) whose values are the domains.
    pub label: String,
    /// By how many containers the fullest and the emptiest domain may differ.
    pub max_skew: u32,
}

/// One container of the unit.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Its name; the first one's may be absent.
    pub name: Option<Text>,
    /// Its labels.
    pub labels: Vec<(Text, Text)>,
    /// What it takes, by pool, in the predecessor's order: memory, processor, itself, disk, others.
    pub amounts: Vec<(Text, i64)>,
    /// What it publishes.
    pub ports: Vec<Port>,
    /// The image's name.
    pub image: Option<Text>,
    /// For what the image is built, when that is known.
    pub platforms: Vec<ImagePlatform>,
    /// Containers beside which it must be: volumes-from and network-from, without those of the unit.
    pub beside: Vec<Text>,
    /// What only matters to the engine that starts it.
    pub run: Run,
    /// Under which key containers of its image are found.
    pub image_key: Option<Fingerprint>,
    /// What it is found by, besides its name.
    pub keys: Vec<Fingerprint>,
}

/// How a container is run, in the words of `docker run`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// What it runs, in place of the image's own command.
    pub command: Vec<Text>,
    /// What runs it, in place of the image's own entry point.
    pub entrypoint: Vec<Text>,
    /// Its variables, `NAME=VALUE`.
    pub environment: Vec<String>,
    /// Where it asks for names; `None` as the scheduler was started.
    pub dns: Option<Vec<Text>>,
    /// In which domains it looks for names without a dot; `None` as suits its stack.
    pub dns_search: Option<Vec<Text>>,
    /// The most memory it may use, in octets.
    pub memory_limit: Option<i64>,
    /// The most processor it may use, in thousandths of one.
    pub milli_cpu_limit: Option<i64>,
    /// What it calls itself.
    pub hostname: Option<Text>,
    /// The engine's network.
    pub network: Option<Text>,
    /// The container whose network it shares.
    pub network_from: Option<Text>,
    /// Containers whose volumes it has.
    pub volumes_from: Vec<Text>,
    /// When the engine starts it again: `no`, `always`, `unless-stopped`, `on-failure[:TIMES]`.
    pub restart: Option<Text>,
    /// Who it runs as.
    pub user: Option<Text>,
    /// Folders and volumes, as in `docker run --volume`.
    pub volumes: Vec<Text>,
    /// Where it runs.
    pub working_dir: Option<Text>,
}

/// One entry of an image's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePlatform {
    /// The operating system.
    pub os: Text,
    /// The architecture, when stated.
    pub architecture: Option<Text>,
    /// The Windows build, when stated.
    pub build: Option<Build>,
}

impl Request {
    /// The request in this value.
    pub fn parse(value: &Value) -> Result<Self, Invalid> {
        let fields = Fields::of(value)?;
        let map = fields.map;
        fields.only(&[REQUEST_FIELDS, MEMBER_FIELDS])?;
        let stack = fields.text("stack")?;
        let service = fields.text("service")?;
        let macros =
            Macros { service: service.as_deref().unwrap_or_default(), stack: stack.as_deref().unwrap_or_default() };
        let mut members = vec![fields.clone()];
        for (at, sidekick) in fields.list("sidekicks", MEMBERS_MAX - 1)?.iter().enumerate() {
            members.push(fields.entry("sidekicks", at, sidekick)?);
        }
        for sidekick in &members[1..] {
            sidekick.only(&[MEMBER_FIELDS])?;
            if sidekick.text("name")?.is_none() {
                return Err(Invalid::new(sidekick.at("name"), "missing", "the name of the sidekick"));
            }
        }
        let mut constraints = Vec::new();
        let mut request = Self {
            id: fields.id("id")?,
            dry_run: fields.truth("dry_run")?,
            explain: fields.truth("explain")?,
            atomic: fields.truth("atomic")?,
            count: fields.int("count", 1, COUNT_MAX)?.and_then(|count| u32::try_from(count).ok()).unwrap_or(1),
            global: fields.truth("global")?,
            start: fields.truth("start")?,
            attempts: fields
                .int("attempts", 1, ATTEMPTS_MAX)?
                .and_then(|attempts| u32::try_from(attempts).ok())
                .unwrap_or(ATTEMPTS_DEFAULT),
            service: service.as_ref().map(|service| format!("{}/{service}", macros.stack).into()),
            service_key: None,
            requested_host: fields.text("requested_host")?,
            strategy: fields.word("strategy", &[("spread", Strategy::Spread), ("binpack", Strategy::Binpack)])?,
            isolation: fields
                .word(
                    "isolation",
                    &[("default", None), ("process", Some(Isolation::Process)), ("hyperv", Some(Isolation::Hyperv))],
                )?
                .flatten(),
            tolerations: fields.tolerations()?,
            spread: fields.spread()?,
            members: members.iter().map(|fields| fields.member(macros, &mut constraints)).collect::<Result<_, _>>()?,
            constraints: Vec::new(),
            fingerprint: Fingerprint::of(map),
            asked: map.clone(),
        };
        constraints.extend(fields.constraints()?);
        if constraints.len() > CONSTRAINTS_MAX {
            let problem = format!("{} constraints, those of labels included", constraints.len());
            return Err(Invalid::new("constraints", problem, format!("at most {CONSTRAINTS_MAX}")));
        }
        request.constraints = constraints;
        if request.service.is_none() {
            let named = |(key, _): &&(Text, Text)| key.eq_ignore_ascii_case(crate::inventory::SERVICE_LABEL);
            request.service = request.members[0].labels.iter().find(named).map(|(_, value)| value.clone());
        }
        request.heed_labels();
        request.add_labels(macros);
        request.add_keys();
        request.check_unit(&members)?;
        request.check_start(&members)?;
        Ok(request)
    }

    /// What one unit takes, in the predecessor's order of asking, equal pools summed.
    pub fn amounts(&self) -> Vec<(Text, i64)> {
        let mut amounts: Vec<(Text, i64)> = Vec::new();
        // The predecessor asks for disk last, after all containers.
        let all = || self.members.iter().flat_map(|member| &member.amounts);
        let last = |pool: &str| pool == STORAGE;
        for (pool, amount) in all().filter(|(pool, _)| !last(pool)).chain(all().filter(|(pool, _)| last(pool))) {
            match amounts.iter_mut().find(|(known, _)| known == pool) {
                Some((_, sum)) => *sum = sum.saturating_add(*amount),
                None => amounts.push((pool.clone(), *amount)),
            }
        }
        amounts
    }

    /// Checks what is needed to start the containers.
    fn check_start(&self, fields: &[Fields<'_>]) -> Result<(), Invalid> {
        let without = self.members.iter().zip(fields).find(|(member, _)| self.start && member.image.is_none());
        match without {
            Some((_, fields)) => Err(Invalid::new(fields.at("image"), "missing", "the image to start")),
            None => Ok(()),
        }
    }

    fn heed_labels(&mut self) {
        for (key, value) in self.members.iter().flat_map(|member| &member.labels) {
            if key.eq_ignore_ascii_case(GLOBAL_LABEL) && value.eq_ignore_ascii_case("true") {
                self.global = true;
            } else if key.eq_ignore_ascii_case(REQUESTED_HOST_LABEL) && self.requested_host.is_none() {
                self.requested_host = Some(value.clone());
            }
        }
    }

    /// Adds the labels that the predecessor's server gave to every container, so that rules may speak of them.
    fn add_labels(&mut self, macros: Macros<'_>) {
        if macros.service.is_empty() || macros.stack.is_empty() {
            return;
        }
        for (at, member) in self.members.iter_mut().enumerate() {
            let path = match &member.name {
                Some(sidekick) if at > 0 => format!("{}/{}/{sidekick}", macros.stack, macros.service),
                _ => format!("{}/{}", macros.stack, macros.service),
            };
            for (key, value) in [
                ("io.rancher.stack.name", macros.stack),
                ("io.rancher.project.name", macros.stack),
                (crate::inventory::SERVICE_LABEL, path.as_str()),
                ("io.rancher.project_service.name", path.as_str()),
            ] {
                if !member.labels.iter().any(|(known, _)| known.eq_ignore_ascii_case(key)) {
                    member.labels.push((key.into(), value.into()));
                }
            }
        }
    }

    /// Looks up once under which keys others find these containers: hashing takes longer than finding a host.
    fn add_keys(&mut self) {
        self.service_key = self.service.as_ref().map(|service| key(Kind::Service, &[service]));
        for member in &mut self.members {
            member.image_key = member.image.as_ref().map(|image| key(Kind::Image, &[image]));
            member.keys = member.labels.iter().map(|(label, value)| key(Kind::Label, &[label, value])).collect();
            member.keys.extend(member.image_key);
        }
    }

    /// Checks what concerns several containers of the unit, and forgets places beside each other.
    fn check_unit(&mut self, fields: &[Fields<'_>]) -> Result<(), Invalid> {
        let mut names = HashMap::new();
        for (at, member) in self.members.iter().enumerate() {
            if let Some(name) = &member.name
                && names.insert(name.to_lowercase(), at).is_some()
            {
                return Err(Invalid::new(fields[at].at("name"), format!("{name} is named twice"), "a name of its own"));
            }
        }
        let mut wanted = HashSet::new();
        for (at, port) in
            self.members.iter().enumerate().flat_map(|(at, member)| member.ports.iter().map(move |port| (at, port)))
        {
            if port.public != 0 && !wanted.insert((port.address, port.public, port.protocol)) {
                let problem = format!("Port {port} requested more than once.");
                return Err(Invalid::new(fields[at].at("ports"), problem, "each public port once per unit"));
            }
        }
        let within: Vec<Vec<usize>> = self
            .members
            .iter()
            .map(|member| member.beside.iter().filter_map(|name| names.get(&name.to_lowercase()).copied()).collect())
            .collect();
        if let Some(at) = first_in_circle(&within) {
            let problem = "the containers of the unit wait for each other";
            return Err(Invalid::new(
                fields[at].at("volumes_from"),
                problem,
                "no circle of volumes_from and network_from",
            ));
        }
        for member in &mut self.members {
            member.beside.retain(|name| !names.contains_key(&name.to_lowercase()));
        }
        Ok(())
    }
}

/// The first container from which following `within` never ends.
fn first_in_circle(within: &[Vec<usize>]) -> Option<usize> {
    let mut left: Vec<usize> = (0..within.len()).collect();
    loop {
        let before = left.len();
        let waiting = left.clone();
        left.retain(|at| within[*at].iter().any(|other| waiting.contains(other)));
        if left.is_empty() {
            return None;
        }
        if left.len() == before {
            return left.first().copied();
        }
    }
}

/// Fields of the request as a whole.
const REQUEST_FIELDS: &[&str] = &[
    "atomic",
    "attempts",
    "constraints",
    "count",
    "dry_run",
    "explain",
    "global",
    "id",
    "isolation",
    "requested_host",
    "service",
    "sidekicks",
    "spread",
    "stack",
    "start",
    "strategy",
    "tolerations",
];

/// Fields of each container; those of the primary one stand in the request itself.
const MEMBER_FIELDS: &[&str] = &[
    "command",
    "dns",
    "dns_search",
    "entrypoint",
    "environment",
    "hostname",
    "image",
    "labels",
    "limits",
    "name",
    "network",
    "network_from",
    "ports",
    "resources",
    "restart",
    "user",
    "volumes",
    "volumes_from",
    "working_dir",
];

impl<'a> Fields<'a> {
    fn member(&self, macros: Macros<'_>, constraints: &mut Vec<Constraint>) -> Result<Member, Invalid> {
        let labels = self.labels()?;
        for (key, value) in &labels {
            let prefix = key.get(..AFFINITY_LABEL_PREFIX.len());
            if prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(AFFINITY_LABEL_PREFIX)) {
                let field = &key[AFFINITY_LABEL_PREFIX.len()..];
                let rules = constraint::of_label(field, value, macros);
                constraints.extend(rules.map_err(|expected| {
                    Invalid::new(self.at(&format!("labels.{key}")), format!("no rule {field:?}"), expected)
                })?);
            }
        }
        let mut environment = self.environment()?;
        // Rules are for the scheduler, not for the container.
        environment.retain(|variable| match constraint::of_variable(variable, macros) {
            Some(rule) => {
                constraints.push(rule);
                false
            }
            None => true,
        });
        let (image, platforms) = self.image()?;
        let run = self.run(environment)?;
        let mut beside = run.volumes_from.clone();
        beside.extend(run.network_from.clone());
        Ok(Member {
            run,
            image_key: None,
            keys: Vec::new(),
            name: self.id("name")?,
            labels,
            amounts: self.resources()?,
            ports: self.ports()?,
            image,
            platforms,
            beside,
        })
    }

    fn run(&self, environment: Vec<String>) -> Result<Run, Invalid> {
        let command = match self.get("command") {
            Some(Value::Text(text)) => words(text).map_or_else(
                || self.wrong("command", &Value::Text(text.clone()), "words, with every quote closed"),
                Ok,
            )?,
            _ => self.texts("command")?,
        };
        let optional = |key| self.get(key).map(|_| self.texts(key)).transpose();
        let restart = self.text("restart")?;
        let none = Map::default();
        let limits = match self.get("limits") {
            None => &none,
            Some(Value::Map(map)) => map,
            Some(other) => return self.wrong("limits", other, "a map of memory and milli_cpu"),
        };
        let limits = Fields { path: self.at("limits"), map: limits };
        limits.only(&[&["memory", "milli_cpu"]])?;
        let fine = |word: &Text| {
            let times = word.strip_prefix("on-failure").map(|rest| rest.strip_prefix(':').unwrap_or("0"));
            matches!(&**word, "no" | "always" | "unless-stopped")
                || times.is_some_and(|times| times.parse::<u16>().is_ok())
        };
        if let Some(word) = restart.clone().filter(|word| !fine(word)) {
            let expected = "no, always, unless-stopped, on-failure or on-failure:TIMES";
            return self.wrong("restart", &Value::Text(word), expected);
        }
        Ok(Run {
            command,
            entrypoint: self.texts("entrypoint")?,
            environment,
            dns: self.addresses("dns")?,
            dns_search: optional("dns_search")?,
            memory_limit: limits.amount("memory")?.filter(|limit| *limit > 0),
            milli_cpu_limit: limits.amount("milli_cpu")?.filter(|limit| *limit > 0),
            hostname: self.text("hostname")?,
            network: self.text("network")?,
            network_from: self.text("network_from")?,
            volumes_from: self.texts("volumes_from")?,
            restart,
            user: self.text("user")?,
            volumes: self.texts("volumes")?,
            working_dir: self.text("working_dir")?,
        })
    }

    fn addresses(&self, key: &str) -> Result<Option<Vec<Text>>, Invalid> {
        if self.get(key).is_none() {
            return Ok(None);
        }
        let texts = self.texts(key)?;
        match texts.iter().position(|text| text.parse::<std::net::IpAddr>().is_err()) {
            Some(at) => self.wrong(&format!("{key}[{at}]"), &Value::Text(texts[at].clone()), "an address"),
            None => Ok(Some(texts)),
        }
    }

    pub(crate) fn labels(&self) -> Result<Vec<(Text, Text)>, Invalid> {
        match self.get("labels") {
            None => Ok(Vec::new()),
            Some(Value::Map(map)) if map.len() <= LABELS_MAX => map
                .iter()
                .map(|entry| match label(entry) {
                    Some((key, value)) if key.len() + value.len() <= TEXT_MAX => Ok((key, value)),
                    _ => self.wrong(
                        &format!("labels.{}", entry.0),
                        &entry.1,
                        format!("text of at most {TEXT_MAX} octets"),
                    ),
                })
                .collect(),
            Some(other) => self.wrong("labels", other, format!("a map of at most {LABELS_MAX} labels")),
        }
    }

    fn environment(&self) -> Result<Vec<String>, Invalid> {
        match self.get("environment") {
            Some(Value::Map(map)) if map.len() <= LABELS_MAX => {
                let pair = |entry| label(entry).map(|(key, value)| format!("{key}={value}"));
                Ok(map.iter().filter_map(pair).collect())
            }
            Some(Value::List(items)) if items.len() <= LABELS_MAX => items
                .iter()
                .enumerate()
                .map(|(at, item)| match item {
                    Value::Text(text) => Ok(text.to_string()),
                    other => self.wrong(&format!("environment[{at}]"), other, "text, NAME=VALUE"),
                })
                .collect(),
            None => Ok(Vec::new()),
            Some(other) => {
                self.wrong("environment", other, format!("a map or a list of at most {LABELS_MAX} variables"))
            }
        }
    }

    fn image(&self) -> Result<(Option<Text>, Vec<ImagePlatform>), Invalid> {
        let Some(Value::Map(map)) = self.get("image") else {
            return Ok((self.text("image")?, Vec::new()));
        };
        let image = Fields { path: self.at("image"), map };
        image.only(&[&["name", "platforms"]])?;
        let mut platforms = Vec::new();
        for (at, entry) in image.list("platforms", LIST_MAX)?.iter().enumerate() {
            let entry = image.entry("platforms", at, entry)?;
            entry.only(&[&["architecture", "os", "os_features", "os_version", "variant"]])?;
            let os = entry.text("os")?;
            let os = os.ok_or_else(|| Invalid::new(entry.at("os"), "missing", "linux or windows"))?;
            let version = entry.text("os_version")?;
            let build = version.as_deref().and_then(Build::parse);
            let windows = os.eq_ignore_ascii_case("windows");
            if let Some(version) = version.filter(|_| windows && build.is_none()) {
                return entry.wrong("os_version", &Value::Text(version), "a Windows version such as 10.0.20348.2113");
            }
            platforms.push(ImagePlatform {
                os: os.to_lowercase().into(),
                architecture: entry.text("architecture")?.map(|word| architecture(&word)),
                build: build.filter(|_| windows),
            });
        }
        Ok((image.text("name")?, platforms))
    }

    fn resources(&self) -> Result<Vec<(Text, i64)>, Invalid> {
        let empty = Map::default();
        let map = match self.get("resources") {
            None => &empty,
            Some(Value::Map(map)) if map.len() <= LIST_MAX => map,
            Some(other) => return self.wrong("resources", other, format!("a map of at most {LIST_MAX} amounts")),
        };
        let fields = Fields { path: self.at("resources"), map };
        let mut amounts = [(MEMORY, 0), (CPU, 0), (INSTANCES, 1), (STORAGE, 0)]
            .map(|(pool, amount)| (Text::from(pool), amount))
            .to_vec();
        for (key, _) in map {
            let pool = match &**key {
                "memory" => MEMORY,
                "milli_cpu" => CPU,
                "storage_mb" => STORAGE,
                INSTANCES => {
                    return Err(Invalid::new(
                        fields.at(key),
                        "not to be asked for",
                        "nothing: each container takes one",
                    ));
                }
                other => other,
            };
            let Some(amount) = fields.amount(key)? else { continue };
            match amounts.iter_mut().find(|(known, _)| &**known == pool) {
                Some((_, sum)) => *sum = amount,
                None => amounts.push((pool.into(), amount)),
            }
        }
        amounts.retain(|(_, amount)| *amount > 0);
        Ok(amounts)
    }

    fn ports(&self) -> Result<Vec<Port>, Invalid> {
        let port = |(at, item): (usize, &'a Value)| {
            let expected = "a port such as \"80:8080/tcp\" or \"192.0.2.1:80:8080\"";
            match item {
                Value::Text(text) => {
                    Port::parse(text).map_or_else(|| self.wrong(&format!("ports[{at}]"), item, expected), Ok)
                }
                Value::Map(_) => self.entry("ports", at, item)?.port(),
                other => self.wrong(&format!("ports[{at}]"), other, expected),
            }
        };
        self.list("ports", PORTS_MAX)?.iter().enumerate().map(port).collect()
    }

    fn port(&self) -> Result<Port, Invalid> {
        self.only(&[&["ip", "private", "protocol", "public"]])?;
        let number = |key, least| Ok(self.int(key, least, 65535)?.and_then(|port| u16::try_from(port).ok()));
        let private = number("private", 1)?;
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| (protocol.name(), protocol));
        let address = match self.text("ip")? {
            None => None,
            Some(text) => match text.parse() {
                Ok(address) => Some(address),
                Err(_) => return self.wrong("ip", &Value::Text(text), "an address"),
            },
        };
        Ok(Port {
            address,
            public: number("public", 0)?.unwrap_or(0),
            private: private.ok_or_else(|| Invalid::new(self.at("private"), "missing", "the port inside"))?,
            protocol: self.word("protocol", &protocols)?.unwrap_or(Protocol::Tcp),
        })
    }

    fn constraints(&self) -> Result<Vec<Constraint>, Invalid> {
        let constraint = |(at, item): (usize, &'a Value)| match item {
            Value::Text(text) if text.len() <= TEXT_MAX => {
                constraint::of_text(text).or_else(|expected| self.wrong(&format!("constraints[{at}]"), item, expected))
            }
            Value::Map(_) => self.entry("constraints", at, item)?.constraint(),
            other => self.wrong(&format!("constraints[{at}]"), other, "text or a map"),
        };
        self.list("constraints", CONSTRAINTS_MAX)?.iter().enumerate().map(constraint).collect()
    }

    fn constraint(&self) -> Result<Constraint, Invalid> {
        self.only(&[&["key", "operator", "soft", "value", "values", "weight"]])?;
        let key = self.text("key")?.ok_or_else(|| Invalid::new(self.at("key"), "missing", "a label key"))?;
        let operator = self.text("operator")?.unwrap_or_else(|| "=".into());
        let mut values = self.texts("values")?;
        match self.get("value") {
            Some(value @ (Value::Int(_) | Value::Float(_) | Value::Bool(_))) => {
                values.extend(label(&(key.clone(), value.clone())).map(|(_, value)| value));
            }
            _ => values.extend(self.text("value")?),
        }
        let weight = self.int("weight", 1, i64::from(WEIGHT_MAX))?.and_then(|weight| u32::try_from(weight).ok());
        let soft = self.truth("soft")? || weight.is_some();
        let constraint = constraint::of_parts(&key, &operator, &values)
            .map_err(|expected| Invalid::new(self.path.clone(), "not a constraint", expected))?;
        Ok(Constraint { weight: soft.then(|| weight.unwrap_or(WEIGHT_DEFAULT)), ..constraint })
    }

    fn tolerations(&self) -> Result<Vec<Toleration>, Invalid> {
        let toleration = |(at, item): (usize, &'a Value)| {
            if let Value::Text(text) = item {
                let (key, value) = text.split_once('=').map_or((&**text, None), |(key, value)| (key, Some(value)));
                return Ok(Toleration { key: Some(key.trim().into()), value: value.map(|value| value.trim().into()) });
            }
            let fields = self.entry("tolerations", at, item)?;
            fields.only(&[&["effect", "key", "operator", "value"]])?;
            let exists = fields.word("operator", &[("Equal", false), ("Exists", true)])?.unwrap_or(false);
            let (key, value) = (fields.text("key")?, fields.text("value")?);
            fields.word("effect", &[("NoSchedule", ()), ("PreferNoSchedule", ()), ("NoExecute", ())])?;
            if exists && value.is_some() {
                return Err(Invalid::new(fields.at("value"), "given with Exists", "no value"));
            }
            if key.is_none() && !exists {
                return Err(Invalid::new(fields.at("key"), "missing", "a key, or the operator Exists"));
            }
            Ok(Toleration { key, value: if exists { None } else { Some(value.unwrap_or_else(|| "".into())) } })
        };
        self.list("tolerations", LIST_MAX)?.iter().enumerate().map(toleration).collect()
    }

    fn spread(&self) -> Result<Vec<Spread>, Invalid> {
        let spread = |(at, item): (usize, &'a Value)| {
            if let Value::Text(label) = item
                && !label.is_empty()
            {
                return Ok(Spread { label: label.to_lowercase(), max_skew: 1 });
            }
            let fields = self.entry("spread", at, item)?;
            fields.only(&[&["label", "max_skew"]])?;
            let label = fields.text("label")?;
            let label = label.ok_or_else(|| Invalid::new(fields.at("label"), "missing", "a host label"))?;
            let max_skew = fields.int("max_skew", 1, COUNT_MAX)?.and_then(|skew| u32::try_from(skew).ok());
            Ok(Spread { label: label.to_lowercase(), max_skew: max_skew.unwrap_or(1) })
        };
        self.list("spread", MEMBERS_MAX)?.iter().enumerate().map(spread).collect()
    }
}

/// The words of a command line; quotes and backslashes as a shell takes them. `None` when a quote stays open.
fn words(text: &str) -> Option<Vec<Text>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (Some(open), char) if open == char => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().push(chars.next()?),
            (None, char) if char.is_whitespace() => words.extend(word.take().map(Text::from)),
            (_, char) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word.map(Text::from));
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Request, Invalid> {
        Request::parse(&serde_json::from_str(json).unwrap())
    }

    fn check(json: &str, field: &str, expected: &str) {
        let invalid = parse(json).unwrap_err();
        assert_eq!(invalid.field, field, "{json}: {invalid}");
        assert!(invalid.to_string().contains(expected), "{json}: {invalid}");
    }

    #[test]
    fn wrong_fields_are_named() {
        check("[]", "", "a map");
        check(r#"{"imagee":"x"}"#, "imagee", "unknown field");
        check(r#"{"count":0}"#, "count", "from 1 to 10000");
        check(r#"{"count":"many"}"#, "count", "whole number");
        check(r#"{"id":"a b"}"#, "id", "letters");
        check(r#"{"resources":{"memory":-1}}"#, "resources.memory", "from 0");
        check(r#"{"resources":{"memory":"5 apples"}}"#, "resources.memory", "512MiB");
        check(r#"{"resources":{"memory":9007199254740992}}"#, "resources.memory", "from 0");
        check(r#"{"resources":{"memory":"9999999999999g"}}"#, "resources.memory", "from 0");
        check(
            r#"{"resources":{"instanceReservation":2}}"#,
            "resources.instanceReservation",
            "each container takes one",
        );
        check(r#"{"ports":["80:80","x"]}"#, "ports[1]", "a port such as");
        check(r#"{"ports":[{"public":70000,"private":1}]}"#, "ports[0].public", "65535");
        check(r#"{"ports":[{"public":1}]}"#, "ports[0].private", "missing");
        check(r#"{"ports":[{"private":1,"ip":"x"}]}"#, "ports[0].ip", "an address");
        check(r#"{"constraints":["zone"]}"#, "constraints[0]", "OPERATOR");
        check(r#"{"constraints":[{"key":"a","operator":"like","value":"x"}]}"#, "constraints[0]", "one of");
        check(r#"{"constraints":[{"key":"a","value":"x","weight":101}]}"#, "constraints[0].weight", "100");
        check(
            r#"{"labels":{"io.rancher.scheduler.affinity:moon":"x"}}"#,
            "labels.io.rancher.scheduler.affinity:moon",
            "host_label",
        );
        check(r#"{"labels":{"a":[]}}"#, "labels.a", "text");
        check(r#"{"strategy":"best"}"#, "strategy", "spread or binpack");
        check(
            r#"{"image":{"platforms":[{"os":"windows","os_version":"ltsc"}]}}"#,
            "image.platforms[0].os_version",
            "10.0.20348",
        );
        check(r#"{"sidekicks":[{}]}"#, "sidekicks[0].name", "missing");
        check(r#"{"sidekicks":[{"name":"a","count":2}]}"#, "sidekicks[0].count", "unknown field");
        check(r#"{"name":"a","sidekicks":[{"name":"A"}]}"#, "sidekicks[0].name", "twice");
        check(r#"{"tolerations":[{}]}"#, "tolerations[0].key", "missing");
        check(r#"{"spread":[{"label":"zone","max_skew":0}]}"#, "spread[0].max_skew", "from 1");
        check(
            r#"{"ports":["5555:80"],"sidekicks":[{"name":"a","ports":["5555:81"]}]}"#,
            "sidekicks[0].ports",
            "Port 5555/tcp requested more than once.",
        );
        check(
            r#"{"name":"a","volumes_from":["b"],"sidekicks":[{"name":"b","network_from":"a"}]}"#,
            "volumes_from",
            "wait for each other",
        );
        check(r#"{"name":"a","network_from":"a"}"#, "volumes_from", "wait for each other");
    }

    #[test]
    fn absurd_requests_are_refused_by_named_limits() {
        let many = |count: usize, item: &str| vec![item; count].join(",");
        check(&format!(r#"{{"constraints":[{}]}}"#, many(10_000, "\"a=b\"")), "constraints", "at most 256");
        check(&format!(r#"{{"ports":[{}]}}"#, many(10_000, "\"80:80\"")), "ports", "at most 256");
        check(&format!(r#"{{"sidekicks":[{}]}}"#, many(40, r#"{"name":"x"}"#)), "sidekicks", "at most 31");
        let rule = format!(r#"{{"labels":{{"io.rancher.scheduler.affinity:host_label":"{}"}}}}"#, many(300, "a=b"));
        check(&rule, "constraints", "at most 256");
        check(&format!(r#"{{"name":"{}"}}"#, "x".repeat(200)), "name", "128");
    }

    #[test]
    fn amounts_come_in_the_order_of_the_predecessor() {
        let amounts = |json: &str| -> Vec<String> {
            parse(json).unwrap().amounts().iter().map(|(pool, amount)| format!("{pool} {amount}")).collect()
        };
        assert_eq!(amounts("{}"), ["instanceReservation 1"]);
        assert_eq!(
            amounts(
                r#"{"resources":{"storage_mb":7,"milli_cpu":500,"memory":"5MiB"},"sidekicks":[{"name":"a","resources":{"memory":1,"gpu":1}}]}"#
            ),
            ["memoryReservation 5242881", "cpuReservation 500", "instanceReservation 2", "gpu 1", "storageSize 7"]
        );
    }

    #[test]
    fn the_description_knows_all_fields() {
        let openapi: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let schemas = openapi.as_map().unwrap().map("components").unwrap().map("schemas").unwrap();
        let fields = |schema| -> Vec<String> {
            let properties = schemas.map(schema).unwrap().map("properties").unwrap();
            properties.iter().map(|(key, _)| key.to_string()).collect()
        };
        let mut all = [REQUEST_FIELDS, MEMBER_FIELDS].concat();
        all.sort_unstable();
        assert_eq!(fields("PlacementRequest"), all);
        assert_eq!(fields("Sidekick"), MEMBER_FIELDS);
    }

    #[test]
    fn labels_ask_for_global_and_for_a_host() {
        let request =
            parse(r#"{"labels":{"io.rancher.scheduler.global":true,"io.rancher.service.requested.host.id":3}}"#)
                .unwrap();
        assert!(request.global);
        assert_eq!(request.requested_host.as_deref(), Some("3"));
    }
}
