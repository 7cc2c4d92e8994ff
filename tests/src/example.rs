//! The programs in `examples/`, which end by themselves and leave nothing behind.

use std::path::Path;
use std::process::Command;

use crate::shared::Exclusive;

/// Runs `examples/NAME/run` to its end and returns what it wrote.
///
/// Other tests' engines wait, since its own need room and addresses.
///
/// # Panics
///
/// If it fails, leaves a file, or leaves a process whose command line names a file of it.
pub fn run(name: &str) -> String {
    let _alone = Exclusive::take("engines");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut example = Command::new(crate::repository().join("examples").join(name).join("run"));
    example.env("AGENT", crate::binaries::native("agent")).env("TMPDIR", folder.path());
    let ran = example.output().expect("the example can be started");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{text}");
    assert_eq!(left_in(folder.path()), [""; 0], "{text}");
    let running = Command::new("ps").args(["-eo", "args"]).output().expect("ps can be started");
    let running = String::from_utf8_lossy(&running.stdout).into_owned();
    let path = folder.path().to_string_lossy();
    let left: Vec<_> = running.lines().filter(|line| line.contains(&*path)).collect();
    assert_eq!(left, [""; 0]);
    text
}

/// The files in a folder, each with what is known of it.
fn left_in(folder: &Path) -> Vec<String> {
    let listed =
        Command::new("find").arg(folder).args(["-mindepth", "1", "-ls"]).output().expect("find can be started");
    String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect()
}
