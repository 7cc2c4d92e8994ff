//! Removing what engines created after no job waited for it any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::EngineError;
use model::Text;
use tracing::{debug, info};

use crate::ledger::late::LateContainer;
use crate::start::Starter;
use crate::start::docker::OVERTAKEN;

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
        // Looked up after it was found: what any scheduler creates for the placement is in the ledger before.
        if let Some(shared) = self.placer.ledger().store().shared()
            && shared.look_up(id).await.is_err()
        {
            return Err(OVERTAKEN);
        }
        if self.placer.with_any(self.clock.now(), |book| book.expects(id, attempt.as_ref(), host, name)) {
            return Ok(());
        }
        docker.remove(&found.id).await?;
        info!(%id, %name, "its engine created it after it was removed: it is removed again");
        Ok(())
    }
}
