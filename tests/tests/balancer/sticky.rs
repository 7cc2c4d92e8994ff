//! Clients stay with the member that they were led to.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use tests::battery::is_long;
use tests::cluster::replace;
use tests::{eventually, ports, tell};

use crate::web::Web;
use crate::{Balancer, LIMIT, document, has_programs, metric, rule};

/// A client of a balancer: who answered it, and the cookie that it was given.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    member: String,
    cookie: Option<String>,
}

fn request(proxy: SocketAddr, path: &str, cookie: Option<&str>) -> Answer {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let cookie = cookie.map_or_else(String::new, |cookie| format!("Cookie: S={cookie}\r\n"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: example.org\r\n{cookie}Connection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let (head, member) = text.split_once("\r\n\r\n").unwrap();
    let given = head.lines().find(|line| line.to_ascii_lowercase().starts_with("set-cookie: s="));
    let cookie = given.map(|line| line["set-cookie: S=".len()..].split(';').next().unwrap().to_owned());
    Answer { member: member.to_owned(), cookie }
}

#[test]
fn clients_stay_with_their_member_until_it_is_gone_and_move_once() {
    if !has_programs() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yml");
    let [port, target] = ports::some(2)[..] else { unreachable!() };
    let names = ["m1", "m2", "m3", "m4", "m5"];
    let webs: Vec<_> = (211..).zip(names).map(|(number, name)| Web::start(number, target, name)).collect();
    let more = "    stickiness_policy: { mode: insert, cookie: S, indirect: true, nocache: true }\n";
    let write = |first: &str, others: &[IpAddr], host: &str| {
        let states = webs.iter().take(4).enumerate();
        let states = states.map(|(at, web)| (web.ip(), if at == 0 { first } else { "running" }));
        let members: Vec<_> =
            states.filter(|(_, state)| *state != "gone").chain(others.iter().map(|ip| (*ip, "running"))).collect();
        let rules = rule(port, host, "", "web", target) + &rule(port, "", "", "web", target);
        replace(&file, document(&rules, &[("web", members)], more));
    };
    write("running", &[], "x.example.org");
    let mut balancer = Balancer::haproxy(&file, folder.path(), &[]);
    let proxy = SocketAddr::from(([127, 0, 0, 1], port));
    eventually("HAProxy serves", LIMIT, || crate::web::body(proxy, "example.org", "/"));
    let (count, changes) = if is_long() { (1000, 100) } else { (60, 10) };
    let clients: Vec<_> = (0..count).map(|_| request(proxy, "/", None)).collect();
    let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
    for client in &clients {
        *shares.entry(&client.member).or_default() += 1;
    }
    assert_eq!(shares.len(), 4, "{shares:?}");
    let stay = |proxy: SocketAddr, what: &str| {
        for client in &clients {
            let now = request(proxy, "/", client.cookie.as_deref());
            assert_eq!((&now.member, now.cookie), (&client.member, None), "{what}");
        }
    };
    // Another member comes and goes; then the structure changes.
    for change in 0..changes {
        let others = [webs[4].ip()];
        write("running", if change % 2 == 0 { &others } else { &[] }, "x.example.org");
        std::thread::sleep(Duration::from_millis(60));
    }
    stay(proxy, "after changes of others");
    let reloads = balancer.reloads();
    write("running", &[], "y.example.org");
    eventually("the structure has changed", LIMIT, || (balancer.reloads() != reloads).then_some(()));
    stay(proxy, "after a reload");

    // Another HAProxy knows their cookies.
    let second = folder.path().join("second");
    std::fs::create_dir(&second).unwrap();
    let other = Balancer::haproxy(&file, &second, &[("--bind", "127.0.0.2")]);
    let beside = SocketAddr::from(([127, 0, 0, 2], port));
    eventually("the second HAProxy serves", LIMIT, || crate::web::body(beside, "example.org", "/"));
    stay(beside, "at another HAProxy");
    drop(other);

    // While a request is under way, what is stopping drains: its clients stay, no others come.
    let held = clients.iter().find(|client| client.member == "m1").unwrap().clone();
    let holding = std::thread::spawn({
        let cookie = held.cookie.clone();
        move || request(proxy, "/hold", cookie.as_deref())
    });
    eventually("the request is under way", LIMIT, || webs[0].holds());
    let Balancer::Haproxy(agent) = &mut balancer else { unreachable!() };
    write("stopping", &[], "y.example.org");
    eventually("the first member drains", LIMIT, || (metric(agent, "berth_lb_draining") == "1").then_some(()));
    assert_eq!(request(proxy, "/", held.cookie.as_deref()), Answer { member: "m1".into(), cookie: None });
    assert!((0..12).all(|_| request(proxy, "/", None).member != "m1"), "no new client is led to it");
    webs[0].let_go();
    assert_eq!(holding.join().unwrap().member, "m1", "what was under way is finished");
    eventually("it has drained", LIMIT, || (metric(agent, "berth_lb_draining") == "0").then_some(()));
    let mut moved = 0;
    for client in clients.iter().filter(|client| client.member == "m1") {
        let now = request(proxy, "/", client.cookie.as_deref());
        assert!(now.member != "m1" && now.cookie.is_some(), "{now:?}");
        let again = request(proxy, "/", now.cookie.as_deref());
        assert_eq!((again.member, again.cookie), (now.member, None), "they move once");
        moved += 1;
    }
    write("gone", &[], "y.example.org");
    for client in clients.iter().filter(|client| client.member != "m1") {
        assert_eq!(request(proxy, "/", client.cookie.as_deref()).member, client.member);
    }
    tell(&format!(
        "{count} clients stayed over {changes} changes and a reload; {moved} of a drained member moved once"
    ));
}
