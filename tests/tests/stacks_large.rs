//! A hundred units on five hosts are updated in at most twice the time that their engines need for the same work.
//!
//! Only in the long run. Linux, as root, with Debian's docker.io, etcd-server, busybox-static and curl.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tests::battery::is_long;
use tests::engine::Engine;
use tests::stacked::Stacked;
use tests::tell;

const HOSTS: u8 = 5;

const UNITS: usize = 100;

/// Units of a batch.
const BATCH: usize = 50;

/// How many containers an engine is asked for at once when it is asked directly.
const AT_ONCE: usize = 4;

const SCRIPT: &str = "trap exit TERM; sleep 1000 & wait";

#[test]
fn a_hundred_units_on_five_hosts_are_updated_in_twice_the_time_of_their_engines() {
    if !is_long() {
        return;
    }
    let Some(mut world) = Stacked::start(HOSTS) else { return };
    let of_host = UNITS / usize::from(HOSTS);
    let all = |act: &(dyn Fn(&Engine) + Sync)| {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for engine in &world.hosts.engines {
                scope.spawn(move || act(engine));
            }
        });
        begun.elapsed()
    };
    all(&|engine| create(engine, "old", of_host));
    // Batch after batch, as the scheduler does it, since each has to be good before the old ones end.
    let mut own = Duration::ZERO;
    for batch in 0..UNITS / BATCH {
        let part = BATCH / usize::from(HOSTS);
        own += all(&|engine| create(engine, &format!("new-{batch}"), part));
        own += all(&|engine| remove(engine, "old", batch * part..(batch + 1) * part));
    }
    all(&|engine| {
        for batch in 0..UNITS / BATCH {
            remove(engine, &format!("new-{batch}"), 0..BATCH / usize::from(HOSTS));
        }
    });

    let file = |mark: &str| {
        format!(
            "name: shop\nservices:\n  web:\n    image: box\n    command: [/bin/busybox, sh, -c, '{SCRIPT}']\n    stop_grace_period: 2s\n\
             \x20   environment: {{MARK: '{mark}'}}\n    deploy:\n      replicas: {UNITS}\n      \
             update_config: {{parallelism: {BATCH}, monitor: 1s}}\n"
        )
    };
    let first = world.file("first.yml", &file("one"));
    let begun = Instant::now();
    world.ends(0, &["up", &first]);
    tell(&format!("{UNITS} units are up after {:?}", begun.elapsed()));
    assert_eq!(world.running("shop"), UNITS);
    let second = world.file("second.yml", &file("two"));
    let begun = Instant::now();
    world.ends(0, &["up", &second]);
    let updated = begun.elapsed();
    assert_eq!(world.running("shop"), UNITS);
    tell(&format!(
        "{UNITS} units on {HOSTS} hosts are updated in {updated:?}; their engines alone need {own:?}: {:.2} times",
        updated.as_secs_f64() / own.as_secs_f64()
    ));
    assert!(updated <= own * 2, "{updated:?} and {own:?}");
    world.ends(0, &["down", "shop"]);
}

/// Creates and starts so many containers.
fn create(engine: &Engine, name: &str, count: usize) {
    let body = json!({ "Image": "box", "Cmd": ["/bin/busybox", "sh", "-c", SCRIPT], "StopTimeout": 2 }).to_string();
    each(0..count, |at| {
        let header = "Content-Type: application/json";
        let create = format!("http://x/v1.41/containers/create?name={name}-{at}");
        let start = format!("http://x/v1.41/containers/{name}-{at}/start");
        ask(engine, &["--header", header, "--data", &body, &create]);
        ask(engine, &["--request", "POST", &start]);
    });
}

/// Stops and removes some of them.
fn remove(engine: &Engine, name: &str, which: std::ops::Range<usize>) {
    each(which, |at| {
        let container = format!("http://x/v1.41/containers/{name}-{at}");
        ask(engine, &["--request", "POST", &format!("{container}/stop")]);
        ask(engine, &["--request", "DELETE", &format!("{container}?v=true")]);
    });
}

/// Does it for each, some at once.
fn each(which: std::ops::Range<usize>, act: impl Fn(usize) + Sync) {
    let (begin, end) = (which.start, which.end);
    std::thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            let act = &act;
            scope.spawn(move || (begin + worker..end).step_by(AT_ONCE).for_each(act));
        }
    });
}

fn ask(engine: &Engine, arguments: &[&str]) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--fail", "--max-time", "120", "--unix-socket"]).arg(engine.socket());
    let status = command.args(arguments).stdout(Stdio::null()).status().expect("curl can be run");
    assert!(status.success(), "{arguments:?}");
}
