//! How each version shows an entity: its fields as the source gave them, some changed, some added, some dropped.
//!
//! The functions named `…_value` answer for one key; the fields that a version adds stand in the lists of
//! keys, in order.

use model::checkers::{CHECKER, QUORUM, TENANT};
use model::entity::{ENGINE_NETWORKS, FROM_LABELS, LINK_HOSTS, ROUTED_IPS};
use model::health::FAILED;
use model::lb::HOSTS_OF;
use model::unwell::{REASON, SINCE};
use model::votes::{SAID_BY_HOST, STARTED};
use model::{Container, Entity, INTENDED, Map, Service, Stack, Text, Value};

use crate::config::ServiceTokens;
use crate::tree::Scope;
use crate::tree::lower::{is_lower, lower};
use crate::tree::node::{Branch, HostId, Node, Series, Sight};
use crate::tree::version::Version;

/// Keys of `self`.
pub(crate) const OWN_KEYS: [&str; 4] = ["container", "host", "service", "stack"];

/// Keys added to containers: what they have of their service, and their links.
pub(crate) const CONTAINER_KEYS: [&str; 5] = ["links", "service_name", "service_uuid", "stack_name", "stack_uuid"];

/// Keys added to services.
pub(crate) const SERVICE_KEYS: [&str; 2] = ["containers", "links"];

/// Keys added to stacks.
pub(crate) const STACK_KEYS: [&str; 1] = ["services"];

/// The keys of a whole tree that may be there, in order.
pub(crate) fn root_keys(scope: Scope<'_>) -> Vec<&str> {
    let mut keys = vec!["containers", "environments", "hosts", "networks", "self", "services", "stacks", "version"];
    for (key, _) in scope.snapshot.environment.iter().flatten() {
        if let Err(at) = keys.binary_search(&&**key) {
            keys.insert(at, key);
        }
    }
    keys
}

/// The value of a key of a whole tree.
pub(crate) fn root_value<'t>(scope: Scope<'t>, key: &str) -> Option<Node<'t>> {
    Some(match key {
        "containers" => Node::List(Series::Containers(scope)),
        "hosts" => Node::List(Series::Hosts(scope)),
        "networks" => Node::List(Series::Networks(scope)),
        "services" => Node::List(Series::Services(scope)),
        "stacks" => Node::List(Series::Stacks(scope)),
        "environments" if scope.version != Version::V20160729 || scope.external => return None,
        "environments" if scope.tree.externals().is_empty() => Node::NoList,
        "environments" => Node::List(Series::Environments(scope)),
        "self" if scope.external || (scope.client.is_none() && scope.snapshot.local_host.is_none()) => return None,
        "self" => Node::Map(Branch::Own(scope)),
        "version" if scope.external => Node::Derived(Value::Text(scope.snapshot.source_version.clone())),
        "version" => Node::Derived(Value::text(scope.tree.version())),
        _ => Node::of(scope.snapshot.environment.as_ref()?.get(key)?),
    })
}

/// The value of a key of `self`: the container that asks, or the host alone for clients that are none.
pub(crate) fn own_value<'t>(scope: Scope<'t>, key: &str) -> Option<Node<'t>> {
    let Some(client) = scope.client else {
        // The predecessor shared this map between its versions, so that all show the newest form.
        let host = scope.snapshot.local_host.as_deref().filter(|_| key == "host")?;
        return Some(Node::Map(Branch::Host(host, HostId::Dropped)));
    };
    Some(Node::Map(match key {
        "container" => Branch::Container(scope, client),
        "host" => Branch::Host(scope.snapshot.hosts.get(client.host_uuid()?)?, host_id(scope.version)),
        "service" => Branch::Service(scope, scope.owner(client)?, Sight::Own),
        "stack" => Branch::Stack(scope, scope.snapshot.stacks.get(scope.owner(client)?.stack_uuid()?)?),
        _ => return None,
    }))
}

/// The value of a key of a container.
pub(crate) fn container_value<'t>(
    scope: Scope<'t>,
    container: &'t Container,
    key: &str,
    value: Option<&'t Value>,
) -> Option<Node<'t>> {
    let lowers = scope.version.lowers();
    let inherited = |of: fn(&'t Service) -> Option<&'t Value>| scope.owner(container).and_then(of).or(value);
    match key {
        "name" => Some(lowered(value?, lowers)),
        "service_name" => Some(lowered(inherited(|service| service.fields().get("name"))?, lowers)),
        "stack_name" => Some(lowered(inherited(|service| service.fields().get("stack_name"))?, lowers)),
        "service_uuid" => inherited(|service| service.fields().get("uuid")).map(Node::of),
        "stack_uuid" => inherited(|service| service.fields().get("stack_uuid")).map(Node::of),
        "ports" => Some(ports(scope, container, value?)),
        "links" if container.links().is_empty() => Some(Node::NoMap),
        "links" => Some(Node::Map(Branch::Plain(container.links()))),
        "host_ip" | ROUTED_IPS | SAID_BY_HOST | FAILED | REASON | SINCE | STARTED => None,
        _ => value.map(Node::of),
    }
}

/// The value of a key of a service.
pub(crate) fn service_value<'t>(
    scope: Scope<'t>,
    service: &'t Service,
    sight: Sight,
    key: &str,
    value: Option<&'t Value>,
) -> Option<Node<'t>> {
    let lowers = scope.version.lowers();
    match key {
        "name" | "stack_name" | "primary_service_name" => Some(lowered(value?, lowers)),
        "sidekicks" if lowers => Some(lowered_list(value?)),
        "containers" if scope.members(service).next().is_none() => Some(Node::NoList),
        "containers" => Some(Node::List(Series::Members(scope, service))),
        "links" if service.links().is_empty() && !lowers => Some(Node::NoMap),
        "links" if lowers && !service.links().iter().all(|(key, _)| is_lower(key)) => {
            let links = service.links().iter().map(|(key, alias)| (Text::from(lower(key)), alias.clone()));
            Some(Node::Derived(Value::Map(links.collect())))
        }
        "links" => Some(Node::Map(Branch::Plain(service.links()))),
        "token" if sight == Sight::Listed && !shows_token(scope, service) => Some(Node::Derived(Value::Null)),
        FROM_LABELS | LINK_HOSTS | HOSTS_OF => None,
        _ => value.map(Node::of),
    }
}

/// The value of a key of a stack.
pub(crate) fn stack_value<'t>(
    scope: Scope<'t>,
    stack: &'t Stack,
    key: &str,
    value: Option<&'t Value>,
) -> Option<Node<'t>> {
    match key {
        "name" => Some(lowered(value?, scope.version.lowers())),
        "services" if scope.tree.services_of(stack.uuid()).is_empty() => Some(Node::NoList),
        "services" => Some(Node::List(Series::Stacked(scope, stack))),
        FROM_LABELS => None,
        _ => value.map(Node::of),
    }
}

/// The value of a key of a host.
pub(crate) fn host_value<'t>(id: HostId, key: &str, value: Option<&'t Value>) -> Option<Node<'t>> {
    match key {
        CHECKER | QUORUM | TENANT | INTENDED | ENGINE_NETWORKS => None,
        "hostId" if id == HostId::Dropped => None,
        _ => value.map(Node::of),
    }
}

/// Whether hosts show their `hostId`.
pub(crate) fn host_id(version: Version) -> HostId {
    if version == Version::V20160729 { HostId::Dropped } else { HostId::Shown }
}

/// The name of an entity, where a version shows nothing else of it.
pub(crate) fn name_only<T: Entity>(entity: &T) -> Node<'_> {
    entity.fields().get("name").map_or(Node::Derived(Value::Null), Node::of)
}

/// Whether the token of a service is shown to all clients.
///
/// The predecessor hid a token while it laid out the `self` of the containers that may see it, and so left all
/// those in sight that no container with an address belonged to, and those of other environments. As recorded it
/// is the same here, but for the token of a launch configuration whose siblings have such containers: that is
/// in use, and shown to these alone.
fn shows_token(scope: Scope<'_>, service: &Service) -> bool {
    let Some(service) = scope.snapshot.services.get(service.id()) else { return false };
    if scope.tokens == ServiceTokens::Own {
        return false;
    }
    if scope.external {
        return true;
    }
    if is_addressed(scope, service) {
        return false;
    }
    let asks = scope.client.and_then(|client| scope.owner(client));
    asks.is_some_and(|asks| asks.uuid() == service.uuid())
        || !scope.launch_configurations(service.uuid()).into_iter().any(|service| is_addressed(scope, service))
}

/// The service of the container that asks, when it is shown a token among all services that others are not shown there.
pub(crate) fn insider(scope: Scope<'_>) -> Option<Text> {
    let owner = scope.owner(scope.client?)?;
    let siblings = scope.launch_configurations(owner.uuid());
    let without = |scope| Scope { client: None, ..scope };
    let differs = |service: &Service| shows_token(scope, service) != shows_token(without(scope), service);
    siblings.into_iter().any(|service| differs(service)).then(|| owner.uuid().clone())
}

/// Whether a container with an address belongs to this service.
fn is_addressed<'t>(scope: Scope<'t>, service: &'t Service) -> bool {
    scope.members(service).any(|member| member.primary_ip().is_some())
}

/// Text in lower case, when `lowers`.
fn lowered(value: &Value, lowers: bool) -> Node<'_> {
    match value {
        Value::Text(text) if lowers && !is_lower(text) => Node::Derived(Value::text(&*lower(text))),
        _ => Node::of(value),
    }
}

/// A list of texts in lower case; an empty one was never made.
fn lowered_list(value: &Value) -> Node<'_> {
    let Some(items) = value.as_list() else { return Node::NoList };
    match items {
        [] => Node::NoList,
        items if items.iter().all(|item| item.as_str().is_none_or(is_lower)) => Node::of(value),
        items => Node::Derived(Value::list(items.iter().map(|item| match item {
            Value::Text(text) => Value::text(&*lower(text)),
            other => other.clone(),
        }))),
    }
}

/// Published ports: each with the address it is published on.
///
/// From 2016 on that is 0.0.0.0 unless the port says otherwise, before it was the address of the host.
fn ports<'t>(scope: Scope<'t>, container: &'t Container, value: &'t Value) -> Node<'t> {
    let Some(items) = value.as_list() else { return Node::of(value) };
    let newest = scope.version == Version::V20160729;
    if items.is_empty() {
        return if newest { Node::NoList } else { Node::of(value) };
    }
    let address = if newest { Some("0.0.0.0") } else { host_address(scope, container) };
    let port = |item: &Value| {
        let (Some(text), Some(address)) = (item.as_str(), address) else { return item.clone() };
        let bare = match text.strip_prefix("0.0.0.0:") {
            Some(rest) if !newest && rest.split(':').count() == 2 => rest,
            _ if text.starts_with('[') || text.split(':').count() == 3 => return item.clone(),
            _ => text,
        };
        Value::text(format!("{address}:{bare}"))
    };
    Node::Derived(Value::list(items.iter().map(port)))
}

/// The address of a container's host: the source's own word, or else what the host says.
fn host_address<'t>(scope: Scope<'t>, container: &'t Container) -> Option<&'t str> {
    let text = |fields: &'t Map, key| fields.text(key).map(|text| &**text).filter(|text| !text.is_empty());
    text(container.fields(), "host_ip")
        .or_else(|| text(scope.snapshot.hosts.get(container.host_uuid()?)?.fields(), "agent_ip"))
}
