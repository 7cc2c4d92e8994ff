//! What a person can set.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::Certificates;
use etcd::{Endpoint, EtcdArgs};
use source::format::FormatError;
use tls::BadCertificate;

use crate::audit::{self, Audit};
use crate::ledger::journal::JournalError;
use crate::place::strategy::{Order, Strategy};
use crate::policy::Policy;
use crate::replace::last_log::LastLogs;
use crate::secret::SecretsKey;
use crate::start::endpoint::Endpoints;
use crate::start::strangers::SWEEP_AFTER;
use crate::token::{self, NamedToken, TokenError};

/// Options of the scheduler.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct Options {
    /// How hosts are compared: by the share of each that is in use, or as the predecessor did, by how much is left.
    #[arg(long = "order", env = "BERTH_SCHEDULER_ORDER", value_enum, default_value_t, value_name = "ORDER")]
    pub order: Order,

    /// Which host is best when the request does not say: the one with the least in use, or with the most.
    #[arg(long = "strategy", env = "BERTH_SCHEDULER_STRATEGY", value_enum, default_value_t, value_name = "STRATEGY")]
    pub strategy: Strategy,

    /// File with the bearer token that every request must carry, or several, one a line, behind their names; needed to
    /// listen anywhere but on loopback. Without it, what changes something on loopback needs the scheduler's own token,
    /// which its commands find by themselves [own token: scheduler.token in the state directory].
    #[arg(long = "token-file", env = "BERTH_SCHEDULER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Name by which clients may call the API, besides addresses and localhost; may be given several times. Without a token
    /// or certificates, requests that call it anything else are refused, since they may be those of web pages.
    #[arg(long = "api-name", env = "BERTH_SCHEDULER_NAMES", value_name = "NAME", value_delimiter = ',')]
    pub api_names: Vec<String>,

    /// Folder with ca.pem, cert.pem and key.pem: answer only over TLS, and only clients with a certificate of that
    /// authority.
    #[arg(long = "tls-certs", env = "BERTH_SCHEDULER_TLS_CERTS", value_name = "DIR")]
    pub tls_certs: Option<PathBuf>,

    /// File that says what the bearers of tokens and certificates may have placed: stacks, images, folders of hosts,
    /// networks, hosts; read again when it changes. Without it, no folder of a host can be mounted, and neither a host's
    /// network nor that of a container of another request can be used.
    #[arg(long = "policy", env = "BERTH_SCHEDULER_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// File that gets a line for everything that was placed, started, taken over, removed and refused [default:
    /// audit.ndjson in the state directory, if there is one].
    #[arg(long = "audit-log", env = "BERTH_SCHEDULER_AUDIT_LOG", value_name = "FILE")]
    pub audit_log: Option<PathBuf>,

    /// Where the scheduler's own token is stored; `None` for the folder of the user's state.
    #[arg(skip)]
    pub state: Option<PathBuf>,

    /// File that stores what was promised, so that it is known after a crash [default: ledger.ndjson in the state
    /// directory].
    #[arg(long = "ledger", env = "BERTH_SCHEDULER_LEDGER", value_name = "FILE")]
    pub ledger: Option<PathBuf>,

    /// Members of the etcd that stores it instead, for any number of schedulers; the --etcd options say how they are
    /// spoken to.
    #[arg(
        long = "ledger-etcd",
        env = "BERTH_SCHEDULER_LEDGER_ETCD",
        value_name = "URL",
        value_delimiter = ',',
        conflicts_with = "ledger"
    )]
    pub ledger_etcd: Vec<Endpoint>,

    /// File with the key that seals the ledger in etcd, the same one for all of its schedulers. The first scheduler of a
    /// ledger makes it [default: ledger.key in the state directory].
    #[arg(long = "ledger-key", env = "BERTH_SCHEDULER_LEDGER_KEY", value_name = "FILE")]
    pub ledger_key: Option<PathBuf>,

    /// File with the key that seals the contents of secrets and configs in the ledger, the same one for all of its schedulers:
    /// 64 hexadecimal digits. Without it no contents are stored, and files that are on the hosts can be used.
    #[arg(long = "secrets-key", env = "BERTH_SCHEDULER_SECRETS_KEY", value_name = "FILE")]
    pub secrets_key: Option<PathBuf>,

    /// Remove containers that this ledger's schedulers started and of whose placements it has known nothing for this time.
    /// Without it they are only logged.
    #[arg(
        long = "sweep",
        env = "BERTH_SCHEDULER_SWEEP",
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = SWEEP_AFTER,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub sweep: Option<u32>,

    /// For how many minutes the ends of the logs of containers that were replaced stay in the state directory.
    #[arg(
        id = "replaced_logs",
        long = "replaced-logs",
        env = "BERTH_SCHEDULER_REPLACED_LOGS",
        value_name = "MINUTES",
        default_value_t = REPLACED_LOGS
    )]
    pub replaced_logs: u32,

    /// Replace no containers that fail, whatever their requests want.
    #[arg(id = "no_replace", long = "no-replace", env = "BERTH_SCHEDULER_NO_REPLACE")]
    pub no_replace: bool,

    /// Whether containers are placed on this host only: other schedulers have ledgers of their own.
    #[arg(skip)]
    pub own_host_only: bool,

    /// The engine of this host, which its agent follows.
    #[arg(skip)]
    pub own_engine: Option<engine::Endpoint>,

    /// How they are spoken to; an executable that follows etcd has these options anyway.
    #[arg(skip)]
    pub etcd: EtcdArgs,

    /// Map from hosts to their Docker engines, `*` for all others, as JSON or YAML; a host can also have the label
    /// io.berth.docker.endpoint.
    #[arg(long = "docker-engines", env = "BERTH_DOCKER_ENGINES", value_name = "FILE")]
    pub docker_engines: Option<PathBuf>,

    /// Folder with ca.pem, cert.pem and key.pem for engines at tcp://HOST:PORT.
    #[arg(long = "docker-certs", env = "BERTH_DOCKER_CERTS", value_name = "DIR")]
    pub docker_certs: Option<PathBuf>,

    /// Docker's configuration, a file or its folder, with credentials for private registries or helpers that have them;
    /// read whenever an image is pulled.
    #[arg(long = "registry-config", env = "BERTH_REGISTRY_CONFIG", value_name = "PATH")]
    pub registry_config: Option<PathBuf>,

    /// Where started containers ask for names, when their request does not say.
    #[arg(long = "container-dns", env = "BERTH_CONTAINER_DNS", value_name = "ADDRESS", value_delimiter = ',', default_values_t = [RESOLVER])]
    pub container_dns: Vec<IpAddr>,
}

/// Where Berth answers for names on every host.
const RESOLVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 169, 251));

/// How long the logs of containers that were replaced stay, in minutes.
const REPLACED_LOGS: u32 = 10;

/// Name of the folder with these logs in a state directory.
const REPLACED_FOLDER: &str = "replaced";

/// Name of the ledger's file in a state directory.
pub(crate) const LEDGER_FILE: &str = "ledger.ndjson";

/// Name of the file with its key in a state directory.
pub(crate) const KEY_FILE: &str = "ledger.key";

impl Options {
    /// The same with what is stored in this folder, when there is one: the own token, and audit log, ledger and the ledger's key
    /// unless these have a place of their own.
    #[must_use]
    pub fn keeping_state_in(mut self, folder: Option<&Path>) -> Self {
        let within = |name| folder.map(|folder| folder.join(name));
        self.state = folder.map(Path::to_owned);
        self.audit_log = self.audit_log.or_else(|| within(audit::FILE));
        if self.ledger_etcd.is_empty() {
            self.ledger = self.ledger.or_else(|| within(LEDGER_FILE));
        } else {
            self.ledger_key = self.ledger_key.or_else(|| within(KEY_FILE));
        }
        self
    }

    /// The same for one of many hosts that each have a scheduler: it places on all hosts only if it shares its ledger, or
    /// if its operator has given it a ledger.
    #[must_use]
    pub fn of_one_among_hosts(mut self) -> Self {
        self.own_host_only = self.ledger.is_none() && self.ledger_etcd.is_empty();
        self
    }

    /// Where the ledger's key is.
    ///
    /// # Errors
    ///
    /// Fails if it is not said, or other users can read or replace the file.
    pub(crate) fn key_file(&self) -> Result<PathBuf, OptionsError> {
        let path = self.ledger_key.clone().ok_or(OptionsError::NoKeyFile)?;
        platform::file::must_be_secret(&path).map_err(|error| OptionsError::KeyFile { error })?;
        Ok(path)
    }

    /// What seals the contents of files.
    ///
    /// # Errors
    ///
    /// Fails if the file is not for its owner alone, or holds something else.
    pub(crate) fn secrets_key(&self) -> Result<Option<SecretsKey>, OptionsError> {
        let Some(path) = &self.secrets_key else { return Ok(None) };
        let wrong = |error: String| OptionsError::SecretsKey { path: path.clone(), error };
        let read = platform::file::must_be_secret(path).and_then(|()| std::fs::read(path));
        let text = read.map_err(|error| wrong(error.to_string()))?;
        let no_key = || wrong("expected 64 hexadecimal digits, as `openssl rand -hex 32` makes".to_owned());
        SecretsKey::parse(&text).map(Some).ok_or_else(no_key)
    }

    /// Refuses to let the whole network place containers, or read tokens unless that is wanted (`insecure`).
    pub fn check(&self, listen: SocketAddr, insecure: bool) -> Result<(), OptionsError> {
        if listen.ip().to_canonical().is_loopback() || self.tls_certs.is_some() {
            return Ok(());
        }
        match self.token_file {
            None => Err(OptionsError::Exposed(listen)),
            Some(_) if insecure => Ok(()),
            Some(_) => Err(OptionsError::PlainTokens(listen)),
        }
    }

    /// The tokens of which every request must carry one.
    pub(crate) fn tokens(&self) -> Result<Vec<NamedToken>, OptionsError> {
        Ok(self.token_file.as_deref().map(token::read).transpose()?.unwrap_or_default())
    }

    /// The scheduler's own token and its file.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) fn own_token(&self) -> Result<(NamedToken, PathBuf), String> {
        token::own(self.state.as_deref())
    }

    /// Where the logs of containers that were replaced are.
    pub(crate) fn last_logs(&self) -> Option<LastLogs> {
        let folder = self.state.as_ref()?.join(REPLACED_FOLDER);
        Some(LastLogs::new(folder, Duration::from_mins(self.replaced_logs.into())))
    }

    /// What each subject may do.
    pub(crate) fn policy(&self) -> Result<Policy, OptionsError> {
        let Some(path) = &self.policy else { return Ok(Policy::default()) };
        let read = std::fs::read(path).map_err(|error| error.to_string());
        let policy = read.and_then(|bytes| policy_in(path, bytes).map_err(|error| error.to_string()));
        policy.map_err(|error| OptionsError::Policy { path: path.clone(), error })
    }

    /// Where it is noted who had what done.
    pub(crate) fn audit(&self) -> Result<Audit, OptionsError> {
        let Some(path) = &self.audit_log else { return Ok(Audit::default()) };
        Audit::open(path).map_err(|error| OptionsError::Audit { path: path.clone(), error })
    }

    /// By what engines over the network know us.
    pub(crate) fn engine_certificates(&self) -> Result<Option<Certificates>, OptionsError> {
        let folder = self.docker_certs.as_deref();
        folder.map(Certificates::read).transpose().map_err(OptionsError::Certificates)
    }

    /// What is said of engines besides the labels of hosts.
    pub(crate) fn endpoints(&self) -> Result<Endpoints, OptionsError> {
        let own = self.own_engine.as_ref();
        let certificates = self.docker_certs.is_some();
        let Some(path) = &self.docker_engines else { return Ok(Endpoints::of_labels(certificates).with_own(own)) };
        let wrong = |error: String| OptionsError::Engines { path: path.clone(), error };
        let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let text = source::format::text(bytes).map_err(|error| wrong(error.to_string()))?;
        let parsed = source::format::parse(&text).map_err(|error| wrong(error.to_string()))?;
        let endpoints = Endpoints::new(&parsed.value(model::scalar::core), certificates).map_err(wrong)?;
        Ok(endpoints.with_own(own))
    }
}

/// The policy in the contents of a file, which other users must not be able to change.
pub(crate) fn policy_in(path: &Path, bytes: Vec<u8>) -> Result<Policy, FormatError> {
    platform::file::must_be_unchangeable(path).map_err(|error| FormatError::new(error.to_string()))?;
    let parsed = source::format::parse_unique(&source::format::text(bytes)?)?;
    Policy::parse(&parsed.value(model::scalar::core)).map_err(|invalid| FormatError::new(invalid.to_string()))
}

/// Why the scheduler does not start with these options.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// Any client could place containers.
    #[error(
        "{0} is not loopback: any client that reaches it could place containers; listen on 127.0.0.1, or give --tls-certs or --token-file"
    )]
    Exposed(SocketAddr),
    /// Tokens would be sent in plain text.
    #[error(
        "{0} is not loopback, and without TLS everyone on the way can read the tokens of --token-file: give --tls-certs instead, or --insecure if the network is trusted"
    )]
    PlainTokens(SocketAddr),
    /// The map of engines is wrong.
    #[error("cannot use the engines in {path}: {error}")]
    Engines {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// The policy is wrong.
    #[error("cannot use the policy in {path}: {error}")]
    Policy {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// The audit log cannot be written.
    #[error("cannot write the audit log {path}: {error}")]
    Audit {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The certificates are wrong.
    #[error("cannot use the certificates for engines: {0}")]
    Certificates(BadCertificate),
    /// Our own certificate is wrong.
    #[error("cannot answer over TLS: {0}")]
    Certificate(#[from] BadCertificate),
    /// The ledger cannot be stored.
    #[error(transparent)]
    Ledger(#[from] JournalError),
    /// The key of the ledger has no place.
    #[error("--ledger-etcd needs a file with the ledger's key: give --state-dir, or --ledger-key")]
    NoKeyFile,
    /// Other users can read or replace the key.
    #[error("the ledger's key: {error}")]
    KeyFile {
        /// Why it is not used.
        error: std::io::Error,
    },
    /// There is no key for the contents of files.
    #[error("--secrets-key {path}: {error}")]
    SecretsKey {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// The etcd of the ledger cannot be spoken to.
    #[error("cannot store the ledger in etcd: {0}")]
    SharedLedger(#[from] etcd::OptionsError),
    /// The token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_needs_neither_token_nor_certificates_and_no_token_goes_in_plain_text_elsewhere() {
        let open = Options::default();
        let token = Options { token_file: Some("token".into()), ..Options::default() };
        let certificates = Options { tls_certs: Some("certs".into()), ..Options::default() };
        for (listen, fine) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("192.0.2.1:1", false),
            ("[::]:1", false),
        ] {
            let listen = listen.parse().unwrap();
            assert_eq!(open.check(listen, true).is_ok(), fine, "{listen}");
            // Tokens do not go over a network in plain text, unless that is wanted.
            assert_eq!(token.check(listen, false).is_ok(), fine, "{listen}");
            assert!(token.check(listen, true).is_ok() && certificates.check(listen, false).is_ok());
        }
        for (options, ways) in [(open, "--tls-certs or --token-file"), (token, "--tls-certs instead, or --insecure")] {
            let error = options.check("0.0.0.0:8254".parse().unwrap(), false).unwrap_err().to_string();
            assert!(error.contains(ways), "{error}");
        }
    }

    #[test]
    fn no_rules_of_a_policy_are_replaced_by_later_ones_of_the_same_subject() {
        let parse = |text: &str| policy_in(Path::new("missing"), text.into()).map_err(|error| error.to_string());
        let twice = "subjects:\n  token:ci: {stacks: [test]}\n  token:ci: {bind_sources: [/]}\n";
        assert!(parse(twice).is_err_and(|error| error.contains("line 3") && error.contains("token:ci")));
        assert!(parse(r#"{"default": {"images": [], "images": "*"}}"#).is_err_and(|error| error.contains("images")));
        assert!(parse(&twice.replace("ci: {b", "ops: {b")).is_ok());
    }

    #[test]
    fn one_of_many_hosts_places_on_all_of_them_only_with_a_ledger_that_was_given() {
        let etcd: Endpoint = "http://192.0.2.1:2379".parse().unwrap();
        for (ledger, members, own_host_only, file, key) in [
            (None, vec![], true, Some("state/ledger.ndjson"), None),
            (Some("given"), vec![], false, Some("given"), None),
            (None, vec![etcd], false, None, Some("state/ledger.key")),
        ] {
            let given = Options { ledger: ledger.map(Into::into), ledger_etcd: members, ..Options::default() };
            let options = given.of_one_among_hosts().keeping_state_in(Some(Path::new("state")));
            assert_eq!(options.own_host_only, own_host_only);
            assert_eq!(options.ledger.as_deref(), file.map(Path::new));
            assert_eq!(options.ledger_key.as_deref(), key.map(Path::new));
        }
        let options = Options::default().keeping_state_in(Some(Path::new("state")));
        assert!(!options.own_host_only && options.key_file().is_err());
    }
}
