//! A host whose units of stacks are to run elsewhere before it leaves the cluster, since an operator on the host itself wants that.
//!
//! The host says so of itself, in the predecessor's word; schedulers then act as when an operator of the cluster drains it. The wish
//! lasts for as long as it is repeated: when nobody waits any more, the host stays.

use std::sync::Arc;
use std::time::Duration;

use model::Value;
use source::{Revision, Store};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::host::HostDocument;
use crate::intents::HostState;

/// How long a wish lasts that is not repeated.
const WISH_TIME: Duration = Duration::from_secs(30);

/// The wish that units leave this host. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Drain(watch::Sender<Option<Instant>>);

impl Default for Drain {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Drain {
    /// Has units leave, for some time from now on.
    pub(crate) fn want(&self) {
        self.0.send_replace(Some(Instant::now() + WISH_TIME));
    }

    /// Publishes in `to` the documents in `from`, with the state of a host that is drained for as long as that is wanted. Never ends; drop
    /// it to stop.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(crate) fn lay(
        &self,
        from: Arc<Store<HostDocument>>,
        to: Arc<Store<HostDocument>>,
    ) -> impl Future<Output = ()> + Send + use<> {
        // Registered by the call itself: a task that waits for the store to settle waits for this too.
        let (follower, mut watcher, mut wish) = (from.follower(), from.watch(), self.0.subscribe());
        async move {
            loop {
                let (revision, until) = (watcher.seen(), *wish.borrow_and_update());
                let until = until.filter(|until| Instant::now() < *until);
                if revision > Revision::NONE {
                    let document = from.load_full();
                    let laid = if until.is_some() { Arc::new(leaving(&document)) } else { document };
                    if to.revision() == Revision::NONE || *to.load_full() != *laid {
                        to.publish(laid);
                    }
                    to.settled().await;
                    follower.reached(revision);
                }
                let over = async {
                    match until {
                        Some(until) => sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = watcher.changed() => {}
                    Ok(()) = wish.changed() => {}
                    () = over => {}
                }
            }
        }
    }
}

/// The document of a host that is drained.
fn leaving(document: &HostDocument) -> HostDocument {
    let state = Value::text(HostState::Draining.on_the_wire());
    let hosts = document.document.list("hosts").iter().map(|host| match host {
        Value::Map(host) => host.with([("state".into(), state.clone())]).into(),
        other => other.clone(),
    });
    HostDocument { document: document.document.with([("hosts".into(), Value::list(hosts))]), ..document.clone() }
}

#[cfg(test)]
mod tests {
    use model::Map;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_host_is_drained_for_as_long_as_that_is_wanted() {
        let map = |json: &str| serde_json::from_str::<Map>(json).unwrap();
        let (from, to) = (Arc::new(Store::new(HostDocument::default())), Arc::new(Store::new(HostDocument::default())));
        let drain = Drain::default();
        let laying = tokio::spawn(drain.lay(from.clone(), to.clone()));
        let document = map(r#"{"host": "a", "hosts": [{"name": "a", "memory": 5}]}"#);
        let known = HostDocument { host: "a".into(), document, ..HostDocument::default() };
        from.publish(Arc::new(known.clone()));
        from.settled().await;
        assert_eq!(*to.load_full(), known);
        let state = || {
            let document = to.load_full();
            let host = document.document.list("hosts")[0].as_map().unwrap().clone();
            assert_eq!(host.int("memory"), Some(5));
            host.text("state").map(ToString::to_string)
        };
        let mut changes = to.watch();
        drain.want();
        changes.changed().await;
        assert_eq!(state().as_deref(), Some("deactivating"));
        // It is wanted again in time.
        tokio::time::sleep(WISH_TIME / 2).await;
        drain.want();
        tokio::time::sleep(WISH_TIME * 3 / 4).await;
        assert_eq!(state().as_deref(), Some("deactivating"));
        tokio::time::sleep(WISH_TIME).await;
        assert_eq!(state(), None);
        laying.abort();
    }
}
