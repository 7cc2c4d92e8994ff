//! The subcommands that ask a running scheduler: `run`, `place`, `hosts`, `explain`, `ps`, `rm`.
//!
//! Tables go to standard output, progress and errors to standard error. The exit code is 0 when everything has its
//! place, 1 when something has none or could not be started, and 2 when the arguments or a file are wrong.

use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::client::{Answer, Ask, Client};
use crate::compose;
use crate::request::Invalid;
use crate::table::{octets, table, thousandths};

/// Exit code when something has no place.
const NO_PLACE: u8 = 1;
/// Exit code when what was given is wrong; clap's own.
const WRONG: u8 = 2;

/// Largest file of requests.
const FILE_MAX: u64 = 64 << 20;

/// What is asked of a running scheduler.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Find a host for a container, then create and start it there through the host's Docker Engine
    Run(Box<Run>),
    /// Find hosts for all requests in a file: placement requests or a compose file, JSON or YAML
    Place(Place),
    /// Show hosts, what they have and what is free
    Hosts(Hosts),
    /// Say about every host whether a container fits, and why not
    Explain(Explain),
    /// Show what was promised, started and settled
    Ps(Ps),
    /// Remove containers that were started, and give their room back
    Rm(Rm),
}

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
    #[arg(long)]
    stack: Option<String>,
    /// Service that the container belongs to; its containers are kept apart
    #[arg(long)]
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
    /// The most memory it may use, such as 512m; so much is kept for it unless --memory-reservation says otherwise
    #[arg(short = 'm', long, value_name = "OCTETS", help_heading = "Container")]
    memory: Option<String>,
    /// Memory that is kept for it
    #[arg(long, value_name = "OCTETS", help_heading = "Container")]
    memory_reservation: Option<String>,
    /// The most processors it may use, such as 0.5; so much is kept for it
    #[arg(long, value_name = "NUMBER", help_heading = "Container")]
    cpus: Option<String>,
    /// Disk that is kept for it, in MiB
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
    /// The host, whatever speaks against it
    #[arg(long, value_name = "HOST", help_heading = "Host")]
    host: Option<String>,
    /// Spread the service over the values of a host label: LABEL[:SKEW]
    #[arg(long, value_name = "LABEL", help_heading = "Host")]
    spread: Vec<String>,
    /// A taint that does not matter: KEY[=VALUE]
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

    /// Find the host, but keep nothing
    #[arg(long = "dry-run")]
    dry: bool,
    /// Keep the room, but start nothing
    #[arg(long)]
    no_start: bool,
    /// Say everything about every host
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    ask: Ask,
}

/// `place`.
#[derive(Args, Debug)]
#[command(
    after_help = "A document is a placement request as POST /v1/placements takes it, a list of them, or a compose file.
Of a compose file everything is honoured, or refused by the name of its key.

Examples:
  scheduler place -f shop.yml --dry-run
  scheduler place -f compose.yml --stack shop --start
  scheduler place -f - --json < requests.json"
)]
pub struct Place {
    /// The file; - is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: PathBuf,
    /// Stack of a compose file that does not name itself [default: the folder's name]
    #[arg(long, value_name = "NAME")]
    stack: Option<String>,
    /// Create and start the containers too
    #[arg(long)]
    start: bool,
    /// Find the hosts, but keep nothing
    #[arg(long, conflicts_with = "start")]
    dry_run: bool,
    /// Say everything about every host
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    ask: Ask,
}

/// `hosts`.
#[derive(Args, Debug)]
pub struct Hosts {
    /// Show labels too
    #[arg(long)]
    labels: bool,
    #[command(flatten)]
    ask: Ask,
}

/// `explain`.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  scheduler explain -f web.yml")]
pub struct Explain {
    /// The file, as `place` takes it; - is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: PathBuf,
    /// Stack of a compose file that does not name itself [default: the folder's name]
    #[arg(long, value_name = "NAME")]
    stack: Option<String>,
    #[command(flatten)]
    ask: Ask,
}

/// `ps`.
#[derive(Args, Debug)]
pub struct Ps {
    #[command(flatten)]
    ask: Ask,
}

/// `rm`.
#[derive(Args, Debug)]
pub struct Rm {
    /// Ids of placements
    #[arg(required = true)]
    id: Vec<String>,
    /// Forget them without asking their engines: for engines that will never answer again
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    ask: Ask,
}

impl Command {
    /// Asks, and prints what is answered.
    pub fn run(self) -> ExitCode {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return refused(&error.to_string()),
        };
        let outcome = runtime.block_on(async {
            match self {
                Self::Run(run) => run.run().await,
                Self::Place(place) => place.run().await,
                Self::Hosts(hosts) => hosts.run().await,
                Self::Explain(explain) => explain.run().await,
                Self::Ps(ps) => ps.run().await,
                Self::Rm(rm) => rm.run().await,
            }
        });
        match outcome {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(NO_PLACE),
            Err(Failure::Wrong(text)) => {
                refused(&text);
                ExitCode::from(WRONG)
            }
            Err(Failure::NoAnswer(text)) => refused(&text),
        }
    }
}

fn refused(text: &str) -> ExitCode {
    warn(&format!("error: {text}"));
    ExitCode::from(NO_PLACE)
}

/// Why there is nothing to print.
enum Failure {
    /// The arguments or a file are wrong.
    Wrong(String),
    /// The scheduler did not answer, or not what was asked.
    NoAnswer(String),
}

type Outcome = Result<bool, Failure>;

fn client(ask: &Ask) -> Result<Client, Failure> {
    Client::new(ask).map_err(Failure::Wrong)
}

/// What the answer holds, or what is wrong with the question.
fn fine(answer: Answer) -> Result<Value, Failure> {
    let text = |key: &str| answer.body[key].as_str().unwrap_or_default();
    match answer.status.as_u16() {
        200 | 201 => Ok(answer.body),
        // No place, or not started: these have a placement as their answer.
        409 | 502 if answer.body["state"].is_string() => Ok(answer.body),
        400 => Err(Failure::Wrong(format!("{}, expected {}", text("error"), text("expected")))),
        _ => Err(Failure::NoAnswer(format!("{} ({})", text("error"), answer.status.as_u16()))),
    }
}

/// Prints to standard output; who closed it does not want to know.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn print_json(value: &Value) {
    print(&format!("{value:#}\n"));
}

/// Tells how far something got: on a terminal in one line that changes, otherwise a line for each step.
struct Teller {
    terminal: bool,
    shown: bool,
}

impl Teller {
    fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), shown: false }
    }

    fn tell(&mut self, progress: &Value) {
        let text = |key: &str| progress[key].as_str().unwrap_or_default();
        let line = format!("{} on {}: {}", text("container"), text("host"), text("status"));
        let layer = progress["layer"].as_str();
        if !self.terminal {
            // Every octet of every layer is too much for a log.
            if layer.is_none() {
                warn(&line);
            }
            return;
        }
        let part = progress["current"].as_i64().map(|current| match progress["total"].as_i64() {
            Some(total) => format!(" {} of {}", octets(current), octets(total)),
            None => format!(" {}", octets(current)),
        });
        let layer = layer.map(|layer| format!(" {layer}")).unwrap_or_default();
        let _ = write!(io::stderr(), "\r\x1b[K{line}{layer}{}", part.unwrap_or_default());
        let _ = io::stderr().flush();
        self.shown = true;
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Run {
    fn request(&self) -> Result<Value, Failure> {
        // What stands behind the image is the container's, so the first word is taken as it is.
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
            let milli = compose::thousandths(cpus)
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

    async fn run(self) -> Outcome {
        let request = self.request()?;
        let mut teller = Teller::new();
        let answer =
            client(&self.ask)?.ask(Method::POST, "/v1/placements", Some(&request), |line| teller.tell(line)).await;
        teller.end();
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        let placed = is_placed(&answer);
        if self.ask.json {
            print_json(&answer);
        } else {
            print(&table(&placement_rows(std::slice::from_ref(&answer))));
            tell_why(&answer);
        }
        Ok(placed)
    }
}

/// A variable; one without a value has the value that it has here.
fn variable(text: &str) -> String {
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

/// The requests of a file.
fn read(file: &PathBuf, stack: Option<&String>) -> Result<Vec<Value>, Failure> {
    let shown = if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
    let wrong = |text: &dyn std::fmt::Display| Failure::Wrong(format!("{shown}: {text}"));
    let mut contents = Vec::new();
    let read = if file.as_os_str() == "-" {
        io::stdin().take(FILE_MAX + 1).read_to_end(&mut contents)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_MAX + 1).read_to_end(&mut contents))
    };
    if read.map_err(|error| wrong(&error))? as u64 > FILE_MAX {
        return Err(wrong(&format!("longer than {FILE_MAX} octets")));
    }
    let text = source::format::text(contents).map_err(|error| wrong(&error))?;
    let texts = if text.trim_start().starts_with(['{', '[']) { vec![text.as_str()] } else { compose::divide(&text) };
    let mut documents = Vec::new();
    for text in texts {
        let parsed = source::format::parse(text).map_err(|error| wrong(&error))?;
        documents.push(parsed.value(model::scalar::core));
    }
    if documents.is_empty() {
        return Err(wrong(&"no request in it"));
    }
    let folder = file.canonicalize().ok().and_then(|path| Some(path.parent()?.file_name()?.to_str()?.to_lowercase()));
    let stack = stack.cloned().or(folder).unwrap_or_else(|| "default".to_owned());
    let plain = |char: char| if char.is_ascii_alphanumeric() || "_-".contains(char) { char } else { '-' };
    let stack: String = stack.chars().map(plain).collect();
    let variable = |name: &str| std::env::var(name).ok();
    let requests = compose::requests(&documents, stack.trim_start_matches(['-', '_']), &variable);
    let requests = requests.map_err(|error: Invalid| wrong(&error))?;
    let json = |request: &model::Value| serde_json::to_value(request).map_err(|error| wrong(&error));
    requests.iter().map(json).collect()
}

impl Place {
    async fn run(self) -> Outcome {
        let requests = read(&self.file, self.stack.as_ref())?;
        let client = client(&self.ask)?;
        let mut answers = Vec::new();
        let mut failure = None;
        for mut request in requests {
            for (key, set) in [("start", self.start), ("dry_run", self.dry_run), ("explain", self.explain)] {
                if set {
                    request[key] = true.into();
                }
            }
            let mut teller = Teller::new();
            let answer = client.ask(Method::POST, "/v1/placements", Some(&request), |line| teller.tell(line)).await;
            teller.end();
            match answer.map_err(Failure::NoAnswer).and_then(fine) {
                Ok(answer) => answers.push(answer),
                // What was placed before is told all the same.
                Err(stopped) => {
                    failure = Some(stopped);
                    break;
                }
            }
        }
        let placed = answers.iter().all(is_placed);
        if self.ask.json {
            print_json(&Value::from(answers));
        } else {
            print(&table(&placement_rows(&answers)));
            answers.iter().for_each(tell_why);
        }
        failure.map_or(Ok(placed), Err)
    }
}

impl Hosts {
    async fn run(self) -> Outcome {
        let answer = client(&self.ask)?.ask(Method::GET, "/v1/hosts", None, |_| {}).await;
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
            return Ok(true);
        }
        let mut rows = vec![row(["NAME", "STATE", "SYSTEM", "CONTAINERS", "CPU FREE", "MEMORY FREE", "PORTS"])];
        if self.labels {
            rows[0].push("LABELS".into());
        }
        for host in list(&answer["hosts"]) {
            let pool = |pool: &str, words: fn(i64) -> String| {
                let amount = |key: &str| host["pools"][pool][key].as_i64();
                match (amount("free"), amount("total")) {
                    (Some(free), Some(total)) => format!("{} of {}", words(free.max(0)), words(total)),
                    _ => "-".to_owned(),
                }
            };
            let build = host["build"].as_str().map(|build| format!(" {build}")).unwrap_or_default();
            let ports: Vec<_> = list(&host["ports"]).iter().map(|port| port_words(port, "")).collect();
            let refusal = host["refusal"].as_str();
            let mut cells = vec![
                word(&host["name"]),
                refusal.map_or_else(|| "active".to_owned(), ToOwned::to_owned),
                format!("{}{build}", word(&host["os"])),
                host["containers"].to_string(),
                pool("cpuReservation", thousandths),
                pool("memoryReservation", octets),
                if ports.is_empty() { "-".to_owned() } else { ports.join(", ") },
            ];
            if self.labels {
                let labels = host["labels"].as_object().into_iter().flatten();
                cells.push(labels.map(|(key, value)| format!("{key}={}", word(value))).collect::<Vec<_>>().join(" "));
            }
            rows.push(cells);
        }
        print(&table(&rows));
        Ok(true)
    }
}

impl Explain {
    async fn run(self) -> Outcome {
        let requests = read(&self.file, self.stack.as_ref())?;
        let client = client(&self.ask)?;
        let mut answers = Vec::new();
        for request in &requests {
            let answer = client.ask(Method::POST, "/v1/explain", Some(request), |_| {}).await;
            answers.push(fine(answer.map_err(Failure::NoAnswer)?)?);
        }
        let fits = answers.iter().all(|answer| answer["fits"].as_u64() > Some(0));
        if self.ask.json {
            print_json(&if answers.len() == 1 { answers.remove(0) } else { answers.into() });
            return Ok(fits);
        }
        for (at, (answer, request)) in answers.iter().zip(&requests).enumerate() {
            if at > 0 {
                print("\n");
            }
            if requests.len() > 1 {
                let name = request["id"].as_str().map_or_else(|| format!("request {}", at + 1), ToOwned::to_owned);
                print(&format!("{name}:\n"));
            }
            print(&explanation(answer));
        }
        Ok(fits)
    }
}

impl Ps {
    async fn run(self) -> Outcome {
        let answer = client(&self.ask)?.ask(Method::GET, "/v1/placements", None, |_| {}).await;
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
        } else {
            print(&table(&placement_rows(list(&answer["placements"]))));
        }
        Ok(true)
    }
}

impl Rm {
    async fn run(self) -> Outcome {
        let client = client(&self.ask)?;
        let mut answers = Vec::new();
        let mut all = true;
        for id in &self.id {
            let plain = id.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char));
            if !plain || id.is_empty() {
                return Err(Failure::Wrong(format!("{id:?} is no id of a placement")));
            }
            let query = if self.force { "?force=true" } else { "" };
            let answer = client.ask(Method::DELETE, &format!("/v1/placements/{id}{query}"), None, |_| {}).await;
            match answer.map_err(Failure::NoAnswer).and_then(fine) {
                Ok(answer) => {
                    if !self.ask.json {
                        print(&format!("{id}\n"));
                    }
                    answers.push(answer);
                }
                Err(Failure::NoAnswer(text) | Failure::Wrong(text)) => {
                    warn(&format!("error: {id}: {text}"));
                    all = false;
                }
            }
        }
        if self.ask.json {
            print_json(&Value::from(answers));
        }
        Ok(all)
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(ToOwned::to_owned).to_vec()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

fn is_placed(answer: &Value) -> bool {
    answer["state"] == "placed"
}

/// A port as it is published: `80/tcp`, with its address unless that is all of them.
fn port_words(port: &Value, inside: &str) -> String {
    let ip = word(&port["ip"]);
    let address = match ip.as_str() {
        "0.0.0.0" | "::" => String::new(),
        ip if ip.contains(':') => format!("[{ip}]:"),
        ip => format!("{ip}:"),
    };
    format!("{address}{}{inside}/{}", port["public"], word(&port["protocol"]))
}

fn placement_rows(answers: &[Value]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["ID", "STATE", "HOST", "CONTAINER", "PORTS", "IMAGE"])];
    for answer in answers {
        let dry = if answer["dry_run"] == true { " (dry run)" } else { "" };
        for unit in list(&answer["placements"]) {
            for container in list(&unit["containers"]) {
                let ports: Vec<_> = list(&container["ports"])
                    .iter()
                    .map(|port| port_words(port, &format!("->{}", port["private"])))
                    .collect();
                let image = &container["image"];
                let keys = ["os", "os_version", "architecture", "isolation"].iter();
                let entry: Vec<_> = keys.filter_map(|key| image[*key].as_str()).collect();
                rows.push(vec![
                    word(&answer["id"]),
                    format!("{}{dry}", word(&container["state"])),
                    word(&unit["host"]["name"]),
                    word(&container["name"]),
                    ports.join(", "),
                    entry.join(" "),
                ]);
            }
        }
        let unplaced = answer["unplaced"].as_u64().unwrap_or_default();
        if unplaced > 0 {
            let state = if answer["state"] == "failed" { "failed" } else { "no place" };
            rows.push(vec![word(&answer["id"]), format!("{state}{dry}"), "-".into(), format!("{unplaced} more")]);
        }
    }
    rows
}

/// Says on standard error why something has no place or was not started.
fn tell_why(answer: &Value) {
    for failure in list(&answer["failures"]) {
        let (host, container) = (word(&failure["host"]["name"]), word(&failure["container"]));
        warn(&format!("{container} could not be started on {host}: {}", word(&failure["error"])));
    }
    if answer["explanation"].is_object() {
        warn(explanation(&answer["explanation"]).trim_end());
    } else if let Some(error) = answer["error"].as_str().filter(|_| list(&answer["failures"]).is_empty()) {
        warn(error);
    }
}

fn explanation(explanation: &Value) -> String {
    let mut rows = vec![row(["HOST", "FITS", "WHY NOT"])];
    for host in list(&explanation["hosts"]) {
        let fits = if host["fits"] == true { format!("yes, {}.", host["rank"]) } else { "no".to_owned() };
        let reasons: Vec<_> = list(&host["reasons"]).iter().map(word).collect();
        let mut reasons = reasons.into_iter();
        rows.push(vec![word(&host["name"]), fits, reasons.next().unwrap_or_default()]);
        rows.extend(reasons.map(|reason| vec![String::new(), String::new(), reason]));
    }
    let mut text = table(&rows);
    let changes: Vec<_> = list(&explanation["changes"]).iter().map(word).collect();
    if !changes.is_empty() {
        text.push_str("\nIt would fit with\n");
        text.extend(changes.iter().map(|change| format!("  {change}\n")));
    }
    text
}
