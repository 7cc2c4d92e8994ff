//! What the service counts, under the names that `CoreDNS` gave it so that its dashboards work.

use std::sync::atomic::AtomicU64;

use hickory_proto::op::ResponseCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::server::Transport;

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

impl From<Transport> for Protocol {
    fn from(transport: Transport) -> Self {
        let proto = match transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        Self { proto }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rcode {
    rcode: &'static str,
}

impl From<ResponseCode> for Rcode {
    fn from(code: ResponseCode) -> Self {
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
        Self { rcode }
    }
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

    pub(crate) fn request(&self, transport: Transport) {
        self.requests.get_or_create(&Protocol::from(transport)).inc();
    }

    pub(crate) fn response(&self, code: ResponseCode) {
        self.responses.get_or_create(&Rcode::from(code)).inc();
    }
}

/// Usual answers of one thread or connection, counted there and told to the others by the batch.
#[derive(Debug)]
pub(crate) struct Counts {
    requests: Counter,
    found: Counter,
    missing: Counter,
    found_now: u64,
    missing_now: u64,
}

impl Counts {
    /// None so far.
    pub(crate) fn new(metrics: &Metrics, transport: Transport) -> Self {
        let responses = |code: ResponseCode| metrics.responses.get_or_create_owned(&Rcode::from(code));
        Self {
            requests: metrics.requests.get_or_create_owned(&Protocol::from(transport)),
            found: responses(ResponseCode::NoError),
            missing: responses(ResponseCode::NXDomain),
            found_now: 0,
            missing_now: 0,
        }
    }

    /// Counts a request and its answer, which says that a name exists or does not.
    pub(crate) fn answered(&mut self, code: ResponseCode) {
        if code == ResponseCode::NoError {
            self.found_now += 1;
        } else {
            self.missing_now += 1;
        }
    }

    /// Tells the others.
    pub(crate) fn flush(&mut self) {
        let (found, missing) = (std::mem::take(&mut self.found_now), std::mem::take(&mut self.missing_now));
        if found + missing > 0 {
            self.requests.inc_by(found + missing);
            self.found.inc_by(found);
            self.missing.inc_by(missing);
        }
    }
}
