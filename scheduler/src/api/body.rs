//! Bodies: JSON within bounds of size and time.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt, Limited};
use model::Value;

use crate::api::reply::Reply;
use crate::api::routes::App;

/// Largest body: 10,000 constraints written at length fit, and are then refused by their number.
const BODY_MAX: usize = 1 << 20;

/// Longest time for a body, from its first byte to its last.
const BODY_TIME: Duration = Duration::from_secs(5);

/// Most bytes of bodies at once, however many connections there are.
pub(super) const BODIES_MAX: usize = 256 << 20;

/// What a body is counted in; small ones count as one.
pub(super) const BODY_PIECE: usize = 4096;

/// The value in the body.
pub(super) async fn json(app: &App, request: Request) -> Result<Value, Reply> {
    let too_large = || {
        let expected = format!("at most {BODY_MAX} bytes");
        Reply::error(StatusCode::PAYLOAD_TOO_LARGE, "body too large", "", &expected)
    };
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let length: usize = length.unwrap_or(BODY_MAX);
    if length > BODY_MAX {
        return Err(too_large());
    }
    let read = async {
        let pieces = u32::try_from(length.div_ceil(BODY_PIECE)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let room = app.bodies.acquire_many(pieces).await;
        let body = Limited::new(request.into_body(), BODY_MAX).collect().await;
        drop(room);
        body
    };
    let body = match tokio::time::timeout(BODY_TIME, read).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => return Err(too_large()),
        Ok(Err(error)) => {
            return Err(Reply::error(
                StatusCode::BAD_REQUEST,
                &format!("body broken off: {error}"),
                "",
                "a whole body",
            ));
        }
        Err(_) => {
            let expected = format!("a body within {} s", BODY_TIME.as_secs());
            return Err(Reply::error(StatusCode::REQUEST_TIMEOUT, "body too slow", "", &expected));
        }
    };
    serde_json::from_slice(&body).map_err(|error: serde_json::Error| {
        let problem = match error.line() {
            0 => "the body is empty".to_owned(),
            _ if error.is_eof() => "the body is not JSON: it ends too early".to_owned(),
            line => format!("the body is not JSON: wrong at line {line}, column {}", error.column()),
        };
        Reply::error(StatusCode::BAD_REQUEST, &problem, "", "a JSON object")
    })
}
