//! Which containers are hidden since most of their checkers say that they are not well, while their host is silent.
//!
//! Each follower computes the checkers itself, so that one host alone hides no container of another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use model::checkers::{ALL, CHECKER, Hosts, QUORUM};
use model::health::has_check;
use model::unwell::{REASON, SINCE, reason_of};
use model::votes::{SAID_BY_HOST, START, start};
use model::{About, Container, Entity as _, Fingerprint, Host, Map, Table, Text, Value};

use super::order::marked;
use super::part::host_of;

/// Fewest checkers that have to agree. Where there could be only one it hides nothing: then no second host can confirm its word.
const AGREEING_MIN: usize = 2;

/// What a container that is hidden is.
const UNHEALTHY: &str = "unhealthy";

/// What checkers say while hosts are silent.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// By the container, and the checker's name: for which start of the container, and why.
    said: BTreeMap<About, BTreeMap<Text, (i64, Text)>>,
    /// The hosts that check, and the fingerprint of the table that they were taken from.
    hosts: Option<(Fingerprint, Hosts)>,
    /// The checkers of the containers in `said`, for those hosts.
    checkers: HashMap<About, BTreeSet<Text>>,
}

impl Overrides {
    /// From now on a checker says this of a container, or nothing.
    pub(super) fn set(&mut self, checker: &Text, about: &About, value: Option<&Map>) {
        if let Some(value) = value {
            let start = value.int(START).unwrap_or_default();
            let reason = value.text("reason").cloned().unwrap_or_default();
            self.said.entry(about.clone()).or_default().insert(checker.clone(), (start, reason));
            return;
        }
        let Some(said) = self.said.get_mut(about) else { return };
        said.remove(checker);
        if said.is_empty() {
            self.said.remove(about);
            self.checkers.remove(about);
        }
    }

    /// The same containers, those hidden that are overridden, but for those of the host whose part `local` is: it knows itself.
    /// Costs what is overridden.
    pub(super) fn over(
        &mut self,
        mut containers: Table<Container>,
        hosts: &Table<Host>,
        local: Option<&Text>,
    ) -> Table<Container> {
        if self.said.is_empty() {
            (self.hosts, self.checkers) = (None, HashMap::new());
            return containers;
        }
        if self.hosts.as_ref().is_none_or(|(of, _)| *of != hosts.fingerprint()) {
            (self.hosts, self.checkers) = (Some((hosts.fingerprint(), Hosts::of(hosts))), HashMap::new());
        }
        let Some((_, checking)) = &self.hosts else { return containers };
        let own = local.and_then(|part| host_of(part));
        for (about, said) in self.said.iter().filter(|(about, _)| own != Some(&*about.owner)) {
            let uuids = [about.container.clone(), marked(&about.container, &format!("hosts/{}", about.owner))];
            // Checkers have nothing to say of one that nobody checks, or whose host lets nobody check.
            let host_of = |container: &Container| container.host_uuid().and_then(|uuid| hosts.get(uuid));
            let is_owners = |container: &&Arc<Container>| {
                host_of(container)
                    .is_some_and(|host| host.name() == Some(&about.owner) && host.fields().text(CHECKER).is_some())
                    && has_check(container.fields())
            };
            let Some(container) = uuids.iter().find_map(|uuid| containers.get(uuid).filter(is_owners)).cloned() else {
                continue;
            };
            let checkers = self.checkers.entry(about.clone()).or_insert_with(|| {
                let chosen = checking.checkers(&about.container, Some(&about.owner));
                chosen.into_iter().map(|host| checking.name(host).into()).collect()
            });
            let of_now = start(container.fields());
            let says = |name: &&Text| said.get(*name).filter(|(of, _)| *of == of_now).map(|(_, reason)| &**reason);
            let agreeing = checkers.iter().filter(|name| says(name).is_some()).count();
            let wants_all =
                host_of(&container).and_then(|host| host.fields().text(QUORUM)).is_some_and(|word| **word == *ALL);
            let wanted = if wants_all { checkers.len() } else { checkers.len() / 2 + 1 };
            if agreeing < wanted.max(AGREEING_MIN) || container.health_state() == Some(UNHEALTHY) {
                continue;
            }
            let of_host = container.health_state().map_or(Value::Null, Value::text);
            let reason = reason_of(checkers.iter().map(|name| (&**name, says(&name))));
            let fields = container.fields().with([
                ("health_state".into(), Value::text(UNHEALTHY)),
                (SAID_BY_HOST.into(), of_host),
                (REASON.into(), Value::text(format!("{reason}; its own host does not answer"))),
                (SINCE.into(), Value::Null),
            ]);
            if let Some(hidden) = Container::new(fields, container.links().clone()) {
                containers.insert(Arc::new(hidden));
            }
        }
        containers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    fn hosts(names: &[&str]) -> Table<Host> {
        let host = |name: &&str| {
            let fields = map(&format!(r#"{{"uuid": "uuid-{name}", "name": "{name}", "health_checks": "made"}}"#));
            Arc::new(Host::new(fields, 0).unwrap())
        };
        names.iter().map(host).collect()
    }

    fn containers(starts: u8) -> Table<Container> {
        container_with(starts, r#""labels": {"io.berth.health.port": "80"}"#)
    }

    fn container_with(starts: u8, check: &str) -> Table<Container> {
        let fields = format!(
            r#"{{"uuid": "c", "host_uuid": "uuid-owner", "health_state": "healthy", "start_count": {starts}, {check}}}"#
        );
        [Arc::new(Container::new(map(&fields), Map::default()).unwrap())].into_iter().collect()
    }

    fn state(overrides: &mut Overrides, starts: u8, hosts: &Table<Host>) -> String {
        let over = overrides.over(containers(starts), hosts, Some(&"hosts/local".into()));
        let container = &over["c"];
        let of_host = container.fields().text(SAID_BY_HOST).map_or("", |state| state);
        format!("{} {of_host}", container.health_state().unwrap())
    }

    #[test]
    fn most_of_the_checkers_hide_a_container_and_none_else_does() {
        let all = hosts(&["owner", "a", "b", "c", "d", "e"]);
        let computed = Hosts::of(&all);
        let checkers: Vec<Text> =
            computed.checkers("c", Some("owner")).into_iter().map(|host| computed.name(host).into()).collect();
        let others: Vec<Text> =
            ["a", "b", "c", "d", "e"].map(Text::from).into_iter().filter(|name| !checkers.contains(name)).collect();
        let about = About { owner: "owner".into(), container: "c".into() };
        let of_start = |starts: u8| map(&format!(r#"{{"start": {starts}}}"#));
        let mut overrides = Overrides::default();
        let mut say = |who: &Text, what: Option<&Map>| {
            overrides.set(who, &about, what);
            state(&mut overrides, 1, &all)
        };
        // Hosts that are no checkers of it, however many, and one checker alone.
        for other in &others {
            assert_eq!(say(other, Some(&of_start(1))), "healthy ");
        }
        assert_eq!(say(&checkers[0], Some(&of_start(1))), "healthy ");
        // Of an earlier start.
        assert_eq!(say(&checkers[1], Some(&of_start(0))), "healthy ");
        assert_eq!(say(&checkers[1], Some(&of_start(1))), "unhealthy healthy");
        assert_eq!(say(&checkers[0], None), "healthy ");
        assert_eq!(say(&checkers[2], Some(&of_start(1))), "unhealthy healthy");
        // It was started again.
        assert_eq!(state(&mut overrides, 2, &all), "healthy ");
        // Of another host than the one that the key says.
        let stranger = About { owner: "a".into(), container: "c".into() };
        let mut overrides = Overrides::default();
        for checker in ["owner", "b", "c", "d", "e"] {
            overrides.set(&checker.into(), &stranger, Some(&of_start(1)));
        }
        assert_eq!(state(&mut overrides, 1, &all), "healthy ");
    }

    #[test]
    fn a_host_that_wants_all_checkers_to_agree_is_overridden_only_by_all() {
        let mut all = hosts(&["owner", "a", "b", "c"]);
        let owner = all["uuid-owner"].fields().with([(QUORUM.into(), Value::text(ALL))]);
        all.insert(Arc::new(Host::new(owner, 0).unwrap()));
        let about = About { owner: "owner".into(), container: "c".into() };
        let mut overrides = Overrides::default();
        let states = ["a", "b", "c"].map(|checker| {
            overrides.set(&checker.into(), &about, Some(&map(r#"{"start": 1}"#)));
            state(&mut overrides, 1, &all)
        });
        assert_eq!(states, ["healthy ", "healthy ", "unhealthy healthy"]);
    }

    #[test]
    fn nobody_hides_a_container_that_nobody_checks() {
        let about = About { owner: "owner".into(), container: "c".into() };
        let mut overrides = Overrides::default();
        for checker in ["a", "b", "c"] {
            overrides.set(&checker.into(), &about, Some(&map(r#"{"start": 1}"#)));
        }
        let mut state = |check: &str, hosts: &Table<Host>| {
            let over = overrides.over(container_with(1, check), hosts, Some(&"hosts/local".into()));
            over["c"].health_state().unwrap().to_owned()
        };
        let all = hosts(&["owner", "a", "b", "c"]);
        assert_eq!(state(r#""health_check": {"port": 80}"#, &all), "unhealthy");
        assert_eq!(state(r#""labels": {"io.berth.health.port": "80"}"#, &all), "unhealthy");
        assert_eq!(state(r#""labels": {"other": "80"}, "health_check": null"#, &all), "healthy");
        // Its host checks by itself, or not at all.
        let mut alone = all.clone();
        alone.insert(Arc::new(Host::new(map(r#"{"uuid": "uuid-owner", "name": "owner"}"#), 0).unwrap()));
        assert_eq!(state(r#""health_check": {"port": 80}"#, &alone), "healthy");
    }

    #[test]
    fn what_is_hidden_says_who_says_so() {
        let all = hosts(&["owner", "a", "b", "c"]);
        let mut overrides = Overrides::default();
        for checker in ["a", "c"] {
            let about = About { owner: "owner".into(), container: "c".into() };
            overrides.set(&checker.into(), &about, Some(&map(r#"{"start": 1, "reason": "connect: refused"}"#)));
        }
        let over = overrides.over(containers(1), &all, None);
        let expected = "2 of 3 hosts: connect: refused (a, c); b: well; its own host does not answer";
        assert_eq!(over["c"].fields().text(REASON).map(|reason| &**reason), Some(expected));
    }

    #[test]
    fn a_host_knows_its_own_containers() {
        let all = hosts(&["owner", "a", "b", "c"]);
        let mut overrides = Overrides::default();
        for checker in ["a", "b", "c"] {
            let about = About { owner: "owner".into(), container: "c".into() };
            overrides.set(&checker.into(), &about, Some(&map(r#"{"start": 1}"#)));
        }
        assert_eq!(state(&mut overrides, 1, &all), "unhealthy healthy");
        let here = overrides.over(containers(1), &all, Some(&"hosts/owner".into()));
        assert_eq!(here["c"].health_state(), Some("healthy"));
    }

    #[test]
    fn one_of_two_hosts_hides_nothing_of_the_other() {
        let two = hosts(&["owner", "a"]);
        let about = About { owner: "owner".into(), container: "c".into() };
        let mut overrides = Overrides::default();
        overrides.set(&"a".into(), &about, Some(&map(r#"{"start": 1}"#)));
        assert_eq!(state(&mut overrides, 1, &two), "healthy ");
    }
    #[test]
    fn the_only_host_that_checks_hides_nothing() {
        let all = hosts(&["liar"]);
        // Its host takes no part in the checks of others.
        let owner = map(r#"{"uuid": "uuid-owner", "name": "owner"}"#);
        let all: Table<Host> = all.values().cloned().chain([Arc::new(Host::new(owner, 0).unwrap())]).collect();
        let about = About { owner: "owner".into(), container: "c".into() };
        let mut overrides = Overrides::default();
        overrides.set(&"liar".into(), &about, Some(&map(r#"{"start": 1}"#)));
        assert_eq!(state(&mut overrides, 1, &all), "healthy ");
    }
}
