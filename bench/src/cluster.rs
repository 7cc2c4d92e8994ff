//! Clusters of any size, in the forms in which services read them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;

use base64::Engine;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use model::{Snapshot, objects};
use serde_json::{Value, json};

use crate::{Failure, names};

/// As many hosts as the containers of most clusters are spread over.
const HOSTS: usize = 50;

/// Hosts of a cluster of many.
const MANY_HOSTS: usize = 5000;

/// A cluster of services that are all alike, in the stack `shop`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) containers: usize,
    /// Hosts, over which they are spread.
    pub(crate) hosts: usize,
    /// Containers of each service.
    pub(crate) scale: usize,
    /// The address of a container by its number.
    pub(crate) address: fn(usize) -> Ipv4Addr,
    /// Whether each container has a link of its own, and so names of its own.
    pub(crate) links: bool,
}

impl Cluster {
    /// One service a name, for DNS.
    pub(crate) fn of_names(containers: usize) -> Self {
        Self { containers, hosts: HOSTS, scale: 1, address: names::address, links: false }
    }

    /// Ten containers a service, and the first of all is who asks from 127.0.0.1.
    pub(crate) fn of_services(containers: usize) -> Self {
        let address = |number| if number == 0 { Ipv4Addr::LOCALHOST } else { names::address(number) };
        Self { containers, hosts: HOSTS, scale: 10, address, links: false }
    }

    /// 5,000 hosts with 20 containers each, and 3,125 services.
    pub(crate) fn of_hosts() -> Self {
        Self { containers: 20 * MANY_HOSTS, hosts: MANY_HOSTS, scale: 32, address: names::address, links: false }
    }

    /// The name of a container.
    pub(crate) fn container(&self, number: usize) -> String {
        format!("shop-{}-{}", names::label(number / self.scale), number % self.scale + 1)
    }

    fn services(&self) -> usize {
        self.containers.div_ceil(self.scale)
    }

    /// Berth's own document, as JSON.
    pub(crate) fn document(&self) -> String {
        let mut text = String::from(r#"{"berth":1,"environment":{"name":"bench"},"hosts":["#);
        list(&mut text, self.hosts, |host| json!({ "name": format!("host-{host}"), "agent_ip": host_address(host) }));
        text.push_str(r#"],"services":["#);
        list(
            &mut text,
            self.services(),
            |service| json!({ "name": names::label(service), "stack": "shop", "ports": ["8080:80/tcp"] }),
        );
        text.push_str(r#"],"containers":["#);
        list(&mut text, self.containers, |number| {
            let mut container = json!({
                "name": self.container(number),
                "service": format!("shop/{}", names::label(number / self.scale)),
                "host": format!("host-{}", number % self.hosts),
                "primary_ip": (self.address)(number),
                "health_state": "healthy",
                "labels": { "tier": "backend", "turn": "0" },
            });
            if self.links {
                container["links"] = json!({ "db": self.container((number + 1) % self.containers) });
            }
            container
        });
        text.push_str("]}\n");
        text
    }

    /// The objects that the predecessor's server sent.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Value> {
        let environment = json!({
            "metadata_kind": "environment", "name": "bench", "uuid": uuid(0, 0), "region_name": null,
        });
        let stack = json!({
            "metadata_kind": "stack", "name": "shop", "uuid": uuid(1, 0), "environment_name": "bench",
            "environment_uuid": uuid(0, 0), "system": false,
        });
        let hosts = (0..self.hosts).map(host);
        let services = (0..self.services()).map(service);
        let containers = (0..self.containers).map(|number| self.container_object(number));
        let members = (0..self.containers).map(|number| {
            json!({
                "metadata_kind": "serviceContainerLink", "service_uuid": uuid(3, number / self.scale),
                "service_name": names::label(number / self.scale), "container_uuid": uuid(4, number),
            })
        });
        let last = json!({ "metadata_kind": "defaultData", "version": "1-bench", "self": { "host": host(0) } });
        [environment, stack].into_iter().chain(hosts).chain(services).chain(containers).chain(members).chain([last])
    }

    /// The cluster as services have it in memory.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Failure> {
        let maps = self.objects().map(|object| {
            let value: model::Value = serde_json::from_value(object)?;
            value.as_map().cloned().ok_or_else(|| Failure::from("an object is no map"))
        });
        Ok(objects::read(maps.collect::<Result<Vec<_>, _>>()?).0)
    }

    /// What the predecessor saved from v0.8 on: the objects, compressed and wrapped.
    pub(crate) fn envelope(&self) -> Result<String, Failure> {
        let mut deflated = DeflateEncoder::new(Vec::new(), Compression::fast());
        for object in self.objects() {
            deflated.write_all(object.to_string().as_bytes())?;
        }
        let data = base64::engine::general_purpose::STANDARD.encode(deflated.finish()?);
        Ok(json!({ "Version": "1-bench", "Data": data }).to_string())
    }

    /// What the predecessor read up to v0.7: the answers for everybody, and `self` for each container.
    pub(crate) fn answers(&self) -> String {
        let mut text = String::from(r#"{"latest":{"default":{"version":"1-bench","containers":["#);
        list(&mut text, self.containers, |number| self.member_object(number));
        text.push_str(r#"],"services":["#);
        list(&mut text, self.services(), |number| {
            let members = number * self.scale..self.containers.min((number + 1) * self.scale);
            let mut service = service(number);
            service["containers"] = members.map(|number| self.container(number)).collect();
            service
        });
        text.push_str(r#"],"stacks":["#);
        let services: Value = (0..self.services()).map(names::label).collect();
        let _ = write!(
            text,
            "{}",
            json!({ "name": "shop", "uuid": uuid(1, 0), "environment_name": "bench", "services": services })
        );
        text.push_str(r#"],"hosts":["#);
        list(&mut text, self.hosts, host);
        text.push_str("]}");
        for number in 0..self.containers {
            let own = json!({ "container": self.member_object(number), "host": host(number % self.hosts) });
            let _ = write!(text, ",\"{}\":{{\"self\":{own}}}", (self.address)(number));
        }
        text.push_str("}}\n");
        text
    }

    fn container_object(&self, number: usize) -> Value {
        let service = names::label(number / self.scale);
        let address = (self.address)(number);
        json!({
            "metadata_kind": "container", "name": self.container(number), "uuid": uuid(4, number),
            "primary_ip": address, "ips": [address], "ports": ["8080:80/tcp"],
            "service_name": null, "stack_name": null, "stack_uuid": null,
            "labels": {
                "io.rancher.stack.name": "shop", "io.rancher.stack_service.name": format!("shop/{service}"),
                "io.rancher.container.name": self.container(number), "tier": "backend", "turn": "0",
            },
            "create_index": number, "host_uuid": uuid(2, number % self.hosts), "hostname": null, "health_state": "healthy",
            "start_count": 1, "service_index": (number % self.scale + 1).to_string(), "state": "running",
            "external_id": format!("{number:064x}"), "primary_mac_address": "02:42:7f:2a:01:0b",
            "memory_reservation": null, "milli_cpu_reservation": null, "network_uuid": null,
            "network_from_container_uuid": null, "system": false, "dns": ["169.254.169.250"],
            "dns_search": [format!("{service}.shop.rancher.internal"), "shop.rancher.internal", "rancher.internal"],
            "health_check_hosts": [], "environment_uuid": uuid(0, 0), "host_ip": host_address(number % self.hosts),
            "health_check": null,
        })
    }

    /// A container as it is shown, with its service.
    fn member_object(&self, number: usize) -> Value {
        let mut container = self.container_object(number);
        container["service_name"] = names::label(number / self.scale).into();
        container["service_uuid"] = uuid(3, number / self.scale).into();
        container["stack_name"] = "shop".into();
        container["stack_uuid"] = uuid(1, 0).into();
        container
    }
}

fn host(number: usize) -> Value {
    json!({
        "metadata_kind": "host", "name": format!("host-{number}"), "uuid": uuid(2, number),
        "agent_ip": host_address(number), "labels": { "zone": "a" }, "hostId": number, "hostname": null,
        "state": "active", "agent_state": null, "milli_cpu": 4000, "memory": 8_369_729_536_u64,
        "local_storage_mb": 102_400, "environment_uuid": uuid(0, 0),
    })
}

fn service(number: usize) -> Value {
    json!({
        "metadata_kind": "service", "name": names::label(number), "uuid": uuid(3, number), "stack_name": "shop",
        "stack_uuid": uuid(1, 0), "kind": "service", "hostname": null, "vip": null, "create_index": number,
        "external_ips": [], "sidekicks": [], "ports": ["8080:80/tcp"], "labels": {}, "metadata": {}, "scale": 1,
        "fqdn": null, "expose": [], "health_check": null, "system": false, "lb_config": null,
        "primary_service_name": names::label(number), "environment_uuid": uuid(0, 0), "state": "active", "token": null,
    })
}

fn host_address(number: usize) -> String {
    let first = u32::from(Ipv4Addr::new(192, 0, 2, 1));
    Ipv4Addr::from(first + u32::try_from(number).unwrap_or_default()).to_string()
}

/// A uuid that tells what it is of, for who looks at what is sent.
pub(crate) fn uuid(kind: usize, number: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{number:012x}")
}

/// Writes the items of a JSON list, one at a time: a tree of all of them would take gigabytes.
fn list(text: &mut String, count: usize, item: impl Fn(usize) -> Value) {
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{}", item(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_well_formed_and_has_all_containers() {
        let cluster = Cluster { links: true, ..Cluster::of_services(25) };
        let document: Value = serde_json::from_str(&cluster.document()).unwrap();
        let [services, containers] = ["services", "containers"].map(|key| document[key].as_array().unwrap().len());
        assert_eq!((services, containers), (3, 25));
        assert_eq!(document["containers"][24]["links"]["db"], "shop-s00000-1");
        let answers: Value = serde_json::from_str(&cluster.answers()).unwrap();
        assert_eq!(answers["latest"]["default"]["containers"].as_array().unwrap().len(), 25);
        assert_eq!(answers["latest"]["127.0.0.1"]["self"]["container"]["name"], "shop-s00000-1");
        let envelope: Value = serde_json::from_str(&cluster.envelope().unwrap()).unwrap();
        assert!(envelope["Data"].as_str().unwrap().len() > 1000);
        let kinds = |kind| cluster.objects().filter(|object| object["metadata_kind"] == kind).count();
        assert_eq!((kinds("container"), kinds("serviceContainerLink"), kinds("service")), (25, 25, 3));
    }

    #[test]
    fn containers_have_the_size_of_the_predecessor() {
        // The original's figures, with which these are compared, were taken with 1.9 KB each.
        let size = Cluster::of_services(1000).answers().len() / 1000;
        assert!((1700..2800).contains(&size), "{size}");
    }
}
