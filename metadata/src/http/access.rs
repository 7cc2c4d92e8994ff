//! Who is let in, before anything else is looked at: by how a client calls the service, by what proxies add to a
//! request, by its session token.
//!
//! All of it is off by default, because the predecessor had none of it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::config::{Options, Tokens};
use crate::http::host::Hosts;
use crate::http::session::{KEY_BYTES, Sessions, lifetime};
use crate::path;

/// Who is let in.
#[derive(Debug)]
pub(crate) struct Access {
    /// `None` lets clients call the service what they like.
    hosts: Option<Hosts>,
    reject_forwarded: bool,
    tokens: Tokens,
    sessions: Sessions,
}

/// What counts about a request for letting it in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit<'r> {
    /// The peer of the connection, without regard to headers of proxies.
    pub(crate) peer: IpAddr,
    /// Where it arrived.
    pub(crate) local: SocketAddr,
    /// When, since the key of the tokens was made.
    pub(crate) now: Duration,
    /// Whether the method is PUT.
    pub(crate) put: bool,
    pub(crate) target: &'r [u8],
    /// `Host`.
    pub(crate) host: Option<&'r [u8]>,
    /// Whether a proxy says on whose behalf.
    pub(crate) forwarded: bool,
    /// The session token.
    pub(crate) token: Option<&'r [u8]>,
    /// The life asked for a new one; `None` also when there are several.
    pub(crate) lifetime: Option<&'r [u8]>,
}

/// What a request that is let in is let in for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// For everything.
    Everything(Session),
    /// For a new token and the seconds of its life.
    Token(String, u32),
}

/// What a request says about a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// Sessions are not checked.
    Ignored,
    Missing,
    Valid,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    /// The service is called something else.
    Host,
    /// A proxy stands between, where none may.
    Forwarded,
    /// A proxy stands between, which must not get tokens for others.
    ForwardedToken,
    /// The life asked for is missing or none that a token can have.
    Lifetime,
    TokenMissing,
    TokenInvalid,
}

impl Access {
    /// As the options have it; the key is for tokens.
    pub(crate) fn new(options: &Options, key: [u8; KEY_BYTES]) -> Self {
        Self {
            hosts: options.strict_host.then(|| Hosts::new(&options.host_names)),
            reject_forwarded: options.reject_forwarded,
            tokens: options.tokens,
            sessions: Sessions::new(key),
        }
    }

    /// Whether no request needs to be checked.
    pub(crate) fn is_open(&self) -> bool {
        self.hosts.is_none() && !self.reject_forwarded && self.tokens == Tokens::Off
    }

    /// Whether a request is let in, and for what.
    pub(crate) fn admit(&self, visit: &Visit<'_>) -> Result<Admission, Denial> {
        if let Some(hosts) = &self.hosts {
            // A target that names a host counts more than the header; neither may name a wrong one.
            let mut called = path::host(visit.target).into_iter().chain(visit.host);
            if !called.all(|called| hosts.knows(called, visit.local)) {
                return Err(Denial::Host);
            }
        }
        if self.reject_forwarded && visit.forwarded {
            return Err(Denial::Forwarded);
        }
        if self.tokens == Tokens::Off {
            return Ok(Admission::Everything(Session::Ignored));
        }
        if visit.put && path::is_token(visit.target) {
            if visit.forwarded {
                return Err(Denial::ForwardedToken);
            }
            let seconds = visit.lifetime.and_then(lifetime).ok_or(Denial::Lifetime)?;
            return Ok(Admission::Token(self.sessions.token(visit.peer, visit.now, seconds), seconds));
        }
        match visit.token {
            Some(token) if self.sessions.knows(token, visit.peer, visit.now) => {
                Ok(Admission::Everything(Session::Valid))
            }
            Some(_) => Err(Denial::TokenInvalid),
            None if self.tokens == Tokens::Required => Err(Denial::TokenMissing),
            None => Ok(Admission::Everything(Session::Missing)),
        }
    }
}

impl Denial {
    /// The status to answer with.
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Host | Self::Forwarded => 403,
            Self::ForwardedToken | Self::Lifetime => 400,
            Self::TokenMissing | Self::TokenInvalid => 401,
        }
    }

    /// The reason as it is sent to the client.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Host => "This service is not called what the request calls it (Host)",
            Self::Forwarded => "Requests through a proxy are not answered (X-Forwarded-For, Forwarded)",
            Self::ForwardedToken => "A proxy gets no session token (X-Forwarded-For, Forwarded)",
            Self::Lifetime => "A session token needs X-aws-ec2-metadata-token-ttl-seconds from 1 to 21600",
            Self::TokenMissing => "A session token is missing (X-aws-ec2-metadata-token)",
            Self::TokenInvalid => "The session token is not valid (X-aws-ec2-metadata-token)",
        }
    }

    /// The reason as counted.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Forwarded => "forwarded",
            Self::ForwardedToken => "forwarded_token",
            Self::Lifetime => "token_lifetime",
            Self::TokenMissing => "token_missing",
            Self::TokenInvalid => "token_invalid",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VISIT: Visit<'static> = Visit {
        peer: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        local: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 250)), 80),
        now: Duration::from_secs(1),
        put: false,
        target: b"/latest/self",
        host: Some(b"192.0.2.250"),
        forwarded: false,
        token: None,
        lifetime: None,
    };

    /// A request for a token.
    const PUT: Visit<'static> = Visit { put: true, target: b"/latest/api/token", lifetime: Some(b"60"), ..VISIT };

    fn access(tokens: Tokens) -> Access {
        Access::new(&Options { tokens, ..Options::default() }, [1; KEY_BYTES])
    }

    #[test]
    fn by_default_everything_is_let_in() {
        let everything = Ok(Admission::Everything(Session::Ignored));
        for visit in [
            VISIT,
            PUT,
            Visit { host: Some(b"example.org"), ..VISIT },
            Visit { host: None, target: b"http://example.org/", ..VISIT },
            Visit { forwarded: true, token: Some(b"x"), ..VISIT },
        ] {
            assert_eq!(access(Tokens::Off).admit(&visit), everything, "{visit:?}");
            assert!(access(Tokens::Off).is_open() && !access(Tokens::Optional).is_open());
        }
    }

    #[test]
    fn strictness_about_hosts_and_proxies() {
        let options = Options { strict_host: true, reject_forwarded: true, ..Options::default() };
        let access = Access::new(&options, [1; KEY_BYTES]);
        for (visit, denial) in [
            (VISIT, None),
            (Visit { host: None, ..VISIT }, None),
            (Visit { host: Some(b"rancher-metadata"), ..VISIT }, None),
            (Visit { target: b"http://192.0.2.250/latest", ..VISIT }, None),
            (Visit { target: b"latest", ..VISIT }, None),
            (Visit { host: Some(b""), ..VISIT }, Some(Denial::Host)),
            (Visit { host: Some(b"example.org"), ..VISIT }, Some(Denial::Host)),
            (Visit { target: b"http://example.org/latest", ..VISIT }, Some(Denial::Host)),
            (Visit { target: b"http://192.0.2.250/", host: Some(b"example.org"), ..VISIT }, Some(Denial::Host)),
            (Visit { forwarded: true, ..VISIT }, Some(Denial::Forwarded)),
        ] {
            assert_eq!(access.admit(&visit).err(), denial, "{visit:?}");
        }
    }

    #[test]
    fn tokens_are_given_and_asked_for() {
        for tokens in [Tokens::Optional, Tokens::Required] {
            let access = access(tokens);
            let Ok(Admission::Token(token, 60)) = access.admit(&PUT) else { panic!("no token") };
            let good = Visit { token: Some(token.as_bytes()), ..VISIT };
            let missing = if tokens == Tokens::Required {
                Err(Denial::TokenMissing)
            } else {
                Ok(Admission::Everything(Session::Missing))
            };
            for (visit, expected) in [
                (VISIT, missing),
                (good, Ok(Admission::Everything(Session::Valid))),
                (Visit { now: Duration::from_secs(61), ..good }, Err(Denial::TokenInvalid)),
                (Visit { peer: VISIT.local.ip(), ..good }, Err(Denial::TokenInvalid)),
                (Visit { target: b"/v1/changes", token: Some(b""), ..VISIT }, Err(Denial::TokenInvalid)),
                (Visit { lifetime: None, ..PUT }, Err(Denial::Lifetime)),
                (Visit { lifetime: Some(b"0"), ..PUT }, Err(Denial::Lifetime)),
                (Visit { forwarded: true, ..PUT }, Err(Denial::ForwardedToken)),
                (Visit { target: b"/latest/name", token: Some(b"x"), ..PUT }, Err(Denial::TokenInvalid)),
                (Visit { put: false, token: Some(b"x"), ..PUT }, Err(Denial::TokenInvalid)),
            ] {
                assert_eq!(access.admit(&visit), expected, "{tokens:?} {visit:?}");
            }
        }
    }
}
