//! The `metadata` executable.

fn main() {}
