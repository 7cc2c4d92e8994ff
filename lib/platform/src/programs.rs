//! Programs that tests start beside each other.
//!
//! Until a new process runs its program it holds all sockets of the one that started it, so that an address whose listener
//! has ended is still taken for a moment.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

static PROGRAMS: RwLock<()> = RwLock::new(());

/// Held while a test starts a program.
pub(crate) fn starting() -> RwLockReadGuard<'static, ()> {
    PROGRAMS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held while no test may start one.
pub(crate) fn none_starts() -> std::sync::RwLockWriteGuard<'static, ()> {
    PROGRAMS.write().unwrap_or_else(PoisonError::into_inner)
}
