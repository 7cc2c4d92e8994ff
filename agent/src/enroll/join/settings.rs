//! The settings of the agent of a host that has joined, and its service.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use live::config::Engine;
use process::Failure;
use process::command::get_admin;

use super::super::outcome::named;
use super::{CA, CERT, Join, KEY, PASSWORD, Plan, on_windows};
use crate::{ADMIN_PORTS, service};

/// How it is known that systemd runs, and the agent's unit.
const SYSTEMD: &str = "/run/systemd/system";
const UNIT: &str = "berth";

/// The unit that has the engine's socket, and where the agent's unit sees it listen (images/linux).
const PROXY: &str = "berth-engine";
const PROXY_SOCKET: &str = "unix:///run/berth/engine.sock";

/// Longest wait for the agent to be ready once it was started.
const READY_LIMIT: Duration = Duration::from_mins(1);
const READY_INTERVAL: Duration = Duration::from_millis(250);

/// A setting of the agent: flag, variable, value.
pub(super) type Setting = (&'static str, &'static str, String);

impl Join {
    /// The settings of the agent: flag, variable, value.
    pub(super) fn settings(&self, plan: &Plan) -> Vec<Setting> {
        let folder = self.state();
        let members: Vec<_> = plan.invitation.token.endpoints.iter().map(ToString::to_string).collect();
        let members = members.join(",");
        let file = |name: &str| folder.join(name).display().to_string();
        let host = &plan.host;
        let proxy = is_installed(PROXY).then(|| PROXY_SOCKET.parse().ok()).flatten();
        let engine = self.docker.engine.clone().or(proxy).unwrap_or(Engine::Local);
        let mut settings = vec![
            ("source", "BERTH_SOURCE", format!("etcd:{members}")),
            ("docker", "BERTH_DOCKER", engine.to_string()),
            ("host", "BERTH_HOST", host.host.clone()),
            ("state-dir", "BERTH_STATE_DIR", folder.display().to_string()),
            ("serve-containers", "BERTH_SERVE_CONTAINERS", "true".to_owned()),
        ];
        if host.prefix != etcd::PREFIX {
            settings.push(("etcd-prefix", "BERTH_ETCD_PREFIX", host.prefix.clone()));
        }
        if !plan.invitation.token.authority.is_empty() {
            settings.push(("etcd-ca", "BERTH_ETCD_CA", file(CA)));
        }
        if plan.invitation.identity.is_some() {
            settings.push(("etcd-cert", "BERTH_ETCD_CERT", file(CERT)));
            settings.push(("etcd-key", "BERTH_ETCD_KEY", file(KEY)));
        }
        if let Some(user) = &host.user {
            settings.push(("etcd-user", "BERTH_ETCD_USER", user.clone()));
            settings.push(("etcd-password-file", "BERTH_ETCD_PASSWORD_FILE", file(PASSWORD)));
        }
        if host.scheduler {
            settings.push(("ledger-etcd", "BERTH_SCHEDULER_LEDGER_ETCD", members));
        }
        if let Some(address) = self.public_ip {
            settings.push(("public-ip", "BERTH_PUBLIC_IP", address.to_string()));
        }
        if self.insecure {
            settings.push(("insecure", "BERTH_INSECURE", "true".to_owned()));
        }
        settings
    }

    /// The file of settings as it is to be: lines of others stay.
    fn environment(&self, settings: &[Setting]) -> Result<String, Failure> {
        let before = self.lines_of_settings()?;
        let is_ours = |line: &&str| {
            settings
                .iter()
                .any(|(_, variable, _)| line.split_once('=').is_some_and(|(name, _)| name.trim() == *variable))
        };
        let others = before.lines().filter(|line| !is_ours(line)).map(|line| format!("{line}\n"));
        let mut text = others.collect::<Vec<_>>().concat();
        for (_, variable, value) in settings {
            let _ = writeln!(text, "{variable}={value}");
        }
        Ok(text)
    }

    /// Whether the settings are there already.
    pub(super) fn is_written(&self, settings: &[Setting]) -> bool {
        let text = self.lines_of_settings().unwrap_or_default();
        !on_windows()
            && settings.iter().all(|(_, name, value)| text.lines().any(|line| line == format!("{name}={value}")))
    }

    /// Writes the settings, starts the service, and says what came of it; `before`: the settings were there.
    pub(super) fn start(&self, host: &str, settings: &[Setting], before: bool) -> Result<String, Failure> {
        if on_windows() {
            let argument = |(flag, _, value): &Setting| match *flag {
                "serve-containers" | "insecure" => format!("--{flag}"),
                _ => format!("--{flag}={value}"),
            };
            let installed = service::install_agent(settings.iter().map(argument).map(Into::into).collect())?;
            if self.no_start {
                return Ok(format!("{installed}\n"));
            }
            platform::service::start(service::DEFAULT_NAME)?;
            return Ok(format!("{installed}\n{}", ready(host)));
        }
        self.make_folder_of_settings()?;
        let (path, text) = (self.settings_file(), self.environment(settings)?);
        platform::file::replace_private(&path, text.as_bytes()).map_err(named(&path))?;
        let path = path.display();
        let by_hand = format!("set -a; . {path}; set +a; agent up");
        let mut report = format!("its settings are in {path}\n");
        if !Path::new(SYSTEMD).is_dir() || !is_installed(UNIT) {
            let _ = writeln!(report, "no service of it is installed here; start it with:\n\n  {by_hand}\n");
        } else if self.no_start {
            let _ = writeln!(report, "start it with: systemctl enable --now {UNIT}");
        } else {
            // Restarted where it may run with other settings.
            let again = [&["enable", UNIT][..], &["restart", UNIT]];
            let steps = if before { &[&["enable", "--now", UNIT][..]][..] } else { &again };
            for words in steps {
                let status = Command::new("systemctl").args(*words).status();
                if !status.is_ok_and(|status| status.success()) {
                    return Err(
                        format!("{report}systemctl {} failed; see: journalctl -u {UNIT}", words.join(" ")).into()
                    );
                }
            }
            report += &ready(host);
        }
        Ok(report)
    }
}

/// Whether the service does not run, and is not about to be started again.
pub(super) fn is_stopped() -> bool {
    let state = Command::new("systemctl").args(["show", "--property=ActiveState", "--value", UNIT]).output();
    state.is_ok_and(|state| matches!(state.stdout.trim_ascii(), b"inactive" | b"failed"))
}

/// Whether systemd has a unit of this name.
fn is_installed(unit: &str) -> bool {
    let folders = ["/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system"];
    folders.iter().any(|folder| Path::new(folder).join(format!("{unit}.service")).exists())
}

/// Waits until the agent is ready, and says so.
fn ready(host: &str) -> String {
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORTS[0]));
    let begun = Instant::now();
    let mut last = String::new();
    while begun.elapsed() < READY_LIMIT {
        match get_admin(admin, "/readyz", READY_INTERVAL * 4) {
            Ok((StatusCode::OK, _)) => {
                return format!(
                    "the agent is ready. In a container: wget -qO- http://169.254.169.250/latest/self/host/name prints {host}\n"
                );
            }
            Ok((_, text)) | Err(text) => last = text,
        }
        std::thread::sleep(READY_INTERVAL);
    }
    format!("the agent is not ready after {} s and goes on trying: {last}\n", READY_LIMIT.as_secs())
}
