//! `lb_config` of a balancer: its rules, each with its place, and what else it says. One bad rule harms itself alone.

use super::rule::{PortRule, Stickiness};
use crate::defect::Defect;
use crate::value::{Map, Text, Value};

/// Most rules of one balancer: a proxy tries them one after the other for each request.
const RULES_MAX: usize = 20_000;

/// Longest `config`, in bytes.
const CONFIG_BYTES_MAX: usize = 256 << 10;

/// Longest name of a certificate, in bytes: it is the name of a folder.
const CERTIFICATE_BYTES_MAX: usize = 128;

/// The fields of a rule, in order.
const RULE_FIELDS: [&str; 13] = [
    "backend_name",
    "container",
    "environment",
    "hostname",
    "path",
    "priority",
    "protocol",
    "region",
    "selector",
    "service",
    "source_port",
    "target_port",
    "weight",
];

/// The other fields, in order.
const FIELDS: [&str; 5] = ["certs", "config", "default_cert", "port_rules", "stickiness_policy"];

/// What an `lb_config` says.
#[derive(Clone, Debug, Default)]
pub struct LbConfig {
    /// The rules that can be used, with their numbers in the list, from 1.
    pub rules: Vec<(usize, PortRule)>,
    /// Clients stay with their member.
    pub stickiness: Option<Stickiness>,
    /// Names of certificates.
    pub certificates: Vec<Text>,
    /// The certificate for clients that ask for no known name.
    pub default_certificate: Option<Text>,
    /// Lines for HAProxy.
    pub config: Option<Text>,
}

impl LbConfig {
    /// Whether a value can be meant as the rules of a balancer, be they none. Anything else is a mistake, which must not end the rules before.
    pub fn says_rules(value: &Value) -> bool {
        let rules = value.as_map().map(|fields| fields.get("port_rules"));
        rules.is_some_and(|rules| rules.is_none_or(|rules| rules.as_list().is_some()))
    }

    /// Reads a balancer's; `at` is the path of its service.
    pub fn read(value: &Value, at: &str, defects: &mut Vec<Defect>) -> Self {
        Self::read_with(value, &format!("{at}/lb_config"), PortRule::read, defects)
    }

    /// Reads that of a target, whose rules have no port of their own.
    pub fn read_of_target(value: &Value, at: &str, defects: &mut Vec<Defect>) -> Self {
        Self::read_with(value, &format!("{at}/lb_config"), PortRule::read_of_target, defects)
    }

    fn read_with(
        value: &Value,
        at: &str,
        read: fn(&Map) -> Result<PortRule, String>,
        defects: &mut Vec<Defect>,
    ) -> Self {
        let Some(fields) = value.as_map() else {
            if !value.is_null() {
                defects.push(Defect::ignored(at, format!("expected a map, found {}", value.kind())));
            }
            return Self::default();
        };
        let mut config = Self::default();
        unknown(fields, &FIELDS, || at.to_owned(), defects);
        let mut wrong = |key: &str, is_right: fn(&Value) -> bool, expected: &str| {
            if let Some(found) = fields.get(key).filter(|value| !is_right(value)) {
                defects.push(Defect::ignored(
                    format!("{at}/{key}"),
                    format!("expected {expected}, found {}", found.kind()),
                ));
            }
        };
        wrong("port_rules", |value| value.as_list().is_some(), "a list");
        wrong("certs", |value| value.is_null() || value.as_list().is_some(), "a list");
        wrong("config", |value| value.is_null() || value.as_text().is_some(), "text");
        wrong("default_cert", |value| value.is_null() || value.as_text().is_some(), "text");
        wrong("stickiness_policy", |value| value.is_null() || value.as_map().is_some(), "a map");
        let rules = fields.list("port_rules");
        if rules.len() > RULES_MAX {
            defects.push(Defect::ignored(
                format!("{at}/port_rules"),
                format!("only the first {RULES_MAX} rules are used"),
            ));
        }
        for (number, rule) in rules.iter().take(RULES_MAX).enumerate().map(|(index, rule)| (index + 1, rule)) {
            let at = || format!("{at}/port_rules/{number}");
            let fields = rule.as_map().ok_or_else(|| format!("expected a map, found {}", rule.kind()));
            match fields.and_then(|fields| Ok((fields, read(fields)?))) {
                Ok((fields, rule)) => {
                    unknown(fields, &RULE_FIELDS, at, defects);
                    config.rules.push((number, rule));
                }
                Err(problem) => defects.push(Defect::hidden(at(), problem)),
            }
        }
        if let Some(policy) = fields.map("stickiness_policy") {
            match Stickiness::read(policy) {
                Ok(stickiness) => config.stickiness = stickiness,
                Err(problem) => defects.push(Defect::ignored(format!("{at}/stickiness_policy"), problem)),
            }
        }
        for other in fields.list("certs").iter().filter(|name| name.as_text().is_none()) {
            defects.push(Defect::ignored(format!("{at}/certs"), format!("expected names, found {}", other.kind())));
        }
        let mut certificate = |name: &Text, key: &str| {
            let fine = is_certificate(name);
            if !fine {
                let shown = crate::printable::printable(name, 60);
                let problem = format!(
                    "{shown:?} is no name of a certificate: expected letters, digits, dots, hyphens and underscores"
                );
                defects.push(Defect::ignored(format!("{at}/{key}"), problem));
            }
            fine.then(|| name.clone())
        };
        for name in fields.list("certs").iter().filter_map(Value::as_text) {
            config.certificates.extend(certificate(name, "certs").filter(|name| !config.certificates.contains(name)));
        }
        config.default_certificate = fields
            .text("default_cert")
            .filter(|name| !name.is_empty())
            .and_then(|name| certificate(name, "default_cert"));
        config.config = fields.text("config").filter(|text| !text.trim().is_empty()).cloned();
        if config.config.as_ref().is_some_and(|text| text.len() > CONFIG_BYTES_MAX) {
            let problem = format!("it has more than {CONFIG_BYTES_MAX} bytes");
            defects.push(Defect::ignored(format!("{at}/config"), problem));
            config.config = None;
        }
        config
    }
}

fn unknown(fields: &Map, known: &[&str], at: impl Fn() -> String, defects: &mut Vec<Defect>) {
    for (key, _) in fields.iter().filter(|(key, _)| known.binary_search(&&**key).is_err()) {
        let shown = crate::printable::printable(key, 60);
        defects.push(Defect::ignored(format!("{}/{shown}", at()), "there is no such field"));
    }
}

fn is_certificate(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    name.len() <= CERTIFICATE_BYTES_MAX && !name.starts_with('.') && name.bytes().all(is_plain) && !name.is_empty()
}
