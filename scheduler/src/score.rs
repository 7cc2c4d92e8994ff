//! The score: which of the hosts that fit is best.
//!
//! All hosts are scored, never a sample, and by what share of them is used rather than by how much is
//! left: an empty small host beats a large one that is nearly full. In this order: wishes kept, fewer
//! containers of the same service, the share in use, fewer containers and image there already, host id.

use std::cmp::{Ordering, Reverse};

use crate::bits::Bits;
use crate::filter::{Amount, Need};
use crate::hosts::{CPU_AT, INSTANCES_AT, MEMORY_AT};
use crate::room::Room;

/// Which of the hosts that fit is best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// The one with the smallest share in use.
    #[default]
    Spread,
    /// The one with the largest share in use.
    Binpack,
}

/// By how many containers more a host may have that has the image already.
///
/// It spares a pull, but containers that reserve nothing would all end up on the first host if it counted for more.
const IMAGE_WORTH: u64 = 4;

/// How hosts are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// By the share of each that is in use.
    #[default]
    Ratio,
    /// By how much is left of what is asked for, in the order of asking, as the predecessor did.
    Original,
}

/// What speaks against a host; the smallest wins. Of equal ones the first host wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(u64);

/// The best of the candidates.
pub fn best(need: &Need, room: &Room<'_>, candidates: &Bits, order: Order, strategy: Strategy) -> Option<u32> {
    match order {
        Order::Ratio => {
            let scorer = Scorer::new(need, room, strategy);
            candidates.iter().min_by_key(|host| (scorer.cost(*host), *host))
        }
        Order::Original => candidates.iter().min_by(|a, b| compare_free(&need.amounts, room, *a, *b)),
    }
}

/// All candidates, best first.
pub fn ranked(need: &Need, room: &Room<'_>, candidates: &Bits, order: Order, strategy: Strategy) -> Vec<u32> {
    let mut hosts: Vec<u32> = candidates.iter().collect();
    match order {
        Order::Ratio => {
            let scorer = Scorer::new(need, room, strategy);
            hosts.sort_by_cached_key(|host| (scorer.cost(*host), *host));
        }
        Order::Original => hosts.sort_by(|a, b| compare_free(&need.amounts, room, *a, *b)),
    }
    hosts
}

/// The predecessor's order: more left of the first amount, then of the next; a host without the pool comes last.
pub fn compare_free(amounts: &[Amount], room: &Room<'_>, a: u32, b: u32) -> Ordering {
    amounts
        .iter()
        .filter_map(|amount| amount.pool)
        .map(|pool| {
            let free = |host| Reverse(room.has_pool(pool, host).then(|| room.free(pool, host)));
            free(a).cmp(&free(b))
        })
        .find(|ordering| ordering.is_ne())
        .unwrap_or_else(|| a.cmp(&b))
}

struct Scorer<'a> {
    room: &'a Room<'a>,
    wishes: Vec<(Bits, u32)>,
    replicas: Vec<u32>,
    images: Vec<Bits>,
    shares: Vec<(usize, i64)>,
    strategy: Strategy,
}

impl<'a> Scorer<'a> {
    fn new(need: &Need, room: &'a Room<'a>, strategy: Strategy) -> Self {
        let len = room.inventory.hosts().len();
        let wishes = need.wishes.iter().map(|(check, weight)| {
            let mut kept = Bits::all(len);
            check.narrow(room, &mut kept);
            (kept, *weight)
        });
        let mut replicas = vec![0; len];
        for (host, count) in need.service.iter().flat_map(|service| room.occurrences(service)) {
            replicas[host as usize] += count;
        }
        // Processor and memory always count: who reserves nothing still uses what is there.
        let mut shares = vec![(CPU_AT, 0), (MEMORY_AT, 0)];
        for amount in &need.amounts {
            match (amount.pool, shares.iter_mut().find(|(pool, _)| Some(*pool) == amount.pool)) {
                (_, Some((_, asked))) => *asked = amount.amount,
                (Some(pool), None) if pool != INSTANCES_AT => shares.push((pool, amount.amount)),
                _ => {}
            }
        }
        Self {
            room,
            wishes: wishes.filter(|(kept, _)| kept.count() < len).collect(),
            replicas,
            images: need.images.iter().map(|image| room.hosts_with(image)).filter(|hosts| !hosts.is_empty()).collect(),
            shares,
            strategy,
        }
    }

    fn cost(&self, host: u32) -> Cost {
        let broken: u32 = self.wishes.iter().filter(|(kept, _)| !kept.contains(host)).map(|(_, weight)| weight).sum();
        let absent = self.images.iter().filter(|hosts| !hosts.contains(host)).count();
        let replicas = u64::from(self.replicas[host as usize]);
        let containers = u64::try_from(self.room.taken(INSTANCES_AT, host)).unwrap_or(0);
        let percent = self.percent(host);
        let field = |value: u64, bits: u32| value.min((1 << bits) - 1);
        // Wishes first, whatever the strategy; packing comes before keeping replicas apart, or it would not pack.
        let absent = IMAGE_WORTH * u64::try_from(absent).unwrap_or(0);
        let (upper, lower) = match self.strategy {
            Strategy::Spread => (field(replicas, 14) << 7 | field(percent, 7), field(containers + absent, 25)),
            Strategy::Binpack => (
                field(100_u64.saturating_sub(percent), 7) << 14 | field(replicas, 14),
                (1 << 24) - field(containers, 23) + field(absent, 20),
            ),
        };
        Cost(field(u64::from(broken), 18) << 46 | upper << 25 | lower)
    }

    /// Which share of the host would be in use, in whole percent: finer differences are left to the count of containers.
    fn percent(&self, host: u32) -> u64 {
        let hosts = self.room.inventory.hosts();
        let mut sum = 0.0_f32;
        let mut pools = 0_u8;
        for (pool, asked) in &self.shares {
            let share = hosts.shares[*pool][host as usize];
            if share > 0.0 {
                #[expect(clippy::cast_precision_loss, reason = "a share in percent needs no 53 bits")]
                let used = self.room.taken(*pool, host).saturating_add(*asked) as f32;
                sum += used * share;
                pools += 1;
            }
        }
        if pools == 0 {
            return 0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to 0..=100 in the same expression"
        )]
        let percent = (sum * 100.0 / f32::from(pools)).clamp(0.0, 100.0) as u64;
        percent
    }
}
