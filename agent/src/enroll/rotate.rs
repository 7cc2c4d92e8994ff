//! `agent rotate`: a new password for a host, which the host alone learns; and the agent's side of it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use etcd::{EtcdArgs, EtcdClient, next_password};
use live::etcd::PasswordExchange;
use model::Text;
use process::Failure;
use serde_json::{Value, json};

use super::folder::Rights;
use super::intent;
use super::names::{host_key, host_name, revoke, user_of_host};
use super::operator::Operator;
use super::outcome::{json as parsed, now, written};
use super::seal::{Exchange, SealError, password};

/// Longest wait for an agent to take its password: it looks at its keys within a tenth of a second.
const LIMIT: Duration = Duration::from_secs(15);

/// The same when other hosts wait for it.
const LIMIT_ON_THE_WAY: Duration = Duration::from_secs(3);

/// How often it is looked whether the agent took it.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How long a password that no agent takes stays in etcd.
const LEASE: Duration = Duration::from_mins(1);

/// Give hosts new passwords for etcd
///
/// Each running agent gets its password sealed for it alone and goes on with it; nothing is restarted. From then on an
/// invitation of the host is worth nothing to anyone who has read it. `agent invite` and `agent prune` do this for hosts that have
/// joined since.
#[derive(clap::Args)]
pub(crate) struct Rotate {
    /// The hosts
    #[arg(value_parser = host_name, required_unless_present = "all")]
    hosts: Vec<String>,

    /// All hosts that are active and have joined by an invitation
    #[arg(long, conflicts_with = "hosts")]
    all: bool,

    #[command(flatten)]
    operator: Operator,
}

impl Rotate {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Root, async |client| {
            let hosts = if self.all { with_a_key(&client).await? } else { self.hosts.clone() };
            let (mut text, mut failures) = (String::new(), Vec::new());
            for host in &hosts {
                match rotate(&client, host, LIMIT).await {
                    Ok(()) => drop(writeln!(text, "{host} has a new password")),
                    Err(failure) => failures.push(failure.to_string()),
                }
            }
            if failures.is_empty() {
                return Ok(text);
            }
            Err(format!("{text}{}", failures.join("\n")).into())
        })
    }
}

/// The public key for the next password of a host.
fn exchange_of(host: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(parsed(host)["published"]["exchange"].as_str()?).ok()
}

/// The active hosts that can get a new password.
async fn with_a_key(client: &EtcdClient) -> Result<Vec<String>, Failure> {
    let prefix = format!("{}hosts/", client.options().prefix);
    let pairs = client.list(prefix.as_bytes(), false).await?.pairs;
    let host = |pair: &etcd::Pair| {
        let key = std::str::from_utf8(&pair.key).ok()?.strip_prefix(&prefix)?.strip_suffix("/host")?.to_owned();
        exchange_of(&pair.value).map(|_| key)
    };
    Ok(pairs.iter().filter_map(host).collect())
}

/// Gives a host a new password: first the agent stores it beside the present one and says so, then etcd asks for it. So
/// the agent has the right one whatever ends in between.
pub(crate) async fn rotate(client: &EtcdClient, host: &str, limit: Duration) -> Result<(), Failure> {
    let prefix = client.options().prefix.clone();
    let (pair, _) = client.get(host_key(&prefix, host, "host").as_bytes()).await?;
    let value = pair.ok_or_else(|| format!("{host}: it is not there now; start its agent, or invite it again"))?.value;
    let theirs = exchange_of(&value)
        .ok_or_else(|| format!("{host}: its agent signs in without a password of its own; invite it (--again)"))?;
    let user = user_of_host(host);
    if !client.has_user(&user).await? {
        return Err(format!("{host}: etcd has no user {user}; invite it (--again)").into());
    }
    let (password, exchange) = (password()?, Exchange::new()?);
    let public = URL_SAFE_NO_PAD.encode(exchange.public());
    let key = host_key(&prefix, host, "password");
    let sealed = exchange.with_host(&theirs)?.seal(&key, password.as_bytes())?;
    let value = json!({ "key": public, "sealed": URL_SAFE_NO_PAD.encode(sealed) });
    let lease = client.grant(LEASE).await?;
    client.put(key.as_bytes(), &serde_json::to_vec(&value)?, lease).await?;
    let taken = async {
        while client.get(key.as_bytes()).await?.0.is_some() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok::<_, Failure>(())
    };
    if let Ok(taken) = tokio::time::timeout(limit, taken).await {
        taken?;
    } else {
        client.delete(key.as_bytes()).await?;
        let limit = limit.as_secs();
        return Err(format!("{host}: its agent did not take a new password within {limit} s; its log says why").into());
    }
    client.put_user(&user, &password).await?;
    let said = intent::change(client, host, |intent| drop(intent.0.insert("rotated".into(), written(now()).into())));
    if let Some(id) = said.await?.invited("id") {
        // It was used, but its holder can still read what it held out of etcd's history.
        revoke(client, id, true).await?;
    }
    Ok(())
}

/// Gives those hosts new passwords that have joined since they were invited; failures are reported, and tried again
/// with the next command.
pub(crate) async fn on_the_way(client: &EtcdClient, except: Option<&str>) -> String {
    let mut text = String::new();
    for (host, said) in intent::all(client).await.unwrap_or_default() {
        if said.invited("id").is_none() || said.rotated().is_some() || Some(&*host) == except {
            continue;
        }
        let key = host_key(&client.options().prefix, &host, "host");
        if !matches!(client.get(key.as_bytes()).await, Ok((Some(pair), _)) if exchange_of(&pair.value).is_some()) {
            continue;
        }
        match rotate(client, &host, LIMIT_ON_THE_WAY).await {
            Ok(()) => drop(writeln!(text, "{host} has joined since, and has a new password")),
            Err(failure) => drop(writeln!(text, "note: {failure}")),
        }
    }
    text
}

/// The agent's side: takes passwords that are sealed for it.
#[derive(Debug)]
pub(crate) struct HostExchange {
    /// Where the password of the present is.
    file: PathBuf,
    current: Mutex<Current>,
}

struct Current {
    key: Text,
    exchange: Option<Exchange>,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Current {
    fn new() -> Result<Self, SealError> {
        let exchange = Exchange::new()?;
        Ok(Self { key: URL_SAFE_NO_PAD.encode(exchange.public()).into(), exchange: Some(exchange) })
    }
}

impl HostExchange {
    /// That of a host with a password in a file; `None` for others, and where the system gives no random numbers.
    pub(crate) fn of(options: &EtcdArgs) -> Option<Self> {
        let file = options.password_file.clone()?;
        Some(Self { file, current: Mutex::new(Current::new().ok()?) })
    }
}

impl PasswordExchange for HostExchange {
    fn key(&self) -> Text {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).key.clone()
    }

    fn store(&self, key: &str, value: &[u8]) -> Result<(), String> {
        // Good for one password, whether it can be read or not.
        let next = Current::new().map_err(|_| "the system gives no random numbers".to_owned())?;
        let current = std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), next);
        let value: Value = parsed(value);
        let bytes = |field: &str| URL_SAFE_NO_PAD.decode(value[field].as_str()?).ok();
        let opened = || {
            let (theirs, sealed) = (bytes("key")?, bytes("sealed")?);
            current.exchange?.with_operator(&theirs).ok()?.open(key, &sealed).ok()
        };
        let password = opened().ok_or("it was not sealed for this run of the agent")?;
        let path = next_password(&self.file);
        let stored = platform::file::replace_private(&path, &password);
        stored.map(drop).map_err(|error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_taken_once_and_by_its_host_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("etcd-password");
        let host = || {
            HostExchange::of(&EtcdArgs {
                user: Some("a".into()),
                password_file: Some(file.clone()),
                ..EtcdArgs::default()
            })
        };
        let (host, other) = (host().unwrap(), host().unwrap());
        let theirs = URL_SAFE_NO_PAD.decode(&*host.key()).unwrap();
        let operator = Exchange::new().unwrap();
        let public = URL_SAFE_NO_PAD.encode(operator.public());
        let sealed = operator.with_host(&theirs).unwrap().seal("/k", b"new").unwrap();
        let value = json!({"key": public, "sealed": URL_SAFE_NO_PAD.encode(sealed)}).to_string();
        assert!(other.store("/k", value.as_bytes()).is_err() && !next_password(&file).exists());
        assert_eq!(host.store("/k", value.as_bytes()), Ok(()));
        assert_eq!(std::fs::read(next_password(&file)).unwrap(), b"new");
        assert!(host.store("/k", value.as_bytes()).is_err(), "its key has changed");
        assert!(host.store("/k", b"{}").is_err());
    }
}
