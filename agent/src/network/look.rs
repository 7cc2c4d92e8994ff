//! The network of this host for `agent doctor`, which changes nothing and needs no state directory.

use std::path::PathBuf;

use etcd::EtcdArgs;
use live::Origin;
use live::config::Engine;
use network::claim::Claims;
use network::host::HostNetwork;
use network::plan::{self, Doubt, Facts, Plan};
use network::step::Described;
use process::Failure;

use super::this_host::Claimed;
use crate::enroll::now;

/// What is claimed and what is there.
pub(crate) struct Looked {
    pub(crate) claims: Claims,
    pub(crate) facts: Facts,
    pub(crate) plan: Plan,
}

impl Looked {
    /// What would be changed, a line for each step.
    pub(crate) fn steps(&self) -> Vec<String> {
        self.plan.steps.iter().map(|step| Described(step, &self.facts.table).to_string()).collect()
    }
}

/// Looks at the network of this host; `None` if the cluster has none.
pub(crate) async fn look(
    origin: &Origin,
    etcd: &EtcdArgs,
    engine: Option<&Engine>,
    host: Option<&str>,
) -> Result<Option<Looked>, Failure> {
    let claimed = Claimed::of(Some(origin), etcd)?;
    let claims = claimed.read().await?;
    if claims.config.is_none() {
        return Ok(None);
    }
    let engine = match engine {
        Some(engine) => {
            let (endpoint, certificates) = live::follow::reach(engine, None)?;
            Some(engine::Engine::new(endpoint, certificates))
        }
        None => None,
    };
    let host = match host {
        Some(host) => host.to_owned(),
        None => claimed.name_here(engine.as_ref()).await?,
    };
    let facts = HostNetwork::open(host, engine, PathBuf::new())?.facts().await?;
    let plan = plan::plan(&claims, &facts, &Doubt { now: now(), ..Doubt::default() }, false);
    Ok(Some(Looked { claims, facts, plan }))
}
