//! What was shown last, on disk, for a start without etcd: one line for each part.

use model::{Map, Pool, Value, ValueSeed};
use serde::de::DeserializeSeed;
use source::StateDir;

use super::keys::PartId;

/// The file inside the state directory.
const FILE: &str = "etcd.ndjson";

/// The parts that were kept last; none when there is no file or it is damaged. Blocks.
pub(super) fn load(state: &StateDir) -> Vec<(PartId, Map)> {
    let contents = state.load_contents(FILE).unwrap_or_default();
    let mut pool = Pool::default();
    contents.split(|octet| *octet == b'\n').filter_map(|line| decoded(line, &mut pool)).collect()
}

/// Keeps these parts in place of those before. Blocks.
///
/// # Errors
///
/// When the disk refuses; what was kept before stays.
pub(super) fn save(state: &StateDir, parts: &[(PartId, Map)]) -> std::io::Result<()> {
    let mut contents = Vec::new();
    for (id, document) in parts {
        let line = [("part".into(), Value::Text(id.text())), ("document".into(), Value::Map(document.clone()))];
        serde_json::to_writer(&mut contents, &Map::new(line.into()))?;
        contents.push(b'\n');
    }
    state.save_contents(FILE, &contents)
}

fn decoded(line: &[u8], pool: &mut Pool) -> Option<(PartId, Map)> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let Ok(Value::Map(line)) = ValueSeed(pool).deserialize(&mut deserializer) else { return None };
    Some((PartId::parse(line.text("part")?)?, line.map("document")?.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path().to_owned()).unwrap();
        assert_eq!(load(&state), []);
        let document: Map = serde_json::from_str(r#"{"hosts":[{"name":"a/b"}]}"#).unwrap();
        let parts = [(PartId::Document("by hand".into()), document.clone()), (PartId::Host("a/b".into()), document)];
        save(&state, &parts).unwrap();
        assert_eq!(load(&state), parts);
        let path = folder.path().join(FILE);
        let mut octets = std::fs::read(&path).unwrap();
        octets.truncate(octets.len() - 3);
        std::fs::write(&path, octets).unwrap();
        assert_eq!(load(&state), []);
    }
}
