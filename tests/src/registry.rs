//! Registries of images of the tests' own, on loopback.

use std::ffi::OsString;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::Process;
use crate::wait::eventually;
use crate::{namespace, ports, repository, skip};

/// Longest wait until it listens.
const LIMIT: Duration = Duration::from_secs(30);

/// A running registry. Dropping this ends it.
#[derive(Debug)]
pub struct Registry {
    _process: Process,
    /// Where it listens, as images of it are called: `127.0.0.1:PORT`.
    pub address: String,
    namespace: Option<String>,
    path: OsString,
}

impl Registry {
    /// Starts the one of `crane`, which `images/make-windows-images` fetches, here or in a network namespace.
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start(namespace: Option<&str>) -> Option<Self> {
        let fetch = ". images/debian.sh && { command -v crane >/dev/null || [ -x \"$cache/crane/usr/bin/crane\" ] || \
                     unpack_of_suite crane \"$cache/crane\" forky sid; } && printf %s \"$PATH:$cache/crane/usr/bin\"";
        let fetched = Command::new("bash").current_dir(repository()).args(["-c", fetch]).output();
        let fetched = fetched.ok().filter(|fetched| fetched.status.success());
        let Some(path) = fetched.and_then(|fetched| String::from_utf8(fetched.stdout).ok()) else {
            skip("no crane, and Debian's cannot be fetched");
            return None;
        };
        let (path, namespace) = (OsString::from(path), namespace.map(ToOwned::to_owned));
        let address = format!("127.0.0.1:{}", ports::free());
        let mut command = within(namespace.as_deref(), &path);
        command.args(["crane", "registry", "serve", "--address", &address]);
        let process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let registry = Self { _process: process, address, namespace, path };
        eventually("the registry listens", LIMIT, || registry.listens().then_some(()));
        Some(registry)
    }

    /// What `crane` prints; it has to succeed.
    pub fn crane(&self, arguments: &[&str]) -> String {
        let mut command = within(self.namespace.as_deref(), &self.path);
        let output = command.args(["crane", "--insecure"]).args(arguments).output().expect("crane was there");
        assert!(output.status.success(), "{arguments:?}\n{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn listens(&self) -> bool {
        if self.namespace.is_none() {
            return TcpStream::connect(&self.address).is_ok();
        }
        let mut command = within(self.namespace.as_deref(), &self.path);
        let asked = command.args(["crane", "--insecure", "catalog", &self.address]).output();
        asked.is_ok_and(|asked| asked.status.success())
    }
}

/// What runs a program with this `PATH`, in a network namespace if one is given.
fn within(namespace: Option<&str>, path: &OsString) -> Command {
    let mut command = namespace::command(namespace, "env");
    command.env("PATH", path);
    command
}
