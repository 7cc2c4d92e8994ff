//! `agent cluster init`: the first etcd of a cluster, with certificates, users and roles.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use etcd::{Access, EtcdClient, EtcdError, EtcdOptions, Span};
use process::Failure;
use rcgen::{BasicConstraints, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::json;
use time::OffsetDateTime;

use super::folder::{
    CA, CA_KEY, CERT, CLIENT_PORT, CLUSTER, Description, KEY, LIFE, Member, OPERATOR, PEER_CA, PEER_CA_KEY, PEER_CERT,
    PEER_KEY, Purpose, ROOT, Rights, complete, params, signed,
};
use super::names::{INVITATIONS, NewUser, add_users};
use super::outcome::{finish, named, written};
use super::seal;

/// Most members: etcd's own advice is seven.
const MEMBERS_MAX: usize = 9;

/// Set up etcd for a cluster: certificates, users, roles
#[derive(clap::Args)]
pub(crate) struct Cluster {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Make the certificates and passwords of a new cluster, and print how to start etcd; then make etcd's users
    ///
    /// The first time it makes the folder: an authority, a folder for each member, certificates for the operator,
    /// passwords. It prints how to start each member. Typed again once etcd runs, it makes etcd's users and roles and has
    /// etcd ask for them. It may be typed any number of times: what is there stays. The folder holds all secrets of the
    /// cluster: keep it where operators are, not on hosts.
    Init(Init),
}

#[derive(clap::Args)]
struct Init {
    /// The folder that is made
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// A member of etcd and the address of its machine, with the port for clients unless it is 2379; three of them survive
    /// the loss of one [default: one on this machine, for trying]
    #[arg(long = "member", value_name = "NAME=ADDRESS[:PORT]")]
    members: Vec<Member>,

    /// What all keys of the cluster begin with
    #[arg(long = "etcd-prefix", value_name = "PREFIX", default_value = etcd::PREFIX)]
    prefix: String,
}

impl Cluster {
    pub(crate) fn run(&self) -> ExitCode {
        let Action::Init(init) = &self.action;
        finish(init.init())
    }
}

impl Init {
    fn init(&self) -> Result<String, Failure> {
        let folder = &self.folder;
        let known = Description::read(folder)?;
        let description = self.description(known.as_ref())?;
        let mut text = String::new();
        if known.is_none() {
            let members: Vec<_> = description.members.iter().map(Member::json).collect();
            let value = json!({ "name": description.name, "prefix": description.prefix, "members": members });
            platform::file::create_private_folder(folder).map_err(named(folder))?;
            // First: it has the authority's name, so that the next run can finish what this one does not.
            create(&folder.join(CLUSTER), format!("{value:#}\n").as_bytes())?;
            let _ = writeln!(text, "made {}: keep it secret, and keep a copy", folder.display());
        }
        self.files(&description)?;
        let mut options = EtcdOptions::new(Vec::new());
        complete(folder, Rights::Root, &mut options)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let users = runtime.block_on(async { users(&EtcdClient::new(options)?, folder).await });
        match users {
            Ok(done) => text += &done,
            Err(failure) if failure.downcast_ref::<EtcdError>().is_some_and(is_away) => {
                text += &start_lines(folder, &description.members);
            }
            Err(failure) => return Err(failure),
        }
        Ok(text)
    }

    fn description(&self, known: Option<&Description>) -> Result<Description, Failure> {
        if self.members.len() > MEMBERS_MAX {
            return Err(format!("etcd works with at most {MEMBERS_MAX} members").into());
        }
        let mut names: Vec<_> = self.members.iter().map(|member| &member.name).collect();
        names.sort();
        if let Some(twice) = names.windows(2).find(|two| two.first() == two.last()).and_then(|two| two.first()) {
            return Err(format!("two members are called {twice}").into());
        }
        if let Some(known) = known {
            if !self.members.is_empty() && self.members != known.members {
                let path = self.folder.join(CLUSTER);
                return Err(
                    format!("{} names other members; take another folder for another cluster", path.display()).into()
                );
            }
            let (name, prefix, members) = (known.name.clone(), known.prefix.clone(), known.members.clone());
            return Ok(Description { name, prefix, members });
        }
        let one = || Member { name: "etcd1".into(), address: Ipv4Addr::LOCALHOST.into(), port: CLIENT_PORT };
        let members = if self.members.is_empty() { vec![one()] } else { self.members.clone() };
        let name = format!("Berth cluster {}", model::hex(&seal::random::<4>()?));
        Ok(Description { name, prefix: self.prefix.clone(), members })
    }

    /// Makes the files that are not there yet.
    fn files(&self, description: &Description) -> Result<(), Failure> {
        let folder = &self.folder;
        let clients = authority(&description.name, folder, CA, CA_KEY)?;
        // Who is let in as a member writes anything in the name of any user: no host has a certificate of this authority.
        let peers = authority(&format!("{} members", description.name), folder, PEER_CA, PEER_CA_KEY)?;
        let local = ["localhost", "127.0.0.1"].map(str::to_owned);
        for member in &description.members {
            let mut names = vec![member.address.to_string()];
            names.extend(local.iter().filter(|name| **name != names[0]).cloned().collect::<Vec<_>>());
            let within = folder.join("members").join(&member.name);
            certificate(&clients, Purpose::Member, &within, [CERT, KEY], &member.name, names.clone())?;
            certificate(&peers, Purpose::Member, &within, [PEER_CERT, PEER_KEY], &member.name, names)?;
            for name in [CA, PEER_CA] {
                let (own, copy) = (folder.join(name), within.join(name));
                if !copy.exists() {
                    create(&copy, &std::fs::read(&own).map_err(named(&own))?)?;
                }
            }
        }
        certificate(&clients, Purpose::Client, &folder.join(OPERATOR), [CERT, KEY], OPERATOR, Vec::new())?;
        for user in [ROOT, OPERATOR] {
            let path = folder.join(format!("{user}.password"));
            if !path.exists() {
                create(&path, format!("{}\n", seal::password()?).as_bytes())?;
            }
        }
        Ok(())
    }
}

/// The authority of this name with its certificate and key in these files, made unless they are there.
fn authority(name: &str, folder: &Path, cert: &str, key_file: &str) -> Result<Issuer<'static, KeyPair>, Failure> {
    let (key, _) = key(&folder.join(key_file))?;
    let mut params = params(name, Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let path = folder.join(cert);
    if !path.exists() {
        create(&path, params.self_signed(&key)?.pem().as_bytes())?;
    }
    Ok(Issuer::new(params, key))
}

/// The key in a file, made where there is none; and whether it was made.
fn key(path: &Path) -> Result<(KeyPair, bool), Failure> {
    if path.exists() {
        return Ok((KeyPair::from_pem(&std::fs::read_to_string(path).map_err(named(path))?)?, false));
    }
    let key = KeyPair::generate()?;
    create(path, key.serialize_pem().as_bytes())?;
    Ok((key, true))
}

/// Makes a folder with a certificate for these names and its key, in these files, unless they are there.
fn certificate(
    issuer: &Issuer<'_, KeyPair>,
    purpose: Purpose,
    folder: &Path,
    [cert, key_file]: [&str; 2],
    name: &str,
    names: Vec<String>,
) -> Result<(), Failure> {
    platform::file::create_private_folder(folder).map_err(named(folder))?;
    let (key, is_new) = key(&folder.join(key_file))?;
    let path = folder.join(cert);
    if is_new || !path.exists() {
        create(&path, signed(issuer, purpose, name, names, &key)?.as_bytes())?;
    }
    Ok(())
}

/// Makes etcd's users and roles, and has etcd ask for them.
async fn users(client: &EtcdClient, folder: &Path) -> Result<String, Failure> {
    let asked = client.has_users().await?;
    let password = |user: &str| {
        let path = folder.join(format!("{user}.password"));
        std::fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(named(&path))
    };
    let prefix = client.options().prefix.clone();
    let mut permits = vec![(Access::Read, Span::of_prefix(prefix.as_bytes()))];
    for list in ["documents/", "intents/", "config/", "claims/"] {
        permits.push((Access::ReadWrite, Span::of_prefix(format!("{prefix}{list}").as_bytes())));
    }
    permits.push((Access::ReadWrite, Span::of_key(format!("{prefix}empty").as_bytes())));
    permits.push((Access::Read, Span::of_prefix(INVITATIONS.as_bytes())));
    let operator = NewUser { name: OPERATOR.to_owned(), password: password(OPERATOR)?, permits };
    if asked {
        add_users(client, vec![operator], |_, _, _| {}).await?;
        return Ok(format!("etcd asks for users; {ROOT} and {OPERATOR} are there. {}", next(folder)));
    }
    let root = NewUser { name: ROOT.to_owned(), password: password(ROOT)?, permits: Vec::new() };
    add_users(client, vec![operator, root], |_, _, _| {}).await?;
    client.enable_users().await?;
    Ok(format!(
        "etcd asks for users from now on: {ROOT} and {OPERATOR}, their passwords are in {}. {}",
        folder.display(),
        next(folder)
    ))
}

/// What to type next.
fn next(folder: &Path) -> String {
    format!("Next: agent invite HOST --cluster {}\n", folder.display())
}

fn is_away(error: &EtcdError) -> bool {
    matches!(error, EtcdError::Unavailable(_) | EtcdError::Lost(_))
}

/// How each member is started.
fn start_lines(folder: &Path, members: &[Member]) -> String {
    // It may be started elsewhere.
    let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let cluster: Vec<_> = members.iter().map(|member| format!("{}={}", member.name, member.url(1))).collect();
    let cluster = cluster.join(",");
    let own = members.len() == 1 && members[0].address.is_loopback();
    let mut text = String::from("etcd does not answer yet. ");
    text += if own {
        "Start it, and type this command again:\n"
    } else {
        "Copy each member's folder to its machine, as /etc/berth/etcd; start the members there; and type this command \
         again:\n"
    };
    for member in members {
        let at = folder.join("members").join(&member.name);
        let (files, data) = if own {
            (at.display().to_string(), folder.join("data").display().to_string())
        } else {
            let _ = writeln!(text, "\n# {} ({}), with the files of {}", member.name, member.address, at.display());
            ("/etc/berth/etcd".to_owned(), "/var/lib/etcd".to_owned())
        };
        let (client, peer) = (member.url(0), member.url(1));
        let here = format!("https://127.0.0.1:{}", member.port);
        let listen = if member.address.is_ipv4() && !member.address.is_loopback() && !member.address.is_unspecified() {
            format!("{client},{here}")
        } else {
            client.clone()
        };
        let _ = write!(
            text,
            "\netcd --name {} --data-dir {data} \\\n  --listen-client-urls {listen} --advertise-client-urls {client} \\\n  \
             --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} \\\n  --initial-cluster {cluster} \
             --initial-cluster-state new \\\n  --cert-file {files}/{CERT} --key-file {files}/{KEY} \\\n  \
             --trusted-ca-file {files}/{CA} --client-cert-auth \\\n  \
             --peer-cert-file {files}/{PEER_CERT} --peer-key-file {files}/{PEER_KEY} \\\n  \
             --peer-trusted-ca-file {files}/{PEER_CA} --peer-client-cert-auth \\\n  --bcrypt-cost 4 --auto-compaction-mode periodic --auto-compaction-retention 1h \\\n  --quota-backend-bytes 8589934592\n",
            member.name
        );
    }
    let _ = writeln!(
        text,
        "\nThe certificates are good until {}.",
        written((OffsetDateTime::now_utc() + LIFE).unix_timestamp())
    );
    text
}

/// Makes a file that only its owner may read; one that is there stays.
fn create(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    match platform::file::create_new_private(path, contents) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        done => done.map_err(named(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_and_what_is_missing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let init = |members: &[&str]| Init {
            folder: folder.path().join("cluster"),
            members: members.iter().map(|text| text.parse().unwrap()).collect(),
            prefix: etcd::PREFIX.into(),
        };
        // Nothing listens there.
        let members = ["etcd1=127.0.0.1:1", "etcd2=127.0.0.2:1"];
        let text = init(&members).init().unwrap();
        assert!(text.matches("etcd --name").count() == 2 && text.contains("--peer-client-cert-auth"), "{text}");
        let read = |name: &str| std::fs::read(folder.path().join("cluster").join(name)).unwrap();
        let files = ["ca.pem", "ca-key.pem", "members/etcd2/cert.pem", "operator/key.pem", "root.password"];
        let before = files.map(read);
        assert!(!read("root.password").starts_with(&read("operator.password")[..8]));
        std::fs::remove_file(folder.path().join("cluster/members/etcd1/cert.pem")).unwrap();
        init(&[]).init().unwrap();
        assert_eq!(files.map(read), before);
        assert_ne!(read("members/etcd1/cert.pem"), read("members/etcd2/cert.pem"));
        // The authority of members is another one, and no member has its key.
        assert_ne!(read("peer-ca.pem"), read("ca.pem"));
        assert_eq!(read("members/etcd1/peer-ca.pem"), read("peer-ca.pem"));
        assert!(!folder.path().join("cluster/members/etcd1/peer-ca-key.pem").exists());
        assert!(init(&["other=127.0.0.1"]).init().unwrap_err().to_string().contains("other members"));
    }
}
