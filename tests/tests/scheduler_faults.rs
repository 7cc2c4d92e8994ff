//! Starting containers while everything fails: the engines, the connections to them, and the scheduler itself.

use std::time::{Duration, Instant};

use tests::http;
use tests::shared::Exclusive;
use tests::storm::{Engines, Storm, all_started};
use tests::wait::scaled;

/// How many engines there are, and how many containers of the smallest kind fit on one.
const ENGINES: u16 = 20;
const CONTAINERS: i64 = 120;
/// How many ask at once, and how many of them for the same as another.
const CLIENTS: usize = 10_000;
const DOUBLES: usize = 1000;
/// How many ports they fight for.
const PORTS: usize = 30;
/// How long the scheduler lives before it is killed.
const LIFE: Duration = Duration::from_secs(5);
/// Longest time for all clients to be told something definite.
const LIMIT: Duration = Duration::from_mins(5);

#[test]
fn no_container_is_placed_twice_whatever_fails() {
    let _processors = Exclusive::processors();
    let Some(mut engines) = Engines::start(ENGINES, CONTAINERS) else { return };
    let launch = engines.scheduler().with("--state-dir", engines.files.path("state"));
    let mut scheduler = launch.start();
    scheduler.ready();
    let address = scheduler.address();
    let launch = launch.with("--listen", address.to_string());

    let begun = Instant::now();
    let storm = Storm::begin(&engines, &[address], CLIENTS, (DOUBLES, PORTS), begun + scaled(LIMIT));
    let mut deaths = 0;
    while !storm.is_over() && begun.elapsed() < scaled(LIMIT) + LIFE {
        let born = Instant::now();
        while born.elapsed() < LIFE && !storm.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
        if !storm.is_over() {
            scheduler.kill();
            deaths += 1;
            scheduler = launch.start();
            scheduler.ready();
        }
    }
    let took = begun.elapsed();
    storm.check();
    assert!(deaths > 0, "the scheduler was never killed");

    // Once nothing fails any more, everything settles.
    let calm = Instant::now();
    engines.mend();
    let settled = tests::eventually("everything is settled", Duration::from_secs(90), || {
        let placements = http::get("/v1/placements").ask(address).value()["placements"].clone();
        all_started(&placements).then_some(placements)
    });
    let judged = engines.judge(&storm, &settled);
    tests::tell(&format!(
        "{CLIENTS} requests in {took:.0?}, settled {:.0?} later, the scheduler killed {deaths} times: {judged}",
        calm.elapsed()
    ));
}
