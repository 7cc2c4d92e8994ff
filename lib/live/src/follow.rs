//! Follows a cluster: its file, a metadata service, the engine of this host, or etcd.

use std::io;
use std::path::Path;
use std::sync::Arc;

use engine::{Certificates, Endpoint, EndpointError};
use etcd::{EtcdClient, OptionsError};
use model::Snapshot;
use source::{Following, Readiness, Reload, ReloadRequests, StateDir, Store, StoredSnapshot, state};
use thiserror::Error;
use tls::BadCertificate;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::assemble::{Assembly, Local};
use crate::config::{Engine, Options, Origin};
use crate::drain::Drain;
use crate::etcd::{Identity, Publishing};
use crate::host::HostDocument;
use crate::leave::LeaveRequests;
use crate::metrics::Metrics;
use crate::stored_host;

/// Batches of changes that may wait while snapshots are made; more wait where they come from.
const BATCHES_MAX: usize = 16;

/// Why a cluster cannot be followed.
#[derive(Debug, Error)]
pub enum FollowError {
    /// Two sources at once.
    #[error(
        "--docker goes alone, or with --source etcd: a file and another metadata service hold everything themselves"
    )]
    Both,
    /// The engine's address is wrong.
    #[error("cannot ask a Docker Engine: {0}")]
    Engine(#[from] EndpointError),
    /// The certificates for it are wrong.
    #[error("cannot use the certificates for the Docker Engine: {0}")]
    Certificates(#[from] BadCertificate),
    /// The options for etcd are wrong.
    #[error(transparent)]
    Etcd(#[from] OptionsError),
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// What following needs of its process.
#[derive(Debug)]
pub(crate) struct FollowContext {
    /// Where the last good state is stored, if anywhere.
    pub(crate) state: Option<StateDir>,
    /// Where it is reported why nothing is known.
    pub(crate) readiness: Arc<Readiness>,
    /// Asks this host to leave the others' answers for good.
    pub(crate) leaving: LeaveRequests,
    /// Whether units of stacks are to run elsewhere before.
    pub(crate) drain: Drain,
    /// What is counted.
    pub(crate) metrics: Metrics,
    /// Cancelled when no other process publishes in the place of this one.
    pub(crate) alone: CancellationToken,
}

/// Starts following `origin`, and what `options` say beside it; `certificates` is the folder of those for the engine.
///
/// Returns at once; a source that is away is tried again and again.
///
/// # Errors
///
/// Fails if the options are wrong.
pub(crate) fn follow(
    origin: Origin,
    options: &Options,
    certificates: Option<&Path>,
    context: FollowContext,
) -> Result<Following, FollowError> {
    let FollowContext { state, readiness, leaving, drain, metrics, alone } = context;
    let engine = match (&origin, &options.docker.engine) {
        (Origin::Source(_), Some(_)) => return Err(FollowError::Both),
        (Origin::Source(source), None) => return Ok(source::follow(source.clone(), state, readiness)?),
        (Origin::Docker(engine), _) | (Origin::Etcd(_), Some(engine)) => Some(engine),
        (Origin::Etcd(_), None) => None,
    };
    let snapshots = Arc::new(Store::new(Snapshot::default()));
    let mut tasks = JoinSet::new();
    let mut reloads = Vec::new();
    let mut local = None;
    if let Some(engine) = engine {
        let (endpoint, certificates) = reach(engine, certificates)?;
        let documents = Arc::new(Store::new(HostDocument::default()));
        local = Some(match &options.layer {
            None => documents.clone(),
            Some(layer) => {
                let laid = Arc::new(Store::new(HostDocument::default()));
                tasks.spawn(layer.follow(documents.clone(), laid.clone()));
                laid
            }
        });
        // Without etcd there is no other host.
        if let (Origin::Etcd(_), Some(documents)) = (&origin, &mut local) {
            let laid = Arc::new(Store::new(HostDocument::default()));
            tasks.spawn(drain.lay(std::mem::replace(documents, laid.clone()), laid));
        }
        let (reload, requests) = Reload::channel();
        reloads.push(reload);
        // Without etcd the snapshot on disk has all of it.
        let stored = state.clone().filter(|_| matches!(origin, Origin::Etcd(_)));
        tasks.spawn(crate::docker::follow(
            endpoint,
            certificates,
            options.host(state.as_ref().map(StateDir::folder)),
            documents.clone(),
            stored.clone(),
            readiness.clone(),
            requests,
        ));
        if let Some(stored) = stored {
            tasks.spawn(stored_host::keep(stored, documents));
        }
    }
    let mut batches = None;
    if let Origin::Etcd(members) = origin {
        let client = EtcdClient::new(options.etcd.with_members(members))?;
        if let Some(documents) = &local {
            let identity = Identity::open(state.as_ref())?;
            let exchange = options.exchange.clone();
            let publishing = Publishing { identity, leaving, metrics: metrics.clone(), exchange };
            if let Some(voting) = options.voting.clone() {
                tasks.spawn(once(
                    alone.clone(),
                    crate::etcd::vote(client.clone(), documents.clone(), voting, readiness.clone()),
                ));
            }
            let published = crate::etcd::publish(client.clone(), documents.clone(), publishing, readiness.clone());
            tasks.spawn(once(alone, published));
        }
        let (sender, receiver) = mpsc::channel(BATCHES_MAX);
        batches = Some(receiver);
        let (reload, requests) = Reload::channel();
        reloads.push(reload);
        tasks.spawn(crate::etcd::follow(client, state, sender, readiness, requests));
    } else if let Some(state) = state {
        // One host: what it says is all there is.
        tasks.spawn(StoredSnapshot { state: Some(state.clone()), snapshots: snapshots.clone() }.publish_after_grace());
        tasks.spawn(state::keep_snapshots(state, snapshots.clone()));
    }
    tasks.spawn(Assembly { local: local.map(Local::new), batches, snapshots: snapshots.clone(), metrics }.run());
    let (reload, requests) = Reload::channel();
    tasks.spawn(pass_on(requests, reloads));
    Ok(Following::new(snapshots, reload, tasks))
}

/// Does something once no other process of this host does it any more.
async fn once(alone: CancellationToken, work: impl Future<Output = ()>) {
    alone.cancelled().await;
    work.await;
}

/// The address of an engine, and what to show it.
///
/// Without a folder the certificates are where Docker's own client would look for them.
///
/// # Errors
///
/// Fails if there is no such address, or the certificates cannot be used.
pub fn reach(engine: &Engine, folder: Option<&Path>) -> Result<(Endpoint, Option<Certificates>), FollowError> {
    let (endpoint, usual) = match engine {
        Engine::Local => engine::from_environment()?,
        Engine::At(endpoint) => (endpoint.clone(), None),
    };
    match folder.or(usual.as_deref()) {
        Some(folder) => {
            let certificates = Certificates::read(folder)?;
            Ok((endpoint.with_certificates(), Some(certificates)))
        }
        None if matches!(endpoint, Endpoint::Tls(_)) => Err(EndpointError::NoCertificates(endpoint.to_string()).into()),
        None => Ok((endpoint, None)),
    }
}

/// Asks all sources to read the cluster again.
async fn pass_on(mut requests: ReloadRequests, reloads: Vec<Reload>) {
    while let Some(request) = requests.recv().await {
        let mut outcome = Ok(());
        for reload in &reloads {
            outcome = outcome.and(reload.request().await);
        }
        // The caller may have gone.
        let _ = request.send(outcome);
    }
}
