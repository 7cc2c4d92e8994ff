//! What the world looks like: snapshots, entities and the documents they are read from.
