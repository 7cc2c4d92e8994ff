//! Progress of a start, for the client that waits for it.

use model::Text;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::ledger::record::Replica;

/// Most lines of progress that wait for a slow reader; the rest is dropped.
pub(crate) const PROGRESS_MAX: usize = 256;

/// How far something got.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Progress {
    /// The host; empty for a whole service.
    #[serde(skip_serializing_if = "is_empty")]
    pub host: Text,
    /// The container; empty when the image is for several.
    #[serde(skip_serializing_if = "is_empty")]
    pub container: Text,
    /// The image that is pulled before its containers are created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Text>,
    /// What happens.
    pub status: String,
    /// The part of the image, when it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Bytes so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<i64>,
    /// Bytes in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
}

fn is_empty(text: &Text) -> bool {
    text.is_empty()
}

/// Where progress is sent.
pub(crate) type ProgressSender = Option<mpsc::Sender<Progress>>;

pub(crate) fn send_progress(sender: &ProgressSender, progress: Progress) {
    if let Some(sender) = sender {
        // A slow reader misses some.
        let _ = sender.try_send(progress);
    }
}

impl Progress {
    /// The progress of another job's container.
    pub(super) fn of_other(host: &Text, container: &Text, status: String) -> Self {
        Self { host: host.clone(), container: container.clone(), status, ..Self::default() }
    }

    /// The progress of a service of a stack.
    pub(crate) fn of_service(service: &Text, status: String) -> Self {
        Self { container: service.clone(), status, ..Self::default() }
    }

    pub(super) fn new(replica: &Replica, container: &Text, status: &str) -> Self {
        let (host, container) = (replica.host_name.clone(), container.clone());
        Self { host, container, status: status.to_owned(), ..Self::default() }
    }

    /// The progress of an image that is pulled before its containers are created.
    pub(super) fn of_image(host: &Text, image: &Text, info: bollard::models::CreateImageInfo) -> Self {
        let detail = info.progress_detail.unwrap_or_default();
        Self {
            host: host.clone(),
            image: Some(image.clone()),
            status: info.status.unwrap_or_default(),
            layer: info.id,
            current: detail.current,
            total: detail.total,
            ..Self::default()
        }
    }

    pub(super) fn of_pull(replica: &Replica, container: &Text, info: bollard::models::CreateImageInfo) -> Self {
        let detail = info.progress_detail.unwrap_or_default();
        let status = info.status.unwrap_or_default();
        Self { layer: info.id, current: detail.current, total: detail.total, ..Self::new(replica, container, &status) }
    }
}
