//! Everything that differs between operating systems.
