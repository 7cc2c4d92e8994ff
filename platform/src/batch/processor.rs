//! What depends on the processor and on no system: a hint for its memory.

use super::CACHE_LINE;

/// Asks for the cache lines of these octets.
#[cfg(target_arch = "x86_64")]
pub(super) fn fetch(octets: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    let whole_lines = octets.chunks(CACHE_LINE).map(<[u8]>::as_ptr);
    for octet in whole_lines.chain(octets.last().map(std::ptr::from_ref)) {
        // SAFETY: every processor of this kind has the instruction, which reads and changes nothing for a program and
        // never fails; the pointer is to an octet that is borrowed.
        #[expect(unsafe_code, reason = "the standard library has no other way")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(octet.cast());
        }
    }
}

/// Other processors are left to guess.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fetch(octets: &[u8]) {
    let _ = octets.chunks(CACHE_LINE);
}
