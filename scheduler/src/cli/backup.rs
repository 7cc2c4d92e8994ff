//! `backup` and `restore`: a ledger and what operators have written, into one file and back.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use etcd::{Endpoint, EtcdArgs, EtcdClient};
use serde_json::json;

use crate::backup::{BACKUP_MAX, BackedUpKey, Backup, Kind};
use crate::cli::terminal::{print, print_json};
use crate::cli::{Failure, Outcome};
use crate::clock::Clock;
use crate::config::{KEY_FILE, LEDGER_FILE};
use crate::ledger::etcd::key_file;
use crate::ledger::etcd::saved::{RestoreError, restore, save};
use crate::ledger::journal::Journal;

/// Where the ledger is.
#[derive(Args, Debug)]
struct Place {
    /// Members of the etcd with the ledger; without it the ledger is the file in the state directory
    #[arg(long, value_name = "URL", env = "BERTH_SCHEDULER_LEDGER_ETCD", value_delimiter = ',')]
    ledger_etcd: Vec<Endpoint>,

    /// The state directory of a scheduler
    #[arg(long, value_name = "DIR", env = "BERTH_STATE_DIR")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    etcd: EtcdArgs,

    /// Print JSON instead of a sentence; a failure is an object with `error`
    #[arg(long)]
    json: bool,
}

/// `backup`.
#[derive(Args, Debug)]
pub struct MakeBackup {
    /// The file that is made, for its owner alone; one that is there is replaced
    file: PathBuf,

    #[command(flatten)]
    place: Place,
}

/// `restore`.
#[derive(Args, Debug)]
pub struct Restore {
    /// What `backup` made
    file: PathBuf,

    #[command(flatten)]
    place: Place,

    /// File with the ledger's key, which is not in the backup [default: ledger.key in the state directory]
    #[arg(long, value_name = "FILE", env = "BERTH_SCHEDULER_LEDGER_KEY")]
    ledger_key: Option<PathBuf>,

    /// Say what would be restored, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Restore although something is there already; what the backup does not have stays
    #[arg(long)]
    overwrite: bool,
}

impl Place {
    fn client(&self) -> Result<Option<EtcdClient>, Failure> {
        if self.ledger_etcd.is_empty() {
            return Ok(None);
        }
        let client = EtcdClient::new(self.etcd.clone().with_members(self.ledger_etcd.clone()));
        client.map(Some).map_err(|error| Failure::Wrong(error.to_string()))
    }

    fn ledger_file(&self) -> Result<PathBuf, Failure> {
        let folder = self.state_dir.as_ref();
        let folder = folder.ok_or_else(|| Failure::Wrong("give --ledger-etcd or --state-dir".to_owned()))?;
        Ok(folder.join(LEDGER_FILE))
    }
}

impl MakeBackup {
    pub(super) fn json(&self) -> bool {
        self.place.json
    }

    pub(super) async fn run(self) -> Outcome {
        let made = u64::try_from(Clock::start().now().as_millis()).unwrap_or(u64::MAX);
        let backup = match self.place.client()? {
            Some(client) => {
                let unreached = |error| Failure::NoAnswer(format!("cannot reach etcd ({error})"));
                save(&client, made).await.map_err(unreached)?
            }
            None => of_file(&self.place.ledger_file()?, made)?,
        };
        let written = platform::file::replace_private(&self.file, &backup.written());
        let shown = self.file.display().to_string();
        written.map_err(|error| Failure::NoAnswer(format!("cannot write {shown}: {error}")))?;
        let keys = backup.keys.len();
        if self.place.json {
            print_json(&json!({ "file": shown, "of": backup.kind, "keys": keys }));
        } else {
            let what = what(&backup.kind, keys);
            print(&format!(
                "{shown} has {what}. It has secrets of requests; the ledger's key is not in it, keep {KEY_FILE} elsewhere\n"
            ));
        }
        Ok(true)
    }
}

impl Restore {
    pub(super) fn json(&self) -> bool {
        self.place.json
    }

    pub(super) async fn run(self) -> Outcome {
        let shown = self.file.display().to_string();
        let wrong = |why: &dyn std::fmt::Display| Failure::Wrong(format!("{shown}: {why}"));
        let backup = Backup::read(&contents(&self.file)?).map_err(|error| wrong(&error))?;
        let (keys, unsealed) = match (self.place.client()?, &backup.kind) {
            (Some(client), Kind::Etcd) => {
                let path = self.ledger_key.clone().or_else(|| Some(self.place.state_dir.as_ref()?.join(KEY_FILE)));
                let key = match &path {
                    Some(path) => key_file::read(path).map_err(|error| Failure::Wrong(error.to_string()))?,
                    None => None,
                };
                let restoring = restore(&client, &backup, key.as_ref(), (self.dry_run, self.overwrite)).await;
                let restored = restoring.map_err(|error| match error {
                    RestoreError::OtherKey => {
                        let path = path.map_or_else(|| "--ledger-key".to_owned(), |path| path.display().to_string());
                        Failure::Wrong(format!("{error}: {path} has to be the key of that ledger"))
                    }
                    error => Failure::NoAnswer(error.to_string()),
                })?;
                (restored.keys, restored.unsealed)
            }
            (None, Kind::File) => (self.restore_file(&backup)?, Vec::new()),
            (Some(_), Kind::File) => {
                return Err(wrong(&"it is of a ledger in a file: restore it with --state-dir alone"));
            }
            (None, Kind::Etcd) => return Err(wrong(&"it is of a ledger in etcd: restore it with --ledger-etcd")),
        };
        let all = unsealed.is_empty();
        if self.place.json {
            print_json(&json!({ "dry_run": self.dry_run, "of": backup.kind, "keys": keys, "unsealed": unsealed }));
            return Ok(all);
        }
        let done = if self.dry_run { "would be restored; nothing was changed" } else { "restored" };
        print(&format!("{}: {done}\n", what(&backup.kind, keys)));
        if !all {
            let ids: Vec<_> = unsealed.iter().map(|id| model::printable::printable(id, ID_SHOWN_MAX)).collect();
            print(&format!("Not restored, since their seals do not fit: {}\n", ids.join(", ")));
        }
        Ok(all)
    }

    fn restore_file(&self, backup: &Backup) -> Result<usize, Failure> {
        let path = self.place.ledger_file()?;
        let shown = path.display();
        if std::fs::metadata(&path).is_ok_and(|file| file.len() > 0) && !self.overwrite {
            let text = format!("{shown} is there already; with --overwrite the backup takes its place");
            return Err(Failure::NoAnswer(text));
        }
        let [one] = &backup.keys[..] else { return Err(Failure::Wrong("the backup has no ledger".to_owned())) };
        if self.dry_run {
            return Ok(1);
        }
        // A scheduler that runs would write what it knows over it.
        let lock = Journal::lock(&path).map_err(|error| Failure::NoAnswer(error.to_string()))?;
        let written = platform::file::replace_private(&path, &one.value);
        written.map_err(|error| Failure::NoAnswer(format!("cannot write {shown}: {error}")))?;
        drop(lock);
        Ok(1)
    }
}

/// Longest id in a sentence, in characters.
const ID_SHOWN_MAX: usize = 100;

fn what(kind: &Kind, keys: usize) -> String {
    match kind {
        Kind::Etcd => format!("{keys} keys of etcd"),
        Kind::File => "the ledger's file".to_owned(),
    }
}

/// The backup of a ledger on disk. Its lines have checksums of their own, so one that is just being written is no harm.
fn of_file(path: &Path, made: u64) -> Result<Backup, Failure> {
    let value = contents(path)?;
    let keys = vec![BackedUpKey { path: LEDGER_FILE.to_owned(), value, created: 0, version: 0 }];
    Ok(Backup { kind: Kind::File, made, prefix: String::new(), keys })
}

fn contents(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BACKUP_MAX).read_to_end(&mut bytes));
    read.map_err(|error| Failure::Wrong(format!("cannot read {}: {error}", path.display())))?;
    Ok(bytes)
}
