//! Old images are removed from engines: of each repository the newest ones stay, and all that a container or a placement has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::EngineError;
use model::{Map, Text, Value};
use serde::Serialize;
use tokio::task::JoinSet;
use tracing::info;

use crate::place::refusal::Refusal;
use crate::start::Starter;

/// An image that an engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredImage {
    pub(crate) id: String,
    /// `REPOSITORY:TAG`
    pub(crate) tags: Vec<String>,
    /// `REPOSITORY@DIGEST`
    pub(crate) digests: Vec<String>,
    /// When it was made, in seconds since 1970.
    pub(crate) created: i64,
    pub(crate) bytes: i64,
}

/// A name that is removed, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OldImage {
    pub(crate) name: String,
    /// Bytes of the image, of which others may share a part.
    pub(crate) bytes: i64,
    /// Why it was not removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// What was done on a host.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PrunedHost {
    pub(crate) host: Text,
    pub(crate) images: Vec<OldImage>,
    /// Why its engine could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The names of images that are old: of each repository all but the newest `keep_last`, and none of an image that a container has
/// (`used`, ids) or that is asked for (`wanted`, names).
pub(crate) fn old_images(
    images: &[StoredImage],
    used: &BTreeSet<String>,
    wanted: &BTreeSet<String>,
    keep_last: usize,
) -> Vec<OldImage> {
    let mut by_repository: BTreeMap<&str, Vec<&StoredImage>> = BTreeMap::new();
    for image in images {
        let mut repositories: BTreeSet<&str> = image.tags.iter().map(|tag| repository(tag)).collect();
        repositories.extend(image.digests.iter().map(|digest| repository(digest)));
        for repository in repositories {
            by_repository.entry(repository).or_default().push(image);
        }
    }
    let mut old = Vec::new();
    for (name, mut images) in by_repository {
        // The newest first; of the same moment, in an order that does not change.
        images.sort_by(|a, b| (b.created, &b.id).cmp(&(a.created, &a.id)));
        for image in images.into_iter().skip(keep_last) {
            if used.contains(&image.id) || image.tags.iter().chain(&image.digests).any(|name| wanted.contains(name)) {
                continue;
            }
            let own = |names: &[String]| -> Vec<String> {
                names.iter().filter(|own| repository(own) == name).cloned().collect()
            };
            let tags = own(&image.tags);
            // One without a tag any more has its digest left.
            let names = if tags.is_empty() { own(&image.digests) } else { tags };
            old.extend(names.into_iter().map(|name| OldImage { name, bytes: image.bytes, error: None }));
        }
    }
    old
}

/// A name without its tag or digest.
fn repository(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let tail = name.rfind('/').map_or(0, |at| at + 1);
    name[tail..].find(':').map_or(name, |at| &name[..tail + at])
}

/// The name of an image as engines list it.
fn as_listed(name: &str) -> String {
    let plain = name.strip_prefix("docker.io/").unwrap_or(name);
    let plain = plain.strip_prefix("library/").unwrap_or(plain);
    if repository(plain) == plain { format!("{plain}:latest") } else { plain.to_owned() }
}

/// The images that a request asks for.
fn images_of(request: &Map) -> BTreeSet<String> {
    let sidekicks = request.list("sidekicks").iter().filter_map(Value::as_map);
    let name = |map: &Map| match map.get("image") {
        Some(Value::Map(image)) => image.text("name").map(|name| as_listed(name)),
        image => image.and_then(Value::as_str).map(as_listed),
    };
    std::iter::once(request).chain(sidekicks).filter_map(name).collect()
}

impl Starter {
    /// Removes old images from the engines of all hosts, or of one, or says which.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] if there is no such host with an engine that answers.
    pub(crate) async fn prune_images(
        self: &Arc<Self>,
        (keep_last, dry_run): (usize, bool),
        only: Option<&str>,
    ) -> Result<Vec<PrunedHost>, Refusal> {
        let wanted = self.wanted_images();
        let inventory = self.placer.inventory();
        let hosts = inventory.hosts();
        let mut working = JoinSet::new();
        for uuid in self.placer.with_engines(usize::MAX) {
            let Some(at) = hosts.index(&uuid) else { continue };
            let name = hosts.facts(at).name.clone();
            if only.is_some_and(|only| *only != *name && *only != *uuid) {
                continue;
            }
            let (starter, wanted) = (self.clone(), wanted.clone());
            working.spawn(async move {
                match starter.prune_host(&uuid, &wanted, (keep_last, dry_run)).await {
                    Ok(images) => PrunedHost { host: name, images, error: None },
                    Err(error) => PrunedHost { host: name, images: Vec::new(), error: Some(error.to_string()) },
                }
            });
        }
        let mut pruned = Vec::new();
        while let Some(host) = working.join_next().await {
            pruned.extend(host);
        }
        pruned.sort_by(|a, b| a.host.cmp(&b.host));
        match only {
            Some(only) if pruned.is_empty() => Err(Refusal::Unknown(format!("on a host {only} with an engine").into())),
            _ => Ok(pruned),
        }
    }

    async fn prune_host(
        &self,
        host: &str,
        wanted: &BTreeSet<String>,
        (keep_last, dry_run): (usize, bool),
    ) -> Result<Vec<OldImage>, EngineError> {
        let (docker, _) = self.docker(host)?;
        let images = docker.stored_images().await?;
        // After the images: what is made of one meanwhile is seen.
        let used = docker.used_images().await?;
        let mut old = old_images(&images, &used, wanted, keep_last);
        for image in old.iter_mut().filter(|_| !dry_run) {
            match docker.remove_image(&image.name).await {
                Ok(()) => info!(host, image = image.name, "an old image is removed"),
                Err(error) => image.error = Some(error.to_string()),
            }
        }
        Ok(old)
    }

    /// The images of all placements, and of the services of stacks as they are wanted and were before.
    fn wanted_images(&self) -> BTreeSet<String> {
        self.placer.with_any(self.clock.now(), |book| {
            let mut wanted = BTreeSet::new();
            for (_, record) in book.records() {
                wanted.extend(images_of(&record.asked));
                for rollout in record.stack.iter().flat_map(|record| &record.stack.services) {
                    for service in std::iter::once(&rollout.wanted).chain(&rollout.previous) {
                        wanted.extend(images_of(&service.request));
                    }
                }
            }
            wanted
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str], digests: &[&str], created: i64) -> StoredImage {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        StoredImage { id: id.to_owned(), tags: texts(tags), digests: texts(digests), created, bytes: 1 }
    }

    #[test]
    fn of_each_repository_the_newest_and_all_that_is_used_stays() {
        let images = [
            image("1", &["web:1"], &["web@sha256:1"], 1),
            image("2", &["web:2"], &[], 2),
            image("3", &["web:3", "web:latest", "other:5"], &[], 3),
            image("4", &["web:4"], &[], 4),
            image("5", &[], &["web@sha256:5"], 0),
            image("6", &["r.example.org:5000/a/db:1"], &[], 1),
            image("7", &[], &[], 0),
        ];
        let names = |used: &[&str], wanted: &[&str], keep: usize| -> Vec<String> {
            let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<_>>();
            old_images(&images, &texts(used), &texts(wanted), keep).into_iter().map(|old| old.name).collect()
        };
        assert_eq!(names(&[], &[], 2), ["web:2", "web:1", "web@sha256:5"]);
        assert_eq!(names(&["2"], &["web@sha256:1"], 2), ["web@sha256:5"]);
        assert_eq!(names(&[], &[], 4), ["web@sha256:5"]);
        assert_eq!(names(&["1", "2", "4", "5", "6"], &[], 0), ["other:5", "web:3", "web:latest"]);
        for (name, expected) in [
            ("web:1", "web"),
            ("r.example.org:5000/a/db:1", "r.example.org:5000/a/db"),
            ("r.example.org:5000/a/db", "r.example.org:5000/a/db"),
            ("web@sha256:1", "web"),
        ] {
            assert_eq!(repository(name), expected);
        }
        for (name, expected) in
            [("web", "web:latest"), ("docker.io/library/web:1", "web:1"), ("a/b@sha256:1", "a/b@sha256:1")]
        {
            assert_eq!(as_listed(name), expected);
        }
    }
}
