//! The predecessor's answers: version, then client address or `default`, then a tree to serve as it is.

use std::collections::BTreeMap;

use crate::defect::Defect;
use crate::fingerprint::Fingerprint;
use crate::fingerprint::content::{Met, of_shared_map};
use crate::value::{Map, Text, Value};

/// Trees by client address (or `default`).
pub type Clients = BTreeMap<Text, Map>;

/// The word that stands for every client without answers of its own.
pub const DEFAULT_CLIENT: &str = "default";

/// Answers to give verbatim.
#[derive(Clone, Debug)]
pub struct Answers {
    versions: BTreeMap<Text, Clients>,
    fingerprint: Fingerprint,
}

impl Answers {
    /// The answers in a value of the form `{version: {client: tree}}`.
    ///
    /// A version or a client whose value is no map becomes a defect and harms nothing else.
    ///
    /// # Errors
    ///
    /// Fails if not one version has anything to answer to one client.
    pub fn new(value: &Value) -> Result<(Self, Vec<Defect>), NoAnswers> {
        let (versions, defects) = versions(value)?;
        Ok((Self::of(versions, &mut Met::default()), defects))
    }

    pub(crate) fn of(versions: BTreeMap<Text, Clients>, met: &mut Met) -> Self {
        let mut known = Vec::new();
        for (version, clients) in &versions {
            for (client, tree) in clients {
                known.push((version, client, of_shared_map(tree, met)));
            }
        }
        let fingerprint = Fingerprint::of(&known);
        Self { versions, fingerprint }
    }

    /// The versions and their answers, in the order of their names.
    pub fn versions(&self) -> &BTreeMap<Text, Clients> {
        &self.versions
    }

    /// Stands for the whole content.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The answers as the value they were read from.
    pub fn value(&self) -> Value {
        let tree = |(client, tree): (&Text, &Map)| (client.clone(), Value::Map(tree.clone()));
        let clients = |clients: &Clients| Value::Map(clients.iter().map(tree).collect());
        Value::Map(self.versions.iter().map(|(version, trees)| (version.clone(), clients(trees))).collect())
    }
}

/// The trees in a value, and what is none.
pub(crate) fn versions(value: &Value) -> Result<(BTreeMap<Text, Clients>, Vec<Defect>), NoAnswers> {
    let mut defects = Vec::new();
    let mut versions = BTreeMap::new();
    for (version, clients) in value.as_map().ok_or(NoAnswers)? {
        let Some(clients) = clients.as_map() else {
            let problem = format!("expected clients and their answers, found {}", clients.kind());
            defects.push(Defect::hidden(version.to_string(), problem));
            continue;
        };
        let mut trees = Vec::with_capacity(clients.len());
        for (client, tree) in clients {
            if let Some(tree) = tree.as_map() {
                trees.push((client.clone(), tree.clone()));
            } else {
                let problem = format!("expected answers, found {}", tree.kind());
                defects.push(Defect::hidden(format!("{version}/{client}"), problem));
            }
        }
        if trees.iter().any(|(_, tree)| !tree.is_empty()) {
            // In order already, of which a map of many makes use.
            versions.insert(version.clone(), Clients::from_iter(trees));
        }
    }
    if versions.is_empty() { Err(NoAnswers) } else { Ok((versions, defects)) }
}

/// There is not one tree of answers in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswers;

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(json: &str) -> Result<(Answers, Vec<Defect>), NoAnswers> {
        Answers::new(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn what_is_no_tree_is_left_out_alone() {
        let (answers, defects) = answers(r#"{"n":1,"latest":{"default":{"name":"x"},"10.0.0.1":3}}"#).unwrap();
        assert_eq!(answers.versions().len(), 1);
        let paths: Vec<_> = defects.iter().map(|defect| defect.path.as_str()).collect();
        assert_eq!(paths, ["latest/10.0.0.1", "n"]);
    }

    #[test]
    fn nothing_to_answer_is_refused() {
        for json in [
            "{}",
            "null",
            "[]",
            "42",
            r#"{"latest":[1,2,{"default":3}]}"#,
            r#"{"latest":{}}"#,
            r#"{"latest":{"default":{}}}"#,
        ] {
            assert_eq!(answers(json).err(), Some(NoAnswers), "{json}");
        }
    }
}
