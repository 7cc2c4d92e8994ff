//! How much one request may ask for; what is more is refused by the name of its field.

/// Most replicas of one request: more would hold the ledger for longer than other callers should wait.
pub(crate) const COUNT_MAX: i64 = 10_000;

/// Most containers of one unit; a stack of that many sidekicks is a mistake.
pub(crate) const MEMBERS_MAX: usize = 32;

/// Most constraints of one request, after labels are taken apart: each costs a pass over the hosts.
pub(crate) const CONSTRAINTS_MAX: usize = 256;

/// Most labels of one container.
pub(crate) const LABELS_MAX: usize = 1024;

/// Most ports of one container.
pub(crate) const PORTS_MAX: usize = 256;

/// Most entries of any other list.
pub(crate) const LIST_MAX: usize = 256;

/// Longest text, in bytes.
pub(crate) const TEXT_MAX: usize = 4096;

/// Longest id and name, in bytes: engines take names of that length, and URLs carry them.
pub(crate) const ID_MAX: usize = 128;

/// Most hosts on which starting is tried: each may take a pull and half a minute of silence.
pub(crate) const ATTEMPTS_MAX: i64 = 16;

/// Largest amount, 1 PiB of memory: far from where sums overflow.
pub(crate) const AMOUNT_MAX: i64 = 1 << 50;

/// Longest time for a container to end when it is stopped, in seconds: an hour, as databases ask for at most.
pub(crate) const GRACE_MAX: u64 = 3600;
