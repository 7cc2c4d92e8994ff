//! Answers that a thread wrote a moment ago: containers ask the same again and again.
//!
//! To look a name up is to follow a dozen pointers through memory that no cache of the processor holds; an answer
//! that was written before lies in one piece. Answers are kept for one view of the zone and are worth nothing for the
//! next one, so that nothing here is ever out of date; what upstreams said is worth something until the next second of
//! its age. Only what is the same every time is kept: no addresses that take turns, no cookies.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::mem::offset_of;
use std::time::Duration;

use foldhash::fast::RandomState;
use hickory_proto::op::ResponseCode;

use crate::direct::Written;
use crate::metrics::By;
use crate::wire::HEADER_OCTETS;

/// Answers that a question may be found among; a multiple lowers the odds that some drive out each other.
const WAYS: usize = 8;

/// Most groups of these, in 6 MiB: three times what the names of 10,000 services and some misses need, so that hardly
/// any group has more of them than ways.
const GROUPS_MAX: usize = 4096;

/// Groups of all threads together, 12 MiB: the more threads there are, the less each of them is asked.
const GROUPS_ALL: usize = 2 * GROUPS_MAX;

/// Octets of an answer, and of what follows the question in its message: usual answers have 60 to 110, so that three
/// cache lines hold everything, and two of them an address.
const ROOM: usize = 146;

/// What of a message an answer depends on: all but its id.
const ID_OCTETS: usize = 2;

/// Octets that are copied at once: a copy whose length is known beforehand costs a fraction of one that is not. They are
/// what two cache lines hold beside the rest, and enough for an address.
const COPIED: usize = 80;

/// Answers of one thread.
pub(crate) struct Recent {
    /// The view that is served; numbers are never used again.
    view: u64,
    now: u64,
    hasher: RandomState,
    /// Parts of the hashes, so that wrong answers need not be looked at.
    tags: Box<[[u32; WAYS]]>,
    answers: Box<[Answer]>,
    /// Which of a group goes next.
    next: usize,
}

/// An answer, beginning where a cache line does: what is looked at first is in the first.
#[derive(Clone)]
#[repr(C, align(64))]
pub(crate) struct Answer {
    /// The view it was written for; 0 for none.
    view: u64,
    /// Whose names it is about; 0 for everybody's.
    scope: usize,
    /// When it is worth nothing any more, in ns.
    until: u64,
    code: ResponseCode,
    kind: u16,
    own: bool,
    dnssec_ok: bool,
    by: By,
    /// Octets of the answer, of the question in it, and of what follows the question in its message.
    octets: u8,
    question: u8,
    rest: u8,
    /// Flags and counts of the message.
    head: [u8; HEADER_OCTETS - ID_OCTETS],
    /// The answer with anybody's id, and what follows the question in the message.
    content: [u8; ROOM],
}

// Three cache lines, and what is mostly copied in the first two.
const _: () = assert!(size_of::<Answer>() == 192 && offset_of!(Answer, content) + COPIED <= 128);

/// Where an answer is, or would be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    group: usize,
    /// Which of all answers it seems to be, where somebody looked.
    likely: Option<usize>,
    tag: u32,
    scope: usize,
}

impl Recent {
    /// Room for the answers of one of so many threads; nothing is kept yet.
    ///
    /// All of it is touched now, so that it does not look like a leak while it fills; `about_to_fill` may ask the system for
    /// large pages before.
    pub(crate) fn new(threads: usize, about_to_fill: impl FnOnce(&mut Vec<Answer>)) -> Self {
        let groups = (GROUPS_ALL / threads.max(1)).clamp(1, GROUPS_MAX);
        let none = Answer {
            view: 0,
            scope: 0,
            until: 0,
            code: ResponseCode::NoError,
            kind: 0,
            own: false,
            dnssec_ok: false,
            by: By::Nobody,
            octets: 0,
            question: 0,
            rest: 0,
            head: [0; HEADER_OCTETS - ID_OCTETS],
            content: [0; ROOM],
        };
        let mut answers = Vec::with_capacity(groups * WAYS);
        about_to_fill(&mut answers);
        answers.resize(groups * WAYS, none);
        Self {
            view: 0,
            now: 0,
            hasher: RandomState::default(),
            tags: vec![[0; WAYS]; groups].into(),
            answers: answers.into(),
            next: 0,
        }
    }

    /// Says which view is served from now on, and how late it is.
    pub(crate) fn serve(&mut self, view: u64, now: Duration) {
        self.view = view;
        self.now = nanoseconds(now);
    }

    /// Where the answer to a message is kept, for a client with names of its own (`scope` is not 0) or without.
    pub(crate) fn spot(&self, message: &[u8], scope: usize) -> Spot {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(message.get(ID_OCTETS..).unwrap_or_default());
        hasher.write_usize(scope);
        let hash = hasher.finish();
        // Two parts of it that have nothing in common; to multiply with a part of one takes less than to divide by a number.
        let (upper, lower) = (hash >> 32, hash & u64::from(u32::MAX));
        let group = usize::try_from((lower * self.tags.len() as u64) >> 32).unwrap_or_default();
        Spot { group, likely: None, tag: u32::try_from(upper).unwrap_or_default(), scope }
    }

    /// Where the answer for everybody is kept, to be looked at in a moment, with others in between: `fetch` brings its
    /// memory closer meanwhile.
    pub(crate) fn prepare(&self, message: &[u8], fetch: impl Fn(&[u8])) -> Spot {
        let spot = self.spot(message, 0);
        let likely = self.of_tag(spot).next();
        if let Some(likely) = likely {
            // This lies in the first two of its lines; what needs the third is seldom.
            fetch(&self.answers[likely].content[..COPIED]);
        }
        Spot { likely, ..spot }
    }

    /// The answers that may be the one.
    fn of_tag(&self, spot: Spot) -> impl Iterator<Item = usize> {
        let ways = self.tags[spot.group].iter().enumerate().filter(move |(_, tag)| **tag == spot.tag);
        ways.map(move |(way, _)| spot.group * WAYS + way)
    }

    /// Writes the answer to `room`.
    pub(crate) fn write(&self, spot: Spot, message: &[u8], room: &mut [u8]) -> Option<Written> {
        let fits = |answer: &&Answer| {
            answer.view == self.view && answer.scope == spot.scope && answer.until > self.now && answer.is_to(message)
        };
        let likely = spot.likely.map(|likely| &self.answers[likely]).filter(fits);
        let answer = likely.or_else(|| self.of_tag(spot).map(|index| &self.answers[index]).find(fits))?;
        let octets = usize::from(answer.octets);
        match (room.first_chunk_mut::<COPIED>(), answer.content.first_chunk()) {
            // What stands behind the answer is of no importance.
            (Some(room), Some(content)) if octets <= COPIED => *room = *content,
            _ => room.get_mut(..octets)?.copy_from_slice(&answer.content[..octets]),
        }
        room[..ID_OCTETS].copy_from_slice(&message[..ID_OCTETS]);
        let Answer { code, kind, own, dnssec_ok, by, .. } = *answer;
        Some(Written { octets, code, kind, own, dnssec_ok, by })
    }

    /// Keeps an answer whose question has so many octets, unless it is too long.
    pub(crate) fn keep(
        &mut self,
        spot: Spot,
        message: &[u8],
        question: usize,
        answer: &[u8],
        (written, until): (Written, Duration),
    ) {
        let Some(head) = message.get(ID_OCTETS..HEADER_OCTETS).and_then(|head| head.first_chunk()) else { return };
        let Some(rest) = message.get(HEADER_OCTETS + question..) else { return };
        let lengths = [answer.len(), question, rest.len()].map(|length| u8::try_from(length).ok());
        let [Some(octets), Some(question), Some(rest_octets)] = lengths else { return };
        if answer.len() + rest.len() > ROOM {
            return;
        }
        let group = spot.group * WAYS..(spot.group + 1) * WAYS;
        let outdated = |answer: &Answer| answer.view != self.view || answer.until <= self.now;
        let way = self.answers[group.clone()].iter().position(outdated).unwrap_or_else(|| {
            self.next = (self.next + 1) % WAYS;
            self.next
        });
        let Written { code, kind, own, dnssec_ok, by, .. } = written;
        let kept = &mut self.answers[group][way];
        (kept.view, kept.scope, kept.until) = (self.view, spot.scope, nanoseconds(until));
        (kept.code, kept.kind, kept.own, kept.dnssec_ok, kept.by) = (code, kind, own, dnssec_ok, by);
        (kept.octets, kept.question, kept.rest, kept.head) = (octets, question, rest_octets, *head);
        kept.content[..answer.len()].copy_from_slice(answer);
        kept.content[answer.len()..][..rest.len()].copy_from_slice(rest);
        self.tags[spot.group][way] = spot.tag;
    }
}

impl Answer {
    /// Whether it answers this message.
    fn is_to(&self, message: &[u8]) -> bool {
        let [octets, question, rest] = [self.octets, self.question, self.rest].map(usize::from);
        let end = HEADER_OCTETS + question;
        message.len() == end + rest
            && message[ID_OCTETS..HEADER_OCTETS] == self.head
            && message[HEADER_OCTETS..end] == self.content[HEADER_OCTETS..end]
            && (rest == 0 || message[end..] == self.content[octets..octets + rest])
    }
}

/// For longer than anybody lives, a number of them says it.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recent").field("view", &self.view).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(5);

    const UNTIL: Duration = Duration::from_secs(6);

    fn written(octets: usize) -> Written {
        Written { octets, code: ResponseCode::NoError, kind: 1, own: true, dnssec_ok: false, by: By::Zone }
    }

    /// A message with an id, and an answer to it.
    fn exchange(id: u8, name: u16) -> ([u8; 20], [u8; 30]) {
        let mut message = [0; 20];
        message[1] = id;
        message[12..14].copy_from_slice(&name.to_be_bytes());
        let mut answer = [7; 30];
        answer[..20].copy_from_slice(&message);
        answer[2] = 0x80;
        answer[20..22].copy_from_slice(&name.to_be_bytes());
        (message, answer)
    }

    fn found(recent: &Recent, scope: usize, id: u8, name: u16) -> Option<Vec<u8>> {
        let (message, _) = exchange(id, name);
        let mut room = [0; 64];
        let spot = recent.spot(&message, scope);
        assert_eq!(recent.prepare(&message, |_| ()).tag, recent.spot(&message, 0).tag);
        recent.write(spot, &message, &mut room).map(|written| room[..written.octets].to_vec())
    }

    fn keep(recent: &mut Recent, scope: usize, name: u16) {
        let (message, answer) = exchange(1, name);
        let spot = recent.spot(&message, scope);
        recent.keep(spot, &message, 8, &answer, (written(answer.len()), UNTIL));
    }

    #[test]
    fn an_answer_is_found_for_its_view_and_its_client() {
        let mut recent = Recent::new(1, |_| ());
        recent.serve(1, NOW);
        assert_eq!(found(&recent, 0, 1, 5), None);
        keep(&mut recent, 0, 5);
        keep(&mut recent, 9, 6);
        assert_eq!(found(&recent, 0, 2, 5), Some(exchange(2, 5).1.to_vec()));
        assert_eq!((found(&recent, 9, 2, 5), found(&recent, 0, 2, 6)), (None, None));
        assert_eq!(found(&recent, 9, 3, 6), Some(exchange(3, 6).1.to_vec()));
        recent.serve(1, UNTIL);
        assert_eq!(found(&recent, 0, 2, 5), None);
        recent.serve(2, NOW);
        assert_eq!((found(&recent, 0, 2, 5), found(&recent, 9, 3, 6)), (None, None));
    }

    #[test]
    fn ten_thousand_answers_have_room() {
        let mut recent = Recent::new(1, |_| ());
        recent.serve(1, NOW);
        for name in 0..10_000 {
            keep(&mut recent, 0, name);
        }
        let kept =
            (0..10_000).filter(|name| found(&recent, 0, 1, *name) == Some(exchange(1, *name).1.to_vec())).count();
        assert!(kept > 9_900, "{kept}");
    }

    #[test]
    fn long_ones_are_not_kept() {
        let mut recent = Recent::new(1, |_| ());
        recent.serve(1, NOW);
        let message = [3; 120];
        let answer = [4; 200];
        let spot = recent.spot(&message, 0);
        recent.keep(spot, &message, 20, &answer, (written(answer.len()), UNTIL));
        assert_eq!(recent.write(spot, &message, &mut [0; 512]), None);
    }
}
