//! What the fuzzer of requests calls (`fuzz/src/path.rs`); no part of the service.

use crate::head::{Heads, target};
use crate::path::{Method, Route, route};

/// The heads in octets that come `size` at a time, as hyper gets them.
pub fn heads(octets: &[u8], size: usize) -> Vec<Vec<u8>> {
    let mut heads = Heads::default();
    let mut found = Vec::new();
    for part in octets.chunks(size.max(1)) {
        heads.buffer().extend_from_slice(part);
        while let Some(head) = heads.take() {
            found.push(head.octets);
            if head.last {
                return found;
            }
        }
    }
    found
}

/// The target that the client sent, from the path that hyper saw, unless it was refused.
pub fn sent(path: &str) -> Option<Vec<u8>> {
    target(path).ok()
}

/// Where a request for this target is sent to instead, if anywhere.
pub fn redirect(target: &[u8]) -> Option<String> {
    // The other methods have routes of their own, which are tried for what they are: no panic.
    let _ = [Method::Options, Method::Other].map(|method| route(method, target));
    match route(Method::Read, target) {
        Ok(Route::Clean(to)) => Some(to),
        _ => None,
    }
}
