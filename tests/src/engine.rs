//! Docker Engines of the tests' own: Debian's dockerd in a network namespace, with a folder of its own and no registry.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::namespace::Pair;
use crate::process::Process;
use crate::shared::there;
use crate::wait::eventually;
use crate::{repository, skip};

/// Longest wait for an engine to answer, and to end; it takes two seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// Debian's busybox, which needs nothing beside it in an image.
const BUSYBOX: &str = "/bin/busybox";

/// The image of [`Engine::import_box`].
const BOX: &str = "box";

/// What an engine is started with beside its folder. It has its mounts to itself too, so that nothing of them is left
/// when its processes are gone.
const WITHIN: [&str; 3] = ["unshare", "--mount", "dockerd"];

/// What an engine of another suite is started with beside its tree and its folder: the tree becomes the root of all files, as
/// `runc` needs it, and has the kernel's file systems and the folder in it.
const WITHIN_TREE: &str = "
root=$1 folder=$2
shift 2
mount --rbind \"$root\" \"$root\"
for part in proc sys dev; do mount --rbind /$part \"$root/$part\"; done
for part in tmp run; do mount -t tmpfs tmpfs \"$root/$part\"; done
mkdir -p \"$root$folder\" \"$root/run/outside\"
mount --bind \"$folder\" \"$root$folder\"
cd \"$root\"
pivot_root . run/outside
umount --lazy run/outside
exec chroot . dockerd \"$@\"
";

/// A running engine. Dropping this removes its containers and ends it, whatever state it is in.
#[derive(Debug)]
pub struct Engine {
    namespace: String,
    flags: Vec<String>,
    /// Certificates of authorities that it trusts, in place of the system's.
    trusted: Option<PathBuf>,
    /// The Debian tree that it is in, in place of this system.
    tree: Option<PathBuf>,
    folder: TempDir,
    process: Process,
}

impl Engine {
    /// Starts one in a network namespace, where it makes its bridge.
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start(namespace: &str) -> Option<Self> {
        Self::start_with(namespace, &[])
    }

    /// The same with more flags.
    pub fn start_with(namespace: &str, flags: &[&str]) -> Option<Self> {
        Self::start_trusting(namespace, flags, None)
    }

    /// The same with the certificates of the only authorities whose registries it trusts.
    pub fn start_trusting(namespace: &str, flags: &[&str], trusted: Option<&Path>) -> Option<Self> {
        Self::start_from(None, namespace, flags, trusted)
    }

    /// Starts the one of another suite of Debian, whose tree is made if it is not there yet.
    pub fn start_of_suite(suite: &str, namespace: &str) -> Option<Self> {
        let made = Command::new(repository().join("tests/engine-tree")).arg(suite).output();
        let made = made.ok().filter(|made| made.status.success());
        let Some(tree) = made.and_then(|made| String::from_utf8(made.stdout).ok()) else {
            skip(&format!("no Docker Engine of {suite} (tests/engine-tree {suite})"));
            return None;
        };
        Self::start_from(Some(PathBuf::from(tree.trim())), namespace, &[], None)
    }

    fn start_from(tree: Option<PathBuf>, namespace: &str, flags: &[&str], trusted: Option<&Path>) -> Option<Self> {
        let programs = [("dockerd", "--version"), ("docker", "--version"), ("nsenter", "--version")];
        if !there(&programs, "docker.io, util-linux") {
            return None;
        }
        let folder =
            tempfile::Builder::new().prefix("berth-engine-").tempdir().expect("a temporary folder can be made");
        let flags: Vec<_> = flags.iter().map(ToString::to_string).collect();
        let trusted = trusted.map(Path::to_owned);
        let process = launch(namespace, tree.as_deref(), folder.path(), &flags, trusted.as_deref());
        let mut engine = Self { namespace: namespace.to_owned(), flags, trusted, tree, folder, process };
        engine.wait_until_it_answers();
        Some(engine)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }

    /// The namespace that it was started in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The client with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        command_at(&self.socket(), arguments)
    }

    /// What the client prints to standard output; it has to succeed.
    pub fn docker(&self, arguments: &[&str]) -> String {
        self.try_docker(arguments)
            .unwrap_or_else(|error| panic!("docker {}: {error}\n{}", arguments.join(" "), self.log()))
    }

    /// What the client prints to standard output.
    ///
    /// # Errors
    ///
    /// What it says when it fails.
    pub fn try_docker(&self, arguments: &[&str]) -> Result<String, String> {
        try_docker_at(&self.socket(), arguments)
    }

    /// Makes the image `box` of busybox, which is the shell too.
    ///
    /// `None`, with a word about it, where there is no busybox; with `CI=true` that is a failure.
    pub fn import_box(&self) -> Option<()> {
        if !Path::new(BUSYBOX).exists() {
            skip(&format!("{BUSYBOX} is missing (Debian: busybox-static)"));
            return None;
        }
        self.import(BOX, &[Path::new(BUSYBOX)], &[("sh", "busybox")]);
        Some(())
    }

    /// Runs a container of the image `box` that sleeps, with these flags. Gives its id.
    pub fn run_box(&self, name: &str, flags: &[&str]) -> String {
        let run = ["run", "--detach", "--name", name];
        self.docker(&[&run[..], flags, &[BOX, BUSYBOX, "sleep", "3600"]].concat())
    }

    /// The names of all containers, running or not.
    pub fn names(&self) -> BTreeSet<String> {
        let names = self.docker(&["ps", "--all", "--format", "{{.Names}}"]);
        names.lines().map(ToOwned::to_owned).collect()
    }

    /// Makes an image of busybox that stands in for a server: it answers HTTP on this port, and ends when it is told to.
    pub fn stand_in(&self, image: &str, port: u16) {
        let serve = format!("trap exit TERM; echo ok >/index.html; httpd -p {port} -h /; while :; do sleep 0.1; done");
        let command = format!("CMD {}", serde_json::json!([BUSYBOX, "sh", "-c", serve]));
        self.import_with(
            image,
            &[Path::new(BUSYBOX)],
            &[("sh", "busybox"), ("true", "busybox")],
            &["--change", &command],
        );
    }

    /// Makes an image of executables, each in `/bin` under its own name, and links to them.
    pub fn import(&self, image: &str, executables: &[&Path], links: &[(&str, &str)]) {
        self.import_with(image, executables, links, &[]);
    }

    fn import_with(&self, image: &str, executables: &[&Path], links: &[(&str, &str)], flags: &[&str]) {
        let root = self.folder.path().join(format!("image-{}", image.replace(['/', ':'], "-")));
        let bin = root.join("bin");
        std::fs::create_dir_all(&bin).expect("the folder is ours");
        for executable in executables {
            let name = executable.file_name().expect("an executable has a name");
            std::fs::copy(executable, bin.join(name))
                .unwrap_or_else(|error| panic!("{}: {error}", executable.display()));
        }
        for (link, target) in links {
            let made = Command::new("ln").args(["-sf", target]).arg(bin.join(link)).status();
            assert!(made.is_ok_and(|status| status.success()), "link {link}");
        }
        let archive = self.folder.path().join("image.tar");
        let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
        assert!(packed.is_ok_and(|status| status.success()), "tar of {}", root.display());
        let archive = archive.display().to_string();
        self.docker(&[&["import"], flags, &[&archive, image]].concat());
    }

    /// Ends it without a word, as a crash would; containers go on.
    pub fn kill(&mut self) {
        self.process.end();
        // The process that looks after its containers dies with it, sooner or later: until then the next engine would
        // wait for it in vain.
        let pid = self.folder.path().join("exec/containerd/containerd.pid");
        if let Ok(text) = std::fs::read_to_string(&pid) {
            kill(&[text.trim()]);
            let _ = std::fs::remove_file(pid);
        }
        // Its number may be another process's by the time it is started again.
        let _ = std::fs::remove_file(self.folder.path().join("pid"));
    }

    /// Starts it again after [`Self::kill`].
    pub fn restart(&mut self) {
        let tree = self.tree.as_deref();
        self.process = launch(&self.namespace, tree, self.folder.path(), &self.flags, self.trusted.as_deref());
        self.wait_until_it_answers();
    }

    /// Stops it in its tracks: connections stay and say nothing.
    pub fn hang(&self) {
        self.process.signal("STOP");
    }

    /// Lets it go on after [`Self::hang`].
    pub fn go_on(&self) {
        self.process.signal("CONT");
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn wait_until_it_answers(&mut self) {
        eventually("the engine answers", LIMIT, || {
            assert!(self.process.is_running(), "dockerd ended\n{}", self.log());
            self.within_limit(&["version"]).map(drop)
        });
    }

    /// What the client prints, if it does so in time: an engine that hangs would be waited for without end.
    fn within_limit(&self, arguments: &[&str]) -> Option<String> {
        let mut command = self.command(arguments);
        let mut client = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let ended = client.ended_within(LIMIT)?;
        // Some ids or versions, which a pipe has room for.
        let mut printed = String::new();
        client.stdout.take()?.read_to_string(&mut printed).ok()?;
        ended.success().then_some(printed)
    }
}

fn launch(namespace: &str, tree: Option<&Path>, folder: &Path, flags: &[String], trusted: Option<&Path>) -> Process {
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("the folder is ours");
    let errors = log.try_clone().expect("a file can be shared");
    // Not `ip netns exec`, which mounts /sys anew: the engine finds no cgroups there.
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}"));
    match tree {
        None => command.args(WITHIN),
        Some(tree) => command.args(["unshare", "--mount", "sh", "-ec", WITHIN_TREE, "sh"]).arg(tree).arg(folder),
    };
    // Go's libraries read these instead of the system's.
    command.envs(trusted.map(|file| ("SSL_CERT_FILE", file)));
    for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
        command.arg(flag).arg(folder.join(name));
    }
    command.arg("--host").arg(format!("unix://{}", folder.join("docker.sock").display())).args(flags);
    Process::start(command.stdin(Stdio::null()).stdout(log).stderr(errors))
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- log of the engine\n{}---", self.log());
        }
        if self.process.is_running() {
            self.go_on();
            let containers = self.within_limit(&["ps", "--all", "--quiet"]).unwrap_or_default();
            let containers: Vec<_> = containers.split_whitespace().collect();
            if !containers.is_empty() {
                self.within_limit(&[&["rm", "--force", "--volumes"], &containers[..]].concat());
            }
            self.process.signal("TERM");
            self.process.ended_within(LIMIT);
        }
        self.process.end();
        // What one leaves that was killed and not started again, or that did not end in time.
        kill(&left(self.folder.path()).iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// The client of what listens like an engine at a socket.
fn command_at(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("docker");
    command.arg("--host").arg(format!("unix://{}", socket.display())).args(arguments).stdin(Stdio::null());
    command
}

/// What the client prints to standard output when it asks what listens like an engine at a socket.
///
/// # Errors
///
/// What it says when it fails.
pub fn try_docker_at(socket: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = command_at(socket, arguments).output().expect("the client was there a moment ago");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// An engine with the image `box`, in a namespace of its own. Dropping this removes all of it.
#[derive(Debug)]
pub struct Boxed {
    // Fields are dropped in this order.
    /// The engine.
    pub engine: Engine,
    /// The namespace that it runs in, and its neighbour `10.42.0.7`.
    pub pair: Pair,
}

impl Boxed {
    /// `None`, with a word about it, where there can be none; with `CI=true` that is a failure.
    pub fn start() -> Option<Self> {
        let pair = Pair::try_new("10.42.0.7")?;
        let engine = Engine::start(&pair.host)?;
        engine.import_box()?;
        Some(Self { engine, pair })
    }
}

/// Ends these processes without a word.
fn kill(pids: &[&str]) {
    if !pids.is_empty() {
        let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
    }
}

/// The processes of an engine: those that name its folder, which are its own and the keepers of its containers, and
/// those that they started.
fn left(folder: &Path) -> BTreeSet<String> {
    let folder = folder.display().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes: Vec<(String, String, String)> = processes
        .filter_map(|process| {
            let command = std::fs::read(process.path().join("cmdline")).ok()?;
            let status = std::fs::read_to_string(process.path().join("status")).ok()?;
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().to_owned();
            Some((process.file_name().into_string().ok()?, parent, String::from_utf8_lossy(&command).into_owned()))
        })
        .collect();
    let mut left = BTreeSet::new();
    loop {
        let before = left.len();
        for (pid, parent, command) in &processes {
            if command.contains(&folder) || left.contains(parent) {
                left.insert(pid.clone());
            }
        }
        if left.len() == before {
            return left;
        }
    }
}
