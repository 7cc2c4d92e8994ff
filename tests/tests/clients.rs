//! Who asks decides what is answered: the containers of the example, each from its own address.

use serde_json::Value;
use tests::cluster::{ClusterFolder, shop, shop_text_for};
use tests::{Launch, Question, Service, http};

/// The example's containers that have an address and run: address, name, `stack/service`, host, search list.
const CONTAINERS: [(&str, &str, &str, &str, &str); 13] = [
    ("127.42.1.11", "shop-web-1", "shop/web", "win-2022", "web.shop"),
    ("127.42.1.12", "shop-web-logs-1", "shop/logs", "win-2022", "web.shop"),
    ("127.42.2.11", "shop-web-2", "shop/web", "win-2025", "web.shop"),
    ("127.42.2.12", "shop-web-logs-2", "shop/logs", "win-2025", "web.shop"),
    ("127.42.2.13", "shop-web-3", "shop/web", "win-2025", "web.shop"),
    ("127.42.2.14", "shop-web-logs-3", "shop/logs", "win-2025", "web.shop"),
    ("127.42.3.11", "shop-lb-1", "shop/lb", "linux-1", "lb.shop"),
    ("127.42.2.21", "data-db-1", "data/db", "win-2025", "db.data"),
    ("127.42.3.21", "data-cache-1", "data/cache", "linux-1", "cache.data"),
    ("127.42.1.31", "ops-agent-1", "ops/agent", "win-2022", "agent.ops"),
    ("127.42.2.31", "ops-agent-2", "ops/agent", "win-2025", "agent.ops"),
    ("127.42.3.31", "ops-agent-3", "ops/agent", "linux-1", "agent.ops"),
    ("127.42.1.51", "toolbox", "", "win-2022", ""),
];

fn start() -> Service {
    let mut agent = Launch::agent(&shop()).start();
    agent.ready();
    agent
}

/// What a client is told under a path, as `status text`.
fn told(agent: &mut Service, client: &str, path: &str) -> String {
    let response = http::get(path).from(client).ask(agent.address_of("metadata"));
    format!("{} {}", response.status, response.text().trim_end())
}

#[test]
fn each_container_is_told_who_it_is() {
    let mut agent = start();
    for (client, name, service, host, search) in CONTAINERS {
        let mut check = |path: &str, expected: &str| {
            assert_eq!(told(&mut agent, client, path), expected, "{path} from {client}");
        };
        check("/latest/self/container/name", &format!("200 {name}"));
        check("/latest/self/container/primary_ip", &format!("200 {client}"));
        check("/2015-12-19/self/host/name", &format!("200 {host}"));
        if let Some((stack, service)) = service.split_once('/') {
            check("/latest/self/service/name", &format!("200 {service}"));
            check("/latest/self/stack/name", &format!("200 {stack}"));
        } else {
            check("/latest/self/service", "404 Not found");
            check("/latest/self/stack", "404 Not found");
        }
        let response = http::get("/latest/self/container/dns_search").json().from(client);
        let list: Value = response.ask(agent.address_of("metadata")).value();
        let first = if search.is_empty() { "rancher.internal".into() } else { format!("{search}.rancher.internal") };
        assert_eq!(list[0], first, "search list of {name}");
    }
}

#[test]
fn who_is_no_container_is_told_about_the_host_of_the_file() {
    // The example names no host, for it is asked as if it were all of them.
    let mut agent = start();
    assert_eq!(told(&mut agent, "127.0.0.1", "/latest/self"), "404 Not found");
    let folder = ClusterFolder::new(shop_text_for("win-2022"));
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    assert_eq!(told(&mut agent, "127.0.0.1", "/latest/self"), "200 host/");
    assert_eq!(told(&mut agent, "127.42.77.77", "/latest/self/host/name"), "200 win-2022");
    assert_eq!(told(&mut agent, "127.42.77.77", "/latest/self/container"), "404 Not found");
    // Containers have their own host, wherever the file is.
    assert_eq!(told(&mut agent, "127.42.3.11", "/latest/self/host/name"), "200 linux-1");
}

#[test]
fn names_are_those_of_the_client() {
    let mut agent = start();
    for (client, name, expected) in [
        // Its own stack and service come first.
        ("127.42.1.11", "web", "NOERROR 127.42.1.11 127.42.2.11"),
        ("127.42.3.11", "lb", "NOERROR 127.42.3.11"),
        ("127.42.1.11", "logs", "NOERROR 127.42.1.12 127.42.2.12 127.42.2.14"),
        // Links give other names.
        ("127.42.1.11", "db", "NOERROR 127.42.2.21"),
        ("127.42.1.11", "cache", "NOERROR 127.42.3.21"),
        ("127.42.1.51", "site", "NOERROR 127.42.1.11"),
        // Who has no such link asks by stack.
        ("127.42.1.51", "db.data", "NOERROR 127.42.2.21"),
        ("127.42.3.31", "web.shop", "NOERROR 127.42.1.11 127.42.2.11"),
        ("127.0.0.1", "web.shop.rancher.internal", "NOERROR 127.42.1.11 127.42.2.11"),
        ("127.0.0.1", "WEB.Shop.Rancher.Internal", "NOERROR 127.42.1.11 127.42.2.11"),
        // Containers by name; an unhealthy one is there, but its service's name does not lead to it.
        ("127.42.3.31", "shop-web-3.rancher.internal", "NOERROR 127.42.2.13"),
        ("127.42.3.31", "toolbox", "NOERROR 127.42.1.51"),
        // A stopped one has no name, nor is it a member.
        ("127.42.3.31", "data-cache-2.rancher.internal", "NXDOMAIN"),
        ("127.42.3.31", "cache.data.rancher.internal", "NOERROR 127.42.3.21"),
        // Somebody else's service, another name for a service, and names that nobody has.
        ("127.42.1.11", "payments", "NOERROR 192.0.2.40"),
        ("127.42.1.11", "search", "NOERROR 127.42.3.21"),
        ("127.42.1.11", "nobody.shop.rancher.internal", "NXDOMAIN"),
        ("127.42.1.11", "rancher-metadata", "NOERROR 169.254.169.250"),
    ] {
        let dns = agent.address_of("dns");
        assert_eq!(Question::a(name).from(client).ask(dns).line(), expected, "{name} from {client}");
        assert_eq!(Question::a(name).from(client).tcp().ask(dns).line(), expected, "{name} from {client} over TCP");
    }
}

#[test]
fn a_link_is_a_name_for_its_own_client_only() {
    let mut agent = start();
    let dns = agent.address_of("dns");
    assert_eq!(Question::a("site.rancher.internal").from("127.42.1.51").ask(dns).line(), "NOERROR 127.42.1.11");
    assert_eq!(Question::a("site.rancher.internal").from("127.42.1.31").ask(dns).line(), "NXDOMAIN");
}

#[test]
fn a_file_for_one_host_gives_names_of_their_own_to_its_containers_only() {
    let folder = ClusterFolder::new(shop_text_for("win-2022"));
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    let dns = agent.address_of("dns");
    assert_eq!(Question::a("db").from("127.42.1.11").ask(dns).line(), "NOERROR 127.42.2.21");
    // What nobody's search list completes is no name of the cluster.
    assert_eq!(Question::a("lb").from("127.42.3.11").ask(dns).rcode(), Question::a("lb").ask(dns).rcode());
    assert_eq!(Question::a("lb.shop").from("127.42.3.11").ask(dns).line(), "NOERROR 127.42.3.11");
}

#[test]
fn an_external_service_has_its_ipv6_address_too() {
    let mut agent = start();
    let question = Question::new("payments.shop.rancher.internal", "AAAA").from("127.42.1.11");
    assert_eq!(question.ask(agent.address_of("dns")).line(), "NOERROR 2001:db8::40");
}

#[test]
fn a_container_is_placed_where_its_service_allows_it() {
    let mut agent = start();
    let scheduler = agent.address_of("scheduler");
    let body = r#"{"image": "web", "resources": {"memory": "4GiB"}, "dry_run": true, "labels": {"io.rancher.scheduler.affinity:host_label": "io.rancher.host.os=linux"}}"#;
    let response = http::post("/v1/placements", body).ask(scheduler);
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(response.text().contains("linux-1"), "{}", response.text());
}
