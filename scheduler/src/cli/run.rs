//! `run`: a container described as for `docker run`, placed and started.

use clap::Args;
use hyper::Method;
use process::table::table;
use serde_json::{Map, Value, json};

use crate::cli::client::{Ask, Client};
use crate::cli::compose::deploy::thousandths;
use crate::cli::placements::{all_run, is_placed, placement_rows, tell_why};
use crate::cli::terminal::{Teller, print, print_json, warn};
use crate::cli::{Failure, Outcome, client, fine};
use crate::place::name::given_name;
use crate::place::request::limits::ID_MAX;
use crate::start::credentials::RequestCredentials;
use crate::start::docker_config::DockerConfig;
use crate::start::registry::Registry;

/// `run`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  scheduler run --name web -p 80:8080 -m 512MiB --constraint 'disk = ssd' shop/web:1
  scheduler run --stack shop --service web --count 3 --spread zone shop/web:1 serve --verbose
  scheduler run --dry-run --explain --constraint 'gpu = yes' trainer")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Run {
    /// The image, then the command to run in place of the image's own
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["IMAGE", "COMMAND"])]
    image: Vec<String>,

    /// Name of the container, and id of the request: asking twice starts it once
    #[arg(long)]
    name: Option<String>,
    /// Id of the request [default: the name, or a new one]
    #[arg(long)]
    id: Option<String>,
    /// How many
    #[arg(long, value_name = "NUMBER")]
    count: Option<u32>,
    /// Stack of the service
    #[arg(long, value_parser = given_name)]
    stack: Option<String>,
    /// Service that the container belongs to; its containers are placed on different hosts where possible
    #[arg(long, value_parser = given_name)]
    service: Option<String>,

    /// Publish a port: [IP:][PORT:]PORT[/PROTOCOL]
    #[arg(short = 'p', long, value_name = "PORT", help_heading = "Container")]
    publish: Vec<String>,
    /// Set a variable; without a value it is taken from here
    #[arg(short = 'e', long, value_name = "NAME=VALUE", help_heading = "Container")]
    env: Vec<String>,
    /// Set a label, also one of the predecessor's rules: `io.rancher.scheduler.affinity:host_label=disk=ssd`
    #[arg(short = 'l', long, value_name = "KEY=VALUE", help_heading = "Container")]
    label: Vec<String>,
    /// The most memory it may use, such as 512m; as much is reserved unless --memory-reservation says otherwise
    #[arg(short = 'm', long, value_name = "BYTES", help_heading = "Container")]
    memory: Option<String>,
    /// Memory that is reserved for it
    #[arg(long, value_name = "BYTES", help_heading = "Container")]
    memory_reservation: Option<String>,
    /// The most processors it may use, such as 0.5; as much is reserved
    #[arg(long, value_name = "NUMBER", help_heading = "Container")]
    cpus: Option<String>,
    /// Disk that is reserved for it, in MiB
    #[arg(long, value_name = "MIB", help_heading = "Container")]
    storage: Option<u32>,
    /// Something else that hosts have by label: io.berth.pool.gpu=2
    #[arg(long, value_name = "NAME=AMOUNT", help_heading = "Container")]
    resource: Vec<String>,
    /// Where it asks for names [default: as the scheduler was started]
    #[arg(long, value_name = "ADDRESS", help_heading = "Container")]
    dns: Vec<String>,
    /// Domain in which it looks for names
    #[arg(long, value_name = "DOMAIN", help_heading = "Container")]
    dns_search: Vec<String>,
    /// The engine's network, or container:NAME
    #[arg(long, visible_alias = "net", value_name = "NETWORK", help_heading = "Container")]
    network: Option<String>,
    /// A folder or volume: `/host:/container[:ro]`
    #[arg(short = 'v', long, value_name = "VOLUME", help_heading = "Container")]
    volume: Vec<String>,
    /// A container whose volumes it has
    #[arg(long, value_name = "CONTAINER", help_heading = "Container")]
    volumes_from: Vec<String>,
    /// What it calls itself
    #[arg(long, value_name = "NAME", help_heading = "Container")]
    hostname: Option<String>,
    /// Who it runs as
    #[arg(short = 'u', long, value_name = "USER", help_heading = "Container")]
    user: Option<String>,
    /// Where it runs
    #[arg(short = 'w', long, value_name = "DIR", help_heading = "Container")]
    workdir: Option<String>,
    /// What runs the command
    #[arg(long, value_name = "PROGRAM", help_heading = "Container")]
    entrypoint: Option<String>,
    /// no, always, unless-stopped, on-failure[:TIMES]
    #[arg(long, value_name = "WHEN", help_heading = "Container")]
    restart: Option<String>,
    /// The signal that tells it to end, such as SIGQUIT [default: as its image says]
    #[arg(long, value_name = "SIGNAL", help_heading = "Container")]
    stop_signal: Option<String>,
    /// Seconds that it has to end before it is killed [default: 10]
    #[arg(long, value_name = "SECONDS", help_heading = "Container")]
    stop_timeout: Option<u32>,
    /// Windows: default, process or hyperv
    #[arg(long, value_name = "KIND", help_heading = "Container")]
    isolation: Option<String>,
    /// What the image is built for: linux, windows/amd64, windows:10.0.20348
    #[arg(long, value_name = "OS[/ARCH][:VERSION]", help_heading = "Container")]
    platform: Vec<String>,
    /// It always runs in the background; for who is used to saying so
    #[arg(short = 'd', long, help_heading = "Container")]
    detach: bool,

    /// What the host must be like: 'disk = ssd', 'zone in (a, b)', '!old', 'kernel version >= 5.10'
    #[arg(long, value_name = "RULE", help_heading = "Host")]
    constraint: Vec<String>,
    /// The host to use, even if it does not fit the request
    #[arg(long, value_name = "HOST", help_heading = "Host")]
    host: Option<String>,
    /// Spread the service over the values of a host label: LABEL[:SKEW]
    #[arg(long, value_name = "LABEL", help_heading = "Host")]
    spread: Vec<String>,
    /// A taint that does not matter: KEY[=VALUE][:EFFECT]
    #[arg(long, value_name = "TAINT", help_heading = "Host")]
    toleration: Vec<String>,
    /// spread or binpack
    #[arg(long, value_name = "STRATEGY", help_heading = "Host")]
    strategy: Option<String>,
    /// One on every host
    #[arg(long, help_heading = "Host")]
    global: bool,
    /// On how many hosts starting is tried, one after another
    #[arg(long, value_name = "NUMBER", help_heading = "Host")]
    attempts: Option<u32>,

    /// Find the host, but reserve nothing
    #[arg(long = "dry-run")]
    dry: bool,
    /// Keep the room, but start nothing
    #[arg(long)]
    no_start: bool,
    /// Send the credentials that `docker login` got here, for this request only, so that engines can pull the image
    #[arg(long, conflicts_with_all = ["dry", "no_start"])]
    with_registry_auth: bool,
    /// Say everything about every host
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    pub(super) ask: Ask,
}

impl Run {
    fn request(&self) -> Result<Value, Failure> {
        // All words behind the image are the container's, so the first of them is taken as it is.
        if self.image[0].starts_with('-') {
            let text = format!("unknown option {}; scheduler run --help shows those there are", self.image[0]);
            return Err(Failure::Wrong(text));
        }
        let mut fields = Map::new();
        let mut put = |key: &str, value: Option<Value>| fields.extend(value.map(|value| (key.to_owned(), value)));
        let text = |text: &Option<String>| text.clone().map(Value::from);
        let list = |list: &[String]| (!list.is_empty()).then(|| Value::from(list.to_vec()));
        let command = &self.image[1..];
        put("id", text(&self.id).or_else(|| text(&self.name)));
        put("name", text(&self.name));
        put("command", list(command));
        let platforms = self.platform.iter().map(|text| platform(text)).collect::<Result<Vec<_>, _>>()?;
        put(
            "image",
            Some(if platforms.is_empty() {
                self.image[0].clone().into()
            } else {
                json!({ "name": self.image[0], "platforms": platforms })
            }),
        );
        for (key, value) in [
            ("stack", &self.stack),
            ("service", &self.service),
            ("hostname", &self.hostname),
            ("user", &self.user),
            ("working_dir", &self.workdir),
            ("entrypoint", &self.entrypoint),
            ("restart", &self.restart),
            ("stop_signal", &self.stop_signal),
            ("isolation", &self.isolation),
            ("requested_host", &self.host),
            ("strategy", &self.strategy),
        ] {
            put(key, text(value));
        }
        for (key, value) in [
            ("ports", &self.publish),
            ("dns", &self.dns),
            ("dns_search", &self.dns_search),
            ("volumes", &self.volume),
            ("volumes_from", &self.volumes_from),
            ("constraints", &self.constraint),
            ("tolerations", &self.toleration),
        ] {
            put(key, list(value));
        }
        put("stop_timeout", self.stop_timeout.map(Value::from));
        put("count", self.count.map(Value::from));
        put("attempts", self.attempts.map(Value::from));
        put("environment", list(&self.env.iter().map(|text| variable(text)).collect::<Vec<_>>()));
        put("labels", Some(pairs("--label", &self.label)?));
        match self.network.as_deref().map(|network| network.strip_prefix("container:").ok_or(network)) {
            None => {}
            Some(Ok(container)) => put("network_from", Some(container.into())),
            Some(Err(network)) => put("network", Some(network.into())),
        }
        let spread = self.spread.iter().map(|text| match text.rsplit_once(':') {
            Some((label, skew)) if skew.parse::<u32>().is_ok() => {
                json!({ "label": label, "max_skew": skew.parse::<u32>().unwrap_or(1) })
            }
            _ => json!(text),
        });
        put("spread", Some(spread.collect::<Vec<_>>().into()));
        let (mut resources, mut limits) = (Map::new(), Map::new());
        if let Value::Object(pools) = pairs("--resource", &self.resource)? {
            resources.extend(pools);
        }
        if let Some(reserved) = self.memory_reservation.as_ref().or(self.memory.as_ref()) {
            resources.insert("memory".into(), reserved.clone().into());
        }
        limits.extend(self.memory.clone().map(|memory| ("memory".to_owned(), memory.into())));
        if let Some(cpus) = &self.cpus {
            let milli = thousandths(cpus)
                .ok_or_else(|| Failure::Wrong(format!("--cpus: found {cpus:?}, expected processors such as 0.5")))?;
            resources.insert("milli_cpu".into(), milli.into());
            limits.insert("milli_cpu".into(), milli.into());
        }
        resources.extend(self.storage.map(|storage| ("storage_mb".to_owned(), storage.into())));
        put("resources", Some(resources.into()));
        put("limits", Some(limits.into()));
        for (key, value) in [
            ("global", self.global),
            ("dry_run", self.dry),
            ("explain", self.explain),
            ("start", !self.no_start && !self.dry),
        ] {
            put(key, value.then_some(true.into()));
        }
        Ok(fields.into())
    }

    /// The client with the credentials that Docker's own client would have here.
    async fn bearing(&self, client: Client) -> Result<Client, Failure> {
        let registry = Registry::of_image(&self.image[0]);
        let config = DockerConfig::of_environment();
        let config = config.ok_or_else(|| Failure::Wrong("no HOME, where credentials would be".to_owned()))?;
        let found = config.credentials(&registry).await.map_err(|error| Failure::Wrong(error.to_string()))?;
        let found = found.ok_or_else(|| {
            let (file, login) = (config.file(), registry.login());
            Failure::Wrong(format!("{} has no credentials for {registry}: type `{login}`", file.display()))
        })?;
        let client = client.bearing(&RequestCredentials::new(vec![(registry, found)])).map_err(Failure::Wrong)?;
        warn(
            "warning: these credentials are for this request only; what the scheduler starts by itself later is pulled \
             with its own (--registry-config)",
        );
        Ok(client)
    }

    pub(super) async fn run(self) -> Outcome {
        let request = self.request()?;
        let client = if self.with_registry_auth { self.bearing(client(&self.ask)?).await? } else { client(&self.ask)? };
        let mut teller = Teller::new();
        let answer = client.ask(Method::POST, "/v1/placements", Some(&request), |line| teller.tell(line)).await;
        teller.end();
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        let placed = is_placed(&answer);
        if self.ask.json {
            print_json(&answer);
        } else {
            print(&table(&placement_rows(std::slice::from_ref(&answer)), ID_MAX));
            tell_why(&answer);
        }
        Ok(all_run(&answer) && placed)
    }
}

/// A variable; one without a value has the value that it has here.
pub(super) fn variable(text: &str) -> String {
    if text.contains('=') {
        return text.to_owned();
    }
    std::env::var(text).map_or_else(|_| format!("{text}="), |value| format!("{text}={value}"))
}

fn pairs(flag: &str, texts: &[String]) -> Result<Value, Failure> {
    let mut map = Map::new();
    for text in texts {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        if key.is_empty() {
            return Err(Failure::Wrong(format!("{flag}: found {text:?}, expected KEY=VALUE")));
        }
        map.insert(key.to_owned(), value.into());
    }
    Ok(map.into())
}

fn platform(text: &str) -> Result<Value, Failure> {
    let (system, version) = text.split_once(':').map_or((text, None), |(system, version)| (system, Some(version)));
    let (os, architecture) = system.split_once('/').map_or((system, None), |(os, word)| (os, Some(word)));
    if !matches!(os, "linux" | "windows") {
        return Err(Failure::Wrong(format!("--platform: found {text:?}, expected linux or windows")));
    }
    let mut entry = json!({ "os": os });
    for (key, value) in [("architecture", architecture), ("os_version", version)] {
        if let Some(value) = value {
            entry[key] = value.into();
        }
    }
    Ok(entry)
}
