//! Locks whose contents are whole at any moment, whatever a thread did that held one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock, also after a thread has panicked while it held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
