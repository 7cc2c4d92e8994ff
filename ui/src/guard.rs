//! What is said to browsers with every answer, and which requests get one.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use process::{WebPage, refuse_web_page};

/// What pages may do: load from this server alone, and make no markup of text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// Headers of every answer.
const HEADERS: [(&str, &str); 7] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
];

/// Adds the headers of every answer; what is not cached on purpose is not cached.
pub(crate) fn protect(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Refuses requests of other sites' pages, and those that call this server by a name that is not its own.
///
/// All views are asked for by GET, so no request needs an `Origin`.
///
/// # Errors
///
/// Fails with what is answered.
pub(crate) fn admit(method: &Method, headers: &HeaderMap, names: &[String]) -> Result<(), (StatusCode, String)> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "the page answers GET alone: it changes nothing\n".to_owned()));
    }
    match refuse_web_page(headers, names) {
        Ok(()) if headers.contains_key(header::HOST) => Ok(()),
        Ok(()) | Err(WebPage("Host")) => {
            let expected = "the page is at an address, localhost or a name of --ui-host\n";
            Err((StatusCode::MISDIRECTED_REQUEST, expected.to_owned()))
        }
        Err(page) => Err((StatusCode::FORBIDDEN, format!("{page}\n"))),
    }
}
