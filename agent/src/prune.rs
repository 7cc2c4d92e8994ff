//! `agent prune`: removes from etcd what dead hosts left.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use etcd::{Endpoint, EtcdClient};
use live::config::Etcd;
use live::etcd::{Pruned, prune};
use process::launch::CANNOT_RUN;
use serde_json::json;

/// Remove from etcd what hosts left that are not there any more (what they publish goes by itself; this is for the rest)
#[derive(clap::Args)]
pub(crate) struct Prune {
    /// Members of etcd
    #[arg(long = "etcd", value_name = "URL", env = "BERTH_ETCD", value_delimiter = ',', required = true)]
    members: Vec<Endpoint>,

    #[command(flatten)]
    etcd: Etcd,

    /// Only print what would be removed
    #[arg(long)]
    dry_run: bool,

    /// Print JSON instead of lines
    #[arg(long)]
    json: bool,
}

impl Prune {
    /// Removes and prints; the exit code is 1 when etcd cannot be reached.
    pub(crate) fn run(&self) -> ExitCode {
        let written = match self.prune() {
            Ok(pruned) => io::stdout().write_all(self.text(&pruned).as_bytes()).map(|()| ExitCode::SUCCESS),
            Err(failure) => writeln!(io::stderr(), "error: {failure}").map(|()| ExitCode::from(CANNOT_RUN)),
        };
        // A closed stdout is not an error.
        written.unwrap_or(ExitCode::SUCCESS)
    }

    fn prune(&self) -> Result<Pruned, Box<dyn std::error::Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = {
            let _guard = runtime.enter();
            EtcdClient::new(self.etcd.with_members(self.members.clone()))?
        };
        Ok(runtime.block_on(prune(&client, self.dry_run))?)
    }

    fn text(&self, Pruned { keys, hosts, changed }: &Pruned) -> String {
        if self.json {
            let keys: Vec<_> = keys.iter().map(|key| json!({ "key": key.key, "reason": key.reason })).collect();
            let report = json!({ "dry_run": self.dry_run, "removed": keys, "hosts": hosts, "changed": changed });
            return format!("{report:#}\n");
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
        text.push('\n');
        text
    }
}
