//! The last good snapshot on disk, for a start without the source.
//!
//! One line that says what it is, with the SHA-256 of the rest; then one object of the snapshot a line.
//! Written aside, flushed and renamed; a damaged file counts as absent. There are tokens in it, so only its
//! owner may read it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Map, Pool, Snapshot, Value, ValueSeed, hex, objects};
use serde::de::DeserializeSeed;
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use crate::file;
use crate::store::Store;

/// First word of the file; the number changes when older programs could not read the rest.
const MAGIC: &str = "berth-state-1";

/// The file's name inside the state directory.
const FILE: &str = "snapshot.ndjson";

/// After a save nothing is saved for this many times what it took, so that storing state stays a small part of the work;
/// within bounds, so that a disk that hung for a minute is not waited for twice.
const REST: u32 = 50;
const REST_BOUNDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// How long nothing is saved after a save that took so long.
pub fn rest_after(took: Duration) -> Duration {
    (took * REST).clamp(REST_BOUNDS.0, REST_BOUNDS.1)
}

/// A state directory.
#[derive(Clone, Debug)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The directory, made when it is not there.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be made.
    pub fn open(path: PathBuf) -> std::io::Result<Self> {
        platform::file::create_private_folder(&path)?;
        Ok(Self(path))
    }

    /// The directory itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The file that holds the snapshot.
    pub fn path(&self) -> PathBuf {
        self.0.join(FILE)
    }

    /// The snapshot stored last; `None` if there is none. A damaged file is renamed and reported.
    pub fn load(&self) -> Option<Snapshot> {
        self.load_as(FILE, decode)
    }

    /// Stores a snapshot in place of the one before, in one step.
    ///
    /// # Errors
    ///
    /// Fails if the disk refuses; the snapshot before stays.
    pub fn save(&self, snapshot: &Snapshot) -> std::io::Result<()> {
        self.save_as(FILE, &seal(&contents(snapshot)?))
    }

    /// The contents stored last under `name`, as [`StateDir::load`] does it.
    pub fn load_contents(&self, name: &str) -> Option<Vec<u8>> {
        self.load_as(name, |bytes| unseal(bytes).map(<[u8]>::to_vec))
    }

    /// Stores contents under `name`, as [`StateDir::save`] does it.
    ///
    /// # Errors
    ///
    /// Fails if the disk refuses; the contents before stay.
    pub fn save_contents(&self, name: &str, contents: &[u8]) -> std::io::Result<()> {
        self.save_as(name, &seal(contents))
    }

    fn load_as<T>(&self, name: &str, decode: impl FnOnce(&[u8]) -> Result<T, &'static str>) -> Option<T> {
        let path = self.0.join(name);
        platform::file::restrict(&path);
        let bytes = match file::read(&path) {
            Ok(bytes) => bytes,
            Err(file::ReadError::Open(platform::file::OpenError::Missing { .. })) => return None,
            Err(error) => {
                warn!(%error, "cannot read the stored snapshot");
                return None;
            }
        };
        match decode(&bytes) {
            Ok(kept) => Some(kept),
            Err(problem) => {
                let aside = path.with_extension("damaged");
                let moved = platform::file::replace(&path, &aside);
                warn!(path = %path.display(), problem, aside = %aside.display(), moved = moved.is_ok(),
                    "the stored snapshot is damaged; starting without it");
                None
            }
        }
    }

    fn save_as(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        platform::file::replace_private(&self.0.join(name), bytes).map(drop)
    }
}

/// Stores each value that is published, from this call on; `what` says in the log what that is. Never ends; drop it to stop.
///
/// # Cancel safety
///
/// May be dropped at any time; a save under way completes on its own thread.
pub fn keep<T: Send + Sync + 'static>(
    published: Arc<Store<T>>,
    what: &'static str,
    save: impl Fn(&T) -> std::io::Result<()> + Clone + Send + 'static,
) -> impl Future<Output = ()> + Send {
    let mut watcher = published.watch();
    async move {
        let mut failing = false;
        loop {
            watcher.changed().await;
            let (save, value) = (save.clone(), published.load_full());
            let begun = Instant::now();
            let saved = tokio::task::spawn_blocking(move || save(&value)).await;
            match &saved {
                Ok(Ok(())) if failing => info!("{what} is stored on disk again"),
                Ok(Err(error)) if !failing => warn!(%error, "cannot store {what} on disk"),
                _ => {}
            }
            failing = !matches!(saved, Ok(Ok(())));
            tokio::time::sleep(rest_after(begun.elapsed())).await;
        }
    }
}

/// Stores each snapshot that is published, as [`keep`] does it.
pub fn keep_snapshots(state: StateDir, published: Arc<Store<Snapshot>>) -> impl Future<Output = ()> + Send {
    keep(published, "the snapshot", move |snapshot| state.save(snapshot))
}

fn contents(snapshot: &Snapshot) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    for object in snapshot.objects() {
        serde_json::to_writer(&mut body, &object)?;
        body.push(b'\n');
    }
    Ok(body)
}

/// Contents with a head that says what they are and proves that they are whole.
fn seal(contents: &[u8]) -> Vec<u8> {
    let mut sealed = format!("{MAGIC} {}\n", hex(&Sha256::digest(contents))).into_bytes();
    sealed.extend_from_slice(contents);
    sealed
}

fn unseal(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("no head")?;
    let (head, body) = (&bytes[..end], &bytes[end + 1..]);
    let sum = std::str::from_utf8(head).ok().and_then(|head| head.strip_prefix(MAGIC)).ok_or("of another kind")?;
    if sum.trim() == hex(&Sha256::digest(body)) { Ok(body) } else { Err("its sum is wrong") }
}

fn decode(bytes: &[u8]) -> Result<Snapshot, &'static str> {
    let body = unseal(bytes)?;
    let mut pool = Pool::default();
    let mut found: Vec<Map> = Vec::new();
    for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        // What was within the bounds of a document is one level deeper here.
        let Ok(Value::Map(object)) = ValueSeed(&mut pool).deserialize(&mut deserializer) else {
            return Err("not readable");
        };
        found.push(object);
    }
    Ok(objects::read(found).0)
}

/// Whether a directory can hold state; for messages before anything depends on it.
///
/// # Errors
///
/// Fails if it cannot be made or written.
pub fn probe(path: &Path) -> std::io::Result<()> {
    let state = StateDir::open(path.to_owned())?;
    let probe = state.0.join("probe");
    std::fs::write(&probe, b"")?;
    std::fs::remove_file(probe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let saved = include_str!("../../../tests/fixtures/metadata/answers.delta.json");
        crate::format::read(saved).unwrap().snapshot
    }

    #[test]
    fn what_is_kept_is_what_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path().join("a/b")).unwrap();
        assert!(state.load().is_none());
        state.save(&snapshot()).unwrap();
        assert_eq!(state.load().unwrap(), snapshot());
    }

    #[test]
    fn any_damage_counts_as_absent_and_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path().to_owned()).unwrap();
        state.save(&snapshot()).unwrap();
        let good = std::fs::read(state.path()).unwrap();
        let mut flipped = good.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let damages =
            [Vec::new(), good[..good.len() / 2].to_vec(), flipped, vec![0; good.len()], b"berth-state-9 00\n".to_vec()];
        for damaged in damages {
            std::fs::write(state.path(), &damaged).unwrap();
            assert!(state.load().is_none());
            assert!(!state.path().exists());
            assert_eq!(std::fs::read(state.path().with_extension("damaged")).unwrap(), damaged);
        }
    }
}
