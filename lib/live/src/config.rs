//! What a person can set.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use engine as docker;
use etcd::{EtcdArgs, EtcdOptions};
use model::Text;
use source::Source;

use crate::etcd::{PasswordExchange, Voting};
use crate::host::{DocumentLayer, HostOptions};

/// Word for the Docker Engine that this machine's own client would use.
const LOCAL_ENGINE: &str = "local";

/// Where a cluster is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file, or another metadata service.
    Source(Source),
    /// A Docker Engine.
    Docker(Engine),
    /// Members of an etcd.
    Etcd(Vec<etcd::Endpoint>),
}

/// A Docker Engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The one of `DOCKER_HOST`, otherwise the one of this machine.
    Local,
    /// The one there.
    At(docker::Endpoint),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(source) => source.fmt(f),
            Self::Docker(engine) => write!(f, "Docker Engine {engine}"),
            Self::Etcd(members) => {
                let members: Vec<_> = members.iter().map(ToString::to_string).collect();
                write!(f, "etcd {}", members.join(","))
            }
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str(LOCAL_ENGINE),
            Self::At(endpoint) => endpoint.fmt(f),
        }
    }
}

impl FromStr for Engine {
    type Err = docker::EndpointError;

    /// Parses `local` or what [`docker::Endpoint`] parses.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == LOCAL_ENGINE { Ok(Self::Local) } else { text.parse().map(Self::At) }
    }
}

impl FromStr for Origin {
    type Err = String;

    /// Parses `file:PATH`, `metadata:HOST[:PORT]`, `docker[:ENDPOINT]` or `etcd:URL[,URL...]`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("docker", "") => Ok(Self::Docker(Engine::Local)),
            ("docker", endpoint) => endpoint.parse().map(Self::Docker).map_err(|error| error.to_string()),
            ("etcd", members) if !members.is_empty() => EtcdOptions::parse(members)
                .map(|options| Self::Etcd(options.endpoints))
                .map_err(|error| error.to_string()),
            ("file" | "metadata", _) => text.parse().map(Self::Source),
            _ => Err(format!(
                "{text:?} is no source; expected file:PATH, metadata:HOST[:PORT], docker[:ENDPOINT] or etcd:URL[,URL...]"
            )),
        }
    }
}

/// Folder in the state directory that holds files with labels.
pub const LABEL_FILES: &str = "labels.d";

/// Options of the Docker and etcd sources.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Options {
    /// Where the cluster is described: `file:PATH`, `metadata:HOST[:PORT]`, `docker[:ENDPOINT]` or `etcd:URL[,URL...]`
    #[arg(long, env = "BERTH_SOURCE")]
    pub source: Option<Origin>,

    /// The engine that is followed.
    #[command(flatten)]
    pub docker: DockerOption,

    /// Name of this host, which no other host may have [default: the one that the engine has]
    #[arg(long = "host", value_name = "NAME", env = "BERTH_HOST")]
    pub host_name: Option<String>,

    /// A label of this host, beside those that its engine has; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", env = "BERTH_LABELS", value_delimiter = ',', value_parser = label)]
    pub labels: Vec<(Text, Text)>,

    /// Address under which other hosts reach this one
    #[arg(long, value_name = "ADDRESS", env = "BERTH_PUBLIC_IP", value_parser = public_ip)]
    pub public_ip: Option<IpAddr>,

    /// Name of the environment that this host belongs to [default: default]
    #[arg(long, value_name = "NAME", env = "BERTH_ENVIRONMENT")]
    pub environment: Option<String>,

    /// How etcd is spoken to.
    #[command(flatten, next_help_heading = "etcd")]
    pub etcd: EtcdArgs,

    /// How this host gets a new password for etcd, which is no option of a person's.
    #[arg(skip)]
    pub exchange: Option<Arc<dyn PasswordExchange>>,

    /// What is laid over this host's document before anything reads it, which is no option of a person's either.
    #[arg(skip)]
    pub layer: Option<Arc<dyn DocumentLayer>>,

    /// How this host votes on the health of containers, with etcd, if it does.
    #[arg(skip)]
    pub voting: Option<Voting>,
}

/// Which Docker Engine is asked.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct DockerOption {
    /// Report the containers of a Docker Engine: this machine's, or `=unix:///PATH`, `=npipe:////./pipe/NAME`,
    /// `=tcp://HOST:PORT`; with etcd as the source this host is published too
    #[arg(id = "docker", long = "docker", value_name = "ENDPOINT", env = "BERTH_DOCKER", num_args = 0..=1, require_equals = true, default_missing_value = LOCAL_ENGINE)]
    pub engine: Option<Engine>,
}

impl Options {
    /// What this host says of itself; `state` is the state directory, where files with labels are.
    pub(crate) fn host(&self, state: Option<&Path>) -> HostOptions {
        // The names that the predecessor's agent used.
        let old = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let labels = || old("CATTLE_HOST_LABELS").map(|text| query_labels(&text)).unwrap_or_default();
        let address = || old("CATTLE_AGENT_IP").and_then(|text| public_ip(&text).ok());
        HostOptions {
            name: self.host_name.as_deref().map(Text::from),
            labels: if self.labels.is_empty() { labels() } else { self.labels.clone() },
            label_files: state.map(|state| state.join(LABEL_FILES)),
            public_ip: self.public_ip.or_else(address),
            environment: self.environment.as_deref().map(Text::from),
        }
    }
}

/// An address of this host that other hosts may reach.
///
/// # Errors
///
/// Says what was expected.
pub fn public_ip(text: &str) -> Result<IpAddr, String> {
    const EXPECTED: &str = "expected the IP address under which other hosts reach this one, such as 192.0.2.11";
    let address: IpAddr = text.parse().map_err(|_| EXPECTED.to_owned())?;
    if model::is_host_address(address) {
        return Ok(address);
    }
    Err(format!("it is unspecified, loopback, link-local or multicast and leads to no other host; {EXPECTED}"))
}

fn label(text: &str) -> Result<(Text, Text), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err(format!("{text:?} is no label; expected KEY=VALUE")),
    }
}

/// Labels as a query string, `zone=a&disk=fast%20one`; what is no label is passed over.
fn query_labels(text: &str) -> Vec<(Text, Text)> {
    let plain = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_encoding::percent_decode_str(&spaced).decode_utf8().ok().map(|text| Text::from(&*text))
    };
    let pairs = text.split('&').filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((plain(key)?, plain(value)?))
    });
    pairs.filter(|(key, _)| !key.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_the_predecessor_are_a_query_string() {
        let labels = query_labels("zone=a&disk=fast%20one+x&flag&=y&bad%FF=1");
        let labels: Vec<_> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(labels, [("zone", "a"), ("disk", "fast one x"), ("flag", "")]);
    }

    #[test]
    fn sources_differ_by_their_first_word() {
        for (text, expected) in [
            ("file:a:b.yml", "file a:b.yml"),
            ("metadata:169.254.169.250", "metadata service http://169.254.169.250"),
            ("docker", "Docker Engine local"),
            ("docker:unix:///run/docker.sock", "Docker Engine unix:///run/docker.sock"),
            ("docker:npipe:////./pipe/docker_engine", "Docker Engine npipe:////./pipe/docker_engine"),
            ("etcd:http://127.0.0.1:2379,https://b:2379", "etcd http://127.0.0.1:2379,https://b:2379"),
            ("etcd:", "is no source"),
            ("docker:http://192.0.2.1:2375", "is not loopback"),
            ("consul:x", "is no source"),
            ("", "is no source"),
        ] {
            let origin = text.parse::<Origin>().map_or_else(|error| error, |origin| origin.to_string());
            assert!(origin.contains(expected), "{text}: {origin}");
        }
    }
}
