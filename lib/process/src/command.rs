//! Subcommands that all executables share: `check`, `healthcheck`, `version`, `completions`.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Command};
use clap_complete::Shell;
use http_client::{Client, HttpError};
use hyper::header::AUTHORIZATION;
use hyper::{Method, Request, StatusCode};
use model::Defect;
use serde_json::json;

use crate::launch::CANNOT_RUN;

/// Longest wait for the admin pages; Docker's own default for a health check is 30 s.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// Largest answer that is shown: the health of 10,000 containers.
const BODY_MAX: usize = 4 << 20;

/// `check FILE`: reads a file as the service would and lists all its defects.
#[derive(Args, Clone, Debug)]
pub struct Check {
    /// The file to read
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What a check found.
#[derive(Debug)]
pub struct Findings {
    /// What the file is: `Berth document: 3 hosts, …`.
    pub summary: String,
    /// What is wrong with parts of it.
    pub defects: Vec<Defect>,
}

impl Check {
    /// Prints what `read` finds in the file; the exit code is 1 when there is a defect.
    pub fn run(&self, read: impl FnOnce(&Path, Vec<u8>) -> Result<Findings, String>) -> ExitCode {
        let contents = source::file::read(&self.file).map_err(|error| error.to_string());
        let found = contents.and_then(|bytes| read(&self.file, bytes));
        let good = matches!(&found, Ok(findings) if findings.defects.is_empty());
        let file = self.file.display();
        let text = if self.json {
            let report = match &found {
                Ok(Findings { summary, defects }) => {
                    let defects: Vec<_> = defects.iter().map(defect_json).collect();
                    json!({ "file": file.to_string(), "good": good, "summary": summary, "defects": defects })
                }
                Err(problem) => json!({ "file": file.to_string(), "good": false, "refused": problem }),
            };
            format!("{report:#}\n")
        } else {
            match &found {
                Ok(Findings { summary, defects }) => {
                    let mut lines: Vec<_> = defects.iter().map(|defect| format!("{file}: {defect}\n")).collect();
                    lines.push(format!("{file}: {summary}, {} defects\n", defects.len()));
                    lines.concat()
                }
                Err(problem) if problem.contains(&*file.to_string()) => format!("{problem}\n"),
                Err(problem) => format!("{file}: {problem}\n"),
            }
        };
        let _ = io::stdout().write_all(text.as_bytes());
        if good { ExitCode::SUCCESS } else { ExitCode::from(CANNOT_RUN) }
    }
}

/// What [`Check::run`] needs to know of a cluster file.
pub fn check_cluster(path: &Path, bytes: Vec<u8>) -> Result<Findings, String> {
    let (reading, _) = source::cluster_file::read(path, bytes).map_err(|error| error.to_string())?;
    let snapshot = &reading.snapshot;
    let summary = format!(
        "{}: {} hosts, {} stacks, {} services, {} containers, {} networks",
        reading.form,
        snapshot.hosts.len(),
        snapshot.stacks.len(),
        snapshot.services.len(),
        snapshot.containers.len(),
        snapshot.networks.len()
    );
    Ok(Findings { summary, defects: reading.defects })
}

fn defect_json(defect: &Defect) -> serde_json::Value {
    let at = defect.at.map(|at| json!({ "line": at.line, "column": at.column }));
    let effect = match defect.effect {
        model::Effect::Hidden => "hidden",
        model::Effect::Ignored => "ignored",
    };
    json!({ "path": defect.path, "problem": defect.problem, "effect": effect, "at": at })
}

/// `healthcheck`: asks the admin pages of a running service; for an image's HEALTHCHECK.
#[derive(Args, Clone, Debug)]
pub struct Healthcheck {
    /// The admin address of the service
    #[arg(long, value_name = "ADDRESS", env = "BERTH_ADMIN")]
    admin: Option<SocketAddr>,

    /// Ask whether it is ready (has data), not only whether it lives
    #[arg(long)]
    ready: bool,
}

impl Healthcheck {
    /// Asks, and prints the answer; `port` is the service's default admin port on loopback.
    ///
    /// The exit code is 0 when the service is well and 1 otherwise, as HEALTHCHECK wants it.
    pub fn run(&self, port: u16) -> ExitCode {
        let admin = self.admin.unwrap_or_else(|| (IpAddr::V4(Ipv4Addr::LOCALHOST), port).into());
        let path = if self.ready { "readyz" } else { "healthz" };
        let answer = get_admin(admin, &format!("/{path}"), HEALTH_TIMEOUT);
        let (text, good) = match answer {
            Ok((status, body)) => (body, status == StatusCode::OK),
            Err(problem) => (problem, false),
        };
        let _ = writeln!(io::stdout(), "{}", text.trim_end());
        if good { ExitCode::SUCCESS } else { ExitCode::from(CANNOT_RUN) }
    }
}

/// Asks the admin pages of a running service for one of them, and waits for it.
///
/// # Errors
///
/// Fails if there is no answer; the text says what to do about it.
pub fn get_admin(admin: SocketAddr, path: &str, limit: Duration) -> Result<(StatusCode, String), String> {
    get(admin, path, limit).map_err(|problem| {
        format!("no service answers on its admin address {admin}: {problem}; is it running? (--admin says where)")
    })
}

/// Asks a running service for one of its pages and waits for it.
pub fn get(service: SocketAddr, path: &str, limit: Duration) -> Result<(StatusCode, String), String> {
    ask_page(Method::GET, service, path, None, limit)
}

/// The same with another method, and with a bearer token if there is one; nothing is sent beside it.
pub fn ask_page(
    method: Method,
    service: SocketAddr,
    path: &str,
    token: Option<&str>,
    limit: Duration,
) -> Result<(StatusCode, String), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(ask(method, &format!("http://{service}{path}"), token, limit))
}

async fn ask(method: Method, url: &str, token: Option<&str>, limit: Duration) -> Result<(StatusCode, String), String> {
    let client = Client::new(http_client::connector(limit));
    let exchange = async {
        let mut request = Request::builder().method(method).uri(url);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = client.send(request, Bytes::new()).await?;
        Ok((response.status(), http_client::body(response, BODY_MAX).await?))
    };
    let answer = tokio::time::timeout(limit, exchange).await;
    let (status, body) = answer
        .map_err(|_| format!("no answer within {} s", limit.as_secs()))?
        .map_err(|error: HttpError| error.to_string())?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// `version`.
#[derive(Args, Clone, Debug)]
pub struct Version {
    /// Write JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Version {
    /// Prints the version.
    pub fn run(&self, name: &str) -> ExitCode {
        let version = env!("CARGO_PKG_VERSION");
        let text = if self.json {
            json!({ "name": name, "version": version, "os": std::env::consts::OS, "arch": std::env::consts::ARCH })
                .to_string()
        } else {
            format!("{name} {version}")
        };
        let _ = writeln!(io::stdout(), "{text}");
        ExitCode::SUCCESS
    }
}

/// `completions SHELL`: what a shell needs to complete commands and flags.
#[derive(Args, Clone, Debug)]
pub struct Completions {
    /// The shell that will read it
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Prints the script for `command`.
    pub fn run(&self, mut command: Command) -> ExitCode {
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        let _ = io::stdout().write_all(&script);
        ExitCode::SUCCESS
    }
}
