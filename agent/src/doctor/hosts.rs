//! What `agent doctor` finds out about the hosts of a cluster: containers of several hosts with one address.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::ask;
use super::{Finding, Outcome};

/// Most equal addresses that are listed.
const EQUAL_MAX: usize = 3;

/// Asks metadata for the containers of all hosts.
pub(super) fn look(metadata: SocketAddr) -> Option<Finding> {
    let list = |what| {
        let (status, body) = ask::http(metadata, &format!("/latest/{what}"), "application/json").ok()?;
        if status == 200 { serde_json::from_str::<Vec<Value>>(&body).ok() } else { None }
    };
    Some(equal_addresses(&list("containers")?, &list("hosts")?))
}

fn equal_addresses(containers: &[Value], hosts: &[Value]) -> Finding {
    let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<_, _> = hosts.iter().map(|host| (text(host, "uuid"), text(host, "name"))).collect();
    let mut holders: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for container in containers {
        let (address, host) = (text(container, "primary_ip"), text(container, "host_uuid"));
        // A container on its host's network has the host's address.
        if !address.is_empty() && address != text(container, "host_ip") {
            let host = names.get(&host).cloned().unwrap_or(host);
            holders.entry(address).or_default().entry(host).or_insert_with(|| text(container, "name"));
        }
    }
    let shared: Vec<_> = holders.iter().filter(|(_, hosts)| hosts.len() > 1).collect();
    let subject = "addresses across hosts";
    if shared.is_empty() {
        return Finding::good(subject, format!("{} addresses, each on one host", holders.len()));
    }
    let lines = shared.iter().take(EQUAL_MAX).map(|(address, hosts)| {
        let hosts: Vec<_> = hosts.iter().map(|(host, container)| format!("{container} on {host}")).collect();
        format!("{address} is that of {}", hosts.join(" and "))
    });
    let found = format!(
        "{} addresses are on more than one host, so that names leave these containers out on other hosts: {}",
        shared.len(),
        lines.collect::<Vec<_>>().join("; ")
    );
    Finding::new(
        subject,
        Outcome::Bad,
        found,
        "give each host N addresses of its own and routes to the others (dockerd --bip 172.17.N.1/24 \
         --default-address-pool base=172.18.N.0/24,size=26), or use a network across hosts (overlay, macvlan, transparent)",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_addresses_of_two_hosts_are_bad_and_those_of_one_host_are_not() {
        let hosts = [json!({ "uuid": "1", "name": "h1" }), json!({ "uuid": "2", "name": "h2" })];
        let container = |name: &str, host: &str, address: &str| json!({ "name": name, "host_uuid": host, "primary_ip": address, "host_ip": "192.0.2.1" });
        let [web, api] = [container("web", "1", "172.17.0.2"), container("api", "2", "172.17.0.2")];
        let finding = equal_addresses(&[web.clone(), api], &hosts);
        assert!(finding.found.contains("172.17.0.2 is that of web on h1 and api on h2"), "{}", finding.found);
        assert!(finding.outcome == Outcome::Bad && finding.advice.contains("--bip"));
        for other in [container("same", "1", "172.17.0.2"), container("other", "2", "172.17.0.3")] {
            assert!(equal_addresses(&[web.clone(), other], &hosts).outcome == Outcome::Good);
        }
        let on_host = [container("a", "1", "192.0.2.1"), container("b", "2", "192.0.2.1")];
        assert!(equal_addresses(&on_host, &hosts).outcome == Outcome::Good);
    }
}
