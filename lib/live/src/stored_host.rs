//! This host's own document on disk, for a start while its engine does not answer: others would drop the host otherwise.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Map, Text, Value};
use source::{StateDir, Store};
use tracing::warn;

use crate::host::HostDocument;

/// The file inside the state directory.
const FILE: &str = "host.json";

/// After a save nothing is saved for this many times what it took, within the bounds below.
const SAVE_REST: u32 = 20;
const SAVE_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// How long nothing is saved after a save that took so long.
pub(crate) fn rest_after(took: Duration) -> Duration {
    (took * SAVE_REST).clamp(SAVE_INTERVAL.0, SAVE_INTERVAL.1)
}

/// The document that was stored last; `None` if there is none, or if this host is to have another name now. Blocks.
pub(crate) fn load(state: &StateDir, name: Option<&Text>) -> Option<HostDocument> {
    let stored: Map = serde_json::from_slice(&state.load_contents(FILE)?).ok()?;
    let host = stored.text("host")?.clone();
    name.is_none_or(|name| *name == host).then(|| HostDocument { host, document: stored, defects: Vec::new() })
}

/// Stores each document that is published. Never ends; drop it to stop.
///
/// # Cancel safety
///
/// May be dropped at any time; a save under way completes on its own thread.
pub(crate) fn keep(state: StateDir, documents: Arc<Store<HostDocument>>) -> impl Future<Output = ()> + Send {
    // From the call on, so that no document is missed that is published before the task runs.
    let mut watcher = documents.watch();
    async move {
        loop {
            watcher.changed().await;
            let (state, known) = (state.clone(), documents.load_full());
            let begun = Instant::now();
            let saved = tokio::task::spawn_blocking(move || {
                let contents = serde_json::to_vec(&Value::Map(known.document.clone()))?;
                state.save_contents(FILE, &contents)
            });
            if let Ok(Err(error)) = saved.await {
                warn!(%error, "cannot store this host's document on disk");
            }
            tokio::time::sleep(rest_after(begun.elapsed())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_published_last_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path().join("state")).unwrap();
        assert_eq!(load(&state, None), None);
        let documents = Arc::new(Store::new(HostDocument::default()));
        let keeping = tokio::spawn(keep(state.clone(), documents.clone()));
        let text = r#"{"host": "box", "hosts": [{"name": "box"}], "containers": [{"name": "c", "host": "box"}]}"#;
        let document: Map = serde_json::from_str(text).unwrap();
        let published = HostDocument { host: "box".into(), document, defects: Vec::new() };
        documents.publish(Arc::new(published.clone()));
        while load(&state, None).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        keeping.abort();
        assert_eq!(load(&state, None).as_ref(), Some(&published));
        assert_eq!(load(&state, Some(&"box".into())), Some(published));
        assert_eq!(load(&state, Some(&"other".into())), None, "it has another name now");
    }
}
