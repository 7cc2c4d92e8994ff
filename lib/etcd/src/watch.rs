//! A watch: a stream of lines, each with the changes of one or several revisions.

use std::collections::VecDeque;
use std::fmt;

use bytes::BytesMut;
use http_body_util::BodyExt;
use http_client::cause::innermost;
use hyper::StatusCode;
use hyper::body::Incoming;

use crate::error::{EtcdError, classified};
use crate::history::At;
use crate::txn::Pair;
use crate::wire::{EventKind, Streamed, WatchResponse};

/// Longest line, in bytes: etcd sends at most some megabytes at a time, in base64.
const LINE_MAX: usize = 64 << 20;

/// Most answers that may come before all ranges are watched, which takes a moment.
const EARLY_MAX: usize = 4096;

/// A watch of one member. It ends with the connection; nothing is lost when another one is opened from where it was.
pub struct Watch {
    body: Incoming,
    unread: BytesMut,
    /// How many bytes of `unread` are known to hold no end of a line.
    looked: usize,
    endpoint: usize,
    opened: At,
    bytes: u64,
    /// What came while some of the ranges were not watched yet.
    early: VecDeque<WatchResponse>,
}

/// One change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key, and its value unless it was deleted.
    pub pair: Pair,
    /// Whether the key was deleted.
    pub deleted: bool,
}

/// Some changes, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// The changes; of a revision that is complete all of them.
    pub events: Vec<Event>,
    /// Whether more changes of the last revision among them are to come.
    pub to_be_continued: bool,
    /// In which of the ranges that are watched.
    pub span: usize,
}

impl Watch {
    /// Waits until the watch of all ranges is said to be there.
    pub(crate) async fn open(body: Incoming, endpoint: usize, spans: usize) -> Result<Self, EtcdError> {
        let (unread, opened, early) = (BytesMut::new(), At::default(), VecDeque::new());
        let mut watch = Self { body, unread, looked: 0, endpoint, opened, bytes: 0, early };
        for span in 0..spans {
            let response = loop {
                let response = watch.response().await?;
                // The first range may have changes before the second one is watched.
                if response.created || span == 0 {
                    break response;
                }
                if watch.early.len() >= EARLY_MAX {
                    return Err(EtcdError::Lost("etcd does not say that the watch is there".into()));
                }
                watch.early.push_back(response);
            };
            if !response.created {
                return Err(EtcdError::Lost("etcd says something else than that the watch is there".into()));
            }
            if span == 0 {
                watch.opened = response.header.into();
            }
        }
        Ok(watch)
    }

    /// The number of the member among those of the options.
    pub fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// Where in its history the member was when the watch began.
    pub fn opened(&self) -> At {
        self.opened
    }

    /// How many bytes were received.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next changes.
    ///
    /// # Errors
    ///
    /// The watch has ended; [`EtcdError::Compacted`] if changes are missing that no member has any more.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; no change is lost.
    pub async fn next(&mut self) -> Result<EventBatch, EtcdError> {
        let response = match self.early.pop_front() {
            Some(early) => early,
            None => self.response().await?,
        };
        let event =
            |event: crate::wire::Event| Event { deleted: event.kind == EventKind::Delete, pair: event.kv.into() };
        Ok(EventBatch {
            events: response.events.into_iter().map(event).collect(),
            to_be_continued: response.fragment,
            // What has another number than those we gave is none of ours to take revisions from.
            span: usize::try_from(response.watch_id.0).unwrap_or(usize::MAX),
        })
    }

    async fn response(&mut self) -> Result<WatchResponse, EtcdError> {
        let line = self.line().await?;
        let streamed: Streamed<WatchResponse> = serde_json::from_slice(&line)
            .map_err(|error| EtcdError::Lost(format!("the watch says what makes no sense: {error}")))?;
        let Some(response) = streamed.result else {
            return Err(classified(StatusCode::OK, &streamed.error.unwrap_or_default()));
        };
        if response.compact_revision.0 > 0 {
            return Err(EtcdError::Compacted);
        }
        if response.canceled {
            let reason = if response.cancel_reason.is_empty() { "without a reason" } else { &response.cancel_reason };
            let problem = format!("etcd ended the watch: {reason}");
            // It asks for rights only after it said that the watch is there.
            let refused = response.cancel_reason.contains("permission");
            return Err(if refused { EtcdError::Refused(problem) } else { EtcdError::Lost(problem) });
        }
        Ok(response)
    }

    async fn line(&mut self) -> Result<BytesMut, EtcdError> {
        loop {
            if let Some(end) = self.unread[self.looked..].iter().position(|byte| *byte == b'\n') {
                let line = self.unread.split_to(self.looked + end + 1);
                self.looked = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(line);
            }
            self.looked = self.unread.len();
            if self.unread.len() > LINE_MAX {
                return Err(EtcdError::TooLarge);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.bytes += bytes.len() as u64;
                        self.unread.extend_from_slice(&bytes);
                    }
                }
                Some(Err(error)) => return Err(EtcdError::Lost(innermost(&error))),
                None => return Err(EtcdError::Lost("the watch ended".into())),
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("endpoint", &self.endpoint).field("opened", &self.opened).finish_non_exhaustive()
    }
}
