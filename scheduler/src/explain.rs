//! The explanation: every host with everything that refused it, and the smallest changes that would help.

use std::collections::BTreeMap;

use model::Text;
use serde::Serialize;

use crate::filter::{Change, Need, amount_words, pool_words};
use crate::room::Room;
use crate::score::{self, Order, Strategy};

/// Most suggestions: the first few are the smallest, the rest would bury them.
const CHANGES_MAX: usize = 8;

/// What is said about every host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// How many hosts fit.
    pub fits: usize,
    /// Every host: those that fit first, best first, then the others by id.
    pub hosts: Vec<Verdict>,
    /// What refused hosts, most frequent first.
    pub reasons: Vec<Group>,
    /// The smallest changes that would make one host fit; empty when one does.
    pub changes: Vec<String>,
}

/// What is said about one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Its uuid.
    pub uuid: Text,
    /// Its name.
    pub name: Text,
    /// Whether it fits.
    pub fits: bool,
    /// Its place among those that fit, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// Everything that speaks against it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// One reason and the hosts it refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The reason.
    pub reason: String,
    /// How many hosts it refused.
    pub count: usize,
    /// Their names, by host id.
    pub hosts: Vec<Text>,
}

/// Explains where a unit fits and where not.
pub fn explain(need: &Need, room: &Room<'_>, order: Order, strategy: Strategy) -> Explanation {
    let hosts = room.inventory.hosts();
    let len = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
    let mut fitting = crate::bits::Bits::none(hosts.len());
    let mut refused = Vec::new();
    let mut groups: BTreeMap<String, Vec<Text>> = BTreeMap::new();
    let mut wanted: BTreeMap<(usize, Vec<String>), Wanted> = BTreeMap::new();
    for host in 0..len {
        let reasons = need.reasons(room, host);
        if reasons.is_empty() {
            fitting.insert(host);
            continue;
        }
        let facts = hosts.facts(host);
        for reason in &reasons {
            groups.entry(reason.group.clone()).or_default().push(facts.name.clone());
        }
        let mut kinds: Vec<String> = reasons.iter().map(|reason| kind(&reason.change)).collect();
        kinds.sort();
        let changes = reasons.iter().map(|reason| reason.change.clone()).collect();
        wanted.entry((reasons.len(), kinds)).or_default().add(changes);
        let reasons = reasons.into_iter().map(|reason| reason.detail).collect();
        refused.push(Verdict { uuid: facts.uuid.clone(), name: facts.name.clone(), fits: false, rank: None, reasons });
    }
    let ranked = score::ranked(need, room, &fitting, order, strategy);
    let fits = ranked.iter().zip(1..).map(|(host, rank)| {
        let facts = hosts.facts(*host);
        Verdict {
            uuid: facts.uuid.clone(),
            name: facts.name.clone(),
            fits: true,
            rank: Some(rank),
            reasons: Vec::new(),
        }
    });
    let mut reasons: Vec<Group> =
        groups.into_iter().map(|(reason, hosts)| Group { reason, count: hosts.len(), hosts }).collect();
    reasons.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.reason.cmp(&b.reason)));
    let mut changes = Vec::new();
    if ranked.is_empty() {
        // Few changes first, then those that would help on more hosts.
        let mut wanted: Vec<_> = wanted.into_iter().map(|((count, _), wanted)| (count, wanted)).collect();
        let helped = |wanted: &Wanted| wanted.least().map_or(0, |(_, hosts)| hosts);
        wanted.sort_by_cached_key(|(count, wanted)| (*count, std::cmp::Reverse(helped(wanted))));
        let least = wanted.first().map_or(0, |(count, _)| *count);
        let fewest = wanted.iter().take_while(|(count, _)| *count == least).take(CHANGES_MAX);
        changes = fewest.filter_map(|(_, wanted)| wanted.words()).collect();
    }
    Explanation { fits: ranked.len(), hosts: fits.chain(refused).collect(), reasons, changes }
}

/// Changes of the same kinds, one list per host.
#[derive(Default)]
struct Wanted(Vec<Vec<Change>>);

impl Wanted {
    fn add(&mut self, mut changes: Vec<Change>) {
        // In one order, so that amounts of the same pool stand beside each other.
        changes.sort_by_key(kind);
        self.0.push(changes);
    }

    /// The smallest of them, and how many hosts would fit with it.
    fn least(&self) -> Option<(&[Change], usize)> {
        let amounts = |changes: &[Change]| -> Vec<i64> {
            let by = |change: &Change| if let Change::Less { by, .. } = change { *by } else { 0 };
            changes.iter().map(by).collect()
        };
        let least = self.0.iter().min_by_key(|changes| {
            let amounts = amounts(changes);
            (amounts.iter().fold(0, |sum: i64, by| sum.saturating_add(*by)), amounts)
        })?;
        let enough = amounts(least);
        let helped =
            self.0.iter().filter(|changes| amounts(changes).iter().zip(&enough).all(|(by, least)| by <= least));
        Some((least, helped.count()))
    }

    fn words(&self) -> Option<String> {
        let (least, hosts) = self.least()?;
        let words = |change: &Change| match change {
            Change::Words(words) => words.clone(),
            Change::Less { pool, by } => format!("{} less {}", amount_words(pool, *by), pool_words(pool)),
        };
        let changes: Vec<_> = least.iter().map(words).collect();
        let noun = if hosts == 1 { "host" } else { "hosts" };
        Some(format!("{} on {hosts} {noun}", changes.join(" and ")))
    }
}

/// What changes of one kind have in common.
fn kind(change: &Change) -> String {
    match change {
        Change::Words(words) => words.clone(),
        Change::Less { pool, .. } => format!("less {pool}"),
    }
}
