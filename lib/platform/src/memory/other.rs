//! Other systems give large pages only to those with a right to them, or by themselves, and their allocator stays.

use std::mem::MaybeUninit;

pub(super) fn use_large_pages<T>(_room: &mut [MaybeUninit<T>]) {}
