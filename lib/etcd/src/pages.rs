//! Keys being listed page by page: etcd makes the next page while the one before is read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::error::EtcdError;
use crate::history::At;
use crate::span::Span;
use crate::transport::{Again, Transport, encoded, parsed_aside};
use crate::txn::Pair;
use crate::wire::{Base64, Number, RangeRequest, RangeResponse, last_key};

/// Longest wait for a page: some megabytes, which a busy member reads from its disk.
const PAGE_LIMIT: Duration = Duration::from_secs(15);

/// Keys in a page: about ten megabytes. For each page etcd counts all keys that follow, so small ones take longer.
const PAGE_KEYS: i64 = 16_384;

/// Keys in the first page, before which no other can be asked for: only there it stands as of when all of them are.
const FIRST_PAGE_KEYS: i64 = 1024;

/// Most keys that one list may have: a hundred times the largest cluster that was tried.
const KEYS_MAX: usize = 10_000_000;

/// Keys being listed, page by page.
pub struct Pages {
    transport: Arc<Transport>,
    /// What is still to be read, the next one last.
    spans: Vec<Span>,
    limit: i64,
    keys_only: bool,
    at: At,
    keys: usize,
    ahead: Option<Ahead>,
}

/// A page that was asked for before the one before it was read.
struct Ahead {
    /// The first key that it may have.
    from: Vec<u8>,
    /// The one task that asks; it ends with this.
    page: JoinSet<Result<Bytes, EtcdError>>,
}

impl Pages {
    /// The keys of these spans, one span after the other.
    pub(crate) fn new(transport: Arc<Transport>, spans: &[Span], keys_only: bool) -> Self {
        let spans = spans.iter().rev().cloned().collect();
        Self { transport, spans, limit: PAGE_KEYS, keys_only, at: At::default(), keys: 0, ahead: None }
    }

    /// As of when the keys are; known after the first page.
    pub fn at(&self) -> At {
        self.at
    }

    /// The next page; `None` when there was the last one.
    ///
    /// # Errors
    ///
    /// [`EtcdError::Compacted`] if everything has to be listed again.
    pub async fn next(&mut self) -> Result<Option<Vec<Pair>>, EtcdError> {
        loop {
            let Some(span) = self.spans.last() else { return Ok(None) };
            // What was asked for in vain ends here.
            let mut asked = match self.ahead.take().filter(|ahead| ahead.from == span.from) {
                Some(ahead) => ahead.page,
                None => self.ask(span, span.from.clone())?,
            };
            let bytes = match asked.join_next().await {
                Some(Ok(Err(EtcdError::TooLarge))) if self.limit > 1 => {
                    self.limit = (self.limit / 16).max(1);
                    continue;
                }
                Some(Ok(bytes)) => bytes?,
                None | Some(Err(_)) => return Err(EtcdError::stopping()),
            };
            if self.at != At::default()
                && let Some(last) = last_key(&bytes)
            {
                let from = behind(last);
                self.ahead = Some(Ahead { page: self.ask(span, from.clone())?, from });
            }
            let page: RangeResponse = parsed_aside(bytes).await?;
            if self.at == At::default() {
                self.at = page.header.into();
            }
            self.keys += page.kvs.len();
            if self.keys > KEYS_MAX {
                return Err(EtcdError::Refused(format!("more than {KEYS_MAX} keys")));
            }
            match (self.spans.last_mut(), page.kvs.last()) {
                // A page without keys is the last one, even if `more` is set.
                (Some(span), Some(last)) if page.more => span.from = behind(last.key.0.clone()),
                _ => drop(self.spans.pop()),
            }
            return Ok(Some(page.kvs.into_iter().map(Pair::from).collect()));
        }
    }

    /// Asks for the page of a span that begins so, at once.
    fn ask(&self, span: &Span, from: Vec<u8>) -> Result<JoinSet<Result<Bytes, EtcdError>>, EtcdError> {
        let first = self.at == At::default();
        let request = encoded(&RangeRequest {
            key: Base64(from),
            range_end: Base64(span.end.clone()),
            limit: Number(if first { self.limit.min(FIRST_PAGE_KEYS) } else { self.limit }),
            revision: Number(self.at.revision),
            keys_only: self.keys_only,
        })?;
        let transport = self.transport.clone();
        let mut page = JoinSet::new();
        page.spawn(async move { transport.ask_bytes("kv/range", &request, PAGE_LIMIT, Again::Yes).await });
        Ok(page)
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("spans", &self.spans).field("at", &self.at).finish_non_exhaustive()
    }
}

/// The first key behind this one.
fn behind(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}
