//! Connecting to a Docker Engine: its socket, its pipe, or mutual TLS.
//!
//! Nothing is sent by connecting; the version of the API is settled by the first request.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tls::BadCertificate;

use crate::endpoint::{Endpoint, EndpointError};

/// Limit of the client itself, above all that its users set.
pub(crate) const CLIENT_TIME: Duration = Duration::from_mins(2);

/// Silence after which the system asks whether the other end of a connection is still there. An engine is silent while
/// nothing happens, and a router in between drops such connections silently.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The certificates by which engines know us and we know them.
#[derive(Clone, Debug)]
pub struct Certificates(Arc<rustls::ClientConfig>);

impl Certificates {
    /// `ca.pem`, `cert.pem` and `key.pem` in a folder, as Docker's own client has them.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be used; the error names it.
    pub fn read(folder: &Path) -> Result<Self, BadCertificate> {
        // Only a certificate of this authority is accepted, not what the system trusts.
        Ok(Self(Arc::new(tls::Certificates::in_folder(folder)?.client()?)))
    }
}

/// Why there is no client for an engine.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// TLS without a client certificate.
    #[error("there are no certificates for {0}: give --docker-certs (a folder with ca.pem, cert.pem and key.pem)")]
    NoCertificates(Endpoint),
    /// The client would not.
    #[error(transparent)]
    Client(#[from] Error),
}

/// A client for the engine there; nothing is asked of it yet.
///
/// # Errors
///
/// Fails if there is no such socket, or no certificates where they are needed.
pub fn connect(endpoint: &Endpoint, certificates: Option<&Certificates>) -> Result<Docker, ConnectError> {
    match (endpoint, certificates) {
        (Endpoint::Local(path), _) => {
            let path: Arc<str> = path.as_str().into();
            // The host of the address means nothing: the socket or pipe is the other end.
            let connector = tower::service_fn(move |_: Uri| {
                let path = path.clone();
                Box::pin(async move { platform::engine::connect(&path).await.map(TokioIo::new) })
            });
            client(connector, "http://localhost".to_owned())
        }
        (Endpoint::Plain(address), _) => client(tcp(), format!("http://{address}")),
        (Endpoint::Tls(_), None) => Err(ConnectError::NoCertificates(endpoint.clone())),
        (Endpoint::Tls(address), Some(Certificates(config))) => {
            client(tls::connector(tcp(), (**config).clone()), format!("https://{address}"))
        }
    }
}

/// Longest wait for a connection: a host that is switched off says nothing.
const CONNECT_TIME: Duration = Duration::from_secs(5);

fn tcp() -> HttpConnector {
    let mut tcp = http_client::connector(CONNECT_TIME);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp
}

/// A client that reaches its engine by `connector`.
fn client<C: Connect + Clone + Send + Sync + 'static>(connector: C, address: String) -> Result<Docker, ConnectError> {
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let transport = move |request: BollardRequest| {
        let client = client.clone();
        async move { client.request(request).await.map_err(Error::from) }
    };
    let seconds = CLIENT_TIME.as_secs();
    Ok(Docker::connect_with_custom_transport(transport, Some(address), seconds, API_DEFAULT_VERSION)?)
}

/// The kind of the error of the system behind an error, when there is one.
pub fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.find_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind)
}

/// Where the engine listens when the command line does not say so, and the folder of its certificates: what
/// Docker's own client takes from `DOCKER_HOST`, `DOCKER_CERT_PATH` and `DOCKER_TLS_VERIFY`, or the system's default.
///
/// # Errors
///
/// Fails if `DOCKER_HOST` is no endpoint, or needs certificates that are not named.
pub fn from_environment() -> Result<(Endpoint, Option<PathBuf>), EndpointError> {
    of_variables(|name| std::env::var_os(name))
}

fn of_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<(Endpoint, Option<PathBuf>), EndpointError> {
    let filled = |name: &str| variable(name).filter(|value| !value.is_empty());
    let host = filled("DOCKER_HOST").map(|host| host.to_string_lossy().into_owned());
    let host = host.as_deref().unwrap_or(platform::engine::DEFAULT_ENDPOINT);
    // As Docker's client has it: a folder alone does not mean TLS, and TLS alone means its usual folder.
    let verify = filled("DOCKER_TLS_VERIFY").is_some();
    let usual = || {
        let home = filled("DOCKER_CONFIG").map(PathBuf::from);
        home.or_else(|| Some(PathBuf::from(filled("HOME").or_else(|| filled("USERPROFILE"))?).join(".docker")))
    };
    let certificates = if verify { filled("DOCKER_CERT_PATH").map(PathBuf::from).or_else(usual) } else { None };
    let endpoint = Endpoint::parse(host, certificates.is_some())?;
    let certificates = certificates.filter(|_| matches!(endpoint, Endpoint::Tls(_)));
    Ok((endpoint, certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_means_what_it_means_to_dockers_client() {
        let of = |variables: &'static [(&'static str, &'static str)]| {
            let found = of_variables(|name| {
                let (_, value) = variables.iter().find(|(own, _)| *own == name)?;
                Some(OsString::from(value))
            });
            found.map(|(endpoint, folder)| (endpoint.to_string(), folder.map(|folder| folder.display().to_string())))
        };
        let standard = (platform::engine::DEFAULT_ENDPOINT.to_owned(), None);
        assert_eq!(of(&[]), Ok(standard.clone()));
        assert_eq!(of(&[("DOCKER_HOST", ""), ("DOCKER_CERT_PATH", "/certs")]), Ok(standard));
        assert_eq!(of(&[("DOCKER_HOST", "tcp://127.0.0.1:1")]), Ok(("http://127.0.0.1:1".to_owned(), None)));
        let tls = &[("DOCKER_HOST", "tcp://192.0.2.1:2376"), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", "/c")];
        assert_eq!(of(tls), Ok(("https://192.0.2.1:2376".to_owned(), Some("/c".to_owned()))));
        let usual = of(&[("DOCKER_HOST", "tcp://192.0.2.1:2376"), ("DOCKER_TLS_VERIFY", "1"), ("HOME", "/home/me")]);
        assert_eq!(usual.unwrap().1, Some(PathBuf::from("/home/me").join(".docker").display().to_string()));
        assert!(of(&[("DOCKER_HOST", "tcp://192.0.2.1:2376")]).unwrap_err().to_string().contains("--docker-certs"));
    }

    #[test]
    fn certificates_that_are_not_there_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Certificates::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains("ca.pem"), "{error}");
    }
}
