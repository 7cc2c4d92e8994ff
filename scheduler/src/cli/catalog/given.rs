//! Answers as they are given: words of the command line, and files. ◇

use model::Value;

/// Answers of `KEY=VALUE`.
pub(super) fn answers_of_words(words: &[String]) -> Result<Vec<(String, String)>, String> {
    words.iter().map(|word| pair(word).ok_or_else(|| format!("--set: {} is not KEY=VALUE", key_of(word)))).collect()
}

/// Answers of a file: lines `KEY=VALUE`, or a map in YAML or JSON.
pub(super) fn answers_of_file(text: &str) -> Result<Vec<(String, String)>, String> {
    let lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .collect();
    // A line of YAML may have an equals sign too, but behind a colon.
    let is_lines = lines.first().is_some_and(|(_, line)| pair(line).is_some_and(|(key, _)| is_name(&key)));
    if lines.is_empty() {
        return Ok(Vec::new());
    }
    if is_lines {
        let read = |(at, line): &(usize, &str)| pair(line).ok_or_else(|| format!("line {at}: no KEY=VALUE"));
        return lines.iter().map(read).collect();
    }
    let parsed = source::format::parse(text).map_err(|error| error.to_string())?;
    let Value::Map(map) = parsed.value(as_written) else {
        return Err("no answers, expected a map, or lines KEY=VALUE".to_owned());
    };
    let answer = |(key, value): &(model::Text, Value)| match crate::place::hosts::label(&(key.clone(), value.clone())) {
        Some((key, value)) => Ok((key.to_string(), value.to_string())),
        None => Err(format!("{key}: found {}, expected text", value.kind())),
    };
    map.iter().map(answer).collect()
}

/// A plain scalar as it stands there: answers are texts, so `1.10` and `yes` stay what they are.
pub(super) fn as_written(text: &str) -> Value {
    if model::scalar::core(text).is_null() { Value::Null } else { Value::text(text) }
}

fn pair(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    (!key.trim().is_empty()).then(|| (key.trim().to_owned(), value.to_owned()))
}

/// What may be said of a word that is wrong: it may have a password.
fn key_of(word: &str) -> String {
    let start: String = word.chars().take_while(|char| char.is_ascii_alphanumeric() || "_.-".contains(*char)).collect();
    if start.len() == word.len() { format!("{start:?}") } else { format!("what begins with {start:?}") }
}

fn is_name(key: &str) -> bool {
    key.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Vec<String>, String> {
        answers_of_file(text).map(|answers| answers.iter().map(|(key, value)| format!("{key}={value}")).collect())
    }

    #[test]
    fn answers_stand_in_lines_or_in_maps() {
        for (text, expected) in [
            ("", &[][..]),
            ("# none\n\n", &[]),
            ("a=1\n# b\n c = x=y\n", &["a=1", "c= x=y"]),
            ("a: 1.10\nb: yes\nc: \"x=y\"\nd:\n", &["a=1.10", "b=yes", "c=x=y", "d="]),
            ("a: b=c\n", &["a=b=c"]),
            ("{\"a\": 1, \"b\": true}", &["a=1", "b=true"]),
        ] {
            assert_eq!(file(text).unwrap(), expected, "{text}");
        }
        for (text, part) in
            [("a=1\nb\n", "line 2"), ("- a\n", "expected a map"), ("a: [1]\n", "a: found a list"), ("a: {", "")]
        {
            let error = file(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let words = |word: &str| answers_of_words(&[word.to_owned()]);
        assert_eq!(words("a=b=c").unwrap(), [("a".to_owned(), "b=c".to_owned())]);
        assert!(words("port").unwrap_err().contains("\"port\""));
        assert!(!words("=hunter2").unwrap_err().contains("hunter2"));
    }
}
