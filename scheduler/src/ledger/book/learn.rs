//! What the book learns from etcd, and what of it is to be decided again.

use std::collections::BTreeSet;
use std::time::Duration;

use model::Text;

use crate::ledger::book::Book;
use crate::ledger::etcd::keys::{Fence, Key};
use crate::ledger::etcd::seal::{Put, Seal};
use crate::ledger::mirror::{EtcdMirror, HOST_SPLIT, KeyChange, KnownFence, claims_of, place_of};
use crate::ledger::record::{Record, Replica};
use crate::place::score::Ties;

impl Book {
    /// From now on the book mirrors etcd; `me` is the id of this scheduler.
    pub(crate) fn mirror_etcd(&mut self, me: Text) {
        self.persistent = true;
        self.mirror = Some(Box::new(EtcdMirror { me, ..EtcdMirror::default() }));
    }

    /// From now on records are sealed with this, and believed only if they are.
    pub(crate) fn seal_with(&mut self, seal: Seal) {
        if let Some(mirror) = &mut self.mirror {
            mirror.seal = Some(seal);
        }
    }

    /// Whether what others promised was not read yet.
    pub(crate) fn is_unread(&self) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| !mirror.known)
    }

    /// Whether this is another scheduler's placement.
    pub(crate) fn is_foreign(&self, id: &str) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| mirror.is_foreign(id))
    }

    /// Whether the placement was removed here and etcd does not have that yet. Until then nothing may be promised under the
    /// same id, or it would be taken for the old one.
    pub(crate) fn is_ending(&self, id: &str) -> bool {
        let own = |mirror: &EtcdMirror| mirror.records.get(id).is_some_and(|stored| stored.owner == mirror.me);
        !self.records.contains_key(id) && self.mirror.as_deref().is_some_and(own)
    }

    /// Whether no response may name this placement yet, because it is not on disk, or not in etcd as a whole.
    pub(crate) fn is_pending(&self, id: &str) -> bool {
        self.unsaved.contains(id)
            || self.mirror.as_ref().is_some_and(|mirror| match mirror.records.get(id) {
                Some(stored) => stored.growing,
                None => mirror.seen.contains_key(id),
            })
    }

    /// The placements that became ours since this was asked last.
    pub(crate) fn take_adopted(&mut self) -> Vec<Text> {
        self.mirror.as_mut().map_or_else(Vec::new, |mirror| std::mem::take(&mut mirror.adopted))
    }

    /// Divides hosts for a while: another scheduler promised something on a host that was chosen here.
    pub(crate) fn split_hosts(&mut self, now: Duration) {
        if let Some(mirror) = &mut self.mirror {
            mirror.split_until = Some(now.saturating_add(HOST_SPLIT));
        }
    }

    /// Ends the division of hosts when its time has come.
    pub(in crate::ledger) fn end_host_split(&mut self, now: Duration) {
        if let Some(mirror) = &mut self.mirror {
            mirror.split_until = mirror.split_until.filter(|until| *until > now);
        }
    }

    /// Which of equal hosts is taken: our own ones, while schedulers get in each other's way.
    pub(crate) fn ties(&self) -> Ties {
        let Some(mirror) = self.mirror.as_ref().filter(|mirror| mirror.split_until.is_some()) else {
            return Ties::First;
        };
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        match mirror.schedulers.keys().position(|id| *id == mirror.me) {
            Some(at) => Ties::Own { at: number(at), of: number(mirror.schedulers.len()) },
            None => Ties::First,
        }
    }

    /// What is to be written.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Text> {
        std::mem::take(&mut self.changed)
    }

    /// The same once more, when it could not be written.
    pub(crate) fn change_again(&mut self, ids: impl IntoIterator<Item = Text>) {
        self.changed.extend(ids);
    }

    /// What a person should know of placements, since this was asked last.
    pub(crate) fn take_remarks(&mut self, now: Duration) -> Vec<(Text, String)> {
        let Some(mirror) = &mut self.mirror else { return Vec::new() };
        let mut remarks = mirror.remarks.take(now);
        remarks.append(&mut mirror.junk.take(now));
        remarks
    }

    /// Placements whose schedulers are gone, and such as are gone themselves and have left something.
    pub(crate) fn orphans(&self) -> Vec<Text> {
        let Some(mirror) = &self.mirror else { return Vec::new() };
        mirror.orphans.difference(&mirror.given_up).chain(&mirror.strays).cloned().collect()
    }

    /// The scheduler that has a placement.
    pub(crate) fn owner(&self, id: &str) -> Option<&Text> {
        self.mirror.as_ref()?.records.get(id).map(|stored| &stored.owner).filter(|owner| !owner.is_empty())
    }

    /// As of which revision of etcd the book is.
    pub(crate) fn revision(&self) -> i64 {
        self.mirror.as_ref().map_or(0, |mirror| mirror.revision)
    }

    /// Learns what changed in etcd, in order; afterwards the book is as etcd was at the last change.
    pub(crate) fn learn(&mut self, changes: Vec<KeyChange>, now: Duration) {
        let known = self.revision();
        // A watch that began before a list was read repeats what was listed.
        let new = changes.into_iter().filter(|change| change.revision > known);
        let mut last = known;
        for change in new {
            last = last.max(change.revision);
            self.learn_one(change, now);
        }
        self.is_as_of(last);
    }

    /// Learns all that is in etcd at `revision`; returns how much of it the book did not know.
    pub(crate) fn learn_all(&mut self, changes: Vec<KeyChange>, revision: i64, now: Duration) -> usize {
        let Some(mirror) = &self.mirror else { return 0 };
        let mut gone: BTreeSet<Key> = mirror.keys().collect();
        let mut news = Vec::new();
        for change in changes {
            gone.remove(&change.key);
            if !mirror.knows(&change) {
                news.push(change);
            }
        }
        let count = news.len() + gone.len();
        for key in gone {
            self.learn_one(KeyChange { key, revision, put: Put::default(), value: None }, now);
        }
        for change in news {
            self.learn_one(change, now);
        }
        self.is_as_of(revision);
        count
    }

    fn is_as_of(&mut self, revision: i64) {
        if let Some(mirror) = &mut self.mirror {
            mirror.revision = mirror.revision.max(revision);
            mirror.known = true;
            mirror.find_strays();
        }
    }

    fn learn_one(&mut self, change: KeyChange, now: Duration) {
        let Some(mirror) = &mut self.mirror else { return };
        match (change.key, change.value) {
            (Key::Fence(host), Some(value)) => {
                let fence = mirror.fences.entry(host).or_default();
                fence.revision = change.revision;
                if Fence::writer(&value) != mirror.me {
                    fence.foreign = change.revision;
                }
            }
            // Fences are only deleted by hand: what was promised meanwhile has to be decided again.
            (Key::Fence(host), None) => {
                mirror.fences.insert(host, KnownFence { revision: 0, foreign: change.revision });
            }
            (Key::Claim(claim), value) => mirror.learn_claim(claim, change.revision, value.as_deref()),
            (Key::Scheduler(id), Some(_)) => {
                mirror.schedulers.insert(id, change.revision);
                mirror.find_orphans();
            }
            (Key::Scheduler(id), None) => {
                mirror.schedulers.remove(&id);
                mirror.find_orphans();
            }
            (Key::Placement(id), value) => {
                mirror.doubtful.insert(id.clone());
                match value {
                    Some(value) => self.learn_record(&id, (change.revision, change.put), &value, now),
                    None => self.learn_end(&id),
                }
            }
            (Key::Freed | Key::Seal | Key::Evicted(_), _) => {}
        }
    }

    /// Forgets what etcd had, because it was reset: what is ours is written again.
    pub(crate) fn unlearn(&mut self) {
        let Some(mirror) = &mut self.mirror else { return };
        // What this one gave up, and nobody has, nobody else writes again.
        let is_foreign = |id: &&Text| mirror.is_foreign(id) && !mirror.is_nobodys(id);
        let foreign: Vec<Text> = mirror.records.keys().filter(is_foreign).cloned().collect();
        let (me, seal, seen) = (mirror.me.clone(), mirror.seal.take(), std::mem::take(&mut mirror.seen));
        self.unreadable.clear();
        for id in foreign {
            self.release_quietly(&id);
        }
        self.mirror_etcd(me);
        if let Some(mirror) = &mut self.mirror {
            (mirror.seal, mirror.seen) = (seal, seen);
        }
        let own: Vec<Text> = self.records.keys().cloned().collect();
        self.changed.extend(own);
    }

    /// Remembers the fence under which a unit is promised.
    pub(in crate::ledger) fn note_fence(&mut self, id: &Text, replica: &Replica) {
        if let Some(mirror) = &mut self.mirror
            && replica.has_room()
        {
            let fence = mirror.foreign_fence(&replica.host);
            mirror.seen.entry(id.clone()).or_default().insert(place_of(replica), fence);
        }
    }

    pub(in crate::ledger) fn drop_fence(&mut self, id: &str, replica: &Replica) {
        if let Some(mirror) = &mut self.mirror
            && let Some(seen) = mirror.seen.get_mut(id)
        {
            seen.remove(&place_of(replica));
        }
    }

    pub(in crate::ledger) fn drop_fences(&mut self, id: &str) {
        if let Some(mirror) = &mut self.mirror {
            mirror.seen.remove(id);
        }
    }

    /// Takes those units of a placement back that were promised while another scheduler promised something on their
    /// hosts.
    ///
    /// Returns the record without them, no longer in the book, and them. What stays is promised; its fences are current
    /// where no other scheduler has put them.
    pub(crate) fn recall(&mut self, id: &str) -> Option<(Record, Vec<Replica>)> {
        let seen = self.mirror.as_ref()?.seen.get(id).cloned().unwrap_or_default();
        let mut record = self.release(id)?;
        let mirror = self.mirror.as_ref()?;
        let stored = mirror.records.get(id).map(|stored| &stored.places);
        let (mut stays, mut recalled) = (Vec::new(), Vec::new());
        for replica in record.replicas.drain(..) {
            let place = place_of(&replica);
            let written = stored.is_some_and(|places| places.contains(&place));
            let taken = claims_of(&replica).into_iter().any(|claim| {
                mirror.claims.get(&claim).is_some_and(|(holder, _)| **holder != *id) && replica.overridden.is_empty()
            });
            let fresh = seen.get(&place).is_some_and(|fence| *fence == mirror.foreign_fence(&replica.host));
            if written || fresh && !taken { stays.push(replica) } else { recalled.push(replica) }
        }
        for replica in &stays {
            self.promise(replica);
        }
        record.replicas = stays;
        Some((record, recalled))
    }

    /// What this placement wants and another one has claimed that etcd knows and that has no such name or port: only a
    /// person writes such a key. Returns the claim and its holder.
    pub(crate) fn claim_without_right(&self, id: &str) -> Option<(Text, Text)> {
        let mirror = self.mirror.as_ref()?;
        let claims = |id: &str| {
            let replicas = self.records.get(id).map(|record| &record.replicas[..]).unwrap_or_default();
            replicas.iter().filter(|replica| replica.stands()).flat_map(claims_of)
        };
        claims(id).find_map(|claim| {
            let (holder, _) = mirror.claims.get(&claim)?;
            let is_wrong =
                **holder != *id && mirror.records.contains_key(holder) && !claims(holder).any(|own| own == claim);
            is_wrong.then(|| (claim, holder.clone()))
        })
    }
}
