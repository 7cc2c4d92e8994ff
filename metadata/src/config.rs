//! What can be set about the metadata service.

use clap::ValueEnum;

/// Options of the metadata service; a flag wins over the environment, the environment over the default.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct Options {
    /// Believe the header X-Forwarded-For: its value, taken whole, is the address of the client.
    ///
    /// Only for a service behind a proxy that sets the header itself; otherwise any client can be any other one.
    #[arg(long, env = "BERTH_XFF")]
    pub xff: bool,

    /// What is answered until the first data arrive.
    #[arg(long, env = "BERTH_WHEN_EMPTY", value_enum, default_value_t, value_name = "ANSWER")]
    pub when_empty: WhenEmpty,

    /// Who sees the tokens of services, besides the containers of each under their self/service.
    #[arg(long, env = "BERTH_SERVICE_TOKENS", value_enum, default_value_t, value_name = "WHO")]
    pub service_tokens: ServiceTokens,
}

/// Who sees the token of a service, besides its own containers under their `self/service`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ServiceTokens {
    /// Whoever saw it in the recordings of the predecessor, unless it is a token that containers of this
    /// environment use: that of a service without any container, and those of other environments.
    #[default]
    Recorded,
    /// Nobody.
    Own,
}

/// What is answered until the first data arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WhenEmpty {
    /// 404, as the predecessor did: a client cannot tell an empty cluster from a service that has just started.
    #[default]
    NotFound,
    /// 503 with Retry-After: a client that understands it waits.
    Unavailable,
}
