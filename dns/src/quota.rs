//! How many of something each client holds, and all of them together: pure.
//!
//! A client is an address, as for metadata. What one client takes is so missing to itself and not to the others.

use std::collections::HashMap;
use std::net::IpAddr;

/// What clients hold.
#[derive(Debug)]
pub(crate) struct Quota {
    held: HashMap<IpAddr, usize, foldhash::fast::RandomState>,
    total: usize,
    per_client: usize,
    in_all: usize,
}

impl Quota {
    /// Nobody holds anything yet.
    pub(crate) fn new(per_client: usize, in_all: usize) -> Self {
        Self { held: HashMap::default(), total: 0, per_client, in_all }
    }

    /// One more for this client; not when it, or all together, hold as many as they may.
    pub(crate) fn take(&mut self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let held = self.held.get(&client).copied().unwrap_or_default();
        let has_room = self.total < self.in_all && held < self.per_client;
        if has_room {
            self.held.insert(client, held + 1);
            self.total += 1;
        }
        has_room
    }

    /// One less for this client, which has taken it before.
    pub(crate) fn give_back(&mut self, client: IpAddr) {
        let client = client.to_canonical();
        let Some(held) = self.held.get_mut(&client) else { return };
        *held -= 1;
        self.total -= 1;
        if *held == 0 {
            self.held.remove(&client);
        }
    }

    /// How many all clients hold.
    pub(crate) fn total(&self) -> usize {
        self.total
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
        let mut quota = Quota::new(1, 10);
        assert!(quota.take(client(1)));
        assert!(!quota.take("::ffff:192.0.2.1".parse().unwrap()));
        quota.give_back("::ffff:192.0.2.1".parse().unwrap());
        assert_eq!((quota.total(), quota.held.len()), (0, 0));
    }

    proptest! {
        /// However few clients take and give back, in whatever order: one more gets its whole share.
        #[test]
        fn fewer_clients_than_shares_take_none_of_anothers(acts in prop::collection::vec((0_u8..15, any::<bool>()), 0..2000)) {
            let mut quota = Quota::new(16, 16 * 16);
            let mut held = [0; 15];
            for (number, takes) in acts {
                let count = &mut held[usize::from(number)];
                if takes {
                    prop_assert_eq!(quota.take(client(number)), *count < 16);
                    *count = (*count + 1).min(16);
                } else if *count > 0 {
                    quota.give_back(client(number));
                    *count -= 1;
                }
            }
            prop_assert_eq!(quota.total(), held.iter().sum::<usize>());
            prop_assert_eq!((0..17).filter(|_| quota.take(client(99))).count(), 16);
        }
    }
}
