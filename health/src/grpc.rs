//! A gRPC health check: `grpc.health.v1.Health/Check` over HTTP/2 without TLS (the gRPC health checking protocol).
//!
//! The two messages have one field each, which are written and read here (Protocol Buffers, encoding).

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use hyper::http::{HeaderMap, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

/// The method.
const PATH: &str = "/grpc.health.v1.Health/Check";

/// Longest name of a service.
pub(crate) const SERVICE_MAX: usize = 120;

/// Longest response: a frame of gRPC with one number, and room for fields that are not known yet.
const RESPONSE_MAX: usize = 1024;

/// Largest headers of a response, in bytes, as HTTP/2 counts them.
const HEADERS_MAX: u32 = 8 * 1024;

/// Bytes that a server may send before they are taken note of: more than a response may have.
const WINDOW: u32 = 4 * 1024;

/// Most bytes that are read, so that a server that sends frames without end is not listened to.
const READ_MAX: u64 = 64 * 1024;

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Asks for the health of a service; an empty name is the whole server.
///
/// # Cancel safety
///
/// May be dropped at any time; the connection is then closed.
pub(crate) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    authority: &str,
    service: &str,
) -> Result<(), String> {
    let mut builder = Builder::new();
    builder.enable_push(false).max_header_list_size(HEADERS_MAX).initial_window_size(WINDOW);
    let (reading, writing) = tokio::io::split(stream);
    let stream = tokio::io::join(reading.take(READ_MAX), writing);
    let (sender, connection) = builder.handshake(stream).await.map_err(|error| format!("HTTP/2: {error}"))?;
    tokio::select! {
        answer = call(sender, authority, service) => answer,
        ended = connection => Err(match ended {
            Ok(()) => "closed without a response".to_owned(),
            Err(error) => format!("HTTP/2: {error}"),
        }),
    }
}

async fn call(sender: SendRequest<Bytes>, authority: &str, service: &str) -> Result<(), String> {
    let wrong = |error: h2::Error| format!("HTTP/2: {error}");
    let mut sender = sender.ready().await.map_err(wrong)?;
    let request = Request::post(format!("http://{authority}{PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|error| format!("the request: {error}"))?;
    let (response, mut body) = sender.send_request(request, false).map_err(wrong)?;
    body.send_data(message(service), true).map_err(wrong)?;
    let response = response.await.map_err(wrong)?;
    if response.status() != StatusCode::OK {
        return Err(format!("status {}", response.status().as_u16()));
    }
    // What fails at once says so in its headers.
    fine(response.headers())?;
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(wrong)?;
        if bytes.len() + data.len() > RESPONSE_MAX {
            return Err(format!("a response of more than {RESPONSE_MAX} bytes"));
        }
        bytes.extend_from_slice(&data);
    }
    if let Some(trailers) = body.trailers().await.map_err(wrong)? {
        fine(&trailers)?;
    }
    judge(&bytes)
}

/// Whether headers or trailers have no other status of gRPC than 0.
fn fine(headers: &HeaderMap) -> Result<(), String> {
    let Some(status) = headers.get("grpc-status") else { return Ok(()) };
    match status.to_str().ok().and_then(|status| status.parse::<u8>().ok()) {
        Some(0) => Ok(()),
        Some(5) => Err("gRPC status 5: it does not know the service".to_owned()),
        Some(12) => Err("gRPC status 12: it has no health checks".to_owned()),
        Some(status) => Err(format!("gRPC status {status}")),
        None => Err("gRPC status that is no number".to_owned()),
    }
}

/// `HealthCheckRequest { service }` with the prefix of gRPC.
fn message(service: &str) -> Bytes {
    /// Field 1, a text.
    const SERVICE: u8 = 0x0a;
    // Shorter than 128 bytes, so that lengths are one byte each.
    let length = |length: usize| u8::try_from(length).unwrap_or_default();
    let mut message = vec![0; PREFIX];
    if !service.is_empty() {
        message.extend([SERVICE, length(service.len())]);
        message.extend_from_slice(service.as_bytes());
    }
    message[PREFIX - 1] = length(message.len() - PREFIX);
    message.into()
}

/// What a `HealthCheckResponse` with the prefix of gRPC says.
fn judge(bytes: &[u8]) -> Result<(), String> {
    const NO_ANSWER: &str = "no answer of a health check";
    let Some((prefix, message)) = bytes.split_at_checked(PREFIX) else { return Err(NO_ANSWER.to_owned()) };
    let length = prefix[1..].iter().fold(0, |length: u64, byte| length << 8 | u64::from(*byte));
    if prefix[0] != 0 || length != message.len() as u64 {
        return Err(NO_ANSWER.to_owned());
    }
    match status(message) {
        Some(1) => Ok(()),
        Some(0) => Err("UNKNOWN".to_owned()),
        Some(2) => Err("NOT_SERVING".to_owned()),
        Some(3) => Err("SERVICE_UNKNOWN".to_owned()),
        Some(other) => Err(format!("serving status {other}")),
        None => Err(NO_ANSWER.to_owned()),
    }
}

/// Field 1 of a message, a number; 0 if it is absent. Other fields are passed over.
fn status(mut bytes: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !bytes.is_empty() {
        let (key, rest) = varint(bytes)?;
        bytes = rest;
        let skipped = match key & 7 {
            0 => {
                let (number, rest) = varint(bytes)?;
                bytes = rest;
                if key >> 3 == 1 {
                    status = number;
                }
                0
            }
            1 => 8,
            2 => {
                let (length, rest) = varint(bytes)?;
                bytes = rest;
                usize::try_from(length).ok()?
            }
            5 => 4,
            _ => return None,
        };
        bytes = bytes.get(skipped..)?;
    }
    Some(status)
}

/// A number of up to ten bytes, the least significant ones first, and what is behind it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().take(10).position(|byte| *byte < 0x80)? + 1;
    let (digits, rest) = bytes.split_at(length);
    let number = digits.iter().rev().fold(0_u64, |number, byte| number << 7 | u64::from(byte & 0x7f));
    Some((number, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_names_the_service() {
        assert_eq!(&message("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&message("a.B")[..], [0, 0, 0, 0, 5, 0x0a, 3, b'a', b'.', b'B']);
        assert_eq!(message(&"x".repeat(SERVICE_MAX)).len(), PREFIX + 2 + SERVICE_MAX);
    }

    #[test]
    fn only_serving_is_well() {
        for (bytes, expected) in [
            (&[0, 0, 0, 0, 2, 8, 1][..], Ok(())),
            // With a field that is not known yet before it, of each kind.
            (&[0, 0, 0, 0, 7, 0x12, 3, 1, 2, 3, 8, 1], Ok(())),
            (&[0, 0, 0, 0, 7, 0x1d, 1, 2, 3, 4, 8, 1], Ok(())),
            (&[0, 0, 0, 0, 2, 8, 2], Err("NOT_SERVING")),
            (&[0, 0, 0, 0, 2, 8, 3], Err("SERVICE_UNKNOWN")),
            (&[0, 0, 0, 0, 3, 8, 0x81, 1], Err("serving status 129")),
            (&[0, 0, 0, 0, 0], Err("UNKNOWN")),
            (&[], Err("no answer of a health check")),
            (&[0, 0, 0, 0, 3, 8, 1], Err("no answer of a health check")),
            (&[1, 0, 0, 0, 2, 8, 1], Err("no answer of a health check")),
            (&[0, 0, 0, 0, 2, 8, 0x80], Err("no answer of a health check")),
            (&[0, 0, 0, 0, 2, 0x12, 9], Err("no answer of a health check")),
        ] {
            assert_eq!(judge(bytes), expected.map_err(str::to_owned), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = judge(&bytes);
            let _ = status(&bytes);
        }
    }
}
