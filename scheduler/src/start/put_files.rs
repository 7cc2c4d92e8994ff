//! Files with contents that a container gets between its creation and its start.
//!
//! They are in the container's own layer on its host, in plain text, and go with it.

use engine::EngineError;
use tar::{Builder, EntryType, Header};

use crate::place::request::Request;
use crate::place::request::file::PutFile;
use crate::secret::SecretsKey;

/// The archive of the files of a request's container at `at`; `None` if it has none.
///
/// # Errors
///
/// Fails if they cannot be opened here, which no other try mends.
pub(super) fn archive(key: Option<&SecretsKey>, request: &Request, at: usize) -> Result<Option<Vec<u8>>, EngineError> {
    let files = &request.members[at].run.files;
    if files.is_empty() {
        return Ok(None);
    }
    let mut archive = Builder::new(Vec::new());
    for file in files {
        let content = open(key, request, file)?;
        add(&mut archive, file, &content).map_err(|error| EngineError::Refused(format!("{}: {error}", file.target)))?;
    }
    let bytes = archive.into_inner();
    bytes.map(Some).map_err(|error| EngineError::Refused(error.to_string()))
}

/// Why contents of files of a request cannot be opened here; `None` if they can.
pub(super) fn unopened(key: Option<&SecretsKey>, request: &Request) -> Option<String> {
    let mut files = request.members.iter().flat_map(|member| &member.run.files);
    files.find_map(|file| open(key, request, file).err()).map(|error| error.to_string())
}

/// The contents of a file.
fn open(key: Option<&SecretsKey>, request: &Request, file: &PutFile) -> Result<Vec<u8>, EngineError> {
    let why = "this scheduler has no --secrets-key: start it with that of the scheduler which took the stack";
    let key = key.ok_or_else(|| EngineError::Refused(why.to_owned()))?;
    let stack = request.stack.as_deref().unwrap_or_default();
    file.sealed.as_ref().and_then(|sealed| key.open(stack, sealed)).ok_or_else(|| {
        let target = &file.target;
        EngineError::Refused(format!(
            "the contents of {target} were sealed with another --secrets-key: bring up the stack again"
        ))
    })
}

/// Adds one file. Its folders are not in the archive: those that are there keep their rights.
fn add(archive: &mut Builder<Vec<u8>>, file: &PutFile, content: &[u8]) -> std::io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(file.mode);
    header.set_uid(file.uid);
    header.set_gid(file.gid);
    header.set_size(content.len() as u64);
    header.set_cksum();
    archive.append_data(&mut header, file.target.trim_start_matches('/'), content)
}
