//! Tickets: addresses of the page that work once, and the sessions that they buy.
//!
//! A ticket is made of a token that both sides can read, a time and a random number. So the token itself is in no address, which
//! browsers remember and lists of processes show.

use std::collections::{HashSet, VecDeque};

use ring::hmac;

/// How long a ticket is good, in seconds: a person starts a browser with it.
pub const TICKET_TIME: i64 = 120;

/// How long a session lasts, in seconds: a working day.
pub const SESSION_TIME: i64 = 12 * 3600;

/// Most sessions at once; the oldest ends first.
const SESSIONS_MAX: usize = 64;

/// Most tickets that are remembered as used; they are forgotten when they are too old anyway.
const USED_MAX: usize = 1024;

/// Random bytes of a ticket and of a session.
pub const RANDOM: usize = 32;

/// A ticket that is good for a while from `now` on (in seconds since 1970).
pub fn ticket(token: &str, now: i64, random: &[u8; RANDOM]) -> String {
    let said = format!("{now}.{}", model::hex(random));
    let tag = hmac::sign(&key(token), said.as_bytes());
    format!("{said}.{}", model::hex(tag.as_ref()))
}

fn key(token: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes())
}

/// Who may see the page.
pub(crate) struct Door {
    token: String,
    /// Since when, in seconds since 1970. Which older tickets were used is not known.
    since: i64,
    used: VecDeque<(i64, String)>,
    sessions: VecDeque<(i64, String)>,
}

impl Door {
    /// A door for those who know this token, from `now` on.
    pub(crate) fn new(token: String, now: i64) -> Self {
        Self { token, since: now, used: VecDeque::new(), sessions: VecDeque::new() }
    }

    /// The session that a ticket buys, once.
    pub(crate) fn buy(&mut self, given: &str, now: i64, random: &[u8; RANDOM]) -> Option<String> {
        let (said, tag) = given.rsplit_once('.')?;
        let (at, nonce) = said.split_once('.')?;
        let at: i64 = at.parse().ok()?;
        hmac::verify(&key(&self.token), said.as_bytes(), &unhex(tag)?).ok()?;
        let age = now.checked_sub(at)?;
        self.used.retain(|(at, _)| now - at <= TICKET_TIME);
        if at < self.since || !(-TICKET_TIME..=TICKET_TIME).contains(&age) || self.used.len() >= USED_MAX {
            return None;
        }
        let known: HashSet<&str> = self.used.iter().map(|(_, used)| &**used).collect();
        if known.contains(nonce) {
            return None;
        }
        // Counted from the later of both, so that it is not forgotten while it is good.
        self.used.push_back((now.max(at), nonce.to_owned()));
        let session = model::hex(random);
        self.sessions.push_back((now, session.clone()));
        if self.sessions.len() > SESSIONS_MAX {
            self.sessions.pop_front();
        }
        Some(session)
    }

    /// Whether a session of this id is open.
    pub(crate) fn admits(&mut self, id: &str, now: i64) -> bool {
        self.sessions.retain(|(begun, _)| now - begun < SESSION_TIME);
        // Each comparison takes the same time, wherever the first difference is.
        self.sessions.iter().fold(false, |found, (_, known)| {
            let differing = known.bytes().zip(id.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
            found | (known.len() == id.len() && differing == 0)
        })
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("sessions", &self.sessions.len()).finish_non_exhaustive()
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    digits?.chunks(2).map(|pair| u8::try_from(pair.first()? * 16 + pair.get(1)?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn a_ticket_buys_one_session_and_that_ends() {
        let mut door = Door::new("secret".into(), NOW);
        let good = ticket("secret", NOW, &[1; RANDOM]);
        assert!(!good.contains("secret"));
        let session = door.buy(&good, NOW + 5, &[7; RANDOM]).unwrap();
        assert_eq!(door.buy(&good, NOW + 6, &[8; RANDOM]), None, "once");
        assert!(door.admits(&session, NOW + 6) && !door.admits("", NOW + 6) && !door.admits(&session[1..], NOW + 6));
        assert!(door.admits(&session, NOW + SESSION_TIME) && !door.admits(&session, NOW + 5 + SESSION_TIME));
    }

    #[test]
    fn a_ticket_buys_no_other_session_after_a_restart() {
        let good = ticket("secret", NOW, &[1; RANDOM]);
        assert!(Door::new("secret".into(), NOW).buy(&good, NOW + 1, &[7; RANDOM]).is_some());
        assert_eq!(Door::new("secret".into(), NOW + 2).buy(&good, NOW + 3, &[7; RANDOM]), None);
    }

    #[test]
    fn other_tickets_buy_nothing() {
        let mut door = Door::new("secret".into(), NOW);
        let good = ticket("secret", NOW, &[1; RANDOM]);
        let late = NOW + TICKET_TIME + 1;
        for (given, now) in [
            ("", NOW),
            (".", NOW),
            ("..", NOW),
            (&ticket("other", NOW, &[1; RANDOM]), NOW),
            (&good, late),
            (&ticket("secret", i64::MIN, &[1; RANDOM]), NOW),
            (&good.replace(&NOW.to_string(), &late.to_string()), late),
            (&format!("{good}0"), NOW),
            (&good[..good.len() - 2], NOW),
            (&ticket("secret", NOW + 2 * TICKET_TIME, &[1; RANDOM]), NOW),
        ] {
            assert_eq!(door.buy(given, now, &[0; RANDOM]), None, "{given}");
        }
    }
}
