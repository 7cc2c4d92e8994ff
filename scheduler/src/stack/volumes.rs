//! The volumes that were made for a stack: where there are such, and their removal with it.
//!
//! Only labels say so ([`crate::start::volumes`]), which engines keep and no container can give; all engines are asked,
//! since a volume stays on a host that a unit has left long ago.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::EngineError;
use futures_util::StreamExt as _;
use futures_util::stream;
use model::{Map, Text, Value};
use serde::Serialize;
use stacks::Service;
use tracing::{info, warn};

use crate::audit::line::{Action, AuditLine};
use crate::ledger::stack::{StackRecord, stack_id};
use crate::place::hosts::Facts;
use crate::place::refusal::Refusal;
use crate::place::request::Request;
use crate::place::request::limits::LIST_MAX;
use crate::place::request::volume::named_volume;
use crate::stack::keeper::Seen;
use crate::stack::unit::INDEX;
use crate::start::Starter;
use crate::start::volumes::labels;
use crate::subject::Subject;

/// Most engines that are asked for volumes at once.
const ASKED_AT_ONCE: usize = 32;

/// Most reasons that are shown for volumes that are still there.
const REASONS_SHOWN: usize = 3;

/// What `down` would remove.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DownPreview {
    pub(crate) name: Text,
    pub(crate) revision: u64,
    pub(crate) units: Vec<GoingUnit>,
    pub(crate) volumes: Vec<GoingVolume>,
    /// Hosts whose engines do not say which volumes they have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unknown: Vec<UnknownVolumes>,
}

/// A unit that would be removed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GoingUnit {
    pub(crate) id: Text,
    pub(crate) host: Text,
}

/// A volume that was made for the stack.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GoingVolume {
    pub(crate) name: Text,
    pub(crate) host: Text,
    /// Whether it would be removed.
    pub(crate) removed: bool,
}

/// A host of which nothing is known.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UnknownVolumes {
    pub(crate) host: Text,
    pub(crate) error: String,
}

/// What the engine of a host has.
struct HostVolumes {
    uuid: Text,
    name: Text,
    found: Result<Vec<Text>, EngineError>,
}

impl Starter {
    /// What the removal of a stack would remove.
    ///
    /// # Errors
    ///
    /// Fails if there is none of this name, or the subject may not remove it.
    pub(crate) async fn preview_down(
        self: &Arc<Self>,
        name: &Text,
        volumes: bool,
        subject: &Subject,
    ) -> Result<DownPreview, Refusal> {
        self.placer().permit_stack(name, subject)?;
        let found = self.volumes_of(name).await;
        if volumes {
            self.permit_volumes(name, &found, subject)?;
        }
        let Seen { record, world, .. } = self.see_stack(name)?;
        let inventory = self.placer().inventory();
        let host = |uuid: &Text| if uuid.is_empty() { Text::default() } else { inventory.hosts().name_of(uuid) };
        let units = world.units.iter().map(|unit| GoingUnit { id: unit.id.clone(), host: host(&unit.host) }).collect();
        let revision = record.stack.revision;
        let mut preview = DownPreview { name: name.clone(), revision, units, volumes: Vec::new(), unknown: Vec::new() };
        for host in found {
            match host.found {
                Ok(names) => preview.volumes.extend(names.into_iter().map(|volume| GoingVolume {
                    removed: volumes && self.other_user((name, &volume), &host.uuid).is_none(),
                    name: volume,
                    host: host.name.clone(),
                })),
                Err(error) => preview.unknown.push(UnknownVolumes { host: host.name, error: error.to_string() }),
            }
        }
        Ok(preview)
    }

    /// Refuses a subject that may not use the volumes that would be removed.
    ///
    /// # Errors
    ///
    /// [`Refusal::Forbidden`] with the volume, and if there is no such stack.
    pub(crate) async fn permit_down(self: &Arc<Self>, name: &Text, subject: &Subject) -> Result<(), Refusal> {
        self.placer().permit_stack(name, subject)?;
        self.placer().stack(name, self.clock().now())?;
        let found = self.volumes_of(name).await;
        self.permit_volumes(name, &found, subject)?;
        self.with_stack(name, |memory| memory.volumes_left.clear());
        Ok(())
    }

    fn permit_volumes(&self, stack: &Text, found: &[HostVolumes], subject: &Subject) -> Result<(), Refusal> {
        let (record, _) = self.placer().stack(stack, self.clock().now())?;
        let mut names = named_in(&record);
        names.extend(found.iter().flat_map(|host| host.found.iter().flatten()).map(ToString::to_string));
        let mounts: Vec<Value> = names.iter().map(|name| Value::text(format!("{name}:/volume"))).collect();
        for some in mounts.chunks(LIST_MAX) {
            let volumes = Value::list(some.iter().cloned());
            let asked = Map::new(vec![("stack".into(), Value::Text(stack.clone())), ("volumes".into(), volumes)]);
            let request = Request::parse(&asked.into())?;
            self.placer().permit(&Request { subject: subject.clone(), ..request })?;
        }
        Ok(())
    }

    /// Removes the volumes that were made for a stack; returns whether none is left.
    pub(super) async fn remove_volumes(self: &Arc<Self>, stack: &Text) -> bool {
        let mut left = Vec::new();
        for host in self.volumes_of(stack).await {
            match host.found {
                Err(error) => left.push(format!("whether {} has volumes of it is not known: {error}", host.name)),
                Ok(names) => {
                    for name in names {
                        if let Some(other) = self.other_user((stack, &name), &host.uuid) {
                            // Also when that one is gone: what it wrote there is not this stack's.
                            info!(%stack, host = %host.name, volume = %name, %other, "a volume of the stack stays, something else has it");
                            self.placer().audit().put(&AuditLine {
                                request: stack_id(stack),
                                hosts: vec![host.name.clone()],
                                reason: format!("volume {name}: {other} has it"),
                                ..AuditLine::new(Action::Stack, &Subject::own(), "volume stays")
                            });
                            continue;
                        }
                        let removed = self.remove_volume(stack, &host.uuid, &name).await;
                        let outcome = if removed.is_ok() { "volume removed" } else { "volume not removed" };
                        let why = removed.as_ref().err().map(|error| format!(": {error}")).unwrap_or_default();
                        self.placer().audit().put(&AuditLine {
                            request: stack_id(stack),
                            hosts: vec![host.name.clone()],
                            reason: format!("volume {name}{why}"),
                            ..AuditLine::new(Action::Stack, &Subject::own(), outcome)
                        });
                        match removed {
                            Ok(()) => info!(%stack, host = %host.name, volume = %name, "removed a volume of the stack"),
                            Err(error) => left.push(format!("volume {name} of {} is not removed: {error}", host.name)),
                        }
                    }
                }
            }
        }
        let is_done = left.is_empty();
        if !is_done {
            warn!(%stack, why = %left[0], count = left.len(), "volumes of the stack are still there");
            let more = left.len().saturating_sub(REASONS_SHOWN);
            left.truncate(REASONS_SHOWN);
            left.extend((more > 0).then(|| format!("and {more} more")));
        }
        self.with_stack(stack, |memory| memory.volumes_left = left);
        is_done
    }

    /// What else has a volume of this name on a host: a placement that is not of this stack and mounts it, or another stack that names it.
    fn other_user(&self, (stack, volume): (&str, &str), host: &Text) -> Option<Text> {
        self.placer().with_any(self.clock().now(), |book| {
            let others =
                book.records().filter(|(_, record)| record.unit.as_ref().is_none_or(|unit| *unit.stack != *stack));
            let there = others.filter(|(_, record)| record.replicas.iter().any(|replica| replica.host == *host));
            let mut users = there
                .filter(|(_, record)| members_of(&record.asked).flat_map(mounts_of).any(|mounted| mounted == volume));
            let user = users.next().map(|(id, _)| id.clone());
            // A stack that has no unit just now has stored data all the same.
            let mut stacks = book.stack_names().filter(|other| ***other != *stack);
            user.or_else(|| {
                let names = |other: &&Text| book.stack(other).is_some_and(|record| is_named_in(record, volume));
                stacks.find(names).map(|other| format!("stack {other}").into())
            })
        })
    }

    async fn remove_volume(self: &Arc<Self>, stack: &Text, host: &Text, name: &Text) -> Result<(), EngineError> {
        let (docker, _) = self.docker(host)?;
        let (starter, stack) = (self.clone(), stack.clone());
        // Another scheduler may have taken over, and somebody may want the stack again.
        let may = move || {
            let goes = |record: &StackRecord| record.stack.removing && record.stack.volumes;
            let (placer, now) = (starter.placer(), starter.clock().now());
            placer.may_act(&stack_id(&stack), false, now)
                && placer.with_any(now, |book| book.stack(&stack).is_some_and(goes))
        };
        docker.guarded(may).remove_volume(name).await
    }

    /// The volumes that were made for a stack, by host; hosts without any are left out.
    async fn volumes_of(self: &Arc<Self>, stack: &Text) -> Vec<HostVolumes> {
        let Some(ledger) = self.placer().ledger().name() else { return Vec::new() };
        let inventory = self.placer().inventory();
        let hosts = inventory.hosts();
        let all = 0..u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let known =
            all.map(|host| hosts.facts(host)).filter(|facts: &&Facts| self.placer().endpoint(&facts.uuid).is_ok());
        let known: Vec<(Text, Text)> = known.map(|facts| (facts.uuid.clone(), facts.name.clone())).collect();
        let asking = known.into_iter().map(|(uuid, name)| {
            let (starter, ledger, stack) = (self.clone(), ledger.clone(), stack.clone());
            async move {
                let asked = async {
                    let (docker, _) = starter.docker(&uuid)?;
                    docker.answers().await?;
                    docker.volumes_with(&labels(&stack, &ledger)).await
                };
                let found = asked.await;
                HostVolumes { uuid, name, found }
            }
        });
        let mut found: Vec<HostVolumes> = stream::iter(asking).buffer_unordered(ASKED_AT_ONCE).collect().await;
        found.retain(|host| !matches!(&host.found, Ok(names) if names.is_empty()));
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found
    }
}

/// The containers of a request: its own fields, and its sidekicks.
fn members_of(request: &Map) -> impl Iterator<Item = &Map> {
    std::iter::once(request).chain(request.list("sidekicks").iter().filter_map(Value::as_map))
}

/// The names of volumes that a container mounts.
fn mounts_of(member: &Map) -> impl Iterator<Item = &str> {
    member.list("volumes").iter().filter_map(Value::as_str).filter_map(named_volume)
}

/// Whether a revision of a stack mounts a volume of this name, with any index.
fn is_named_in(record: &StackRecord, volume: &str) -> bool {
    let is_it = |service: &Service, name: &str| match name.split_once(INDEX) {
        None => name == volume,
        Some((before, after)) => {
            let index = volume.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            // Of a global service it is a host's name.
            let fits = |index: &str| service.global || index.bytes().all(|byte| byte.is_ascii_digit());
            index.is_some_and(|index| !index.is_empty() && fits(index))
        }
    };
    let names = |service: &Service| members_of(&service.request).flat_map(mounts_of).any(|name| is_it(service, name));
    services_of(record).any(names)
}

/// The services of all revisions of a stack.
fn services_of(record: &StackRecord) -> impl Iterator<Item = &Service> {
    let current = record.stack.services.iter().map(|rollout| &rollout.wanted);
    record.history.iter().flat_map(|revision| &revision.services).chain(current)
}

/// The names of volumes in all revisions of a stack, with any index.
fn named_in(record: &StackRecord) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for service in services_of(record) {
        for member in members_of(&service.request) {
            let external = member.list("external_volumes");
            let own = mounts_of(member).filter(|name| !external.iter().any(|other| other.as_str() == Some(name)));
            names.extend(own.map(|name| name.replace(INDEX, "1")));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::store::changed;
    use std::time::Duration;

    #[test]
    fn volumes_of_all_revisions_are_named() {
        let service = |volumes: serde_json::Value| {
            let request = serde_json::json!({ "service": "db", "image": "i", "volumes": volumes,
                "external_volumes": ["theirs"], "sidekicks": [{ "name": "log", "image": "i", "volumes": ["log:/log"] }] });
            Service::parse(&serde_json::from_value(request).unwrap()).unwrap()
        };
        let first = service(serde_json::json!(["old:/a", "/srv:/b"]));
        let second = service(serde_json::json!(["shop-data-${index}:/a", "theirs:/b"]));
        let (name, rules) = (Text::from("shop"), (false, false));
        let by = Subject::own();
        let record = changed(None, (&name, vec![first]), rules, &by, Duration::ZERO);
        let record = changed(Some(&record), (&name, vec![second]), rules, &by, Duration::ZERO);
        assert_eq!(named_in(&record).into_iter().collect::<Vec<_>>(), ["log", "old", "shop-data-1"]);
        for (volume, named) in [
            ("old", true),
            ("log", true),
            ("theirs", true),
            ("shop-data-12", true),
            ("shop-data-", false),
            ("shop-data-x", false),
            ("b", false),
        ] {
            assert_eq!(is_named_in(&record, volume), named, "{volume}");
        }
    }
}
