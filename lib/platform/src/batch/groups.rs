//! Datagrams that may leave as one, which the system takes apart again where they arrive.
//!
//! Those of a group go to the same peer and have one length: so `UDP_SEGMENT` of udp(7) wants it. A resolver asks from
//! one port for many, and most answers about one cluster are equally long.

use std::net::{SocketAddr, UdpSocket};

use super::{DATAGRAMS, Leaving};
use crate::socket::can_segment;

/// Most bytes of a group: what one datagram of IPv4 may hold, without its headers.
const BYTES_MAX: usize = 65_507;

/// Places where a group is looked for, several for each that there can be.
const PLACES: usize = 4 * DATAGRAMS;

/// What spreads numbers that lie side by side: 2^32 divided by the golden ratio.
const MIXER: u32 = 0x9e37_79b1;

/// Batches that are not looked at after one in which there was little to put together: looking costs a few of 1,000,
/// and a client that asks like that now does so for a while.
const PAUSE: u8 = 15;

/// Whether datagrams are put together.
#[derive(Debug)]
pub(super) struct Grouping {
    possible: bool,
    /// Batches that are still not looked at.
    pause: u8,
}

impl Grouping {
    /// They never are.
    pub(super) fn off() -> Self {
        Self { possible: false, pause: 0 }
    }

    /// Wherever the kernel takes them apart: since Linux 4.18; one before would send them as one.
    pub(super) fn of(socket: &UdpSocket) -> Self {
        Self { possible: can_segment(socket), pause: 0 }
    }

    /// Whether the next batch is to be looked at.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.possible && self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        due
    }

    /// Learns how many messages the datagrams of a batch became. Two of a group gain nothing: they have to be taken
    /// apart.
    pub(super) fn learn(&mut self, datagrams: usize, messages: usize) {
        if messages * 2 > datagrams {
            self.pause = PAUSE;
        }
    }

    /// Gives it up for good.
    pub(super) fn end(&mut self) {
        self.possible = false;
    }
}

/// Which datagrams of a batch leave together.
pub(super) struct Groups {
    all: [Group; DATAGRAMS],
    count: usize,
    /// For each datagram the next one of its group; meaningless for the last.
    next: [u8; DATAGRAMS],
}

/// Datagrams of one length to one peer.
#[derive(Clone, Copy, Default)]
struct Group {
    first: u8,
    last: u8,
    members: u8,
}

impl Groups {
    /// Groups for a batch, of at most [`DATAGRAMS`].
    pub(super) fn of(leaving: &[Leaving]) -> Self {
        let mut groups = Self { all: [Group::default(); DATAGRAMS], count: 0, next: [0; DATAGRAMS] };
        // The number of the group that was last made for a place, counted from 1. A peer that shares a place with
        // others takes it from them: that separates what could leave together, but never joins what could not.
        let mut latest = [0_u8; PLACES];
        for (index, one) in (0_u8..).zip(leaving.iter().take(DATAGRAMS)) {
            let place = &mut latest[place(one)];
            let known = usize::from(*place).checked_sub(1);
            if known.is_none_or(|group| !groups.join(group, index, leaving)) {
                groups.all[groups.count] = Group { first: index, last: index, members: 1 };
                groups.count += 1;
                *place = u8::try_from(groups.count).unwrap_or_default();
            }
        }
        groups
    }

    /// Puts a datagram into a group if it may be there.
    fn join(&mut self, group: usize, index: u8, leaving: &[Leaving]) -> bool {
        let group = &mut self.all[group];
        let (one, first) = (&leaving[usize::from(index)], &leaving[usize::from(group.first)]);
        let alike = one.ends.is_some() && one.ends == first.ends && one.length == first.length;
        let bytes = one.length * (usize::from(group.members) + 1);
        if !alike || bytes == 0 || bytes > BYTES_MAX {
            return false;
        }
        self.next[usize::from(group.last)] = index;
        group.last = index;
        group.members += 1;
        true
    }

    /// The places in the batch of the members of each group.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = impl ExactSizeIterator<Item = usize>> {
        self.all[..self.count].iter().map(move |group| {
            let mut member = group.first;
            (0..group.members).map(move |_| {
                let this = usize::from(member);
                member = self.next[this];
                this
            })
        })
    }
}

/// Where the group of this one is looked for.
fn place(one: &Leaving) -> usize {
    // Peers differ by their ports, and where those are alike by the end of their addresses.
    let peer = one.ends.map_or(0, |ends| {
        let end = match ends.peer {
            SocketAddr::V4(peer) => u32::from(*peer.ip()),
            SocketAddr::V6(peer) => {
                let [.., upper, lower] = peer.ip().segments();
                u32::from(upper) << 16 | u32::from(lower)
            }
        };
        end ^ u32::from(ends.peer.port()) << 8
    });
    let mixed = (peer ^ u32::try_from(one.length).unwrap_or_default()).wrapping_mul(MIXER);
    mixed as usize >> 16 & (PLACES - 1)
}

#[cfg(test)]
mod tests {
    use super::super::Ends;
    use super::*;

    fn leaving(length: usize, peer: &str) -> Leaving {
        let ends = (!peer.is_empty()).then(|| Ends { peer: peer.parse().unwrap(), local: None });
        Leaving { length, ends }
    }

    fn grouped(batch: &[Leaving]) -> Vec<Vec<usize>> {
        Groups::of(batch).iter().map(Iterator::collect).collect()
    }

    #[test]
    fn a_group_has_one_peer_and_one_length() {
        const A: &str = "192.0.2.1:1000";
        const B: &str = "192.0.2.1:1001";
        type Case<'a> = (&'a str, &'a [(usize, &'a str)], &'a [&'a [usize]]);
        let cases: &[Case<'_>] = &[
            ("nothing", &[], &[]),
            ("one", &[(5, A)], &[&[0]]),
            ("peers", &[(5, A), (5, B), (5, A), (5, B)], &[&[0, 2], &[1, 3]]),
            ("lengths", &[(5, A), (4, A), (5, A), (4, A), (5, A)], &[&[0, 2, 4], &[1, 3]]),
            ("empty ones", &[(0, A), (0, A), (5, A), (0, A)], &[&[0], &[1], &[2], &[3]]),
            ("no peer", &[(5, ""), (5, "")], &[&[0], &[1]]),
            ("full", &[(30_000, A), (30_000, A), (30_000, A)], &[&[0, 1], &[2]]),
        ];
        for (name, batch, expected) in cases {
            let batch: Vec<Leaving> = batch.iter().map(|(length, peer)| leaving(*length, peer)).collect();
            assert_eq!(grouped(&batch), *expected, "{name}");
        }
    }

    #[test]
    fn local_addresses_are_kept_apart() {
        let mut batch = [leaving(5, "192.0.2.1:7"), leaving(5, "192.0.2.1:7"), leaving(5, "192.0.2.1:7")];
        batch[1].ends.as_mut().unwrap().local = Some("127.0.0.1".parse().unwrap());
        for group in grouped(&batch) {
            assert!(group.iter().all(|member| batch[*member].ends == batch[group[0]].ends), "{group:?}");
        }
    }

    #[test]
    fn every_datagram_is_in_one_group() {
        // Peers and lengths in all mixtures, most of all lengths at which a group is full.
        let mut state = 1_u32;
        let mut random = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % below
        };
        for round in 0..2000 {
            let (peers, lengths) = (1 + random(70), [1, 3, 2000][round % 3]);
            let batch: Vec<Leaving> = (0..random(DATAGRAMS + 1))
                .map(|_| leaving(random(lengths), &format!("[2001:db8::{}]:{}", random(2), 1024 + random(peers))))
                .collect();
            let groups = grouped(&batch);
            let mut all: Vec<usize> = groups.concat();
            all.sort_unstable();
            assert_eq!(all, (0..batch.len()).collect::<Vec<_>>());
            for group in groups {
                let first = &batch[group[0]];
                for member in &group {
                    assert_eq!((batch[*member].length, batch[*member].ends), (first.length, first.ends), "{group:?}");
                }
                assert!(group.len() == 1 || (1..=BYTES_MAX).contains(&(first.length * group.len())), "{group:?}");
            }
        }
    }
}
