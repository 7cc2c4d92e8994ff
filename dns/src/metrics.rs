//! What the service counts, under the names that `CoreDNS` gave it so that its dashboards work.

use std::sync::atomic::AtomicU64;

use hickory_proto::op::ResponseCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The counters of one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    requests: Family<Protocol, Counter>,
    responses: Family<Rcode, Counter>,
    pub(crate) forwards: Counter,
    pub(crate) panics: Counter,
    pub(crate) cached: Gauge<i64, std::sync::atomic::AtomicI64>,
    pub(crate) names: Gauge<i64, std::sync::atomic::AtomicI64>,
    pub(crate) defects: Gauge<i64, std::sync::atomic::AtomicI64>,
    pub(crate) receive_errors: Counter<u64, AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Protocol {
    proto: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rcode {
    rcode: &'static str,
}

impl Metrics {
    /// Counters that the registry shows from now on.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let coredns = registry.sub_registry_with_prefix("coredns");
        coredns.register("dns_requests", "Messages received", metrics.requests.clone());
        coredns.register("dns_responses", "Messages sent", metrics.responses.clone());
        coredns.register("forward_requests", "Questions for upstreams", metrics.forwards.clone());
        coredns.register("cache_entries", "Answers of upstreams that are kept", metrics.cached.clone());
        coredns.register("panics", "Requests that ended in a panic", metrics.panics.clone());
        let own = registry.sub_registry_with_prefix("berth_dns");
        own.register("names", "Names that all clients see", metrics.names.clone());
        own.register("defects", "Things wrong in what the names come from", metrics.defects.clone());
        own.register("receive_errors", "Errors of accepting and receiving", metrics.receive_errors.clone());
        metrics
    }

    pub(crate) fn request(&self, proto: &'static str) {
        self.requests.get_or_create(&Protocol { proto }).inc();
    }

    pub(crate) fn response(&self, code: ResponseCode) {
        let rcode = match code {
            ResponseCode::NoError => "NOERROR",
            ResponseCode::FormErr => "FORMERR",
            ResponseCode::ServFail => "SERVFAIL",
            ResponseCode::NXDomain => "NXDOMAIN",
            ResponseCode::NotImp => "NOTIMP",
            ResponseCode::Refused => "REFUSED",
            ResponseCode::BADVERS => "BADVERS",
            _ => "OTHER",
        };
        self.responses.get_or_create(&Rcode { rcode }).inc();
    }
}
