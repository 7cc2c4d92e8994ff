//! Variables of a compose file: from `--set`, from files, else from the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::Failure;
use crate::cli::compose::env_file::{Format, Line, parse};
use crate::cli::file::{Input, VARIABLES_MAX};

/// Where the values of variables are, besides the environment.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct VariableArgs {
    /// Value of a variable of the file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// File of such values, which --set wins over
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
            // One without a value is that of the environment, as it is without a line.
            given.extend(read_file(path)?.into_iter().filter_map(|(key, value)| Some((key, value?))));
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

/// The values in a file.
fn read_file(path: &Path) -> Result<Vec<Line>, Failure> {
    let input = Input::open_at_most(path, VARIABLES_MAX)?;
    parse(&input.text, Format::default())
        .map_err(|(line, problem)| Failure::Wrong(format!("{}, line {line}: {problem}", input.shown)))
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let wrong = VariableArgs { set: Vec::new(), env_file: vec![file("bad", "A=1\nB c\n")] };
        let Err(Failure::Wrong(why)) = wrong.read() else { panic!("it is wrong") };
        assert!(why.contains("bad, line 2: no = in it"), "{why}");
        let none = VariableArgs { set: Vec::new(), env_file: vec![folder.path().join("none")] };
        assert!(matches!(none.read(), Err(Failure::Wrong(why)) if why.contains("none: ")));
    }
}
