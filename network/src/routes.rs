//! From the routes that are wanted and those that are there to the changes between them.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use platform::route::{METRIC, Route, RouteChange};

use crate::verdict::{Judged, Verdict};

/// The changes that make our routes those that are wanted: what is new first, then what leads elsewhere, then what goes, so
/// that no flow waits for another one's route.
///
/// Routes of others are never among them. What is held stays as it is.
pub fn changes(judged: &[Judged], own: &[Route]) -> Vec<RouteChange> {
    // Both lists in the order of subnets, in which they mostly are already.
    let mut peers: Vec<(Ipv4Net, Wanted)> =
        judged.iter().filter_map(|peer| Some((peer.subnet, Wanted::of(peer)?))).collect();
    peers.sort_by_key(|(subnet, _)| *subnet);
    let mut there: Vec<&Route> = own.iter().filter(|route| route.marked).collect();
    there.sort_by_key(|route| route.prefix);

    let (mut add, mut replace, mut remove) = (Vec::new(), Vec::new(), Vec::new());
    let missing = |(subnet, wanted): (Ipv4Net, Wanted)| match wanted {
        Wanted::Leads { via, link } => Some(RouteChange::Add(Route::marked(subnet, via, link))),
        Wanted::Stays => None,
    };
    let mut peers = peers.into_iter().peekable();
    let mut last = None;
    for route in there {
        // The kernel has one route for a subnet and a metric; any other of ours is left over.
        if route.metric != METRIC || route.via.is_none() || last == Some(route.prefix) {
            remove.push(RouteChange::Remove(*route));
            continue;
        }
        last = Some(route.prefix);
        while let Some(peer) = peers.next_if(|(subnet, _)| *subnet < route.prefix) {
            add.extend(missing(peer));
        }
        match peers.next_if(|(subnet, _)| *subnet == route.prefix) {
            Some((_, Wanted::Leads { via, link })) if route.via != Some(via) || route.link != link => {
                replace.push(RouteChange::Replace { route: *route, via, link });
            }
            Some(_) => {}
            None => remove.push(RouteChange::Remove(*route)),
        }
    }
    add.extend(peers.filter_map(missing));
    [add, replace, remove].concat()
}

/// What is wanted of the route to a peer.
#[derive(Clone, Copy)]
enum Wanted {
    Leads {
        via: Ipv4Addr,
        link: u32,
    },
    /// It stays as it is.
    Stays,
}

impl Wanted {
    /// `None` if there is to be no route.
    fn of(peer: &Judged) -> Option<Self> {
        match &peer.verdict {
            Verdict::Held(_) => Some(Self::Stays),
            verdict if verdict.is_routed() => Some(Self::Leads { via: peer.via?, link: peer.link? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn peer(index: u8, via: u8, verdict: Verdict) -> Judged {
        let via = Ipv4Addr::new(192, 0, 2, via);
        Judged {
            host: format!("h{index}").as_str().into(),
            subnet: subnet(index),
            via: Some(via),
            link: Some(2),
            verdict,
        }
    }

    fn subnet(index: u8) -> Ipv4Net {
        Ipv4Net::new(Ipv4Addr::new(10, 42, index, 0), 24).unwrap()
    }

    fn route(index: u8, via: u8, marked: bool) -> Route {
        Route { marked, ..Route::marked(subnet(index), Ipv4Addr::new(192, 0, 2, via), 2) }
    }

    #[test]
    fn only_what_differs_is_changed_and_new_routes_come_first() {
        let judged = [
            peer(1, 1, Verdict::Ok),
            peer(2, 9, Verdict::Ok),
            peer(3, 3, Verdict::Shadowed { metric: 0 }),
            peer(4, 4, Verdict::Held(String::new())),
            peer(5, 5, Verdict::Taken),
        ];
        let own = [route(1, 1, true), route(2, 2, true), route(4, 7, true), route(5, 5, false), route(6, 6, true)];
        assert_eq!(
            changes(&judged, &own),
            [
                RouteChange::Add(route(3, 3, true)),
                RouteChange::Replace { route: route(2, 2, true), via: Ipv4Addr::new(192, 0, 2, 9), link: 2 },
                RouteChange::Remove(route(6, 6, true)),
            ]
        );
    }

    proptest! {
        /// Applied, the changes lead to what is wanted, touch nothing of others, and are none the second time.
        #[test]
        fn changes_lead_to_what_is_wanted(
            wanted in prop::collection::btree_map(0_u8..20, (1_u8..4, 0_u8..4), 0..20),
            there in prop::collection::btree_map(0_u8..20, (1_u8..4, any::<bool>()), 0..20),
        ) {
            let judged: Vec<_> = wanted.iter().map(|(index, (via, verdict))| peer(*index, *via, match verdict {
                0 | 1 => Verdict::Ok,
                2 => Verdict::OffLink { router: None },
                _ => Verdict::Held(String::new()),
            })).collect();
            // A foreign route in our place is judged as taken before.
            let judged: Vec<_> = judged.into_iter().map(|peer| {
                let index = peer.subnet.network().octets()[2];
                if peer.verdict.is_routed() && there.get(&index).is_some_and(|(_, mark)| !mark) { Judged { verdict: Verdict::Taken, ..peer } } else { peer }
            }).collect();
            let mut table: Vec<Route> = there.iter().map(|(index, (via, mark))| route(*index, *via, *mark)).collect();
            let foreign: Vec<Route> = table.iter().filter(|route| !route.marked).copied().collect();
            let held: BTreeSet<Ipv4Net> = judged.iter().filter(|peer| matches!(peer.verdict, Verdict::Held(_))).map(|peer| peer.subnet).collect();
            let before: Vec<Route> = table.iter().filter(|route| route.marked && held.contains(&route.prefix)).copied().collect();
            for change in changes(&judged, &table) {
                match change {
                    RouteChange::Add(route) => {
                        prop_assert!(table.iter().all(|other| other.prefix != route.prefix));
                        table.push(route);
                    }
                    RouteChange::Replace { route, via, link } => {
                        let place = table.iter().position(|other| *other == route);
                        prop_assert!(place.is_some() && route.marked);
                        table[place.unwrap()] = Route { via: Some(via), link, ..route };
                    }
                    RouteChange::Remove(route) => {
                        prop_assert!(route.marked && table.contains(&route));
                        table.retain(|other| *other != route);
                    }
                }
            }
            prop_assert_eq!(table.iter().filter(|route| !route.marked).copied().collect::<Vec<_>>(), foreign);
            let ours: BTreeSet<Ipv4Net> = table.iter().filter(|route| route.marked).map(|route| route.prefix).collect();
            let expected: BTreeSet<Ipv4Net> = judged.iter().filter(|peer| peer.verdict.is_routed()).map(|peer| peer.subnet).chain(before.iter().map(|route| route.prefix)).collect();
            prop_assert_eq!(ours, expected);
            prop_assert!(changes(&judged, &table).is_empty());
        }
    }
}
