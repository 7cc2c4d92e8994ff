//! The limit of descriptors.

pub(super) fn raise_descriptor_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a structure of the type the call fills, which lives until it returns.
    #[expect(unsafe_code, reason = "std does not know limits")]
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if !known {
        return None;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
    // SAFETY: the pointer is to a structure of the type the call reads, which lives until it returns.
    #[expect(unsafe_code, reason = "std does not know limits")]
    let granted = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0;
    Some(if granted { raised.rlim_cur } else { limit.rlim_cur })
}
