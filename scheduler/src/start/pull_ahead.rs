//! Pulling ahead: images come to their hosts before anything is stopped for them.
//!
//! Images for Windows are gigabytes, so this has a limit of its own and reports progress; an update that would have to
//! wait for an image with its old containers stopped is not begun.

use std::sync::Arc;
use std::time::Duration;

use engine::EngineError;
use model::Text;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::start::Starter;
use crate::start::credentials::RequestCredentials;
use crate::start::progress::{Progress, ProgressSender, send_progress};

/// Longest time for one image on one host, with its wait for others there: 10 GB at 25 Mbit/s.
pub(crate) const PULL_AHEAD_TIME: Duration = Duration::from_hours(1);

/// An image that a host is to have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WantedImage {
    /// The uuid of the host.
    pub(crate) host: Text,
    pub(crate) image: Text,
    /// Whether it is pulled also when the host has one of this name, which may be an older one.
    pub(crate) always: bool,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageOutcome {
    /// The host had it.
    Present,
    Pulled,
    /// Why the host does not have it, by its engine, its registry, the limit or the caller.
    Failed(EngineError),
}

impl Starter {
    /// Pulls images on hosts, all at once but at most two on one host; the outcomes are in the order of `wanted`.
    ///
    /// What `stop` cancels has failed; engines drop what they have of it, or have pulled it after all.
    pub(crate) async fn pull_ahead(
        self: &Arc<Self>,
        wanted: &[WantedImage],
        brought: &RequestCredentials,
        progress: &ProgressSender,
        stop: &CancellationToken,
    ) -> Vec<ImageOutcome> {
        let mut pulling = JoinSet::new();
        for (at, one) in wanted.iter().cloned().enumerate() {
            let (starter, brought, progress, stop) = (self.clone(), brought.clone(), progress.clone(), stop.clone());
            pulling.spawn(async move {
                let pulled = timeout(PULL_AHEAD_TIME, starter.pull_one(&one, &brought, &progress));
                let outcome = match stop.run_until_cancelled(pulled).await {
                    Some(Ok(Ok(outcome))) => outcome,
                    Some(Ok(Err(error))) => ImageOutcome::Failed(error),
                    Some(Err(_)) => ImageOutcome::Failed(EngineError::Silent(PULL_AHEAD_TIME)),
                    None => ImageOutcome::Failed(EngineError::Refused("pulling it was given up".to_owned())),
                };
                match &outcome {
                    ImageOutcome::Failed(error) => {
                        warn!(host = %one.host, image = %one.image, %error, "an image was not pulled ahead");
                    }
                    ImageOutcome::Pulled => info!(host = %one.host, image = %one.image, "an image was pulled ahead"),
                    ImageOutcome::Present => {}
                }
                (at, outcome)
            });
        }
        let lost = || ImageOutcome::Failed(EngineError::Failed("pulling it failed, which is a bug".to_owned()));
        let mut outcomes: Vec<ImageOutcome> = wanted.iter().map(|_| lost()).collect();
        while let Some(ended) = pulling.join_next().await {
            if let Ok((at, outcome)) = ended {
                outcomes[at] = outcome;
            }
        }
        outcomes
    }

    async fn pull_one(
        self: &Arc<Self>,
        wanted: &WantedImage,
        brought: &RequestCredentials,
        progress: &ProgressSender,
    ) -> Result<ImageOutcome, EngineError> {
        let (docker, _) = self.docker(&wanted.host)?;
        let answered = docker.answers().await;
        answered.inspect_err(|error| self.note(&wanted.host, error))?;
        if !wanted.always && docker.has_image(&wanted.image).await? {
            return Ok(ImageOutcome::Present);
        }
        let host = self.placer.inventory().hosts().name_of(&wanted.host);
        let say = |info| send_progress(progress, Progress::of_image(&host, &wanted.image, info));
        say(bollard::models::CreateImageInfo { status: Some("waiting".to_owned()), ..Default::default() });
        let _turn = docker.turn_to_pull().await;
        self.pull(&docker, &wanted.image, brought, say).await?;
        Ok(ImageOutcome::Pulled)
    }
}
