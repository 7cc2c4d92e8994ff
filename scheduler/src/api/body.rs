//! Bodies: JSON within bounds of size and time.

use std::time::Duration;

use axum::body::{Bytes, HttpBody as Body};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use model::Value;
use tokio::sync::Semaphore;

use crate::api::app::App;
use crate::api::reply::Reply;

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
    if length.is_some_and(|length: usize| length > BODY_MAX) {
        return Err(too_large());
    }
    let body = match tokio::time::timeout(BODY_TIME, whole(&app.bodies, request.into_body())).await {
        Ok(Ok(body)) => body,
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

/// A whole body. It takes room for what has come, not for what it says is to come: a client that sends nothing takes none.
async fn whole<B>(bodies: &Semaphore, body: B) -> Result<Vec<u8>, BodyError>
where
    B: Body<Data = Bytes, Error: Into<BodyError>> + Unpin,
{
    let (mut whole, mut room) = (Vec::new(), bodies.acquire().await?);
    let mut body = Limited::new(body, BODY_MAX);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let missing = (whole.len() + data.len()).div_ceil(BODY_PIECE).saturating_sub(room.num_permits());
        room.merge(bodies.acquire_many(u32::try_from(missing)?).await?);
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

/// Why a body is not whole.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body as AnyBody;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bodies_that_send_nothing_take_no_room_from_others() {
        let bodies = Semaphore::new(1000);
        let text = "x".repeat(100 * BODY_PIECE + 1);
        let silent = (0..256).map(|_| {
            let silent = futures_util::stream::pending::<Result<Bytes, Infallible>>();
            timeout(BODY_TIME, whole(&bodies, AnyBody::from_stream(silent)))
        });
        let silent = futures_util::future::join_all(silent);
        let other = timeout(BODY_TIME / 2, whole(&bodies, AnyBody::from(text.clone())));
        let (silent, other) = tokio::join!(silent, other);
        assert!(silent.iter().all(Result::is_err));
        assert_eq!(other.unwrap().unwrap(), text.as_bytes());
        assert_eq!(bodies.available_permits(), 1000);
        let long = whole(&Semaphore::new(1000), AnyBody::from("x".repeat(BODY_MAX + 1))).await.unwrap_err();
        assert!(long.is::<http_body_util::LengthLimitError>(), "{long}");
    }
}
