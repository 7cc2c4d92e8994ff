//! Which containers of each host others check: as many as cost a bounded number of checks, so that no host takes all the time of its
//! checkers. Its own host checks the others, and every host computes the same, so that nothing has to be agreed upon.

use std::collections::{BTreeSet, HashMap};

use model::{Container, Entity as _, Table, Text, changes};

use crate::spec::{CheckedFrom, Spec};
use crate::target::check_of;

/// Most checks in 1,000 s that all containers of one host cost together, were they all initializing: 1,000 containers with an interval
/// of 500 ms or more, or 200 with the shortest one. It is some times what a host runs, and a fifth of a processor.
const CHECKS_OF_HOST_MAX: u64 = 2_000_000;

/// What a container costs, and its uuid: the cheaper ones come first, so that one that is asked more often than others displaces none.
type Cost = (u64, Text);

/// The containers of all hosts that others could check.
#[derive(Debug, Default)]
pub(crate) struct Budget(HashMap<Text, OfHost>);

#[derive(Debug, Default)]
struct OfHost {
    costs: BTreeSet<Cost>,
    sum: u64,
    /// The first one that is too much.
    end: Option<Cost>,
}

impl Budget {
    /// Takes in what has changed in the containers; returns those that are within the budget now and were not, or the other way round.
    pub(crate) fn take_in(&mut self, old: &Table<Container>, new: &Table<Container>) -> BTreeSet<Text> {
        let mut touched = BTreeSet::new();
        for change in changes(old, new) {
            let (before, after) = change.sides();
            if let Some((host, cost)) = before.and_then(|container| cost(container))
                && let Some(of_host) = self.0.get_mut(&host)
            {
                of_host.remove(&cost);
                touched.insert(host);
            }
            if let Some((host, cost)) = after.and_then(|container| cost(container)) {
                self.0.entry(host.clone()).or_default().add(cost);
                touched.insert(host);
            }
        }
        let mut moved = BTreeSet::new();
        for host in touched {
            let Some(of_host) = self.0.get_mut(&host) else { continue };
            moved.extend(of_host.settle());
            if of_host.costs.is_empty() {
                self.0.remove(&host);
            }
        }
        moved
    }

    /// Whether a container is too much for others to check it.
    pub(crate) fn is_beyond(&self, container: &Container) -> bool {
        let is_beyond = |(host, cost): (Text, Cost)| self.0.get(&host)?.end.as_ref().map(|end| cost >= *end);
        cost(container).and_then(is_beyond).unwrap_or_default()
    }

    /// How many of a host are.
    pub(crate) fn beyond(&self, host: &str) -> usize {
        let end = |of_host: &OfHost| Some(of_host.costs.range(of_host.end.clone()?..).count());
        self.0.get(host).and_then(end).unwrap_or_default()
    }
}

impl OfHost {
    fn add(&mut self, cost: Cost) {
        let checks = cost.0;
        if self.costs.insert(cost) {
            self.sum += checks;
        }
    }

    fn remove(&mut self, cost: &Cost) {
        if self.costs.remove(cost) {
            self.sum -= cost.0;
        }
    }

    /// Finds the first one that is too much; returns those between the one of before and that. Costs as many as are within the budget,
    /// and only where there are more.
    fn settle(&mut self) -> Vec<Text> {
        let mut sum = 0;
        let is_too_much = |cost: &&Cost| {
            sum += cost.0;
            sum > CHECKS_OF_HOST_MAX
        };
        let end = if self.sum > CHECKS_OF_HOST_MAX { self.costs.iter().find(is_too_much).cloned() } else { None };
        let before = std::mem::replace(&mut self.end, end);
        let moved = match (before, &self.end) {
            (None, None) => return Vec::new(),
            (Some(one), None) => self.costs.range(one..),
            (None, Some(one)) => self.costs.range(one.clone()..),
            (Some(one), Some(other)) => self.costs.range(one.clone().min(other.clone())..one.max(other.clone())),
        };
        moved.map(|(_, uuid)| uuid.clone()).collect()
    }
}

/// The host of a container that others may check, and what that costs.
fn cost(container: &Container) -> Option<(Text, Cost)> {
    let host = container.host_uuid().filter(|_| container.runs())?;
    let spec = check_of(container.fields()).ok()??;
    may_be_asked_by_others(&spec).then(|| (host.clone(), (checks(&spec), container.uuid().clone())))
}

/// Whether other hosts than its own may ask a container so.
///
/// They send only requests that change nothing: a label of a container must not make them act on it.
pub(crate) fn may_be_asked_by_others(spec: &Spec) -> bool {
    spec.from != Some(CheckedFrom::Own) && spec.probe.is_safe()
}

/// Most checks of a container in 1,000 s.
fn checks(spec: &Spec) -> u64 {
    u64::try_from(1_000_000 / spec.shortest_period().as_millis().max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use model::Map;
    use proptest::prelude::*;
    use std::sync::Arc;

    use super::*;

    fn container(host: &str, uuid: &str, check: &str) -> Arc<Container> {
        let json = format!(r#"{{"uuid": "{uuid}", "host_uuid": "{host}", "health_check": {{"port": 80{check}}}}}"#);
        Arc::new(Container::new(serde_json::from_str(&json).unwrap(), Map::default()).unwrap())
    }

    fn table(containers: impl IntoIterator<Item = Arc<Container>>) -> Table<Container> {
        containers.into_iter().collect()
    }

    /// How many of these are within the budget of their host.
    fn within(budget: &Budget, containers: &Table<Container>, host: &str) -> usize {
        let of_host = containers.values().filter(|one| one.host_uuid().is_some_and(|of| &**of == host));
        of_host.filter(|one| !budget.is_beyond(one)).count()
    }

    const SHORT: &str = r#", "interval": 100"#;

    #[test]
    fn containers_of_one_host_cost_a_bounded_number_of_checks() {
        for (check, expected) in [("", 1000), (SHORT, 200), (r#", "interval": 3600000"#, 1000)] {
            let mut budget = Budget::default();
            let many = (0..3000).map(|number| container("liar", &format!("c{number}"), check));
            let many = table(many.chain([container("honest", "c", check)]));
            budget.take_in(&Table::default(), &many);
            assert_eq!((within(&budget, &many, "liar"), budget.beyond("liar")), (expected, 3000 - expected), "{check}");
            // Another host has a budget of its own.
            assert_eq!((within(&budget, &many, "honest"), budget.beyond("honest")), (1, 0));
            budget.take_in(&many, &Table::default());
            assert!(budget.0.is_empty());
        }
    }

    #[test]
    fn what_is_asked_more_often_displaces_none() {
        let mut budget = Budget::default();
        let usual: Vec<_> = (0..500).map(|number| container("h", &format!("u{number}"), "")).collect();
        let greedy = (0..1000).map(|number| container("h", &format!("a{number}"), SHORT));
        let all = table(usual.iter().cloned().chain(greedy));
        budget.take_in(&Table::default(), &all);
        assert!(usual.iter().all(|one| !budget.is_beyond(one)));
        assert_eq!(within(&budget, &all, "h"), 600);
    }

    #[test]
    fn what_others_may_not_ask_costs_them_nothing() {
        let mut budget = Budget::default();
        let checks = [
            r#", "request_line": "POST / HTTP/1.0", "interval": 100"#,
            r#", "interval": 100}, "state": "stopped", "x": {"y": 1"#,
        ];
        for check in checks {
            let many = table((0..300).map(|number| container("h", &format!("c{number}"), check)));
            budget.take_in(&Table::default(), &many);
            assert_eq!(budget.beyond("h"), 0, "{check}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// After any changes it is what it would be from the beginning, and says which containers are concerned.
        #[test]
        fn it_follows_changes(steps in prop::collection::vec(prop::collection::btree_set(0..260_usize, 0..260), 1..5)) {
            let mut budget = Budget::default();
            let (mut before, mut beyond) = (Table::default(), BTreeSet::new());
            for step in steps {
                let check = |number: usize| if number.is_multiple_of(3) { "" } else { SHORT };
                let now = table(step.iter().map(|number| container("h", &format!("c{number}"), check(*number))));
                let moved = budget.take_in(&before, &now);
                let mut other = Budget::default();
                other.take_in(&Table::default(), &now);
                let is = |budget: &Budget| -> BTreeSet<Text> {
                    let beyond = now.values().filter(|one| budget.is_beyond(one));
                    beyond.map(|one| one.uuid().clone()).collect()
                };
                prop_assert_eq!(is(&budget), is(&other));
                for uuid in is(&budget).symmetric_difference(&beyond) {
                    let is_old = before.get(uuid).is_some() && now.get(uuid).is_some();
                    prop_assert!(!is_old || moved.contains(uuid), "{} is not said to have moved", uuid);
                }
                (before, beyond) = (now.clone(), is(&budget));
            }
        }
    }
}
