//! Reading and changing this machine's IPv4 routes.
//!
//! The only place that speaks netlink or IP Helper about routes. It decides nothing: it reads what is there, applies
//! the changes it is given, and reports that something may have changed. The routes that Berth adds are marked, and it
//! changes only marked ones: on Linux by their [`PROTOCOL`], which the kernel itself compares before it deletes
//! anything; on Windows by their [`METRIC`], which is why a caller there also needs a ledger.

#[cfg_attr(target_os = "linux", path = "route/linux.rs")]
#[cfg_attr(windows, path = "route/windows.rs")]
#[cfg_attr(not(any(target_os = "linux", windows)), path = "route/other.rs")]
mod system;

use std::io;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// The protocol (`rtm_protocol`) of the routes that Berth adds on Linux.
///
/// Free in the kernel's header and in the list of iproute2, where 99 is openr. `ip route show proto 98` lists them.
pub const PROTOCOL: u8 = 98;

/// The metric of the routes that Berth adds.
///
/// High, so that a route which a person or another program adds to the same prefix takes precedence. On Windows it is
/// also the mark, so it is a number that nothing else chooses.
pub const METRIC: u32 = 4242;

/// Whether the system itself knows the routes that Berth added from all others. Where it does not, a caller needs a ledger.
pub const MARKS_ROUTES: bool = system::MARKS_ROUTES;

/// A network interface, up or down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The system's number of the interface. It may change when the machine restarts or the driver is loaded again.
    pub index: u32,
    /// Name, such as "eth0" or "vEthernet (Ethernet)".
    pub name: String,
    /// What names it in a ledger: its GUID on Windows, which survives a restart and a new name; its name on Linux.
    pub id: String,
    /// Whether it is switched on. On Windows a link without a carrier is not up.
    pub up: bool,
    /// Longest packet, in bytes.
    pub mtu: u32,
    /// What the system adds to the metric of each route over this link; always 0 on Linux.
    pub metric: u32,
    /// Its IPv4 addresses, each with the length of its network's prefix.
    ///
    /// That of a point-to-point link is a `/32`: the other end's network is among the routes.
    pub addresses: Vec<Ipv4Net>,
}

/// A route to an IPv4 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// The destinations.
    pub prefix: Ipv4Net,
    /// The next hop, the first one if there are several; `None` where destinations are reached directly, or not at all.
    pub via: Option<Ipv4Addr>,
    /// Index of the [`Link`]; 0 where the route leads to none, such as a blackhole.
    pub link: u32,
    /// The lower one takes precedence among routes to one prefix. On Windows the link's metric is added.
    pub metric: u32,
    /// Whether it has Berth's mark.
    pub marked: bool,
}

impl Route {
    /// A route as Berth adds it.
    pub fn marked(prefix: Ipv4Net, via: Ipv4Addr, link: u32) -> Self {
        Self { prefix, via: Some(via), link, metric: METRIC, marked: true }
    }
}

/// The links of a machine, and the routes by which it sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// In the system's order.
    pub links: Vec<Link>,
    /// Marked and foreign ones, those of connected networks too, in the system's order.
    ///
    /// On Linux these are the routes of table main, of every type, except those for one type of service (TOS) only. On
    /// Windows, where there is one table, routes to own addresses, broadcast and multicast are left out.
    pub routes: Vec<Route>,
}

impl RouteTable {
    /// Takes in a change that [`Routes::apply`] has made.
    pub fn take_in(&mut self, change: &RouteChange) {
        let place = self.routes.iter().position(|route| route == change.route());
        match (*change, place) {
            (RouteChange::Add(route), None) => self.routes.push(route),
            (RouteChange::Replace { route, via, link }, Some(place)) => {
                self.routes[place] = Route { via: Some(via), link, ..route };
            }
            (RouteChange::Remove(_), Some(place)) => drop(self.routes.remove(place)),
            (RouteChange::Add(_), Some(_)) | (RouteChange::Replace { .. } | RouteChange::Remove(_), None) => {}
        }
    }

    /// Whether [`RouteChange::Replace`] would hit this very route: no other one has its prefix and metric.
    pub fn is_replaceable(&self, route: &Route) -> bool {
        let in_place = |other: &&Route| (other.prefix, other.metric) == (route.prefix, route.metric);
        let mut found = self.routes.iter().filter(in_place);
        found.next() == Some(route) && found.next().is_none() && route.marked
    }
}

/// A change of a marked route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Adds a route, unless there is one to this prefix with this metric.
    Add(Route),
    /// Leads a route elsewhere without a gap in between.
    ///
    /// Only after a reading of a moment ago in which `route` [is replaceable](RouteTable::is_replaceable): Linux
    /// overwrites the first route with this prefix and metric, whosever it is.
    Replace {
        /// The route as it is.
        route: Route,
        /// Its new next hop.
        via: Ipv4Addr,
        /// Index of its new link.
        link: u32,
    },
    /// Removes a route.
    Remove(Route),
}

impl RouteChange {
    /// The route that there is before a removal or replacement, or after an addition.
    pub fn route(&self) -> &Route {
        match self {
            Self::Add(route) | Self::Replace { route, .. } | Self::Remove(route) => route,
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::Add(_) => "add",
            Self::Replace { .. } => "replace",
            Self::Remove(_) => "remove",
        }
    }

    fn is_of_foreign(&self) -> bool {
        !self.route().marked
    }

    fn failed(&self, failure: Failure) -> RouteError {
        let (verb, prefix) = (self.verb(), self.route().prefix);
        match failure {
            Failure::Taken => RouteError::Taken { verb, prefix },
            Failure::Missing => RouteError::Missing { verb, prefix },
            Failure::NotPermitted => RouteError::NotPermitted { verb, prefix },
            Failure::Unknown => RouteError::Unknown { verb, prefix },
            Failure::Refused(error) => RouteError::Refused { verb, prefix, error },
        }
    }
}

/// Why a change was not made, or is not known to have been made.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// Another route is in this place, and was not touched. Read the routes to see which one.
    #[error("cannot {verb} the route to {prefix}: there is another one with the same metric")]
    Taken {
        /// "add" or "replace".
        verb: &'static str,
        /// The destinations.
        prefix: Ipv4Net,
    },
    /// The route to be changed is not there, or not marked. Nothing was changed.
    #[error("cannot {verb} the route to {prefix}: it is gone, or another program's")]
    Missing {
        /// "replace" or "remove".
        verb: &'static str,
        /// The destinations.
        prefix: Ipv4Net,
    },
    /// The process lacks the right.
    #[error("not permitted to {verb} the route to {prefix}: {}", system::WAY_OUT)]
    NotPermitted {
        /// "add", "replace" or "remove".
        verb: &'static str,
        /// The destinations.
        prefix: Ipv4Net,
    },
    /// The system's reply was lost: read the routes to see whether the change was made.
    #[error("cannot tell whether the route to {prefix} was changed ({verb}): the system's reply was lost")]
    Unknown {
        /// "add", "replace" or "remove".
        verb: &'static str,
        /// The destinations.
        prefix: Ipv4Net,
    },
    /// The system refused for another reason, such as a next hop that no connected network has.
    #[error("cannot {verb} the route to {prefix}: {error}")]
    Refused {
        /// "add", "replace" or "remove".
        verb: &'static str,
        /// The destinations.
        prefix: Ipv4Net,
        /// What the system said, with its code.
        #[source]
        error: io::Error,
    },
}

/// A failure as the system reports it, before it is known of which change.
#[derive(Debug)]
enum Failure {
    Taken,
    Missing,
    NotPermitted,
    Unknown,
    Refused(io::Error),
}

/// The system's table of routes.
#[derive(Debug)]
pub struct Routes(system::Routes);

impl Routes {
    /// The routes of the network namespace that the calling thread is in. Must be called in a tokio runtime.
    ///
    /// # Errors
    ///
    /// Fails if the system has no such interface, or no room for another socket. Needs no rights.
    pub fn open() -> io::Result<Self> {
        system::Routes::open().map(Self)
    }

    /// Reads all links and routes.
    ///
    /// Links and routes are read one after the other: take [`watch`](Self::watch) before, so that a change in between
    /// is reported.
    ///
    /// # Errors
    ///
    /// Fails if the system does not list them, or if they change faster than they can be listed; the latter has the
    /// kind [`io::ErrorKind::ResourceBusy`]. It never returns a part of them. Needs no rights.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn read(&mut self) -> io::Result<RouteTable> {
        self.0.read().await
    }

    /// Reads the marked routes only, which is cheap with any number of foreign ones.
    ///
    /// On Windows these are all routes with [`METRIC`]: the caller's ledger says which of them are Berth's.
    ///
    /// # Errors
    ///
    /// As those of [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn read_own(&mut self) -> io::Result<Vec<Route>> {
        self.0.read_own().await
    }

    /// Makes the changes, in their order, and says of each whether it was made. One that fails does not stop the rest.
    ///
    /// A change of a route that is not marked is refused. Needs the capability `NET_ADMIN` on Linux and an
    /// administrator on Windows.
    ///
    /// # Cancel safety
    ///
    /// When dropped, some of the changes may have been made: read the routes again.
    pub async fn apply(&mut self, changes: &[RouteChange]) -> Vec<Result<(), RouteError>> {
        let outcomes = self.0.apply(changes).await;
        debug_assert_eq!(outcomes.len(), changes.len(), "one outcome for each change");
        changes
            .iter()
            .zip(outcomes)
            .map(|(change, outcome)| outcome.map_err(|failure| change.failed(failure)))
            .collect()
    }

    /// Starts watching links, IPv4 addresses and IPv4 routes of the network namespace that the calling thread is in.
    ///
    /// What [`apply`](Self::apply) of this very `Routes` does is not reported on Linux; on Windows it is.
    ///
    /// # Errors
    ///
    /// Fails if the system has no room for it.
    pub fn watch(&self) -> io::Result<RouteEvents> {
        self.0.watch().map(RouteEvents)
    }
}

/// A stream of hints that links, addresses or routes may have changed.
///
/// A hint does not say what has changed. Linux reports no route that goes with its link or with the link's last
/// address, so every hint is a reason to look at the routes.
#[derive(Debug)]
pub struct RouteEvents(system::Events);

impl RouteEvents {
    /// Waits until something has changed since the last call, or since watching began.
    ///
    /// Returns 10 ms after a change, so that the several reports of one change are one hint. Reports that the system had
    /// no room for count as a change.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time: a change that was noticed is then reported by the next call.
    pub async fn changed(&mut self) {
        self.0.changed().await;
    }

    /// Whether something has changed since the last call of this or of [`changed`](Self::changed), without waiting.
    ///
    /// On Linux the answer is as recent as a reading of the table would be: the kernel reports a change while it makes it.
    pub async fn has_changed(&mut self) -> bool {
        self.0.has_changed().await
    }
}

/// Whether the machine forwards IPv4 packets that arrive on a link.
///
/// # Errors
///
/// Fails if there is no such link any more.
pub fn forwarding(link: &Link) -> io::Result<bool> {
    system::forwarding(link)
}

/// Switches the forwarding of IPv4 packets that arrive on a link on or off, and nothing else of the machine.
///
/// # Errors
///
/// Fails if the right is missing (as for [`Routes::apply`]), there is no such link any more, or the system's settings
/// are protected, as by systemd's `ProtectKernelTunables`.
pub fn set_forwarding(link: &Link, on: bool) -> io::Result<()> {
    system::set_forwarding(link, on)
}

/// Puts an address with its network on a link, as the gateway of the containers of that network; one that is there stays. Only
/// on Windows: elsewhere the engine does that.
///
/// # Errors
///
/// Fails if the right is missing (as for [`Routes::apply`]) or there is no such link any more.
pub fn put_address(link: &Link, address: Ipv4Net) -> io::Result<()> {
    system::put_address(link, address)
}

/// Takes an address off a link; one that is not there is no error. Only on Windows.
///
/// # Errors
///
/// Fails if the right is missing (as for [`Routes::apply`]).
pub fn take_address(link: &Link, address: Ipv4Net) -> io::Result<()> {
    system::take_address(link, address)
}
