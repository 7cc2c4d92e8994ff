//! Rebalancing: a plan of moves that evens out what hosts have in use. Nothing is moved.
//!
//! What is evened out is the sum over hosts of the squares of the share in use (processor and memory, as the score
//! counts it) and of the share of all containers: the fuller a host, the more a move from it gains. Each move must be
//! possible when those before it are done, and is to a host on which the unit could be placed.

use std::sync::Arc;
use std::time::Duration;

use model::{Container, Entity, Text, Value};
use serde::Serialize;

use crate::ledger::book::Book;
use crate::place::Placer;
use crate::place::answer::HostName;
use crate::place::fields::Fields;
use crate::place::filter::Need;
use crate::place::hosts::{CPU_AT, INSTANCES_AT, MEMORY_AT};
use crate::place::refusal::Refusal;
use crate::place::replica::member_names;
use crate::place::request::Request;
use crate::place::room::Room;
use crate::place::unit::Unit;

/// Most moves of one plan.
pub(crate) const MOVES_MAX: i64 = 100;
/// Default number of moves.
const MOVES_DEFAULT: i64 = 10;
/// How many of the fullest hosts are considered for each move, before there is none that gains.
const SOURCES_MAX: usize = 8;
/// How many units of a host are considered, largest first.
const UNITS_MAX: usize = 64;
/// The least gain that is worth moving a container: a hundred-thousandth of a whole host.
const GAIN_MIN: f64 = 1e-5;

/// A plan.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The moves, in the order in which they have to be done.
    pub moves: Vec<Move>,
    /// How uneven hosts are.
    pub imbalance: Imbalance,
    /// What all moves gain together: the imbalance before, less that after.
    pub gain: f64,
}

/// How uneven hosts are: 0 when all have the same share in use and as many containers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Imbalance {
    /// Now.
    pub before: f64,
    /// After the moves.
    pub after: f64,
}

/// One move.
#[derive(Clone, Debug, Serialize)]
pub struct Move {
    /// The containers that move together.
    pub containers: Vec<Text>,
    /// Where they are.
    pub from: HostName,
    /// Where they would be.
    pub to: HostName,
    /// By how much this move lowers the imbalance.
    pub gain: f64,
}

impl Placer {
    /// Plans moves that even out what hosts have in use.
    pub fn rebalance(&self, value: &Value, now: Duration) -> Result<Plan, Refusal> {
        let fields = Fields::of(value)?;
        fields.only(&[&["max_moves"]])?;
        let most = fields.int("max_moves", 1, MOVES_MAX)?.unwrap_or(MOVES_DEFAULT);
        // The ledger is free again before the long work begins.
        let mut book = self.with(now, |book| Ok(book.clone()))?;
        let before = imbalance(&book.room());
        let mut moves = Vec::new();
        while i64::try_from(moves.len()).unwrap_or(i64::MAX) < most {
            let Some((next, after)) = best_move(&book) else { break };
            book = after;
            moves.push(next);
        }
        let after = imbalance(&book.room());
        Ok(Plan { moves, imbalance: Imbalance { before, after }, gain: before - after })
    }
}

/// The best move from one of the fullest hosts, and how things are after it.
fn best_move(book: &Book) -> Option<(Move, Book)> {
    let room = book.room();
    let weights = Weights::new(&room);
    let mut sources: Vec<(f64, u32)> = hosts(&room).map(|host| (weights.load(&room, host).square(), host)).collect();
    sources.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    sources.iter().take(SOURCES_MAX).find_map(|(_, from)| best_move_from(book, &weights, *from))
}

fn best_move_from(book: &Book, weights: &Weights, from: u32) -> Option<(Move, Book)> {
    let inventory = book.inventory();
    let mut units = Unit::on(inventory, |host| host == from);
    units.retain(|unit| !unit.is_bound());
    units.sort_by_cached_key(|unit| {
        let amounts = |pool: usize| -> i64 {
            let accounts = unit.containers.iter().filter_map(|one| inventory.account(one.uuid()));
            accounts.flat_map(|account| &account.amounts).filter(|(own, _)| *own == pool).map(|(_, sum)| sum).sum()
        };
        std::cmp::Reverse((amounts(MEMORY_AT), amounts(CPU_AT)))
    });
    let mut best: Option<(f64, &Unit, Book, u32)> = None;
    for unit in units.iter().take(UNITS_MAX) {
        let Ok(request) = Request::parse(&unit.request(inventory).into()) else { continue };
        let without = without(book, unit);
        let room = without.room();
        let names = member_names(&request, "unit", None);
        let need = Need::new(&request, without.inventory(), &names);
        let old = weights.load(&book.room(), from);
        let gain = |to: u32| {
            let added = weights.of_request(&need, &room, to);
            let (left, target) = (weights.load(&room, from), weights.load(&room, to));
            old.square() + target.square() - left.square() - target.plus(added).square()
        };
        let mut candidates = need.candidates(&room);
        candidates.remove(from);
        let to = candidates.iter().map(|to| (gain(to), to)).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        if let Some((gain, to)) = to
            && gain > GAIN_MIN
            && best.as_ref().is_none_or(|(most, ..)| gain > *most)
        {
            best = Some((gain, unit, without, to));
        }
    }
    let (_, unit, _, to) = best?;
    let name = |host: u32| {
        let facts = inventory.hosts().facts(host);
        HostName { uuid: facts.uuid.clone(), name: facts.name.clone() }
    };
    let moved = with_host(book, unit, &name(to).uuid);
    // What really changes: pools that the snapshot does not show stay promised where they are.
    let gain = imbalance(&book.room()) - imbalance(&moved.room());
    (gain > GAIN_MIN).then(|| (Move { containers: unit.names(), from: name(from), to: name(to), gain }, moved))
}

/// The book as if the unit were not there.
fn without(book: &Book, unit: &Unit) -> Book {
    let mut snapshot = book.inventory().snapshot();
    for container in &unit.containers {
        snapshot.containers.remove(container.uuid());
    }
    book.moved(Arc::new(book.inventory().succeeding(&snapshot))).0
}

/// The book as if the unit were on that host.
fn with_host(book: &Book, unit: &Unit, host: &Text) -> Book {
    let mut snapshot = book.inventory().snapshot();
    for container in &unit.containers {
        let fields = container.fields().with([("host_uuid".into(), Value::Text(host.clone()))]);
        if let Some(moved) = Container::new(fields, container.links().clone()) {
            snapshot.containers.insert(Arc::new(moved));
        }
    }
    book.moved(Arc::new(book.inventory().succeeding(&snapshot))).0
}

/// How full a host is.
#[derive(Clone, Copy, Debug)]
struct Load {
    share: f64,
    containers: f64,
}

impl Load {
    fn square(self) -> f64 {
        self.share * self.share + self.containers * self.containers
    }

    fn plus(self, other: Self) -> Self {
        Self { share: self.share + other.share, containers: self.containers + other.containers }
    }
}

/// What one container weighs.
struct Weights {
    container: f64,
}

impl Weights {
    fn new(room: &Room<'_>) -> Self {
        let all: i64 = hosts(room).map(|host| room.taken(INSTANCES_AT, host)).sum();
        Self { container: 1.0 / to_f64(all.max(1)) }
    }

    fn load(&self, room: &Room<'_>, host: u32) -> Load {
        let shares = shares(room, host).map(|(pool, share)| to_f64(room.taken(pool, host)) * share);
        Load { share: mean(shares), containers: to_f64(room.taken(INSTANCES_AT, host)) * self.container }
    }

    /// What a unit would add to a host.
    fn of_request(&self, need: &Need, room: &Room<'_>, host: u32) -> Load {
        let asked = |pool: usize| {
            to_f64(need.amounts.iter().find(|amount| amount.pool == Some(pool)).map_or(0, |amount| amount.amount))
        };
        let share = mean(shares(room, host).map(|(pool, share)| asked(pool) * share));
        Load { share, containers: asked(INSTANCES_AT) * self.container }
    }
}

fn hosts(room: &Room<'_>) -> impl Iterator<Item = u32> {
    room.inventory.hosts().eligible.clone().iter().collect::<Vec<_>>().into_iter()
}

/// What one unit of processor and of memory is of the host's, for those it has.
fn shares(room: &Room<'_>, host: u32) -> impl Iterator<Item = (usize, f64)> {
    let shares = [CPU_AT, MEMORY_AT].map(|pool| (pool, f64::from(room.inventory.hosts().shares[pool][host as usize])));
    shares.into_iter().filter(|(_, share)| *share > 0.0)
}

fn mean(shares: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = shares.fold((0.0, 0_u8), |(sum, count), share| (sum + share, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

/// The sum of squares, less what it would be if all hosts were equally full.
fn imbalance(room: &Room<'_>) -> f64 {
    let weights = Weights::new(room);
    let loads: Vec<Load> = hosts(room).map(|host| weights.load(room, host)).collect();
    if loads.is_empty() {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "far fewer hosts than 53 bits count")]
    let count = loads.len() as f64;
    let sum = loads.iter().fold(Load { share: 0.0, containers: 0.0 }, |sum, load| sum.plus(*load));
    let even = Load { share: sum.share / count, containers: sum.containers / count };
    (loads.iter().map(|load| load.square()).sum::<f64>() - count * even.square()).max(0.0)
}

#[expect(clippy::cast_precision_loss, reason = "a share is a score, not an account")]
fn to_f64(amount: i64) -> f64 {
    amount as f64
}
