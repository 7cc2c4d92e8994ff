//! The cache of upstreams' answers: bounded, honest about time, and nothing in it leaks between clients.
//!
//! Pure: `now` is the time since some fixed moment. Expired answers stay until their room is needed, since a stale
//! answer beats none while the upstreams are away (RFC 8767).

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Record, RecordType};

use crate::name::Folded;
use crate::reply::{Prepared, Reply};
use crate::write::Body;

/// Most bytes of cached answers, as estimated: enough for some 30,000 usual ones.
const BYTES_MAX: usize = 32 << 20;

/// How long an answer may be served after its time when the upstreams fail (RFC 8767 section 5: one to three days).
const STALE_MAX: Duration = Duration::from_hours(24);

/// TTL of a stale answer (RFC 8767 section 4).
const STALE_TTL: u32 = 30;

/// The reasons for a stale answer (RFC 8914 sections 4.4 and 4.20).
const STALE: u16 = 3;
const STALE_NAME: u16 = 19;

/// How long nobody is asked again after a failure (RFC 9520 section 3.2: one second at least).
pub(crate) const FAILURE_LIFETIME: Duration = Duration::from_secs(2);

/// How often an answer was served whose name is called popular.
const POPULAR: u32 = 3;

/// Shortest lifetime of an answer that is fetched before its time; shorter ones would double the questions.
const PREFETCHED_LIFETIME_MIN: Duration = Duration::from_secs(10);

/// What an answer was given to: clients with other upstreams, or other wishes, do not get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) name: Folded,
    pub(crate) kind: RecordType,
    pub(crate) upstreams: Arc<[SocketAddr]>,
    pub(crate) dnssec_ok: bool,
    pub(crate) checking_disabled: bool,
}

impl Key {
    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            name: self.name.wire(),
            kind: self.kind,
            upstreams: &self.upstreams,
            dnssec_ok: self.dnssec_ok,
            checking_disabled: self.checking_disabled,
        }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.wanted().hash(state);
    }
}

/// What a key says, where nothing is to be allocated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wanted<'q> {
    /// The folded name, in wire format.
    pub(crate) name: &'q [u8],
    pub(crate) kind: RecordType,
    pub(crate) upstreams: &'q [SocketAddr],
    pub(crate) dnssec_ok: bool,
    pub(crate) checking_disabled: bool,
}

/// What can be looked up.
trait Look {
    fn wanted(&self) -> Wanted<'_>;
}

impl Look for Arc<Key> {
    fn wanted(&self) -> Wanted<'_> {
        Key::wanted(self)
    }
}

impl Look for Wanted<'_> {
    fn wanted(&self) -> Wanted<'_> {
        *self
    }
}

impl<'q> Borrow<dyn Look + 'q> for Arc<Key> {
    fn borrow(&self) -> &(dyn Look + 'q) {
        self
    }
}

impl Hash for dyn Look + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.wanted().hash(state);
    }
}

impl PartialEq for dyn Look + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.wanted() == other.wanted()
    }
}

impl Eq for dyn Look + '_ {}

/// How often what happened to the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Questions for which nothing was there.
    pub(crate) misses: u64,
    /// Answers served after their time.
    pub(crate) stale: u64,
    /// Answers fetched before their time.
    pub(crate) prefetches: u64,
    /// Answers removed for others.
    pub(crate) evictions: u64,
}

/// Answers of upstreams.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: HashMap<Arc<Key>, Entry, foldhash::fast::RandomState>,
    /// Every key once, the next one to be looked at for removal first.
    queue: VecDeque<Arc<Key>>,
    bytes: usize,
    capacity: usize,
    /// Those of the answers that say no.
    denials: usize,
    counts: Counts,
}

#[derive(Debug)]
struct Entry {
    reply: Arc<Reply>,
    /// The same as bytes, where that is usual.
    prepared: Option<Prepared>,
    since: Duration,
    lifetime: Duration,
    /// Until then the upstreams are taken for failing, and an expired answer is good enough.
    failed_until: Duration,
    bytes: usize,
    used: bool,
    /// How often it was served.
    asked: u32,
}

impl Cache {
    /// An empty cache for this many answers.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: HashMap::default(),
            queue: VecDeque::new(),
            bytes: 0,
            capacity,
            denials: 0,
            counts: Counts::default(),
        }
    }

    /// The answer, with the time that it has left.
    pub(crate) fn get(&mut self, key: &Arc<Key>, now: Duration) -> Option<Reply> {
        let Some(entry) = self.entries.get_mut(key) else {
            self.counts.misses += 1;
            return None;
        };
        let age = now.saturating_sub(entry.since);
        entry.used = true;
        if age < entry.lifetime {
            entry.asked = entry.asked.saturating_add(1);
            let seconds = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
            return Some(with_ttl(&entry.reply, |ttl| ttl.saturating_sub(seconds)));
        }
        if now < entry.failed_until && entry.usable(now) {
            self.counts.stale += 1;
            return Some(entry.stale());
        }
        self.counts.misses += 1;
        None
    }

    /// The expired answer, for when no upstream answers.
    pub(crate) fn stale(&self, key: &Arc<Key>, now: Duration) -> Option<Reply> {
        self.entries.get(key).filter(|entry| entry.usable(now)).map(Entry::stale)
    }

    /// Notes that such an answer was served.
    pub(crate) fn served_stale(&mut self) {
        self.counts.stale += 1;
    }

    /// Writes the answer, with the time that it has left, behind the question to `room`.
    ///
    /// `None` where [`Self::get`] has to look: when there is none, when it is due, when it is not for this.
    pub(crate) fn write(&mut self, wanted: &Wanted<'_>, now: Duration, room: &mut [u8]) -> Option<Body> {
        let entry = self.entries.get_mut(wanted as &dyn Look)?;
        let age = now.saturating_sub(entry.since);
        let prepared = entry.prepared.as_ref()?;
        if age >= entry.lifetime || entry.is_due(age) {
            return None;
        }
        if wanted.kind == RecordType::AAAA && entry.reply.code == ResponseCode::NXDomain {
            // What is known about the other family decides.
            return None;
        }
        let bytes = prepared.write(u32::try_from(age.as_secs()).unwrap_or(u32::MAX), room)?;
        entry.used = true;
        entry.asked = entry.asked.saturating_add(1);
        Some(Body {
            bytes,
            code: entry.reply.code,
            authentic: entry.reply.authentic,
            answers: prepared.answers,
            authorities: prepared.authorities,
        })
    }

    /// Whether the answer should be fetched again before its time: it is popular, and its time is almost over.
    ///
    /// Says so once for every answer.
    pub(crate) fn is_due(&mut self, key: &Arc<Key>, now: Duration) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let due = entry.is_due(now.saturating_sub(entry.since));
        if due {
            entry.asked = 0;
            self.counts.prefetches += 1;
        }
        due
    }

    /// Whether there are records of this key that may still be served.
    pub(crate) fn has_records(&self, key: &Arc<Key>, now: Duration) -> bool {
        self.entries
            .get(key)
            .is_some_and(|entry| now.saturating_sub(entry.since) < entry.lifetime && !entry.reply.answers.is_empty())
    }

    /// Caches an answer, unless its lifetime is zero.
    pub(crate) fn insert(
        &mut self,
        key: &Arc<Key>,
        reply: Arc<Reply>,
        lifetime: Duration,
        bytes: usize,
        now: Duration,
    ) {
        if self.capacity == 0 || lifetime.is_zero() {
            return;
        }
        let prepared = Prepared::new(&key.name, key.kind, &reply);
        let written = prepared.as_ref().map_or(0, |prepared| prepared.bytes.len() + 2 * prepared.ttls.len());
        let bytes = bytes + written + size_of::<Entry>() + 2 * size_of::<Key>() + key.name.wire().len();
        let entry =
            Entry { reply, prepared, since: now, lifetime, failed_until: Duration::ZERO, bytes, used: false, asked: 0 };
        self.bytes += bytes;
        self.denials += usize::from(entry.is_denial());
        match self.entries.insert(key.clone(), entry) {
            Some(old) => self.forget(&old),
            None => self.queue.push_back(key.clone()),
        }
        self.make_room();
    }

    /// Notes that the upstreams failed, and gives what may be served all the same.
    pub(crate) fn fail(&mut self, key: &Arc<Key>, failure: &Arc<Reply>, now: Duration) -> Option<Reply> {
        if let Some(entry) = self.entries.get_mut(key)
            && entry.usable(now)
        {
            entry.failed_until = now + FAILURE_LIFETIME;
            self.counts.stale += 1;
            return Some(entry.stale());
        }
        self.insert(key, failure.clone(), FAILURE_LIFETIME, 0, now);
        None
    }

    /// How many answers with records there are, and how many without.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.entries.len() - self.denials, self.denials)
    }

    /// What happened so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    fn forget(&mut self, entry: &Entry) {
        self.bytes -= entry.bytes;
        self.denials -= usize::from(entry.is_denial());
    }

    /// Removes what was not used since it was last looked at, until the rest fits.
    fn make_room(&mut self) {
        while self.entries.len() > self.capacity || self.bytes > BYTES_MAX {
            let Some(key) = self.queue.pop_front() else { return };
            match self.entries.get_mut(&key) {
                // Every turn clears one mark, so that this ends.
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.queue.push_back(key);
                }
                Some(_) => {
                    if let Some(entry) = self.entries.remove(&key) {
                        self.forget(&entry);
                        self.counts.evictions += 1;
                    }
                }
                None => {}
            }
        }
    }
}

impl Entry {
    /// Whether it may be served, if need be after its time; failures never are.
    fn usable(&self, now: Duration) -> bool {
        let answer = !self.reply.answers.is_empty() || !self.reply.authority.is_empty();
        answer && now.saturating_sub(self.since) < self.lifetime + STALE_MAX
    }

    /// The answer after its time, which it says.
    fn stale(&self) -> Reply {
        let reason = if self.reply.code == ResponseCode::NXDomain { STALE_NAME } else { STALE };
        with_ttl(&self.reply, |_| STALE_TTL).because(reason)
    }

    /// Whether it is popular, and its time almost over.
    fn is_due(&self, age: Duration) -> bool {
        self.asked >= POPULAR
            && self.lifetime >= PREFETCHED_LIFETIME_MIN
            && self.lifetime.saturating_sub(age) <= self.lifetime / 10
            && !self.reply.answers.is_empty()
    }

    fn is_denial(&self) -> bool {
        self.reply.answers.is_empty()
    }
}

fn with_ttl(reply: &Reply, ttl: impl Fn(u32) -> u32) -> Reply {
    let mut reply = reply.clone();
    let aged = |record: &mut Record| record.ttl = ttl(record.ttl);
    reply.answers.iter_mut().chain(&mut reply.authority).for_each(aged);
    reply
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::ResponseCode;
    use hickory_proto::rr::RData;
    use hickory_proto::rr::rdata::A;

    use super::*;

    fn key(name: &str) -> Arc<Key> {
        let name = Folded::parse(name).unwrap();
        Arc::new(Key { name, kind: RecordType::A, upstreams: Arc::new([]), dnssec_ok: false, checking_disabled: false })
    }

    fn reply(name: &str, ttls: &[u32]) -> Arc<Reply> {
        let name = Folded::parse(name).unwrap().name();
        let record = |ttl: &u32| Record::from_rdata(name.clone(), *ttl, RData::A(A::new(192, 0, 2, 1)));
        Arc::new(Reply { answers: ttls.iter().map(record).collect(), ..Reply::empty(ResponseCode::NoError) })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn every_record_ages_and_the_answer_ends_with_its_lifetime() {
        let mut cache = Cache::new(10);
        cache.insert(&key("a"), reply("a", &[300, 5]), at(5), 0, at(100));
        let ttls = |reply: Reply| reply.answers.iter().map(|record| record.ttl).collect::<Vec<_>>();
        assert_eq!(cache.get(&key("a"), at(102)).map(ttls), Some(vec![298, 3]));
        assert_eq!(cache.get(&key("a"), at(105)), None);
        assert_eq!(cache.get(&key("b"), at(100)), None);
    }

    #[test]
    fn a_stale_answer_is_served_only_while_upstreams_fail() {
        let mut cache = Cache::new(10);
        let failure = Arc::new(Reply::empty(ResponseCode::ServFail));
        cache.insert(&key("a"), reply("a", &[5]), at(5), 0, at(0));
        let ttl = |reply: Option<Reply>| reply.map(|reply| reply.answers[0].ttl);
        assert_eq!(ttl(cache.fail(&key("a"), &failure, at(10))), Some(STALE_TTL));
        assert_eq!(ttl(cache.get(&key("a"), at(11))), Some(STALE_TTL));
        assert_eq!(cache.get(&key("a"), at(12)), None);
        assert_eq!(cache.fail(&key("a"), &failure, at(100_000)), None);
        assert_eq!(cache.get(&key("a"), at(100_001)).unwrap().code, ResponseCode::ServFail);
        assert_eq!(cache.get(&key("a"), at(100_002)), None);
    }

    #[test]
    fn a_popular_answer_is_due_shortly_before_its_end() {
        let mut cache = Cache::new(10);
        for (name, lifetime) in [("a", 100), ("short", 5), ("rare", 100)] {
            cache.insert(&key(name), reply(name, &[lifetime]), at(lifetime.into()), 0, at(0));
        }
        for seconds in [1, 2, 3, 4] {
            cache.get(&key("a"), at(seconds));
            cache.get(&key("short"), at(seconds));
        }
        assert!(!cache.is_due(&key("a"), at(80)) && !cache.is_due(&key("short"), at(5)));
        assert!(!cache.is_due(&key("rare"), at(95)) && !cache.is_due(&key("unknown"), at(95)));
        assert!(cache.is_due(&key("a"), at(90)) && !cache.is_due(&key("a"), at(91)));
    }

    #[test]
    fn a_full_cache_loses_one_answer_and_keeps_the_used_ones() {
        let mut cache = Cache::new(3);
        for name in ["a", "b", "c"] {
            cache.insert(&key(name), reply(name, &[60]), at(60), 0, at(0));
        }
        assert!(cache.get(&key("a"), at(1)).is_some());
        cache.insert(&key("d"), reply("d", &[60]), at(60), 0, at(1));
        let kept: Vec<_> =
            ["a", "b", "c", "d"].into_iter().filter(|name| cache.entries.contains_key(&key(name))).collect();
        assert_eq!(kept, ["a", "c", "d"]);
        assert_eq!((cache.queue.len(), 0), cache.len());
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut cache = Cache::new(1000);
        for index in 0..100 {
            let name = format!("n{index}");
            cache.insert(&key(&name), reply(&name, &[60]), at(60), 1 << 20, at(0));
        }
        assert!(cache.bytes <= BYTES_MAX && cache.len().0 >= 30, "{:?} in {}", cache.len(), cache.bytes);
    }
}
