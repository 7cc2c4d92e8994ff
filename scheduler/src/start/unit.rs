//! One unit on its way: started where it is promised, on another host when that fails, or removed.

use std::time::Duration;

use model::Text;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::audit::line::{Action, AuditLine, AuditedImage, digest_in};
use crate::ledger::draft::CommitError;
use crate::ledger::record::{Replica, Stage};
use crate::ledger::store::PersistError;
use crate::place::answer::{FailedStart, HostName};
use crate::place::request::Request;
use crate::place::request::member::Member;
use crate::start::attempt::{Before, StartFailure};
use crate::start::docker::OVERTAKEN;
use crate::start::job::{JobOptions, JobState, StartJob};
use crate::start::progress::ProgressSender;
use crate::start::{PAUSE_MAX, PAUSE_MIN, STUCK_AFTER};

/// How often a unit is given another new host because others promised room there at the same time.
const TRIES_ELSEWHERE: u32 = 32;

impl StartJob {
    /// Starts one unit, on another host when that fails, or removes it; returns what failed on the way, and whether the
    /// unit is as it should be.
    pub(super) async fn process_unit(
        &self,
        at: usize,
        progress: &ProgressSender,
        options: JobOptions,
    ) -> (Vec<FailedStart>, bool) {
        let (placer, clock) = (&self.starter.placer, self.starter.clock);
        let mut tried: Vec<FailedStart> = Vec::new();
        // On a host that was found just now no engine has heard of the unit.
        let mut fresh = options.fresh;
        loop {
            let Some((request, replica)) = placer.unit(&self.id, at, &self.brought, clock.now()) else {
                return (tried, false);
            };
            if replica.stage == Stage::Undoing {
                if !self.undo(&replica, Before::default(), options.grace, progress).await {
                    return (tried, false);
                }
                placer.abandon(&self.id, at, clock.now());
                self.persist_and_own().await;
                return (tried, true);
            }
            match replica.stage {
                Stage::Stopping => {
                    return (tried, self.stop_and_keep(at, &replica, options.grace, progress).await);
                }
                Stage::Restarting => return (tried, self.restart((&request, &replica), at, progress).await),
                Stage::Replacing if self.replace(at, &replica, progress).await => {
                    fresh = true;
                    continue;
                }
                Stage::Replacing => return (tried, false),
                _ => {}
            }
            let denied = placer.permit_start(&request, &replica).err();
            let started = match &denied {
                None => self.start(&request, &replica, progress).await,
                Some(denial) => Err(StartFailure::denied(&replica, denial)),
            };
            self.starter.wait_for(&replica, None);
            self.audit_start(&request, &replica, denied.is_some(), &started);
            let failure = match started {
                Ok((containers, _)) => {
                    let reached = placer.reached(&self.id, at, Stage::Started, &containers, clock.now());
                    if reached
                        && (!self.persist_and_own().await
                            || placer.unit(&self.id, at, &self.brought, clock.now()).is_some())
                    {
                        return (tried, true);
                    }
                    // Its promise was given up meanwhile, by force.
                    self.undo(&replica, Before::default(), options.grace, progress).await;
                    return (tried, false);
                }
                Err(failure) if failure.error == OVERTAKEN => {
                    if self.may_go_on(false).await {
                        fresh &= !failure.effects.maybe;
                        continue;
                    }
                    // Its new owner goes on with it; what has no owner any more must not stay.
                    if placer.unit(&self.id, at, &self.brought, clock.now()).is_none() {
                        let before = Before { silent_since: failure.effects.silent_since, failed: None };
                        self.undo(&replica, before, options.grace, progress).await;
                    }
                    return (tried, false);
                }
                Err(failure) => failure,
            };
            warn!(id = %self.id, host = %replica.host_name, container = %failure.container, error = %failure.error, "not started");
            self.starter.note(&replica.host, &failure.error);
            let host = HostName { uuid: replica.host.clone(), name: replica.host_name.clone() };
            tried.push(FailedStart { host, container: failure.container.clone(), error: failure.error.to_string() });
            // One that is being replaced is tried again later.
            let is_replaced = replica.replaced.is_some();
            if is_replaced {
                let why = format!("could not be started: {}", failure.error);
                placer.note_failure((&self.id, at), Stage::Replacing, &why, Duration::ZERO, clock.now());
            }
            if !fresh || failure.effects.maybe {
                if !is_replaced {
                    placer.reached(&self.id, at, Stage::Undoing, &[], clock.now());
                }
                if !self.persist_and_own().await {
                    return (tried, false);
                }
                let before = Before { silent_since: failure.effects.silent_since, failed: tried.last() };
                if !self.undo(&replica, before, options.grace, progress).await {
                    return (tried, false);
                }
            }
            // On another host it breaks the same rule.
            let hopeless = denied.is_some_and(|denial| !denial.is_about_host());
            let again = !self.give_up.is_cancelled()
                && !hopeless
                && tried.len() < request.attempts as usize
                && request.requested_host.is_none()
                // Each of these units belongs to its host.
                && !request.global;
            let elsewhere = || placer.elsewhere(&self.id, at, &tried, &self.brought, clock.now());
            if again && self.moved(at, elsewhere).await {
                self.starter.wait_for(&replica, Some(&format!("failed on {}: {}", replica.host_name, failure.error)));
                fresh = true;
                continue;
            }
            if !again {
                placer.abandon(&self.id, at, clock.now());
            }
            self.persist_and_own().await;
            return (tried, false);
        }
    }

    /// Notes how the start of a unit ended.
    fn audit_start(
        &self,
        request: &Request,
        replica: &Replica,
        denied: bool,
        started: &Result<(Vec<Text>, Vec<Option<Text>>), StartFailure>,
    ) {
        let (outcome, digests, reason) = match started {
            Ok((_, digests)) => ("started", &digests[..], String::new()),
            Err(failure) if denied => ("refused", &[][..], failure.error.to_string()),
            Err(failure) => ("failed", &[][..], format!("{}: {}", failure.container, failure.error)),
        };
        let image = |(at, member): (usize, &Member)| {
            let name = member.image.clone()?;
            let digest = digests.get(at).cloned().flatten().or_else(|| digest_in(&name));
            Some(AuditedImage { name, digest })
        };
        self.starter.placer.audit().put(&AuditLine {
            request: self.id.clone(),
            hosts: vec![replica.host_name.clone()],
            images: request.members.iter().enumerate().filter_map(image).collect(),
            reason,
            ..AuditLine::new(Action::Start, &request.subject, outcome)
        });
    }

    /// Puts a unit on the host that `find` promises it; `false` when there is none.
    pub(super) async fn moved(&self, at: usize, find: impl Fn() -> bool) -> bool {
        let (placer, clock) = (&self.starter.placer, self.starter.clock);
        for _ in 0..TRIES_ELSEWHERE {
            if !find() {
                return false;
            }
            match self.persist().await {
                Ok(()) => return true,
                // Another scheduler promised room there in between.
                Err(PersistError::Etcd(CommitError::Conflict)) => {
                    placer.with_any(clock.now(), |book| book.split_hosts(clock.now()));
                }
                // A new promise that is not on disk is none.
                Err(PersistError::Disk(_) | PersistError::Etcd(CommitError::Blocked { .. })) => break,
                Err(_) => return false,
            }
        }
        self.lose_place(at);
        false
    }

    /// Waits until what was done is persistent; `false` when the placement is no longer ours.
    pub(super) async fn persist_and_own(&self) -> bool {
        !matches!(self.persist().await, Err(PersistError::Etcd(CommitError::Foreign)))
    }

    /// Waits until what was done is persistent. The journal logs a failing disk. While etcd cannot be reached only etcd
    /// knows whose the placement is, so that is waited for.
    pub(super) async fn persist(&self) -> Result<(), PersistError> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            match self.starter.placer.ledger().store().settled(&self.id).await {
                Err(PersistError::Etcd(CommitError::Unavailable(why))) if !self.starter.stop.is_cancelled() => {
                    if begun.elapsed() >= STUCK_AFTER {
                        self.state.send_replace(JobState::Stalled(why));
                    }
                }
                other => {
                    self.state.send_replace(JobState::Running);
                    return other;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
