//! Two programs that want one route differently: ours is not written again and again.

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::Ipv4Net;
use platform::route::{Link, RouteChange};

use crate::plan::Plan;
use crate::step::Step;

/// The time in which additions of one route are counted, and the pause between two of a route that is fought over.
const WINDOW: Duration = Duration::from_mins(1);

/// How often a route is added within [`WINDOW`] before the other program is believed to mean it: a person who deletes a route
/// by hand does that once or twice.
const ADDED_MAX: usize = 5;

/// The routes that were added of late.
#[derive(Debug, Default)]
pub struct Fights {
    added: BTreeMap<Ipv4Net, Added>,
    links: Vec<Link>,
}

#[derive(Debug, Default)]
struct Added {
    /// When, within the last [`WINDOW`].
    at: Vec<Duration>,
    /// The next time that it is added, once it is fought over.
    next: Option<Duration>,
}

impl Fights {
    /// Takes the additions out of the plan that are to wait, and puts a finding in for each. Returns when the first of them is
    /// due. Times are since any moment before.
    pub fn hold(&mut self, plan: &mut Plan, links: &[Link], now: Duration) -> Option<Duration> {
        // The kernel removes the routes over an interface that goes down: that is no fight.
        if self.links != links {
            self.links = links.to_vec();
            self.added.clear();
        }
        self.added.retain(|_, added| {
            added.at.retain(|at| now.saturating_sub(*at) < WINDOW);
            !added.at.is_empty() || added.next.is_some_and(|next| now < next + WINDOW)
        });
        let mut due: Option<Duration> = None;
        let Plan { steps, findings, .. } = plan;
        steps.retain(|step| {
            let Step::Route(RouteChange::Add(route)) = step else { return true };
            let added = self.added.entry(route.prefix).or_default();
            if added.next.is_none() && added.at.len() >= ADDED_MAX {
                added.next = Some(now + WINDOW);
            }
            match added.next {
                Some(next) if now < next => {
                    due = Some(due.map_or(next, |due| due.min(next)));
                    findings.push(format!(
                        "the route to {} was removed {ADDED_MAX} times within a minute by another program; it is added once a \
                         minute until that ends",
                        route.prefix
                    ));
                    false
                }
                next => {
                    added.next = next.map(|_| now + WINDOW);
                    added.at.push(now);
                    true
                }
            }
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use platform::route::Route;

    use super::*;

    fn plan(index: u8) -> Plan {
        let prefix = Ipv4Net::new(Ipv4Addr::new(10, 42, index, 0), 24).unwrap();
        let route = Route::marked(prefix, Ipv4Addr::new(192, 0, 2, index), 2);
        Plan { steps: vec![Step::Route(RouteChange::Add(route))], ..Plan::default() }
    }

    #[test]
    fn a_route_that_is_removed_again_and_again_is_added_once_a_minute() {
        let mut fights = Fights::default();
        let mut added = |index, seconds: u64| {
            let mut plan = plan(index);
            let due = fights.hold(&mut plan, &[], Duration::from_secs(seconds));
            assert_eq!(plan.steps.is_empty(), due.is_some());
            assert_eq!(plan.findings.len(), usize::from(due.is_some()));
            !plan.steps.is_empty()
        };
        let times = [(0, true), (1, true), (2, true), (3, true), (4, true), (5, false), (6, false), (64, false)];
        for (seconds, expected) in times {
            assert_eq!(added(1, seconds), expected, "{seconds}");
        }
        // The others do not wait.
        assert!(added(2, 6));
        for (seconds, expected) in [(65, true), (66, false), (124, false), (125, true), (126, false)] {
            assert_eq!(added(1, seconds), expected, "{seconds}");
        }
        // After a minute without it is over.
        assert!((0..5).all(|second| added(1, 250 + second)) && !added(1, 255));
    }

    #[test]
    fn an_interface_that_goes_up_and_down_is_no_fight() {
        let (mut fights, now) = (Fights::default(), Duration::ZERO);
        let link = |up| {
            let (name, id) = ("eth0".to_owned(), "eth0".to_owned());
            Link { index: 2, name, id, up, mtu: 1500, metric: 0, addresses: Vec::new() }
        };
        for turn in 0..20 {
            assert_eq!(fights.hold(&mut plan(1), &[link(turn % 2 == 0)], now), None);
        }
    }
}
