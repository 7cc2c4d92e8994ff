//! Verdicts as part of what all services read: over the document of this host, or over whole snapshots.

use std::sync::{Arc, Mutex, PoisonError};

use health::Outputs;
use health::verdict::Quorum;
use health::verdicts::{Verdicts, Word};
use live::{DocumentLayer, HostDocument, LayerTask};
use model::checkers::{ALL, CHECKER, CHECKS, QUORUM, SUSPECT};
use model::{Change, Container, Defect, Entity as _, Map, Snapshot, Text, Value, changes};
use source::{Revision, Store, Watcher};

/// Lays verdicts over the document of this host.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) verdicts: Arc<Store<Verdicts>>,
    /// Whether this host checks containers of others too, and says so, and how many checkers of its own have to agree.
    pub(super) checks_others: Option<Quorum>,
    /// What is passed on to people here alone.
    pub(super) outputs: Arc<Store<Outputs>>,
}

impl DocumentLayer for Own {
    fn follow(&self, from: Arc<Store<HostDocument>>, to: Arc<Store<HostDocument>>) -> LayerTask {
        let (verdicts, checks_others, outputs) = (self.verdicts.clone(), self.checks_others, self.outputs.clone());
        Box::pin(follow(from, verdicts, to, move |document, verdicts, before| {
            if outputs.load().0 != document.outputs {
                outputs.publish(Arc::new(Outputs(document.outputs.clone())));
            }
            let laid = laid(document, verdicts, checks_others);
            (*before != laid).then_some(laid)
        }))
    }
}

/// Publishes in `to` the snapshots in `from` with the verdicts about their containers. Never ends; drop it to stop.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub(super) fn lay_over_snapshots(
    from: Arc<Store<Snapshot>>,
    verdicts: Arc<Store<Verdicts>>,
    to: Arc<Store<Snapshot>>,
) -> impl Future<Output = ()> + Send {
    let laying = Arc::new(Mutex::new(Laying::default()));
    follow(from, verdicts, to, move |snapshot, verdicts, before| {
        let mut laying = laying.lock().unwrap_or_else(PoisonError::into_inner);
        // One that panics begins from nothing the next time.
        *laying = std::mem::take(&mut *laying).next(snapshot, verdicts);
        let laid = &laying.laid;
        (before != laid).then(|| laid.clone())
    })
}

/// Publishes what `lay` makes of each publication, and of the verdicts whenever these change.
fn follow<T: Send + Sync + 'static>(
    from: Arc<Store<T>>,
    verdicts: Arc<Store<Verdicts>>,
    to: Arc<Store<T>>,
    lay: impl Fn(&T, &Arc<Verdicts>, &T) -> Option<T> + Clone + Send + Sync + 'static,
) -> impl Future<Output = ()> + Send {
    // Registered by the call itself: a task that waits for the store to settle waits for this too.
    let (follower, mut watcher, mut changes) = (from.follower(), from.watch(), verdicts.watch());
    async move {
        let mut revision = watcher.seen();
        loop {
            if revision > Revision::NONE {
                let (input, verdicts, to) = (from.load_full(), verdicts.load_full(), to.clone());
                let (settled, lay) = (to.clone(), lay.clone());
                let laid = tokio::task::spawn_blocking(move || {
                    if let Some(laid) = lay(&input, &verdicts, &to.load_full()) {
                        to.publish(Arc::new(laid));
                    }
                });
                if laid.await.is_err() {
                    tracing::error!("laying verdicts over the cluster failed; what was published before stays");
                }
                settled.settled().await;
                follower.reached(revision);
            }
            either(&mut watcher, &mut changes).await;
            revision = watcher.seen();
            changes.seen();
        }
    }
}

async fn either(one: &mut Watcher, other: &mut Watcher) {
    tokio::select! {
        () = one.changed() => {}
        () = other.changed() => {}
    }
}

/// The document of this host with the verdicts about its containers, and whether it `checks_others`, with which quorum; a check that is
/// wrong is a defect of it.
fn laid(document: &HostDocument, verdicts: &Verdicts, checks_others: Option<Quorum>) -> HostDocument {
    const CONTAINERS: &str = "containers";
    const HOSTS: &str = "hosts";
    let mut defects = document.defects.clone();
    let mut lay = |fields: &Map| {
        verdicts.over(fields, Word::OfEngine).unwrap_or_else(|problem| {
            let name = fields.text("name").or_else(|| fields.text("uuid")).map_or("", |name| &**name);
            let problem = format!("{problem}; it is not checked");
            defects.push(Defect::ignored(format!("containers/{name}/health_check"), problem));
            None
        })
    };
    let containers =
        document.document.list(CONTAINERS).iter().map(|container| match container.as_map().map(&mut lay) {
            Some(Some(laid)) => Value::Map(laid),
            _ => container.clone(),
        });
    let containers = Value::list(containers.collect::<Vec<_>>());
    // What does not list containers has none.
    let has_some = document.document.get(CONTAINERS).is_some();
    let changes = has_some.then(|| (Text::from(CONTAINERS), containers));
    let word = if verdicts.is_suspect { SUSPECT } else { CHECKS };
    let wants_all = (checks_others == Some(Quorum::All)).then(|| (Text::from(QUORUM), Value::text(ALL)));
    let words: Vec<(Text, Value)> = [(CHECKER.into(), Value::text(word))].into_iter().chain(wants_all).collect();
    let hosts = document.document.list(HOSTS).iter().map(|host| match host.as_map() {
        Some(host) => host.with(words.clone()).into(),
        None => host.clone(),
    });
    let hosts = checks_others.is_some().then(|| (Text::from(HOSTS), Value::list(hosts.collect::<Vec<_>>())));
    let changes = changes.into_iter().chain(hosts);
    HostDocument { document: document.document.with(changes), defects, ..document.clone() }
}

/// A snapshot, the verdicts about its containers, and both in one. The next one costs what has changed.
#[derive(Default)]
struct Laying {
    snapshot: Snapshot,
    verdicts: Arc<Verdicts>,
    laid: Snapshot,
}

impl Laying {
    fn next(self, snapshot: &Snapshot, verdicts: &Arc<Verdicts>) -> Self {
        let mut containers = self.laid.containers;
        let mut lay = |container: &Arc<Container>| {
            let laid = with_verdict(container, verdicts);
            if containers.get(container.id()).is_none_or(|there| *there != laid) {
                containers.insert(laid);
            }
        };
        let mut gone = Vec::new();
        for change in changes(&self.snapshot.containers, &snapshot.containers) {
            match change {
                Change::Added(new) | Change::Changed { new, .. } => lay(new),
                Change::Removed(old) => gone.push(old.id().clone()),
            }
        }
        for uuid in verdicts.differences(&self.verdicts) {
            if let Some(container) = snapshot.containers.get(uuid) {
                lay(container);
            }
        }
        for uuid in gone {
            containers.remove(&uuid);
        }
        let laid = Snapshot { is_panic: containers.shares().is_cluster_panic(), containers, ..snapshot.clone() };
        Self { snapshot: snapshot.clone(), verdicts: verdicts.clone(), laid }
    }
}

/// A container with the verdict about it. If its check is wrong, which is in the log of the checks, it counts as unchecked.
fn with_verdict(container: &Arc<Container>, verdicts: &Verdicts) -> Arc<Container> {
    let fields = verdicts.over(container.fields(), Word::ToBeginWith).ok().flatten();
    let laid = fields.and_then(|fields| Container::new(fields, container.links().clone()));
    laid.filter(|laid| *laid != **container).map_or_else(|| container.clone(), Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use health::verdict::HealthState;
    use health::verdicts::Verdict;

    fn map(json: &str) -> Map {
        serde_json::from_str(json).unwrap()
    }

    const LABELS: &str = r#""labels": {"io.berth.health.port": "80"}"#;

    fn document(containers: &str) -> HostDocument {
        let document = map(&format!(r#"{{"host": "h", "containers": [{containers}]}}"#));
        HostDocument { host: "h".into(), document, ..HostDocument::default() }
    }

    fn healthy(uuid: &str) -> Verdicts {
        let mut verdicts = Verdicts::default();
        verdicts.insert(uuid.into(), Verdict { state: HealthState::Healthy, start: 0 });
        verdicts
    }

    #[test]
    fn verdicts_are_in_the_document_of_this_host_and_wrong_checks_are_its_defects() {
        let containers = format!(
            r#"{{"uuid": "a", {LABELS}}}, {{"uuid": "b", {LABELS}}}, {{"uuid": "c"}},
               {{"uuid": "d", "name": "db", "labels": {{"io.berth.health.port": "x"}}}}"#
        );
        let laid = laid(&document(&containers), &healthy("a"), None);
        let states = laid
            .document
            .list("containers")
            .iter()
            .map(|one| one.as_map().unwrap().text("health_state").map(ToString::to_string));
        assert_eq!(states.collect::<Vec<_>>(), [Some("healthy".into()), Some("initializing".into()), None, None]);
        let defects: Vec<_> = laid.defects.iter().map(ToString::to_string).collect();
        assert!(defects.len() == 1 && defects[0].contains("db") && defects[0].contains("port"), "{defects:?}");
    }

    #[test]
    fn a_document_without_containers_stays_as_it_is() {
        let plain = HostDocument { host: "h".into(), document: map(r#"{"host": "h"}"#), ..HostDocument::default() };
        assert_eq!(laid(&plain, &healthy("a"), None), plain);
    }

    #[test]
    fn a_host_that_checks_others_says_so_and_whether_it_doubts_itself() {
        let json = r#"{"host": "h", "hosts": [{"name": "h"}]}"#;
        let plain = HostDocument { host: "h".into(), document: map(json), ..HostDocument::default() };
        let words = |is_suspect, checks_others| {
            let mut verdicts = Verdicts::default();
            verdicts.is_suspect = is_suspect;
            let laid = laid(&plain, &verdicts, checks_others);
            let host = laid.document.list("hosts")[0].as_map().unwrap().clone();
            [CHECKER, QUORUM].map(|field| host.text(field).map_or_else(String::new, ToString::to_string)).join(" ")
        };
        assert_eq!(words(false, Some(Quorum::Majority)), "made ");
        assert_eq!(words(true, Some(Quorum::All)), "suspect all");
        assert_eq!(words(true, None), " ");
    }

    #[test]
    fn what_changes_is_laid_as_all_of_it_would_be() {
        use HealthState::{Healthy, Unhealthy};
        let container = |uuid: &str, more: &str| {
            let fields = map(&format!(r#"{{"uuid": "{uuid}", "health_check": {{"port": 80}}{more}}}"#));
            Arc::new(Container::new(fields, Map::default()).unwrap())
        };
        let of = |containers: &[Arc<Container>]| {
            let mut snapshot = Snapshot::default();
            for container in containers {
                snapshot.containers.insert(container.clone());
            }
            snapshot
        };
        let said = |states: &[(&str, HealthState)]| {
            let mut verdicts = Verdicts::default();
            for (uuid, state) in states {
                verdicts.insert((*uuid).into(), Verdict { state: *state, start: 0 });
            }
            Arc::new(verdicts)
        };
        let [a, b, c] = ["a", "b", "c"].map(|uuid| container(uuid, ""));
        let unchecked = Arc::new(Container::new(map(r#"{"uuid": "b"}"#), Map::default()).unwrap());
        let wrong = container("c", r#", "labels": {"io.berth.health.port": "x"}"#);
        let started = container("a", r#", "start_count": 1"#);
        let steps = [
            (of(&[a.clone(), b.clone()]), said(&[])),
            (of(&[a.clone(), b.clone()]), said(&[("a", Healthy)])),
            (of(&[a.clone(), b.clone(), c.clone()]), said(&[("a", Healthy), ("b", Unhealthy)])),
            (of(&[a.clone(), unchecked, c]), said(&[("a", Healthy), ("b", Unhealthy), ("c", Healthy)])),
            (of(&[a, wrong]), said(&[("a", Unhealthy)])),
            (of(&[started, b]), said(&[("a", Healthy), ("b", Healthy)])),
            (of(&[]), said(&[("a", Healthy)])),
        ];
        let mut laying = Laying::default();
        for (at, (snapshot, verdicts)) in steps.iter().enumerate() {
            let before = laying.laid.clone();
            laying = laying.next(snapshot, verdicts);
            let from_nothing = Laying::default().next(snapshot, verdicts).laid;
            assert!(
                laying.laid == from_nothing && laying.laid.containers.len() == snapshot.containers.len(),
                "step {at}"
            );
            assert!(at == 0 || laying.laid != before, "step {at}");
            // What is as before is shared.
            let same = laying.laid.containers.values().filter(|own| before.containers.get(own.id()) == Some(*own));
            let same: Vec<_> = same.collect();
            assert!(same.iter().all(|own| Arc::ptr_eq(own, &before.containers[own.id()])), "step {at}");
            assert!(at != 1 || same.len() == 1, "step {at}");
        }
    }

    #[tokio::test]
    async fn a_verdict_is_in_the_next_snapshot() {
        let [from, to] = [(), ()].map(|()| Arc::new(Store::new(Snapshot::default())));
        let verdicts = Arc::new(Store::new(Verdicts::default()));
        let running = tokio::spawn(lay_over_snapshots(from.clone(), verdicts.clone(), to.clone()));
        let mut snapshot = Snapshot::default();
        let fields = map(r#"{"uuid": "a", "health_check": {"port": 80}, "health_state": "unhealthy"}"#);
        snapshot.containers.insert(Container::new(fields, Map::default()).unwrap().into());
        from.publish(Arc::new(snapshot));
        from.settled().await;
        let state = || to.load().containers["a"].health_state().map(ToOwned::to_owned);
        assert_eq!(state().as_deref(), Some("unhealthy"));
        let mut changed = to.watch();
        changed.seen();
        verdicts.publish(Arc::new(healthy("a")));
        changed.changed().await;
        assert_eq!(state().as_deref(), Some("healthy"));
        running.abort();
    }
}
