//! `agent doctor`: looks at what a person would otherwise hunt for, and says what to type.

mod etcd;

use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use bollard::Docker;
use bollard::query_parameters::ListContainersOptions;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use hyper::StatusCode;
use live::config::Engine;
use platform::cloud::AWS_ACTIVATION;
use process::command::get;
use process::launch::CANNOT_RUN;
use process::listen_address;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::ADMIN_PORTS;

/// Longest wait for any answer; all of them are on this machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Most containers that are looked at; the first wrong one tells enough.
const CONTAINERS_MAX: usize = 200;

/// Look at this machine and say what keeps containers from being answered, and what to type
#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Where metadata should be served
    #[arg(long, value_name = "ADDRESS", env = "BERTH_METADATA_LISTEN", default_value = "169.254.169.250:80", value_parser = listen_address)]
    metadata: SocketAddr,

    /// Where DNS should be served
    #[arg(long, value_name = "ADDRESS", env = "BERTH_DNS_LISTEN", default_value = "169.254.169.251:53", value_parser = listen_address)]
    dns: SocketAddr,

    /// Members of etcd to look at, too
    #[arg(long = "etcd", value_name = "URL", env = "BERTH_ETCD", value_delimiter = ',')]
    members: Vec<live::etcd::Endpoint>,

    #[command(flatten)]
    etcd: live::config::Etcd,

    /// Write JSON instead of a table
    #[arg(long)]
    json: bool,

    /// Also write what was found to this file, to send to somebody
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

impl Doctor {
    /// Looks and tells; the exit code is 1 when something is bad.
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
        let mut findings = vec![self.cloud()];
        findings.extend([("metadata", self.metadata.ip()), ("dns", self.dns.ip())].map(|(name, ip)| route(name, ip)));
        // Only what is on this machine is asked: elsewhere the addresses may be somebody else's.
        let metadata = runtime.block_on(held("metadata", self.metadata.ip()));
        let asks = metadata.outcome == Outcome::Good;
        findings.push(metadata);
        findings.extend(asks.then(|| self.metadata()));
        let dns = runtime.block_on(held("dns", self.dns.ip()));
        let asks = dns.outcome == Outcome::Good;
        findings.push(dns);
        findings.extend(asks.then(|| [self.dns_over_udp(), self.dns_over_tcp()]).into_iter().flatten());
        findings.extend(["metadata", "dns", "scheduler"].into_iter().zip(ADMIN_PORTS).map(readiness));
        findings.extend(runtime.block_on(self.engine()));
        if !self.members.is_empty() {
            let _guard = runtime.enter();
            findings.extend(runtime.block_on(etcd::look(&self.etcd, &self.members)));
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
            (false, _) => Finding::good("cloud", "not AWS: nobody else is known to use the addresses"),
        }
    }

    fn metadata(&self) -> Finding {
        let subject = format!("metadata on {}", self.metadata);
        match get(self.metadata, "/latest/version", ANSWER_WITHIN) {
            Ok((StatusCode::OK, version)) => Finding::good(subject, format!("version {version}")),
            Ok((StatusCode::NOT_FOUND, _)) => Finding::new(
                subject,
                Outcome::Bad,
                "it has no data",
                "its log and its /readyz say why the source cannot be read",
            ),
            Ok((status, _)) => {
                let found = format!("status {}: this is not Berth's metadata", status.as_u16());
                Finding::new(subject, Outcome::Bad, found, "end the other program, or give Berth another address")
            }
            Err(failure) => not_served(subject, self.metadata, &failure),
        }
    }

    fn dns_over_udp(&self) -> Finding {
        let subject = format!("dns on {} (UDP)", self.dns);
        let asked = (|| {
            let socket = UdpSocket::bind(if self.dns.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
            socket.set_read_timeout(Some(ANSWER_WITHIN))?;
            socket.connect(self.dns)?;
            socket.send(&question()?)?;
            let mut answer = [0; 1500];
            let length = socket.recv(&mut answer)?;
            Ok(answer[..length].to_vec())
        })();
        self.dns_answer(subject, asked)
    }

    fn dns_over_tcp(&self) -> Finding {
        let subject = format!("dns on {} (TCP)", self.dns);
        let asked = (|| {
            let mut stream = connect(self.dns)?;
            let question = question()?;
            let length = u16::try_from(question.len()).map_err(io::Error::other)?.to_be_bytes();
            stream.write_all(&[&length[..], &question].concat())?;
            let mut length = [0; 2];
            io::Read::read_exact(&mut stream, &mut length)?;
            let mut answer = vec![0; u16::from_be_bytes(length).into()];
            io::Read::read_exact(&mut stream, &mut answer)?;
            Ok(answer)
        })();
        self.dns_answer(subject, asked)
    }

    fn dns_answer(&self, subject: String, asked: io::Result<Vec<u8>>) -> Finding {
        match asked.map(|octets| Message::from_vec(&octets)) {
            Ok(Ok(answer)) if answer.metadata.response_code == ResponseCode::NoError => {
                Finding::good(subject, "knows rancher-metadata")
            }
            Ok(Ok(answer)) => Finding::new(
                subject,
                Outcome::Bad,
                format!("answers {} for rancher-metadata", answer.metadata.response_code),
                "its log and its /readyz say whether it has data; if this is not Berth, end the other program",
            ),
            Ok(Err(failure)) => Finding::new(subject, Outcome::Bad, failure.to_string(), "this is not Berth's dns"),
            Err(failure) => not_served(subject, self.dns, &failure),
        }
    }

    /// What the local engine says, and whether its containers ask us first.
    async fn engine(&self) -> Vec<Finding> {
        let subject = "engine";
        let connected = match engine_client() {
            Ok(connected) => connected,
            Err(failure) => return vec![no_engine(&failure)],
        };
        let looked = async {
            let docker = connected.negotiate_version().await?;
            let version = docker.version().await?;
            let containers = docker.list_containers(None::<ListContainersOptions>).await?;
            Ok::<_, bollard::errors::Error>((docker, version, containers))
        };
        let looked = tokio::time::timeout(ANSWER_WITHIN, looked).await;
        let (docker, version, containers) = match looked {
            Ok(Ok(looked)) => looked,
            Ok(Err(failure)) => return vec![no_engine(&failure.to_string())],
            Err(_) => return vec![no_engine("no answer within 2 s")],
        };
        let version = version.version.unwrap_or_default();
        let mut findings =
            vec![Finding::good(subject, format!("version {version}, {} containers run", containers.len()))];
        let mut others = Vec::new();
        for container in containers.iter().take(CONTAINERS_MAX) {
            let Some(id) = &container.id else { continue };
            let Ok(inspected) = docker.inspect_container(id, None).await else { continue };
            let first = inspected.host_config.and_then(|config| config.dns).and_then(|dns| dns.into_iter().next());
            if first.and_then(|first| first.parse().ok()) != Some(self.dns.ip()) {
                others.push(inspected.name.unwrap_or_default().trim_start_matches('/').to_owned());
            }
        }
        if !others.is_empty() {
            findings.push(Finding::new(
                "containers' DNS",
                Outcome::Odd,
                format!("Berth's DNS is not the first server of {}", others.join(", ")),
                format!("start them with --dns {} --dns-search rancher.internal", self.dns.ip()),
            ));
        } else if !containers.is_empty() {
            findings.push(Finding::good("containers' DNS", "all containers ask Berth first"));
        }
        findings
    }
}

/// A client of the engine that Docker's own client would ask.
fn engine_client() -> Result<Docker, String> {
    let (endpoint, certificates) = live::follow::reach(&Engine::Local, None).map_err(|error| error.to_string())?;
    live::docker::connect(&endpoint, certificates.as_ref()).map_err(|error| error.to_string())
}

/// Where packets for one of our addresses would go. Nothing is sent: a socket is only told whom it would send to.
fn route(service: &str, address: IpAddr) -> Finding {
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
            format!("packets to {address} leave this machine from {from}: somebody else may answer them"),
            "start Berth with --add-address; on AWS leave the route of Windows activation alone",
        ),
        Err(failure) => Finding::new(
            subject,
            Outcome::Odd,
            format!("no way to {address} from here ({failure})"),
            "start Berth with --add-address",
        ),
    }
}

fn no_engine(why: &str) -> Finding {
    let advice = "start Docker, or ignore this where there is none";
    Finding::new("engine", Outcome::Odd, format!("no Docker Engine answers here: {why}"), advice)
}

/// Whether an interface has the address.
async fn held(service: &str, address: IpAddr) -> Finding {
    let subject = format!("address of {service}");
    match platform::address::holder(address).await {
        Ok(Some(interface)) => Finding::good(subject, format!("{address} is on {interface}")),
        // 127.0.0.0/8 belongs to the loopback interface as a whole.
        Ok(None) if address.is_loopback() => Finding::good(subject, format!("{address} is loopback")),
        Ok(None) if address.is_unspecified() => Finding::good(subject, "all addresses"),
        Ok(None) => Finding::new(
            subject,
            Outcome::Bad,
            format!("{address} is on no interface"),
            "start Berth with --add-address, as administrator (Linux: with the capability NET_ADMIN)",
        ),
        Err(failure) => Finding::new(subject, Outcome::Bad, failure.to_string(), ""),
    }
}

/// Why nobody answers: the port is another program's, the address is on no interface, or nothing runs.
fn not_served(subject: String, address: SocketAddr, failure: &dyn Display) -> Finding {
    match platform::socket::tcp_listener(address) {
        Ok(_) => Finding::new(
            subject,
            Outcome::Bad,
            format!("nothing is served there ({failure})"),
            "start it: agent up FILE, or agent service start",
        ),
        Err(taken) => Finding::new(subject, Outcome::Bad, format!("{failure}; {taken}"), ""),
    }
}

/// What the admin pages on loopback say.
fn readiness((service, port): (&str, u16)) -> Finding {
    let subject = format!("{service} is ready");
    match get(([127, 0, 0, 1], port).into(), "/readyz", ANSWER_WITHIN) {
        Ok((StatusCode::OK, _)) => Finding::good(subject, "its source is read and up to date"),
        Ok((_, reasons)) => Finding::new(subject, Outcome::Bad, reasons.trim(), "repair what the reasons name"),
        Err(failure) => Finding::new(
            subject,
            Outcome::Odd,
            format!("no admin page on 127.0.0.1:{port} ({failure})"),
            "it does not run here, runs in a container, or has another --admin address",
        ),
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    Ok(stream)
}

/// The question for our own name, which every Berth answers.
fn question() -> io::Result<Vec<u8>> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let name = Name::from_ascii("rancher-metadata.").map_err(io::Error::other)?;
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().map_err(io::Error::other)
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
