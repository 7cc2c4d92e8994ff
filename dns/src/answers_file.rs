//! Following a file of the predecessor's answers (`-answers` without a metadata server).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{Node, scalar};
use process::command::Findings;
use source::file::{Accepted, FollowedFile, Reader};
use source::follow::{ReloadRequests, relay};
use source::format::{self, FormatError, Parsed};
use source::{Readiness, Reload, Revision, StateDir, Store, file};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::zone::answers::DnsAnswers;

/// Name of the last good contents in the state directory.
const KEPT: &str = "dns-answers";

/// Whether the file is a cluster, to be served as such.
pub fn is_cluster(path: &Path) -> bool {
    let parsed = file::read(path).ok().and_then(|bytes| parse(bytes).ok());
    parsed.is_some_and(|parsed| !is_answers(&parsed))
}

/// What is wrong with a file of answers; `None` when the contents are something else.
pub fn check(bytes: &[u8]) -> Option<Result<Findings, String>> {
    let parsed = parse(bytes.to_vec()).ok().filter(is_answers)?;
    let findings = DnsAnswers::from_value(&parsed.value(scalar::yaml11)).map_err(|error| error.to_string());
    Some(findings.map(|(_, defects)| Findings { summary: "answers file of rancher-dns".into(), defects }))
}

fn parse(bytes: Vec<u8>) -> Result<Parsed, FormatError> {
    format::parse(&format::text(bytes)?)
}

fn is_answers(parsed: &Parsed) -> bool {
    match parsed {
        Parsed::Json(value) => DnsAnswers::is_dns_answers(&Node::from_value(value)),
        Parsed::Yaml(node) => DnsAnswers::is_dns_answers(node),
    }
}

/// A file of answers that is being followed. Dropping this stops following.
#[derive(Debug)]
pub struct FollowedAnswers {
    published: Arc<Store<DnsAnswers>>,
    reload: Reload,
    relay: JoinHandle<()>,
}

impl FollowedAnswers {
    /// Starts following `path`; the last good contents are stored in `state`.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn start(path: PathBuf, state: Option<StateDir>, readiness: Arc<Readiness>) -> io::Result<Self> {
        let published = Arc::new(Store::new(DnsAnswers::default()));
        let reader: Reader = {
            let (published, state) = (published.clone(), state.clone());
            Box::new(move |_, bytes| {
                let accepted = accept(&published, bytes.clone())?;
                if let Some(state) = state.as_ref().filter(|_| accepted.changed)
                    && let Err(error) = state.save_contents(KEPT, &bytes)
                {
                    warn!(%error, "cannot store the answers on disk");
                }
                Ok(accepted)
            })
        };
        let kept = {
            let published = published.clone();
            move || {
                if let Some(bytes) = state.and_then(|state| state.load_contents(KEPT)) {
                    match accept(&published, bytes) {
                        Ok(_) => info!("serving the answers stored on disk"),
                        Err(error) => warn!(%error, "the answers stored on disk cannot be used"),
                    }
                }
            }
        };
        let file = FollowedFile::start(path, "source", readiness, reader, kept)?;
        let (reload, requests): (Reload, ReloadRequests) = Reload::channel();
        let relay = tokio::spawn(relay(file, requests, published.clone()));
        Ok(Self { published, reload, relay })
    }

    /// What the file said last.
    pub fn published(&self) -> Arc<Store<DnsAnswers>> {
        self.published.clone()
    }

    /// A handle to ask for reloads.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }
}

impl Drop for FollowedAnswers {
    fn drop(&mut self) {
        self.relay.abort();
    }
}

/// Publishes answers, unless they are refused or say nothing new.
fn accept(published: &Store<DnsAnswers>, bytes: Vec<u8>) -> Result<Accepted, FormatError> {
    let parsed = parse(bytes)?;
    let read = DnsAnswers::from_value(&parsed.value(scalar::yaml11));
    let (answers, defects) = read.map_err(|error| FormatError::new(error.to_string()))?;
    let changed = published.revision() == Revision::NONE || **published.load() != answers;
    if changed {
        drop(published.publish(Arc::new(answers)));
    }
    Ok(Accepted { defects, beside: Vec::new(), changed })
}
