//! Bodies: values as JSON, YAML, listings and pages, and the pieces of them that clients share.

pub(crate) mod number;
pub(crate) mod page;
pub(crate) mod parts;
pub(crate) mod render;
pub(crate) mod renderings;
pub(crate) mod weight;
pub(crate) mod whole;
