//! Routes of network namespaces that the tests make for themselves, beside those of iproute2.

use std::io::Write as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::super::{Route, RouteChange, RouteError, RouteEvents, Routes, forwarding, set_forwarding};
use super::conversation::Outcome;
use super::*;

/// Longest wait for a report, which comes within milliseconds.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// A user without rights.
const NOBODY: libc::c_long = 65_534;

/// How long no report may come.
const QUIET: Duration = Duration::from_millis(100);

/// Runs a test in a thread with a network namespace of its own, where two links lead to 192.0.2.0/24 and 198.51.100.0/24.
fn in_namespace(test: impl AsyncFnOnce() + Send) {
    in_empty_namespace(async || {
        for (link, peer, address) in [("veth0", "peer0", "192.0.2.1/24"), ("veth1", "peer1", "198.51.100.1/24")] {
            ip(&format!("link add {link} type veth peer name {peer}"));
            ip(&format!("address add {address} dev {link}"));
            ip(&format!("link set {peer} up"));
            ip(&format!("link set {link} up"));
        }
        test().await;
    });
}

fn in_empty_namespace(test: impl AsyncFnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: takes no pointers; only this thread, which ends with the test, moves to the new namespace.
            #[expect(unsafe_code, reason = "std does not know namespaces")]
            let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            if !moved {
                let refused = io::Error::last_os_error();
                let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
                assert!(!in_ci, "nothing may be skipped here: no network namespace: {refused}");
                let _ = writeln!(io::stderr(), "skipped: no network namespace ({refused})");
                return;
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test());
        });
    });
}

/// What `ip` prints; it runs in the namespace of the calling thread.
fn ip(arguments: &str) -> String {
    let _starting = crate::programs::starting();
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is there");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `ip`, whether or not it succeeds.
fn try_ip(arguments: &str) {
    let _starting = crate::programs::starting();
    Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is there");
}

/// All routes of all tables, with everything that the kernel says about them but whether there is a carrier.
fn everything() -> String {
    ip("-4 -N -d route show table all").replace(" linkdown", "")
}

/// Those that are not ours.
fn foreign() -> String {
    everything().lines().filter(|line| !line.contains(" proto 98 ")).collect::<Vec<_>>().join("\n")
}

/// Our routes as `PREFIX via ADDRESS dev LINK`, separated by commas.
fn ours() -> String {
    let mut lines: Vec<_> = ip("-4 -N route show proto 98").lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines.join(", ").replace(" metric 4242", "").replace(" linkdown", "")
}

async fn index(name: &str) -> u32 {
    let table = Routes::open().unwrap().read().await.unwrap();
    table.links.iter().find(|link| link.name == name).unwrap_or_else(|| panic!("{name} in {table:?}")).index
}

async fn marked(prefix: &str, via: &str) -> Route {
    let link = if via.starts_with("198.51") { "veth1" } else { "veth0" };
    Route::marked(prefix.parse().unwrap(), via.parse().unwrap(), index(link).await)
}

/// `add PREFIX VIA`, `replace PREFIX VIA NEW` or `remove PREFIX VIA`.
async fn change(words: &str) -> RouteChange {
    let words: Vec<_> = words.split_whitespace().collect();
    let route = marked(words[1], words[2]).await;
    match words[0] {
        "add" => RouteChange::Add(route),
        "replace" => {
            let new = marked(words[1], words[3]).await;
            RouteChange::Replace { route, via: new.via.unwrap(), link: new.link }
        }
        _ => RouteChange::Remove(route),
    }
}

async fn apply(changes: &[RouteChange]) -> Vec<Result<(), RouteError>> {
    Routes::open().unwrap().apply(changes).await
}

fn word(outcome: Result<(), RouteError>) -> String {
    match outcome {
        Ok(()) => "done".to_owned(),
        Err(RouteError::Taken { .. }) => "taken".to_owned(),
        Err(RouteError::Missing { .. }) => "missing".to_owned(),
        Err(RouteError::NotPermitted { .. }) => "not permitted".to_owned(),
        Err(RouteError::Unknown { .. }) => "unknown".to_owned(),
        Err(RouteError::Refused { error, .. }) => error.to_string(),
    }
}

/// `n` routes, the first of which is 10.0.1.0/24.
async fn many(n: u32) -> Vec<Route> {
    let link = index("veth0").await;
    let prefix = |number: u32| ipnet::Ipv4Net::new((0x0a00_0000 + (number << 8)).into(), 24).unwrap();
    (1..=n).map(|number| Route::marked(prefix(number), [192, 0, 2, 10].into(), link)).collect()
}

#[test]
fn changes_are_made_or_say_why_not_and_never_touch_a_foreign_route() {
    for (foreign_routes, changes, outcomes, expected) in [
        ("", "add 10.42.7.0/24 192.0.2.10", "done", "10.42.7.0/24 via 192.0.2.10 dev veth0"),
        (
            "",
            "add 10.42.7.0/24 192.0.2.10; add 10.42.7.0/24 192.0.2.11",
            "done; taken",
            "10.42.7.0/24 via 192.0.2.10 dev veth0",
        ),
        (
            "",
            "add 10.42.7.0/24 192.0.2.10; replace 10.42.7.0/24 192.0.2.10 198.51.100.10",
            "done; done",
            "10.42.7.0/24 via 198.51.100.10 dev veth1",
        ),
        ("", "replace 10.42.7.0/24 192.0.2.10 192.0.2.11", "missing", ""),
        ("", "add 10.42.7.0/24 192.0.2.10; remove 10.42.7.0/24 192.0.2.10", "done; done", ""),
        ("", "remove 10.42.7.0/24 192.0.2.10", "missing", ""),
        (
            "",
            "add 10.42.7.0/24 192.0.2.10; remove 10.42.7.0/24 192.0.2.11; remove 10.42.7.0/25 192.0.2.10",
            "done; missing; missing",
            "10.42.7.0/24 via 192.0.2.10 dev veth0",
        ),
        // What fails does not stop the rest.
        (
            "",
            "add 10.42.7.0/24 203.0.113.10; add 10.42.8.0/24 192.0.2.10",
            "Nexthop has invalid gateway (os error 101); done",
            "10.42.8.0/24 via 192.0.2.10 dev veth0",
        ),
        // A foreign route with lower metric is no obstacle, and one in our place is.
        (
            "10.42.7.0/24 via 192.0.2.10 proto static",
            "add 10.42.7.0/24 192.0.2.10; remove 10.42.7.0/24 192.0.2.10",
            "done; done",
            "",
        ),
        ("10.42.7.0/24 via 192.0.2.10 metric 4242 proto static", "add 10.42.7.0/24 192.0.2.10", "taken", ""),
        ("blackhole 10.42.7.0/24 metric 4242 proto static", "add 10.42.7.0/24 192.0.2.10", "taken", ""),
        // Equal in everything but the protocol.
        ("10.42.7.0/24 via 192.0.2.10 metric 4242 proto static", "remove 10.42.7.0/24 192.0.2.10", "missing", ""),
        ("10.42.7.0/24 via 192.0.2.10 metric 4242 proto bird", "remove 10.42.7.0/24 192.0.2.10", "missing", ""),
        ("10.42.7.0/24 via 192.0.2.10 metric 4242", "remove 10.42.7.0/24 192.0.2.10", "missing", ""),
        ("10.42.7.0/24 via 192.0.2.10 metric 4242 table 77 proto 98", "remove 10.42.7.0/24 192.0.2.10", "missing", ""),
    ] {
        in_namespace(async move || {
            if !foreign_routes.is_empty() {
                ip(&format!("route add {foreign_routes}"));
            }
            let before = everything();
            let mut asked = Vec::new();
            for words in changes.split("; ") {
                asked.push(change(words).await);
            }
            let got: Vec<_> = apply(&asked).await.into_iter().map(word).collect();
            assert_eq!(got.join("; "), outcomes, "{changes}");
            assert_eq!(ours(), expected, "{changes}");
            if expected.is_empty() {
                assert_eq!(everything(), before, "{changes}");
            }
        });
    }
}

#[test]
fn a_route_without_the_mark_is_not_even_asked_for() {
    in_namespace(async || {
        ip("route add 10.42.7.0/24 via 192.0.2.10 metric 4242");
        let route = Route { marked: false, ..marked("10.42.7.0/24", "192.0.2.10").await };
        let before = foreign();
        let other = marked("10.42.8.0/24", "192.0.2.10").await;
        let changes = [
            RouteChange::Remove(route),
            RouteChange::Add(other),
            RouteChange::Replace { route, via: [192, 0, 2, 11].into(), link: route.link },
            RouteChange::Remove(other),
        ];
        let outcomes: Vec<_> = apply(&changes).await.into_iter().map(word).collect();
        assert_eq!(outcomes, ["missing", "done", "missing", "done"]);
        assert_eq!(foreign(), before);
    });
}

#[test]
fn a_replacement_overwrites_the_first_route_in_its_place_so_it_needs_a_reading() {
    in_namespace(async || {
        let mut routes = Routes::open().unwrap();
        let route = marked("10.42.7.0/24", "192.0.2.10").await;
        assert!(!routes.read().await.unwrap().is_replaceable(&route), "it is not there");
        assert!(apply(&[RouteChange::Add(route)]).await.remove(0).is_ok());
        ip("route add 10.42.7.0/24 via 192.0.2.11 metric 7");
        assert!(routes.read().await.unwrap().is_replaceable(&route), "that one is in another place");
        for how in ["append", "prepend"] {
            ip(&format!("route {how} 10.42.7.0/24 via 192.0.2.12 metric 4242 proto static"));
            let table = routes.read().await.unwrap();
            assert!(table.routes.contains(&route) && !table.is_replaceable(&route), "{how}");
            ip("route del 10.42.7.0/24 via 192.0.2.12 metric 4242");
        }
        // Without one: today's kernels overwrite a route of another protocol.
        ip("route prepend 10.42.7.0/24 via 192.0.2.12 metric 4242 proto static");
        let outcome = apply(&[change("replace 10.42.7.0/24 192.0.2.10 192.0.2.13").await]).await.remove(0);
        assert!(outcome.is_ok() && !foreign().contains("192.0.2.12"), "{outcome:?}");
    });
}

#[test]
fn everything_of_table_main_is_read_and_only_ours_is_marked() {
    in_namespace(async || {
        for route in [
            "10.42.7.0/24 via 192.0.2.10 metric 4242 proto 98",
            "10.42.7.0/24 via 192.0.2.11 metric 5 proto static",
            "default via 192.0.2.254",
            "10.42.8.0/24 metric 9 nexthop via 192.0.2.12 nexthop via 198.51.100.12",
            "blackhole 10.42.9.0/24",
            "10.42.10.0/24 dev veth1",
            // Neither of these.
            "10.42.11.0/24 via 192.0.2.10 table 77 proto 98",
            "10.42.12.0/24 via 192.0.2.10 tos 0x10",
        ] {
            ip(&format!("route add {route}"));
        }
        ip("address add 203.0.113.1 peer 203.0.113.2/30 dev veth1");
        ip("link set veth1 mtu 1400");
        let table = Routes::open().unwrap().read().await.unwrap();
        let name = |index| table.links.iter().find(|link| link.index == index).map_or("-", |link| &link.name);
        let mut routes: Vec<_> = table
            .routes
            .iter()
            .map(|route| {
                let via = route.via.map_or_else(|| "-".to_owned(), |via| via.to_string());
                let mark = if route.marked { " ours" } else { "" };
                format!("{} {via} {} {}{mark}", route.prefix, name(route.link), route.metric)
            })
            .collect();
        routes.sort();
        assert_eq!(
            routes,
            [
                "0.0.0.0/0 192.0.2.254 veth0 0",
                "10.42.10.0/24 - veth1 0",
                "10.42.7.0/24 192.0.2.10 veth0 4242 ours",
                "10.42.7.0/24 192.0.2.11 veth0 5",
                "10.42.8.0/24 192.0.2.12 veth0 9",
                "10.42.9.0/24 - - 0",
                "192.0.2.0/24 - veth0 0",
                "198.51.100.0/24 - veth1 0",
                "203.0.113.0/30 - veth1 0",
            ]
        );
        let mut links: Vec<_> = table
            .links
            .iter()
            .map(|link| {
                let addresses: Vec<_> = link.addresses.iter().map(ToString::to_string).collect();
                format!("{} {} {} {}", link.id, link.up, link.mtu, addresses.join(" "))
            })
            .filter(|link| link.contains("veth") || link.starts_with("lo "))
            .collect();
        links.sort();
        assert_eq!(
            links,
            ["lo false 65536 ", "veth0 true 1500 192.0.2.1/24", "veth1 true 1400 198.51.100.1/24 203.0.113.1/32",]
        );
        let own = Routes::open().unwrap().read_own().await.unwrap();
        assert_eq!(own, [marked("10.42.7.0/24", "192.0.2.10").await]);
    });
}

#[test]
fn a_namespace_without_any_address_has_no_routes() {
    in_empty_namespace(async || {
        let mut routes = Routes::open().unwrap();
        let table = routes.read().await.unwrap();
        assert!(table.links.iter().any(|link| link.name == "lo" && !link.up), "{table:?}");
        assert_eq!((table.routes, routes.read_own().await.unwrap()), (vec![], vec![]));
    });
}

#[test]
fn five_thousand_routes_lose_no_acknowledgement() {
    in_namespace(async || {
        let before = foreign();
        let mut routes = Routes::open().unwrap();
        let wanted = many(5000).await;
        let done = |outcomes: Vec<Result<(), RouteError>>| {
            assert_eq!(outcomes.len(), 5000);
            for outcome in outcomes {
                outcome.unwrap();
            }
        };
        done(routes.apply(&wanted.iter().copied().map(RouteChange::Add).collect::<Vec<_>>()).await);
        let mut own = routes.read_own().await.unwrap();
        own.sort();
        assert!(own == wanted);
        let via = [192, 0, 2, 11].into();
        let replace = |route: &Route| RouteChange::Replace { route: *route, via, link: route.link };
        done(routes.apply(&own.iter().map(replace).collect::<Vec<_>>()).await);
        let own = routes.read_own().await.unwrap();
        assert!(own.len() == 5000 && own.iter().all(|route| route.via == Some(via)));
        assert_eq!(routes.read().await.unwrap().routes.len(), 5002);
        done(routes.apply(&own.iter().copied().map(RouteChange::Remove).collect::<Vec<_>>()).await);
        assert_eq!(routes.read_own().await.unwrap(), []);
        assert_eq!(foreign(), before);
    });
}

#[test]
fn lost_acknowledgements_are_reported_and_not_waited_for() {
    in_namespace(async || {
        let mut routes = Routes::open().unwrap();
        routes.0.0.shrink(4096);
        let wanted = many(300).await;
        let begun = Instant::now();
        let outcomes = routes.apply(&wanted.iter().copied().map(RouteChange::Add).collect::<Vec<_>>()).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "it waited");
        let unknown = outcomes.iter().filter(|outcome| matches!(outcome, Err(RouteError::Unknown { .. }))).count();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count() + unknown, 300);
        assert!(unknown > 100, "{unknown}");
        // They were made all the same, as a reading shows.
        assert_eq!(routes.read_own().await.unwrap().len(), 300);
        let again = routes.apply(&[RouteChange::Remove(wanted[0])]).await;
        assert!(again[0].is_ok(), "{again:?}");
    });
}

#[test]
fn what_was_stopped_in_the_middle_disturbs_nothing_that_follows() {
    in_namespace(async || {
        let mut routes = Routes::open().unwrap();
        let wanted = many(1000).await;
        let add: Vec<_> = wanted.iter().copied().map(RouteChange::Add).collect();
        // Polled once: the first batch is sent and its acknowledgements are read at most.
        let stopped = tokio::time::timeout(Duration::ZERO, tokio::task::unconstrained(routes.apply(&add))).await;
        assert!(stopped.is_err());
        let begun = routes.0.0.begin(message::list_routes(None)).await;
        begun.unwrap();
        let own = routes.read_own().await.unwrap();
        assert!((1..1000).contains(&own.len()), "{}", own.len());
        let first = routes.0.0.abandon(request(&RouteChange::Remove(wanted[0]))).await;
        first.unwrap();
        let outcomes = routes.apply(&add).await;
        let taken = outcomes.into_iter().map(word).filter(|word| word == "taken").count();
        assert_eq!(taken, own.len() - 1);
        assert_eq!(routes.read_own().await.unwrap().len(), 1000);
    });
}

#[test]
fn without_the_right_the_error_names_it() {
    in_namespace(async || {
        let mut routes = Routes::open().unwrap();
        let route = marked("10.42.7.0/24", "192.0.2.10").await;
        // SAFETY: takes no pointers; it changes this thread only, which ends with the test.
        #[expect(unsafe_code, reason = "std has no identity of a thread")]
        let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(result, 0);
        // The kernel asks also who has opened the socket.
        for routes in [&mut routes, &mut Routes::open().unwrap()] {
            let outcome = routes.apply(&[RouteChange::Add(route)]).await.remove(0);
            assert_eq!(
                outcome.unwrap_err().to_string(),
                "not permitted to add the route to 10.42.7.0/24: run as root, or with the capability NET_ADMIN"
            );
            assert_eq!(routes.read().await.unwrap().routes.len(), 2, "reading needs no right");
        }
    });
}

/// Waits for a report, and for what belongs to it to be over.
async fn reported(events: &mut RouteEvents, what: &str) {
    tokio::time::timeout(REPORTED_WITHIN, events.changed()).await.unwrap_or_else(|_| panic!("{what} is not reported"));
    while tokio::time::timeout(QUIET, events.changed()).await.is_ok() {}
}

#[test]
fn every_loss_of_a_route_is_reported() {
    in_namespace(async || {
        let mut routes = Routes::open().unwrap();
        let mut events = routes.watch().unwrap();
        let add = [change("add 10.42.7.0/24 192.0.2.10").await];
        while tokio::time::timeout(QUIET, events.changed()).await.is_ok() {}
        for (what, command) in [
            ("a link that is switched off", "link set veth0 down"),
            ("a link that is switched on", "link set veth0 up"),
            ("an address that is removed", "address del 192.0.2.1/24 dev veth0"),
            ("an address that is added", "address add 192.0.2.1/24 dev veth0"),
            ("a route that a person removes", "route del 10.42.7.0/24"),
            ("a foreign route", "route add 10.42.8.0/24 via 192.0.2.11"),
            ("a link that is removed", "link del veth0"),
        ] {
            let _ = routes.apply(&add).await;
            ip(command);
            reported(&mut events, what).await;
            let lost = matches!(command.split(' ').nth(1), Some("set" | "del")) && !command.ends_with("up");
            assert!(!lost || ours().is_empty(), "{what}: {}", ours());
        }
    });
}

#[test]
fn our_own_changes_are_not_reported() {
    in_namespace(async || {
        let mut routes = Routes::open().unwrap();
        let mut events = routes.watch().unwrap();
        let mut is_quiet = false;
        // Links report now and then that they are ready.
        for _ in 0..20 {
            if is_quiet {
                break;
            }
            while tokio::time::timeout(QUIET, events.changed()).await.is_ok() {}
            for words in [
                "add 10.42.7.0/24 192.0.2.10",
                "replace 10.42.7.0/24 192.0.2.10 192.0.2.11",
                "remove 10.42.7.0/24 192.0.2.11",
            ] {
                assert!(routes.apply(&[change(words).await]).await.remove(0).is_ok(), "{words}");
            }
            is_quiet |= tokio::time::timeout(QUIET, events.changed()).await.is_err();
        }
        assert!(is_quiet);
        let route = change("add 10.42.7.0/24 192.0.2.10").await;
        assert!(apply(&[route]).await.remove(0).is_ok());
        reported(&mut events, "what another socket did").await;
    });
}

/// Without waiting a change is known at once, and only once; and a table that took in our own changes is as a new reading.
#[test]
fn what_changed_is_known_without_waiting() {
    in_namespace(async || {
        let mut routes = Routes::open().unwrap();
        let mut events = routes.watch().unwrap();
        while tokio::time::timeout(QUIET, events.changed()).await.is_ok() {}
        let mut table = routes.read().await.unwrap();
        for words in [
            "add 10.42.7.0/24 192.0.2.10",
            "add 10.42.8.0/24 192.0.2.10",
            "replace 10.42.7.0/24 192.0.2.10 192.0.2.11",
            "remove 10.42.8.0/24 192.0.2.10",
        ] {
            let change = change(words).await;
            assert!(routes.apply(&[change]).await.remove(0).is_ok(), "{words}");
            table.take_in(&change);
        }
        let mut read = routes.read().await.unwrap();
        for table in [&mut table, &mut read] {
            table.routes.sort_unstable();
        }
        assert_eq!(table, read);
        // Links report now and then that they are ready.
        while events.has_changed().await {}
        ip("route add 10.42.9.0/24 via 192.0.2.11");
        assert!(events.has_changed().await);
        assert!(!events.has_changed().await);
    });
}

#[test]
fn a_change_is_not_forgotten_by_whoever_stops_waiting() {
    in_namespace(async || {
        let routes = Routes::open().unwrap();
        let mut events = routes.watch().unwrap();
        while tokio::time::timeout(QUIET, events.changed()).await.is_ok() {}
        ip("route add 10.42.8.0/24 via 192.0.2.11");
        // Shorter than the pause after a change.
        assert!(tokio::time::timeout(Duration::from_millis(1), events.changed()).await.is_err());
        reported(&mut events, "a change that was noticed before").await;
    });
}

#[test]
fn an_overflow_of_reports_is_a_change() {
    in_namespace(async || {
        let mut routes = Routes::open().unwrap();
        let mut events = Routes::open().unwrap().watch().unwrap();
        let wanted = many(5000).await;
        while tokio::time::timeout(QUIET, events.changed()).await.is_ok() {}
        routes.apply(&wanted.into_iter().map(RouteChange::Add).collect::<Vec<_>>()).await;
        let begun = Instant::now();
        reported(&mut events, "a flood").await;
        assert!(begun.elapsed() < Duration::from_secs(2), "a flood is many hints");
    });
}

#[test]
fn forwarding_of_one_link_is_switched_and_nothing_else() {
    in_namespace(async || {
        let all = || {
            let names = ["all", "default", "lo", "veth0", "veth1"];
            names.map(|name| sysctl::read(&format!("net/ipv4/conf/{name}/forwarding")).unwrap()).join(" ")
        };
        sysctl::write("net.ipv4.ip_forward", "0").unwrap();
        assert_eq!(all(), "0 0 0 0 0");
        let link = Routes::open().unwrap().read().await.unwrap().links.into_iter().find(|link| link.name == "veth0");
        let link = link.unwrap();
        assert!(!forwarding(&link).unwrap());
        set_forwarding(&link, true).unwrap();
        assert_eq!((forwarding(&link).unwrap(), all().as_str()), (true, "0 0 0 1 0"));
        set_forwarding(&link, false).unwrap();
        assert_eq!((forwarding(&link).unwrap(), all().as_str()), (false, "0 0 0 0 0"));
        ip("link del veth0");
        assert_eq!(forwarding(&link).unwrap_err().kind(), io::ErrorKind::NotFound);
    });
}

/// Numbers that look random, the same ones at every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    fn choose<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }
}

#[test]
fn no_sequence_of_changes_touches_a_foreign_route() {
    const PREFIXES: [&str; 4] = ["10.42.1.0/24", "10.42.2.0/24", "10.42.2.0/25", "10.42.4.4/32"];
    const HOPS: [&str; 4] = ["192.0.2.10", "192.0.2.11", "198.51.100.10", "203.0.113.9"];
    for seed in 1..=3 {
        in_namespace(async move || {
            let mut dice = Dice(seed);
            let mut routes = Routes::open().unwrap();
            let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
            for step in 0..300 {
                let (prefix, via) = (dice.choose(&PREFIXES), dice.choose(&HOPS));
                if dice.roll(2) == 0 {
                    let metric = dice.choose(&["", "metric 7", "metric 4242", "metric 4242"]);
                    let protocol = dice.choose(&["", "proto static", "proto bird"]);
                    match dice.choose(&["add", "append", "prepend", "replace", "del", "del", "del", "del"]) {
                        "del" => try_ip(&format!("route del {prefix} {metric}")),
                        verb => try_ip(&format!("route {verb} {prefix} via {via} {metric} {protocol}")),
                    }
                    continue;
                }
                let before = foreign();
                let table = routes.read().await.unwrap();
                let own = table.routes.iter().find(|route| route.marked && route.prefix.to_string() == prefix);
                let route = match own {
                    Some(route) => *route,
                    None => marked(prefix, via).await,
                };
                let new = marked(prefix, via).await;
                let change = match dice.roll(5) {
                    0 | 1 => RouteChange::Add(new),
                    2 | 3 if table.is_replaceable(&route) => {
                        RouteChange::Replace { route, via: new.via.unwrap(), link: new.link }
                    }
                    _ => RouteChange::Remove(route),
                };
                let outcome = routes.apply(&[change]).await.remove(0);
                let own = routes.read_own().await.unwrap();
                match (&outcome, change) {
                    (Ok(()), RouteChange::Add(route)) => assert!(own.contains(&route), "{step}"),
                    (Ok(()), RouteChange::Replace { .. }) => assert!(own.contains(&new), "{step}"),
                    (Ok(()), RouteChange::Remove(route)) => assert!(!own.contains(&route), "{step}"),
                    _ => {}
                }
                *outcomes.entry(format!("{} {}", change.verb(), word(outcome))).or_default() += 1;
                assert_eq!(foreign(), before, "step {step} of seed {seed}: {change:?}");
            }
            for all in ["add done", "add taken", "replace done", "remove done", "remove missing"] {
                assert!(outcomes.contains_key(all), "{all} did not happen: {outcomes:?}");
            }
        });
    }
}

#[test]
fn an_outcome_that_nobody_knows_is_said_so() {
    let route = Route::marked("10.42.7.0/24".parse().unwrap(), [192, 0, 2, 10].into(), 3);
    let failure = outcome(&RouteChange::Add(route), Outcome::Lost).unwrap_err();
    assert_eq!(
        RouteChange::Add(route).failed(failure).to_string(),
        "cannot tell whether the route to 10.42.7.0/24 was changed (add): the system's reply was lost"
    );
}

#[test]
fn futures_may_move_between_threads() {
    fn check<T: Send>(_: impl FnOnce(&'static mut Routes, &'static mut RouteEvents) -> T) {}
    check(|routes, _| routes.read());
    check(|routes, _| routes.read_own());
    check(|routes, _| routes.apply(&[]));
    check(|_, events| events.changed());
}
