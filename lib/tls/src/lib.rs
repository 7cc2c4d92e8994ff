//! Mutual TLS: our certificate, and the authority of the other side's. Also TLS that proves only the server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme, WantsVerifier,
};
use thiserror::Error;
use webpki::EndEntityCert;

/// A certificate with its key, and the authority that the other side's must be of; the system's authorities do not count.
#[derive(Debug)]
pub struct Certificates {
    authority: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    certificate: PathBuf,
}

/// A file that is none of those, and why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {problem}", path = .path.display())]
pub struct BadCertificate {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

impl BadCertificate {
    fn new(path: &Path, problem: &impl ToString) -> Self {
        Self { path: path.to_owned(), problem: problem.to_string() }
    }
}

impl Certificates {
    /// `ca.pem`, `cert.pem` and `key.pem` of a folder, the names that Docker's own client uses.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be used; the error names it.
    pub fn in_folder(folder: &Path) -> Result<Self, BadCertificate> {
        Self::of_files(&folder.join("ca.pem"), &folder.join("cert.pem"), &folder.join("key.pem"))
    }

    /// The certificates of an authority, a certificate with what leads to its authority, and its key.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be used; the error names it.
    pub fn of_files(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, BadCertificate> {
        Ok(Self {
            authority: Arc::new(self::authority(authority)?),
            chain: certificates(certificate)?,
            key: private_key(key)?,
            certificate: certificate.to_owned(),
        })
    }

    /// The same from memory, as PEM; `origin` is where they came from, for errors.
    ///
    /// # Errors
    ///
    /// Fails if one of them cannot be used.
    pub fn of_pem(origin: &Path, authority: &str, certificate: &str, key: &str) -> Result<Self, BadCertificate> {
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| BadCertificate::new(origin, &error))?;
        Ok(Self {
            authority: Arc::new(roots(origin, certificates_of_pem(origin, authority)?)?),
            chain: certificates_of_pem(origin, certificate)?,
            key,
            certificate: origin.to_owned(),
        })
    }

    /// The settings of a client.
    ///
    /// # Errors
    ///
    /// Fails if certificate and key do not belong together.
    pub fn client(&self) -> Result<ClientConfig, BadCertificate> {
        let client = client_builder()
            .map_err(|error| BadCertificate::new(&self.certificate, &error))?
            .with_root_certificates(self.authority.clone());
        let client = client.with_client_auth_cert(self.chain.clone(), self.key.clone_key());
        client.map_err(|error| BadCertificate::new(&self.certificate, &error))
    }

    /// The settings of a server that speaks only with clients of the authority.
    ///
    /// # Errors
    ///
    /// Fails if certificate and key do not belong together.
    pub fn server(&self) -> Result<ServerConfig, BadCertificate> {
        let wrong = |error: &dyn ToString| BadCertificate::new(&self.certificate, &error.to_string());
        let clients = WebPkiClientVerifier::builder_with_provider(self.authority.clone(), provider());
        let server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_client_cert_verifier(clients.build().map_err(|error| wrong(&error))?);
        server.with_single_cert(self.chain.clone(), self.key.clone_key()).map_err(|error| wrong(&error))
    }
}

/// The settings of a server that speaks with any client; `certificate` is followed by those that lead to its authority.
///
/// # Errors
///
/// Fails if a file cannot be used, or certificate and key do not belong together.
pub fn server_of_anybody(certificate: &Path, key: &Path) -> Result<ServerConfig, BadCertificate> {
    let server = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let server = server.map_err(|error| BadCertificate::new(certificate, &error))?.with_no_client_auth();
    let server = server.with_single_cert(certificates(certificate)?, private_key(key)?);
    server.map_err(|error| BadCertificate::new(certificate, &error))
}

/// The settings of a client without a certificate of its own, which takes only servers of this authority.
///
/// # Errors
///
/// Fails if the file holds none.
pub fn client_without_certificate(authority: &Path) -> Result<ClientConfig, BadCertificate> {
    let client = client_builder().map_err(|error| BadCertificate::new(authority, &error))?;
    Ok(client.with_root_certificates(self::authority(authority)?).with_no_client_auth())
}

/// [`client_without_certificate`] with an authority in memory, as PEM; `origin` is where it came from, for errors.
///
/// # Errors
///
/// Fails if the text holds no certificate.
pub fn client_of_pem(origin: &Path, authority: &str) -> Result<ClientConfig, BadCertificate> {
    let client = client_builder().map_err(|error| BadCertificate::new(origin, &error))?;
    let roots = roots(origin, certificates_of_pem(origin, authority)?)?;
    Ok(client.with_root_certificates(roots).with_no_client_auth())
}

/// The certificates in a PEM text, as DER; `origin` is where it came from, for errors.
///
/// # Errors
///
/// Fails if it holds none.
pub fn certificates_of_pem(origin: &Path, text: &str) -> Result<Vec<CertificateDer<'static>>, BadCertificate> {
    let wrong = |error| BadCertificate::new(origin, &error);
    let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() { Err(BadCertificate::new(origin, &"no certificate in it")) } else { Ok(found) }
}

/// The settings of a client that takes no server: for connectors that want some although they will speak plain HTTP.
///
/// # Errors
///
/// Fails if this build has no version of TLS.
pub fn client_of_nobody() -> Result<ClientConfig, rustls::Error> {
    Ok(client_builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// The settings of a client that takes any server: for health checks, whose question is whether it answers, not who it is.
///
/// # Errors
///
/// Fails if this build has no version of TLS.
pub fn client_of_any_server() -> Result<ClientConfig, rustls::Error> {
    let client = client_builder()?;
    let verifier = Arc::new(AnyServer { provider: client.crypto_provider().clone() });
    Ok(client.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// What all clients have in common.
fn client_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()
}

/// Believes each certificate, but not that a server has a key which it does not have.
#[derive(Debug)]
struct AnyServer {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _revocation: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Makes connections with TLS where a URL says `https`, and without where it says `http`.
pub fn connector(tcp: HttpConnector, client: ClientConfig) -> HttpsConnector<HttpConnector> {
    HttpsConnectorBuilder::new().with_tls_config(client).https_or_http().enable_http1().wrap_connector(tcp)
}

/// The name in a certificate that was verified: the common name of its subject, else the first of its DNS names.
pub fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let common = common_name(certificate.subject()).filter(|name| !name.is_empty());
    common.map(ToOwned::to_owned).or_else(|| certificate.valid_dns_names().next().map(ToOwned::to_owned))
}

/// The DER of the object identifier of a common name, 2.5.4.3 (X.520, 6.2.2).
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The common name in a subject: a sequence of sets of pairs of a type and a value (RFC 5280, 4.1.2.4).
fn common_name(mut subject: &[u8]) -> Option<&str> {
    while let Some((mut set, rest)) = der_value(subject) {
        while let Some((pair, others)) = der_value(set) {
            let (kind, value) = der_value(pair)?;
            if kind == COMMON_NAME {
                return std::str::from_utf8(der_value(value)?.0).ok();
            }
            set = others;
        }
        subject = rest;
    }
    None
}

/// The content of the first value, and what follows it.
fn der_value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = match bytes.get(1)? {
        short @ ..=0x7f => (usize::from(*short), bytes.get(2..)?),
        0x81 => (usize::from(*bytes.get(2)?), bytes.get(3..)?),
        0x82 => (usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])), bytes.get(4..)?),
        // Longer than any name (RFC 5280, appendix A: 32768 at most).
        _ => return None,
    };
    rest.split_at_checked(length)
}

fn authority(path: &Path) -> Result<RootCertStore, BadCertificate> {
    roots(path, certificates(path)?)
}

fn roots(path: &Path, certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, BadCertificate> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| BadCertificate::new(path, &error))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadCertificate> {
    let wrong = |error| BadCertificate::new(path, &error);
    let found = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() { Err(BadCertificate::new(path, &"no certificate in it")) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, BadCertificate> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| BadCertificate::new(path, &error))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    #[test]
    fn a_certificate_is_called_by_its_common_name_or_its_first_dns_name() {
        let long = "n".repeat(300);
        for (common, names, expected) in [
            (Some("ci"), &["host.example.org"][..], Some("ci")),
            (Some(&*long), &[], Some(&*long)),
            (None, &["192.0.2.1", "host.example.org", "other.example.org"], Some("host.example.org")),
            (None, &["192.0.2.1"], None),
        ] {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, "example");
            if let Some(common) = common {
                params.distinguished_name.push(DnType::CommonName, common);
            }
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(name_of(certificate.der()).as_deref(), expected);
        }
        assert_eq!(common_name(&[0x31, 0x82, 0xff]), None);
    }
}
