//! Where the system's container engine listens when nobody says otherwise.

#[cfg_attr(unix, path = "engine/unix.rs")]
#[cfg_attr(windows, path = "engine/windows.rs")]
mod system;

/// The endpoint that Docker's own client uses on this system.
pub const DEFAULT_ENDPOINT: &str = system::DEFAULT_ENDPOINT;

/// Who may open that endpoint, as advice to a person who may not.
pub const WHO_MAY: &str = system::WHO_MAY;
