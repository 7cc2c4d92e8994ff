//! Large pages of Linux, madvise(2), and the arenas of glibc, mallopt(3).

use std::mem::MaybeUninit;

/// Size of a large page on the processors that the images are for.
const LARGE_PAGE: usize = 2 << 20;

pub(super) fn use_large_pages<T>(room: &mut [MaybeUninit<T>]) {
    let start = room.as_mut_ptr().cast::<u8>();
    // Only pages that are ours as a whole.
    let before = start.addr().next_multiple_of(LARGE_PAGE) - start.addr();
    let bytes = size_of_val(room).saturating_sub(before) / LARGE_PAGE * LARGE_PAGE;
    if bytes == 0 {
        return;
    }
    // SAFETY: the pages begin `before` bytes into `room` and end in it, since there is at least one; `room` is borrowed
    // for the call. This advice changes neither what is in memory nor what may be done with it. An error means that the
    // system has no large pages, and nothing else.
    #[expect(unsafe_code, reason = "std gives no advice to the system")]
    unsafe {
        libc::madvise(start.wrapping_add(before).cast(), bytes, libc::MADV_HUGEPAGE);
    }
}

pub(super) fn limit_pools(count: usize) -> bool {
    #[cfg(target_env = "gnu")]
    {
        let count = libc::c_int::try_from(count).unwrap_or(libc::c_int::MAX);
        // SAFETY: sets a number inside of the allocator, which takes its own lock for that.
        #[expect(unsafe_code, reason = "std does not know glibc's arenas")]
        let set = unsafe { libc::mallopt(libc::M_ARENA_MAX, count) };
        set == 1
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = count;
        false
    }
}
