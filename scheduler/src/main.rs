//! The `scheduler` executable.

fn main() {}
