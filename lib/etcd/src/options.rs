//! Where etcd is, and how clients authenticate.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use hyper::http::uri::Authority;
use model::Text;
use tls::{BadCertificate, Certificates};

/// What all keys begin with unless something else is asked for.
pub const PREFIX: &str = "/berth/v1/";

/// Behind the prefix: the ledger of the schedulers, which only they read.
///
/// It changes some ten times for each container that is placed, so followers do not watch it: all other keys of ours
/// stand before it, in one range.
pub const LEDGER: &str = "ledger/";

/// How long the keys of a host stay when it does not renew its lease.
///
/// Long enough for an agent that is restarted, and for members that elect a leader; short enough for clients that still
/// get the addresses of a dead host.
pub const LEASE: Duration = Duration::from_secs(15);

/// Shortest and longest lease; etcd itself allows none under its election timeout.
const LEASES: (Duration, Duration) = (Duration::from_secs(3), Duration::from_hours(1));

/// Longest prefix, in bytes: it is sent with every key.
const PREFIX_MAX: usize = 256;

/// Most members that are tried one after the other.
const ENDPOINTS_MAX: usize = 16;

/// How etcd is reached.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Its members; the next one is tried when one fails.
    pub endpoints: Vec<Endpoint>,
    /// What all our keys begin with; ends in a slash.
    pub prefix: Text,
    /// How long the keys of a host stay when it does not renew its lease.
    pub lease: Duration,
    /// Certificates of the authority of the members (PEM); needed for https.
    pub ca: Option<PathBuf>,
    /// Our certificate (PEM), when the members ask for one.
    pub cert: Option<PathBuf>,
    /// The key of our certificate (PEM).
    pub key: Option<PathBuf>,
    /// Name under which we sign in.
    pub user: Option<String>,
    /// File that holds the password, read at each time of signing in.
    ///
    /// One that is about to take its place may stand beside it, in a file of the same name and `.next`: it is tried when
    /// etcd refuses the first one, and replaces it once etcd takes it.
    pub password_file: Option<PathBuf>,
    /// The password itself, where it is in no file.
    pub password: Option<Secret>,
    /// Certificates that are in no file; they count instead of those in files.
    pub pem: Option<Pem>,
    /// Whether the password may go over plain HTTP to another machine.
    pub insecure: bool,
}

impl EtcdOptions {
    /// Members with the default prefix and lease, without certificates and users.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            prefix: PREFIX.into(),
            lease: LEASE,
            ca: None,
            cert: None,
            key: None,
            user: None,
            password_file: None,
            password: None,
            pem: None,
            insecure: false,
        }
    }

    /// Members as on a command line, `URL[,URL...]`.
    ///
    /// # Errors
    ///
    /// Fails if one of them is not a URL with a port.
    pub fn parse(endpoints: &str) -> Result<Self, OptionsError> {
        let endpoints: Vec<Endpoint> = endpoints.split(',').map(|url| url.trim().parse()).collect::<Result<_, _>>()?;
        Ok(Self::new(endpoints))
    }

    /// Fails if they are inconsistent. Nothing is sent.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        let wrong = |problem: &str| Err(OptionsError::Wrong(problem.to_owned()));
        if self.endpoints.is_empty() || self.endpoints.len() > ENDPOINTS_MAX {
            return wrong(&format!("between 1 and {ENDPOINTS_MAX} members of etcd are needed"));
        }
        if !self.prefix.ends_with('/') || self.prefix.len() > PREFIX_MAX {
            return wrong(&format!("the prefix {:?} has to end in a slash, within {PREFIX_MAX} bytes", self.prefix));
        }
        if self.lease < LEASES.0 || self.lease > LEASES.1 {
            let (least, most) = (LEASES.0.as_secs(), LEASES.1.as_secs());
            return wrong(&format!("a lease is between {least} s and {most} s"));
        }
        if self.cert.is_some() != self.key.is_some() {
            return wrong("--etcd-cert and --etcd-key are given together");
        }
        if self.user.is_some() != (self.password_file.is_some() || self.password.is_some()) {
            return wrong("--etcd-user and --etcd-password-file are given together");
        }
        if let Some(member) = self.plain_member().filter(|_| self.user.is_some() && !self.insecure) {
            return wrong(&format!(
                "the password would go to {member} unencrypted: give https members and --etcd-ca, or --insecure"
            ));
        }
        if self.ca.is_none() && self.pem.is_none() && self.endpoints.iter().any(|endpoint| endpoint.tls) {
            return wrong("https needs --etcd-ca, the certificates of the authority of the members");
        }
        if self.cert.is_some() && self.endpoints.iter().any(|endpoint| !endpoint.tls) {
            return wrong("--etcd-cert is shown over https only; a member is given as http://");
        }
        Ok(())
    }

    /// A member on another machine that is reached without TLS.
    fn plain_member(&self) -> Option<&Endpoint> {
        self.endpoints.iter().find(|member| !member.tls && !member.is_loopback())
    }

    /// What others can do, if these members are not protected from them.
    pub(crate) fn exposure(&self) -> Option<String> {
        if let Some(member) = self.plain_member() {
            let way = "give https members and --etcd-ca";
            return Some(format!("any machine on the way to {member} can read and change what is stored there; {way}"));
        }
        let open = self.user.is_none() && self.cert.is_none();
        let member = self.endpoints.iter().find(|member| open && !member.is_loopback())?;
        let way = "give it users (--etcd-user) or ask for certificates (--etcd-cert)";
        Some(format!("any machine that reaches {member} can change what is stored there; {way}"))
    }

    /// The certificates for mutual TLS; without any, no server is trusted.
    pub(crate) fn tls(&self) -> Result<rustls::ClientConfig, OptionsError> {
        let named = |wrong: BadCertificate| {
            let flags = [("--etcd-ca", &self.ca), ("--etcd-cert", &self.cert), ("--etcd-key", &self.key)];
            let flag = flags.into_iter().find(|(_, path)| path.as_ref() == Some(&wrong.path));
            OptionsError::Wrong(format!("{}{wrong}", flag.map(|(flag, _)| format!("{flag} ")).unwrap_or_default()))
        };
        if let Some(Pem { origin, authority, identity }) = &self.pem {
            let config = match identity {
                Some((certificate, Secret(key))) => {
                    Certificates::of_pem(origin, authority, certificate, key).and_then(|files| files.client())
                }
                None => tls::client_of_pem(origin, authority),
            };
            return config.map_err(named);
        }
        match (&self.ca, &self.cert, &self.key) {
            (Some(ca), Some(cert), Some(key)) => {
                Certificates::of_files(ca, cert, key).and_then(|files| files.client()).map_err(named)
            }
            (Some(ca), ..) => tls::client_without_certificate(ca).map_err(named),
            (None, ..) => tls::client_of_nobody().map_err(|error| OptionsError::Wrong(error.to_string())),
        }
    }
}

/// A text that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Certificates in memory, as PEM.
#[derive(Clone, Debug)]
pub struct Pem {
    /// Where they came from, for errors.
    pub origin: PathBuf,
    /// Those of the authority of the members.
    pub authority: String,
    /// Ours and its key, when the members ask for one.
    pub identity: Option<(String, Secret)>,
}

/// Why these options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// One of them is wrong.
    #[error("{0}")]
    Wrong(String),
}

/// Where a member of etcd listens for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it speaks TLS.
    pub tls: bool,
    authority: Authority,
}

impl Endpoint {
    /// Whether it is on this machine.
    fn is_loopback(&self) -> bool {
        let host = self.authority.host();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |address| address.to_canonical().is_loopback())
    }
}

impl FromStr for Endpoint {
    type Err = OptionsError;

    /// Parses `http://HOST:PORT` or `https://HOST:PORT`.
    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let wrong = || OptionsError::Wrong(format!("{text:?} is no address of etcd; expected http(s)://HOST:PORT"));
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(wrong()),
        };
        let authority: Authority = rest.strip_suffix('/').unwrap_or(rest).parse().map_err(|_| wrong())?;
        if authority.host().is_empty() || authority.port_u16().is_none() || authority.as_str().contains('@') {
            return Err(wrong());
        }
        Ok(Self { tls, authority })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_with_a_port() {
        for (text, parsed) in [
            ("http://192.0.2.1:2379", Some("http://192.0.2.1:2379")),
            ("https://etcd.example.org:2379/", Some("https://etcd.example.org:2379")),
            ("http://[2001:db8::1]:2379", Some("http://[2001:db8::1]:2379")),
            ("192.0.2.1:2379", None),
            ("http://192.0.2.1", None),
            ("http://user:secret@192.0.2.1:2379", None),
            ("http://192.0.2.1:2379/v3", None),
            ("ftp://192.0.2.1:2379", None),
            ("", None),
        ] {
            let got = text.parse::<Endpoint>().ok().map(|endpoint| endpoint.to_string());
            assert_eq!(got.as_deref(), parsed, "{text}");
        }
    }

    #[test]
    fn options_that_cannot_work_are_refused() {
        type Change = fn(&mut EtcdOptions);
        let good = || EtcdOptions::parse("http://192.0.2.1:2379,http://192.0.2.2:2379").unwrap();
        assert_eq!(good().check(), Ok(()));
        let wrong: [(&str, Change); 8] = [
            ("between 1 and", |options| options.endpoints.clear()),
            ("end in a slash", |options| options.prefix = "/berth".into()),
            ("a lease is between", |options| options.lease = Duration::from_secs(1)),
            ("--etcd-cert and --etcd-key", |options| options.cert = Some("cert.pem".into())),
            ("--etcd-password-file", |options| options.user = Some("berth".into())),
            ("the password would go to http://192.0.2.1:2379 unencrypted", |options| {
                (options.user, options.password_file) = (Some("berth".into()), Some("password".into()));
            }),
            ("https needs --etcd-ca", |options| options.endpoints[0].tls = true),
            ("shown over https only", |options| {
                (options.cert, options.key) = (Some("cert.pem".into()), Some("key.pem".into()));
            }),
        ];
        for (problem, change) in wrong {
            let mut options = good();
            change(&mut options);
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_password_goes_unencrypted_to_no_other_machine_unless_that_is_wanted() {
        for (members, insecure, fine) in [
            ("http://127.0.0.1:2379,http://[::1]:2379,http://localhost:2379", false, true),
            ("http://127.0.0.1:2379,http://192.0.2.1:2379", false, false),
            ("http://localhost.example.org:2379", false, false),
            ("http://192.0.2.1:2379", true, true),
        ] {
            let (user, password_file) = (Some("berth".into()), Some("password".into()));
            let options = EtcdOptions { user, password_file, insecure, ..EtcdOptions::parse(members).unwrap() };
            assert_eq!(options.check().is_ok(), fine, "{members}");
        }
    }

    #[test]
    fn what_is_open_to_others_is_noticed() {
        let exposure = |members: &str, ca: &str, user: Option<&str>| {
            let (ca, user) = (Some(ca.into()), user.map(str::to_owned));
            EtcdOptions { ca, user, ..EtcdOptions::parse(members).unwrap() }.exposure()
        };
        assert_eq!(exposure("http://127.0.0.1:2379,http://localhost:2379", "", None), None);
        assert_eq!(exposure("https://192.0.2.1:2379", "ca.pem", Some("berth")), None);
        assert!(exposure("http://192.0.2.1:2379", "", Some("berth")).unwrap().contains("on the way"));
        assert!(exposure("https://192.0.2.1:2379", "ca.pem", None).unwrap().contains("--etcd-user"));
    }
}
