//! Systems whose routes Berth does not know.

use std::io;

use ipnet::Ipv4Net;

use super::{Failure, Link, Route, RouteChange, RouteTable};

pub(super) const MARKS_ROUTES: bool = true;

pub(super) const WAY_OUT: &str = "there is no way on this system";

#[derive(Debug)]
pub(super) enum Routes {}

impl Routes {
    pub(super) fn open() -> io::Result<Self> {
        Err(unsupported())
    }

    pub(super) async fn read(&mut self) -> io::Result<RouteTable> {
        match *self {}
    }

    pub(super) async fn read_own(&mut self) -> io::Result<Vec<Route>> {
        match *self {}
    }

    pub(super) async fn apply(&mut self, _: &[RouteChange]) -> Vec<Result<(), Failure>> {
        match *self {}
    }

    pub(super) fn watch(&self) -> io::Result<Events> {
        match *self {}
    }
}

#[derive(Debug)]
pub(super) enum Events {}

impl Events {
    pub(super) async fn changed(&mut self) {
        match *self {}
    }

    pub(super) async fn has_changed(&mut self) -> bool {
        match *self {}
    }
}

pub(super) fn forwarding(_: &Link) -> io::Result<bool> {
    Err(unsupported())
}

pub(super) fn set_forwarding(_: &Link, _: bool) -> io::Result<()> {
    Err(unsupported())
}

pub(super) fn put_address(_: &Link, _: Ipv4Net) -> io::Result<()> {
    Err(unsupported())
}

pub(super) fn take_address(_: &Link, _: Ipv4Net) -> io::Result<()> {
    Err(unsupported())
}

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "Berth does not know the routes of this system")
}
