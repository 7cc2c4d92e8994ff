//! A plan as Traefik's dynamic configuration (its HTTP provider reads it).

use serde_json::{Map, Value, json};

use super::members::Place;
use super::plan::{Backend, LbPlan, Port, Route};
use super::rule::{HostPattern, Protocol, Stickiness, StickyMode};
use crate::defect::Defect;

/// The priority of a port's first rule; larger ones are tried first.
const PRIORITY_FIRST: usize = 1_000_000;

/// An address of the proxy's host at which nothing listens (the port of tcpmux, RFC 1078).
const NOWHERE: &str = "127.0.0.1:1";

/// Tries of a request that got no reply.
const ATTEMPTS: u8 = 3;

/// The configuration, with all keys in order and nothing empty. Never without a router, since Traefik would take that as the end
/// of all others: a plan without rules has one that leads nowhere.
pub fn document(plan: &LbPlan) -> Value {
    let mut http = Section::default();
    let mut tcp = Section::default();
    for port in &plan.ports {
        for (position, route) in port.routes.iter().enumerate() {
            let backend = &plan.backends[route.backend];
            let section = if port.protocol.is_http() { &mut http } else { &mut tcp };
            section.routers.insert(format!("r{}", route.backend + 1), router(port, route, position, backend));
            section.services.insert(backend.name.to_string(), service(plan, backend));
        }
    }
    if http.routers.is_empty() && tcp.routers.is_empty() {
        http.routers.insert("r0".into(), json!({"rule": "PathPrefix(`/`)", "priority": 1, "service": "b0"}));
        http.services.insert("b0".into(), json!({"loadBalancer": {"passHostHeader": true}}));
    }
    let mut document = Map::new();
    if !http.routers.is_empty() {
        let retry = json!({"retry": {"retry": {"attempts": ATTEMPTS}}});
        document
            .insert("http".into(), json!({"middlewares": retry, "routers": http.routers, "services": http.services}));
    }
    if !tcp.routers.is_empty() {
        document.insert("tcp".into(), json!({"routers": tcp.routers, "services": tcp.services}));
    }
    Value::Object(document)
}

/// What the plan wants that Traefik cannot do.
pub fn defects(plan: &LbPlan, at: &str) -> Vec<Defect> {
    let mut defects = Vec::new();
    let mut add =
        |field: &str, problem: &str| defects.push(Defect::ignored(format!("{at}/lb_config/{field}"), problem));
    if plan.config.is_some() {
        add("config", "lines for HAProxy say nothing to Traefik");
    }
    if plan.stickiness.as_ref().is_some_and(|policy| policy.mode != StickyMode::Insert || policy.postonly) {
        add("stickiness_policy", "Traefik has the mode `insert` alone, and no `postonly`");
    }
    defects
}

/// The priority of the rule that is at this place of its port, the first at 0.
pub fn priority(position: usize) -> usize {
    PRIORITY_FIRST.saturating_sub(position).max(1)
}

#[derive(Default)]
struct Section {
    routers: Map<String, Value>,
    services: Map<String, Value>,
}

fn router(port: &Port, route: &Route, position: usize, backend: &Backend) -> Value {
    let mut router = json!({
        "entryPoints": [format!("p{}", port.number)],
        "priority": priority(position),
        "rule": rule(port.protocol, route),
        "service": &*backend.name,
    });
    match port.protocol {
        Protocol::Http => router["middlewares"] = json!(["retry"]),
        Protocol::Https => {
            router["middlewares"] = json!(["retry"]);
            router["tls"] = json!({});
        }
        Protocol::Tls => router["tls"] = json!({}),
        Protocol::Sni => router["tls"] = json!({"passthrough": true}),
        Protocol::Tcp => {}
    }
    router
}

/// The condition of a rule; host and path consist of characters that end no quotes.
pub fn rule(protocol: Protocol, route: &Route) -> String {
    let (exact, pattern) = if protocol.is_http() { ("Host", "HostRegexp") } else { ("HostSNI", "HostSNIRegexp") };
    let host = match &route.host {
        HostPattern::Any => None,
        HostPattern::Exact(name) => Some(format!("{exact}(`{name}`)")),
        HostPattern::Suffix(suffix) => Some(format!("{pattern}(`(?i)^.+{}$`)", escaped(suffix))),
        HostPattern::Prefix(prefix) => Some(format!("{pattern}(`(?i)^{}.*`)", escaped(prefix))),
    };
    let path = (!route.path.is_empty()).then(|| format!("PathRegexp(`(?i)^{}`)", escaped(&route.path)));
    match (host, path) {
        (Some(host), Some(path)) => format!("{host} && {path}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) if protocol.is_http() => "PathPrefix(`/`)".into(),
        (None, None) => "HostSNI(`*`)".into(),
    }
}

/// The text as a regular expression for itself.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if !char.is_ascii_alphanumeric() && !matches!(char, '/' | '-' | '_') {
            escaped.push('\\');
        }
        escaped.push(char);
    }
    escaped
}

fn service(plan: &LbPlan, backend: &Backend) -> Value {
    // To Traefik a weight of 0 means that the member is not there.
    let members: Vec<_> = backend.members.iter().filter(|member| member.weight > 0).collect();
    if backend.protocol.is_http() {
        let url = |place: &Place| format!("http://{place}");
        let servers = members.iter().map(|member| json!({"url": url(&member.place), "weight": member.weight}));
        let servers: Vec<_> = servers.collect();
        let mut balancer = json!({"passHostHeader": true});
        if !servers.is_empty() {
            balancer["servers"] = servers.into();
        }
        if let Some(policy) = plan.stickiness.as_ref().filter(|policy| policy.mode == StickyMode::Insert) {
            balancer["sticky"] = json!({"cookie": cookie(policy)});
        }
        return json!({"loadBalancer": balancer});
    }
    let mut servers: Vec<_> = members.iter().map(|member| json!({"address": member.place.to_string()})).collect();
    if servers.is_empty() {
        // Traefik refuses the whole configuration for a service without any: clients are closed by this one.
        servers.push(json!({"address": NOWHERE}));
    }
    json!({"loadBalancer": {"servers": servers}})
}

fn cookie(policy: &Stickiness) -> Value {
    let mut cookie = json!({"httpOnly": true, "name": &*policy.cookie});
    if let Some(domain) = &policy.domain {
        cookie["domain"] = json!(&**domain);
    }
    cookie
}
