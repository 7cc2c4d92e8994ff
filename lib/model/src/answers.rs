//! The predecessor's answers: version, then client address or `default`, then a tree to serve as it is
//! (spec/metadata.md section 7).

use std::collections::BTreeMap;

use foldhash::HashSet;

use crate::defect::Defect;
use crate::fingerprint::Fingerprint;
use crate::fingerprint::content::{Met, of_shared_map};
use crate::objects::Reading;
use crate::snapshot::Snapshot;
use crate::tree;
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

    /// The snapshot that serves the answers in a value, see [`Answers::new`], with the entities found in the newest
    /// version's default tree.
    ///
    /// A container that is only in its own client's answers counts too.
    ///
    /// # Errors
    ///
    /// Fails if not one version has anything to answer to one client.
    pub fn read(value: &Value) -> Result<(Snapshot, Vec<Defect>), NoAnswers> {
        let (versions, mut defects) = versions(value)?;
        // Containers are in there twice, in the lists and as themselves.
        let mut met = Met::default();
        let (snapshot, more) = entities(&versions, &mut met);
        defects.extend(more);
        let answers = Self::of(versions, &mut met);
        Ok((Snapshot { answers: Some(answers.into()), ..snapshot }, defects))
    }

    fn of(versions: BTreeMap<Text, Clients>, met: &mut Met) -> Self {
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
fn versions(value: &Value) -> Result<(BTreeMap<Text, Clients>, Vec<Defect>), NoAnswers> {
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

/// The entities found in the newest version's default tree, and containers that are only in their own answers.
fn entities(versions: &BTreeMap<Text, Clients>, met: &mut Met) -> (Snapshot, Vec<Defect>) {
    let newest = versions.get_key_value("latest").or_else(|| versions.last_key_value());
    let mut reading = Reading::met(met);
    let mut defects = Vec::new();
    if let Some((_, clients)) = newest {
        let mut known: HashSet<Text> = HashSet::default();
        // Where the containers lie: most answers of clients share them, and need not be looked into then.
        let mut places: HashSet<usize> = HashSet::default();
        if let Some(tree) = clients.get(DEFAULT_CLIENT) {
            tree::objects(tree, &mut defects, &mut |object| {
                if tree::is_kind(&object, "container") {
                    known.extend(object.text("uuid").cloned());
                    places.insert(object.place());
                }
                reading.object(object);
            });
        }
        for (_, tree) in clients.iter().filter(|(client, _)| &***client != DEFAULT_CLIENT) {
            if let Some(own) = tree.map("self").and_then(|own| own.map("container"))
                && !places.contains(&own.place())
                && let Some(uuid) = own.text("uuid")
                && known.insert(uuid.clone())
            {
                for object in tree::container(own) {
                    reading.object(object);
                }
            }
        }
    }
    let (snapshot, more, _) = reading.finish();
    defects.extend(more);
    if let Some((version, _)) = newest {
        for defect in &mut defects {
            defect.path = format!("{version}/{DEFAULT_CLIENT}/{}", defect.path);
        }
    }
    (snapshot, defects)
}

/// There is not one tree of answers in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswers;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects;

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

    #[test]
    fn entities_are_found_in_the_answers() {
        let value = serde_json::from_str(
            r#"{"2015-12-19":{"default":{}},"latest":{"default":{
                "containers":[{"name":"web-1","uuid":"c1","metadata_kind":"container","links":{"peer":"c2"}}],
                "services":[{"name":"web","uuid":"s1","stack_name":"shop","links":{"data/db":"db"},
                             "containers":[{"name":"web-1","uuid":"c1"}]}],
                "self":{"host":{"uuid":"h1"}},"version":"7"},
              "10.0.0.9":{"self":{"container":{"name":"lonely","uuid":"c9","primary_ip":"10.0.0.9"}}}}}"#,
        )
        .unwrap();
        let (snapshot, defects) = Answers::read(&value).unwrap();
        assert_eq!(defects, []);
        assert_eq!(snapshot.containers.keys().map(|uuid| &**uuid).collect::<Vec<_>>(), ["c1", "c9"]);
        assert_eq!(snapshot.services["s1_web"].members()[..], ["c1".into()]);
        assert_eq!(snapshot.services["s1_web"].links().len(), 1);
        assert_eq!(snapshot.containers["c1"].links().len(), 1);
        assert!(snapshot.local_host.is_some());
        let (again, ..) = objects::read(snapshot.objects());
        assert_eq!(again, snapshot);
    }
}
