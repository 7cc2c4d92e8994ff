//! The cluster that machines join: a real etcd as `agent cluster init` says how to start it, and the commands of its operator.

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use etcd::{EtcdClient, EtcdOptions, Secret};
use serde_json::Value;
use tests::engine::Engine;
use tests::process::Process;
use tests::publication::runtime;
use tests::service::Ended;
use tests::shared::there;
use tests::wait::seconds;
use tests::{Executable, Launch, Service, eventually, ports};
use tokio::runtime::Runtime;

use crate::middle::Middle;

/// The cluster, and the machines that join it.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) socket: PathBuf,
    pub(crate) runtime: Runtime,
    pub(crate) middle: Middle,
    _etcd: Process,
    /// All that was printed or logged.
    pub(crate) said: RefCell<String>,
    /// What must not be in it.
    pub(crate) secrets: RefCell<Vec<String>>,
}

impl World {
    /// Makes the cluster as its own words say: the printed line starts etcd.
    pub(crate) fn start(engine: &Engine) -> Option<Self> {
        if !there(&[("etcd", "--version")], "etcd-server") {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let port = ports::in_a_row(2);
        let cluster = folder.path().join("cluster");
        let member = format!("etcd1=127.0.0.1:{port}");
        let init = || agent(&["cluster", "init", cluster.to_str().unwrap(), "--member", &member]);
        let told = init();
        assert_eq!(told.code, Some(0), "{}", told.errors);
        let authority = fs::read(cluster.join("ca.pem")).unwrap();
        let line =
            &told.output[told.output.find("\netcd --name").unwrap()..told.output.find("\nThe certificates").unwrap()];
        let log = File::create(folder.path().join("etcd.log")).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {}", line.trim_start())]).stdout(Stdio::null()).stderr(log);
        let etcd = Process::start(&mut shell);
        let told = eventually("etcd has users", seconds(30), || {
            let told = init();
            (told.code == Some(0) && told.output.contains("asks for users")).then_some(told)
        });
        assert!(told.output.contains("from now on"), "{}", told.output);
        let again = init();
        assert!(again.output.contains("root and operator are there"), "{}{}", again.output, again.errors);
        assert_eq!(fs::read(cluster.join("ca.pem")).unwrap(), authority);
        let passwords =
            ["root.password", "operator.password"].map(|name| fs::read_to_string(cluster.join(name)).unwrap());
        Some(Self {
            middle: Middle::before(SocketAddr::from(([127, 0, 0, 1], port)), folder.path()),
            socket: engine.socket(),
            runtime: runtime(),
            _etcd: etcd,
            said: RefCell::default(),
            secrets: RefCell::new(passwords.iter().map(|text| text.trim().to_owned()).collect()),
            folder,
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn state(&self, machine: &str) -> PathBuf {
        self.path(&format!("{machine}.state"))
    }

    /// A command of an operator.
    pub(crate) fn operator(&self, words: &[&str]) -> Ended {
        let cluster = self.path("cluster");
        let words: Vec<_> = words.iter().copied().chain(["--cluster", cluster.to_str().unwrap()]).collect();
        self.note(agent(&words))
    }

    /// What a command of an operator prints; it has to succeed.
    pub(crate) fn told(&self, words: &[&str]) -> String {
        let ended = self.operator(words);
        assert_eq!(ended.code, Some(0), "{words:?}: {}{}", ended.output, ended.errors);
        ended.output
    }

    pub(crate) fn note(&self, ended: Ended) -> Ended {
        self.said.borrow_mut().extend([&*ended.output, "\n", &ended.errors, "\n"]);
        ended
    }

    /// Invites a host by way of the man in the middle, who is honest at that time; gives the invitation's file.
    pub(crate) fn invite(&self, host: &str, more: &[&str]) -> PathBuf {
        let file = self.path(&format!("{host}.invitation"));
        let etcd = format!("https://{}", self.middle.address);
        let words: Vec<_> =
            ["invite", host, "--out", file.to_str().unwrap(), "--etcd", &etcd].iter().chain(more).copied().collect();
        let told = self.told(&words);
        assert!(told.contains(&format!("{host} is invited until")) && told.contains("SHA-256"), "{told}");
        let secret = token(&file).split('.').nth(2).unwrap().to_owned();
        self.secrets.borrow_mut().push(secret);
        file
    }

    /// A machine that joins.
    pub(crate) fn joining(&self, machine: &str, invitation: &[&str]) -> Launch {
        let launch = invitation.iter().fold(Launch::bare(Executable::Agent).word("join"), Launch::word);
        let launch =
            launch.with("--state-dir", self.state(machine)).with("--env-file", self.path(&format!("{machine}.env")));
        launch.flag(&format!("--docker=unix://{}", self.socket.display())).flag("--no-start")
    }

    pub(crate) fn join(&self, machine: &str, file: &Path) -> Ended {
        let ended = self.note(self.joining(machine, &["--file", file.to_str().unwrap()]).run());
        if let Ok(password) = fs::read_to_string(self.state(machine).join("etcd-password")) {
            self.secrets.borrow_mut().push(password.trim().to_owned());
        }
        ended
    }

    /// The agent of a machine that has joined, with its settings, on free ports.
    pub(crate) fn agent(&self, machine: &str, more: &[(&str, &str)]) -> Service {
        let text = fs::read_to_string(self.path(&format!("{machine}.env"))).unwrap();
        let settings = text.lines().filter_map(|line| line.split_once('='));
        let launch = Launch::bare(Executable::Agent).word("up").logged();
        // Its addresses are those of this machine.
        let settings = settings.filter(|(name, _)| *name != "BERTH_SERVE_CONTAINERS").chain(more.iter().copied());
        let launch = settings.fold(launch, |launch, (name, value)| launch.env(name, value));
        ["--metadata", "--dns", "--scheduler", "--admin"]
            .iter()
            .fold(launch, |launch, flag| launch.with(flag, "127.0.0.1:0"))
            .start()
    }

    /// A client that signs in so.
    pub(crate) fn client(&self, user: &str, password: &str) -> EtcdClient {
        let etcd: Value = serde_json::from_slice(&fs::read(self.path("cluster/cluster.json")).unwrap()).unwrap();
        let url = format!("https://127.0.0.1:{}", etcd["members"][0]["port"]);
        EtcdClient::new(EtcdOptions {
            ca: Some(self.path("cluster/ca.pem")),
            cert: Some(self.path("cluster/operator/cert.pem")),
            key: Some(self.path("cluster/operator/key.pem")),
            user: Some(user.into()),
            password: Some(Secret(password.trim().into())),
            ..EtcdOptions::parse(&url).unwrap()
        })
        .unwrap()
    }

    pub(crate) fn password(&self, machine: &str) -> String {
        fs::read_to_string(self.state(machine).join("etcd-password")).unwrap()
    }
}

pub(crate) fn agent(words: &[&str]) -> Ended {
    words.iter().fold(Launch::bare(Executable::Agent), Launch::word).run()
}

/// The token in an invitation's file.
pub(crate) fn token(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.lines().find(|line| line.starts_with("berth1.")).unwrap().to_owned()
}
