//! How much one client may take: connections, requests that wait, requests per second.
//!
//! What one container wastes is so missing to itself and not to the others. A client is an address. The table
//! knows those with connections, and those that asked so recently that their rate still counts; it is locked for
//! a moment when a connection begins or ends, and never together with anything else.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::Limits;

/// For how many seconds' worth of requests a client may be ahead of its rate: clients come in bursts.
const BURST_SECONDS: u64 = 2;

/// Most clients without a connection that are remembered for their rate.
///
/// A host has some hundred containers; remembering costs about 100 octets each.
const REMEMBERED_MAX: usize = 8192;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// What clients take.
pub(crate) struct Clients {
    limits: Limits,
    table: Mutex<Table>,
}

/// Clients by address.
struct Table {
    clients: HashMap<IpAddr, Arc<Taken>>,
    /// With how many clients it is time to forget some.
    full: usize,
}

/// A client's share of the service, held by each of its connections.
#[derive(Debug)]
pub(crate) struct Share {
    clients: Arc<Clients>,
    client: IpAddr,
    taken: Arc<Taken>,
}

/// A client's place among those that wait; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Taken>);

/// What one client takes.
#[derive(Debug, Default)]
struct Taken {
    /// Changed only while the table is locked.
    connections: AtomicU32,
    waiting: AtomicU32,
    /// When all requests up to now would be over if they came at the client's rate, in nanoseconds.
    ///
    /// This one number is the whole memory of a leaky bucket (the "generic cell rate algorithm").
    paid: AtomicU64,
}

/// The client has as much as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted {
    /// After how many seconds it is worth to try again.
    pub(crate) retry: u64,
}

impl Clients {
    /// Nobody has anything yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, table: Mutex::new(Table { clients: HashMap::new(), full: REMEMBERED_MAX }) }
    }

    /// A connection more for a client.
    pub(crate) fn connect(self: &Arc<Self>, client: IpAddr, now: Duration) -> Result<Share, Exhausted> {
        let client = client.to_canonical();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.clients.len() >= table.full && !table.clients.contains_key(&client) {
            table.forget(now);
        }
        let taken = table.clients.entry(client).or_default();
        let most = self.limits.client_connections;
        let connections = taken.connections.load(Ordering::Relaxed);
        if most > 0 && connections >= most {
            return Err(Exhausted { retry: 1 });
        }
        taken.connections.store(connections + 1, Ordering::Relaxed);
        Ok(Share { clients: self.clone(), client, taken: taken.clone() })
    }
}

impl Table {
    /// Forgets clients without connections: those whose rate counts no more, or all of them when there are too many.
    fn forget(&mut self, now: Duration) {
        let now = nanoseconds(now);
        let connected = |taken: &Taken| taken.connections.load(Ordering::Relaxed) > 0;
        self.clients.retain(|_, taken| connected(taken) || taken.paid.load(Ordering::Relaxed) > now);
        let remembered = self.clients.values().filter(|taken| !connected(taken)).count();
        if remembered > REMEMBERED_MAX / 2 {
            self.clients.retain(|_, taken| connected(taken));
        }
        // Going through the table for every new client would stall all of them.
        self.full = self.clients.len() + REMEMBERED_MAX / 2;
    }
}

impl Share {
    /// A place among those that wait.
    pub(crate) fn wait(&self) -> Result<Place, Exhausted> {
        let most = self.clients.limits.client_waiters;
        let one_more = |waiting: u32| (most == 0 || waiting < most).then_some(waiting + 1);
        let waits = self.taken.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        waits.map(|_| Place(self.taken.clone())).map_err(|_| Exhausted { retry: 1 })
    }

    /// A request more; `now` is asked for when it counts.
    pub(crate) fn request(&self, now: impl FnOnce() -> Duration) -> Result<(), Exhausted> {
        let rate = u64::from(self.clients.limits.client_rate);
        if rate == 0 {
            return Ok(());
        }
        let (now, price, credit) = (nanoseconds(now()), SECOND / rate, BURST_SECONDS * SECOND);
        let pay = |paid: u64| Some(paid.max(now) + price).filter(|paid| *paid <= now + credit);
        match self.taken.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay) {
            Ok(_) => Ok(()),
            Err(paid) => Err(Exhausted { retry: (paid + price).saturating_sub(now + credit).div_ceil(SECOND) }),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut table = self.clients.table.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.taken.connections.fetch_sub(1, Ordering::Relaxed);
        // With a rate the client stays known, else connecting anew would be a way around it.
        if before == 1 && self.clients.limits.client_rate == 0 {
            table.clients.remove(&self.client);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Enough for 500 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const NONE: Limits = Limits { connections: 0, client_connections: 0, client_waiters: 0, client_rate: 0, idle: 0 };

    fn clients(limits: Limits) -> Arc<Clients> {
        Arc::new(Clients::new(limits))
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 | number))
    }

    fn known(clients: &Clients) -> usize {
        clients.table.lock().unwrap().clients.len()
    }

    #[test]
    fn connections_are_counted_for_each_client() {
        let clients = clients(Limits { client_connections: 2, ..NONE });
        let first = clients.connect(address(1), NOW).unwrap();
        let _second = clients.connect("::ffff:10.0.0.1".parse().unwrap(), NOW).unwrap();
        assert_eq!(clients.connect(address(1), NOW).unwrap_err(), Exhausted { retry: 1 });
        let other = clients.connect(address(2), NOW).unwrap();
        assert_eq!(known(&clients), 2);
        drop((first, other));
        assert_eq!(known(&clients), 1, "who has nothing is forgotten");
        assert!(clients.connect(address(1), NOW).is_ok());
    }

    #[test]
    fn places_are_counted_over_all_connections_of_a_client() {
        let clients = clients(Limits { client_waiters: 2, ..NONE });
        let [one, two] = [(); 2].map(|()| clients.connect(address(1), NOW).unwrap());
        let other = clients.connect(address(2), NOW).unwrap();
        let (first, _second) = (one.wait().unwrap(), two.wait().unwrap());
        assert_eq!(one.wait().unwrap_err(), Exhausted { retry: 1 });
        assert!(other.wait().is_ok());
        drop(first);
        assert!(two.wait().is_ok());
    }

    #[test]
    fn rates_allow_bursts_and_outlive_connections() {
        let clients = clients(Limits { client_rate: 10, ..NONE });
        let ask = |client, now| clients.connect(address(client), now).unwrap().request(|| now);
        for _ in 0..20 {
            assert_eq!(ask(1, NOW), Ok(()));
        }
        assert_eq!(ask(1, NOW), Err(Exhausted { retry: 1 }));
        assert_eq!(ask(2, NOW), Ok(()));
        assert_eq!(ask(1, NOW + Duration::from_millis(99)), Err(Exhausted { retry: 1 }));
        assert_eq!(ask(1, NOW + Duration::from_millis(100)), Ok(()));
        assert_eq!(ask(1, NOW + Duration::from_millis(100)), Err(Exhausted { retry: 1 }));
        for _ in 0..20 {
            assert_eq!(ask(1, NOW + Duration::from_mins(1)), Ok(()));
        }
        assert!(ask(1, NOW + Duration::from_mins(1)).is_err());
    }

    #[test]
    fn no_limit_is_no_limit() {
        let clients = clients(NONE);
        let share = clients.connect(address(1), NOW).unwrap();
        let _shares: Vec<_> = (0..1000).map(|_| clients.connect(address(1), NOW).unwrap()).collect();
        let _places: Vec<_> = (0..1000).map(|_| share.wait().unwrap()).collect();
        assert!((0..10_000).all(|_| share.request(|| NOW).is_ok()));
    }

    #[test]
    fn only_so_many_clients_are_remembered() {
        let clients = clients(Limits { client_rate: 1, ..NONE });
        let stays = clients.connect(address(0), NOW).unwrap();
        for number in 1..50_000 {
            clients.connect(address(number), NOW).unwrap().request(|| NOW).unwrap();
            assert!(known(&clients) <= REMEMBERED_MAX + 1, "one is connected");
        }
        assert!(stays.request(|| NOW).is_ok() && stays.request(|| NOW).is_ok() && stays.request(|| NOW).is_err());
        assert!(clients.connect(address(0), NOW).unwrap().request(|| NOW).is_err(), "who is connected stays known");
    }
}
