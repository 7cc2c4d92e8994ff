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
        let is_missing = String::from_utf8_lossy(&output.stderr).contains("No such file or directory");
        return if is_missing { Ok(None) } else { done("nft list", &output).map(|()| None) };
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
    done("nft -f -", &run("nft", &["-f", "-"], Some(table))?)
}

/// Deletes our table; returns whether there was one. Blocks.
///
/// # Errors
///
/// Fails if the program cannot be run or refuses.
pub fn delete() -> io::Result<bool> {
    if digest()?.is_none() {
        return Ok(false);
    }
    done("nft delete", &run("nft", &["delete", "table", "ip", TABLE], None)?).map(|()| true)
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
    done(&format!("iptables {verb} {CHAIN}"), &run("iptables", &arguments, None)?)
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

/// The error of a program that did not do `what`, with the first line that it printed.
fn done(what: &str, output: &Output) -> io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let reason = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason was given");
    Err(io::Error::other(format!("{what}: {reason}")))
}
