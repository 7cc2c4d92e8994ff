//! Routes through rtnetlink.
//!
//! Requests are written by rtnetlink's types and sent over a plain socket of its own, not over its connection: that one
//! hides the sequence numbers of acknowledgements and the errors at the end of a dump, and a request whose
//! acknowledgement was lost waits for ever.

#[path = "linux/conversation.rs"]
mod conversation;
#[path = "linux/events.rs"]
mod events;
#[path = "linux/message.rs"]
mod message;
#[cfg(test)]
#[path = "linux/tests.rs"]
mod tests;

use std::collections::HashMap;
use std::io;

use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rtnetlink::packet_route::RouteNetlinkMessage;

use super::{Failure, Link, PROTOCOL, Route, RouteChange, RouteTable};
use crate::sysctl;
use conversation::{Conversation, Outcome};
pub(super) use events::Events;

pub(super) const MARKS_ROUTES: bool = true;

pub(super) const WAY_OUT: &str = "run as root, or with the capability NET_ADMIN";

/// Most changes in one message to the kernel.
///
/// Acknowledgements of some 300 overflow a receive buffer of the usual size, and more than 128 gain nothing: what costs
/// is the kernel's work on each route.
const CHANGES_MAX: usize = 128;

/// A conversation with the kernel about the routes of the network namespace that it was opened in.
#[derive(Debug)]
pub(super) struct Routes(Conversation);

impl Routes {
    pub(super) fn open() -> io::Result<Self> {
        Conversation::open().map(Self)
    }

    pub(super) async fn read(&mut self) -> io::Result<RouteTable> {
        let mut links = self.0.dump(message::list_links(), message::link).await?;
        let mut places: HashMap<u32, usize> = HashMap::with_capacity(links.len());
        places.extend(links.iter().enumerate().map(|(place, link)| (link.index, place)));
        for (index, address) in self.0.dump(message::list_addresses(), message::address).await? {
            // The address of a link that came in the meantime: a change that is reported.
            let Some(link) = places.get(&index).and_then(|place| links.get_mut(*place)) else { continue };
            link.addresses.push(address);
        }
        let routes = self.routes(None).await?;
        Ok(RouteTable { links, routes })
    }

    pub(super) async fn read_own(&mut self) -> io::Result<Vec<Route>> {
        let mut own = self.routes(Some(PROTOCOL)).await?;
        // An old kernel lists the others too.
        own.retain(|route| route.marked);
        Ok(own)
    }

    async fn routes(&mut self, protocol: Option<u8>) -> io::Result<Vec<Route>> {
        match self.0.dump(message::list_routes(protocol), message::route).await {
            // A namespace has no table main before its first address.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
            routes => routes,
        }
    }

    pub(super) async fn apply(&mut self, changes: &[RouteChange]) -> Vec<Result<(), Failure>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        for batch in changes.chunks(CHANGES_MAX) {
            // One of a foreign route is not even asked for.
            let asked = batch.iter().filter(|change| !change.is_of_foreign());
            let mut replies = self.0.request(asked.map(request)).await.into_iter();
            outcomes.extend(batch.iter().map(|change| match change {
                change if change.is_of_foreign() => Err(Failure::Missing),
                change => outcome(change, replies.next().unwrap_or(Outcome::Lost)),
            }));
            // The kernel worked on it within our call.
            tokio::task::yield_now().await;
        }
        outcomes
    }

    pub(super) fn watch(&self) -> io::Result<Events> {
        Events::open(self.0.port())
    }
}

pub(super) fn forwarding(link: &Link) -> io::Result<bool> {
    sysctl::read(&forwarding_name(link)).map(|value| value != "0")
}

pub(super) fn set_forwarding(link: &Link, on: bool) -> io::Result<()> {
    sysctl::write(&forwarding_name(link), if on { "1" } else { "0" })
}

pub(super) fn put_address(_: &Link, _: ipnet::Ipv4Net) -> io::Result<()> {
    Err(by_engine())
}

pub(super) fn take_address(_: &Link, _: ipnet::Ipv4Net) -> io::Result<()> {
    Err(by_engine())
}

fn by_engine() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the engine puts the gateway of its network on an interface itself")
}

/// The link's own switch is enough to forward what arrives on it.
///
/// The switch of all, `net.ipv4.ip_forward`, would change every link, and switching it back would not restore them.
fn forwarding_name(link: &Link) -> String {
    // With slashes a dot is a part of the link's name.
    format!("net/ipv4/conf/{}/forwarding", link.name)
}

/// The message for a change, and its flags.
fn request(change: &RouteChange) -> (u16, RouteNetlinkMessage) {
    match *change {
        RouteChange::Add(route) => {
            (NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewRoute(message::new_route(&route)))
        }
        // Without CREATE: where there is nothing to replace, a route that the caller did not see has changed.
        RouteChange::Replace { route, via, link } => {
            let route = Route { via: Some(via), link, ..route };
            (NLM_F_REPLACE, RouteNetlinkMessage::NewRoute(message::new_route(&route)))
        }
        RouteChange::Remove(route) => (0, RouteNetlinkMessage::DelRoute(message::old_route(&route))),
    }
}

fn outcome(change: &RouteChange, reply: Outcome) -> Result<(), Failure> {
    let (code, error) = match reply {
        Outcome::Done => return Ok(()),
        Outcome::Lost => return Err(Failure::Unknown),
        Outcome::Failed(code, error) => (code, error),
    };
    Err(match (code, change) {
        (libc::EPERM, _) => Failure::NotPermitted,
        (libc::EEXIST, _) => Failure::Taken,
        (libc::ESRCH, RouteChange::Remove(_)) | (libc::ENOENT, RouteChange::Replace { .. }) => Failure::Missing,
        _ => Failure::Refused(error),
    })
}
