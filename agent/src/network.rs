//! `agent network`: subnets for hosts, and the routes between them.

mod export;
mod keep;
mod look;
mod operators;
mod this_host;

use std::process::ExitCode;

use clap::Subcommand;
use process::launch;

pub(crate) use keep::{Keep, PART, keep};
pub(crate) use look::{Looked, look};
pub(crate) use this_host::NO_STATE;

/// Give each host a subnet for its containers, and route to those of all others
#[derive(clap::Args)]
pub(crate) struct Network {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the network of a cluster, or widen its range
    Init(operators::Init),
    /// List which host has which subnet
    Claims(operators::Claims),
    /// Give a host a subnet, as `agent invite` does
    Give(operators::Give),
    /// Give a host's subnet back: it is not given again for a day
    Release(operators::Release),
    /// Say that hosts whose claims are missing in etcd are gone for good, so that their routes go
    Accept(operators::Accept),
    /// Write the claims that this host has stored into an etcd that has lost them
    Restore(operators::Restore),
    /// Print what would be changed on this host
    Plan(this_host::Plan),
    /// Change what has to be changed on this host, once; `agent up --network` keeps it so
    Apply(this_host::Apply),
    /// Keep it so, as a service of its own
    Keep(Keep),
    /// Undo all that was changed on this host
    Remove(this_host::Remove),
    /// Print for each host whether there is a route to it, and if not, why
    Explain(this_host::Explain),
    /// Print the routes for another program: iproute2, bird, frr or powershell
    Export(this_host::ExportRoutes),
}

impl Network {
    pub(crate) fn run(self) -> ExitCode {
        match self.command {
            Command::Init(init) => init.run(),
            Command::Claims(claims) => claims.run(),
            Command::Give(give) => give.run(),
            Command::Release(release) => release.run(),
            Command::Accept(accept) => accept.run(),
            Command::Restore(restore) => restore.run(),
            Command::Plan(plan) => plan.run(),
            Command::Apply(apply) => apply.run(),
            Command::Keep(keep) => launch(&keep.process.clone(), |launch| keep.serve(launch)),
            Command::Remove(remove) => remove.run(),
            Command::Explain(explain) => explain.run(),
            Command::Export(export) => export.run(),
        }
    }
}
