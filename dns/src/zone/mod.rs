//! The zone: every name of the cluster, as each client sees it.
//!
//! A zone is built from a snapshot ([`snapshot`]) or from a file of the predecessor's answers ([`answers`]), and is
//! never changed once published. Its maps are persistent, so that a zone can be derived from the one before at the
//! cost of what changed. They say whose a name or an address is; its records are made when somebody asks for them
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
mod persistent;
mod records;
mod slots;
pub mod snapshot;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use hickory_proto::rr::rdata::{A, AAAA, SOA};
use hickory_proto::rr::{Name, RData, RecordType};
use model::{Snapshot, Text};

use crate::config::{Options, WhenNoneHealthy};
use crate::name::{Folded, is_within};
use checks::Findings;
pub(crate) use checks::{LeftOut, Unreached};
use entry::{Entry, Member, Owner, Place};
use few::Few;
use index::{Ids, Index};
use lookup::reverse_name;
use persistent::Persistent;
use records::PortNode;

/// How long a zone's secondary would wait (RFC 1912 section 2.2); there are none, transfers are refused.
pub(crate) const SOA_TIMES: (i32, i32, i32) = (3600, 600, 86_400);

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
    /// Domains that nobody else is asked about.
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
    /// What the addresses of services lead back to, once somebody asked for any; as long as services are the same, this
    /// is.
    vips: Arc<OnceLock<Vips>>,
    /// What is wrong in what the zone was built from, once somebody asked.
    findings: OnceLock<Findings>,
    /// The domains of stacks that exist by labels of containers alone, by the uuid of the stack.
    stacks_of_labels: Arc<HashMap<Text, Arc<Folded>, foldhash::fast::RandomState>>,
    /// Uuids of containers that are left out because no address of theirs is reached from here, by the uuid of their host.
    unreachable: Persistent<Text, Ids>,
    /// Addresses of hosts by the names that service records have for them, once somebody asked for one.
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
        self.apexes.iter().filter(|apex| is_within(name, &apex.folded)).max_by_key(|apex| apex.folded.wire().len())
    }

    /// Adds a domain that nobody else is asked about.
    fn add_apex(&mut self, folded: Folded) {
        if self.apexes.iter().any(|apex| apex.folded == folded) {
            return;
        }
        let apex = Apex::new(folded);
        let server = apex.server.clone();
        self.apexes.push(apex);
        if let Some(address) = self.settings.listen {
            // Whoever asks for the name server asks for its address next (RFC 2181 section 10.3).
            self.insert(server, Arc::new(Node::addresses([address], None)));
        }
    }

    /// Puts records at a name, in place of what may stand there.
    fn insert(&mut self, name: Folded, node: Arc<Node>) {
        self.put(name, Entry::of_node(Owner::Zone, node));
    }
}

/// What shapes a zone besides its content.
#[derive(Clone, Debug)]
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
    /// Addresses of `rancher-metadata`.
    pub rancher_metadata: Vec<IpAddr>,
    /// Addresses that are nobody's upstream.
    pub never_recurse_to: Vec<IpAddr>,
    /// The one address at which this service is asked, which its own name then has.
    pub listen: Option<IpAddr>,
}

impl Default for Settings {
    /// As they are when no option is given.
    fn default() -> Self {
        Self::from(&Options::default())
    }
}

impl From<&Options> for Settings {
    fn from(options: &Options) -> Self {
        Self {
            domain: options.domain.clone(),
            ttl: options.ttl,
            negative_ttl: options.negative_ttl,
            ndots: options.ndots,
            when_none_healthy: options.when_none_healthy,
            rancher_metadata: options.rancher_metadata_answer.clone(),
            never_recurse_to: options.never_recurse_to.clone(),
            listen: None,
        }
    }
}

/// A domain that nobody else is asked about.
#[derive(Clone, Debug)]
pub(crate) struct Apex {
    pub(crate) folded: Folded,
    pub(crate) name: Name,
    /// The name server's own name.
    pub(crate) server: Folded,
    /// The mailbox of who is responsible, as a name.
    pub(crate) mailbox: Folded,
}

impl Apex {
    fn new(folded: Folded) -> Self {
        let label = |label| folded.under(label).unwrap_or_else(|_| folded.clone());
        Self { name: folded.name(), server: label(NAME_SERVER), mailbox: label("hostmaster"), folded }
    }

    /// The SOA record's data.
    pub(crate) fn soa(&self, zone: &Zone) -> RData {
        let (refresh, retry, expire) = SOA_TIMES;
        let (server, mailbox) = (self.server.name(), self.mailbox.name());
        RData::SOA(SOA::new(server, mailbox, zone.serial, refresh, retry, expire, zone.negative_ttl))
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
    /// To a name that all see, whatever stands there at the moment.
    Name(Folded),
    /// To a container, whatever its name, or to what an alias gives those who link to it.
    Id(Text),
    /// To records.
    Node(Arc<Node>),
}

/// The records at one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    pub(crate) sets: Few<Set>,
    /// Those of a service's ports, once somebody asked for one.
    ports: OnceLock<Vec<PortNode>>,
    /// Who finds the name with a search list.
    searched: Searched,
}

/// Who finds a name that is not given in full.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Searched {
    /// Everybody whose search list leads to it.
    #[default]
    All,
    /// Clients of the stack of this domain, and those that share a network with it: the stack exists by labels of containers
    /// alone, so that whoever starts a container chooses the name.
    Stack(Arc<Folded>),
    /// Nobody.
    Nobody,
}

impl Node {
    /// A node with these addresses.
    pub(crate) fn addresses(addresses: impl IntoIterator<Item = IpAddr>, ttl: Option<u32>) -> Self {
        let mut node = Self::default();
        for address in addresses {
            node.add(address_data(address), ttl);
        }
        node
    }

    /// Adds a record, unless it is there.
    pub(crate) fn add(&mut self, data: RData, ttl: Option<u32>) {
        let kind = data.record_type();
        match self.sets.as_mut_slice().iter_mut().find(|set| set.kind == kind) {
            Some(set) if set.data.contains(&data) => {}
            Some(set) => set.data.push(data),
            None => self.sets.push(Set { kind, ttl, data: Few::One(data) }),
        }
    }

    /// Whether this client finds it with a search list.
    pub(crate) fn is_searched_by(&self, scope: Option<&Scope>) -> bool {
        match &self.searched {
            Searched::All => true,
            Searched::Stack(stack) => scope.is_some_and(|scope| scope.knows(stack)),
            Searched::Nobody => false,
        }
    }

    /// The records of one type.
    pub(crate) fn set(&self, kind: RecordType) -> Option<&Set> {
        self.sets.iter().find(|set| set.kind == kind)
    }

    /// Where the name is an alias to.
    pub(crate) fn alias(&self) -> Option<(&Name, Option<u32>)> {
        let set = self.set(RecordType::CNAME)?;
        match set.data.first() {
            Some(RData::CNAME(target)) => Some((&target.0, set.ttl)),
            _ => None,
        }
    }

    /// Whether it has addresses, or is an alias of something that may have.
    pub(crate) fn leads_to_addresses(&self) -> bool {
        self.sets.iter().any(|set| matches!(set.kind, RecordType::A | RecordType::AAAA | RecordType::CNAME))
    }
}

/// The records of one type at one name.
///
/// The type and an address stand side by side, though record data has room for two names: what most questions are about is
/// then one cache line.
#[derive(Clone, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct Set {
    pub(crate) kind: RecordType,
    /// Their TTL, when it is not the zone's.
    pub(crate) ttl: Option<u32>,
    pub(crate) data: Few<RData>,
}

/// An address as record data.
pub(crate) fn address_data(address: IpAddr) -> RData {
    match address.to_canonical() {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}
