//! Stacks: what should run is stored, and what runs is brought to that and kept so.
//!
//! The crate `stacks` plans; here is what it plans from and what carries its steps out. Each stack has one scheduler, which
//! looks at it whenever something of it changes: it looks ([`world`]), plans, stores what the plan decides, and begins the
//! steps ([`act`]) that are not begun. What it remembers beside the ledger ([`memory`]) is lost with it without harm: the
//! next one waits for health once more.

mod act;
mod ahead;
pub(crate) mod counts;
mod keeper;
pub(crate) mod memory;
pub(crate) mod preview;
pub(crate) mod store;
#[cfg(test)]
mod tests;
pub(crate) mod unit;
pub(crate) mod view;
pub(crate) mod volumes;
pub(crate) mod wish;
pub(crate) mod world;
