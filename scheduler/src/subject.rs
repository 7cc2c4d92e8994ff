//! The subject: who asks for something, as far as a token or a certificate says so.

use std::fmt;

use model::Text;
use serde::{Deserialize, Serialize};

/// Who asks: `token`, `token:NAME`, `certificate:NAME`, or `anonymous`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Subject(Text);

/// A client that has shown nothing. Also what a record of a release without subjects was asked by.
const ANONYMOUS: &str = "anonymous";

impl Subject {
    /// A client with a token, of this name if it has one.
    pub(crate) fn of_token(name: Option<&str>) -> Self {
        Self(name.map_or_else(|| "token".into(), |name| format!("token:{name}").into()))
    }

    /// A client with a certificate, of this name if it has one.
    pub(crate) fn of_certificate(name: Option<&str>) -> Self {
        Self(name.map_or_else(|| "certificate".into(), |name| format!("certificate:{name}").into()))
    }

    /// The scheduler itself.
    pub(crate) fn own() -> Self {
        Self("scheduler".into())
    }

    /// Each of them, where it is not known which one asks.
    pub(crate) fn any() -> Self {
        Self("any subject".into())
    }

    /// Whether the client has shown no credential.
    pub(crate) fn is_anonymous(&self) -> bool {
        &*self.0 == ANONYMOUS
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Subject {
    fn default() -> Self {
        Self(ANONYMOUS.into())
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
