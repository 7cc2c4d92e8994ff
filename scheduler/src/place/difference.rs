//! How two requests differ, by the names of their fields: values may be secret.

use std::collections::BTreeSet;

use model::{Map, Value};

/// Most names: more would bury what matters.
const NAMES_MAX: usize = 8;

/// The fields in which two requests differ, in the order of their names; of maps the entries that differ.
pub(crate) fn differences(before: &Map, now: &Map) -> Vec<String> {
    let mut found = BTreeSet::new();
    compare("", before, now, &mut found);
    let more = found.len().saturating_sub(NAMES_MAX);
    let mut names: Vec<String> = found.into_iter().take(NAMES_MAX).collect();
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names
}

fn compare(path: &str, before: &Map, now: &Map, found: &mut BTreeSet<String>) {
    for (key, _) in before.iter().chain(now) {
        let name = format!("{path}{key}");
        match (before.get(key), now.get(key)) {
            (before, now) if before == now => {}
            (Some(Value::Map(before)), Some(Value::Map(now))) => compare(&format!("{name}."), before, now, found),
            _ => drop(found.insert(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_fields_are_named_and_their_values_are_not() {
        let map = |json: &str| serde_json::from_str::<Value>(json).unwrap().as_map().unwrap().clone();
        let before =
            map(r#"{"id": "a", "image": "web:1", "environment": {"A": "1", "SECRET": "x"}, "ports": ["80:80"]}"#);
        let now = map(r#"{"id": "a", "image": "web:2", "environment": {"A": "1", "SECRET": "y"}, "count": 2}"#);
        assert_eq!(differences(&before, &now), ["count", "environment.SECRET", "image", "ports"]);
        assert!(differences(&now, &now).is_empty());
    }
}
