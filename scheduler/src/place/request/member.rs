//! One container of a request: what it is, what it takes and publishes, and how it is run.

use model::health::{BadCheck, OnFailure};
use model::{Fingerprint, Map, Text, Value};

use crate::place::constraint::{self, AFFINITY_LABEL_PREFIX, Constraint, Macros};
use crate::place::fields::Fields;
use crate::place::hosts::{CPU, INSTANCES, MEMORY, STORAGE, architecture, label};
use crate::place::invalid::Invalid;
use crate::place::port::{Port, Protocol};
use crate::place::request::engine::EngineSettings;
use crate::place::request::file::PutFile;
use crate::place::request::health_check::HealthCheck;
use crate::place::request::limits::{GRACE_MAX, LABELS_MAX, LIST_MAX, PORTS_MAX, TEXT_MAX};
use crate::place::request::networks::JoinedNetwork;
use crate::place::request::volume::{VolumeOptions, mount_point};
use crate::place::windows::Build;

/// Label of a container whose host name is its own name.
pub(crate) const HOSTNAME_LABEL: &str = "io.rancher.container.hostname_override";

/// Longest host name: systems take no more than one label of a DNS name.
const HOSTNAME_BYTES_MAX: usize = 63;

/// One container of the unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Member {
    /// Its name; the first one's may be absent.
    pub(crate) name: Option<Text>,
    pub(crate) labels: Vec<(Text, Text)>,
    /// What it takes, by pool, in the predecessor's order: memory, processor, itself, disk, others.
    pub(crate) amounts: Vec<(Text, i64)>,
    pub(crate) ports: Vec<Port>,
    /// The image's name.
    pub(crate) image: Option<Text>,
    /// For what the image is built, when that is known.
    pub(crate) platforms: Vec<ImagePlatform>,
    /// Containers beside which it must be: volumes-from and network-from, without those of the unit.
    pub(crate) beside: Vec<Text>,
    /// What only matters to the engine that starts it.
    pub(crate) run: RunOptions,
    /// Under which key containers of its image are found.
    pub(crate) image_key: Option<Fingerprint>,
    /// What it is found by, besides its name.
    pub(crate) keys: Vec<Fingerprint>,
}

impl Member {
    /// What it calls itself, if it or a label says so. `name` is what its engine calls it.
    pub(crate) fn hostname(&self, name: &str) -> Option<String> {
        let is_named = |(key, value): &(Text, Text)| &**key == HOSTNAME_LABEL && &**value == "container_name";
        // In the host's own namespace no engine takes another name.
        let is_free = || !self.run.engine.has_name_of_host();
        let of_label = || {
            (name.len() <= HOSTNAME_BYTES_MAX && self.labels.iter().any(is_named) && is_free()).then(|| name.to_owned())
        };
        self.run.hostname.as_ref().map(ToString::to_string).or_else(of_label)
    }

    /// What is done when it fails its health checks, as its labels say; `None` if it has none.
    ///
    /// # Errors
    ///
    /// Fails if they are wrong.
    pub(crate) fn on_failure(&self) -> Result<Option<OnFailure>, BadCheck> {
        let labels = self.labels.iter().map(|(key, value)| (key.clone(), Value::Text(value.clone())));
        OnFailure::of_labels(&labels.collect())
    }
}

/// How a container is run, in the words of `docker run`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunOptions {
    /// What it runs, in place of the image's own command.
    pub(crate) command: Vec<Text>,
    /// What runs it, in place of the image's own entry point.
    pub(crate) entrypoint: Vec<Text>,
    /// Its variables, `NAME=VALUE`.
    pub(crate) environment: Vec<String>,
    /// Where it asks for names; `None` as the scheduler was started.
    pub(crate) dns: Option<Vec<Text>>,
    /// In which domains it looks for names without a dot; `None` as suits its stack.
    pub(crate) dns_search: Option<Vec<Text>>,
    /// The most memory it may use, in bytes.
    pub(crate) memory_limit: Option<i64>,
    /// The most processor it may use, in thousandths of one.
    pub(crate) milli_cpu_limit: Option<i64>,
    /// Its domain, of which its host name is.
    pub(crate) domainname: Option<Text>,
    /// What only its engine has to do with.
    pub(crate) engine: EngineSettings,
    /// Files that it gets before it is started.
    pub(crate) files: Vec<PutFile>,
    /// What it calls itself.
    pub(crate) hostname: Option<Text>,
    pub(crate) network: Option<Text>,
    /// The container whose network it shares.
    pub(crate) network_from: Option<Text>,
    /// What others in its network call it, besides its name.
    pub(crate) aliases: Vec<Text>,
    /// Further networks that it joins before it is started.
    pub(crate) more_networks: Vec<JoinedNetwork>,
    /// How its engine checks it; `None` as its image says.
    pub(crate) health_check: Option<HealthCheck>,
    /// Containers whose volumes it has.
    pub(crate) volumes_from: Vec<Text>,
    /// Whether its image is pulled before each container is created, also when its engine has one of this name.
    pub(crate) pulls_always: bool,
    /// Other containers of the unit that are started before it.
    pub(crate) start_after: Vec<Text>,
    /// When the engine starts it again: `no`, `always`, `unless-stopped`, `on-failure[:TIMES]`.
    pub(crate) restart: Option<Text>,
    /// Whether its input stays open while no client is attached.
    pub(crate) stdin_open: bool,
    /// The signal that asks it to end; `None` for the image's own.
    pub(crate) stop_signal: Option<Text>,
    /// How many seconds it has to end before it is killed; `None` as the engine has it, 10.
    pub(crate) stop_timeout: Option<i64>,
    /// Whether it has a terminal.
    pub(crate) tty: bool,
    /// Who it runs as.
    pub(crate) user: Option<Text>,
    /// Folders and volumes, as in `docker run --volume`.
    pub(crate) volumes: Vec<Text>,
    /// Those of the volumes with names that are none of its stack.
    pub(crate) external_volumes: Vec<Text>,
    /// Driver options of volumes with names, for when these are made for its stack.
    pub(crate) volume_options: Vec<VolumeOptions>,
    /// Where it runs.
    pub(crate) working_dir: Option<Text>,
}

/// One entry of an image's index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ImagePlatform {
    pub(crate) os: Text,
    pub(crate) architecture: Option<Text>,
    /// The Windows build, when stated.
    pub(crate) build: Option<Build>,
}

/// Fields of each container that stacks alone can have.
pub(super) const STACK_FIELDS: &[&str] = &["files"];

/// Fields of each container; those of the primary one stand in the request itself.
pub(super) const MEMBER_FIELDS: &[&str] = &[
    "command",
    "dns",
    "dns_search",
    "domainname",
    "engine",
    "entrypoint",
    "environment",
    "external_volumes",
    "healthcheck",
    "hostname",
    "image",
    "labels",
    "limits",
    "name",
    "network",
    "network_from",
    "networks",
    "ports",
    "pull_policy",
    "resources",
    "restart",
    "start_after",
    "stdin_open",
    "stop_signal",
    "stop_timeout",
    "tty",
    "user",
    "volume_options",
    "volumes",
    "volumes_from",
    "working_dir",
];

impl<'a> Fields<'a> {
    pub(super) fn member(&self, macros: Macros<'_>, constraints: &mut Vec<Constraint>) -> Result<Member, Invalid> {
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
        let (run, amounts) = (self.run(environment)?, self.resources()?);
        self.check_together(&run, &amounts)?;
        // `data:ro` is the container `data`; a name has no colon.
        let container = |from: &Text| from.split_once(':').map_or_else(|| from.clone(), |(name, _)| name.into());
        let mut beside: Vec<Text> = run.volumes_from.iter().map(container).collect();
        beside.extend(run.network_from.clone());
        Ok(Member {
            run,
            image_key: None,
            keys: Vec::new(),
            name: self.id("name")?,
            labels,
            amounts,
            ports: self.ports()?,
            image,
            platforms,
            beside,
        })
    }

    fn run(&self, environment: Vec<String>) -> Result<RunOptions, Invalid> {
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
        let is_there = |key: &&str| self.get(key).is_some();
        let given: Vec<_> = ["network", "networks", "network_from"].into_iter().filter(is_there).collect();
        if let [first, .., last] = given[..] {
            let problem = format!("given with {last}");
            return Err(Invalid::new(self.at(first), problem, "one of them: a container has one network"));
        }
        let volumes = self.volumes()?;
        let mut networks = self.networks()?.into_iter();
        let first = networks.next().unwrap_or_default();
        if let Some(word) = restart.clone().filter(|word| !fine(word)) {
            let expected = "no, always, unless-stopped, on-failure or on-failure:TIMES";
            return self.wrong("restart", &Value::Text(word), expected);
        }
        Ok(RunOptions {
            command,
            entrypoint: self.texts("entrypoint")?,
            environment,
            dns: self.addresses("dns")?,
            dns_search: optional("dns_search")?,
            memory_limit: limits.amount("memory")?.filter(|limit| *limit > 0),
            milli_cpu_limit: limits.amount("milli_cpu")?.filter(|limit| *limit > 0),
            domainname: self.text("domainname")?,
            engine: match self.get("engine") {
                None => EngineSettings::default(),
                Some(Value::Map(map)) => EngineSettings::read(&Fields { path: self.at("engine"), map })?,
                Some(other) => return self.wrong("engine", other, "a map of settings"),
            },
            files: self.files()?,
            hostname: self.text("hostname")?,
            health_check: match self.get("healthcheck") {
                None => None,
                Some(Value::Map(map)) => Some(HealthCheck::read(&Fields { path: self.at("healthcheck"), map })?),
                Some(other) => return self.wrong("healthcheck", other, "a map of test, interval, timeout and retries"),
            },
            network: self.text("network")?.or_else(|| Some(first.name).filter(|name| !name.is_empty())),
            aliases: first.aliases,
            more_networks: networks.collect(),
            network_from: self.text("network_from")?,
            volumes_from: self.texts("volumes_from")?,
            pulls_always: self.word("pull_policy", &[("always", true), ("missing", false)])?.unwrap_or_default(),
            restart,
            start_after: self.texts("start_after")?,
            stdin_open: self.truth("stdin_open")?,
            stop_signal: self.text("stop_signal")?,
            stop_timeout: self.int("stop_timeout", 0, GRACE_MAX.cast_signed())?,
            tty: self.truth("tty")?,
            user: self.text("user")?,
            external_volumes: self.texts("external_volumes")?,
            volume_options: self.volume_options(&volumes)?,
            volumes,
            working_dir: self.text("working_dir")?,
        })
    }

    /// Checks of what is right by itself whether an engine takes it together.
    fn check_together(&self, run: &RunOptions, amounts: &[(Text, i64)]) -> Result<(), Invalid> {
        let reserved = amounts.iter().find(|(pool, _)| **pool == *MEMORY).map(|(_, bytes)| *bytes);
        if let (Some(limit), Some(reserved)) = (run.memory_limit, reserved)
            && reserved > limit
        {
            let problem = format!("found {reserved}, more than the limit {limit}");
            return Err(Invalid::new(self.at("resources.memory"), problem, "at most the limit"));
        }
        if let (Some(_), Some(quota)) = (run.milli_cpu_limit, run.engine.quota()) {
            let field = self.at(&format!("engine.{quota}"));
            return Err(Invalid::new(
                field,
                "given with a number of processors",
                "one of them: both limit the processor time",
            ));
        }
        let places: Vec<String> = run.volumes.iter().map(|volume| mount_point(volume)).collect();
        let is_in_memory =
            |place: &&str| places.iter().any(|own| own.trim_end_matches('/') == place.trim_end_matches('/'));
        match run.engine.tmpfs().find(is_in_memory) {
            Some(place) => {
                let problem = format!("memory and a volume appear at {place}");
                Err(Invalid::new(self.at("volumes"), problem, "one at each place in the container"))
            }
            None => Ok(()),
        }
    }

    /// Folders and volumes. A path has to be absolute: the request comes from no folder of the host.
    fn volumes(&self) -> Result<Vec<Text>, Invalid> {
        let volumes = self.texts("volumes")?;
        let is_relative = |volume: &Text| {
            let source = volume.split(':').next().unwrap_or_default();
            source.is_empty()
                || source.starts_with(['.', '~'])
                || (source.contains(['/', '\\']) && !source.starts_with(['/', '\\']))
        };
        match volumes.iter().position(is_relative) {
            Some(at) => {
                let expected =
                    "an absolute path on the host or the name of a volume, then a colon and where it appears";
                self.wrong(&format!("volumes[{at}]"), &Value::Text(volumes[at].clone()), expected)
            }
            None => Ok(volumes),
        }
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
                        format!("text of at most {TEXT_MAX} bytes"),
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
            // Of no consequence here, but not to be wrong either.
            entry.text("variant")?;
            entry.text_list("os_features")?;
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
}

/// The words of a command line; quotes and backslashes as a shell takes them. `None` when a quote stays open.
pub(crate) fn words(text: &str) -> Option<Vec<Text>> {
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
