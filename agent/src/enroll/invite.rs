//! `agent invite`: everything that a host needs to join, made in advance by an operator.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::ValueEnum;
use etcd::{EtcdClient, LEDGER, Secret};
use network::config::Allocate;
use network::registry;
use process::Failure;
use serde_json::{Value, json};

use super::folder::{self, Rights};
use super::host_list::{self, LIST_MAX, Listed};
use super::intent::IntentValue;
use super::names::{
    NewUser, add_users, each, host_key, host_name, invitation_key, new_host, new_joiner, revoke, user_of_host, void,
};
use super::operator::Operator;
use super::outcome::{author, json as parsed, named, now, seconds, written};
use super::script::{Script, ScriptOptions};
use super::token::{AUTHORITY_MAX, Token, fingerprint};
use super::{hosts, intent, rotate};

/// Shortest and longest life of an invitation, in seconds. etcd itself grants no lease of less than a few.
const TTL: (u64, u64) = (5, 7 * 86_400);

/// How often the progress of a long list is printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

const WITHOUT_USERS: &str = "note: this etcd has no users, so that every client may read and write everything; an \
                             invitation has no password\n";

/// Let a host join: makes its user and role in etcd and prints an invitation, good for one use
///
/// The invitation is a secret until it was used. It holds the certificates of etcd's authority, so the host trusts no
/// other etcd from its first connection on. etcd never sees the secret, and cannot read what it stores for the host. The
/// host's role lets it read everything under the prefix and write its own keys alone.
#[derive(clap::Args)]
pub(crate) struct Invite {
    /// Name of the host, which no other host may have
    #[arg(value_parser = host_name, required_unless_present_any = ["revoke", "file"])]
    host: Option<String>,

    /// Invite all hosts of this list, into the folder of --out
    ///
    /// Each line is NAME[,KEY=VALUE...]; the folder gets a file NAME.invitation for each, with --script a script. Hosts that have one or have joined
    /// are left alone, so it may be typed again.
    #[arg(long, value_name = "FILE", requires = "out", conflicts_with_all = ["host", "revoke"])]
    file: Option<PathBuf>,

    /// How long the invitation is good: 90s, 30m, 1h, 2d
    #[arg(long, default_value = "1h", value_parser = duration)]
    ttl: Duration,

    /// What the host may be; a scheduler also writes the ledger and gets its key
    #[arg(long, value_enum, value_delimiter = ',', default_value = "host")]
    role: Vec<Role>,

    /// A label that operators give the host, as `agent label` does; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = given_label)]
    label: Vec<(String, Option<String>)>,

    /// Write the invitation to this file, which only its owner may read, instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    #[command(flatten)]
    script: ScriptOptions,

    /// The ledger's key for a scheduler [default: ledger.key in the cluster's folder, made if the ledger has none]
    #[arg(long, value_name = "FILE")]
    ledger_key: Option<PathBuf>,

    /// Invite a host although one of this name is active: its present password stops working
    #[arg(long)]
    again: bool,

    /// Take an invitation back instead
    #[arg(long, value_name = "ID", conflicts_with_all = ["host", "file", "out", "again", "label", "script"])]
    revoke: Option<String>,

    #[command(flatten)]
    operator: Operator,
}

/// What a host may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Publishes itself and follows the others
    Host,
    /// Places on all hosts, too
    Scheduler,
}

/// What all invitations of one command have in common.
struct Common {
    /// Whether etcd has users.
    users: bool,
    /// The certificates of etcd's authority, DER.
    authority: Vec<Vec<u8>>,
    ledger_key: Option<Secret>,
    /// Whether there is a network whose subnets operators give.
    gives_subnets: bool,
    /// What is made of an invitation, if not a file of its own.
    script: Option<Script>,
}

/// A host that is being invited.
struct Guest {
    host: String,
    labels: Vec<(String, Option<String>)>,
    /// Where its invitation is written.
    path: Option<PathBuf>,
    token: Token,
    /// That of its user.
    password: String,
    /// How long the invitation is good, and since when that counts.
    until: String,
    begun: Instant,
}

impl Invite {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Root, async |client| match (&self.revoke, &self.file, &self.host) {
            (Some(id), ..) => take_back(&client, id).await,
            (None, Some(list), _) => self.invite_all(&client, list).await,
            (None, None, Some(host)) => self.invite_one(&client, host).await,
            (None, None, None) => Err("name the host".into()),
        })
    }

    async fn invite_one(&self, client: &EtcdClient, host: &str) -> Result<String, Failure> {
        let common = self.common(client).await?;
        if !self.again && is_active(client, host).await? {
            return Err(format!(
                "the host {host} is active: `agent rotate {host}` gives it a new password, `agent remove {host} --now` \
                 removes it; with --again it is invited all the same, and locked out until it has joined again"
            )
            .into());
        }
        let guest = self.guest(client, &common, host, self.label.clone(), self.out.clone())?;
        self.invite(client, &common, std::slice::from_ref(&guest), |_, _, _| {}).await?;
        let mut text = report(&common, &guest);
        if common.users {
            text += &rotate::on_the_way(client, Some(host)).await;
        } else {
            text += WITHOUT_USERS;
        }
        Ok(text)
    }

    /// Invites the hosts of a list.
    async fn invite_all(&self, client: &EtcdClient, list: &Path) -> Result<String, Failure> {
        let folder = self.out.as_deref().ok_or("name the folder for the invitations: --out DIR")?;
        let mut text = String::new();
        let file = platform::file::open_regular(list).map_err(io::Error::from).map_err(named(list))?;
        if file.take(LIST_MAX).read_to_string(&mut text).map_err(named(list))? as u64 == LIST_MAX {
            return Err(format!("{}: it has {LIST_MAX} bytes or more: divide it", list.display()).into());
        }
        let listed = host_list::read(&text).map_err(|wrong| format!("{}: {wrong}", list.display()))?;
        let common = self.common(client).await?;
        platform::file::create_private_folder(folder).map_err(named(folder))?;
        let states = hosts::presences(client).await?;
        let ending = common.script.as_ref().map_or("invitation", Script::ending);
        let name = format!("NAME.{ending}");
        let (mut chosen, mut left_alone) = (Vec::new(), Vec::new());
        for Listed { host, labels } in &listed {
            let path = folder.join(format!("{host}.{ending}"));
            let reason = match states.get(host) {
                _ if self.again => None,
                Some((state @ ("active" | "gone"), _)) => Some(*state),
                Some((state @ "invited", id)) if *id == id_in(&path)? => Some(*state),
                _ => None,
            };
            if let Some(reason) = reason {
                left_alone.push(format!("{host} ({reason})"));
                continue;
            }
            let labels: Vec<_> = self.label.iter().chain(labels).cloned().collect();
            chosen.push(self.guest(client, &common, host, labels, Some(path))?);
        }
        let invited = chosen.len();
        let printed = Cell::new(Instant::now());
        let progress = |what: &str, count: usize, all: usize| {
            if printed.get().elapsed() >= PROGRESS_INTERVAL {
                let _ = writeln!(io::stderr(), "{what}: {count} of {all}");
                printed.set(Instant::now());
            }
        };
        let made = self.invite(client, &common, &chosen, progress).await;
        made.map_err(|failure| format!("{failure}\nwhat was done stays; type it again"))?;
        let mut text = format!("invited {invited} of {} hosts", listed.len());
        if !left_alone.is_empty() {
            let _ = write!(text, "; left alone: {}", left_alone.join(", "));
        }
        let _ = writeln!(
            text,
            "\ntake each file in {} to its host, and type there, as root or administrator: {}",
            folder.display(),
            to_type(common.script.as_ref(), &name)
        );
        if common.users {
            text += &rotate::on_the_way(client, None).await;
        } else {
            text += WITHOUT_USERS;
        }
        Ok(text)
    }

    async fn common(&self, client: &EtcdClient) -> Result<Common, Failure> {
        let authority = match &client.options().ca {
            Some(path) => tls::certificates_of_pem(path, &std::fs::read_to_string(path).map_err(named(path))?)?,
            None => Vec::new(),
        };
        let authority: Vec<Vec<u8>> = authority.into_iter().map(|der| der.to_vec()).collect();
        if authority.iter().map(Vec::len).sum::<usize>() > AUTHORITY_MAX {
            return Err(format!(
                "the certificates of etcd's authority have more than {AUTHORITY_MAX} bytes: give --etcd-ca a file with \
                 those alone that signed the members' certificates"
            )
            .into());
        }
        let users = client.has_users().await?;
        let scheduler = self.role.contains(&Role::Scheduler);
        let ledger_key = if scheduler { Some(self.ledger_key(client).await?) } else { None };
        let network = registry::Listed::read(client).await?;
        let gives_subnets = network.config().is_ok_and(|config| config.allocate == Allocate::Invited);
        Ok(Common { users, authority, ledger_key, gives_subnets, script: self.script.script()? })
    }

    /// Makes the invitations of hosts, each in its file if there is one, and says how far it is.
    ///
    /// In steps for all of them, each of which finds what an earlier run has done: an etcd with thousands of users takes
    /// long for each change of one ([`add_users`]). Files come last, so a host whose file is there is invited.
    async fn invite(
        &self,
        client: &EtcdClient,
        common: &Common,
        guests: &[Guest],
        progress: impl Fn(&str, usize, usize),
    ) -> Result<(), Failure> {
        let Common { users, .. } = common;
        let prefix = client.options().prefix.clone();
        let scheduler = self.role.contains(&Role::Scheduler);
        let before =
            each(guests, async |guest| announce(client, guest).await, |count| progress("hosts", count, guests.len()))
                .await?;
        if common.gives_subnets {
            for guest in guests {
                registry::give(client, &guest.host, &written(now()), now()).await?;
            }
        }
        if *users {
            let new = |guest: &Guest| -> Result<[NewUser; 2], Failure> {
                let joiner = new_joiner(&guest.token.id, &guest.token.derived()?.password);
                Ok([new_host(&prefix, &guest.host, scheduler, &guest.password), joiner])
            };
            let new = guests.iter().map(new).collect::<Result<Vec<_>, _>>()?;
            add_users(client, new.into_iter().flatten().collect(), &progress).await?;
        }
        let earlier: Vec<_> = guests.iter().zip(before).collect();
        let hand_out = async |(guest, before): &(&Guest, Option<String>)| -> Result<(), Failure> {
            self.hand_out(client, common, guest).await?;
            match before {
                Some(before) if *before != guest.token.id => drop(revoke(client, before, *users).await?),
                _ => {}
            }
            Ok(())
        };
        each(&earlier, hand_out, |count| progress("invitations", count, guests.len())).await?;
        Ok(())
    }

    /// A host that is to be invited, with a secret of its own.
    fn guest(
        &self,
        client: &EtcdClient,
        common: &Common,
        host: &str,
        labels: Vec<(String, Option<String>)>,
        path: Option<PathBuf>,
    ) -> Result<Guest, Failure> {
        Ok(Guest {
            host: host.to_owned(),
            labels,
            path,
            token: Token::new(common.authority.clone(), client.options().endpoints.clone())?,
            password: super::seal::password()?,
            until: written(now() + i64::try_from(self.ttl.as_secs())?),
            begun: Instant::now(),
        })
    }

    /// Puts the invitation into etcd, for as long as it is good, and into its file.
    async fn hand_out(&self, client: &EtcdClient, common: &Common, guest: &Guest) -> Result<(), Failure> {
        let Guest { host, token, password, .. } = guest;
        let Common { users, ledger_key, .. } = common;
        let key = invitation_key(&token.id);
        let sealed = json!({
            "host": host, "prefix": &*client.options().prefix, "user": users.then(|| user_of_host(host)),
            "password": users.then_some(password), "scheduler": self.role.contains(&Role::Scheduler),
            "ledger_key": ledger_key.as_ref().map(|Secret(key)| key),
        });
        let sealed = token.derived()?.key.seal(&key, &serde_json::to_vec(&sealed)?)?;
        let left = self.ttl.saturating_sub(Duration::from_secs(guest.begun.elapsed().as_secs()));
        if left.is_zero() {
            return Err("inviting took so long that the invitations have expired: give a longer --ttl".into());
        }
        let lease = client.grant(left).await?;
        let value = json!({ "host": host, "sealed": URL_SAFE_NO_PAD.encode(sealed) });
        client.put(key.as_bytes(), &serde_json::to_vec(&value)?, lease).await?;
        guest.path.as_deref().map_or(Ok(()), |path| self.write(common, path, guest))
    }

    /// Writes an invitation to its file, with a certificate for the host where this command can make one.
    fn write(&self, common: &Common, path: &Path, guest: &Guest) -> Result<(), Failure> {
        let Guest { host, token, until, .. } = guest;
        let Secret(line) = token.text();
        let mut contents = format!("# an invitation of Berth for {host}, good for one use until {until}\n{line}\n");
        if let Some(folder) = self.operator.cluster() {
            contents += &folder::client_certificate(folder, host)?;
        }
        if let Some(script) = &common.script {
            contents = script.text(host, until, &contents);
        }
        platform::file::replace_private(path, contents.as_bytes()).map(drop).map_err(named(path))
    }

    /// The key of the schedulers' ledger.
    async fn ledger_key(&self, client: &EtcdClient) -> Result<Secret, Failure> {
        let usual = || self.operator.cluster().map(|folder| folder.join("ledger.key"));
        let path = self.ledger_key.clone().or_else(usual).ok_or(
            "a scheduler needs the ledger's key: give --ledger-key FILE, a copy of ledger.key in the state directory of \
             another scheduler",
        )?;
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Secret(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = format!("{}{}key", client.options().prefix, LEDGER);
                if client.get(name.as_bytes()).await?.0.is_some() {
                    return Err(format!(
                        "the ledger has a key, and {} is not there: copy ledger.key from the state directory of a \
                         scheduler",
                        path.display()
                    )
                    .into());
                }
                let text = model::hex(&super::seal::random::<32>()?);
                platform::file::create_new_private(&path, text.as_bytes()).map_err(named(&path))?;
                Ok(Secret(text))
            }
            Err(error) => Err(named(&path)(error)),
        }
    }
}

/// What is printed of an invitation.
fn report(common: &Common, Guest { host, token, until, path, .. }: &Guest) -> String {
    let mut text = format!("{host} is invited until {until} (invitation {})\n", token.id);
    if let Some(path) = path {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let _ = write!(
            text,
            "take {} to {host}, and type there, as root or administrator:\n\n  {}\n\n",
            path.display(),
            to_type(common.script.as_ref(), &file)
        );
    } else {
        let Secret(line) = token.text();
        let _ = write!(text, "type on {host}, as root or administrator:\n\n  agent join {line}\n\n");
    }
    if let Some(der) = token.authority.first() {
        let _ = writeln!(text, "authority of etcd  SHA-256 {}", fingerprint(der));
    }
    text
}

/// Writes in the host's intent that it is invited; returns the name of the invitation before.
async fn announce(client: &EtcdClient, guest: &Guest) -> Result<Option<String>, Failure> {
    let Guest { host, labels, token, until, .. } = guest;
    let invited = json!({ "id": token.id, "at": written(now()), "until": until, "by": author() });
    let key = intent::key(&client.options().prefix, host);
    let earlier = client.get(key.as_bytes()).await?.0;
    let before = earlier.and_then(|pair| IntentValue::read(&pair.value).invited("id").map(str::to_owned));
    let change = |intent: &mut IntentValue| {
        intent.label(labels);
        intent.0.insert("invited".into(), invited.clone());
        intent.0.remove("rotated");
    };
    intent::change(client, host, change).await?;
    Ok(before)
}

/// What is typed on the host, where its file is.
fn to_type(script: Option<&Script>, file: &str) -> String {
    script.map_or_else(|| format!("agent join --file {file}"), |script| script.line(file))
}

/// Whether a host of this name publishes itself.
async fn is_active(client: &EtcdClient, host: &str) -> Result<bool, Failure> {
    Ok(client.get(host_key(&client.options().prefix, host, "host").as_bytes()).await?.0.is_some())
}

/// The name of the invitation in a file, if it is there.
fn id_in(path: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(path) {
        // It stands in the midst of a script.
        Ok(text) => Ok(text.lines().find_map(|line| line.trim().parse::<Token>().ok()).map(|token| token.id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(path)(error)),
    }
}

/// Takes an invitation back. A host that has joined by it stays.
async fn take_back(client: &EtcdClient, id: &str) -> Result<String, Failure> {
    let users = client.has_users().await?;
    let is_used =
        client.get(invitation_key(id).as_bytes()).await?.0.is_some_and(|pair| !parsed(&pair.value)["used"].is_null());
    if revoke(client, id, users).await? {
        let mut text = format!("the invitation {id} is void\n");
        if users
            && !is_used
            && let Some(host) = void(client, &intent::all(client).await?, id, i64::MAX).await?
        {
            let _ = writeln!(text, "so is the password of {host}, which has not joined; invite it again if it is to");
        }
        Ok(text)
    } else {
        Err(format!("there is no invitation {id}; `agent invites` lists them").into())
    }
}

/// How long an invitation is good.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected a number of s, m, h or d, such as 1h, from {} s to {} d", TTL.0, TTL.1 / 86_400);
    let seconds = seconds(text).filter(|seconds| (TTL.0..=TTL.1).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

fn given_label(text: &str) -> Result<(String, Option<String>), String> {
    intent::change_of_label(text)
        .ok()
        .filter(|(_, value)| value.is_some())
        .ok_or_else(|| "expected KEY=VALUE".to_owned())
}

/// What an invitation says once it is open.
pub(crate) fn opened(value: &Value) -> Option<Opened> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    Some(Opened {
        host: text("host")?,
        prefix: text("prefix")?,
        user: text("user"),
        password: text("password").map(Secret),
        scheduler: value["scheduler"] == true,
        ledger_key: text("ledger_key").map(Secret),
    })
}

/// An open invitation.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) host: String,
    pub(crate) prefix: String,
    /// The user of the host, where etcd has users.
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) scheduler: bool,
    pub(crate) ledger_key: Option<Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_have_a_unit() {
        for (text, seconds) in
            [("90s", Some(90)), ("30m", Some(1800)), ("2d", Some(172_800)), ("1", None), ("1s", None), ("8d", None)]
        {
            assert_eq!(duration(text).ok().map(|time| time.as_secs()), seconds, "{text}");
        }
    }
}
