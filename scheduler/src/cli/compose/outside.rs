//! Services for which no container is started: the predecessor's server answered for them itself, and an image only named their
//! kind. Here a cluster document says them. ◇

use model::{Map, Text, Value};

use crate::cli::compose::Compose;
use crate::cli::compose::links::{Link, external_links, links};
use crate::cli::compose::section::{Draft, Section};
use crate::cli::compose::service::{SERVICE_KEYS, texts};
use crate::cli::compose::{rancher, refused};
use crate::place::invalid::Invalid;
use crate::place::request::engine;

/// Begins a label with what a balancer leads to one of its services.
const TARGET: &str = "io.rancher.loadbalancer.target.";

/// Label with the ports on which a balancer speaks TLS.
const TLS_PORTS: &str = "io.rancher.loadbalancer.ssl.ports";

/// Begins the labels of a balancer that count here too.
const KEPT_LABELS: [&str; 2] = ["io.rancher.lb_service.", "io.berth.lb"];

/// What a service is that has no container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    External,
    Alias,
    Balancer,
    /// It only chose containers of others.
    Selector,
}

impl Kind {
    fn of_image(image: &str) -> Option<Self> {
        let name = image.split('@').next().unwrap_or_default();
        let name = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |(name, _)| name);
        Some(match name.strip_prefix("docker.io/").unwrap_or(name) {
            "rancher/external-service" => Self::External,
            "rancher/dns-service" => Self::Alias,
            "rancher/lb-service-haproxy" | "rancher/load-balancer-service" => Self::Balancer,
            "rancher/none" => Self::Selector,
            _ => return None,
        })
    }

    /// What a cluster document calls it.
    fn word(self) -> &'static str {
        match self {
            Self::External => "externalService",
            Self::Alias => "dnsService",
            Self::Balancer => "loadBalancerService",
            Self::Selector => "selectorService",
        }
    }
}

impl Compose<'_> {
    /// The services that are started, without those that a cluster document has to say, which a warning shows. The names of these
    /// may be used.
    pub(super) fn started(&mut self, services: &Map) -> Result<Map, Invalid> {
        let mut started = Vec::new();
        for (name, value) in services {
            let image = value.as_map().and_then(|map| map.text("image"));
            let (Some(kind), Some(map)) = (image.and_then(|image| Kind::of_image(image)), value.as_map()) else {
                started.push((name.clone(), value.clone()));
                continue;
            };
            let service = Section { path: format!("{}{name}", self.top), map };
            let document = self.document(kind, name, &service)?;
            let document = serde_json::to_string(&document).unwrap_or_default();
            let more = if kind == Kind::Balancer { "; its proxy is started as docs/balancer.md says" } else { "" };
            let mut text =
                format!("no container is started: a cluster document (docs/etcd.md) says it, {document}{more}");
            if kind == Kind::Selector {
                text =
                    "no container is started, and none of others is chosen: names lead to members of a service alone"
                        .into();
            }
            self.warn(service.at("image"), &text);
            self.outside.push(name.clone());
        }
        match (started.is_empty(), self.outside.first()) {
            (true, Some(name)) => {
                let field = format!("{}{name}.image", self.top);
                Err(Invalid::new(field, "there is nothing to start", "a service with an image of its own"))
            }
            _ => Ok(Map::new(started)),
        }
    }

    /// The cluster document of such a service.
    fn document(&self, kind: Kind, name: &Text, service: &Section<'_>) -> Result<Value, Invalid> {
        let settings: Vec<_> = engine::names().collect();
        let own: &[&str] = if kind == Kind::External { &["external_ips"] } else { &[] };
        let known = [SERVICE_KEYS, rancher::KEYS, &settings, own].concat();
        if kind == Kind::External {
            service.only(&known)?;
        } else {
            refused::of_service(service, &known)?;
        }
        let mut fields: Draft = vec![
            ("name".into(), Value::Text(name.clone())),
            ("stack".into(), Value::text(self.stack.as_str())),
            ("kind".into(), kind.word().into()),
        ];
        match kind {
            Kind::Selector => {}
            Kind::External => {
                let addresses = texts(service, "external_ips")?;
                let is_wrong = |text: &Text| text.parse::<std::net::IpAddr>().is_err();
                if let Some(at) = addresses.iter().position(is_wrong) {
                    let field = service.at(&format!("external_ips[{at}]"));
                    return Err(Invalid::new(field, format!("found {:?}", addresses[at]), "an address"));
                }
                fields.extend(service.text("hostname")?.map(|name| ("hostname".into(), Value::Text(name))));
                if !addresses.is_empty() {
                    fields.push(("external_ips".into(), Value::list(addresses.into_iter().map(Value::Text))));
                }
                fields.extend(service.get("health_check").map(|check| ("health_check".into(), check.clone())));
            }
            Kind::Alias => {
                let link = |link: Link| (self.path_of(&link.target), Value::Text(link.alias));
                fields.push(("links".into(), Map::new(linked(service)?.into_iter().map(link).collect()).into()));
            }
            Kind::Balancer => {
                let labels = service.pairs("labels")?;
                let config = match service.below("lb_config")? {
                    Some(config) => self.with_stack(&config),
                    None => Map::new(vec![("port_rules".into(), Value::list(self.rules(service, &labels)?))]),
                };
                let certificates = ["certs", "default_cert"]
                    .into_iter()
                    .filter(|key| config.get(key).is_none())
                    .filter_map(|key| Some((Text::from(key), service.get(key)?.clone())));
                let certificates: Draft = certificates.collect();
                fields.push(("lb_config".into(), config.with(certificates).into()));
                if service.get("load_balancer_config").is_some() {
                    let text = "without effect: `config` of lb_config has lines of HAProxy (docs/balancer.md)";
                    self.warn(service.at("load_balancer_config"), text);
                }
                let kept = |(key, _): &(Text, Value)| KEPT_LABELS.iter().any(|known| key.starts_with(known));
                let kept: Draft = labels.into_iter().filter(kept).collect();
                if !kept.is_empty() {
                    fields.push(("labels".into(), Map::new(kept).into()));
                }
            }
        }
        Ok(Map::new(vec![("services".into(), Value::list([Map::new(fields).into()]))]).into())
    }

    /// A service as `STACK/SERVICE`.
    fn path_of(&self, service: &str) -> Text {
        if service.contains('/') { service.into() } else { format!("{}/{service}", self.stack).into() }
    }

    /// The configuration of a balancer, whose services are those of this stack.
    fn with_stack(&self, config: &Section<'_>) -> Map {
        let rule = |rule: &Value| {
            let service = rule.as_map().and_then(|map| Some((map, map.text("service")?)));
            service.filter(|(_, name)| !name.is_empty()).map_or_else(
                || rule.clone(),
                |(map, name)| map.with([("service".into(), Value::Text(self.path_of(name)))]).into(),
            )
        };
        let rules = config.get("port_rules").and_then(Value::as_list);
        config.map.with(rules.map(|rules| ("port_rules".into(), Value::list(rules.iter().map(rule)))))
    }

    /// The rules of a balancer of version 1: each of its ports leads to each service that it links, or where a label says.
    fn rules(&self, service: &Section<'_>, labels: &[(Text, Value)]) -> Result<Vec<Value>, Invalid> {
        let label = |key: &str| {
            let found = labels.iter().find(|(own, _)| **own == *key);
            found.and_then(crate::place::hosts::label).map(|(_, text)| text.to_string()).unwrap_or_default()
        };
        let tls = label(TLS_PORTS);
        let mut rules = Vec::new();
        for key in ["ports", "expose"] {
            for (at, text) in texts(service, key)?.iter().enumerate() {
                let wrong = || Invalid::new(service.at(&format!("{key}[{at}]")), format!("found {text:?}"), "a port");
                let (numbers, protocol) = text.split_once('/').unwrap_or((text, "http"));
                let (before, inside) = numbers.rsplit_once(':').unwrap_or((numbers, numbers));
                let source = before.rsplit(':').next().unwrap_or_default();
                let number = |text: &str| text.parse::<u16>().map_err(|_| wrong());
                let (source, inside) = (number(source)?, number(inside)?);
                let is_tls = tls.split(',').any(|port| port.trim() == source.to_string());
                let protocol = match (protocol, is_tls) {
                    ("http", false) => "http",
                    ("http", true) => "https",
                    ("tcp", false) => "tcp",
                    ("tcp", true) => "tls",
                    _ => return Err(wrong()),
                };
                for link in linked(service)? {
                    let said = label(&format!("{TARGET}{}", link.target));
                    let mut targets: Vec<Target<'_>> = said.split(',').map(Target::parse).collect();
                    targets.retain(|target| target.source.is_none_or(|own| own == source));
                    rules.extend(targets.into_iter().map(|target| {
                        let mut rule: Draft = vec![
                            ("source_port".into(), Value::Int(source.into())),
                            ("protocol".into(), protocol.into()),
                        ];
                        for (field, text) in [("hostname", target.host), ("path", target.path)] {
                            rule.extend((!text.is_empty()).then(|| (field.into(), text.into())));
                        }
                        rule.push(("service".into(), Value::Text(self.path_of(&link.target))));
                        rule.push(("target_port".into(), Value::Int(target.inside.unwrap_or(inside).into())));
                        Map::new(rule).into()
                    }));
                }
            }
        }
        Ok(rules)
    }
}

/// Other services that a service names.
fn linked(service: &Section<'_>) -> Result<Vec<Link>, Invalid> {
    Ok(links(service)?.into_iter().chain(external_links(service)?).collect())
}

/// One of what leads to a service: `[HOST][:PORT][/PATH][=PORT INSIDE]`.
struct Target<'a> {
    host: &'a str,
    source: Option<u16>,
    path: &'a str,
    inside: Option<u16>,
}

impl<'a> Target<'a> {
    fn parse(text: &'a str) -> Self {
        let text = text.trim();
        let (outside, inside) = text.split_once('=').unwrap_or((text, ""));
        let (front, path) = outside.split_at(outside.find('/').unwrap_or(outside.len()));
        let (host, source) = match front.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()),
            // A number alone is a port.
            None => front.parse().map_or((front, None), |port| ("", Some(port))),
        };
        Self { host, source, path, inside: inside.parse().ok() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::compose::{Reading, requests};

    /// The cluster document of the service `it`, and what else is said.
    fn read(service: &str) -> Result<(serde_json::Value, Vec<String>), Invalid> {
        let text = format!("it: {{{service}}}\nweb: {{image: web, links: ['it:alias'], depends_on: [it]}}\n");
        let document = source::format::parse(&text).unwrap().value(model::scalar::core);
        let mut warnings = Vec::new();
        let found = requests(&[document], &Reading::of_tests(), &mut warnings)?;
        let web = serde_json::to_value(&found[0]).unwrap();
        assert_eq!((found.len(), &web["labels"]["io.berth.links"]), (1, &json!("it:alias")));
        assert_eq!(web["depends_on"], json!([]));
        let at = warnings.iter().position(|warning| warning.field == "it.image").unwrap();
        let text = warnings.remove(at).text;
        let document: Value = serde_json::from_str(&text[text.find('{').unwrap()..=text.rfind('}').unwrap()]).unwrap();
        model::document::resolve_value(&document).unwrap_or_else(|error| panic!("{document:?}: {error}"));
        let document = serde_json::to_value(&document).unwrap()["services"][0].clone();
        assert_eq!((&document["name"], &document["stack"]), (&json!("it"), &json!("shop")));
        Ok((document, warnings.into_iter().map(|warning| format!("{}: {}", warning.field, warning.text)).collect()))
    }

    #[test]
    fn services_without_a_container_are_said_as_cluster_documents() {
        for (service, field, expected) in [
            ("image: 'rancher/external-service:v1', external_ips: [192.0.2.1]", "/external_ips", json!(["192.0.2.1"])),
            ("image: rancher/external-service, hostname: a.example.org", "/hostname", json!("a.example.org")),
            ("image: rancher/external-service, health_check: {port: 80}", "/health_check/port", json!(80)),
            ("image: rancher/external-service", "/kind", json!("externalService")),
            ("image: docker.io/rancher/dns-service, links: ['web:x']", "/links", json!({"shop/web": "x"})),
            ("image: rancher/dns-service, external_links: [a/b]", "/links", json!({"a/b": "b"})),
            ("image: rancher/dns-service", "/kind", json!("dnsService")),
            (
                "image: rancher/lb-service-haproxy, lb_config: {port_rules: [{service: web, source_port: 80, target_port: 8}]}",
                "/lb_config/port_rules/0/service",
                json!("shop/web"),
            ),
            (
                "image: rancher/lb-service-haproxy, labels: {io.rancher.lb_service.target: any, a: b}",
                "/labels",
                json!({"io.rancher.lb_service.target": "any"}),
            ),
            ("image: rancher/load-balancer-service, certs: [a], default_cert: b", "/lb_config/certs", json!(["a"])),
            ("image: rancher/load-balancer-service", "/kind", json!("loadBalancerService")),
        ] {
            let (found, _) = read(service).unwrap_or_else(|error| panic!("{service}: {error}"));
            assert_eq!(found.pointer(field), Some(&expected), "{service}: {found}");
        }
        let (_, warnings) = read("image: rancher/load-balancer-service, load_balancer_config: {a: b}").unwrap();
        assert!(warnings[0].starts_with("it.load_balancer_config: without effect"), "{warnings:?}");
        // A name that only begins alike is an image as others are.
        assert_eq!(Kind::of_image("rancher/external-services"), None);
        assert_eq!(Kind::of_image("registry.example.org:5000/rancher/dns-service:1"), None);
        assert_eq!(Kind::of_image("rancher/dns-service@sha256:00"), Some(Kind::Alias));
        assert_eq!(Kind::of_image("rancher/none"), Some(Kind::Selector));
    }

    #[test]
    fn balancers_of_version_1_lead_from_each_port_to_each_link() {
        let rules = |more: &str| {
            let service = format!("image: rancher/load-balancer-service, links: [web], {more}");
            let (found, _) = read(&service).unwrap_or_else(|error| panic!("{service}: {error}"));
            let rule = |rule: &serde_json::Value| {
                let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
                let (source, inside) = (&rule["source_port"], &rule["target_port"]);
                format!(
                    "{} {source} {}{} {} {inside}",
                    text("protocol"),
                    text("hostname"),
                    text("path"),
                    text("service")
                )
            };
            found["lb_config"]["port_rules"].as_array().unwrap().iter().map(rule).collect::<Vec<_>>()
        };
        let target =
            |value: &str| format!("ports: ['80:8080'], labels: {{io.rancher.loadbalancer.target.web: {value}}}");
        for (more, expected) in [
            ("ports: [80]".into(), &["http 80  shop/web 80"][..]),
            (
                "ports: ['192.0.2.1:80:8080/tcp'], expose: ['81']".into(),
                &["tcp 80  shop/web 8080", "http 81  shop/web 81"],
            ),
            (
                "ports: ['443:80', '444:80/tcp'], labels: {io.rancher.loadbalancer.ssl.ports: '443, 444'}".into(),
                &["https 443  shop/web 80", "tls 444  shop/web 80"],
            ),
            ("ports: ['80:8080'], external_links: [a/b]".into(), &["http 80  shop/web 8080", "http 80  a/b 8080"]),
            (target("a.example.org"), &["http 80 a.example.org shop/web 8080"]),
            (target("'a.example.org:80/x=81, b.example.org:443'"), &["http 80 a.example.org/x shop/web 81"]),
            (target("'/x,/y=82'"), &["http 80 /x shop/web 8080", "http 80 /y shop/web 82"]),
            (target("'80=82'"), &["http 80  shop/web 82"]),
            (target("443"), &[]),
        ] {
            assert_eq!(rules(&more), expected, "{more}");
        }
    }

    #[test]
    fn what_is_wrong_in_them_is_named() {
        for (service, field, part) in [
            ("image: rancher/external-service, external_ips: [a]", "it.external_ips[0]", "an address"),
            ("image: rancher/dns-service, external_ips: [192.0.2.1]", "it.external_ips", "rancher/external-service"),
            ("image: rancher/dns-service, link: [web]", "it.link", "not supported"),
            ("image: rancher/load-balancer-service, ports: [a]", "it.ports[0]", "a port"),
            ("image: rancher/load-balancer-service, ports: ['80/udp'], links: [web]", "it.ports[0]", "a port"),
        ] {
            let error = read(service).unwrap_err();
            assert_eq!(error.field, field, "{service}: {error}");
            assert!(error.to_string().contains(part), "{service}: {error}");
        }
        let text = "it: {image: rancher/external-service}\n";
        let document = source::format::parse(text).unwrap().value(model::scalar::core);
        let error = requests(&[document], &Reading::of_tests(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("nothing to start"), "{error}");
    }
}
