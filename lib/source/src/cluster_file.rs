//! A cluster file as a source of snapshots: what to refuse although it is well-formed, and the files beside it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::objects::Credential;
use model::{Defect, Snapshot};

use crate::file::{self, Accepted};
use crate::format::{self, Ending, Form, FormatError};
use crate::store::Store;

/// Reads cluster files and publishes what they say.
pub(crate) struct ClusterFile {
    snapshots: Arc<Store<Snapshot>>,
    /// How the last good contents ended.
    ending: Option<Ending>,
}

impl ClusterFile {
    pub(crate) fn new(snapshots: Arc<Store<Snapshot>>) -> Self {
        Self { snapshots, ending: None }
    }

    /// Publishes the contents of the file at `path`, unless they are refused or say nothing new.
    pub(crate) fn accept(&mut self, path: &Path, bytes: Vec<u8>) -> Result<Accepted, FormatError> {
        let (reading, beside) = read(path, bytes)?;
        if self.ending == Some(Ending::Marked) && reading.ending == Ending::Line {
            let problem = "the file does not end in `...` as it did before, so it may be cut off; add the line, or restart to take it as it is";
            return Err(FormatError::new(problem));
        }
        self.ending = Some(reading.ending);
        let changed = publish_read(&self.snapshots, reading.snapshot);
        Ok(Accepted { defects: reading.defects, beside, changed })
    }
}

/// Reads the cluster file at `path` and the files of other environments beside it.
///
/// Returns the paths of those files too, whether they are there or not.
///
/// # Errors
///
/// Fails if the file is refused as a whole; a bad file beside it is a defect.
pub fn read(path: &Path, bytes: Vec<u8>) -> Result<(format::Reading, Vec<PathBuf>), FormatError> {
    let mut reading = format::read(&format::text(bytes)?)?;
    if reading.ending == Ending::Open {
        // YAML cut anywhere may be well-formed; what it lost would vanish from all answers.
        return Err(FormatError::new("the last line has no end, so the file may be cut off; end it with a newline"));
    }
    let mut beside = Vec::new();
    let mut externals = Vec::new();
    for Credential { public_value, .. } in &reading.credentials {
        let external = beside_path(path, public_value);
        match read_external(&external) {
            Ok((snapshot, defects)) => {
                externals.push(Arc::new(snapshot));
                reading.defects.extend(defects);
            }
            Err(problem) => reading.defects.push(Defect::ignored(format!("credentials/{public_value}"), problem)),
        }
        beside.push(external);
    }
    if !externals.is_empty() {
        reading.snapshot.externals = externals.into();
    }
    Ok((reading, beside))
}

/// The file of another environment: `<file>_<account>`.
fn beside_path(path: &Path, account: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("_");
    // An account is a word of letters and digits; what is not one must not lead to another folder.
    name.push(account.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '_' }).collect::<String>());
    name.into()
}

fn read_external(path: &Path) -> Result<(Snapshot, Vec<Defect>), String> {
    let bytes = file::read(path).map_err(|error| error.to_string())?;
    let reading = format::text(bytes).and_then(|text| format::read(&text)).map_err(|error| error.to_string())?;
    if reading.form != Form::Envelope {
        return Err(format!("{} is a {}, not saved answers", path.display(), reading.form));
    }
    Ok((reading.snapshot, reading.defects))
}

/// Publishes `snapshot` unless it equals the current one; returns whether it did.
///
/// The snapshot is made of the one before by changes, and shares with it what stayed. One that was read as a whole shares
/// nothing: see [`publish_read`].
pub fn publish(snapshots: &Store<Snapshot>, snapshot: Snapshot) -> bool {
    publish_as(snapshots, snapshot, |snapshot, _| snapshot)
}

/// [`publish`] for a snapshot that was read as a whole: it shares with the current one what stayed.
///
/// That compares all of both, and costs as much. What is made by changes must not come here: it would share less and less with
/// what is published, so that each comparison would cost the whole again.
pub(crate) fn publish_read(snapshots: &Store<Snapshot>, snapshot: Snapshot) -> bool {
    publish_as(snapshots, snapshot, Snapshot::succeeding)
}

/// Publishes what `share` makes of a snapshot and the current one, unless these are equal.
fn publish_as(
    snapshots: &Store<Snapshot>,
    snapshot: Snapshot,
    share: impl FnOnce(Snapshot, &Snapshot) -> Snapshot,
) -> bool {
    let before = snapshots.load_full();
    let is_new = snapshots.revision() == crate::store::Revision::NONE || *before != snapshot;
    if is_new {
        drop(snapshots.publish(Arc::new(share(snapshot, &before))));
    }
    is_new
}

#[cfg(test)]
mod tests {
    use model::Entity;

    use super::*;

    /// The outcome of contents, one after the other: the names of the containers, or why they are refused.
    fn check(steps: &[(&str, Result<&str, &str>)]) {
        let mut file = ClusterFile::new(Arc::new(Store::new(Snapshot::default())));
        for (text, expected) in steps {
            let outcome = file.accept(Path::new("cluster.yml"), text.as_bytes().to_vec());
            let names = || {
                let snapshot = file.snapshots.load_full();
                let mut names: Vec<_> = snapshot.containers.values().map(|c| c.name().unwrap().to_string()).collect();
                names.sort();
                names.join(" ")
            };
            match (outcome, expected) {
                (Ok(_), Ok(expected)) => assert_eq!(names(), *expected, "{text}"),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{text}: {error}"),
                (outcome, _) => panic!("{text}: {outcome:?}"),
            }
        }
    }

    #[test]
    fn a_yaml_text_that_may_be_cut_is_refused() {
        check(&[
            ("containers:\n- name: a\n- name: b\n", Ok("a b")),
            ("containers:\n- name: a", Err("the last line has no end")),
            ("containers:\n- name: a\n", Ok("a")),
            ("{\"containers\": [{\"name\": \"b\"}]}", Ok("b")),
            ("containers:\n- name: c\n...\n", Ok("c")),
            ("containers:\n- name: c\n- name: d\n", Err("does not end in `...`")),
            ("{\"containers\": [{\"name\": \"c\"}]}", Ok("c")),
        ]);
    }

    #[test]
    fn equal_contents_are_not_published() {
        let mut file = ClusterFile::new(Arc::new(Store::new(Snapshot::default())));
        let mut accept = |text: &str| file.accept(Path::new("x"), text.as_bytes().to_vec()).unwrap().changed;
        assert!(accept("containers:\n- name: a\n"));
        assert!(!accept("# only a comment\ncontainers:\n- name: a\n"));
        assert!(accept("containers:\n- name: b\n"));
    }

    #[test]
    fn what_is_made_by_changes_is_published_as_it_is_and_what_is_read_shares_what_stayed() {
        let store = Store::new(Snapshot::default());
        let read = |names: [&str; 2]| {
            let object = |name: &str| format!("- name: {name}\n  uuid: {name}\n");
            let text = format!("containers:\n{}", names.map(object).concat());
            format::read(&text).unwrap().snapshot
        };
        assert!(publish_read(&store, read(["a", "b"])));
        let first = store.load_full();
        assert!(!publish_read(&store, read(["a", "b"])) && Arc::ptr_eq(&first, &store.load_full()));
        assert!(publish_read(&store, read(["a", "c"])));
        assert!(Arc::ptr_eq(&first.containers["a"], &store.load().containers["a"]));
        let mut changed = Snapshot::clone(&store.load());
        changed.containers.remove("a");
        assert!(publish(&store, changed.clone()) && !publish(&store, changed.clone()));
        assert!(store.load().containers.ptr_eq(&changed.containers));
    }

    #[test]
    fn files_of_other_environments_are_read_from_beside() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/metadata/answers.delta.json");
        let path = Path::new(folder);
        let (reading, beside) = read(path, std::fs::read(path).unwrap()).unwrap();
        assert_eq!(beside.len(), 2);
        assert_eq!(reading.defects, []);
        let names: Vec<_> =
            reading.snapshot.externals.iter().map(|external| external.environment.clone().unwrap()).collect();
        assert_eq!(names.len(), 2);
        let (again, ..) = model::objects::read(reading.snapshot.objects());
        assert_eq!(again, reading.snapshot);
    }
}
