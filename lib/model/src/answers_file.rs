//! A file of the predecessor's answers as a snapshot: the answers to give verbatim, and the entities found in them.

use std::collections::BTreeMap;

use foldhash::HashSet;

use crate::answers::{Answers, Clients, DEFAULT_CLIENT, NoAnswers, versions};
use crate::defect::Defect;
use crate::fingerprint::content::Met;
use crate::objects::Reading;
use crate::snapshot::Snapshot;
use crate::tree;
use crate::value::{Text, Value};

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
    let answers = Answers::of(versions, &mut met);
    Ok((Snapshot { answers: Some(answers.into()), ..snapshot }, defects))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects;

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
        let (snapshot, defects) = read(&value).unwrap();
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
