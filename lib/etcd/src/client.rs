//! A client of etcd, through its JSON gateway.
//!
//! Everything has a time limit and a bound. Of several members the one that answered last is asked first; when it
//! fails, the next one is. What may be done twice without harm is asked again, a transaction is not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use tokio::sync::broadcast;
use tokio::time::timeout;

use crate::error::{EtcdError, classified};
use crate::history::At;
use crate::options::{Endpoint, EtcdOptions, OptionsError};
use crate::pages::Pages;
use crate::span::Span;
use crate::transport::{ASK_LIMIT, Again, KeyChange, Transport, WATCH, encoded, parsed, silence};
use crate::txn::{OPS_MAX, Pair, Txn, TxnOutcome};
use crate::watch::{Event, Watch};
use crate::wire::{
    Base64, DeleteRequest, DeleteResponse, LeaseGrantRequest, LeaseRequest, LeaseResponse, Number, PutRequest,
    RangeRequest, RangeResponse, StatusResponse, Streamed, TxnResponse, WatchCreate, WatchRequest,
};

/// Keys that begin alike, all as of one revision.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// When.
    pub at: At,
    /// In the order of keys.
    pub pairs: Vec<Pair>,
}

/// A client of one cluster of etcd. Cloning is cheap, and all clones share connections.
#[derive(Clone)]
pub struct EtcdClient(pub(crate) Arc<Transport>);

impl EtcdClient {
    /// A client; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Fails if an option is wrong; nothing is sent.
    pub fn new(options: EtcdOptions) -> Result<Self, OptionsError> {
        Ok(Self(Arc::new(Transport::new(options)?)))
    }

    /// With what it was made.
    pub fn options(&self) -> &EtcdOptions {
        &self.0.options
    }

    /// One key, as of now; and when that was.
    pub async fn get(&self, key: &[u8]) -> Result<(Option<Pair>, At), EtcdError> {
        let request = RangeRequest { key: Base64(key.to_vec()), ..RangeRequest::default() };
        let response: RangeResponse = self.0.ask("kv/range", &request, ASK_LIMIT, Again::Yes).await?;
        Ok((response.kvs.into_iter().next().map(Pair::from), response.header.into()))
    }

    /// All keys that begin so, as of one revision, with their values or without.
    pub async fn list(&self, prefix: &[u8], keys_only: bool) -> Result<Listing, EtcdError> {
        self.list_spans(&[Span::of_prefix(prefix)], keys_only).await
    }

    /// All keys of these ranges, as of one revision, with their values or without.
    pub async fn list_spans(&self, spans: &[Span], keys_only: bool) -> Result<Listing, EtcdError> {
        // Compacted while we were reading page by page: a second try is a new revision.
        match self.list_once(spans, keys_only).await {
            Err(EtcdError::Compacted) => self.list_once(spans, keys_only).await,
            other => other,
        }
    }

    async fn list_once(&self, spans: &[Span], keys_only: bool) -> Result<Listing, EtcdError> {
        let mut pages = self.pages(spans, keys_only);
        let mut pairs = Vec::new();
        while let Some(page) = pages.next().await? {
            pairs.extend(page);
        }
        Ok(Listing { at: pages.at(), pairs })
    }

    /// The keys of these ranges page by page, to be read while the next page is on its way.
    pub fn pages(&self, spans: &[Span], keys_only: bool) -> Pages {
        Pages::new(self.0.clone(), spans, keys_only)
    }

    /// Puts a value with a lease (0: none); gives the revision.
    ///
    /// # Errors
    ///
    /// After any error the value may have been put.
    pub async fn put(&self, key: &[u8], value: &[u8], lease: i64) -> Result<i64, EtcdError> {
        let (key, value) = (Base64(key.to_vec()), Base64(value.to_vec()));
        let request = PutRequest { key, value, lease: Number(lease) };
        let response: TxnResponse = self.0.ask("kv/put", &request, ASK_LIMIT, Again::Yes).await?;
        Ok(response.header.revision.0)
    }

    /// Deletes a key and returns whether it existed.
    ///
    /// # Errors
    ///
    /// After any error the key may have been deleted.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, EtcdError> {
        let request = DeleteRequest { key: Base64(key.to_vec()), ..DeleteRequest::default() };
        let response: DeleteResponse = self.0.ask("kv/deleterange", &request, ASK_LIMIT, Again::Yes).await?;
        Ok(response.deleted.0 > 0)
    }

    /// Deletes all keys of a range and returns how many there were.
    ///
    /// # Errors
    ///
    /// After any error they may have been deleted.
    pub async fn delete_span(&self, span: &Span) -> Result<i64, EtcdError> {
        let request = DeleteRequest { key: Base64(span.from.clone()), range_end: Base64(span.end.clone()) };
        let response: DeleteResponse = self.0.ask("kv/deleterange", &request, ASK_LIMIT, Again::Yes).await?;
        Ok(response.deleted.0)
    }

    /// Does a transaction.
    ///
    /// # Errors
    ///
    /// After [`EtcdError::Lost`] the transaction may have been done.
    pub async fn txn(&self, txn: Txn) -> Result<TxnOutcome, EtcdError> {
        if txn.success.len().max(txn.failure.len()).max(txn.compare.len()) > OPS_MAX {
            return Err(EtcdError::Refused(format!("a transaction has at most {OPS_MAX} operations")));
        }
        let response: TxnResponse = self.0.ask("kv/txn", &txn.request(), ASK_LIMIT, Again::No).await?;
        Ok(response.into())
    }

    /// A new lease of this length.
    pub async fn grant(&self, length: Duration) -> Result<i64, EtcdError> {
        let ttl = Number(i64::try_from(length.as_secs()).unwrap_or(i64::MAX));
        let response: LeaseResponse =
            self.0.ask("lease/grant", &LeaseGrantRequest { ttl }, ASK_LIMIT, Again::Yes).await?;
        Ok(response.id.0)
    }

    /// Renews a lease and returns when etcd answered.
    ///
    /// # Errors
    ///
    /// [`EtcdError::LeaseGone`] if it has expired or was revoked.
    pub async fn keep_alive(&self, lease: i64) -> Result<At, EtcdError> {
        let request = LeaseRequest { id: Number(lease) };
        let answer: Streamed<LeaseResponse> = self.0.ask("lease/keepalive", &request, ASK_LIMIT, Again::Yes).await?;
        match (answer.result, answer.error) {
            (Some(response), _) if response.ttl.0 > 0 => Ok(response.header.into()),
            (Some(_), _) => Err(EtcdError::LeaseGone),
            (None, failure) => {
                let failure = failure.unwrap_or_default();
                Err(classified(StatusCode::OK, &failure))
            }
        }
    }

    /// Ends a lease, and with it its keys.
    ///
    /// # Errors
    ///
    /// Fails if etcd cannot be reached. An expired lease is not an error.
    pub async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        let request = LeaseRequest { id: Number(lease) };
        match self.0.ask::<LeaseResponse>("lease/revoke", &request, ASK_LIMIT, Again::Yes).await {
            Ok(_) | Err(EtcdError::LeaseGone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Watches all keys that begin so, from a revision on.
    pub async fn watch(&self, prefix: &[u8], revision: i64) -> Result<Watch, EtcdError> {
        self.watch_spans(&[Span::of_prefix(prefix)], revision).await
    }

    /// Watches all keys of these ranges, from a revision on. Only changes of one range come in order.
    pub async fn watch_spans(&self, spans: &[Span], revision: i64) -> Result<Watch, EtcdError> {
        // The gateway takes one request after the other, and sends the changes of all of them in one stream.
        let mut body = BytesMut::new();
        for (span, watch_id) in spans.iter().zip(0..) {
            let create_request = WatchCreate {
                key: Base64(span.from.clone()),
                range_end: Base64(span.end.clone()),
                start_revision: Number(revision),
                fragment: true,
                watch_id: Number(watch_id),
            };
            body.extend_from_slice(&encoded(&WatchRequest { create_request })?);
        }
        let body = body.freeze();
        let mut failures = Vec::new();
        for endpoint in self.0.in_order() {
            let open = async || {
                let response = self.0.signed_in(endpoint, WATCH, &body).await?;
                Watch::open(response.into_body(), endpoint, spans.len()).await
            };
            let opened = async {
                match open().await {
                    // A member that was restarted has forgotten all tokens. Of a watch it says so in no other words than
                    // that rights are missing, or just hangs up.
                    Err(EtcdError::Refused(_) | EtcdError::Lost(_)) if self.0.forget_token() => open().await,
                    opened => opened,
                }
            };
            match timeout(ASK_LIMIT, opened).await {
                Ok(Ok(watch)) => {
                    self.0.prefer(endpoint);
                    return Ok(watch);
                }
                Ok(Err(EtcdError::Unavailable(problem) | EtcdError::Lost(problem))) => {
                    failures.push(self.0.failure(endpoint, &problem));
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => failures.push(self.0.failure(endpoint, &silence(ASK_LIMIT))),
            }
        }
        Err(EtcdError::Unavailable(failures.join("; ")))
    }

    /// Asks one member for something that needs its leader, so that the answer proves that the member is in sync.
    pub async fn probe(&self, endpoint: usize) -> Result<At, EtcdError> {
        let key = Base64(self.0.options.prefix.as_bytes().to_vec());
        let body = encoded(&RangeRequest { key, keys_only: true, limit: Number(1), ..RangeRequest::default() })?;
        let response: RangeResponse = parsed(&self.0.ask_one(endpoint, "kv/range", &body, ASK_LIMIT).await?)?;
        Ok(response.header.into())
    }

    /// What the member that answers complains of, such as a full database: then it takes no writes, but answers.
    pub async fn alarms(&self) -> Result<Vec<String>, EtcdError> {
        let body = Bytes::from_static(b"{}");
        let answer = self.0.ask_bytes("maintenance/status", &body, ASK_LIMIT, Again::Yes).await?;
        Ok(parsed::<StatusResponse>(&answer)?.errors)
    }

    /// Notifies all users of this client that etcd has another history now: it was set up again, or from a backup.
    pub fn history_broke(&self) {
        self.0.histories.send_modify(|histories| *histories += 1);
    }

    /// Changes when etcd has another history.
    pub fn histories(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.histories.subscribe()
    }

    /// From now on [`Self::changes`] receives the changes of keys that begin so.
    pub fn publishes(&self, prefix: String) {
        self.0.published.store(Some(Arc::new(prefix)));
    }

    /// Notifies the publisher with this client of a change, if it is one of its keys.
    pub fn was_changed(&self, event: &Event) {
        let pair = &event.pair;
        if self.0.published.load().as_ref().is_some_and(|prefix| pair.key.starts_with(prefix.as_bytes())) {
            let change = KeyChange { key: pair.key.clone(), revision: pair.mod_revision, deleted: event.deleted };
            // The last receiver may have been dropped since.
            let _ = self.0.changes.send(change);
        }
    }

    /// Receives the changes of keys that are published with this client, while it also follows etcd.
    pub fn changes(&self) -> broadcast::Receiver<KeyChange> {
        self.0.changes.subscribe()
    }

    /// From now on another member is asked first than this one.
    pub fn avoid(&self, endpoint: usize) {
        self.0.avoid(endpoint);
    }

    /// The members that are asked.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.0.options.endpoints
    }
}

impl fmt::Display for EtcdClient {
    /// The members, as a command line names them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, endpoint) in self.endpoints().iter().enumerate() {
            write!(f, "{}{endpoint}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdClient").field("endpoints", &self.0.options.endpoints).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_log_names_members_as_a_command_line_does() {
        let members = "http://192.0.2.1:2379,http://192.0.2.2:2379";
        let client = EtcdClient::new(EtcdOptions::parse(members).unwrap()).unwrap();
        assert_eq!(client.to_string(), members);
    }

    #[test]
    fn a_history_goes_forward() {
        let before = At { cluster: 1, revision: 10, term: 3 };
        for (after, follows) in [
            (At { revision: 11, ..before }, true),
            (At { term: 4, ..before }, true),
            (before, true),
            (At { revision: 2, ..before }, false),
            (At { revision: 99, term: 2, ..before }, false),
            (At { cluster: 2, revision: 99, ..before }, false),
        ] {
            assert_eq!(after.follows(before), follows, "{after:?}");
        }
    }
}
