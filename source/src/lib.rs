//! Where snapshots come from, and the store they are published in.
