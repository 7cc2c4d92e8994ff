//! How the etcd is reached in which several schedulers keep one ledger.

use std::path::PathBuf;

use live::etcd::{EtcdClient, EtcdOptions, OptionsError};
use model::Text;

/// Options of a shared ledger.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct LedgerOptions {
    /// Members of the etcd that keeps what was promised, for any number of schedulers: http(s)://HOST:PORT, separated by commas.
    #[arg(
        id = "ledger_etcd",
        long = "ledger-etcd",
        env = "BERTH_SCHEDULER_LEDGER_ETCD",
        value_name = "URL[,URL...]",
        conflicts_with = "ledger"
    )]
    pub endpoints: Option<String>,

    /// What all keys of Berth in that etcd begin with [default: /berth/v1/].
    #[arg(
        id = "ledger_etcd_prefix",
        long = "ledger-etcd-prefix",
        env = "BERTH_SCHEDULER_LEDGER_ETCD_PREFIX",
        value_name = "PREFIX",
        requires = "ledger_etcd"
    )]
    pub prefix: Option<Text>,

    /// Certificates of who signed those of the members (PEM); needed for https.
    #[arg(
        id = "ledger_etcd_ca",
        long = "ledger-etcd-ca",
        env = "BERTH_SCHEDULER_LEDGER_ETCD_CA",
        value_name = "FILE",
        requires = "ledger_etcd"
    )]
    pub ca: Option<PathBuf>,

    /// Our certificate (PEM), when the members ask for one.
    #[arg(
        id = "ledger_etcd_cert",
        long = "ledger-etcd-cert",
        env = "BERTH_SCHEDULER_LEDGER_ETCD_CERT",
        value_name = "FILE",
        requires = "ledger_etcd"
    )]
    pub cert: Option<PathBuf>,

    /// The key of our certificate (PEM).
    #[arg(
        id = "ledger_etcd_key",
        long = "ledger-etcd-key",
        env = "BERTH_SCHEDULER_LEDGER_ETCD_KEY",
        value_name = "FILE",
        requires = "ledger_etcd"
    )]
    pub key: Option<PathBuf>,

    /// Name under which we sign in.
    #[arg(
        id = "ledger_etcd_user",
        long = "ledger-etcd-user",
        env = "BERTH_SCHEDULER_LEDGER_ETCD_USER",
        value_name = "NAME",
        requires = "ledger_etcd"
    )]
    pub user: Option<String>,

    /// File with the password, read each time we sign in.
    #[arg(
        id = "ledger_etcd_password_file",
        long = "ledger-etcd-password-file",
        env = "BERTH_SCHEDULER_LEDGER_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        requires = "ledger_etcd"
    )]
    pub password_file: Option<PathBuf>,
}

impl LedgerOptions {
    /// A client of that etcd, when there is one.
    ///
    /// # Errors
    ///
    /// What is wrong with the options.
    pub fn client(&self) -> Result<Option<EtcdClient>, OptionsError> {
        let Some(endpoints) = &self.endpoints else { return Ok(None) };
        let options = EtcdOptions::parse(endpoints)?;
        let prefix = self.prefix.clone().unwrap_or_else(|| options.prefix.clone());
        EtcdClient::new(EtcdOptions {
            prefix,
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            user: self.user.clone(),
            password_file: self.password_file.clone(),
            ..options
        })
        .map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_work_becomes_a_client() {
        let options = |endpoints: Option<&str>, prefix: Option<&str>| LedgerOptions {
            endpoints: endpoints.map(Into::into),
            prefix: prefix.map(Into::into),
            ..LedgerOptions::default()
        };
        for (endpoints, prefix, expected) in [
            (None, None, Ok(None)),
            (Some("http://192.0.2.1:2379"), None, Ok(Some("/berth/v1/"))),
            (Some("http://192.0.2.1:2379,http://192.0.2.2:2379"), Some("/x/"), Ok(Some("/x/"))),
            (Some("192.0.2.1"), None, Err("http(s)://HOST:PORT")),
            (Some("http://192.0.2.1:2379"), Some("x"), Err("end in a slash")),
        ] {
            match (options(endpoints, prefix).client(), expected) {
                (Ok(client), Ok(prefix)) => {
                    assert_eq!(client.map(|client| client.options().prefix.to_string()).as_deref(), prefix);
                }
                (Err(error), Err(problem)) => assert!(error.to_string().contains(problem), "{error}"),
                (got, expected) => panic!("{got:?}, expected {expected:?}"),
            }
        }
    }
}
