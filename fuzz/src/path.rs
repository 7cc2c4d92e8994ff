//! Bytes of a connection, as the metadata service reads heads and targets from them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metadata::fuzzing::{heads, redirect};

fuzz_target!(|bytes: &[u8]| {
    let whole = heads(bytes, bytes.len());
    for size in [1, 3] {
        assert_eq!(heads(bytes, size), whole, "cut into pieces of {size}");
    }
    let mut start = 0;
    for (end, target) in whole {
        // Who reads on the way has to agree where a head ends, or a client could smuggle a request in another.
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut request = httparse::Request::new(&mut headers);
        let head = &bytes[start..end];
        if let Ok(parsed) = request.parse(head) {
            assert_eq!(parsed, httparse::Status::Complete(head.len()), "{}", head.escape_ascii());
        }
        start = end;
        if let Some(to) = redirect(&target) {
            assert!(!to.bytes().any(|byte| byte <= b' ' || byte >= 0x7f), "no header value: {to:?}");
            assert!(!to.starts_with("//"), "leads to another host: {to}");
            assert_eq!(redirect(to.as_bytes()), None, "redirected again: {to}");
        }
    }
});
