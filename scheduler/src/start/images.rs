//! Images: engines ask their registries for which systems they are, and pull them, with credentials where there are
//! some.
//!
//! Credentials that came with a request go before the scheduler's own, and end with the request.

use std::sync::Arc;

use bollard::models::CreateImageInfo;
use futures_util::future::join_all;
use tracing::{debug, warn};

use crate::lock::lock;
use crate::place::request::Request;
use crate::start::Starter;
use crate::start::credentials::{Credentials, RequestCredentials};
use crate::start::docker::DockerEngine;
use crate::start::docker_config::LookUpError;
use crate::start::platforms::ImageQuestion;
use crate::start::registry::Registry;
use engine::EngineError;

/// How many engines are asked about an image: the second for when the first one is just away.
const ASKED_FOR_IMAGES: usize = 2;

/// What engines and registries say, each in its own words, when credentials are missing or wrong.
const WORDS_OF_REFUSAL: [&str; 6] =
    ["no basic auth credentials", "unauthorized", "denied", "forbidden", "authentication required", "authorization"];

impl Starter {
    /// Completes a request with the systems that its images support, where it does not say so and their registry does.
    ///
    /// Engines ask the registry, since they know how to. When none can, any host will do, as far as is known.
    ///
    /// A client without a credential chooses no address to which engines connect: for its dry run, what is known has to do.
    pub(crate) async fn complete(self: &Arc<Self>, request: &mut Request, brought: &RequestCredentials) {
        if !request.subject.is_anonymous() {
            let questions = self.placer.platforms().unknown(request, brought, self.clock.now());
            join_all(questions.into_iter().map(|question| self.ask_about(question, brought))).await;
        }
        self.placer.platforms().fill(request, brought);
    }

    async fn ask_about(self: &Arc<Self>, question: ImageQuestion, brought: &RequestCredentials) {
        let turn = self.turn(&question);
        let _turn = turn.lock().await;
        if self.placer.platforms().is_known(&question, self.clock.now()) {
            return;
        }
        let image = &question.image;
        let mut found = Vec::new();
        match self.credentials(&Registry::of_image(image), brought).await {
            Ok(credentials) => {
                for host in self.placer.with_engines(ASKED_FOR_IMAGES) {
                    let Ok((docker, _)) = self.docker(&host) else { continue };
                    if let Err(error) = docker.answers().await {
                        self.note(&host, &error);
                        continue;
                    }
                    match docker.platforms(image, credentials.as_ref()).await {
                        Ok(platforms) => {
                            found = platforms;
                            break;
                        }
                        Err(error) => {
                            debug!(%image, %host, %error, "its registry does not say for which systems it is");
                        }
                    }
                }
            }
            // An engine may have the image already; otherwise pulling it fails with this error.
            Err(error) => warn!(%image, %error, "its registry is not asked for which systems it is"),
        }
        self.placer.platforms().learn(question, found, self.clock.now());
    }

    /// Requests for the same image wait for it; others do not.
    fn turn(&self, question: &ImageQuestion) -> Arc<tokio::sync::Mutex<()>> {
        let mut asking = lock(&self.asking);
        if let Some(turn) = asking.get(question).and_then(std::sync::Weak::upgrade) {
            return turn;
        }
        asking.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        asking.insert(question.clone(), Arc::downgrade(&turn));
        turn
    }

    /// Pulls an image and reports progress.
    ///
    /// # Errors
    ///
    /// Fails with the message of the engine or a credential helper, and what to type when credentials are missing or
    /// wrong.
    pub(super) async fn pull(
        &self,
        docker: &DockerEngine,
        image: &str,
        brought: &RequestCredentials,
        on_progress: impl FnMut(CreateImageInfo),
    ) -> Result<(), EngineError> {
        let registry = Registry::of_image(image);
        let credentials = self.credentials(&registry, brought).await;
        let credentials = credentials.map_err(|error| EngineError::Refused(error.to_string()))?;
        let pulled = docker.pull(image, credentials.as_ref(), on_progress).await;
        pulled.map_err(|error| {
            let words = error.to_string();
            if !refused_access(&words) {
                return error;
            }
            let advice = self.advice(&registry, brought.get(&registry).is_some(), credentials.is_some());
            EngineError::Refused(format!("{words}; {advice}"))
        })
    }

    /// Credentials for a registry: those that came with the request, else the scheduler's own.
    async fn credentials(
        &self,
        registry: &Registry,
        brought: &RequestCredentials,
    ) -> Result<Option<Credentials>, LookUpError> {
        match (brought.get(registry), &self.access.registries) {
            (Some(brought), _) => Ok(Some(brought.clone())),
            (None, Some(config)) => config.credentials(registry).await,
            (None, None) => Ok(None),
        }
    }

    /// What to type so that a registry grants access.
    fn advice(&self, registry: &Registry, brought: bool, any: bool) -> String {
        let login = registry.login();
        match &self.access.registries {
            _ if brought => format!("{registry} does not accept the credentials that came with the request"),
            Some(config) if any => {
                let file = config.file();
                format!("{registry} does not accept the credentials of {}: renew them by `{login}`", file.display())
            }
            Some(config) => {
                let file = config.file();
                format!("{} has no credentials for {registry}: add them by `{login}`", file.display())
            }
            None => format!(
                "the scheduler has no credentials for {registry}: `{login}` where it runs, and start it with \
                 --registry-config ~/.docker; or log in here, and `scheduler run --with-registry-auth`"
            ),
        }
    }
}

/// Whether this is said because credentials are missing or wrong.
fn refused_access(words: &str) -> bool {
    let words = words.to_lowercase();
    WORDS_OF_REFUSAL.iter().any(|refusal| words.contains(refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_access_are_told_from_other_failures() {
        for words in [
            "Head \"https://registry:5000/v2/web/manifests/1\": no basic auth credentials",
            "pull access denied for web, repository does not exist or may require 'docker login': denied: requested access",
            "unexpected status from HEAD request to https://registry/v2/web/manifests/1: 401 Unauthorized",
            "unexpected status from HEAD request to https://registry/v2/web/manifests/1: 403 Forbidden",
            "failed to authorize: authorization failed",
        ] {
            assert!(refused_access(words), "{words}");
        }
        for words in ["manifest for registry:5000/web:1 not found: manifest unknown", "dial tcp: connection refused"] {
            assert!(!refused_access(words), "{words}");
        }
    }
}
