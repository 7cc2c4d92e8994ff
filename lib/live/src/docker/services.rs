//! The services of an engine's containers: from labels, with links, sidekicks and aliases.

use std::collections::{BTreeMap, BTreeSet};

use model::{Defect, Map, Text, Value};

use super::facts::{Facts, NetworkMode};
use super::index::ContainerIndex;
use crate::host::PORTS_MAX;

/// Most aliases of one service.
const ALIASES_MAX: usize = 64;

/// Beginning of labels of Berth's own that belong to a service: what a balancer does for it.
const OF_BALANCERS: &str = "io.berth.lb";

/// Beginnings of labels that belong to one container, not to its service.
const OF_ONE_CONTAINER: [&str; 6] = [
    "com.docker.compose.",
    "desktop.docker.",
    "io.berth.",
    "io.rancher.container.ip",
    "io.rancher.container.name",
    "io.rancher.container.uuid",
];

/// All services.
pub(super) struct Services<'f> {
    /// By stack and name.
    list: BTreeMap<(&'f str, &'f str), Service<'f>>,
    aliases: BTreeMap<(&'f str, &'f str), Alias<'f>>,
    /// Both, in lower case.
    named: BTreeSet<(String, String)>,
}

/// One service.
pub(super) struct Service<'f> {
    pub(super) stack: &'f str,
    name: &'f str,
    /// The service whose sidekick it is; its own name when it is none.
    pub(super) primary: &'f str,
    /// `stack/service`, or `stack/service/sidekick`.
    pub(super) path: Text,
    /// From the oldest to the newest.
    members: Vec<&'f Facts>,
    /// `stack/service` to alias.
    links: BTreeMap<Text, Text>,
}

/// A further name of services within their stack.
struct Alias<'f> {
    created: i64,
    services: BTreeSet<&'f str>,
}

/// The stack and the service that a container's labels name.
fn place(facts: &Facts) -> Option<(&str, &str)> {
    Some((facts.membership.stack.as_deref()?, facts.membership.service.as_deref()?))
}

impl<'f> Services<'f> {
    pub(super) fn of(containers_index: &ContainerIndex<'f>, defects: &mut Vec<Defect>) -> Self {
        let mut list: BTreeMap<(&str, &str), Service<'f>> = BTreeMap::new();
        for facts in &containers_index.containers {
            let Some((stack, name)) = place(facts) else { continue };
            let new = |name| Service {
                stack,
                name,
                primary: name,
                path: "".into(),
                members: Vec::new(),
                links: BTreeMap::new(),
            };
            list.entry((stack, name)).or_insert_with(|| new(name)).members.push(facts);
            if let Some(primary) = facts.membership.sidekick_of.as_deref() {
                // It may have no containers here, but what is beside it says that it exists.
                list.entry((stack, primary)).or_insert_with(|| new(primary));
            }
        }
        let mut services = Self { list, aliases: BTreeMap::new(), named: BTreeSet::new() };
        services.find_primaries(containers_index);
        services.find_links(containers_index);
        services.find_aliases(containers_index, defects);
        services
    }

    /// The service of a container.
    pub(super) fn of_container(&self, facts: &'f Facts) -> Option<&Service<'f>> {
        self.list.get(&place(facts)?)
    }

    /// Whether a stack has a service of this name, or one that is also called so.
    pub(super) fn has(&self, stack: &str, name: &str) -> bool {
        self.named.contains(&(stack.to_lowercase(), name.to_lowercase()))
    }

    /// The entries of the document.
    pub(super) fn entries(&self) -> impl Iterator<Item = Map> {
        self.list.values().map(Service::entry).chain(self.aliases.iter().map(|((stack, alias), meant)| {
            let links = meant.services.iter().map(|service| (format!("{stack}/{service}").into(), Value::text(*alias)));
            Map::new(vec![
                ("name".into(), Value::text(*alias)),
                ("stack".into(), Value::text(*stack)),
                ("kind".into(), Value::text("dnsService")),
                ("links".into(), Map::new(links.collect()).into()),
                ("create_index".into(), Value::Int(meant.created)),
                ("scale".into(), Value::Int(0)),
            ])
        }))
    }

    /// The links of a container to others that are not links of its service to theirs: alias and the container meant.
    pub(super) fn container_links<'s>(
        &'s self,
        containers_index: &'s ContainerIndex<'f>,
        facts: &'f Facts,
    ) -> impl Iterator<Item = (&'f Text, &'f Facts)> + 's {
        let own = self.of_container(facts);
        facts.links.iter().filter_map(move |(target, alias)| {
            let target = containers_index.find(target)?;
            // The alias leads to all containers of the other service already.
            let of_service = own.zip(self.of_container(target)).is_some_and(|(own, other)| {
                let linked = own.links.get(&other.key()).is_some_and(|known| known.eq_ignore_ascii_case(alias));
                linked || (own.stack == other.stack && alias.eq_ignore_ascii_case(other.name))
            });
            (!of_service && !alias.eq_ignore_ascii_case(&target.name)).then_some((alias, target))
        })
    }

    /// Finds out which services are sidekicks: by label, or because the newest container uses the network of another
    /// service's container in the same stack.
    fn find_primaries(&mut self, containers_index: &ContainerIndex<'f>) {
        let mut primaries: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        for ((stack, name), service) in &self.list {
            let Some(newest) = service.members.last() else { continue };
            let stated = newest.membership.sidekick_of.as_deref();
            let shared = || {
                let other = match &newest.network {
                    NetworkMode::From(_) => place(containers_index.network_of(newest)),
                    NetworkMode::Own | NetworkMode::Host => None,
                };
                other.filter(|(other, _)| other == stack).map(|(_, primary)| primary)
            };
            if let Some(primary) = stated.or_else(shared).filter(|primary| !primary.eq_ignore_ascii_case(name)) {
                primaries.insert((stack, name), primary);
            }
        }
        for ((stack, name), service) in &mut self.list {
            // A sidekick's primary is none itself.
            let primary =
                primaries.get(&(*stack, *name)).filter(|primary| !primaries.contains_key(&(*stack, **primary)));
            service.primary = primary.copied().unwrap_or(name);
            service.path = match primary {
                Some(primary) => format!("{stack}/{primary}/{name}").into(),
                None => format!("{stack}/{name}").into(),
            };
        }
    }

    /// Links to services: what a container depends on, and links to a container of another service.
    fn find_links(&mut self, containers_index: &ContainerIndex<'f>) {
        let mut found: Vec<((&str, &str), Text, Text)> = Vec::new();
        for (place_of, service) in &self.list {
            for member in &service.members {
                for name in member.membership.depends_on.iter().filter(|name| &***name != service.name) {
                    found.push((*place_of, format!("{}/{name}", service.stack).into(), name.clone()));
                }
                let links = member.membership.links.iter();
                found.extend(links.map(|(target, alias)| (*place_of, target.clone(), alias.clone())));
            }
        }
        // What is linked by an alias of its own is called so, instead of by its name.
        for (place_of, service) in &self.list {
            for member in &service.members {
                for (target, alias) in &member.links {
                    let Some(target) = containers_index.find(target) else { continue };
                    let Some(other) = self.of_container(target).filter(|other| other.path != service.path) else {
                        continue;
                    };
                    // Compose gives every link again with the name of the container and of the service.
                    let plain = alias.eq_ignore_ascii_case(&target.name) || alias.eq_ignore_ascii_case(other.name);
                    let known = found.iter().any(|(at, key, _)| at == place_of && *key == other.key());
                    if !plain || !known {
                        let alias =
                            if alias.eq_ignore_ascii_case(&target.name) { other.name.into() } else { alias.clone() };
                        found.push((*place_of, other.key(), alias));
                    }
                }
            }
        }
        for (place_of, key, alias) in found {
            if let Some(service) = self.list.get_mut(&place_of) {
                service.links.insert(key, alias);
            }
        }
    }

    fn find_aliases(&mut self, containers_index: &ContainerIndex<'f>, defects: &mut Vec<Defect>) {
        self.named = self.list.keys().map(|(stack, name)| (stack.to_lowercase(), name.to_lowercase())).collect();
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for facts in &containers_index.containers {
            let Some((stack, name)) = place(facts) else { continue };
            let attachments = facts.attachments.iter().filter(|attachment| attachment.has_names());
            let aliases: BTreeSet<&'f str> =
                attachments.flat_map(|attachment| &attachment.aliases).map(|alias| &**alias).collect();
            for alias in aliases {
                if alias.eq_ignore_ascii_case(name) {
                    continue;
                }
                let path = || format!("{}/networks/aliases", facts.path());
                if let Some(known) = self.aliases.get_mut(&(stack, alias)) {
                    known.services.insert(name);
                    continue;
                }
                if self.has(stack, alias) {
                    let problem = format!("{alias} is the name of another service of the stack {stack}");
                    defects.push(Defect::ignored(path(), problem));
                    continue;
                }
                let count = counts.entry((stack, name)).or_default();
                *count += 1;
                if *count > ALIASES_MAX {
                    let problem = format!("{alias} is left out: a service has at most {ALIASES_MAX} aliases");
                    defects.push(Defect::ignored(path(), problem));
                } else {
                    self.named.insert((stack.to_lowercase(), alias.to_lowercase()));
                    self.aliases.insert((stack, alias), Alias { created: facts.created, services: [name].into() });
                }
            }
        }
    }
}

impl Service<'_> {
    /// How links name it: `stack/service`, for sidekicks too.
    fn key(&self) -> Text {
        format!("{}/{}", self.stack, self.name).into()
    }

    fn entry(&self) -> Map {
        let oldest = self.members.first().map_or(0, |member| member.created);
        let mut fields: Vec<(Text, Value)> = vec![
            ("name".into(), Value::text(self.name)),
            ("stack".into(), Value::text(self.stack)),
            ("create_index".into(), Value::Int(oldest)),
        ];
        if self.primary != self.name {
            fields.push(("sidekick_of".into(), Value::text(self.primary)));
        }
        if !self.links.is_empty() {
            let links = self.links.iter().map(|(key, alias)| (key.clone(), Value::Text(alias.clone())));
            fields.push(("links".into(), Map::new(links.collect()).into()));
        }
        if let Some(newest) = self.members.last() {
            // One without ports beside others, such as one started by hand to look around, takes no port away.
            let mut shown: Vec<_> = self.members.iter().rev().copied().filter(|member| member.runs()).collect();
            if shown.is_empty() {
                shown.push(newest);
            }
            let of_all = |ports: fn(&Facts) -> &[Text]| {
                let mut seen = BTreeSet::new();
                let all = shown.iter().flat_map(|member| ports(member)).filter(|port| seen.insert(*port));
                Value::list(all.take(PORTS_MAX).cloned().map(Value::Text))
            };
            let is_of_one = |key: &str| OF_ONE_CONTAINER.iter().any(|start| key.starts_with(start));
            let labels = newest.labels.iter().filter(|(key, _)| key.starts_with(OF_BALANCERS) || !is_of_one(key));
            fields.push(("ports".into(), of_all(|member| &member.wanted_ports)));
            fields.push(("expose".into(), of_all(|member| &member.expose)));
            fields.push(("labels".into(), Map::new(labels.cloned().collect()).into()));
        }
        Map::new(fields)
    }
}
