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
        wanted.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.hosts.cmp(&a.1.hosts)));
        let least = wanted.first().map_or(0, |(count, _)| *count);
        changes = wanted
            .iter()
            .take_while(|(count, _)| *count == least)
            .take(CHANGES_MAX)
            .map(|(_, wanted)| wanted.words())
            .collect();
    }
    Explanation { fits: ranked.len(), hosts: fits.chain(refused).collect(), reasons, changes }
}

/// Changes of the same kinds, on one or more hosts.
#[derive(Default)]
struct Wanted {
    hosts: usize,
    least: Vec<Change>,
}

impl Wanted {
    fn add(&mut self, changes: Vec<Change>) {
        self.hosts += 1;
        let sum = |changes: &[Change]| -> i64 {
            let by = |change: &Change| if let Change::Less { by, .. } = change { *by } else { 0 };
            changes.iter().map(by).fold(0, i64::saturating_add)
        };
        if self.least.is_empty() || sum(&changes) < sum(&self.least) {
            self.least = changes;
        }
    }

    fn words(&self) -> String {
        let words = |change: &Change| match change {
            Change::Words(words) => words.clone(),
            Change::Less { pool, by } => format!("{} less {}", amount_words(pool, *by), pool_words(pool)),
        };
        let changes: Vec<_> = self.least.iter().map(words).collect();
        let hosts = if self.hosts == 1 { "host" } else { "hosts" };
        format!("{} on {} {hosts}", changes.join(" and "), self.hosts)
    }
}

/// What changes of one kind have in common.
fn kind(change: &Change) -> String {
    match change {
        Change::Words(words) => words.clone(),
        Change::Less { pool, .. } => format!("less {pool}"),
    }
}
