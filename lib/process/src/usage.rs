//! What the process uses, for the metrics page, under Prometheus' own names.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Asks the system again for each page.
#[derive(Debug)]
pub(crate) struct UsageCollector;

impl Collector for UsageCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let usage = platform::usage::Usage::now();
        if let Some(cpu) = usage.cpu {
            let counter = ConstCounter::new(cpu.as_secs_f64());
            let family =
                encoder.encode_descriptor("process_cpu_seconds", "CPU time used", None, counter.metric_type())?;
            counter.encode(family)?;
        }
        let gauges = [
            ("process_resident_memory_bytes", "Memory in use", usage.resident_bytes),
            ("process_open_fds", "Descriptors or handles open", usage.open_descriptors),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
                let family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
                gauge.encode(family)?;
            }
        }
        Ok(())
    }
}
