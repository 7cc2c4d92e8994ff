//! The `healthcheck` of a service: a command that its engine runs in the container. ◇

use model::{Map, Text, Value};

use crate::cli::compose::deploy::micros;
use crate::cli::compose::section::{Draft, Section};
use crate::cli::compose::service::{integer, texts, truth};
use crate::place::invalid::Invalid;

/// Its times, which compose writes as text and a request as milliseconds.
const TIMES: [&str; 4] = ["interval", "start_interval", "start_period", "timeout"];

/// The check as a request has it; `None` if the service says nothing.
pub(super) fn health_check(service: &Section<'_>) -> Result<Option<Value>, Invalid> {
    let Some(check) = service.below("healthcheck")? else { return Ok(None) };
    check.only(&[&TIMES[..], &["disable", "retries", "test"]].concat())?;
    if truth(&check, "disable")?.is_some() {
        return Ok(Some(Map::new(vec![("test".into(), Value::list(["NONE".into()]))]).into()));
    }
    let mut draft: Draft = Vec::new();
    match check.get("test") {
        None => {}
        Some(Value::List(_)) => {
            let words = texts(&check, "test")?;
            let expected = "NONE, CMD or CMD-SHELL first";
            let first = words.first().map_or("", |word| &**word);
            if !["NONE", "CMD", "CMD-SHELL"].contains(&first) {
                return Err(Invalid::new(check.at("test"), format!("begins with {first:?}"), expected));
            }
            draft.push(("test".into(), Value::list(words.into_iter().map(Value::Text))));
        }
        Some(_) => draft.extend(check.text("test")?.map(|line| ("test".into(), Value::Text(line)))),
    }
    for key in TIMES {
        let Some(text) = check.text(key)? else { continue };
        let wrong = || Invalid::new(check.at(key), format!("found {text:?}"), "a time such as 10s or 1m30s");
        // Zero is as the image says, or the engine.
        let millis = micros(&text).ok_or_else(wrong)?.saturating_add(999) / 1000;
        draft.extend((millis > 0).then(|| (Text::from(key), Value::Int(millis))));
    }
    draft.extend(integer(&check, "retries")?.filter(|times| *times != 0).map(|times| ("retries".into(), times.into())));
    Ok((!draft.is_empty()).then(|| Map::new(draft).into()))
}
