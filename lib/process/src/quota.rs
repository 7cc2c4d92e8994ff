//! How many of something each client holds, and all of them together: pure.
//!
//! A client is an address, or a /64 of the Internet's IPv6 addresses; or another key, as a subject. What one client takes is missing
//! to itself and not to the others.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::counted_as;

/// Part of a process's descriptors that one use may take, as its divisor: half of them are left for files, engines, etcd and
/// other services of the process. What idles makes room when they are short.
const USE_PART: u64 = 2;

/// Part of a process's descriptors that one client may have of one use, as its divisor: with three services and sockets to name
/// servers it takes a fifth of them all.
const CLIENT_PART: u64 = 20;

/// How many there are for one client, and for all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// For one client.
    pub per_client: usize,
    /// For all of them together.
    pub in_all: usize,
}

impl Places {
    /// As many connections of a service as fit into the descriptors of its process, of which `None` are not limited.
    ///
    /// One client has a small part of them: without descriptors the others would not be served.
    #[must_use]
    pub fn within(self, descriptors: Option<u64>) -> Self {
        Self { per_client: part(self.per_client, descriptors, CLIENT_PART), in_all: fitting(self.in_all, descriptors) }
    }
}

/// As many sockets for one use as fit into the descriptors of the process, of which `None` are not limited; at least one.
pub fn fitting(wanted: usize, descriptors: Option<u64>) -> usize {
    part(wanted, descriptors, USE_PART)
}

fn part(wanted: usize, descriptors: Option<u64>, divisor: u64) -> usize {
    let fit = descriptors.map_or(usize::MAX, |number| usize::try_from(number / divisor).unwrap_or(usize::MAX));
    wanted.min(fit.max(1))
}

/// What clients hold, in places that can be held by one client and by all of them. Clones share it.
#[derive(Debug)]
pub struct Quota<C: Eq + Hash = IpAddr>(Arc<Mutex<Held<C>>>);

/// The places that are taken; locked for a moment when one is taken or given back, and no other lock after it.
#[derive(Debug)]
struct Held<C> {
    by_client: HashMap<C, usize, foldhash::fast::RandomState>,
    total: usize,
    places: Places,
}

/// A place that a client holds; given back when dropped.
#[derive(Debug)]
pub struct Place<C: Eq + Hash = IpAddr> {
    quota: Quota<C>,
    client: C,
}

impl Quota {
    /// One more place for the client of this address; not when it, or all together, hold as many as they may.
    pub fn take(&self, client: IpAddr) -> Option<Place> {
        self.take_for(counted_as(client))
    }
}

impl<C: Clone + Eq + Hash> Quota<C> {
    /// One more place for this client; not when it, or all together, hold as many as they may.
    pub fn take_for(&self, client: C) -> Option<Place<C>> {
        let mut held = self.held();
        let own = held.by_client.get(&client).copied().unwrap_or_default();
        if held.total >= held.places.in_all || own >= held.places.per_client {
            return None;
        }
        held.by_client.insert(client.clone(), own + 1);
        held.total += 1;
        drop(held);
        Some(Place { quota: self.clone(), client })
    }
}

impl<C: Eq + Hash> Clone for Quota<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Eq + Hash> Quota<C> {
    /// No client holds anything yet.
    pub fn new(places: Places) -> Self {
        Self(Arc::new(Mutex::new(Held { by_client: HashMap::default(), total: 0, places })))
    }

    /// How many places all clients hold.
    pub fn total(&self) -> usize {
        self.held().total
    }

    /// Whether all clients together hold as many as they may.
    pub fn is_full(&self) -> bool {
        let held = self.held();
        held.total >= held.places.in_all
    }

    fn held(&self) -> MutexGuard<'_, Held<C>> {
        // Nothing in it panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Eq + Hash> Drop for Place<C> {
    fn drop(&mut self) {
        let mut held = self.quota.held();
        let Some(own) = held.by_client.get_mut(&self.client) else { return };
        *own -= 1;
        if *own == 0 {
            held.by_client.remove(&self.client);
        }
        held.total -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, number))
    }

    #[test]
    fn few_descriptors_are_not_for_one_client() {
        let usual = Places { per_client: 256, in_all: 16_384 };
        for (descriptors, per_client, in_all) in [
            (None, 256, 16_384),
            (Some(u64::MAX), 256, 16_384),
            (Some(32_768), 256, 16_384),
            (Some(20_000), 256, 10_000),
            (Some(5120), 256, 2560),
            (Some(1024), 51, 512),
            (Some(256), 12, 128),
            (Some(0), 1, 1),
        ] {
            assert_eq!(usual.within(descriptors), Places { per_client, in_all }, "{descriptors:?}");
        }
        assert_eq!(Places { per_client: 2, in_all: 200 }.within(Some(256)), Places { per_client: 2, in_all: 128 });
    }

    #[test]
    fn an_address_written_as_ipv6_has_no_share_of_its_own() {
        let quota = Quota::new(Places { per_client: 1, in_all: 10 });
        let place = quota.take(client(1)).unwrap();
        assert!(quota.take("::ffff:192.0.2.1".parse().unwrap()).is_none());
        drop(place);
        drop(quota.take("::ffff:192.0.2.1".parse().unwrap()).unwrap());
        assert_eq!((quota.total(), quota.held().by_client.len()), (0, 0));
    }

    proptest! {
        /// However few clients take and give back, in whatever order: one more gets its whole share.
        #[test]
        fn fewer_clients_than_shares_take_none_of_anothers(acts in prop::collection::vec((0_u8..15, any::<bool>()), 0..2000)) {
            let quota = Quota::new(Places { per_client: 16, in_all: 16 * 16 });
            let mut held: Vec<Vec<Place>> = (0..15).map(|_| Vec::new()).collect();
            for (number, takes) in acts {
                let places = &mut held[usize::from(number)];
                if takes {
                    let place = quota.take(client(number));
                    prop_assert_eq!(place.is_some(), places.len() < 16);
                    places.extend(place);
                } else {
                    places.pop();
                }
            }
            prop_assert_eq!(quota.total(), held.iter().map(Vec::len).sum::<usize>());
            let rest: Vec<Place> = (0..17).filter_map(|_| quota.take(client(99))).collect();
            prop_assert_eq!(rest.len(), 16);
        }
    }
}
