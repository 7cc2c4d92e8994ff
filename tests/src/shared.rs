//! What tests share with others: a machine's ports and processors, and the recordings and batteries beside the repository.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use crate::{repository, skip};

/// Held while something exclusive is in use; freed when dropped, also by a killed process.
#[derive(Debug)]
pub struct Exclusive(#[expect(dead_code, reason = "closing the file frees the lock")] File);

impl Exclusive {
    /// Waits until nobody else on this machine uses what `name` stands for.
    pub fn take(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("berth-tests-{name}.lock"));
        let file = File::options().create(true).append(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        file.lock().expect("a file in the temporary folder can be locked");
        Self(file)
    }

    /// The ports that the services have by default.
    pub fn default_ports() -> Self {
        Self::take("default-ports")
    }

    /// The processors: what is measured while this is held is not disturbed by other tests.
    pub fn processors() -> Self {
        Self::take("processors")
    }
}

/// The folder of recordings, batteries and specifications (`BERTH_SHARED`, default `../shared` beside the repository).
///
/// `None`, with a word about it, where it is not; with `CI=true` that is a failure.
pub fn folder() -> Option<PathBuf> {
    let given = std::env::var_os("BERTH_SHARED").map(PathBuf::from);
    let folder = given.or_else(|| Some(repository().parent()?.join("shared")));
    let found = folder.filter(|folder| folder.join("compat").is_dir());
    if found.is_none() {
        skip("no folder with recordings and batteries; BERTH_SHARED names it");
    }
    found
}

/// Python with dnspython (`BERTH_PYTHON`, default `python3`).
///
/// `None`, with a word about it, where it is not; with `CI=true` that is a failure.
pub fn python() -> Option<Command> {
    let python = std::env::var_os("BERTH_PYTHON").unwrap_or_else(|| "python3".into());
    let there = Command::new(&python).args(["-c", "import dns.message"]).output();
    if there.is_ok_and(|output| output.status.success()) {
        return Some(Command::new(python));
    }
    skip("no Python with dnspython; BERTH_PYTHON names one");
    None
}

/// Whether all these commands are there, each given with an argument that lets it run; a word about it if not.
///
/// `packages` are Debian's, which have them; with `CI=true` a missing one is a failure.
pub fn there(commands: &[(&str, &str)], packages: &str) -> bool {
    let missing: Vec<_> = commands.iter().filter(|(command, argument)| !has(command, argument)).collect();
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(|(command, _)| *command).collect();
        skip(&format!("{} is not installed (Debian: {packages})", missing.join(", ")));
    }
    missing.is_empty()
}

/// Whether a command of the system is there, by running it.
pub fn has(command: &str, argument: &str) -> bool {
    Command::new(command).arg(argument).output().is_ok()
}
