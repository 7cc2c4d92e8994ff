//! What can be set about the metadata service.

use clap::ValueEnum;
use clap::builder::ArgPredicate;

use crate::Networks;

/// Requests per second of one address under --strict: a container that asks in a loop needs some hundred.
const STRICT_RATE: &str = "1000";

/// Options of the metadata service; a flag wins over the environment, the environment over the default.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub struct Options {
    /// Restrict clients as far as possible: --strict-host, --tokens required, --reject-forwarded (without a trusted
    /// proxy), --cors off, --service-tokens own, --client-rate 1000. Each of these still counts where it is given.
    #[arg(long, env = "BERTH_STRICT", conflicts_with = "xff")]
    pub strict: bool,

    /// Address or network of a proxy that is believed; may be given several times. It names its client in the last
    /// element of the last X-Forwarded-For, as a proxy that appends does.
    #[arg(long = "trusted-proxy", env = "BERTH_TRUSTED_PROXY", value_name = "CIDR", value_delimiter = ',')]
    pub trusted_proxies: Vec<Networks>,

    /// Believe the first X-Forwarded-For of every client, as a whole: any client can be any other one. Give
    /// --trusted-proxy instead.
    #[arg(long, env = "BERTH_XFF", conflicts_with = "trusted_proxies")]
    pub xff: bool,

    /// What is answered until the first data arrive.
    #[arg(long, env = "BERTH_WHEN_EMPTY", value_enum, default_value_t, value_name = "ANSWER")]
    pub when_empty: WhenEmpty,

    /// Who sees the tokens of services, besides the containers of each under their self/service.
    #[arg(
        long,
        env = "BERTH_SERVICE_TOKENS",
        value_enum,
        default_value_t,
        default_value_if("strict", "true", "own"),
        value_name = "WHO"
    )]
    pub service_tokens: ServiceTokens,

    /// Refuse requests that call the service neither by its address nor by a name of --host-name (403).
    ///
    /// Against web pages that make a browser of this host ask for them (DNS rebinding).
    #[arg(long, env = "BERTH_STRICT_HOST", default_value_if("strict", "true", "true"))]
    pub strict_host: bool,

    /// Name by which clients may call the service under --strict-host; may be given several times.
    ///
    /// Without any: rancher-metadata and rancher-metadata.rancher.internal. May be an address, for a service that is
    /// reached by another one than its own.
    #[arg(long = "host-name", env = "BERTH_HOST_NAME", value_name = "NAME", value_delimiter = ',')]
    pub host_names: Vec<String>,

    /// Refuse requests with X-Forwarded-For or Forwarded (403): a container that asks for itself has no proxy.
    #[arg(
        long,
        env = "BERTH_REJECT_FORWARDED",
        conflicts_with_all = ["xff", "trusted_proxies"],
        default_value_ifs = [("trusted_proxies", ArgPredicate::IsPresent, "false"), ("strict", "true".into(), "true")]
    )]
    pub reject_forwarded: bool,

    /// Whether clients need a session token, in the manner of EC2: PUT /latest/api/token gives it.
    #[arg(
        long,
        env = "BERTH_TOKENS",
        value_enum,
        default_value_t,
        default_value_if("strict", "true", "required"),
        value_name = "WHEN"
    )]
    pub tokens: Tokens,

    /// Whether scripts of any web page may read the answers (Access-Control-Allow-Origin).
    #[arg(
        long,
        env = "BERTH_CORS",
        value_enum,
        default_value_t,
        default_value_if("strict", "true", "off"),
        value_name = "SWITCH"
    )]
    pub cors: Cors,

    /// How much clients may take.
    #[command(flatten)]
    pub limits: Limits,
}

/// How much clients may take. The host itself (loopback and the service's own address) is not limited as a client.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq, Eq)]
#[group(skip)]
pub struct Limits {
    /// Most connections at once; three quarters of them may wait for changes. More are refused (503).
    #[arg(long, env = "BERTH_CONNECTIONS", value_name = "NUMBER", default_value_t = Limits::default().connections, value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    pub connections: u32,

    /// Most connections of one address (429); 0 is no limit.
    #[arg(long, env = "BERTH_CLIENT_CONNECTIONS", value_name = "NUMBER", default_value_t = Limits::default().client_connections)]
    pub client_connections: u32,

    /// Most requests of one address that wait for changes (429); 0 is no limit.
    #[arg(long, env = "BERTH_CLIENT_WAITERS", value_name = "NUMBER", default_value_t = Limits::default().client_waiters)]
    pub client_waiters: u32,

    /// Most requests per second of one address, twice as many at once (429); 0 is no limit.
    #[arg(long, env = "BERTH_CLIENT_RATE", value_name = "NUMBER", default_value_t = Limits::default().client_rate, default_value_if("strict", "true", STRICT_RATE))]
    pub client_rate: u32,

    /// How many seconds a connection may rest between two requests.
    #[arg(long, env = "BERTH_IDLE", value_name = "SECONDS", default_value_t = Limits::default().idle, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub idle: u32,
}

impl Default for Limits {
    /// Connections cost up to 16 KiB each, all together 256 MiB; a host runs some hundred containers. One container
    /// needs a handful of connections, a busy proxy in one some dozen.
    fn default() -> Self {
        Self { connections: 16_384, client_connections: 256, client_waiters: 256, client_rate: 0, idle: 60 }
    }
}

/// Whether clients need a session token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Tokens {
    /// There are none, as the predecessor had none.
    #[default]
    Off,
    /// Requests without one are answered and counted, so that it shows who does not use them yet; wrong ones are
    /// refused.
    Optional,
    /// Requests without one are refused (401). Berth's dns and scheduler have none when they run on their own.
    Required,
}

/// Whether scripts of any web page may read the answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Cors {
    /// They may, as with the predecessor.
    #[default]
    On,
    /// They may not.
    Off,
}

/// Who sees the token of a service, besides its own containers under their `self/service`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ServiceTokens {
    /// All clients, if the predecessor showed it and no container of this environment uses it: the token of a service
    /// without any container, and those of other environments.
    #[default]
    Recorded,
    /// No other client.
    Own,
}

/// What is answered until the first data arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WhenEmpty {
    /// 404, as the predecessor did: to a client an empty cluster looks like a service that has just started.
    #[default]
    NotFound,
    /// 503 with Retry-After: a client that understands it waits.
    Unavailable,
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn parsed(arguments: &[&str]) -> Options {
        let command = Options::augment_args(Command::new("metadata"));
        let matches = command.try_get_matches_from([&["metadata"], arguments].concat()).unwrap();
        Options::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn one_switch_restricts_all_and_what_is_given_counts() {
        let usual = parsed(&[]);
        assert!(usual.tokens == Tokens::Off && usual.cors == Cors::On && !usual.strict_host && !usual.reject_forwarded);
        assert!(usual.service_tokens == ServiceTokens::Recorded && usual.limits == Limits::default());
        let strict = parsed(&["--strict"]);
        assert!(strict.tokens == Tokens::Required && strict.cors == Cors::Off && strict.strict_host);
        assert!(strict.reject_forwarded && strict.service_tokens == ServiceTokens::Own);
        assert_eq!(strict.limits, Limits { client_rate: 1000, ..Limits::default() });
        let some = parsed(&["--strict", "--tokens", "optional", "--client-rate", "0", "--trusted-proxy", "192.0.2.1"]);
        assert!(some.tokens == Tokens::Optional && some.limits.client_rate == 0 && !some.reject_forwarded);
        assert!(some.cors == Cors::Off && some.strict_host);
    }
}
