//! The document of one host and its containers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use model::{Defect, Map, Text, Value};
use source::Store;

/// What a host says of itself beside what its engine knows.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Its name, unique among all hosts; the engine's when it is not given.
    pub name: Option<Text>,
    /// Labels beside those of the engine, which they replace.
    pub labels: Vec<(Text, Text)>,
    /// Folder with files of labels, which replace those too; they are read again when they change.
    pub label_files: Option<PathBuf>,
    /// Address under which other hosts reach it.
    pub public_ip: Option<IpAddr>,
    /// Name of the environment that it belongs to.
    pub environment: Option<Text>,
}

/// The cluster document that a host publishes about itself (docs/document.md): one host and what runs on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostDocument {
    /// Name of the host; `document` lists exactly this one.
    pub host: Text,
    /// The document: `environment`, `host`, `hosts`, `networks`, `services`, `containers`.
    pub document: Map,
    /// What was left out, with the reason.
    pub defects: Vec<Defect>,
    /// What the `HEALTHCHECK`s that fail wrote last, by the uuids of their containers. It may have secrets, so that it is no part of
    /// the document: only this host shows it.
    pub outputs: BTreeMap<Text, Text>,
}

/// What comes between the document of this host as its engine has it and the document that others read.
pub trait DocumentLayer: fmt::Debug + Send + Sync {
    /// Publishes in `to` what it makes of each document in `from`, from this call on. Never ends; drop it to stop.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    fn follow(&self, from: Arc<Store<HostDocument>>, to: Arc<Store<HostDocument>>) -> LayerTask;
}

/// A layer at work.
pub type LayerTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Most published and open ports of one container, and of one service: ranges of ports may be long, and each port is an
/// entry everywhere.
pub(crate) const PORTS_MAX: usize = 1024;

/// What is said of a host in `agent_state` while its engine does not answer; a scheduler places nothing there then.
const WITHOUT_ENGINE: &str = "without its Docker Engine";

impl HostDocument {
    /// The same while the engine does not answer: all stays as it was last known, but nothing new can be started there.
    pub(crate) fn without_engine(&self) -> Self {
        let hosts = self.document.list("hosts").iter().map(|host| match host {
            Value::Map(host) => host.with([("agent_state".into(), Value::text(WITHOUT_ENGINE))]).into(),
            other => other.clone(),
        });
        Self { document: self.document.with([("hosts".into(), Value::list(hosts))]), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_its_engine_says_so_and_what_it_said_before() {
        let map = |json: &str| serde_json::from_str::<Value>(json).unwrap().as_map().unwrap().clone();
        let document = map(r#"{"host": "a", "hosts": [{"name": "a", "memory": 5}], "containers": [{"name": "c"}]}"#);
        let known = HostDocument { host: "a".into(), document, ..HostDocument::default() };
        let away = known.without_engine();
        assert_eq!((away.without_engine(), &away.host), (away.clone(), &known.host));
        assert_eq!(away.document.list("containers"), known.document.list("containers"));
        let host = away.document.list("hosts")[0].as_map().unwrap();
        assert_eq!((host.int("memory"), host.text("agent_state").map(|text| &**text)), (Some(5), Some(WITHOUT_ENGINE)));
    }
}
