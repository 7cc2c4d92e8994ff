//! HAProxy follows the plan of a balancer: members by its socket, all else by a reload of what it has checked.

mod refused;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use balancer::{
    Configuration, How, Metrics, Options, Part, ServerName, Slots, differing, is_of_one_shape, servers, sessions,
    skeleton,
};
use model::lb::{LbPlan, Viewpoint};
use model::printable::printable;
use model::{Defect, Snapshot};
use process::Failure;
use source::backoff::Backoff;
use source::{Readiness, Revision, Store};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::certificates::{CertificateFolder, Found};
use super::proxy::Proxy;
use super::{Which, at};

/// The part of readiness that speaks for HAProxy.
const HAPROXY: &str = "haproxy";

/// The part of readiness that speaks for the rules.
const RULES: &str = "balancer";

/// Time between two comparisons of HAProxy's servers with what they should be: others have hands too.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Time between two looks at the folder of certificates.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(2);

/// Time between two looks whether the sessions of members that are stopping have ended.
const DRAIN_INTERVAL: Duration = Duration::from_millis(200);

/// Time between two looks at a HAProxy that another process started.
const ADOPTED_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two reloads: each leaves a worker behind until its connections have ended.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Waits between tries when HAProxy does not answer.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Longest time for which a change of members may be missing in the file: a thousand changes a second are one write.
///
/// The file is only read at a start, before which it is written in any case.
const WRITE_DELAY: Duration = Duration::from_secs(1);

/// Most backends that HAProxy is asked about one by one; beyond that one answer about all is shorter.
const ASKED_MAX: usize = 32;

/// The file that is there while the configuration may be one that HAProxy has not loaded yet.
const DUE: &str = "reload-due";

/// How a configuration of ours begins.
const HEADER: &str = "# Written by berth";

/// Most lines about one change that are logged.
const LOGGED_MAX: usize = 20;

/// The configuration that HAProxy has.
#[derive(Debug, Default)]
struct Applied {
    /// What it was made of, by this process.
    plan: Option<LbPlan>,
    /// What is in the file.
    text: String,
    skeleton: String,
    slots: Slots,
    /// What of the plan is not in the text.
    defects: Vec<Defect>,
    /// Since when the slots are others than in the file.
    unwritten: Option<Instant>,
}

/// Keeps HAProxy as a balancer's rules want it.
#[derive(Debug)]
pub(crate) struct Keeper {
    configuration: PathBuf,
    which: Which,
    options: Options,
    certificates: Option<CertificateFolder>,
    proxy: Proxy,
    snapshots: Arc<Store<Snapshot>>,
    readiness: Arc<Readiness>,
    metrics: Metrics,
    applied: Option<Applied>,
    /// Whether HAProxy follows the plan that was applied last.
    follows: bool,
    /// Certificates that HAProxy does not serve yet.
    unserved: BTreeMap<PathBuf, String>,
    /// What HAProxy would not take, why, and when it was tried.
    refused: Option<(String, String, Instant)>,
    /// The parts of the plan that HAProxy would not take, why, and when that was found.
    refused_parts: Vec<(Part, String, Instant)>,
    /// Ports that HAProxy could not listen on, why, and when it was tried.
    blocked: BTreeMap<u16, (String, Instant)>,
    reloaded: Option<Instant>,
    /// When HAProxy's servers are to be compared; now, once it was found away.
    check: Instant,
    /// The worker whose servers were compared last.
    worker: Option<u32>,
    logged: Vec<String>,
    /// What was wrong at the last look.
    reported: Vec<String>,
    started: Instant,
    /// When the turn began that is being done.
    begun: Instant,
}

impl Keeper {
    /// Begins with the configuration of the process before, if there was one.
    ///
    /// # Errors
    ///
    /// Fails if there is a configuration that Berth has not written.
    #[expect(clippy::too_many_arguments, reason = "each is another thing, and there is one caller")]
    pub(crate) fn new(
        folder: &Path,
        which: Which,
        bind: Option<IpAddr>,
        certificates: Option<CertificateFolder>,
        proxy: Proxy,
        snapshots: Arc<Store<Snapshot>>,
        readiness: Arc<Readiness>,
        metrics: Metrics,
    ) -> Result<Self, Failure> {
        let configuration = folder.join("haproxy.cfg");
        let applied = match std::fs::read_to_string(&configuration) {
            Ok(text) if text.starts_with(HEADER) => {
                let is_due = folder.join(DUE).exists();
                // Then nothing is like it, and it is loaded.
                let skeleton = if is_due { String::new() } else { skeleton(&text) };
                Some(Applied { skeleton, slots: Slots::of_text(&text), text, ..Applied::default() })
            }
            Ok(_) => {
                return Err(
                    format!("{} was not written by Berth: name another --folder", configuration.display()).into()
                );
            }
            Err(_) => None,
        };
        let options = Options {
            certificates: certificates.as_ref().map(|folder| folder.copies().to_owned()),
            socket: Some(proxy.worker.path().to_owned()),
            bind,
        };
        let now = Instant::now();
        Ok(Self {
            configuration,
            which,
            options,
            certificates,
            proxy,
            snapshots,
            readiness,
            metrics,
            applied,
            follows: false,
            unserved: BTreeMap::new(),
            refused: None,
            refused_parts: Vec::new(),
            blocked: BTreeMap::new(),
            reloaded: None,
            check: now,
            worker: None,
            logged: Vec::new(),
            reported: Vec::new(),
            started: now,
            begun: now,
        })
    }

    /// Follows until `stop`; then HAProxy is ended if it is run.
    pub(crate) async fn run(&mut self, stop: &CancellationToken) {
        self.readiness.not_ready(HAPROXY, "HAProxy does not follow yet");
        let mut published = self.snapshots.watch();
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        while !stop.is_cancelled() {
            let turn = stop.run_until_cancelled(self.turn()).await;
            let wait = match turn {
                None => break,
                Some(Ok(wait)) => {
                    if self.follows {
                        self.readiness.ready(HAPROXY);
                    }
                    backoff.reset();
                    wait
                }
                Some(Err(failure)) => {
                    let why = printable(&failure.to_string(), 400);
                    self.log_new(std::slice::from_ref(&why));
                    self.readiness.not_ready(HAPROXY, why);
                    self.follows = false;
                    backoff.wait()
                }
            };
            tokio::select! {
                () = published.changed() => {}
                () = sleep(wait) => {}
                () = self.proxy.ended() => self.check = Instant::now(),
                () = stop.cancelled() => {}
            }
        }
        // Those who are killed meanwhile find the file as it was.
        if let Err(failure) = self.save().await {
            self.log_new(&[failure.to_string()]);
        }
        self.proxy.finish().await;
    }

    /// Does what is to be done now, and gives the longest time until the next look.
    async fn turn(&mut self) -> Result<Duration, Failure> {
        if !self.proxy.is_running() {
            self.save().await?;
        }
        if let Err(failure) = self.proxy.keep_running().await
            && !self.is_blocked(&failure)
        {
            return Err(failure);
        }
        let mut wait = CHECK_INTERVAL;
        if self.certificates.is_some() {
            wait = wait.min(CERTIFICATES_INTERVAL);
        }
        if self.proxy.is_adopted() {
            wait = wait.min(ADOPTED_INTERVAL);
        }
        let revision = self.snapshots.revision();
        self.begun = Instant::now();
        if revision > Revision::NONE {
            let snapshot = self.snapshots.load_full();
            match self.which.balancer(&snapshot) {
                Ok(service) => {
                    let plan = LbPlan::of(&snapshot, service, &Viewpoint::default());
                    let at = at(service);
                    if let Some(soon) = self.follow(plan, &at).await? {
                        wait = wait.min(soon);
                    }
                }
                // A source that says less than before takes nothing away.
                Err(failure) => {
                    let why = format!("{failure}: HAProxy goes on with what it has");
                    self.log_new(std::slice::from_ref(&why));
                    self.readiness.not_ready(RULES, why);
                }
            }
        }
        if let Some(since) = self.applied.as_ref().and_then(|applied| applied.unwritten) {
            let left = WRITE_DELAY.saturating_sub(since.elapsed());
            wait = wait.min(left);
            if left.is_zero() {
                self.save().await?;
                wait = wait.max(Duration::from_millis(1));
                // Started meanwhile by something else, it has the file as it was.
                if self.proxy.pid().await != self.worker {
                    self.check = Instant::now();
                }
            }
        }
        if self.check <= Instant::now() && self.applied.is_some() {
            self.compare(None).await?;
        }
        Ok(wait.min(self.check.saturating_duration_since(Instant::now())).max(Duration::from_millis(1)))
    }

    /// Brings HAProxy to a plan; gives the time after which to look again, if it is sooner than usual.
    async fn follow(&mut self, mut plan: LbPlan, at: &str) -> Result<Option<Duration>, Failure> {
        self.readiness.ready(RULES);
        let mut found = self.usable(&mut plan, at);
        self.unserved.extend(std::mem::take(&mut found.renewed));
        self.log_new(&found.problems);
        let draining = self.applied.as_ref().is_some_and(|applied| applied.slots.draining() > 0);
        let known = self.applied.as_ref().and_then(|applied| applied.plan.as_ref());
        if self.follows && known == Some(&plan) && self.unserved.is_empty() && !draining {
            return Ok(None);
        }
        let idle = if draining { self.idle().await? } else { BTreeSet::new() };
        let before = self.applied.as_ref().map(|applied| applied.slots.clone()).unwrap_or_default();
        // Zero is the age of a slot that was never used.
        let now = self.started.elapsed() + Duration::from_secs(1);
        let slots = before.following(&plan, known, now, &idle);
        // Where only members differ, no text has to be made to know it.
        let is_of_one_shape = known.is_some_and(|known| is_of_one_shape(known, &plan)) && slots.are_as_many_as(&before);
        let made = (!is_of_one_shape).then(|| Configuration::of(&plan, at, &self.options, &slots));
        let is_same = made
            .as_ref()
            .is_none_or(|made| self.applied.as_ref().is_some_and(|applied| applied.skeleton == skeleton(&made.text)));
        let defects = match (&made, &self.applied) {
            (Some(made), _) => made.defects.clone(),
            (None, applied) => applied.as_ref().map_or_else(Vec::new, |applied| applied.defects.clone()),
        };
        self.report(&plan, &defects, &found);
        if is_same {
            self.members(plan, defects, slots, &before).await?;
            self.renew().await?;
        } else if let Some(made) = made
            && let Some(wait) = self.structure(plan, at, made, slots).await?
        {
            return Ok(Some(wait));
        }
        let draining = self.applied.as_ref().map_or(0, |applied| applied.slots.draining());
        self.metrics.draining.set(i64::try_from(draining).unwrap_or(i64::MAX));
        self.follows = true;
        Ok((draining > 0).then_some(DRAIN_INTERVAL))
    }

    /// The servers whose sessions have ended.
    async fn idle(&self) -> Result<BTreeSet<ServerName>, Failure> {
        let answer = self.ask("show stat -1 4 -1").await?;
        Ok(sessions(&answer).into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect())
    }

    async fn ask(&self, line: &str) -> Result<String, Failure> {
        self.proxy.worker.ask(line).await.map_err(|error| self.unanswered(&error))
    }

    fn unanswered(&self, error: &std::io::Error) -> Failure {
        format!("HAProxy does not answer at {}: {error}", self.proxy.worker.path().display()).into()
    }

    /// Members alone differ: says so at the socket, and has it written down soon for the next start.
    async fn members(
        &mut self,
        plan: LbPlan,
        defects: Vec<Defect>,
        slots: Slots,
        before: &Slots,
    ) -> Result<(), Failure> {
        let commands = slots.commands(before);
        let changed = slots.changed(before);
        let Some(applied) = &mut self.applied else { return Ok(()) };
        // What a process before has written may have another order of members.
        if applied.plan.is_none() || !commands.is_empty() {
            applied.unwritten.get_or_insert_with(Instant::now);
        }
        (applied.plan, applied.defects, applied.slots) = (Some(plan), defects, slots);
        if !commands.is_empty() {
            // If they fail, the comparison repairs the rest.
            let check = std::mem::replace(&mut self.check, Instant::now());
            let wrong = self.ask_all(&commands).await?;
            self.log_new(&wrong);
            self.compare(Some(&changed)).await?;
            self.check = check;
            let took = self.begun.elapsed();
            self.metrics.applied(How::Socket, took);
            info!(commands = commands.len(), took_ms = took.as_millis(), "HAProxy follows, without a reload");
        }
        Ok(())
    }

    /// Writes the configuration for the next start, if it has changed.
    async fn save(&mut self) -> Result<(), Failure> {
        let Some(applied) = self.applied.as_mut().filter(|applied| applied.unwritten.is_some()) else { return Ok(()) };
        let Some(plan) = &applied.plan else { return Ok(()) };
        // Defects were reported when the plan was new, and name the balancer.
        let text = Configuration::of(plan, "", &self.options, &applied.slots).text;
        let differs = applied.text != text;
        applied.text = text;
        if differs {
            self.write().await?;
        }
        if let Some(applied) = &mut self.applied {
            applied.unwritten = None;
        }
        Ok(())
    }

    /// Writes the configuration for the next start.
    async fn write(&self) -> Result<(), Failure> {
        let Some(applied) = &self.applied else { return Ok(()) };
        let (path, text) = (self.configuration.clone(), applied.text.clone());
        let written =
            tokio::task::spawn_blocking(move || platform::file::replace_private(&path, text.as_bytes())).await?;
        written.map(drop).map_err(|error| format!("{}: {error}", self.configuration.display()).into())
    }

    /// Remembers on disk whether the file may be another than the one that HAProxy has: this process may end in between.
    async fn mark_due(&self, is_due: bool) -> Result<(), Failure> {
        let path = self.configuration.with_file_name(DUE);
        let marked = move || {
            if is_due {
                return platform::file::replace_private(&path, b"").map(drop);
            }
            std::fs::remove_file(&path).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
        };
        let marked = tokio::task::spawn_blocking(marked).await?;
        marked.map_err(|error| format!("{}: {error}", self.configuration.with_file_name(DUE).display()).into())
    }

    /// More than members differ: HAProxy checks the new configuration, and only then it is used. Gives a time to wait for, if
    /// there was a reload just now.
    async fn structure(
        &mut self,
        plan: LbPlan,
        at: &str,
        made: Configuration,
        slots: Slots,
    ) -> Result<Option<Duration>, Failure> {
        let Configuration { text, defects } = made;
        let wanted = skeleton(&text);
        if let Some((refused, why, tried)) = &self.refused
            && *refused == wanted
            && tried.elapsed() < CHECK_INTERVAL
        {
            return Err(why.clone().into());
        }
        if let Some(wait) = self.reloaded.and_then(|reloaded| RELOAD_INTERVAL.checked_sub(reloaded.elapsed())) {
            return Ok(Some(wait.max(Duration::from_millis(1))));
        }
        if let Err(failure) = self.check(&text).await {
            if self.bisect(&plan, at, &slots).await? {
                return Ok(Some(Duration::from_millis(1)));
            }
            return Err(self.refuse(wanted, format!("HAProxy refuses {failure}; the configuration before goes on")));
        }
        // One that does not answer would not hear of it, and would be taken for one that has it.
        let serves = self.proxy.serves().await?;
        let applied = Applied { plan: Some(plan), skeleton: wanted.clone(), slots, text, defects, unwritten: None };
        let line = self.applied.as_ref().and_then(|before| differing(&before.skeleton, &applied.skeleton));
        let line = printable(line.unwrap_or_default(), 120);
        let before = self.applied.replace(applied);
        self.mark_due(true).await?;
        self.write().await?;
        let loaded = if serves {
            self.reloaded = Some(Instant::now());
            self.proxy.reload().await
        } else {
            self.proxy.keep_running().await
        };
        if let Err(failure) = loaded {
            // The next start is to find what worked.
            if before.is_some() {
                self.applied = before;
                self.write().await?;
                self.mark_due(false).await?;
            }
            if self.is_blocked(&failure) {
                return Ok(Some(RELOAD_INTERVAL));
            }
            return Err(self.refuse(wanted, format!("{failure}; the configuration before goes on")));
        }
        self.mark_due(false).await?;
        self.refused = None;
        self.unserved.clear();
        self.compare(None).await?;
        let took = self.begun.elapsed();
        self.metrics.applied(How::Reload, took);
        info!(line, took_ms = took.as_millis(), "HAProxy follows, with a new configuration");
        Ok(None)
    }

    /// Compares HAProxy's servers with what they should be, and repairs what differs: those of some backends, or all.
    async fn compare(&mut self, some: Option<&Slots>) -> Result<(), Failure> {
        let some = some.filter(|some| some.backends().len() <= ASKED_MAX).cloned();
        let questions: Vec<_> = match &some {
            Some(some) => some.backends().map(|name| format!("show servers state {name}")).collect(),
            None => vec!["show servers state".into()],
        };
        if some.is_none() {
            self.worker = self.proxy.pid().await;
        }
        let Some(slots) = some.or_else(|| self.applied.as_ref().map(|applied| applied.slots.clone())) else {
            return Ok(());
        };
        let commands = self.differing(&slots, &questions).await?;
        if !commands.is_empty() {
            warn!(
                commands = commands.len(),
                first = commands[0],
                "HAProxy's servers are not as they should be: repairing"
            );
            let wrong = self.ask_all(&commands).await?;
            self.log_new(&wrong);
            let left = self.differing(&slots, &questions).await?;
            if let Some(first) = left.first() {
                return Err(format!("HAProxy does not apply {} commands, first `{first}`", left.len()).into());
            }
        }
        self.check = Instant::now() + CHECK_INTERVAL;
        Ok(())
    }

    /// What has to be said to HAProxy to have its servers as these slots.
    async fn differing(&self, slots: &Slots, questions: &[String]) -> Result<Vec<String>, Failure> {
        let mut seen = HashMap::new();
        for question in questions {
            seen.extend(servers(&self.ask(question).await?));
        }
        Ok(slots.repair(&seen))
    }

    async fn ask_all(&self, commands: &[String]) -> Result<Vec<String>, Failure> {
        self.proxy.worker.command(commands).await.map_err(|error| self.unanswered(&error))
    }

    /// Certificates that were renewed are used from now on; the running HAProxy takes them without a reload.
    async fn renew(&mut self) -> Result<(), Failure> {
        // Each until it is taken: HAProxy may not answer just now.
        while let Some((copy, text)) = self.unserved.first_key_value() {
            let (copy, text) = (copy.clone(), text.clone());
            let path = copy.display();
            let said = self.ask(&format!("set ssl cert {path} <<\n{text}")).await?;
            let done = self.ask(&format!("commit ssl cert {path}")).await?;
            if done.contains("Success") {
                info!(certificate = %path, "HAProxy serves a renewed certificate");
                self.unserved.remove(&copy);
                continue;
            }
            let said = printable(&said, 200);
            warn!(certificate = %path, said, "HAProxy did not take a renewed certificate: reloading");
            // What was begun would be in the way of the next one.
            let _ = self.ask(&format!("abort ssl cert {path}")).await;
            self.save().await?;
            self.proxy.reload().await?;
            self.unserved.clear();
        }
        Ok(())
    }

    /// Shows what is wrong with the rules.
    fn report(&mut self, plan: &LbPlan, defects: &[Defect], found: &Found) {
        let defects = plan.defects.iter().chain(defects).map(|defect| printable(&defect.to_string(), 400));
        let defects: Vec<_> = defects.chain(found.problems.iter().map(|problem| printable(problem, 400))).collect();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.rules.set(count(plan.ports.iter().map(|port| port.routes.len()).sum()));
        self.metrics.members.set(count(plan.backends.iter().map(|backend| backend.members.len()).sum()));
        if defects != self.reported {
            self.metrics.defects.set(count(defects.len()));
            self.readiness.warn(RULES, defects.first().cloned());
            self.log_new(&defects);
            self.reported = defects;
        }
    }

    /// Logs what was not logged before.
    fn log_new(&mut self, texts: &[String]) {
        let new: Vec<_> = texts.iter().filter(|text| !self.logged.contains(text)).cloned().collect();
        for text in new.iter().take(LOGGED_MAX) {
            warn!("{text}");
        }
        if new.len() > LOGGED_MAX {
            warn!("and {} more", new.len() - LOGGED_MAX);
        }
        self.logged.extend(new);
        let excess = self.logged.len().saturating_sub(LOGGED_MAX * 10);
        self.logged.drain(..excess);
    }
}
