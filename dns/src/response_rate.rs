//! Response-rate limiting: how many datagrams leave for clients that have not proven their address; pure.
//!
//! The address of a datagram can be forged, so a server can be made to send its answers to a victim. As in BIND, answers of one
//! class to one prefix are limited; of those beyond the limit every second one is sent truncated, so that a client that
//! did send a query repeats it over TCP and is answered, even if another one uses its prefix.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hickory_proto::op::ResponseCode;

use crate::write::Written;

/// Answers of one class to one prefix within a second, if nothing else is said.
///
/// A machine asks for a few names a second at most, so this serves a prefix full of them. A victim gets less than 5 Mbit/s of
/// the longest answers, which no forger would spend queries on.
pub(crate) const PER_SECOND: u32 = 500;

/// Highest limit: beyond it a microsecond, the unit of the clock here, is too coarse.
pub(crate) const PER_SECOND_MAX: i64 = 100_000;

/// How many prefixes are counted at the same time, with their classes: 128 KiB. A query of another prefix for the same place
/// takes it over, so that forgers of many prefixes throttle no other client; what they send is spread over as many victims.
const BUCKETS: usize = 1 << 14;

/// Time for which unused answers accumulate.
const BURST: u64 = 1_000_000;

/// The lower bits of a bucket: when it is full again, in microseconds. They last for nine years.
const FULL_AT: u64 = (1 << 48) - 1;

/// The bit of a bucket that says whether the next answer beyond the limit is sent.
const SLIPS: u64 = 1 << 48;

/// The upper bits of a bucket: whose it is.
const OWNER: u64 = !(FULL_AT | SLIPS);

/// Limits how many answers leave; shared by all threads, without a lock.
#[derive(Debug)]
pub(crate) struct ResponseRate {
    /// Microseconds between two answers; 0 limits nothing.
    interval: u64,
    buckets: Box<[AtomicU64]>,
    hasher: foldhash::fast::RandomState,
}

/// Answers that count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// With records.
    Records,
    /// Of names or types that do not exist, which a forger has any number of.
    Nothing,
    /// Failures and refusals: they are as short as the query, and a client cannot ask again over TCP for a better one.
    Failure,
}

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is sent.
    Sent,
    /// It is beyond the limit, and the one of two that is sent truncated.
    Slipped,
    /// It is not sent.
    Dropped,
}

impl Class {
    /// The class of an answer.
    pub(crate) fn of(written: &Written) -> Self {
        match written.code {
            ResponseCode::NoError if written.answers > 0 => Self::Records,
            ResponseCode::NoError | ResponseCode::NXDomain => Self::Nothing,
            _ => Self::Failure,
        }
    }
}

impl ResponseRate {
    /// So many answers of one class to one prefix a second; 0 limits nothing.
    pub(crate) fn new(per_second: u32) -> Self {
        let interval = BURST.checked_div(per_second.into()).unwrap_or_default();
        let buckets = if interval == 0 { 0 } else { BUCKETS };
        Self {
            interval,
            buckets: (0..buckets).map(|_| AtomicU64::new(0)).collect(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }

    /// Whether anything is limited.
    pub(crate) fn is_on(&self) -> bool {
        self.interval > 0
    }

    /// What becomes of an answer to this client, at this time since some fixed one.
    pub(crate) fn verdict(&self, client: IpAddr, class: Class, now: Duration) -> Verdict {
        let hash = self.hasher.hash_one((prefix(client), class));
        let place = usize::try_from(hash).unwrap_or(usize::MAX) % BUCKETS;
        let Some(bucket) = self.buckets.get(place) else { return Verdict::Sent };
        let (owner, now) = (hash & OWNER, u64::try_from(now.as_micros()).unwrap_or_default() & FULL_AT);
        let mut before = bucket.load(Ordering::Relaxed);
        loop {
            // A bucket of another prefix counts as a full one of this.
            let full_at = if before & OWNER == owner { before & FULL_AT } else { 0 };
            let next = full_at.max(now) + self.interval;
            if next - now > BURST {
                let slips = bucket.fetch_xor(SLIPS, Ordering::Relaxed) & SLIPS != 0;
                return if slips { Verdict::Slipped } else { Verdict::Dropped };
            }
            let after = owner | (before & SLIPS) | next;
            match bucket.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Verdict::Sent,
                Err(other) => before = other,
            }
        }
    }
}

/// The network of an address that counts as one client: /24 and /56, the smallest that are routed to one customer.
fn prefix(client: IpAddr) -> (bool, u64) {
    match client.to_canonical() {
        IpAddr::V4(client) => (false, u64::from(client.to_bits() >> 8)),
        IpAddr::V6(client) => (true, u64::try_from(client.to_bits() >> 72).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// How many of so many answers to this client are sent, slipped and dropped.
    fn ask(rate: &ResponseRate, client: &str, class: Class, times: usize, now: u64) -> [usize; 3] {
        let verdicts: Vec<_> =
            (0..times).map(|_| rate.verdict(ip(client), class, Duration::from_millis(now))).collect();
        [Verdict::Sent, Verdict::Slipped, Verdict::Dropped]
            .map(|wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count())
    }

    #[test]
    fn a_prefix_gets_no_more_answers_than_its_rate_and_every_second_other_one_truncated() {
        let rate = ResponseRate::new(10);
        assert_eq!(ask(&rate, "192.0.2.1", Class::Records, 30, 0), [10, 10, 10]);
        // The whole prefix counts, however its addresses are written, and other classes and prefixes do not.
        assert_eq!(ask(&rate, "::ffff:192.0.2.99", Class::Records, 2, 50), [0, 1, 1]);
        assert_eq!(ask(&rate, "192.0.2.1", Class::Nothing, 10, 50), [10, 0, 0]);
        assert_eq!(ask(&rate, "192.0.3.1", Class::Records, 10, 50), [10, 0, 0]);
        assert_eq!(ask(&rate, "2001:db8:0:1::1", Class::Records, 10, 50), [10, 0, 0]);
        assert_eq!(ask(&rate, "2001:db8:0:ff::2", Class::Records, 2, 50), [0, 1, 1]);
        assert_eq!(ask(&rate, "2001:db8:0:100::1", Class::Records, 10, 50), [10, 0, 0]);
        // One more for each tenth of a second, and no more than those of one second after a long time.
        assert_eq!(ask(&rate, "192.0.2.1", Class::Records, 4, 300), [3, 0, 1]);
        assert_eq!(ask(&rate, "192.0.2.1", Class::Records, 12, 600_000), [10, 1, 1]);
    }

    #[test]
    fn the_rate_holds_for_all_threads_together() {
        let rate = ResponseRate::new(1000);
        let sent: usize = thread::scope(|scope| {
            let ask = || scope.spawn(|| ask(&rate, "192.0.2.1", Class::Records, 1000, 0)[0]);
            let threads = [ask(), ask(), ask()];
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(sent, 1000);
    }

    #[test]
    fn forged_prefixes_throttle_no_other() {
        let rate = ResponseRate::new(1);
        for number in 0..200_000_u32 {
            let forged = IpAddr::V4((0x0a00_0000 + (number << 8)).into());
            rate.verdict(forged, Class::Records, Duration::ZERO);
        }
        assert_eq!(ask(&rate, "192.0.2.1", Class::Records, 1, 0), [1, 0, 0]);
    }

    #[test]
    fn nothing_is_limited_without_a_rate() {
        let rate = ResponseRate::new(0);
        assert!(!rate.is_on());
        assert_eq!(ask(&rate, "192.0.2.1", Class::Failure, 9999, 0), [9999, 0, 0]);
    }
}
