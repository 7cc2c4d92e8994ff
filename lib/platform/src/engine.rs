//! Where the system's container engine listens by default, connections to it, and listening like one.

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

/// A connection that was accepted.
pub type Accepted = system::Accepted;

/// Accepts connections as an engine does.
#[derive(Debug)]
pub struct Listener(system::Listener);

/// Listens on the socket of this path, for this user and a group: the one that is named, otherwise that of the process.
///
/// A socket that was left by a process that is gone is replaced.
///
/// # Errors
///
/// Fails if another process listens there, something else is there, the group is unknown, or user or group of the socket
/// would be `nobody` or `nogroup`. On Windows it always does.
pub fn listen(path: &str, group: Option<&str>) -> std::io::Result<Listener> {
    system::listen(path, group).map(Listener)
}

impl Listener {
    /// The next connection. An error of the system is waited for to pass.
    pub async fn accept(&self) -> Accepted {
        self.0.accept().await
    }
}
