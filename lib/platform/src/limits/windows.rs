//! Windows limits handles only by memory.

pub(super) fn descriptors() -> Option<u64> {
    None
}

pub(super) fn raise_descriptor_limit() -> Option<u64> {
    None
}
