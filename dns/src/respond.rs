//! Responses to queries about names of the zone: found, and written where they leave from.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::answer::{Answer, answer};
use crate::cookie::Secret;
use crate::edns::Extra;
use crate::name::{NAME_BYTES_MAX, fold};
use crate::query::Query;
use crate::write::{Written, write};
use crate::zone::{Scope, Zone};

/// What responses depend on besides the zone, the client and the query.
#[derive(Debug)]
pub(crate) struct Responder {
    turn: AtomicUsize,
    cookies: Secret,
    /// The name of this server (NSID).
    name: Option<Arc<[u8]>>,
    /// The time as cookies have it, in seconds since 1970.
    clock: fn() -> u32,
}

impl Responder {
    pub(crate) fn new(cookies: Secret, name: Option<Arc<[u8]>>, clock: fn() -> u32) -> Self {
        Self { turn: AtomicUsize::new(0), cookies, name, clock }
    }

    /// What goes into the OPT record of the response to this client.
    pub(crate) fn extra(&self, query: &Query<'_>, client: IpAddr, connected: bool) -> Extra<'_> {
        let Some(edns) = query.wishes.edns else { return Extra { connected, ..Extra::default() } };
        let cookie = edns.client_cookie.map(|part| self.cookies.cookie(part, client, (self.clock)()));
        let server = if edns.nsid { self.name.as_deref() } else { None };
        Extra { extended_error: None, cookie, connected, server }
    }

    /// Whether the query brings a cookie of ours, which only who has this address was given.
    pub(crate) fn is_proven(&self, query: &Query<'_>, client: IpAddr) -> bool {
        let cookie = query.wishes.edns.and_then(|edns| edns.cookie);
        cookie.is_some_and(|cookie| self.cookies.is_own(&cookie, client, (self.clock)()))
    }

    /// Writes the response to a client that sees this scope; no response when the answer is elsewhere.
    pub(crate) fn respond<'z>(
        &self,
        (zone, scope): (&'z Zone, Option<&'z Scope>),
        query: &Query<'_>,
        extra: Extra<'_>,
        room: &mut [u8],
    ) -> (Option<Written>, Answer<'z>) {
        let mut folded = [0; NAME_BYTES_MAX];
        let answer = answer(zone, scope, fold(query.name, &mut folded), query.kind, &mut ());
        (write(query, zone, &answer, || self.next_turn(), extra, room), answer)
    }

    /// A number that says which of several records stands first.
    ///
    /// Mixed, since clients ask in patterns: one that asks for A and AAAA in turns would always get the same A first.
    pub(crate) fn next_turn(&self) -> usize {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as u64;
        let mixed = (turn ^ (turn >> 15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mixed >> 40).unwrap_or_default()
    }
}
