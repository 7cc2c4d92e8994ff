//! `agent up --network` and `agent network keep`: the network of this host stays as the claims want it.

use std::future::pending;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use live::Origin;
use live::config::DockerOption;
use model::{Fingerprint, Snapshot};
use network::fights::Fights;
use network::guard::{self, Loss};
use network::plan::{self, Doubt, Facts};
use network::step::{Described, Step};
use process::{Failure, Launch, ProcessOptions, StateOptions};
use source::{Readiness, Store};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::this_host::{Context, Followed, ThisHost, context, own_address};
use crate::enroll::now;

/// Time between two looks at everything, which finds what no event has said.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Time that changes have to arrive together.
const SETTLE: Duration = Duration::from_millis(20);

/// Time after a failure until the next try.
const RETRY: Duration = Duration::from_secs(5);

/// The part of readiness.
pub(crate) const PART: &str = "network";

/// Keep the network of this host as the claims want it, until asked to stop
///
/// A service of its own for hosts whose agent has no access to the engine (berth-network.service); elsewhere, agent up --network
/// does the same.
#[derive(clap::Args)]
#[command(mut_args(process::hide_address_options))]
pub(crate) struct Keep {
    #[command(flatten)]
    host: ThisHost,

    #[command(flatten)]
    pub(crate) process: ProcessOptions,
}

impl Keep {
    /// The command with these options.
    pub(crate) fn of(
        live: live::Options,
        state: StateOptions,
        docker_certs: Option<PathBuf>,
        process: ProcessOptions,
    ) -> Self {
        Self { host: ThisHost { live, state, docker_certs }, process }
    }

    /// Follows the claims and does what they want.
    ///
    /// # Errors
    ///
    /// Fails if the options do not allow it.
    pub(crate) async fn serve(self, mut launch: Launch) -> Result<(), Failure> {
        let ThisHost { live, state, docker_certs } = self.host;
        let origin =
            live.source.clone().ok_or("the network between hosts needs --source etcd:URL or --source file:PATH")?;
        // The agent publishes what its engine says.
        let following = live::Options { docker: DockerOption { engine: None }, ..live.clone() };
        let (snapshots, _) = following.follow(origin.clone(), &mut launch, docker_certs.as_deref(), &state)?;
        let (readiness, stop) = (launch.readiness.clone(), launch.stop.clone());
        launch.spawn("the network", keep(live, origin, state, docker_certs, snapshots, readiness, stop));
        launch.run().await
    }
}

/// Keeps the network of this host until asked to stop; what was changed stays.
///
/// # Errors
///
/// Fails if the options do not allow it.
pub(crate) async fn keep(
    options: live::Options,
    origin: Origin,
    state: StateOptions,
    certificates: Option<PathBuf>,
    snapshots: Arc<Store<Snapshot>>,
    readiness: Arc<Readiness>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    stop.run_until_cancelled(async {
        let context = loop {
            match context(&options, Some(&origin), &state, certificates.clone()).await {
                Ok(context) => break context,
                Err(failure) => {
                    let why = failure.to_string();
                    if readiness.reasons().get(PART) != Some(&why) {
                        warn!("the network of this host is not kept: {why}");
                        readiness.not_ready(PART, why);
                    }
                    sleep(RETRY).await;
                }
            }
        };
        let mut keeper = Keeper::new(context, snapshots, readiness);
        keeper.run().await;
    })
    .await;
    Ok(())
}

struct Keeper {
    context: Context,
    snapshots: Arc<Store<Snapshot>>,
    readiness: Arc<Readiness>,
    /// Stands for the keys of the network that were looked at last, and whether etcd had not answered yet.
    keys: Option<(Fingerprint, bool)>,
    /// The claims of the snapshot that was looked at last.
    followed: Followed,
    /// What was there at the last look at everything, with what changed since as far as it is known.
    known: Option<Facts>,
    /// The loss that is seen, and since when.
    loss: Option<(Loss, Instant)>,
    /// What was logged of the last look, which is not logged again.
    logged: Vec<String>,
    /// The address that this host was announced with.
    announced: Option<Ipv4Addr>,
    /// Routes that another program removes, by times since the start.
    fights: Fights,
    started: Instant,
}

impl Keeper {
    fn new(context: Context, snapshots: Arc<Store<Snapshot>>, readiness: Arc<Readiness>) -> Self {
        let (keys, known, loss, logged, announced) = (None, None, None, Vec::new(), None);
        let (followed, fights, started) = (Followed::default(), Fights::default(), Instant::now());
        Self { context, snapshots, readiness, keys, followed, known, loss, logged, announced, fights, started }
    }

    async fn run(&mut self) {
        let mut published = self.snapshots.watch();
        published.first().await;
        let events = self.context.network.routes().watch();
        let mut events = events
            .inspect_err(|error| error!(%error, "changes of routes by others are noticed once a minute only"))
            .ok();
        let mut check = Instant::now();
        let mut by_others = true;
        loop {
            if check <= Instant::now() {
                check = Instant::now() + CHECK_INTERVAL;
                self.known = None;
            }
            if let Some(events) = &mut events {
                by_others |= events.has_changed().await;
            }
            match self.turn(by_others || events.is_none()).await {
                Ok(Some(due)) => check = check.min(due),
                Ok(None) => {}
                Err(_) => check = Instant::now() + RETRY,
            }
            let changed = async {
                match &mut events {
                    Some(events) => events.changed().await,
                    None => pending().await,
                }
            };
            // Most publications are about containers.
            let claimed = async {
                loop {
                    published.changed().await;
                    if Some(self.seen(&self.snapshots.load())) != self.keys {
                        return;
                    }
                }
            };
            by_others = tokio::select! {
                () = claimed => false,
                () = changed => true,
                () = sleep_until(check) => false,
            };
            sleep(SETTLE).await;
        }
    }

    /// Logs what the last look did not log.
    fn log(&mut self, texts: Vec<String>) {
        for text in texts.iter().filter(|text| !self.logged.contains(text)) {
            warn!("the network of this host: {text}");
        }
        self.logged = texts;
    }

    /// Looks and does what is to be done; gives when a route that another program removes is due again. `by_others`: others may
    /// have changed routes or interfaces.
    async fn turn(&mut self, by_others: bool) -> Result<Option<Instant>, Failure> {
        let done = self.try_turn(by_others).await;
        match &done {
            Ok(_) => self.readiness.ready(PART),
            Err(failure) => {
                let why = failure.to_string();
                self.log(vec![why.clone()]);
                self.readiness.not_ready(PART, why);
                self.known = None;
            }
        }
        done
    }

    async fn try_turn(&mut self, by_others: bool) -> Result<Option<Instant>, Failure> {
        let snapshot = self.snapshots.load_full();
        self.context.claimed.follow(&mut self.followed, &snapshot);
        let claims = &self.followed.claims;
        self.keys = Some(self.seen(&snapshot));
        let mut facts = match self.known.take() {
            Some(known) if !by_others => known,
            Some(known) => Facts { table: self.context.network.table().await?, ..known },
            None => self.context.network.facts().await?,
        };
        let via = own_address(&facts.table, self.context.public_ip);
        // What others deleted is written again.
        let known = claims.hosts.contains_key(&*self.context.host) && via.is_some() && self.announced == via;
        if matches!(claims.config, Some(Ok(_))) && !known {
            self.context.announce(via, false).await?;
            self.announced = via;
        }
        let agreed = self.loss.as_ref().is_some_and(|(_, since)| since.elapsed() >= guard::AGREE);
        let before = match &self.loss {
            Some((loss, _)) => Some(loss.clone()),
            None => self.context.network.ledger()?.loss,
        };
        let doubt = Doubt { before, agreed, restored: snapshot.restored, now: now() };
        let mut plan = plan::plan(claims, &facts, &doubt, false);
        let due = self.fights.hold(&mut plan, &facts.table.links, self.started.elapsed());
        self.loss = match (plan.loss.clone(), self.loss.take()) {
            // No reading of etcd.
            (_, before) if snapshot.restored => before,
            (Some(loss), Some((before, since))) if before.subnets == loss.subnets => Some((loss, since)),
            (Some(loss), _) => Some((loss, Instant::now())),
            (None, _) => None,
        };
        self.log(plan.findings.clone());
        self.readiness.warn(PART, plan.findings.first().cloned());
        for step in &plan.steps {
            info!("{}", Described(step, &facts.table));
        }
        let failed = self.context.network.apply(&plan).await?;
        if let Some((step, error)) = failed.first() {
            return Err(format!("{}: {error}", Described(step, &facts.table)).into());
        }
        if let Some(failure) = facts.engine_failure {
            return Err(failure.into());
        }
        let due = if plan.replaces_interface(&facts) { Some(self.started.elapsed()) } else { due };
        for step in &plan.steps {
            match step {
                Step::Route(change) => facts.table.take_in(change),
                // What was made has to be seen as it is now.
                _ => return Ok(due.map(|due| self.started + due)),
            }
        }
        self.known = Some(facts);
        Ok(due.map(|due| self.started + due))
    }

    fn seen(&self, snapshot: &Snapshot) -> (Fingerprint, bool) {
        (self.context.claimed.fingerprint(snapshot), snapshot.restored)
    }
}
