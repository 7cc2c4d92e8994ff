//! Large pages of Linux, madvise(2).

use std::mem::MaybeUninit;

/// Size of a large page on the processors that the images are for.
const LARGE_PAGE: usize = 2 << 20;

pub(super) fn use_large_pages(room: &mut [MaybeUninit<u8>]) {
    // Only pages that are ours as a whole.
    let before = room.as_ptr().addr().next_multiple_of(LARGE_PAGE) - room.as_ptr().addr();
    let Some(whole) = room.get_mut(before..) else { return };
    let octets = whole.len() / LARGE_PAGE * LARGE_PAGE;
    // SAFETY: the pages lie wholly in `whole`, which is borrowed for the call; this advice changes neither what is in
    // memory nor what may be done with it. An error means that the system has no large pages, and nothing else.
    #[expect(unsafe_code, reason = "std gives no advice to the system")]
    unsafe {
        libc::madvise(whole.as_mut_ptr().cast(), octets, libc::MADV_HUGEPAGE);
    }
}
