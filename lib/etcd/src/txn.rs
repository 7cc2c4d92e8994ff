//! Transactions: all comparisons hold and the one list of operations is done, or the other one is.

use crate::wire::{
    Base64, CompareRequest, DeleteRequest, KeyValue, Number, PutRequest, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse,
};

/// Most operations of a transaction; etcd's own bound is 128.
pub const OPS_MAX: usize = 100;

/// A key with its value, and what etcd knows of both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The whole key.
    pub key: Vec<u8>,
    /// Its value; empty when only keys were asked for.
    pub value: Vec<u8>,
    /// The revision in which the key was put for the first time since it was last deleted.
    pub create_revision: i64,
    /// The revision in which it was put last.
    pub mod_revision: i64,
    /// How often it was put since it was last deleted.
    pub version: i64,
    /// The lease with which it goes; 0 means none.
    pub lease: i64,
}

impl From<KeyValue> for Pair {
    fn from(kv: KeyValue) -> Self {
        Self {
            key: kv.key.0,
            value: kv.value.0,
            create_revision: kv.create_revision.0,
            mod_revision: kv.mod_revision.0,
            version: kv.version.0,
            lease: kv.lease.0,
        }
    }
}

/// A comparison of a revision that etcd knows of a key with what the caller takes it to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    key: Vec<u8>,
    with: With,
}

/// What a key is compared by. A key that does not exist has 0 for both.
#[derive(Clone, Debug, PartialEq, Eq)]
enum With {
    /// The revision in which it was put for the first time.
    CreateRevision(i64),
    /// The revision in which it was put last.
    ModRevision(i64),
}

impl Compare {
    /// The key does not exist.
    pub fn absent(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), with: With::CreateRevision(0) }
    }

    /// The key was neither put nor deleted since it was seen with this `mod_revision`.
    pub fn unchanged(key: impl Into<Vec<u8>>, mod_revision: i64) -> Self {
        Self { key: key.into(), with: With::ModRevision(mod_revision) }
    }

    fn request(self) -> CompareRequest {
        let (target, create_revision, mod_revision) = match self.with {
            With::CreateRevision(revision) => ("CREATE", Some(Number(revision)), None),
            With::ModRevision(revision) => ("MOD", None, Some(Number(revision))),
        };
        CompareRequest { result: "EQUAL", target, key: Base64(self.key), create_revision, mod_revision }
    }
}

/// One operation of a transaction. No key may be put twice in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Puts a value.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// The lease with which it goes; 0 means none.
        lease: i64,
    },
    /// Deletes one key; that there is none is no failure.
    Delete(Vec<u8>),
    /// Reads one key, as it is after the operations before.
    Get(Vec<u8>),
}

impl Op {
    fn request(self) -> RequestOp {
        match self {
            Self::Put { key, value, lease } => {
                RequestOp::Put(PutRequest { key: Base64(key), value: Base64(value), lease: Number(lease) })
            }
            Self::Delete(key) => RequestOp::DeleteRange(DeleteRequest { key: Base64(key), ..DeleteRequest::default() }),
            Self::Get(key) => RequestOp::Range(RangeRequest { key: Base64(key), ..RangeRequest::default() }),
        }
    }
}

/// A transaction.
///
/// A lost answer leaves open whether it was done: it is never sent twice. A caller that needs to know reads the keys
/// again, which is why a value should name its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// What has to hold.
    pub compare: Vec<Compare>,
    /// What is done then.
    pub success: Vec<Op>,
    /// What is done otherwise.
    pub failure: Vec<Op>,
}

impl Txn {
    pub(crate) fn request(self) -> TxnRequest {
        TxnRequest {
            compare: self.compare.into_iter().map(Compare::request).collect(),
            success: self.success.into_iter().map(Op::request).collect(),
            failure: self.failure.into_iter().map(Op::request).collect(),
        }
    }
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnOutcome {
    /// Whether the comparisons held.
    pub succeeded: bool,
    /// etcd's revision afterwards; keys that were put have it as their `mod_revision`.
    pub revision: i64,
    /// What the operations of the list that was done gave, one by one.
    pub results: Vec<OpResult>,
}

/// What one operation gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// It was put.
    Put,
    /// So many keys were deleted.
    Deleted(i64),
    /// What was read.
    Pairs(Vec<Pair>),
}

impl From<TxnResponse> for TxnOutcome {
    fn from(response: TxnResponse) -> Self {
        let pairs = |range: RangeResponse| OpResult::Pairs(range.kvs.into_iter().map(Pair::from).collect());
        let results = response.responses.into_iter().map(|op| match (op.response_range, op.response_delete_range) {
            (Some(range), _) => pairs(range),
            (None, Some(deleted)) => OpResult::Deleted(deleted.deleted.0),
            (None, None) => OpResult::Put,
        });
        Self { succeeded: response.succeeded, revision: response.header.revision.0, results: results.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_name_what_they_compare() {
        for (compare, written) in [
            (Compare::absent("k"), r#""target":"CREATE","key":"aw==","create_revision":"0""#),
            (Compare::unchanged("k", 7), r#""target":"MOD","key":"aw==","mod_revision":"7""#),
        ] {
            let expected = format!(r#"{{"result":"EQUAL",{written}}}"#);
            assert_eq!(serde_json::to_string(&compare.request()).unwrap(), expected);
        }
    }

    #[test]
    fn each_operation_has_its_result() {
        let answer = r#"{"header":{"revision":"3"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"3"}}},
            {"response_range":{"header":{"revision":"3"},"kvs":[{"key":"aw==","value":"eA==","mod_revision":"2"}],"count":"1"}},
            {"response_delete_range":{"header":{"revision":"3"},"deleted":"2"}}]}"#;
        let outcome = TxnOutcome::from(serde_json::from_str::<TxnResponse>(answer).unwrap());
        let read = Pair { key: b"k".to_vec(), value: b"x".to_vec(), mod_revision: 2, ..Pair::default() };
        assert_eq!(outcome.results, [OpResult::Put, OpResult::Pairs(vec![read]), OpResult::Deleted(2)]);
        assert!(outcome.succeeded && outcome.revision == 3);
    }
}
