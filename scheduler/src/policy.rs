//! The policy: what each subject may have placed, started and removed.
//!
//! A request is refused as a whole, by the first rule that it breaks, and the refusal names the rule. Without a file,
//! and for whatever a file leaves out, the built-in rules hold: no folder of a host is mounted, no network of a host or of
//! another container is joined, everything else is allowed. Requests cannot ask for privileges, capabilities, devices or
//! security options at all, so there are no rules about them.
//!
//! A source is compared as it is written: where a symbolic link on the host leads cannot be seen from here.

mod host_path;
mod image;
mod mount;
mod pattern;

use std::collections::BTreeMap;

use model::{Text, Value};

use crate::place::fields::Fields;
use crate::place::hosts::Facts;
use crate::place::invalid::Invalid;
use crate::place::request::Request;
use crate::place::request::member::Member;
use crate::policy::host_path::HostPath;
use crate::policy::image::{Image, ImagePattern};
use crate::policy::mount::{Source, engine_socket, sources};
use crate::policy::pattern::Pattern;
use crate::subject::Subject;

/// What each subject may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// For those that are not named.
    default: Rules,
    subjects: BTreeMap<Text, Rules>,
}

/// What one subject may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Stacks of which containers may be members; one that names no stack is of the stack with the empty name.
    stacks: Vec<Pattern>,
    images: Vec<ImagePattern>,
    /// Folders and files of hosts that may be mounted, with all below them.
    bind_sources: Vec<HostPath>,
    /// Volumes of engines that may be mounted.
    volumes: Vec<Pattern>,
    networks: Vec<Pattern>,
    /// Containers of other requests whose network or volumes may be used.
    joins: Vec<Pattern>,
    hosts: Vec<Pattern>,
}

/// The fields of rules in a file.
const RULES: &[&str] = &["bind_sources", "hosts", "images", "joins", "networks", "stacks", "volumes"];

/// Labels with the stack of a container, or with a path that begins with it: what makes it a member of a stack for
/// metadata, DNS and other placements.
const STACK_LABELS: [&str; 6] = [
    "com.docker.compose.project",
    "io.rancher.stack.name",
    "io.rancher.project.name",
    "io.rancher.stack_service.name",
    "io.rancher.project_service.name",
    "io.rancher.service.name",
];

impl Default for Rules {
    fn default() -> Self {
        Self {
            stacks: vec![Pattern::any()],
            images: vec![ImagePattern::any()],
            bind_sources: Vec::new(),
            volumes: vec![Pattern::any()],
            networks: vec![Pattern::any()],
            joins: Vec::new(),
            hosts: vec![Pattern::any()],
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}the policy's {rule} do not allow {subject} to use {value}{why}", prefix(.field))]
pub struct Denial {
    /// The rule, as a file calls it.
    pub(crate) rule: &'static str,
    /// Whose request it is.
    pub(crate) subject: Subject,
    /// The field of the request; empty if it is not one of them.
    pub(crate) field: String,
    /// What is refused.
    pub(crate) value: String,
    /// What else there is to say.
    why: &'static str,
    /// The entry that would allow it; `None` if none would.
    entry: Option<String>,
}

fn prefix(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}

impl Denial {
    /// Whether another host may be allowed.
    pub(crate) fn is_about_host(&self) -> bool {
        self.rule == "hosts"
    }

    /// What to type so that it is allowed.
    pub(crate) fn expected(&self) -> String {
        let Self { rule, subject, entry, .. } = self;
        let Some(entry) = entry else { return format!("what the policy's {rule} allow") };
        let entry = Value::Text(entry.as_str().into());
        let entry = serde_json::to_string(&entry).unwrap_or_default();
        format!(
            "what the policy's {rule} allow; to allow it, start the scheduler with --policy FILE, and add the entry {entry} \
             there: `subjects: {{\"{subject}\": {{{rule}: [{entry}]}}}}`"
        )
    }
}

/// A part of a request that a rule is about.
struct Part<'a> {
    rules: &'a Rules,
    subject: &'a Subject,
}

impl Policy {
    /// The policy in a file.
    ///
    /// # Errors
    ///
    /// Which field is wrong.
    pub(crate) fn parse(value: &Value) -> Result<Self, Invalid> {
        let fields = Fields::of(value)?;
        fields.only(&[&["default", "subjects"]])?;
        let default = rules(&fields, "default", &Rules::default())?;
        let below = Fields { path: "subjects".into(), map: map(&fields, "subjects")? };
        let subjects = below.map.iter().map(|(name, _)| Ok((name.clone(), rules(&below, name, &default)?)));
        Ok(Self { subjects: subjects.collect::<Result<_, _>>()?, default })
    }

    /// What a subject may do.
    pub(crate) fn rules(&self, subject: &Subject) -> &Rules {
        self.subjects.get(subject.as_str()).unwrap_or(&self.default)
    }

    /// Whether a request may be placed and started.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Denial> {
        let part = Part { rules: self.rules(&request.subject), subject: &request.subject };
        part.check_stacks(request)?;
        let names: Vec<&Text> = request.members.iter().filter_map(|member| member.name.as_ref()).collect();
        for (at, member) in request.members.iter().enumerate() {
            let field = |key: &str| match at {
                0 => key.to_owned(),
                _ => format!("sidekicks[{}].{key}", at - 1),
            };
            part.check_member(member, &names, field)?;
        }
        Ok(())
    }

    /// Whether a subject may remove what was asked for so.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn check_removal(&self, subject: &Subject, asked: &Request) -> Result<(), Denial> {
        Part { rules: self.rules(subject), subject }.check_stacks(asked)
    }

    /// Whether a subject may reserve and release room without naming any stack.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn check_nameless(&self, subject: &Subject) -> Result<(), Denial> {
        let part = Part { rules: self.rules(subject), subject };
        part.check_stack("name", "")?;
        // An event changes the room of any host.
        if part.rules.hosts.contains(&Pattern::any()) {
            return Ok(());
        }
        Err(part.denial("hosts", "name", "any host".into(), Some("*".into())))
    }

    /// Whether a unit of a request may be on this host.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn check_host(&self, subject: &Subject, name: &str, uuid: &str) -> Result<(), Denial> {
        let part = Part { rules: self.rules(subject), subject };
        if part.rules.hosts.iter().any(|pattern| pattern.fits(name) || pattern.fits(uuid)) {
            return Ok(());
        }
        Err(part.denial("hosts", "requested_host", name.to_owned(), Some(name.to_owned())))
    }
}

impl Rules {
    /// Whether members of any stack may be placed and removed.
    pub(crate) fn take_any_stack(&self) -> bool {
        self.stacks.contains(&Pattern::any())
    }

    /// Whether any host may be used.
    pub(crate) fn take_any_host(&self) -> bool {
        self.hosts.contains(&Pattern::any())
    }

    /// Whether a host may be used.
    pub(crate) fn take_host(&self, host: &Facts) -> bool {
        self.hosts.iter().any(|pattern| pattern.fits(&host.name) || pattern.fits(&host.uuid))
    }
}

impl Part<'_> {
    fn denial(&self, rule: &'static str, field: &str, value: String, entry: Option<String>) -> Denial {
        Denial { rule, subject: self.subject.clone(), field: field.to_owned(), value, why: "", entry }
    }

    fn check_stack(&self, field: &str, stack: &str) -> Result<(), Denial> {
        if self.rules.stacks.iter().any(|pattern| pattern.fits(stack)) {
            return Ok(());
        }
        let value = if stack.is_empty() { "no stack".to_owned() } else { format!("the stack {stack}") };
        Err(self.denial("stacks", field, value, Some(stack.to_owned())))
    }

    /// The stack of a request, and those that its labels name.
    fn check_stacks(&self, request: &Request) -> Result<(), Denial> {
        for member in &request.members {
            let names_stack = |(key, value): &&(Text, Text)| {
                STACK_LABELS.iter().any(|known| key.eq_ignore_ascii_case(known)) && !value.is_empty()
            };
            for (key, value) in member.labels.iter().filter(names_stack) {
                let stack = value.split('/').next().unwrap_or_default();
                self.check_stack(&format!("labels.{key}"), stack)?;
            }
            let stack = request.stack.as_deref();
            if stack.is_some() || !member.labels.iter().any(|label| names_stack(&label)) {
                self.check_stack("stack", stack.unwrap_or_default())?;
            }
        }
        Ok(())
    }

    fn check_member(&self, member: &Member, names: &[&Text], field: impl Fn(&str) -> String) -> Result<(), Denial> {
        if let Some(name) = &member.image {
            let image = Image::of(name);
            if !self.rules.images.iter().any(|pattern| pattern.fits(&image)) {
                return Err(self.denial("images", &field("image"), image.to_string(), Some(image.to_string())));
            }
        }
        for (at, volume) in member.run.volumes.iter().enumerate() {
            for source in sources(volume) {
                self.check_source(&source, &field(&format!("volumes[{at}]")))?;
            }
        }
        let joined = |name: &str| names.iter().any(|own| own.eq_ignore_ascii_case(name));
        if let Some(network) = &member.run.network {
            self.check_network(network, &field("network"))?;
        }
        if let Some(name) = member.run.network_from.as_ref().filter(|name| !joined(name)) {
            self.check_join(name, &field("network_from"))?;
        }
        for (at, from) in member.run.volumes_from.iter().enumerate() {
            let name = from.split_once(':').map_or(&**from, |(name, _)| name);
            if !joined(name) {
                self.check_join(name, &field(&format!("volumes_from[{at}]")))?;
            }
        }
        Ok(())
    }

    fn check_source(&self, source: &Source, field: &str) -> Result<(), Denial> {
        match source {
            Source::Volume(name) => {
                if self.rules.volumes.iter().any(|pattern| pattern.fits(name)) {
                    return Ok(());
                }
                Err(self.denial("volumes", field, format!("the volume {name}"), Some(name.clone())))
            }
            Source::Unclear(text) => {
                let why = ", which is no absolute path without `..`";
                Err(Denial { why, ..self.denial("bind_sources", field, text.clone(), None) })
            }
            Source::Path(path) => {
                if let Some(socket) = engine_socket(path)
                    && !self.rules.bind_sources.contains(&socket)
                {
                    let why = ", with which it could be an engine's socket; that has to be an entry of its own";
                    let denial = self.denial("bind_sources", field, path.to_string(), Some(socket.to_string()));
                    return Err(Denial { why, ..denial });
                }
                if self.rules.bind_sources.iter().any(|allowed| allowed.contains(path)) {
                    return Ok(());
                }
                Err(self.denial("bind_sources", field, path.to_string(), Some(path.to_string())))
            }
        }
    }

    /// A pattern with `*` is about networks of containers: what leads into a host, or into another container, has to
    /// be written out.
    fn check_network(&self, network: &str, field: &str) -> Result<(), Denial> {
        let leads_out = network.eq_ignore_ascii_case("host") || network.contains(':');
        let allows = |pattern: &Pattern| if leads_out { pattern.is(network) } else { pattern.fits(network) };
        if self.rules.networks.iter().any(allows) {
            return Ok(());
        }
        Err(self.denial("networks", field, format!("the network {network}"), Some(network.to_owned())))
    }

    fn check_join(&self, container: &str, field: &str) -> Result<(), Denial> {
        if self.rules.joins.iter().any(|pattern| pattern.fits(container)) {
            return Ok(());
        }
        let value = format!("the container {container}, which is not of the same request");
        Err(self.denial("joins", field, value, Some(container.to_owned())))
    }
}

fn map<'a>(fields: &Fields<'a>, key: &str) -> Result<&'a model::Map, Invalid> {
    static NONE: std::sync::LazyLock<model::Map> = std::sync::LazyLock::new(model::Map::default);
    match fields.get(key) {
        None | Some(Value::Null) => Ok(&NONE),
        Some(Value::Map(map)) => Ok(map),
        Some(other) => fields.wrong(key, other, "a map"),
    }
}

/// The rules at a key; what it leaves out is as in `otherwise`.
fn rules(fields: &Fields<'_>, key: &str, otherwise: &Rules) -> Result<Rules, Invalid> {
    let own = Fields { path: fields.at(key), map: map(fields, key)? };
    own.only(&[RULES])?;
    let patterns = |key: &str, otherwise: &[Pattern]| match own.get(key) {
        None => Ok(otherwise.to_vec()),
        Some(_) => Ok(texts(&own, key)?.iter().map(|text| Pattern::new(text)).collect()),
    };
    let path = |(at, text): (usize, &Text)| {
        let wrong = || {
            let field = own.at(&format!("bind_sources[{at}]"));
            Invalid::new(field, format!("found {text:?}"), "an absolute path without `..`")
        };
        HostPath::parse(text).ok_or_else(wrong)
    };
    Ok(Rules {
        stacks: patterns("stacks", &otherwise.stacks)?,
        images: match own.get("images") {
            None => otherwise.images.clone(),
            Some(_) => texts(&own, "images")?.iter().map(|text| ImagePattern::new(text)).collect(),
        },
        bind_sources: if own.get("bind_sources").is_none() {
            otherwise.bind_sources.clone()
        } else {
            texts(&own, "bind_sources")?.iter().enumerate().map(path).collect::<Result<_, _>>()?
        },
        volumes: patterns("volumes", &otherwise.volumes)?,
        networks: patterns("networks", &otherwise.networks)?,
        joins: patterns("joins", &otherwise.joins)?,
        hosts: patterns("hosts", &otherwise.hosts)?,
    })
}

/// A text or a list of texts, of which the empty one stands for what has no name.
fn texts(fields: &Fields<'_>, key: &str) -> Result<Vec<Text>, Invalid> {
    let text = |(at, item): (usize, &Value)| match item {
        Value::Text(text) => Ok(text.clone()),
        other => fields.wrong(&format!("{key}[{at}]"), other, "text"),
    };
    match fields.get(key) {
        Some(Value::Text(text)) => Ok(vec![text.clone()]),
        Some(Value::List(items)) => items.iter().enumerate().map(text).collect(),
        Some(other) => fields.wrong(key, other, "a list of texts"),
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn policy(text: &serde_json::Value) -> Result<Policy, Invalid> {
        Policy::parse(&serde_json::from_value(text.clone()).unwrap())
    }

    fn request(json: &serde_json::Value, subject: Option<&str>) -> Request {
        let mut request = Request::parse(&serde_json::from_value(json.clone()).unwrap()).unwrap();
        request.subject = Subject::of_token(subject);
        request
    }

    /// The rule and the field by which a request is refused, `request` if it is none; empty if it is not refused.
    fn refused(policy: &Policy, json: &serde_json::Value) -> (&'static str, String) {
        match Request::parse(&serde_json::from_value(json.clone()).unwrap()) {
            Ok(request) => policy.check(&request).err().map(|denial| (denial.rule, denial.field)).unwrap_or_default(),
            Err(invalid) => ("request", invalid.field),
        }
    }

    #[test]
    fn without_a_policy_nothing_leads_into_the_host_or_to_a_strangers_container() {
        let policy = Policy::default();
        for fine in [
            json!({"image": "web", "stack": "shop", "service": "web", "network": "shop", "requested_host": "one"}),
            json!({"image": "web", "network": "none", "volumes": ["/new", "data:/data", "/new:ro"]}),
            json!({"name": "app", "image": "web", "network_from": "NET", "volumes_from": ["data:ro"],
                   "sidekicks": [{"name": "net"}, {"name": "data"}]}),
        ] {
            assert_eq!(refused(&policy, &fine), ("", String::new()), "{fine}");
        }
        for (wrong, rule, field) in [
            (json!({"volumes": ["/:/h"]}), "bind_sources", "volumes[0]"),
            (json!({"volumes": ["data:/a", "/etc/shadow:/a:ro"]}), "bind_sources", "volumes[1]"),
            (json!({"volumes": ["/var/run/docker.sock:/s"]}), "bind_sources", "volumes[0]"),
            (json!({"volumes": ["\\\\.\\pipe\\docker_engine:\\\\.\\pipe\\a"]}), "bind_sources", "volumes[0]"),
            (json!({"volumes": ["C:\\:C:\\h"]}), "bind_sources", "volumes[0]"),
            (json!({"volumes": ["..:/h"]}), "request", "volumes[0]"),
            (json!({"network": "host"}), "networks", "network"),
            (json!({"network": "Host"}), "networks", "network"),
            (json!({"network": "container:db"}), "networks", "network"),
            (json!({"network": "ns:/proc/1/ns/net"}), "networks", "network"),
            (json!({"network_from": "db"}), "joins", "network_from"),
            (json!({"volumes_from": ["db:ro"]}), "joins", "volumes_from[0]"),
            (
                json!({"name": "a", "sidekicks": [{"name": "b"}, {"name": "c", "network_from": "db"}]}),
                "joins",
                "sidekicks[1].network_from",
            ),
        ] {
            assert_eq!(refused(&policy, &wrong), (rule, field.to_owned()), "{wrong}");
        }
    }

    #[test]
    fn nothing_but_an_entry_of_its_own_allows_the_socket_of_an_engine() {
        let all = policy(&json!({"default": {"bind_sources": ["/", "C:/"]}})).unwrap();
        for (volume, fine) in [
            ("/srv:/a", true),
            ("/etc/shadow:/a", true),
            ("/:/h", false),
            ("/run:/a", false),
            ("/var:/a", false),
            ("/var/run/docker.sock:/a", false),
            ("/run/user/1000/docker.sock:/a", false),
            ("//run//docker.sock/:/a", false),
            ("C:\\:C:\\h", true),
            ("\\\\.\\pipe\\docker_engine:\\\\.\\pipe\\a", false),
        ] {
            assert_eq!(refused(&all, &json!({"volumes": [volume]})).0.is_empty(), fine, "{volume}");
        }
        let socket =
            policy(&json!({"default": {"bind_sources": ["/run/docker.sock", "//./pipe/docker_engine"]}})).unwrap();
        for volume in ["/run/docker.sock:/a", "\\\\.\\PIPE\\docker_engine:\\\\.\\pipe\\a"] {
            assert_eq!(refused(&socket, &json!({"volumes": [volume]})).0, "", "{volume}");
        }
        assert_eq!(refused(&socket, &json!({"volumes": ["/run:/a"]})).0, "bind_sources");
    }

    #[test]
    fn each_subject_has_its_own_rules() {
        let policy = policy(&json!({
            "default": {"stacks": ["shop"], "images": ["shop/*"]},
            "subjects": {
                "token:ci": {"stacks": ["test-*"], "volumes": [], "networks": ["host"], "hosts": ["build-*"]},
                "token:ops": {"stacks": "*", "bind_sources": ["/srv/shop"], "joins": ["log-*"]},
            },
        }))
        .unwrap();
        let refused = |subject: Option<&str>, json: serde_json::Value| {
            policy.check(&request(&json, subject)).err().map_or("", |denial| denial.rule)
        };
        for (subject, json, rule) in [
            (None, json!({"stack": "shop", "image": "shop/web"}), ""),
            (None, json!({"stack": "shop", "image": "web"}), "images"),
            (None, json!({"stack": "data", "image": "shop/web"}), "stacks"),
            (None, json!({"image": "shop/web"}), "stacks"),
            (Some("other"), json!({"stack": "data"}), "stacks"),
            (Some("ci"), json!({"stack": "test-1", "image": "shop/web"}), ""),
            // What its own rules leave out is as for all.
            (Some("ci"), json!({"stack": "test-1", "image": "web"}), "images"),
            (Some("ci"), json!({"stack": "test-1", "volumes": ["data:/a"]}), "volumes"),
            (Some("ci"), json!({"stack": "test-1", "network": "host"}), ""),
            (Some("ci"), json!({"stack": "test-1", "network": "shop"}), "networks"),
            (Some("ops"), json!({"volumes": ["/srv/shop/a:/a"], "network_from": "log-1"}), ""),
            (Some("ops"), json!({"volumes": ["/srv/shops:/a"]}), "bind_sources"),
        ] {
            assert_eq!(refused(subject, json.clone()), rule, "{subject:?} {json}");
        }
        let [ci, ops] = ["ci", "ops"].map(|name| Subject::of_token(Some(name)));
        assert!(policy.check_host(&ci, "build-1", "u1").is_ok() && policy.check_host(&ci, "web-1", "u2").is_err());
        assert!(policy.check_nameless(&ops).is_ok() && policy.check_nameless(&ci).is_err());
        let data = request(&json!({"stack": "data"}), None);
        assert!(policy.check_removal(&ops, &data).is_ok() && policy.check_removal(&ci, &data).is_err());
    }

    #[test]
    fn no_label_makes_a_container_a_member_of_a_forbidden_stack() {
        let policy = policy(&json!({"default": {"stacks": ["shop"]}})).unwrap();
        for (labels, fine) in [
            (json!({"com.docker.compose.project": "shop"}), true),
            (json!({"app": "data"}), true),
            (json!({"com.docker.compose.project": "data"}), false),
            (json!({"IO.RANCHER.stack.name": "data"}), false),
            (json!({"io.rancher.stack_service.name": "data/db"}), false),
            (json!({"io.rancher.project_service.name": "data/db/side"}), false),
        ] {
            for json in [
                json!({"stack": "shop", "labels": labels}),
                json!({"stack": "shop", "sidekicks": [{"name": "side", "labels": labels}]}),
            ] {
                assert_eq!(refused(&policy, &json).0.is_empty(), fine, "{json}");
            }
        }
        // A label alone says of which stack it is.
        assert_eq!(refused(&policy, &json!({"labels": {"com.docker.compose.project": "shop"}})).0, "");
    }

    #[test]
    fn a_refusal_names_the_rule_and_what_to_type() {
        let denial = Policy::default().check(&request(&json!({"volumes": ["/srv/a:/a"]}), Some("ci"))).unwrap_err();
        assert_eq!(denial.to_string(), "volumes[0]: the policy's bind_sources do not allow token:ci to use /srv/a");
        let expected = denial.expected();
        assert!(expected.contains("--policy FILE"), "{expected}");
        assert!(expected.contains(r#"`subjects: {"token:ci": {bind_sources: ["/srv/a"]}}`"#), "{expected}");
    }

    #[test]
    fn a_wrong_field_of_a_policy_is_named() {
        for (text, expected) in [
            (json!([]), "found a list, expected a map"),
            (json!({"subject": {}}), "subject: unknown field, expected one of default, subjects"),
            (json!({"default": {"image": []}}), "default.image: unknown field"),
            (json!({"default": {"images": 5}}), "default.images: found 5, expected a list of texts"),
            (json!({"subjects": {"token:ci": {"stacks": [true]}}}), "subjects.token:ci.stacks[0]: found true"),
            (json!({"default": {"bind_sources": ["/a", "../b"]}}), "default.bind_sources[1]: found \"../b\""),
        ] {
            let error = policy(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// Components of a path, with `..` taken literally: what a source means at least.
    fn normal(path: &str, windows: bool) -> Vec<String> {
        let mut components = Vec::new();
        for part in path.split(|char| char == '/' || (windows && char == '\\')) {
            match part {
                "" | "." => {}
                ".." => drop(components.pop()),
                part if windows => components.push(part.trim_end_matches(['.', ' ']).to_lowercase()),
                part => components.push(part.to_owned()),
            }
        }
        components
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn no_source_outside_the_folders_is_accepted(
            parts in prop::collection::vec(
                prop::sample::select(vec!["data", "Data", "database", "etc", "..", ".", "", "...", "data.", ".. ", "a b", "~", "run", "docker.sock"]),
                0..6,
            ),
            separators in prop::collection::vec(prop::sample::select(vec!["/", "\\", "//"]), 6),
            root in prop::sample::select(vec!["", "/", "//", "\\", "C:\\", "c:/", "D:\\", "\\\\?\\C:\\", "\\\\.\\pipe\\", "./"]),
            target in prop::sample::select(vec![":/t", ":C:\\t", ":/t:ro", ":C:\\t:ro"]),
        ) {
            let pairs = parts.iter().zip(&separators);
            let path: String = pairs.flat_map(|(part, separator)| [*part, *separator]).collect();
            let volume = format!("{root}{path}{target}");
            let policy = policy(&json!({"default": {"bind_sources": ["/data", "C:\\data"], "volumes": []}})).unwrap();
            if refused(&policy, &json!({"volumes": [volume]})).0.is_empty() {
                let windows = root.contains(':');
                let meant = normal(&path, windows);
                prop_assert_eq!(meant.first().map(String::as_str), Some("data"), "{}", volume);
                prop_assert!(!root.contains("pipe") && root != "./" && root != "D:\\", "{}", volume);
            }
        }
    }
}
