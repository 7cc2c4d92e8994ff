//! The cluster that machines join: a real etcd as `agent cluster init` says how to start it, and the commands of its operator.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use etcd::EtcdClient;
use tests::engine::Engine;
use tests::etcd_with_users::{EtcdWithUsers, OPERATOR, ROOT};
use tests::publication::runtime;
use tests::service::Ended;
use tests::{Executable, Launch, Service};
use tokio::runtime::Runtime;

use crate::middle::Middle;

/// The cluster, and the machines that join it.
pub(crate) struct World {
    pub(crate) etcd: EtcdWithUsers,
    pub(crate) socket: PathBuf,
    pub(crate) runtime: Runtime,
    pub(crate) middle: Middle,
    /// All that was printed or logged.
    pub(crate) said: RefCell<String>,
    /// What must not be in it.
    pub(crate) secrets: RefCell<Vec<String>>,
}

impl World {
    pub(crate) fn start(engine: &Engine) -> Option<Self> {
        let etcd = EtcdWithUsers::start()?;
        Some(Self {
            middle: Middle::before(etcd.address(), etcd.folder()),
            socket: engine.socket(),
            runtime: runtime(),
            said: RefCell::default(),
            secrets: RefCell::new([ROOT, OPERATOR].map(|user| etcd.password(user)).into()),
            etcd,
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.etcd.folder().join(name)
    }

    pub(crate) fn state(&self, machine: &str) -> PathBuf {
        self.path(&format!("{machine}.state"))
    }

    /// A command of an operator.
    pub(crate) fn operator(&self, words: &[&str]) -> Ended {
        self.note(self.etcd.command(words))
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
        self.etcd.client(user, password)
    }

    pub(crate) fn password(&self, machine: &str) -> String {
        fs::read_to_string(self.state(machine).join("etcd-password")).unwrap()
    }
}

/// The token in an invitation's file.
pub(crate) fn token(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.lines().find(|line| line.starts_with("berth1.")).unwrap().to_owned()
}
