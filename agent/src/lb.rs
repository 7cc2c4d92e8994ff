//! `agent lb`: what a load balancer's rules come to, and the configuration of a proxy that does it.

mod certificates;
mod haproxy;
mod keep;
mod proxy;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use balancer::{Configuration, Options, Slots, condition};
use clap::{Subcommand, ValueEnum};
use model::lb::{Backend, LbConfig, LbPlan, Port, Route, Viewpoint, find, traefik};
use model::printable::{printable, printable_lines};
use model::{Defect, Entity as _, Service, Snapshot};
use process::table::table;
use process::{Failure, launch};
use source::{Readiness, Source};

use crate::enroll;

/// Longest wait for the source's first word.
const SOURCE_WITHIN: Duration = Duration::from_secs(5);

/// Longest cell of a table before the last one.
const CELL_MAX: usize = 48;

/// Most rules before the one that matches that `explain` prints.
const RULES_SHOWN: usize = 50;

/// Say what a load balancer's rules come to, and write the configuration of a proxy that does it
#[derive(clap::Args)]
pub(crate) struct Lb {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read a cluster file and list what is wrong with the rules of its balancers; exit code 1 if anything is
    Check(CheckRules),
    /// Print which rule a request matches, why not those before, and where it is led
    Explain(Explain),
    /// Print the configuration of a proxy, as of now
    Export(Export),
    Haproxy(Box<haproxy::Haproxy>),
    /// Print the static half of Traefik's configuration: ports, and where it asks for the rest
    TraefikStatic(TraefikStatic),
}

/// Which balancer of which cluster.
#[derive(Debug, clap::Args)]
struct Which {
    /// Where the cluster is described: `file:PATH` or `metadata:HOST[:PORT]`
    #[arg(long, value_name = "SOURCE", env = "BERTH_SOURCE", default_value = "metadata:169.254.169.250")]
    source: Source,

    /// The balancer, stack/service [default: the only one]
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
}

#[derive(clap::Args)]
struct CheckRules {
    /// The cluster file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(clap::Args)]
struct Explain {
    /// The request: `http://HOST[:PORT]/PATH` or `HOST/PATH`
    #[arg(value_name = "URL")]
    url: String,

    /// The port of the balancer [default: that of the URL, or 80, or 443 for https]
    #[arg(long)]
    port: Option<u16>,

    #[command(flatten)]
    which: Which,
}

/// Which proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// haproxy.cfg, for HAProxy 2.6 or newer
    Haproxy,
    /// Dynamic configuration for Traefik 3, as JSON
    Traefik,
}

#[derive(clap::Args)]
struct Export {
    /// The proxy
    #[arg(long, value_name = "PROXY", default_value = "haproxy")]
    format: Format,

    /// Folder with NAME.pem, chain and key, for each certificate of the rules (HAProxy)
    #[arg(long, value_name = "DIR")]
    certs: Option<PathBuf>,

    /// Socket of the proxy for operators (HAProxy)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Listen on this address alone (HAProxy)
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,

    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
struct TraefikStatic {
    /// Where Traefik finds the metadata service, HOST[:PORT]
    #[arg(long, value_name = "ADDRESS", default_value = "169.254.169.250")]
    metadata: String,

    /// Listen on this address alone
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,

    #[command(flatten)]
    which: Which,
}

impl Lb {
    pub(crate) fn run(self) -> ExitCode {
        enroll::finish(match self.command {
            Command::Check(check) => check.checked(),
            Command::Explain(explain) => explain.explained(),
            Command::Export(export) => export.exported(),
            Command::Haproxy(haproxy) => return launch(&haproxy.process.clone(), |launch| haproxy.serve(launch)),
            Command::TraefikStatic(traefik) => traefik.written(),
        })
    }
}

impl Which {
    /// What the source says.
    fn snapshot(&self) -> Result<Arc<Snapshot>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let readiness = Arc::new(Readiness::default());
            let following = source::follow(self.source.clone(), None, readiness.clone())?;
            let mut published = following.snapshots.watch();
            if tokio::time::timeout(SOURCE_WITHIN, published.first()).await.is_err() {
                let why = readiness.reasons().values().next().cloned().unwrap_or_else(|| "no answer yet".into());
                return Err(format!("{}: {why}; --source names another one", self.source).into());
            }
            Ok(following.snapshots.load_full())
        })
    }

    /// The balancer that is meant.
    fn balancer<'s>(&self, snapshot: &'s Snapshot) -> Result<&'s Arc<Service>, Failure> {
        if let Some(path) = &self.service {
            let found = find(snapshot, path).filter(|service| is_balancer(service));
            return usable(found.ok_or_else(|| format!("{path} is no service with an lb_config"))?);
        }
        let all: Vec<_> = snapshot.services.values().filter(|service| is_balancer(service)).collect();
        match all[..] {
            [one] => usable(one),
            [] => Err("no service has an lb_config".into()),
            _ => {
                let names: Vec<_> = all.iter().map(|service| path(service)).collect();
                Err(format!("there are several balancers: --service {}", names.join(", --service ")).into())
            }
        }
    }
}

impl CheckRules {
    fn checked(&self) -> Result<String, Failure> {
        let bytes = source::file::read(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        let (reading, _) = source::cluster_file::read(&self.file, bytes)
            .map_err(|error| format!("{}: {error}", self.file.display()))?;
        let mut text = String::new();
        let mut wrong = 0;
        for service in reading.snapshot.services.values().filter(|service| is_balancer(service)) {
            let plan = LbPlan::of(&reading.snapshot, service, &Viewpoint::default());
            let traefik = traefik::defects(&plan, &at(service));
            let haproxy = balancer::config_defects(&plan, &at(service));
            wrong += plan.defects.len() + haproxy.len();
            let rules: usize = plan.ports.iter().map(|port| port.routes.len()).sum();
            let members: usize = plan.backends.iter().map(|backend| backend.members.len()).sum();
            writeln!(
                text,
                "{}: {} ports, {rules} rules, {members} members, {} defects",
                path(service),
                plan.ports.len(),
                plan.defects.len() + haproxy.len()
            )?;
            for defect in plan.defects.iter().chain(&haproxy) {
                writeln!(text, "  {}", printable(&defect.to_string(), 400))?;
            }
            for defect in traefik {
                writeln!(text, "  with Traefik: {}", printable(&defect.to_string(), 400))?;
            }
        }
        if text.is_empty() {
            text.push_str("no service has an lb_config\n");
        }
        if wrong > 0 { Err(text.trim_end().to_owned().into()) } else { Ok(text) }
    }
}

impl Explain {
    fn explained(&self) -> Result<String, Failure> {
        let (default, rest) = match self.url.split_once("://") {
            Some(("http", rest)) => (80, rest),
            Some(("https", rest)) => (443, rest),
            Some((scheme, _)) => return Err(format!("{scheme}: expected http or https").into()),
            None => (80, &*self.url),
        };
        let (authority, query) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let request = query.split(['?', '#']).next().unwrap_or_default();
        let request = if request.is_empty() { "/" } else { request };
        let named = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let number = self.port.or(named).unwrap_or(default);
        let snapshot = self.which.snapshot()?;
        let service = self.which.balancer(&snapshot)?;
        let plan = LbPlan::of(&snapshot, service, &Viewpoint::default());
        let Some(port) = plan.ports.iter().find(|port| port.number == number) else {
            let ports: Vec<_> = plan.ports.iter().map(|port| port.number.to_string()).collect();
            return Err(
                format!("{} has no rule for port {number}; its ports: {}", path(service), ports.join(", ")).into()
            );
        };
        let mut text = format!("request    {authority}{request} at port {number} ({})\n", port.protocol.name());
        let matched = plan.route(number, authority, request);
        text += &before(port, matched);
        match matched {
            None => text += "matches    no rule: its client gets 503 (HAProxy) or 404 (Traefik)\n",
            Some(route) => {
                writeln!(text, "matches    {}: {}{}", route.at, route.host, route.path)?;
                let backend = &plan.backends[route.backend];
                text += &written(port, route, backend);
                text += &led(backend);
            }
        }
        Ok(printable_lines(&text))
    }
}

/// The rules before the one that matches.
fn before(port: &Port, matched: Option<&Route>) -> String {
    let is_it = |route: &&Route| matched.is_none_or(|matched| !std::ptr::eq(*route, matched));
    let before: Vec<_> = port.routes.iter().take_while(is_it).collect();
    let mut text = String::new();
    for route in before.iter().take(RULES_SHOWN) {
        let _ = writeln!(text, "not        {}: it is for {}{}", route.at, route.host, route.path);
    }
    if before.len() > RULES_SHOWN {
        let _ = writeln!(text, "not        {} rules more", before.len() - RULES_SHOWN);
    }
    text
}

/// What both proxies have for a rule.
fn written(port: &Port, route: &Route, backend: &Backend) -> String {
    let haproxy = match condition(port.protocol, route) {
        Some(condition) => format!("use_backend {} if {condition}", backend.name),
        None => format!("default_backend {}", backend.name),
    };
    let position = port.routes.iter().position(|other| std::ptr::eq(other, route)).unwrap_or_default();
    let (number, priority, rule) =
        (route.backend + 1, traefik::priority(position), traefik::rule(port.protocol, route));
    format!("haproxy    {haproxy}\ntraefik    r{number}, priority {priority}: {rule}\n")
}

/// Where a backend leads, and where not.
fn led(backend: &Backend) -> String {
    let mut text = format!("backend    {}\n", backend.name);
    if backend.members.is_empty() {
        text += "           it has no members: its client gets 503\n";
    }
    let mut rows = vec![["", "MEMBER", "AT", "WEIGHT OR REASON"].map(str::to_owned).to_vec()];
    for member in &backend.members {
        let weight =
            if member.weight == 0 { "weight 0: no new clients".into() } else { format!("weight {}", member.weight) };
        rows.push(vec!["led to".into(), member.name.to_string(), member.place.to_string(), weight]);
    }
    for out in &backend.left_out {
        rows.push(vec!["left out".into(), out.name.to_string(), "-".into(), out.reason.to_string()]);
    }
    if rows.len() > 1 {
        text += &table(&rows, CELL_MAX);
    }
    text
}

impl Export {
    fn exported(self) -> Result<String, Failure> {
        let snapshot = self.which.snapshot()?;
        let service = self.which.balancer(&snapshot)?;
        let plan = LbPlan::of(&snapshot, service, &Viewpoint::default());
        if self.format == Format::Traefik {
            return Ok(format!("{:#}\n", traefik::document(&plan)));
        }
        let options = Options { certificates: self.certs, socket: self.socket, bind: self.bind };
        let slots = Slots::default().following(&plan, None, Duration::ZERO, &BTreeSet::new());
        let made = Configuration::of(&plan, &at(service), &options, &slots);
        Ok(defects_as_comments(plan.defects.iter().chain(&made.defects)) + &made.text)
    }
}

fn defects_as_comments<'d>(defects: impl Iterator<Item = &'d Defect>) -> String {
    defects.flat_map(|defect| ["# ".to_owned(), printable(&defect.to_string(), 400), "\n".to_owned()]).collect()
}

impl TraefikStatic {
    fn written(&self) -> Result<String, Failure> {
        let snapshot = self.which.snapshot()?;
        let service = self.which.balancer(&snapshot)?;
        let plan = LbPlan::of(&snapshot, service, &Viewpoint::default());
        let bind = self.bind.map_or_else(String::new, |address| address.to_string());
        let ports = plan.ports.iter().map(|port| {
            (format!("p{}", port.number), serde_json::json!({"address": format!("{bind}:{}", port.number)}))
        });
        let named =
            percent_encoding::utf8_percent_encode(&path(service), percent_encoding::NON_ALPHANUMERIC).to_string();
        // JSON is YAML too, which Traefik reads.
        let document = serde_json::json!({
            "entryPoints": ports.collect::<serde_json::Map<_, _>>(),
            "providers": {
                "providersThrottleDuration": "50ms",
                "http": {
                    "endpoint": format!("http://{}/v1/traefik?service={named}", self.metadata),
                    "pollInterval": "50ms",
                    "pollTimeout": "5s",
                },
            },
        });
        Ok(format!("{document:#}\n"))
    }
}

fn is_balancer(service: &Service) -> bool {
    service.fields().get("lb_config").is_some_and(|config| !config.is_null())
}

/// The balancer, if what it has can be meant as its rules.
fn usable(service: &Arc<Service>) -> Result<&Arc<Service>, Failure> {
    match service.fields().get("lb_config") {
        Some(config) if LbConfig::says_rules(config) => Ok(service),
        _ => Err(format!("{}/lb_config is no map with a list of port_rules", at(service)).into()),
    }
}

fn path(service: &Service) -> String {
    let stack = service.stack_name().map_or("", |stack| stack);
    format!("{stack}/{}", service.name().map_or("", |name| name))
}

fn at(service: &Service) -> String {
    format!("services/{}", path(service))
}
