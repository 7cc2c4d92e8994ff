//! The counts as Prometheus reads them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::{
    BY, COARSE, CODES, Durations, FAMILIES, KINDS, Metrics, SIZES, Sizes, TIMES, TRANSPORTS, Tally, ZONES, time_bound,
};
use crate::forward::Forwarder;

/// What stands for names of others, as `CoreDNS` calls the zone of everything.
const ROOT: &str = ".";

/// The parts that an answer can come from.
const PLUGINS: [&str; 3] = ["zone", "cache", "forward"];

/// Nanoseconds in a second.
const NANOSECONDS: f64 = 1e9;

/// Adds up the counts for each page.
#[derive(Debug)]
pub(crate) struct Exposition {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) forwarder: Forwarder,
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page { metrics: &self.metrics, encoder };
        page.requests()?;
        page.responses()?;
        page.sizes()?;
        page.durations()?;
        page.process()?;
        page.forwarding(&self.forwarder)
    }
}

/// Labels of one metric of a family.
type Labels<'l, const N: usize> = [(&'l str, &'l str); N];

/// Sizes of names of the cluster or of others, by transport.
type SizesOf = fn(&Tally, usize, usize) -> &Sizes;

struct Page<'m, 'e> {
    metrics: &'m Metrics,
    encoder: DescriptorEncoder<'e>,
}

impl Page<'_, '_> {
    fn requests(&mut self) -> fmt::Result {
        let metrics = self.metrics;
        let mut rows = Vec::new();
        for (zone, transport, family, kind) in requests() {
            let count = metrics.sum(|tally| load(&tally.requests[zone][transport][family][kind]));
            rows.push((zone, transport, family, kind, count));
        }
        let rows = rows.iter().filter(|row| row.4 > 0).map(|(zone, transport, family, kind, count)| {
            let labels = [
                ("family", FAMILIES[*family]),
                ("proto", TRANSPORTS[*transport]),
                ("server", &*metrics.server),
                ("type", KINDS[*kind].1),
                ("view", ""),
                ("zone", metrics.zone_label(*zone)),
            ];
            (labels, *count)
        });
        let rows: Vec<_> = rows.collect();
        counters(&mut self.encoder, "coredns_dns_requests", "Questions that were answered", rows)?;
        let rows = (0..ZONES).map(|zone| {
            let count = metrics.sum(|tally| load(&tally.dnssec[zone]));
            ([("server", &*metrics.server), ("view", ""), ("zone", metrics.zone_label(zone))], count)
        });
        let rows: Vec<_> = rows.collect();
        counters(&mut self.encoder, "coredns_dns_do_requests", "Questions that asked for DNSSEC's records", rows)
    }

    fn responses(&mut self) -> fmt::Result {
        let metrics = self.metrics;
        let mut rows = Vec::new();
        for zone in 0..ZONES {
            for (code, (_, rcode)) in CODES.iter().enumerate() {
                for (by, plugin) in BY.iter().enumerate() {
                    let count = metrics.sum(|tally| load(&tally.responses[zone][code][by]));
                    if count > 0 {
                        let labels = [
                            ("plugin", *plugin),
                            ("rcode", *rcode),
                            ("server", &*metrics.server),
                            ("view", ""),
                            ("zone", metrics.zone_label(zone)),
                        ];
                        rows.push((labels, count));
                    }
                }
            }
        }
        counters(&mut self.encoder, "coredns_dns_responses", "Answers by their code and by who gave them", rows)
    }

    fn sizes(&mut self) -> fmt::Result {
        let metrics = self.metrics;
        let families: [(&str, &str, SizesOf); 2] = [
            ("coredns_dns_request_size_bytes", "Bytes of questions", |tally, zone, transport| {
                &tally.request_sizes[zone][transport]
            }),
            ("coredns_dns_response_size_bytes", "Bytes of answers", |tally, zone, transport| {
                &tally.response_sizes[zone][transport]
            }),
        ];
        for (name, help, of) in families {
            let mut rows = Vec::new();
            for zone in 0..ZONES {
                for (transport, proto) in TRANSPORTS.iter().enumerate() {
                    let counts: Vec<u64> = (0..=SIZES.len())
                        .map(|index| metrics.sum(|tally| load(&of(tally, zone, transport).buckets[index])))
                        .collect();
                    let bytes = metrics.sum(|tally| load(&of(tally, zone, transport).bytes));
                    if counts.iter().sum::<u64>() > 0 {
                        let labels = [
                            ("proto", *proto),
                            ("server", &*metrics.server),
                            ("view", ""),
                            ("zone", metrics.zone_label(zone)),
                        ];
                        let bounds = SIZES.iter().map(|bound| f64::from(*bound));
                        rows.push((labels, Histogram::new(bounds, &counts, float(bytes))));
                    }
                }
            }
            histograms(&mut self.encoder, name, help, rows)?;
        }
        Ok(())
    }

    fn durations(&mut self) -> fmt::Result {
        let metrics = self.metrics;
        let (mut coarse, mut fine) = (Vec::new(), Vec::new());
        for zone in 0..ZONES {
            let of = |tally: &Tally, count: fn(&Durations, usize) -> u64, index| count(&tally.durations[zone], index);
            let counts: Vec<u64> = (0..=TIMES)
                .map(|index| metrics.sum(|tally| of(tally, |durations, index| load(&durations.buckets[index]), index)))
                .collect();
            let nanoseconds = metrics.sum(|tally| of(tally, |durations, _| load(&durations.nanoseconds), 0));
            if counts.iter().sum::<u64>() > 0 {
                let labels = [("server", &*metrics.server), ("view", ""), ("zone", metrics.zone_label(zone))];
                coarse.push((labels, coarse_times(&counts, nanoseconds)));
                let bounds = (0..TIMES).map(|index| time_bound(index) / NANOSECONDS);
                let histogram = Histogram::new(bounds, &counts, float(nanoseconds) / NANOSECONDS);
                fine.push(([("zone", metrics.zone_label(zone))], histogram));
            }
        }
        let help = "Time from the arrival of a question until its answer left";
        histograms(&mut self.encoder, "coredns_dns_request_duration_seconds", help, coarse)?;
        histograms(&mut self.encoder, "berth_dns_request_duration_seconds", help, fine)
    }

    fn process(&mut self) -> fmt::Result {
        let (metrics, encoder) = (self.metrics, &mut self.encoder);
        let build = [("goversion", ""), ("revision", "berth"), ("version", env!("CARGO_PKG_VERSION"))];
        gauges(encoder, "coredns_build_info", "The version", vec![(build, 1)])?;
        let plugins =
            PLUGINS.map(|name| ([("name", name), ("server", &metrics.server), ("view", ""), ("zone", ROOT)], 1));
        gauges(encoder, "coredns_plugin_enabled", "The parts that answers come from", plugins.into())?;
        counters(encoder, "coredns_panics", "Messages that ended in a panic", vec![([], metrics.panics.get())])?;
        let errors = metrics.receive_errors.get();
        counters(encoder, "berth_dns_receive_errors", "Errors of accepting and receiving", vec![([], errors)])?;
        let late = vec![([], metrics.late.get())];
        counters(encoder, "berth_dns_late_answers", "Answers over UDP that came too late and were not sent", late)?;
        let [dropped, slipped] = &metrics.limited;
        counters(
            encoder,
            "berth_dns_limited",
            "Responses over UDP beyond the rate of their network",
            vec![([("action", "dropped")], dropped.get()), ([("action", "slipped")], slipped.get())],
        )?;
        gauges(
            encoder,
            "berth_dns_names",
            "Names that all clients see, without those of ports and addresses",
            vec![([], metrics.names.get())],
        )?;
        let defects = metrics.defects.get();
        gauges(encoder, "berth_dns_defects", "Things wrong in what the names come from", vec![([], defects)])?;
        gauges(
            encoder,
            "berth_dns_unreachable_containers",
            "Containers of other hosts without an address that this host reaches, left out of answers",
            vec![([], metrics.unreachable.get())],
        )
    }

    fn forwarding(&mut self, forwarder: &Forwarder) -> fmt::Result {
        let (metrics, server, encoder) = (self.metrics, &*self.metrics.server, &mut self.encoder);
        let look = forwarder.look();
        let of = |kind| [("server", server), ("type", kind), ("view", ""), ("zones", ROOT)];
        let all = [("server", server), ("view", ""), ("zones", ROOT)];
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (successes, denials) = look.cached;
        let cached = vec![(of("success"), signed(successes)), (of("denial"), signed(denials))];
        gauges(encoder, "coredns_cache_entries", "Cached answers of upstreams", cached)?;
        let counts = look.cache;
        let [successes, denials] = [0, 1].map(|empty| metrics.sum(|tally| load(&tally.cached[empty])));
        let hits = vec![(of("success"), successes), (of("denial"), denials)];
        counters(encoder, "coredns_cache_hits", "Queries that were answered from the cache", hits)?;
        let asked = successes + denials + counts.misses;
        for (name, help, count) in [
            ("coredns_cache_requests", "Questions about names of others", asked),
            ("coredns_cache_misses", "Queries for which no answer was cached", counts.misses),
            ("coredns_cache_prefetch", "Answers fetched before their time", counts.prefetches),
            ("coredns_cache_served_stale", "Answers served after their time", counts.stale),
            ("coredns_cache_evictions", "Answers removed for others", counts.evictions),
        ] {
            counters(encoder, name, help, vec![(all, count)])?;
        }
        let rejects = vec![([], look.refused)];
        let help = "Questions that were refused, since too many waited for upstreams";
        counters(encoder, "coredns_forward_max_concurrent_rejects", help, rejects)?;
        let help = "Questions over UDP that were sent back, to come again by TCP or with a cookie";
        counters(encoder, "berth_dns_forward_unproven", help, vec![([], look.unproven)])?;
        let help = "Answers of upstreams that lead to loopback, link-local or container addresses, dropped";
        counters(encoder, "berth_dns_rebinding_dropped", help, vec![([], look.rebinding)])?;
        let waiting = vec![([], signed(look.waiting))];
        gauges(encoder, "berth_dns_forward_waiting", "Questions that wait for upstreams", waiting)?;

        let upstreams: Vec<_> =
            look.upstreams.iter().map(|(address, upstream)| (address.to_string(), upstream.known())).collect();
        let each = |count: fn(&crate::forward::Known<'_>) -> u64| -> Vec<_> {
            upstreams.iter().map(|(to, known)| ([("to", &**to)], count(known))).collect()
        };
        let asked = each(|known| known.asked);
        counters(encoder, "coredns_forward_requests", "Questions to each upstream", asked)?;
        let unanswered =
            upstreams.iter().map(|(to, known)| ([("proxy_name", "forward"), ("to", to)], known.unanswered));
        let help = "Questions that an upstream did not answer";
        counters(encoder, "coredns_proxy_healthcheck_failures", help, unanswered.collect())?;
        let (mut responses, mut durations) = (Vec::new(), Vec::new());
        for (to, known) in &upstreams {
            for ((_, rcode), counts) in CODES.iter().zip(&known.answers.0) {
                if let Some(counts) = counts {
                    let labels = [("proxy_name", "forward"), ("rcode", *rcode), ("to", &**to)];
                    let histogram = coarse_times(&counts[..=TIMES], counts[TIMES + 1]);
                    responses.push(([("rcode", *rcode), ("to", &**to)], histogram.count));
                    durations.push((labels, histogram));
                }
            }
        }
        counters(encoder, "coredns_forward_responses", "Answers of each upstream", responses)?;
        let help = "Time that each upstream took";
        histograms(encoder, "coredns_proxy_request_duration_seconds", help, durations)?;
        let down = upstreams.iter().map(|(to, known)| ([("to", &**to)], i64::from(known.avoided.is_some())));
        gauges(encoder, "berth_dns_upstream_failing", "Whether an upstream is asked last", down.collect())
    }
}

impl Metrics {
    fn zone_label(&self, zone: usize) -> &str {
        if zone == 0 { ROOT } else { &self.zone }
    }
}

/// All combinations of what questions are counted by.
fn requests() -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let all = ZONES * TRANSPORTS.len() * FAMILIES.len() * KINDS.len();
    (0..all).map(|index| {
        let (rest, kind) = (index / KINDS.len(), index % KINDS.len());
        let (rest, family) = (rest / FAMILIES.len(), rest % FAMILIES.len());
        (rest / TRANSPORTS.len(), rest % TRANSPORTS.len(), family, kind)
    })
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[expect(clippy::cast_precision_loss, reason = "a sum of 2^53 or more is not read to the last digit")]
fn float(count: u64) -> f64 {
    count as f64
}

/// Counts by bound.
struct Histogram {
    sum: f64,
    count: u64,
    buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// `counts` has one more than there are bounds.
    fn new(bounds: impl Iterator<Item = f64>, counts: &[u64], sum: f64) -> Self {
        let buckets = bounds.chain([f64::INFINITY]).zip(counts.iter().copied()).collect();
        Self { sum, count: counts.iter().sum(), buckets }
    }
}

/// Times by the bounds of `CoreDNS`: the first of them takes all below it.
fn coarse_times(counts: &[u64], nanoseconds: u64) -> Histogram {
    let first = counts[..=COARSE].iter().sum();
    let counts: Vec<u64> = [first].into_iter().chain(counts[COARSE + 1..].iter().copied()).collect();
    let bounds = (COARSE..TIMES).map(|index| time_bound(index) / NANOSECONDS);
    Histogram::new(bounds, &counts, float(nanoseconds) / NANOSECONDS)
}

fn counters<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<(Labels<'_, N>, u64)>,
) -> fmt::Result {
    family(encoder, name, help, MetricType::Counter, rows, |mut metric, count| {
        metric.encode_counter::<NoLabelSet, u64, u64>(&count, None)
    })
}

fn gauges<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<(Labels<'_, N>, i64)>,
) -> fmt::Result {
    family(encoder, name, help, MetricType::Gauge, rows, |mut metric, value| metric.encode_gauge(&value))
}

fn histograms<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<(Labels<'_, N>, Histogram)>,
) -> fmt::Result {
    family(encoder, name, help, MetricType::Histogram, rows, |mut metric, histogram| {
        metric.encode_histogram::<NoLabelSet>(histogram.sum, histogram.count, &histogram.buckets, None)
    })
}

fn family<const N: usize, T>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    rows: Vec<(Labels<'_, N>, T)>,
    write: impl Fn(MetricEncoder<'_>, T) -> fmt::Result,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in rows {
        if N > 0 {
            write(family.encode_family(&labels)?, value)?;
        } else {
            // It is the only one of its family.
            return write(family, value);
        }
    }
    Ok(())
}
