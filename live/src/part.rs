//! Parts of a cluster on their way into one snapshot, and on disk for a start without anybody who tells them.

use std::io::{self, Write as _};

use imbl::OrdMap;
use model::{Defect, Map, Pool, Text, Value, ValueSeed};
use serde::de::DeserializeSeed as _;
use tokio::sync::oneshot;

/// What became of one part.
#[derive(Clone, Debug, PartialEq)]
pub struct PartChange {
    /// Whose word it is: a host's name, or `documents/NAME`.
    pub part: Text,
    /// Its cluster document; `None` when it is gone.
    pub document: Option<Map>,
    /// What was left out of the document, with the reason.
    pub defects: Vec<Defect>,
}

/// Changes that are published together.
#[derive(Debug, Default)]
pub struct Batch {
    /// The changes; of two of one part the later one counts.
    pub changes: Vec<PartChange>,
    /// Whether these are all parts that there are: others are gone.
    pub whole: bool,
    /// Answered when everything that follows from the changes is visible.
    pub done: Option<oneshot::Sender<()>>,
}

/// The documents of all parts by name.
pub type Parts = OrdMap<Text, Map>;

/// The parts as they are kept on disk: one JSON object a line.
///
/// # Errors
///
/// None that a disk has not, since everything is written to memory.
pub fn contents(parts: &Parts) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    for (part, document) in parts {
        let line = [("part", Value::Text(part.clone())), ("document", Value::Map(document.clone()))];
        let line: Map = line.into_iter().map(|(key, value)| (Text::from(key), value)).collect();
        serde_json::to_writer(&mut contents, &line)?;
        contents.write_all(b"\n")?;
    }
    Ok(contents)
}

/// The parts that were kept; `None` when a line is none.
pub fn parts(contents: &[u8]) -> Option<Parts> {
    let mut pool = Pool::default();
    let lines = contents.split(|octet| *octet == b'\n').filter(|line| !line.is_empty());
    let part = |line| {
        let value = ValueSeed(&mut pool).deserialize(&mut serde_json::Deserializer::from_slice(line)).ok()?;
        let line = value.as_map()?;
        Some((line.text("part")?.clone(), line.map("document")?.clone()))
    };
    lines.map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_comes_back() {
        let value: Value = serde_json::from_str(r#"{"hosts": [{"name": "a", "labels": {"x": "ü\n"}}]}"#).unwrap();
        let kept = Parts::unit("a".into(), value.as_map().unwrap().clone());
        let kept = kept.update("documents/web".into(), Map::default());
        assert_eq!(parts(&contents(&kept).unwrap()).unwrap(), kept);
        assert_eq!(parts(b"").unwrap(), Parts::default());
        assert_eq!(parts(b"{\"part\": 1}\n"), None);
    }
}
