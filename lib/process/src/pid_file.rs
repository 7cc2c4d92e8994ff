//! The file by which others find the process.

use std::path::PathBuf;

use crate::Failure;

/// A file with the process id, for as long as the process runs.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// Writes it, whatever it had before.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be written.
    pub(crate) fn write(path: PathBuf) -> Result<Self, Failure> {
        let written = std::fs::write(&path, std::process::id().to_string());
        written.map_err(|failure| format!("cannot write the pid file {}: {failure}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A successor has written its own there.
        let is_ours = std::fs::read_to_string(&self.0).is_ok_and(|text| text == std::process::id().to_string());
        if is_ours {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}
