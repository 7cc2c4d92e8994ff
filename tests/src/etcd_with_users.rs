//! An etcd that asks for users and speaks TLS, set up by its operator's own commands.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use etcd::{EtcdClient, EtcdOptions, Secret};
use tempfile::TempDir;

use crate::process::Process;
use crate::service::Ended;
use crate::shared::{Exclusive, there};
use crate::wait::{eventually, seconds};
use crate::{Executable, Launch, ports};

/// The user for the work of every day, and the one that may do everything.
pub const OPERATOR: &str = "operator";
/// See [`OPERATOR`].
pub const ROOT: &str = "root";

/// One member, with the folder that `agent cluster init` made. Dropping this ends it.
#[derive(Debug)]
pub struct EtcdWithUsers {
    folder: TempDir,
    port: u16,
    _etcd: Process,
}

impl EtcdWithUsers {
    /// Makes the cluster as its own words say: the printed line starts etcd.
    ///
    /// `None`, with a word about it, where there is no etcd; with `CI=true` that is a failure.
    pub fn start() -> Option<Self> {
        if !there(&[("etcd", "--version")], "etcd-server") {
            return None;
        }
        let folder = crate::etcd::folder();
        // Another cluster that is made at this time would be given the same ports.
        let ports = Exclusive::take("ports-of-etcd");
        let port = ports::in_a_row(2);
        let cluster = folder.path().join("cluster");
        let (path, member) = (cluster.display().to_string(), format!("etcd1=127.0.0.1:{port}"));
        let init = || agent(&["cluster", "init", &path, "--member", &member]);
        let told = init();
        assert_eq!(told.code, Some(0), "{}", told.errors);
        let authority = fs::read(cluster.join("ca.pem")).expect("the authority is there");
        let from = told.output.find("\netcd --name").expect("the line that starts etcd");
        let to = told.output.find("\nThe certificates").expect("what stands behind it");
        let line = told.output[from..to].trim_start();
        let log = File::create(folder.path().join("etcd.log")).expect("the folder can be written");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {line}")]).stdout(Stdio::null()).stderr(log);
        let etcd = Process::start(&mut shell);
        let told = eventually("etcd has users", seconds(30), || {
            let told = init();
            (told.code == Some(0) && told.output.contains("asks for users")).then_some(told)
        });
        drop(ports);
        assert!(told.output.contains("from now on"), "{}", told.output);
        let again = init();
        assert!(again.output.contains("root and operator are there"), "{}{}", again.output, again.errors);
        assert_eq!(fs::read(cluster.join("ca.pem")).expect("the authority is there"), authority);
        Some(Self { folder, port, _etcd: etcd })
    }

    /// The folder of this test; the cluster's is in it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A file of the cluster's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder().join("cluster").join(name)
    }

    /// Where etcd is for clients.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The password of [`OPERATOR`] or [`ROOT`].
    pub fn password(&self, user: &str) -> String {
        let text = fs::read_to_string(self.file(&format!("{user}.password"))).expect("the user has a password");
        text.trim().to_owned()
    }

    /// A command of the operator.
    pub fn command(&self, words: &[&str]) -> Ended {
        let cluster = self.file("").display().to_string();
        agent(&[words, &["--cluster", &cluster]].concat())
    }

    /// A client that signs in so.
    pub fn client(&self, user: &str, password: &str) -> EtcdClient {
        let options = EtcdOptions::parse(&format!("https://{}", self.address())).expect("an address is a member");
        let client = EtcdClient::new(EtcdOptions {
            ca: Some(self.file("ca.pem")),
            cert: Some(self.file("operator/cert.pem")),
            key: Some(self.file("operator/key.pem")),
            user: Some(user.into()),
            password: Some(Secret(password.trim().into())),
            ..options
        });
        client.expect("the files are those of the cluster")
    }
}

/// Runs the agent with these words, to its end.
pub fn agent(words: &[&str]) -> Ended {
    words.iter().fold(Launch::bare(Executable::Agent), Launch::word).run()
}
