//! The history of a cluster, by which an answer is recognised as later than another one.

use std::fmt;

use crate::wire::Header;

/// Where in its history a cluster was when it answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Which cluster it is; one that was set up again may have the same.
    pub cluster: u64,
    /// How many changes it has had.
    pub revision: i64,
    /// How many elections it has had.
    pub term: i64,
}

impl At {
    /// Whether `self` was seen after `before` of the same history; otherwise etcd was wiped or restored in between.
    pub fn follows(self, before: Self) -> bool {
        self.cluster == before.cluster && self.revision >= before.revision && self.term >= before.term
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In the form in which etcd's own tools print a cluster.
        write!(f, "revision {} of term {} in cluster {:x}", self.revision, self.term, self.cluster)
    }
}

impl From<Header> for At {
    fn from(header: Header) -> Self {
        Self { cluster: header.cluster_id.0, revision: header.revision.0, term: header.raft_term.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_history_is_written_in_words() {
        let at = At { cluster: 0xcdf8_181e_3277_ad5b, revision: 458, term: 3 };
        assert_eq!(at.to_string(), "revision 458 of term 3 in cluster cdf8181e3277ad5b");
    }
}
