//! This host's own document on disk, for a start while its engine does not answer: others would drop the host otherwise.

use std::sync::Arc;

use model::{Map, Text, Value};
use source::{StateDir, Store};

use crate::host::HostDocument;

/// The file inside the state directory.
const FILE: &str = "host.json";

/// The document that was stored last; `None` if there is none, or if this host is to have another name now. Blocks.
pub(crate) fn load(state: &StateDir, name: Option<&Text>) -> Option<HostDocument> {
    let stored: Map = serde_json::from_slice(&state.load_contents(FILE)?).ok()?;
    let host = stored.text("host")?.clone();
    name.is_none_or(|name| *name == host).then(|| HostDocument { host, document: stored, ..HostDocument::default() })
}

/// Stores each document that is published, as [`source::state::keep`] does it.
pub(crate) fn keep(state: StateDir, documents: Arc<Store<HostDocument>>) -> impl Future<Output = ()> + Send {
    source::state::keep(documents, "this host's document", move |known: &HostDocument| {
        state.save_contents(FILE, &serde_json::to_vec(&Value::Map(known.document.clone()))?)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let published = HostDocument { host: "box".into(), document, ..HostDocument::default() };
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
