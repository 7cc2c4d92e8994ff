//! The last published state on disk, for a start without etcd: a line with the prefix, then one for each part.

use std::path::Path;
use std::time::Duration;

use model::{Map, Pool, Text, Value, ValueSeed};
use serde::de::DeserializeSeed;
use source::StateDir;
use source::state::rest_after;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::warn;

use super::keys::PartId;

/// The file inside the state directory.
const FILE: &str = "etcd.ndjson";

/// How long the last save waits for one that runs, and how often it looks.
const LAST_WAIT: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_millis(1);

/// The parts that were stored last under a prefix; none if the file is missing, damaged or of another prefix. Blocks.
pub(super) fn load(state: &StateDir, prefix: &str) -> Vec<(PartId, Map)> {
    let contents = state.load_contents(FILE).unwrap_or_default();
    let mut pool = Pool::default();
    let mut lines = contents.split(|byte| *byte == b'\n').filter_map(|line| decoded(line, &mut pool));
    // What belongs to another cluster says nothing about this one.
    if lines.next().is_none_or(|head| head.text("prefix").is_none_or(|own| **own != *prefix)) {
        return Vec::new();
    }
    lines.filter_map(|line| Some((PartId::parse(line.text("part")?)?, line.map("document")?.clone()))).collect()
}

/// The keys of the network that were stored last under a prefix in a state directory, with their values. Blocks.
///
/// # Errors
///
/// Fails if the directory cannot be opened.
pub fn network_keys(folder: &Path, prefix: &str) -> std::io::Result<Vec<(String, Map)>> {
    let parts = load(&StateDir::open(folder.to_owned())?, prefix).into_iter();
    Ok(parts
        .filter(|(id, _)| matches!(id, PartId::Network(_)))
        .map(|(id, value)| (id.text().to_string(), value))
        .collect())
}

/// Stores these parts in place of those before. Blocks.
///
/// # Errors
///
/// Fails if the disk refuses; what was stored before stays.
pub(super) fn save(state: &StateDir, prefix: &str, parts: &[(PartId, Map)]) -> std::io::Result<()> {
    let mut contents = Vec::new();
    serde_json::to_writer(&mut contents, &Map::new(vec![("prefix".into(), Value::text(prefix))]))?;
    contents.push(b'\n');
    for (id, document) in parts {
        let line = [("part".into(), Value::Text(id.text())), ("document".into(), Value::Map(document.clone()))];
        serde_json::to_writer(&mut contents, &Map::new(line.into()))?;
        contents.push(b'\n');
    }
    state.save_contents(FILE, &contents)
}

/// Decides when what is published is stored on disk.
pub(super) struct Saving {
    state: Option<StateDir>,
    prefix: Text,
    /// Whether what is published differs from what is stored.
    pub(super) due: bool,
    not_before: Instant,
    running: Option<JoinHandle<Duration>>,
}

impl Saving {
    pub(super) fn new(state: Option<StateDir>, prefix: Text) -> Self {
        Self { state, prefix, due: false, not_before: Instant::now(), running: None }
    }

    /// When the next save is to begin.
    pub(super) fn next(&self) -> Option<Instant> {
        (self.due && self.running.is_none() && self.state.is_some()).then_some(self.not_before)
    }

    /// Begins to store what is published.
    pub(super) fn save<'w>(&mut self, shown: impl Iterator<Item = (&'w PartId, &'w Map)>) {
        let Some(state) = self.state.clone() else { return };
        let prefix = self.prefix.clone();
        let parts: Vec<_> = shown.map(|(id, document)| (id.clone(), document.clone())).collect();
        self.due = false;
        self.running = Some(tokio::task::spawn_blocking(move || {
            let begun = std::time::Instant::now();
            if let Err(error) = save(&state, &prefix, &parts) {
                warn!(%error, "cannot store the state of etcd on disk");
            }
            begun.elapsed()
        }));
    }

    /// Waits for the save that runs; never completes if none does.
    pub(super) async fn saved(&mut self) {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let took = running.await.unwrap_or_default();
        self.running = None;
        self.not_before = Instant::now() + rest_after(took);
    }

    /// Stores what is published, if that is due, before this ends. Blocks.
    pub(super) fn last<'w>(&mut self, shown: impl Iterator<Item = (&'w PartId, &'w Map)>) {
        let (true, Some(state)) = (std::mem::take(&mut self.due), &self.state) else { return };
        let begun = std::time::Instant::now();
        // Two at a time would write into one file.
        while self.running.as_ref().is_some_and(|running| !running.is_finished()) {
            if begun.elapsed() > LAST_WAIT {
                return;
            }
            std::thread::sleep(LAST_LOOK);
        }
        let parts: Vec<_> = shown.map(|(id, document)| (id.clone(), document.clone())).collect();
        if let Err(error) = save(state, &self.prefix, &parts) {
            warn!(%error, "cannot store the state of etcd on disk");
        }
    }
}

fn decoded(line: &[u8], pool: &mut Pool) -> Option<Map> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    match ValueSeed(pool).deserialize(&mut deserializer) {
        Ok(Value::Map(line)) => Some(line),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path().to_owned()).unwrap();
        assert_eq!(load(&state, "/p/"), []);
        let document: Map = serde_json::from_str(r#"{"hosts":[{"name":"a/b"}]}"#).unwrap();
        let parts = [(PartId::Document("by hand".into()), document.clone()), (PartId::Host("a/b".into()), document)];
        save(&state, "/p/", &parts).unwrap();
        assert_eq!(load(&state, "/p/"), parts);
        assert_eq!(load(&state, "/other/"), []);
        let path = folder.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 3);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(load(&state, "/p/"), []);
    }
}
