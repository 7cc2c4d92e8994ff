//! Asking other parts of this process over their own HTTP routes, without a socket.

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, header};
use serde::de::DeserializeOwned;
use tower::ServiceExt as _;

use crate::answers::Wrong;

/// Most bytes of an answer: that about 20,000 hosts fits.
const ANSWER_MAX: usize = 64 << 20;

/// The answer to a question.
///
/// # Errors
///
/// Fails with a sentence if there is none, or if the part refuses to answer.
pub(crate) async fn ask<T: DeserializeOwned>(
    router: &Router,
    path: &str,
    body: Option<serde_json::Value>,
) -> Result<T, String> {
    let request = Request::builder().uri(path);
    let request = match body {
        None => request.body(Body::empty()),
        Some(body) => request
            .method(Method::POST)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string())),
    };
    let request = request.map_err(|error| error.to_string())?;
    let Ok(response) = router.clone().oneshot(request).await;
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), ANSWER_MAX).await.map_err(|error| error.to_string())?;
    if status.is_success() {
        return serde_json::from_slice(&bytes)
            .map_err(|error| format!("an answer that the page does not know: {error}"));
    }
    let wrong: Wrong = serde_json::from_slice(&bytes).unwrap_or_default();
    Err(match (&*wrong.error, &*wrong.expected) {
        ("", _) => format!("this process does not answer that ({status})"),
        (error, "") => error.to_owned(),
        (error, expected) => format!("{error}; expected {expected}"),
    })
}
