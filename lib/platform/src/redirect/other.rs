//! Nothing to do: the system gives a port to the socket with its exact address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use crate::handover::Handed;

pub(super) const REDIRECTS: bool = false;

pub(super) fn is_listened_on(_: SocketAddr) -> bool {
    false
}

/// There are none.
#[derive(Debug)]
pub(super) struct Rules;

impl Rules {
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "the signature is shared with linux.rs")]
    pub(super) fn hand_on(&self, _: &str, _: &mut Handed) -> io::Result<()> {
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
    pub(super) fn install(_: Ipv4Addr, _: u16, _: u16) -> io::Result<Self> {
        Ok(Self)
    }
}
