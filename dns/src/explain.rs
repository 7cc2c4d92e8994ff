//! Why a client gets what it gets: every name that is tried, in order, and what stands there, as the answer itself records it.

use serde::Serialize;

use crate::answer::{Recorder, Standing, Tried};
use crate::name::Folded;

/// One name that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    /// The name.
    pub(crate) name: String,
    /// Where it was looked for.
    pub(crate) section: Section,
    /// The entry of the search list that was appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) search: Option<String>,
    /// What stands there.
    pub(crate) found: What,
}

/// Where names are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Section {
    /// Among the names that only this client has.
    Client,
    /// Among those that all have.
    Default,
}

/// The entity at a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// Records of the type.
    Records,
    /// Another name that it is an alias of.
    Alias(String),
    /// Records of other types.
    OtherTypes,
    /// Something that this client finds by its full name only.
    FullNameOnly,
    /// Nothing.
    Nothing,
}

/// The names that are tried for a question, those behind aliases included.
#[derive(Debug, Default)]
pub(crate) struct Steps(pub(crate) Vec<Step>);

impl Recorder for Steps {
    fn tried(&mut self, tried: Tried<'_>) {
        self.0.push(Step {
            name: Folded::from_wire(tried.name).to_string(),
            section: if tried.own { Section::Client } else { Section::Default },
            search: tried.search.map(ToString::to_string),
            found: match tried.found {
                Standing::Records => What::Records,
                Standing::Alias(alias) => What::Alias(Folded::verbatim(alias.target()).to_string()),
                Standing::OtherTypes => What::OtherTypes,
                Standing::FullNameOnly => What::FullNameOnly,
                Standing::Nothing => What::Nothing,
            },
        });
    }
}

#[cfg(test)]
mod tests;
