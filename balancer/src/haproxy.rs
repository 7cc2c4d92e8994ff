//! A plan as the text of HAProxy's configuration (2.6 or newer).
//!
//! Hosts, paths and names are checked before they are in a plan, so that nothing in it ends a line, a word or quotes.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use model::Defect;
use model::lb::{Backend, HostPattern, LbPlan, Member, Place, Port, Protocol, Route, Stickiness, StickyMode};

use crate::directives::Directives;
use crate::slots::{Slot, Slots};

/// What is the same for all backends: the predecessor's times, and a second try on another member where nothing was sent.
const DEFAULTS: &str = "\
defaults
    mode http
    timeout connect 5s
    timeout client 50s
    timeout server 50s
    option redispatch 1
    retries 3
    retry-on conn-failure empty-response
    balance roundrobin
    default-server init-addr none
";

/// Longest time for which connections of a worker that was replaced by a reload may go on.
///
/// Long enough for a download or a dialogue; without an end, workers of many reloads would fill the memory.
const OLD_WORKER_MAX: &str = "10m";

/// What the text says besides the plan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder with a file `NAME.pem` for each certificate, chain and key in it.
    pub certificates: Option<PathBuf>,
    /// The socket for operators and programs.
    pub socket: Option<PathBuf>,
    /// The only address that is listened on, instead of all.
    pub bind: Option<std::net::IpAddr>,
}

/// The text, and what of the plan is not in it.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The text.
    pub text: String,
    /// What is left out.
    pub defects: Vec<Defect>,
}

/// The lines of a plan's `config` that count, and what is wrong with the others.
fn raw(plan: &LbPlan, at: &str, defects: &mut Vec<Defect>) -> Directives {
    let at = format!("{at}/lb_config");
    let raw = Directives::read(plan.config.as_deref().unwrap_or_default(), &at, defects);
    let mut nowhere = |problem: String| defects.push(Defect::ignored(format!("{at}/config"), problem));
    for port in raw.frontends.keys().filter(|port| plan.ports.iter().all(|own| own.number != **port)) {
        nowhere(format!("frontend {port}: no rule has this source_port"));
    }
    for name in raw.backends.keys().filter(|name| plan.backends.iter().all(|own| *own.name != ***name)) {
        nowhere(format!("backend {name}: no rule has this backend_name"));
    }
    raw
}

/// What of a plan's `config` does not count; `at` is the path of the balancer's service.
pub fn config_defects(plan: &LbPlan, at: &str) -> Vec<Defect> {
    let mut defects = Vec::new();
    raw(plan, at, &mut defects);
    defects
}

impl Configuration {
    /// The configuration of a plan whose members have these slots; `at` is the path of the balancer's service.
    pub fn of(plan: &LbPlan, at: &str, options: &Options, slots: &Slots) -> Self {
        let mut made = Self { text: String::new(), defects: Vec::new() };
        let raw = raw(plan, at, &mut made.defects);
        // Writing to a string cannot fail.
        let _ = made.write(plan, at, options, slots, &raw);
        made
    }

    fn write(&mut self, plan: &LbPlan, at: &str, options: &Options, slots: &Slots, raw: &Directives) -> fmt::Result {
        let certificates = certificates(plan, options);
        self.text.push_str("# Written by berth: what is changed here is lost\nglobal\n");
        // Of two the first counts.
        if !raw.global.iter().any(|line| line.starts_with("maxconn")) {
            self.text.push_str("    maxconn 4096\n");
        }
        writeln!(self.text, "    hard-stop-after {OLD_WORKER_MAX}")?;
        if let Some(socket) = &options.socket {
            writeln!(
                self.text,
                "    stats socket {} mode 600 level admin expose-fd listeners",
                quoted(&socket.display())
            )?;
        }
        self.text.push_str("    ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets\n");
        // Of a directive that stands twice the last one counts.
        self.text += &Directives::written(Some(&raw.global));
        self.text.push('\n');
        self.text.push_str(DEFAULTS);
        self.text += &Directives::written(Some(&raw.defaults));
        let routes = plan.ports.iter().flat_map(|port| &port.routes);
        if routes.flat_map(|route| named(&plan.backends[route.backend])).next().is_some() {
            self.text.push_str("\nresolvers berth\n    parse-resolv-conf\n");
        }
        for port in &plan.ports {
            if port.protocol.ends_tls() && certificates.is_empty() {
                let problem = format!("port {} ends TLS and there is no certificate for it", port.number);
                self.left_out(format!("{at}/lb_config/certs"), problem);
                continue;
            }
            self.frontend(plan, port, &certificates, options, raw)?;
            for route in &port.routes {
                let backend = &plan.backends[route.backend];
                self.backend(plan, port, backend, slots.of(&backend.name), raw)?;
            }
        }
        Ok(())
    }

    fn frontend(
        &mut self,
        plan: &LbPlan,
        port: &Port,
        certificates: &str,
        options: &Options,
        raw: &Directives,
    ) -> fmt::Result {
        let bind = options.bind.map_or_else(|| "*".to_owned(), |address| address.to_string());
        write!(self.text, "\nfrontend berth_{0}\n    bind {bind}:{0}", port.number)?;
        if raw.accept_proxy.contains(&port.number) {
            self.text.push_str(" accept-proxy");
        }
        if port.protocol.ends_tls() {
            write!(self.text, " ssl{certificates}")?;
            if plan.default_certificate.is_none() {
                self.text.push_str(" strict-sni");
            }
        }
        match port.protocol {
            Protocol::Http => self.text.push_str("\n    option forwardfor\n"),
            Protocol::Https => {
                self.text.push_str(" alpn h2,http/1.1\n    option forwardfor\n    http-request set-header X-Forwarded-Proto https\n");
            }
            Protocol::Tcp | Protocol::Tls => self.text.push_str("\n    mode tcp\n"),
            Protocol::Sni => self.text.push_str(
                "\n    mode tcp\n    tcp-request inspect-delay 5s\n    tcp-request content accept if { req.ssl_hello_type 1 }\n",
            ),
        }
        if port.protocol.is_http() {
            // What was begun may have been done: only what may be done twice is sent again.
            self.text.push_str("    http-request disable-l7-retry unless { method GET HEAD OPTIONS }\n");
        }
        self.text += &Directives::written(raw.frontends.get(&port.number));
        for route in &port.routes {
            let name = &plan.backends[route.backend].name;
            let Some(condition) = condition(port.protocol, route) else {
                writeln!(self.text, "    default_backend {name}")?;
                break;
            };
            writeln!(self.text, "    use_backend {name} if {condition}")?;
        }
        Ok(())
    }

    fn backend(
        &mut self,
        plan: &LbPlan,
        port: &Port,
        backend: &Backend,
        slots: &[Slot],
        raw: &Directives,
    ) -> fmt::Result {
        writeln!(self.text, "\nbackend {}", backend.name)?;
        let sticky = plan.stickiness.as_ref().filter(|_| port.protocol.is_http());
        if !port.protocol.is_http() {
            self.text.push_str("    mode tcp\n");
        }
        if let Some(policy) = sticky {
            self.cookie(policy)?;
        }
        self.text += &Directives::written(raw.backends.get(&*backend.name));
        for (index, slot) in slots.iter().enumerate() {
            let number = index + 1;
            match slot {
                Slot::Used { place, weight } => writeln!(self.text, "    server s{number} {place} weight {weight}")?,
                Slot::Draining { place, .. } => writeln!(self.text, "    server s{number} {place} weight 0")?,
                Slot::Free { .. } => writeln!(self.text, "    server s{number} 127.0.0.1:1 disabled")?,
            }
        }
        for (index, member) in named(backend).enumerate() {
            let (number, weight) = (index + 1, member.weight);
            writeln!(self.text, "    server n{number} {} weight {weight} resolvers berth", member.place)?;
        }
        Ok(())
    }

    fn cookie(&mut self, policy: &Stickiness) -> fmt::Result {
        let mode = match policy.mode {
            StickyMode::Insert => "insert",
            StickyMode::Rewrite => "rewrite",
            StickyMode::Prefix => "prefix",
        };
        write!(self.text, "    cookie {} {mode}", policy.cookie)?;
        let is_insert = policy.mode == StickyMode::Insert;
        for (word, is) in [
            ("indirect", policy.indirect && policy.mode != StickyMode::Rewrite),
            ("nocache", policy.nocache),
            ("postonly", policy.postonly && is_insert),
        ] {
            if is {
                write!(self.text, " {word}")?;
            }
        }
        if let Some(domain) = &policy.domain {
            write!(self.text, " domain {domain}")?;
        }
        // Values come of address and port, so that all balancers agree.
        self.text.push_str(" dynamic\n    dynamic-cookie-key berth\n");
        Ok(())
    }

    fn left_out(&mut self, at: String, problem: impl Into<String>) {
        self.defects.push(Defect::ignored(at, problem));
    }
}

/// Whether two plans differ in nothing but members at addresses: what their slots are for.
pub fn is_of_one_shape(plan: &LbPlan, other: &LbPlan) -> bool {
    let is_same = |(one, other): (&Backend, &Backend)| {
        one.name == other.name && one.protocol == other.protocol && named(one).eq(named(other))
    };
    plan.ports == other.ports
        && plan.stickiness == other.stickiness
        && plan.certificates == other.certificates
        && plan.default_certificate == other.default_certificate
        && plan.config == other.config
        && plan.backends.len() == other.backends.len()
        && plan.backends.iter().zip(&other.backends).all(is_same)
}

/// The members that HAProxy finds by a name, which have no slots.
pub(crate) fn named(backend: &Backend) -> impl Iterator<Item = &Member> {
    backend.members.iter().filter(|member| matches!(member.place, Place::Name(..)))
}

/// The condition of a rule; `None` for one that everything matches.
pub fn condition(protocol: Protocol, route: &Route) -> Option<String> {
    if !protocol.has_hosts() {
        return None;
    }
    let sample = if protocol.is_http() { "hdr(host),field(1,:),rtrim(.)" } else { "req.ssl_sni,rtrim(.)" };
    let host = match &route.host {
        HostPattern::Any => None,
        HostPattern::Exact(name) => Some(format!("{{ {sample} -i -- {name} }}")),
        HostPattern::Suffix(suffix) => Some(format!("{{ {sample} -m end -i -- {suffix} }}")),
        HostPattern::Prefix(prefix) => Some(format!("{{ {sample} -m beg -i -- {prefix} }}")),
    };
    let path = (!route.path.is_empty()).then(|| format!("{{ path_beg -i -- {} }}", quoted(&route.path)));
    match (host, path) {
        (Some(host), Some(path)) => Some(format!("{host} {path}")),
        (one, other) => one.or(other),
    }
}

/// A word in single quotes, within which HAProxy reads everything as it is written.
fn quoted(word: &dyn fmt::Display) -> String {
    format!("'{}'", word.to_string().replace(['\'', '\n', '\r', '\0'], ""))
}

/// The words of `bind` for the certificates, the default one first.
fn certificates(plan: &LbPlan, options: &Options) -> String {
    let Some(folder) = &options.certificates else { return String::new() };
    let default = plan.default_certificate.iter();
    let names = default.chain(plan.certificates.iter().filter(|name| Some(*name) != plan.default_certificate.as_ref()));
    names.flat_map(|name| [" crt ".to_owned(), quoted(&folder.join(format!("{name}.pem")).display())]).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use model::Map;
    use model::lb::{Viewpoint, find};
    use serde_json::{Value, json};

    use super::*;

    fn configuration(config: &Value) -> Configuration {
        let objects = [
            json!({"metadata_kind": "service", "uuid": "lb", "name": "lb", "stack_name": "edge", "lb_config": config}),
            json!({"metadata_kind": "service", "uuid": "web", "name": "web", "stack_name": "shop"}),
            json!({"metadata_kind": "container", "uuid": "c", "name": "c", "primary_ip": "192.0.2.1", "state": "running"}),
            json!({"metadata_kind": "serviceContainerLink", "service_uuid": "web", "service_name": "web", "container_uuid": "c"}),
            json!({"metadata_kind": "service", "uuid": "ext", "name": "ext", "stack_name": "shop", "kind": "externalService",
                   "hostname": "www.example.org"}),
        ];
        let objects = objects.into_iter().map(|object| serde_json::from_value::<Map>(object).unwrap());
        let snapshot = model::objects::read(objects).0;
        let plan = LbPlan::of(&snapshot, find(&snapshot, "edge/lb").unwrap(), &Viewpoint::default());
        let none = std::collections::BTreeSet::new();
        let slots = Slots::default().following(&plan, None, std::time::Duration::ZERO, &none);
        Configuration::of(&plan, "services/edge/lb", &Options::default(), &slots)
    }

    /// What HAProxy says of a configuration; `None` where there is no HAProxy.
    fn refused(text: &str) -> Option<String> {
        let program = Command::new("haproxy")
            .args(["-c", "-f", "/dev/stdin"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        assert!(program.is_ok() || std::env::var_os("CI").is_none_or(|value| value != "true"), "haproxy is missing");
        let mut program = program.ok()?;
        program.stdin.take()?.write_all(text.as_bytes()).ok()?;
        let ended = program.wait_with_output().ok()?;
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        Some(if ended.status.success() { String::new() } else { errors })
    }

    #[test]
    fn haproxy_takes_what_is_written() {
        let rule = |more: Value| {
            let mut rule = json!({"source_port": 80, "service": "shop/web", "target_port": 8080});
            for (key, value) in more.as_object().unwrap() {
                rule[key] = value.clone();
            }
            rule
        };
        let config = json!({
            "port_rules": [
                rule(json!({"hostname": "www.example.org", "path": "/a(b)[c]{d}$&|;<>~!,%"})),
                rule(json!({"hostname": "*.example.org", "backend_name": "wild"})),
                rule(json!({"hostname": "example.*", "weight": 0})),
                rule(json!({"service": "shop/ext"})),
                rule(json!({"source_port": 6379, "protocol": "tcp"})),
                rule(json!({"source_port": 443, "protocol": "sni", "hostname": "a.example.org"})),
                rule(json!({"source_port": 444, "protocol": "sni", "hostname": "*.example.org"})),
            ],
            "stickiness_policy": {"mode": "insert", "cookie": "SESSION", "indirect": true, "nocache": true},
            "config": "global\n maxconn 99\ndefaults\n timeout server 5m\nfrontend 80\n accept-proxy\n maxconn 9\nbackend wild\n balance leastconn",
        });
        let made = configuration(&config);
        assert_eq!(made.defects, []);
        assert_eq!(refused(&made.text).unwrap_or_default(), "", "{}", made.text);
        for line in [
            "use_backend wild if { hdr(host),field(1,:),rtrim(.) -m end -i -- .example.org }",
            "server s1 192.0.2.1:8080 weight 1\n",
            "server s2 127.0.0.1:1 disabled\n",
            "server n1 www.example.org:8080 weight 1 resolvers berth",
        ] {
            assert!(made.text.contains(line), "{line}\n{}", made.text);
        }
    }

    /// Bytes that a small generator makes, among them all that ends words, lines and quotes.
    fn hostile(seed: &mut u64) -> String {
        const PARTS: [&str; 24] = [
            "a",
            "b",
            "example.org",
            "*.",
            ".*",
            "*",
            "/",
            "'",
            "\"",
            "\\",
            "\n",
            "\0",
            "#",
            " ",
            "`",
            "}",
            "{",
            "é",
            "if",
            "%",
            "$",
            "-f",
            "berth",
            "b1",
        ];
        let mut next = |most: u64| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) % most
        };
        let length = next(5);
        (0..length).map(|_| PARTS[usize::try_from(next(24)).unwrap()]).collect()
    }

    #[test]
    fn hostile_rules_never_make_an_invalid_file() {
        let mut seed = 1;
        let long = std::env::var_os("BERTH_LONG").is_some_and(|value| value == "1");
        for round in 0..if long { 2000 } else { 50 } {
            let mut rules: Vec<_> = (0..20)
                .map(|number| {
                    json!({
                        "source_port": 80 + number % 3, "service": "shop/web", "target_port": 1,
                        "hostname": hostile(&mut seed), "path": format!("/{}", hostile(&mut seed)),
                        "backend_name": hostile(&mut seed), "protocol": if number % 3 == 2 { "sni" } else { "http" },
                    })
                })
                .collect();
            rules.push(json!({"source_port": 80, "service": "shop/web", "target_port": 1, "hostname": "good.example.org", "path": "/good"}));
            let policy = json!({"mode": "insert", "cookie": hostile(&mut seed), "domain": hostile(&mut seed)});
            let made = configuration(
                &json!({"port_rules": rules, "stickiness_policy": policy, "certs": [hostile(&mut seed)]}),
            );
            assert!(made.text.contains("good.example.org } { path_beg -i -- '/good' }"), "{round}: {}", made.text);
            assert_eq!(refused(&made.text).unwrap_or_default(), "", "{round}: {}", made.text);
        }
    }
}
