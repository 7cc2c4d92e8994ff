//! Whether an engine is there: one that hangs takes connections and says nothing, for as long as it is waited for.

use std::time::Duration;

use engine::ASK_TIME;
use tokio::time::{Instant, sleep};

use super::{DockerEngine, EngineError, OVERTAKEN};
use crate::lock::lock;

/// How long an engine may say nothing to a question before it is asked whether it is there at all.
const SILENCE: Duration = Duration::from_secs(3);

/// For how long what an engine said shows that it is there, so that it is not asked again before each start.
const HEARD: Duration = Duration::from_secs(1);

impl DockerEngine {
    /// Asks whether it is there.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be reached, or does not answer.
    pub(crate) async fn ping(&self) -> Result<(), EngineError> {
        // Not among the other questions: an engine that hangs has those wait.
        let answer = self.engine.ask(ASK_TIME, |docker| async move { docker.ping().await }).await.map(drop);
        self.note_answer(&answer);
        answer
    }

    /// Refuses when it does not answer. Nothing is asked of it, so that what was to be asked next is certainly not
    /// done.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unreached`], or [`OVERTAKEN`].
    pub(crate) async fn answers(&self) -> Result<(), EngineError> {
        if lock(&self.heard).is_some_and(|heard| heard.elapsed() < HEARD) {
            return Ok(());
        }
        match self.ping().await {
            Err(EngineError::Silent(limit)) => Err(self.engine.silent(limit)),
            Err(trouble @ (EngineError::Unreached(_) | OVERTAKEN)) => Err(trouble),
            // It said something.
            _ => Ok(()),
        }
    }

    /// What was asked, unless the engine falls silent altogether: then there is no use in waiting for the whole time
    /// that the question may take.
    pub(super) async fn watched<T>(
        &self,
        asked: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        tokio::pin!(asked);
        let begun = Instant::now();
        loop {
            tokio::select! {
                answer = &mut asked => return answer,
                () = sleep(SILENCE) => {}
            }
            tokio::select! {
                answer = &mut asked => return answer,
                alive = self.ping() => match alive {
                    // It may have heard the question, even if it does not answer this one.
                    Err(trouble) if trouble.is_away() => return Err(EngineError::Silent(begun.elapsed())),
                    _ => {}
                },
            }
        }
    }

    pub(super) fn note_answer<T>(&self, answer: &Result<T, EngineError>) {
        let heard = match answer {
            Err(trouble) => !trouble.is_away() && *trouble != OVERTAKEN && !matches!(trouble, EngineError::Lost(_)),
            Ok(_) => true,
        };
        if heard {
            *lock(&self.heard) = Some(Instant::now());
        }
    }
}
