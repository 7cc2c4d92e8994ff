//! The limit of descriptors.

pub(super) fn descriptors() -> Option<u64> {
    limit().map(|limit| limit.rlim_cur)
}

pub(super) fn raise_descriptor_limit() -> Option<u64> {
    let limit = limit()?;
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
    // SAFETY: the pointer is to a structure of the type the call reads, which lives until it returns.
    #[expect(unsafe_code, reason = "std does not know limits")]
    let granted = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0;
    Some(if granted { raised.rlim_cur } else { limit.rlim_cur })
}

fn limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a structure of the type the call fills, which lives until it returns.
    #[expect(unsafe_code, reason = "std does not know limits")]
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    known.then_some(limit)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn soft_limit_becomes_the_hard_one() {
        // Lower than most systems start with, high enough for the other tests.
        const LOW: u64 = 512;
        let mut limit = limit().unwrap();
        limit.rlim_cur = LOW.min(limit.rlim_max);
        // SAFETY: the pointer is to a structure of the type the call reads, which lives until it returns.
        #[expect(unsafe_code, reason = "std does not know limits")]
        let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(result, 0);
        assert_eq!(descriptors(), Some(limit.rlim_cur));

        let raised = raise_descriptor_limit().unwrap();
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let [soft, hard] = [3, 4].map(|word| line.split_whitespace().nth(word).unwrap());
        assert_eq!((soft, hard), (raised.to_string().as_str(), raised.to_string().as_str()));
        assert_eq!(descriptors(), Some(raised));
    }
}
