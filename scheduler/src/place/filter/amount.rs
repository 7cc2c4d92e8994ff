//! Amounts of pools, and how they are shown to people.

use model::Text;

use crate::place::hosts::{CPU, INSTANCES, MEMORY, STORAGE};

/// How much of which pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolNeed {
    pub(crate) name: Text,
    /// Its index; `None` when no host has it.
    pub(crate) pool: Option<usize>,
    pub(crate) amount: i64,
}

/// A pool in a person's words.
pub(crate) fn pool_words(pool: &str) -> &str {
    match pool {
        INSTANCES => "room for containers",
        CPU => "processor",
        MEMORY => "memory",
        STORAGE => "disk",
        other => other,
    }
}

/// An amount of a pool in a person's words.
pub(crate) fn amount_words(pool: &str, amount: i64) -> String {
    let bytes = |bytes: i64| {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        // The largest unit in which quarters are enough; amounts are rarely anything else.
        let unit = units.iter().find(|(shift, _)| bytes >= 1 << shift && bytes % (1 << (shift - 2)) == 0);
        unit.map_or_else(
            || format!("{bytes} bytes"),
            |(shift, unit)| {
                let quarters = ["", ".25", ".5", ".75"][usize::try_from(bytes >> (shift - 2) & 3).unwrap_or(0)];
                format!("{}{quarters} {unit}", bytes >> shift)
            },
        )
    };
    match pool {
        MEMORY => bytes(amount),
        STORAGE => bytes(amount.saturating_mul(1 << 20)),
        CPU => format!("{}.{:03} processors", amount / 1000, amount % 1000),
        _ => amount.to_string(),
    }
}
