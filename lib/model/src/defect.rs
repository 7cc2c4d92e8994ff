//! Defects: what was wrong in a document that is used all the same.

use std::fmt;

/// A place in a text file; both numbers start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line number.
    pub line: u32,
    /// Column number, in characters.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// What a defect cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The entity is not part of the snapshot.
    Hidden,
    /// The entity is there, without what the defect names.
    Ignored,
}

/// One thing that was wrong; everything else is unharmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    /// Where in the document: `containers/shop-web-1/primary_ip`.
    pub path: String,
    /// What is wrong, and what was expected.
    pub problem: String,
    /// What it cost.
    pub effect: Effect,
    /// Where in the file, when it was read from one that has lines.
    pub at: Option<Position>,
}

impl Defect {
    /// A defect that hides the entity at `path`.
    pub fn hidden(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into(), effect: Effect::Hidden, at: None }
    }

    /// A defect of which only the named part is left out.
    pub fn ignored(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into(), effect: Effect::Ignored, at: None }
    }

    /// The same defect with its place in the file.
    #[must_use]
    pub fn at(mut self, at: Option<Position>) -> Self {
        self.at = at;
        self
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "{at}: ")?;
        }
        let effect = match self.effect {
            Effect::Hidden => "left out",
            Effect::Ignored => "ignored",
        };
        write!(f, "{}: {} ({effect})", self.path, self.problem)
    }
}
