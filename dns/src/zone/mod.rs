//! The zone: every name of the cluster, as each client sees it.
//!
//! A zone is built from a snapshot ([`snapshot`]) or from a file of the predecessor's answers ([`answers`]), and is
//! never changed once published. Its maps are persistent, so that a zone can be derived from the one before at the
//! cost of what changed. They say whose a name or an address is; its records are made when a query asks for them
//! ([`entry`]), which no answer shows.

pub mod answers;
mod building;
mod checks;
mod entry;
mod few;
mod index;
mod links;
mod lookup;
mod members;
mod node;
mod persistent;
mod records;
mod scopes;
mod slots;
pub mod snapshot;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use model::{Snapshot, Text};

use crate::name::{Folded, is_within};
use checks::Findings;
pub(crate) use checks::{LeftOut, Unreached};
use entry::{Entry, Member, Owner, Place};
pub(crate) use few::Few;
use index::Index;
use lookup::reverse_name;
use members::Ids;
pub(crate) use node::{Data, EncodedRecord, Node, RecordSet, Searched};
use persistent::Persistent;

/// How long a zone's secondary would wait (RFC 1912 section 2.2); there are none, transfers are refused.
pub(crate) const SOA_TIMES: (u32, u32, u32) = (3600, 600, 86_400);

/// The default domain of the cluster.
const DOMAIN: &str = "rancher.internal";

/// The link-local address of the metadata service.
const METADATA_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 250));

/// The link-local address of the DNS service.
const DNS_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 251));

/// The domain of hosts' names, under `dns` for the same reason.
const HOSTS: &str = "hosts.dns";

/// The label of the name server's own name, under `dns` so that no container is called like it.
const NAME_SERVER: &str = "ns.dns";

/// Every name of the cluster, as each client sees it.
#[derive(Clone, Debug)]
pub struct Zone {
    /// What the names are those of; empty when they are those of a file of answers.
    snapshot: Snapshot,
    settings: Arc<Settings>,
    /// Names that all clients see, besides those of ports and addresses.
    names: Persistent<Folded, Entry>,
    /// How many names stand below a name below an apex: those without a node are empty non-terminals (RFC 8020).
    below: Persistent<Folded, usize>,
    /// Containers by uuid.
    containers: Persistent<Text, Member>,
    /// Who has an address, in its canonical form.
    addresses: Persistent<IpAddr, Place>,
    /// What an alias gives those who link to it, by its id.
    linked: Persistent<Text, Arc<Node>>,
    /// Domains for which no upstream is queried.
    pub(crate) apexes: Vec<Apex>,
    /// The search list behind every client's own one.
    pub(crate) search: Vec<Folded>,
    /// Upstreams of clients that have none of their own.
    pub(crate) upstreams: Arc<[SocketAddr]>,
    /// What single clients see in addition, when a file of answers says so.
    scopes: Persistent<IpAddr, Arc<Scope>>,
    /// Whether names outside of the apexes hide only the types that they have; the others are forwarded.
    pub(crate) overlay: bool,
    /// TTL of records that have none of their own.
    pub(crate) ttl: u32,
    /// TTL and minimum of the SOA record.
    pub(crate) negative_ttl: u32,
    /// Search lists are tried for names with fewer dots; 0 means for all.
    pub(crate) ndots: usize,
    /// Serial of the SOA record.
    pub(crate) serial: u32,
    kubernetes: Folded,
    index: Index,
    /// What the addresses of services lead back to, once a query asked for any; as long as services are the same, this
    /// is.
    vips: Arc<OnceLock<Vips>>,
    /// What is wrong in what the zone was built from, once it was checked.
    findings: OnceLock<Findings>,
    /// The domains of stacks that exist by labels of containers alone, by the uuid of the stack.
    stacks_of_labels: Arc<HashMap<Text, Arc<Folded>, foldhash::fast::RandomState>>,
    /// Uuids of containers that are left out because no address of theirs is reached from here, by the uuid of their host.
    unreachable: Persistent<Text, Ids>,
    /// Addresses of hosts by the names that service records have for them, once a query asked for one.
    hosts: Arc<OnceLock<HostNames>>,
    /// The domain of these names; `None` when names are those of a file of answers.
    hosts_domain: Option<Folded>,
}

impl Zone {
    /// A zone without names.
    pub fn empty(settings: &Settings) -> Self {
        Self {
            snapshot: Snapshot::default(),
            settings: Arc::new(settings.clone()),
            names: Persistent::default(),
            below: Persistent::default(),
            containers: Persistent::default(),
            addresses: Persistent::default(),
            linked: Persistent::default(),
            apexes: Vec::new(),
            search: Vec::new(),
            upstreams: Arc::new([]),
            scopes: Persistent::default(),
            overlay: false,
            ttl: settings.ttl,
            negative_ttl: settings.negative_ttl,
            ndots: settings.ndots,
            serial: 1,
            kubernetes: building::kubernetes_domain(),
            index: Index::default(),
            vips: Arc::default(),
            findings: OnceLock::new(),
            stacks_of_labels: Arc::default(),
            unreachable: Persistent::default(),
            hosts: Arc::default(),
            hosts_domain: None,
        }
    }

    /// The apex that a name belongs to.
    pub(crate) fn apex_of(&self, name: &[u8]) -> Option<&Apex> {
        let apexes = self.apexes.iter().filter(|apex| is_within(name, apex.folded.wire()));
        apexes.reduce(|one, other| if one.folded.is_within(&other.folded) { one } else { other })
    }

    /// Adds a domain for which no upstream is queried.
    fn add_apex(&mut self, folded: Folded) {
        if self.apexes.iter().any(|apex| apex.folded == folded) {
            return;
        }
        let apex = Apex::new(folded);
        let server = apex.server.clone();
        self.apexes.push(apex);
        if let Some(address) = self.settings.listen {
            // A client that asks for the name server asks for its address next (RFC 2181 section 10.3).
            self.insert(server, Arc::new(Node::addresses([address], self.ttl)));
        }
    }

    /// Puts records at a name, in place of what may stand there.
    fn insert(&mut self, name: Folded, node: Arc<Node>) {
        self.put(name, Entry::of_node(Owner::Zone, node));
    }
}

/// What shapes a zone besides its content.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The domain of the cluster.
    pub domain: Folded,
    /// TTL of records that have none of their own.
    pub ttl: u32,
    /// TTL and minimum of the SOA record.
    pub negative_ttl: u32,
    /// Search lists are tried for names with fewer dots; 0 means for all.
    pub ndots: usize,
    /// Which containers of a service to name when none is healthy.
    pub when_none_healthy: WhenNoneHealthy,
    /// If a smaller share of a service's members is healthy, in per cent, all that run are named; 0 never does it.
    pub panic_threshold: u8,
    /// Addresses of `rancher-metadata`.
    pub rancher_metadata: Vec<IpAddr>,
    /// Addresses that are never used as upstreams.
    pub never_recurse_to: Vec<IpAddr>,
    /// The one address at which this service is asked, which its own name then has.
    pub listen: Option<IpAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            domain: Folded::parse(DOMAIN).expect("a fixed valid name"),
            ttl: 1,
            negative_ttl: 1,
            ndots: 0,
            when_none_healthy: WhenNoneHealthy::default(),
            panic_threshold: 0,
            rancher_metadata: vec![METADATA_ADDRESS],
            never_recurse_to: vec![METADATA_ADDRESS, DNS_ADDRESS],
            listen: None,
        }
    }
}

/// Which containers of a service to name when not one of them is healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenNoneHealthy {
    /// The last running one of its list, as the predecessor did.
    #[default]
    Last,
    /// All that run.
    All,
    /// None.
    None,
}

/// A domain for which no upstream is queried.
#[derive(Clone, Debug)]
pub(crate) struct Apex {
    pub(crate) folded: Folded,
    /// The name server's own name.
    pub(crate) server: Folded,
    /// The mailbox of who is responsible, as a name.
    pub(crate) mailbox: Folded,
}

impl Apex {
    fn new(folded: Folded) -> Self {
        let label = |label| folded.under(label).unwrap_or_else(|_| folded.clone());
        Self { server: label(NAME_SERVER), mailbox: label("hostmaster"), folded }
    }
}

/// What one client sees in addition to all names.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Scope {
    /// The client's search list.
    pub(crate) search: Vec<Folded>,
    /// The client's upstreams; empty means the zone's.
    pub(crate) upstreams: Arc<[SocketAddr]>,
    /// The client's own names, most specific first.
    pub(crate) links: Vec<Arc<Links>>,
    /// The domains of the stacks that the client belongs to.
    pub(crate) stacks: Vec<Folded>,
}

impl Scope {
    /// Where this name leads for this client.
    pub(crate) fn link(&self, name: &[u8]) -> Option<&Target> {
        self.links.iter().find_map(|links| links.get(name))
    }

    /// Whether the client belongs to the stack of this domain, or searches there because they share a network.
    fn knows(&self, stack: &Folded) -> bool {
        self.stacks.contains(stack) || self.search.contains(stack)
    }
}

/// Addresses of hosts by their names.
type HostNames = HashMap<Folded, Arc<Node>, foldhash::fast::RandomState>;

/// What addresses of services lead back to.
type Vips = HashMap<IpAddr, Arc<Node>, foldhash::fast::RandomState>;

/// Names of a client.
pub(crate) type Links = HashMap<Folded, Target, foldhash::fast::RandomState>;

/// Where a client's name leads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// To a name that all clients see, with the records that it has at the moment.
    Name(Folded),
    /// To a container by its id, or to the target of an alias for its linked clients.
    Id(Text),
    /// To records.
    Node(Arc<Node>),
}
