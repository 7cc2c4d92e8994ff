//! The record sets of a name, encoded as they are sent.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use hickory_proto::rr::RecordType;

use super::Scope;
use super::few::Few;
use crate::name::Folded;
use crate::query::{POINTER_TO_QUESTION, RECORD_FIXED_BYTES};

/// Bytes of a record before its data: a pointer to the name of the question, the type, the class, the TTL and the length of
/// the data (RFC 1035 sections 3.2.1 and 4.1.4).
const FIXED_BYTES: usize = POINTER_BYTES + RECORD_FIXED_BYTES;

/// Bytes of the pointer to the name of the question.
const POINTER_BYTES: usize = 2;

/// The offset of the TTL in a record of a set.
const TTL_AT: usize = 6;

/// Bytes of a set that needs no memory of its own: one address of either family fits.
const INLINE_BYTES: usize = 30;

/// Most records of a set; 64 KiB hold fewer.
const RECORDS_MAX: u16 = 8192;

/// The records at one name.
#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Node {
    pub(super) sets: Few<RecordSet>,
    /// Those of a service's ports, once a client asked for one.
    pub(super) ports: OnceLock<Vec<PortNode>>,
    /// Who finds the name with a search list.
    pub(super) searched: Searched,
}

/// Who finds a name that is not given in full.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Searched {
    /// Every client whose search list leads to it.
    #[default]
    All,
    /// Clients of the stack of this domain, and those that share a network with it: the stack exists by labels of containers
    /// alone, so that the one who starts a container chooses the name.
    Stack(Arc<Folded>),
    /// No client.
    Nobody,
}

/// Service records of one port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PortNode {
    /// The labels before the name of the service, without an end.
    pub(super) labels: Box<[u8]>,
    pub(super) node: Arc<Node>,
}

impl Node {
    /// A node with these addresses.
    pub(crate) fn addresses(addresses: impl IntoIterator<Item = IpAddr>, ttl: u32) -> Self {
        let mut node = Self::default();
        for address in addresses {
            node.add(&Data::Address(address), ttl);
        }
        node
    }

    /// Adds a record, unless it is there; the first one of a type decides on the TTL of all.
    pub(crate) fn add(&mut self, data: &Data, ttl: u32) {
        self.add_encoded(data.kind(), &data.encoded(), ttl);
    }

    /// Adds all records of another node, unless they are there.
    pub(super) fn add_all(&mut self, other: &Self) {
        for set in &other.sets {
            if set.kind == RecordType::CNAME {
                // A name can be an alias of one other name only (RFC 1034 section 3.6.2); the last one wins.
                self.sets.retain(|known| known.kind != set.kind);
            }
            for record in set.records() {
                self.add_encoded(set.kind, record.data(), record.ttl());
            }
        }
    }

    fn add_encoded(&mut self, kind: RecordType, data: &[u8], ttl: u32) {
        match self.sets.as_mut_slice().iter_mut().find(|set| set.kind == kind) {
            Some(set) => set.add(data),
            None => self.sets.push(RecordSet::new(kind, data, ttl)),
        }
    }

    /// Whether there are no records.
    pub(super) fn is_empty(&self) -> bool {
        self.sets.is_empty()
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
    pub(crate) fn set(&self, kind: RecordType) -> Option<&RecordSet> {
        self.sets.iter().find(|set| set.kind == kind)
    }

    /// The alias of another name, or else the records of one type.
    pub(crate) fn set_or_alias(&self, kind: RecordType) -> Option<&RecordSet> {
        self.set(RecordType::CNAME).or_else(|| self.set(kind))
    }

    /// The addresses of both families, in the order in which they were added.
    pub(crate) fn address_sets(&self) -> impl Iterator<Item = &RecordSet> {
        self.sets.iter().filter(|set| matches!(set.kind, RecordType::A | RecordType::AAAA))
    }
}

/// The data of a record of ours.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    /// An address; one of IPv4 in the form of IPv6 is one of IPv4.
    Address(IpAddr),
    /// The name that this one is an alias of, in wire format.
    Alias(Box<[u8]>),
    /// The name that an address leads back to, in wire format.
    Pointer(Box<[u8]>),
    /// Where a port of a service is reached.
    Service { port: u16, target: Folded },
    /// Character strings; of each as many bytes as fit one.
    Text(Vec<Box<[u8]>>),
}

impl Data {
    fn kind(&self) -> RecordType {
        match self {
            Self::Address(address) if address.to_canonical().is_ipv4() => RecordType::A,
            Self::Address(_) => RecordType::AAAA,
            Self::Alias(_) => RecordType::CNAME,
            Self::Pointer(_) => RecordType::PTR,
            Self::Service { .. } => RecordType::SRV,
            Self::Text(_) => RecordType::TXT,
        }
    }

    fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Address(address) => match address.to_canonical() {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            },
            Self::Alias(name) | Self::Pointer(name) => name.to_vec(),
            // Neither priority nor weight (RFC 2782): all members of a service are alike.
            Self::Service { port, target } => [&[0; 4][..], &port.to_be_bytes(), target.wire()].concat(),
            Self::Text(strings) => {
                let mut bytes = Vec::new();
                for string in strings {
                    let length = u8::try_from(string.len()).unwrap_or(u8::MAX);
                    bytes.push(length);
                    bytes.extend_from_slice(&string[..usize::from(length)]);
                }
                bytes
            }
        }
    }
}

/// The records of one type at one name, as they follow the question about that name.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct RecordSet {
    kind: RecordType,
    count: u16,
    bytes: Bytes,
}

/// The bytes of a set.
#[derive(Clone, Debug)]
enum Bytes {
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Vec<u8>),
}

const _: () = assert!(size_of::<RecordSet>() == 40);

/// One record of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedRecord<'s>(&'s [u8]);

impl RecordSet {
    fn new(kind: RecordType, data: &[u8], ttl: u32) -> Self {
        let mut set = Self { kind, count: 0, bytes: Bytes::Inline { length: 0, bytes: [0; INLINE_BYTES] } };
        set.push(data, ttl);
        set
    }

    fn add(&mut self, data: &[u8]) {
        let ttl = self.ttl();
        if self.count < RECORDS_MAX && !self.records().any(|record| record.data() == data) {
            self.push(data, ttl);
        }
    }

    fn push(&mut self, data: &[u8], ttl: u32) {
        let Ok(length) = u16::try_from(data.len()) else { return };
        let [pointer_high, pointer_low] = POINTER_TO_QUESTION.to_be_bytes();
        let [kind_high, kind_low] = u16::from(self.kind).to_be_bytes();
        let [ttl_1, ttl_2, ttl_3, ttl_4] = ttl.to_be_bytes();
        let [high, low] = length.to_be_bytes();
        let fixed: [u8; FIXED_BYTES] =
            [pointer_high, pointer_low, kind_high, kind_low, 0, 1, ttl_1, ttl_2, ttl_3, ttl_4, high, low];
        self.count += 1;
        if let Bytes::Heap(bytes) = &mut self.bytes {
            bytes.extend_from_slice(&fixed);
            bytes.extend_from_slice(data);
            return;
        }
        let all = [self.bytes(), &fixed, data].concat();
        self.bytes = match u8::try_from(all.len()) {
            Ok(length) if all.len() <= INLINE_BYTES => {
                let mut bytes = [0; INLINE_BYTES];
                bytes[..all.len()].copy_from_slice(&all);
                Bytes::Inline { length, bytes }
            }
            _ => Bytes::Heap(all),
        };
    }

    /// The type of the records.
    pub(crate) fn kind(&self) -> RecordType {
        self.kind
    }

    /// How many records there are: at least one.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// The records, each behind a pointer to the name of the question.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// The TTL of all records.
    pub(crate) fn ttl(&self) -> u32 {
        self.records().next().map_or(0, EncodedRecord::ttl)
    }

    /// The name in the data of the first record, where that is nothing but a name.
    pub(crate) fn target(&self) -> &[u8] {
        self.records().next().map_or(&[0][..], EncodedRecord::data)
    }

    /// The records.
    pub(crate) fn records(&self) -> impl Iterator<Item = EncodedRecord<'_>> {
        let mut rest = self.bytes();
        std::iter::from_fn(move || {
            let length = usize::from(u16::from_be_bytes([*rest.get(FIXED_BYTES - 2)?, *rest.get(FIXED_BYTES - 1)?]));
            let (record, others) = rest.split_at_checked(FIXED_BYTES + length)?;
            rest = others;
            Some(EncodedRecord(record))
        })
    }

    /// Where the record of this number begins.
    pub(crate) fn start_of(&self, number: usize) -> usize {
        match self.kind {
            RecordType::A | RecordType::AAAA => self.bytes().len() / usize::from(self.count.max(1)) * number,
            _ => self.records().take(number).map(|record| record.0.len()).sum(),
        }
    }
}

impl PartialEq for RecordSet {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.bytes() == other.bytes()
    }
}

impl<'s> EncodedRecord<'s> {
    /// What follows the owner.
    pub(crate) fn behind_owner(self) -> &'s [u8] {
        &self.0[POINTER_BYTES..]
    }

    pub(crate) fn data(self) -> &'s [u8] {
        &self.0[FIXED_BYTES..]
    }

    pub(crate) fn ttl(self) -> u32 {
        self.0[TTL_AT..].first_chunk().map_or(0, |ttl| u32::from_be_bytes(*ttl))
    }
}
