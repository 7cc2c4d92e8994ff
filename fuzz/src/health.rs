//! Health checks as labels say them: a wrong one is an error, and no request line makes two requests.
#![no_main]

use health::request_line::Request;
use health::spec::Spec;
use libfuzzer_sys::fuzz_target;
use model::health::LABEL;
use model::{Map, Value};

fuzz_target!(|text: &str| {
    // The first line as a request, all of them as labels.
    let first = text.lines().next().unwrap_or_default();
    if let Ok(request) = Request::parse(first) {
        let bytes = request.bytes();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head ends") + 4;
        assert!(!bytes[..end].contains(&0), "{first:?}");
        let (head, body) = bytes.split_at(end);
        let length = format!("content-length: {}\r\n", body.len());
        let is_announced = head.windows(length.len()).any(|window| window == length.as_bytes());
        assert!(body.is_empty() || is_announced, "{first:?}");
    }
    let label = |line: &str| {
        let (name, value) = line.split_once('=')?;
        Some((format!("{LABEL}{name}").as_str().into(), Value::text(value)))
    };
    let labels: Map = text.lines().filter_map(label).collect();
    let _ = Spec::of_labels(&labels);
});
