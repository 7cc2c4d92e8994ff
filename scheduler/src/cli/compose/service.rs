//! A service of a compose file as a placement request.

use std::collections::HashMap;

use model::{Map, Text, Value, health};

use crate::cli::compose::Compose;
use crate::cli::compose::deploy::{PAUSES, amounts, placement_of, restart, seconds, update};
use crate::cli::compose::files::Used;
use crate::cli::compose::health_check::health_check;
use crate::cli::compose::links::{external_links, link_texts, links, names_nothing};
use crate::cli::compose::networks::networks;
use crate::cli::compose::ports::ports;
use crate::cli::compose::section::{Draft, Section, the_same, unsupported};
use crate::cli::compose::volumes::{check_mounts, external, named, volumes};
use crate::cli::compose::{rancher, refused};
use crate::place::invalid::Invalid;
use crate::place::request::GLOBAL_LABEL;
use crate::place::request::engine;
use crate::place::request::limits::GRACE_MAX;
use crate::place::request::member::{HOSTNAME_LABEL, words};
use crate::stack::unit::{REVISION_LABEL, STACK_LABEL, UNIT_LABEL};

/// Label of a container that is not started again when it has ended.
const START_ONCE_LABEL: &str = "io.rancher.container.start_once";

/// Label of a container whose image is pulled before each start.
const PULL_LABEL: &str = "io.rancher.container.pull_image";

/// Label with what a service calls others, which Berth's DNS answers.
const LINKS_LABEL: &str = "io.berth.links";

pub(super) const SERVICE_KEYS: &[&str] = &[
    "attach",
    "build",
    "command",
    "configs",
    "container_name",
    "cpus",
    "credential_spec",
    "depends_on",
    "deploy",
    "dns",
    "dns_search",
    "dockerfile",
    "domainname",
    "entrypoint",
    "env_file",
    "environment",
    "expose",
    "external_links",
    "healthcheck",
    "hostname",
    "image",
    "isolation",
    "label_file",
    "labels",
    "links",
    "log_driver",
    "log_opt",
    "mem_limit",
    "mem_reservation",
    "milli_cpu_reservation",
    "net",
    "network_mode",
    "networks",
    "platform",
    "profiles",
    "ports",
    "pull_policy",
    "restart",
    "scale",
    "secrets",
    "stdin_open",
    "stop_grace_period",
    "stop_signal",
    "tty",
    "user",
    "volumes",
    "volumes_from",
    "working_dir",
];

impl Compose<'_> {
    /// How units are replaced, which only a stack does; names or refuses other keys that would not be honoured.
    fn updates(&self, deploy: &Section<'_>) -> Result<Vec<(&'static str, Value)>, Invalid> {
        let of_stacks: &[&str] = if self.for_stack { &["rollback_config", "update_config"] } else { &[] };
        let known = ["endpoint_mode", "labels", "mode", "placement", "replicas", "resources", "restart_policy"];
        deploy.only(&[&known[..], of_stacks].concat())?;
        if deploy.get("endpoint_mode").is_some() {
            let why = "without effect: names lead to all units, and published ports to those of their host";
            self.warn(deploy.at("endpoint_mode"), why);
        }
        if let Some(policy) = deploy.below("restart_policy")? {
            for key in PAUSES.into_iter().filter(|key| policy.get(key).is_some()) {
                let why = "without effect: an engine waits longer after each failure, and counts those in a row";
                self.warn(policy.at(key), why);
            }
        }
        let mut updates = Vec::new();
        for (key, field) in [("update_config", "update"), ("rollback_config", "rollback")] {
            if let Some(rules) = deploy.below(key)? {
                updates.push((field, update(&rules)?));
            }
        }
        Ok(updates)
    }

    /// Names labels of the predecessor that stay on the container and do nothing else; refuses those that units have.
    fn check_labels(&self, service: &Section<'_>, labels: &[(Text, Value)]) -> Result<(), Invalid> {
        let is_of_units = |(key, _): &&(Text, Value)| [REVISION_LABEL, STACK_LABEL, UNIT_LABEL].contains(&&**key);
        if let Some((key, _)) = labels.iter().find(is_of_units) {
            let expected = "none: the scheduler gives it to each container of a stack";
            return Err(Invalid::new(service.at(&format!("labels.{key}")), "is not supported", expected));
        }
        let unknown_here = "a label like any other: nothing here knows it (docs/stacks.md); is it misspelt?";
        for (beginning, known, why) in [
            ("io.rancher.", &LABELS_WITH_EFFECT[..], "a label like any other: it has no effect here"),
            (OWN_LABELS, &OWN_LABELS_WITH_EFFECT[..], unknown_here),
        ] {
            let is_of_check = |key: &str| key.strip_prefix(health::LABEL).is_none_or(health::is_field);
            let has_effect = |key: &str| known.iter().any(|known| key.starts_with(known)) && is_of_check(key);
            for (key, _) in labels.iter().filter(|(key, _)| key.starts_with(beginning) && !has_effect(key)) {
                self.warn(service.at(&format!("labels.{key}")), why);
            }
        }
        for (key, value) in labels {
            let text = value.scalar_text().unwrap_or_default();
            let expected = match &**key {
                GLOBAL_LABEL | START_ONCE_LABEL if truth_of(&text).is_none() => "true or false",
                HOSTNAME_LABEL if &*text != "container_name" => "container_name",
                PULL_LABEL if &*text != "always" => "always",
                _ => continue,
            };
            // An empty one, as a variable may be, says nothing.
            if !text.is_empty() {
                let why = format!("without effect: found {text:?}, expected {expected}");
                self.warn(service.at(&format!("labels.{key}")), &why);
            }
        }
        Ok(())
    }

    /// Checks keys that become no field of a request.
    fn check_others(&self, service: &Section<'_>) -> Result<(), Invalid> {
        for key in ["build", "dockerfile"].into_iter().filter(|key| service.get(key).is_some()) {
            let why = "without effect: nothing is built here, the image has to be in a registry or on the hosts";
            self.warn(service.at(key), why);
        }
        if service.get("attach").is_some() {
            self.warn(service.at("attach"), "without effect: `scheduler up` shows no logs");
        }
        // What the scheduler puts in is not known yet.
        if service.text("image")?.is_some_and(|image| !image.contains("${") && !is_image(&image)) {
            self.warn(
                service.at("image"),
                "no engine takes this: expected [REGISTRY/]NAME[:TAG][@DIGEST], NAME in small letters",
            );
        }
        for key in ["links", "external_links"] {
            for (at, _) in link_texts(service, key)?.iter().enumerate().filter(|(_, text)| names_nothing(text)) {
                self.warn(service.at(&format!("{key}[{at}]")), "without effect: it names no service");
            }
        }
        Ok(())
    }

    /// The labels of a service, with those of its files and of its health check.
    fn labels(&self, service: &Section<'_>) -> Result<Vec<(Text, Value)>, Invalid> {
        let own = labels(service)?;
        // What the service says itself counts more.
        let mut labels = self.of_files(service, "label_file", &Value::text(""))?;
        labels.retain(|(key, _)| !own.iter().any(|(known, _)| known == key));
        labels.extend(own);
        self.check_labels(service, &labels)?;
        for (_, value) in labels.iter_mut().filter(|(key, _)| [GLOBAL_LABEL, START_ONCE_LABEL].contains(&&**key)) {
            // YAML 1.1 has other words for the same.
            if let Some(truth) = value.as_str().filter(|text| !matches!(*text, "true" | "false")).and_then(truth_of) {
                *value = Value::text(if truth { "true" } else { "false" });
            }
        }
        labels.extend(rancher::health(service, &labels)?);
        Ok(labels)
    }

    fn environment(&self, service: &Section<'_>) -> Result<Value, Invalid> {
        // By the order in which they are said last, without looking through all of them for each.
        let (mut environment, mut places): (Vec<Option<_>>, HashMap<Text, usize>) = (Vec::new(), HashMap::new());
        for (key, value) in
            self.of_files(service, "env_file", &Value::Null)?.into_iter().chain(service.pairs("environment")?)
        {
            // A variable without a value is taken from the environment.
            let value = match &value {
                Value::Null => (self.variable)(&key).map(Value::text),
                _ => Some(value),
            };
            if let Some(other @ (Value::List(_) | Value::Map(_))) = &value {
                let field = service.at(&format!("environment.{key}"));
                return Err(Invalid::new(field, format!("found {}", other.kind()), "text"));
            }
            // What comes later counts.
            if let Some(before) = places.insert(key.clone(), environment.len()) {
                environment[before] = None;
            }
            environment.push(value.map(|value| (key, value)));
        }
        Ok(Map::new(environment.into_iter().flatten().collect()).into())
    }

    /// What a service mounts.
    fn mounts(&self, service: &Section<'_>) -> Result<Draft, Invalid> {
        let said = volumes(service)?;
        let mut mounts = named(&said, &self.stack, &self.volumes);
        let options = self.volumes.options_of(&said, &self.stack);
        // Only stacks have volumes of their own.
        let external = self.for_stack.then(|| external(&mounts, &self.volumes.external)).flatten();
        let Used { volumes, files, origins } = self.files.used(service)?;
        mounts.extend(volumes);
        check_mounts(service, &mounts)?;
        if !origins.is_empty() {
            self.file_origins.borrow_mut().insert(service.path.clone(), origins);
        }
        let external = external.map(|names| ("external_volumes".into(), names));
        let options = options.map(|options| ("volume_options".into(), options));
        let files = (!files.is_empty()).then(|| ("files".into(), Value::list(files)));
        let more = external.into_iter().chain(options).chain(files);
        Ok(more.chain([("volumes".into(), Value::list(mounts))]).collect())
    }

    /// The networks that a service is in, or the container whose network it shares.
    fn joined(&self, service: &Section<'_>) -> Result<Draft, Invalid> {
        let found = match network(service)? {
            Some((key, mode)) if &*mode == "managed" => {
                self.warn(service.at(key), "without effect: a network of the predecessor; it is in the engine's own");
                None
            }
            Some((_, mode)) => Some(match mode.split_once(':') {
                Some((_, other)) => ("network_from", Value::text(other)),
                None => ("network", Value::Text(mode)),
            }),
            None => networks(service, &self.networks)?,
        };
        Ok(found.map(|(field, value)| (field.into(), value)).into_iter().collect())
    }

    /// When its containers are started again.
    fn restart(
        &self,
        service: &Section<'_>,
        deploy: Option<&Section<'_>>,
        labels: &[(Text, Value)],
    ) -> Result<Option<Value>, Invalid> {
        let mut said = Vec::new();
        // An empty one, as a variable may be, says nothing.
        if let Some(word) = service.text("restart")?.filter(|word| !word.is_empty()) {
            said.push((service.at("restart"), Value::Text(word)));
        }
        if let Some(policy) = deploy.map(|deploy| deploy.below("restart_policy")).transpose()?.flatten() {
            said.push((policy.at("condition"), restart(&policy)?));
        }
        if is_true(labels, START_ONCE_LABEL) {
            said.push((service.at(&format!("labels.{START_ONCE_LABEL}")), "no".into()));
        }
        Ok(self.said_last(said))
    }

    /// When its image is pulled; `None` where its engine has none.
    fn pull_policy(&self, service: &Section<'_>, labels: &[(Text, Value)]) -> Result<Option<Value>, Invalid> {
        let mut said = Vec::new();
        match service.text("pull_policy")?.as_deref() {
            None | Some("") => {}
            Some("missing" | "if_not_present") => said.push((service.at("pull_policy"), "missing".into())),
            Some("always") => said.push((service.at("pull_policy"), "always".into())),
            Some(_) => return Err(unsupported(service.at("pull_policy"), &["always", "missing", "if_not_present"])),
        }
        if labels.iter().any(|(key, value)| &**key == PULL_LABEL && value.as_str() == Some("always")) {
            said.push((service.at(&format!("labels.{PULL_LABEL}")), "always".into()));
        }
        Ok(self.said_last(said).filter(|policy| policy.as_str() != Some("missing")))
    }

    /// What the last one of several keys says, which counts; of others that say something else there is a warning.
    fn said_last(&self, mut said: Vec<(String, Value)>) -> Option<Value> {
        let (field, value) = said.pop()?;
        for (other, _) in said.iter().filter(|(_, other)| *other != value) {
            self.warn(other.clone(), &format!("without effect: {field} says something else"));
        }
        Some(value)
    }

    pub(super) fn service(&self, name: &str, service: &Section<'_>) -> Result<Draft, Invalid> {
        let settings: Vec<_> = engine::names().collect();
        refused::of_service(service, &[SERVICE_KEYS, rancher::KEYS, &settings].concat())?;
        self.check_rancher(service)?;
        expose(service)?;
        let mut draft: Draft = Vec::new();
        let mut put = |key: &str, value: Option<Value>| draft.extend(value.map(|value| (key.into(), value)));
        let full = format!("{}-{name}", self.stack);
        let container = service.text("container_name")?;
        put("id", Some(Value::text(full.as_str())));
        put("name", Some(container.map_or_else(|| Value::text(full.as_str()), Value::Text)));
        put("stack", Some(Value::text(self.stack.as_str())));
        put("service", Some(Value::text(name)));
        put("image", Some(image_of(service)?));
        self.check_others(service)?;
        for key in ["command", "entrypoint", "dns", "dns_search"] {
            put(key, words_of(service, key)?);
        }
        put("healthcheck", health_check(service)?);
        put("engine", self.settings(service)?);
        for key in ["domainname", "hostname", "isolation", "stop_signal", "user", "working_dir"] {
            // An empty one, as a variable may be, says nothing.
            put(key, service.text(key)?.filter(|text| !text.is_empty()).map(Value::Text));
        }
        for key in ["stdin_open", "tty"] {
            put(key, truth(service, key)?);
        }
        put("volumes_from", volumes_from(service)?);
        if let Some(text) = service.text("stop_grace_period")? {
            let longest = GRACE_MAX.cast_signed();
            let expected = || format!("a time such as 10s or 1m30s, at most {longest}s");
            let seconds = seconds(&text)
                .filter(|seconds| *seconds <= longest)
                .ok_or_else(|| Invalid::new(service.at("stop_grace_period"), format!("found {text:?}"), expected()))?;
            put("stop_timeout", Some(Value::Int(seconds)));
        }
        put("environment", Some(self.environment(service)?));
        let mut labels = self.labels(service)?;
        put("ports", Some(ports(service)?));
        for (field, value) in self.mounts(service)?.into_iter().chain(self.joined(service)?) {
            put(&field, Some(value));
        }
        let (resources, limits) = amounts(service)?;
        let mut count = self.scale(service)?;
        put("update", self.upgrade(service)?);
        let deploy = service.below("deploy")?;
        if let Some(deploy) = &deploy {
            for (field, rules) in self.updates(deploy)? {
                put(field, Some(rules));
            }
            let of_deploy = deploy.pairs("labels")?;
            self.check_labels(deploy, &of_deploy)?;
            labels.extend(of_deploy);
            let replicas = integer(deploy, "replicas")?.map(Value::Int);
            count = the_same(count, (replicas, deploy.at("replicas")), "scale")?;
            match deploy.text("mode")?.as_deref() {
                None | Some("replicated") => {}
                Some("global") => {
                    for section in [service, deploy] {
                        let counts = ["replicas", "scale"].into_iter().filter(|key| section.get(key).is_some());
                        counts.for_each(|key| self.warn(section.at(key), "without effect: one runs on each host"));
                    }
                    put("global", Some(true.into()));
                }
                Some(_) => return Err(Invalid::new(deploy.at("mode"), "unknown mode", "replicated or global")),
            }
            if let Some(placement) = deploy.below("placement")? {
                let (constraints, spread) = placement_of(&placement)?;
                put("constraints", Some(constraints));
                put("spread", Some(spread));
            }
        }
        put("restart", self.restart(service, deploy.as_ref(), &labels)?);
        put("pull_policy", self.pull_policy(service, &labels)?);
        let is_global = is_true(&labels, GLOBAL_LABEL);
        put("labels", Some(Map::new(labels).into()));
        put("resources", Some(resources));
        put("limits", Some(limits));
        let is_global = is_global || draft.iter().any(|(key, _)| &**key == "global");
        let start = self.start_on_create(service, is_global)?;
        let mut put = |key: &str, value: Option<Value>| draft.extend(value.map(|value| (key.into(), value)));
        put("start", start);
        match count {
            Some(Value::Int(0)) if !self.for_stack => {
                let key = ["scale", "scale_policy"]
                    .into_iter()
                    .find(|key| service.get("deploy").is_none() && service.get(key).is_some());
                let field = service.at(key.unwrap_or("deploy.replicas"));
                return Err(Invalid::new(field, "found 0", "at least one; stacks (`scheduler up`) may have none"));
            }
            count => put("count", count),
        }
        Ok(draft)
    }
}

/// Begins labels of this project.
const OWN_LABELS: &str = "io.berth.";

/// Those that do something on a container, by how they begin.
const OWN_LABELS_WITH_EFFECT: [&str; 5] =
    ["io.berth.health.", "io.berth.lb", LINKS_LABEL, "io.berth.metrics.", "io.berth.use."];

/// Labels of the predecessor that do something here, by how they begin.
const LABELS_WITH_EFFECT: [&str; 10] = [
    HOSTNAME_LABEL,
    PULL_LABEL,
    "io.rancher.container.name",
    "io.rancher.container.start_once",
    "io.rancher.lb_service.",
    "io.rancher.scheduler.",
    "io.rancher.service.requested.host.id",
    "io.rancher.sidekicks",
    "io.rancher.stack",
    "io.rancher.container.dns.port.",
];

fn is_true(labels: &[(Text, Value)], key: &str) -> bool {
    let is_yes = |value: &Value| value.as_bool() == Some(true) || value.as_str() == Some("true");
    labels.iter().any(|(own, value)| &**own == key && is_yes(value))
}

/// Its labels, with one about links that DNS would not know otherwise.
fn labels(service: &Section<'_>) -> Result<Vec<(Text, Value)>, Invalid> {
    let mut labels = service.pairs("labels")?;
    for (_, value) in labels.iter_mut().filter(|(_, value)| value.is_null()) {
        *value = "".into();
    }
    let links = links(service)?.into_iter().chain(external_links(service)?);
    let aliases: Vec<_> = links.filter_map(|link| link.label()).collect();
    if !aliases.is_empty() {
        labels.push((LINKS_LABEL.into(), Value::text(aliases.join(","))));
    }
    Ok(labels)
}

/// The image, with what it is built for where the file says so: `windows/amd64`, `linux/arm64/v8`.
fn image_of(service: &Section<'_>) -> Result<Value, Invalid> {
    let Some(image) = service.text("image")? else {
        let is_built = service.get("build").is_some();
        let (field, problem) = if is_built { ("build", "is not supported") } else { ("image", "missing") };
        return Err(Invalid::new(service.at(field), problem, "an image; nothing is built here"));
    };
    let Some(platform) = service.text("platform")? else { return Ok(Value::Text(image)) };
    let mut parts = platform.split('/');
    let os = parts.next().unwrap_or_default();
    if !matches!(os, "linux" | "windows") {
        return Err(Invalid::new(service.at("platform"), format!("found {platform:?}"), "linux/ARCH or windows/ARCH"));
    }
    let mut entry: Draft = vec![("os".into(), Value::text(os))];
    entry.extend(parts.next().map(|architecture| ("architecture".into(), Value::text(architecture))));
    Ok(Map::new(vec![("name".into(), Value::Text(image)), ("platforms".into(), Value::list([Map::new(entry).into()]))])
        .into())
}

/// Whether an engine would take it for the name of an image
/// (<https://github.com/distribution/reference>, which says how one is written).
fn is_image(text: &str) -> bool {
    let is_part = |part: &str| {
        let (first, last) = (part.bytes().next(), part.bytes().last());
        let is_word = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        is_word(first) && is_word(last) && part.bytes().all(|byte| is_word(Some(byte)) || b"._-".contains(&byte))
    };
    let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
    let (name, tag) = rest
        .rsplit_once(':')
        .filter(|(_, tag)| !tag.contains('/'))
        .map_or((rest, None), |(name, tag)| (name, Some(tag)));
    let is_tag = |tag: &str| {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        tag.len() <= 128
            && tag.bytes().next().is_some_and(is_word)
            && tag.bytes().all(|byte| is_word(byte) || b".-".contains(&byte))
    };
    let is_registry = |part: &str| {
        part == "localhost" || part.contains(['.', ':']) || part.contains(|char: char| char.is_ascii_uppercase())
    };
    let path = match name.split_once('/') {
        Some((registry, path)) if is_registry(registry) => path,
        _ => name,
    };
    path.split('/').all(is_part)
        && tag.is_none_or(is_tag)
        && digest
            .is_none_or(|digest| digest.split_once(':').is_some_and(|(way, hex)| !way.is_empty() && hex.len() >= 32))
}

/// The network that a service shares or is in by one word, with the key that says it.
fn network(service: &Section<'_>) -> Result<Option<(&'static str, Text)>, Invalid> {
    let mut modes = Vec::new();
    for key in ["network_mode", "net"] {
        modes.extend(service.text(key)?.filter(|mode| !mode.is_empty()).map(|mode| (key, mode)));
    }
    if let [(_, one), (key, other)] = &modes[..]
        && one != other
    {
        return Err(Invalid::new(service.at(key), "given with network_mode, which says something else", "one of them"));
    }
    let Some((key, mode)) = modes.into_iter().next() else { return Ok(None) };
    if service.get("networks").is_some() {
        return Err(Invalid::new(service.at(key), "given with networks", "one of them"));
    }
    if mode.contains(':') && !mode.starts_with("service:") && !mode.starts_with("container:") {
        let is = format!("{mode} is not supported");
        return Err(Invalid::new(service.at(key), is, "a network by name, or service:NAME"));
    }
    Ok(Some((key, mode)))
}

/// Checks the ports that other containers may use. They need nothing done: no engine keeps containers apart by port.
fn expose(service: &Section<'_>) -> Result<(), Invalid> {
    let fine = |text: &str| {
        let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let number = |text: &str| text.parse::<u16>().ok();
        matches!(protocol, "tcp" | "udp" | "sctp")
            && number(first).zip(number(last)).is_some_and(|(a, b)| 0 < a && a <= b)
    };
    match texts(service, "expose")?.iter().enumerate().find(|(_, text)| !text.is_empty() && !fine(text)) {
        None => Ok(()),
        Some((at, text)) => {
            Err(Invalid::new(service.at(&format!("expose[{at}]")), format!("found {text:?}"), "a port such as 80/tcp"))
        }
    }
}

fn volumes_from(service: &Section<'_>) -> Result<Option<Value>, Invalid> {
    let items = said(service, "volumes_from")?;
    Ok((!items.is_empty()).then(|| Value::list(items.into_iter().map(Value::Text))))
}

pub(super) fn truth(service: &Section<'_>, key: &str) -> Result<Option<Value>, Invalid> {
    match service.get(key) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(value.then_some(true.into())),
        // A variable is text.
        Some(Value::Text(text)) if text.is_empty() => Ok(None),
        Some(Value::Text(text)) if truth_of(text).is_some() => Ok(truth_of(text).filter(|is| *is).map(Value::from)),
        Some(other) => Err(Invalid::new(service.at(key), format!("found {}", other.kind()), "true or false")),
    }
}

/// A truth as a variable has it, or as YAML 1.1 writes it.
pub(super) fn truth_of(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" => Some(false),
        _ => None,
    }
}

/// A line or a list of words; of an entry point a line has words too, as in a shell.
fn words_of(service: &Section<'_>, key: &str) -> Result<Option<Value>, Invalid> {
    if let Some(Value::List(_)) = service.get(key)
        && key.starts_with("dns")
    {
        let words = said(service, key)?;
        return Ok((!words.is_empty()).then(|| Value::list(words.into_iter().map(Value::Text))));
    }
    if let Some(Value::List(_)) = service.get(key) {
        return Ok(Some(Value::list(texts(service, key)?.into_iter().map(Value::Text))));
    }
    let Some(line) = service.text(key)?.filter(|line| !line.trim().is_empty()) else { return Ok(None) };
    if key != "entrypoint" {
        return Ok(Some(Value::Text(line)));
    }
    let words = words(&line);
    let wrong = || Invalid::new(service.at(key), format!("found {line:?}"), "words, with every quote closed");
    Ok(Some(Value::list(words.ok_or_else(wrong)?.into_iter().map(Value::Text))))
}

/// A whole number, or text that is one. An empty variable says nothing.
pub(super) fn integer(section: &Section<'_>, key: &str) -> Result<Option<i64>, Invalid> {
    let is_empty = |value: &&Value| value.as_str().is_some_and(|text| text.trim().is_empty());
    let Some(value) = section.get(key).filter(|value| !is_empty(value)) else { return Ok(None) };
    let number = value.as_int().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
    let wrong = || {
        let found = value.as_str().map_or_else(|| value.kind().to_owned(), |text| format!("{text:?}"));
        Invalid::new(section.at(key), format!("found {found}"), "a whole number")
    };
    number.ok_or_else(wrong).map(Some)
}

/// A list of texts or numbers without those that are empty, as a variable may be: they say nothing.
pub(super) fn said(service: &Section<'_>, key: &str) -> Result<Vec<Text>, Invalid> {
    Ok(texts(service, key)?.into_iter().filter(|text| !text.trim().is_empty()).collect())
}

/// A list of texts or numbers.
pub(super) fn texts(service: &Section<'_>, key: &str) -> Result<Vec<Text>, Invalid> {
    let text = |(at, item): (usize, &Value)| {
        let text = crate::place::hosts::label(&(key.into(), item.clone())).map(|(_, text)| text);
        text.ok_or_else(|| Invalid::new(service.at(&format!("{key}[{at}]")), format!("found {}", item.kind()), "text"))
    };
    match service.get(key) {
        None => Ok(Vec::new()),
        Some(Value::List(items)) => items.iter().enumerate().map(text).collect(),
        Some(other) => Err(Invalid::new(service.at(key), format!("found {}", other.kind()), "a list")),
    }
}
