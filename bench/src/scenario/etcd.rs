//! Many hosts over etcd: how soon the others know of a change, and what following costs.
//!
//! Every host is simulated by the part of the service that publishes hosts, with a lease of its own; etcd, metadata and
//! DNS are real. Between metadata and etcd a relay counts bytes.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use etcd::{EtcdClient, EtcdOptions};
use live::HostDocument;
use live::etcd::{Identity, Publishing};
use live::leave::Leave;
use live::metrics::Metrics;
use model::{Map, Text, Value};
use serde_json::json;
use source::{Readiness, Store};
use tests::etcd::Etcd;
use tokio::runtime::Runtime;

use crate::machine::Machine;
use crate::names::{self, Question};
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::scenario::files::quiet;
use crate::server::Executables;
use crate::{Failure, exchange};

/// Containers on each host.
const CONTAINERS: usize = 20;

/// How many hosts have containers of the same services.
const SCALE: usize = 10;

/// Changes a second.
const PACE: u32 = 100;

/// One of so many changes is looked for in DNS: looking costs the machine, too.
const LOOKED_AT: u32 = 10;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// Between the starts of two hosts.
const BETWEEN_STARTS: Duration = Duration::from_millis(5);

/// A lease that 5,000 hosts on one machine can keep: 250 renewals a second.
const LEASE: Duration = Duration::from_mins(1);

pub(crate) fn run(scene: &mut Scene<'_>) {
    let Scene { machine, executables, options, .. } = *scene;
    let (hosts, length) = if options.quick { (500, 6) } else { (5000, 20) };
    let title = format!("etcd with {hosts} hosts of {CONTAINERS} containers, {PACE} changes a second");
    if !options.wants(&title) {
        return;
    }
    let rows = measure(machine, executables, hosts, Duration::from_secs(length));
    let rows = rows.unwrap_or_else(|failure| vec![Row::missing("berth", failure.to_string())]);
    scene.tell("see row", &title, "", rows);
}

fn measure(machine: &Machine, executables: &Executables, hosts: usize, length: Duration) -> Result<Vec<Row>, Failure> {
    let etcd = Etcd::start(1).ok_or("no etcd, or no curl to ask it (Debian's etcd-server and curl)")?;
    let address = etcd.address(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let begun = Instant::now();
    let mut world = World::publish(&runtime, address, hosts)?;
    let published = begun.elapsed();

    let relay = Relay::start(address)?;
    let begun = Instant::now();
    let source = format!("etcd:http://{}", relay.address);
    let metadata = executables.start(machine, "metadata", &["--source", &source])?;
    let dns = executables.start(machine, "dns", &["--metadata-server", &metadata.address.to_string()])?;
    exchange::until("the last container", LOOK, || Ok(answered(dns.address, hosts - 1, 0).is_some()))?;
    let cold = begun.elapsed();
    let listed = relay.bytes.load(Ordering::Relaxed);
    quiet(&metadata)?;
    quiet(&dns)?;
    let calm = (metadata.resident()?, dns.resident()?);

    let (before, bytes) = ((metadata.cpu()?, dns.cpu()?), relay.bytes.load(Ordering::Relaxed));
    let start = Instant::now();
    let (changes, mut delays) = world.change(dns.address, length)?;
    let took = start.elapsed();
    let cores =
        |after: Duration, before: Duration| 100.0 * after.saturating_sub(before).as_secs_f64() / took.as_secs_f64();
    let busy = (cores(metadata.cpu()?, before.0), cores(dns.cpu()?, before.1));
    let each = (relay.bytes.load(Ordering::Relaxed) - bytes) / u64::from(changes);
    if delays.is_empty() {
        return Err("no change was seen".into());
    }
    delays.sort_unstable();
    let at = |share: f64| {
        // A place in the list: far below what a float holds.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "small"
        )]
        let place = (share * (delays.len() - 1) as f64) as usize;
        delays[place].as_secs_f64() * 1e3
    };
    let mb = |bytes: u64| f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) / 1024.0;
    Ok(vec![
        Row::figure("a change is answered by DNS, p50 ms", at(0.5)).with_note(format!(
            "{changes} changes in {:.1} s, {} looked for",
            took.as_secs_f64(),
            delays.len()
        )),
        Row::figure("a change is answered by DNS, p99 ms", at(0.99))
            .with_goal(Goal::AtMost(250.0))
            .with_note(format!("greatest {:.0} ms", at(1.0))),
        Row::figure("bytes from etcd per change", f64::from(u32::try_from(each).unwrap_or(u32::MAX)))
            .with_goal(Goal::AtMost(1024.0)),
        Row::figure("a cold follower is ready, s", cold.as_secs_f64())
            .with_goal(Goal::AtMost(5.0))
            .with_note(format!("metadata and dns on one core, {:.1} MB from etcd", mb(listed))),
        Row::figure("metadata, % of a core", busy.0).with_note(format!("{:.0} MiB", mb(calm.0))),
        Row::figure("dns, % of a core", busy.1).with_note(format!("{:.0} MiB", mb(calm.1))),
        Row::figure("all hosts are published, s", published.as_secs_f64()).with_note("hosts and etcd on one core"),
    ])
}

/// The address that DNS gives for a container, when it does.
fn answered(dns: SocketAddr, host: usize, number: usize) -> Option<Ipv4Addr> {
    let question = Question::new(&format!("{}.{}", container(host, number), names::ZONE), true);
    let (reply, _) = exchange::ask(dns, &question)?;
    let bytes: [u8; 4] = reply.get(reply.len().checked_sub(4)?..)?.try_into().ok()?;
    question.is_answered_by(&reply).then(|| bytes.into())
}

fn container(host: usize, number: usize) -> String {
    format!("c-{host}-{number}")
}

/// The hosts, each with its own publisher.
struct World<'r> {
    runtime: &'r Runtime,
    documents: Vec<Arc<Store<HostDocument>>>,
    /// How often the containers that changed did.
    turns: HashMap<(usize, usize), u8>,
    random: u64,
}

impl<'r> World<'r> {
    /// Publishes all hosts, and returns when etcd has them.
    fn publish(runtime: &'r Runtime, etcd: SocketAddr, hosts: usize) -> Result<Self, Failure> {
        let mut options = EtcdOptions::parse(&format!("http://{etcd}"))?;
        options.lease = LEASE;
        let prefix = format!("{}hosts/", options.prefix);
        let guard = runtime.enter();
        let client = EtcdClient::new(options)?;
        let mut documents = Vec::new();
        for host in 0..hosts {
            let store = Arc::new(Store::new(HostDocument::default()));
            store.publish(Arc::new(document(host, &HashMap::new())));
            let (_, leaving) = Leave::channel();
            let publishing =
                Publishing { identity: Identity::open(None)?, leaving, metrics: Metrics::default(), exchange: None };
            let (client, store) = (client.clone(), store.clone());
            documents.push(store.clone());
            // Hosts of a cluster do not start within a moment of each other.
            let begin = BETWEEN_STARTS * u32::try_from(host)?;
            runtime.spawn(async move {
                tokio::time::sleep(begin).await;
                live::etcd::publish(client, store, publishing, Arc::new(Readiness::default())).await;
            });
        }
        drop(guard);
        // The containers, their services and the host itself.
        let expected = hosts * (2 * CONTAINERS + 1);
        let end = Instant::now() + Duration::from_mins(5);
        // While all of them write, a request may get no response.
        while runtime.block_on(client.list(prefix.as_bytes(), true)).map_or(0, |keys| keys.pairs.len()) < expected {
            if Instant::now() > end {
                return Err("the hosts were not published within 5 minutes".into());
            }
            thread::sleep(Duration::from_secs(1));
        }
        Ok(Self { runtime, documents, turns: HashMap::new(), random: 1 })
    }

    /// Changes containers at the pace, for so long; gives how many, and how soon those looked for were answered.
    fn change(&mut self, dns: SocketAddr, length: Duration) -> Result<(u32, Vec<Duration>), Failure> {
        let (looking, seen) = mpsc::channel();
        let start = Instant::now();
        let mut changes = 0;
        while start.elapsed() < length {
            let due = start + Duration::from_secs(1) * changes / PACE;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // xorshift: the same containers in each run.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let pick = usize::try_from(self.random >> 16)?;
            let (host, number) = (pick % self.documents.len(), pick / self.documents.len() % CONTAINERS);
            let turn = self.turns.entry((host, number)).or_default();
            *turn = turn.wrapping_add(1);
            let wanted = address(host, number, *turn);
            let document = document(host, &self.turns);
            let written = Instant::now();
            let _guard = self.runtime.enter();
            self.documents[host].publish(Arc::new(document));
            if changes % LOOKED_AT == 0 {
                let looking = looking.clone();
                thread::spawn(move || {
                    let found = exchange::until("a change", LOOK, || Ok(answered(dns, host, number) == Some(wanted)));
                    let _ = looking.send(found.map(|_| written.elapsed()).map_err(|failure| failure.to_string()));
                });
            }
            changes += 1;
        }
        drop(looking);
        let delays = seen.iter().collect::<Result<Vec<_>, _>>()?;
        Ok((changes, delays))
    }
}

/// Addresses of a container: `turn` tells how often it changed.
fn address(host: usize, number: usize, turn: u8) -> Ipv4Addr {
    let place = u32::try_from(host * CONTAINERS + number).unwrap_or_default();
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + place * 8 + u32::from(turn % 8))
}

fn document(host: usize, turns: &HashMap<(usize, usize), u8>) -> HostDocument {
    let name = format!("host-{host}");
    let service = |number: usize| names::label(host / SCALE * CONTAINERS + number);
    let containers = (0..CONTAINERS).map(|number| {
        let turn = turns.get(&(host, number)).copied().unwrap_or_default();
        json!({
            "name": container(host, number),
            "uuid": format!("{host:08x}-{number:04x}-4000-8000-000000000000"),
            "external_id": format!("{host:032x}{number:032x}"),
            "service": format!("shop/{}", service(number)),
            "host": name,
            "primary_ip": address(host, number, turn),
            "state": "running",
            "create_index": host * CONTAINERS + number + 1,
            "labels": { "com.docker.compose.project": "shop", "com.docker.compose.service": service(number) },
        })
    });
    let services = (0..CONTAINERS).map(|number| json!({ "name": service(number), "stack": "shop" }));
    let document = json!({
        "host": name,
        "hosts": [{ "name": name, "agent_ip": Ipv4Addr::from(0xc000_0200 + u32::try_from(host).unwrap_or_default()) }],
        "services": services.collect::<Vec<_>>(),
        "containers": containers.collect::<Vec<_>>(),
    });
    let document: Map =
        serde_json::from_value::<Value>(document).ok().and_then(|value| value.as_map().cloned()).unwrap_or_default();
    HostDocument { host: Text::from(name), document, ..HostDocument::default() }
}

/// Passes connections on to a server and counts what it sends.
struct Relay {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
}

impl Relay {
    fn start(server: SocketAddr) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, bytes) = (listener.local_addr()?, Arc::new(AtomicU64::new(0)));
        let counter = bytes.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let (Ok(back), Ok(to)) = (server.try_clone(), client.try_clone()) else { continue };
                let counter = counter.clone();
                thread::spawn(move || copy(client, server, |_| {}));
                thread::spawn(move || {
                    copy(back, to, |length| {
                        counter.fetch_add(length, Ordering::Relaxed);
                    });
                });
            }
        });
        Ok(Self { address, bytes })
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, count: impl Fn(u64)) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        count(length as u64);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
