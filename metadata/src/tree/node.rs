//! A place in a tree, and the steps from it.
//!
//! Besides JSON's kinds of values there are two of the predecessor's program: a list and a map that were
//! never made. They are `null` in JSON, but a list and a map in a listing and in YAML.

use std::borrow::Cow;

use model::{Container, Entity, Host, Map, Network, Service, Stack, Value};

use crate::tree::entities;
use crate::tree::lower::lower;
use crate::tree::ordered::order;
use crate::tree::{Scope, Tree};

/// A place in a tree.
#[derive(Clone)]
pub(crate) enum Node<'t> {
    /// A value of the snapshot.
    Value(&'t Value),
    /// A value that a version changes.
    Derived(Value),
    /// A list that was never made.
    NoList,
    /// A map that was never made.
    NoMap,
    /// A map.
    Map(Branch<'t>),
    /// A list.
    List(Series<'t>),
}

/// The maps of a tree.
#[derive(Clone)]
pub(crate) enum Branch<'t> {
    /// A map of the snapshot.
    Plain(&'t Map),
    /// The whole tree.
    Root(Scope<'t>),
    /// Answers of an answers file; for keys that the client's own ones lack, the default ones.
    Answers {
        /// The client's own.
        own: Option<&'t Map>,
        /// Those for all clients.
        default: Option<&'t Map>,
    },
    /// `self`.
    Own(Scope<'t>),
    Container(Scope<'t>, &'t Container),
    /// A service; as `self/service` or in a list of services.
    Service(Scope<'t>, &'t Service, Sight),
    Stack(Scope<'t>, &'t Stack),
    /// A host, with or without its `hostId`.
    Host(&'t Host, HostId),
}

/// How a service is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sight {
    /// By one of its own containers, as `self/service`.
    Own,
    /// Among the others.
    Listed,
}

/// Whether a host shows its `hostId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostId {
    Shown,
    Dropped,
}

/// The lists of a tree.
#[derive(Clone)]
pub(crate) enum Series<'t> {
    /// A list of the snapshot.
    Plain(&'t [Value]),
    Containers(Scope<'t>),
    Services(Scope<'t>),
    Stacks(Scope<'t>),
    Hosts(Scope<'t>),
    Networks(Scope<'t>),
    /// The other environments.
    Environments(Scope<'t>),
    /// The containers of a service.
    Members(Scope<'t>, &'t Service),
    /// The services of a stack.
    Stacked(Scope<'t>, &'t Stack),
}

/// What the predecessor looked for in a list: an index and nothing else, or a name or uuid.
enum Sought<'s> {
    Index(Option<usize>),
    Name(&'s str),
}

impl<'t> Node<'t> {
    /// The place of a value.
    pub(crate) fn of(value: &'t Value) -> Self {
        match value {
            Value::Map(map) => Self::Map(Branch::Plain(map)),
            Value::List(items) => Self::List(Series::Plain(items)),
            _ => Self::Value(value),
        }
    }

    /// The place reached by these steps; `None` when there is none.
    pub(crate) fn walk<S: AsRef<str>>(self, steps: impl IntoIterator<Item = S>) -> Option<Self> {
        steps.into_iter().try_fold(self, |node, step| node.step(step.as_ref()))
    }

    /// One step: by key into a map; by index, or else by name or uuid, into a list.
    fn step(self, step: &str) -> Option<Self> {
        match self {
            Self::Map(branch) => branch.get(step),
            Self::List(series) => match Sought::new(step) {
                Sought::Index(index) => series.at(index?),
                Sought::Name(name) => series.find(name),
            },
            Self::Derived(Value::Map(map)) => map.get(step).cloned().map(Self::Derived),
            Self::Derived(Value::List(items)) => match Sought::new(step) {
                Sought::Index(index) => items.get(index?).cloned().map(Self::Derived),
                Sought::Name(name) => items.iter().find(|item| is_called(item, name)).cloned().map(Self::Derived),
            },
            Self::Value(_) | Self::Derived(_) | Self::NoList | Self::NoMap => None,
        }
    }

    /// The text, when this is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Value(value) => value.as_str(),
            Self::Derived(value) => value.as_str(),
            _ => None,
        }
    }

    /// Whether it is a map or a list, made or not.
    pub(crate) fn is_container(&self) -> bool {
        self.scalar().is_none()
    }

    /// The value, when it is neither a map nor a list.
    pub(crate) fn scalar(&self) -> Option<&Value> {
        let value = match self {
            Self::Value(value) => value,
            Self::Derived(value) => value,
            _ => return None,
        };
        (!matches!(value, Value::Map(_) | Value::List(_))).then_some(value)
    }

    /// The entries in the order of their keys, when it is a map.
    pub(crate) fn entries(&self) -> Option<Vec<(Cow<'_, str>, Node<'_>)>> {
        match self {
            Self::Map(branch) => Some(branch.entries()),
            Self::Derived(Value::Map(map)) => Some(plain_entries(map)),
            _ => None,
        }
    }

    /// The elements, when it is a list.
    pub(crate) fn elements(&self) -> Option<Box<dyn Iterator<Item = Node<'_>> + '_>> {
        match self {
            Self::List(series) => Some(series.elements()),
            Self::Derived(Value::List(items)) => Some(Box::new(items.iter().map(Node::of))),
            _ => None,
        }
    }

    /// The value of a key, when it is a map that has it.
    pub(crate) fn get(&self, key: &str) -> Option<Node<'_>> {
        match self {
            Self::Map(branch) => branch.get(key),
            Self::Derived(Value::Map(map)) => map.get(key).map(Node::of),
            _ => None,
        }
    }
}

impl<'t> Branch<'t> {
    fn get(&self, key: &str) -> Option<Node<'t>> {
        match *self {
            Self::Plain(map) => map.get(key).map(Node::of),
            Self::Root(scope) => entities::root_value(scope, key),
            Self::Answers { own, default } => {
                let value = own.and_then(|own| own.get(key)).or_else(|| default?.get(key));
                value.map(Node::of)
            }
            Self::Own(scope) => entities::own_value(scope, key),
            Self::Container(scope, container) => {
                entities::container_value(scope, container, key, container.fields().get(key))
            }
            Self::Service(scope, service, sight) => {
                entities::service_value(scope, service, sight, key, service.fields().get(key))
            }
            Self::Stack(scope, stack) => entities::stack_value(scope, stack, key, stack.fields().get(key)),
            Self::Host(host, id) => entities::host_value(id, key, host.fields().get(key)),
        }
    }

    fn entries(&self) -> Vec<(Cow<'t, str>, Node<'t>)> {
        match *self {
            Self::Plain(map) => plain_entries(map),
            Self::Root(scope) => named(entities::root_keys(scope), |key| entities::root_value(scope, key)),
            Self::Answers { own, default } => {
                let mut entries = own.map(plain_entries).unwrap_or_default();
                for (key, value) in default.into_iter().flatten() {
                    if own.is_none_or(|own| own.get(key).is_none()) {
                        entries.push((Cow::Borrowed(&**key), Node::of(value)));
                    }
                }
                entries.sort_by(|a, b| a.0.cmp(&b.0));
                entries
            }
            Self::Own(scope) => named(entities::OWN_KEYS.to_vec(), |key| entities::own_value(scope, key)),
            Self::Container(scope, container) => merged(container.fields(), &entities::CONTAINER_KEYS, |key, value| {
                entities::container_value(scope, container, key, value)
            }),
            Self::Service(scope, service, sight) => merged(service.fields(), &entities::SERVICE_KEYS, |key, value| {
                entities::service_value(scope, service, sight, key, value)
            }),
            Self::Stack(scope, stack) => merged(stack.fields(), &entities::STACK_KEYS, |key, value| {
                entities::stack_value(scope, stack, key, value)
            }),
            Self::Host(host, id) => merged(host.fields(), &[], |key, value| entities::host_value(id, key, value)),
        }
    }
}

impl<'t> Series<'t> {
    fn at(&self, index: usize) -> Option<Node<'t>> {
        match *self {
            Self::Plain(items) => items.get(index).map(Node::of),
            Self::Containers(scope) => scope.tree.containers().get(index).map(|it| container(scope, it)),
            Self::Services(scope) => scope.tree.services().get(index).map(|it| service(scope, it)),
            Self::Stacks(scope) => scope.tree.stacks().get(index).map(|it| stack(scope, it)),
            Self::Hosts(scope) => scope.tree.hosts().get(index).map(|it| host(scope, it)),
            Self::Networks(scope) => scope.tree.networks().get(index).map(|it| network(it)),
            Self::Environments(scope) => scope.tree.externals().get(index).and_then(|it| environment(scope, it)),
            Self::Members(scope, service) => scope.members(service).nth(index).map(|it| member(scope, it)),
            Self::Stacked(scope, stack) => scope.tree.services_of(stack.uuid()).get(index).map(|it| stacked(scope, it)),
        }
    }

    /// The first element whose name, or else whose uuid, is this.
    fn find(&self, name: &str) -> Option<Node<'t>> {
        match *self {
            Self::Plain(items) => items.iter().find(|item| is_called(item, name)).map(Node::of),
            Self::Containers(scope) => {
                let named = scope.tree.containers().named(name).iter();
                let named = named.filter(|it| is_named(&***it, name, scope.version.lowers()));
                // Hosts do not agree on names: a name that this host has stands for its own container here.
                let local = first(named.clone().filter(|it| scope.snapshot.is_local(it)));
                let found = local.or_else(|| first(named.chain(scope.snapshot.containers.get(name))));
                found.map(|it| container(scope, it))
            }
            Self::Services(scope) => {
                let named = scope.tree.services().named(name).iter();
                let named = named.filter(|it| is_named(&***it, name, scope.version.lowers()));
                first(named.chain(scope.launch_configurations(name))).map(|it| service(scope, it))
            }
            Self::Stacks(scope) => {
                let named = scope.tree.stacks().named(name).iter();
                let named = named.filter(|it| is_named(&***it, name, scope.version.lowers()));
                first(named.chain(scope.snapshot.stacks.get(name))).map(|it| stack(scope, it))
            }
            Self::Hosts(scope) => {
                let named = scope.tree.hosts().named(name).iter().filter(|it| is_named(&***it, name, false));
                first(named.chain(scope.snapshot.hosts.get(name))).map(|it| host(scope, it))
            }
            Self::Members(scope, _) | Self::Stacked(scope, _) if scope.version.names_only() => None,
            Self::Members(scope, service) => {
                let is = |it: &&Container| is_named(*it, name, scope.version.lowers()) || &**it.uuid() == name;
                let local = scope.members(service).find(|it| is(it) && scope.snapshot.is_local(it));
                local.or_else(|| scope.members(service).find(is)).map(|it| member(scope, it))
            }
            Self::Stacked(scope, stack) => {
                let is = |it: &&std::sync::Arc<Service>| {
                    is_named(&***it, name, scope.version.lowers()) || &**it.uuid() == name
                };
                scope.tree.services_of(stack.uuid()).iter().find(is).map(|it| stacked(scope, it))
            }
            Self::Networks(_) | Self::Environments(_) => self.elements().find(|element| {
                let is = |key| element.get(key).is_some_and(|value| value.text() == Some(name));
                is("name") || is("uuid")
            }),
        }
    }

    fn elements(&self) -> Box<dyn Iterator<Item = Node<'t>> + 't> {
        match *self {
            Self::Plain(items) => Box::new(items.iter().map(Node::of)),
            Self::Containers(scope) => Box::new(scope.tree.containers().iter().map(move |it| container(scope, it))),
            Self::Services(scope) => Box::new(scope.tree.services().iter().map(move |it| service(scope, it))),
            Self::Stacks(scope) => Box::new(scope.tree.stacks().iter().map(move |it| stack(scope, it))),
            Self::Hosts(scope) => Box::new(scope.tree.hosts().iter().map(move |it| host(scope, it))),
            Self::Networks(scope) => Box::new(scope.tree.networks().iter().map(|it| network(it))),
            Self::Environments(scope) => {
                Box::new(scope.tree.externals().iter().filter_map(move |it| environment(scope, it)))
            }
            Self::Members(scope, service) => Box::new(scope.members(service).map(move |it| member(scope, it))),
            Self::Stacked(scope, stack) => {
                Box::new(scope.tree.services_of(stack.uuid()).iter().map(move |it| stacked(scope, it)))
            }
        }
    }
}

impl<'s> Sought<'s> {
    /// A step that reads as a 64-bit integer is an index, out of range or not.
    fn new(step: &'s str) -> Self {
        let digits = step.strip_prefix(['+', '-']).unwrap_or(step);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::Name(step);
        }
        match step.parse::<i64>() {
            Ok(index) => Self::Index(usize::try_from(index).ok()),
            Err(_) => Self::Name(step),
        }
    }
}

fn container<'t>(scope: Scope<'t>, container: &'t Container) -> Node<'t> {
    Node::Map(Branch::Container(scope, container))
}

fn service<'t>(scope: Scope<'t>, service: &'t Service) -> Node<'t> {
    Node::Map(Branch::Service(scope, service, Sight::Listed))
}

fn stack<'t>(scope: Scope<'t>, stack: &'t Stack) -> Node<'t> {
    Node::Map(Branch::Stack(scope, stack))
}

fn host<'t>(scope: Scope<'t>, host: &'t Host) -> Node<'t> {
    Node::Map(Branch::Host(host, entities::host_id(scope.version)))
}

fn network(network: &Network) -> Node<'_> {
    Node::Map(Branch::Plain(network.fields()))
}

fn environment<'t>(scope: Scope<'t>, tree: &'t Tree) -> Option<Node<'t>> {
    scope.environment(tree).map(|scope| Node::Map(Branch::Root(scope)))
}

/// A container within its service.
fn member<'t>(scope: Scope<'t>, it: &'t Container) -> Node<'t> {
    if scope.version.names_only() { entities::name_only(it) } else { container(scope, it) }
}

/// A service within its stack.
fn stacked<'t>(scope: Scope<'t>, it: &'t Service) -> Node<'t> {
    if scope.version.names_only() { entities::name_only(it) } else { service(scope, it) }
}

fn first<'t, T: Entity>(entities: impl Iterator<Item = &'t std::sync::Arc<T>>) -> Option<&'t T> {
    entities.min_by(|a, b| order(&***a, &***b)).map(|entity| &**entity)
}

/// Whether clients see this entity under this name.
fn is_named<T: Entity>(entity: &T, name: &str, lowers: bool) -> bool {
    entity.name().is_some_and(|own| if lowers { lower(own) == name } else { **own == *name })
}

/// Whether an element of a plain list is called by this name or uuid.
fn is_called(element: &Value, name: &str) -> bool {
    let is = |map: &Map, key| map.text(key).is_some_and(|own| **own == *name);
    element.as_map().is_some_and(|map| is(map, "name") || is(map, "uuid"))
}

fn plain_entries(map: &Map) -> Vec<(Cow<'_, str>, Node<'_>)> {
    map.iter().map(|(key, value)| (Cow::Borrowed(&**key), Node::of(value))).collect()
}

fn named<'t>(keys: Vec<&'t str>, value: impl Fn(&str) -> Option<Node<'t>>) -> Vec<(Cow<'t, str>, Node<'t>)> {
    keys.into_iter().filter_map(|key| Some((Cow::Borrowed(key), value(key)?))).collect()
}

/// The entries of an entity: its fields and the keys that are added to them, both in order.
fn merged<'t>(
    fields: &'t Map,
    added: &[&'static str],
    value: impl Fn(&str, Option<&'t Value>) -> Option<Node<'t>>,
) -> Vec<(Cow<'t, str>, Node<'t>)> {
    let mut entries = Vec::with_capacity(fields.len() + added.len());
    let mut push = |key: &'t str, own| entries.extend(value(key, own).map(|value| (Cow::Borrowed(key), value)));
    let mut added = added.iter().copied().peekable();
    for (key, own) in fields {
        while let Some(before) = added.next_if(|added| *added < &**key) {
            push(before, None);
        }
        added.next_if(|added| *added == &**key);
        push(key, Some(own));
    }
    for after in added {
        push(after, None);
    }
    entries
}
