//! An invalid body: the field, the problem, and what was expected.

/// An invalid field of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}, expected {expected}", at(.field))]
pub struct Invalid {
    /// The field, with the way to it: `sidekicks[0].ports[1]`.
    pub(crate) field: String,
    pub(crate) problem: String,
    /// What it should have been.
    pub(crate) expected: String,
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), expected: expected.into() }
    }
}

/// The field before what is wrong with it; nothing when that is the whole.
fn at(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}
