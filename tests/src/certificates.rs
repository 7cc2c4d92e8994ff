//! Certificate authorities of the tests' own.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// One that nobody knows yet.
    pub fn new(name: &str) -> Self {
        // Never called as one whom it signs: a certificate whose issuer has its own name passes for self-signed.
        let mut params = params(&format!("authority {name}"), Vec::new());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = key();
        let certificate = params.self_signed(&key).expect("a certificate can be made").pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// A new folder with `ca.pem`, `cert.pem` and `key.pem` for somebody on loopback, who may serve and ask.
    pub fn folder(&self, parent: &Path, name: &str) -> PathBuf {
        self.folder_at(parent, name, &["localhost", "127.0.0.1"])
    }

    /// The same for somebody at these names and addresses.
    pub fn folder_at(&self, parent: &Path, name: &str, addresses: &[&str]) -> PathBuf {
        self.folder_of(parent, name, params(name, addresses.iter().map(ToString::to_string).collect()))
    }

    /// The same for a client with a common name.
    pub fn folder_of_client(&self, parent: &Path, name: &str) -> PathBuf {
        let mut params = params(name, Vec::new());
        params.distinguished_name.push(DnType::CommonName, name);
        self.folder_of(parent, name, params)
    }

    fn folder_of(&self, parent: &Path, name: &str, mut params: CertificateParams) -> PathBuf {
        let folder = parent.join(name);
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate can be made");
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        for (file, text) in
            [("ca.pem", &self.certificate), ("cert.pem", &certificate.pem()), ("key.pem", &key.serialize_pem())]
        {
            std::fs::write(folder.join(file), text).expect("the folder is ours");
        }
        folder
    }
}

fn params(name: &str, others: Vec<String>) -> CertificateParams {
    let mut params = CertificateParams::new(others).expect("the names are names");
    params.distinguished_name = DistinguishedName::new();
    // Not as a common name: etcd takes that for the name of a user.
    params.distinguished_name.push(DnType::OrganizationName, name);
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key can be made")
}
