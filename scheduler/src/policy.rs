//! The policy: what each subject may have placed, started and removed.
//!
//! A request is refused as a whole, by the first rule that it breaks, and the refusal names the rule. Without a file,
//! and for rules that a file leaves out, the built-in ones hold: no folder of a host is mounted, no network of a host or of
//! another container is joined, nothing is asked of an engine that reaches into its host (`place/request/engine.rs`), everything
//! else is allowed.
//!
//! A source is compared as it is written: where a symbolic link on the host leads cannot be seen from here.

pub(crate) mod engine;
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
use crate::place::request::engine::EngineSettings;
use crate::place::request::member::Member;
use crate::policy::host_path::HostPath;
use crate::policy::image::{Image, ImagePattern, may_be_id};
use crate::policy::mount::{Source, engine_sockets, sources};
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
    /// Settings that reach into a host: `privileged`, `cap_add=NET_ADMIN`, `pid=host`.
    privileges: Vec<Pattern>,
    /// Stacks in whose containers commands may be run.
    exec: Vec<Pattern>,
}

/// The fields of rules in a file.
const RULES: &[&str] =
    &["bind_sources", "exec", "hosts", "images", "joins", "networks", "privileges", "stacks", "volumes"];

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

/// Names of the network that an engine gives to containers for which none is named.
const DEFAULT_NETWORKS: [&str; 3] = ["bridge", "default", "nat"];

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
            privileges: Vec::new(),
            exec: Vec::new(),
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
    /// Sockets and pipes at which engines listen.
    endpoints: &'a [String],
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
        let policy = Self { subjects: subjects.collect::<Result<_, Invalid>>()?, default };
        policy.check_nesting()?;
        Ok(policy)
    }

    /// Refuses a folder below another one that may be mounted: a container that has the outer one can make a link of the inner one.
    fn check_nesting(&self) -> Result<(), Invalid> {
        let rules = || std::iter::once(&self.default).chain(self.subjects.values());
        let entries = || rules().flat_map(|rules| &rules.bind_sources);
        for inner in entries().filter(|path| !mount::is_socket(path)) {
            if let Some(outer) = entries().find(|outer| !outer.is_root() && outer.contains(inner) && *outer != inner) {
                let found = format!("found {inner}, which is below {outer}");
                let expected =
                    "no folder below another one: a container that has the outer one can make a link of the inner one";
                return Err(Invalid::new("bind_sources", found, expected));
            }
        }
        Ok(())
    }

    /// What a subject may do.
    pub(crate) fn rules(&self, subject: &Subject) -> &Rules {
        self.subjects.get(subject.as_str()).unwrap_or(&self.default)
    }

    /// A policy for each set of rules, which holds for all subjects; the first one is the default's.
    fn for_each_subject(&self) -> Vec<Self> {
        let rules = std::iter::once(&self.default).chain(self.subjects.values());
        rules.map(|rules| Self { default: rules.clone(), subjects: BTreeMap::new() }).collect()
    }

    /// Whether an image may be used by those that are not named.
    ///
    /// # Errors
    ///
    /// [`Denial`] by the rule about images.
    fn check_image(&self, name: &str) -> Result<(), Denial> {
        self.part(&Subject::any()).check_image(name, "image")
    }

    fn part<'a>(&'a self, subject: &'a Subject) -> Part<'a> {
        Part { rules: self.rules(subject), subject, endpoints: &[] }
    }

    /// Whether a request may be placed and started, where engines listen at these sockets and pipes, and at those that
    /// are common.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub(crate) fn check(&self, request: &Request, endpoints: &[String]) -> Result<(), Denial> {
        let part = Part { endpoints, ..self.part(&request.subject) };
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
        self.part(subject).check_stacks(asked)
    }

    /// Whether a subject may see what containers write that were asked for so, and start them again; and run commands in them if
    /// `exec` is set.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn check_inside(&self, subject: &Subject, asked: &Request, exec: bool) -> Result<(), Denial> {
        self.part(subject).check_stacks(asked)?;
        let stacks = stacks_of(asked);
        stacks.iter().filter(|_| exec).try_for_each(|(_, stack)| self.check_exec(subject, stack))
    }

    /// Whether a subject may run commands in containers of a stack.
    fn check_exec(&self, subject: &Subject, stack: &str) -> Result<(), Denial> {
        let part = self.part(subject);
        if part.rules.exec.iter().any(|pattern| pattern.fits(stack)) {
            return Ok(());
        }
        let value = match stack {
            "" => "a command in a container of no stack".to_owned(),
            stack => format!("a command in a container of the stack {stack}"),
        };
        Err(part.denial("exec", "of", value, Some(stack.to_owned())))
    }

    /// Whether a subject may reserve and release room without naming any stack.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn check_nameless(&self, subject: &Subject) -> Result<(), Denial> {
        let part = self.part(subject);
        part.check_stack("name", "")?;
        // An event changes the room of any host.
        if part.rules.take_any_host() {
            return Ok(());
        }
        Err(part.denial("hosts", "name", "any host".into(), Some("*".into())))
    }

    /// Whether a subject may touch placements of every stack on every host.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn check_everything(&self, subject: &Subject) -> Result<(), Denial> {
        let part = self.part(subject);
        let rules = [
            ("stacks", part.rules.take_any_stack(), "every stack"),
            ("hosts", part.rules.take_any_host(), "every host"),
        ];
        match rules.into_iter().find(|(_, allowed, _)| !allowed) {
            None => Ok(()),
            Some((rule, _, all)) => Err(part.denial(rule, "", all.to_owned(), Some("*".to_owned()))),
        }
    }

    /// Whether a unit of a request may be on this host.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn check_host(&self, subject: &Subject, name: &str, uuid: &str) -> Result<(), Denial> {
        let part = self.part(subject);
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

    fn check_stacks(&self, request: &Request) -> Result<(), Denial> {
        stacks_of(request).iter().try_for_each(|(field, stack)| self.check_stack(field, stack))
    }

    fn check_member(&self, member: &Member, names: &[&Text], field: impl Fn(&str) -> String) -> Result<(), Denial> {
        if let Some(name) = &member.image {
            self.check_image(name, &field("image"))?;
        }
        for (at, volume) in member.run.volumes.iter().enumerate() {
            for source in sources(volume) {
                self.check_source(&source, &field(&format!("volumes[{at}]")))?;
            }
        }
        self.check_settings(&member.run.engine, &field("engine"))?;
        for options in &member.run.volume_options {
            let field = field(&format!("volume_options.{}", options.volume));
            self.check_privileges(options.privileges(), &field)?;
        }
        let joined = |name: &str| names.iter().any(|own| own.eq_ignore_ascii_case(name));
        match &member.run.network {
            Some(network) => self.check_network(network, &field("network"))?,
            // Without an image nothing is started.
            None if member.run.network_from.is_none() && member.image.is_some() => {
                self.check_default_network(&field("network"))?;
            }
            None => {}
        }
        for (at, network) in member.run.more_networks.iter().enumerate() {
            self.check_network(&network.name, &field(&format!("networks[{}]", at + 1)))?;
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

    /// Which settings reach into the host, [`EngineSettings::privileges`] says.
    fn check_settings(&self, settings: &EngineSettings, field: &str) -> Result<(), Denial> {
        self.check_privileges(settings.privileges().into_iter(), field)
    }

    fn check_privileges(&self, mut all: impl Iterator<Item = String>, field: &str) -> Result<(), Denial> {
        let denied = |name: &String| !self.rules.privileges.iter().any(|pattern| pattern.fits(name));
        match all.find(denied) {
            None => Ok(()),
            Some(name) => Err(self.denial("privileges", field, name.clone(), Some(name))),
        }
    }

    fn check_image(&self, name: &str, field: &str) -> Result<(), Denial> {
        let image = Image::of(name);
        if self.rules.images.iter().any(|pattern| pattern.fits(&image)) {
            return Ok(());
        }
        Err(self.denial("images", field, image.to_string(), Some(image.to_string())))
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
                for socket in engine_sockets(path, self.endpoints) {
                    if !socket.iter().any(|path| self.rules.bind_sources.contains(path)) {
                        let why = ", with which it could be an engine's socket; that has to be an entry of its own";
                        let entry = socket.first().map(ToString::to_string);
                        let denial = self.denial("bind_sources", field, path.to_string(), entry);
                        return Err(Denial { why, ..denial });
                    }
                }
                // What is below an entry may be a link that a container made, and lead anywhere. Where all of a host is
                // allowed, that gives nothing more.
                let allows = |entry: &HostPath| entry == path || (entry.is_root() && entry.contains(path));
                if self.rules.bind_sources.iter().any(allows) {
                    return Ok(());
                }
                Err(self.denial("bind_sources", field, path.to_string(), Some(path.to_string())))
            }
        }
    }

    /// A pattern with `*` is about networks of containers: what leads into a host, or into another container, has to
    /// be written out.
    fn check_network(&self, network: &str, field: &str) -> Result<(), Denial> {
        if may_be_id(network) {
            let why = ", which may be the id of any network; give its name";
            return Err(Denial { why, ..self.denial("networks", field, format!("the network {network}"), None) });
        }
        let leads_out = network.eq_ignore_ascii_case("host") || network.contains(':');
        let allows = |pattern: &Pattern| if leads_out { pattern.is(network) } else { pattern.fits(network) };
        if self.rules.networks.iter().any(allows) {
            return Ok(());
        }
        Err(self.denial("networks", field, format!("the network {network}"), Some(network.to_owned())))
    }

    /// An engine puts a container without a network into its own one.
    fn check_default_network(&self, field: &str) -> Result<(), Denial> {
        if self.rules.networks.iter().any(|pattern| DEFAULT_NETWORKS.iter().any(|name| pattern.fits(name))) {
            return Ok(());
        }
        let value = "the engine's default network (bridge, or nat on Windows)".to_owned();
        let why = ", which a container without `network` gets; give it one that they allow";
        Err(Denial { why, ..self.denial("networks", field, value, Some("bridge".to_owned())) })
    }

    fn check_join(&self, container: &str, field: &str) -> Result<(), Denial> {
        if self.rules.joins.iter().any(|pattern| pattern.fits(container)) {
            return Ok(());
        }
        let value = format!("the container {container}, which is not of the same request");
        Err(self.denial("joins", field, value, Some(container.to_owned())))
    }
}

/// The stack of a request and those that its labels name, each with the field that names it.
fn stacks_of(request: &Request) -> Vec<(String, &str)> {
    let names_stack = |(key, value): &&(Text, Text)| {
        STACK_LABELS.iter().any(|known| key.eq_ignore_ascii_case(known)) && !value.is_empty()
    };
    let mut stacks = Vec::new();
    for member in &request.members {
        let labels = member.labels.iter().filter(names_stack);
        let named = stacks.len();
        stacks
            .extend(labels.map(|(key, value)| (format!("labels.{key}"), value.split('/').next().unwrap_or_default())));
        if request.stack.is_some() || stacks.len() == named {
            stacks.push(("stack".to_owned(), request.stack.as_deref().unwrap_or_default()));
        }
    }
    stacks
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
        privileges: patterns("privileges", &otherwise.privileges)?,
        exec: patterns("exec", &otherwise.exec)?,
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
mod tests;
