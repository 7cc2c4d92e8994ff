//! `agent doctor`: looks at what a person would otherwise hunt for, and says what to type.

mod ask;
mod engine;
mod etcd;
mod health;
mod hosts;
mod network;
mod start;

use std::fmt::{Display, Write as _};
use std::io::{self, ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use ::etcd::EtcdArgs;
use hickory_proto::op::ResponseCode;
use live::Origin;
use model::METADATA_NAME;
use platform::cloud::AWS_ACTIVATION;
use platform::redirect;
use process::launch::CANNOT_RUN;
use process::listen_address;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::ADMIN_PORTS;

/// Look at this machine and say why containers get no answers, and what to type
#[derive(clap::Args)]
#[command(mut_arg("docker", |docker| docker.help("The Docker Engine to look at, as for `agent up`; that of --source is")))]
pub(crate) struct Doctor {
    /// Where metadata should be served
    #[arg(long, value_name = "ADDRESS", env = "BERTH_METADATA_LISTEN", default_value = "169.254.169.250:80", value_parser = listen_address)]
    metadata: SocketAddr,

    /// Where DNS should be served
    #[arg(long, value_name = "ADDRESS", env = "BERTH_DNS_LISTEN", default_value = "169.254.169.251:53", value_parser = listen_address)]
    dns: SocketAddr,

    /// The source that Berth has or is to have, as for `agent up`
    #[arg(long, env = "BERTH_SOURCE", value_parser = start::source)]
    source: Option<String>,

    #[command(flatten)]
    docker: live::config::DockerOption,

    /// Name of this host in the cluster, as for `agent up`
    #[arg(long, value_name = "NAME", env = "BERTH_HOST")]
    host: Option<String>,

    /// Members of etcd to look at, too; those of --source are
    #[arg(long = "etcd", value_name = "URL", env = "BERTH_ETCD", value_delimiter = ',')]
    members: Vec<::etcd::Endpoint>,

    #[command(flatten)]
    etcd: EtcdArgs,

    /// Write JSON instead of a table
    #[arg(long)]
    json: bool,

    /// Also write what was found to this file, to send to another person
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// How something is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Good,
    /// It may be meant so.
    Odd,
    Bad,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Odd => "odd",
            Self::Bad => "bad",
        }
    }
}

/// What was looked at, what was found, and what to do about it.
struct Finding {
    subject: String,
    outcome: Outcome,
    found: String,
    advice: String,
}

impl Finding {
    fn new(subject: impl Into<String>, outcome: Outcome, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject: subject.into(), outcome, found: found.into(), advice: advice.into() }
    }

    fn good(subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(subject, Outcome::Good, found, "")
    }

    fn json(&self) -> Value {
        json!({ "subject": self.subject, "outcome": self.outcome.word(), "found": self.found, "advice": self.advice })
    }
}

/// Why the engine of a host cannot be asked, and what to do; `None` when it can.
pub(crate) async fn engine_problem(engine: &live::config::Engine) -> Option<String> {
    let looked = engine::look(engine).await;
    let wrong = looked.findings.iter().find(|finding| finding.outcome != Outcome::Good)?;
    Some(format!("{}: {}: {}", wrong.subject, wrong.found, wrong.advice))
}

impl Doctor {
    /// Prints what it finds; the exit code is 1 when something is bad.
    pub(crate) fn run(&self) -> ExitCode {
        let looked = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let findings = match looked {
            Ok(runtime) => self.look(&runtime),
            Err(failure) => vec![Finding::new("runtime", Outcome::Bad, failure.to_string(), "")],
        };
        let report = json!({
            "version": env!("CARGO_PKG_VERSION"), "os": std::env::consts::OS, "arch": std::env::consts::ARCH,
            "seconds_since_1970": SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
            "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
        });
        let text = if self.json { format!("{report:#}\n") } else { table(&findings) };
        let _ = io::stdout().write_all(text.as_bytes());
        if let Some(path) = &self.report
            && let Err(failure) = std::fs::write(path, format!("{report:#}\n"))
        {
            let _ = writeln!(io::stderr(), "error: cannot write {}: {failure}", path.display());
            return ExitCode::from(CANNOT_RUN);
        }
        let bad = findings.iter().any(|finding| finding.outcome == Outcome::Bad);
        if bad { ExitCode::from(CANNOT_RUN) } else { ExitCode::SUCCESS }
    }

    fn look(&self, runtime: &Runtime) -> Vec<Finding> {
        let mut engine = runtime.block_on(engine::look(&self.engine()));
        let members = self.members();
        let mut start = self.start(&members, engine.is_there);
        if ask::http(([127, 0, 0, 1], ADMIN_PORTS[0]).into(), "/healthz", "*/*").is_ok() {
            start.insert_str(0, "end what runs here already (its /readyz and its log say what it lacks), then ");
        }
        let mut findings = vec![self.cloud()];
        for (name, ip) in [("metadata", self.metadata.ip()), ("dns", self.dns.ip())] {
            findings.push(route(name, ip, &start));
        }
        // Only what is on this machine is asked: elsewhere the addresses may belong to another process.
        let metadata = runtime.block_on(held("metadata", self.metadata.ip(), &start));
        let asks_metadata = metadata.outcome == Outcome::Good;
        findings.push(metadata);
        findings.extend(asks_metadata.then(|| self.metadata(&start)));
        let dns = runtime.block_on(held("dns", self.dns.ip(), &start));
        let asks_dns = dns.outcome == Outcome::Good;
        findings.push(dns);
        if asks_dns {
            findings.push(self.dns_answer("UDP", ask::udp(self.dns, METADATA_NAME), &start));
            findings.push(self.dns_answer("TCP", ask::tcp(self.dns, METADATA_NAME), &start));
        }
        let answer_here = findings.iter().all(|finding| finding.outcome != Outcome::Bad);
        findings.extend(["metadata", "dns", "scheduler"].into_iter().zip(ADMIN_PORTS).map(readiness));
        findings.append(&mut engine.findings);
        findings.extend(engine.name_servers(self.dns.ip()));
        findings.extend(runtime.block_on(health::look(&engine.containers)));
        // Containers have a loopback of their own.
        if asks_metadata && asks_dns && !self.metadata.ip().is_loopback() && !self.dns.ip().is_loopback() {
            findings.extend(engine.probe(self.metadata, self.dns, (!answer_here).then_some(start.as_str())));
        }
        if !members.is_empty() {
            let _guard = runtime.enter();
            if asks_metadata {
                findings.extend(runtime.block_on(hosts::look(self.metadata)));
            }
            findings.extend(runtime.block_on(etcd::look(&self.etcd, &members)));
        }
        let file = self.source.as_deref().and_then(|source| source.parse::<Origin>().ok());
        let origin = if members.is_empty() { file } else { Some(Origin::Etcd(members)) };
        if let Some(origin @ (Origin::Etcd(_) | Origin::Source(source::Source::File(_)))) = origin {
            let own = self.engine();
            let own = engine.is_there.then_some(&own);
            let looking = network::look(&origin, &self.etcd, own, self.host.as_deref());
            findings.extend(runtime.block_on(looking));
        }
        findings
    }

    fn cloud(&self) -> Finding {
        let activation = [self.metadata.ip(), self.dns.ip()].iter().any(|address| AWS_ACTIVATION.contains(address));
        match (platform::cloud::on_aws(), activation) {
            (true, true) => Finding::new(
                "cloud",
                Outcome::Odd,
                "this is a machine of AWS, where Windows is activated through 169.254.169.250 and .251",
                "give Berth other addresses, or see that Windows stays activated: slmgr /ato",
            ),
            (true, false) => Finding::good("cloud", "AWS, with other addresses than Windows activation"),
            (false, _) => Finding::good("cloud", "not AWS: no other service is known to use the addresses"),
        }
    }

    fn metadata(&self, start: &str) -> Finding {
        let subject = format!("metadata on {}", self.metadata);
        match ask::http(self.metadata, "/latest/version", "*/*") {
            Ok((200, version)) => Finding::good(subject, format!("version {version}{}", bound_as(self.metadata))),
            Ok((404, _)) => Finding::new(
                subject,
                Outcome::Bad,
                "it has no data",
                "its log and its /readyz say why the source cannot be read",
            ),
            Ok((status, _)) => {
                let found = format!("status {status}: this is not Berth's metadata");
                Finding::new(subject, Outcome::Bad, found, "end the other program, or give Berth another address")
            }
            Err(failure) => not_served(subject, self.metadata, &failure, start),
        }
    }

    fn dns_answer(&self, transport: &str, asked: io::Result<(ResponseCode, Vec<IpAddr>)>, start: &str) -> Finding {
        let subject = format!("dns on {} ({transport})", self.dns);
        match asked {
            Ok((ResponseCode::NoError, _)) => Finding::good(subject, format!("knows {METADATA_NAME}")),
            Ok((code, _)) => Finding::new(
                subject,
                Outcome::Bad,
                format!("answers {code} for {METADATA_NAME}"),
                "its log and its /readyz say whether it has data; if this is not Berth, end the other program",
            ),
            Err(failure) if failure.kind() == ErrorKind::Other => Finding::new(
                subject,
                Outcome::Bad,
                failure.to_string(),
                "this is not Berth's dns: end the other program",
            ),
            Err(failure) => not_served(subject, self.dns, &failure, start),
        }
    }
}

/// Whether this is Windows, where other things are to be typed.
pub(crate) fn on_windows() -> bool {
    std::env::consts::OS == "windows"
}

/// Where packets for one of our addresses would go. Nothing is sent: a socket is only connected.
fn route(service: &str, address: IpAddr, start: &str) -> Finding {
    let subject = format!("route to {service}");
    let any: SocketAddr = if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let from = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    match from.map(|from| from.ip()) {
        Ok(from) if from == address || from.is_loopback() => {
            Finding::good(subject, format!("{address} is this machine"))
        }
        Ok(from) => Finding::new(
            subject,
            Outcome::Odd,
            format!("packets to {address} leave this machine from {from}: another machine may answer them"),
            format!("{start}; on AWS leave the route of Windows activation alone"),
        ),
        Err(failure) => {
            Finding::new(subject, Outcome::Odd, format!("no way to {address} from here ({failure})"), start)
        }
    }
}

/// Whether an interface has the address.
async fn held(service: &str, address: IpAddr, start: &str) -> Finding {
    let subject = format!("address of {service}");
    match platform::address::holder(address).await {
        Ok(Some(interface)) => Finding::good(subject, format!("{address} is on {interface}")),
        // 127.0.0.0/8 belongs to the loopback interface as a whole.
        Ok(None) if address.is_loopback() => Finding::good(subject, format!("{address} is loopback")),
        Ok(None) if address.is_unspecified() => Finding::good(subject, "all addresses"),
        Ok(None) => Finding::new(subject, Outcome::Bad, format!("{address} is on no interface"), start),
        Err(failure) => Finding::new(subject, Outcome::Bad, failure.to_string(), ""),
    }
}

/// Why there is no answer: the port is another program's, the address is on no interface, or nothing runs.
fn not_served(subject: String, address: SocketAddr, failure: &dyn Display, start: &str) -> Finding {
    match platform::socket::tcp_listener(redirect::behind(address).unwrap_or(address)) {
        Ok(_) => Finding::new(subject, Outcome::Bad, format!("nothing is served there ({failure})"), start),
        Err(taken) => Finding::new(subject, Outcome::Bad, format!("{failure}; {taken}"), ""),
    }
}

/// Which port the system shows for a service whose own is left to containers.
fn bound_as(address: SocketAddr) -> String {
    let bound = bound_port(address);
    if bound == address.port() { String::new() } else { format!(", bound as port {bound}") }
}

/// The port that the system, and a firewall, see for a service that runs.
fn bound_port(address: SocketAddr) -> u16 {
    redirect::behind(address).filter(|_| redirect::is_served_behind(address)).unwrap_or(address).port()
}

/// What the admin pages on loopback say.
fn readiness((service, port): (&str, u16)) -> Finding {
    let subject = format!("{service} is ready");
    match ask::http(([127, 0, 0, 1], port).into(), "/readyz", "*/*") {
        Ok((200, _)) => Finding::good(subject, "its source is read and up to date"),
        Ok((_, reasons)) => Finding::new(subject, Outcome::Bad, reasons.trim(), "repair what the reasons name"),
        Err(failure) => Finding::new(
            subject,
            Outcome::Odd,
            format!("no admin page on 127.0.0.1:{port} ({failure})"),
            "it does not run here, runs in a container, or has another --admin address",
        ),
    }
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Finding { subject, outcome, found, advice } in findings {
        let _ = writeln!(text, "{:<4} {subject:<width$}  {found}", outcome.word());
        if !advice.is_empty() {
            let _ = writeln!(text, "     {:<width$}  -> {advice}", "");
        }
    }
    let bad = findings.iter().filter(|finding| finding.outcome == Outcome::Bad).count();
    let _ = writeln!(text, "{} looked at, {bad} bad", findings.len());
    text
}
