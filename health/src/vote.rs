//! A vote: what one checker thinks of a container, for the container's own host to read.

use model::votes::START;
use model::{Map, Text, Value};

use crate::opinion::Opinion;

/// A vote. It is there while its opinion differs from what the container's own host publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vote {
    /// What the checker thinks; never that it does not know yet.
    pub(crate) opinion: Opinion,
    /// For how many starts of the container it counts.
    pub(crate) start: i64,
    /// Why, for people.
    pub(crate) reason: Option<Text>,
}

impl Vote {
    /// The vote as it is written.
    pub(crate) fn to_map(&self) -> Map {
        let fields = [
            ("opinion", Some(Value::text(self.opinion.word()))),
            (START, Some(Value::Int(self.start))),
            ("reason", self.reason.clone().map(Value::Text)),
        ];
        fields.into_iter().filter_map(|(key, value)| Some((key.into(), value?))).collect()
    }

    /// The vote that was written, if it is one.
    pub(crate) fn of_map(map: &Map) -> Option<Self> {
        let opinion = [Opinion::Up, Opinion::Down]
            .into_iter()
            .find(|one| map.text("opinion").is_some_and(|word| **word == *one.word()))?;
        Some(Self { opinion, start: map.int(START)?, reason: map.text("reason").cloned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_what_is_no_vote_is_none() {
        let vote = Vote { opinion: Opinion::Down, start: 3, reason: Some("connect: refused".into()) };
        assert_eq!(Vote::of_map(&vote.to_map()), Some(vote));
        for wrong in [
            "{}",
            r#"{"opinion": "initializing", "start": 3}"#,
            r#"{"opinion": "up"}"#,
            r#"{"opinion": 1, "start": 3}"#,
        ] {
            assert_eq!(Vote::of_map(&serde_json::from_str(wrong).unwrap()), None, "{wrong}");
        }
    }
}
