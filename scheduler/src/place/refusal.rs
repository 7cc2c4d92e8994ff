//! Why there is no placement.

use model::Text;

use crate::ledger::book::Full;
use crate::ledger::journal::WriteFailed;
use crate::place::invalid::Invalid;
use crate::policy::Denial;

/// How often a promise is decided again because others promised room on the same hosts: of three schedulers that all
/// want the same host each wins every third time, so one request in a million would fail.
pub(super) const TRIES: u32 = 32;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing is known of any host yet: ask again.
    #[error("no snapshot yet: the source of the cluster has not answered")]
    NoData,
    /// The request is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The policy does not allow it.
    #[error(transparent)]
    Forbidden(#[from] Box<Denial>),
    /// The id or a name belongs to another request.
    #[error("{0}")]
    Taken(String),
    /// There is no such placement.
    #[error("no placement {0}")]
    Unknown(Text),
    /// There is no such stack.
    #[error("no stack {0}")]
    NoStack(Text),
    /// The ledger is full: ask again later.
    #[error(transparent)]
    Full(#[from] Full),
    /// One of the predecessor's reservations does not fit.
    #[error("{0}")]
    DoesNotFit(String),
    /// The ledger cannot be written, so nothing is promised.
    #[error(transparent)]
    WriteFailed(#[from] WriteFailed),
    /// What others promised was not read from etcd yet: ask again.
    #[error("{0}")]
    Unread(Text),
    /// Etcd cannot be reached, so nothing is promised.
    #[error("{0}")]
    Away(Text),
    /// It is unknown whether there is such a placement: ask again.
    #[error("{0}")]
    Uncertain(String),
    /// Other schedulers promised room on the same hosts again and again, so nothing was promised: ask again.
    #[error("other schedulers promised room on the same hosts {TRIES} times in between: nothing was promised")]
    Contended,
    /// This is not done where several schedulers share a ledger.
    #[error("{0}")]
    Unshared(&'static str),
    /// It is not known yet what an engine did: ask again with the same id.
    #[error("{0}")]
    Unsettled(String),
}

impl Refusal {
    /// The same about a part of a larger request. What is about the stack is about all of it.
    pub(crate) fn within(mut self, path: &str) -> Self {
        let field = match &mut self {
            Self::Invalid(invalid) => &mut invalid.field,
            Self::Forbidden(denial) => &mut denial.field,
            _ => return self,
        };
        if !matches!(&**field, "" | "stack") {
            *field = format!("{path}.{field}");
        }
        self
    }
}
