//! What was changed on this host and has to be undone: one file in the state directory.
//!
//! It is written before changes are begun and after they are done, never for each route: our routes carry a mark in the
//! kernel. No step depends on another one having happened, only on what is there.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::guard::Loss;

/// Name of the file in the state directory.
pub const FILE: &str = "network.json";

/// Version of the format.
const VERSION: u32 = 1;

/// Something of this host that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Changed {
    /// A setting of the kernel.
    Sysctl {
        /// Its name, such as `net.ipv4.ip_forward`.
        name: String,
        /// What it was.
        before: String,
        /// What it was set to.
        after: String,
    },
    /// A network of the container engine.
    Network {
        /// Its name.
        name: String,
        /// Its id, once it is made.
        id: Option<String>,
    },
    /// The table of the firewall.
    Table {
        /// Its name.
        name: String,
    },
    /// A rule in a chain of the engine's firewall, by the words that follow `-A` or `-D`.
    Rule {
        /// Chain and rule.
        words: Vec<String>,
    },
    /// Whether an interface passes packets on, on Windows, where each has its own switch.
    Forwarding {
        /// The interface's own id, which stays after a restart.
        id: String,
        /// What it was.
        before: bool,
    },
    /// An address of this host, on Windows, where it is the gateway of the containers.
    Address {
        /// The interface's own id.
        id: String,
        /// The address and its network.
        address: Ipv4Net,
    },
    /// Routes, which are found by their mark, and on Windows by [`Ledger::routes`].
    Routes,
}

/// A change and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What.
    #[serde(flatten)]
    pub changed: Changed,
    /// Whether it was done; otherwise it may have been.
    pub done: bool,
}

/// The ledger of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    v: u32,
    /// Changes, the oldest first.
    pub steps: Vec<Entry>,
    /// The start of the machine after which it was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    /// The subnet that this host had last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<Ipv4Net>,
    /// A loss of claims that is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// The routes that were added, where the system has no mark for them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub routes: BTreeSet<OwnRoute>,
}

/// A route that was added.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnRoute {
    /// The destinations.
    pub prefix: Ipv4Net,
    /// The next hop.
    pub via: Ipv4Addr,
    /// The interface's own id.
    pub link: String,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { v: VERSION, steps: Vec::new(), boot: None, subnet: None, loss: None, routes: BTreeSet::new() }
    }
}

impl Ledger {
    /// The ledger in a state directory; an empty one if there is none.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read or is none of ours; then nothing may be guessed.
    pub fn load(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(named(&path, &error)),
        };
        let ledger: Self = serde_json::from_slice(&bytes).map_err(|error| named(&path, &error.into()))?;
        if ledger.v == VERSION {
            Ok(ledger)
        } else {
            let wrong =
                format!("{}: version {} of another version of Berth, expected {VERSION}", path.display(), ledger.v);
            Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
        }
    }

    /// Notes which start of the machine this is. Settings of the kernel end with a start: what they are after it is another
    /// program's doing, even if it is what we had set.
    pub fn at_boot(&mut self, boot: Option<String>) {
        if self.boot.is_some() && boot.is_some() && self.boot != boot {
            self.steps.retain(|entry| !matches!(entry.changed, Changed::Sysctl { .. }));
        }
        self.boot = boot.or_else(|| self.boot.take());
    }

    /// Stores it.
    ///
    /// # Errors
    ///
    /// Fails if that is not possible; then no change may be begun.
    pub fn store(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(FILE);
        let bytes = serde_json::to_vec_pretty(self).map_err(io::Error::from)?;
        platform::file::replace_private(&path, &bytes).map(drop).map_err(|error| named(&path, &error))
    }

    /// Notes that these changes are about to be made. One that is there already stays as it is, with the state from before
    /// the first time.
    pub fn intend(&mut self, changes: impl IntoIterator<Item = Changed>) {
        for changed in changes {
            if !self.steps.iter().any(|entry| entry.changed.is_of_same(&changed)) {
                self.steps.push(Entry { changed, done: false });
            }
        }
    }

    /// Notes that a change was made.
    pub fn done(&mut self, changed: &Changed) {
        for entry in self.steps.iter_mut().filter(|entry| entry.changed.is_of_same(changed)) {
            *entry = Entry { changed: changed.clone().keeping_before(&entry.changed), done: true };
        }
    }

    /// Forgets a change that was undone, or never came to be.
    pub fn forget(&mut self, changed: &Changed) {
        self.steps.retain(|entry| !entry.changed.is_of_same(changed));
    }
}

impl Changed {
    /// Whether both are about the same thing.
    fn is_of_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sysctl { name, .. }, Self::Sysctl { name: other, .. })
            | (Self::Network { name, .. }, Self::Network { name: other, .. })
            | (Self::Table { name }, Self::Table { name: other }) => name == other,
            (Self::Rule { words }, Self::Rule { words: other }) => words == other,
            (Self::Forwarding { id, .. }, Self::Forwarding { id: other, .. }) => id == other,
            (Self::Address { address, .. }, Self::Address { address: other, .. }) => address == other,
            (Self::Routes, Self::Routes) => true,
            _ => false,
        }
    }

    /// The same with what was there before the first change.
    fn keeping_before(self, first: &Self) -> Self {
        match (self, first) {
            (Self::Sysctl { name, after, .. }, Self::Sysctl { before, .. }) => {
                Self::Sysctl { name, before: before.clone(), after }
            }
            (Self::Forwarding { id, .. }, Self::Forwarding { before, .. }) => Self::Forwarding { id, before: *before },
            (now, _) => now,
        }
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysctl(before: &str, after: &str) -> Changed {
        Changed::Sysctl { name: "net.ipv4.ip_forward".into(), before: before.into(), after: after.into() }
    }

    #[test]
    fn the_state_from_before_the_first_change_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::load(folder.path()).unwrap();
        ledger.intend([sysctl("0", "1"), Changed::Routes]);
        ledger.store(folder.path()).unwrap();
        let mut ledger = Ledger::load(folder.path()).unwrap();
        assert!(ledger.steps.iter().all(|entry| !entry.done));
        // It was switched off again in the meantime.
        ledger.intend([sysctl("2", "1")]);
        ledger.done(&sysctl("2", "1"));
        assert_eq!(ledger.steps[0], Entry { changed: sysctl("0", "1"), done: true });
        ledger.forget(&sysctl("", ""));
        assert_eq!(ledger.steps, [Entry { changed: Changed::Routes, done: false }]);
    }

    #[test]
    fn settings_of_the_kernel_are_forgotten_with_a_restart() {
        let mut ledger = Ledger::default();
        ledger.intend([sysctl("0", "1"), Changed::Routes]);
        for (boot, left) in [(Some("a"), 2), (Some("a"), 2), (None, 2), (Some("b"), 1)] {
            ledger.at_boot(boot.map(str::to_owned));
            assert_eq!(ledger.steps.len(), left, "{boot:?}");
        }
    }

    #[test]
    fn the_id_of_a_network_is_noted_once_it_is_made() {
        let mut ledger = Ledger::default();
        let network = |id: Option<&str>| Changed::Network { name: "berth".into(), id: id.map(str::to_owned) };
        ledger.intend([network(None)]);
        ledger.done(&network(Some("0a1b")));
        assert_eq!(ledger.steps, [Entry { changed: network(Some("0a1b")), done: true }]);
    }

    #[test]
    fn a_damaged_ledger_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{", r#"{"v": 2, "steps": []}"#, r#"{"v": 1, "steps": [{"kind": "other", "done": true}]}"#] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            let error = Ledger::load(folder.path()).unwrap_err().to_string();
            assert!(error.contains(FILE), "{text}: {error}");
        }
    }
}
