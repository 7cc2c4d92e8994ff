//! What the service counts, under the names and labels of `CoreDNS` so that its dashboards work, and finer under our own.
//!
//! Every thread counts for itself, without a lock and without an instruction that other processors would notice; the
//! counts are added up when they are requested.

mod exposition;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::name::Folded;
pub(crate) use exposition::Exposition;

/// Types that are counted separately, as `CoreDNS` does; the last one stands for all others.
const KINDS: [(u16, &str); 20] = [
    (1, "A"),
    (28, "AAAA"),
    (33, "SRV"),
    (12, "PTR"),
    (16, "TXT"),
    (65, "HTTPS"),
    (15, "MX"),
    (6, "SOA"),
    (2, "NS"),
    (5, "CNAME"),
    (255, "ANY"),
    (35, "NAPTR"),
    (43, "DS"),
    (46, "RRSIG"),
    (47, "NSEC"),
    (48, "DNSKEY"),
    (64, "SVCB"),
    (251, "IXFR"),
    (252, "AXFR"),
    (0, "other"),
];

/// Codes that are counted separately; the last one stands for all others.
const CODES: [(ResponseCode, &str); 9] = [
    (ResponseCode::NoError, "NOERROR"),
    (ResponseCode::NXDomain, "NXDOMAIN"),
    (ResponseCode::ServFail, "SERVFAIL"),
    (ResponseCode::Refused, "REFUSED"),
    (ResponseCode::FormErr, "FORMERR"),
    (ResponseCode::NotImp, "NOTIMP"),
    (ResponseCode::BADVERS, "BADVERS"),
    (ResponseCode::YXDomain, "YXDOMAIN"),
    (ResponseCode::NotAuth, "other"),
];

/// Upper bounds of sizes in bytes, those of `CoreDNS`.
const SIZES: [u32; 14] = [0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16_000, 32_000, 48_000, 64_000];

/// How many bounds of times there are: from 1 µs on each the double of the one before, to 8 s.
const TIMES: usize = 24;

/// The first of them that `CoreDNS` has.
const COARSE: usize = 8;

/// The upper bound of times in ns with this index: 0.25 ms, which `CoreDNS` has, is the eighth double of the first.
fn time_bound(index: usize) -> f64 {
    250_000.0 / 256.0 * 2_f64.powi(i32::try_from(index).unwrap_or(i32::MAX))
}

/// Names of the cluster, or all others.
const ZONES: usize = 2;

/// How a message came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
    /// Over TLS (RFC 7858).
    Dot,
    /// Over HTTPS (RFC 8484).
    Doh,
}

/// Labels of the transports.
pub(crate) const TRANSPORTS: [&str; 4] = ["udp", "tcp", "dot", "doh"];

/// Labels of the clients' families, as `CoreDNS` numbers them.
const FAMILIES: [&str; 2] = ["1", "2"];

/// Who gave an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// None: it was refused.
    Nobody,
    /// The names of the cluster.
    Zone,
    /// What upstreams said before.
    Cache,
    /// Upstreams that were asked.
    Forward,
}

/// Labels of these.
pub(crate) const BY: [&str; 4] = ["", "zone", "cache", "forward"];

/// A message that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) transport: Transport,
    pub(crate) client: SocketAddr,
    /// Whether the name is one of the cluster's domain.
    pub(crate) own: bool,
    /// The number of the type.
    pub(crate) kind: u16,
    pub(crate) dnssec_ok: bool,
    pub(crate) code: ResponseCode,
    pub(crate) by: By,
    /// Whether it has no records.
    pub(crate) empty: bool,
    /// Bytes of the question's message, and of the answer's.
    pub(crate) request: usize,
    pub(crate) response: usize,
}

/// What is counted beside the upstreams.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Distinguishes this one from others in the process.
    id: u64,
    /// `dns://ADDRESS`, as `CoreDNS` names a server.
    server: String,
    /// The domain of the cluster.
    zone: String,
    tallies: Mutex<Vec<Arc<Tally>>>,
    pub(crate) panics: Counter,
    pub(crate) receive_errors: Counter,
    /// Answers that were not sent, since they were known too late.
    pub(crate) late: Counter,
    /// Responses beyond the rate of their network that were dropped, and that were sent all the same, truncated if possible.
    pub(crate) limited: [Counter; 2],
    pub(crate) names: Gauge<i64, AtomicI64>,
    pub(crate) defects: Gauge<i64, AtomicI64>,
    /// Containers of other hosts that have no address which can be reached from here.
    pub(crate) unreachable: Gauge<i64, AtomicI64>,
}

/// How many there were.
static METRICS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The tallies of this thread, by the metrics that they are part of.
    static OWN: RefCell<Vec<(u64, Arc<Tally>)>> = const { RefCell::new(Vec::new()) };
}

impl Metrics {
    /// Those of the service at `address`.
    pub(crate) fn new(address: SocketAddr, domain: &Folded) -> Self {
        Self {
            id: METRICS.fetch_add(1, Ordering::Relaxed),
            server: format!("dns://{address}"),
            zone: domain.to_string(),
            tallies: Mutex::default(),
            panics: Counter::default(),
            receive_errors: Counter::default(),
            late: Counter::default(),
            limited: Default::default(),
            names: Gauge::default(),
            unreachable: Gauge::default(),
            defects: Gauge::default(),
        }
    }

    /// Where this thread counts.
    pub(crate) fn tally(&self) -> Mine {
        OWN.with_borrow_mut(|own| {
            let known = own.iter().find(|(id, _)| *id == self.id).map(|(_, tally)| tally.clone());
            let tally = known.unwrap_or_else(|| {
                let tally = Arc::new(Tally::new());
                own.push((self.id, tally.clone()));
                self.tallies.lock().unwrap_or_else(PoisonError::into_inner).push(tally.clone());
                tally
            });
            Mine { tally, _stays: PhantomData }
        })
    }

    /// A sum over all threads.
    fn sum(&self, count: impl Fn(&Tally) -> u64) -> u64 {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|tally| count(tally)).sum()
    }
}

/// The counts of the thread that has this; it cannot be given to another one.
#[derive(Debug)]
pub(crate) struct Mine {
    tally: Arc<Tally>,
    _stays: PhantomData<*const ()>,
}

impl Mine {
    /// Counts an answered message.
    pub(crate) fn count(&self, answered: &Answered) {
        let tally = &*self.tally;
        let (zone, transport) = (usize::from(answered.own), answered.transport as usize);
        let kind = kind_index(answered.kind);
        let family = usize::from(answered.client.is_ipv6());
        increase(&tally.requests[zone][transport][family][kind], 1);
        increase(&tally.responses[zone][code_index(answered.code)][answered.by as usize], 1);
        if answered.by == By::Cache {
            increase(&tally.cached[usize::from(answered.empty)], 1);
        }
        if answered.dnssec_ok {
            increase(&tally.dnssec[zone], 1);
        }
        tally.request_sizes[zone][transport].count(answered.request);
        tally.response_sizes[zone][transport].count(answered.response);
    }

    /// Counts that so many answers about names of the cluster, or of others, left after this time.
    pub(crate) fn took(&self, own: bool, answers: u64, time: Duration) {
        self.tally.durations[usize::from(own)].count(answers, time);
    }

    /// Whether this one is one of `every` that are logged.
    pub(crate) fn is_told(&self, every: u32) -> bool {
        // Numbers as they come from a shift register (xorshift): a client that asks in patterns is logged like others.
        let mut state = self.tally.random.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.tally.random.store(state, Ordering::Relaxed);
        (state >> 32).is_multiple_of(u64::from(every))
    }
}

/// The counts of one thread, which alone changes them.
#[derive(Debug)]
struct Tally {
    requests: [[[[AtomicU64; KINDS.len()]; FAMILIES.len()]; TRANSPORTS.len()]; ZONES],
    responses: [[[AtomicU64; BY.len()]; CODES.len()]; ZONES],
    dnssec: [AtomicU64; ZONES],
    request_sizes: [[Sizes; TRANSPORTS.len()]; ZONES],
    response_sizes: [[Sizes; TRANSPORTS.len()]; ZONES],
    durations: [Durations; ZONES],
    /// Answers from the cache, with records and without.
    cached: [AtomicU64; 2],
    random: AtomicU64,
}

impl Tally {
    fn new() -> Self {
        Self {
            requests: Default::default(),
            responses: Default::default(),
            dnssec: Default::default(),
            request_sizes: Default::default(),
            response_sizes: Default::default(),
            durations: Default::default(),
            cached: Default::default(),
            // Any number but none.
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
        }
    }
}

/// Changes a count that no other thread changes.
fn increase(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// How many messages had which size.
#[derive(Debug, Default)]
struct Sizes {
    /// The last one is for those above all bounds.
    buckets: [AtomicU64; SIZES.len() + 1],
    bytes: AtomicU64,
}

impl Sizes {
    fn count(&self, bytes: usize) {
        let index = SIZES.iter().take_while(|bound| bytes > **bound as usize).count();
        increase(&self.buckets[index], 1);
        increase(&self.bytes, bytes as u64);
    }
}

/// How many answers took how long.
#[derive(Debug, Default)]
struct Durations {
    /// The last one is for those above all bounds.
    buckets: [AtomicU64; TIMES + 1],
    nanoseconds: AtomicU64,
}

impl Durations {
    fn count(&self, answers: u64, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 16);
        increase(&self.buckets[time_index(nanoseconds)], answers);
        increase(&self.nanoseconds, answers.saturating_mul(nanoseconds));
    }
}

/// The first bound that is not below this time.
fn time_index(nanoseconds: u64) -> usize {
    // In units of the first bound, rounded up.
    let units = (nanoseconds.saturating_mul(256)).div_ceil(250_000).max(1);
    let index = if units == 1 { 0 } else { u64::BITS - (units - 1).leading_zeros() };
    (index as usize).min(TIMES)
}

/// How often an upstream answered how, and how fast. Changed under the upstreams' lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers([Option<Box<[u64; TIMES + 2]>>; CODES.len()]);

impl Answers {
    /// Counts an answer.
    pub(crate) fn count(&mut self, code: ResponseCode, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX >> 16);
        let counts = self.0[code_index(code)].get_or_insert_default();
        counts[time_index(nanoseconds)] += 1;
        counts[TIMES + 1] += nanoseconds;
    }

    /// How many answers had which code.
    pub(crate) fn by_code(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = CODES.iter().zip(&self.0);
        counts.filter_map(|((_, label), counts)| Some((*label, counts.as_ref()?[..=TIMES].iter().sum())))
    }
}

/// A code as the standards write it.
pub(crate) fn code_label(code: ResponseCode) -> &'static str {
    CODES[code_index(code)].1
}

fn kind_index(kind: u16) -> usize {
    KINDS.iter().position(|(number, _)| *number == kind).unwrap_or(KINDS.len() - 1)
}

fn code_index(code: ResponseCode) -> usize {
    CODES.iter().position(|(known, _)| *known == code).unwrap_or(CODES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_below_their_bound() {
        for (nanoseconds, index) in [
            (0, 0),
            (976, 0),
            (977, 1),
            (1953, 1),
            (1954, 2),
            (250_000, 8),
            (250_001, 9),
            (8_191_999_999, 23),
            (8_192_000_000, 23),
            (8_192_000_001, 24),
            (u64::MAX, 24),
        ] {
            assert_eq!(time_index(nanoseconds), index, "{nanoseconds}");
        }
        assert!((time_bound(8) - 250_000.0).abs() < 1e-6 && (time_bound(23) - 8.192e9).abs() < 1.0);
    }

    #[test]
    fn what_threads_count_is_added_up() {
        let metrics = Metrics::new("127.0.0.1:53".parse().unwrap(), &Folded::parse("rancher.internal").unwrap());
        let answered = Answered {
            transport: Transport::Udp,
            client: "[::1]:7".parse().unwrap(),
            own: true,
            kind: 28,
            dnssec_ok: true,
            code: ResponseCode::NXDomain,
            by: By::Zone,
            empty: true,
            request: 40,
            response: 511,
        };
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for _ in 0..5 {
                        metrics.tally().count(&answered);
                    }
                });
            }
        });
        assert_eq!(metrics.sum(|tally| tally.requests[1][0][1][1].load(Ordering::Relaxed)), 15);
        assert_eq!(metrics.sum(|tally| tally.responses[1][1][1].load(Ordering::Relaxed)), 15);
        assert_eq!(metrics.sum(|tally| tally.response_sizes[1][0].buckets[5].load(Ordering::Relaxed)), 15);
        assert_eq!(metrics.sum(|tally| tally.dnssec[1].load(Ordering::Relaxed)), 15);
    }

    #[test]
    fn one_of_many_is_told() {
        let metrics = Metrics::new("127.0.0.1:53".parse().unwrap(), &Folded::parse("x").unwrap());
        let tally = metrics.tally();
        let told = (0..10_000).filter(|_| tally.is_told(10)).count();
        assert!((800..1200).contains(&told), "{told}");
        assert!((0..100).all(|_| tally.is_told(1)));
    }
}
