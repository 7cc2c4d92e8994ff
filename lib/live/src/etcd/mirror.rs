//! A mirror of etcd's keys, and what of it is published: the rules by which a host is removed.
//!
//! `now` is an argument everywhere: the time since some beginning, monotonic.
//!
//! The keys are a mirror of etcd's. A part is shown from the moment on at which it is complete; when its own key goes,
//! the document that was shown last stays for a grace. Nothing goes while etcd is away, and when all is gone at once,
//! nothing goes until something appears or the key `empty` says that it is true.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use etcd::Pair;
use model::{Defect, Map, Pool, Text};

use super::keys::{self, Key, PartId, own_key};
use super::part::{FOREIGN, PartChange};
use super::reading::{self, HOST_BYTES_MAX, Prepared, Put, Read, Reader, assembled, is_whole, too_much};
use super::value::{self, Published};

/// How long a host is shown after its key was seen to go.
///
/// A lease may expire because etcd hung: its host publishes again within a few seconds, and must not have been removed.
pub(super) const RETURN_GRACE: Duration = Duration::from_secs(5);

/// A moment that is further from our clock than this is reported, in seconds.
const CLOCK_MAX: i64 = 60;

/// Most keys without an owner that are reported one by one.
const FOREIGN_MAX: usize = 100;

/// Most keys without an owner that are remembered.
const FOREIGN_KNOWN_MAX: usize = 10_000;

/// Most things that one host may have; further ones are left out.
const ENTITIES_MAX: usize = 20_000;

/// Longest lease that a host may state, in seconds.
const LEASE_MAX: i64 = 3600;

/// What is known of one key.
struct Entry {
    /// The revision since which there is such a key.
    since: i64,
    mod_revision: i64,
    /// How often the key was put since it was last deleted.
    version: i64,
    /// How long its last good value is.
    bytes: usize,
    /// The last good value.
    value: Option<Map>,
    /// What is wrong with the value that it has now, which is rare.
    defect: Option<Box<Defect>>,
}

/// A part that is shown although its key is gone.
struct Absent {
    /// How long it stays once etcd answers again.
    wait: Duration,
    /// Until when; not known while etcd is away or says nothing at all.
    until: Option<Duration>,
}

#[derive(Default)]
struct Part {
    entries: BTreeMap<Key, Entry>,
    /// How long all values are.
    bytes: usize,
    /// What was published of it last.
    shown: Option<Map>,
    defects: Vec<Defect>,
    clock: Option<Defect>,
    /// How long its keys stay without it.
    lease: Option<Duration>,
}

impl Part {
    /// Its own value, when that is there and all it has too.
    fn whole(&self, own: &Key) -> Option<&Map> {
        self.entries.get(own)?.value.as_ref().filter(|value| is_whole(value))
    }
}

/// The keys of etcd as they are known, and what of them is shown.
pub(super) struct KeyMirror {
    prefix: Text,
    lease: Duration,
    parts: HashMap<PartId, Part>,
    /// Those of the parts that are shown although their keys are gone.
    absent: HashMap<PartId, Absent>,
    foreign: BTreeMap<Vec<u8>, Defect>,
    /// Parts that may have to be published.
    touched: HashSet<PartId>,
    foreign_touched: bool,
    /// Parts that go now.
    going: HashSet<PartId>,
    /// How many parts are shown while etcd has nothing at all.
    suspicious: Option<usize>,
    pool: Pool,
    /// Documents of the last list, as they are when nothing else is known of their hosts.
    prepared: HashMap<PartId, Prepared>,
}

impl KeyMirror {
    pub(super) fn new(prefix: Text, lease: Duration) -> Self {
        Self {
            prefix,
            lease,
            parts: HashMap::new(),
            absent: HashMap::new(),
            foreign: BTreeMap::new(),
            touched: HashSet::new(),
            foreign_touched: false,
            going: HashSet::new(),
            suspicious: None,
            pool: Pool::default(),
            prepared: HashMap::new(),
        }
    }

    /// Takes a document for what its part published last, before etcd has answered.
    pub(super) fn restore(&mut self, id: PartId, document: Map) {
        self.absent.insert(id.clone(), Absent { wait: self.lease + RETURN_GRACE, until: None });
        self.parts.insert(id, Part { shown: Some(document), ..Part::default() });
    }

    /// What was restored, to be published.
    pub(super) fn restored(&self) -> Vec<PartChange> {
        let change = |(id, document): (&PartId, &Map)| PartChange {
            part: id.text(),
            document: Some(document.clone()),
            ..PartChange::default()
        };
        self.shown().map(change).collect()
    }

    /// The documents that are shown, but for what counts only while etcd has it.
    pub(super) fn shown(&self) -> impl Iterator<Item = (&PartId, &Map)> {
        let shown = self.parts.iter().filter_map(|(id, part)| Some((id, part.shown.as_ref()?)));
        shown.filter(|(id, _)| !matches!(id, PartId::Override(..)))
    }

    /// How many parts are shown although etcd, which has nothing at all, does not say so.
    pub(super) fn suspicious(&self) -> Option<usize> {
        self.suspicious
    }

    /// A key was put. `clock` is our own clock when it was put a moment ago, in seconds after the beginning of 1970.
    pub(super) fn put(&mut self, pair: &Pair, now: Duration, clock: Option<i64>) {
        if let Some(read) = reading::read(&self.prefix, pair.clone(), &mut self.pool) {
            self.take_in(read, now, clock);
        }
    }

    fn take_in(&mut self, read: Read, now: Duration, clock: Option<i64>) {
        let Put { key, since, mod_revision, version, bytes, content } = match read {
            Read::Ours(put) => put,
            Read::Empty if self.suspicious.is_some() => return self.confirm_empty(),
            Read::Empty => return,
            Read::Foreign(path, problem) => return self.put_foreign(&path, problem),
        };
        let Some(id) = key.part() else { return };
        let part = self.parts.entry(id.clone()).or_default();
        if part.entries.get(&key).is_some_and(|entry| entry.mod_revision > mod_revision) {
            return;
        }
        if part.entries.len() >= ENTITIES_MAX && !part.entries.contains_key(&key) {
            let problem = format!("a host has at most {ENTITIES_MAX} of them");
            return self.put_foreign(key.path().as_bytes(), problem);
        }
        let bytes_before = part.entries.get(&key).map_or(0, |entry| entry.bytes);
        let is_too_much = matches!(id, PartId::Host(_)) && part.bytes - bytes_before + bytes > HOST_BYTES_MAX;
        if is_too_much && !part.entries.contains_key(&key) {
            return self.put_foreign(key.path().as_bytes(), too_much());
        }
        let known = part.entries.remove(&key);
        let before = known.and_then(|entry| entry.value);
        let content = if is_too_much {
            Err(Defect::ignored(key.path(), too_much()))
        } else {
            content.value(&key, &mut self.pool)
        };
        let bytes = if content.is_ok() { bytes } else { bytes_before };
        part.bytes = part.bytes - bytes_before + bytes;
        let (value, defect) = match (content, before) {
            (Ok(value), Some(before)) => match value::flaw(&key, &value).filter(|_| value != before) {
                Some(flaw) => {
                    let problem = format!("{flaw}; the last good value stays");
                    (Some(before), Some(Defect::ignored(key.path(), problem)))
                }
                None => (Some(value), None),
            },
            (Ok(value), None) => (Some(value), None),
            (Err(defect), Some(before)) => {
                let problem = format!("{}; the last good value stays", defect.problem);
                (Some(before), Some(Defect::ignored(key.path(), problem)))
            }
            (Err(defect), None) => (None, Some(defect)),
        };
        let own = key == own_key(&id);
        if own {
            let published = value.as_ref().map(Published::read).unwrap_or_default();
            part.clock = clock.and_then(|clock| clock_defect(&id, &published, clock));
            part.lease = (1..=LEASE_MAX).contains(&published.lease).then(|| seconds(published.lease));
            self.absent.remove(&id);
            if published.leaving {
                self.going.insert(id.clone());
            } else {
                self.going.remove(&id);
            }
        }
        let defect = defect.map(Box::new);
        part.entries.insert(key, Entry { since, mod_revision, version, bytes, value, defect });
        let is_life = own && !matches!(id, PartId::Override(..) | PartId::Evicted(_));
        self.touched.insert(id);
        if is_life {
            self.appeared(now);
        }
    }

    /// How many keys are known.
    pub(super) fn keys(&self) -> usize {
        self.parts.values().map(|part| part.entries.len()).sum()
    }

    /// Whether something must have been missed before a key was put so: it was put more often than is known.
    pub(super) fn has_missed(&self, pair: &Pair) -> bool {
        let Some(key) = self.key(pair) else { return false };
        let Some(id) = key.part() else { return false };
        let entry = self.parts.get(&id).and_then(|part| part.entries.get(&key));
        if entry.is_none() && self.is_beyond(&pair.key) {
            return false;
        }
        let known = entry.map_or(0, |entry| entry.version);
        // The first one after a deletion is the first again.
        pair.version > 1 && pair.version != known + 1
    }

    /// Whether a key is left out, since its host has as much as it may.
    fn is_beyond(&self, key: &[u8]) -> bool {
        keys::path_of(&self.prefix, key).is_some_and(|path| self.foreign.contains_key(path))
    }

    /// A key was deleted, in this revision.
    pub(super) fn delete(&mut self, key: &[u8], revision: i64, now: Duration) {
        let Some(path) = keys::path_of(&self.prefix, key) else { return };
        let Ok(key) = Key::parse(path) else { return self.delete_foreign(path) };
        let Some(id) = key.part() else { return };
        // Beyond the bound a key counts as foreign.
        self.delete_foreign(path);
        let Some(part) = self.parts.get_mut(&id) else { return };
        if part.entries.get(&key).is_none_or(|entry| entry.mod_revision > revision) {
            return;
        }
        let bytes = part.entries.remove(&key).map_or(0, |entry| entry.bytes);
        part.bytes -= bytes;
        if key == own_key(&id) {
            match id {
                // Only a person deletes these, which have no lease.
                PartId::Document(_) | PartId::Intent(_) | PartId::ReservedLabels | PartId::Network(_) => {
                    self.going.insert(id.clone());
                }
                // The container is well again, or this checker is gone; the scheduler says that the container is gone.
                PartId::Override(..) | PartId::Evicted(_) => drop(self.going.insert(id.clone())),
                PartId::Host(_) => {
                    let absent = Absent { wait: RETURN_GRACE, until: Some(now + RETURN_GRACE) };
                    self.absent.insert(id.clone(), absent);
                }
            }
        }
        self.touched.insert(id);
    }

    /// What reads a list of keys for this world; see [`KeyMirror::list`].
    pub(super) fn reader(&self) -> Reader {
        Reader::new(self.prefix.clone(), Pool::default())
    }

    /// All keys there are. `again`: the mirror is of the same history, so that equal revisions are equal values.
    pub(super) fn list(&mut self, Reader { pool, read, prepared, .. }: Reader, again: bool, now: Duration) {
        (self.pool, self.prepared) = (pool, prepared);
        let mut there: HashSet<&Key> = HashSet::with_capacity(if self.parts.is_empty() { 0 } else { read.len() });
        let mut foreign = HashSet::new();
        let (mut confirmed, mut nothing) = (false, true);
        for read in &read {
            match read {
                Read::Empty => confirmed = true,
                Read::Ours(Put { key, .. }) => {
                    nothing &= matches!(key, Key::Entity(..) | Key::Password(_) | Key::Override(..) | Key::Evicted(_));
                    // Before anything is known, nothing can be missing.
                    if !self.parts.is_empty() {
                        there.insert(key);
                    }
                }
                Read::Foreign(path, _) => drop(foreign.insert(path)),
            }
        }
        for path in self.foreign.keys().filter(|path| !foreign.contains(*path)).cloned().collect::<Vec<_>>() {
            self.delete_foreign(&path);
        }
        for (id, part) in &mut self.parts {
            let before = part.entries.len();
            part.entries.retain(|key, _| there.contains(key));
            if part.entries.len() != before {
                part.bytes = part.entries.values().map(|entry| entry.bytes).sum();
                self.touched.insert(id.clone());
            }
            if !again {
                // Another history: nothing that comes may be taken for older than what is known.
                part.entries.values_mut().for_each(|entry| entry.mod_revision = 0);
            }
            if part.shown.is_some() && !part.entries.contains_key(&own_key(id)) && !self.absent.contains_key(id) {
                let wait = match id {
                    PartId::Override(..) => Duration::ZERO,
                    _ => part.lease.unwrap_or(self.lease) + RETURN_GRACE,
                };
                self.absent.insert(id.clone(), Absent { wait, until: Some(now + wait) });
            }
        }
        for read in read {
            if !(again && self.knows(&read)) {
                self.take_in(read, now, None);
            }
        }
        let shown = self.shown().count();
        self.suspicious = (nothing && shown > 0).then_some(shown);
        if self.suspicious.is_some() {
            self.pause();
            if confirmed {
                self.confirm_empty();
            }
        } else {
            self.resume(now);
        }
    }

    /// Whether the key is known as it is, value and all.
    fn knows(&self, read: &Read) -> bool {
        let Read::Ours(put) = read else { return false };
        let entry = put.key.part().and_then(|id| self.parts.get(&id)?.entries.get(&put.key));
        entry.is_some_and(|entry| entry.mod_revision == put.mod_revision)
    }

    /// etcd is away: no host is removed any more.
    pub(super) fn pause(&mut self) {
        self.absent.values_mut().for_each(|absent| absent.until = None);
    }

    /// etcd is there: those that are absent have their time from now on.
    pub(super) fn resume(&mut self, now: Duration) {
        if self.suspicious.is_some() {
            return;
        }
        for absent in self.absent.values_mut() {
            absent.until.get_or_insert(now + absent.wait);
        }
    }

    /// When the next one goes.
    pub(super) fn next_to_go(&self) -> Option<Duration> {
        self.absent.values().filter_map(|absent| absent.until).min()
    }

    /// Lets those go whose time is up.
    pub(super) fn expire(&mut self, now: Duration) {
        let late = self.absent.iter().filter(|(_, absent)| absent.until.is_some_and(|until| until <= now));
        self.going.extend(late.map(|(id, _)| id.clone()));
    }

    /// Whether there may be something to publish.
    pub(super) fn has_changes(&self) -> bool {
        !self.touched.is_empty() || !self.going.is_empty() || self.foreign_touched
    }

    /// What is to be published, once.
    pub(super) fn take(&mut self) -> Vec<PartChange> {
        let mut changes = Vec::new();
        let mut touched = std::mem::take(&mut self.touched);
        let going = std::mem::take(&mut self.going);
        let mut prepared = std::mem::take(&mut self.prepared);
        touched.extend(going.iter().cloned());
        for id in touched {
            let Some(part) = self.parts.get_mut(&id) else { continue };
            let own = own_key(&id);
            let document = match part.whole(&own) {
                Some(value) => Some(assembled(&id, value, values(&part.entries))),
                // What was shown last, until its time is up.
                None if !going.contains(&id) => part.shown.clone(),
                None => None,
            };
            if document.is_none() {
                self.absent.remove(&id);
            }
            let defects: Vec<Defect> = part
                .entries
                .values()
                .filter_map(|entry| entry.defect.as_deref().cloned())
                .chain(part.clock.clone())
                .collect();
            if part.shown != document || part.defects != defects {
                part.shown.clone_from(&document);
                part.defects.clone_from(&defects);
                let prepared = prepared.remove(&id).filter(|prepared| Some(&prepared.document) == document.as_ref());
                let resolved = prepared.map(|prepared| prepared.resolved);
                changes.push(PartChange { part: id.text(), document, defects, resolved });
            }
            if part.entries.is_empty() && part.shown.is_none() {
                self.parts.remove(&id);
            }
        }
        if std::mem::take(&mut self.foreign_touched) {
            let mut defects: Vec<Defect> = self.foreign.values().take(FOREIGN_MAX).cloned().collect();
            if let Some(more) = self.foreign.len().checked_sub(FOREIGN_MAX).filter(|more| *more > 0) {
                defects.push(Defect::ignored(&*self.prefix, format!("{more} further keys that have no owner")));
            }
            changes.push(PartChange { part: FOREIGN.into(), defects, ..PartChange::default() });
        }
        changes.sort_by(|a, b| a.part.cmp(&b.part));
        changes
    }

    /// The keys that etcd, as of `revision`, has otherwise than they are known. Keys alone are looked at.
    pub(super) fn differing(&self, keys: &[Pair], revision: i64) -> HashSet<Vec<u8>> {
        let mut differing = HashSet::new();
        let mut there = HashSet::with_capacity(keys.len());
        for pair in keys {
            let Some(path) = keys::path_of(&self.prefix, &pair.key) else { continue };
            let Ok(key) = Key::parse(path) else { continue };
            let Some(id) = key.part() else { continue };
            let entry = self.parts.get(&id).and_then(|part| part.entries.get(&key));
            if entry.is_none_or(|entry| entry.mod_revision < pair.mod_revision) && !self.is_beyond(&pair.key) {
                differing.insert(pair.key.clone());
            }
            there.insert(key);
        }
        for part in self.parts.values() {
            for (key, entry) in &part.entries {
                if !there.contains(key) && entry.mod_revision <= revision {
                    differing.insert(format!("{}{}", self.prefix, key.path()).into_bytes());
                }
            }
        }
        differing
    }

    /// Whether the keys of etcd, as of `revision`, are those of another history than the known ones: older than they
    /// can be.
    pub(super) fn contradicts(&self, keys: &[Pair], revision: i64) -> bool {
        let entry = |pair: &Pair| {
            let key = self.key(pair)?;
            self.parts.get(&key.part()?)?.entries.get(&key)
        };
        let later = |pair: &&Pair| {
            entry(pair).is_some_and(|entry| entry.mod_revision > pair.mod_revision && entry.mod_revision <= revision)
        };
        keys.iter().any(|pair| later(&pair))
    }

    /// What a key stands for; `None` when it is none of ours.
    fn key(&self, pair: &Pair) -> Option<Key> {
        Key::parse(keys::path_of(&self.prefix, &pair.key)?).ok()
    }

    /// Something is there: what etcd says is believed again.
    fn appeared(&mut self, now: Duration) {
        if self.suspicious.take().is_some() {
            self.resume(now);
        }
    }

    fn confirm_empty(&mut self) {
        self.suspicious = None;
        self.going.extend(self.absent.keys().cloned());
    }

    fn put_foreign(&mut self, path: &[u8], problem: String) {
        if self.foreign.len() >= FOREIGN_KNOWN_MAX && !self.foreign.contains_key(path) {
            return;
        }
        let name = format!("{}{}", self.prefix, String::from_utf8_lossy(path));
        self.foreign.insert(path.to_vec(), Defect::hidden(name, problem));
        self.foreign_touched = true;
    }

    fn delete_foreign(&mut self, path: &[u8]) {
        self.foreign_touched |= self.foreign.remove(path).is_some();
    }
}

/// The good values of a part.
fn values(entries: &BTreeMap<Key, Entry>) -> impl Iterator<Item = (&Key, &Map, i64)> {
    entries.iter().filter_map(|(key, entry)| Some((key, entry.value.as_ref()?, entry.since)))
}

fn clock_defect(id: &PartId, published: &Published, clock: i64) -> Option<Defect> {
    let apart = published.at? - clock;
    let how = if apart > 0 { "ahead of" } else { "behind" };
    let problem = format!("its clock is {} s {how} ours", apart.abs());
    (apart.abs() > CLOCK_MAX).then(|| Defect::ignored(format!("{}/published/at", id.text()), problem))
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(seconds.unsigned_abs())
}

#[cfg(test)]
mod tests;
