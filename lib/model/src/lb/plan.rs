//! The plan of a balancer: its ports, for each the rules in their order, and what each leads to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use super::config::LbConfig;
use super::members::{Finder, LeftOut, Locality, Member};
use super::order::{Tier, key};
use super::rule::{HostPattern, PortRule, Protocol, Stickiness, Target, lowercase};
use super::target::{label, rules};
use crate::defect::Defect;
use crate::entity::{Container, Entity as _, Service};
use crate::snapshot::Snapshot;
use crate::value::Text;

/// Label of a balancer: which containers it uses.
const TARGET_LABEL: &str = "io.rancher.lb_service.target";

/// Label of a balancer that wants the predecessor's order of nested paths.
const ORDER_LABEL: &str = "io.berth.lb.order";

/// From where a balancer looks at the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Viewpoint {
    /// The uuid of its host; the snapshot's own host without it.
    pub host: Option<Text>,
    /// Percentage of healthy members below which health is not believed, as for names.
    pub panic_threshold: u8,
}

/// What a balancer does; equal inputs give equal plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbPlan {
    /// The ports, in order.
    pub ports: Vec<Port>,
    /// What rules lead to; rules name them by their place here.
    pub backends: Vec<Backend>,
    /// Clients stay with their member.
    pub stickiness: Option<Stickiness>,
    /// Names of certificates.
    pub certificates: Vec<Text>,
    /// The certificate for clients that ask for no known name.
    pub default_certificate: Option<Text>,
    /// Lines for HAProxy, from a document.
    pub config: Option<Text>,
    /// What is wrong; everything else is unharmed.
    pub defects: Vec<Defect>,
}

/// A port that the balancer listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// What is spoken there.
    pub protocol: Protocol,
    /// The rules; the first one that matches counts.
    pub routes: Vec<Route>,
}

/// A rule in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The hosts that it is for.
    pub host: HostPattern,
    /// The beginning of the paths that it is for, in lower case.
    pub path: Text,
    /// The backend, by its place.
    pub backend: usize,
    /// Where the rule is written.
    pub at: String,
}

/// What a rule leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its name, which no other backend has.
    pub name: Text,
    /// What is spoken on its port.
    pub protocol: Protocol,
    /// Where it leads, in order; empty is answered with 503.
    pub members: Vec<Member>,
    /// Where it does not lead, and why.
    pub left_out: Vec<LeftOut>,
}

/// A rule with what it leads to.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) rule: PortRule,
    pub(super) tier: Tier,
    /// Whether it is of another stack than the balancer.
    pub(super) foreign: bool,
    pub(super) targets: Vec<Arc<Service>>,
    pub(super) container: Option<Arc<Container>>,
    pub(super) at: String,
}

/// The service of this name, `stack/service`.
pub fn find<'s>(snapshot: &'s Snapshot, path: &str) -> Option<&'s Arc<Service>> {
    let (stack, name) = path.split_once('/')?;
    snapshot.services.values().find(|service| {
        service.name().is_some_and(|own| own.eq_ignore_ascii_case(name))
            && service.stack_name().is_some_and(|own| own.eq_ignore_ascii_case(stack))
    })
}

/// How messages name a service.
pub(super) fn path(service: &Service) -> String {
    let stack = service.stack_name().map_or("", |stack| stack);
    format!("services/{stack}/{}", service.name().map_or("", |name| name))
}

impl LbPlan {
    /// The plan of a balancer.
    pub fn of(snapshot: &Snapshot, balancer: &Service, view: &Viewpoint) -> Self {
        let at = path(balancer);
        let mut defects = Vec::new();
        let locality = match label(balancer, TARGET_LABEL).map_or("", |value| value) {
            "" | "any" => Locality::Any,
            "only-local" => Locality::Only,
            "prefer-local" => Locality::Prefer,
            _ => {
                let problem = "expected any, only-local or prefer-local".to_owned();
                defects.push(Defect::ignored(format!("{at}/labels/{TARGET_LABEL}"), problem));
                Locality::Any
            }
        };
        let nothing = crate::value::Value::Null;
        let config = LbConfig::read(balancer.fields().get("lb_config").unwrap_or(&nothing), &at, &mut defects);
        let mut finder = Finder::new(snapshot, view, locality);
        let services = named(snapshot, &config);
        let mut planned: Vec<Planned> = Vec::with_capacity(config.rules.len());
        let prefix = format!("{at}/lb_config/port_rules/");
        for (number, rule) in config.rules {
            // Its capacity is not known to `format!`.
            let mut at = String::with_capacity(prefix.len() + 5);
            let _ = write!(at, "{prefix}{number}");
            let (mut targets, mut container) = (Vec::new(), None);
            match &rule.target {
                Some(Target::Selector(selector)) => {
                    planned.extend(rules(snapshot, balancer, &rule, selector, &at, &mut defects));
                    continue;
                }
                Some(Target::Service { environment, path }) => {
                    targets.extend(match environment {
                        None => services.get(path).and_then(|service| service.cloned()),
                        Some(environment) => elsewhere(snapshot, environment, path),
                    });
                }
                Some(Target::Container(name)) => {
                    let mut named = snapshot.containers.values().filter(|container| container.runs());
                    let is_it = |own: &Text| own.eq_ignore_ascii_case(name);
                    container = named.find(|container| container.name().is_some_and(is_it)).cloned();
                }
                None => {}
            }
            if targets.is_empty() && container.is_none() {
                defects.push(Defect::ignored(&*at, "there is nothing of that name to lead to: its clients get 503"));
            }
            planned.push(Planned { tier: Tier::Document, foreign: false, targets, container, at, rule });
        }
        let original = label(balancer, ORDER_LABEL).is_some_and(|value| &**value == "original");
        let mut plan = Self {
            stickiness: config.stickiness,
            certificates: config.certificates,
            default_certificate: config.default_certificate,
            config: config.config,
            ..Self::default()
        };
        finder.prepare(&planned);
        plan.arrange(planned, original, &finder, &mut defects);
        defects.sort_by(|a, b| (&a.path, &a.problem).cmp(&(&b.path, &b.problem)));
        defects.dedup();
        plan.defects = defects;
        plan
    }

    fn arrange(&mut self, planned: Vec<Planned>, original: bool, finder: &Finder<'_>, defects: &mut Vec<Defect>) {
        let mut ports: BTreeMap<u16, (Protocol, Vec<(usize, Planned)>)> = BTreeMap::new();
        for (position, mut planned) in planned.into_iter().enumerate() {
            let rule = &mut planned.rule;
            let port = ports.entry(rule.source_port).or_insert_with(|| (rule.protocol, Vec::new()));
            if rule.protocol != port.0 {
                let problem = format!("port {} speaks {} by an earlier rule", rule.source_port, port.0.name());
                defects.push(Defect::hidden(planned.at, problem));
                continue;
            }
            if (!rule.protocol.has_hosts() && rule.host != HostPattern::Any)
                || (!rule.protocol.is_http() && !rule.path.is_empty())
            {
                let problem =
                    format!("{} sees no such thing: its hostname or path counts for nothing", rule.protocol.name());
                defects.push(Defect::ignored(&*planned.at, problem));
            }
            if !rule.protocol.has_hosts() {
                rule.host = HostPattern::Any;
            }
            if !rule.protocol.is_http() {
                rule.path = "".into();
            }
            if rule.target_port.is_none() {
                defects.push(Defect::ignored(&*planned.at, "target_port is missing: its clients get 503"));
            }
            port.1.push((position, planned));
        }
        // No rule gives the name of a backend without one.
        let mut names: HashSet<Text> = HashSet::new();
        let mut unnamed = "b".to_owned();
        for (number, (protocol, mut rules)) in ports {
            rules.sort_by_cached_key(|(position, planned)| {
                key(&planned.rule, planned.tier, planned.foreign, original, *position)
            });
            let mut routes: Vec<Route> = Vec::with_capacity(rules.len());
            let mut known: HashMap<(HostPattern, Text), (usize, Tier)> = HashMap::with_capacity(rules.len());
            for (_, mut planned) in rules {
                let place = (planned.rule.host.clone(), planned.rule.path.clone());
                if let Some((backend, tier)) = known.get(&place).copied() {
                    let same = tier == planned.tier || !matches!(planned.tier, Tier::Labels(_));
                    if same {
                        let backend = &mut self.backends[backend];
                        finder.find(&planned, &mut backend.members, &mut backend.left_out);
                    } else {
                        let problem = "a document or an older stack has this host and path already";
                        defects.push(Defect::hidden(planned.at, problem));
                    }
                    continue;
                }
                let index = self.backends.len();
                let name = planned.rule.backend_name.take().filter(|wanted| {
                    let is_free = names.insert(wanted.clone());
                    if !is_free {
                        let problem = format!("backend_name: {wanted} is the name of another rule's backend");
                        defects.push(Defect::ignored(&*planned.at, problem));
                    }
                    is_free
                });
                let name = name.unwrap_or_else(|| {
                    unnamed.truncate(1);
                    let _ = write!(unnamed, "{}", index + 1);
                    unnamed.as_str().into()
                });
                let mut backend = Backend { name, protocol, members: Vec::new(), left_out: Vec::new() };
                finder.find(&planned, &mut backend.members, &mut backend.left_out);
                known.insert(place, (index, planned.tier));
                self.backends.push(backend);
                let Planned { rule: PortRule { host, path, .. }, at, .. } = planned;
                routes.push(Route { host, path, backend: index, at });
            }
            self.ports.push(Port { number, protocol, routes });
        }
        for backend in &mut self.backends {
            backend.members.sort();
            backend.members.dedup_by(|b, a| a.place == b.place);
            backend.left_out.sort();
            backend.left_out.dedup();
        }
    }

    /// The rule that a request matches; the host may have a port, which does not count.
    pub fn route(&self, port: u16, host: &str, path: &str) -> Option<&Route> {
        let routes = &self.ports.iter().find(|own| own.number == port)?.routes;
        let (host, path) = (host.to_ascii_lowercase(), path.to_ascii_lowercase());
        let host = match host.rsplit_once(':') {
            Some((name, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &host,
        };
        routes.iter().find(|route| route.matches(host, &path))
    }
}

impl Route {
    /// Whether it is for this host and path, both in lower case.
    pub fn matches(&self, host: &str, path: &str) -> bool {
        self.host.matches(host) && path.starts_with(&*self.path)
    }
}

/// The services that rules name, by what they are called there: the path, in lower case.
fn named<'s>(snapshot: &'s Snapshot, config: &LbConfig) -> HashMap<Text, Option<&'s Arc<Service>>> {
    let path = |rule: &PortRule| match &rule.target {
        Some(Target::Service { environment: None, path }) => Some((path.clone(), None)),
        _ => None,
    };
    let mut named: HashMap<Text, Option<&Arc<Service>>> = HashMap::with_capacity(config.rules.len());
    named.extend(config.rules.iter().filter_map(|(_, rule)| path(rule)));
    if named.is_empty() {
        return named;
    }
    // One for all of them: a cluster has many more than a balancer names.
    let mut own = String::new();
    for service in snapshot.services.values() {
        own.clear();
        own.push_str(service.stack_name().map_or("", |stack| stack));
        own.push('/');
        own.push_str(service.name().map_or("", |name| name));
        if let Some(found @ None) = named.get_mut(&*lowercase(&own)) {
            *found = Some(service);
        }
    }
    named
}

/// A service of another environment.
fn elsewhere(snapshot: &Snapshot, environment: &str, path: &str) -> Option<Arc<Service>> {
    let is_it = |one: &&Arc<Snapshot>| {
        let name = one.environment.as_ref().and_then(|fields| fields.text("name"));
        name.is_some_and(|name| name.eq_ignore_ascii_case(environment))
    };
    find(snapshot.externals.iter().find(is_it)?, path).cloned()
}

#[cfg(test)]
mod cases;

#[cfg(test)]
mod tests;
