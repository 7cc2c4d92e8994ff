//! Docker's configuration file: where credentials for registries are, or which helper has them.
//!
//! It is read whenever credentials are needed, so that a later `docker login` counts. Helpers are programs
//! `docker-credential-NAME`: asked for a registry on standard input, they answer with JSON on standard output.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use model::printable::printable;
use platform::family::{self, Family};
use platform::file::OpenError;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::start::credentials::{AuthEntry, Credentials, find};
use crate::start::registry::Registry;

/// Name of the file in its folder.
const FILE: &str = "config.json";

/// Largest file, in bytes: a hundred registries with long tokens are a tenth of it.
const FILE_MAX: u64 = 1 << 20;

/// Longest wait for a helper, its turn included: those of clouds ask a service of theirs, which takes a second or two.
const HELPER_TIME: Duration = Duration::from_secs(10);

/// Longest answer of a helper, in bytes: tokens have a few thousand.
const HELPER_OUTPUT_MAX: u64 = 64 * 1024;

/// Most helpers at once: each is a process, and starting hundreds of containers asks hundreds of times.
const HELPERS_MAX: usize = 8;

/// Longest piece of what a failed helper says that is quoted, in characters.
const QUOTE_MAX: usize = 200;

/// What a helper says when it has nothing for a registry.
const NOT_FOUND: &str = "credentials not found";

/// Docker's configuration in a file, or in a folder as `config.json`.
#[derive(Debug)]
pub(crate) struct DockerConfig {
    path: PathBuf,
    helpers: Semaphore,
}

/// Why credentials could not be looked up.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LookUpError(String);

#[derive(Deserialize)]
struct Contents {
    auths: Option<BTreeMap<String, AuthEntry>>,
    #[serde(rename = "credsStore")]
    store: Option<String>,
    #[serde(rename = "credHelpers")]
    helpers: Option<BTreeMap<String, String>>,
}

impl Contents {
    /// The helper that has the credentials for a registry.
    fn helper(&self, registry: &Registry) -> Option<String> {
        let helpers = self.helpers.iter().flatten();
        let own = helpers.filter(|(key, _)| Registry::of_key(key) == *registry).map(|(_, helper)| helper).next();
        own.or(self.store.as_ref()).filter(|helper| !helper.is_empty()).cloned()
    }
}

/// The answer of a helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

impl DockerConfig {
    /// The configuration there.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, helpers: Semaphore::new(HELPERS_MAX) }
    }

    /// The one that Docker's own client reads; `None` when there is no home.
    pub(crate) fn of_environment() -> Option<Self> {
        let filled = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = || Some(PathBuf::from(filled("HOME").or_else(|| filled("USERPROFILE"))?).join(".docker"));
        filled("DOCKER_CONFIG").map(PathBuf::from).or_else(home).map(Self::new)
    }

    pub(crate) fn file(&self) -> PathBuf {
        if self.path.is_dir() { self.path.join(FILE) } else { self.path.clone() }
    }

    /// Whether it is there and can be read now.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read or parsed. It is read again whenever it is needed.
    pub(crate) fn check(&self) -> Result<(), LookUpError> {
        let file = self.file();
        let missing = || LookUpError(format!("there are no credentials yet: {} does not exist", file.display()));
        read(&file)?.map(drop).ok_or_else(missing)
    }

    /// The credentials for a registry; `None` when there are none, or no such file yet.
    ///
    /// # Errors
    ///
    /// Names the file or the helper, and the registry.
    ///
    /// # Cancel safety
    ///
    /// A helper that runs when this is dropped is killed, with what it has started.
    pub(crate) async fn credentials(&self, registry: &Registry) -> Result<Option<Credentials>, LookUpError> {
        let file = self.file();
        let path = file.clone();
        let contents = tokio::task::spawn_blocking(move || read(&path)).await;
        let contents = contents.map_err(|error| LookUpError(format!("{}: {error}", file.display())))??;
        let Some(contents) = contents else { return Ok(None) };
        let Some(helper) = contents.helper(registry) else {
            let found = find(contents.auths.unwrap_or_default(), registry);
            return found.map_err(|error| LookUpError(format!("{}: {error}", file.display())));
        };
        let program = format!("docker-credential-{helper}{}", std::env::consts::EXE_SUFFIX);
        let asked = async {
            // The semaphore is never closed.
            let _turn = self.helpers.acquire().await;
            ask(&program, registry).await
        };
        let answer = timeout(HELPER_TIME, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("has not answered within {} s", HELPER_TIME.as_secs())));
        answer.map_err(|error| {
            let file = file.display();
            LookUpError(format!("the credential helper {program}, which {file} names for {registry}, {error}"))
        })
    }
}

/// What is in the file, when there is one.
fn read(file: &Path) -> Result<Option<Contents>, LookUpError> {
    let wrong = |error: &dyn std::fmt::Display| LookUpError(format!("cannot read credentials: {error}"));
    let named = |error: &dyn std::fmt::Display| wrong(&format!("{}: {error}", file.display()));
    let opened = match platform::file::open_regular(file) {
        Ok(opened) => opened,
        Err(OpenError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(wrong(&error)),
    };
    let mut bytes = Vec::new();
    opened.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(|error| named(&error))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(named(&format!("longer than {FILE_MAX} bytes")));
    }
    // Of the error only the place: its words may quote a secret.
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        named(&format!("not Docker's configuration in JSON (line {line}, column {column})"))
    })
}

/// Asks a helper; the error is the end of a sentence about it.
async fn ask(program: &str, registry: &Registry) -> Result<Option<Credentials>, String> {
    let name = program.strip_prefix("docker-credential-").unwrap_or_default();
    if name.contains(['/', '\\']) {
        return Err("is no name of a program".to_owned());
    }
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    family::prepare(command.as_std_mut());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "is not on the PATH of this process".to_owned(),
        _ => format!("cannot be started: {error}"),
    })?;
    // Dropped before the helper itself is: processes that it started would run on.
    let family = child.id().and_then(|id| Family::of(id).ok());
    if let Some(mut input) = child.stdin.take() {
        // A helper that asks for nothing may have closed it.
        let _ = input.write_all(registry.name().as_bytes()).await;
    }
    let (output, errors) = tokio::join!(bounded(child.stdout.take()), bounded(child.stderr.take()));
    if output.len() as u64 > HELPER_OUTPUT_MAX {
        return Err(format!("answered more than {HELPER_OUTPUT_MAX} bytes"));
    }
    let status = child.wait().await.map_err(|error| format!("cannot be waited for: {error}"))?;
    // A helper that leaves a process for the next time is left alone.
    family.into_iter().for_each(Family::leave);
    if status.success() {
        let answer: Answer = serde_json::from_slice(&output)
            .map_err(|_| "did not answer with JSON that has Username and Secret".to_owned())?;
        return Ok(Credentials::of_helper(answer.username, answer.secret));
    }
    let (output, errors) = (String::from_utf8_lossy(&output), String::from_utf8_lossy(&errors));
    if output.contains(NOT_FOUND) {
        return Ok(None);
    }
    // Reasons stand on standard output by the protocol. What looks like an answer may hold a secret.
    let mut lines = [&output, &errors].into_iter().flat_map(|text| text.lines()).map(str::trim);
    let reason = lines
        .find(|line| !line.is_empty() && !line.starts_with(['{', '"', '}']))
        .map(|line| printable(line, QUOTE_MAX));
    Err(format!("failed ({status}){}", reason.map(|reason| format!(": {reason}")).unwrap_or_default()))
}

/// What comes from there, up to a little more than is allowed; a reader that is too slow is ended by the time limit.
async fn bounded(from: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        // What broke off is no answer.
        let _ = from.take(HELPER_OUTPUT_MAX + 1).read_to_end(&mut bytes).await;
    }
    bytes
}
