//! etcd as a source: each host publishes its own document, all follow those of the others.
