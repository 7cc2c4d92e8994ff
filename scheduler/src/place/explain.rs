//! The explanation: every host with everything that refused it, and the smallest changes that would help.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use model::Text;
use serde::Serialize;

use crate::place::filter::Need;
use crate::place::filter::amount::{amount_words, pool_words};
use crate::place::filter::reason::Remedy;
use crate::place::room::Room;
use crate::place::score::{self, Ranking};

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
pub(crate) fn explain(need: &Need, room: &Room<'_>, ranking: Ranking) -> Explanation {
    let hosts = room.inventory.hosts();
    let len = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
    let mut fitting = crate::place::bits::Bits::none(hosts.len());
    let mut refused = Vec::new();
    let mut groups: HashMap<String, Vec<Text>, FixedState> = HashMap::default();
    let mut wanted: HashMap<u64, Wanted, FixedState> = HashMap::default();
    for host in 0..len {
        let reasons = need.reasons(room, host);
        if reasons.is_empty() {
            fitting.insert(host);
            continue;
        }
        let facts = hosts.facts(host);
        for reason in &reasons {
            // Hosts are many and reasons few: a text is only stored the first time.
            match groups.get_mut(&reason.group) {
                Some(hosts) => hosts.push(facts.name.clone()),
                None => drop(groups.insert(reason.group.clone(), vec![facts.name.clone()])),
            }
        }
        let mut changes: Vec<(u64, &Remedy)> =
            reasons.iter().map(|reason| (kind(&reason.change), &reason.change)).collect();
        changes.sort_unstable_by_key(|(kind, _)| *kind);
        let kinds = FixedState::default().hash_one(changes.iter().map(|(kind, _)| *kind).collect::<Vec<_>>());
        wanted.entry(kinds).or_insert_with(|| Wanted::new(&changes)).add(&changes);
        let reasons = reasons.into_iter().map(|reason| reason.detail).collect();
        refused.push(Verdict { uuid: facts.uuid.clone(), name: facts.name.clone(), fits: false, rank: None, reasons });
    }
    let ranked = score::ranked(need, room, &fitting, ranking);
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
        let mut wanted: Vec<_> = wanted.into_values().collect();
        let fewest = wanted.iter().map(|wanted| wanted.changes.len()).min().unwrap_or(0);
        wanted.retain(|wanted| wanted.changes.len() == fewest);
        let mut ranked: Vec<(usize, Vec<String>, String)> = wanted.iter().filter_map(Wanted::words).collect();
        ranked.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| (&a.1, &a.2).cmp(&(&b.1, &b.2))));
        changes = ranked.into_iter().take(CHANGES_MAX).map(|(.., words)| words).collect();
    }
    Explanation { fits: ranked.len(), hosts: fits.chain(refused).collect(), reasons, changes }
}

/// Changes of the same kinds, of many hosts.
struct Wanted {
    /// Those of one host, in the order of their kinds; the others differ by amounts alone.
    changes: Vec<Remedy>,
    /// The amounts of each host, as many as there are changes.
    amounts: Vec<i64>,
}

impl Wanted {
    fn new(changes: &[(u64, &Remedy)]) -> Self {
        Self { changes: changes.iter().map(|(_, change)| (*change).clone()).collect(), amounts: Vec::new() }
    }

    fn add(&mut self, changes: &[(u64, &Remedy)]) {
        let by = |change: &Remedy| if let Remedy::Less { by, .. } = change { *by } else { 0 };
        self.amounts.extend(changes.iter().map(|(_, change)| by(change)));
    }

    /// How many hosts would fit with the smallest of them, their kinds, and they themselves in words.
    fn words(&self) -> Option<(usize, Vec<String>, String)> {
        let sum = |amounts: &&[i64]| amounts.iter().fold(0, |sum: i64, by| sum.saturating_add(*by));
        let hosts = || self.amounts.chunks(self.changes.len().max(1));
        let least = hosts().min_by_key(|amounts| (sum(amounts), *amounts))?;
        let helped = hosts().filter(|amounts| amounts.iter().zip(least).all(|(by, least)| by <= least)).count();
        let words = |(change, by): (&Remedy, &i64)| match change {
            Remedy::Words(words) => (words.clone(), words.clone()),
            Remedy::Less { pool, .. } => {
                (format!("less {pool}"), format!("{} less {}", amount_words(pool, *by), pool_words(pool)))
            }
        };
        let mut changes: Vec<_> = self.changes.iter().zip(least).map(words).collect();
        changes.sort_unstable();
        let (kinds, changes): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        let noun = if helped == 1 { "host" } else { "hosts" };
        Some((helped, kinds, format!("{} on {helped} {noun}", changes.join(" and "))))
    }
}

/// Stands for what changes of one kind have in common: the same in every run.
fn kind(change: &Remedy) -> u64 {
    let hash = |what: (u8, &str)| FixedState::default().hash_one(what);
    match change {
        Remedy::Words(words) => hash((0, words)),
        Remedy::Less { pool, .. } => hash((1, pool)),
    }
}
