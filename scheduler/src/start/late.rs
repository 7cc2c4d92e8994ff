//! Removing what engines created after nobody waited for it any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::Text;
use tracing::{debug, info};

use crate::docker::Trouble;
use crate::start::Starter;

/// How long an engine that does not answer is asked once more, after it can have nothing left to do: an engine that is
/// away for longer was restarted, and has forgotten what it was asked.
const PATIENCE: Duration = Duration::from_mins(10);

impl Starter {
    /// Looks for containers that an engine may have created too late, and removes them.
    pub(super) async fn sweep(self: Arc<Self>) {
        let late = self.engine.with_any(self.clock.now(), |book| book.late().clone());
        // Each is asked once in vain, and not for every name.
        let mut away = BTreeSet::new();
        for ((host, name), (id, attempt, until)) in late {
            // Whatever can come has come if it is there by now.
            let over = self.clock.now() >= until;
            let given_up = self.clock.now() >= until.saturating_add(PATIENCE);
            let swept = if away.contains(&host) { false } else { self.sweep_one(&host, &name, (&id, attempt)).await };
            if !swept {
                away.insert(host.clone());
            }
            if over && swept || given_up {
                self.engine.with_any(self.clock.now(), |book| book.not_late(&host, &name));
            }
        }
    }

    /// Removes the container of this name if it came too late; `false` when nobody can say just now.
    async fn sweep_one(&self, host: &Text, name: &Text, (id, attempt): (&Text, Option<Text>)) -> bool {
        match self.look_for(host, name, (id, attempt)).await {
            Ok(()) => true,
            Err(trouble) => {
                debug!(%id, %name, %trouble, "nobody knows yet whether its engine created it too late");
                false
            }
        }
    }

    async fn look_for(&self, host: &Text, name: &Text, (id, attempt): (&Text, Option<Text>)) -> Result<(), Trouble> {
        let (docker, _) = self.docker(host)?;
        let found = match docker.find(name).await {
            Ok(found)
                if found.placement.as_ref() == Some(name)
                    && found.request.as_ref() == Some(id)
                    && found.attempt == attempt =>
            {
                found
            }
            // None, or somebody else's.
            Ok(_) | Err(Trouble::Absent(_)) => return Ok(()),
            Err(trouble) => return Err(trouble),
        };
        // Looked up after it was found: what anybody creates for the placement is in the ledger before.
        if let Some(shared) = self.engine.ledger().keeper().shared()
            && shared.look_up(id).await.is_err()
        {
            return Err(Trouble::Overtaken);
        }
        if self.engine.with_any(self.clock.now(), |book| book.expects(id, host, name)) {
            return Ok(());
        }
        docker.remove(&found.id).await?;
        info!(%id, %name, "its engine created it after it was removed: it is removed again");
        Ok(())
    }
}
