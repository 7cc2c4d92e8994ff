//! Bearer tokens that a process makes for itself: it names the file, and who can read that may change things.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Shortest token: 16 random bytes in hexadecimal.
pub const TOKEN_MIN: usize = 32;

/// Longest token: it has to fit a header.
pub const TOKEN_MAX: usize = 1024;

/// Random bytes of an own token.
const RANDOM_BYTES: usize = 32;

/// The own token in the file of this name in the state directory, else in the folder for state of the process's user, and
/// that file; made when there is none yet.
///
/// # Errors
///
/// Why there is none.
pub fn own(state: Option<&Path>, name: &str) -> Result<(String, PathBuf), String> {
    let folder = state.map(Path::to_owned).or_else(platform::file::user_state_folder);
    let folder = folder.ok_or("there is no state directory")?;
    own_in(&folder, name).map_err(|error| format!("cannot store it in {}: {error}", folder.display()))
}

fn own_in(folder: &Path, name: &str) -> io::Result<(String, PathBuf)> {
    platform::file::create_private_folder(folder)?;
    let path = std::path::absolute(folder)?.join(name);
    // Several processes of one user share it, and may start at the same time.
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
    Ok((token, path))
}

/// The own token of a process on this machine that says that it is in this file.
///
/// The server may be any program and name any file, so only a file of this name on this machine that holds a token is read.
///
/// # Errors
///
/// Fails if it cannot be read, with the reason.
pub fn offered(path: &Path, name: &str) -> Result<String, String> {
    if !path.is_absolute() || path.file_name().is_none_or(|own| own != name) || is_remote(path) {
        return Err(format!("{} is no file of a token on this machine", path.display()));
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let token = text.trim();
    if is_token(token) { Ok(token.to_owned()) } else { Err("it holds no token".to_owned()) }
}

/// The token that stands alone in a file.
///
/// # Errors
///
/// Fails if the file cannot be read, others can read or change it too, or it holds no token, with a sentence.
pub fn read(path: &Path) -> Result<String, String> {
    let read = platform::file::must_be_secret(path).and_then(|()| fs::read_to_string(path));
    let text = read.map_err(|error| format!("cannot read the token in {}: {error}", path.display()))?;
    let token = text.trim();
    if is_token(token) {
        return Ok(token.to_owned());
    }
    let expected = format!("expected {TOKEN_MIN} to {TOKEN_MAX} without spaces");
    Err(format!("the token in {} has {} bytes, {expected}", path.display(), token.len()))
}

/// Whether the value of an `Authorization` header is this token; takes the same time wherever the first difference is.
pub fn is_bearer(value: &[u8], token: &str) -> bool {
    let Some((scheme, given)) = value.split_at_checked("bearer ".len()) else { return false };
    let differing = given.iter().zip(token.as_bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differing == 0 && scheme.eq_ignore_ascii_case(b"bearer ")
}

/// Whether a text can be a token.
pub fn is_token(text: &str) -> bool {
    (TOKEN_MIN..=TOKEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether a path leads to another machine, which would learn who asks.
fn is_remote(path: &Path) -> bool {
    path.to_string_lossy().starts_with(['\\', '/']) && path.to_string_lossy()[1..].starts_with(['\\', '/'])
}

fn random() -> io::Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(model::hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "own.token";

    #[test]
    fn an_own_token_is_made_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let all: Vec<_> = std::thread::scope(|scope| {
            let making: Vec<_> = (0..8).map(|_| scope.spawn(|| own(Some(&state), NAME).unwrap())).collect();
            making.into_iter().map(|made| made.join().unwrap()).collect()
        });
        let (first, path) = &all[0];
        assert!(all.iter().all(|(token, _)| token == first) && first.len() == 2 * RANDOM_BYTES);
        assert_eq!(offered(path, NAME).unwrap(), *first);
        fs::write(path, "damaged").unwrap();
        assert!(offered(path, NAME).is_err());
        assert_ne!(own(Some(&state), NAME).unwrap().0, *first);
    }

    #[test]
    fn no_other_file_is_sent_to_what_asks_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "x".repeat(TOKEN_MIN)).unwrap();
        fs::write(folder.path().join(NAME), "two words of a file that is no token").unwrap();
        for path in [secret, folder.path().join(NAME), NAME.into(), format!("//host/share/{NAME}").into()] {
            assert!(offered(&path, NAME).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn a_bearer_has_the_whole_token() {
        let token = "0123456789abcdef0123456789abcdef";
        for (value, is) in [
            (format!("Bearer {token}"), true),
            (format!("bearer {token}"), true),
            (format!("Bearer {token}0"), false),
            (format!("Bearer {}", &token[1..]), false),
            (format!("Basic {token}"), false),
            (token.to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_bearer(value.as_bytes(), token), is, "{value}");
        }
    }
}
