//! What is measured: one file for each command.

pub(crate) mod balancer;
pub(crate) mod changes;
pub(crate) mod dns;
pub(crate) mod docker;
pub(crate) mod etcd;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod network;
pub(crate) mod placements;
pub(crate) mod soak;
pub(crate) mod stacks;
pub(crate) mod ui;

use crate::machine::Machine;
use crate::report::{Row, Section};
use crate::results::Report;
use crate::server::Executables;
use crate::{Options, say};

/// What every scenario has to do with.
pub(crate) struct Scene<'s> {
    pub(crate) machine: &'s Machine,
    pub(crate) executables: &'s Executables,
    pub(crate) options: &'s Options,
    pub(crate) report: Report,
}

impl Scene<'_> {
    /// Prints a table as soon as it is measured, and keeps it for the report.
    pub(crate) fn tell(&mut self, unit: &str, title: &str, ratio_of: &str, rows: Vec<Row>) {
        let [title, unit, ratio_of] = [title, unit, ratio_of].map(str::to_owned);
        let section = Section { title, unit, ratio_of, rows };
        say(&section.to_text());
        self.report.add(section);
    }
}
