//! Locks whose contents are consistent at any moment, even after a panic of a thread that held one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock, also after a thread has panicked while it held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
