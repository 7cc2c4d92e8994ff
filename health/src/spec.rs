//! How a container is checked: the fields of `health_check` in documents, and the labels that say the same.

use std::ops::RangeInclusive;
use std::time::Duration;

use model::health::{BadCheck, HEADER, LABEL, SaidOnFailure, number, text, time, truth};
use model::{Map, Text, Value};

use crate::grpc::SERVICE_MAX;
use crate::request_line::{BadRequestLine, Request};

/// A check more often than this measures the checker.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// What is checked more seldom than hourly is not checked.
const INTERVAL_MAX: Duration = Duration::from_hours(1);

/// Longest time between two checks of a container that has not been well yet, so that it is known soon after it is.
const INITIALIZING_INTERVAL: Duration = Duration::from_millis(500);

/// A response may take as long as so many intervals. More would say how things were.
const TIMEOUT_INTERVALS_MAX: u32 = 10;

/// Most results in a row that are waited for.
const THRESHOLD_MAX: u32 = 100;

/// Longest time for which a container may be initializing.
const INITIALIZING_MAX: Duration = Duration::from_hours(24);

/// What is asked of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A connection is enough.
    Tcp,
    /// The server says so of a service, over HTTP/2 without TLS.
    Grpc {
        /// The name of the service; empty for the whole server.
        service: String,
    },
    /// The response to a request says so.
    Http {
        /// What is asked.
        request: Request,
        /// Whether over TLS.
        tls: bool,
        /// Whether the certificate has to be valid.
        verify: bool,
        /// The codes that are good.
        status: RangeInclusive<u16>,
        /// Text that the body has to have.
        body: Option<String>,
    },
}

impl Probe {
    /// Whether it changes nothing in the container.
    pub fn is_safe(&self) -> bool {
        if let Self::Http { request, .. } = self { request.is_safe() } else { true }
    }
}

/// Which hosts check, where that does not follow from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedFrom {
    /// The container's own alone.
    Own,
    /// Others.
    Others,
}

/// How a container is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The container's own port, never the published one.
    pub port: u16,
    /// What is asked.
    pub probe: Probe,
    /// Time from the start of one check to the start of the next one.
    pub interval: Duration,
    /// The same between a first different result and the verdict; `interval` when absent.
    pub fast_interval: Option<Duration>,
    /// Longest time from the connection to the response.
    pub response_timeout: Duration,
    /// Good results in a row after which it is healthy again.
    pub healthy_threshold: u32,
    /// Bad results in a row after which it is unhealthy.
    pub unhealthy_threshold: u32,
    /// Longest time until its first good result.
    pub initializing_timeout: Duration,
    /// The same after it was started again.
    pub reinitializing_timeout: Duration,
    /// Which hosts check.
    pub from: Option<CheckedFrom>,
}

impl Spec {
    /// The check in the `health_check` of a container or service; `None` if it says none: no port, or port 0.
    ///
    /// # Errors
    ///
    /// Fails if a field is wrong. Then the container counts as unchecked.
    pub fn of_fields(fields: &Map) -> Result<Option<Self>, BadCheck> {
        let config = fields.map("recreate_on_quorum_strategy_config");
        let quorum = config.and_then(|config| config.get("quorum")).map(|quorum| ("quorum", quorum));
        let fields = fields.iter().filter(|(name, value)| !value.is_null() && !name.ends_with("_config"));
        Self::of(fields.map(|(name, value)| (&**name, value)).chain(quorum))
    }

    /// The check in the labels of a container.
    ///
    /// # Errors
    ///
    /// As [`Self::of_fields`].
    pub fn of_labels(labels: &Map) -> Result<Option<Self>, BadCheck> {
        Self::of(labels.iter().filter_map(|(name, value)| Some((name.strip_prefix(LABEL)?, value))))
    }

    fn of<'f>(fields: impl Iterator<Item = (&'f str, &'f Value)>) -> Result<Option<Self>, BadCheck> {
        let mut said = Said::default();
        for (name, value) in fields {
            said.add(name, value)?;
        }
        said.spec()
    }

    /// Time between two checks of a container that has not been well yet.
    pub fn initializing_interval(&self) -> Duration {
        self.interval.min(INITIALIZING_INTERVAL)
    }

    /// Shortest time between two checks, whatever comes of them.
    pub fn shortest_period(&self) -> Duration {
        self.initializing_interval().min(self.fast_interval.unwrap_or(self.interval))
    }

    /// Longest time for the connection, which the predecessor counted besides that for the response.
    pub fn connect_timeout(&self) -> Duration {
        /// `timeout connect` of the predecessor's configuration.
        const CONNECT_MAX: Duration = Duration::from_secs(5);
        self.interval.min(CONNECT_MAX)
    }
}

/// The fields as they were said; what is absent gets the values that the predecessor's user interface filled in.
#[derive(Default)]
struct Said {
    port: Option<u16>,
    kind: Option<Text>,
    line: Option<Text>,
    service: Option<Text>,
    headers: Vec<(String, Text)>,
    status: Option<RangeInclusive<u16>>,
    body: Option<Text>,
    verify: Option<bool>,
    interval: Option<Duration>,
    fast_interval: Option<Duration>,
    response_timeout: Option<Duration>,
    healthy_threshold: Option<u32>,
    unhealthy_threshold: Option<u32>,
    initializing_timeout: Option<Duration>,
    reinitializing_timeout: Option<Duration>,
    on_failure: SaidOnFailure,
    from: Option<CheckedFrom>,
}

impl Said {
    fn add(&mut self, name: &str, value: &Value) -> Result<(), BadCheck> {
        match name {
            "port" => self.port = u16::try_from(number(name, value, 0, u16::MAX.into())?).ok(),
            "type" => self.kind = Some(text(name, value)?),
            "service" => self.service = Some(text(name, value)?),
            "request_line" => self.line = Some(text(name, value)?),
            // As people write it, before all others.
            "host" => self.headers.insert(0, ("host".to_owned(), text(name, value)?)),
            "status" => self.status = Some(status(name, value)?),
            "body" => self.body = Some(text(name, value)?),
            "verify" => self.verify = Some(truth(name, value)?),
            "interval" => self.interval = Some(time(name, value, INTERVAL_MIN, INTERVAL_MAX)?),
            "fast_interval" => self.fast_interval = Some(time(name, value, INTERVAL_MIN, INTERVAL_MAX)?),
            "response_timeout" => {
                self.response_timeout =
                    Some(time(name, value, Duration::from_millis(1), INTERVAL_MAX * TIMEOUT_INTERVALS_MAX)?);
            }
            "healthy_threshold" => self.healthy_threshold = Some(number(name, value, 1, THRESHOLD_MAX)?),
            "unhealthy_threshold" => self.unhealthy_threshold = Some(number(name, value, 1, THRESHOLD_MAX)?),
            "initializing_timeout" => {
                self.initializing_timeout = Some(time(name, value, Duration::from_millis(1), INITIALIZING_MAX)?);
            }
            "reinitializing_timeout" => {
                self.reinitializing_timeout = Some(time(name, value, Duration::from_millis(1), INITIALIZING_MAX)?);
            }
            "from" => {
                self.from = Some(match &*text(name, value)? {
                    "own" => CheckedFrom::Own,
                    "others" => CheckedFrom::Others,
                    other => return Err(BadCheck::new(name, format!("{other:?}, expected own or others"))),
                });
            }
            // Schedulers read it; here it is only to be right.
            _ if self.on_failure.add(name, value)? => {}
            _ => match name.strip_prefix(HEADER) {
                Some(header) => self.headers.push((header.to_owned(), text(name, value)?)),
                None => return Err(BadCheck::new(name, "there is no such field of a health check")),
            },
        }
        Ok(())
    }

    fn spec(self) -> Result<Option<Spec>, BadCheck> {
        let probe = self.probe()?;
        let Some(port) = self.port.filter(|port| *port != 0) else { return Ok(None) };
        let interval = self.interval.unwrap_or(Duration::from_secs(2));
        let response_timeout =
            self.response_timeout.unwrap_or_else(|| Duration::from_secs(2).min(interval * TIMEOUT_INTERVALS_MAX));
        if response_timeout > interval * TIMEOUT_INTERVALS_MAX {
            let reason = format!("{response_timeout:?} is more than {TIMEOUT_INTERVALS_MAX} intervals of {interval:?}");
            return Err(BadCheck::new("response_timeout", reason));
        }
        self.on_failure.resolve()?;
        Ok(Some(Spec {
            port,
            probe,
            interval,
            fast_interval: self.fast_interval,
            response_timeout,
            healthy_threshold: self.healthy_threshold.unwrap_or(2),
            unhealthy_threshold: self.unhealthy_threshold.unwrap_or(3),
            initializing_timeout: self.initializing_timeout.unwrap_or(Duration::from_mins(1)),
            reinitializing_timeout: self.reinitializing_timeout.unwrap_or(Duration::from_mins(1)),
            from: self.from,
        }))
    }

    /// A check of gRPC, which has no fields of HTTP: one that is silently without effect would be worse than an error.
    fn grpc(&self) -> Result<Probe, BadCheck> {
        let without_effect = [
            ("request_line", self.line.as_ref().is_some_and(|line| !line.is_empty())),
            ("header", !self.headers.is_empty()),
            ("status", self.status.is_some()),
            ("body", self.body.is_some()),
            ("verify", self.verify.is_some()),
        ];
        if let Some((field, _)) = without_effect.into_iter().find(|(_, is_there)| *is_there) {
            return Err(BadCheck::new(field, "has no meaning for the type grpc"));
        }
        let service = self.service.as_deref().unwrap_or_default();
        if service.len() > SERVICE_MAX {
            return Err(BadCheck::new("service", format!("longer than {SERVICE_MAX} bytes")));
        }
        Ok(Probe::Grpc { service: service.to_owned() })
    }

    fn probe(&self) -> Result<Probe, BadCheck> {
        let line = self.line.as_deref().unwrap_or_default();
        let is_grpc = self.kind.as_deref() == Some("grpc");
        if let Some(service) = self.service.as_deref().filter(|_| !is_grpc) {
            return Err(BadCheck::new("service", format!("{service:?} is for the type grpc alone")));
        }
        let tls = match self.kind.as_deref() {
            None if line.is_empty() => None,
            Some("tcp") => None,
            None | Some("http") => Some(false),
            Some("https") => Some(true),
            Some("grpc") => return self.grpc(),
            Some(other) => return Err(BadCheck::new("type", format!("{other:?}, expected tcp, http, https or grpc"))),
        };
        let Some(tls) = tls else { return Ok(Probe::Tcp) };
        let wrong = |field: &'static str| move |wrong: BadRequestLine| BadCheck::new(field, wrong.to_string());
        let mut request = Request::parse(line).map_err(wrong("request_line"))?;
        for (name, value) in &self.headers {
            request.add_header(name, value).map_err(wrong("header"))?;
        }
        Ok(Probe::Http {
            request,
            tls,
            verify: self.verify.unwrap_or_default(),
            status: self.status.clone().unwrap_or(200..=399),
            body: self.body.as_deref().map(str::to_owned),
        })
    }
}

/// `200-399` or `204`.
fn status(name: &str, value: &Value) -> Result<RangeInclusive<u16>, BadCheck> {
    let wrong = || BadCheck::new(name, "expected a code or a range of codes, such as 200-399");
    let written = match value {
        Value::Text(text) => text.to_string(),
        other => other.as_int().ok_or_else(wrong)?.to_string(),
    };
    let (first, last) = written.split_once('-').unwrap_or((&written, &written));
    let code = |text: &str| text.trim().parse::<u16>().ok().filter(|code| (100..=599).contains(code));
    let (first, last) = code(first).zip(code(last)).ok_or_else(wrong)?;
    if first <= last { Ok(first..=last) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use model::health::{FIELDS, is_field};

    use super::*;

    fn map(fields: &[(&str, &str)]) -> Map {
        fields.iter().map(|(name, value)| ((*name).into(), Value::text(*value))).collect()
    }

    fn labelled(fields: &[(&str, &str)]) -> Result<Option<Spec>, String> {
        let named: Vec<_> = fields.iter().map(|(name, value)| (format!("{LABEL}{name}"), *value)).collect();
        let named: Vec<_> = named.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        Spec::of_labels(&map(&named)).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn absent_fields_get_the_values_of_the_predecessors_user_interface() {
        let fields: Map =
            [("port".into(), Value::Int(80)), ("request_line".into(), Value::text(""))].into_iter().collect();
        let spec = Spec::of_fields(&fields).unwrap().unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(
            spec,
            Spec {
                port: 80,
                probe: Probe::Tcp,
                interval: seconds(2),
                fast_interval: None,
                response_timeout: seconds(2),
                healthy_threshold: 2,
                unhealthy_threshold: 3,
                initializing_timeout: seconds(60),
                reinitializing_timeout: seconds(60),
                from: None,
            }
        );
        assert_eq!(spec.connect_timeout(), seconds(2));
        assert_eq!(Spec::of_fields(&Map::default()), Ok(None));
        assert_eq!(labelled(&[("port", "0")]), Ok(None));
    }

    #[test]
    fn labels_say_what_fields_say_and_more() {
        let spec = labelled(&[
            ("port", "8443"),
            ("type", "https"),
            ("request_line", "GET /ping HTTP/1.1"),
            ("host", "example.org"),
            ("header.X-Check", "1"),
            ("status", "204"),
            ("body", "fine"),
            ("verify", "true"),
            ("interval", "500ms"),
            ("fast_interval", "100"),
            ("response_timeout", "1s"),
            ("healthy_threshold", "1"),
            ("unhealthy_threshold", "2"),
            ("initializing_timeout", "2m"),
            ("strategy", "recreateOnQuorum"),
            ("quorum", "3"),
            ("from", "own"),
        ]);
        let spec = spec.unwrap().unwrap();
        let Probe::Http { request, tls, verify, status, body } = spec.probe else { panic!("{spec:?}") };
        let bytes = b"GET /ping HTTP/1.1\r\nhost: example.org\r\nx-check: 1\r\nconnection: close\r\n\r\n";
        assert_eq!(request.bytes(), bytes);
        assert_eq!((tls, verify, status, body.as_deref()), (true, true, 204..=204, Some("fine")));
        assert_eq!(spec.interval, Duration::from_millis(500));
        assert_eq!(spec.fast_interval, Some(Duration::from_millis(100)));
        assert_eq!(spec.initializing_timeout, Duration::from_mins(2));
        assert_eq!(spec.from, Some(CheckedFrom::Own));
    }

    #[test]
    fn the_names_of_fields_are_those_that_are_read() {
        let is_read = |name: &str| {
            // No field takes it, whatever its name.
            let wrong = Said::default().add(name, &Value::List(Vec::new().into())).unwrap_err();
            wrong.reason != "there is no such field of a health check"
        };
        for name in FIELDS {
            assert!(is_read(name) && is_field(name), "{name}");
        }
        for name in ["intervall", "header", "Port", ""] {
            assert!(!is_read(name) && !is_field(name), "{name}");
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (fields, reason) in [
            (&[("port", "http")][..], "port: expected a number from 0 to 65535"),
            (&[("port", "70000")], "port: expected"),
            (&[("port", "80"), ("interval", "50")], "interval: expected a time from 100ms to 3600s"),
            (&[("port", "80"), ("interval", "2 weeks")], "interval: expected a time"),
            (&[("port", "80"), ("interval", "-1")], "interval: expected a time"),
            (&[("port", "80"), ("interval", "99999999999999999999")], "interval: expected a time"),
            (&[("port", "80"), ("interval", "100"), ("response_timeout", "2s")], "response_timeout: 2s is more than"),
            (&[("port", "80"), ("unhealthy_threshold", "0")], "unhealthy_threshold: expected a number from 1 to 100"),
            (&[("port", "80"), ("request_line", "GET \"/")], "request_line: a quotation mark has no second one"),
            (&[("port", "80"), ("type", "http"), ("header.X Y", "1")], "header: "),
            (&[("port", "80"), ("type", "ftp")], "type: \"ftp\", expected tcp, http, https or grpc"),
            (&[("port", "80"), ("type", "grpc"), ("status", "200")], "status: has no meaning for the type grpc"),
            (&[("port", "80"), ("service", "a.B")], "service: \"a.B\" is for the type grpc alone"),
            (&[("port", "80"), ("strategy", "reboot")], "strategy: \"reboot\", expected none"),
            (&[("port", "80"), ("status", "399-200")], "status: expected a code"),
            (&[("port", "80"), ("status", "999")], "status: expected a code"),
            (&[("port", "80"), ("verify", "maybe")], "verify: expected true or false"),
            (&[("port", "80"), ("from", "mars")], "from: \"mars\", expected own or others"),
            (&[("port", "80"), ("prot", "tcp")], "prot: there is no such field"),
        ] {
            let error = labelled(fields).unwrap_err();
            assert!(error.starts_with(reason), "{fields:?}: {error}");
        }
    }
}
