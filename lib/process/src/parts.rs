//! The parts of a service: tasks and threads that it cannot do without.
//!
//! Everything that accepts or receives is such a part. One that ends before it is asked to, by itself or by a panic,
//! ends the service: [`Parts::watch`] gives its name and the reason, and with them the process ends (see
//! [`crate::launch`]). A service that lives on without its listener would look well and answer no client.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use tokio::sync::oneshot;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::Failure;

/// Tasks and threads that run until `stop`.
#[derive(Debug)]
pub struct Parts {
    stop: CancellationToken,
    tasks: JoinSet<Result<(), Failure>>,
    names: HashMap<Id, &'static str>,
}

/// Why a part ended without a stop.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0} ended by itself")]
    ByItself(&'static str),
    #[error("{0}: {1}")]
    Failed(&'static str, Failure),
    #[error("{0} panicked: {1}")]
    Panicked(&'static str, String),
}

impl Parts {
    /// No parts yet; each has to end by itself after `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        Self { stop, tasks: JoinSet::new(), names: HashMap::new() }
    }

    /// Starts a task.
    ///
    /// `name` stands at the beginning of a sentence about its end.
    pub fn spawn(&mut self, name: &'static str, part: impl Future<Output = Result<(), Failure>> + Send + 'static) {
        let task = self.tasks.spawn(part);
        self.names.insert(task.id(), name);
    }

    /// Starts a thread of this name, which may block.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses another thread.
    pub fn spawn_thread(&mut self, name: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let (ended, end) = oneshot::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Without a receiver no task watches any more.
            let _ = ended.send(catch_unwind(AssertUnwindSafe(work)));
        })?;
        self.spawn(name, async {
            match end.await {
                Ok(Err(panic)) => resume_unwind(panic),
                Ok(Ok(())) | Err(_) => Ok(()),
            }
        });
        Ok(())
    }

    /// Waits until all are asked to stop.
    ///
    /// # Errors
    ///
    /// Fails as soon as a part ended that was not asked to; names it and the reason.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; what ended is found by the next call.
    pub async fn watch(&mut self) -> Result<(), Failure> {
        let stopped = self.stop.clone();
        tokio::select! {
            biased;
            () = stopped.cancelled() => Ok(()),
            Some(ended) = self.tasks.join_next_with_id() => {
                let ended = self.reason(ended);
                // It may have seen the stop first.
                if stopped.is_cancelled() { Ok(()) } else { Err(ended.into()) }
            }
        }
    }

    /// Waits until all have ended, which was asked of them; what fails now is logged.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn finish(&mut self) {
        while let Some(ended) = self.tasks.join_next_with_id().await {
            match self.reason(ended) {
                Ended::ByItself(_) => {}
                failed => error!("while stopping: {failed}"),
            }
        }
    }

    fn reason(&mut self, ended: Result<(Id, Result<(), Failure>), JoinError>) -> Ended {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let name = self.names.remove(&id).unwrap_or("a part");
        match ended {
            Ok((_, Ok(()))) => Ended::ByItself(name),
            Ok((_, Err(failure))) => Ended::Failed(name, failure),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => Ended::Panicked(name, text_of(&*panic)),
                Err(_) => Ended::ByItself(name),
            },
        }
    }
}

/// What a panic said; the log has its place already.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("for a reason that is no text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> (Parts, CancellationToken) {
        let stop = CancellationToken::new();
        let mut parts = Parts::new(stop.clone());
        // Another part that is well all the time.
        let until = stop.clone();
        parts.spawn("the other", async move {
            until.cancelled().await;
            Ok(())
        });
        (parts, stop)
    }

    #[tokio::test]
    async fn a_task_that_panics_is_named_with_its_reason() {
        let (mut parts, _stop) = parts();
        parts.spawn("the listener", async { panic!("no {}", "address") });
        assert_eq!(parts.watch().await.unwrap_err().to_string(), "the listener panicked: no address");
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_named_with_its_reason() {
        let (mut parts, _stop) = parts();
        parts.spawn_thread("udp", || panic!("no datagram")).unwrap();
        assert_eq!(parts.watch().await.unwrap_err().to_string(), "udp panicked: no datagram");
    }

    #[tokio::test]
    async fn what_ends_without_being_asked_to_is_a_failure() {
        let (mut parts, _stop) = parts();
        parts.spawn("the listener", async { Ok(()) });
        assert_eq!(parts.watch().await.unwrap_err().to_string(), "the listener ended by itself");
        parts.spawn_thread("udp", || ()).unwrap();
        assert_eq!(parts.watch().await.unwrap_err().to_string(), "udp ended by itself");
        parts.spawn("dns", async { Err("udp ended by itself".into()) });
        assert_eq!(parts.watch().await.unwrap_err().to_string(), "dns: udp ended by itself");
    }

    #[tokio::test]
    async fn what_ends_after_the_stop_is_none() {
        let (mut parts, stop) = parts();
        let until = stop.clone();
        parts.spawn("late", async move {
            until.cancelled().await;
            Err("too late to matter".into())
        });
        stop.cancel();
        parts.watch().await.unwrap();
        parts.finish().await;
        assert!(parts.names.is_empty());
    }

    #[tokio::test]
    async fn without_parts_only_the_stop_is_waited_for() {
        let stop = CancellationToken::new();
        let mut parts = Parts::new(stop.clone());
        tokio::select! {
            biased;
            _ = parts.watch() => panic!("no stop was requested"),
            () = tokio::task::yield_now() => {}
        }
        stop.cancel();
        parts.watch().await.unwrap();
    }
}
