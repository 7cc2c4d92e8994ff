//! The servers of HAProxy's configuration as slots: a member takes a free one, so that it comes and goes without a reload.
//!
//! A slot that was left is reused last, so that sessions which still use it have ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use model::Text;
use model::lb::{Backend, Draining, LbPlan, Place};

use crate::seen::{SeenServer, ServerName};

/// Fewest slots of a backend: room for a service that is scaled up, and a short list for one that is not.
const SLOTS_MIN: usize = 8;

/// Longest time for which the sessions of a member that is stopping may go on, where its service does not say.
///
/// An engine kills a container 10 s after its stop signal, so a longer time would change nothing.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// A server of a backend, `s1` and on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Nobody's, since then; zero if it never was anybody's.
    Free {
        /// When it was left.
        since: Duration,
    },
    /// A member's.
    Used {
        /// Where the member is.
        place: SocketAddr,
        /// Its share.
        weight: u16,
    },
    /// A member's that is stopping: it gets no new clients.
    Draining {
        /// Where the member is.
        place: SocketAddr,
        /// When that began.
        since: Duration,
    },
}

impl Slot {
    const NEW: Self = Self::Free { since: Duration::ZERO };

    fn place(&self) -> Option<SocketAddr> {
        match self {
            Self::Free { .. } => None,
            Self::Used { place, .. } | Self::Draining { place, .. } => Some(*place),
        }
    }

    /// What brings a server from what it was to this.
    fn commands(self, before: Self, server: &str, commands: &mut Vec<String>) {
        match (before, self) {
            (Self::Free { .. }, Self::Free { .. }) | (Self::Draining { .. }, Self::Draining { .. }) => {}
            (Self::Used { place, weight }, Self::Used { place: now, weight: wanted }) if place == now => {
                if weight != wanted {
                    commands.push(format!("set server {server} weight {wanted}"));
                }
            }
            (_, Self::Used { place, weight }) => {
                commands.push(format!("set server {server} addr {} port {}", place.ip(), place.port()));
                commands.push(format!("set server {server} weight {weight}"));
                commands.push(format!("set server {server} state ready"));
            }
            (_, Self::Draining { .. }) => commands.push(format!("set server {server} state drain")),
            (Self::Used { .. }, Self::Free { .. }) => commands.push(format!("set server {server} state maint")),
            (Self::Draining { .. }, Self::Free { .. }) => {
                commands.push(format!("set server {server} state maint"));
                commands.push(format!("shutdown sessions server {server}"));
            }
        }
    }

    /// Whether a running server is as this slot says.
    fn is_as(self, seen: &SeenServer) -> bool {
        match self {
            Self::Free { .. } => seen.is_in_maintenance(),
            Self::Used { place, weight } => {
                seen.place == Some(place) && seen.weight == weight && !seen.is_in_maintenance() && !seen.is_draining()
            }
            Self::Draining { place, .. } => {
                seen.place == Some(place) && !seen.is_in_maintenance() && (seen.is_draining() || seen.weight == 0)
            }
        }
    }
}

/// The slots of all backends. Those of a backend that did not change are shared, so that a change costs what it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots(BTreeMap<Text, Arc<Vec<Slot>>>);

impl Slots {
    /// The slots of a backend, in order.
    pub fn of(&self, backend: &str) -> &[Slot] {
        self.0.get(backend).map_or(&[], |slots| slots)
    }

    /// The members that are draining.
    pub fn draining(&self) -> usize {
        self.0.values().flat_map(|slots| &**slots).filter(|slot| matches!(slot, Slot::Draining { .. })).count()
    }

    /// The slots for a plan, after these: members keep theirs, and a backend that has too few gets more.
    ///
    /// `before` is the plan that these are for, if it is known: where nothing differs and nothing drains, nothing is looked at.
    /// `idle` are servers without sessions; what is draining there has ended. `now` is the time since any beginning.
    #[must_use]
    pub fn following(
        &self,
        plan: &LbPlan,
        before: Option<&LbPlan>,
        now: Duration,
        idle: &BTreeSet<ServerName>,
    ) -> Self {
        let routes = plan.ports.iter().flat_map(|port| &port.routes);
        let slots = routes.map(|route| {
            let backend = &plan.backends[route.backend];
            let known = self.0.get(&backend.name);
            if let Some(known) = known
                && before.and_then(|before| before.backends.get(route.backend)) == Some(backend)
                && !known.iter().any(|slot| matches!(slot, Slot::Draining { .. }))
            {
                return (backend.name.clone(), known.clone());
            }
            let mut slots = known.map_or_else(Vec::new, |slots| slots.to_vec());
            follow(&mut slots, backend, now, idle);
            let slots = known.filter(|known| ***known == slots).cloned().unwrap_or_else(|| Arc::new(slots));
            (backend.name.clone(), slots)
        });
        Self(slots.collect())
    }

    /// What is said to HAProxy to bring it from `before` to these.
    pub fn commands(&self, before: &Self) -> Vec<String> {
        // Who comes is led to before others leave: a backend is never without members in between.
        let (mut commands, mut leaving) = (Vec::new(), Vec::new());
        for (backend, slots) in self.differing(before) {
            let old = before.of(backend);
            for (index, slot) in slots.iter().enumerate() {
                let server = format!("{backend}/s{}", index + 1);
                let list = if matches!(slot, Slot::Used { .. }) { &mut commands } else { &mut leaving };
                slot.commands(old.get(index).copied().unwrap_or(Slot::NEW), &server, list);
            }
        }
        commands.append(&mut leaving);
        commands
    }

    /// The backends whose slots are not those of `before`.
    fn differing<'s>(&'s self, before: &'s Self) -> impl Iterator<Item = (&'s Text, &'s Arc<Vec<Slot>>)> {
        let is_same = |name: &Text, slots| before.0.get(name).is_some_and(|old| Arc::ptr_eq(old, slots));
        self.0.iter().filter(move |(name, slots)| !is_same(name, slots))
    }

    /// The slots of the backends that are not as `before`, alone.
    #[must_use]
    pub fn changed(&self, before: &Self) -> Self {
        Self(self.differing(before).map(|(name, slots)| (name.clone(), slots.clone())).collect())
    }

    /// The names of the backends.
    pub fn backends(&self) -> impl ExactSizeIterator<Item = &Text> {
        self.0.keys()
    }

    /// Whether each backend has as many slots as in `other`, so that nothing differs but what is in them.
    pub fn are_as_many_as(&self, other: &Self) -> bool {
        let mut pairs = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && pairs.all(|(one, other)| one.0 == other.0 && one.1.len() == other.1.len())
    }

    /// What is said to HAProxy where it is not as these slots are.
    pub fn repair(&self, seen: &HashMap<ServerName, SeenServer>) -> Vec<String> {
        let mut commands = Vec::new();
        for (backend, slots) in &self.0 {
            for (index, slot) in slots.iter().enumerate() {
                let name = ServerName { backend: backend.to_string(), server: format!("s{}", index + 1) };
                let server = format!("{backend}/s{}", index + 1);
                match seen.get(&name) {
                    Some(seen) if slot.is_as(seen) => {}
                    _ => match *slot {
                        Slot::Used { .. } => slot.commands(Slot::NEW, &server, &mut commands),
                        Slot::Free { .. } => commands.push(format!("set server {server} state maint")),
                        Slot::Draining { place, .. } => {
                            let used = Slot::Used { place, weight: 0 };
                            used.commands(Slot::NEW, &server, &mut commands);
                            slot.commands(used, &server, &mut commands);
                        }
                    },
                }
            }
        }
        commands
    }

    /// The slots that a configuration of ours has. What was draining has the weight 0 there, and is found again as a member that
    /// is in no plan.
    pub fn of_text(text: &str) -> Self {
        let mut slots: BTreeMap<Text, Vec<Slot>> = BTreeMap::new();
        let mut backend: Option<Text> = None;
        for line in text.lines() {
            if !line.starts_with(' ') {
                backend = line.strip_prefix("backend ").map(|name| name.trim().into());
                continue;
            }
            let Some(name) = &backend else { continue };
            let Some((_, words)) = slot_line(line) else { continue };
            let mut words = words.split(' ').filter(|word| !word.is_empty());
            let place = words.next().and_then(|word| word.parse().ok());
            let weight = words.nth(1).and_then(|word| word.parse().ok());
            slots.entry(name.clone()).or_default().push(match (place, weight) {
                (Some(place), Some(weight)) => Slot::Used { place, weight },
                _ => Slot::NEW,
            });
        }
        Self(slots.into_iter().map(|(name, slots)| (name, Arc::new(slots))).collect())
    }
}

fn follow(slots: &mut Vec<Slot>, backend: &Backend, now: Duration, idle: &BTreeSet<ServerName>) {
    let mut wanted: BTreeMap<SocketAddr, u16> = BTreeMap::new();
    for member in &backend.members {
        if let Place::Address(place) = member.place {
            wanted.insert(place, member.weight);
        }
    }
    let stopping: BTreeMap<SocketAddr, Duration> = backend
        .left_out
        .iter()
        .filter_map(|out| match out.draining {
            Some(Draining { place: Place::Address(place), limit }) => Some((place, limit.unwrap_or(DRAIN_MAX))),
            _ => None,
        })
        .filter(|(_, limit)| !limit.is_zero())
        .collect();
    let size = wanted.len().saturating_mul(2).max(SLOTS_MIN).next_power_of_two();
    if slots.is_empty() {
        slots.resize(size, Slot::NEW);
    }
    for (index, slot) in slots.iter_mut().enumerate() {
        let Some(place) = slot.place() else { continue };
        if let Some(weight) = wanted.remove(&place) {
            *slot = Slot::Used { place, weight };
            continue;
        }
        let name = || ServerName { backend: backend.name.to_string(), server: format!("s{}", index + 1) };
        *slot = match *slot {
            Slot::Used { place, .. } if stopping.contains_key(&place) => Slot::Draining { place, since: now },
            Slot::Draining { since, .. }
                if stopping.get(&place).is_some_and(|limit| now.saturating_sub(since) < *limit)
                    && !idle.contains(&name()) =>
            {
                *slot
            }
            _ => Slot::Free { since: now },
        };
    }
    if wanted.is_empty() {
        return;
    }
    let mut free: Vec<(Duration, usize)> = slots
        .iter()
        .enumerate()
        .filter_map(|(index, slot)| match slot {
            Slot::Free { since } => Some((*since, index)),
            _ => None,
        })
        .collect();
    if free.len() < wanted.len() {
        let more = (slots.len() - free.len() + wanted.len()).saturating_mul(2).next_power_of_two();
        free.extend((slots.len()..more).map(|index| (Duration::ZERO, index)));
        slots.resize(more, Slot::NEW);
    }
    free.sort_unstable();
    for ((place, weight), (_, index)) in wanted.into_iter().zip(free) {
        slots[index] = Slot::Used { place, weight };
    }
}

/// The number of a slot in a line of a backend, and what follows its name.
fn slot_line(line: &str) -> Option<(&str, &str)> {
    let (name, words) = line.strip_prefix("    server s")?.split_once(' ')?;
    name.bytes().all(|byte| byte.is_ascii_digit()).then_some((name, words))
}

/// A configuration without what its slots are used for: as long as it stays the same, no reload is needed.
pub fn skeleton(text: &str) -> String {
    let mut skeleton = String::with_capacity(text.len());
    for line in text.lines() {
        match slot_line(line) {
            Some((number, _)) => {
                skeleton.push_str("    server s");
                skeleton.push_str(number);
            }
            None => skeleton.push_str(line),
        }
        skeleton.push('\n');
    }
    skeleton
}

/// The first line in which two texts differ, for people.
pub fn differing<'t>(old: &'t str, new: &'t str) -> Option<&'t str> {
    let known: BTreeSet<&str> = old.lines().collect();
    let there: BTreeSet<&str> = new.lines().collect();
    let added = new.lines().find(|line| !known.contains(line));
    added.or_else(|| old.lines().find(|line| !there.contains(line))).map(str::trim)
}

#[cfg(test)]
mod tests {
    use model::lb::{HostPattern, LeftOut, Member, Port, Protocol, Route};

    use super::*;

    fn place(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 80).into()
    }

    /// A plan of one backend with members at these addresses, and others that are stopping.
    fn plan(members: impl IntoIterator<Item = u8>, stopping: &[u8]) -> LbPlan {
        let members = members.into_iter();
        let members =
            members.map(|last| Member { place: Place::Address(place(last)), weight: 1, name: "c".into() }).collect();
        let left_out = stopping.iter().map(|last| LeftOut {
            name: "c".into(),
            reason: "it is stopping".into(),
            draining: Some(Draining { place: Place::Address(place(*last)), limit: None }),
        });
        let left_out = left_out.collect();
        let backend = Backend { name: "b1".into(), protocol: Protocol::Http, members, left_out };
        let route = Route { host: HostPattern::Any, path: "".into(), backend: 0, at: String::new() };
        let ports = vec![Port { number: 80, protocol: Protocol::Http, routes: vec![route] }];
        LbPlan { ports, backends: vec![backend], ..LbPlan::default() }
    }

    fn follow_in_turn(plans: &[LbPlan]) -> (Slots, Vec<String>) {
        let (mut slots, mut said) = (Slots::default(), Vec::new());
        for (second, plan) in plans.iter().enumerate() {
            let before = second.checked_sub(1).map(|before| &plans[before]);
            let next = slots.following(plan, before, Duration::from_secs(second as u64 + 1), &BTreeSet::new());
            said = next.commands(&slots);
            slots = next;
        }
        (slots, said)
    }

    #[test]
    fn a_member_takes_a_slot_and_leaves_it_by_draining() {
        let (slots, said) = follow_in_turn(&[plan([1], &[]), plan([1, 2], &[])]);
        assert_eq!(slots.of("b1").len(), 8);
        let ready =
            ["set server b1/s2 addr 192.0.2.2 port 80", "set server b1/s2 weight 1", "set server b1/s2 state ready"];
        assert_eq!(said, ready);
        let (_, said) = follow_in_turn(&[plan([1, 2], &[]), plan([2], &[1])]);
        assert_eq!(said, ["set server b1/s1 state drain"]);
        let (slots, said) = follow_in_turn(&[plan([1, 2], &[]), plan([2], &[1]), plan([2], &[])]);
        assert_eq!(said, ["set server b1/s1 state maint", "shutdown sessions server b1/s1"]);
        let name = ServerName { backend: "b1".into(), server: "s1".into() };
        assert_eq!(slots.of("b1")[0], Slot::Free { since: Duration::from_secs(3) });
        // Without sessions it is not waited for; after its time neither.
        let (draining, _) = follow_in_turn(&[plan([1, 2], &[]), plan([2], &[1])]);
        for (now, idle, ended) in
            [(3, BTreeSet::new(), false), (3, BTreeSet::from([name]), true), (12, BTreeSet::new(), true)]
        {
            let next = draining.following(&plan([2], &[1]), None, Duration::from_secs(now), &idle);
            assert_eq!(next.draining() == 0, ended, "{now} {idle:?}");
        }
    }

    #[test]
    fn a_restarted_member_is_ready_again_and_one_that_failed_keeps_its_sessions() {
        let (_, said) = follow_in_turn(&[plan([1, 2], &[]), plan([2], &[1]), plan([1, 2], &[])]);
        assert!(said.contains(&"set server b1/s1 state ready".to_owned()), "{said:?}");
        let (_, said) = follow_in_turn(&[plan([1, 2], &[]), plan([2], &[])]);
        assert_eq!(said, ["set server b1/s1 state maint"]);
    }

    #[test]
    fn the_slot_that_was_left_last_is_taken_last_and_slots_double() {
        let steps = [plan([1, 2], &[]), plan([2], &[]), plan([2, 3], &[])];
        let (slots, _) = follow_in_turn(&steps);
        assert!(matches!(slots.of("b1")[0], Slot::Free { .. }), "{slots:?}");
        assert!(matches!(slots.of("b1")[2], Slot::Used { place, .. } if place == self::place(3)));
        let (slots, _) = follow_in_turn(&[plan(1..=2, &[]), plan(1..=9, &[])]);
        assert_eq!(slots.of("b1").len(), 32);
        assert_eq!(slots.of("b1")[1], Slot::Used { place: place(2), weight: 1 }, "a member keeps its slot");
    }

    #[test]
    fn who_comes_is_led_to_before_others_leave() {
        let (_, said) = follow_in_turn(&[plan([1], &[]), plan([2], &[])]);
        assert_eq!(said.last().map(|last| &**last), Some("set server b1/s1 state maint"), "{said:?}");
    }

    #[test]
    fn a_service_says_how_long_its_members_drain() {
        for (limit, draining) in [(0, [0, 0]), (2000, [1, 0]), (60_000, [1, 1])] {
            let (slots, _) = follow_in_turn(&[plan([1, 2], &[])]);
            let mut stopping = plan([2], &[1]);
            let limit = Some(Duration::from_millis(limit));
            for out in &mut stopping.backends[0].left_out {
                out.draining = out.draining.take().map(|draining| Draining { limit, ..draining });
            }
            let first = slots.following(&stopping, None, Duration::from_secs(2), &BTreeSet::new());
            let later = first.following(&stopping, Some(&stopping), Duration::from_secs(15), &BTreeSet::new());
            assert_eq!([first.draining(), later.draining()], draining, "{limit:?}");
        }
    }

    #[test]
    fn of_many_backends_only_those_that_differ_are_looked_at() {
        let mut before = plan([1], &[]);
        for number in 1..100 {
            let backend = Backend { name: format!("x{number}").into(), ..before.backends[0].clone() };
            before.backends.push(backend);
            let route = Route { backend: number, ..before.ports[0].routes[0].clone() };
            before.ports[0].routes.push(route);
        }
        let slots = Slots::default().following(&before, None, Duration::from_secs(1), &BTreeSet::new());
        let mut after = before.clone();
        after.backends[7].members = plan([2], &[]).backends[0].members.clone();
        let next = slots.following(&after, Some(&before), Duration::from_secs(2), &BTreeSet::new());
        assert_eq!(next.changed(&slots).backends().map(|name| &**name).collect::<Vec<_>>(), ["x7"]);
        assert!(next.are_as_many_as(&slots));
        let same = next.following(&after, Some(&after), Duration::from_secs(3), &BTreeSet::new());
        assert_eq!((same.changed(&next).backends().len(), same.commands(&next)), (0, Vec::new()));
    }

    #[test]
    fn what_somebody_else_changed_is_repaired() {
        let (slots, _) = follow_in_turn(&[plan([1, 2], &[]), plan([2], &[1])]);
        let name = |number: usize| ServerName { backend: "b1".into(), server: format!("s{number}") };
        let seen = |last, weight, admin| SeenServer { place: Some(place(last)), weight, admin };
        let mut all: HashMap<_, _> = (3..=8).map(|number| (name(number), seen(9, 1, 5))).collect();
        all.insert(name(1), seen(1, 1, 8));
        all.insert(name(2), seen(2, 1, 4));
        assert_eq!(slots.repair(&all), Vec::<String>::new());
        all.insert(name(2), seen(2, 7, 4));
        all.insert(name(3), seen(3, 1, 0));
        let said = slots.repair(&all);
        assert!(
            said.contains(&"set server b1/s2 weight 1".into()) && said.contains(&"set server b1/s3 state maint".into())
        );
        assert_eq!(said.len(), 4, "{said:?}");
    }
}
