//! Many hosts take subnets at once: each gets one, and no two the same, also where etcd does what it is asked and its answer is
//! lost.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ::etcd::{EtcdClient, EtcdOptions};
use network::config::{Allocate, Config};
use network::registry::{self, ClaimError, Claimant, Listed};
use tests::etcd::Etcd;
use tests::{battery, scaled, tell};

/// As many hosts as subnets.
const HOSTS: u8 = 200;

/// The same where answers are cut off, unless there is time for everything.
const HOSTS_CUT: u8 = 60;

/// Longest time that all of them take together.
const LIMIT: Duration = Duration::from_secs(3);

/// Time in which a host tries again whose answers are lost; the agent tries for ever.
const TRYING: Duration = Duration::from_secs(30);

/// Pause between two tries, shorter than the agent's.
const PAUSE: Duration = Duration::from_millis(100);

/// Of a hundred answers, so many are cut off.
const CUT: usize = 30;

/// Passes connections on to etcd, and cuts some answers off.
fn cutting(etcd: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let requests = Arc::new(AtomicUsize::new(0));
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(etcd) else { continue };
            let (from, back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (requests, cutting) = (requests.clone(), Arc::new(AtomicBool::new(false)));
            let cut = cutting.clone();
            std::thread::spawn(move || {
                pass(from, &server, |length| {
                    // Numbers without a pattern, the same each time.
                    let number = requests.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9) >> 16;
                    cut.store(number % 100 < CUT, Ordering::Relaxed);
                    (length, false)
                });
            });
            std::thread::spawn(move || {
                pass(back, &client, |length| {
                    let is_cut = cutting.load(Ordering::Relaxed);
                    (if is_cut { length / 2 } else { length }, is_cut)
                });
            });
        }
    });
    address
}

/// Passes on as much as `part` says of what was read, until it says that this was the last.
fn pass(mut from: TcpStream, mut to: &TcpStream, part: impl Fn(usize) -> (usize, bool)) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let (length, is_last) = part(length);
        if to.write_all(&bytes[..length]).is_err() || is_last {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// What a host does that has no subnet yet, until etcd has answered.
async fn join(address: SocketAddr, host: u8) -> Result<String, String> {
    let client = EtcdClient::new(EtcdOptions::parse(&format!("http://{address}")).unwrap()).unwrap();
    let name = format!("host-{host}");
    let via = Some(Ipv4Addr::new(192, 0, 2, host));
    let begun = Instant::now();
    while begun.elapsed() < scaled(TRYING) {
        let claimant = Claimant { host: &name, via, machine: &name, last: None, at: "2026-11-23T12:00:00Z", now: 0 };
        match registry::announce(&client, claimant, false).await {
            Ok(subnet) => return Ok(subnet.to_string()),
            Err(ClaimError::Refused(why)) => return Err(why),
            Err(ClaimError::Etcd(_)) => tokio::time::sleep(PAUSE).await,
        }
    }
    Err("no answer at all".to_owned())
}

fn check(hosts: u8, cut: bool) {
    let Some(etcd) = Etcd::start(1) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = if cut { cutting(etcd.address(0)) } else { etcd.address(0) };
    runtime.block_on(async {
        let direct = EtcdClient::new(EtcdOptions::parse(&etcd.urls()).unwrap()).unwrap();
        let reserved = (hosts + 1..255).map(|third| format!("10.42.{third}.0/24").parse().unwrap()).collect();
        let config = Config::new("10.42.0.0/16".parse().unwrap(), 24, reserved, Allocate::Itself).unwrap();
        registry::init(&direct, &config).await.unwrap();
        let begun = Instant::now();
        let joining: Vec<_> = (1..=hosts).map(|host| tokio::spawn(join(address, host))).collect();
        let mut subnets = BTreeSet::new();
        for joined in joining {
            subnets.insert(joined.await.unwrap().unwrap());
        }
        let took = begun.elapsed();
        tell(&format!("{hosts} hosts have a subnet after {took:?}{}", if cut { ", with answers cut off" } else { "" }));
        assert_eq!(subnets.len(), usize::from(hosts));
        assert!(cut || took < scaled(LIMIT), "{took:?}");
        // What etcd has is what the hosts were given, and no host has two.
        let claims = Listed::read(&direct).await.unwrap().claims;
        let peers: Vec<_> = claims.peers().map(|peer| (peer.host.to_string(), peer.subnet.to_string())).collect();
        let (named, had): (BTreeSet<_>, BTreeSet<_>) = peers.iter().cloned().unzip();
        assert_eq!((peers.len(), named.len(), had), (usize::from(hosts), usize::from(hosts), subnets));
        let refused = join(address, hosts + 1).await.unwrap_err();
        assert!(
            refused.contains(&format!("no subnet of 10.42.0.0/16 is free for host-{}: give one back", hosts + 1)),
            "{refused}"
        );
    });
}

#[test]
fn as_many_hosts_as_subnets_get_one_each() {
    check(HOSTS, false);
}

#[test]
fn answers_that_are_lost_give_no_host_two_subnets() {
    check(if battery::is_long() { HOSTS } else { HOSTS_CUT }, true);
}
