//! The engine's named pipe.

pub(super) const DEFAULT_ENDPOINT: &str = "npipe:////./pipe/docker_engine";

pub(super) const WHO_MAY: &str = "run as an administrator, or as a member of the engine's group (docker-users)";
