//! `agent join`: makes this machine a host of a cluster.
//!
//! Everything is looked at before anything is written, and all that is wrong is reported at once. What is written comes in an
//! order in which each step can be the last one of a run: the next run goes on there. The invitation is used up when the
//! credentials are on the disk, by one transaction that only one machine can win.

mod invitation;
mod local;
mod settings;

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use etcd::{Compare, EtcdClient, EtcdError, EtcdOptions, Op, Pair, Pem, Secret, Txn, next_password};
use live::config::{DockerOption, Engine, LABEL_FILES};
use live::etcd::Identity;
use live::label_files;
use process::Failure;
use serde_json::{Value, json};
use source::StateDir;

use self::invitation::Invitation;
use super::hosts::used;
use super::intent::change_of_label;
use super::invite::{Opened, opened};
use super::names::{INVITATIONS, host_key, host_name, invitation_key, own_spans, user_of_invitation};
use super::outcome::{finish, json as parsed, named, now, written};
use crate::doctor::{self, on_windows};

/// What is stored of a membership, in the state directory.
const MEMBERSHIP: &str = "join.json";

/// The files of credentials, in the state directory.
const CA: &str = "etcd-ca.pem";
const CERT: &str = "etcd-cert.pem";
const KEY: &str = "etcd-key.pem";
const PASSWORD: &str = "etcd-password";
const LEDGER_KEY: &str = "ledger.key";

/// The file with the labels that were given to `agent join`.
const LABELS: &str = "join.env";

/// Largest invitation that is read, in bytes.
const INVITATION_MAX: u64 = 64 << 10;

/// Where Linux has its settings and its state.
const ENVIRONMENT: &str = "/etc/berth/agent.env";
const STATE: &str = "/var/lib/berth";

/// Within this time an agent that runs writes its keys again after they were deleted.
const REPUBLISHED: Duration = Duration::from_secs(2);

/// Make this machine a host of a cluster, by an invitation that `agent invite` made
///
/// Looks at everything first: the invitation, etcd, the engine, addresses, the files that it writes. If anything is wrong
/// it says all of that and changes nothing. Then it stores the host's credentials, uses the invitation up, writes the
/// settings of the agent and starts its service. Typed again after it was ended at any moment, it goes on.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(crate) struct Join {
    /// The invitation, berth1...; with - it is read from standard input. Other users of this machine can see it on the
    /// command line while this runs: --file or - hides it
    #[arg(value_name = "TOKEN", required_unless_present = "file")]
    token: Option<String>,

    /// The file that `agent invite --out` wrote
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    file: Option<PathBuf>,

    /// Refuse an invitation for another host than this one
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    host: Option<String>,

    /// Address under which other hosts reach this one
    #[arg(long, value_name = "ADDRESS", value_parser = live::config::public_ip)]
    public_ip: Option<IpAddr>,

    /// A label that this host gives itself; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = own_label)]
    label: Vec<(String, String)>,

    #[command(flatten)]
    docker: DockerOption,

    /// Where the credentials and the state of the agent are stored
    /// [default: /var/lib/berth, on Windows C:\ProgramData\Berth\state]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// The settings of the agent that are written, for its service to read; on Windows the service has them itself
    #[arg(long, value_name = "FILE", default_value = ENVIRONMENT)]
    env_file: PathBuf,

    /// Replace another machine that has the name: what it published is deleted. Where etcd has users, the password of that machine
    /// is void since this invitation was made
    #[arg(long)]
    takeover: bool,

    /// Only look, and say what would be done
    #[arg(long)]
    dry_run: bool,

    /// Do everything but start the service
    #[arg(long)]
    no_start: bool,

    /// Let passwords go over plain HTTP to other machines
    #[arg(long)]
    insecure: bool,
}

/// What is known once everything was looked at.
struct Plan {
    invitation: Invitation,
    host: Opened,
    stage: Stage,
    /// Whose place this machine takes.
    replaced: Option<Machine>,
}

/// Another machine that publishes the host.
struct Machine {
    id: String,
    address: String,
}

/// How far an earlier run came.
enum Stage {
    /// The invitation is there to be used.
    Unused(Pair),
    /// This machine has used it.
    Used,
}

impl Join {
    pub(crate) fn run(&self) -> ExitCode {
        finish(self.join())
    }

    fn join(&self) -> Result<String, Failure> {
        let invitation = self.invitation()?;
        self.take_over_state()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let taken = local::taken_addresses();
        let plan = runtime.block_on(self.look(invitation, taken))?;
        let settings = self.settings(&plan);
        let host = &plan.host.host;
        if self.dry_run {
            let mut text = format!("would join as {host}, and write:\n  {}\n", self.state().display());
            if let Some(Machine { id, address }) = &plan.replaced {
                let _ = writeln!(text, "  would delete what machine {id} (address {address}) published");
            }
            if !on_windows() {
                let _ = writeln!(text, "  {}", self.settings_file().display());
            }
            for (_, variable, value) in &settings {
                let _ = writeln!(text, "    {variable}={value}");
            }
            return Ok(text + "nothing was changed\n");
        }
        let before = self.is_written(&settings) && matches!(plan.stage, Stage::Used);
        if let Stage::Unused(pair) = &plan.stage {
            self.make_folder_of_settings()?;
            let identity = self.store(&plan)?;
            let spent = runtime.block_on(async {
                spend(&self.client_of(&plan.invitation)?, &plan.host.host, pair, &identity.machine).await
            });
            if let Err(failure) = spent {
                if failure.downcast_ref::<EtcdError>().is_none() {
                    // Another machine has it, so what was stored is that one's.
                    for name in [PASSWORD, KEY, MEMBERSHIP] {
                        let _ = std::fs::remove_file(self.state().join(name));
                    }
                }
                return Err(failure);
            }
        }
        let mut text =
            if before { format!("this machine is {host} already\n") } else { format!("this machine is {host} now\n") };
        // One that does not publish any more may have left keys without a lease.
        if plan.replaced.is_some() || self.takeover && !before {
            runtime.block_on(self.replace(&plan))?;
        }
        if let Some(Machine { id, address }) = &plan.replaced {
            let _ = writeln!(text, "it has the place of machine {id} (address {address})");
        }
        text += &self.start(host, &settings, before)?;
        if plan.host.user.is_some() && !before {
            // etcd's history still has what the invitation held, for its holder.
            let _ =
                writeln!(text, "once it runs, an operator makes the invitation worthless with: agent rotate {host}");
        }
        Ok(text)
    }

    /// Takes the state directory back from the user that systemd gave the service. Not while the service runs: it could lead
    /// root to other files by links.
    fn take_over_state(&self) -> Result<(), Failure> {
        let folder = self.state();
        if !platform::file::is_of_service(&folder) {
            return Ok(());
        }
        if !settings::is_stopped() {
            return Err(format!(
                "{} belongs to the service berth, which runs; type this again after: systemctl stop berth",
                folder.display()
            )
            .into());
        }
        Ok(platform::file::take_over(&folder)?)
    }

    /// Reads the invitation from wherever it is.
    fn invitation(&self) -> Result<Invitation, Failure> {
        let mut bytes = Vec::new();
        match (&self.file, self.token.as_deref()) {
            (Some(path), _) => {
                let file = platform::file::open_regular(path).map_err(io::Error::from).map_err(named(path))?;
                file.take(INVITATION_MAX).read_to_end(&mut bytes).map_err(named(path))?;
            }
            (None, Some("-")) => drop(io::stdin().take(INVITATION_MAX).read_to_end(&mut bytes)?),
            (None, token) => bytes.extend(token.unwrap_or_default().bytes()),
        }
        Invitation::read(bytes).map_err(|failure| match &self.file {
            Some(path) => format!("{}: {failure}", path.display()).into(),
            None => failure,
        })
    }

    fn options(&self, Invitation { token, identity }: &Invitation) -> EtcdOptions {
        let pem = token.authority_pem().map(|authority| Pem {
            origin: "the invitation".into(),
            authority,
            identity: identity.clone(),
        });
        EtcdOptions { pem, insecure: self.insecure, ..EtcdOptions::new(token.endpoints.clone()) }
    }

    /// A client that may read the invitation, and use it up.
    fn client_of(&self, invitation: &Invitation) -> Result<EtcdClient, Failure> {
        let derived = invitation.token.derived()?;
        Ok(EtcdClient::new(EtcdOptions {
            prefix: INVITATIONS.into(),
            user: Some(user_of_invitation(&invitation.token.id)),
            password: Some(Secret(derived.password)),
            ..self.options(invitation)
        })?)
    }

    /// Looks at everything that has to be right; nothing is written.
    async fn look(&self, invitation: Invitation, taken: Vec<String>) -> Result<Plan, Failure> {
        let mut wrong = Vec::new();
        let machine = self.machine();
        let found = self.open(&invitation, machine.as_deref()).await;
        let mut replaced = None;
        if let Ok((host, _)) = &found {
            if let Some(other) = self.host.as_ref().filter(|other| **other != host.host) {
                wrong.push(format!("--host {other}: the invitation is for {}", host.host));
            }
            match self.publisher(&invitation, host).await {
                Ok(other) => replaced = other.filter(|other| machine.as_deref() != Some(&*other.id)),
                Err(failure) => wrong.push(failure.to_string()),
            }
            if let Some(Machine { id, address }) = replaced.as_ref().filter(|_| !self.takeover) {
                wrong.push(format!(
                    "the name {0} is taken by another machine (machine {id}, address {address}): give --takeover if this \
                     one replaces it; otherwise `agent remove {0} --now` removes it",
                    host.host
                ));
            }
        }
        let engine = self.docker.engine.clone().unwrap_or(Engine::Local);
        if let Some(problem) = doctor::engine_problem(&engine).await {
            wrong.push(problem);
        }
        wrong.extend(taken);
        wrong.extend(self.unwritable());
        match found {
            Ok((host, stage)) if wrong.is_empty() => Ok(Plan { invitation, host, stage, replaced }),
            found => {
                wrong.splice(0..0, found.err().map(|failure| with_the_time(&failure.to_string())));
                Err(match &wrong[..] {
                    [only] => format!("{only}\nnothing was changed"),
                    all => format!("this is in the way:\n  {}\nnothing was changed", all.join("\n  ")),
                }
                .into())
            }
        }
    }

    /// Opens the invitation, or recognises one that this machine has used.
    async fn open(&self, invitation: &Invitation, machine: Option<&str>) -> Result<(Opened, Stage), Failure> {
        let id = &invitation.token.id;
        let derived = invitation.token.derived()?;
        let client = self.client_of(invitation)?;
        let key = invitation_key(id);
        let own = || self.membership(id).map(|host| (host, Stage::Used));
        let pair = match client.get(key.as_bytes()).await {
            Ok((pair, _)) => pair,
            // Its user goes with it.
            Err(EtcdError::Refused(problem)) if problem.contains("authentication failed") => None,
            Err(error) => return Err(error.into()),
        };
        let Some(pair) = pair else {
            return own().ok_or_else(|| {
                format!("the invitation {id} is not there any more: it expired, or was taken back; ask for another one")
                    .into()
            });
        };
        let value = parsed(&pair.value);
        if let Some(by) = value["used"]["by"].as_str() {
            if machine == Some(by)
                && let Some(own) = own()
            {
                return Ok(own);
            }
            let (at, host) = (value["used"]["at"].as_str().unwrap_or("?"), value["host"].as_str().unwrap_or("HOST"));
            return Err(was_used(id, host, at, by));
        }
        let sealed = value["sealed"].as_str().and_then(|sealed| URL_SAFE_NO_PAD.decode(sealed).ok());
        let plain = sealed.and_then(|sealed| derived.key.open(&key, &sealed).ok());
        let host = plain.and_then(|plain| opened(&parsed(&plain)));
        let host = host.ok_or_else(|| format!("what etcd has of the invitation {id} was changed by others"))?;
        Ok((host, Stage::Unused(pair)))
    }

    /// A client that signs in as the host.
    fn client_of_host(&self, invitation: &Invitation, host: &Opened) -> Result<EtcdClient, Failure> {
        let file = host.password.is_none().then(|| self.state().join(PASSWORD));
        Ok(EtcdClient::new(EtcdOptions {
            prefix: host.prefix.as_str().into(),
            user: host.user.clone(),
            password: host.password.clone(),
            password_file: file.filter(|_| host.user.is_some()),
            ..self.options(invitation)
        })?)
    }

    /// The machine that publishes the host, if one does. Fails if the host's user cannot sign in.
    async fn publisher(&self, invitation: &Invitation, host: &Opened) -> Result<Option<Machine>, Failure> {
        let client = self.client_of_host(invitation, host)?;
        let (pair, _) = client.get(host_key(&host.prefix, &host.host, "host").as_bytes()).await?;
        let value = pair.map(|pair| parsed(&pair.value)).unwrap_or_default();
        let address = value["agent_ip"].as_str().unwrap_or("unknown").to_owned();
        Ok(value["published"]["by"].as_str().map(|id| Machine { id: id.to_owned(), address }))
    }

    /// Deletes what another machine published under the name of this one. Its subnet stays the host's: that is for
    /// operators to say.
    async fn replace(&self, plan: &Plan) -> Result<(), Failure> {
        let Plan { invitation, host, .. } = plan;
        let client = self.client_of_host(invitation, host)?;
        for span in own_spans(&host.prefix, &host.host) {
            client.delete_span(&span).await?;
        }
        if host.user.is_none() {
            // Without users it may still write, and does so at once if it runs.
            tokio::time::sleep(REPUBLISHED).await;
            if let Some(Machine { id, address }) = self.publisher(invitation, host).await? {
                return Err(format!(
                    "machine {id} (address {address}) publishes the name {} again: stop its agent, and type this again",
                    host.host
                )
                .into());
            }
        }
        Ok(())
    }

    /// The state directory, if it is there; looking makes none.
    fn known_state(&self) -> Option<StateDir> {
        let folder = self.state();
        folder.is_dir().then(|| StateDir::open(folder).ok())?
    }

    /// The identity of this machine, if it has one.
    fn machine(&self) -> Option<String> {
        Identity::known(&self.known_state()?).map(|machine| machine.to_string())
    }

    /// What an earlier run with this invitation has stored.
    fn membership(&self, id: &str) -> Option<Opened> {
        let value: Value = serde_json::from_slice(&self.known_state()?.load_contents(MEMBERSHIP)?).ok()?;
        (value["id"] == id).then(|| opened(&value))?
    }

    /// Stores the credentials of the host; the invitation is not used up before they are on the disk.
    fn store(&self, plan: &Plan) -> Result<Identity, Failure> {
        let (folder, host) = (self.state(), &plan.host);
        let state = StateDir::open(folder.clone()).map_err(named(&folder))?;
        let identity = Identity::open(Some(&state))?;
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            platform::file::replace_private(&path, text.as_bytes()).map(drop).map_err(named(&path))
        };
        if let Some(authority) = plan.invitation.token.authority_pem() {
            write(CA, &authority)?;
        }
        if let Some((certificate, Secret(key))) = &plan.invitation.identity {
            write(CERT, certificate)?;
            write(KEY, key)?;
        }
        if let Some(Secret(password)) = &host.password {
            // One of an earlier membership is void.
            let _ = std::fs::remove_file(next_password(&folder.join(PASSWORD)));
            write(PASSWORD, &format!("{password}\n"))?;
        }
        if let Some(Secret(key)) = &host.ledger_key {
            write(LEDGER_KEY, key)?;
        }
        if !self.label.is_empty() {
            let within = folder.join(LABEL_FILES);
            platform::file::create_private_folder(&within).map_err(named(&within))?;
            let lines: String = self.label.iter().map(|(key, value)| label_files::line(key, value)).collect();
            write(&format!("{LABEL_FILES}/{LABELS}"), &lines)?;
        }
        let membership = json!({
            "id": plan.invitation.token.id, "host": host.host, "prefix": host.prefix, "user": host.user,
            "scheduler": host.scheduler,
        });
        state.save_contents(MEMBERSHIP, &serde_json::to_vec(&membership)?).map_err(named(&folder))?;
        Ok(identity)
    }
}

/// Uses the invitation up, unless another machine was faster.
async fn spend(client: &EtcdClient, host: &str, pair: &Pair, machine: &str) -> Result<(), Failure> {
    let key = pair.key.clone();
    // What it held is gone with this; a later joiner can read who used it for as long as the invitation would have been there.
    let put = Op::Put { key: key.clone(), value: serde_json::to_vec(&used(host, machine))?, lease: pair.lease };
    let compare = vec![Compare::unchanged(key.clone(), pair.mod_revision)];
    let outcome = client.txn(Txn { compare, success: vec![put], failure: Vec::new() }).await;
    match outcome {
        Ok(outcome) if outcome.succeeded => return Ok(()),
        // It may have been done all the same: the key says who did it.
        Ok(_) | Err(EtcdError::Lost(_)) => {}
        Err(EtcdError::LeaseGone) => return Err("the invitation expired in this moment; ask for another one".into()),
        Err(error) => return Err(error.into()),
    }
    let value = client.get(&key).await?.0.map(|pair| parsed(&pair.value)).unwrap_or_default();
    let id = String::from_utf8_lossy(&key[INVITATIONS.len().min(key.len())..]).into_owned();
    match value["used"]["by"].as_str() {
        Some(by) if by == machine => Ok(()),
        Some(by) => Err(was_used(&id, host, value["used"]["at"].as_str().unwrap_or("?"), by)),
        None if value["sealed"].is_string() => Err("etcd did not answer in time; type this again".into()),
        None => Err(format!("the invitation {id} was taken back in this moment; ask for another one").into()),
    }
}

fn was_used(id: &str, host: &str, at: &str, by: &str) -> Failure {
    format!(
        "the invitation {id} was used at {at} by another machine ({by}). If that was not you, its credentials are in wrong \
         hands: `agent remove {host} --now`, then invite it again"
    )
    .into()
}

/// A problem; with the time of this machine if a certificate is not good at that time.
fn with_the_time(problem: &str) -> String {
    if problem.contains("not valid yet") || problem.contains("expired:") {
        return format!("{problem}; it is {} by this machine's clock: set it first if that is wrong", written(now()));
    }
    problem.to_owned()
}

fn own_label(text: &str) -> Result<(String, String), String> {
    let label = change_of_label(text).ok().and_then(|(key, value)| Some((key, value?)));
    label.ok_or_else(|| "expected KEY=VALUE".to_owned())
}
