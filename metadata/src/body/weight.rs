//! The size of a value: small ones are rendered at once, all others on a thread where no client waits for them.

use model::{Entity as _, Map, Service, Value};

use crate::negotiate::Format;
use crate::tree::node::{Branch, Node, Series};
use crate::tree::{Scope, entities};

/// Most values of a place that is shown at once: writing them takes some 10 µs, far less than a connection costs.
const LIGHT_MAX: usize = 512;

/// About how many values a container or a service without its containers has.
const ENTITY: usize = 48;

/// More than can be shown at once.
const HEAVY: usize = LIGHT_MAX + 1;

/// Whether a place takes next to no time to show in this format.
pub(crate) fn is_light(node: &Node<'_>, format: Format) -> bool {
    // A listing names what stands one level below, the other formats show all.
    let weight = if format == Format::Text { width(node) } else { depth(node) };
    weight <= LIGHT_MAX
}

/// How many entries a map or list has.
fn width(node: &Node<'_>) -> usize {
    match node {
        Node::Value(value) => value_width(value),
        Node::Derived(value) => value_width(value),
        Node::NoList | Node::NoMap => 1,
        Node::Map(branch) => match branch {
            Branch::Plain(map) => map.len(),
            Branch::Answers { own, default } => own.map_or(0, Map::len) + default.map_or(0, Map::len),
            Branch::Container(_, container) => ENTITY.max(container.fields().len()),
            Branch::Service(_, service, _) => ENTITY.max(service.fields().len()),
            Branch::Stack(_, stack) => ENTITY.max(stack.fields().len()),
            Branch::Host(host, _) => ENTITY.max(host.fields().len()),
            Branch::Root(_) | Branch::Own(_) => ENTITY,
        },
        Node::List(series) => elements(series),
    }
}

/// About how many values there are in a place, and in what it holds.
fn depth(node: &Node<'_>) -> usize {
    match node {
        Node::Value(value) => value_depth(value, HEAVY),
        Node::Derived(value) => value_depth(value, HEAVY),
        Node::NoList | Node::NoMap => 1,
        Node::Map(branch) => match *branch {
            Branch::Plain(map) => map_depth(map, HEAVY),
            Branch::Container(_, container) => ENTITY + map_depth(container.fields(), HEAVY),
            Branch::Host(host, _) => map_depth(host.fields(), HEAVY),
            Branch::Service(_, service, _) => service_depth(service),
            Branch::Stack(scope, stack) => stack_depth(scope, stack.uuid()),
            Branch::Own(scope) => {
                let parts = entities::OWN_KEYS.iter().filter_map(|key| entities::own_value(scope, key));
                parts.map(|part| depth(&part)).sum()
            }
            Branch::Root(_) | Branch::Answers { .. } => HEAVY,
        },
        Node::List(series) => match *series {
            Series::Plain(items) => list_depth(items, HEAVY),
            Series::Members(..) | Series::Containers(_) => elements(series).saturating_mul(ENTITY),
            Series::Stacked(scope, stack) => stack_depth(scope, stack.uuid()),
            _ if elements(series) == 0 => 1,
            _ => HEAVY,
        },
    }
}

fn elements(series: &Series<'_>) -> usize {
    match *series {
        Series::Plain(items) => items.len(),
        Series::Containers(scope) => scope.tree.containers().len(),
        Series::Services(scope) => scope.tree.services().len(),
        Series::Stacks(scope) => scope.tree.stacks().len(),
        Series::Hosts(scope) => scope.tree.hosts().len(),
        Series::Networks(scope) => scope.tree.networks().len(),
        Series::Environments(scope) => scope.tree.externals().len(),
        Series::Members(_, service) => service.members().len(),
        Series::Stacked(scope, stack) => scope.tree.services_of(stack.uuid()).len(),
    }
}

fn service_depth(service: &Service) -> usize {
    ENTITY + map_depth(service.fields(), HEAVY) + service.members().len().saturating_mul(ENTITY)
}

fn stack_depth(scope: Scope<'_>, stack: &str) -> usize {
    let services = scope.tree.services_of(stack);
    // Each weighs so much at least that no more of them need to be looked at.
    ENTITY + services.iter().take(HEAVY / ENTITY + 1).map(|service| service_depth(service)).sum::<usize>()
}

fn value_width(value: &Value) -> usize {
    match value {
        Value::Map(map) => map.len(),
        Value::List(items) => items.len(),
        _ => 1,
    }
}

/// How many values there are, counted up to `most`.
fn value_depth(value: &Value, most: usize) -> usize {
    match value {
        Value::Map(map) => map_depth(map, most),
        Value::List(items) => list_depth(items, most),
        _ => 1,
    }
}

fn map_depth(map: &Map, most: usize) -> usize {
    count(map.iter().map(|(_, value)| value), most)
}

fn list_depth(items: &[Value], most: usize) -> usize {
    count(items.iter(), most)
}

fn count<'v>(values: impl Iterator<Item = &'v Value>, most: usize) -> usize {
    let mut counted = 1;
    for value in values {
        if counted >= most {
            break;
        }
        counted += value_depth(value, most - counted);
    }
    counted
}
