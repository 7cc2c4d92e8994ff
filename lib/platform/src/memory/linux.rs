//! The allocator of all executables, and large pages of Linux, madvise(2).

use std::mem::MaybeUninit;

use mimalloc::MiMalloc;

/// Beside glibc's a plan of a balancer takes 0.6 of the time and a change of a large file 0.65 (`bench/RESULTS.md`, "allocator").
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

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
