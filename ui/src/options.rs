//! The options of the page.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

/// Where the page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Nowhere,
    /// At this address.
    At(SocketAddr),
}

/// Where the page is unless something else is said.
pub const DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8115);

/// The options of the page.
#[derive(Args, Clone, Debug)]
pub struct UiOptions {
    /// Loopback address of the page to look at, or `none`; whoever opens it sees the labels and placements of the whole
    /// cluster [default: 127.0.0.1:8115]
    #[arg(long = "ui", value_name = "ADDRESS", env = "BERTH_UI", value_parser = listen)]
    pub ui: Option<Listen>,

    /// File with a token: then the page opens only from the address that `agent ui --token-file FILE` makes, each time
    /// another one
    #[arg(long, value_name = "FILE", env = "BERTH_UI_TOKEN_FILE")]
    pub ui_token_file: Option<PathBuf>,

    /// Names by which browsers may call the page, besides localhost and addresses
    #[arg(long, value_name = "NAME", env = "BERTH_UI_HOST", value_delimiter = ',')]
    pub ui_host: Vec<String>,

    /// Labels whose values are not shown
    #[arg(
        long,
        value_name = "PATTERN",
        env = "BERTH_UI_HIDE_LABELS",
        value_delimiter = ',',
        default_value = "*password*,*secret*,*token*,*key"
    )]
    pub ui_hide_labels: Vec<String>,
}

impl UiOptions {
    /// Where the page is.
    pub fn listen(&self) -> Listen {
        self.ui.unwrap_or(Listen::At(DEFAULT))
    }
}

fn listen(text: &str) -> Result<Listen, String> {
    if text == "none" {
        return Ok(Listen::Nowhere);
    }
    let address = process::listen_address(text)?;
    if address.ip().to_canonical().is_loopback() {
        return Ok(Listen::At(address));
    }
    Err("the page is served on loopback alone; from elsewhere, use a tunnel: ssh -L 8115:127.0.0.1:8115 HOST"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_on_loopback_or_nowhere() {
        assert_eq!(listen("none"), Ok(Listen::Nowhere));
        assert_eq!(listen("127.0.0.1:8115"), Ok(Listen::At(DEFAULT)));
        assert!(listen("0.0.0.0:8115").unwrap_err().contains("ssh -L"));
        assert!(listen("[::1]:8115").is_ok() && listen("192.0.2.7:80").is_err() && listen("nowhere").is_err());
    }
}
