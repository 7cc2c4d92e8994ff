//! `agent prune`: removes from etcd what dead hosts left.

mod claims;

use std::fmt::Write as _;
use std::process::ExitCode;

use etcd::EtcdClient;
use live::etcd::{Pruned, prune};
use model::printable::printable_json;
use process::Failure;
use serde_json::json;

use crate::enroll::{Operator, Rights, intents, invitation_key, invitations_with_user, now, on_the_way, revoke, void};

/// Remove from etcd what hosts and invitations left that are not there any more
///
/// What hosts publish goes by itself; this is for the rest. Hosts that have joined since they were invited get new
/// passwords on the way; those that have not while their invitations were good cannot sign in any more.
#[derive(clap::Args)]
pub(crate) struct Prune {
    #[command(flatten)]
    operator: Operator,

    /// Only print what would be removed
    #[arg(long)]
    dry_run: bool,

    /// Print JSON instead of lines
    #[arg(long)]
    json: bool,

    /// Remove nothing, but list the subnets of hosts that are not there
    #[arg(long, requires = "older")]
    claims: bool,

    /// Only those that were claimed longer ago than this, such as 30d
    #[arg(long, value_name = "DURATION", value_parser = claims::age, requires = "claims")]
    older: Option<i64>,
}

impl Prune {
    /// Removes and prints; the exit code is 1 when etcd cannot be reached.
    pub(crate) fn run(&self) -> ExitCode {
        if let Some(older) = self.older {
            return self.operator.run(Rights::Operator, async |client| claims::list(&client, older, self.json).await);
        }
        self.operator.run(Rights::Root, async |client| {
            let pruned = prune(&client, self.dry_run).await?;
            let (invitations, voided) = self.invitations(&client).await?;
            let mut text = self.text(&pruned, &invitations, &voided);
            if !self.dry_run && !self.json {
                text += &on_the_way(&client, None).await;
            }
            Ok(text)
        })
    }

    /// The invitations that are over, whose users are removed, and the hosts that have not joined by them, whose passwords are
    /// void; none where this user may not know of users.
    async fn invitations(&self, client: &EtcdClient) -> Result<(Vec<String>, Vec<String>), Failure> {
        let (mut over, mut voided) = (Vec::new(), Vec::new());
        let intents = intents(client).await?;
        for id in invitations_with_user(client).await? {
            if client.get(invitation_key(&id).as_bytes()).await?.0.is_none() {
                if !self.dry_run {
                    revoke(client, &id, true).await?;
                    voided.extend(void(client, &intents, &id, now()).await?);
                }
                over.push(id);
            }
        }
        Ok((over, voided))
    }

    fn text(&self, Pruned { keys, hosts, changed }: &Pruned, invitations: &[String], voided: &[String]) -> String {
        if self.json {
            let keys: Vec<_> = keys.iter().map(|key| json!({ "key": key.key, "reason": key.reason })).collect();
            let report = json!({ "dry_run": self.dry_run, "removed": keys, "hosts": hosts, "changed": changed,
                "invitations": invitations, "voided": voided });
            return printable_json(&format!("{report:#}\n"));
        }
        let what = if self.dry_run { "would be removed" } else { "removed" };
        let mut text = String::new();
        // Writing to a string cannot fail.
        for key in keys {
            let _ = writeln!(text, "{}  ({})", key.key, key.reason);
        }
        let _ = write!(text, "{} keys {what}, {hosts} hosts are there", keys.len());
        if *changed > 0 {
            let _ = write!(text, ", {changed} keys changed meanwhile and were left");
        }
        if !invitations.is_empty() {
            let _ = write!(text, ", {} invitations that are over", invitations.len());
        }
        text.push('\n');
        for host in voided {
            let _ = writeln!(
                text,
                "{host} has not joined while it was invited, and cannot any more; invite it again if it is to"
            );
        }
        text
    }
}
