//! A lease that its owner renews: keys put with it disappear when the owner no longer does.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::EtcdClient;
use crate::error::EtcdError;
use crate::history::At;

/// How many times a lease is renewed before it would expire.
const RENEWALS: u32 = 3;

/// A lease of one length: granted when it is first needed, and again after it has expired.
#[derive(Debug)]
pub struct Lease {
    client: EtcdClient,
    length: Duration,
    /// The lock is taken for an assignment, never across an `.await`.
    granted: Mutex<Option<Granted>>,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    id: i64,
    /// When the last request that etcd answered was sent: the lease lasts at least its length from then on.
    asked: Instant,
}

impl Lease {
    /// A lease of this length; nothing is sent yet.
    pub fn new(client: EtcdClient, length: Duration) -> Self {
        Self { client, length, granted: Mutex::default() }
    }

    /// The lease, if there is one.
    pub fn id(&self) -> Option<i64> {
        self.with(|granted| granted.map(|granted| granted.id))
    }

    /// When the last grant or renewal that succeeded was sent.
    pub fn asked(&self) -> Option<Instant> {
        self.with(|granted| granted.map(|granted| granted.asked))
    }

    /// How long the owner waits between renewals.
    pub fn interval(&self) -> Duration {
        self.length / RENEWALS
    }

    /// When the lease is to be renewed next, if there is one.
    pub fn due(&self) -> Option<Instant> {
        self.asked().map(|asked| asked + self.interval())
    }

    /// The lease; a new one if there is none.
    pub async fn get_or_grant(&self) -> Result<i64, EtcdError> {
        if let Some(id) = self.id() {
            return Ok(id);
        }
        let asked = Instant::now();
        let id = self.client.grant(self.length).await?;
        self.with(|granted| *granted = Some(Granted { id, asked }));
        Ok(id)
    }

    /// Renews the lease `id`, which becomes this one if there is none: that of an earlier process is taken over so.
    ///
    /// # Errors
    ///
    /// [`EtcdError::LeaseGone`] if it has expired or was revoked; then there is none.
    pub async fn renew(&self, id: i64) -> Result<At, EtcdError> {
        let asked = Instant::now();
        let renewed = self.client.keep_alive(id).await;
        match renewed {
            Ok(_) => self.with(|granted| {
                if granted.is_none_or(|granted| granted.id == id) {
                    *granted = Some(Granted { id, asked });
                }
            }),
            Err(EtcdError::LeaseGone) => self.forget(id),
            Err(_) => {}
        }
        renewed
    }

    /// Notes that the lease `id` does not exist any more, or is left to another process.
    pub fn forget(&self, id: i64) {
        self.with(|granted| {
            let _ = granted.take_if(|granted| granted.id == id);
        });
    }

    /// Ends the lease, and with it its keys. After a failure they stay for its length.
    pub async fn revoke(&self) -> Result<(), EtcdError> {
        match self.with(Option::take) {
            Some(granted) => self.client.revoke(granted.id).await,
            None => Ok(()),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Option<Granted>) -> T) -> T {
        act(&mut self.granted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
