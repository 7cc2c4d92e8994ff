//! Logs of several containers at once: what they have written and, where they are followed, what they write from now on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::EngineError;
use futures_util::future::join_all;
use model::Text;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::start::Starter;
use crate::start::docker::inside::{Ended, LogPart};
use crate::start::inside::{FailedTarget, Output, Target, failed, line_of, with_pulse};

/// Most containers of which logs are read at once: each takes a connection to its engine.
pub(crate) const LOGS_MAX: usize = 64;

/// How often it is looked whether containers were started again, or others came in their place.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long none has to be there before that is no update which stops one before it starts the next.
const GONE_AFTER: Duration = Duration::from_secs(10);

/// What came of the logs that were read.
#[derive(Debug, Serialize)]
pub(crate) struct LogsRead {
    /// How many containers' logs were to be read.
    pub(crate) containers: usize,
    pub(crate) failed: Vec<FailedTarget>,
}

/// What is known of a container whose log was begun. Times are those since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Read,
    /// Its log ended. It was read from a time on (zero stands for all of it), and goes on from another one.
    Ended {
        read_from: Duration,
        at: Duration,
    },
    /// It could not be read any more from this time on, by this host's clock.
    Lost(Duration),
    /// It does not run again.
    Over,
}

impl Known {
    /// From when on it is to be read again, given what its engine says; otherwise what is known of it now.
    fn next(self, ended: Ended) -> Result<Duration, Self> {
        match (self, ended.started_again) {
            // One that ends the log of what still runs is not asked for the same lines for ever.
            (Self::Ended { read_from, at }, Some(started)) if started > read_from => Ok(at),
            (Self::Lost(at), Some(_)) => Ok(at),
            (Self::Ended { .. } | Self::Lost(_), None) if ended.for_good => Err(Self::Over),
            (known, _) => Err(known),
        }
    }
}

/// Logs while they are read.
struct Reading<'r> {
    starter: &'r Arc<Starter>,
    lines: &'r mpsc::Sender<Output>,
    logs: JoinSet<(Target, LogPart, Result<Duration, EngineError>)>,
    /// By the engine's id, as the next two.
    known: BTreeMap<Text, Known>,
    /// Those that are being read.
    begun: BTreeMap<Text, (Target, AbortHandle)>,
    /// How many were begun, each counted once.
    containers: usize,
    failed: BTreeMap<Text, FailedTarget>,
}

impl Reading<'_> {
    fn begin(&mut self, target: Target, part: LogPart) {
        self.containers += usize::from(self.known.insert(target.container.clone(), Known::Read).is_none());
        let (starter, lines, read) = (self.starter.clone(), self.lines.clone(), target.clone());
        let task = self.logs.spawn(async move {
            let read_to_end = async {
                let (docker, _) = starter.docker(&read.host)?;
                docker.read_log(&read.container, part, (&lines, line_of(&read))).await?;
                if !part.follow {
                    return Ok(Duration::ZERO);
                }
                // At once: what runs and ends between two looks is read too. Of an engine that is away then, nothing is read twice.
                Ok(docker.ended(&read.container).await.map_or_else(|_| starter.clock.now(), |ended| ended.at))
            };
            let ended_at = read_to_end.await;
            (read, part, ended_at)
        });
        self.begun.insert(target.container.clone(), (target, task));
    }

    /// Waits until a log ends; returns whether there was one.
    async fn ended(&mut self) -> bool {
        let Some(ended) = self.logs.join_next().await else { return false };
        let Ok((target, part, read)) = ended else { return true };
        self.begun.remove(&target.container);
        let known = match read {
            Ok(at) => Known::Ended { read_from: part.since, at },
            Err(error) => {
                self.failed.insert(target.container.clone(), failed(&target, &error));
                Known::Lost(self.starter.clock.now())
            }
        };
        self.known.insert(target.container, known);
        true
    }

    /// Begins to read what is new among those that are there, or was started again; returns whether one of them is read or may be.
    async fn look(&mut self, there: Vec<Target>) -> bool {
        let is_there = |id: &Text| there.iter().any(|target| target.container == *id);
        self.known.retain(|id, known| *known == Known::Read || is_there(id));
        let asked = there.into_iter().map(|target| async {
            let known = self.known.get(&target.container).copied();
            let ended = match known {
                Some(Known::Ended { .. } | Known::Lost(_)) => {
                    async { self.starter.docker(&target.host)?.0.ended(&target.container).await }.await.ok()
                }
                _ => None,
            };
            (target, known, ended)
        });
        let mut goes_on = !self.logs.is_empty();
        for (target, known, ended) in join_all(asked).await {
            let next = match (known, ended) {
                (None, _) => Ok(Duration::ZERO),
                (Some(known), Some(ended)) => known.next(ended),
                (Some(known), None) => Err(known),
            };
            goes_on |= next != Err(Known::Over);
            match next {
                Ok(since) if self.logs.len() < LOGS_MAX => {
                    self.begin(target, LogPart { tail: None, since, follow: true });
                }
                Ok(_) => {}
                Err(known) => drop(self.known.insert(target.container, known)),
            }
        }
        goes_on
    }

    /// Stops to read what may not be read any more.
    fn stop(&mut self, may_read: impl Fn(&Target) -> bool) {
        for (id, (target, task)) in self.begun.extract_if(.., |_, (target, _)| !may_read(target)) {
            task.abort();
            let error = EngineError::Refused("its log may not be read any more".into());
            self.failed.insert(id.clone(), failed(&target, &error));
            self.known.insert(id, Known::Over);
        }
    }

    /// Reads until none is left, as `found` says, that runs or may run again, and that may be read.
    async fn follow(&mut self, found: impl Fn() -> Vec<Target>, may_read: impl Fn(&Target) -> bool) {
        let mut there_at = Instant::now();
        loop {
            let look_at = Instant::now() + LOOK_AGAIN;
            let _ = timeout_at(look_at, async { while self.ended().await {} }).await;
            sleep_until(look_at).await;
            self.stop(&may_read);
            let mut there = found();
            there.retain(&may_read);
            let none = there.is_empty();
            let goes_on = self.look(there).await;
            if !none {
                there_at = Instant::now();
            }
            if !goes_on && (!none || there_at.elapsed() > GONE_AFTER) {
                return;
            }
        }
    }
}

impl Starter {
    /// Sends the lines of logs until they end, or the reader goes away.
    ///
    /// With `follow`, also what is written from now on; then a container that is started again is read on, and so is what comes in its
    /// place, as the first of `follow` finds it, as long as the second one allows it. That ends when none is left that runs or may run again.
    pub(crate) async fn read_logs(
        self: &Arc<Self>,
        targets: Vec<Target>,
        tail: Option<u32>,
        follow: Option<(impl Fn() -> Vec<Target>, impl Fn(&Target) -> bool)>,
        lines: &mpsc::Sender<Output>,
    ) -> LogsRead {
        let (known, begun, failed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut reading = Reading { starter: self, lines, logs: JoinSet::new(), known, begun, containers: 0, failed };
        for target in targets {
            reading.begin(target, LogPart { tail, since: Duration::ZERO, follow: follow.is_some() });
        }
        let to_its_end = async {
            match follow {
                Some((found, may_read)) => reading.follow(found, may_read).await,
                None => while reading.ended().await {},
            }
        };
        tokio::select! {
            () = with_pulse(lines, to_its_end) => {}
            () = lines.closed() => {}
            () = self.stop.cancelled() => {}
        }
        LogsRead { containers: reading.containers, failed: reading.failed.into_values().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_on_from_the_next_start() {
        let time = Duration::from_millis;
        let ended = |started: Option<u64>, for_good| Ended { started_again: started.map(time), at: time(0), for_good };
        let ended_at = |read_from, at| Known::Ended { read_from: time(read_from), at: time(at) };
        // From where it ended, so that nothing is left out that ran meanwhile.
        assert_eq!(ended_at(0, 12).next(ended(Some(15), false)), Ok(time(12)));
        assert_eq!(ended_at(12, 20).next(ended(Some(25), false)), Ok(time(20)));
        // An engine that ends the log of what still runs.
        assert_eq!(ended_at(10, 10).next(ended(Some(10), false)), Err(ended_at(10, 10)));
        assert_eq!(Known::Lost(time(15)).next(ended(Some(20), false)), Ok(time(15)));
        for known in [ended_at(0, 12), Known::Lost(time(15))] {
            assert_eq!((known.next(ended(None, false)), known.next(ended(None, true))), (Err(known), Err(Known::Over)));
        }
    }
}
