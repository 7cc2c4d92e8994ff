//! How etcd is reached, as options of a command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::options::{Endpoint, EtcdOptions, LEASE, PREFIX};

/// Options of the command line for etcd, without its members.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct EtcdArgs {
    /// What all keys in etcd begin with; one for each cluster
    #[arg(long = "etcd-prefix", value_name = "PREFIX", env = "BERTH_ETCD_PREFIX", default_value = PREFIX)]
    pub prefix: String,

    /// Seconds that this host stays in the answers when it does not renew its lease
    #[arg(long = "etcd-lease", value_name = "SECONDS", env = "BERTH_ETCD_LEASE", default_value_t = LEASE.as_secs(), value_parser = clap::value_parser!(u64).range(3..=3600))]
    pub lease: u64,

    /// Certificates of the authority of etcd's members, PEM
    #[arg(long = "etcd-ca", value_name = "FILE", env = "BERTH_ETCD_CA")]
    pub ca: Option<PathBuf>,

    /// Our certificate for etcd, PEM
    #[arg(long = "etcd-cert", value_name = "FILE", env = "BERTH_ETCD_CERT", requires = "key")]
    pub cert: Option<PathBuf>,

    /// Its key, PEM
    #[arg(id = "key", long = "etcd-key", value_name = "FILE", env = "BERTH_ETCD_KEY", requires = "cert")]
    pub key: Option<PathBuf>,

    /// User of etcd
    #[arg(long = "etcd-user", value_name = "NAME", env = "BERTH_ETCD_USER", requires = "password_file")]
    pub user: Option<String>,

    /// File with the password of etcd's user
    #[arg(
        id = "password_file",
        long = "etcd-password-file",
        value_name = "FILE",
        env = "BERTH_ETCD_PASSWORD_FILE",
        requires = "user"
    )]
    pub password_file: Option<PathBuf>,

    /// Let passwords and tokens go over plain HTTP to and from other machines
    #[arg(long, env = "BERTH_INSECURE")]
    pub insecure: bool,
}

impl Default for EtcdArgs {
    fn default() -> Self {
        let (ca, cert, key, user, password_file) = (None, None, None, None, None);
        let (prefix, lease) = (PREFIX.to_owned(), LEASE.as_secs());
        Self { prefix, lease, ca, cert, key, user, password_file, insecure: false }
    }
}

impl EtcdArgs {
    /// The options with these members.
    pub fn with_members(&self, members: Vec<Endpoint>) -> EtcdOptions {
        EtcdOptions {
            prefix: self.prefix.as_str().into(),
            lease: Duration::from_secs(self.lease),
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            user: self.user.clone(),
            password_file: self.password_file.clone(),
            insecure: self.insecure,
            ..EtcdOptions::new(members)
        }
    }
}
