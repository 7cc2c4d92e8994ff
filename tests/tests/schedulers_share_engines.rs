//! Several schedulers that start containers with one ledger in a real etcd, while everything fails: engines, the
//! connections to them, and the schedulers themselves.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tests::etcd::Etcd;
use tests::shared::Exclusive;
use tests::storm::{Engines, Storm, all_started};
use tests::wait::scaled;
use tests::{Launch, http};

/// How many engines there are, and how many containers of the smallest kind fit on one.
const ENGINES: u16 = 6;
const CONTAINERS: i64 = 60;
/// How many schedulers there are.
const SCHEDULERS: usize = 3;
/// How many ask at once, and how many of them for the same as another.
const CLIENTS: usize = 600;
const DOUBLES: usize = 120;
/// How many ports they fight for.
const PORTS: usize = 10;
/// How long one of the schedulers lives before the next one is killed.
const LIFE: Duration = Duration::from_secs(2);
/// Longest time for all clients to be told something definite.
const LIMIT: Duration = Duration::from_mins(4);

#[test]
fn what_dying_schedulers_began_the_others_finish_and_nothing_is_started_twice() {
    let Some(etcd) = Etcd::start(1) else { return };
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(ENGINES, CONTAINERS) else { return };
    let launch = Launch::scheduler()
        .with("--source", format!("file:{}", engines.files.file().display()))
        .with("--ledger-etcd", etcd.urls());
    let mut schedulers: Vec<_> = (0..SCHEDULERS).map(|_| launch.start()).collect();
    schedulers.iter_mut().for_each(tests::Service::ready);
    let addresses: Vec<_> = schedulers.iter_mut().map(tests::Service::address).collect();

    let begun = Instant::now();
    let storm = Storm::begin(&engines, &addresses, CLIENTS, (DOUBLES, PORTS), begun + scaled(LIMIT));
    let mut deaths = 0;
    while !storm.is_over() && begun.elapsed() < scaled(LIMIT) + LIFE {
        std::thread::sleep(LIFE);
        if !storm.is_over() {
            let at = deaths % SCHEDULERS;
            schedulers[at].kill();
            schedulers[at] = launch.clone().with("--listen", addresses[at].to_string()).start();
            deaths += 1;
        }
    }
    let took = begun.elapsed();
    storm.check();
    assert!(deaths > 0, "no scheduler was ever killed");

    // Once nothing fails any more, everything settles.
    let calm = Instant::now();
    engines.mend();
    let list = |address: SocketAddr| http::get("/v1/placements").ask(address).value()["placements"].clone();
    let settled = tests::eventually("everything is settled, for all alike", Duration::from_mins(2), || {
        let placements = list(addresses[0]);
        let alike = all_started(&placements) && addresses.iter().all(|address| list(*address) == placements);
        alike.then_some(placements)
    });
    let judged = engines.judge(&storm, &settled);
    tests::tell(&format!(
        "{CLIENTS} requests to {SCHEDULERS} schedulers in {took:.0?}, settled {:.0?} later, {deaths} of them killed: {judged}",
        calm.elapsed()
    ));
}
