//! Claims of subnets, written into etcd as hosts and operators do.

use std::fmt::Display;

use serde_json::json;

use crate::etcd::Etcd;

/// The prefix of all keys.
const PREFIX: &str = "/berth/v1/";

/// A host has a subnet of 256 addresses, and is reached through an address if it says so.
pub fn claim(etcd: &Etcd, host: &str, subnet: impl Display, via: Option<impl Display>) {
    etcd.put(&subnet_key(&subnet), &json!({ "host": host }).to_string());
    let via = via.map(|via| via.to_string());
    etcd.put(&host_key(host), &json!({ "subnet": format!("{subnet}/24"), "via": via }).to_string());
}

/// A host has given its subnet back.
pub fn release(etcd: &Etcd, host: &str, subnet: impl Display) {
    etcd.put(&subnet_key(&subnet), &json!({ "freed": true, "host": host, "until": 1 }).to_string());
    etcd.delete(&host_key(host));
}

/// The keys of a claim are gone.
pub fn delete(etcd: &Etcd, host: &str, subnet: impl Display) {
    etcd.delete(&subnet_key(&subnet));
    etcd.delete(&host_key(host));
}

fn subnet_key(subnet: &impl Display) -> String {
    format!("{PREFIX}claims/subnet/{subnet}-24")
}

fn host_key(host: &str) -> String {
    format!("{PREFIX}claims/host/{host}")
}
