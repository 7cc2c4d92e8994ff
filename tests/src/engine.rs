//! Docker Engines of the tests' own: Debian's dockerd in a network namespace, with a folder of its own and no registry.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::shared::has;
use crate::skip;
use crate::wait::{eventually, scaled};

/// Longest wait for an engine to answer, and to end; it takes two seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// A running engine. Dropping this removes its containers and ends it.
#[derive(Debug)]
pub struct Engine {
    namespace: String,
    folder: TempDir,
    process: Child,
}

impl Engine {
    /// Starts one in a network namespace, where it makes its bridge.
    ///
    /// `None`, with a word about it, where that is not possible; with `CI=true` that is a failure.
    pub fn start(namespace: &str) -> Option<Self> {
        let programs = [("dockerd", "--version"), ("docker", "--version"), ("nsenter", "--version")];
        let missing: Vec<_> = programs.iter().filter(|(program, argument)| !has(program, argument)).collect();
        if !missing.is_empty() {
            skip(&format!("{missing:?} is not installed (Debian: docker.io)"));
            return None;
        }
        let folder =
            tempfile::Builder::new().prefix("berth-engine-").tempdir().expect("a temporary folder can be made");
        let process = launch(namespace, folder.path());
        let mut engine = Self { namespace: namespace.to_owned(), folder, process };
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
        let mut command = Command::new("docker");
        command.arg("--host").arg(format!("unix://{}", self.socket().display())).args(arguments).stdin(Stdio::null());
        command
    }

    /// What the client prints to standard output; it has to succeed.
    pub fn docker(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("the client was there a moment ago");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {}: {errors}{}", arguments.join(" "), self.log());
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Makes an image of executables, each in `/bin` under its own name, and links to them.
    pub fn import(&self, image: &str, executables: &[&Path], links: &[(&str, &str)]) {
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
        self.docker(&["import", &archive.display().to_string(), image]);
    }

    /// Ends it without a word, as a crash would; containers go on.
    pub fn kill(&mut self) {
        self.process.kill().expect("a child can be killed");
        self.process.wait().expect("a child can be waited for");
        // The process that looks after its containers dies with it, sooner or later: until then the next engine would
        // wait for it in vain.
        let pid = self.folder.path().join("exec/containerd/containerd.pid");
        if let Ok(text) = std::fs::read_to_string(&pid) {
            let _ = Command::new("kill").args(["-KILL", text.trim()]).stderr(Stdio::null()).status();
            let _ = std::fs::remove_file(pid);
        }
    }

    /// Starts it again after [`Self::kill`].
    pub fn restart(&mut self) {
        self.process = launch(&self.namespace, self.folder.path());
        self.wait_until_it_answers();
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn wait_until_it_answers(&mut self) {
        eventually("the engine answers", LIMIT, || {
            let ended = self.process.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "dockerd ended: {ended:?}\n{}", self.log());
            let asked = self.command(&["version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
            asked.is_ok_and(|status| status.success()).then_some(())
        });
    }
}

fn launch(namespace: &str, folder: &Path) -> Child {
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("the folder is ours");
    let errors = log.try_clone().expect("a file can be shared");
    // Not `ip netns exec`, which mounts /sys anew: the engine finds no cgroups there.
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg("dockerd");
    for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
        command.arg(flag).arg(folder.join(name));
    }
    command.arg("--host").arg(format!("unix://{}", folder.join("docker.sock").display()));
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- log of the engine\n{}---", self.log());
        }
        if let Ok(output) = self.command(&["ps", "--all", "--quiet"]).output() {
            let containers = String::from_utf8_lossy(&output.stdout).into_owned();
            let containers: Vec<_> = containers.split_whitespace().collect();
            if !containers.is_empty() {
                let _ = self.command(&[&["rm", "--force", "--volumes"], &containers[..]].concat()).output();
            }
        }
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let begun = Instant::now();
        while begun.elapsed() < scaled(LIMIT) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
