//! Bearer tokens in files: the one that a scheduler makes for itself, and those that a person gives it.
//!
//! The own one is for the commands of the same user: a scheduler names its file, and who can read that may change things.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::subject::Subject;

/// Name of the own token's file in a state directory.
pub(crate) const OWN_FILE: &str = "scheduler.token";

/// Shortest token: 16 random bytes in hexadecimal.
const TOKEN_MIN: usize = 32;

/// Longest token: it has to fit a header.
const TOKEN_MAX: usize = 1024;

/// Random bytes of an own token.
const RANDOM_BYTES: usize = 32;

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

/// The own token in this folder and its file, made when there is none yet.
///
/// # Errors
///
/// Fails if it can be neither read nor stored.
pub(crate) fn own(folder: &Path) -> io::Result<(NamedToken, PathBuf)> {
    platform::file::create_private_folder(folder)?;
    let path = std::path::absolute(folder)?.join(OWN_FILE);
    // Several schedulers of one user share it, and may start at the same time.
    let lock = platform::file::create_private(&path.with_extension("lock"))?;
    lock.lock()?;
    platform::file::restrict(&path);
    let known = match fs::read_to_string(&path) {
        Ok(text) => Some(text.trim().to_owned()).filter(|token| is_token(token)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let token = if let Some(token) = known {
        token
    } else {
        let token = random()?;
        platform::file::replace_private(&path, format!("{token}\n").as_bytes())?;
        token
    };
    Ok((NamedToken { subject: Subject::of_token(None), token }, path))
}

/// The own token of a scheduler on this machine that says that it is in this file.
///
/// The server may be any program and name any file, so only a file of this name on this machine that holds a token is read.
///
/// # Errors
///
/// Fails if it cannot be read, with the reason.
pub(crate) fn offered(path: &Path) -> Result<String, String> {
    if !path.is_absolute() || path.file_name().is_none_or(|name| name != OWN_FILE) || is_remote(path) {
        return Err(format!("{} is no file of a token on this machine", path.display()));
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let token = text.trim();
    if is_token(token) { Ok(token.to_owned()) } else { Err("it holds no token".to_owned()) }
}

/// Whether a path leads to another machine, which would learn who asks.
fn is_remote(path: &Path) -> bool {
    path.to_string_lossy().starts_with(['\\', '/']) && path.to_string_lossy()[1..].starts_with(['\\', '/'])
}

fn is_token(text: &str) -> bool {
    (TOKEN_MIN..=TOKEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn random() -> io::Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(model::hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_token_is_made_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let all: Vec<_> = std::thread::scope(|scope| {
            let making: Vec<_> = (0..8).map(|_| scope.spawn(|| own(&state).unwrap())).collect();
            making.into_iter().map(|made| made.join().unwrap()).collect()
        });
        let (first, path) = &all[0];
        assert!(all.iter().all(|(token, _)| token.token == first.token) && first.token.len() == 2 * RANDOM_BYTES);
        assert_eq!(offered(path).unwrap(), first.token);
        fs::write(path, "damaged").unwrap();
        assert!(offered(path).is_err());
        assert_ne!(own(&state).unwrap().0.token, first.token);
    }

    #[test]
    fn no_other_file_is_sent_to_what_asks_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "x".repeat(TOKEN_MIN)).unwrap();
        fs::write(folder.path().join(OWN_FILE), "two words of a file that is no token of a scheduler").unwrap();
        for path in [secret, folder.path().join(OWN_FILE), OWN_FILE.into(), format!("//host/share/{OWN_FILE}").into()] {
            assert!(offered(&path).is_err(), "{}", path.display());
        }
    }

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
