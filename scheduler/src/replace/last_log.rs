//! The ends of the logs of containers that were replaced, in files for those who ask later why.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// How much of the end of a log is stored, in bytes.
pub(crate) const LOG_MAX: usize = 1 << 20;

/// Most files at once; the oldest go first.
const FILES_MAX: usize = 64;

/// Where they are.
#[derive(Clone, Debug)]
pub(crate) struct LastLogs {
    folder: PathBuf,
    /// How long they stay.
    stay: Duration,
}

impl LastLogs {
    /// In this folder, which is made when it is needed.
    pub(crate) fn new(folder: PathBuf, stay: Duration) -> Self {
        Self { folder, stay }
    }

    /// Stores the log of a container of this name; returns the file.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be written.
    pub(crate) fn store(&self, name: &str, log: &[u8]) -> io::Result<PathBuf> {
        platform::file::create_private_folder(&self.folder)?;
        self.clean();
        let now = OffsetDateTime::from(SystemTime::now());
        let now = now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default();
        let moment: String = now.chars().filter(char::is_ascii_alphanumeric).collect();
        let plain = |char: char| if char.is_ascii_alphanumeric() || "_.-".contains(char) { char } else { '-' };
        let name: String = name.chars().take(128).map(plain).collect();
        let path = self.folder.join(format!("{name}-{moment}.log"));
        platform::file::replace_private(&path, log)?;
        Ok(path)
    }

    /// Removes those that are too old or too many.
    pub(crate) fn clean(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        let changed = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
        let logs =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|it| it == "log"));
        let mut logs: Vec<_> = logs.filter_map(|path| Some((changed(&path)?, path))).collect();
        logs.sort();
        let too_many = (logs.len() + 1).saturating_sub(FILES_MAX);
        let is_old = |moment: &SystemTime| moment.elapsed().is_ok_and(|age| age >= self.stay);
        for (at, (moment, path)) in logs.iter().enumerate() {
            if at < too_many || is_old(moment) {
                // The next look tries again.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_stay_for_a_while_and_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let logs = LastLogs::new(folder.path().join("replaced"), Duration::from_hours(1));
        logs.clean();
        let path = logs.store("shop/web-1", b"the end").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"the end");
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("shop-web-1-20"), "{}", path.display());
        let count = || std::fs::read_dir(folder.path().join("replaced")).unwrap().count();
        for number in 0..70 {
            logs.store(&format!("web-{number}"), b"").unwrap();
        }
        assert_eq!(count(), FILES_MAX);
        // Other files are not ours.
        std::fs::write(folder.path().join("replaced/note.txt"), b"").unwrap();
        LastLogs::new(folder.path().join("replaced"), Duration::ZERO).clean();
        assert_eq!(count(), 1);
    }
}
