//! What a scheduler waits for that works on a unit: in the shared ledger, so that the others can report it.

use std::time::Duration;

use super::book::Book;
use super::mirror::place_of;
use super::record::{Record, Replica, Waiting};

impl Book {
    /// Notes what this scheduler waits for with a unit, when others can read that.
    pub(crate) fn waits(&mut self, id: &str, unit: &Replica, what: &str, now: Duration) {
        if self.mirror.is_none() || self.is_foreign(id) {
            return;
        }
        let place = place_of(unit);
        let units = self.records.get_mut(id).into_iter().flat_map(|record| &mut record.replicas);
        let Some(unit) = units.into_iter().find(|unit| unit.is_at_work() && place_of(unit) == place) else { return };
        if unit.waits.as_ref().is_none_or(|waits| *waits.what != *what) {
            let since = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            unit.waits = Some(Waiting { what: what.into(), since });
            self.note_change(id);
        }
    }

    /// Which other scheduler works on a placement, and what it waits for with the unit that has this container, or with
    /// any; `None` when no other one does.
    pub(crate) fn work_elsewhere(&self, id: &str, container: Option<&str>, now: Duration) -> Option<String> {
        let owner = self.owner(id).filter(|_| self.is_foreign(id))?;
        let record = self.record(id).filter(|record| Record::is_at_work(record))?;
        let has = |unit: &&Replica| {
            container.is_none_or(|container| unit.members.iter().any(|held| *held.name == *container))
        };
        let waits = record.replicas.iter().filter(has).find_map(|unit| unit.waits.as_ref());
        Some(match waits {
            None => format!("scheduler {owner} works on it"),
            Some(Waiting { what, since }) => {
                let passed = now.saturating_sub(Duration::from_millis(*since)).as_secs();
                format!("{what} (scheduler {owner}, for {passed} s)")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::ledger::etcd::keys::{EtcdRecord, Key};
    use crate::ledger::etcd::seal::{Put, Seal};
    use crate::ledger::mirror::KeyChange;

    const NOW: Duration = Duration::from_secs(1000);
    const PUT: Put = Put { created: 1, version: 2 };

    fn book(me: &str, value: Vec<u8>) -> Book {
        let mut book = Book::default();
        book.mirror_etcd(me.into());
        book.seal_with(Seal::of_tests());
        let value = Seal::of_tests().applied("web", PUT, value);
        let keys = [(Key::Scheduler("s-1".into()), Vec::new()), (Key::Placement("web".into()), value)];
        let change = |(revision, (key, value))| KeyChange { key, revision, put: PUT, value: Some(value) };
        book.learn((1..).zip(keys).map(change).collect(), NOW);
        book
    }

    #[test]
    fn what_one_scheduler_waits_for_the_others_say() {
        let unit = json!({ "host": "u", "host_name": "h", "stage": "undoing", "containers": [{ "name": "web" }] });
        let record = json!({ "berth": 1, "owner": "s-1", "id": "web", "made": 1, "unplaced": 0,
            "asked": { "image": "i", "start": true }, "units": [unit] });
        let value = record.to_string().into_bytes();
        let other = book("s-2", value.clone());
        assert_eq!(other.work_elsewhere("web", None, NOW).as_deref(), Some("scheduler s-1 works on it"));

        // Its own record it adopts as one that it had before.
        let mut own = book("s-1", value);
        let replica = other.records["web"].replicas[0].clone();
        own.records.insert("web".into(), other.records["web"].clone());
        assert_eq!(own.work_elsewhere("web", None, NOW), None);
        own.take_changed();
        own.waits("web", &replica, "waits for h", NOW);
        assert_eq!(own.take_changed().len(), 1);
        own.waits("web", &replica, "waits for h", NOW + Duration::from_secs(5));
        assert!(own.take_changed().is_empty(), "only what is new is written");

        let drafted = own.draft(&["web".into()], &BTreeMap::new(), 1);
        let written = drafted.draft.puts[&Key::Placement("web".into())].clone();
        assert!(EtcdRecord::read("web", &written).is_ok());
        let sealed = Seal::of_tests().verified("web", PUT.next(), &written).unwrap();
        let other = book("s-2", [sealed, b"}"].concat());
        let later = NOW + Duration::from_secs(7);
        let expected = "waits for h (scheduler s-1, for 7 s)";
        assert_eq!(other.work_elsewhere("web", Some("web"), later).as_deref(), Some(expected));
        assert_eq!(other.work_elsewhere("web", Some("db"), later).as_deref(), Some("scheduler s-1 works on it"));
    }
}
