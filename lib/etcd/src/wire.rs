//! The JSON of etcd's gateway: keys and values in base64, 64-bit numbers as text, zeros left out.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that etcd writes as text, and reads both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Number(pub(crate) i64);

impl Number {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    pub(crate) fn is_zero(&self) -> bool {
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
pub(crate) struct Id(pub(crate) u64);

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
pub(crate) struct Base64(pub(crate) Vec<u8>);

impl std::fmt::Debug for Base64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Base64 {
    pub(crate) fn is_empty(&self) -> bool {
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

/// The head of every response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    pub(crate) cluster_id: Id,
    pub(crate) member_id: Id,
    pub(crate) revision: Number,
    pub(crate) raft_term: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    pub(crate) key: Base64,
    pub(crate) value: Base64,
    pub(crate) create_revision: Number,
    pub(crate) mod_revision: Number,
    pub(crate) version: Number,
    pub(crate) lease: Number,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct RangeRequest {
    pub(crate) key: Base64,
    #[serde(skip_serializing_if = "Base64::is_empty")]
    pub(crate) range_end: Base64,
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub(crate) limit: Number,
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub(crate) revision: Number,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) keys_only: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RangeResponse {
    pub(crate) header: Header,
    pub(crate) kvs: Vec<KeyValue>,
    pub(crate) more: bool,
}

/// The last key of a page behind which there are more, as it seems from the end of its text: a moment's work, where reading
/// the page takes a while. A caller that uses it compares it with the page later.
pub(crate) fn last_key(page: &[u8]) -> Option<Vec<u8>> {
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
pub(crate) struct PutRequest {
    pub(crate) key: Base64,
    pub(crate) value: Base64,
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub(crate) lease: Number,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct DeleteRequest {
    pub(crate) key: Base64,
    #[serde(skip_serializing_if = "Base64::is_empty")]
    pub(crate) range_end: Base64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeleteResponse {
    pub(crate) header: Header,
    pub(crate) deleted: Number,
}

/// A comparison; of the values after `key` the one that `target` names is given.
#[derive(Debug, Serialize)]
pub(crate) struct CompareRequest {
    pub(crate) result: &'static str,
    pub(crate) target: &'static str,
    pub(crate) key: Base64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) create_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mod_revision: Option<Number>,
}

#[derive(Debug, Serialize)]
pub(crate) enum RequestOp {
    #[serde(rename = "request_put")]
    Put(PutRequest),
    #[serde(rename = "request_delete_range")]
    DeleteRange(DeleteRequest),
    #[serde(rename = "request_range")]
    Range(RangeRequest),
}

#[derive(Debug, Serialize)]
pub(crate) struct TxnRequest {
    pub(crate) compare: Vec<CompareRequest>,
    pub(crate) success: Vec<RequestOp>,
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TxnResponse {
    pub(crate) header: Header,
    pub(crate) succeeded: bool,
    pub(crate) responses: Vec<ResponseOp>,
}

/// The answer to one operation; one of the three is there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ResponseOp {
    pub(crate) response_range: Option<RangeResponse>,
    pub(crate) response_delete_range: Option<DeleteResponse>,
}

#[derive(Debug, Serialize)]
pub(crate) struct LeaseGrantRequest {
    #[serde(rename = "TTL")]
    pub(crate) ttl: Number,
}

#[derive(Debug, Serialize)]
pub(crate) struct LeaseRequest {
    #[serde(rename = "ID")]
    pub(crate) id: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LeaseResponse {
    pub(crate) header: Header,
    #[serde(rename = "ID")]
    pub(crate) id: Number,
    #[serde(rename = "TTL")]
    pub(crate) ttl: Number,
}

#[derive(Debug, Serialize)]
pub(crate) struct WatchRequest {
    pub(crate) create_request: WatchCreate,
}

#[derive(Debug, Serialize)]
pub(crate) struct WatchCreate {
    pub(crate) key: Base64,
    pub(crate) range_end: Base64,
    pub(crate) start_revision: Number,
    pub(crate) fragment: bool,
    #[serde(skip_serializing_if = "Number::is_zero")]
    pub(crate) watch_id: Number,
}

/// What a stream sends: a result, or why it ends.
#[derive(Debug, Deserialize)]
pub(crate) struct Streamed<T> {
    pub(crate) result: Option<T>,
    pub(crate) error: Option<Failure>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchResponse {
    pub(crate) header: Header,
    pub(crate) watch_id: Number,
    pub(crate) created: bool,
    pub(crate) canceled: bool,
    pub(crate) compact_revision: Number,
    pub(crate) cancel_reason: String,
    /// More of this answer is to come.
    pub(crate) fragment: bool,
    pub(crate) events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    #[serde(rename = "type")]
    pub(crate) kind: EventKind,
    pub(crate) kv: KeyValue,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum EventKind {
    #[default]
    Put,
    Delete,
}

/// Why a request failed; a stream says `grpc_code`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Failure {
    #[serde(alias = "grpc_code")]
    pub(crate) code: u32,
    pub(crate) message: String,
}

#[derive(Serialize)]
pub(crate) struct AuthenticateRequest<'a> {
    pub(crate) name: &'a str,
    pub(crate) password: &'a str,
}

#[derive(Deserialize)]
pub(crate) struct AuthenticateResponse {
    pub(crate) token: String,
}

#[derive(Default, Serialize)]
pub(crate) struct UserRequest<'a> {
    pub(crate) name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password: Option<&'a str>,
}

#[derive(Serialize)]
pub(crate) struct UserRoleRequest<'a> {
    pub(crate) user: &'a str,
    pub(crate) role: &'a str,
}

#[derive(Serialize)]
pub(crate) struct RoleRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'a str>,
}

#[derive(Serialize)]
pub(crate) struct GrantRequest<'a> {
    pub(crate) name: &'a str,
    pub(crate) perm: Permission,
}

#[derive(Serialize)]
pub(crate) struct Permission {
    #[serde(rename = "permType")]
    pub(crate) kind: &'static str,
    pub(crate) key: Base64,
    #[serde(skip_serializing_if = "Base64::is_empty")]
    pub(crate) range_end: Base64,
}

#[derive(Serialize)]
pub(crate) struct RevokeRequest<'a> {
    pub(crate) role: &'a str,
    pub(crate) key: Base64,
    #[serde(skip_serializing_if = "Base64::is_empty")]
    pub(crate) range_end: Base64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RoleResponse {
    pub(crate) perm: Vec<GrantedPermission>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GrantedPermission {
    #[serde(rename = "permType")]
    pub(crate) kind: Granted,
    pub(crate) key: Base64,
    pub(crate) range_end: Base64,
}

/// What is permitted. The first value of an enumeration is left out of JSON.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Granted {
    #[default]
    Read,
    Write,
    ReadWrite,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct UsersResponse {
    pub(crate) users: Vec<String>,
}

/// An answer of which nothing matters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Done {}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct StatusResponse {
    pub(crate) header: Header,
    pub(crate) version: String,
    pub(crate) db_size: Number,
    pub(crate) leader: Id,
    pub(crate) errors: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MembersResponse {
    pub(crate) members: Vec<MemberResponse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MemberResponse {
    pub(crate) name: String,
    #[serde(rename = "clientURLs")]
    pub(crate) client_urls: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(truth: &bool) -> bool {
    !truth
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
}
