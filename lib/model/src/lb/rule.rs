//! One rule of a balancer, checked field by field: what is left is safe to write into any proxy's configuration.

use std::borrow::Cow;
use std::fmt;

use super::selector::Selector;
use crate::value::{Map, Text, Value};

/// Longest host name (RFC 1035 section 2.3.4).
const HOST_BYTES_MAX: usize = 253;

/// Longest path, in bytes: proxies compare it for each request.
const PATH_BYTES_MAX: usize = 1024;

/// Longest name of a backend, in bytes: it is in every line of the proxy's log.
const NAME_BYTES_MAX: usize = 64;

/// The port by which the predecessor's own checks knew its balancers.
const RESERVED_PORT: u16 = 42;

/// Largest weight that HAProxy takes.
const WEIGHT_MAX: i64 = 256;

/// What is spoken on a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP.
    #[default]
    Http,
    /// HTTP within TLS, which ends here.
    Https,
    /// Bytes.
    Tcp,
    /// Bytes within TLS, which ends here.
    Tls,
    /// TLS that is passed on, by the name it asks for.
    Sni,
}

impl Protocol {
    /// Its name in `lb_config`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Sni => "sni",
        }
    }

    /// Whether requests are seen.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }

    /// Whether names of hosts are seen.
    pub fn has_hosts(self) -> bool {
        self.is_http() || self == Self::Sni
    }

    /// Whether TLS ends here.
    pub fn ends_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }
}

/// The hosts that a rule is for; in lower case, of letters, digits, dots, hyphens and underscores.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// Any.
    #[default]
    Any,
    /// This one.
    Exact(Text),
    /// Those that end in this, which begins with a dot.
    Suffix(Text),
    /// Those that begin with this, which ends in a dot.
    Prefix(Text),
}

impl HostPattern {
    /// Reads `host`, `*.x` or `x.*`; nothing and `*` are any. A dot at the end says nothing that the name does not say without it.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the text.
    pub fn parse(given: &Text) -> Result<Self, String> {
        // Not the spaces of other scripts, and not their letters: some are ASCII in lower case. What is not ASCII is no host.
        let trimmed = given.trim_ascii();
        let text = &*if trimmed.is_ascii() { lowercase(trimmed) } else { trimmed.into() };
        let name = text.strip_suffix('.').filter(|name| name.ends_with(|last: char| last.is_ascii_alphanumeric()));
        let text = name.unwrap_or(text);
        let bare = text.strip_prefix("*.").or_else(|| text.strip_suffix(".*")).unwrap_or(text);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        match text {
            "" | "*" => return Ok(Self::Any),
            _ if text.len() > HOST_BYTES_MAX || bare.split('.').any(str::is_empty) || !bare.bytes().all(is_name) => {
                let shown = crate::printable::printable(text, 60);
                return Err(format!(
                    "{shown:?} is no host: expected a name of letters, digits, dots, hyphens and underscores, `*.x` or `x.*`"
                ));
            }
            _ => {}
        }
        Ok(match (text.strip_prefix('*'), text.strip_suffix('*')) {
            (Some(suffix), _) => Self::Suffix(suffix.into()),
            (None, Some(prefix)) => Self::Prefix(prefix.into()),
            (None, None) if *text == **given => Self::Exact(given.clone()),
            (None, None) => Self::Exact(text.into()),
        })
    }

    /// Whether it is for this host, which is in lower case and has no port.
    pub fn matches(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.');
        match self {
            Self::Any => true,
            Self::Exact(name) => **name == *host,
            Self::Suffix(suffix) => host.ends_with(&**suffix),
            Self::Prefix(prefix) => host.starts_with(&**prefix),
        }
    }

    /// Whether there can be a host that both are for.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(name), pattern) | (pattern, Self::Exact(name)) => pattern.matches(name),
            (Self::Suffix(one), Self::Suffix(other)) => one.ends_with(&**other) || other.ends_with(&**one),
            (Self::Prefix(one), Self::Prefix(other)) => one.starts_with(&**other) || other.starts_with(&**one),
            // `x.*` and `*.y` are both for `x.y`, and whatever lies between.
            (Self::Suffix(_), Self::Prefix(_))
            | (Self::Prefix(_), Self::Suffix(_))
            | (Self::Any, _)
            | (_, Self::Any) => true,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(name) => f.write_str(name),
            Self::Suffix(suffix) => write!(f, "*{suffix}"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// Where a rule leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To this service of this environment, or of the own one.
    Service {
        /// The name of the environment, if it is another one.
        environment: Option<Text>,
        /// `stack/service`, in lower case.
        path: Text,
    },
    /// To the container of this name.
    Container(Text),
    /// To the services whose labels are such.
    Selector(Selector),
}

/// A rule of `port_rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRule {
    /// The port that the balancer listens on.
    pub source_port: u16,
    /// What is spoken there.
    pub protocol: Protocol,
    /// The hosts that it is for.
    pub host: HostPattern,
    /// The beginning of the paths that it is for, in lower case; empty for all.
    pub path: Text,
    /// Where it leads; a target's own rule leads to itself.
    pub target: Option<Target>,
    /// The port of the containers.
    pub target_port: Option<u16>,
    /// Lower ones come first; `None` after all that have one.
    pub priority: Option<u32>,
    /// What the backend is called in `config`.
    pub backend_name: Option<Text>,
    /// The weight of each member.
    pub weight: u16,
}

impl PortRule {
    /// Reads a balancer's own rule.
    ///
    /// # Errors
    ///
    /// Says which field is wrong and how.
    pub fn read(fields: &Map) -> Result<Self, String> {
        let port = number(fields.get("source_port"), "source_port", 1, i64::from(u16::MAX))?;
        let port = port.ok_or("source_port is missing")?;
        let mut rule = Self::read_of_target(fields)?;
        rule.source_port = u16::try_from(port).unwrap_or_default();
        if rule.source_port == RESERVED_PORT {
            return Err("source_port: 42 is the predecessor's port for checks of balancers".into());
        }
        if rule.target.is_none() {
            return Err("none of `service`, `container` and `selector` says where it leads".into());
        }
        Ok(rule)
    }

    /// Reads the rule of a target, which another service's selector finds: it has no port to listen on.
    ///
    /// # Errors
    ///
    /// Says which field is wrong and how.
    pub fn read_of_target(fields: &Map) -> Result<Self, String> {
        let [backend_name, container, hostname, path, priority, protocol, selector, service, target_port, weight] =
            fields.pick([
                "backend_name",
                "container",
                "hostname",
                "path",
                "priority",
                "protocol",
                "selector",
                "service",
                "target_port",
                "weight",
            ]);
        let protocol = match &*text(protocol, "protocol")?.map(|name| lowercase(name)).unwrap_or_default() {
            "" | "http" => Protocol::Http,
            "https" => Protocol::Https,
            "tcp" => Protocol::Tcp,
            "tls" => Protocol::Tls,
            "sni" => Protocol::Sni,
            other => {
                let shown = crate::printable::printable(other, 20);
                return Err(format!("protocol: {shown:?}, expected http, https, tcp, tls or sni"));
            }
        };
        let host = text(hostname, "hostname")?.map_or(Ok(HostPattern::Any), HostPattern::parse);
        let host = host.map_err(|wrong| format!("hostname: {wrong}"))?;
        let path = text(path, "path")?.map_or_else(|| Ok(Text::default()), |path| path_of(path))?;
        let small = |value, key, least, most: i64| {
            number(value, key, least, most).map(|number| number.and_then(|number| u32::try_from(number).ok()))
        };
        let target_port = small(target_port, "target_port", 0, i64::from(u16::MAX))?;
        let priority = small(priority, "priority", 0, i64::from(u32::MAX))?;
        let weight = small(weight, "weight", 0, WEIGHT_MAX)?;
        let name = text(backend_name, "backend_name")?.map(name_of_backend).transpose()?;
        let target = target(text(service, "service")?, text(container, "container")?, text(selector, "selector")?)?;
        Ok(Self {
            source_port: 0,
            protocol,
            host,
            path,
            target,
            target_port: target_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
            priority: priority.filter(|priority| *priority != 0),
            backend_name: name,
            weight: weight.and_then(|weight| u16::try_from(weight).ok()).unwrap_or(1),
        })
    }
}

/// The mode in which a proxy binds clients to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StickyMode {
    /// A cookie of its own.
    Insert,
    /// The application's cookie, rewritten.
    Rewrite,
    /// The application's cookie, with a prefix.
    Prefix,
}

/// `stickiness_policy`: clients stay with the member that they were led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stickiness {
    /// The cookie.
    pub cookie: Text,
    /// How it is made.
    pub mode: StickyMode,
    /// Its domain.
    pub domain: Option<Text>,
    /// Whether the member does not see it.
    pub indirect: bool,
    /// Whether answers with it are marked as not to be cached.
    pub nocache: bool,
    /// Whether only POST makes it.
    pub postonly: bool,
}

impl Stickiness {
    /// Reads a policy; `None` without a mode.
    ///
    /// # Errors
    ///
    /// Says which field is wrong and how.
    pub fn read(fields: &Map) -> Result<Option<Self>, String> {
        let mode = match text(fields.get("mode"), "mode")?.map(|mode| &**mode) {
            None => return Ok(None),
            Some("insert") => StickyMode::Insert,
            Some("rewrite") => StickyMode::Rewrite,
            Some("prefix") => StickyMode::Prefix,
            Some(_) => return Err("mode: expected insert, rewrite or prefix".into()),
        };
        let token = |key: &str, fallback: &str| {
            let found = text(fields.get(key), key)?.map_or(fallback, |found| found);
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            if found.len() > NAME_BYTES_MAX || !found.bytes().all(is_token) {
                return Err(format!("{key}: expected letters, digits, dots, hyphens and underscores"));
            }
            Ok(Text::from(found))
        };
        let flag = |key: &str| fields.get(key).and_then(Value::as_bool).unwrap_or_default();
        let cookie = match (&*token("cookie", "")?, &*token("name", "")?) {
            ("", "") => "berth".into(),
            ("", name) => name.into(),
            (cookie, _) => cookie.into(),
        };
        let domain = Some(token("domain", "")?).filter(|domain| !domain.is_empty());
        let (indirect, nocache, postonly) = (flag("indirect"), flag("nocache"), flag("postonly"));
        Ok(Some(Self { cookie, mode, domain, indirect, nocache, postonly }))
    }
}

/// The text of a field; `None` when it is absent, null or empty.
fn text<'f>(value: Option<&'f Value>, key: &str) -> Result<Option<&'f Text>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(other) => Err(format!("{key}: expected text, found {}", other.kind())),
    }
}

/// The number of a field, also when it is written as text; `None` when it is absent, null or empty.
fn number(value: Option<&Value>, key: &str, least: i64, most: i64) -> Result<Option<i64>, String> {
    let number = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Text(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::Text(text)) => text.trim().parse().ok(),
        Some(other) => other.as_int(),
    };
    let number = number.filter(|number| (least..=most).contains(number));
    number.map(Some).ok_or_else(|| format!("{key}: expected a number from {least} to {most}"))
}

fn path_of(text: &str) -> Result<Text, String> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'#' | b'?' | b'`');
    if text == "/" {
        return Ok(Text::default());
    }
    if !text.starts_with('/') || text.len() > PATH_BYTES_MAX || !text.bytes().all(is_plain) {
        let shown = crate::printable::printable(text, 60);
        return Err(format!(
            "path: {shown:?}, expected what begins with `/`, without spaces, quotes, backslashes, `#` and `?`"
        ));
    }
    Ok(lowercase(text).into())
}

/// A text in lower case, which most are.
pub(super) fn lowercase(text: &str) -> Cow<'_, str> {
    let is_lowercase = text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
    if is_lowercase { text.into() } else { text.to_lowercase().into() }
}

fn name_of_backend(text: &Text) -> Result<Text, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    // `b12` is what backends without a name are called, `berth…` what else is in a configuration.
    let is_ours = text.starts_with("berth")
        || text
            .strip_prefix('b')
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
    if text.len() > NAME_BYTES_MAX || !text.bytes().all(is_plain) || is_ours {
        let shown = crate::printable::printable(text, 60);
        return Err(format!(
            "backend_name: {shown:?}, expected letters, digits, dots, hyphens, underscores and colons, not `b` and a number, not `berth…`"
        ));
    }
    Ok(text.clone())
}

fn target(service: Option<&Text>, container: Option<&Text>, selector: Option<&Text>) -> Result<Option<Target>, String> {
    if let Some(service) = service {
        let mut parts = service.split('/').map(str::trim);
        let (environment, stack, name) = match [(); 5].map(|()| parts.next()) {
            [Some(stack), Some(name), None, ..] => (None, stack, name),
            // A region is where its environment is.
            [Some(environment), Some(stack), Some(name), None, _]
            | [Some(_), Some(environment), Some(stack), Some(name), None] => {
                (Some(lowercase(environment).into()), stack, name)
            }
            _ => return Err("service: expected stack/service, env/stack/service or region/env/stack/service".into()),
        };
        // Nearly always it is what is written there.
        let path = match lowercase(service) {
            Cow::Borrowed(whole) if whole.len() == stack.len() + 1 + name.len() => service.clone(),
            _ => lowercase(&[stack, "/", name].concat()).into(),
        };
        return Ok(Some(Target::Service { environment, path }));
    }
    if let Some(container) = container {
        return Ok(Some(Target::Container(lowercase(container).into())));
    }
    if let Some(selector) = selector {
        let selector = Selector::parse(selector).map_err(|wrong| format!("selector: {wrong}"))?;
        return Ok(Some(Target::Selector(selector)));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<PortRule, String> {
        PortRule::read(&serde_json::from_str(json).unwrap())
    }

    fn pattern(text: &str) -> Result<HostPattern, String> {
        HostPattern::parse(&text.into())
    }

    #[test]
    fn a_rule_is_read_as_the_predecessor_wrote_it() {
        let rule = read(
            r#"{"source_port": "80", "protocol": "HTTP", "hostname": "*.Example.org", "path": "/API",
                "service": "Shop/Web", "target_port": 8080, "priority": 3, "weight": 0, "backend_name": "shop"}"#,
        );
        let rule = rule.unwrap();
        assert_eq!((rule.source_port, rule.protocol, rule.priority, rule.weight), (80, Protocol::Http, Some(3), 0));
        assert_eq!((&*rule.path, rule.target_port), ("/api", Some(8080)));
        assert_eq!(rule.host, HostPattern::Suffix(".example.org".into()));
        assert_eq!(rule.target, Some(Target::Service { environment: None, path: "shop/web".into() }));
        let plain = read(r#"{"source_port": 80, "service": "prod/shop/web", "hostname": "*", "priority": 0}"#).unwrap();
        assert_eq!((plain.weight, plain.priority, plain.host), (1, None, HostPattern::Any));
        assert!(matches!(plain.target, Some(Target::Service { environment: Some(env), .. }) if &*env == "prod"));
    }

    #[test]
    fn a_dot_at_the_end_makes_no_other_host() {
        for (one, other) in [("a.example.", "a.example"), ("*.Example.", "*.example"), ("a.", "a")] {
            assert_eq!(pattern(one), pattern(other), "{one}");
        }
        for (pattern, host, matches) in [
            ("a.example", "a.example.", true),
            ("*.example", "a.example.", true),
            ("a.example.", "a.example", true),
            ("a.*", "a.", false),
            ("a.*", "a.b.", true),
        ] {
            assert_eq!(self::pattern(pattern).unwrap().matches(host), matches, "{pattern} {host}");
        }
        // Neither is it any host.
        for text in ["*.", ".", "..", ".a", "a..b", "a..", "*..a", "a..*"] {
            assert!(pattern(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_host_is_in_lower_case_and_of_ascii_alone() {
        for text in [
            "\u{a0}SHOP.example",
            "SHOP.example\u{3000}",
            "\u{a0}*.Y.example",
            "\u{212a}.example",
            "SH\u{d6}P.example",
            "\u{85}a",
        ] {
            assert!(pattern(text).is_err(), "{text:?}");
        }
        assert_eq!(pattern(" \tSHOP.example ").unwrap(), HostPattern::Exact("shop.example".into()));
        assert_eq!(pattern("*.Y.example").unwrap(), HostPattern::Suffix(".y.example".into()));
    }

    #[test]
    fn two_patterns_overlap_if_one_host_is_of_both() {
        let hosts = ["a.b", "a.c", "x.a.b", "b", "a", "a.x.b", "a.b.c", "x.b"];
        let patterns = ["", "a.b", "*.b", "*.a.b", "a.*", "a.b.*", "b.*", "*.c", "x.b"];
        let patterns = patterns.map(|text| pattern(text).unwrap());
        for one in &patterns {
            for other in &patterns {
                let both = hosts.iter().any(|host| one.matches(host) && other.matches(host));
                assert!(!both || one.overlaps(other), "{one} {other}");
                assert_eq!(one.overlaps(other), other.overlaps(one), "{one} {other}");
            }
        }
        for (one, other, expected) in [
            ("a.b", "a.c", false),
            ("*.b", "b", false),
            ("*.b", "*.a.b", true),
            ("*.b", "*.c", false),
            ("a.*", "a.b.*", true),
            ("a.*", "b.*", false),
            ("b.*", "*.c", true),
        ] {
            let [one, other] = [one, other].map(|text| pattern(text).unwrap());
            assert_eq!(one.overlaps(&other), expected, "{one} {other}");
        }
    }

    #[test]
    fn a_bad_field_is_named() {
        for (json, named) in [
            (r#"{"service": "a/b"}"#, "source_port"),
            (r#"{"source_port": 42, "service": "a/b"}"#, "42"),
            (r#"{"source_port": 0, "service": "a/b"}"#, "source_port"),
            (r#"{"source_port": 70000, "service": "a/b"}"#, "source_port"),
            (r#"{"source_port": 80}"#, "none of"),
            (r#"{"source_port": 80, "service": "b"}"#, "service"),
            (r#"{"source_port": 80, "service": "a/b", "protocol": "udp"}"#, "protocol"),
            (r#"{"source_port": 80, "service": "a/b", "hostname": "a b"}"#, "hostname"),
            (r#"{"source_port": 80, "service": "a/b", "hostname": "a`) || Host(`b"}"#, "hostname"),
            (r#"{"source_port": 80, "service": "a/b", "path": "x"}"#, "path"),
            (r#"{"source_port": 80, "service": "a/b", "path": "/x\ny"}"#, "path"),
            (r#"{"source_port": 80, "service": "a/b", "backend_name": "b12"}"#, "backend_name"),
            (r#"{"source_port": 80, "service": "a/b", "weight": 257}"#, "weight"),
            (r#"{"source_port": 80, "selector": "a in ("}"#, "selector"),
        ] {
            let wrong = read(json).unwrap_err();
            assert!(wrong.contains(named), "{json}: {wrong}");
        }
    }
}
