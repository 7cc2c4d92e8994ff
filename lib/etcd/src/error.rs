//! Errors of etcd, by what the caller can do about them.

use http_client::HttpError;
use hyper::StatusCode;

use crate::wire::Failure;

/// Codes of gRPC by which failures are classified.
const NOT_FOUND: u32 = 5;
const OUT_OF_RANGE: u32 = 11;
pub(crate) const UNAUTHENTICATED: u32 = 16;
/// Cancelled and unknown, as a member that stops says, a deadline that passed, an internal error, no leader.
const PASSING: [u32; 5] = [1, 2, 4, 13, 14];

/// Largest answer, in bytes. A page that is larger is asked for in smaller pieces.
pub(crate) const BODY_MAX: usize = 64 << 20;

/// An error of etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No member could; it may help to ask again.
    #[error("no member of etcd answers: {0}")]
    Unavailable(String),
    /// The answer to a transaction was lost: it may have been done.
    #[error("etcd may have done it, its answer was lost: {0}")]
    Lost(String),
    /// It will not.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// The revision that was asked for is there no more.
    #[error("etcd has forgotten that revision")]
    Compacted,
    /// The lease ran out or was revoked.
    #[error("the lease ran out")]
    LeaseGone,
    /// The answer is larger than anything that is read.
    #[error("an answer of etcd has more than {} MiB", BODY_MAX >> 20)]
    TooLarge,
}

impl From<HttpError> for EtcdError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Invalid(_) => Self::Refused(error.to_string()),
            HttpError::Unreached(problem) => Self::Unavailable(problem),
            HttpError::Lost(problem) => Self::Lost(problem),
            HttpError::TooLarge(_) => Self::TooLarge,
        }
    }
}

impl EtcdError {
    /// Nothing is answered any more, since the runtime ends: what works aside does not panic, and ends early only with it.
    pub fn stopping() -> Self {
        Self::Unavailable("stopping".into())
    }
}

/// What a failure means to the caller.
pub(crate) fn classified(status: StatusCode, failure: &Failure) -> EtcdError {
    let message = failure.message.strip_prefix("etcdserver: ").unwrap_or(&failure.message);
    let message = if message.is_empty() { status.to_string() } else { message.to_owned() };
    match failure.code {
        NOT_FOUND if message.contains("lease") => EtcdError::LeaseGone,
        OUT_OF_RANGE if message.contains("compacted") => EtcdError::Compacted,
        // A member that lags behind the one that returned the revision.
        OUT_OF_RANGE if message.contains("future revision") => EtcdError::Unavailable(message),
        code if PASSING.contains(&code) => EtcdError::Lost(message),
        0 if status.is_server_error() => EtcdError::Lost(message),
        _ => EtcdError::Refused(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_differ_by_what_can_be_done() {
        let gone = EtcdError::LeaseGone;
        let refused = |problem: &str| EtcdError::Refused(problem.into());
        for (status, code, message, meaning) in [
            (404, 5, "etcdserver: requested lease not found", gone),
            (400, 11, "etcdserver: mvcc: required revision has been compacted", EtcdError::Compacted),
            (
                400,
                11,
                "etcdserver: mvcc: required revision is a future revision",
                EtcdError::Unavailable("mvcc: required revision is a future revision".into()),
            ),
            (503, 14, "etcdserver: no leader", EtcdError::Lost("no leader".into())),
            (
                408,
                1,
                "grpc: the client connection is closing",
                EtcdError::Lost("grpc: the client connection is closing".into()),
            ),
            (500, 2, "etcdserver: request cancelled", EtcdError::Lost("request cancelled".into())),
            (429, 8, "etcdserver: mvcc: database space exceeded", refused("mvcc: database space exceeded")),
            (403, 7, "etcdserver: permission denied", refused("permission denied")),
            (502, 0, "", EtcdError::Lost("502 Bad Gateway".into())),
            (404, 0, "", refused("404 Not Found")),
        ] {
            let failure = Failure { code, message: message.into() };
            assert_eq!(classified(StatusCode::from_u16(status).unwrap(), &failure), meaning, "{message}");
        }
    }
}
