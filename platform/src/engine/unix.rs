//! The engine's socket.

pub(super) const DEFAULT_ENDPOINT: &str = "unix:///var/run/docker.sock";

pub(super) const WHO_MAY: &str = "run as root, or as a member of the group docker";
