//! Registries of images of the tests' own, on loopback.

use std::ffi::OsString;
use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::Authority;
use crate::process::Process;
use crate::shared::there;
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

/// A registry that speaks only TLS, and only with who knows the password: Debian's docker-registry. Dropping this ends it.
#[derive(Debug)]
pub struct PrivateRegistry {
    _process: Process,
    /// Where it listens, as images of it are called: `ADDRESS:PORT`.
    pub address: String,
    /// The certificate of the authority that it is known by.
    pub authority: PathBuf,
    namespace: String,
    _folder: TempDir,
}

impl PrivateRegistry {
    /// Who knows the password.
    pub const USER: &str = "berth";

    /// The password: at each place of a group of base64 it has characters by which its alphabets differ.
    pub const PASSWORD: &str = "pa:ss~~~???word";

    /// The line of htpasswd for them.
    const ACCOUNT: &str = "berth:$2y$05$1A/qHNErkEH8AfffqU1HJevyzf.D2lLXRV3auefvGHKXPCrQMAQKW";

    /// Starts one at an address of a network namespace that is not loopback: there engines do not insist on TLS.
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start(namespace: &str, address: &str) -> Option<Self> {
        if !there(&[("docker-registry", "--version"), ("curl", "--version")], "docker-registry, curl") {
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let certificates = Authority::new("registry").folder_at(folder.path(), "registry", &[address]);
        let address = format!("{address}:{}", ports::free());
        let configuration = serde_json::json!({
            "version": 0.1,
            "log": { "level": "error" },
            "storage": { "filesystem": { "rootdirectory": folder.path().join("data") } },
            "http": {
                "addr": address,
                "secret": "of a test",
                "tls": { "certificate": certificates.join("cert.pem"), "key": certificates.join("key.pem") },
            },
            "auth": { "htpasswd": { "realm": "berth", "path": folder.path().join("accounts") } },
        });
        let file = folder.path().join("configuration.yml");
        for (file, text) in
            [(&file, configuration.to_string()), (&folder.path().join("accounts"), Self::ACCOUNT.to_owned())]
        {
            std::fs::write(file, text).expect("the folder is ours");
        }
        let mut command = namespace::command(Some(namespace), "docker-registry");
        command.arg("serve").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::start(&mut command);
        let (authority, namespace) = (certificates.join("ca.pem"), namespace.to_owned());
        let registry = Self { _process: process, address, authority, namespace, _folder: folder };
        eventually("the registry listens", LIMIT, || registry.try_ask("/v2/", &[]));
        Some(registry)
    }

    /// What it answers to a request with the password: head and body, as `curl` has them with these arguments.
    pub fn ask(&self, path: &str, arguments: &[&str]) -> String {
        self.try_ask(path, arguments).unwrap_or_else(|| panic!("{path}: no answer"))
    }

    /// A slow way to it.
    pub fn behind_a_bottleneck(&self) -> Bottleneck {
        let (host, _) = self.address.rsplit_once(':').expect("an address and a port");
        let address = format!("{host}:{}", ports::free());
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let said = folder.path().join("said");
        let output = File::create(&said).expect("the folder is ours");
        let mut command = namespace::command(Some(&self.namespace), "python3");
        command.args(["-c", BOTTLENECK, &address, &self.address, PASSED]).stdout(output);
        let bottleneck = Bottleneck { _process: Process::start(&mut command), address, said, _folder: folder };
        bottleneck.says("listening");
        bottleneck
    }

    fn try_ask(&self, path: &str, arguments: &[&str]) -> Option<String> {
        let mut command = namespace::command(Some(&self.namespace), "curl");
        let account = format!("{}:{}", Self::USER, Self::PASSWORD);
        command.args(["--silent", "--show-error", "--fail", "--include", "--user", &account]);
        command.arg("--cacert").arg(&self.authority).args(arguments);
        let asked = command.arg(format!("https://{}{path}", self.address)).output().ok()?;
        asked.status.success().then(|| String::from_utf8_lossy(&asked.stdout).into_owned())
    }
}

/// How many bytes of each answer a bottleneck passes on: a manifest, but no layer.
const PASSED: &str = "65536";

/// Carries connections from one address to another. Of what comes back the first bytes are passed on, and the rest is held
/// until the client closes the connection. Says what happens, a line each.
const BOTTLENECK: &str = r#"
import socket, sys, threading
near, far = ((host, int(port)) for host, port in (text.rsplit(":", 1) for text in sys.argv[1:3]))

def say(text):
    print(text, flush=True)

def carry(client):
    server = socket.create_connection(far)
    def back():
        left = int(sys.argv[3])
        try:
            while left and (data := server.recv(min(left, 65536))):
                client.sendall(data)
                left -= len(data)
        except OSError:
            pass
        if left:
            client.close()
        else:
            say("held")
    threading.Thread(target=back, daemon=True).start()
    try:
        while data := client.recv(65536):
            server.sendall(data)
    except OSError:
        pass
    server.close()

listener = socket.create_server(near)
say("listening")
while True:
    threading.Thread(target=carry, args=(listener.accept()[0],), daemon=True).start()
"#;

/// A way to a [`PrivateRegistry`] over which small answers come as ever, and layers never. Dropping this ends it.
#[derive(Debug)]
pub struct Bottleneck {
    _process: Process,
    /// Where it is, as images of the registry are called: `ADDRESS:PORT`.
    pub address: String,
    said: PathBuf,
    _folder: TempDir,
}

impl Bottleneck {
    /// Waits until a layer is held back.
    pub fn holds_a_layer(&self) {
        self.says("held");
    }

    fn says(&self, line: &str) {
        eventually(&format!("the way to the registry says {line}"), LIMIT, || {
            let said = std::fs::read_to_string(&self.said).unwrap_or_default();
            said.lines().any(|one| one == line).then_some(())
        });
    }
}

/// What runs a program with this `PATH`, in a network namespace if one is given.
fn within(namespace: Option<&str>, path: &OsString) -> Command {
    let mut command = namespace::command(namespace, "env");
    command.env("PATH", path);
    command
}
