//! The images that an engine has stored.

use std::collections::BTreeSet;

use bollard::query_parameters::{ListContainersOptionsBuilder, ListImagesOptions, RemoveImageOptions};

use super::{ASK_TIME, DockerEngine, EngineError, START_TIME};
use crate::start::prune::StoredImage;

impl DockerEngine {
    /// All images that have a name, or had one.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn stored_images(&self) -> Result<Vec<StoredImage>, EngineError> {
        let options = Some(ListImagesOptions { digests: true, ..ListImagesOptions::default() });
        let found = self.ask(START_TIME, |docker| async move { docker.list_images(options).await }).await?;
        let is_name = |name: &String| !name.contains("<none>");
        let image = |image: bollard::models::ImageSummary| StoredImage {
            id: image.id,
            tags: image.repo_tags.into_iter().filter(is_name).collect(),
            digests: image.repo_digests.into_iter().filter(is_name).collect(),
            created: image.created,
            bytes: image.size,
        };
        Ok(found.into_iter().map(image).collect())
    }

    /// The ids of all images that a container has, running or not, whoever made it.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn used_images(&self) -> Result<BTreeSet<String>, EngineError> {
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let found = self.ask(ASK_TIME, |docker| async move { docker.list_containers(Some(options)).await }).await?;
        Ok(found.into_iter().filter_map(|one| one.image_id).collect())
    }

    /// Removes an image by one of its names; the engine refuses if a container has it.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn remove_image(&self, name: &str) -> Result<(), EngineError> {
        let none = None::<RemoveImageOptions>;
        let removed = self.ask(START_TIME, |docker| async move { docker.remove_image(name, none, None).await });
        match self.watched(removed).await {
            Ok(_) | Err(EngineError::Absent(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
