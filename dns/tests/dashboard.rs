//! The dashboard asks for nothing that the executable does not tell.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

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

struct Dns {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Dns {
    fn start(arguments: &[&str], cluster: &str) -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cluster.yml"), cluster).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_dns"))
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"])
            .args(["--answers", "cluster.yml"])
            .args(arguments)
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut address, mut admin) = (None, None);
        // It logs to one of both; the other one is closed at its end only.
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut lines = log.lines().map_while(Result::ok);
        while address.is_none() || admin.is_none() {
            let line: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
            if line["service"] == "dns" {
                address = line["address"].as_str().unwrap().parse().ok();
            }
            let message = line["message"].as_str().unwrap_or_default();
            if let Some(url) = message.strip_prefix("admin pages on http://") {
                admin = url.parse().ok();
            }
        }
        std::thread::spawn(move || lines.for_each(drop));
        (Self { child, address: address.unwrap(), admin: admin.unwrap() }, folder)
    }

    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Asks for an address, by one letter before `rancher.internal`; gives the code of the answer.
    fn ask(&self, name: &str) -> u8 {
        let mut message = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0".to_vec();
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend_from_slice(label.as_bytes());
        }
        message.extend_from_slice(b"\0\0\x01\0\x01");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.send_to(&message, self.address).unwrap();
        let mut reply = [0; 512];
        socket.recv(&mut reply).unwrap();
        reply[3] & 15
    }
}

/// The names of metrics in an expression of Prometheus.
fn metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|octet: char| !octet.is_ascii_alphanumeric() && octet != '_');
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
