//! Routes through IP Helper, in the active store only: after a restart of the machine they are gone.
//!
//! A route is known by its prefix, next hop and interface; the metric is not part of that. So whose a route is is looked
//! up before it is deleted, and there is a moment in between.

#[path = "windows/events.rs"]
mod events;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::{ptr, slice};

use ipnet::Ipv4Net;
use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_FILE_NOT_FOUND, ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, NO_ERROR, WIN32_ERROR,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    CreateIpForwardEntry2, CreateUnicastIpAddressEntry, DeleteIpForwardEntry2, DeleteUnicastIpAddressEntry,
    FreeMibTable, GetIpForwardEntry2, GetIpForwardTable2, GetIpInterfaceEntry, InitializeIpForwardEntry,
    InitializeIpInterfaceEntry, InitializeUnicastIpAddressEntry, MIB_IPFORWARD_ROW2, MIB_IPINTERFACE_ROW,
    MIB_UNICASTIPADDRESS_ROW, SetIpInterfaceEntry,
};
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, IN_ADDR, IN_ADDR_0, IpDadStatePreferred, MIB_IPPROTO_LOCAL, MIB_IPPROTO_NETMGMT, SOCKADDR_IN,
    SOCKADDR_INET,
};

use super::{Failure, Link, METRIC, Route, RouteChange, RouteTable};
use crate::adapter::{Adapter, adapters};
pub(super) use events::Events;

pub(super) const MARKS_ROUTES: bool = false;

pub(super) const WAY_OUT: &str = "run as administrator (in a container as the user ContainerAdministrator)";

/// The system's table of routes.
#[derive(Debug)]
pub(super) struct Routes;

#[expect(clippy::unused_async, reason = "the signatures are shared with linux.rs")]
impl Routes {
    #[expect(clippy::unnecessary_wraps, reason = "the signature is shared with linux.rs")]
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn read(&mut self) -> io::Result<RouteTable> {
        let links = adapters()?.into_iter().map(link).collect();
        Ok(RouteTable { links, routes: table()?.iter().filter_map(route).collect() })
    }

    pub(super) async fn read_own(&mut self) -> io::Result<Vec<Route>> {
        Ok(table()?.iter().filter_map(route).filter(|route| route.marked).collect())
    }

    pub(super) async fn apply(&mut self, changes: &[RouteChange]) -> Vec<Result<(), Failure>> {
        let owned = changes.to_vec();
        // Each is a call of unknown length.
        let made = tokio::task::spawn_blocking(move || owned.iter().map(make).collect()).await;
        // Lost only when the runtime ends.
        made.unwrap_or_else(|_| changes.iter().map(|_| Err(Failure::Unknown)).collect())
    }

    #[expect(clippy::unused_self, reason = "the signature is shared with linux.rs")]
    pub(super) fn watch(&self) -> io::Result<Events> {
        Events::open()
    }
}

pub(super) fn forwarding(link: &Link) -> io::Result<bool> {
    interface(link).map(|row| row.ForwardingEnabled)
}

pub(super) fn set_forwarding(link: &Link, on: bool) -> io::Result<()> {
    let mut row = interface(link)?;
    row.ForwardingEnabled = on;
    // What was read is refused for IPv4.
    row.SitePrefixLength = 0;
    // SAFETY: the pointer is to an initialised row which is not shared and which lives until the call returns.
    #[expect(unsafe_code, reason = "std does not know forwarding")]
    let code = unsafe { SetIpInterfaceEntry(&raw mut row) };
    result(code).map_err(os_error)
}

pub(super) fn put_address(link: &Link, address: Ipv4Net) -> io::Result<()> {
    let row = address_row(link, address);
    // SAFETY: the pointer is to an initialised row, which is only read and lives until the call returns.
    #[expect(unsafe_code, reason = "std does not change addresses")]
    let code = unsafe { CreateUnicastIpAddressEntry(&raw const row) };
    if code == ERROR_OBJECT_ALREADY_EXISTS { Ok(()) } else { result(code).map_err(os_error) }
}

pub(super) fn take_address(link: &Link, address: Ipv4Net) -> io::Result<()> {
    let row = address_row(link, address);
    // SAFETY: the pointer is to an initialised row, which is only read and lives until the call returns.
    #[expect(unsafe_code, reason = "std does not change addresses")]
    let code = unsafe { DeleteUnicastIpAddressEntry(&raw const row) };
    if code == ERROR_NOT_FOUND { Ok(()) } else { result(code).map_err(os_error) }
}

/// The row of an address that can be used at once.
fn address_row(link: &Link, address: Ipv4Net) -> MIB_UNICASTIPADDRESS_ROW {
    let mut row = MIB_UNICASTIPADDRESS_ROW::default();
    // SAFETY: the pointer is to a row which is not shared and which lives until the call returns.
    #[expect(unsafe_code, reason = "std does not change addresses")]
    unsafe {
        InitializeUnicastIpAddressEntry(&raw mut row);
    }
    row.Address = socket_address(address.addr());
    row.InterfaceIndex = link.index;
    row.OnLinkPrefixLength = address.prefix_len();
    // The subnet is this host's alone: no search for duplicates.
    row.DadState = IpDadStatePreferred;
    // What the machine itself sends has its usual source address.
    row.SkipAsSource = true;
    row
}

/// The settings of IPv4 on a link.
fn interface(link: &Link) -> io::Result<MIB_IPINTERFACE_ROW> {
    let mut row = MIB_IPINTERFACE_ROW::default();
    // SAFETY: the pointer is to a row which is not shared and which lives until the call returns.
    #[expect(unsafe_code, reason = "std does not know forwarding")]
    unsafe {
        InitializeIpInterfaceEntry(&raw mut row);
    }
    row.Family = AF_INET;
    row.InterfaceIndex = link.index;
    // SAFETY: the pointer is to an initialised row which is not shared and which lives until the call returns.
    #[expect(unsafe_code, reason = "std does not know forwarding")]
    let code = unsafe { GetIpInterfaceEntry(&raw mut row) };
    result(code).map(|()| row).map_err(os_error)
}

/// All routes of IPv4.
fn table() -> io::Result<Vec<MIB_IPFORWARD_ROW2>> {
    let mut table = ptr::null_mut();
    // SAFETY: the pointer is to a local variable, into which the system writes a pointer to a table of its own.
    #[expect(unsafe_code, reason = "std does not know routes")]
    let code = unsafe { GetIpForwardTable2(AF_INET, &raw mut table) };
    match code {
        NO_ERROR => {}
        // There is none.
        ERROR_NOT_FOUND => return Ok(Vec::new()),
        code => return Err(os_error(code)),
    }
    // SAFETY: the call succeeded, so the pointer is to a table with as many rows as it says, one after the other; no
    // thread changes it. The pointer to the first row is made from that to the table, so it is valid for all of them. The
    // table is freed after it was copied, and once.
    #[expect(unsafe_code, reason = "the system gives a table of unknown length")]
    unsafe {
        let length = usize::try_from((*table).NumEntries).unwrap_or_default();
        let first = (&raw const (*table).Table).cast::<MIB_IPFORWARD_ROW2>();
        let rows = slice::from_raw_parts(first, length).to_vec();
        FreeMibTable(table.cast_const().cast());
        Ok(rows)
    }
}

/// A route as others see it; `None` for one that other systems do not list with the routes: to an own address, to
/// broadcast or multicast.
fn route(row: &MIB_IPFORWARD_ROW2) -> Option<Route> {
    let prefix = Ipv4Net::new(v4(&row.DestinationPrefix.Prefix), row.DestinationPrefix.PrefixLength).ok()?;
    let via = Some(v4(&row.NextHop)).filter(|via| !via.is_unspecified());
    let is_of_address = prefix.prefix_len() == 32 && via.is_none() && row.Protocol == MIB_IPPROTO_LOCAL;
    if row.Loopback || is_of_address || prefix.network().is_multicast() || prefix.network().is_broadcast() {
        return None;
    }
    Some(Route { prefix, via, link: row.InterfaceIndex, metric: row.Metric, marked: is_marked(row) })
}

fn is_marked(row: &MIB_IPFORWARD_ROW2) -> bool {
    row.Metric == METRIC && row.Protocol == MIB_IPPROTO_NETMGMT
}

fn make(change: &RouteChange) -> Result<(), Failure> {
    match *change {
        _ if change.is_of_foreign() => Err(Failure::Missing),
        RouteChange::Add(route) => create(&route),
        RouteChange::Replace { route, via, link } => {
            expect_marked(&route)?;
            let new = Route { via: Some(via), link, ..route };
            if new == route {
                return Ok(());
            }
            match create(&new) {
                // A crash after the first half.
                Err(Failure::Taken) if expect_marked(&new).is_ok() => {}
                created => created?,
            }
            delete(&route)
        }
        RouteChange::Remove(route) => {
            expect_marked(&route)?;
            delete(&route)
        }
    }
}

fn create(route: &Route) -> Result<(), Failure> {
    let row = row(route);
    // SAFETY: the pointer is to an initialised row, which is only read and lives until the call returns.
    #[expect(unsafe_code, reason = "std does not change routes")]
    let code = unsafe { CreateIpForwardEntry2(&raw const row) };
    result(code).map_err(|code| match code {
        ERROR_OBJECT_ALREADY_EXISTS => Failure::Taken,
        code => failure(code),
    })
}

fn delete(route: &Route) -> Result<(), Failure> {
    let row = row(route);
    // SAFETY: the pointer is to an initialised row, which is only read and lives until the call returns.
    #[expect(unsafe_code, reason = "std does not change routes")]
    let code = unsafe { DeleteIpForwardEntry2(&raw const row) };
    result(code).map_err(missing_or_failure)
}

/// Fails unless the route is there and has the mark.
fn expect_marked(route: &Route) -> Result<(), Failure> {
    let mut row = row(route);
    // SAFETY: the pointer is to an initialised row which is not shared and which lives until the call returns.
    #[expect(unsafe_code, reason = "std does not know routes")]
    let code = unsafe { GetIpForwardEntry2(&raw mut row) };
    result(code).map_err(missing_or_failure)?;
    if is_marked(&row) { Ok(()) } else { Err(Failure::Missing) }
}

/// The row of a route of ours.
fn row(route: &Route) -> MIB_IPFORWARD_ROW2 {
    let mut row = MIB_IPFORWARD_ROW2::default();
    // SAFETY: the pointer is to a row which is not shared and which lives until the call returns.
    #[expect(unsafe_code, reason = "std does not change routes")]
    unsafe {
        InitializeIpForwardEntry(&raw mut row);
    }
    row.InterfaceIndex = route.link;
    row.DestinationPrefix.Prefix = socket_address(route.prefix.network());
    row.DestinationPrefix.PrefixLength = route.prefix.prefix_len();
    row.NextHop = socket_address(route.via.unwrap_or(Ipv4Addr::UNSPECIFIED));
    row.Metric = route.metric;
    row.Protocol = MIB_IPPROTO_NETMGMT;
    row
}

fn link(adapter: Adapter) -> Link {
    let Adapter { index, guid, name, up, mtu, metric_v4, addresses, prefix_lengths, .. } = adapter;
    let v4 = |(address, length)| match address {
        IpAddr::V4(address) => Ipv4Net::new(address, length).ok(),
        IpAddr::V6(_) => None,
    };
    let addresses = addresses.into_iter().zip(prefix_lengths).filter_map(v4).collect();
    Link { index, name, id: guid, up, mtu, metric: metric_v4, addresses }
}

fn socket_address(address: Ipv4Addr) -> SOCKADDR_INET {
    let sin_addr = IN_ADDR { S_un: IN_ADDR_0 { S_addr: u32::from_ne_bytes(address.octets()) } };
    SOCKADDR_INET { Ipv4: SOCKADDR_IN { sin_family: AF_INET, sin_addr, ..SOCKADDR_IN::default() } }
}

/// The address of a table of IPv4.
fn v4(address: &SOCKADDR_INET) -> Ipv4Addr {
    // SAFETY: all members of the unions are plain numbers, so that any bytes are valid.
    #[expect(unsafe_code, reason = "the system's addresses are unions")]
    let bytes = unsafe { address.Ipv4.sin_addr.S_un.S_addr };
    Ipv4Addr::from(bytes.to_ne_bytes())
}

fn missing_or_failure(code: WIN32_ERROR) -> Failure {
    match code {
        // The latter is said of an interface.
        ERROR_NOT_FOUND | ERROR_FILE_NOT_FOUND => Failure::Missing,
        code => failure(code),
    }
}

fn failure(code: WIN32_ERROR) -> Failure {
    match code {
        ERROR_ACCESS_DENIED => Failure::NotPermitted,
        code => Failure::Refused(os_error(code)),
    }
}

fn result(code: WIN32_ERROR) -> Result<(), WIN32_ERROR> {
    if code == NO_ERROR { Ok(()) } else { Err(code) }
}

fn os_error(code: WIN32_ERROR) -> io::Error {
    io::Error::from_raw_os_error(code.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::super::{RouteError, Routes};
    use super::*;

    #[test]
    fn a_row_says_what_its_route_says() {
        let route_of = |prefix: &str, via: [u8; 4]| Route::marked(prefix.parse().unwrap(), via.into(), 7);
        let ours = route_of("10.42.7.0/24", [192, 0, 2, 10]);
        assert_eq!(route(&row(&ours)), Some(ours));
        let mut other = row(&ours);
        other.Metric = 256;
        assert_eq!(route(&other), Some(Route { metric: 256, marked: false, ..ours }));
        for prefix in ["224.0.0.0/4", "255.255.255.255/32"] {
            assert_eq!(route(&row(&route_of(prefix, [0; 4]))), None, "{prefix}");
        }
        let mut own_address = row(&route_of("192.0.2.1/32", [0; 4]));
        own_address.Protocol = MIB_IPPROTO_LOCAL;
        assert_eq!(route(&own_address), None);
    }

    /// The index of a link and two addresses of its network: one that leads outside, if there is one.
    async fn hops() -> (u32, [Ipv4Addr; 2]) {
        let table = Routes::open().unwrap().read().await.unwrap();
        let networks = table.links.iter().filter(|link| link.up).flat_map(|link| {
            let wide = link.addresses.iter().filter(|own| own.prefix_len() <= 28);
            wide.map(|own| (own.addr().is_loopback(), link.index, own.network()))
        });
        let (_, link, network) = networks.min().expect("there is the loopback adapter at least");
        let hop = |number| Ipv4Addr::from(u32::from(network) + number);
        (link, [hop(10), hop(11)])
    }

    /// Outcomes of changes; `None` where they are not permitted, which is all that can be seen then.
    async fn outcomes(changes: &[RouteChange]) -> Option<Vec<&'static str>> {
        let outcomes = Routes::open().unwrap().apply(changes).await;
        if outcomes.iter().any(|outcome| matches!(outcome, Err(RouteError::NotPermitted { .. }))) {
            println!("checked the refusal only, as this is not an administrator");
            return None;
        }
        let word = |outcome| match outcome {
            Ok(()) => "done",
            Err(RouteError::Taken { .. }) => "taken",
            Err(RouteError::Missing { .. }) => "missing",
            Err(error) => panic!("{error}"),
        };
        Some(outcomes.into_iter().map(word).collect())
    }

    /// To addresses of the documentation, so that it disturbs no traffic.
    #[tokio::test]
    async fn marked_routes_are_added_replaced_and_removed() {
        let (link, [first, second]) = hops().await;
        let route = Route::marked("203.0.113.0/25".parse().unwrap(), first, link);
        let moved = Route { via: Some(second), ..route };
        let replace = RouteChange::Replace { route, via: second, link };
        let Some(done) = outcomes(&[RouteChange::Add(route), RouteChange::Add(route)]).await else { return };
        assert_eq!(done, ["done", "taken"]);
        let mut routes = Routes::open().unwrap();
        let table = routes.read().await.unwrap();
        assert!(table.is_replaceable(&route), "{table:?}");
        assert_eq!(outcomes(&[replace]).await.unwrap(), ["done"]);
        let own = routes.read_own().await.unwrap();
        assert!(own.contains(&moved) && !own.contains(&route), "{own:?}");
        // A crash in the middle of a replacement leaves both.
        let again = [RouteChange::Add(route), replace];
        assert_eq!(outcomes(&again).await.unwrap(), ["done", "done"]);
        let gone = [RouteChange::Remove(moved), RouteChange::Remove(moved), RouteChange::Remove(route), replace];
        assert_eq!(outcomes(&gone).await.unwrap(), ["done", "missing", "missing", "missing"]);
    }

    #[tokio::test]
    async fn a_foreign_route_stays_although_the_system_would_delete_it() {
        let (link, [first, second]) = hops().await;
        let route = Route::marked("203.0.113.128/25".parse().unwrap(), first, link);
        let foreign = Route { metric: 256, marked: false, ..route };
        match create(&foreign) {
            Err(Failure::NotPermitted) => return println!("checked nothing, as this is not an administrator"),
            created => created.unwrap(),
        }
        let changes = [
            RouteChange::Add(route),
            RouteChange::Remove(route),
            RouteChange::Replace { route, via: second, link },
            RouteChange::Remove(foreign),
        ];
        assert_eq!(outcomes(&changes).await.unwrap(), ["taken", "missing", "missing", "missing"]);
        let table = Routes::open().unwrap().read().await.unwrap();
        assert!(table.routes.contains(&foreign), "{table:?}");
        delete(&foreign).unwrap();
    }

    /// On the loopback adapter, where nothing is to be forwarded.
    #[tokio::test]
    async fn forwarding_of_a_link_is_switched() {
        let table = Routes::open().unwrap().read().await.unwrap();
        let is_loopback = |link: &&Link| link.addresses.iter().any(|own| own.addr().is_loopback());
        let link = table.links.iter().find(is_loopback).unwrap();
        let before = forwarding(link).unwrap();
        match set_forwarding(link, !before) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return println!("checked the refusal only, as this is not an administrator");
            }
            switched => switched.unwrap(),
        }
        assert_eq!(forwarding(link).unwrap(), !before);
        set_forwarding(link, before).unwrap();
        assert_eq!(forwarding(link).unwrap(), before);
        let gone = Link { index: u32::MAX, ..link.clone() };
        forwarding(&gone).unwrap_err();
    }
}
