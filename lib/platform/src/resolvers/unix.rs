//! Name servers of /etc/resolv.conf.

use std::ffi::CString;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::Path;

use super::{PORT, push_new};
use crate::file;

const PATH: &str = "/etc/resolv.conf";

/// Longest /etc/resolv.conf that is read; what follows is ignored. A usual one has a few hundred bytes.
const FILE_MAX: u64 = 1 << 20;

pub(super) fn resolvers() -> io::Result<Vec<SocketAddr>> {
    let mut text = Vec::new();
    file::open_regular(Path::new(PATH))
        .map_err(io::Error::from)?
        .take(FILE_MAX)
        .read_to_end(&mut text)
        .map_err(|error| io::Error::new(error.kind(), format!("{PATH}: {error}")))?;
    Ok(parse(&String::from_utf8_lossy(&text), interface_index))
}

/// Reads the nameserver lines of a resolv.conf(5); a line that is none, or names no address, is passed over.
fn parse(text: &str, interface_index: impl Fn(&str) -> Option<u32>) -> Vec<SocketAddr> {
    let mut resolvers = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if words.next() == Some("nameserver")
            && let Some(resolver) = words.next().and_then(|word| resolver(word, &interface_index))
        {
            push_new(&mut resolvers, resolver);
        }
    }
    resolvers
}

fn resolver(word: &str, interface_index: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    // A comment may stand directly behind the address.
    let word = word.split(['#', ';']).next()?;
    match word.split_once('%') {
        None => Some(SocketAddr::new(word.parse().ok()?, PORT)),
        Some((address, zone)) => match address.parse().ok()? {
            IpAddr::V6(address) => {
                let zone = zone.parse().ok().or_else(|| interface_index(zone))?;
                Some(SocketAddrV6::new(address, PORT, 0, zone).into())
            }
            IpAddr::V4(_) => None,
        },
    }
}

fn interface_index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the pointer is to a string that ends with a zero byte and lives until the call returns.
    #[expect(unsafe_code, reason = "std does not know interfaces")]
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let zones = |name: &str| (name == "eth0").then_some(3);
        let found: Vec<String> = parse(text, zones).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn nameserver_lines_are_taken_in_order() {
        check("nameserver 192.0.2.53\nnameserver 2001:db8::53\n", &["192.0.2.53:53", "[2001:db8::53]:53"]);
        check("search example.org\n  nameserver\t192.0.2.53 \r\noptions ndots:5\n", &["192.0.2.53:53"]);
    }

    #[test]
    fn each_server_is_named_once() {
        check("nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.1", &["192.0.2.1:53", "192.0.2.2:53"]);
    }

    #[test]
    fn comments_are_passed_over() {
        check("# nameserver 192.0.2.1\n; nameserver 192.0.2.2\n#nameserver 192.0.2.3\n", &[]);
        check("nameserver 192.0.2.1#home\nnameserver 192.0.2.2;office\n", &["192.0.2.1:53", "192.0.2.2:53"]);
    }

    #[test]
    fn lines_without_an_address_are_passed_over() {
        check("nameserver\nnameserver \nnameservers 192.0.2.1\nnameserver example.org\nnameserver 192.0.2\n", &[]);
        check("\u{0}\u{fffd}nameserver 192.0.2.1\nnameserver 192.0.2.2\n", &["192.0.2.2:53"]);
        check("", &[]);
    }

    #[test]
    fn zones_are_names_or_numbers() {
        check("nameserver fe80::1%eth0\nnameserver fe80::1%7", &["[fe80::1%3]:53", "[fe80::1%7]:53"]);
        check("nameserver fe80::1%eth9\nnameserver fe80::1%\nnameserver 192.0.2.1%eth0", &[]);
    }

    #[test]
    fn interfaces_are_known_by_name() {
        assert_eq!(interface_index("lo"), Some(1));
        assert_eq!(interface_index("no-such-name"), None);
        assert_eq!(interface_index("a\0b"), None);
    }

    #[test]
    fn configuration_of_this_machine_is_read() {
        match resolvers() {
            Ok(resolvers) => assert!(resolvers.iter().all(|resolver| resolver.port() == PORT)),
            Err(error) => assert!(error.to_string().starts_with(PATH), "{error}"),
        }
    }
}
