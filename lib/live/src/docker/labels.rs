//! Labels within bounds: of a container with absurd labels the reasonable ones stay, and no other container is harmed.

use std::collections::HashMap;

use model::{Defect, Map, Text, Value};

/// Most labels of one entity. Images have a few dozen; every label is stored, sent and indexed by all hosts.
pub(super) const LABELS_MAX: usize = 1024;

/// Longest label, key and value. The longest ones known (metadata of build packs) have some ten thousand bytes.
pub(super) const LABEL_BYTES_MAX: usize = 64 << 10;

/// Most bytes of all labels of one entity, so that one container costs no more than a few hundred others.
pub(super) const LABELS_BYTES_MAX: usize = 256 << 10;

/// Prefixes of keys that say where a container belongs: they stay first.
const TELLING: [&str; 3] = ["com.docker.compose.", "io.rancher.", "io.berth."];

/// Whether a label says where a container belongs.
pub(super) fn is_membership_label(key: &str) -> bool {
    TELLING.iter().any(|start| key.starts_with(start))
}

/// The labels of the entity at `path`, within bounds; what was left out becomes a defect.
pub(super) fn bounded<'l>(
    labels: impl IntoIterator<Item = (&'l str, &'l str)>,
    path: &str,
    defects: &mut Vec<Defect>,
) -> Map {
    let mut entries: Vec<(&str, &str)> = labels.into_iter().collect();
    // Sorted, so that what is left out does not depend on the order of the engine.
    entries.sort_by_key(|(key, _)| (!is_membership_label(key), *key));
    let (mut bytes, mut long, mut many) = (0, Vec::new(), 0);
    let mut kept: Vec<(Text, Value)> = Vec::with_capacity(entries.len().min(LABELS_MAX));
    for (key, value) in &entries {
        let size = key.len() + value.len();
        if size > LABEL_BYTES_MAX {
            long.push(*key);
        } else if kept.len() == LABELS_MAX || bytes + size > LABELS_BYTES_MAX {
            many += 1;
        } else {
            bytes += size;
            kept.push(((*key).into(), Value::text(*value)));
        }
    }
    if let Some(first) = long.first() {
        let start: String = first.chars().take(64).collect();
        let problem = format!("{} longer than {LABEL_BYTES_MAX} bytes are left out, such as {start:?}", long.len());
        defects.push(Defect::ignored(format!("{path}/labels"), problem));
    }
    if many > 0 {
        let total = entries.len();
        let problem = format!(
            "{many} of {total} are left out: an entity has at most {LABELS_MAX} labels and {LABELS_BYTES_MAX} bytes of them"
        );
        defects.push(Defect::ignored(format!("{path}/labels"), problem));
    }
    Map::new(kept)
}

/// The entries of a map as texts.
pub(super) fn texts(labels: Option<&HashMap<String, String>>) -> impl Iterator<Item = (&str, &str)> {
    labels.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(labels: &[(String, String)], kept: usize, problem: Option<&str>) -> Map {
        let mut defects = Vec::new();
        let entries = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let map = bounded(entries, "containers/a", &mut defects);
        assert_eq!(map.len(), kept);
        let problems: Vec<_> = defects.iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), usize::from(problem.is_some()), "{problems:?}");
        assert!(
            problem.is_none_or(|problem| problems[0].starts_with("containers/a/labels: ") && problems[0].contains(problem))
        );
        map
    }

    #[test]
    fn absurd_labels_are_left_out_and_those_of_membership_stay() {
        let mut labels: Vec<_> = (0..10_000).map(|at| (format!("a{at:05}"), String::new())).collect();
        labels.push(("io.rancher.stack.name".into(), "shop".into()));
        let map = check(&labels, LABELS_MAX, Some("8977 of 10001 are left out"));
        assert_eq!(map.text("io.rancher.stack.name").map(|text| &**text), Some("shop"));
        check(&[("a".into(), "b".repeat(LABEL_BYTES_MAX)), ("c".into(), "d".into())], 1, Some("such as \"a\""));
        let large: Vec<_> = (0..10).map(|at| (format!("a{at}"), "b".repeat(60_000))).collect();
        check(&large, 4, Some("6 of 10"));
        check(&[("a".into(), "\0\n\u{7f}ü".into()), (String::new(), String::new())], 2, None);
    }
}
