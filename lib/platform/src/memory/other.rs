//! Other systems give large pages only to those with a right to them, or by themselves, and have no arenas.

use std::mem::MaybeUninit;

pub(super) fn use_large_pages<T>(_room: &mut [MaybeUninit<T>]) {}

pub(super) fn limit_pools(_count: usize) -> bool {
    false
}
