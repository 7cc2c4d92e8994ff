//! The JSON of etcd's gateway: keys and values in base64, 64-bit numbers as text, zeros left out.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that etcd writes as text, and reads both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Number(pub(super) i64);

impl Number {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    pub(super) fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor).map(Self)
    }
}

/// An identifier, which is unsigned on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Id(pub(super) u64);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number, or one as text")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<i64, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E>(self, number: i64) -> Result<i64, E> {
        Ok(number)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<i64, E> {
        i64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}

/// Bytes, in base64 on the wire.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Base64(pub(super) Vec<u8>);

impl std::fmt::Debug for Base64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Base64 {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Base64 {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Base64Visitor;
        impl Visitor<'_> for Base64Visitor {
            type Value = Base64;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("base64")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Base64, E> {
                STANDARD.decode(text).map(Base64).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Base64Visitor)
    }
}

/// What stands at the head of every answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) cluster_id: Id,
    pub(super) member_id: Id,
    pub(super) revision: Number,
    pub(super) raft_term: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: Base64,
    pub(super) value: Base64,
    pub(super) create_revision: Number,
    pub(super) mod_revision: Number,
    pub(super) version: Number,
    pub(super) lease: Number,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct RangeRequest {
    pub(super) key: Base64,
    #[serde(skip_serializing_if = "Base64::is_empty")]
    pub(super) range_end: Base64,
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub(super) limit: Number,
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub(super) revision: Number,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) keys_only: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeResponse {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
    pub(super) more: bool,
}

/// The last key of a page behind which there are more, as it seems from the end of its text: a moment's work, where reading
/// the page takes a while. A caller that uses it compares it with the page later.
pub(super) fn last_key(page: &[u8]) -> Option<Vec<u8>> {
    const KEY: &[u8] = br#""key":""#;
    const MORE: &[u8] = br#""more":true"#;
    let start = page.windows(KEY.len()).rposition(|window| window == KEY)? + KEY.len();
    let rest = &page[start..];
    let end = rest.iter().position(|byte| *byte == b'"')?;
    // Behind the keys: values in between are in base64, where there are no quotes.
    let more = rest[end..].windows(MORE.len()).any(|window| window == MORE);
    STANDARD.decode(&rest[..end]).ok().filter(|_| more)
}

#[derive(Debug, Default, Serialize)]
pub(super) struct PutRequest {
    pub(super) key: Base64,
    pub(super) value: Base64,
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub(super) lease: Number,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct DeleteRequest {
    pub(super) key: Base64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DeleteResponse {
    pub(super) header: Header,
    pub(super) deleted: Number,
}

/// A comparison; of the values after `key` the one that `target` names is given.
#[derive(Debug, Serialize)]
pub(super) struct CompareRequest {
    pub(super) result: &'static str,
    pub(super) target: &'static str,
    pub(super) key: Base64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) create_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mod_revision: Option<Number>,
}

#[derive(Debug, Serialize)]
pub(super) enum RequestOp {
    #[serde(rename = "request_put")]
    Put(PutRequest),
    #[serde(rename = "request_delete_range")]
    DeleteRange(DeleteRequest),
    #[serde(rename = "request_range")]
    Range(RangeRequest),
}

#[derive(Debug, Serialize)]
pub(super) struct TxnRequest {
    pub(super) compare: Vec<CompareRequest>,
    pub(super) success: Vec<RequestOp>,
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnResponse {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<ResponseOp>,
}

/// The answer to one operation; one of the three is there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResponseOp {
    pub(super) response_range: Option<RangeResponse>,
    pub(super) response_delete_range: Option<DeleteResponse>,
}

#[derive(Debug, Serialize)]
pub(super) struct LeaseGrantRequest {
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

#[derive(Debug, Serialize)]
pub(super) struct LeaseRequest {
    #[serde(rename = "ID")]
    pub(super) id: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseResponse {
    pub(super) header: Header,
    #[serde(rename = "ID")]
    pub(super) id: Number,
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

#[derive(Debug, Serialize)]
pub(super) struct WatchRequest {
    pub(super) create_request: WatchCreate,
}

#[derive(Debug, Serialize)]
pub(super) struct WatchCreate {
    pub(super) key: Base64,
    pub(super) range_end: Base64,
    pub(super) start_revision: Number,
    pub(super) fragment: bool,
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub(super) watch_id: Number,
}

/// What a stream sends: a result, or why it ends.
#[derive(Debug, Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<Failure>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchResponse {
    pub(super) header: Header,
    pub(super) watch_id: Number,
    pub(super) created: bool,
    pub(super) canceled: bool,
    pub(super) compact_revision: Number,
    pub(super) cancel_reason: String,
    /// More of this answer is to come.
    pub(super) fragment: bool,
    pub(super) events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event {
    #[serde(rename = "type")]
    pub(super) kind: EventKind,
    pub(super) kv: KeyValue,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EventKind {
    #[default]
    Put,
    Delete,
}

/// Why a request failed; a stream says `grpc_code`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Failure {
    #[serde(alias = "grpc_code")]
    pub(super) code: u32,
    pub(super) message: String,
}

#[derive(Serialize)]
pub(super) struct AuthenticateRequest<'a> {
    pub(super) name: &'a str,
    pub(super) password: &'a str,
}

#[derive(Deserialize)]
pub(super) struct AuthenticateResponse {
    pub(super) token: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StatusResponse {
    pub(super) header: Header,
    pub(super) version: String,
    pub(super) db_size: Number,
    pub(super) leader: Id,
    pub(super) errors: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MembersResponse {
    pub(super) members: Vec<MemberResponse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MemberResponse {
    pub(super) name: String,
    #[serde(rename = "clientURLs")]
    pub(super) client_urls: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(truth: &bool) -> bool {
    !truth
}

/// The first key behind all that begin with `prefix`.
pub(super) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // There is none: etcd takes a zero byte for the end of all keys.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_the_gateway_writes_them() {
        let answer = r#"{"header":{"cluster_id":"14841639068965178418","member_id":"3","revision":"2","raft_term":"2"},
            "kvs":[{"key":"L2JlcnRoL2E=","create_revision":"2","mod_revision":"2","version":"1","value":"eA=="}],"count":"1"}"#;
        let answer: RangeResponse = serde_json::from_str(answer).unwrap();
        assert_eq!((answer.header.cluster_id.0, answer.header.revision.0), (14_841_639_068_965_178_418, 2));
        let kv = &answer.kvs[0];
        assert_eq!((&*kv.key.0, &*kv.value.0, kv.mod_revision.0, kv.lease.0), (&b"/berth/a"[..], &b"x"[..], 2, 0));
        assert!(!answer.more);
        let line = r#"{"result":{"header":{"revision":"3"},"events":[{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"3"}},{"kv":{"key":"Yg=="}}]}}"#;
        let line: Streamed<WatchResponse> = serde_json::from_str(line).unwrap();
        let kinds: Vec<_> = line.result.unwrap().events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Delete, EventKind::Put]);
        let line = r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}}"#;
        let line: Streamed<WatchResponse> = serde_json::from_str(line).unwrap();
        assert_eq!(line.error.unwrap().code, 14);
    }

    #[test]
    fn where_a_page_ends_is_seen_from_behind() {
        let page = |keys: &str, end: &str| format!(r#"{{"header":{{"revision":"2"}},"kvs":[{keys}]{end}}}"#);
        let keys = r#"{"key":"YQ==","version":"1","value":"eA=="},{"key":"L2JlcnRoL2I=","value":"eA=="}"#;
        for (keys, end, expected) in [
            (keys, r#","more":true,"count":"9""#, Some(&b"/berth/b"[..])),
            (keys, r#","count":"2""#, None),
            ("", r#","more":true"#, None),
            (r#"{"key":"not base64"}"#, r#","more":true"#, None),
            (r#"{"key":"YQ"#, "", None),
        ] {
            assert_eq!(last_key(page(keys, end).as_bytes()).as_deref(), expected, "{keys} {end}");
        }
    }

    #[test]
    fn requests_say_only_what_is_asked() {
        let range =
            RangeRequest { key: "a".into(), range_end: "b".into(), limit: Number(5), ..RangeRequest::default() };
        assert_eq!(serde_json::to_string(&range).unwrap(), r#"{"key":"YQ==","range_end":"Yg==","limit":"5"}"#);
        let put = RequestOp::Put(PutRequest { key: "a".into(), value: "b".into(), lease: Number(7) });
        let written = r#"{"request_put":{"key":"YQ==","value":"Yg==","lease":"7"}}"#;
        assert_eq!(serde_json::to_string(&put).unwrap(), written);
    }

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_without_it() {
        for (prefix, end) in [(&b"/a/"[..], &b"/a0"[..]), (b"a\xff", b"b"), (b"\xff", b"\0"), (b"", b"\0")] {
            assert_eq!(prefix_end(prefix), end, "{prefix:?}");
        }
    }
}
