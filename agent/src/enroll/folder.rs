//! The folder of a cluster, which `agent cluster init` makes: where etcd is, its authority, the operator's credentials.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use etcd::EtcdOptions;
use process::Failure;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use super::names::host_name;
use super::outcome::named;

/// Files of the folder.
pub(crate) const CLUSTER: &str = "cluster.json";
pub(crate) const CA: &str = "ca.pem";
pub(crate) const CA_KEY: &str = "ca-key.pem";
pub(crate) const CERT: &str = "cert.pem";
pub(crate) const KEY: &str = "key.pem";
pub(crate) const PEER_CA: &str = "peer-ca.pem";
pub(crate) const PEER_CA_KEY: &str = "peer-ca-key.pem";
pub(crate) const PEER_CERT: &str = "peer-cert.pem";
pub(crate) const PEER_KEY: &str = "peer-key.pem";

/// The user that may do everything, and the one for the work of every day.
pub(crate) const ROOT: &str = "root";
pub(crate) const OPERATOR: &str = "operator";

/// Where etcd's members listen for clients, unless it is said; for each other one port above.
pub(crate) const CLIENT_PORT: u16 = 2379;

/// How long certificates are good. Nothing renews them, so it is as long as machines live.
pub(crate) const LIFE: Duration = Duration::days(3650);

/// By how much clocks may differ when a certificate is new.
pub(crate) const CLOCKS: Duration = Duration::hours(1);

/// Whose rights a command needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Keys that operators write.
    Operator,
    /// Users and roles too.
    Root,
}

/// A member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

impl FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected NAME=ADDRESS or NAME=ADDRESS:PORT, such as etcd1=192.0.2.1".to_owned();
        let (name, address) = text.split_once('=').ok_or_else(wrong)?;
        let name = host_name(name)?;
        let at = |(address, port)| Self { name: name.clone(), address, port };
        let plain = address.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|address| (address, CLIENT_PORT));
        let with_port = || address.parse::<std::net::SocketAddr>().ok().map(|at| (at.ip(), at.port()));
        let found = plain.or_else(with_port).filter(|(address, port)| !address.is_unspecified() && *port < u16::MAX);
        found.filter(|(_, port)| *port > 0).map(at).ok_or_else(wrong)
    }
}

impl Member {
    pub(crate) fn url(&self, above: u16) -> String {
        format!("https://{}", std::net::SocketAddr::new(self.address, self.port + above))
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "name": self.name, "address": self.address.to_string(), "port": self.port })
    }

    pub(crate) fn read(value: &Value) -> Option<Self> {
        Some(Self {
            name: value["name"].as_str()?.to_owned(),
            address: value["address"].as_str()?.parse().ok()?,
            port: u16::try_from(value["port"].as_u64()?).ok()?,
        })
    }
}

/// What the folder says of the cluster.
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) members: Vec<Member>,
}

impl Description {
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, Failure> {
        let path = folder.join(CLUSTER);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(named(&path)(error)),
        };
        let wrong = || format!("{}: it is not what `agent cluster init` writes", path.display());
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
        let text = |key: &str| value[key].as_str().map(str::to_owned).ok_or_else(wrong);
        let members = value["members"].as_array().into_iter().flatten().map(Member::read);
        let members: Vec<Member> = members.collect::<Option<_>>().ok_or_else(wrong)?;
        Ok(Some(Self { name: text("name")?, prefix: text("prefix")?, members }))
    }
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A member of etcd towards clients, or towards other members.
    Member,
    /// An operator or a host, as a client.
    Client,
}

/// A certificate of this authority.
pub(crate) fn signed(
    issuer: &Issuer<'_, KeyPair>,
    purpose: Purpose,
    name: &str,
    names: Vec<String>,
    key: &KeyPair,
) -> Result<String, Failure> {
    let mut params = params(name, names)?;
    params.use_authority_key_identifier_extension = true;
    params.extended_key_usages = match purpose {
        // etcd's gateway is a client of the member that it is in.
        Purpose::Member => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        Purpose::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    Ok(params.signed_by(key, issuer)?.pem())
}

pub(crate) fn params(name: &str, names: Vec<String>) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    // Not as a common name: etcd takes that for the name of a user.
    params.distinguished_name.push(DnType::OrganizationName, name);
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - CLOCKS, now + LIFE);
    Ok(params)
}

/// A new certificate for a host of the cluster, with its key, as PEM; the authority is in `folder`.
pub(crate) fn client_certificate(folder: &Path, host: &str) -> Result<String, Failure> {
    let description = Description::read(folder)?.ok_or_else(|| format!("{}: no such cluster", folder.display()))?;
    let path = folder.join(CA_KEY);
    let authority = KeyPair::from_pem(&std::fs::read_to_string(&path).map_err(named(&path))?)?;
    let issuer = Issuer::new(params(&description.name, Vec::new())?, authority);
    let key = KeyPair::generate()?;
    Ok(format!("{}{}", signed(&issuer, Purpose::Client, host, Vec::new(), &key)?, key.serialize_pem()))
}

/// Fills in what a cluster's folder says and no option does.
pub(crate) fn complete(folder: &Path, rights: Rights, options: &mut EtcdOptions) -> Result<(), Failure> {
    let path = folder.join(CLUSTER);
    let description = Description::read(folder)?
        .ok_or_else(|| format!("{} is not there: `agent cluster init` makes it", path.display()))?;
    if options.endpoints.is_empty() {
        let urls = description.members.iter().map(|member| member.url(0).parse());
        options.endpoints = urls.collect::<Result<_, _>>()?;
    }
    if *options.prefix == *etcd::PREFIX {
        options.prefix = description.prefix.as_str().into();
    }
    options.ca.get_or_insert_with(|| folder.join(CA));
    if options.cert.is_none() {
        options.cert = Some(folder.join(OPERATOR).join(CERT));
        options.key = Some(folder.join(OPERATOR).join(KEY));
    }
    if options.user.is_none() {
        let user = if rights == Rights::Root { ROOT } else { OPERATOR };
        options.user = Some(user.to_owned());
        options.password_file = Some(folder.join(format!("{user}.password")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_a_name_and_an_address() {
        for (text, expected) in [
            ("etcd1=192.0.2.1", Some("https://192.0.2.1:2379")),
            ("etcd1=192.0.2.1:4001", Some("https://192.0.2.1:4001")),
            ("e=2001:db8::1", Some("https://[2001:db8::1]:2379")),
            ("e=[2001:db8::1]:4001", Some("https://[2001:db8::1]:4001")),
            ("192.0.2.1", None),
            ("e=", None),
            ("=192.0.2.1", None),
            ("e=0.0.0.0", None),
            ("e=192.0.2.1:0", None),
        ] {
            assert_eq!(text.parse::<Member>().ok().map(|member| member.url(0)).as_deref(), expected, "{text}");
        }
    }
}
