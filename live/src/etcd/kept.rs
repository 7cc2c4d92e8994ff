//! What was shown last, on disk, for a start without etcd: a line with the prefix, then one for each part.

use model::{Map, Pool, Value, ValueSeed};
use serde::de::DeserializeSeed;
use source::StateDir;

use super::keys::PartId;

/// The file inside the state directory.
const FILE: &str = "etcd.ndjson";

/// The parts under a prefix that were kept last; none when there is no file, when it is damaged, or of another prefix. Blocks.
pub(super) fn load(state: &StateDir, prefix: &str) -> Vec<(PartId, Map)> {
    let contents = state.load_contents(FILE).unwrap_or_default();
    let mut pool = Pool::default();
    let mut lines = contents.split(|octet| *octet == b'\n').filter_map(|line| decoded(line, &mut pool));
    // What belongs to another cluster is no word about this one.
    if lines.next().is_none_or(|head| head.text("prefix").is_none_or(|own| **own != *prefix)) {
        return Vec::new();
    }
    lines.filter_map(|line| Some((PartId::parse(line.text("part")?)?, line.map("document")?.clone()))).collect()
}

/// Keeps these parts in place of those before. Blocks.
///
/// # Errors
///
/// When the disk refuses; what was kept before stays.
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
        let mut octets = std::fs::read(&path).unwrap();
        octets.truncate(octets.len() - 3);
        std::fs::write(&path, octets).unwrap();
        assert_eq!(load(&state, "/p/"), []);
    }
}
