//! The ledger's key: a file of the scheduler, and in etcd the fingerprint by which schedulers know that they have the
//! same one.
//!
//! The first scheduler of a ledger makes the key. Every other one needs a copy of the file, which is how an operator
//! decides who may write records that are believed: rights in etcd alone are not enough.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use etcd::{Compare, EtcdClient, EtcdError, Op, Txn};
use model::Text;
use tokio::task::spawn_blocking;
use tracing::info;

use crate::ledger::etcd::keys::{Key, KeyFingerprint, Keys, Presence};
use crate::ledger::etcd::seal::LedgerKey;

/// Longest key file that is read, in bytes: a key and blanks around it.
const FILE_MAX: u64 = 1024;

/// How to get the key of a ledger that has one.
const COPY: &str = "copy the file from the host of another scheduler of this ledger (there --ledger-key, \
    or ledger.key in the state directory)";

/// Why a scheduler does not share the ledger.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    /// Etcd cannot say which key the ledger has.
    #[error("cannot reach etcd ({0})")]
    Etcd(#[from] EtcdError),
    /// The ledger has a key that is not here.
    #[error("the ledger in etcd is sealed with the key {fingerprint}, and there is no {}: {COPY}", .path.display())]
    Missing {
        /// Where the key should be.
        path: PathBuf,
        /// The fingerprint of the ledger's key.
        fingerprint: Text,
    },
    /// The ledger has another key.
    #[error(
        "the ledger in etcd is sealed with the key {fingerprint}, and {} has the key {own}: {COPY}",
        .path.display()
    )]
    Other {
        /// Where the key is.
        path: PathBuf,
        /// Its fingerprint.
        own: Text,
        /// The fingerprint of the ledger's key.
        fingerprint: Text,
    },
    /// Another scheduler seals contents of files with another key.
    #[error(
        "the scheduler {by} seals contents of files with the key {fingerprint}, and --secrets-key of this one is {own}: give all \
         schedulers of the ledger the same, or stop those with the old one"
    )]
    OtherSecrets {
        /// The other scheduler.
        by: Text,
        /// The fingerprint of its key.
        fingerprint: Text,
        /// That of the key here.
        own: Text,
    },
    /// A release without seals wrote the ledger.
    #[error(
        "the ledger in etcd has no key, and {0} placements: they are of a release that had no seals, or not by a \
         scheduler; stop the schedulers of that release, and let `scheduler ledger seal` list and seal them"
    )]
    Unsealed(usize),
    /// The file holds something else.
    #[error("{} does not hold a key of a ledger, which has 64 hexadecimal digits", .0.display())]
    NoKey(PathBuf),
    /// The file cannot be used.
    #[error("cannot use the ledger's key in {}: {error}", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The key of the ledger in etcd, which is in the file at `path`. Where the ledger has none, it is that of the file from
/// now on; where there is no file either, one is made, unless the ledger has placements and is not being `adopted`.
///
/// # Errors
///
/// Fails if the ledger has another key than the file, or one of the two cannot be used.
pub(crate) async fn agree(client: &EtcdClient, keys: &Keys, path: &Path, adopted: bool) -> Result<LedgerKey, KeyError> {
    let name = keys.of(&Key::Seal);
    let mut made = false;
    loop {
        let (stored, _) = client.get(name.as_bytes()).await?;
        let file = blocking(path, read).await?;
        if let Some(stored) = stored {
            let fingerprint = KeyFingerprint::read(&stored.value);
            return match file {
                Some(key) if key.fingerprint() == fingerprint => Ok(key),
                // Another scheduler was faster. A file with another key would have to be replaced by hand.
                Some(_) if made => {
                    blocking(path, |path| std::fs::remove_file(path).map_err(|error| unusable(path, error))).await?;
                    Err(KeyError::Missing { path: path.to_owned(), fingerprint })
                }
                Some(key) => Err(KeyError::Other { path: path.to_owned(), own: key.fingerprint(), fingerprint }),
                None => Err(KeyError::Missing { path: path.to_owned(), fingerprint }),
            };
        }
        let key = if let Some(key) = file {
            key
        } else {
            let placements =
                if adopted { 0 } else { client.list(keys.placements().as_bytes(), true).await?.pairs.len() };
            if placements > 0 {
                return Err(KeyError::Unsealed(placements));
            }
            let (key, is_new) = blocking(path, create).await?;
            made = is_new;
            key
        };
        let value = KeyFingerprint::written(&key.fingerprint());
        let put = Op::Put { key: name.clone().into_bytes(), value, lease: 0 };
        let txn = Txn { compare: vec![Compare::absent(name.as_bytes())], success: vec![put], failure: Vec::new() };
        if client.txn(txn).await?.succeeded {
            info!(path = %path.display(), fingerprint = %key.fingerprint(), "the ledger in etcd is sealed with this key");
            return Ok(key);
        }
    }
}

/// Fails if another scheduler of the ledger seals contents of files with another key than this one, `me`, whose key has the fingerprint
/// `own`: neither could start what the other one has taken. Of several keys, that of the scheduler that is there for longest counts.
///
/// # Errors
///
/// [`KeyError::OtherSecrets`]; fails also if etcd cannot be reached.
pub(crate) async fn agree_on_secrets(
    client: &EtcdClient,
    keys: &Keys,
    me: &Text,
    own: Option<&Text>,
) -> Result<(), KeyError> {
    let Some(own) = own else { return Ok(()) };
    let living = client.list(keys.schedulers().as_bytes(), false).await?;
    let with_key = living.pairs.iter().filter_map(|pair| match keys.parse(&pair.key)? {
        Key::Scheduler(id) => Some((pair.create_revision, id, Presence::secrets(&pair.value)?)),
        _ => None,
    });
    match with_key.min_by_key(|(created, ..)| *created) {
        Some((_, by, fingerprint)) if by != *me && fingerprint != *own => {
            Err(KeyError::OtherSecrets { by, fingerprint, own: own.clone() })
        }
        _ => Ok(()),
    }
}

async fn blocking<T: Send + 'static>(
    path: &Path,
    act: impl FnOnce(&Path) -> Result<T, KeyError> + Send + 'static,
) -> Result<T, KeyError> {
    let owned = path.to_owned();
    let done = spawn_blocking(move || act(&owned)).await;
    done.unwrap_or_else(|failed| Err(unusable(path, io::Error::other(failed))))
}

fn unusable(path: &Path, error: io::Error) -> KeyError {
    KeyError::Unusable { path: path.to_owned(), error }
}

/// The key in the file; `None` when there is no file.
pub(crate) fn read(path: &Path) -> Result<Option<LedgerKey>, KeyError> {
    let file = match platform::file::open_regular(path) {
        Ok(file) => file,
        Err(platform::file::OpenError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(unusable(path, error.into())),
    };
    // A copy may have been made with any rights.
    platform::file::restrict(path);
    let mut text = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut text).map_err(|error| unusable(path, error))?;
    LedgerKey::parse(&text).map(Some).ok_or_else(|| KeyError::NoKey(path.to_owned()))
}

/// Makes a file with a new key; where another process was faster, its key counts, and `false` is returned with it.
fn create(path: &Path) -> Result<(LedgerKey, bool), KeyError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| unusable(path, io::Error::other(error)))?;
    let key = LedgerKey::new(random);
    match platform::file::create_new_private(path, key.text().as_bytes()) {
        Ok(()) => Ok((key, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = read(path)?.ok_or_else(|| unusable(path, error))?;
            Ok((there, false))
        }
        Err(error) => Err(unusable(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_made_once_and_anything_else_in_its_place_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.key");
        assert!(read(&path).unwrap().is_none());
        let (made, is_new) = create(&path).unwrap();
        assert!(is_new);
        assert_eq!(read(&path).unwrap().unwrap().fingerprint(), made.fingerprint());
        let (again, is_new) = create(&path).unwrap();
        assert_eq!((again.fingerprint(), is_new), (made.fingerprint(), false), "the one that is there counts");
        std::fs::write(&path, "secret").unwrap();
        assert!(matches!(read(&path), Err(KeyError::NoKey(_))));
        assert!(matches!(read(folder.path()), Err(KeyError::Unusable { .. })));
    }
}
