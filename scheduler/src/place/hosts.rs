//! The hosts of an inventory: what is known of them apart from what runs there.
//!
//! Hosts stand in the order of their uuids, so that the dense index also settles ties, and equal inputs
//! give equal answers.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use model::{Entity, Host, LOW_ON_DISK, Map, Table, Text, Value};

use crate::place::bits::Bits;
use crate::place::constraint::Attribute;
use crate::place::port::WILDCARD;
use crate::place::taint::Taint;
use crate::place::windows::{Build, Isolation};

/// Containers, in any number: the pool that every container takes one of.
pub(crate) const INSTANCES: &str = "instanceReservation";
/// Processor, in thousandths of one.
pub(crate) const CPU: &str = "cpuReservation";
/// Memory, in bytes.
pub(crate) const MEMORY: &str = "memoryReservation";
/// Disk, in MiB.
pub(crate) const STORAGE: &str = "storageSize";

/// Index of [`INSTANCES`] among the pools.
pub(crate) const INSTANCES_AT: usize = 0;
/// Index of [`CPU`] among the pools.
pub(crate) const CPU_AT: usize = 1;
/// Index of [`MEMORY`] among the pools.
pub(crate) const MEMORY_AT: usize = 2;

/// Host label with the addresses on which ports may be published, comma-separated.
pub(crate) const ADDRESSES_LABEL: &str = "io.rancher.scheduler.ips";
/// Host label with the container labels of which it demands one.
pub(crate) const REQUIRE_ANY_LABEL: &str = "io.rancher.scheduler.require_any";
/// Host label with the taints of the host.
pub(crate) const TAINTS_LABEL: &str = "io.berth.taints";
/// Start of the host labels that set the total of a pool: `io.berth.pool.gpu=2`.
pub(crate) const POOL_LABEL_PREFIX: &str = "io.berth.pool.";

/// Stands for the total of a pool that the host does not have: not even nothing fits.
pub(crate) const MISSING: i64 = -1;

/// How many containers a host takes by default; as the predecessor.
const INSTANCES_DEFAULT: i64 = 1_000_000;

/// Most pools: the four known ones and what labels add. More would be a mistake in labels, and cost memory per host.
const POOLS_MAX: usize = 64;

/// Why a host takes no containers from a scheduler that places on its own host only.
const ELSEWHERE: &str = "another host, and this scheduler shares no ledger (--ledger-etcd)";

/// Largest total of a pool, 2^53: beyond it a ratio would no longer be exact.
const TOTAL_MAX: i64 = 1 << 53;

/// All hosts.
#[derive(Debug, Default)]
pub struct HostTable {
    /// Each host, by index.
    pub(crate) list: Vec<Facts>,
    /// Hosts that take containers at all.
    pub(crate) eligible: Bits,
    /// Hosts that demand labels of the containers.
    pub(crate) demanding: Bits,
    /// Hosts with a taint.
    pub(crate) tainted: Bits,
    /// Hosts whose ports are published on addresses of their own choice.
    pub(crate) addressed: Bits,
    /// The host that the scheduler is on, alone.
    pub(crate) local: Bits,
    /// Names of the pools; the first four are known.
    pub(crate) pools: Vec<Text>,
    /// Totals by pool, then host.
    pub(crate) totals: Vec<Vec<i64>>,
    /// What one unit of a pool is of its total, by pool, then host; 0 where there is no total.
    pub(crate) shares: Vec<Vec<f32>>,
    index: HashMap<Text, u32>,
    /// The first host of each (folded) name.
    names: HashMap<String, u32>,
    labels: HashMap<String, Vec<(Text, Bits)>>,
}

impl HostTable {
    /// The hosts of a snapshot, of which `local` is the one that the scheduler is on, and may be the only one to take
    /// containers.
    pub(crate) fn new(table: &Table<Host>, local: Option<&Host>, local_only: bool) -> Self {
        let is_local = |host: &Host| local.is_some_and(|local| local.uuid() == host.uuid());
        let mut list: Vec<_> = table.values().take(HOSTS_MAX).map(|host| Facts::new(host, is_local(host))).collect();
        for facts in list.iter_mut().filter(|facts| local_only && !facts.is_local) {
            facts.refusal.get_or_insert_with(|| ELSEWHERE.to_owned());
        }
        let len = list.len();
        let mut names: BTreeSet<&str> = BTreeSet::new();
        for (key, _) in list.iter().flat_map(|facts| &facts.labels) {
            names.extend(key.strip_prefix(POOL_LABEL_PREFIX).filter(|name| !name.is_empty()));
        }
        let known = [INSTANCES, CPU, MEMORY, STORAGE];
        let added = names.into_iter().filter(|name| !known.contains(name));
        let pools: Vec<Text> = known.into_iter().chain(added).take(POOLS_MAX).map(Text::from).collect();
        let totals: Vec<Vec<i64>> =
            pools.iter().map(|pool| list.iter().map(|facts| facts.total(pool)).collect()).collect();
        #[expect(clippy::cast_precision_loss, reason = "a share is a score, not an account")]
        let share = |total: &i64| if *total > 0 { 1.0 / *total as f32 } else { 0.0 };
        let mut hosts = Self {
            eligible: Bits::none(len),
            demanding: Bits::none(len),
            tainted: Bits::none(len),
            addressed: Bits::none(len),
            local: Bits::none(len),
            shares: totals.iter().map(|totals| totals.iter().map(share).collect()).collect(),
            pools,
            totals,
            index: HashMap::with_capacity(len),
            names: HashMap::with_capacity(len),
            labels: HashMap::new(),
            list: Vec::new(),
        };
        for (at, facts) in (0..).zip(&list) {
            hosts.index.insert(facts.uuid.clone(), at);
            hosts.names.entry(facts.name.to_lowercase()).or_insert(at);
            for (set, member) in [
                (&mut hosts.eligible, facts.refusal.is_none()),
                (&mut hosts.demanding, facts.require_any.is_some()),
                (&mut hosts.tainted, !facts.taints.is_empty()),
                (&mut hosts.addressed, facts.addresses != [WILDCARD]),
                (&mut hosts.local, facts.is_local),
            ] {
                if member {
                    set.insert(at);
                }
            }
            for (key, value) in &facts.labels {
                let values = hosts.labels.entry(key.to_lowercase()).or_default();
                let known = values.iter().position(|(known, _)| known == value).unwrap_or_else(|| {
                    values.push((value.clone(), Bits::none(len)));
                    values.len() - 1
                });
                values[known].1.insert(at);
            }
        }
        hosts.list = list;
        hosts
    }

    /// How many hosts there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The index of the host with this uuid.
    pub(crate) fn index(&self, uuid: &str) -> Option<u32> {
        self.index.get(uuid).copied()
    }

    /// What a host of this uuid is called; the uuid if it is not there.
    pub(crate) fn name_of(&self, uuid: &Text) -> Text {
        self.index(uuid).map_or_else(|| uuid.clone(), |host| self.facts(host).name.clone())
    }

    /// The index of the host that a person means: by uuid, name or number.
    pub(crate) fn find(&self, word: &str) -> Option<u32> {
        let numbered = |facts: &Facts| facts.number.is_some_and(|number| number.to_string() == word);
        let position = |found: Option<usize>| found.and_then(|at| u32::try_from(at).ok());
        self.index(word)
            .or_else(|| self.names.get(&word.to_lowercase()).copied())
            .or_else(|| position(self.list.iter().position(numbered)))
    }

    /// The facts of a host.
    pub(crate) fn facts(&self, host: u32) -> &Facts {
        &self.list[host as usize]
    }

    /// The index of a pool.
    pub(crate) fn pool(&self, name: &str) -> Option<usize> {
        self.pools.iter().position(|pool| &**pool == name)
    }

    /// The values that hosts have for the label `key` (folded), each with the hosts that have it.
    pub(crate) fn values(&self, key: &str) -> &[(Text, Bits)] {
        self.labels.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether the same indices and pools mean the same as in `other`.
    pub(crate) fn same_layout(&self, other: &Self) -> bool {
        // Most changes are of containers, and leave the table as it is.
        std::ptr::eq(self, other)
            || self.pools == other.pools
                && self.len() == other.len()
                && self.list.iter().zip(&other.list).all(|(own, other)| own.uuid == other.uuid)
    }
}

/// Most hosts of an inventory: 30 times what we measure with, and far from what an index can count.
const HOSTS_MAX: usize = 150_000;

/// What is known of one host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    pub(crate) uuid: Text,
    pub(crate) name: Text,
    /// Whether the scheduler is on it.
    pub(crate) is_local: bool,
    /// The predecessor's number for it.
    pub(crate) number: Option<i64>,
    /// The address under which other hosts reach it.
    pub(crate) agent_ip: Option<IpAddr>,
    /// Its state as on the wire.
    pub(crate) state: Text,
    /// Why it takes no containers at all.
    pub(crate) refusal: Option<String>,
    /// Its labels, text only.
    pub(crate) labels: Vec<(Text, Text)>,
    /// Where its ports are published: its addresses, or the wildcard alone.
    pub(crate) addresses: Vec<IpAddr>,
    /// The container labels of which it demands one.
    pub(crate) require_any: Option<RequireAny>,
    pub(crate) taints: Vec<Taint>,
    /// What it can run.
    pub(crate) system: System,
    /// The names of its engine's networks, if they are known.
    pub(crate) networks: Option<BTreeSet<Text>>,
    milli_cpu: Option<i64>,
    memory: Option<i64>,
    storage: Option<i64>,
}

impl Facts {
    /// What a host is or has that a constraint asks for.
    pub(crate) fn attribute(&self, attribute: &Attribute) -> Option<&str> {
        match attribute {
            Attribute::Label(label) => {
                self.labels.iter().find(|(key, _)| key.to_lowercase() == *label).map(|(_, value)| &**value)
            }
            Attribute::Uuid => Some(&self.uuid),
            Attribute::Name => Some(&self.name),
            Attribute::Os => Some(&self.system.os),
            Attribute::Architecture => self.system.architecture.as_deref(),
        }
    }

    fn new(host: &Host, is_local: bool) -> Self {
        let fields = host.fields();
        let labels: Vec<(Text, Text)> = host.labels().into_iter().flatten().filter_map(label).collect();
        let get = |key: &str| labels.iter().find(|(own, _)| &**own == key).map(|(_, value)| &**value);
        let mut addresses: Vec<IpAddr> = get(ADDRESSES_LABEL)
            .into_iter()
            .flat_map(|list| list.split(','))
            .filter_map(|ip| ip.trim().parse().ok())
            .collect();
        let mut seen = BTreeSet::new();
        addresses.retain(|address| seen.insert(*address));
        if addresses.is_empty() {
            addresses.push(WILDCARD);
        }
        Self {
            uuid: host.uuid().clone(),
            name: host.name().unwrap_or_else(|| host.uuid()).clone(),
            is_local,
            number: fields.int("hostId"),
            agent_ip: fields.text("agent_ip").and_then(|ip| ip.parse().ok()),
            state: host.state().into(),
            refusal: refusal(host),
            addresses,
            require_any: get(REQUIRE_ANY_LABEL).and_then(RequireAny::parse),
            taints: get(TAINTS_LABEL).map(Taint::list).unwrap_or_default(),
            system: System::new(get),
            networks: host.networks().map(|names| names.cloned().collect()),
            milli_cpu: fields.int("milli_cpu"),
            memory: fields.int("memory"),
            storage: fields.int("local_storage_mb"),
            labels,
        }
    }

    /// The value of a label, by its exact key.
    pub(crate) fn label(&self, key: &str) -> Option<&Text> {
        self.labels.iter().find(|(own, _)| &**own == key).map(|(_, value)| value)
    }

    fn total(&self, pool: &str) -> i64 {
        let stated = self.labels.iter().find(|(key, _)| key.strip_prefix(POOL_LABEL_PREFIX) == Some(pool));
        let total = match (stated.and_then(|(_, value)| value.trim().parse().ok()), pool) {
            (Some(stated), _) => Some(stated),
            (None, INSTANCES) => Some(INSTANCES_DEFAULT),
            (None, CPU) => self.milli_cpu,
            (None, MEMORY) => self.memory,
            (None, STORAGE) => self.storage,
            _ => None,
        };
        total.filter(|total| *total >= 0).map_or(MISSING, |total| total.min(TOTAL_MAX))
    }
}

/// A label as text; a number or a truth value counts as what it looks like.
pub(crate) fn label((key, value): &(Text, Value)) -> Option<(Text, Text)> {
    let value = if value.is_null() { Some(Text::from("")) } else { value.scalar_text() };
    Some((key.clone(), value?))
}

/// The value of a text label.
pub(crate) fn label_text<'a>(labels: Option<&'a Map>, key: &str) -> Option<&'a Text> {
    labels?.text(key)
}

fn refusal(host: &Host) -> Option<String> {
    let state = host.intended().map_or_else(|| host.state(), |intended| &**intended);
    let agent = host.fields().text("agent_state").map_or("", |state| state);
    if !matches!(state, "" | "active" | "updating-active") {
        Some(format!("host is {state}"))
    } else if agent.starts_with(LOW_ON_DISK) {
        Some(format!("host is {agent}"))
    } else if !matches!(agent, "" | "active" | "updating-active") {
        Some(format!("host's agent is {agent}"))
    } else {
        None
    }
}

/// Container labels of which a host demands one (`require_any`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequireAny(Vec<(String, Option<String>)>);

impl RequireAny {
    /// `k=v` demands the value, `k` any value; an entry with two `=` is dropped. `None` when nothing is demanded.
    fn parse(text: &str) -> Option<Self> {
        if text.trim().is_empty() {
            return None;
        }
        let entry = |entry: &str| {
            let mut parts = entry.split('=').map(|part| part.trim().to_lowercase());
            let (key, value, more) = (parts.next()?, parts.next(), parts.next());
            (more.is_none() && !key.is_empty()).then_some((key, value))
        };
        Some(Self(text.split(',').filter_map(entry).collect()))
    }

    /// Whether one container of the unit has one of the labels.
    pub(crate) fn accepts<'a>(&self, mut labels: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
        labels.any(|(key, value)| {
            let (key, value) = (key.to_lowercase(), value.to_lowercase());
            self.0
                .iter()
                .any(|(own, demanded)| *own == key && demanded.as_ref().is_none_or(|demanded| *demanded == value))
        })
    }
}

impl std::fmt::Display for RequireAny {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, (key, value)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            match value {
                Some(value) => write!(f, "{separator}{key}={value}")?,
                None => write!(f, "{separator}{key}")?,
            }
        }
        Ok(())
    }
}

/// What a host can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct System {
    /// `linux` or `windows`.
    pub(crate) os: Text,
    /// The architecture in the words of images (`amd64`), when it is known.
    pub(crate) architecture: Option<Text>,
    /// The Windows build, when it is known.
    pub(crate) build: Option<Build>,
    /// Whether it can isolate with Hyper-V.
    pub(crate) hyperv: bool,
    /// How its engine isolates by default.
    pub(crate) isolation: Isolation,
}

impl System {
    fn new<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Self {
        let of = |keys: &[&str]| keys.iter().find_map(|key| label(key)).filter(|text| !text.is_empty());
        let number = of(&["io.rancher.host.windows_build", "node.kubernetes.io/windows-build"]).and_then(Build::parse);
        let revision = of(&["io.rancher.host.windows_ubr"]).and_then(|text| text.trim().parse().ok());
        let build = number.map(|build| Build { revision: revision.or(build.revision), ..build });
        let windows = build.is_some() || of(&["io.rancher.host.windows_kernel_version"]).is_some();
        // All hosts of the predecessor were Linux unless they said otherwise.
        let os = of(&["io.rancher.host.os", "kubernetes.io/os"]).unwrap_or(if windows { "windows" } else { "linux" });
        let isolation = match of(&["io.rancher.host.isolation"]) {
            Some(word) if word.eq_ignore_ascii_case("hyperv") => Isolation::Hyperv,
            _ => Isolation::Process,
        };
        let hyperv = of(&["io.rancher.host.hyperv"]).is_some_and(|word| word.eq_ignore_ascii_case("true"));
        Self {
            os: os.to_lowercase().into(),
            architecture: of(&["io.rancher.host.arch", "kubernetes.io/arch"]).map(architecture),
            build,
            hyperv: hyperv || isolation == Isolation::Hyperv,
            isolation,
        }
    }
}

/// An architecture in the words of images.
pub(crate) fn architecture(word: &str) -> Text {
    match word.to_lowercase().as_str() {
        "x86_64" | "x86-64" => "amd64".into(),
        "aarch64" => "arm64".into(),
        other => other.into(),
    }
}

const _: () = assert!(matches!(WILDCARD, IpAddr::V4(Ipv4Addr::UNSPECIFIED)));

#[cfg(test)]
mod tests {
    use super::*;

    fn check_require_any(text: &str, accepted: &[(&str, &str)], expected: bool) {
        let accepts = RequireAny::parse(text).is_none_or(|demand| demand.accepts(accepted.iter().copied()));
        assert_eq!(accepts, expected, "{text:?} {accepted:?}");
    }

    #[test]
    fn require_any_wants_one_label_of_the_list() {
        check_require_any("foo=bar,foo1=bar1,foo5", &[("FOO", "BAR")], true);
        check_require_any("foo=bar,foo1=bar1,foo5", &[("foo5", "")], true);
        check_require_any("foo=bar", &[("foo", "baz")], false);
        check_require_any(" a=b , c ", &[("c", "anything")], true);
        check_require_any("", &[], true);
        check_require_any("a=b=c", &[("a", "b")], false);
        check_require_any("io.rancher.container.system=", &[("io.rancher.container.system", "")], true);
    }

    #[test]
    fn systems_are_known_by_labels() {
        let system = |labels: &'static [(&'static str, &'static str)]| {
            System::new(|key| labels.iter().find(|(own, _)| *own == key).map(|(_, value)| *value))
        };
        assert_eq!(&*system(&[]).os, "linux");
        let windows = system(&[("io.rancher.host.windows_build", "20348"), ("io.rancher.host.windows_ubr", "2113")]);
        assert_eq!((&*windows.os, windows.build.unwrap().to_string()), ("windows", "20348.2113".to_owned()));
        let alias = system(&[("node.kubernetes.io/windows-build", "10.0.17763"), ("kubernetes.io/arch", "x86_64")]);
        assert_eq!((alias.build.unwrap().number, alias.architecture.as_deref()), (17763, Some("amd64")));
        assert!(system(&[("io.rancher.host.isolation", "hyperv")]).hyperv);
    }
}
