//! `agent engine-proxy`: the Docker Engine's socket, for a process that does not have it.
//!
//! Access to an engine is access to its whole host. This process holds it, and passes on what Berth asks an engine for and
//! nothing else: the requests in [`verbs`], about containers that a scheduler started, within the policy, and of responses the
//! fields in [`shown`]. The process that is exposed to containers then runs without the engine's socket.

mod exchange;
mod places;
mod shown;
mod verbs;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use engine::Endpoint;
use live::config::{DockerOption, Engine};
use process::{Failure, Launch, ProcessOptions};
use scheduler::EnginePolicy;
use tracing::info;

use crate::companion::end_with_starter;
use crate::engine_proxy::exchange::Exchange;
use crate::engine_proxy::places::Places;

/// Pass on what Berth needs of a Docker Engine, and refuse everything else
///
/// Run this with access to the engine, and `agent up --docker=unix:///run/berth/engine.sock` as a user without it. What is
/// created has to be allowed by the policy; only containers that a scheduler started are started, stopped and removed;
/// of what the engine says, only the fields that Berth reads are passed on.
#[derive(Args)]
#[command(mut_args(process::hide_address_options))]
pub(crate) struct EngineProxy {
    /// The socket to listen on; the group of this process may use it
    #[arg(
        long,
        value_name = "unix:///PATH",
        default_value = "unix:///run/berth/engine.sock",
        env = "BERTH_ENGINE_PROXY"
    )]
    listen: Endpoint,

    /// Group that may use the socket, by name or number [default: that of this process]
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,

    /// The engine behind it [default: this machine's]
    #[command(flatten)]
    docker: DockerOption,

    /// What may be created and pulled, as `scheduler --policy` has it
    #[arg(long, value_name = "FILE", env = "BERTH_POLICY")]
    policy: Option<PathBuf>,

    /// Ends when standard input does, and takes its folder away: how `agent up --user` starts it
    #[arg(long, hide = true)]
    attached: bool,

    #[command(flatten)]
    pub(crate) process: ProcessOptions,
}

impl EngineProxy {
    /// Listens and passes on until asked to stop.
    ///
    /// # Errors
    ///
    /// Fails if the policy or the socket cannot be used, or the engine is not on this machine.
    pub(crate) async fn serve(self, mut launch: Launch) -> Result<(), Failure> {
        let Endpoint::Local(path) = &self.listen else {
            return Err(format!("--listen {}: expected unix:///PATH", self.listen).into());
        };
        let (engine, _) = live::follow::reach(&self.docker.engine.unwrap_or(Engine::Local), None)?;
        let Endpoint::Local(socket) = &engine else {
            return Err(
                format!("{engine} is not a socket of this machine, so there is nothing to keep from others").into()
            );
        };
        if socket == path {
            return Err(format!("{engine} is the engine's own socket: give --listen another one").into());
        }
        let policy = self.policy.map_or_else(
            || Ok(EnginePolicy::default()),
            |path| {
                let wrong =
                    |error: &dyn std::fmt::Display| format!("cannot use the policy in {}: {error}", path.display());
                let bytes = std::fs::read(&path).map_err(|error| wrong(&error))?;
                EnginePolicy::parse(&path, bytes).map_err(|error| wrong(&error))
            },
        )?;
        let listener = platform::engine::listen(path, self.group.as_deref())
            .map_err(|error| format!("cannot listen on {path}: {error}"))?;
        let policy = policy.with_socket(socket);
        let exchange = Arc::new(Exchange { socket: socket.clone(), policy });
        if self.attached {
            end_with_starter(launch.stop.clone());
        }
        info!(service = "engine-proxy", listen = %self.listen, %engine, "serving");
        let (stop, places) = (launch.stop.clone(), Arc::new(Places::default()));
        launch.spawn("the engine proxy", async move {
            stop.run_until_cancelled(async {
                loop {
                    let free = places.free().await;
                    let stream = listener.accept().await;
                    let (place, exchange) = (places.place(free), exchange.clone());
                    tokio::spawn(async move {
                        exchange.serve(stream, &place).await;
                    });
                    // What has arrived already is read before the next connection could end this one.
                    tokio::task::yield_now().await;
                }
            })
            .await;
            Ok(())
        });
        let outcome = launch.run().await;
        if self.attached {
            // The listener has removed its socket.
            let _ = Path::new(path).parent().map(std::fs::remove_dir);
        }
        outcome
    }
}
