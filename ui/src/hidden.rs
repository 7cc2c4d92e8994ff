//! Labels whose values are not shown, since people put secrets into labels.

use std::borrow::Cow;

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

    /// The value of a label as it is shown. It may be about a label itself, as those of schedulers are.
    pub(crate) fn value<'v>(&self, key: &str, value: &'v str) -> Cow<'v, str> {
        if self.hides(key) { DOTS.into() } else { self.sentence(value) }
    }

    /// A sentence of a scheduler as it is shown: without what follows the key of a label whose value is not.
    pub(crate) fn sentence<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let is_of_key = |char: char| char.is_alphanumeric() || matches!(char, '.' | '-' | '_' | '/');
        let mut end = 0;
        for word in text.split_inclusive(|char| !is_of_key(char)) {
            let key = word.trim_end_matches(|char| !is_of_key(char));
            if !key.is_empty() && self.hides(key) {
                return format!("{} {DOTS}", &text[..end + key.len()]).into();
            }
            end += word.len();
        }
        text.into()
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

    #[test]
    fn sentences_end_at_a_key_whose_value_is_hidden() {
        let hidden = Hidden::new(&["*password*".into()]);
        for (text, shown) in [
            ("needs host with label db_password = x: it is hunter2", "needs host with label db_password •••"),
            ("zone=a,db_password=hunter2", "zone=a,db_password •••"),
            ("needs host with label zone = a: it is b", "needs host with label zone = a: it is b"),
            ("", ""),
        ] {
            assert_eq!(hidden.sentence(text), shown);
            assert_eq!(hidden.value("io.rancher.scheduler.affinity:host_label", text), shown);
        }
    }
}
