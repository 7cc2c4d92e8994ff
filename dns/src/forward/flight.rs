//! One question on its way: to the upstream that should know first, then to the others, until one answers.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use process::quota::Place;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::exchange::ask;
use super::judge::{Answer, Heard};
use super::{Shared, reason};
use crate::cache::Key;
use crate::metrics::Answers;
use crate::reply::Reply;

/// How long an upstream that never answered yet may take before the next one is asked too.
pub(super) const PATIENCE: Duration = Duration::from_millis(300);

/// Bounds of that time once it is known how fast the upstream is.
const PATIENCE_MIN: Duration = Duration::from_millis(50);

/// First time for which a failed upstream is asked last; doubled with every failure.
const PENALTY: Duration = Duration::from_secs(2);

/// Longest such time.
pub(super) const PENALTY_MAX: Duration = Duration::from_secs(30);

/// Most sockets towards one upstream: a silent one must not take those that others need.
///
/// Each place takes two of them while its upstream is silent: three clients with all their places, and forged ones with all of
/// theirs, leave some.
pub(super) const SOCKETS_PER_UPSTREAM_MAX: usize = 2_560;

/// One question on its way to upstreams.
pub(super) struct Flight {
    pub(super) shared: Arc<Shared>,
    pub(super) key: Arc<Key>,
    pub(super) _place: Arc<Place>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.shared.state().flights.remove(&self.key);
    }
}

impl Flight {
    /// Queries upstreams and caches the result.
    pub(super) async fn run(self) -> Arc<Reply> {
        let outcome = self.ask_all().await;
        let now = self.shared.start.elapsed();
        let mut state = self.shared.state();
        match outcome {
            Ok(answer) => {
                let answer = self.shared.without_rebinding(&mut state, &self.key, answer);
                let reply = Arc::new(answer.reply);
                let lifetime = Duration::from_secs(answer.lifetime.into());
                state.cache.insert(&self.key, reply.clone(), lifetime, answer.bytes, now);
                if reply.code == ResponseCode::NXDomain && self.key.kind == RecordType::AAAA {
                    return Arc::new(state.softened(&self.key, Reply::clone(&reply), now));
                }
                reply
            }
            Err(failure) => {
                let failure = Arc::new(failure);
                match state.cache.fail(&self.key, &failure, now) {
                    Some(expired) => Arc::new(expired),
                    None => failure,
                }
            }
        }
    }

    /// Asks upstreams until one gives a good answer.
    async fn ask_all(&self) -> Result<Answer, Reply> {
        let deadline = Instant::now() + self.shared.timeout * 2;
        let (order, probes) = self.order();
        let mut attempts = JoinSet::new();
        let mut pending: Vec<(SocketAddr, Instant)> = Vec::new();
        let mut failure = Reply::empty(ResponseCode::ServFail).because(reason::NO_REACHABLE_AUTHORITY);
        // Each upstream is queried a second time: datagrams get lost.
        let twice =
            order.iter().map(|upstream| (*upstream, false)).chain(order.iter().map(|upstream| (*upstream, true)));
        let mut queue: VecDeque<(SocketAddr, bool)> = twice.collect();
        for probe in probes {
            // On its own: it goes on when another one has answered.
            self.shared.flights.spawn(self.attempt(probe, deadline));
        }
        let mut next_start = Instant::now();
        loop {
            if Instant::now() >= next_start
                && let Some((upstream, _)) = queue.pop_front()
            {
                attempts.spawn(self.attempt(upstream, deadline));
                pending.push((upstream, Instant::now()));
                let patience = self.shared.state().upstream(upstream).patience();
                next_start = Instant::now()
                    + if queue.front().is_some_and(|(_, again)| *again) {
                        (self.shared.timeout / 2).max(patience)
                    } else {
                        patience
                    };
            }
            if attempts.is_empty() && queue.is_empty() {
                return Err(failure);
            }
            tokio::select! {
                Some(ended) = attempts.join_next(), if !attempts.is_empty() => {
                    let Ok((upstream, result)) = ended else { continue };
                    pending.retain(|(other, _)| *other != upstream);
                    match result {
                        Ok(Heard::Good(mut answer)) => {
                            self.outrun(&pending);
                            answer.reply.upstream = Some(upstream);
                            return Ok(*answer);
                        }
                        Ok(Heard::Bad(code)) => {
                            queue.retain(|(other, _)| *other != upstream);
                            if failure.code == ResponseCode::ServFail && code != ResponseCode::ServFail {
                                failure = Reply::empty(code);
                            }
                        }
                        Err(error) => tracing::debug!(%upstream, %error, name = %self.key.name, "no answer"),
                    }
                    if queue.front().is_some_and(|(_, again)| !again) || queue.is_empty() {
                        next_start = Instant::now();
                    }
                }
                () = sleep_until(next_start), if !queue.is_empty() => {}
                () = sleep_until(deadline) => return Err(failure),
            }
        }
    }

    /// In which order upstreams are asked, and which of the others to try in passing.
    fn order(&self) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let now = Instant::now();
        let mut state = self.shared.state();
        let mut probes = Vec::new();
        let mut order: Vec<(bool, SocketAddr)> = Vec::with_capacity(self.key.upstreams.len());
        for address in self.key.upstreams.iter() {
            let upstream = state.upstream(*address);
            let failing = upstream.penalty.is_some();
            if upstream.penalty.is_some_and(|until| until <= now) {
                // One question finds out; the others go on as before.
                upstream.penalty = Some(now + PENALTY_MAX);
                probes.push(*address);
            }
            order.push((failing, *address));
        }
        if order.iter().all(|(failing, _)| *failing) {
            probes.clear();
        }
        order.sort_by_key(|(failing, _)| *failing);
        let order: Vec<_> = order.into_iter().map(|(_, address)| address).collect();
        (order, probes)
    }

    /// Asks one upstream, and notes how it behaves.
    fn attempt(
        &self,
        upstream: SocketAddr,
        deadline: Instant,
    ) -> impl Future<Output = (SocketAddr, io::Result<Heard>)> + Send + use<> {
        let (shared, key) = (self.shared.clone(), self.key.clone());
        let own = shared.state().upstream(upstream).sockets.clone();
        async move {
            let deadline = deadline.min(Instant::now() + shared.timeout);
            let sockets = timeout_at(deadline, async { (own.acquire_owned().await, shared.sockets.acquire().await) });
            // Neither semaphore is ever closed.
            let Ok((Ok(_own), Ok(_any))) = sockets.await else {
                // It was not asked, so that nothing is known about it.
                return (upstream, Err(io::ErrorKind::ResourceBusy.into()));
            };
            let begun = Instant::now();
            let result = timeout_at(deadline, ask(upstream, &key)).await;
            let result = result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let mut state = shared.state();
            let known = state.upstream(upstream);
            known.asked += 1;
            if let Ok(heard) = &result {
                let took = begun.elapsed();
                known.answers.count(heard.code(), took);
                known.usual = Some(known.usual.map_or(took, |usual| (usual * 7 + took) / 8));
                known.failures = 0;
                known.penalty = None;
            } else {
                known.unanswered += 1;
                punish(known);
            }
            drop(state);
            (upstream, result)
        }
    }

    /// Notes that these upstreams were overtaken although they had their time.
    fn outrun(&self, pending: &[(SocketAddr, Instant)]) {
        let mut state = self.shared.state();
        for (upstream, since) in pending {
            let known = state.upstream(*upstream);
            if since.elapsed() >= known.patience() {
                punish(known);
            }
        }
    }
}

fn punish(upstream: &mut Upstream) {
    let penalty = (PENALTY * 2u32.saturating_pow(upstream.failures.min(8))).min(PENALTY_MAX);
    upstream.failures = upstream.failures.saturating_add(1);
    upstream.penalty = Some(Instant::now() + penalty);
}

/// What is known about one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    /// How long it usually takes.
    usual: Option<Duration>,
    failures: u32,
    /// Asked last until then.
    penalty: Option<Instant>,
    pub(super) sockets: Arc<Semaphore>,
    asked: u64,
    unanswered: u64,
    answers: Answers,
}

/// The status of one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Known<'u> {
    /// How long it usually takes.
    pub(crate) usual: Option<Duration>,
    /// After which time the next one is asked too.
    pub(crate) patience: Duration,
    /// How often in a row it did not answer.
    pub(crate) failures: u32,
    /// For how long it is still asked last.
    pub(crate) avoided: Option<Duration>,
    /// How often it was asked.
    pub(crate) asked: u64,
    /// How often it did not answer.
    pub(crate) unanswered: u64,
    /// How it answered.
    pub(crate) answers: &'u Answers,
}

impl Upstream {
    pub(super) fn new() -> Self {
        let sockets = Arc::new(Semaphore::new(SOCKETS_PER_UPSTREAM_MAX));
        Self { usual: None, failures: 0, penalty: None, sockets, asked: 0, unanswered: 0, answers: Answers::default() }
    }

    /// What is known now.
    pub(crate) fn known(&self) -> Known<'_> {
        Known {
            usual: self.usual,
            patience: self.patience(),
            failures: self.failures,
            avoided: self.penalty.map(|until| until.saturating_duration_since(Instant::now())),
            asked: self.asked,
            unanswered: self.unanswered,
            answers: &self.answers,
        }
    }

    /// Whether it did not answer when it was asked last.
    pub(super) fn is_failing(&self) -> bool {
        self.penalty.is_some()
    }

    fn patience(&self) -> Duration {
        self.usual.map_or(PATIENCE, |usual| (usual * 3).clamp(PATIENCE_MIN, PATIENCE))
    }
}
