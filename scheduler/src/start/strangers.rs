//! Containers that by their labels a scheduler started and of which the ledger knows nothing: what a scheduler began that was
//! overtaken, or what was forgotten with a record.
//!
//! They are reported. With `--sweep` they are removed, if they have the label of this very ledger: an engine may be shared
//! with the schedulers of another one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use engine::EngineError;
use model::Text;
use model::printable::printable;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::audit::line::{Action, AuditLine};
use crate::ledger::book::Book;
use crate::lock::lock;
use crate::start::Starter;
use crate::start::docker::{DockerEngine, ListedContainer, REQUEST_LABEL};
use crate::subject::Subject;

/// For how many seconds a container is a stranger before it is removed, if nothing else is said: far longer than a ledger
/// takes to learn what another scheduler wrote, and long enough for a person who reads the log.
pub(crate) const SWEEP_AFTER: &str = "600";

/// Longest label in the log, in characters: any client can set one.
const SHOWN_MAX: usize = 100;

/// A container that the ledger does not know.
#[derive(Debug)]
pub(super) struct Stranger {
    since: Instant,
    /// Whether it was seen at one look only: what a start or a removal is about to change is found once.
    is_new: bool,
    is_being_removed: bool,
}

impl Stranger {
    fn new() -> Self {
        Self { since: Instant::now(), is_new: true, is_being_removed: false }
    }
}

impl Starter {
    /// Takes note of what an engine has that the ledger does not know.
    pub(super) fn meet(self: &Arc<Self>, host: &Text, docker: &Arc<DockerEngine>, found: &[ListedContainer]) {
        self.remove_left(host, docker);
        self.report_strangers(host, found);
        let due = self.due_strangers(host, found);
        if due.is_empty() {
            return;
        }
        let (starter, host, docker) = (self.clone(), host.clone(), docker.clone());
        self.tasks.spawn(async move {
            for one in due {
                starter.remove_stranger(&host, &docker, &one).await;
            }
        });
    }

    /// Logs strangers; labels prove nothing, and another ledger may know them. Returns those that were logged now.
    pub(super) fn report_strangers(&self, host: &Text, found: &[ListedContainer]) -> Vec<Text> {
        let working: HashSet<Text> = lock(&self.jobs).keys().cloned().collect();
        let is_strange = |book: &Book, one: &&ListedContainer| {
            one.request.as_ref().is_some_and(|id| !working.contains(id) && !book.may_know(id))
        };
        let strangers: Vec<_> = self
            .placer
            .with_any(self.clock.now(), |book| found.iter().filter(|one| is_strange(book, one)).cloned().collect());
        let mut all = lock(&self.strangers);
        let mut before = all.remove(host).unwrap_or_default();
        let (mut now, mut logged) = (HashMap::new(), Vec::new());
        for one in strangers {
            let known = before.remove(&one.id);
            let is_second = known.as_ref().is_some_and(|known| known.is_new);
            let stranger = known.map_or_else(Stranger::new, |known| Stranger { is_new: false, ..known });
            now.insert(one.id.clone(), stranger);
            if is_second {
                logged.push(one);
            }
        }
        if !now.is_empty() {
            all.insert(host.clone(), now);
        }
        drop(all);
        let own = self.placer.ledger().name();
        let report = |one: ListedContainer| {
            let is_own = own.is_some() && one.ledger == own;
            let (id, container) = (one.request.unwrap_or_default(), one.id);
            let [id_shown, name] = [&id, &one.placement.unwrap_or_default()].map(|text| printable(text, SHOWN_MAX));
            let advice = match (is_own, self.access.sweep_after) {
                (true, Some(_)) => "it will be removed",
                (true, None) => "remove it by hand, or let --sweep do so",
                (false, _) => "it has no label of this ledger, so unless another one has it, remove it by hand",
            };
            warn!(
                id = id_shown, name, %container, %host, state = %one.state,
                "this container has the label {REQUEST_LABEL}, and the ledger has no such placement: {advice}"
            );
            container
        };
        logged.into_iter().map(report).collect()
    }

    /// The strangers of this ledger that are to be removed now, which they are marked for.
    fn due_strangers(&self, host: &Text, found: &[ListedContainer]) -> Vec<ListedContainer> {
        let (Some(after), Some(ledger)) = (self.access.sweep_after, self.placer.ledger().name()) else {
            return Vec::new();
        };
        let mut all = lock(&self.strangers);
        let Some(known) = all.get_mut(host) else { return Vec::new() };
        let mut is_due = |one: &&ListedContainer| {
            let is_own = one.ledger.as_ref() == Some(&ledger);
            known.get_mut(&one.id).filter(|_| is_own).is_some_and(|stranger| {
                let due = !stranger.is_new && !stranger.is_being_removed && stranger.since.elapsed() >= after;
                stranger.is_being_removed |= due;
                due
            })
        };
        found.iter().filter(|one| is_due(one)).cloned().collect()
    }

    async fn remove_stranger(&self, host: &Text, docker: &DockerEngine, one: &ListedContainer) {
        let (id, container) = (one.request.clone().unwrap_or_default(), &one.id);
        let removed = self.sweep_away(docker, one).await;
        match &removed {
            Ok(true) => {
                let name = self
                    .placer
                    .inventory()
                    .hosts()
                    .index(host)
                    .map(|at| self.placer.inventory().hosts().facts(at).name.clone());
                self.placer.audit().put(&AuditLine {
                    request: id.clone(),
                    hosts: vec![name.unwrap_or_else(|| host.clone())],
                    reason: format!("the ledger has no such placement: container {container}"),
                    ..AuditLine::new(Action::Sweep, &Subject::own(), "removed")
                });
                let id = printable(&id, SHOWN_MAX);
                warn!(id, %container, %host, "removed a container of this ledger whose placement it does not have");
            }
            Ok(false) => debug!(%container, %host, "a container is not swept after all"),
            Err(error) => warn!(%container, %host, %error, "a container could not be swept, which is tried again"),
        }
        if removed.is_err()
            && let Some(stranger) = lock(&self.strangers).get_mut(host).and_then(|known| known.get_mut(container))
        {
            *stranger = Stranger { since: Instant::now(), is_being_removed: false, ..*stranger };
        }
    }

    /// Stops and removes a stranger; `false` if it is none of this ledger's when looked at closely.
    async fn sweep_away(&self, docker: &DockerEngine, one: &ListedContainer) -> Result<bool, EngineError> {
        let (store, id) = (self.placer.ledger().store(), one.request.clone().unwrap_or_default());
        let docker = match store.shared().cloned() {
            Some(shared) => {
                let unknown =
                    |why| EngineError::Failed(format!("it is not known whether {id} is in the ledger: {why}"));
                shared.look_up(&id).await.map_err(unknown)?;
                docker.guarded(move || shared.holds_lease())
            }
            None => docker.clone(),
        };
        // What an image brings is no sign of a scheduler, and its author would choose whose container is removed.
        let found = match docker.find(&one.id).await {
            Err(EngineError::Absent(_)) => return Ok(false),
            found => found?,
        };
        if !docker.is_ledger_given(&found).await?
            || self.placer.with_any(self.clock.now(), |book| book.may_know(&id))
            || lock(&self.jobs).contains_key(&id)
        {
            return Ok(false);
        }
        docker.stop(&found, None).await?;
        docker.remove(&found.id).await?;
        Ok(true)
    }
}
