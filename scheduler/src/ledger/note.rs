//! Notes: what the predecessor's events promised or gave back, until their containers show it themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use model::Text;

use crate::ledger::record::Promise;

/// What one of the predecessor's events promised or gave back.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) host: Text,
    /// What it is.
    pub(crate) promise: Promise,
    /// The containers it is about; empty when unknown.
    pub(crate) unit: BTreeSet<Text>,
    /// Those of them that have to show up (or, for what was given back, to go) before it ends.
    pub(crate) waits_for: BTreeSet<Text>,
    /// Whether all have shown up; what no snapshot shows then stays promised until they go.
    pub(crate) settled: bool,
    pub(crate) gives_back: bool,
    /// When it was made.
    pub(crate) made: Duration,
}

impl Note {
    /// A note that waits for all of `unit`.
    pub(crate) fn new(host: Text, promise: Promise, unit: BTreeSet<Text>, gives_back: bool, made: Duration) -> Self {
        Self { host, promise, waits_for: unit.clone(), unit, settled: false, gives_back, made }
    }
}
