//! The `dns` executable.

fn main() {}
