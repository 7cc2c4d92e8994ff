//! The score: which of the hosts that fit is best.
//!
//! All hosts are scored, never a sample, and by what share of them is used rather than by how much is
//! left: an empty small host beats a large one that is nearly full. In this order: wishes fulfilled, fewer
//! containers of the same service, the share in use, fewer containers and image there already, host id.
//!
//! Several schedulers that share a ledger would all choose the same host, and all but one in vain. While they get in
//! each other's way, each takes hosts whose costs are nearly equal from its own share of them ([`Ties`]); room still
//! decides, so one that has more to place than the others spills over into their shares. One scheduler alone never does
//! that.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::place::bits::Bits;
use crate::place::filter::Need;
use crate::place::filter::amount::PoolNeed;
use crate::place::hosts::{CPU_AT, INSTANCES_AT, MEMORY_AT};
use crate::place::room::{Pool, Room};
use crate::place::strategy::{Order, Strategy};

/// By how many containers more a host may have that has the image already.
///
/// It spares a pull, but containers that reserve nothing would all end up on the first host if it counted for more.
const IMAGE_WORTH: u64 = 4;

/// Which of several hosts is taken whose costs are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ties {
    /// The first one by id.
    #[default]
    First,
    /// Of nearly equal ones, the best of this scheduler's own, every `of`-th one from `at` on.
    Own {
        /// Which scheduler it is, from 0.
        at: u32,
        /// How many there are.
        of: u32,
    },
}

/// By how many percent the shares in use of nearly equal hosts differ at most: about what one container takes of a
/// host.
const NEAR_PERCENT: u64 = 4;

/// By how many containers nearly equal hosts differ at most: about what a scheduler promises between two looks at etcd.
const NEAR_CONTAINERS: u64 = 8;

impl Ties {
    /// Whether the host is left to another scheduler as long as there is a nearly equal one of our own.
    fn is_others(self, host: u32) -> bool {
        match self {
            Self::First => false,
            Self::Own { at, of } => host % of.max(1) != at,
        }
    }
}

/// How hosts are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranking {
    /// By shares, or by amounts.
    pub(crate) order: Order,
    /// Whether little or much in use is better.
    pub(crate) strategy: Strategy,
    /// Which of equal ones is taken.
    pub(crate) ties: Ties,
}

/// What speaks against a host; the smallest wins.
///
/// Roughly first, where hosts are shared out, then whether it is another scheduler's, then exactly. Of equal ones the
/// first host wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    rough: u64,
    is_others: bool,
    exact: u64,
}

/// The best of the candidates.
pub(crate) fn best(need: &Need, room: &Room<'_>, candidates: &Bits, ranking: Ranking) -> Option<u32> {
    match ranking.order {
        Order::Ratio => {
            let scorer = Scorer::new(need, room, ranking);
            let mut best: Option<(Cost, u32)> = None;
            candidates.for_each(|host| {
                let cost = scorer.cost(host);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, host));
                }
            });
            best.map(|(_, host)| host)
        }
        Order::Original => candidates.iter().min_by(|a, b| compare_free(&need.amounts, room, *a, *b)),
    }
}

/// All candidates, best first.
pub(crate) fn ranked(need: &Need, room: &Room<'_>, candidates: &Bits, ranking: Ranking) -> Vec<u32> {
    let mut hosts: Vec<u32> = candidates.iter().collect();
    match ranking.order {
        Order::Ratio => {
            let scorer = Scorer::new(need, room, ranking);
            hosts.sort_by_cached_key(|host| (scorer.cost(*host), *host));
        }
        Order::Original => hosts.sort_by(|a, b| compare_free(&need.amounts, room, *a, *b)),
    }
    hosts
}

/// The predecessor's order: more left of the first amount, then of the next; a host without the pool comes last.
pub(crate) fn compare_free(amounts: &[PoolNeed], room: &Room<'_>, a: u32, b: u32) -> Ordering {
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

/// The best hosts for one replica after another: a placement changes the cost of its own host only.
#[derive(Debug)]
pub(crate) struct Queue {
    ranks: BinaryHeap<Reverse<(Cost, u32)>>,
    ranking: Ranking,
}

impl Queue {
    /// All hosts that fit, when placements leave each other's costs alone; `None` when they do not.
    pub(crate) fn new(need: &Need, room: &Room<'_>, ranking: Ranking) -> Option<Self> {
        if ranking.order != Order::Ratio || !need.is_local() {
            return None;
        }
        let scorer = Scorer::new(need, room, ranking);
        let candidates = need.candidates(room);
        Some(Self { ranks: candidates.iter().map(|host| Reverse((scorer.cost(host), host))).collect(), ranking })
    }

    /// Takes the best host out.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.ranks.pop().map(|Reverse((_, host))| host)
    }

    /// Puts a host back, with what it costs now, if it still fits.
    pub(crate) fn put_back(&mut self, need: &Need, room: &Room<'_>, host: u32) {
        if need.fits(room, host) {
            self.ranks.push(Reverse((cost_alone(need, room, self.ranking, host), host)));
        }
    }
}

/// The pools by which hosts are compared, with what is asked of each.
fn compared(need: &Need) -> Vec<(usize, i64)> {
    // Processor and memory always count: a container that reserves nothing still uses what is there.
    let mut pools = vec![(CPU_AT, 0), (MEMORY_AT, 0)];
    for amount in &need.amounts {
        match (amount.pool, pools.iter_mut().find(|(pool, _)| Some(*pool) == amount.pool)) {
            (_, Some((_, asked))) => *asked = amount.amount,
            (Some(pool), None) if pool != INSTANCES_AT => pools.push((pool, amount.amount)),
            _ => {}
        }
    }
    pools
}

/// What one host costs, as [`Scorer::cost`] says it of many.
fn cost_alone(need: &Need, room: &Room<'_>, ranking: Ranking, host: u32) -> Cost {
    let broken = need.wishes.iter().filter(|(check, _)| !check.holds(room, host)).map(|(_, weight)| weight).sum();
    let absent = need.images.iter().filter(|image| room.count(image, host) == 0).count();
    let replicas = need.service.map_or(0, |service| room.count(&service, host));
    let hosts = room.inventory.hosts();
    let (mut sum, mut pools) = (0.0_f32, 0_u8);
    for (pool, asked) in compared(need) {
        add_share(
            &mut sum,
            &mut pools,
            hosts.shares[pool][host as usize],
            room.taken(pool, host).saturating_add(asked),
        );
    }
    let containers = u64::try_from(room.taken(INSTANCES_AT, host)).unwrap_or(0);
    Merit { broken, replicas, percent: percent(sum, pools), containers, absent }.cost(host, ranking)
}

struct Scorer<'a> {
    wishes: Vec<(Bits, u32)>,
    replicas: Vec<u32>,
    images: Vec<Bits>,
    pools: Vec<(Pool<'a>, &'a [f32], i64)>,
    containers: Pool<'a>,
    ranking: Ranking,
}

impl<'a> Scorer<'a> {
    fn new(need: &Need, room: &Room<'a>, ranking: Ranking) -> Self {
        let hosts = room.inventory.hosts();
        let len = hosts.len();
        let wishes = need.wishes.iter().map(|(check, weight)| {
            let mut fulfilling = Bits::all(len);
            check.narrow(room, &mut fulfilling);
            (fulfilling, *weight)
        });
        let mut replicas = vec![0; len];
        for (host, count) in need.service.iter().flat_map(|service| room.occurrences(service)) {
            replicas[host as usize] += count;
        }
        let pools = compared(need)
            .into_iter()
            .map(|(pool, asked)| (room.pool(pool), hosts.shares.get(pool).map_or(&[][..], Vec::as_slice), asked));
        Self {
            wishes: wishes.filter(|(fulfilling, _)| fulfilling.count() < len).collect(),
            replicas,
            images: need.images.iter().map(|image| room.hosts_with(image)).collect(),
            pools: pools.collect(),
            containers: room.pool(INSTANCES_AT),
            ranking,
        }
    }

    #[inline]
    fn cost(&self, host: u32) -> Cost {
        let at = host as usize;
        let broken =
            self.wishes.iter().filter(|(fulfilling, _)| !fulfilling.contains(host)).map(|(_, weight)| weight).sum();
        let absent = self.images.iter().filter(|hosts| !hosts.contains(host)).count();
        let (mut sum, mut pools) = (0.0_f32, 0_u8);
        for (pool, shares, asked) in &self.pools {
            add_share(&mut sum, &mut pools, shares[at], pool.taken(at).saturating_add(*asked));
        }
        let containers = u64::try_from(self.containers.taken(at)).unwrap_or(0);
        let (replicas, percent) = (self.replicas[at], percent(sum, pools));
        Merit { broken, replicas, percent, containers, absent }.cost(host, self.ranking)
    }
}

#[inline]
fn add_share(sum: &mut f32, pools: &mut u8, share: f32, used: i64) {
    if share > 0.0 {
        #[expect(clippy::cast_precision_loss, reason = "a share in percent needs no 53 bits")]
        let used = used as f32;
        *sum += used * share;
        *pools += 1;
    }
}

/// Which share of the host would be in use, in whole percent: finer differences are left to the count of containers.
fn percent(sum: f32, pools: u8) -> u64 {
    if pools == 0 {
        return 0;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=100 in the same expression"
    )]
    let percent = (sum * 100.0 / f32::from(pools)).clamp(0.0, 100.0) as u32;
    u64::from(percent)
}

/// What a host has that speaks for or against it.
#[derive(Clone, Copy, Debug)]
struct Merit {
    /// The weight of the wishes that it does not fulfil.
    broken: u32,
    /// Containers of the same service.
    replicas: u32,
    /// The share in use, in percent.
    percent: u64,
    containers: u64,
    /// Images it does not have.
    absent: usize,
}

impl Merit {
    #[inline]
    fn cost(self, host: u32, ranking: Ranking) -> Cost {
        let exact = self.sum(ranking.strategy);
        match ranking.ties {
            Ties::First => Cost { rough: 0, is_others: false, exact },
            Ties::Own { .. } => {
                let (percent, containers) = (self.percent / NEAR_PERCENT, self.containers / NEAR_CONTAINERS);
                let rough = Self { percent, containers, absent: 0, ..self };
                Cost { rough: rough.sum(ranking.strategy), is_others: ranking.ties.is_others(host), exact }
            }
        }
    }

    #[inline]
    fn sum(self, strategy: Strategy) -> u64 {
        let field = |value: u64, bits: u32| value.min((1 << bits) - 1);
        let replicas = field(u64::from(self.replicas), 14);
        // Preferences first, with all strategies; packing comes before keeping replicas apart, or it would not pack.
        let absent = IMAGE_WORTH * u64::try_from(self.absent).unwrap_or(0);
        let (upper, lower) = match strategy {
            Strategy::Spread => (replicas << 7 | field(self.percent, 7), field(self.containers + absent, 25)),
            Strategy::Binpack => (
                field(100_u64.saturating_sub(self.percent), 7) << 14 | replicas,
                (1 << 24) - field(self.containers, 23) + field(absent, 20),
            ),
        };
        field(u64::from(self.broken), 18) << 46 | upper << 25 | lower
    }
}
