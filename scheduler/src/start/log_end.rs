//! The end of the log of a container that failed at its start: why it did, for those who may read that log. ◇

use serde_json::Value;

/// Between what happened and what the log says.
const BETWEEN: &str = "; its log ends with: ";

/// The words for everybody else.
const HIDDEN: &str = "; its log is shown to who may read it";

/// What happened, with the last words of the log if there are any.
pub(crate) fn with_log(problem: String, words: &str) -> String {
    if words.is_empty() { problem } else { format!("{problem}{BETWEEN}{words}") }
}

/// A text without such words.
pub(crate) fn without_log(text: &str) -> String {
    text.split_once(BETWEEN).map_or_else(|| text.to_owned(), |(problem, _)| format!("{problem}{HIDDEN}"))
}

/// The same for all texts in an answer.
pub(crate) fn hide_logs(answer: &mut Value) {
    match answer {
        Value::String(text) if text.contains(BETWEEN) => *text = without_log(text),
        Value::Array(list) => list.iter_mut().for_each(hide_logs),
        Value::Object(fields) => fields.values_mut().for_each(hide_logs),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_log_says_is_taken_out_wherever_it_stands() {
        let text = with_log("it ended with 3".into(), "PASSWORD=1; its log ends with: 2");
        assert!(text.ends_with("PASSWORD=1; its log ends with: 2"));
        let mut answer = json!({ "why": [{ "detail": text }], "units": 3, "name": "web", "no": null });
        hide_logs(&mut answer);
        let hidden = "it ended with 3; its log is shown to who may read it";
        assert_eq!(answer, json!({ "why": [{ "detail": hidden }], "units": 3, "name": "web", "no": null }));
        assert_eq!(with_log("it ended".into(), ""), "it ended");
        assert_eq!(without_log("it ended"), "it ended");
    }
}
