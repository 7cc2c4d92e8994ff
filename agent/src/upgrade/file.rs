//! The executable in its place, the new one beside it, and the one before.
//!
//! Root runs what stands there. So the new one is copied where no other user can write before its digest is compared, and what the
//! agent says about itself is compared with the system.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use model::hex;
use platform::{executable, file};
use process::Failure;
use ring::digest::{Context, SHA256};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::running::Running;
use crate::enroll::{named, progress};

/// Largest executable: ten times an agent with all symbols.
const BYTES_MAX: u64 = 2 << 30;

/// How much is copied at once.
const COPY_BYTES: usize = 128 << 10;

/// Longest run of an executable to say its version: it takes milliseconds, and a second on a machine that reads it from a slow disk.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// Longest text with a version that is read.
const VERSION_BYTES_MAX: u64 = 4096;

/// A SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Digest(String);

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_digest = text.len() == 64 && text.bytes().all(|letter| letter.is_ascii_hexdigit());
        if is_digest {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err("a SHA-256 has 64 hexadecimal digits".to_owned())
        }
    }
}

/// Where the executable of a process is.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    folder: PathBuf,
    /// Locked: one upgrade at a time.
    _folder: File,
}

impl Place {
    /// That of an agent. What an upgrade that was killed has left there is undone, unless nothing is to be changed.
    ///
    /// # Errors
    ///
    /// Fails if it does not start again in place, others can write there, or its executable is another file.
    pub(super) fn of(running: &Running, dry_run: bool) -> Result<Self, Failure> {
        let process = running.process;
        if let Some(refused) = &running.refused {
            return Err(format!("process {process} does not start again in place: {refused}").into());
        }
        let path = running.executable.clone().filter(|path| path.is_absolute());
        let path = path.ok_or_else(|| format!("process {process} does not know its executable"))?;
        let folder = path.parent().ok_or("the root is no executable")?.to_owned();
        file::must_be_unchangeable(&folder).map_err(named(&folder))?;
        file::must_be_unchangeable(&path).map_err(named(&path))?;
        file::must_lead_where_it_leads(&folder).map_err(named(&folder))?;
        let lock = File::open(&folder).map_err(named(&folder))?;
        lock.try_lock().map_err(|_| format!("another upgrade is at work in {}", folder.display()))?;
        let place = Self { path, folder, _folder: lock };
        let path = &place.path;
        let is_run = executable::is_of(process, path).map_err(|error| {
            format!(
                "whether process {process} runs {} cannot be known: {error}; type this as root, beside it",
                path.display()
            )
        })?;
        let kept = place.beside("old");
        if !is_run && executable::is_of(process, &kept).unwrap_or(false) {
            let (old, new) = (kept.display(), path.display());
            let found = format!("an upgrade was killed: process {process} runs {old}, and {new} has not served");
            if dry_run {
                return Err(format!("{found}. Without --dry-run that is undone first; or type: mv {old} {new}").into());
            }
            file::must_be_unchangeable(&kept).map_err(named(&kept))?;
            progress(&format!("{found}; it gets its name back"));
            place.swap_back(&kept)?;
        } else if !is_run {
            let problem = format!(
                "{} is not what process {process} runs: it was replaced already. `systemctl reload berth` starts it",
                path.display()
            );
            return Err(problem.into());
        }
        version(path)?;
        Ok(place)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a process is there that runs what is in the place.
    pub(super) fn is_run_by(&self, process: u32) -> bool {
        executable::is_of(process, &self.path).unwrap_or(false)
    }

    /// A copy of a file beside the executable, if it has this digest.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be copied or has another one; then no copy is left.
    pub(super) fn copy(&self, from: &Path, expected: &Digest) -> Result<New<'_>, Failure> {
        let path = self.beside("new");
        // Of an upgrade that was killed.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(&path)(error)),
            _ => {}
        }
        let mut from_file = file::open_regular(from)?;
        let mut copy = executable::create(&path).map_err(named(&path))?;
        let new = New { place: self, path };
        let (mut digest, mut bytes, mut buffer) = (Context::new(&SHA256), 0, vec![0; COPY_BYTES]);
        loop {
            let length = from_file.read(&mut buffer).map_err(named(from))?;
            if length == 0 {
                break;
            }
            bytes += length as u64;
            if bytes > BYTES_MAX {
                return Err(
                    format!("{} has more than {} GiB: no agent is so large", from.display(), BYTES_MAX >> 30).into()
                );
            }
            digest.update(&buffer[..length]);
            copy.write_all(&buffer[..length]).map_err(named(&new.path))?;
        }
        let found = hex(digest.finish().as_ref());
        if found != expected.0 {
            return Err(
                format!("{} has the SHA-256 {found}, not {}: nothing was changed", from.display(), expected.0).into()
            );
        }
        executable::take_rights(&copy, &self.path).and_then(|()| copy.sync_all()).map_err(named(&new.path))?;
        Ok(new)
    }

    /// Gives the executable before its name back.
    ///
    /// # Errors
    ///
    /// Fails if that is impossible; the text says what to type.
    pub(super) fn swap_back(&self, kept: &Path) -> Result<(), Failure> {
        let swapped = file::replace(kept, &self.path).and_then(|()| self.sync());
        swapped.map_err(|error| {
            let (kept, path) = (kept.display(), self.path.display());
            format!("the executable before cannot get its name back: {error}; type: mv {kept} {path}").into()
        })
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(suffix);
        self.folder.join(name)
    }

    fn sync(&self) -> io::Result<()> {
        file::sync_folder_of(&self.path)
    }
}

/// A new executable beside the one in its place. Dropping this removes it, unless it was swapped in.
#[derive(Debug)]
pub(super) struct New<'p> {
    place: &'p Place,
    path: PathBuf,
}

impl New<'_> {
    /// Its version.
    ///
    /// # Errors
    ///
    /// Fails if it is no agent that runs here.
    pub(super) fn version(&self) -> Result<String, Failure> {
        version(&self.path)
    }

    /// Puts it in its place.
    ///
    /// # Errors
    ///
    /// Fails if that is impossible; then the one before is in its place.
    pub(super) fn swap(self) -> Result<Swapped, Failure> {
        let (place, kept, aside) = (self.place, self.place.beside("old"), self.place.beside("keep"));
        // Under two names for a moment, so that the place is never empty.
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(&aside)(error)),
            _ => {}
        }
        let new = File::open(&self.path).map_err(named(&self.path))?;
        fs::hard_link(&place.path, &aside).map_err(named(&aside))?;
        file::replace(&aside, &kept).map_err(named(&kept))?;
        file::replace(&self.path, &place.path).and_then(|()| place.sync()).map_err(named(&place.path))?;
        Ok(Swapped { kept, new })
    }
}

/// What was exchanged.
#[derive(Debug)]
pub(super) struct Swapped {
    /// Where the executable before is.
    pub(super) kept: PathBuf,
    /// The new one, open, so that it is still known when another file has its name.
    pub(super) new: File,
}

impl Swapped {
    /// Whether a process runs the new one.
    pub(super) fn is_run_by(&self, process: u32) -> bool {
        executable::is_of_file(process, &self.new).unwrap_or(false)
    }
}

impl Drop for New<'_> {
    fn drop(&mut self) {
        // It is not there any more if it was swapped in.
        let _ = fs::remove_file(&self.path);
    }
}

/// The version of an executable of the agent, which is run for that.
fn version(path: &Path) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let text = runtime.block_on(async {
        let mut command = Command::new(path);
        command.args(["version", "--json"]).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let mut text = Vec::new();
        let said = async {
            if let Some(output) = child.stdout.take() {
                output.take(VERSION_BYTES_MAX).read_to_end(&mut text).await?;
            }
            child.wait().await
        };
        let said = tokio::time::timeout(VERSION_LIMIT, said).await;
        match said {
            Ok(Ok(status)) if status.success() => Ok(text),
            Ok(Ok(status)) => Err(format!("`version --json` ended with {status}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("`version --json` did not end within {} s", VERSION_LIMIT.as_secs())),
        }
    });
    let text = text.map_err(|why| format!("{} does not run on this machine: {why}", path.display()))?;
    let said: Value = serde_json::from_slice(&text).unwrap_or_default();
    match (said["name"].as_str(), said["version"].as_str()) {
        (Some("agent"), Some(version)) => Ok(version.to_owned()),
        (Some(name), Some(_)) => Err(format!("{} is {name}, not agent", path.display()).into()),
        _ => Err(format!("{} is not agent: `version --json` printed something else", path.display()).into()),
    }
}

#[cfg(test)]
impl Place {
    /// This executable, without asking which process runs it.
    pub(super) fn at(path: PathBuf) -> Self {
        let folder = path.parent().unwrap().to_owned();
        Self { _folder: File::open(&folder).unwrap(), folder, path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits_in_any_case() {
        let digits = "0123456789ABCDEFabcdef00".to_owned() + &"0".repeat(40);
        assert_eq!(digits.parse::<Digest>().unwrap().0, digits.to_lowercase());
        for wrong in ["", "0", &"g".repeat(64), &"0".repeat(65), &"ä".repeat(32)] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
