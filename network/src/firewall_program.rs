//! The programs `nft` and `iptables`, which speak to the kernel's firewall.

use std::io::{self, ErrorKind, Write as _};
use std::process::{Command, Output, Stdio};

use crate::firewall::TABLE;

/// What a rule of ours has as its remark.
const REMARK: &str = "berth";

/// The chain in which the engine leaves room for rules of others.
const CHAIN: &str = "DOCKER-USER";

/// The remark in our table; `None` if there is no such table. Blocks.
///
/// # Errors
///
/// Fails if the program cannot be run or is not permitted to look.
pub fn digest() -> io::Result<Option<String>> {
    let output = run("nft", &["list", "table", "ip", TABLE], None)?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return if told.contains("No such file or directory") { Ok(None) } else { Err(refused("nft list", &told)) };
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let remark = text.lines().find_map(|line| line.trim().strip_prefix("comment \"")?.strip_suffix('"'));
    Ok(Some(remark.unwrap_or_default().to_owned()))
}

/// Replaces our table at once. Blocks.
///
/// # Errors
///
/// Fails if the program cannot be run or refuses; then nothing was changed.
pub fn replace(table: &str) -> io::Result<()> {
    let output = run("nft", &["-f", "-"], Some(table))?;
    if output.status.success() { Ok(()) } else { Err(refused("nft -f -", &String::from_utf8_lossy(&output.stderr))) }
}

/// Deletes our table; that there is none is no failure. Blocks.
///
/// # Errors
///
/// Fails if the program cannot be run or refuses.
pub fn delete() -> io::Result<()> {
    if digest()?.is_none() {
        return Ok(());
    }
    let output = run("nft", &["delete", "table", "ip", TABLE], None)?;
    if output.status.success() { Ok(()) } else { Err(refused("nft delete", &String::from_utf8_lossy(&output.stderr))) }
}

/// Our rules in the engine's chain, each as it follows `iptables -I`; `None` if there is no such chain. Blocks.
///
/// # Errors
///
/// Fails if the program cannot be run. That there is no such program means that there is no such chain.
pub fn rules() -> io::Result<Option<Vec<Vec<String>>>> {
    let output = match run("iptables", &["-w", "-S", CHAIN], None) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        output => output?,
    };
    if !output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let rules = text.lines().filter_map(|line| {
        let words: Vec<String> =
            line.strip_prefix("-A ")?.split_whitespace().map(|word| word.trim_matches('"').to_owned()).collect();
        let is_ours = words.windows(2).any(|pair| pair[0] == "--comment" && pair[1] == REMARK);
        is_ours.then_some(words)
    });
    Ok(Some(rules.collect()))
}

/// Inserts a rule before all others of its chain. Blocks.
///
/// # Errors
///
/// Fails if the program refuses.
pub fn insert(words: &[String]) -> io::Result<()> {
    change("-I", words)
}

/// Takes a rule out of its chain. Blocks.
///
/// # Errors
///
/// Fails if the program refuses.
pub fn take_out(words: &[String]) -> io::Result<()> {
    change("-D", words)
}

fn change(verb: &str, words: &[String]) -> io::Result<()> {
    let arguments: Vec<&str> = ["-w", verb].into_iter().chain(words.iter().map(String::as_str)).collect();
    let output = run("iptables", &arguments, None)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(refused(&format!("iptables {verb} {CHAIN}"), &String::from_utf8_lossy(&output.stderr)))
    }
}

fn run(program: &str, arguments: &[&str], input: Option<&str>) -> io::Result<Output> {
    let named = |error: io::Error| {
        let what = if error.kind() == ErrorKind::NotFound { "is not installed" } else { "cannot be run" };
        io::Error::new(error.kind(), format!("{program} {what}: {error}"))
    };
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().map_err(named)?;
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        // What it does not read it complains of itself.
        let _ = pipe.write_all(input.as_bytes());
    }
    child.wait_with_output().map_err(named)
}

fn refused(what: &str, told: &str) -> io::Error {
    let told = told.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason was given").trim();
    io::Error::other(format!("{what}: {told}"))
}
