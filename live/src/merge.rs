//! One snapshot out of the documents of many hosts.
