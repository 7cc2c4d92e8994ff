//! The routes that `agent network export` prints are read by the programs they are for.
//!
//! With Debian's bird2, iproute2 and, fetched and not installed, frr: installed ones start a service.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tests::namespace::Switch;
use tests::{Executable, Launch, repository, shared, skip};

/// Fetches `frr` with the one library of its own that it needs; prints the folder.
const FETCH: &str = "
. images/debian.sh
suite=$(. /etc/os-release && echo \"$VERSION_CODENAME\")
library=$(apt-cache depends frr | grep -o 'libyang[0-9]*' | head -n 1)
for package in frr ${library:?}; do
    [ -d \"$cache/$package\" ] || unpack_of_suite $package \"$cache/$package\" $suite
done
echo \"$cache/frr:$cache/$library\"
";

/// Hosts of a cluster file; the third one's name is not what a remark is made for.
const CLUSTER: &str = "berth: 1
host: host-1
networks: [{ name: berth, metadata: { cidr: 10.42.0.0/16 } }]
hosts:
- { name: host-1, agent_ip: 10.44.0.1, subnet: 10.42.1.0/24 }
- { name: host-2, agent_ip: 10.44.0.2, subnet: 10.42.2.0/24 }
- { name: \"host 3 # } ;\", agent_ip: 10.44.0.3, subnet: 10.42.3.0/24 }
";

struct Exported(tempfile::TempDir);

impl Exported {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cluster.yml"), CLUSTER).unwrap();
        Self(folder)
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The routes for a program, as a file.
    fn file(&self, format: &str) -> PathBuf {
        let export = Launch::bare(Executable::Agent).word("network").word("export").with("--format", format);
        let source = format!("file:{}", self.folder().join("cluster.yml").display());
        let ended = export.with("--source", source).with("--state-dir", self.folder().join("state")).run();
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
        assert_eq!(ended.output.matches("10.42.").count(), 2, "{}", ended.output);
        let file = self.folder().join(format);
        std::fs::write(&file, ended.output).unwrap();
        file
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn bird_reads_them() {
    if !shared::there(&[("bird", "--version")], "bird2") {
        return;
    }
    let exported = Exported::new();
    let part = exported.file("bird");
    for (more, is_read) in [("", true), ("route 10.42.9.0/24 via;", false)] {
        let whole = exported.folder().join("bird.conf");
        let routes = std::fs::read_to_string(&part).unwrap();
        std::fs::write(&whole, format!("router id 10.44.0.1;\nprotocol device {{}}\n{routes}{more}\n")).unwrap();
        let output = Command::new("bird").arg("-p").arg("-c").arg(&whole).output().unwrap();
        assert_eq!(output.status.success(), is_read, "{routes}{}", text(&output));
    }
}

#[test]
fn frr_reads_them() {
    let fetched = Command::new("bash").current_dir(repository()).args(["-ec", FETCH]).output();
    let fetched = fetched.ok().filter(|fetched| fetched.status.success());
    let Some(folders) = fetched.and_then(|fetched| String::from_utf8(fetched.stdout).ok()) else {
        return skip("no frr, and Debian's cannot be fetched");
    };
    let folders: Vec<_> = folders.trim().split(':').map(PathBuf::from).collect();
    let libraries: Vec<_> = folders
        .iter()
        .flat_map(|folder| ["usr/lib/x86_64-linux-gnu/frr", "usr/lib/x86_64-linux-gnu"].map(|part| folder.join(part)))
        .collect();
    let exported = Exported::new();
    let part = exported.file("frr");
    for (more, is_read) in [("", true), ("ip route 10.42.9.0/24 by 10.44.0.9", false)] {
        let routes = std::fs::read_to_string(&part).unwrap();
        let whole = exported.folder().join("frr.conf");
        std::fs::write(&whole, format!("{routes}{more}\n")).unwrap();
        let mut vtysh = Command::new(folders[0].join("usr/bin/vtysh"));
        vtysh.env("LD_LIBRARY_PATH", std::env::join_paths(&libraries).unwrap());
        let output = vtysh.arg("-C").arg("-f").arg(&whole).arg("--config_dir").arg(exported.folder()).output().unwrap();
        assert_eq!(output.status.success(), is_read, "{routes}{}", text(&output));
    }
}

#[test]
fn a_shell_runs_them() {
    let Some(switch) = Switch::try_new(1) else { return };
    let exported = Exported::new();
    switch.on(0, &["sh", "-e", &exported.file("iproute2").display().to_string()]);
    let routes = switch.on(0, &["ip", "route", "show", "proto", "98"]);
    let line = |host: u8| format!("10.42.{host}.0/24 via 10.44.0.{host} dev eth0 metric 4242 \n");
    assert_eq!(routes, line(2) + &line(3));
}
