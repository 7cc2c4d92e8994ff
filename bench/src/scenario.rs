//! What is measured: one file for each command.

pub(crate) mod changes;
pub(crate) mod dns;
pub(crate) mod docker;
pub(crate) mod etcd;
pub(crate) mod files;
pub(crate) mod http;
pub(crate) mod placements;
pub(crate) mod soak;
