//! EDNS: what queries say in their OPT record, and what is said in those of replies (RFC 6891).

use hickory_proto::op::ResponseCode;

use crate::cookie::{CLIENT_BYTES, COOKIE_BYTES, Cookie, is_legal_length};

/// Longest response over UDP, even if the client accepts longer ones.
///
/// 1232 bytes fit an IPv6 packet of minimum MTU with room for headers, so it is never fragmented.
pub(crate) const UDP_ANSWER_MAX: u16 = 1232;

/// Length of an OPT record without options (RFC 6891 section 6.1.2).
pub(crate) const OPT_BYTES: usize = 11;

/// Longest name of a server that is sent (RFC 5001): a host's name fits.
pub(crate) const NSID_BYTES_MAX: usize = 64;

/// The offset of the upper bits of the code in an OPT record.
const CODE_AT: usize = 5;

/// Room for the longest OPT record that is written: four bytes for each option, and its data.
const OPT_BYTES_MAX: usize = OPT_BYTES + (4 + NSID_BYTES_MAX) + (4 + COOKIE_BYTES) + (4 + 2) + (4 + 2);

/// The option with the name of the server (RFC 5001 section 2.1).
const NSID: u16 = 3;

/// The option with a cookie (RFC 7873 section 4).
const COOKIE: u16 = 10;

/// The option about idle connections (RFC 7828 section 3).
const TCP_KEEPALIVE: u16 = 11;

/// How long a connection may stay idle, in units of 100 ms; a little less than it really may.
const KEEPALIVE: u16 = 90;

/// The option that says why (RFC 8914 section 2).
const EXTENDED_ERROR: u16 = 15;

/// The version of EDNS that is spoken (RFC 6891 section 6.1.3).
pub(crate) const EDNS_VERSION: u8 = 0;

/// Flag "DNSSEC OK" in the OPT record (RFC 3225 section 3).
const DNSSEC_OK: u16 = 0x8000;

/// What the OPT record of a query says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edns {
    /// Bytes of the longest datagram that the client takes.
    pub(crate) size: u16,
    pub(crate) version: u8,
    pub(crate) dnssec_ok: bool,
    /// The client's part of a cookie (RFC 7873).
    pub(crate) client_cookie: Option<[u8; CLIENT_BYTES]>,
    /// The whole of it, when it is as long as one of ours.
    pub(crate) cookie: Option<Cookie>,
    /// Whether the client asks how long a connection may stay idle (RFC 7828).
    keepalive: bool,
    /// Whether the client asks which server this is (RFC 5001).
    pub(crate) nsid: bool,
}

impl Edns {
    /// What stands in a record, behind its name: the fixed part, and the options.
    pub(crate) fn read(fixed: &[u8], mut options: &[u8]) -> Option<Self> {
        let (mut client_cookie, mut cookie, mut keepalive, mut nsid) = (None, None, false, false);
        while !options.is_empty() {
            let [code_high, code_low, high, low] = *options.first_chunk::<4>()?;
            let data = options.get(4..4 + usize::from(u16::from_be_bytes([high, low])))?;
            match u16::from_be_bytes([code_high, code_low]) {
                COOKIE if !is_legal_length(data.len()) => return None,
                COOKIE => (client_cookie, cookie) = (data.first_chunk().copied(), data.try_into().ok()),
                TCP_KEEPALIVE => keepalive = true,
                NSID => nsid = true,
                _ => {}
            }
            options = &options[4 + data.len()..];
        }
        Some(Self {
            size: u16::from_be_bytes([fixed[2], fixed[3]]),
            version: fixed[5],
            dnssec_ok: u16::from_be_bytes([fixed[6], fixed[7]]) & DNSSEC_OK != 0,
            client_cookie,
            cookie,
            keepalive,
            nsid,
        })
    }
}

/// What goes into the OPT record of a reply besides what the query says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extra<'s> {
    pub(crate) extended_error: Option<u16>,
    pub(crate) cookie: Option<Cookie>,
    /// Whether the reply goes by a connection.
    pub(crate) connected: bool,
    /// The name of this server.
    pub(crate) server: Option<&'s [u8]>,
}

/// The OPT record of a reply.
pub(crate) struct Opt {
    bytes: [u8; OPT_BYTES_MAX],
    end: usize,
}

impl Opt {
    /// The record for a client that sent such a record itself.
    pub(crate) fn new(edns: Edns, code: ResponseCode, extra: Extra<'_>) -> Self {
        let [size_high, size_low] = UDP_ANSWER_MAX.to_be_bytes();
        let [flags_high, flags_low] = if edns.dnssec_ok { DNSSEC_OK } else { 0 }.to_be_bytes();
        let mut opt = Self { bytes: [0; OPT_BYTES_MAX], end: 0 };
        opt.put(&[0, 0, 41, size_high, size_low, code.high(), EDNS_VERSION, flags_high, flags_low, 0, 0]);
        if let Some(server) = extra.server.filter(|_| edns.nsid) {
            opt.option(NSID, server);
        }
        if let Some(cookie) = &extra.cookie {
            opt.option(COOKIE, cookie);
        }
        // Sent over TCP only (RFC 7828 section 3.2.1).
        if edns.keepalive && extra.connected {
            opt.option(TCP_KEEPALIVE, &KEEPALIVE.to_be_bytes());
        }
        if let Some(reason) = extra.extended_error {
            opt.option(EXTENDED_ERROR, &reason.to_be_bytes());
        }
        // Far less than 64 KiB.
        let length = u16::try_from(opt.end - OPT_BYTES).unwrap_or_default();
        opt.bytes[OPT_BYTES - 2..OPT_BYTES].copy_from_slice(&length.to_be_bytes());
        opt
    }

    /// Gives the record the upper bits of another code (RFC 6891 section 6.1.3).
    pub(crate) fn set_code(&mut self, code: ResponseCode) {
        self.bytes[CODE_AT] = code.high();
    }

    /// The bytes of the record.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    fn option(&mut self, code: u16, data: &[u8]) {
        // Names of servers are cut to what there is room for.
        let data = &data[..data.len().min(NSID_BYTES_MAX)];
        self.put(&code.to_be_bytes());
        self.put(&u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
        self.put(data);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }
}
