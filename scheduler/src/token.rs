//! Bearer tokens in files: the one that a scheduler makes for itself, and those that a person gives it.
//!
//! The own one is for the commands of the same user: a scheduler names its file, and who can read that may change things.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use process::token::{TOKEN_MAX, TOKEN_MIN, is_token};

use crate::subject::Subject;

/// Name of the own token's file in a state directory.
pub(crate) const OWN_FILE: &str = "scheduler.token";

/// A token, and who bears it.
#[derive(Clone)]
pub(crate) struct NamedToken {
    pub(crate) subject: Subject,
    pub(crate) token: String,
}

impl std::fmt::Debug for NamedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NamedToken").field(&self.subject).finish()
    }
}

/// Why a file has no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("cannot read the token in {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What stands there is no token.
    #[error(
        "the token in {}, line {line}, has {length} bytes, expected {TOKEN_MIN} to {TOKEN_MAX} without spaces, or a name and those",
        path.display()
    )]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Length of what it has.
        length: usize,
    },
}

/// The tokens in a file: one a line, each alone or behind its name.
///
/// # Errors
///
/// Fails if the file cannot be read, or a line has no token.
pub(crate) fn read(path: &Path) -> Result<Vec<NamedToken>, TokenError> {
    let read = platform::file::must_be_secret(path).and_then(|()| fs::read_to_string(path));
    let text = read.map_err(|error| TokenError::Unreadable { path: path.to_owned(), error })?;
    let mut tokens = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |length| TokenError::Wrong { path: path.to_owned(), line: at + 1, length };
        let words: Vec<&str> = line.split_whitespace().collect();
        let (subject, token) = match words[..] {
            [token] => (Subject::of_token(None), token),
            [name, token] => (Subject::of_token(Some(name)), token),
            _ => return Err(wrong(line.trim().len())),
        };
        if !is_token(token) {
            return Err(wrong(token.len()));
        }
        tokens.push(NamedToken { subject, token: token.to_owned() });
    }
    let empty = || TokenError::Wrong { path: path.to_owned(), line: 1, length: 0 };
    if tokens.is_empty() { Err(empty()) } else { Ok(tokens) }
}

/// The own token and its file, in the state directory if there is one.
///
/// # Errors
///
/// Why there is none.
pub(crate) fn own(state: Option<&Path>) -> Result<(NamedToken, PathBuf), String> {
    let (token, path) = process::token::own(state, OWN_FILE)?;
    Ok((NamedToken { subject: Subject::of_token(None), token }, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_file_have_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let token = "0123456789abcdef0123456789abcdef";
        platform::file::replace_private(&path, format!("{token}\n\nci {token}\n").as_bytes()).unwrap();
        let subjects: Vec<_> = read(&path).unwrap().iter().map(|known| known.subject.to_string()).collect();
        assert_eq!(subjects, ["token", "token:ci"]);
        for (text, expected) in [
            ("", "line 1, has 0 bytes"),
            ("\nshort", "line 2, has 5 bytes"),
            ("ci short", "line 1, has 5 bytes"),
            ("a b c", "line 1, has 5 bytes"),
        ] {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("expected 32 to 1024"), "{error}");
        }
    }
}
