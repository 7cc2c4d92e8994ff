//! Answers given lately: most clients ask the same again and again, octet for octet.
//!
//! An answer is remembered for one client, one request and one content of the view; who asks again gets the same octets
//! with another date. A request is remembered when it comes for the second time, so that those that come once cost
//! nothing.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::net::IpAddr;

use foldhash::fast::RandomState;

/// Most answers that are remembered: some hundred clients with a handful of questions each. Then all are forgotten.
const ANSWERS_MAX: usize = 2048;

/// Longest request and answer together that are remembered, in octets; with [`ANSWERS_MAX`] that is 4 MiB at most.
const OCTETS_MAX: usize = 2048;

/// How many requests are known to have come once; a power of two.
const SEEN: usize = 4096;

/// The answers given lately as of one version of the content.
pub(crate) struct Recent {
    version: String,
    hasher: RandomState,
    answers: HashMap<u64, Known, RandomState>,
    seen: Vec<u64>,
}

/// An answer.
struct Known {
    client: IpAddr,
    request: Box<[u8]>,
    given: Given,
}

/// An answer as it was given.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) octets: Box<[u8]>,
    /// Where the date stands in it.
    pub(crate) date_at: usize,
    pub(crate) status: u16,
    /// Whether the connection ends with it.
    pub(crate) last: bool,
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self {
            version: String::new(),
            hasher: RandomState::default(),
            answers: HashMap::default(),
            seen: vec![0; SEEN],
        }
    }

    /// What this client got for this request, as of this version.
    pub(crate) fn answer(&mut self, version: &str, client: IpAddr, request: &[u8]) -> Option<&Given> {
        if self.version != version {
            self.answers.clear();
            version.clone_into(&mut self.version);
        }
        let known = self.answers.get(&self.hasher.hash_one((client, request)))?;
        (known.client == client && *known.request == *request).then_some(&known.given)
    }

    /// Remembers what was given as of the version that was asked for last, when the request came before.
    pub(crate) fn remember(&mut self, client: IpAddr, request: &[u8], given: impl FnOnce() -> Given) {
        let hash = self.hasher.hash_one((client, request));
        // What overwrites each other is remembered later.
        let seen = &mut self.seen[usize::try_from(hash).unwrap_or_default() % SEEN];
        if std::mem::replace(seen, hash) != hash {
            return;
        }
        let given = given();
        if given.octets.len() + request.len() > OCTETS_MAX {
            return;
        }
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.clear();
        }
        self.answers.insert(hash, Known { client, request: request.into(), given });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn given(text: &str) -> Given {
        Given { octets: text.as_bytes().into(), date_at: 0, status: 200, last: false }
    }

    fn known(recent: &mut Recent, version: &str, client: IpAddr, request: &[u8]) -> Option<String> {
        recent.answer(version, client, request).map(|given| String::from_utf8(given.octets.to_vec()).unwrap())
    }

    #[test]
    fn what_came_twice_is_known_to_the_same_client_as_of_the_same_version() {
        let mut recent = Recent::new();
        assert_eq!(known(&mut recent, "1", CLIENT, b"q"), None);
        recent.remember(CLIENT, b"q", || panic!("it came once"));
        recent.remember(CLIENT, b"q", || given("a"));
        assert_eq!(known(&mut recent, "1", CLIENT, b"q"), Some("a".to_owned()));
        assert_eq!(known(&mut recent, "1", OTHER, b"q"), None);
        assert_eq!(known(&mut recent, "1", CLIENT, b"qq"), None);
        assert_eq!(known(&mut recent, "2", CLIENT, b"q"), None);
        assert_eq!(known(&mut recent, "1", CLIENT, b"q"), None, "the content may have come back, the memory not");
    }

    #[test]
    fn only_so_much_is_remembered() {
        let mut recent = Recent::new();
        recent.answer("1", CLIENT, b"");
        for request in 0..3 * ANSWERS_MAX {
            for _ in 0..2 {
                recent.remember(CLIENT, request.to_string().as_bytes(), || given("a"));
            }
            assert!(recent.answers.len() <= ANSWERS_MAX);
        }
        let long = "x".repeat(OCTETS_MAX);
        for _ in 0..3 {
            recent.remember(CLIENT, b"long", || given(&long));
        }
        assert_eq!(known(&mut recent, "1", CLIENT, b"long"), None);
    }
}
