//! What a run adds to RESULTS.md and its plot.

use std::fmt::Write as _;
use std::fs;

use crate::machine::{self, Machine, repository};
use crate::report::Section;
use crate::{Failure, Options, plot};

/// All sections of one run.
#[derive(Debug)]
pub(crate) struct Report {
    scenario: &'static str,
    method: String,
    facts: String,
    quick: bool,
    sections: Vec<Section>,
}

impl Report {
    pub(crate) fn new(scenario: &'static str, machine: &Machine, options: &Options) -> Self {
        Self { scenario, method: machine.method(), facts: machine::facts(), quick: options.quick, sections: Vec::new() }
    }

    pub(crate) fn add(&mut self, section: Section) {
        self.sections.push(section);
    }

    /// Where, when and how this was measured.
    pub(crate) fn facts(&self) -> String {
        format!("{} · {}", self.facts, self.method)
    }

    /// Appends the tables to RESULTS.md and draws the plot.
    pub(crate) fn store(&self) -> Result<(), Failure> {
        let folder = repository().join("bench");
        let file = folder.join("RESULTS.md");
        let command: Vec<_> = std::env::args().skip(1).collect();
        let mut text = fs::read_to_string(&file)?;
        let _ = write!(text, "\n## {}\n\n`bench {}`", self.scenario, command.join(" "));
        let _ = write!(
            text,
            "{}\n\n{}\n",
            if self.quick { " (a first look: few and short runs)" } else { "" },
            self.facts()
        );
        for section in &self.sections {
            text.push_str(&section.to_markdown());
        }
        fs::write(&file, text)?;
        fs::create_dir_all(folder.join("plots"))?;
        fs::write(
            folder.join("plots").join(format!("{}.svg", self.scenario)),
            plot::draw(&self.sections, &self.facts),
        )?;
        Ok(())
    }
}
