//! The `agent` executable.

fn main() {}
