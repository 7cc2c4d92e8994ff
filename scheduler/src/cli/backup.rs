//! `backup` and `restore`: what etcd has of a cluster, in a file and out of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::ledger::LedgerArgs;
use crate::cli::terminal::{print, print_json, warn};
use crate::cli::{Failure, Outcome};
use crate::ledger::backup;
use crate::ledger::etcd::backup::{RestoreError, collect, key_of, present, restore};
use crate::ledger::etcd::key_file::KeyError;

/// Largest backup that is read, in bytes: etcd has 2 GiB by default, and a tenth of it in clusters of 5,000 hosts.
const FILE_MAX: u64 = 1 << 30;

/// Most keys that are named one by one.
const NAMED_MAX: usize = 10;

/// `backup`.
#[derive(Args, Debug)]
pub struct Backup {
    /// The file, which only its owner can read; one that is there is replaced
    file: PathBuf,

    #[command(flatten)]
    at: LedgerArgs,

    /// Print JSON instead of lines; a failure is an object with `error`
    #[arg(long)]
    pub(super) json: bool,
}

/// `restore`.
#[derive(Args, Debug)]
pub struct Restore {
    /// The file that `backup` wrote
    file: PathBuf,

    #[command(flatten)]
    at: LedgerArgs,

    /// Print what would be put, and put nothing
    #[arg(long)]
    dry_run: bool,

    /// Put what is missing into an etcd that has some of it; what is there stays as it is
    #[arg(long)]
    missing: bool,

    /// Print JSON instead of lines; a failure is an object with `error`
    #[arg(long)]
    pub(super) json: bool,
}

fn no_answer(error: &KeyError) -> Failure {
    Failure::NoAnswer(error.to_string())
}

impl Backup {
    pub(super) async fn run(self) -> Outcome {
        let (client, key_file) = self.at.open()?;
        let found = collect(&client, &key_file).await.map_err(|error| no_answer(&error))?;
        let now = OffsetDateTime::from(SystemTime::now()).format(&Rfc3339).unwrap_or_default();
        let prefix = &client.options().prefix;
        let text = backup::written(now, prefix, found.revision, &found.lines, found.key.as_ref());
        let shown = self.file.display();
        let text = text.map_err(|error| Failure::NoAnswer(error.to_string()))?;
        platform::file::replace_private(&self.file, &text)
            .map_err(|error| Failure::NoAnswer(format!("{shown}: {error}")))?;
        for (key, why) in &found.left_out {
            warn(&format!("warning: {key} is not in the backup: {why}"));
        }
        if self.json {
            let left_out: Vec<_> = found.left_out.iter().map(|(key, why)| json!({ "key": key, "why": why })).collect();
            let keys = families(found.lines.iter().map(|line| &*line.key));
            print_json(&json!({
                "file": shown.to_string(), "keys": keys, "left_out": left_out, "revision": found.revision,
                "bytes": text.len(),
            }));
        } else {
            let keys = in_words(&families(found.lines.iter().map(|line| &*line.key)));
            print(&format!("{shown}: {keys}, as of revision {}, {} bytes\n", found.revision, text.len()));
        }
        Ok(found.left_out.is_empty())
    }
}

impl Restore {
    pub(super) async fn run(self) -> Outcome {
        let shown = self.file.display().to_string();
        let wrong = |text: &dyn std::fmt::Display| Failure::Wrong(format!("{shown}: {text}"));
        let size = std::fs::metadata(&self.file).map_err(|error| wrong(&error))?.len();
        if size > FILE_MAX {
            return Err(wrong(&format!("longer than {FILE_MAX} bytes")));
        }
        let text = std::fs::read(&self.file).map_err(|error| wrong(&error))?;
        let backup = backup::Backup::read(&text).map_err(|error| wrong(&error))?;
        let (client, key_file) = self.at.open()?;
        let failed = |error: RestoreError| match error {
            RestoreError::Key(error) => no_answer(&error),
            error => wrong(&error),
        };
        let key = key_of(&client, &key_file, &backup).await.map_err(failed)?;
        let there = present(&client).await.map_err(|error| no_answer(&error))?;
        if !there.schedulers.is_empty() && key.is_some() {
            let running = there.schedulers.join(", ");
            return Err(Failure::Wrong(format!(
                "schedulers of this ledger are running ({running}), or ended less than 10 s ago: stop them, restore, start them \
                 again"
            )));
        }
        if !there.keys.is_empty() && !self.missing {
            return Err(Failure::Wrong(format!(
                "etcd is not empty: it has {} below {}. With --missing, what it lacks is put and what it has stays as it is",
                named(&there.keys),
                client.options().prefix
            )));
        }
        if self.dry_run {
            let missing = backup.lines.iter().map(|line| &line.key).filter(|key| !there.keys.contains(key));
            let keys = families(missing.map(|key| &**key));
            self.tell(&keys, &[], "would be put");
            return Ok(true);
        }
        let (_, kept) = restore(&client, key.as_ref(), &backup).await.map_err(failed)?;
        let put = backup.lines.iter().map(|line| &line.key).filter(|key| !kept.contains(key));
        self.tell(&families(put.map(|key| &**key)), &kept, "were put");
        Ok(true)
    }

    fn tell(&self, keys: &BTreeMap<String, usize>, kept: &[String], done: &str) {
        if self.json {
            return print_json(&json!({ "dry_run": self.dry_run, "keys": keys, "kept": kept }));
        }
        let mut text = format!("{} {done}\n", in_words(keys));
        if !kept.is_empty() {
            let _ = writeln!(text, "{} stay as they were", named(kept));
        }
        print(&text);
    }
}

/// How many keys of each kind there are.
fn families<'k>(keys: impl Iterator<Item = &'k str>) -> BTreeMap<String, usize> {
    let mut families = BTreeMap::new();
    for key in keys {
        // What is below the ledger has kinds of its own.
        let depth = if key.starts_with("ledger/") { 2 } else { 1 };
        let kind = match key.match_indices('/').nth(depth - 1) {
            Some((end, _)) => &key[..end],
            None => key,
        };
        *families.entry(kind.to_owned()).or_insert(0) += 1;
    }
    families
}

fn in_words(families: &BTreeMap<String, usize>) -> String {
    let all: usize = families.values().sum();
    let kinds: Vec<_> = families.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    if kinds.is_empty() { "0 keys".to_owned() } else { format!("{all} keys ({})", kinds.join(", ")) }
}

fn named(keys: &[String]) -> String {
    let more = keys.len().saturating_sub(NAMED_MAX);
    let first = keys.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_by_kind() {
        let keys = ["documents/a", "documents/b", "empty", "ledger/key", "ledger/ports/h/80", "ledger/ports/i/80"];
        let counted = families(keys.into_iter());
        assert_eq!(in_words(&counted), "6 keys (2 documents, 1 empty, 1 ledger/key, 2 ledger/ports)");
        assert_eq!(in_words(&BTreeMap::new()), "0 keys");
        let many: Vec<_> = (0..12).map(|number| format!("k{number}")).collect();
        assert!(named(&many).ends_with("k9 and 2 more"));
    }
}
