//! What a scheduler, or a request, says of the host to choose.

/// Which of the hosts that fit is best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// The one with the smallest share in use.
    #[default]
    Spread,
    /// The one with the largest share in use.
    Binpack,
}

/// How hosts are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// By the share of each that is in use.
    #[default]
    Ratio,
    /// By how much is left of what is asked for, in the order of asking, as the predecessor did.
    Original,
}
