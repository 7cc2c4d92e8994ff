//! Removing what engines created after no job waited for it any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::EngineError;
use model::Text;
use tracing::{debug, info};

use crate::ledger::late::LateContainer;
use crate::start::Starter;
use crate::start::docker::{DockerEngine, InspectedContainer};

impl Starter {
    /// Looks for containers that an engine may have created too late, and removes them.
    pub(super) async fn sweep(self: Arc<Self>) {
        let late = self.placer.with_any(self.clock.now(), |book| book.late().clone());
        // Each is asked once in vain, and not for every name.
        let mut away = BTreeSet::new();
        for ((host, name), coming) in late {
            let asked = !away.contains(&host) && self.placer.silent_engines().why(&host).is_none();
            let answered = asked && self.sweep_one(&host, &name, &coming).await;
            if !answered {
                away.insert(host.clone());
            }
            let now = self.clock.now();
            self.placer.with_any(now, |book| book.looked_for(&host, &name, answered, now));
        }
    }

    /// Removes the container of this name if it was created too late; `false` when that is unknown just now.
    async fn sweep_one(&self, host: &Text, name: &Text, coming: &LateContainer) -> bool {
        match self.look_for(host, name, coming).await {
            Ok(()) => true,
            Err(trouble) => {
                debug!(id = %coming.id, %name, %trouble, "it is not known yet whether its engine created it too late");
                false
            }
        }
    }

    async fn look_for(&self, host: &Text, name: &Text, coming: &LateContainer) -> Result<(), EngineError> {
        let (docker, _) = self.docker(host)?;
        let LateContainer { id, attempt, .. } = coming;
        let found = match docker.find(name).await {
            Ok(found)
                if found.placement.as_ref() == Some(name)
                    && found.request.as_ref() == Some(id)
                    && found.attempt == *attempt =>
            {
                found
            }
            // None, or another placement's.
            Ok(_) | Err(EngineError::Absent(_)) => return Ok(()),
            Err(trouble) => return Err(trouble),
        };
        self.remove_unexpected(&docker, host, &found).await.map(drop)
    }

    /// Removes a container that was created for an attempt of which the ledger knows nothing, and that never ran;
    /// returns whether it was such a one.
    ///
    /// `found` was looked up before this is called: an attempt is in the ledger before an engine hears of it, so one that
    /// is not there after that has ended. The engine refuses when the container was started in between.
    pub(super) async fn remove_unexpected(
        &self,
        docker: &DockerEngine,
        host: &Text,
        found: &InspectedContainer,
    ) -> Result<bool, EngineError> {
        let (Some(name), Some(id), Some(_)) = (&found.placement, &found.request, &found.attempt) else {
            return Ok(false);
        };
        if &*found.life.state != "created" {
            return Ok(false);
        }
        if let Some(shared) = self.placer.ledger().store().shared() {
            let unknown = |why| EngineError::Failed(format!("it is not known whose container {name} is: {why}"));
            shared.look_up(id).await.map_err(unknown)?;
        }
        let attempt = found.attempt.as_ref();
        if self.placer.with_any(self.clock.now(), |book| book.expects(id, attempt, host, name)) {
            return Ok(false);
        }
        docker.remove_stopped(&found.id).await?;
        info!(%id, %name, %host, "removed a container that its engine created after its start was given up");
        Ok(true)
    }
}
