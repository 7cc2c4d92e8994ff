//! No services of this kind.

use super::{Definition, ServiceError, State};

pub(super) fn install(_: &Definition) -> Result<Vec<&'static str>, ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn uninstall(_: &str) -> Result<(), ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn start(_: &str) -> Result<(), ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn stop(_: &str) -> Result<(), ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn state(_: &str) -> Result<State, ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn command_line(_: &str) -> Result<String, ServiceError> {
    Err(ServiceError::Unsupported)
}

pub(super) fn report(_: State) {}

pub(super) fn run(_: &str, _: Box<dyn FnOnce() -> u8 + Send>) -> Result<(), ServiceError> {
    Err(ServiceError::Unsupported)
}
