//! The executables under test, built once for each test binary.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::repository;

/// The packages whose executables are tested.
const PACKAGES: [&str; 4] = ["agent", "metadata", "dns", "scheduler"];

/// Beginnings of the variables in which cargo describes the package of the tests.
const PACKAGE_VARIABLES: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// The path of the executable `name`.
pub fn path(name: &str) -> PathBuf {
    static GIVEN: OnceLock<Option<BTreeMap<String, PathBuf>>> = OnceLock::new();
    let given = GIVEN.get_or_init(|| std::env::var_os("BERTH_BINARIES").map(|folder| given(&PathBuf::from(folder))));
    match given {
        Some(given) => given.get(name).unwrap_or_else(|| panic!("no executable {name} among {given:?}")).clone(),
        None => native(name),
    }
}

/// The path of the executable `name` for this system, whatever `BERTH_BINARIES` says.
///
/// `BERTH_BUILT` names the folder in which they were built for this run (`tests/run` sets it); otherwise they are built.
pub fn native(name: &str) -> PathBuf {
    static BUILT: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    let built = BUILT
        .get_or_init(|| std::env::var_os("BERTH_BUILT").map_or_else(build, |folder| given(&PathBuf::from(folder))));
    built.get(name).unwrap_or_else(|| panic!("no executable {name} among {built:?}")).clone()
}

/// Whether the executables are Windows ones (`BERTH_WINDOWS`), which the folder of `BERTH_BINARIES` runs under Wine.
pub fn are_for_windows() -> bool {
    std::env::var_os("BERTH_WINDOWS").is_some_and(|value| value == "1")
}

/// The folder in which the executables are, for a shell's `PATH`.
pub fn folder() -> PathBuf {
    path(PACKAGES[0]).parent().expect("an executable is in a folder").to_owned()
}

fn given(folder: &std::path::Path) -> BTreeMap<String, PathBuf> {
    let file = |name: &str| folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    PACKAGES.iter().map(|name| ((*name).to_owned(), file(name))).filter(|(_, path)| path.is_file()).collect()
}

/// Cargo, without the variables that describe the package of the tests: they reach build scripts, which would then run again, as
/// would all that depends on them, now and when cargo is next run without these variables.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if PACKAGE_VARIABLES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Builds them in the profile of this test, and asks cargo where it put them.
fn build() -> BTreeMap<String, PathBuf> {
    let mut command = cargo();
    command.current_dir(repository()).args(["build", "--locked", "--bins"]);
    command.arg("--message-format=json-render-diagnostics");
    command.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.output().expect("cargo can be started");
    assert!(output.status.success(), "the executables do not build:\n{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    messages.lines().filter_map(executable).collect()
}

fn executable(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let path = message.get("executable")?.as_str()?;
    Some((message["target"]["name"].as_str()?.to_owned(), path.into()))
}
