//! The caller: as whom a client asks, and whether it may.
//!
//! Where a token file or certificates are given, each request needs a credential. Otherwise the scheduler listens on
//! loopback: requests that only read need none, and requests that change something need the scheduler's own token.

use std::path::PathBuf;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api::reply::Reply;
use crate::subject::Subject;
use crate::token::NamedToken;

/// Which credentials count.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) tokens: Vec<NamedToken>,
    /// Whether requests that only read need a credential, too.
    pub(super) always: bool,
    /// Whether clients have certificates; one that is here has one of the right authority.
    pub(super) certificates: bool,
    /// The file of the scheduler's own token, or why there is none.
    pub(super) own: Result<Option<PathBuf>, String>,
}

/// As whom a client asks; `None` if it has shown nothing.
#[derive(Clone, Debug)]
pub(super) struct Caller(pub(super) Option<Subject>);

/// The name in a client's certificate, if it has one.
#[derive(Clone, Debug)]
pub(super) struct PeerName(pub(super) Option<String>);

impl Gate {
    /// As whom a request asks.
    ///
    /// # Errors
    ///
    /// If its client may not even ask.
    pub(super) fn admit(&self, headers: &HeaderMap, peer: Option<&PeerName>) -> Result<Caller, ()> {
        let bearer = self.bearer(headers);
        let certified = peer.filter(|_| self.certificates).map(|peer| Subject::of_certificate(peer.0.as_deref()));
        let enough = if self.tokens.is_empty() { certified.is_some() } else { bearer.is_some() };
        if self.always && !enough {
            return Err(());
        }
        // A certificate says who it is; where both are wanted, the token is what every client has.
        Ok(Caller(certified.or(bearer)))
    }

    /// Whose token the request carries.
    fn bearer(&self, headers: &HeaderMap) -> Option<Subject> {
        let given = headers.get(header::AUTHORIZATION)?.as_bytes();
        let known = self.tokens.iter().find(|known| process::token::is_bearer(given, &known.token))?;
        Some(known.subject.clone())
    }

    /// The response to a request without the credential that it needs.
    pub(super) fn refusal(&self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a str,
            field: &'a str,
            expected: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            token_file: Option<String>,
        }
        let (expected, token_file) = match &self.own {
            Ok(None) => ("Bearer and the token".to_owned(), None),
            Ok(Some(file)) => {
                let file = file.display().to_string();
                (format!("Bearer and the token in {file}"), Some(file))
            }
            Err(why) => (
                format!("a token, and this scheduler has none: {why}; start it with --state-dir or --token-file"),
                None,
            ),
        };
        let error = "not authorized: requests that change something need the token";
        let error = if self.always { "not authorized" } else { error };
        let body = Body { error, field: "Authorization", expected: &expected, token_file };
        let mut response = Reply::json(StatusCode::UNAUTHORIZED, &body).into_response();
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        response
    }
}
