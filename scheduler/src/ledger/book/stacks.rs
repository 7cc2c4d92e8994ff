//! Stacks in the book: which there are, which placements are units of each, and which have changed.

use std::collections::{BTreeMap, BTreeSet};

use model::Text;

use crate::ledger::book::Book;
use crate::ledger::record::Record;
use crate::ledger::stack::{StackRecord, stack_id};

/// Which records are stacks, and which are of which stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackIndex {
    /// The names of all stacks.
    names: BTreeSet<Text>,
    /// The ids of placements that are units, by stack.
    units: BTreeMap<Text, BTreeSet<Text>>,
    /// Stacks that have changed, or of which a unit has, since that was asked.
    touched: BTreeSet<Text>,
}

impl StackIndex {
    pub(super) fn enter(&mut self, id: &Text, record: &Record) {
        if let Some(stack) = &record.stack {
            self.names.insert(stack.stack.name.clone());
        }
        if let Some(unit) = &record.unit {
            self.units.entry(unit.stack.clone()).or_default().insert(id.clone());
        }
        self.touch(record);
    }

    pub(super) fn leave(&mut self, id: &str, record: &Record) {
        if let Some(stack) = &record.stack {
            self.names.remove(&stack.stack.name);
        }
        if let Some(unit) = &record.unit
            && let Some(units) = self.units.get_mut(&unit.stack)
        {
            units.remove(id);
            if units.is_empty() {
                self.units.remove(&unit.stack);
            }
        }
        self.touch(record);
    }

    pub(super) fn touch(&mut self, record: &Record) {
        let stack = record.stack.as_ref().map(|stack| &stack.stack.name);
        self.touched.extend(stack.or_else(|| Some(&record.unit.as_ref()?.stack)).cloned());
    }
}

impl Book {
    /// The names of all stacks.
    pub(crate) fn stack_names(&self) -> impl Iterator<Item = &Text> {
        self.stacks.names.iter()
    }

    /// A stack.
    pub(crate) fn stack(&self, name: &str) -> Option<&StackRecord> {
        self.records.get(&stack_id(name))?.stack.as_deref()
    }

    /// The units of a stack, by the ids of their placements.
    pub(crate) fn units_of_stack(&self, name: &str) -> impl Iterator<Item = (&Text, &Record)> {
        let ids = self.stacks.units.get(name).into_iter().flatten();
        ids.filter_map(|id| Some((id, self.records.get(id)?)))
    }

    /// Which stacks have changed since this was asked.
    pub(crate) fn take_touched_stacks(&mut self) -> BTreeSet<Text> {
        std::mem::take(&mut self.stacks.touched)
    }

    /// Changes a stack of this scheduler; `None` if it has no such one.
    pub(crate) fn change_stack<T>(&mut self, name: &str, change: impl FnOnce(&mut StackRecord) -> T) -> Option<T> {
        let id = stack_id(name);
        if self.is_foreign(&id) {
            return None;
        }
        let changed = change(self.records.get_mut(&id)?.stack.as_deref_mut()?);
        self.note_change(&id);
        self.stacks.touched.insert(name.into());
        Some(changed)
    }

    /// Notes that another unit takes the place of one whose host is gone.
    pub(crate) fn evict(&mut self, id: &Text) {
        if self.is_foreign(id) {
            return;
        }
        if let Some(unit) = self.records.get_mut(id).and_then(|record| record.unit.as_mut()) {
            unit.evicted = true;
            self.stacks.touched.insert(unit.stack.clone());
            self.note_change(id);
        }
    }
}
