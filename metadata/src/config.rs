//! What can be set about the metadata service.

use clap::ValueEnum;

/// Options of the metadata service; a flag wins over the environment, the environment over the default.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Options {
    /// Believe the header X-Forwarded-For: its value, taken whole, is the address of the client.
    ///
    /// Only for a service behind a proxy that sets the header itself; otherwise any client can be any other one.
    #[arg(long, env = "BERTH_XFF")]
    pub xff: bool,

    /// What is answered until the first data arrive.
    #[arg(long, env = "BERTH_WHEN_EMPTY", value_enum, default_value_t, value_name = "ANSWER")]
    pub when_empty: WhenEmpty,
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
