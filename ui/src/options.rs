//! The options of the page.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use process::Failure;
use rustls::ServerConfig;
use tls::Certificates;

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

/// With what the page is served over TLS.
pub type Tls = Arc<ServerConfig>;

/// The options of the page.
#[derive(Args, Clone, Debug)]
pub struct UiOptions {
    /// Address of the page to look at, or `none`; whoever opens it sees the labels and placements of the whole cluster, so an
    /// address that is not loopback needs --ui-tls-certs [default: 127.0.0.1:8115]
    #[arg(long = "ui", value_name = "ADDRESS", env = "BERTH_UI", value_parser = listen)]
    pub ui: Option<Listen>,

    /// File with a token: then the page opens only from the address that `agent ui --token-file FILE` makes, each time
    /// another one
    #[arg(long, value_name = "FILE", env = "BERTH_UI_TOKEN_FILE")]
    pub ui_token_file: Option<PathBuf>,

    /// Folder with cert.pem and key.pem, with which the page is served over HTTPS; with ca.pem too, only browsers that have a
    /// certificate of this authority see it
    #[arg(long, value_name = "DIR", env = "BERTH_UI_TLS_CERTS")]
    pub ui_tls_certs: Option<PathBuf>,

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

    /// The settings of TLS, if the page is served over it.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be used, or if others than people of this machine could see the page and nothing says who may.
    pub fn tls(&self) -> Result<Option<Tls>, Failure> {
        let elsewhere = match self.listen() {
            Listen::At(address) if !address.ip().to_canonical().is_loopback() => Some(address),
            _ => None,
        };
        let Some(folder) = &self.ui_tls_certs else {
            return match elsewhere {
                None => Ok(None),
                Some(address) => Err(format!(
                    "--ui {address}: others could read the page on the way; give --ui-tls-certs DIR, or serve it on loopback \
                     and use a tunnel: ssh -L 8115:127.0.0.1:8115 HOST"
                )
                .into()),
            };
        };
        let of_clients = folder.join("ca.pem").exists();
        if let Some(address) = elsewhere.filter(|_| !of_clients && self.ui_token_file.is_none()) {
            return Err(format!(
                "--ui {address}: everybody could open the page; put the ca.pem of its readers' certificates into {}, or give \
                 --ui-token-file FILE",
                folder.display()
            )
            .into());
        }
        let settings = if of_clients {
            Certificates::in_folder(folder)?.server()?
        } else {
            tls::server_of_anybody(&folder.join("cert.pem"), &folder.join("key.pem"))?
        };
        Ok(Some(Arc::new(settings)))
    }
}

/// What a person types to open the page that is served there.
pub fn url(listener: SocketAddr, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{listener}/ui/")
}

fn listen(text: &str) -> Result<Listen, String> {
    if text == "none" {
        return Ok(Listen::Nowhere);
    }
    Ok(Listen::At(process::listen_address(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_at_an_address_or_nowhere() {
        assert_eq!(listen("none"), Ok(Listen::Nowhere));
        assert_eq!(listen("127.0.0.1:8115"), Ok(Listen::At(DEFAULT)));
        assert!(listen("[::1]:8115").is_ok() && listen("nowhere").is_err());
    }

    #[test]
    fn elsewhere_than_on_loopback_the_page_needs_tls_and_a_reader_who_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let options = |address: &str, certificates: bool, token: bool| UiOptions {
            ui: Some(listen(address).unwrap()),
            ui_token_file: token.then(|| folder.path().join("token")),
            ui_tls_certs: certificates.then(|| folder.path().to_owned()),
            ui_host: Vec::new(),
            ui_hide_labels: Vec::new(),
        };
        let refused =
            |address, certificates, token| options(address, certificates, token).tls().unwrap_err().to_string();
        assert!(options("127.0.0.1:8115", false, false).tls().unwrap().is_none());
        assert!(options("none", false, false).tls().unwrap().is_none());
        for address in ["192.0.2.7:8115", "0.0.0.0:8115", ":8115", "[::]:8115"] {
            assert!(refused(address, false, true).contains("ssh -L"), "{address}");
            assert!(refused(address, true, false).contains("ca.pem"), "{address}");
            // Then it is the files themselves that are missing.
            assert!(refused(address, true, true).contains("cert.pem"), "{address}");
        }
        std::fs::write(folder.path().join("ca.pem"), "").unwrap();
        assert!(refused("192.0.2.7:8115", true, false).contains("no certificate"));
    }
}
