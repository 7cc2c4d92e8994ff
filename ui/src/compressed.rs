//! Responses compressed with gzip (RFC 1952), for browsers that ask for that: a page of many rows is a fifth of its size.

use std::io::Write as _;
use std::sync::OnceLock;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

/// What several clients are sent, compressed once: when the first of them takes that.
#[derive(Debug)]
pub(crate) struct Content {
    plain: Bytes,
    compressed: OnceLock<Option<Bytes>>,
}

impl Content {
    /// This content.
    pub(crate) fn new(plain: impl Into<Bytes>) -> Self {
        Self { plain: plain.into(), compressed: OnceLock::new() }
    }

    /// A body for who sent these headers.
    pub(crate) fn body_for(&self, headers: &HeaderMap) -> Response {
        let compressed = || self.compressed.get_or_init(|| gzip(&self.plain).map(Bytes::from)).clone();
        let mut response = match takes_gzip(headers).then(compressed).flatten() {
            Some(compressed) => {
                let mut response = Body::from(compressed).into_response();
                response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                response
            }
            None => Body::from(self.plain.clone()).into_response(),
        };
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        response
    }
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(',')).map(|coding| coding.trim().split(';'));
    codings.any(|mut coding| {
        let is_refused = |weight: &str| weight.trim().trim_start_matches("q=").parse() == Ok(0.0);
        coding.next().is_some_and(|name| name.trim().eq_ignore_ascii_case("gzip")) && !coding.any(is_refused)
    })
}

/// The least compression: more takes longer than a fast link saves.
fn gzip(content: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(content.len() / 4), Compression::fast());
    encoder.write_all(content).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_take_gzip_get_it() {
        let content = Content::new("the same again and again, the same again and again");
        for (accepted, takes) in [
            (&["gzip, deflate, br"][..], true),
            (&["br", "GZIP;q=0.5"], true),
            (&["gzip;q=0, br"], false),
            (&["gzip; q=0.0"], false),
            (&["deflate"], false),
            (&[""], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in accepted {
                headers.append(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            }
            let response = content.body_for(&headers);
            let encoding = response.headers().get(header::CONTENT_ENCODING);
            assert_eq!(encoding.is_some(), takes, "{accepted:?}");
            assert_eq!(response.headers()[header::VARY], "accept-encoding");
        }
    }
}
