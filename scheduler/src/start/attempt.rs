//! One attempt at an engine: the containers of a unit are created and started, or removed and seen to be gone.

use std::time::Duration;

use model::Text;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::body::{body, order};
use crate::docker::{DockerEngine, Found, Trouble};
use crate::ledger::record::Replica;
use crate::request::Request;
use crate::start::flight::{Flight, Pilot};
use crate::start::progress::{Progress, Teller, tell_of};
use crate::start::{PAUSE_MAX, PAUSE_MIN, STUCK_AFTER};

/// How often an engine is asked for the same before its host is given up; with the pauses between, under a second of
/// what an engine says at once.
const TRIES: u32 = 5;

/// How long an engine that has not answered may still do what it was asked: its name is watched, and its room kept.
const QUARANTINE: Duration = Duration::from_mins(1);

impl Pilot {
    /// Creates and starts the containers of a unit; gives the engine's ids.
    pub(super) async fn start(
        &self,
        request: &Request,
        replica: &Replica,
        tell: &Teller,
    ) -> Result<Vec<Text>, Stopped> {
        let mut ids: Vec<Text> = vec!["".into(); replica.members.len()];
        let stopped = |at: usize, trouble: Trouble, silent_since| Stopped {
            container: replica.members[at].name.clone(),
            trouble,
            silent_since,
        };
        let (docker, windows) = self.starter.docker(&replica.host).map_err(|trouble| stopped(0, trouble, None))?;
        for at in order(request) {
            let held = &replica.members[at];
            let say = |status: &str| tell_of(tell, Progress::new(replica, &held.name, status));
            say("creating");
            let mut silent_since = None;
            let mut pulled = false;
            let mut tries = Tries::new();
            let id = loop {
                let body = body(request, replica, at, &self.id, &self.starter.reach.resolver, windows);
                match self.create(&docker, &held.name, body, &mut silent_since).await {
                    Ok(id) => break id,
                    Err(Trouble::Absent(message)) if !pulled && message.to_lowercase().contains("image") => {
                        pulled = true;
                        let image = request.members[at].image.as_deref().unwrap_or_default();
                        say(&format!("pulling {image}"));
                        let progress = |info| tell_of(tell, Progress::of_pull(replica, &held.name, info));
                        let pull = self.starter.pull(&docker, image, &self.brought, progress);
                        pull.await.map_err(|trouble| stopped(at, trouble, silent_since))?;
                    }
                    Err(trouble) => tries.rest(trouble).await.map_err(|trouble| stopped(at, trouble, silent_since))?,
                }
            };
            say("starting");
            let mut tries = Tries::new();
            while let Err(trouble) = docker.start(&id).await {
                tries.rest(trouble).await.map_err(|trouble| stopped(at, trouble, silent_since))?;
            }
            say("started");
            ids[at] = id;
        }
        Ok(ids)
    }

    /// Creates a container, or finds that it was created before, by us.
    async fn create(
        &self,
        docker: &DockerEngine,
        name: &Text,
        body: bollard::models::ContainerCreateBody,
        silent_since: &mut Option<Instant>,
    ) -> Result<Text, Trouble> {
        match docker.create(name, body).await {
            Err(Trouble::Conflict(message)) => match docker.find(name).await {
                Ok(found) if self.is_ours(&found, name) => Ok(found.id),
                Ok(_) => Err(Trouble::Conflict(message)),
                // Gone since: it may be created now.
                Err(Trouble::Absent(_)) => Err(Trouble::Failed(message)),
                Err(trouble) => Err(trouble),
            },
            Err(Trouble::Silent(limit)) => {
                *silent_since = Some(Instant::now());
                Err(Trouble::Silent(limit))
            }
            other => other,
        }
    }

    fn is_ours(&self, found: &Found, name: &Text) -> bool {
        found.placement.as_ref() == Some(name) && found.request.as_ref() == Some(&self.id)
    }

    /// Removes the containers of a unit, and returns when they are seen to be gone.
    pub(super) async fn undo(&self, replica: &Replica, silent_since: Option<Instant>) {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let trouble = match self.starter.docker(&replica.host) {
                Ok((docker, _)) => self.remove(&docker, replica).await,
                Err(trouble) => Err(trouble),
            };
            let quiet = silent_since.is_none_or(|since| since.elapsed() >= QUARANTINE);
            let message = match trouble {
                Ok(()) if quiet => {
                    self.told.send_replace(Flight::Flying);
                    return;
                }
                Ok(()) => "it may yet do what it was asked".to_owned(),
                Err(trouble) => trouble.to_string(),
            };
            if begun.elapsed() >= STUCK_AFTER {
                let host = &replica.host_name;
                let text = format!("the engine of {host} has to tell what became of {}: {message}", self.id);
                if !matches!(&*self.told.borrow(), Flight::Stuck(_)) {
                    warn!(id = %self.id, %host, error = %message, "not undone yet, and its room is kept");
                }
                self.told.send_replace(Flight::Stuck(text));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn remove(&self, docker: &DockerEngine, replica: &Replica) -> Result<(), Trouble> {
        // Those first that use what others have.
        for held in replica.members.iter().rev() {
            match docker.find(&held.name).await {
                Ok(found) if self.is_ours(&found, &held.name) => docker.remove(&found.id).await?,
                // Somebody else's, or none.
                Ok(_) | Err(Trouble::Absent(_)) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(())
    }
}

/// Why a unit was not started.
pub(super) struct Stopped {
    pub(super) container: Text,
    pub(super) trouble: Trouble,
    /// When an engine was last asked to create something and did not answer.
    pub(super) silent_since: Option<Instant>,
}

/// How often something was asked already.
struct Tries {
    left: u32,
    pause: Duration,
}

impl Tries {
    fn new() -> Self {
        Self { left: TRIES - 1, pause: PAUSE_MIN }
    }

    /// Waits before the next try; gives the trouble back when another would not help.
    async fn rest(&mut self, trouble: Trouble) -> Result<(), Trouble> {
        if self.left == 0 || !trouble.may_pass() {
            return Err(trouble);
        }
        self.left -= 1;
        sleep(self.pause).await;
        self.pause *= 2;
        Ok(())
    }
}
