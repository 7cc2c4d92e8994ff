//! What is still to be written to etcd, in which transactions.

use std::collections::{BTreeMap, BTreeSet};

use model::Text;

use super::book::Book;
use super::mirror::{EtcdMirror, MirroredRecord, claims_of, place_of};
use super::record::{Eviction, Record, Replica};
use crate::ledger::etcd::keys::{Claim, EtcdRecord, Evicted, Fence, Freed, Key};
use crate::ledger::etcd::seal::Put;

/// Most operations of a transaction: what the client takes, and less than etcd's own bound of 128.
pub(crate) const OPS_MAX: usize = 100;

/// Most bytes of values in a transaction: etcd takes requests of 1.5 MiB, in which its gateway counts the keys too.
pub(crate) const BYTES_MAX: usize = 1 << 20;

/// Why a change is not in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommitError {
    /// Another scheduler promised something on one of its hosts in between.
    Conflict,
    /// The placement is another scheduler's.
    Foreign,
    /// It is too large for a transaction.
    TooLarge,
    /// Something in etcd has a name or a port of it, and will have it until a person does something.
    Blocked {
        /// What is claimed, as the end of a key.
        claim: Text,
        /// By which placement; empty when the key does not say.
        holder: Text,
    },
    /// etcd cannot be reached, and certainly has not done it.
    Unavailable(String),
}

/// When a placement is taken over from a scheduler that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeOver {
    /// When it does not work on it.
    Idle,
    /// In any case: what it works with will never answer.
    Forced,
}

/// One transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TxnDraft {
    /// The revisions in which these keys have to have been put last; 0 means that they are not there.
    pub(crate) expects: BTreeMap<Key, i64>,
    pub(crate) puts: BTreeMap<Key, Vec<u8>>,
    pub(crate) deletes: BTreeSet<Key>,
    /// The placements it is about.
    pub(crate) parts: Vec<Text>,
    /// Whether it is a piece of a placement that is too large for one transaction.
    pub(crate) is_piece: bool,
    bytes: usize,
}

/// What there is to do for some placements.
#[derive(Clone, Debug, Default)]
pub(crate) struct DraftOutcome {
    /// To be done next.
    pub(crate) draft: TxnDraft,
    /// Those with which etcd agrees.
    pub(crate) done: Vec<Text>,
    /// Those that cannot be written as they are.
    pub(crate) refused: Vec<(Text, CommitError)>,
}

/// What one placement adds to a transaction.
#[derive(Debug, Default)]
struct Part {
    expects: BTreeMap<Key, i64>,
    puts: BTreeMap<Key, Vec<u8>>,
    deletes: BTreeSet<Key>,
}

/// What to do for one placement.
enum Step {
    Done,
    Refused(CommitError),
    Part(Part),
    /// As much as fits of one that is too large.
    Piece(Part),
    /// There is no room for it beside the others.
    Later,
    /// It shows again what is hidden from names, and etcd's user may not do that now.
    Hidden,
}

impl Book {
    /// The next transaction for these placements: those that only give back first, since others may count on it.
    ///
    /// `presence` is the revision in which this scheduler put its presence key; when that key is gone, nothing may be
    /// written. What is in `takes` is taken over from schedulers that live.
    pub(crate) fn draft(&mut self, ids: &[Text], takes: &BTreeMap<Text, TakeOver>, presence: i64) -> DraftOutcome {
        let mut drafted = DraftOutcome::default();
        let Some(mirror) = self.mirror.as_ref().filter(|mirror| mirror.seal.is_some()) else { return drafted };
        drafted.draft.expects.insert(Key::Scheduler(mirror.me.clone()), presence);
        let mut hidden = BTreeSet::new();
        let (ends, others): (Vec<_>, Vec<_>) = ids.iter().partition(|id| !self.records.contains_key(*id));
        for id in ends.into_iter().chain(others) {
            match self.step(id, takes.get(id).copied(), &drafted.draft) {
                Step::Done => drafted.done.push(id.clone()),
                Step::Refused(why) => drafted.refused.push((id.clone(), why)),
                Step::Part(part) => drafted.draft.add(id, part),
                Step::Piece(part) => {
                    drafted.draft.add(id, part);
                    drafted.draft.is_piece = true;
                }
                Step::Later => break,
                Step::Hidden => drop(hidden.insert(id.clone())),
            }
        }
        if let Some(mirror) = &mut self.mirror {
            mirror.hidden = hidden;
            for id in &drafted.done {
                mirror.seen.remove(id);
            }
            if !drafted.draft.deletes.is_empty() {
                drafted.draft.puts.insert(Key::Freed, Freed::written(&mirror.me));
            }
        }
        drafted
    }

    fn step(&self, id: &Text, take: Option<TakeOver>, draft: &TxnDraft) -> Step {
        let Some(mirror) = &self.mirror else { return Step::Done };
        match (self.records.get(id), mirror.records.get(id)) {
            (None, None) => mirror.clear(id, draft),
            (record, Some(stored)) if stored.owner != mirror.me => match record {
                Some(record) if !stored.owner.is_empty() => mirror.take_over(id, record, stored, take, draft),
                _ => Step::Refused(CommitError::Foreign),
            },
            (None, Some(stored)) => mirror.end(id, stored, draft),
            (Some(record), stored) => mirror.write(id, record, stored, draft),
        }
    }
}

impl EtcdMirror {
    fn take_over(
        &self,
        id: &Text,
        record: &Record,
        stored: &MirroredRecord,
        take: Option<TakeOver>,
        draft: &TxnDraft,
    ) -> Step {
        let gone = self.is_orphan(&stored.owner);
        let may = match take {
            None => gone && !self.given_up.contains(id),
            Some(TakeOver::Idle) => gone || !record.is_at_work(),
            Some(TakeOver::Forced) => true,
        };
        if !may {
            return Step::Refused(CommitError::Foreign);
        }
        let mut part = Part::default();
        let key = Key::Placement(id.clone());
        part.expects.insert(key.clone(), stored.revision);
        if gone {
            part.expects.insert(Key::Scheduler(stored.owner.clone()), 0);
        }
        // No engine was asked before the second put, and what was put once may be an old value that was put again: it
        // ends, as does what was not written whole.
        let growing = stored.growing || stored.put.is_first() && record.is_acted_on();
        let value = EtcdRecord::new(&self.me, growing, id, record).written();
        part.puts.insert(key, self.sealed(id, stored.put.next(), value));
        if draft.takes(&part) { Step::Part(part) } else { Step::Later }
    }

    /// Deletes what a placement has left that a person deleted by hand, unless it is there again.
    fn clear(&self, id: &Text, draft: &TxnDraft) -> Step {
        let claims = self.claims_of.get(id).filter(|_| self.is_stray(id));
        let mut part = Part::default();
        part.expects.insert(Key::Placement(id.clone()), 0);
        for claim in claims.into_iter().flatten() {
            let key = Key::Claim(claim.clone());
            let revision = self.claims.get(claim).map_or(0, |(_, revision)| *revision);
            part.expects.insert(key.clone(), revision);
            part.deletes.insert(key.clone());
            if !draft.takes(&part) {
                part.expects.remove(&key);
                part.deletes.remove(&key);
                break;
            }
        }
        if !part.deletes.is_empty() {
            Step::Part(part)
        } else if claims.is_some() {
            Step::Later
        } else {
            Step::Done
        }
    }

    fn end(&self, id: &Text, stored: &MirroredRecord, draft: &TxnDraft) -> Step {
        let mut part = Part::default();
        let key = Key::Placement(id.clone());
        part.expects.insert(key.clone(), stored.revision);
        let claims = self.claims_of.get(id).into_iter().flatten();
        part.deletes.extend(claims.map(|claim| Key::Claim(claim.clone())));
        part.deletes.insert(key.clone());
        if draft.takes(&part) {
            return Step::Part(part);
        }
        if !draft.parts.is_empty() {
            return Step::Later;
        }
        // Piece by piece, the record last: until then it counts.
        part.deletes.remove(&key);
        while !draft.takes(&part) {
            part.deletes.pop_last();
        }
        Step::Part(part)
    }

    fn write(&self, id: &Text, record: &Record, stored: Option<&MirroredRecord>, draft: &TxnDraft) -> Step {
        let key = Key::Placement(id.clone());
        let (none, nothing) = (BTreeSet::new(), BTreeMap::new());
        let places = stored.map_or(&none, |stored| &stored.places);
        let seen = self.seen.get(id).unwrap_or(&nothing);
        let held = self.claims_of.get(id);
        let mut wanted = BTreeSet::new();
        let mut new = Vec::new();
        for (at, replica) in record.replicas.iter().enumerate().filter(|(_, replica)| replica.stands()) {
            let claims = claims_of(replica);
            let place = place_of(replica);
            if !places.contains(&place) {
                let fence = seen.get(&place).copied();
                if fence.is_some_and(|fence| fence != self.foreign_fence(&replica.host)) {
                    return Step::Refused(CommitError::Conflict);
                }
                let mut part = Part::default();
                let host = Key::Fence(replica.host.clone());
                if fence.is_some() {
                    let known = self.fences.get(&replica.host).map_or(0, |fence| fence.revision);
                    part.expects.insert(host.clone(), known);
                }
                // One that is kept takes no room.
                if replica.has_room() {
                    part.puts.insert(host, Fence::written(&self.me, id));
                }
                for claim in claims.iter().filter(|claim| held.is_none_or(|held| !held.contains(*claim))) {
                    match self.claims.get(claim) {
                        // A host that the request names gives its ports to any request; and what was promised before
                        // is promised.
                        Some(_) if !replica.overridden.is_empty() || fence.is_none() => {}
                        // It is free as soon as the other parts are done.
                        Some((holder, _)) if self.is_stray(holder) && !draft.parts.is_empty() => return Step::Later,
                        Some((holder, _)) if self.is_stuck(holder) => {
                            let (claim, holder) = (claim.clone(), holder.clone());
                            return Step::Refused(CommitError::Blocked { claim, holder });
                        }
                        Some(_) => return Step::Refused(CommitError::Conflict),
                        None => {
                            part.expects.insert(Key::Claim(claim.clone()), 0);
                            part.puts.insert(Key::Claim(claim.clone()), Claim::written(id));
                        }
                    }
                }
                if !part.puts.is_empty() {
                    new.push((at, part));
                }
            }
            wanted.extend(claims);
        }
        let dropped: BTreeSet<Key> =
            held.into_iter().flatten().filter(|claim| !wanted.contains(*claim)).cloned().map(Key::Claim).collect();
        let expected = (key.clone(), stored.map_or(0, |stored| stored.revision));
        let whole = EtcdRecord::new(&self.owner_of(id), false, id, record).written();
        // As it stands before its seal.
        let hash = Self::hash(&whole[..whole.len().saturating_sub(1)]);
        // What is put once does not count as begun.
        let counts = |stored: &MirroredRecord| !stored.put.is_first() || !record.is_acted_on();
        if new.is_empty() && dropped.is_empty() && stored.is_some_and(|stored| stored.hash == hash && counts(stored)) {
            return Step::Done;
        }
        let whole = self.sealed(id, next_put(stored), whole);
        if whole.len() > BYTES_MAX {
            return Step::Refused(CommitError::TooLarge);
        }
        let mut part = Part::default();
        part.expects.extend([expected]);
        part.puts.insert(key.clone(), whole);
        part.deletes = dropped;
        // Before another unit is started in its place, and before it is stopped, all hosts know that.
        let none = BTreeSet::new();
        let (known, evictions) = (stored.map_or(&none, |stored| &stored.evictions), record.evictions());
        // Without the right all else goes on; `evictions` says what is missing.
        for eviction in evictions.difference(known).filter(|_| !self.may_not_evict) {
            part.puts.insert(Key::Evicted(eviction.clone()), Evicted::written(id));
        }
        // What was kept is started again. Of what is gone from its engine the key stays until its host knows that, too (`evictions`).
        let there: BTreeSet<Eviction> = record.replicas.iter().flat_map(Replica::containers).collect();
        let back = known.difference(&evictions).filter(|eviction| there.contains(eviction));
        part.deletes.extend(back.cloned().map(Key::Evicted));
        if self.may_not_evict && part.deletes.iter().any(|key| matches!(key, Key::Evicted(_))) {
            return Step::Hidden;
        }
        for (_, unit) in &new {
            part.expects.extend(unit.expects.clone());
            part.puts.extend(unit.puts.clone());
        }
        if draft.takes(&part) {
            return Step::Part(part);
        }
        if !draft.parts.is_empty() {
            return Step::Later;
        }
        self.piece(id, record, stored, &new, part, draft)
    }

    /// As much of a large record as fits; it grows, and what it has no more goes, with the next transactions.
    fn piece(
        &self,
        id: &Text,
        record: &Record,
        stored: Option<&MirroredRecord>,
        new: &[(usize, Part)],
        whole: Part,
        draft: &TxnDraft,
    ) -> Step {
        let key = Key::Placement(id.clone());
        let mut part = Part::default();
        part.expects.extend(whole.expects.get_key_value(&key).map(|(key, revision)| (key.clone(), *revision)));
        part.puts.extend(whole.puts.get_key_value(&key).map(|(key, value)| (key.clone(), value.clone())));
        let mut without: BTreeSet<usize> = new.iter().map(|(at, _)| *at).collect();
        for (at, unit) in new {
            let mut more = Part { expects: part.expects.clone(), puts: part.puts.clone(), deletes: BTreeSet::new() };
            more.expects.extend(unit.expects.clone());
            more.puts.extend(unit.puts.clone());
            if !draft.takes(&more) {
                break;
            }
            part = more;
            without.remove(at);
        }
        if without.len() == new.len() && !new.is_empty() {
            return Step::Refused(CommitError::TooLarge);
        }
        if !without.is_empty() {
            let growing = stored.is_none_or(|stored| stored.growing);
            let mut smaller = record.clone();
            smaller.unplaced = smaller.unplaced.saturating_add(u32::try_from(without.len()).unwrap_or(u32::MAX));
            let mut at = 0;
            smaller.replicas.retain(|_| {
                at += 1;
                !without.contains(&(at - 1))
            });
            let smaller = EtcdRecord::new(&self.me, growing, id, &smaller).written();
            part.puts.insert(key, self.sealed(id, next_put(stored), smaller));
        }
        for dropped in whole.deletes {
            part.deletes.insert(dropped.clone());
            if !draft.takes(&part) {
                part.deletes.remove(&dropped);
                break;
            }
        }
        Step::Piece(part)
    }

    /// The value with its seal. Without a key nothing is drafted.
    fn sealed(&self, id: &Text, put: Put, value: Vec<u8>) -> Vec<u8> {
        match &self.seal {
            Some(seal) => seal.applied(id, put, value),
            None => value,
        }
    }
}

/// Which put of its key the next one of a placement is.
fn next_put(stored: Option<&MirroredRecord>) -> Put {
    stored.map_or(Put::FIRST, |stored| stored.put.next())
}

impl TxnDraft {
    /// Whether there is room for `part`.
    fn takes(&self, part: &Part) -> bool {
        let new = |keys: &BTreeMap<Key, i64>| keys.keys().filter(|key| !self.expects.contains_key(*key)).count();
        let puts = part.puts.keys().filter(|key| !self.puts.contains_key(*key)).count();
        let bytes: usize = part.puts.values().map(Vec::len).sum();
        self.expects.len() + new(&part.expects) <= OPS_MAX
            // One more operation announces that room was given back.
            && self.puts.len() + self.deletes.len() + puts + part.deletes.len() < OPS_MAX
            && (self.bytes + bytes <= BYTES_MAX || self.parts.is_empty())
            // One of them must not have what the other one gives back: no key may be changed twice.
            && !part.puts.keys().any(|key| self.deletes.contains(key))
            && !part.deletes.iter().any(|key| self.puts.contains_key(key))
            // Nor may two claim the same, which only one of them will get.
            && !part.puts.keys().any(|key| matches!(key, Key::Claim(_)) && self.puts.contains_key(key))
    }

    fn add(&mut self, id: &Text, part: Part) {
        self.bytes += part.puts.values().map(Vec::len).sum::<usize>();
        self.parts.push(id.clone());
        self.expects.extend(part.expects);
        self.puts.extend(part.puts);
        self.deletes.extend(part.deletes);
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}
