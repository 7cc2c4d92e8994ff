//! What operators do about the network of a cluster, in etcd.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use ipnet::Ipv4Net;
use network::claim::{Owner, Via};
use network::config::{Allocate, Config, HOST_PREFIX};
use network::registry::{self, Listed};
use process::table::table;
use serde_json::json;

use crate::enroll::{Operator, Rights, host_name, now, written};

/// Most characters of a cell that is not the last one of its row.
pub(super) const CELL_MAX: usize = 64;

/// Make the network of a cluster, or widen its range
///
/// Each host gets a subnet of the range. It must be used nowhere else that containers talk to.
#[derive(clap::Args)]
pub(crate) struct Init {
    /// The addresses of all containers, such as 10.42.0.0/16
    #[arg(long, value_name = "CIDR", value_parser = network::config::network)]
    cidr: Ipv4Net,

    /// Length of the prefix of each host's subnet
    #[arg(long, value_name = "LENGTH", default_value_t = HOST_PREFIX)]
    host_prefix: u8,

    /// Parts of the range that no host gets
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = network::config::network)]
    reserved: Vec<Ipv4Net>,

    /// Who gives subnets to hosts
    #[arg(long, value_enum, default_value = "invited")]
    allocate: AllocateWord,

    #[command(flatten)]
    operator: Operator,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AllocateWord {
    /// Operators, with the invitation
    Invited,
    /// Each host takes one itself; then any host can take the subnet of any other
    #[value(name = "self")]
    Itself,
}

impl Init {
    pub(crate) fn run(&self) -> ExitCode {
        let allocate = match self.allocate {
            AllocateWord::Invited => Allocate::Invited,
            AllocateWord::Itself => Allocate::Itself,
        };
        self.operator.run(Rights::Operator, async |client| {
            let config = Config::new(self.cidr, self.host_prefix, self.reserved.clone(), allocate)?;
            let changed = registry::init(&client, &config).await?;
            let what = if changed { "" } else { " already" };
            Ok(format!(
                "the cluster{what} has the network {} with {} subnets of /{}\n",
                config.cidr,
                (0..config.count()).filter(|index| config.is_given(*index)).count(),
                config.host_prefix
            ))
        })
    }
}

/// List which host has which subnet
#[derive(clap::Args)]
pub(crate) struct Claims {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    operator: Operator,
}

impl Claims {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let listed = Listed::read(&client).await?;
            let claims = &listed.claims;
            let via = |via: &Via| match via {
                Via::Address(address) => address.to_string(),
                Via::Unknown => "-".to_owned(),
                Via::Disputed(why) => format!("ignored: {why}"),
            };
            let freed = claims.subnets.iter().filter_map(|(subnet, owner)| match owner {
                Owner::Freed { host, until } => Some((*subnet, host, *until)),
                Owner::Host(_) => None,
            });
            if self.json {
                let peers: Vec<_> = claims
                    .peers()
                    .map(|peer| json!({ "host": &*peer.host, "subnet": peer.subnet.to_string(), "via": via(&peer.via) }))
                    .collect();
                let freed: Vec<_> = freed
                    .map(|(subnet, host, until)| json!({ "subnet": subnet.to_string(), "host": &**host, "until": written(until) }))
                    .collect();
                let config = claims.config.as_ref().and_then(|config| config.as_ref().ok()).map(Config::to_json);
                return Ok(format!("{:#}\n", json!({ "network": config, "claims": peers, "freed": freed })));
            }
            let config = listed.config()?;
            let mut text = format!("network {} with subnets of /{}\n\n", config.cidr, config.host_prefix);
            let mut rows = vec![["HOST", "SUBNET", "VIA"].map(str::to_owned)];
            rows.extend(claims.peers().map(|peer| [peer.host.to_string(), peer.subnet.to_string(), via(&peer.via)]));
            rows.extend(freed.map(|(subnet, host, until)| {
                [format!("({host})"), subnet.to_string(), format!("given back, free after {}", written(until))]
            }));
            text += &table(&rows, CELL_MAX);
            for (key, wrong) in &claims.defects {
                let _ = writeln!(text, "\nthe key {key} is ignored: {wrong}");
            }
            Ok(text)
        })
    }
}

/// Give a host a subnet, as `agent invite` does
#[derive(clap::Args)]
pub(crate) struct Give {
    /// The host
    #[arg(value_parser = host_name)]
    host: String,

    #[command(flatten)]
    operator: Operator,
}

impl Give {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let subnet = registry::give(&client, &self.host, &written(now()), now()).await?;
            Ok(format!("{} has {subnet}\n", self.host))
        })
    }
}

/// Give a host's subnet back
///
/// The other hosts remove their routes to it at once. It is not given to another host for a day, in which caches and
/// connections that still lead to it end.
#[derive(clap::Args)]
pub(crate) struct Release {
    /// The host
    #[arg(value_parser = host_name)]
    host: String,

    #[command(flatten)]
    operator: Operator,
}

impl Release {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let (subnet, until) = registry::release(&client, &self.host, now()).await?;
            Ok(format!("{} has {subnet} no more; another host may get it after {}\n", self.host, written(until)))
        })
    }
}

/// Say that hosts whose claims are missing in etcd are gone for good
///
/// When many claims disappear at once, hosts keep their routes for a day, since etcd may have been emptied or restored. This says
/// that it is meant.
#[derive(clap::Args)]
pub(crate) struct Accept {
    #[command(flatten)]
    operator: Operator,
}

impl Accept {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let until = registry::accept(&client, now()).await?;
            Ok(format!("hosts remove the routes to subnets without a claim; this holds until {}\n", written(until)))
        })
    }
}

/// Write the claims that this host has stored into an etcd that has lost them
#[derive(clap::Args)]
pub(crate) struct Restore {
    /// The state directory of an agent that followed etcd before the loss
    #[arg(long, value_name = "DIR", env = "BERTH_STATE_DIR")]
    state_dir: PathBuf,

    #[command(flatten)]
    operator: Operator,
}

impl Restore {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let stored = live::etcd::stored_network_keys(&self.state_dir, &client.options().prefix)?;
            if stored.is_empty() {
                return Err(format!(
                    "{} holds no claims of this cluster: give the state directory of an agent that followed etcd",
                    self.state_dir.display()
                )
                .into());
            }
            let written = registry::restore(&client, &stored).await?;
            Ok(format!("wrote {written} of {} keys; the others are there\n", stored.len()))
        })
    }
}
