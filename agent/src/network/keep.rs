//! `agent up --network`: the network of this host is kept as the claims want it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::Snapshot;
use network::claim::Claims;
use network::guard::{self, Loss};
use network::plan::{self, Described, Doubt, Facts, Step};
use process::{Failure, StateOptions};
use source::{Readiness, Store};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::this_host::{Context, context, own_address};
use crate::enroll::now;

/// Time between two looks at everything, which finds what no event has said.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Time that changes have to arrive together.
const SETTLE: Duration = Duration::from_millis(20);

/// Time after a failure until the next try.
const RETRY: Duration = Duration::from_secs(5);

/// The part of readiness.
const PART: &str = "network";

/// Keeps the network of this host until asked to stop; what was changed stays.
///
/// # Errors
///
/// Fails if the options do not allow it.
pub(crate) async fn keep(
    options: live::Options,
    state: StateOptions,
    certificates: Option<PathBuf>,
    snapshots: Arc<Store<Snapshot>>,
    readiness: Arc<Readiness>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    stop.run_until_cancelled(async {
        let context = loop {
            match context(&options, &state, certificates.clone()).await {
                Ok(context) => break context,
                Err(failure) => {
                    readiness.not_ready(PART, failure.to_string());
                    sleep(RETRY).await;
                }
            }
        };
        Keeper { context, snapshots, readiness, known: None, loss: None, told: Vec::new(), announced: None }
            .run()
            .await;
    })
    .await;
    Ok(())
}

struct Keeper {
    context: Context,
    snapshots: Arc<Store<Snapshot>>,
    readiness: Arc<Readiness>,
    /// What was there at the last look at everything.
    known: Option<Facts>,
    /// The loss that is seen, and since when.
    loss: Option<(Loss, Instant)>,
    /// Findings that were logged.
    told: Vec<String>,
    /// The address that this host was announced with.
    announced: Option<Ipv4Addr>,
}

impl Keeper {
    async fn run(mut self) {
        let mut published = self.snapshots.watch();
        let mut events = match self.context.network.routes().watch() {
            Ok(events) => events,
            Err(error) => {
                error!(%error, "changes of routes by others are noticed once a minute only");
                return self.run_without_events().await;
            }
        };
        let mut check = Instant::now();
        loop {
            let everything = check <= Instant::now();
            if everything {
                check = Instant::now() + CHECK_INTERVAL;
            }
            if !self.turn(everything).await {
                check = Instant::now() + RETRY;
            }
            tokio::select! {
                () = published.changed() => {}
                () = events.changed() => {}
                () = sleep_until(check) => {}
            }
            sleep(SETTLE).await;
        }
    }

    async fn run_without_events(mut self) {
        loop {
            let pause = if self.turn(true).await { CHECK_INTERVAL } else { RETRY };
            sleep(pause).await;
        }
    }

    /// Looks and does what is to be done; gives whether all of it was done.
    async fn turn(&mut self, everything: bool) -> bool {
        match self.try_turn(everything).await {
            Ok(()) => {
                self.readiness.ready(PART);
                true
            }
            Err(failure) => {
                let why = failure.to_string();
                if self.told.first() != Some(&why) {
                    warn!("the network of this host: {why}");
                    self.told.insert(0, why.clone());
                    self.told.truncate(1);
                }
                self.readiness.not_ready(PART, why);
                self.known = None;
                false
            }
        }
    }

    async fn try_turn(&mut self, everything: bool) -> Result<(), Failure> {
        let claims = Claims::in_snapshot(&self.snapshots.load());
        let mut facts = match self.known.take() {
            Some(mut known) if !everything => {
                known.table = self.context.network.routes().read().await?;
                known
            }
            _ => self.context.network.facts().await?,
        };
        let via = own_address(&facts.table, self.context.public_ip);
        // What others deleted is written again.
        let known = claims.hosts.contains_key(&*self.context.host) && via.is_some() && self.announced == via;
        if matches!(claims.config, Some(Ok(_))) && !known {
            let last = self.context.network.ledger()?.subnet;
            self.context.announce(&facts, last, false).await?;
            self.announced = via;
        }
        let agreed = self.loss.as_ref().is_some_and(|(_, since)| since.elapsed() >= guard::AGREE);
        let before = match &self.loss {
            Some((loss, _)) => Some(loss.clone()),
            None => self.context.network.ledger()?.loss,
        };
        let plan = plan::plan(&claims, &facts, &Doubt { before, agreed, now: now() }, false);
        self.loss = match (plan.loss.clone(), self.loss.take()) {
            (Some(loss), Some((before, since))) if before.subnets == loss.subnets => Some((loss, since)),
            (Some(loss), _) => Some((loss, Instant::now())),
            (None, _) => None,
        };
        for finding in plan.findings.iter().filter(|finding| !self.told.contains(finding)) {
            warn!("the network of this host: {finding}");
        }
        self.told.clone_from(&plan.findings);
        self.readiness.warn(PART, plan.findings.first().cloned());
        for step in &plan.steps {
            info!("{}", Described(step, &facts.table));
        }
        let failed = self.context.network.apply(&plan, &mut facts).await?;
        if let Some((step, error)) = failed.first() {
            return Err(format!("{}: {error}", Described(step, &facts.table)).into());
        }
        // What was made has to be seen as it is now.
        let only_routes = plan.steps.iter().all(|step| matches!(step, Step::Route(_)));
        self.known = only_routes.then_some(facts);
        Ok(())
    }
}
