//! Ranges of keys.

/// Keys one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first one.
    pub from: Vec<u8>,
    /// The first one that does not belong to them; empty for one key alone.
    pub end: Vec<u8>,
}

impl Span {
    /// All keys that begin so.
    pub fn of_prefix(prefix: &[u8]) -> Self {
        Self { from: prefix.to_vec(), end: prefix_end(prefix) }
    }

    /// One key.
    pub fn of_key(key: &[u8]) -> Self {
        Self { from: key.to_vec(), end: Vec::new() }
    }
}

/// The first key behind all that begin with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // There is none: etcd takes a zero byte for the end of all keys.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_without_it() {
        for (prefix, end) in [(&b"/a/"[..], &b"/a0"[..]), (b"a\xff", b"b"), (b"\xff", b"\0"), (b"", b"\0")] {
            assert_eq!(prefix_end(prefix), end, "{prefix:?}");
        }
    }
}
