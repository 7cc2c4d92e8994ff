//! Metrics of the Docker and etcd sources.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What is counted. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// What is left out or ignored now, of this host and of all others.
    pub(crate) defects: Gauge,
    /// Keys of this host that another process deleted in etcd.
    pub(crate) deleted: Counter,
}

impl Metrics {
    /// How many keys of this host another process deleted in etcd.
    pub fn deleted_keys(&self) -> u64 {
        self.deleted.get()
    }

    /// Adds all of them to `registry`.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "What hosts, containers and keys in etcd say and cannot be used; the log has the reasons";
        registry.register("cluster_defects", help, self.defects.clone());
        let help = "Keys of this host in etcd that another process deleted, and that were written again";
        registry.register("cluster_own_keys_deleted", help, self.deleted.clone());
    }
}
