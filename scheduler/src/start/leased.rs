//! What a scheduler may do to engines: nothing that another one may have taken over.
//!
//! Among several schedulers each question to an engine is asked only while the lease in etcd is held by the clock of
//! this machine, and the placement is this scheduler's. One that stood still for longer first learns what others did.

use engine::EngineError;

use crate::start::docker::DockerEngine;
use crate::start::job::StartJob;

impl StartJob {
    /// The engine of a host, as far as this job may still ask it; `undoing` it may also when the placement has ended.
    pub(super) fn docker(&self, host: &str, undoing: bool) -> Result<(DockerEngine, bool), EngineError> {
        let (docker, windows) = self.starter.docker(host)?;
        let (placer, clock, id) = (self.starter.placer.clone(), self.starter.clock, self.id.clone());
        Ok((docker.guarded(move || placer.may_act(&id, undoing, clock.now())), windows))
    }

    /// Waits until this scheduler holds its lease and knows what others did; returns whether the job may go on.
    pub(super) async fn may_go_on(&self, undoing: bool) -> bool {
        let placer = &self.starter.placer;
        let leased = async {
            if let Some(shared) = placer.ledger().store().shared() {
                shared.leased().await;
            }
        };
        let stopped = self.starter.stop.run_until_cancelled(leased).await.is_none();
        !stopped && placer.may_act(&self.id, undoing, self.starter.clock.now())
    }
}
