//! How many of something each client holds, and all of them together: pure.
//!
//! A client is an address, as for metadata. What one client takes is so missing to itself and not to the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What clients hold, in places that can be held by one client and by all of them. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Quota(Arc<Mutex<Held>>);

/// The places that are taken; locked for a moment when one is taken or given back, and no other lock after it.
#[derive(Debug)]
struct Held {
    by_client: HashMap<IpAddr, usize, foldhash::fast::RandomState>,
    total: usize,
    per_client: usize,
    in_all: usize,
}

/// A place that a client holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    quota: Quota,
    client: IpAddr,
}

impl Quota {
    /// No client holds anything yet.
    pub(crate) fn new(per_client: usize, in_all: usize) -> Self {
        Self(Arc::new(Mutex::new(Held { by_client: HashMap::default(), total: 0, per_client, in_all })))
    }

    /// One more place for this client; not when it, or all together, hold as many as they may.
    pub(crate) fn take(&self, client: IpAddr) -> Option<Place> {
        let client = client.to_canonical();
        let mut places = self.held();
        let own = places.by_client.get(&client).copied().unwrap_or_default();
        if places.total >= places.in_all || own >= places.per_client {
            return None;
        }
        places.by_client.insert(client, own + 1);
        places.total += 1;
        Some(Place { quota: self.clone(), client })
    }

    /// How many places all clients hold.
    pub(crate) fn total(&self) -> usize {
        self.held().total
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing in it panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.quota.held();
        let Some(own) = places.by_client.get_mut(&self.client) else { return };
        *own -= 1;
        if *own == 0 {
            places.by_client.remove(&self.client);
        }
        places.total -= 1;
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
    fn an_address_written_as_ipv6_has_no_share_of_its_own() {
        let quota = Quota::new(1, 10);
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
            let quota = Quota::new(16, 16 * 16);
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
