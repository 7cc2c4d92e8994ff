//! Labels whose values are not shown, since people put secrets into labels.

/// Patterns of keys, `*` for any characters, in any case.
#[derive(Clone, Debug)]
pub(crate) struct Hidden(Vec<String>);

/// What stands for a value that is not shown.
const DOTS: &str = "•••";

impl Hidden {
    /// These patterns.
    pub(crate) fn new(patterns: &[String]) -> Self {
        Self(
            patterns
                .iter()
                .map(|pattern| pattern.trim().to_lowercase())
                .filter(|pattern| !pattern.is_empty())
                .collect(),
        )
    }

    /// The value of a label as it is shown.
    pub(crate) fn value<'v>(&self, key: &str, value: &'v str) -> &'v str {
        if self.hides(key) { DOTS } else { value }
    }

    /// Whether the value of this label is not shown; nor is it searched.
    pub(crate) fn hides(&self, key: &str) -> bool {
        let key = key.to_lowercase();
        self.0.iter().any(|pattern| matches(pattern, &key))
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = parts.collect();
    // Without a star, it is the whole key.
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_that_sound_secret_are_dots() {
        let hidden = Hidden::new(&["*password*".into(), "*key".into(), "pin".into(), "a*b*c".into()]);
        for (key, is_hidden) in [
            ("DB_PASSWORD", true),
            ("password", true),
            ("api-Key", true),
            ("keyboard", false),
            ("pin", true),
            ("pins", false),
            ("axxbyyc", true),
            ("acb", false),
            ("zone", false),
        ] {
            assert_eq!(hidden.value(key, "v") == DOTS, is_hidden, "{key}");
        }
    }
}
