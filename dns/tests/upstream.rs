//! What is kept of a real upstream's answers: popular names are fetched before their time, and a full cache keeps what is
//! asked for.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod running;

use std::collections::HashMap;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use running::Dns;

/// How long the upstream's answers are good for: the shortest time that is worth fetching before its end.
const TTL: u8 = 10;

/// How often each name was asked for.
type Asked = Arc<Mutex<HashMap<String, usize>>>;

/// An upstream that knows all names; its address, and what it was asked.
fn upstream() -> (String, Asked) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (socket.local_addr().unwrap().to_string(), Asked::default());
    let counted = asked.clone();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((_, client)) = socket.recv_from(&mut buffer) {
            let mut labels = Vec::new();
            let mut at = 12;
            while buffer[at] > 0 {
                let end = at + 1 + usize::from(buffer[at]);
                labels.push(String::from_utf8_lossy(&buffer[at + 1..end]).to_lowercase());
                at = end;
            }
            *counted.lock().unwrap().entry(labels.join(".")).or_default() += 1;
            // The question without what came behind it, and one address.
            let mut reply = buffer[..at + 5].to_vec();
            reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, TTL, 0, 4, 192, 0, 2, 1]);
            let _ = socket.send_to(&reply, client);
        }
    });
    (address, asked)
}

fn start(upstream: &str, more: &[&str]) -> (Dns, tempfile::TempDir) {
    let (dns, folder) = Dns::start(
        &[&["--upstream", upstream], more].concat(),
        "berth: 1\ncontainers: [{name: web, primary_ip: 192.0.2.1}]\n...\n",
    );
    let end = Instant::now() + Duration::from_secs(20);
    while dns.ask("web.rancher.internal") != 0 {
        assert!(Instant::now() < end, "the name is not there");
        thread::sleep(Duration::from_millis(20));
    }
    (dns, folder)
}

fn times(asked: &Asked, name: &str) -> usize {
    asked.lock().unwrap().get(name).copied().unwrap_or_default()
}

/// The value of a metric, of all its labels together.
fn metric(dns: &Dns, name: &str) -> f64 {
    let page = dns.page("/metrics");
    let values = page.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

#[test]
fn popular_names_are_fetched_before_their_time() {
    let (address, asked) = upstream();
    let (dns, _folder) = start(&address, &[]);
    let (popular, rare) = ("www.example.org", "rare.example.org");
    let start = Instant::now();
    assert_eq!(dns.ask(rare), 0);
    // Nobody waits for what is fetched anew: whoever asks in the last second gets what is kept.
    let almost = Duration::from_millis(9_400);
    while start.elapsed() < almost {
        assert_eq!(dns.ask(popular), 0);
        thread::sleep(Duration::from_millis(200));
    }
    let end = start + Duration::from_secs(u64::from(TTL));
    while times(&asked, popular) < 2 && Instant::now() < end {
        assert_eq!(dns.ask(popular), 0);
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((times(&asked, popular), times(&asked, rare)), (2, 1));
    assert!((metric(&dns, "coredns_cache_prefetch_total") - 1.0).abs() < f64::EPSILON);
    // The new answer stands when the first one would have ended.
    thread::sleep(end.saturating_duration_since(Instant::now()) + Duration::from_millis(500));
    assert_eq!((dns.ask(popular), times(&asked, popular)), (0, 2));
    assert_eq!((dns.ask(rare), times(&asked, rare)), (0, 2));
}

#[test]
fn a_full_cache_keeps_what_is_asked_for() {
    const CAPACITY: usize = 64;
    let (address, asked) = upstream();
    let (dns, _folder) = start(&address, &["--cache-capacity", &CAPACITY.to_string()]);
    let start = Instant::now();
    let name = |number| format!("n{number}.example.org");
    // The popular one between others, four times as many as there is room for.
    for number in 0..4 * CAPACITY {
        assert_eq!(dns.ask(&name(number)), 0);
        if number % 8 == 0 {
            assert_eq!(dns.ask("www.example.org"), 0);
        }
    }
    let kept = metric(&dns, "coredns_cache_entries");
    assert!(
        (CAPACITY - 8..=CAPACITY).any(|number| (kept - f64::from(u32::try_from(number).unwrap())).abs() < 0.5),
        "{kept}"
    );
    // Newcomers that nobody asks for again make room for each other; the last of them are there.
    let last: Vec<String> = (4 * CAPACITY - CAPACITY / 2..4 * CAPACITY).map(name).collect();
    for name in &last {
        assert_eq!(dns.ask(name), 0);
    }
    assert!(start.elapsed() < Duration::from_secs(u64::from(TTL)), "too slow to tell: {:?}", start.elapsed());
    let again = last.iter().filter(|name| times(&asked, name) > 1).count();
    assert_eq!((times(&asked, "www.example.org"), again), (1, 0));
    assert_eq!(times(&asked, &name(0)), 1);
}
