//! What all parts say of the entities of one kind, and the entities that follow from it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use model::{Entity, Table, Text};

use super::part::Claim;

/// A claim, and whose it is.
#[derive(Debug)]
pub(super) struct Said<T> {
    pub(super) part: Text,
    pub(super) claim: Claim<T>,
}

/// The claims to the entities of one kind by key, those to one in the order of their parts' names.
pub(super) type Claims<T> = HashMap<Text, Vec<Said<T>>>;

/// What the parts say of the entities of one kind, together.
#[derive(Debug)]
pub(super) struct Merged<T> {
    pub(super) claims: Claims<T>,
    /// What follows from it, but for the entities below.
    whole: Table<T>,
    /// The ids in it by key, where they are not the key alone.
    pub(super) ids: HashMap<Text, Vec<Text>>,
    /// Entities that changed since. What many parts report at once is merged once.
    touched: Vec<Text>,
    /// Keys that several parts claim.
    pub(super) contested: BTreeSet<Text>,
    /// Whether a key has come to have another id.
    pub(super) renamed: bool,
}

impl<T> Default for Merged<T> {
    fn default() -> Self {
        Self {
            claims: HashMap::new(),
            whole: Table::default(),
            ids: HashMap::new(),
            touched: Vec::new(),
            contested: BTreeSet::new(),
            renamed: false,
        }
    }
}

impl<T: Entity + PartialEq> Merged<T> {
    /// Replaces a part's entities; `own` are those it had. Adds the parts that claim what is new, changed or gone too.
    pub(super) fn update(
        &mut self,
        part: &Text,
        own: &mut Vec<Claim<T>>,
        mut now: Vec<Claim<T>>,
        rivals: &mut BTreeSet<Text>,
    ) {
        let mut before = std::mem::take(own).into_iter().peekable();
        for claim in &mut now {
            while let Some(gone) = before.next_if(|before| before.key < claim.key) {
                self.retract(part, &gone.key, rivals);
            }
            match before.next_if(|before| before.key == claim.key) {
                // The equal one of before stays, so that it is there once.
                Some(same) if same == *claim => *claim = same,
                _ => self.claim(part, claim, rivals),
            }
        }
        for gone in before {
            self.retract(part, &gone.key, rivals);
        }
        *own = now;
    }

    /// Something is to be made of these entities again.
    pub(super) fn touch<'c>(&mut self, claims: impl IntoIterator<Item = &'c Claim<T>>)
    where
        T: 'c,
    {
        self.touched.extend(claims.into_iter().map(|claim| claim.key.clone()));
    }

    pub(super) fn touch_all(&mut self) {
        self.touched.extend(self.claims.keys().cloned());
    }

    /// Registers a part's claim to an entity.
    fn claim(&mut self, part: &Text, claim: &Claim<T>, rivals: &mut BTreeSet<Text>) {
        // Most entities are reported by one part.
        let claims = self.claims.entry(claim.key.clone()).or_insert_with(|| Vec::with_capacity(1));
        match claims.binary_search_by(|said| said.part.cmp(part)) {
            Ok(at) => claims[at].claim = claim.clone(),
            Err(at) => claims.insert(at, Said { part: part.clone(), claim: claim.clone() }),
        }
        if claims.len() > 1 {
            rivals.extend(claims.iter().map(|said| said.part.clone()));
            self.contested.insert(claim.key.clone());
        }
        self.touched.push(claim.key.clone());
    }

    /// Removes a part's claim to an entity.
    fn retract(&mut self, part: &Text, key: &Text, rivals: &mut BTreeSet<Text>) {
        let Some(claims) = self.claims.get_mut(key) else { return };
        if claims.len() > 1 {
            rivals.extend(claims.iter().map(|said| said.part.clone()));
        }
        claims.retain(|said| said.part != *part);
        if claims.len() < 2 {
            self.contested.remove(key);
        }
        if claims.is_empty() {
            self.claims.remove(key);
        }
        self.touched.push(key.clone());
    }

    /// All entities; `merged` makes what there is of what the parts say of one.
    pub(super) fn whole(&mut self, merged: impl Fn(&Claims<T>, &[Said<T>]) -> Vec<Arc<T>>) -> Table<T> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        // Added last: what one key no longer has may be another's now.
        let mut added = Vec::with_capacity(touched.len());
        for key in touched {
            let before = self.ids.remove(&key);
            let entities = self.claims.get(&key).map_or_else(Vec::new, |claims| merged(&self.claims, claims));
            let is_plain = match &entities[..] {
                [] => true,
                [only] => *only.id() == key,
                _ => false,
            };
            if !is_plain {
                let ids: Vec<Text> = entities.iter().map(|entity| entity.id().clone()).collect();
                self.renamed |= before.as_ref().is_some_and(|before| *before != ids);
                self.ids.insert(key.clone(), ids);
            }
            match before {
                Some(before) => before.iter().for_each(|id| self.whole.remove(id)),
                None if entities.is_empty() || !is_plain => self.whole.remove(&key),
                None => {}
            }
            added.extend(entities);
        }
        if self.whole.is_empty() {
            self.whole = added.into_iter().collect();
        } else {
            for entity in added {
                self.whole.insert(entity);
            }
        }
        self.whole.clone()
    }
}
