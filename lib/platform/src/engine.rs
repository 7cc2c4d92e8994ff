//! Where the system's container engine listens by default, and connections to it.

#[cfg_attr(unix, path = "engine/unix.rs")]
#[cfg_attr(windows, path = "engine/windows.rs")]
mod system;

/// The endpoint that Docker's own client uses on this system.
pub const DEFAULT_ENDPOINT: &str = system::DEFAULT_ENDPOINT;

/// Advice to a person who may not open that endpoint.
pub const WHO_MAY: &str = system::WHO_MAY;

/// A connection to an engine: a socket of Unix, a named pipe of Windows.
pub type Stream = system::Stream;

/// Connects to the socket or the pipe of this path.
///
/// A pipe of which all instances are taken is tried again for a second: the engine makes the next one at once.
///
/// # Errors
///
/// What the system says.
pub async fn connect(path: &str) -> std::io::Result<Stream> {
    system::connect(path).await
}
