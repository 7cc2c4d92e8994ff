//! Claims: names and ports that one placement at a time can have, and those left by a placement deleted by hand.

use std::collections::BTreeSet;

use model::Text;

use super::EtcdMirror;
use crate::ledger::etcd::keys::Claim;

impl EtcdMirror {
    /// Learns which placement has a name or a port; none without a value.
    pub(in crate::ledger) fn learn_claim(&mut self, claim: Text, revision: i64, value: Option<&[u8]>) {
        if let Some((holder, _)) = self.claims.remove(&claim)
            && let Some(held) = self.claims_of.get_mut(&holder)
        {
            held.remove(&claim);
            if held.is_empty() {
                self.claims_of.remove(&holder);
            }
            self.doubtful.insert(holder);
        }
        if let Some(value) = value {
            let holder = Claim::holder(value);
            if holder.is_empty() {
                let text =
                    "this key does not say which placement has it, and blocks all others: delete it when none has it";
                self.junk.add(&claim, text);
            }
            self.claims_of.entry(holder.clone()).or_default().insert(claim.clone());
            self.doubtful.insert(holder.clone());
            self.claims.insert(claim, (holder, revision));
        }
    }

    /// Finds out which placements are gone and have left something.
    pub(in crate::ledger) fn find_strays(&mut self) {
        for id in std::mem::take(&mut self.doubtful) {
            let left = self.claims_of.get(&id).filter(|_| !id.is_empty() && !self.records.contains_key(&id));
            let Some(left) = left.map(BTreeSet::len) else {
                self.strays.remove(&id);
                continue;
            };
            if self.strays.insert(id.clone()) {
                let text = format!(
                    "it was deleted in etcd by hand, which left {left} keys of its names and ports: they are deleted"
                );
                self.junk.add(&id, text);
            }
        }
    }

    /// Whether the claims of this placement are about to be deleted.
    pub(in crate::ledger) fn is_stray(&self, id: &str) -> bool {
        self.strays.contains(id)
    }

    /// Whether the claims of this placement stay until a person acts: its record, or the holder, cannot be read.
    pub(in crate::ledger) fn is_stuck(&self, id: &str) -> bool {
        id.is_empty() || self.records.get(id).is_some_and(|stored| stored.owner.is_empty())
    }
}
