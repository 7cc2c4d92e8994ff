//! The dashboard asks for nothing that the executable does not tell.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod running;

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde_json::Value;

use running::Dns;

/// What only Prometheus itself knows.
const OF_PROMETHEUS: [&str; 1] = ["up"];

/// The metrics that the dashboards for `CoreDNS` ask for.
const OF_COREDNS: [&str; 14] = [
    "coredns_build_info",
    "coredns_dns_requests_total",
    "coredns_dns_request_size_bytes_bucket",
    "coredns_dns_response_size_bytes_bucket",
    "coredns_dns_responses_total",
    "coredns_dns_request_duration_seconds_bucket",
    "coredns_cache_entries",
    "coredns_cache_hits_total",
    "coredns_cache_misses_total",
    "coredns_proxy_request_duration_seconds_bucket",
    "coredns_panics_total",
    "coredns_plugin_enabled",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
];

/// The names of metrics in an expression of Prometheus.
fn metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_');
    let is_metric = |word: &&str| {
        let prefixes = ["coredns_", "berth_", "process_"];
        prefixes.iter().any(|prefix| word.starts_with(prefix)) || OF_PROMETHEUS.contains(word)
    };
    words.filter(is_metric).map(str::to_owned).collect()
}

fn expressions(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("expr").and_then(Value::as_str);
            own.into_iter().chain(fields.values().flat_map(expressions)).collect()
        }
        Value::Array(items) => items.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_metric_of_the_dashboard_is_told() {
    let upstream = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (dns, _folder) = Dns::start(
        &["--upstream", &upstream.local_addr().unwrap().to_string()],
        "berth: 1\ncontainers: [{name: web, primary_ip: 192.0.2.1}]\n...\n",
    );
    // One upstream that answers, so that its times are told.
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, client)) = upstream.recv_from(&mut buffer) {
            buffer[2] |= 0x80;
            buffer[3] = 0x83;
            let _ = upstream.send_to(&buffer[..length], client);
        }
    });
    let end = Instant::now() + Duration::from_secs(20);
    while dns.ask("web.rancher.internal") != 0 {
        assert!(Instant::now() < end, "the name is not there");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((dns.ask("no.rancher.internal"), dns.ask("www.example.org"), dns.ask("www.example.org")), (3, 3, 3));

    let page = dns.page("/metrics");
    let told: BTreeSet<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .filter(|name| !name.is_empty())
        .collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dashboards/dns.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let expressions = expressions(&dashboard);
    let wanted: BTreeSet<String> = expressions.iter().flat_map(|expression| metrics(expression)).collect();
    assert!(expressions.len() > 20 && wanted.len() > 20, "{wanted:?}");
    let known = |name: &&str| told.contains(name) || OF_PROMETHEUS.contains(name);
    let missing: Vec<&str> = wanted.iter().map(|name| &**name).chain(OF_COREDNS).filter(|name| !known(name)).collect();
    assert!(missing.is_empty(), "not told: {missing:?}\n{page}");

    let server = format!("dns://{}", dns.address);
    for line in [
        format!(
            "coredns_dns_responses_total{{plugin=\"forward\",rcode=\"NXDOMAIN\",server=\"{server}\",view=\"\",zone=\".\"}} 1"
        ),
        format!(
            "coredns_dns_responses_total{{plugin=\"cache\",rcode=\"NXDOMAIN\",server=\"{server}\",view=\"\",zone=\".\"}} 1"
        ),
        format!("coredns_cache_hits_total{{server=\"{server}\",type=\"denial\",view=\"\",zones=\".\"}} 1"),
    ] {
        assert!(page.lines().any(|told| told == line), "{line}\n{page}");
    }
    // Those before the zone was there are among them.
    let counted = "coredns_dns_requests_total{family=\"1\",proto=\"udp\",server=\"";
    let counted = format!("{counted}{server}\",type=\"A\",view=\"\",zone=\"rancher.internal.\"}} ");
    assert!(page.lines().any(|told| told.starts_with(&counted)), "{counted}\n{page}");
    let answer = dns.page("/v1/query?name=web&client=192.0.2.1");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["answered_by"], &answer["answers"][0]["data"]), (&"zone".into(), &"192.0.2.1".into()));
    let upstreams: Value = serde_json::from_str(&dns.page("/v1/upstreams")).unwrap();
    assert_eq!((&upstreams[0]["state"], &upstreams[0]["asked"]), (&"healthy".into(), &1.into()));
}
