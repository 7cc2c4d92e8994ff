//! The Docker Engine of this host as a source.
