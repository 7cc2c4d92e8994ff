//! `agent remove`: what etcd has of a host that does not come back.

use std::fmt::Write as _;
use std::process::ExitCode;

use etcd::{LEDGER, Span};
use serde_json::Value;

use super::folder::Rights;
use super::intent;
use super::names::{host_key, host_name, own_spans, revoke, user_of_host};
use super::operator::Operator;
use super::outcome::json;

/// Remove a host from the cluster for good: its user, role and keys in etcd
///
/// Its credentials are void at once, so this is also the answer to an invitation that another machine has used. A host that
/// is active is refused without --now; `agent leave` on the host is the way for one that still works. What runs on the
/// host is not touched. The same name may be invited again.
#[derive(clap::Args)]
pub(crate) struct Remove {
    /// The host
    #[arg(value_parser = host_name)]
    host: String,

    /// Remove it although it is active
    #[arg(long)]
    now: bool,

    #[command(flatten)]
    operator: Operator,
}

impl Remove {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Root, async |client| {
            let (host, prefix) = (&self.host, client.options().prefix.clone());
            if !self.now && client.get(host_key(&prefix, host, "host").as_bytes()).await?.0.is_some() {
                let way = "type `agent leave` there, or give --now";
                return Err(format!("the host {host} is active: {way}").into());
            }
            let mut text = String::new();
            let users = client.has_users().await?;
            let user = user_of_host(host);
            // First, so that nothing is written any more.
            if users && client.delete_user(&user).await? {
                let _ = writeln!(
                    text,
                    "user {user}: its credentials are void; what it watches already ends with its connection"
                );
            }
            let (pair, _) = client.get(intent::key(&prefix, host).as_bytes()).await?;
            let said = pair.as_ref().map(|pair| intent::IntentValue::read(&pair.value)).unwrap_or_default();
            if let Some(id) = said.invited("id")
                && revoke(&client, id, users).await?
            {
                let _ = writeln!(text, "invitation {id}");
            }
            let mut keys = 0;
            for span in own_spans(&prefix, host) {
                keys += client.delete_span(&span).await?;
            }
            if keys > 0 {
                let _ = writeln!(text, "{keys} keys of its own");
            }
            if users && client.delete_role(&user).await? {
                let _ = writeln!(text, "role {user}");
            }
            // Schedulers learn it from the host's absence; a person should know now.
            let placements = Span::of_prefix(format!("{prefix}{LEDGER}placements/").as_bytes());
            for pair in client.list_spans(&[placements], false).await?.pairs {
                if names(&json(&pair.value), host) {
                    let key = String::from_utf8_lossy(&pair.key).into_owned();
                    let _ =
                        writeln!(text, "note: the ledger still has {} there", key.rsplit('/').next().unwrap_or(&key));
                }
            }
            // Last, so that a run that was ended begins with what is left.
            if client.delete(intent::key(&prefix, host).as_bytes()).await? {
                text += "what operators said of it\n";
            }
            if text.is_empty() {
                return Err(format!("etcd has nothing of a host {host}; `agent hosts` lists those that it has").into());
            }
            Ok(format!("removed {host}:\n{text}"))
        })
    }
}

/// Whether a value has this text as the name of a host, at any depth.
fn names(value: &Value, host: &str) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| {
            matches!(&**key, "host" | "host_name") && value.as_str() == Some(host) || names(value, host)
        }),
        Value::Array(items) => items.iter().any(|item| names(item, host)),
        _ => false,
    }
}
