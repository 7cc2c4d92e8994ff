//! What the fuzzer of requests calls (`fuzz/src/path.rs`); no part of the service.

use crate::head::Heads;
use crate::path::{Method, Route, route};

/// The targets in bytes that come `size` at a time, and where in all of them each head ends; up to one that is refused.
pub fn heads(bytes: &[u8], size: usize) -> Vec<(usize, Vec<u8>)> {
    let mut heads = Heads::default();
    let (mut found, mut read) = (Vec::new(), 0);
    for part in bytes.chunks(size.max(1)) {
        heads.buffer().extend_from_slice(part);
        read += part.len();
        while let Some(head) = heads.take() {
            let Ok(head) = head else { return found };
            let (last, target) = (head.terms.has_body, head.asked().target.to_vec());
            found.push((read - heads.buffer().len(), target));
            if last {
                return found;
            }
        }
    }
    found
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
