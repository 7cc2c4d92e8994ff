//! Addresses to which no name of others may lead: pure.
//!
//! A web page may give its own name the address of the host itself, of the metadata service or of a container, and then
//! speaks to that in the browser's name (DNS rebinding). Private addresses as such are allowed: companies have names for
//! theirs (split DNS). A domain whose names may lead to the addresses above is allowed by `--private-upstream`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::RData;
use hickory_proto::rr::rdata::svcb::{SVCB, SvcParamValue};

use crate::name::{Folded, is_within};
use crate::reply::Reply;

/// The name that stands for the host itself wherever it is asked for (RFC 6761 section 6.3), in wire format.
const LOCALHOST: &[u8] = b"\x09localhost\0";

/// Where EC2 answers about an instance, with its credentials, by IPv6.
const METADATA_OF_EC2: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Prefix of IPv4 addresses behind a translator (RFC 6052 section 2.1), without its zeros.
const NAT64: [u16; 2] = [0x64, 0xff9b];

/// Third part of the prefix for translators of one network (RFC 8215).
const LOCAL_NAT64: u16 = 1;

/// First part of the prefix of 6to4 (RFC 3056 section 2).
const SIX_TO_FOUR: u16 = 0x2002;

/// The first address of a reply about this name that no name of others may have; `is_container` says which addresses are
/// containers'.
pub(crate) fn forbidden(name: &Folded, reply: &Reply, is_container: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    if is_within(name.wire(), LOCALHOST) {
        return None;
    }
    let is_forbidden = |address: &IpAddr| {
        forms(*address).into_iter().any(|address| is_own(address) || is_private(address) && is_container(address))
    };
    reply.answers.iter().flat_map(|record| addresses(&record.data)).find(is_forbidden)
}

/// Addresses in a record.
fn addresses(data: &RData) -> Vec<IpAddr> {
    match data {
        RData::A(address) => vec![IpAddr::V4(address.0)],
        RData::AAAA(address) => vec![IpAddr::V6(address.0)],
        RData::SVCB(service) => hints(service),
        RData::HTTPS(service) => hints(&service.0),
        _ => Vec::new(),
    }
}

/// Addresses that browsers may use instead of asking for them (RFC 9460 section 7.3).
fn hints(service: &SVCB) -> Vec<IpAddr> {
    let hints = service.svc_params.iter().flat_map(|(_, value)| match value {
        SvcParamValue::Ipv4Hint(hint) => hint.0.iter().map(|address| IpAddr::V4(address.0)).collect(),
        SvcParamValue::Ipv6Hint(hint) => hint.0.iter().map(|address| IpAddr::V6(address.0)).collect(),
        _ => Vec::new(),
    });
    hints.collect()
}

/// An address, and the IPv4 addresses that packets to it may reach because it has them in another form.
fn forms(address: IpAddr) -> Vec<IpAddr> {
    let address = address.to_canonical();
    let mut forms = vec![address];
    let IpAddr::V6(v6) = address else { return forms };
    let (parts, o) = (v6.segments(), v6.octets());
    let mut add = |octets: [u8; 4]| forms.push(Ipv4Addr::from(octets).into());
    let last = [o[12], o[13], o[14], o[15]];
    if parts[..2] == NAT64 && (parts[2..6] == [0; 4] || parts[2] == LOCAL_NAT64) {
        add(last);
    }
    if parts[..2] == NAT64 && parts[2] == LOCAL_NAT64 {
        // The prefix itself may have 48, 56 or 64 bits (RFC 6052 section 2.2); the ninth byte is left out.
        add([o[6], o[7], o[9], o[10]]);
        add([o[7], o[9], o[10], o[11]]);
        add([o[9], o[10], o[11], o[12]]);
    }
    if parts[0] == SIX_TO_FOUR {
        add([o[2], o[3], o[4], o[5]]);
    }
    // The deprecated form without a prefix (RFC 4291 section 2.5.5.1).
    if parts[..6] == [0; 6] && parts[6] != 0 {
        add(last);
    }
    forms
}

/// Whether an address means the host itself, or services of the link such as metadata's; "this network" (RFC 1122 section
/// 3.2.1.3) is the host itself on Linux.
fn is_own(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.octets()[0] == 0 || v4.is_broadcast(),
        IpAddr::V6(v6) => {
            v6.is_loopback() || v6.is_unicast_link_local() || v6 == Ipv6Addr::UNSPECIFIED || v6 == METADATA_OF_EC2
        }
    }
}

/// Whether an address has a meaning here only. Names in the Internet lead to a container with another one for good reasons.
fn is_private(address: IpAddr) -> bool {
    match address {
        // Carriers' addresses (RFC 6598) included.
        IpAddr::V4(v4) => v4.is_private() || v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64,
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::ResponseCode;
    use hickory_proto::rr::rdata::svcb::{IpHint, SvcParamKey};
    use hickory_proto::rr::rdata::{A, AAAA, HTTPS};
    use hickory_proto::rr::{Name, Record};

    use super::*;

    fn found(name: &str, data: Vec<RData>) -> Option<String> {
        let record = |data| Record::from_rdata(Name::from_ascii("x.example.").unwrap(), 60, data);
        let answers = data.into_iter().map(record).collect();
        let reply = Reply { answers, ..Reply::empty(ResponseCode::NoError) };
        let containers: [IpAddr; 3] = ["10.42.0.7", "198.51.100.7", "fd00::7"].map(|text| text.parse().unwrap());
        let found = forbidden(&Folded::parse(name).unwrap(), &reply, |address| containers.contains(&address));
        found.map(|address| address.to_string())
    }

    fn address(text: &str) -> RData {
        match text.parse().unwrap() {
            IpAddr::V4(address) => RData::A(A(address)),
            IpAddr::V6(address) => RData::AAAA(AAAA(address)),
        }
    }

    #[test]
    fn a_name_of_others_does_not_lead_to_loopback_metadata_or_a_container() {
        for text in [
            "127.0.0.1",
            "127.42.2.21",
            "0.0.0.0",
            "169.254.169.250",
            "169.254.169.251",
            "169.254.169.254",
            "169.254.0.1",
            "10.42.0.7",
            "::",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "fd00::7",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.250",
            "64:ff9b::7f00:1",
            "64:ff9b::a2a:7",
            "64:ff9b:1::a9fe:a9fa",
            "64:ff9b:1:a9fe:a9:fa00::",
            "2002:7f00:1::1",
            "::7f00:1",
            "255.255.255.255",
        ] {
            assert!(found("x.example", vec![address(text)]).is_some(), "{text}");
            // Behind an honest one, for a browser that tries the next address.
            assert!(found("x.example", vec![address("192.0.2.1"), address(text)]).is_some(), "{text}");
            assert!(found("localhost", vec![address(text)]).is_none(), "{text}");
        }
        // Addresses of companies, and a container that the Internet reaches.
        for text in [
            "10.42.0.8",
            "192.168.1.1",
            "100.64.0.1",
            "198.51.100.7",
            "2001:db8::7",
            "fd00::8",
            "64:ff9b::1.2.3.4",
            "2002:102:304::1",
        ] {
            assert_eq!(found("x.example", vec![address(text)]), None, "{text}");
        }
    }

    #[test]
    fn a_hint_is_an_address_too() {
        let hint = |text: &str| {
            let hint = match text.parse().unwrap() {
                IpAddr::V4(address) => (SvcParamKey::Ipv4Hint, SvcParamValue::Ipv4Hint(IpHint(vec![A(address)]))),
                IpAddr::V6(address) => (SvcParamKey::Ipv6Hint, SvcParamValue::Ipv6Hint(IpHint(vec![AAAA(address)]))),
            };
            vec![RData::HTTPS(HTTPS(SVCB::new(1, Name::root(), vec![hint])))]
        };
        assert_eq!(found("x.example", hint("127.0.0.1")).as_deref(), Some("127.0.0.1"));
        assert_eq!(found("x.example", hint("::1")).as_deref(), Some("::1"));
        assert_eq!(found("x.example", hint("192.0.2.1")), None);
    }
}
