//! The fields of a document's entities: one table for reading, checking and documenting them.

use crate::entity::ENGINE_NETWORKS;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Any text; numbers are taken as written.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A map of texts.
    Labels,
    /// `true` or `false`.
    Truth,
    /// A whole number, not negative.
    Count,
    /// A whole number of bytes, or a number with `KiB`, `MiB`, `GiB` or `TiB`.
    Bytes,
    /// An IPv4 or IPv6 address.
    Address,
    /// An IPv4 network, such as `10.42.7.0/24`.
    Subnet,
    /// A list of addresses.
    Addresses,
    /// A list of `[address:]public:private/protocol`.
    Ports,
    /// A map with these fields.
    Object(&'static [Field]),
    /// Anything; stored unchanged.
    Any,
    /// The name of a host.
    Host,
    /// A list of names of hosts.
    Hosts,
    /// The name of a network.
    Network,
    /// The name of a container.
    Container,
    /// `stack/service`, or `stack/service/sidekick`.
    Service,
    /// A map of link name to container name.
    ContainerLinks,
    /// A map of `stack/service` (further environments: `environment/stack/service`) to alias.
    ServiceLinks,
}

/// One field of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its key in the document.
    pub key: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// Whether an entity without it is left out.
    pub required: bool,
    /// Meaning, unit, and what is taken when it is left out; one line of the documentation.
    pub meaning: &'static str,
}

const fn field(key: &'static str, shape: Shape, meaning: &'static str) -> Field {
    Field { key, shape, required: false, meaning }
}

const fn required(key: &'static str, shape: Shape, meaning: &'static str) -> Field {
    Field { key, shape, required: true, meaning }
}

/// Words of a container's `state`.
const STATES: &[&str] = &[
    "creating",
    "error",
    "erroring",
    "migrating",
    "purged",
    "purging",
    "removed",
    "removing",
    "requested",
    "restarting",
    "restoring",
    "running",
    "starting",
    "stopped",
    "stopping",
    "updating-running",
    "updating-stopped",
];

/// Words of `health_state`.
const HEALTH: &[&str] =
    &["healthy", "unhealthy", "initializing", "reinitializing", "updating-healthy", "updating-unhealthy"];

const HEALTH_CHECK: &[Field] = &[
    field("port", Shape::Count, "Port that is checked."),
    field("request_line", Shape::Text, "Request line of an HTTP check; without it, a connection is enough."),
    field("interval", Shape::Count, "Time between checks, in ms."),
    field("response_timeout", Shape::Count, "Longest time until the response, in ms."),
    field("healthy_threshold", Shape::Count, "Number of successful checks after which it is healthy."),
    field("unhealthy_threshold", Shape::Count, "Number of failed checks after which it is unhealthy."),
];

/// Fields of `environment`.
pub const ENVIRONMENT: &[Field] = &[
    required("name", Shape::Text, "Name of the environment."),
    field("uuid", Shape::Text, "Default: derived from the name."),
    field("region_name", Shape::Text, "Region, if there are several."),
];

/// Fields of the entries of `hosts`.
pub const HOST: &[Field] = &[
    required("name", Shape::Text, "Name of the host."),
    field("uuid", Shape::Text, "Default: derived from environment and name."),
    field("agent_ip", Shape::Address, "Address at which other hosts reach it."),
    field("hostname", Shape::Text, "Host name in its operating system, if different."),
    field("subnet", Shape::Subnet, "Subnet of its containers (docs/network.md); returned as a label."),
    field(
        "router_ip",
        Shape::Address,
        "Address through which others reach its subnet; returned as a label. Default: `agent_ip`.",
    ),
    field("labels", Shape::Labels, "Labels, for example for placement rules."),
    field("state", Shape::Text, "Default: `active`. A host in any other state gets no containers."),
    field(
        "agent_state",
        Shape::Text,
        "State of its agent, if not `active`; a host in any other one gets no containers.",
    ),
    field(
        "health_checks",
        Shape::Word(&["made", "suspect"]),
        "Written by agents that check containers of other hosts (docs/health.md); not returned.",
    ),
    field(
        "health_quorum",
        Shape::Word(&["all"]),
        "Written by agents with `--health-quorum all`: all checkers have to agree; not returned.",
    ),
    field(
        ENGINE_NETWORKS,
        Shape::Texts,
        "Names of the networks that its engine has, which are all that containers on it can join; not returned. Default: not known.",
    ),
    field("milli_cpu", Shape::Count, "Processors, in thousandths of one."),
    field("memory", Shape::Bytes, "Memory."),
    field("local_storage_mb", Shape::Count, "Disk for containers, in MiB."),
    field("hostId", Shape::Count, "Number of the host; only in version 2015-07-25 and 2015-12-19."),
];

/// Fields of the entries of `stacks`.
pub const STACK: &[Field] = &[
    required("name", Shape::Text, "Name of the stack. Stacks that services name need not be listed."),
    field("uuid", Shape::Text, "Default: derived from environment and name."),
    field("system", Shape::Truth, "Whether it belongs to the infrastructure. Default: `false`."),
];

/// Fields of the entries of `services`.
pub const SERVICE: &[Field] = &[
    required("name", Shape::Text, "Name of the service."),
    required("stack", Shape::Text, "Name of its stack."),
    field("uuid", Shape::Text, "Default: derived from environment, stack and name; a sidekick has its primary's."),
    field("sidekick_of", Shape::Text, "Name of the primary service in the same stack, if this is a sidekick."),
    field(
        "kind",
        Shape::Word(&[
            "service",
            "loadBalancerService",
            "externalService",
            "dnsService",
            "kubernetesService",
            "networkDriverService",
            "storageDriverService",
            "selectorService",
            "scalingGroup",
            "composeService",
        ]),
        "Kind of the service. Default: `service`.",
    ),
    field("hostname", Shape::Text, "DNS name of an external service."),
    field("external_ips", Shape::Addresses, "Addresses of an external service."),
    field("vip", Shape::Address, "One virtual address for all its containers."),
    field("links", Shape::ServiceLinks, "Map of `stack/service` to the alias that its containers use for it."),
    field("ports", Shape::Ports, "Published ports, `[address:]public:private/protocol`."),
    field("expose", Shape::Texts, "Exposed ports, `private/protocol`."),
    field("labels", Shape::Labels, "Labels."),
    field("metadata", Shape::Any, "Any tree; containers read it under `self/service/metadata`."),
    field("scale", Shape::Count, "Desired number of containers. Default: the number of listed ones."),
    field("state", Shape::Text, "Default: `active`."),
    field("fqdn", Shape::Text, "Name in a public zone."),
    field("health_check", Shape::Object(HEALTH_CHECK), "How its health is checked."),
    field("lb_config", Shape::Any, "Configuration of a load balancer; returned unchanged."),
    field("system", Shape::Truth, "Whether it belongs to the infrastructure. Default: `false`."),
    field("token", Shape::Text, "Secret that only the service's own containers see."),
    field("create_index", Shape::Count, "Order of creation. Default: order in the document."),
];

/// Fields of the entries of `containers`.
pub const CONTAINER: &[Field] = &[
    required("name", Shape::Text, "Name of the container."),
    field("uuid", Shape::Text, "Default: derived from environment and name."),
    field(
        "service",
        Shape::Service,
        "`stack/service` or `stack/service/sidekick`; without it, the container belongs to no service.",
    ),
    field("host", Shape::Host, "Name of the host it runs on."),
    field("primary_ip", Shape::Address, "Its main address: a client with this address is this container."),
    field("ips", Shape::Addresses, "All its addresses. Default: the main one."),
    field(
        "routed_ips",
        Shape::Addresses,
        "The addresses that other hosts can reach; names on other hosts use only these. Default: all.",
    ),
    field("state", Shape::Word(STATES), "Default: `running`. Stopped containers have no names."),
    field("health_state", Shape::Word(HEALTH), "Default: none, no health check."),
    field("health_failed", Shape::Text, "Written by agents: why it is given up (docs/health.md); not returned."),
    field("health_reason", Shape::Text, "Written by agents: who says why it is unhealthy; not returned."),
    field("health_since", Shape::Count, "Written by agents: since when, in seconds from 1970; not returned."),
    field("ports", Shape::Ports, "Published ports, `[address:]public:private/protocol`. Default: its service's."),
    field("labels", Shape::Labels, "Labels; those for stack and service are added."),
    field("dns", Shape::Addresses, "Name servers for names outside the cluster. Default: the host's."),
    field("dns_search", Shape::Texts, "Search list. Default: derived from service and stack."),
    field("links", Shape::ContainerLinks, "Map of link name to the linked container."),
    field("hostname", Shape::Text, "Host name inside the container."),
    field(
        "network",
        Shape::Network,
        "Name of its network; `null`: no network of the document. Default: the default network, unless `network_from` is set.",
    ),
    field("network_from", Shape::Container, "Container whose network and address it shares."),
    field("primary_mac_address", Shape::Text, "Hardware address."),
    field("memory_reservation", Shape::Bytes, "Memory reserved for it."),
    field("milli_cpu_reservation", Shape::Count, "Processor time reserved for it, in thousandths of a processor."),
    field("service_index", Shape::Text, "Number within its service. Default: order in the document."),
    field("create_index", Shape::Count, "Order of creation. Default: order in the document."),
    field("start_count", Shape::Count, "Number of times it was started. Default: 1."),
    field("started", Shape::Count, "Written by agents: when it was started, in microseconds from 1970; not returned."),
    field("external_id", Shape::Text, "Its id in the engine."),
    field("health_check", Shape::Object(HEALTH_CHECK), "How its health is checked. Default: its service's."),
    field("health_check_hosts", Shape::Hosts, "Hosts that check its health."),
    field("system", Shape::Truth, "Whether it belongs to the infrastructure. Default: `false`."),
];

/// Fields of the entries of `networks`.
pub const NETWORK: &[Field] = &[
    required("name", Shape::Text, "Name of the network."),
    field("uuid", Shape::Text, "Default: derived from environment and name."),
    field(
        "is_default",
        Shape::Truth,
        "Whether containers without `network` are on it; of several such networks, the first. Default: `false`.",
    ),
    field("host_ports", Shape::Truth, "Whether published ports are opened on the host. Default: `false`."),
    field("metadata", Shape::Any, "Any tree; returned unchanged."),
    field("default_policy_action", Shape::Text, "Action for traffic that no rule matches."),
    field("policy", Shape::Any, "Rules; returned unchanged."),
];

/// The lists of a document and the fields of their entries, in the order of the documentation.
pub const LISTS: [(&str, &[Field]); 5] =
    [("hosts", HOST), ("stacks", STACK), ("services", SERVICE), ("containers", CONTAINER), ("networks", NETWORK)];
