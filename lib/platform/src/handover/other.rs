//! Nothing is handed over: a service of Windows is tied to its process, and no process gets sockets of another by a number.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use socket2::Socket;

use super::Inherited;

/// Why.
const UNSUPPORTED: &str =
    "only on Linux one process takes the sockets of another over; stop the service and start it again";

#[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
pub(super) fn obstacle() -> Option<&'static str> {
    Some(UNSUPPORTED)
}

pub(super) fn take() -> Option<Inherited> {
    None
}

pub(super) fn keep(_: &[(String, Socket)], _: &[String]) {}

/// No link.
#[derive(Clone, Debug)]
pub(super) enum Link {}

impl Link {
    pub(super) fn send(&self, _: &[u8]) -> io::Result<()> {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "the signature is shared with linux.rs")]
    pub(super) async fn ended(&self) {
        match *self {}
    }
}

/// No successor.
#[derive(Debug)]
pub(super) enum Successor {}

impl Successor {
    pub(super) fn start(_: &Path, _: &[(String, Socket)], _: &[IpAddr]) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, UNSUPPORTED))
    }

    pub(super) fn process(&self) -> u32 {
        match *self {}
    }

    pub(super) fn stop(&self) -> io::Result<()> {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "the signature is shared with linux.rs")]
    pub(super) async fn serving(&mut self) -> Result<(), String> {
        match *self {}
    }
}

pub(super) fn keep_to_itself() {}
