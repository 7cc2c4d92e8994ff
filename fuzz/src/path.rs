//! Bytes of a connection, as the metadata service reads heads and targets from them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metadata::fuzzing::{heads, redirect, sent};

fuzz_target!(|bytes: &[u8]| {
    let whole = heads(bytes, bytes.len());
    for size in [1, 3] {
        assert_eq!(heads(bytes, size), whole, "cut into pieces of {size}");
    }
    for head in whole {
        // Hyper has to agree where the head ends, or a client could smuggle a request in another.
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut request = httparse::Request::new(&mut headers);
        assert_eq!(request.parse(&head), Ok(httparse::Status::Complete(head.len())), "{}", head.escape_ascii());
        let Some(target) = sent(request.path.unwrap()) else { continue };
        if let Some(to) = redirect(&target) {
            assert!(!to.bytes().any(|byte| byte <= b' ' || byte >= 0x7f), "no header value: {to:?}");
            assert!(!to.starts_with("//"), "leads to another host: {to}");
            assert_eq!(redirect(to.as_bytes()), None, "redirected again: {to}");
        }
    }
});
