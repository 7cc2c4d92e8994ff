//! `agent broker`: the capability `NET_ADMIN`, for the process that containers talk to, which does without
//! ([`platform::broker`]).

use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};

use clap::Args;
use platform::broker;
use platform::privilege::{self, Capability, User};
use process::Failure;
use tokio_util::sync::CancellationToken;

use crate::companion::{look_until, this_program};
use crate::enroll;

/// Changes addresses, redirects and filters for the process that has started it
#[derive(Args)]
pub(crate) struct Broker {
    /// The services whose addresses it may change, and which it may redirect
    #[arg(long = "service", value_name = "ADDRESS:PORT")]
    services: Vec<SocketAddr>,

    /// The numbers of the user that root becomes, and of its group
    #[arg(long = "user", value_name = "NUMBER", num_args = 2, value_names = ["USER", "GROUP"])]
    user: Vec<u32>,
}

impl Broker {
    pub(crate) fn run(&self) -> ExitCode {
        enroll::finish(self.serve().map(|()| String::new()))
    }

    fn serve(&self) -> Result<(), Failure> {
        match self.user[..] {
            [id, group] => privilege::become_user(User { id, group }, Capability::Network)?,
            _ => privilege::keep_network_alone()?,
        }
        Ok(broker::serve(&self.services)?)
    }
}

/// Starts a broker for this process, which still has the capability; root's becomes this user.
///
/// # Errors
///
/// Fails if it does not start.
pub(crate) fn start(services: &[SocketAddr], user: Option<User>) -> Result<(), Failure> {
    let mut command = this_program()?;
    command.arg("broker");
    for service in services {
        command.arg(format!("--service={service}"));
    }
    if let Some(User { id, group }) = user {
        command.arg("--user").arg(id.to_string()).arg(group.to_string());
    }
    command.stdout(Stdio::null());
    let started = match user {
        Some(_) => broker::start(command),
        None => privilege::starting_with_network(|| broker::start(command)),
    };
    started.map_err(|error| format!("the process with the capability NET_ADMIN: {error}").into())
}

/// Watches the broker of this process until `stop`.
///
/// # Errors
///
/// Fails when it ends before.
pub(crate) async fn watch(stop: CancellationToken) -> Result<(), Failure> {
    let look =
        || if broker::is_gone() { Err("the process with the capability NET_ADMIN ended".into()) } else { Ok(()) };
    look_until(stop, look).await
}
