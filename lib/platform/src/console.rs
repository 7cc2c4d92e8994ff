//! What people type into on this system.

/// Whether it is PowerShell or `cmd`, where `curl` may be another command, there is no `dig`, and single quotation marks
/// hold nothing together.
pub const OF_WINDOWS: bool = cfg!(windows);
