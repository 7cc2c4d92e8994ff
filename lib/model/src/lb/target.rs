//! Rules of targets: those that a balancer's selector finds, in documents and in labels.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::LbConfig;
use super::order::Tier;
use super::plan::Planned;
use super::rule::{HostPattern, PortRule};
use super::selector::Selector;
use crate::defect::Defect;
use crate::entity::{Entity as _, Service};
use crate::snapshot::Snapshot;
use crate::value::{Map, Text, Value};

/// What the labels of a target begin with: `io.berth.lb.host`, `path`, `port`, `priority`.
const LABEL: &str = "io.berth.lb.";

/// The label that says which hosts a service's own rule is for.
const HOST_LABEL: &str = "io.berth.lb.host";

/// Field of a service whose labels name hosts that belong to another tenant: the name of that one. It is not on the wire.
pub const HOSTS_OF: &str = "hosts_of_tenant";

/// Label of a service whose own rules are not to be used, such as a balancer behind a balancer.
const SKIP: &str = "io.rancher.lb_service.skip_target_lb_rules";

/// The rules that come of a balancer's rule with a selector.
pub(super) fn rules(
    snapshot: &Snapshot,
    balancer: &Service,
    rule: &PortRule,
    selector: &Selector,
    at: &str,
    defects: &mut Vec<Defect>,
) -> Vec<Planned> {
    let services = snapshot.services.values().filter(|service| service.id() != balancer.id());
    let found: Vec<_> = services.filter(|service| selector.matches(service.labels())).cloned().collect();
    let ranks = ranks(snapshot, &found);
    let mut planned = Vec::new();
    for service in &found {
        let path = super::plan::path(service);
        let own = |rule: PortRule, tier: Tier, at: String| Planned {
            foreign: service.stack_name() != balancer.stack_name(),
            rule,
            tier,
            targets: vec![service.clone()],
            container: None,
            at,
        };
        let skips = label(service, SKIP).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let config = service.fields().get("lb_config").filter(|config| !config.is_null() && !skips);
        if let Some(config) = config {
            for (number, target) in LbConfig::read_of_target(config, &path, defects).rules {
                let target = PortRule {
                    source_port: rule.source_port,
                    protocol: rule.protocol,
                    weight: rule.weight,
                    target_port: target.target_port.or(rule.target_port),
                    ..target
                };
                planned.push(own(target, Tier::Document, format!("{path}/lb_config/port_rules/{number}")));
            }
            continue;
        }
        match of_labels(service, rule).filter(|_| !skips) {
            Some(Ok(target)) => {
                let rank = service.stack_name().and_then(|stack| ranks.get(stack)).copied().unwrap_or_default();
                planned.push(own(target, Tier::Labels(rank), format!("{path}/labels/{HOST_LABEL}")));
            }
            Some(Err(problem)) => defects.push(Defect::ignored(format!("{path}/labels"), problem)),
            // The balancer's own rule, for all services that it finds.
            None => {
                let known = planned.iter_mut().find(|planned: &&mut Planned| planned.at == at);
                if let Some(planned) = known {
                    planned.targets.push(service.clone());
                } else {
                    let rule = rule.clone();
                    planned.push(Planned { foreign: false, ..own(rule, Tier::Document, at.to_owned()) });
                }
            }
        }
    }
    if planned.is_empty() {
        let (rule, targets) = (rule.clone(), Vec::new());
        planned.push(Planned {
            rule,
            tier: Tier::Document,
            foreign: false,
            targets,
            container: None,
            at: at.to_owned(),
        });
    }
    planned
}

/// The rule in the labels of a service; `None` if it has none.
fn of_labels(service: &Service, rule: &PortRule) -> Option<Result<PortRule, String>> {
    let fields: Map = ["host", "path", "port", "priority"]
        .into_iter()
        .filter_map(|key| Some((key, label(service, &[LABEL, key].concat())?)))
        .map(|(key, value)| {
            let field = match key {
                "host" => "hostname",
                "port" => "target_port",
                other => other,
            };
            (Text::from(field), Value::Text(value.clone()))
        })
        .collect();
    if fields.is_empty() {
        return None;
    }
    Some(PortRule::read_of_target(&fields).and_then(|target| {
        // What is for all hosts would be a wall for the rules of other stacks.
        if rule.protocol.has_hosts() && target.host == HostPattern::Any {
            return Err(format!("{HOST_LABEL} is missing: a rule for all hosts is the balancer's to say"));
        }
        if let Some(tenant) = service.fields().text(HOSTS_OF) {
            return Err(format!("{HOST_LABEL}: {} belongs to {tenant}, and this stack does not", target.host));
        }
        Ok(PortRule {
            source_port: rule.source_port,
            protocol: rule.protocol,
            weight: rule.weight,
            target_port: target.target_port.or(rule.target_port),
            ..target
        })
    }))
}

/// Which stack's labels come first: those of stacks that a document names, then those of the stack with the oldest service.
///
/// No label can make a stack older.
fn ranks(snapshot: &Snapshot, services: &[Arc<Service>]) -> BTreeMap<Text, usize> {
    let mut ages: BTreeMap<Text, (bool, i64)> = BTreeMap::new();
    for service in services {
        let Some(name) = service.stack_name() else { continue };
        let stack = service.stack_uuid().and_then(|uuid| snapshot.stacks.get(uuid));
        let by_labels = stack.is_none_or(|stack| stack.is_from_labels());
        let members = service.members().iter().filter_map(|uuid| snapshot.containers.get(uuid));
        let oldest = members.map(|member| member.create_index()).min().unwrap_or(i64::MAX);
        let age = ages.entry(name.clone()).or_insert((by_labels, oldest));
        age.1 = age.1.min(oldest);
    }
    let mut order: Vec<_> = ages.into_iter().collect();
    order.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    order.into_iter().enumerate().map(|(rank, (name, _))| (name, rank)).collect()
}

/// The hosts that the labels of a service have requests led to it for; `None` if they name none.
pub fn hosts_of_labels(service: &Service) -> Option<HostPattern> {
    HostPattern::parse(label(service, HOST_LABEL)?).ok().filter(|host| *host != HostPattern::Any)
}

/// A label of a service.
pub(super) fn label<'s>(service: &'s Service, key: &str) -> Option<&'s Text> {
    service.labels()?.text(key)
}
