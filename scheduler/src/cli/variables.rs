//! Variables of a compose file: from `--set`, from files, else from the environment.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::Failure;

/// Largest file of variables: thousands of them.
const FILE_MAX: u64 = 1 << 20;

/// Where the values of variables are, besides the environment.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct VariableArgs {
    /// Value of a variable of the compose file, before those of --env-file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// File of such values, KEY=VALUE on each line, before those of the environment; of several files the last one counts
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
}

/// The values of variables.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables {
    given: BTreeMap<String, String>,
}

impl VariableArgs {
    /// The values, read.
    ///
    /// # Errors
    ///
    /// Fails with the file and the line that is wrong.
    pub(super) fn read(&self) -> Result<Variables, Failure> {
        let mut given = BTreeMap::new();
        for path in &self.env_file {
            given.extend(read_file(path).map_err(|problem| Failure::Wrong(format!("{}{problem}", path.display())))?);
        }
        given.extend(self.set.iter().cloned());
        Ok(Variables { given })
    }
}

impl Variables {
    /// The value of a variable.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.given.get(name).cloned().or_else(|| std::env::var(name).ok())
    }
}

/// The values in a file; the error follows the file's name.
fn read_file(path: &Path) -> Result<Vec<(String, String)>, String> {
    let plain = |problem: &dyn Display| format!(": {problem}");
    let size = std::fs::metadata(path).map_err(|error| plain(&error))?.len();
    if size > FILE_MAX {
        return Err(plain(&format_args!("longer than {FILE_MAX} bytes")));
    }
    let text =
        source::format::text(std::fs::read(path).map_err(|error| plain(&error))?).map_err(|error| plain(&error))?;
    parse(&text).map_err(|(line, problem)| format!(", line {line}: {problem}"))
}

/// The values in a text; an error has its line.
fn parse(text: &str) -> Result<Vec<(String, String)>, (usize, String)> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let wrong = |problem: String| (at + 1, problem);
        let (key, value) = assignment(line).map_err(wrong)?;
        found.push((key, unquoted(value.trim()).map_err(wrong)?));
    }
    Ok(found)
}

/// `KEY=VALUE`.
fn assignment(text: &str) -> Result<(String, String), String> {
    let expected = "expected KEY=VALUE, with a key of letters, digits and _ that does not begin with a digit";
    // What stands there may be a secret.
    let (key, value) = text.split_once('=').ok_or_else(|| format!("no = in it; {expected}"))?;
    let key = key.trim_end();
    let is_name = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !key.starts_with(|char: char| char.is_ascii_digit())
        && !key.is_empty();
    if is_name { Ok((key.to_owned(), value.to_owned())) } else { Err(format!("found {key:?}; {expected}")) }
}

/// A value without its quotes, or without the remark behind it.
fn unquoted(value: &str) -> Result<String, String> {
    let Some(quote) = value.chars().next().filter(|char| ['"', '\''].contains(char)) else {
        let end = value.find(" #").unwrap_or(value.len());
        return Ok(value[..end].trim_end().to_owned());
    };
    let mut out = String::new();
    let mut chars = value[1..].chars();
    while let Some(char) = chars.next() {
        match char {
            _ if char == quote => {
                let rest = chars.as_str().trim_start();
                let is_over = rest.is_empty() || rest.starts_with('#');
                return if is_over { Ok(out) } else { Err("something follows the closing quote".to_owned()) };
            }
            '\\' if quote == '"' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(char @ ('"' | '\\' | '$')) => out.push(char),
                Some(other) => out.extend(['\\', other]),
                None => break,
            },
            _ => out.push(char),
        }
    }
    Err("a quote stays open".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_value_on_each_line() {
        let text = "# of the shop\n\nA=1\nexport B = two words # remark\nC=\"x\\n#\\\"\" # remark\nD='$A \\n'\r\nE=\nF=a#b=c\n";
        let expected = [("A", "1"), ("B", "two words"), ("C", "x\n#\""), ("D", "$A \\n"), ("E", ""), ("F", "a#b=c")];
        let found = parse(text).unwrap();
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        for (text, line, problem) in [
            ("A=1\nB", 2, "no = in it"),
            ("1A=x", 1, "found \"1A\""),
            ("\n=x", 2, "found \"\""),
            ("A-B=x", 1, "found \"A-B\""),
            ("A=\"x", 1, "a quote stays open"),
            ("A='x' y", 1, "something follows"),
            ("A=\"x\\", 1, "a quote stays open"),
        ] {
            let (at, why) = parse(text).unwrap_err();
            assert!(at == line && why.contains(problem), "{text}: {at} {why}");
        }
        assert!(!parse("hunter2").unwrap_err().1.contains("hunter2"));
    }

    #[test]
    fn what_is_set_counts_before_files_and_these_before_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let env_file = vec![file("one", "A=1\nB=1\nC=1\nPATH=of the file\n"), file("two", "B=2\nC=2\n")];
        let set = vec![("C".to_owned(), "3".to_owned())];
        let Ok(variables) = VariableArgs { set, env_file }.read() else { panic!("they are right") };
        for (name, value) in [("A", "1"), ("B", "2"), ("C", "3"), ("PATH", "of the file")] {
            assert_eq!(variables.get(name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(Variables::default().get("PATH"), std::env::var("PATH").ok());
        let wrong = VariableArgs { set: Vec::new(), env_file: vec![file("bad", "A=1\nB\n")] };
        let Err(Failure::Wrong(why)) = wrong.read() else { panic!("it is wrong") };
        assert!(why.contains("bad, line 2: no = in it"), "{why}");
        let none = VariableArgs { set: Vec::new(), env_file: vec![folder.path().join("none")] };
        assert!(matches!(none.read(), Err(Failure::Wrong(why)) if why.contains("none: ")));
    }
}
