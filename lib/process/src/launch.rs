//! The life of an executable: start, serve until asked to stop, drain, leave.

use std::any::Any;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use model::Snapshot;
use platform::cloud::AWS_ACTIVATION;
use platform::handover::{Inherited, Predecessor};
use platform::ingress::IngressFilter;
use platform::redirect::{Place, Redirect};
use platform::service::State;
use platform::stop::{DRAIN_LIMIT, ReloadEvents, StopEvents};
use prometheus_client::registry::Registry;
use source::{Following, Readiness, Reload, Source, Store};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::Failure;
use crate::accepting::Accepting;
use crate::addresses::HeldAddresses;
use crate::admin::{self, Admin, Identity, Settle};
use crate::listeners::Listeners;
use crate::log;
use crate::options::{ProcessOptions, StateOptions};
use crate::parts::Parts;
use crate::pid_file::PidFile;
use crate::restart::{self, AFTERWARDS, Attempts, FRESH_LIMIT, KEPT_LIMIT, LINGER, Restart, VIEW_LIMIT};
use crate::usage::UsageCollector;

/// The exit code of a process that could not run.
pub const CANNOT_RUN: u8 = 1;

/// Longest wait at the end for threads that are inside a system call.
const RUNTIME_STOP_LIMIT: Duration = Duration::from_millis(200);

/// What every service is given to run.
#[derive(Debug)]
pub struct Launch {
    options: ProcessOptions,
    /// Cancelled when the process is asked to stop.
    pub stop: CancellationToken,
    /// Why the process is not ready.
    pub readiness: Arc<Readiness>,
    /// What it counts.
    pub registry: Registry,
    /// Its sockets.
    pub listeners: Listeners,
    /// From when until when questions are taken.
    pub accepting: Accepting,
    /// Cancelled when no other process serves in the place of this one: from then on it may do what only one may.
    pub alone: CancellationToken,
    predecessor: Option<Predecessor>,
    /// Whether clients may have asked already, on sockets of a process that is gone.
    is_awaited: bool,
    /// Whether it can start again in place; if not, perhaps why.
    restart: Result<(), Option<String>>,
    attempts: Attempts,
    program: std::io::Result<PathBuf>,
    /// The name that the executable was started by.
    started_as: std::io::Result<PathBuf>,
    parts: Parts,
    /// Shared with [`launch`], which removes them in any case.
    addresses: HeldAddresses,
    following: Vec<Following>,
    held: Vec<Box<dyn Any + Send>>,
    settling: Vec<Arc<dyn Settle>>,
    pages: Router,
}

/// Runs a service in this process until it is asked to stop.
///
/// `serve` binds, starts what it needs with [`Launch::spawn`] and ends with [`Launch::run`]. The exit code is
/// 0 after a stop that was asked for and [`CANNOT_RUN`] otherwise; the reason was then logged.
pub fn launch<F>(options: &ProcessOptions, serve: impl FnOnce(Launch) -> F) -> ExitCode
where
    F: Future<Output = Result<(), Failure>>,
{
    // Before any file is opened or program started.
    let inherited = Inherited::take();
    let (predecessor, program) = (inherited.predecessor(), std::env::current_exe());
    let started_as = std::env::current_exe().map(restart::name_of);
    let guard = match log::start(options) {
        Ok(guard) => guard,
        Err(failure) => return refuse(&failure, predecessor.as_ref()),
    };
    platform::limits::raise_descriptor_limit();
    platform::memory::share_pools();
    let runtime = match Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(failure) => return refuse(&failure, predecessor.as_ref()),
    };
    let outcome = runtime.block_on(async {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(UsageCollector));
        let stop = CancellationToken::new();
        let addresses = HeldAddresses::default();
        let outcome = serve(Launch {
            options: options.clone(),
            parts: Parts::new(stop.clone()),
            stop,
            readiness: Arc::default(),
            registry,
            is_awaited: predecessor.is_none() && !inherited.is_empty(),
            listeners: Listeners::new(inherited),
            accepting: Accepting::later(),
            alone: CancellationToken::new(),
            predecessor: predecessor.clone(),
            restart: Err(None),
            attempts: Attempts::default(),
            program,
            started_as,
            addresses: addresses.clone(),
            following: Vec::new(),
            held: Vec::new(),
            settling: Vec::new(),
            pages: Router::new(),
        })
        .await;
        addresses.end(options.keep_address).await;
        outcome
    });
    runtime.shutdown_timeout(RUNTIME_STOP_LIMIT);
    let code = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!("{failure}");
            report_failure(&failure.to_string(), predecessor.as_ref());
            ExitCode::from(CANNOT_RUN)
        }
    };
    // Lines that are still queued are written now; a stuck reader is not waited for longer than a second.
    drop(guard);
    code
}

/// Prints why the process cannot start, before there is a log.
fn refuse(failure: &dyn std::error::Error, predecessor: Option<&Predecessor>) -> ExitCode {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "error: {failure}");
    report_failure(&failure.to_string(), predecessor);
    ExitCode::from(CANNOT_RUN)
}

/// Reports why this process ends with an error: to its predecessor, which serves on, or to the system.
fn report_failure(reason: &str, predecessor: Option<&Predecessor>) {
    match predecessor {
        Some(predecessor) => predecessor.report_failure(reason),
        None => platform::service::failed(reason),
    }
}

impl Launch {
    /// Puts the address of `listen` on an interface when the options ask for it, and warns where that takes something
    /// away. It is put back when it is lost, and removed when the process ends, also when it fails to start.
    ///
    /// Returns where to bind: behind an address of the service's own, so that a container can have the port on all others.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be added.
    pub async fn prepare_address(&mut self, listen: SocketAddr) -> Result<Place, Failure> {
        let address = listen.ip();
        if AWS_ACTIVATION.contains(&address) && platform::cloud::on_aws() {
            warn!(
                "on AWS, Windows activation (KMS) uses {} and {}: never route them to this service on the host; other addresses can be given with --listen",
                AWS_ACTIVATION[0], AWS_ACTIVATION[1]
            );
        }
        let wanted = self.options.add_address || self.options.serve_containers;
        // Every machine has these.
        if !wanted || address.is_loopback() || address.is_unspecified() {
            return Ok(listen.into());
        }
        self.addresses.add(listen, &self.options).await?;
        match Redirect::install(listen) {
            Ok(Some(redirect)) => {
                let place = redirect.place();
                self.listeners.add_redirect(&redirect)?;
                self.hold(redirect);
                Ok(place)
            }
            Ok(None) => Ok(listen.into()),
            Err(error) => {
                let port = listen.port();
                info!(%address, %error, "no redirect to another port: no container can publish port {port} on all addresses");
                Ok(listen.into())
            }
        }
    }

    /// Keeps the sockets of `filter` to containers and this machine when the options ask for it.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses.
    pub async fn keep_to_containers(&mut self, mut filter: IngressFilter) -> Result<(), Failure> {
        if self.options.serve_containers {
            if let Some(interface) = &self.options.interface {
                filter.take_from(interface);
            }
            let refused = |error| format!("cannot restrict the sockets to containers (--serve-containers): {error}");
            let follow = filter.install().await.map_err(refused)?;
            let stop = self.stop.clone();
            self.spawn("the filter of sockets", async move {
                stop.run_until_cancelled(follow).await;
                Ok(())
            });
        }
        Ok(())
    }

    /// Starts following `source`, and stores its last good snapshot where the options say.
    ///
    /// Following ends with the process, after the services have stopped.
    ///
    /// # Errors
    ///
    /// Fails if the state directory cannot be used.
    pub fn follow(&mut self, source: Source, state: &StateOptions) -> Result<(Arc<Store<Snapshot>>, Reload), Failure> {
        info!(source = %source, "following");
        Ok(self.adopt(source::follow(source, state.open()?, self.readiness.clone())?))
    }

    /// Takes over what is being followed; that ends with the process, after the services have stopped.
    pub fn adopt(&mut self, following: Following) -> (Arc<Store<Snapshot>>, Reload) {
        let followed = (following.snapshots.clone(), following.reload());
        self.following.push(following);
        self.wait_for(followed.0.clone());
        followed
    }

    /// The process is ready only when the views of this store have caught up.
    pub fn wait_for(&mut self, published: Arc<dyn Settle>) {
        self.settling.push(published);
    }

    /// Keeps something until the services have stopped.
    pub fn hold(&mut self, thing: impl Any + Send) {
        self.held.push(Box::new(thing));
    }

    /// Adds pages of a service's own to the admin pages that are served from now on.
    pub fn add_pages(&mut self, pages: Router) {
        self.pages = std::mem::take(&mut self.pages).merge(pages);
    }

    /// The pages that services have added so far, for others of this process to ask.
    pub fn pages(&self) -> Router {
        self.pages.clone()
    }

    /// Serves the admin pages on `listen`.
    ///
    /// The default address may be taken by a neighbour; the service is worth more than its pages.
    ///
    /// # Errors
    ///
    /// Fails if `asked` and the address cannot be used.
    pub fn admin(&mut self, listen: &[SocketAddr], asked: bool, reload: Option<Reload>) -> Result<(), Failure> {
        let registry = Arc::new(std::mem::take(&mut self.registry));
        let settling = self.settling.clone();
        let identity = Identity {
            program: self.program.as_ref().ok().cloned(),
            refused: match &self.restart {
                Ok(()) => restart::refused(None),
                Err(Some(reason)) => Some(reason.clone()),
                Err(None) => Some("this program does not start again in place".to_owned()),
            },
            attempts: self.attempts.clone(),
        };
        let admin = Admin { readiness: self.readiness.clone(), registry, reload: reload.clone(), settling, identity };
        for address in listen {
            admin::check_address(*address)?;
            let listener = match self.listeners.tcp("admin", (*address).into()) {
                Ok(listener) => listener,
                Err(failure) if !asked => {
                    warn!("no admin pages, so no health, metrics or reload here: {failure} (--admin ADDRESS:PORT)");
                    continue;
                }
                Err(failure) => return Err(format!("--admin {address}: {failure}").into()),
            };
            info!("admin pages on http://{}", listener.local_addr()?);
            let (router, stop) = (admin.clone().router().merge(self.pages.clone()), self.stop.clone());
            self.spawn("the admin pages", async move { Ok(admin::serve_programs(listener, router, stop).await?) });
        }
        if let Some(reload) = reload {
            let (mut events, stop) = (ReloadEvents::new()?, self.stop.clone());
            self.spawn("reloading", async move {
                while stop.run_until_cancelled(events.requested()).await.is_some() {
                    if let Err(failure) = reload.request().await {
                        warn!(%failure, "not reloaded");
                    }
                }
                Ok(())
            });
        }
        Ok(())
    }

    /// Runs a part of the process, see [`Parts::spawn`]: it has to end by itself after `stop`, and when it ends before,
    /// the process ends with its reason.
    pub fn spawn(&mut self, name: &'static str, part: impl Future<Output = Result<(), Failure>> + Send + 'static) {
        self.parts.spawn(name, part);
    }

    /// The same on a thread and a runtime of its own: what it does wakes no other thread, and what takes long elsewhere does not delay it.
    /// `begin` is called on that thread first.
    pub fn spawn_apart(
        &mut self,
        name: &'static str,
        begin: impl FnOnce() + Send + 'static,
        part: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) {
        self.spawn(name, async move {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let on_thread = move || {
                begin();
                // As a task: to wake what the thread itself runs costs a system call each time.
                runtime.block_on(runtime.spawn(part))
            };
            tokio::task::spawn_blocking(on_thread).await??
        });
    }

    /// Whether another process serves until this one does, whose place it is to take.
    pub fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Has this process never start again in place, for this reason.
    pub fn refuse_restart(&mut self, reason: &str) {
        self.restart = Err(Some(reason.to_owned()));
    }

    /// Lets this process start again in place (SIGUSR2), and if it was started for that, takes the place of its predecessor: waits until
    /// what was [followed](Self::wait_for) is known, has the services that were spawned take questions, and returns
    /// when the predecessor is gone. Without a predecessor it returns at once, and questions are taken from [`Launch::run`] on; if the
    /// manager of services has kept sockets, they are taken once there is something to answer with.
    ///
    /// What only one process may do has to begin after this: see [`Launch::alone`].
    ///
    /// # Errors
    ///
    /// Fails if there is nothing to answer with, or a part ended: then the predecessor serves on.
    pub async fn take_over(&mut self) -> Result<(), Failure> {
        if self.restart == Err(None) {
            self.restart = Ok(());
        }
        let Some(predecessor) = self.predecessor.clone() else {
            if self.is_awaited {
                self.await_views().await?;
            }
            self.alone.cancel();
            return Ok(());
        };
        let (settling, readiness) = (self.settling.clone(), self.readiness.clone());
        let known = async {
            for settling in &settling {
                settling.known().await;
            }
            let fresh = readiness.wait_until_ready_but_for(AFTERWARDS);
            let _ = tokio::time::timeout(FRESH_LIMIT, fresh).await;
            for settling in &settling {
                settling.settled().await;
            }
        };
        tokio::select! {
            ended = self.parts.watch() => return Err(ended.err().unwrap_or_else(|| "stopped while starting".into())),
            known = tokio::time::timeout(VIEW_LIMIT, known) => known.map_err(|_| {
                let reasons: Vec<_> = self.readiness.reasons().iter().map(|(part, why)| format!("{part}: {why}")).collect();
                format!("nothing to serve within {} s ({})", VIEW_LIMIT.as_secs(), reasons.join("; "))
            })?,
            // It ended by itself: the sockets are read by no other process.
            () = predecessor.gone() => {}
        }
        self.accepting.begin.cancel();
        // One that is gone need not know.
        let _ = predecessor.report_serving();
        info!(predecessor = predecessor.process(), "serving on the sockets of the process before this one");
        tokio::select! {
            ended = self.parts.watch() => return Err(ended.err().unwrap_or_else(|| "stopped while starting".into())),
            () = predecessor.gone() => {}
        }
        self.addresses.take_over(predecessor.addresses()).await;
        self.alone.cancel();
        Ok(())
    }

    /// Waits until there is something to answer with for clients that wait already, and takes their questions.
    async fn await_views(&mut self) -> Result<(), Failure> {
        let settling = self.settling.clone();
        let known = async {
            for settling in &settling {
                settling.known().await;
                settling.settled().await;
            }
        };
        tokio::select! {
            ended = self.parts.watch() => return Err(ended.err().unwrap_or_else(|| "stopped while starting".into())),
            // What cannot be answered then is answered as at any start.
            _ = tokio::time::timeout(KEPT_LIMIT, known) => {}
        }
        self.accepting.begin.cancel();
        info!("serving on the sockets that the manager of services has kept");
        Ok(())
    }

    /// Serves until the process is asked to stop, then waits for the parts within the drain limit.
    ///
    /// To be called when every socket is bound: from here on the process counts as running where the system wants to
    /// know that (see [`platform::service`]).
    ///
    /// # Errors
    ///
    /// Fails if stop events cannot be received, the pid file cannot be written, or a part ended that was not asked to.
    pub async fn run(mut self) -> Result<(), Failure> {
        let mut events = StopEvents::new()?;
        let program = std::mem::replace(&mut self.started_as, Err(std::io::ErrorKind::NotFound.into()));
        let mut restart = match std::mem::replace(&mut self.restart, Err(None)) {
            Ok(()) => Some(Restart::new(program, None, self.attempts.clone())?),
            Err(Some(refused)) => Some(Restart::new(program, Some(refused), self.attempts.clone())?),
            Err(None) => None,
        };
        self.listeners.settle();
        self.addresses.settle().await;
        let pid_file = self.options.pid_file.clone().map(PidFile::write).transpose()?;
        if !self.addresses.is_empty().await {
            let guard = self.addresses.clone().guard(self.options.clone(), self.readiness.clone(), self.stop.clone());
            self.spawn("the addresses", async move {
                guard.await;
                Ok(())
            });
        }
        if let Some(limit) = platform::service::watchdog() {
            let stop = self.stop.clone();
            self.spawn("the watchdog", async move {
                // A runtime that is only busy still gets here in half the time.
                let mut turns = tokio::time::interval(limit / 2);
                while stop.run_until_cancelled(turns.tick()).await.is_some() {
                    platform::service::alive();
                }
                Ok(())
            });
        }
        self.accepting.begin.cancel();
        platform::service::report(State::Running);
        let (handed, addresses, readiness) = (self.listeners.handed(), &self.addresses, &self.readiness);
        let succeeded = async {
            match &mut restart {
                Some(restart) => restart.succeeded(handed, async || addresses.own().await, readiness).await,
                None => std::future::pending().await,
            }
        };
        let (ended, succeeded) = tokio::select! {
            biased;
            event = events.requested() => {
                info!(event, "stopping");
                (Ok(()), false)
            }
            ended = self.parts.watch() => {
                info!(event = if ended.is_ok() { "request" } else { "end of a part" }, "stopping");
                (ended, false)
            }
            () = succeeded => (Ok(()), true),
        };
        // A successor that does not serve yet is ended with it.
        let successor = restart.filter(|_| succeeded);
        let passing = async {
            match &successor {
                Some(restart) => restart.pass_stops_on(&mut events).await,
                None => std::future::pending().await,
            }
        };
        let ending = async {
            if successor.is_some() {
                self.addresses.leave().await;
                self.accepting.end.cancel();
                tokio::time::sleep(LINGER).await;
            } else {
                platform::service::report(State::Stopping);
            }
            self.listeners.close();
            self.stop.cancel();
            let drained = tokio::time::timeout(DRAIN_LIMIT, self.parts.finish());
            if drained.await.is_err() {
                warn!(limit = ?DRAIN_LIMIT, "some requests did not end in time");
            }
            for following in self.following {
                following.stop().await;
            }
        };
        tokio::select! {
            () = ending => {}
            () = passing => {}
        }
        drop(self.held);
        drop(pid_file);
        if let Some(process) = successor.as_ref().and_then(Restart::successor) {
            platform::service::is_succeeded_by(process);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ProcessOptions,
    }

    #[test]
    fn the_end_of_a_part_ends_the_process_after_the_others_were_asked_to_stop() {
        let options = Line::parse_from(["test"]).options;
        let (asked, was_asked) = std::sync::mpsc::channel();
        let code = launch(&options, |mut launch| async move {
            let stop = launch.stop.clone();
            launch.spawn("dns", async move {
                stop.cancelled().await;
                let _ = asked.send(());
                Ok(())
            });
            launch.spawn("metadata", async { panic!("no listener any more") });
            let ended = launch.run().await;
            assert_eq!(ended.as_ref().unwrap_err().to_string(), "metadata panicked: no listener any more");
            ended
        });
        assert_eq!(code, ExitCode::from(CANNOT_RUN));
        was_asked.try_recv().unwrap();
    }
}
