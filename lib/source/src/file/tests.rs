use std::fs;
use std::sync::Mutex;

use super::*;

/// A file that is followed by a reader which refuses everything that does not begin with `good`.
struct Case {
    folder: tempfile::TempDir,
    file: FollowedFile,
    accepted: Arc<Mutex<Vec<String>>>,
    readiness: Arc<Readiness>,
}

impl Case {
    fn new(contents: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster");
        if let Some(contents) = contents {
            fs::write(&path, contents).unwrap();
        }
        let accepted = Arc::new(Mutex::new(Vec::new()));
        let reader: Reader = {
            let accepted = accepted.clone();
            Box::new(move |path, bytes| {
                let text = crate::format::text(bytes)?;
                if !text.starts_with("good") {
                    return Err(FormatError::new("not good"));
                }
                accepted.lock().unwrap().push(text);
                Ok(Accepted { beside: vec![path.with_extension("beside")], changed: true, ..Accepted::default() })
            })
        };
        let readiness = Arc::new(Readiness::default());
        let failed = accepted.clone();
        let first_failed = move || failed.lock().unwrap().push("first failed".into());
        let file = FollowedFile::start(path, "source", readiness.clone(), reader, first_failed).unwrap();
        Self { folder, file, accepted, readiness }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("cluster")
    }

    fn reload(&self) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        self.file.reload(reply);
        answer.blocking_recv().unwrap()
    }

    /// What was accepted; a reload reads again what was accepted just before.
    fn accepted(&self) -> Vec<String> {
        let mut accepted = self.accepted.lock().unwrap().clone();
        accepted.dedup();
        accepted
    }

    fn wait_for(&self, accepted: &[&str]) {
        let begun = Instant::now();
        while self.accepted() != accepted {
            // Ten times what is promised: machines are busy.
            assert!(begun.elapsed() < Duration::from_millis(2500), "{:?} instead of {accepted:?}", self.accepted());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn edits_in_place_and_by_rename_are_seen() {
    let case = Case::new(Some("good 1"));
    case.wait_for(&["good 1"]);
    fs::write(case.path(), "good 2").unwrap();
    case.wait_for(&["good 1", "good 2"]);
    fs::write(case.path().with_extension("new"), "good 3").unwrap();
    fs::rename(case.path().with_extension("new"), case.path()).unwrap();
    case.wait_for(&["good 1", "good 2", "good 3"]);
}

/// The looks without an event are so rare that they alone would take a minute.
#[test]
fn events_alone_show_each_change() {
    let case = Case::new(Some("good 0"));
    case.wait_for(&["good 0"]);
    let begun = Instant::now();
    let mut expected = vec!["good 0".to_owned()];
    for change in 1..=30 {
        let contents = format!("good {change}");
        fs::write(case.path(), &contents).unwrap();
        expected.push(contents);
        case.wait_for(&expected.iter().map(String::as_str).collect::<Vec<_>>());
    }
    assert!(begun.elapsed() < REPORTED_INTERVAL * 15, "{:?}", begun.elapsed());
}

/// Nothing in the folder that is watched changes.
#[test]
fn a_folder_that_is_replaced_is_noticed() {
    let case = Case::new(Some("good 1"));
    case.wait_for(&["good 1"]);
    let folder = case.folder.path();
    fs::rename(folder, folder.with_extension("before")).unwrap();
    fs::create_dir(folder).unwrap();
    fs::write(case.path(), "good 2").unwrap();
    let begun = Instant::now();
    while case.accepted() != ["good 1", "good 2"] {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", case.accepted());
        std::thread::sleep(Duration::from_millis(5));
    }
    // From now on as where events are lost.
    fs::write(case.path(), "good 3").unwrap();
    case.wait_for(&["good 1", "good 2", "good 3"]);
    fs::remove_dir_all(folder.with_extension("before")).unwrap();
}

#[test]
fn files_beside_are_followed_too() {
    let case = Case::new(Some("good 1"));
    case.wait_for(&["good 1"]);
    fs::write(case.path().with_extension("beside"), "anything").unwrap();
    // The file itself did not change, but what is read beside it did.
    let begun = Instant::now();
    while case.accepted.lock().unwrap().len() < 2 {
        assert!(begun.elapsed() < Duration::from_millis(2500), "not read again");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_refused_or_gone_is_told_and_heals() {
    let case = Case::new(Some("good 1"));
    case.wait_for(&["good 1"]);
    let path = case.path().display().to_string();
    fs::write(case.path(), "bad").unwrap();
    assert_eq!(case.reload(), Err(format!("{path}: not good")));
    assert_eq!(case.readiness.reasons()["source"], format!("{path}: not good"));
    fs::remove_file(case.path()).unwrap();
    assert_eq!(case.reload(), Err(format!("{path} does not exist")));
    fs::create_dir(case.path()).unwrap();
    assert_eq!(case.reload(), Err(format!("{path} is a directory, not a regular file")));
    fs::remove_dir(case.path()).unwrap();
    fs::write(case.path(), b"good\xff").unwrap();
    assert_eq!(case.reload(), Err(format!("{path}: line 1, column 5: not UTF-8")));
    fs::write(case.path(), "good 2").unwrap();
    assert_eq!(case.reload(), Ok(()));
    assert!(case.readiness.reasons().is_empty());
    assert_eq!(case.accepted(), ["good 1", "good 2"]);
}

#[test]
fn a_start_without_the_file_is_told_once_and_heals() {
    let case = Case::new(None);
    case.wait_for(&["first failed"]);
    fs::write(case.path(), "good 1").unwrap();
    case.wait_for(&["first failed", "good 1"]);
}
