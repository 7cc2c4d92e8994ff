//! Files with labels of this host: `labels.d/*.env` in the state directory, in the order of their names.
//!
//! A line is `KEY=VALUE`; a value in double quotes is a JSON text, so that it may hold line breaks. Empty lines and those
//! with `#` at their beginning say nothing.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use model::{Defect, Text};

/// Largest file that is read, in bytes: more than all labels of a host may have.
const FILE_MAX: u64 = 512 << 10;

/// Most files that are read.
const FILES_MAX: usize = 100;

/// What the files of a folder say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LabelFiles {
    /// The later one counts.
    pub(crate) labels: Vec<(Text, Text)>,
    /// What was passed over.
    pub(crate) defects: Vec<Defect>,
}

impl LabelFiles {
    /// What the files say now; a folder that is not there has none. Blocks.
    pub(crate) fn read(folder: &Path) -> Self {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut paths: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|extension| extension == "env")).collect();
        paths.sort();
        let mut files = Self::default();
        for path in paths.iter().take(FILES_MAX) {
            let text = platform::file::open_regular(path).map_err(std::io::Error::from).and_then(|file| {
                let mut text = String::new();
                file.take(FILE_MAX).read_to_string(&mut text).map(|_| text)
            });
            match text {
                Ok(text) => files.add(path, &text),
                Err(error) => files.defects.push(Defect::ignored(path.display().to_string(), error.to_string())),
            }
        }
        files
    }

    fn add(&mut self, path: &Path, text: &str) {
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match label(line) {
                Some(label) => self.labels.push(label),
                None => self.defects.push(Defect::ignored(
                    format!("{}, line {}", path.display(), number + 1),
                    "no label; expected KEY=VALUE, or KEY=\"VALUE\" with a JSON text",
                )),
            }
        }
    }
}

fn label(line: &str) -> Option<(Text, Text)> {
    let (key, value) = line.split_once('=').filter(|(key, _)| !key.is_empty())?;
    let value = if value.starts_with('"') { serde_json::from_str(value).ok()? } else { value.to_owned() };
    Some((key.into(), value.into()))
}

/// A label as a line of such a file.
pub fn line(key: &str, value: &str) -> String {
    let quoted = value.contains(['\n', '\r']) || value.starts_with('"') || value.trim() != value;
    let value = if quoted { serde_json::Value::from(value).to_string() } else { value.to_owned() };
    format!("{key}={value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_say_labels_line_by_line_and_the_last_word_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(LabelFiles::read(&folder.path().join("none")), LabelFiles::default());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("a.env", "# zones\nzone=a,b\n\nbad\n=x\n");
        write("b.env", &format!("{}{}", line("zone", "c"), line("note", "two\nlines")));
        write("c.txt", "zone=d\n");
        let files = LabelFiles::read(folder.path());
        let labels: Vec<_> = files.labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(labels, [("zone", "a,b"), ("zone", "c"), ("note", "two\nlines")]);
        assert_eq!(files.defects.len(), 2);
        assert!(files.defects[0].path.ends_with("a.env, line 4"), "{:?}", files.defects);
    }
}
