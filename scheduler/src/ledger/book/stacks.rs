//! Stacks in the book: which there are, which placements are units of each, and which have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::Text;

use crate::ledger::book::Book;
use crate::ledger::mirror::MirroredRecord;
use crate::ledger::record::{Eviction, Record, Replica, Stage};
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

    /// Whether a placement is a unit of a stack that goes on without it: others of its service have been started.
    pub(super) fn has_others(&self, id: &str) -> bool {
        let unit = self.records.get(id).and_then(|record| record.unit.as_ref()).filter(|unit| !unit.evicted);
        let Some(unit) = unit.filter(|unit| self.stack(&unit.stack).is_some_and(|own| !own.stack.removing)) else {
            return false;
        };
        let is_other = |record: &Record| {
            let is_same = record.unit.as_ref().is_some_and(|other| other.service == unit.service && !other.evicted);
            is_same && record.replicas.iter().any(|replica| replica.stage == Stage::Started)
        };
        self.units_of_stack(&unit.stack).any(|(other, record)| **other != *id && is_other(record))
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
    pub(crate) fn evict(&mut self, id: &Text, now: Duration) {
        if self.is_foreign(id) {
            return;
        }
        if let Some(unit) = self.records.get_mut(id).and_then(|record| record.unit.as_mut()) {
            unit.evicted = true;
            unit.evicted_at = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            self.stacks.touched.insert(unit.stack.clone());
            self.note_change(id);
        }
    }

    /// Notes that a unit is a job that has ended without an error; returns whether that is news.
    pub(crate) fn note_done(&mut self, id: &str) -> bool {
        if self.is_foreign(id) {
            return false;
        }
        let Some(unit) = self.records.get_mut(id).and_then(|record| record.unit.as_mut()) else { return false };
        if std::mem::replace(&mut unit.done, true) {
            return false;
        }
        self.note_change(id);
        true
    }

    /// A job that is done is to be removed: then it is over without its container, as all others are.
    pub(crate) fn forget_done(&mut self, id: &str) {
        let foreign = self.is_foreign(id);
        if let Some(unit) = self.records.get_mut(id).filter(|_| !foreign).and_then(|record| record.unit.as_mut()) {
            unit.done = false;
        }
    }

    /// Gives a stack of this scheduler to whichever other one takes it, if another one lives; returns whether that is news.
    pub(crate) fn give_up_stack(&mut self, name: &str) -> bool {
        let id = stack_id(name);
        let Some(mirror) = &mut self.mirror else { return false };
        // What was put once does not count yet.
        let is_own = |stored: &MirroredRecord| stored.owner == mirror.me && !stored.put.is_first();
        if !self.records.contains_key(&id) || !mirror.records.get(&id).is_some_and(is_own) {
            return false;
        }
        if mirror.schedulers.keys().all(|other| *other == mirror.me) {
            return false;
        }
        let is_new = mirror.given_up.insert(id.clone());
        self.note_change(&id);
        is_new
    }

    /// Whether this scheduler gave up stacks.
    pub(crate) fn gives_up(&self) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| !mirror.given_up.is_empty())
    }

    /// From now on this scheduler takes over stacks again that it gave up, if nobody else has.
    pub(crate) fn give_up_no_more(&mut self) {
        let given_up = self.mirror.as_mut().map(|mirror| std::mem::take(&mut mirror.given_up)).unwrap_or_default();
        self.change_again(given_up);
    }

    /// The units of jobs of a stack that another scheduler has, which alone hears how they end, and may give them away.
    pub(crate) fn foreign_jobs(&self, stack: &stacks::Stack) -> Vec<Text> {
        let is_job = |name: &Text| stack.services.iter().any(|one| one.wanted.job && one.wanted.name == *name);
        let units = self.units_of_stack(&stack.name).filter(|(id, record)| self.is_foreign(id) && !record.is_at_work());
        let of_job = |record: &Record| record.unit.as_ref().is_some_and(|unit| is_job(&unit.service));
        units.filter(|(_, record)| of_job(record)).map(|(id, _)| id.clone()).collect()
    }

    /// What is evicted according to etcd, and by which placement.
    pub(crate) fn evictions(&self) -> BTreeMap<Eviction, Text> {
        let Some(mirror) = &self.mirror else { return BTreeMap::new() };
        let of = |id: &Text| {
            let evictions = mirror.records.get(id).map(|stored| stored.evictions.clone()).unwrap_or_default();
            let id = id.clone();
            evictions.into_iter().map(move |eviction| (eviction, id.clone()))
        };
        mirror.evicting.iter().flat_map(of).collect()
    }

    /// Notes whether etcd's user may write keys of evictions.
    pub(crate) fn set_may_evict(&mut self, may: bool) {
        if let Some(mirror) = &mut self.mirror {
            mirror.may_not_evict = !may;
        }
    }

    /// Whether etcd's user may write keys of evictions, as far as is known.
    pub(crate) fn may_evict(&self) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| !mirror.may_not_evict)
    }

    /// Placements whose units are hidden from names and are to run again, but etcd's user may not show them.
    pub(crate) fn hidden(&self) -> Option<&BTreeSet<Text>> {
        self.mirror.as_ref().map(|mirror| &mirror.hidden).filter(|hidden| !hidden.is_empty())
    }

    /// Those of these that a placement has and does not hide, so that nothing is to be waited for.
    pub(crate) fn shown<'e>(&self, evictions: impl Iterator<Item = &'e Eviction>) -> BTreeSet<Eviction> {
        let asked: BTreeSet<&Eviction> = evictions.collect();
        let mut shown = BTreeSet::new();
        if asked.is_empty() {
            return shown;
        }
        for record in self.records.values().filter(|record| record.unit.is_some()) {
            let hidden = record.evictions();
            let own = record.replicas.iter().flat_map(Replica::containers);
            shown.extend(own.filter(|own| asked.contains(own) && !hidden.contains(own)));
        }
        shown
    }

    /// In which revision etcd's record of a placement was put last; 0 if there is none.
    pub(crate) fn record_revision(&self, id: &str) -> i64 {
        let stored = self.mirror.as_ref().and_then(|mirror| mirror.records.get(id));
        stored.map_or(0, |stored| stored.revision)
    }

    /// Which placements are evicted according to etcd.
    pub(crate) fn evicting(&self) -> BTreeSet<Text> {
        self.mirror.as_ref().map(|mirror| mirror.evicting.clone()).unwrap_or_default()
    }

    /// Forgets units of this scheduler that were evicted so long ago and whose hosts are still away; returns their ids.
    pub(crate) fn forget_evicted(&mut self, after: Duration, now: Duration) -> Vec<Text> {
        let is_late = |record: &Record| {
            let since = record.unit.as_ref().map(|unit| Duration::from_millis(unit.evicted_at));
            let away = |host: &Text| self.inventory.hosts().index(host).is_none();
            since.is_some_and(|since| since > Duration::ZERO && now.saturating_sub(since) >= after)
                && record.replicas.iter().all(|replica| away(&replica.host))
        };
        let own = self.evicting().into_iter().filter(|id| !self.is_foreign(id));
        let late: Vec<Text> = own.filter(|id| self.records.get(id).is_some_and(is_late)).collect();
        for id in &late {
            self.release(id);
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use model::engine_uuid;

    use super::*;
    use crate::ledger::etcd::keys::{EtcdRecord, Evicted, Key};
    use crate::ledger::etcd::seal::{Put, Seal};
    use crate::ledger::mirror::KeyChange;
    use crate::ledger::stack::StackUnit;
    use crate::ledger::stored::StoredRecord;
    use crate::place::replica::replica_of;
    use crate::place::request::Request;
    use crate::subject::Subject;

    const NOW: Duration = Duration::from_secs(1000);

    /// The first put of a key as etcd counts it.
    const FIRST: Put = Put { created: 2, version: 1 };

    /// A unit on a host that no inventory has, whose engine has started it.
    fn unit() -> Record {
        let asked = serde_json::json!({ "name": "shop-web-1", "image": "i" });
        let request = Request::parse(&serde_json::from_value(asked).unwrap()).unwrap();
        let replica = replica_of(&request, ("uuid-a".into(), "a".into()), &["shop-web-1".into()], &[]);
        let mut replica = Replica { stage: Stage::Started, ..replica };
        replica.members[0].container = Some("0a1b".into());
        let unit = StackUnit {
            stack: "shop".into(),
            service: "web".into(),
            index: "1".into(),
            digest: "d".into(),
            evicted: false,
            evicted_at: 0,
            covered: false,
            done: false,
        };
        let stored =
            serde_json::json!({ "id": "web", "made": 1, "unplaced": 0, "asked": { "image": "i" }, "units": [] });
        let record = serde_json::from_value::<StoredRecord>(stored).unwrap().record(NOW).unwrap();
        Record { replicas: vec![replica], unit: Some(unit), subject: Subject::own(), ..record }
    }

    fn book() -> Book {
        let mut book = Book::default();
        book.mirror_etcd("s-1".into());
        book.seal_with(Seal::of_tests());
        book.learn_all(Vec::new(), 1, NOW);
        book
    }

    /// Enters the stack of the unit, and another unit of its service.
    fn enter_stack_and_other(book: &mut Book) {
        let stack = stacks::Stack { name: "shop".into(), ..stacks::Stack::default() };
        let stack = StackRecord { stack, history: Vec::new(), answers: BTreeMap::new() };
        book.enter(stack_id("shop"), Record::of_stack(stack, NOW));
        let mut other = unit();
        other.replicas[0].members[0].container = Some("0c1d".into());
        book.enter("other".into(), other);
    }

    /// Writes what is to be written, and learns that; returns what of it is about evictions, and what is deleted.
    fn written(book: &mut Book, revision: i64, put: Put) -> (Vec<(Key, Vec<u8>)>, BTreeSet<Key>) {
        let drafted = book.draft(&["web".into()], &BTreeMap::new(), 1).draft;
        let change =
            |(key, value): (&Key, &Vec<u8>)| KeyChange { key: key.clone(), revision, put, value: Some(value.clone()) };
        let puts = drafted.puts.iter().map(change);
        let gone = drafted.deletes.iter().map(|key| KeyChange { key: key.clone(), revision, put, value: None });
        book.learn(puts.chain(gone).collect(), NOW);
        let evictions = drafted.puts.into_iter().filter(|(key, _)| matches!(key, Key::Evicted(_)));
        (evictions.collect(), drafted.deletes)
    }

    #[test]
    fn one_transaction_marks_a_unit_as_evicted_and_puts_the_key_by_which_all_hosts_know() {
        let mut book = book();
        book.enter("web".into(), unit());
        assert_eq!(written(&mut book, 2, FIRST).0, []);
        book.evict(&"web".into(), NOW);
        let eviction = Eviction { host: "a".into(), container: engine_uuid("0a1b") };
        let expected = vec![(Key::Evicted(eviction.clone()), Evicted::written(&"web".into()))];
        let second = FIRST.next();
        assert_eq!((written(&mut book, 3, second).0, book.evictions()), (expected, [(eviction, "web".into())].into()));
        assert_eq!(written(&mut book, 4, second.next()).0, [], "once");
        // It is gone from its engine: the key stays until its host does not publish it any more.
        book.release("web");
        let (puts, deletes) = written(&mut book, 5, second.next());
        assert!(puts.is_empty() && !deletes.iter().any(|key| matches!(key, Key::Evicted(_))), "{deletes:?}");
        assert!(deletes.contains(&Key::Placement("web".into())) && book.evictions().is_empty());
    }

    #[test]
    fn names_leave_what_is_about_to_be_stopped_and_lead_to_what_is_started_again() {
        let mut book = book();
        book.enter("web".into(), unit());
        assert_eq!(written(&mut book, 2, FIRST).0, []);
        // The only one: it answers as long as it can.
        book.reached("web", 0, Stage::Stopping, &[]);
        assert_eq!(written(&mut book, 3, FIRST.next()).0, []);
        enter_stack_and_other(&mut book);
        let eviction = Eviction { host: "a".into(), container: engine_uuid("0a1b") };
        let key = Key::Evicted(eviction.clone());
        let (mut revision, mut put) = (3, FIRST.next());
        let mut reaches = |stage: Stage| {
            (revision, put) = (revision + 1, put.next());
            book.reached("web", 0, stage, &[]);
            let (puts, deletes) = written(&mut book, revision, put);
            // A scheduler that could not delete the key then does so as soon as it may.
            let is_shown = !book.shown(std::iter::once(&eviction)).is_empty();
            assert_eq!(is_shown, !book.evictions().contains_key(&eviction));
            (puts.iter().any(|(put, _)| *put == key), deletes.contains(&key))
        };
        assert_eq!(reaches(Stage::Stopping), (true, false));
        assert_eq!(reaches(Stage::Kept), (false, false));
        assert_eq!(reaches(Stage::Restarting), (false, true), "at once: its host publishes it, running or not");
        assert_eq!(reaches(Stage::Started), (false, false));
        assert_eq!(reaches(Stage::Undoing), (true, false));
        book.release("web");
        assert!(book.shown(std::iter::once(&eviction)).is_empty(), "its host may publish it for a moment");
        let deletes = written(&mut book, revision + 1, put.next()).1;
        assert!(deletes.contains(&Key::Placement("web".into())) && !deletes.contains(&key), "{deletes:?}");
    }

    #[test]
    fn what_is_hidden_is_started_again_only_by_a_user_that_may_show_it() {
        let mut book = book();
        book.enter("web".into(), unit());
        written(&mut book, 2, FIRST);
        enter_stack_and_other(&mut book);
        let put = FIRST.next();
        book.reached("web", 0, Stage::Stopping, &[]);
        assert_eq!(written(&mut book, 3, put).0.len(), 1);
        book.reached("web", 0, Stage::Kept, &[]);
        written(&mut book, 4, put.next());
        book.set_may_evict(false);
        book.reached("web", 0, Stage::Restarting, &[]);
        let draft = book.draft(&["web".into(), stack_id("shop")], &BTreeMap::new(), 1).draft;
        let placements: Vec<_> = draft.puts.keys().filter(|key| matches!(key, Key::Placement(_))).collect();
        assert_eq!(placements, [&Key::Placement(stack_id("shop"))], "all else goes on");
        assert!(draft.deletes.is_empty() && book.hidden() == Some(&[Text::from("web")].into()), "{:?}", book.hidden());
        book.set_may_evict(true);
        let (puts, deletes) = written(&mut book, 5, put.next().next());
        assert!(puts.is_empty() && book.hidden().is_none());
        assert!(deletes.iter().any(|key| matches!(key, Key::Evicted(_))), "{deletes:?}");
    }

    #[test]
    fn a_stack_that_is_given_up_is_taken_over_by_another_scheduler_alone() {
        let id: Text = stack_id("shop");
        let key = Key::Placement(id.clone());
        let put = Put { created: 1, version: 2 };
        let stack = stacks::Stack { name: "shop".into(), ..stacks::Stack::default() };
        let stack = StackRecord { stack, history: Vec::new(), answers: BTreeMap::new() };
        let record = Record { unit: None, replicas: Vec::new(), stack: Some(Box::new(stack)), ..unit() };
        let first = EtcdRecord::new(&"s-1".into(), false, &id, &record).written();
        let first = Seal::of_tests().applied(&id, put, first);
        let learn = |book: &mut Book, key: &Key, revision, put, value: &[u8]| {
            let change = KeyChange { key: key.clone(), revision, put, value: Some(value.to_vec()) };
            book.learn(vec![change], NOW);
        };
        let mut books = ["s-1", "s-2"].map(|me| {
            let mut book = Book::default();
            book.mirror_etcd(me.into());
            book.seal_with(Seal::of_tests());
            learn(&mut book, &Key::Scheduler("s-1".into()), 1, FIRST, b"");
            if me == "s-1" {
                book.enter(id.clone(), record.clone());
            }
            learn(&mut book, &key, 2, put, &first);
            book
        });
        let drafted =
            |book: &mut Book| book.draft(std::slice::from_ref(&id), &BTreeMap::new(), 1).draft.puts.remove(&key);
        let [one, other] = &mut books;
        assert!(!one.give_up_stack("shop"), "nobody else is there");
        for book in [&mut *one, &mut *other] {
            learn(book, &Key::Scheduler("s-2".into()), 3, FIRST, b"");
        }
        assert!(!other.give_up_stack("shop"), "it is not its own");
        assert!(one.give_up_stack("shop") && one.gives_up());
        let given = drafted(one).unwrap();
        for book in [&mut *one, &mut *other] {
            learn(book, &key, 4, put.next(), &given);
        }
        assert!(one.is_foreign(&id) && one.orphans().is_empty() && drafted(one).is_none(), "it gave it up");
        assert_eq!(other.orphans(), std::slice::from_ref(&id));
        let taken = drafted(other).unwrap();
        // It sees the cluster again.
        one.give_up_no_more();
        assert_eq!((one.orphans(), one.gives_up()), (vec![id.clone()], false));
        for book in [&mut *one, &mut *other] {
            learn(book, &key, 5, put.next().next(), &taken);
        }
        assert!(!other.is_foreign(&id) && one.is_foreign(&id) && one.orphans().is_empty() && drafted(one).is_none());
    }

    #[test]
    fn a_job_that_is_done_stays_without_its_container_until_it_is_removed() {
        for is_done in [false, true] {
            let mut book = book();
            book.enter("web".into(), unit());
            written(&mut book, 2, FIRST);
            assert!(!is_done || book.note_done("web") && !book.note_done("web"));
            book.vacate("web", 0);
            book.settle_in("web", 0, None);
            assert_eq!(book.record("web").is_some(), is_done, "its container is gone");
            book.forget_done("web");
            book.settle_in("web", 0, None);
            assert!(book.record("web").is_none(), "it was removed");
        }
    }

    #[test]
    fn a_unit_whose_host_does_not_come_back_is_forgotten_at_last() {
        let mut book = book();
        book.enter("web".into(), unit());
        written(&mut book, 2, FIRST);
        book.evict(&"web".into(), NOW);
        written(&mut book, 3, FIRST.next());
        let after = Duration::from_mins(1);
        assert_eq!(book.forget_evicted(after, NOW + after / 2), Vec::<Text>::new());
        assert_eq!(book.forget_evicted(after, NOW + after), [Text::from("web")]);
        assert!(book.record("web").is_none());
    }
}
