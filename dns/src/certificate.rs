//! The certificate for encrypted queries: read at the start, and again when its files change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use process::Failure;
use rustls::ServerConfig;
use source::Readiness;
use source::file::{Accepted, FollowedFile, Reader};
use source::format::FormatError;
use tls::BadCertificate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::metrics::Transport;

/// How long a client may take to agree on TLS.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// HTTP/2 as TLS names it (RFC 9113 section 3.2).
pub(crate) const HTTP_2: &[u8] = b"h2";

/// The certificate that is shown to clients. Dropping this stops following its files.
#[derive(Debug)]
pub(crate) struct Certificate {
    settings: Arc<ArcSwap<Settings>>,
    _files: FollowedFile,
}

/// TLS with this certificate, for each protocol above it.
#[derive(Debug)]
struct Settings {
    dot: Arc<ServerConfig>,
    doh: Arc<ServerConfig>,
}

impl Settings {
    /// Those with `cert.pem` and `key.pem`.
    fn read(certificate: &Path, key: &Path) -> Result<Self, BadCertificate> {
        let server = tls::server_of_anybody(certificate, key)?;
        let speaking = |protocols: &[&[u8]]| {
            let mut server = server.clone();
            server.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(server)
        };
        Ok(Self { dot: speaking(&[b"dot"]), doh: speaking(&[HTTP_2, b"http/1.1"]) })
    }
}

impl Certificate {
    /// Reads a certificate and its key, and follows both files; while they are wrong, the last good ones stay in use.
    ///
    /// # Errors
    ///
    /// Fails if they cannot be used at the start; the text names the file.
    pub(crate) fn follow(folder: &Path, readiness: Arc<Readiness>) -> Result<Self, Failure> {
        let [certificate, key]: [PathBuf; 2] = ["cert.pem", "key.pem"].map(|name| folder.join(name));
        let settings = Settings::read(&certificate, &key);
        let settings = settings.map_err(|error| format!("cannot answer over TLS: {error}"))?;
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let reader: Reader = {
            let (settings, key) = (settings.clone(), key);
            Box::new(move |certificate, _| {
                let read = Settings::read(certificate, &key).map_err(|error| FormatError::new(error.to_string()))?;
                settings.store(Arc::new(read));
                Ok(Accepted { defects: Vec::new(), beside: vec![key.clone()], changed: true })
            })
        };
        let files = FollowedFile::start(certificate, "certificate", readiness, reader, || {})?;
        Ok(Self { settings, _files: files })
    }

    /// Agrees on TLS with a client, within its time.
    ///
    /// # Errors
    ///
    /// Fails if the client wants something else, or takes too long, and when the service stops.
    pub(crate) async fn prove<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        transport: Transport,
        stop: &CancellationToken,
    ) -> io::Result<TlsStream<S>> {
        let settings = self.settings.load_full();
        let settings = if transport == Transport::Dot { &settings.dot } else { &settings.doh };
        let agreed = timeout(HANDSHAKE_MAX, TlsAcceptor::from(settings.clone()).accept(stream));
        match stop.run_until_cancelled(agreed).await {
            Some(Ok(agreed)) => agreed,
            Some(Err(_)) => Err(io::ErrorKind::TimedOut.into()),
            None => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use tokio::io::duplex;
    use tokio::time::Instant;
    use tokio_rustls::TlsConnector;

    use super::*;

    /// Makes a certificate that proves itself.
    fn make(folder: &Path) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_handshake_ends_and_holds_up_no_other() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path());
        let certificate = Certificate::follow(folder.path(), Arc::default()).unwrap();
        let client = tls::client_without_certificate(&folder.path().join("cert.pem")).unwrap();
        let stop = CancellationToken::new();
        let (slow, fast) = (duplex(4096), duplex(4096));
        let name = ServerName::try_from("localhost").unwrap();
        let begun = Instant::now();
        let (slow, fast, agreed) = tokio::join!(
            certificate.prove(slow.0, Transport::Dot, &stop),
            async {
                let proven = certificate.prove(fast.0, Transport::Doh, &stop).await;
                assert!(begun.elapsed() < HANDSHAKE_MAX);
                proven
            },
            TlsConnector::from(Arc::new(client)).connect(name, fast.1)
        );
        assert_eq!(slow.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed(), HANDSHAKE_MAX);
        assert!(fast.is_ok() && agreed.is_ok());
    }

    #[tokio::test]
    async fn a_certificate_that_cannot_be_used_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let refused = || Certificate::follow(folder.path(), Arc::default()).unwrap_err().to_string();
        assert!(refused().contains("cert.pem"), "{}", refused());
        make(folder.path());
        let cert = std::fs::read(folder.path().join("cert.pem")).unwrap();
        std::fs::write(folder.path().join("key.pem"), "no key").unwrap();
        assert!(refused().contains("key.pem"), "{}", refused());
        make(folder.path());
        std::fs::write(folder.path().join("cert.pem"), cert).unwrap();
        assert!(refused().contains("cert.pem") && refused().contains("KeyMismatch"), "{}", refused());
    }
}
