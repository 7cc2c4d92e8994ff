//! Replies: JSON, errors included.

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tracing::error;

use crate::place::refusal::Refusal;

/// When to ask again while nothing is known yet, in seconds: sources need less than that.
const RETRY_COLD: &str = "1";

/// When to ask again when the ledger is full, in seconds: promises lapse within 60.
const RETRY_FULL: &str = "10";

/// What is answered.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) retry: Option<&'static str>,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self { status, retry: None, body: body.into() },
            Err(error) => {
                error!(%error, "an answer could not be written");
                Self { status: StatusCode::INTERNAL_SERVER_ERROR, retry: None, body: Bytes::from_static(b"{}") }
            }
        }
    }

    pub(super) fn error(status: StatusCode, error: &str, field: &str, expected: &str) -> Self {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a str,
            field: &'a str,
            expected: &'a str,
        }
        Self::json(status, &Body { error, field, expected })
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::Invalid(invalid) => {
                let error = if invalid.field.is_empty() {
                    invalid.problem.clone()
                } else {
                    format!("{}: {}", invalid.field, invalid.problem)
                };
                Self::error(StatusCode::BAD_REQUEST, &error, &invalid.field, &invalid.expected)
            }
            Refusal::Forbidden(denial) => Self::error(StatusCode::FORBIDDEN, &text, &denial.field, &denial.expected()),
            Refusal::NoData => Self {
                retry: Some(RETRY_COLD),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "a snapshot of the cluster")
            },
            Refusal::Full(_) => Self {
                retry: Some(RETRY_FULL),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "fewer promises at once")
            },
            Refusal::Taken(_) => Self::error(StatusCode::CONFLICT, &text, "id", "an id and names of its own"),
            Refusal::Unknown(_) => Self::error(StatusCode::NOT_FOUND, &text, "id", "the id of a placement"),
            Refusal::NoStack(_) => Self::error(StatusCode::NOT_FOUND, &text, "name", "the name of a stack"),
            Refusal::WriteFailed(_) => Self {
                retry: Some(RETRY_FULL),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "a disk that can be written")
            },
            Refusal::Unread(_) | Refusal::Away(_) | Refusal::Uncertain(_) => Self {
                retry: Some(RETRY_COLD),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "an etcd that answers")
            },
            Refusal::Contended => Self {
                retry: Some(RETRY_COLD),
                ..Self::error(StatusCode::SERVICE_UNAVAILABLE, &text, "", "fewer promises at once")
            },
            Refusal::Unshared(_) => Self::error(StatusCode::NOT_IMPLEMENTED, &text, "name", "scheduler.prioritize"),
            Refusal::Unsettled(_) => Self {
                retry: Some(RETRY_COLD),
                ..Self::error(StatusCode::GATEWAY_TIMEOUT, &text, "", "the same request again")
            },
            Refusal::DoesNotFit(_) => Self::error(StatusCode::CONFLICT, &text, "", "what there is room for"),
        }
    }
}

impl<T: Serialize> From<Result<T, Refusal>> for Reply {
    fn from(answer: Result<T, Refusal>) -> Self {
        match answer {
            Ok(answer) => Self::json(StatusCode::OK, &answer),
            Err(refusal) => refusal.into(),
        }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        if let Some(retry) = self.retry {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static(retry));
        }
        response
    }
}

pub(super) fn bug() -> Reply {
    Reply::error(StatusCode::INTERNAL_SERVER_ERROR, "answering failed, which is a bug", "", "an answer")
}
