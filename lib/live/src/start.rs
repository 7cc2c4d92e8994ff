//! Following what the command line says, in the life of an executable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::Snapshot;
use process::{Failure, Launch, StateOptions};
use source::{Reload, Source, Store};
use tracing::info;

use crate::config::{Engine, Options, Origin};
use crate::drain::Drain;
use crate::follow::{FollowContext, follow};
use crate::leave::{self, Leave};
use crate::metrics::Metrics;

impl Options {
    /// What the options say, `file` when they say nothing; without that, an error that says what can be given.
    ///
    /// # Errors
    ///
    /// Fails if nothing was given.
    pub fn origin(&self, file: Option<PathBuf>) -> Result<Origin, Failure> {
        let given = self.source.clone().or_else(|| self.docker.engine.clone().map(Origin::Docker));
        let origin = given.or_else(|| file.map(|file| Origin::Source(Source::File(file))));
        origin.ok_or_else(|| "there is no source: give a cluster file, --docker or --source".into())
    }

    /// The engine that is followed with `origin`, if there is one.
    pub fn engine<'o>(&'o self, origin: &'o Origin) -> Option<&'o Engine> {
        match origin {
            Origin::Docker(engine) => Some(engine),
            Origin::Etcd(_) => self.docker.engine.as_ref(),
            Origin::Source(_) => None,
        }
    }

    /// Starts following `origin`; `certificates` is the folder of those for the engine.
    ///
    /// # Errors
    ///
    /// Fails if the options or the state directory cannot be used.
    pub fn follow(
        &self,
        origin: Origin,
        launch: &mut Launch,
        certificates: Option<&Path>,
        state: &StateOptions,
    ) -> Result<(Arc<Store<Snapshot>>, Reload), Failure> {
        info!(source = %origin, "following");
        let metrics = Metrics::default();
        metrics.register(&mut launch.registry);
        let live_clients = self.engine(&origin).is_some();
        let publishes = matches!((&origin, &self.docker.engine), (Origin::Etcd(_), Some(_)));
        let ((leave, leaving), drain) = (Leave::channel(), Drain::default());
        let (readiness, alone) = (launch.readiness.clone(), launch.alone.clone());
        let surroundings =
            FollowContext { state: state.open()?, readiness, leaving, drain: drain.clone(), metrics, alone };
        let folder = surroundings.state.as_ref().map(|state| state.folder().to_owned());
        let following = follow(origin, self, certificates, surroundings)?;
        let followed = launch.adopt(following);
        if live_clients {
            followed.0.set_live_clients(true);
        }
        // Only what publishes this host needs a token, so nothing else makes the file.
        let leave = publishes.then(|| (leave, process::token::own(folder.as_deref(), leave::TOKEN_FILE)));
        leave::add_page(launch, leave, drain, followed.0.clone());
        Ok(followed)
    }
}
