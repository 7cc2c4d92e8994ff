//! The tables of a scenario, as text for the terminal and as Markdown for RESULTS.md.

use std::fmt::Write as _;

use crate::paired::{Measured, Spread};

/// What a ratio or a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    fn to_text(self) -> String {
        match self {
            Self::AtLeast(least) => format!("≥ {}", short(least)),
            Self::AtMost(most) => format!("≤ {}", short(most)),
        }
    }
}

/// A line of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) subject: String,
    /// The main figure, in the unit of the section; what is missing has none.
    pub(crate) figure: Option<f64>,
    pub(crate) rate: Option<f64>,
    pub(crate) latency: Option<(f64, f64)>,
    pub(crate) ratio: Option<Spread>,
    pub(crate) goal: Option<Goal>,
    pub(crate) note: String,
}

impl Row {
    /// A row for something that was not measured.
    pub(crate) fn missing(subject: impl Into<String>, why: impl Into<String>) -> Self {
        Self { subject: subject.into(), note: format!("MISSING: {}", why.into()), ..Self::default() }
    }

    pub(crate) fn figure(subject: impl Into<String>, figure: f64) -> Self {
        Self { subject: subject.into(), figure: Some(figure), ..Self::default() }
    }

    #[must_use]
    pub(crate) fn with_goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    #[must_use]
    pub(crate) fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    pub(crate) fn measured(measured: &Measured, ratio: Option<Spread>) -> Self {
        let sample = &measured.typical;
        Self {
            subject: measured.name.clone(),
            figure: Some(sample.cost),
            rate: Some(sample.rate),
            latency: sample.latency,
            ratio,
            goal: None,
            note: sample.trouble.clone(),
        }
    }

    /// Whether the goal is met by the ratio, or by the figure where there is no ratio.
    fn verdict(&self) -> Option<bool> {
        let value = self.ratio.map(|ratio| ratio.median).or(self.figure)?;
        Some(self.goal?.is_met(value))
    }

    fn cells(&self) -> [String; 7] {
        let optional = |text: Option<String>| text.unwrap_or_default();
        [
            self.subject.clone(),
            optional(self.figure.map(number)),
            optional(self.rate.map(|rate| format!("{rate:.0}"))),
            optional(self.latency.map(|(middle, late)| format!("{middle:.0} / {late:.0}"))),
            optional(self.ratio.map(|ratio| format!("{:.2} [{:.2}-{:.2}]", ratio.median, ratio.min, ratio.max))),
            optional(self.goal.map(|goal| {
                let verdict = match self.verdict() {
                    Some(true) => "met",
                    Some(false) => "MISSED",
                    None => "not measured",
                };
                format!("{} {verdict}", goal.to_text())
            })),
            self.note.clone(),
        ]
    }
}

/// A goal as it is written in the plan: without zeros at the end.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A few digits, whatever the size.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// One comparison of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// Of the figures, such as `CPU µs/query`.
    pub(crate) unit: String,
    /// What is divided by what.
    pub(crate) ratio_of: String,
    pub(crate) rows: Vec<Row>,
}

impl Section {
    fn heads(&self) -> [String; 7] {
        let ratio = if self.ratio_of.is_empty() { "ratio" } else { &self.ratio_of };
        ["", &self.unit, "per s", "p50 / p99 µs", ratio, "goal", ""].map(str::to_owned)
    }

    /// The columns that say anything.
    fn columns(&self) -> Vec<Vec<String>> {
        let lines: Vec<_> = std::iter::once(self.heads()).chain(self.rows.iter().map(Row::cells)).collect();
        let column = |index: usize| lines.iter().map(|line| line[index].clone()).collect::<Vec<_>>();
        (0..7).map(column).filter(|cells| cells[1..].iter().any(|cell| !cell.is_empty())).collect()
    }

    pub(crate) fn to_text(&self) -> String {
        let columns = self.columns();
        let widths: Vec<usize> = columns
            .iter()
            .map(|cells| cells.iter().map(|cell| cell.chars().count()).max().unwrap_or_default())
            .collect();
        let mut text = format!("\n{}\n", self.title);
        for line in 0..=self.rows.len() {
            for (column, (cells, width)) in columns.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(width - cells[line].chars().count());
                // Words begin where words begin, numbers end where numbers end.
                let words = column == 0 || cells[line].starts_with(char::is_alphabetic);
                let _ =
                    if words { write!(text, "{}{pad}  ", cells[line]) } else { write!(text, "{pad}{}  ", cells[line]) };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    pub(crate) fn to_markdown(&self) -> String {
        let columns = self.columns();
        let mut text = format!("\n### {}\n\n", self.title);
        for line in 0..=self.rows.len() {
            let cells: Vec<_> = columns.iter().map(|cells| cells[line].as_str()).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
            if line == 0 {
                let _ = writeln!(text, "|{}", "---|".repeat(columns.len()));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section() -> Section {
        let ratio = Spread { median: 1.25, min: 1.2, max: 1.31 };
        let ours = Row { figure: Some(3.0), rate: Some(333_333.3), ..Row::figure("berth", 3.0) };
        let knot = Row { ratio: Some(ratio), ..Row::figure("knot", 3.75) };
        Section {
            title: "datagrams".to_owned(),
            unit: "µs".to_owned(),
            ratio_of: "peer / berth".to_owned(),
            rows: vec![
                ours,
                knot.clone().with_goal(Goal::AtLeast(1.22)),
                knot.with_goal(Goal::AtMost(1.2)),
                Row::missing("nsd", "no executable").with_goal(Goal::AtLeast(1.2)),
            ],
        }
    }

    #[test]
    fn goals_are_judged_in_the_table() {
        let text = section().to_text();
        let lines: Vec<_> = text.lines().skip(3).collect();
        for (line, expected) in lines.iter().zip([
            "berth  3.00  333333",
            "knot   3.75          1.25 [1.20-1.31]",
            "≤ 1.2 MISSED",
            "≥ 1.2 not measured  MISSING: no executable",
        ]) {
            assert!(line.contains(expected), "{line}");
        }
        assert!(lines[1].ends_with("≥ 1.22 met"), "{text}");
    }

    #[test]
    fn markdown_has_as_many_cells_in_each_line() {
        let text = section().to_markdown();
        let counts: Vec<_> =
            text.lines().filter(|line| line.starts_with('|')).map(|line| line.matches('|').count()).collect();
        assert_eq!(counts, [7; 6], "{text}");
    }
}
