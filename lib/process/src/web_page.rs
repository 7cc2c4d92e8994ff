//! Requests of web pages, refused where only programs and their operators ask.
//!
//! A browser sends what a page wants to any address, also to loopback, where no firewall sees it. It says so with `Origin`
//! or `Sec-Fetch-Site`; a page whose own name suddenly points to the service (DNS rebinding) is of the same origin for it,
//! and only the name in `Host` gives it away.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};

/// The header by which a browser marks requests of other sites' pages; `none` is an address that a person typed.
const FETCH_SITE: &str = "sec-fetch-site";

/// The header by which a request is known to be that of a web page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requests of web pages are refused ({0})")]
pub struct WebPage(pub &'static str);

/// Refuses requests of web pages; the service may be called by these names besides those of loopback and addresses.
///
/// # Errors
///
/// Fails if the request is, or may be, that of a web page.
pub fn refuse_web_page(headers: &HeaderMap, names: &[String]) -> Result<(), WebPage> {
    if headers.contains_key(header::ORIGIN) {
        return Err(WebPage("Origin"));
    }
    let mut sites = headers.get_all(FETCH_SITE).iter();
    if !sites.all(|site| site == "none" || site == "same-origin") {
        return Err(WebPage("Sec-Fetch-Site"));
    }
    // Without one it is an old client, and no browser.
    let mut called = headers.get_all(header::HOST).iter();
    let is_known = called.all(|host| host.to_str().is_ok_and(|host| is_own(host, names)));
    if is_known { Ok(()) } else { Err(WebPage("Host")) }
}

/// Whether the service may be called this. An address cannot point to anything else than itself, as a name can.
fn is_own(called: &str, names: &[String]) -> bool {
    let Ok(authority) = called.parse::<Authority>() else { return false };
    let host = authority.host();
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || name == "localhost"
        || name.ends_with(".localhost")
        || names.iter().any(|own| own.eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn pages_of_browsers_are_refused_and_programs_are_not() {
        let names = ["scheduler.example.org".to_owned()];
        for (lines, refused) in [
            (&[][..], None),
            (&[("host", "127.0.0.1:8254")], None),
            (&[("host", "[::1]:8254")], None),
            (&[("host", "192.0.2.7:9000")], None),
            (&[("host", "LOCALHOST:8254")], None),
            (&[("host", "berth.localhost.")], None),
            (&[("host", "Scheduler.example.org:8254")], None),
            (&[("host", "127.0.0.1"), ("sec-fetch-site", "none")], None),
            (&[("host", "localhost"), ("sec-fetch-site", "same-origin")], None),
            (&[("host", "example.org:8254")], Some("Host")),
            (&[("host", "127.0.0.1.example.org")], Some("Host")),
            (&[("host", "notlocalhost")], Some("Host")),
            (&[("host", "127.0.0.1"), ("host", "example.org")], Some("Host")),
            (&[("host", "")], Some("Host")),
            (&[("host", "127.0.0.1"), ("origin", "http://127.0.0.1")], Some("Origin")),
            (&[("host", "127.0.0.1"), ("origin", "null")], Some("Origin")),
            (&[("host", "127.0.0.1"), ("sec-fetch-site", "cross-site")], Some("Sec-Fetch-Site")),
            (&[("host", "localhost"), ("sec-fetch-site", "same-site")], Some("Sec-Fetch-Site")),
        ] {
            let line = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            let mut headers = HeaderMap::new();
            for (name, value) in lines.iter().map(line) {
                headers.append(name, value);
            }
            assert_eq!(refuse_web_page(&headers, &names).err().map(|page| page.0), refused, "{lines:?}");
        }
    }
}
