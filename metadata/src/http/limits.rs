//! How much one client may take: connections, requests that wait, followers, requests per second, bytes that it has not
//! read; and how many of these all may have together.
//!
//! What one container wastes is so missing to itself and not to the others. A client is an address. The table
//! knows those with connections, and those that asked so recently that their rate still counts; it is locked for
//! a moment when a connection begins or ends, and never together with anything else.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::Limits;

/// For how many seconds' worth of requests a client may be ahead of its rate: clients come in bursts.
const BURST_SECONDS: u64 = 2;

/// Most clients without a connection that are remembered for their rate.
///
/// A host has some hundred containers; remembering costs about 100 bytes each.
const REMEMBERED_MAX: usize = 8192;

/// Most streams of changes of one client: the dns and the scheduler of a host, each twice while a new one takes over.
const FOLLOWERS_MAX: u32 = 4;

/// Most bytes of responses that one client may leave unread, beside the one that it is reading.
///
/// Thirty whole trees of a cluster of 1,000 containers; what the system buffers for a connection does not count.
const CLIENT_BYTES_MAX: usize = 64 << 20;

/// Most bytes of responses that all clients together may leave unread.
///
/// Five whole trees of a cluster of 100,000 containers, whose own snapshot takes about as much.
const ALL_BYTES_MAX: usize = 1 << 30;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// What clients take.
pub(crate) struct Usage {
    limits: Limits,
    table: Mutex<Table>,
    /// Bytes that all clients have not read.
    bytes: AtomicUsize,
}

/// Usage by address.
struct Table {
    clients: HashMap<IpAddr, Arc<Taken>>,
    /// With how many clients it is time to forget some.
    full: usize,
}

/// A client's share of the service, held by each of its connections.
#[derive(Debug)]
pub(crate) struct Share {
    usage: Arc<Usage>,
    client: IpAddr,
    taken: Arc<Taken>,
}

/// A client's place among those that wait, maybe as a follower; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    taken: Arc<Taken>,
    follows: bool,
}

/// Bytes that a client has not read; free again when dropped.
#[derive(Debug)]
pub(crate) struct Unread {
    usage: Arc<Usage>,
    /// `None` when the client is not limited.
    taken: Option<Arc<Taken>>,
    bytes: usize,
}

/// Too many bytes are unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooMuch {
    /// By this client.
    Client,
    /// By all together.
    All,
}

/// What one client takes.
#[derive(Debug, Default)]
struct Taken {
    /// Changed only while the table is locked.
    connections: AtomicU32,
    waiting: AtomicU32,
    followers: AtomicU32,
    bytes: AtomicUsize,
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

impl Usage {
    /// No client has anything yet.
    pub(crate) fn new(limits: Limits) -> Self {
        let table = Mutex::new(Table { clients: HashMap::new(), full: REMEMBERED_MAX });
        Self { limits, table, bytes: AtomicUsize::new(0) }
    }

    /// A connection more for a client.
    pub(crate) fn connect(self: &Arc<Self>, client: IpAddr, now: Duration) -> Result<Share, Exhausted> {
        let client = model::counted_as(client);
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
        Ok(Share { usage: self.clone(), client, taken: taken.clone() })
    }
}

impl Unread {
    /// No bytes yet of a response to the client with this share, if it has one.
    pub(crate) fn new(usage: &Arc<Usage>, share: Option<&Share>) -> Self {
        Self { usage: usage.clone(), taken: share.map(|share| share.taken.clone()), bytes: 0 }
    }

    /// Counts so many bytes more, unless there are too many then.
    ///
    /// One response alone may have any length, since clusters may have any size.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), TooMuch> {
        let own = self.bytes;
        let add = |counter: &AtomicUsize, most: usize| {
            let sum = |counted: usize| (counted <= own || counted + bytes <= most).then_some(counted + bytes);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
        };
        if !self.taken.as_ref().is_none_or(|taken| add(&taken.bytes, CLIENT_BYTES_MAX)) {
            return Err(TooMuch::Client);
        }
        if !add(&self.usage.bytes, ALL_BYTES_MAX) {
            if let Some(taken) = &self.taken {
                taken.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            return Err(TooMuch::All);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Counts so many bytes less, which were counted before.
    pub(crate) fn subtract(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.usage.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(taken) = &self.taken {
            taken.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.subtract(self.bytes);
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
    /// A place among those that wait; with `follows` also among those that follow changes.
    pub(crate) fn wait(&self, follows: bool) -> Result<Place, Exhausted> {
        let one_more = |number: &AtomicU32, most: u32| {
            let one_more = |number: u32| (most == 0 || number < most).then_some(number + 1);
            let counted = number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
            counted.map_err(|_| Exhausted { retry: 1 })
        };
        one_more(&self.taken.waiting, self.usage.limits.client_waiters)?;
        let mut place = Place { taken: self.taken.clone(), follows: false };
        if follows {
            one_more(&self.taken.followers, FOLLOWERS_MAX)?;
            place.follows = true;
        }
        Ok(place)
    }

    /// A request more; `now` is asked for when it counts.
    pub(crate) fn request(&self, now: impl FnOnce() -> Duration) -> Result<(), Exhausted> {
        let rate = u64::from(self.usage.limits.client_rate);
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
        let mut table = self.usage.table.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.taken.connections.fetch_sub(1, Ordering::Relaxed);
        // With a rate the client stays known, or a new connection would be a way around it.
        if before == 1 && self.usage.limits.client_rate == 0 {
            table.clients.remove(&self.client);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.follows {
            self.taken.followers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Usage").field("limits", &self.limits).finish_non_exhaustive()
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

    fn clients(limits: Limits) -> Arc<Usage> {
        Arc::new(Usage::new(limits))
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 | number))
    }

    fn known(clients: &Usage) -> usize {
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
        let (first, _second) = (one.wait(false).unwrap(), two.wait(false).unwrap());
        assert_eq!(one.wait(false).unwrap_err(), Exhausted { retry: 1 });
        assert!(other.wait(false).is_ok());
        drop(first);
        assert!(two.wait(false).is_ok());
    }

    #[test]
    fn a_client_has_no_more_followers_than_a_host() {
        let usage = clients(Limits { client_waiters: 6, ..NONE });
        let [one, two] = [(); 2].map(|()| usage.connect(address(1), NOW).unwrap());
        let mut places: Vec<_> = (0..FOLLOWERS_MAX).map(|_| one.wait(true).unwrap()).collect();
        assert_eq!(two.wait(true).unwrap_err(), Exhausted { retry: 1 });
        assert!(usage.connect(address(2), NOW).unwrap().wait(true).is_ok());
        places.pop();
        // Who was refused takes no place among those that wait either.
        let _waits = [(); 2].map(|()| two.wait(false).unwrap());
        assert!(two.wait(true).is_ok());
    }

    #[test]
    fn a_client_that_does_not_read_holds_no_more_than_its_share() {
        let usage = clients(NONE);
        let [greedy, other] = [1, 2].map(|number| usage.connect(address(number), NOW).unwrap());
        let unread = |share| Unread::new(&usage, Some(share));
        let (mut first, mut second) = (unread(&greedy), unread(&greedy));
        assert_eq!(first.add(CLIENT_BYTES_MAX), Ok(()));
        assert_eq!(first.add(CLIENT_BYTES_MAX), Ok(()), "one response may have any length");
        assert_eq!(second.add(1), Err(TooMuch::Client));
        assert_eq!(unread(&other).add(CLIENT_BYTES_MAX), Ok(()));
        first.subtract(CLIENT_BYTES_MAX + 1);
        assert_eq!(second.add(1), Ok(()));
        assert_eq!(second.add(1), Err(TooMuch::Client));
        drop((first, second));
        assert_eq!(usage.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn clients_that_do_not_read_hold_no_more_than_there_is_for_all() {
        let usage = clients(NONE);
        let shares: Vec<_> = (0..20).map(|number| usage.connect(address(number), NOW).unwrap()).collect();
        let mut held: Vec<_> = shares.iter().map(|share| Unread::new(&usage, Some(share))).collect();
        let added = held.iter_mut().filter_map(|unread| unread.add(CLIENT_BYTES_MAX).ok()).count();
        assert_eq!(added, ALL_BYTES_MAX / CLIENT_BYTES_MAX);
        // The host is not limited as a client, but counts.
        assert_eq!(Unread::new(&usage, None).add(1), Err(TooMuch::All));
        let refused = held.last_mut().unwrap();
        assert_eq!(refused.add(1), Err(TooMuch::All));
        assert_eq!(refused.taken.as_ref().unwrap().bytes.load(Ordering::Relaxed), 0);
        held.clear();
        assert_eq!(usage.bytes.load(Ordering::Relaxed), 0);
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
        let _places: Vec<_> = (0..1000).map(|_| share.wait(false).unwrap()).collect();
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
