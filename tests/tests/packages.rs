//! What `images/release` makes: the same bytes each time, and packages that are installed, upgraded and removed without a trace.
//!
//! Where only the packing counts, the executables are small stand-ins, which are packed in a moment.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tests::cluster::{ClusterFolder, shop};
use tests::engine::Boxed;
use tests::installed::python_packages;
use tests::{Launch, binaries, eventually, fixture, repository, skip, tell};

const NAMES: [&str; 4] = ["agent", "metadata", "dns", "scheduler"];

/// What packs, and looks into packages, with Debian's names.
const TOOLS: [(&str, &str); 7] = [
    ("wixl", "--version"),
    ("msiinfo", "--version"),
    ("faketime", "--version"),
    ("osslsigncode", "--version"),
    ("zip", "-v"),
    ("lintian", "--version"),
    ("x86_64-w64-mingw32-gcc", "--version"),
];

fn tools() -> bool {
    tests::shared::there(&TOOLS, "wixl, msitools, faketime, osslsigncode, zip, lintian, gcc-mingw-w64-x86-64-win32")
}

/// What a command prints; it has to succeed.
fn check(command: &mut Command) -> String {
    let output = run(command);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{printed}");
    printed
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn shell(script: &str, folder: &Path) -> String {
    check(Command::new("bash").args(["-euc", script]).current_dir(folder))
}

/// A folder of executables to pack: of Linux a shell that is static, of Windows a program of a few lines; `real` are put in
/// their places.
fn stand_ins(real: &[(&str, &Path)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for system in ["linux", "windows"] {
        fs::create_dir(folder.path().join(system)).unwrap();
    }
    let windows = folder.path().join("windows/agent.exe");
    let mut compiler = Command::new("x86_64-w64-mingw32-gcc");
    compiler.args(["-s", "-Wl,--no-insert-timestamp", "-o"]).arg(&windows);
    check(compiler.arg(repository().join("tests/wine/hold.c")));
    for name in NAMES {
        fs::copy("/bin/busybox", folder.path().join("linux").join(name)).unwrap();
        if name != NAMES[0] {
            fs::copy(&windows, folder.path().join(format!("windows/{name}.exe"))).unwrap();
        }
    }
    for (place, file) in real {
        fs::copy(file, folder.path().join(place)).unwrap();
    }
    folder
}

/// Packs the executables in a folder as this version, and gives the folder of the packages.
fn release(executables: &Path, version: &str, words: &[&str]) -> TempDir {
    let output = tempfile::tempdir().unwrap();
    let mut release = Command::new(repository().join("images/release"));
    release.env("EXECUTABLES", executables).env("VERSION", version).env("SOURCE_DATE_EPOCH", "1700000000");
    check(release.args(["--quick", "--output"]).arg(output.path()).args(words));
    output
}

/// Name and content of each file in a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// The tables that decide what the installer does to a host.
const TABLES: [&str; 14] = [
    "Property",
    "Directory",
    "CreateFolder",
    "Component",
    "FeatureComponents",
    "Registry",
    "Environment",
    "ServiceInstall",
    "ServiceControl",
    "RegLocator",
    "CustomAction",
    "InstallExecuteSequence",
    "LaunchCondition",
    "Upgrade",
];

#[test]
fn the_same_executables_give_the_same_packages_which_are_complete() {
    if !tools() {
        return;
    }
    let executables = stand_ins(&[]);
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| release(executables.path(), "0.1.0", &[]));
        (release(executables.path(), "0.1.0", &[]), second.join().unwrap())
    });
    let contents = files(first.path());
    let names: Vec<_> = contents.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "SHA256SUMS",
            "berth-0.1.0-linux-images.tar",
            "berth-0.1.0-linux-x86_64.tar.gz",
            "berth-0.1.0-windows-x86_64.msi",
            "berth-0.1.0-windows-x86_64.zip",
            "berth-0.1.0.cdx.json",
            "berth_0.1.0_amd64.deb",
        ]
    );
    for (name, content) in &files(second.path()) {
        assert!(contents[name] == *content, "{name} is another one the second time");
    }
    shell("sha256sum --check --strict SHA256SUMS", first.path());
    // What a reader of the README looks for is there.
    let zip = shell("unzip -Z1 berth-0.1.0-windows-x86_64.zip", first.path());
    let tar = shell("tar -tzf berth-0.1.0-linux-x86_64.tar.gz", first.path());
    let deb = shell("dpkg-deb --contents berth_0.1.0_amd64.deb", first.path());
    for (list, wanted) in [
        (&zip, &["agent.exe", "scheduler.exe", "LICENSE", "README.md", "docs/running.md", "Install-Berth.ps1"][..]),
        (&tar, &["agent", "scheduler", "LICENSE", "README.md", "docs/running.md", "install", "berth.service"]),
        (&deb, &["usr/bin/agent", "usr/bin/scheduler", "docs/running.md", "copyright", "etc/berth/agent.env"]),
    ] {
        for file in wanted {
            assert!(list.lines().any(|line| line.ends_with(&format!("/{file}"))), "no {file} in\n{list}");
        }
    }
    let found = run(Command::new("lintian")
        .args(["--allow-root", "--fail-on", "error"])
        .arg(first.path().join("berth_0.1.0_amd64.deb")));
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));

    let tables: Vec<String> = TABLES
        .iter()
        .map(|table| {
            let text = shell(&format!("msiinfo export *.msi {table}"), first.path());
            // The first three lines are the types of the columns; the order of the others means nothing.
            let mut lines: Vec<_> = text.lines().skip(3).map(|line| line.trim_end().replace('\t', " | ")).collect();
            lines.sort();
            format!("{table}\n{}\n\n", lines.join("\n"))
        })
        .collect();
    let tables = tables.concat();
    let expected = fixture("packages/msi.txt");
    if tests::update() {
        fs::write(&expected, &tables).unwrap();
    }
    assert_eq!(tables, fs::read_to_string(expected).unwrap(), "UPDATE=1 cargo test -p tests --test packages");
}

/// What the schemas of winget (1.10.0) demand of the fields that a manifest has here; what Windows makes of it only Windows shows.
const WINGET: [(&str, &[(&str, &str)]); 3] = [
    ("", &[("DefaultLocale", "en-US"), ("ManifestType", "version")]),
    (
        ".locale.en-US",
        &[
            ("PackageLocale", "en-US"),
            ("Publisher", ".{2,256}"),
            ("PackageName", ".{2,256}"),
            ("License", ".{3,512}"),
            ("ShortDescription", ".{3,256}"),
            ("ManifestType", "defaultLocale"),
        ],
    ),
    (
        ".installer",
        &[
            ("MinimumOSVersion", r"\d{1,5}(\.\d{1,5}){3}"),
            ("InstallerType", "msi"),
            ("Scope", "machine"),
            ("ElevationRequirement", "elevationRequired"),
            ("UpgradeBehavior", "install"),
            ("ManifestType", "installer"),
        ],
    ),
];

#[test]
fn the_manifest_for_winget_says_what_the_installer_is() {
    let Some(python) = python_packages("yaml", &["PyYAML==6.0.2"]) else { return };
    if !tools() {
        return;
    }
    let executables = stand_ins(&[]);
    let packages = release(executables.path(), "0.1.0", &["--url", "https://example.org/berth/", "msi", "winget"]);
    shell("unzip -q -j *-winget.zip", packages.path());
    let matches = |value: &Value, pattern: &str| {
        let script = "import re, sys; sys.exit(not re.fullmatch(sys.argv[1], sys.argv[2]))";
        run(Command::new("python3").args(["-c", script, pattern, value.as_str().unwrap_or_default()])).status.success()
    };
    let read = |part: &str| -> Value {
        let script = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
        let file = packages.path().join(format!("Berth.Berth{part}.yaml"));
        serde_json::from_str(&check(Command::new(python.join("python3")).args(["-c", script]).arg(file))).unwrap()
    };
    let common =
        [("PackageIdentifier", r"Berth\.Berth"), ("PackageVersion", r"0\.1\.0"), ("ManifestVersion", r"1\.10\.0")];
    for (part, fields) in WINGET {
        let manifest = read(part);
        for (field, pattern) in fields.iter().chain(&common) {
            assert!(matches(&manifest[field], pattern), "{part}: {field}: {}", manifest[field]);
        }
        let lists = if part == ".installer" { 2 } else { 0 };
        assert_eq!(manifest.as_object().unwrap().len(), fields.len() + common.len() + lists, "{manifest}");
    }
    let installer = &read(".installer")["Installers"][0];
    let code = shell("msiinfo export *.msi Property", packages.path());
    let code = code.lines().find_map(|line| line.trim_end().strip_prefix("ProductCode\t")).unwrap();
    assert_eq!(installer["ProductCode"].as_str().unwrap().to_uppercase(), code.to_uppercase());
    let sum = shell("sha256sum *.msi", packages.path());
    assert_eq!(installer["InstallerSha256"], sum.split(' ').next().unwrap().to_uppercase());
    assert_eq!(installer["InstallerUrl"], "https://example.org/berth/berth-0.1.0-windows-x86_64.msi");
    assert_eq!(installer["Architecture"], "x64");

    // Without an address there is nothing that winget could download.
    let release = repository().join("images/release");
    let refused = run(Command::new(release).args(["--quick", "--output"]).arg(packages.path()).args(["msi", "winget"]));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("winget needs --url"), "{why}");
}

#[test]
fn the_bill_of_materials_is_valid_and_names_what_is_linked() {
    let Some(python) = python_packages("cyclonedx", &["cyclonedx-python-lib[json-validation]==11.12.0"]) else {
        return;
    };
    let made = run(Command::new(repository().join("images/make-sbom")).arg("0.1.0"));
    // Cargo may tell of waiting beside it.
    let bill = String::from_utf8(made.stdout).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &bill).unwrap();
    let validate = "import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
wrong = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(str(wrong) if wrong else 0)";
    check(Command::new(python.join("python3")).args(["-c", validate]).arg(file.path()));
    let bill: Value = serde_json::from_str(&bill).unwrap();
    let components = bill["components"].as_array().unwrap();
    let named = |name: &str| components.iter().any(|component| component["name"] == name);
    for (name, linked) in [
        ("agent", true),
        ("platform", true),
        ("hyper", true),
        ("ring", true),
        ("rtnetlink", true),
        ("windows-service", true),
        ("clap_derive", false),
        ("proptest", false),
        ("bench", false),
    ] {
        assert_eq!(named(name), linked, "{name}");
    }
    let foreign = |component: &&Value| component["hashes"][0]["content"].as_str().is_some_and(|hash| hash.len() == 64);
    assert!(components.iter().filter(foreign).count() > 100, "checksums");
}

#[test]
fn a_signature_is_by_the_given_certificate() {
    if !tools() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    shell(
        "for name in ours other; do openssl req -x509 -newkey rsa:2048 -nodes -keyout $name.key -out $name.pem -days 2 \
         -subj '/CN=Berth test' -addext extendedKeyUsage=codeSigning -addext basicConstraints=critical,CA:FALSE; done",
        folder.path(),
    );
    let path = |name: &str| folder.path().join(name).display().to_string();
    let executables = stand_ins(&[]);
    let words = ["--sign", &path("ours.pem"), &path("ours.key"), "zip", "msi"];
    let packages = release(executables.path(), "0.1.0", &words);
    shell("unzip -q *.zip; mv */agent.exe .", packages.path());
    for file in ["agent.exe", "berth-0.1.0-windows-x86_64.msi"] {
        let verify = |certificate: &str| {
            let mut verify = Command::new("osslsigncode");
            verify.args(["verify", "-CAfile", &path(certificate), "-in"]).arg(packages.path().join(file));
            run(&mut verify).status.success()
        };
        assert!(verify("ours.pem"), "{file} is not signed by the certificate");
        assert!(!verify("other.pem"), "{file}: any certificate will do");
    }
}

#[test]
fn an_engine_loads_the_images_as_the_dockerfile_describes_them() {
    if !tools() {
        return;
    }
    let Some(Boxed { pair: _pair, engine }) = Boxed::start() else { return };
    let executables = stand_ins(&[]);
    let packages = release(executables.path(), "0.1.0", &["images"]);
    engine.docker(&["load", "--input", &packages.path().join("berth-0.1.0-linux-images.tar").display().to_string()]);
    for (name, user, command) in [
        ("agent", "0:0", Some("/berth/cluster.yml")),
        ("metadata", "0:0", None),
        ("dns", "0:0", None),
        ("scheduler", "65534:65534", None),
    ] {
        let described = engine.docker(&["inspect", "--format", "{{json .Config}}", &format!("berth/{name}:0.1.0")]);
        let described: Value = serde_json::from_str(&described).unwrap();
        assert_eq!(described["Entrypoint"][0], format!("/bin/{name}"), "{described}");
        assert_eq!(described["User"], user, "{described}");
        assert_eq!(described["Cmd"][0].as_str(), command, "{described}");
        assert_eq!(described["Healthcheck"]["Interval"], 10_000_000_000_u64, "{described}");
        // The stand-in is a shell of many names, of which this is none: it runs and says so.
        let ran = engine.try_docker(&["run", "--rm", "--network", "none", &format!("berth/{name}")]);
        assert!(ran.as_ref().is_err_and(|error| error.contains("applet not found")), "{ran:?}");
    }
}

#[test]
fn systemd_learns_that_the_agent_serves_lives_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(tests::scaled(Duration::from_secs(10)))).unwrap();
    let any = || {
        let mut text = [0; 4096];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    };
    // What it says of the sockets that it stores is seen in kept_sockets.rs.
    let next = || std::iter::repeat_with(any).find(|text| !text.starts_with("FDSTORE")).unwrap();
    let launch = Launch::agent(&shop()).env("NOTIFY_SOCKET", path.display().to_string());
    let mut agent = launch.env("WATCHDOG_USEC", "200000").start();
    // It lives before it serves, on a busy machine more than once.
    let other = || std::iter::repeat_with(next).find(|text| text != "WATCHDOG=1").unwrap();
    assert_eq!(other(), "READY=1");
    assert_eq!(next(), "WATCHDOG=1");
    agent.stop();
    assert_eq!(other(), "STOPPING=1");

    let nowhere = Launch::agent(&shop()).with("--metadata", "192.0.2.1:1");
    nowhere.env("NOTIFY_SOCKET", path.display().to_string()).run();
    let told = other();
    assert!(told.starts_with("STATUS=cannot listen on 192.0.2.1:1"), "{told}");
}

const MACHINE: &str = include_str!("packages/machine.sh");
const INIT: &str = include_str!("packages/init.sh");
const BEGIN: &str = include_str!("packages/begin.sh");
const INSTALLING: &str = include_str!("packages/installing.sh");
const JOINING: &str = include_str!("packages/joining.sh");

/// Whether this machine lets a test run systemd.
fn has_systemd() -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    let there =
        root && Path::new("/lib/systemd/systemd").exists() && tests::shared::has("systemd-analyze", "--version");
    if !there {
        skip("systemd in a namespace needs root and Debian's systemd");
    }
    there
}

#[test]
fn what_linux_installs_serves_under_systemd_with_few_rights_and_leaves_only_state() {
    if !tools() || !has_systemd() {
        return;
    }
    let executables = stand_ins(&[("linux/agent", &binaries::native("agent"))]);
    let [old, new] = ["0.1.0", "0.2.0"].map(|version| release(executables.path(), version, &["deb", "tar"]));
    let folder = tempfile::tempdir().unwrap();
    for package in [
        old.path().join("berth_0.1.0_amd64.deb"),
        old.path().join("berth-0.1.0-linux-x86_64.tar.gz"),
        new.path().join("berth_0.2.0_amd64.deb"),
    ] {
        fs::copy(&package, folder.path().join(package.file_name().unwrap())).unwrap();
    }
    fs::copy(shop(), folder.path().join("cluster.yml")).unwrap();
    let printed = check(machine(&mut Command::new("bash"), &folder, INSTALLING));
    assert!(printed.contains("berth.service: 1.7 OK"), "{printed}");
}

/// The command that runs these steps on a machine with what is in a folder.
fn machine<'c>(command: &'c mut Command, folder: &TempDir, steps: &str) -> &'c mut Command {
    fs::write(folder.path().join("steps"), format!("{BEGIN}{steps}")).unwrap();
    command.args(["-uc", MACHINE]).env("INIT", INIT).env("FOLDER", folder.path())
}

#[test]
fn a_host_joins_by_its_package_and_what_containers_talk_to_has_no_way_to_the_engine() {
    if !tools() || !has_systemd() {
        return;
    }
    let Some(Boxed { pair, engine }) = Boxed::start() else { return };
    engine.run_box("boxed", &[]);
    let real = ["agent", "scheduler"].map(|name| (format!("linux/{name}"), binaries::native(name)));
    let executables = stand_ins(&real.each_ref().map(|(place, file)| (place.as_str(), file.as_path())));
    let packages = release(executables.path(), "0.1.0", &["deb"]);
    let folder = tempfile::tempdir().unwrap();
    let package = "berth_0.1.0_amd64.deb";
    fs::copy(packages.path().join(package), folder.path().join(package)).unwrap();
    let mut command = Command::new("bash");
    machine(&mut command, &folder, JOINING);
    command.env("ENGINE", engine.socket()).env("NAMESPACE", &pair.host).env("NET", "");
    let printed = check(&mut command);
    let joined = printed.lines().find(|line| line.starts_with("joined within")).unwrap();
    tell(&format!("a host without Berth has {joined}, with the download from this machine"));
    assert!(printed.contains("berth-engine.service: "), "{printed}");
    assert!(printed.contains("berth-network.service: 2.2 OK"), "{printed}");
}

/// Whether the Windows executables were built for this run.
fn windows_executables() -> Option<PathBuf> {
    if std::env::var_os("BERTH_EXECUTABLES").is_some_and(|value| value == "1") {
        return Some(repository().join("target/images/windows"));
    }
    skip("the Windows executables were not built; tests/run --executables does");
    None
}

#[test]
fn windows_executables_say_who_they_are_and_what_they_expect_of_windows() {
    let Some(folder) = windows_executables() else { return };
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    for name in NAMES {
        let resources = tempfile::NamedTempFile::new().unwrap();
        let mut extract = Command::new("x86_64-w64-mingw32-objcopy");
        extract.args(["--output-target=binary", "--only-section=.rsrc"]);
        check(extract.arg(folder.join(format!("{name}.exe"))).arg(resources.path()));
        let content = fs::read(resources.path()).unwrap();
        let has = |bytes: &[u8]| content.windows(bytes.len()).any(|window| window == bytes);
        for text in [
            "VS_VERSION_INFO",
            &format!("OriginalFilename\0{name}.exe"),
            &format!("ProductVersion\0{}", env!("CARGO_PKG_VERSION")),
        ] {
            assert!(has(&utf16(text)), "{name}.exe has no {text}");
        }
        for text in [
            ">true</longPathAware>",
            ">UTF-8</activeCodePage>",
            "level=\"asInvoker\"",
            "{8e0f7a12-bfb3-4fe8-b9a5-48fd50a15a9a}",
        ] {
            assert!(has(text.as_bytes()), "{name}.exe has no {text}");
        }
    }
}

/// The folder that Wine shows as `C:`, and a way to run lines of a command prompt.
struct Prompt {
    drive: PathBuf,
    folder: TempDir,
}

impl Prompt {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let namespace = shell("stat --dereference --format %i /proc/self/ns/net", Path::new("/"));
        let prefixes = std::env::var_os("BERTH_WINE_PREFIXES").map_or_else(|| "/tmp/berth-wine".into(), PathBuf::from);
        Self { drive: prefixes.join(namespace.trim()).join("drive_c"), folder }
    }

    fn run(&self, lines: &str) -> String {
        let script = self.folder.path().join("script.cmd");
        fs::write(&script, format!("@echo off\r\n{}\r\n", lines.replace('\n', "\r\n"))).unwrap();
        let output = run(&mut wine(&["cmd", "/c", &on_windows(&script)]));
        String::from_utf8_lossy(&output.stdout).replace('\r', "") + &String::from_utf8_lossy(&output.stderr)
    }

    fn files(&self) -> Vec<String> {
        shell("find . -type f -o -type l | sort", &self.drive).lines().map(str::to_owned).collect()
    }
}

fn wine(words: &[&str]) -> Command {
    let mut command = Command::new(repository().join("tests/wine/run"));
    command.args(words);
    command
}

/// The path under Wine of a file of this machine.
fn on_windows(path: &Path) -> String {
    format!("Z:{}", path.display().to_string().replace('/', "\\"))
}

#[test]
fn the_installer_for_windows_starts_the_service_keeps_its_arguments_and_leaves_only_log_and_state() {
    let Some(folder) = windows_executables() else { return };
    if !tools() {
        return;
    }
    let executables = stand_ins(&[("windows/agent.exe", &folder.join("agent.exe"))]);
    let [old, new] = ["0.1.0", "0.2.0"].map(|version| release(executables.path(), version, &["msi"]));
    let _alone = tests::shared::Exclusive::take("wine-installer");
    // Wine ends its services with the last other program, and its own begin with the first one, whose outputs they keep.
    let held = ["held", "next"].map(|name| executables.path().join(name));
    for file in &held {
        fs::write(file, "").unwrap();
    }
    let mut beside = wine(&[&executables.path().join("windows/dns.exe").display().to_string()]);
    beside.args(held).arg("3600000").stdout(Stdio::piped());
    let mut beside = tests::Process::start(&mut beside);
    beside.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let prompt = Prompt::start();
    let installer =
        |folder: &TempDir, version| on_windows(&folder.path().join(format!("berth-{version}-windows-x86_64.msi")));
    let cluster = ClusterFolder::new(tests::cluster::shop_text());
    let file = cluster.file();
    let metadata = format!("127.0.0.1:{}", tests::ports::free());
    let arguments = format!(
        "{} --metadata {metadata} --dns 127.0.0.1:0 --scheduler 127.0.0.1:0 --admin 127.0.0.1:0",
        on_windows(&file)
    );
    let answers = || {
        eventually("the service answers", Duration::from_secs(20), || {
            let answer = tests::http::get("/latest/self/container/name").from("127.42.1.11");
            (answer.send(metadata.parse().unwrap()).ok()?.text() == "shop-web-1").then_some(())
        });
    };
    let status = r#""C:\Program Files\Berth\agent.exe" service status"#;
    let service = r"reg query HKLM\SYSTEM\CurrentControlSet\Services\berth /v ImagePath";
    let events = r"reg query HKLM\SYSTEM\CurrentControlSet\Services\EventLog\Application\berth /v EventMessageFile";
    let products = r"reg query HKLM\Software\Microsoft\Windows\CurrentVersion\Uninstall";
    let path = r#"reg query "HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Environment" /v PATH"#;
    // What a run left that was killed.
    let remove = |folder, version| prompt.run(&format!("msiexec /x {} /qn", installer(folder, version)));
    let _ = (remove(&old, "0.1.0"), remove(&new, "0.2.0"));
    for folder in ["ProgramData/Berth", "Program Files/Berth"] {
        let _ = fs::remove_dir_all(prompt.drive.join(folder));
    }
    let before = prompt.files();

    let said = prompt.run(&format!(
        "msiexec /i {} /qn ARGUMENTS=\"{arguments}\"\necho ended %ERRORLEVEL%\n{events}\n{path}",
        installer(&old, "0.1.0")
    ));
    for wanted in ["ended 0\n", "EventCreate.exe", r"C:\Program Files\Berth\"] {
        assert!(said.contains(wanted), "no {wanted} in {said}");
    }
    answers();
    let said = prompt.run(status);
    assert_eq!(said, "berth: running\n");

    // The arguments are those of the version before, and there is one product.
    let said = prompt
        .run(&format!("msiexec /i {} /qn\necho ended %ERRORLEVEL%\n{service}\n{products}", installer(&new, "0.2.0")));
    assert!(said.contains("ended 0\n") && said.contains(&arguments), "{said}");
    assert_eq!(said.matches("Uninstall\\{").count(), 1, "{said}");
    answers();
    // An older one does not replace it.
    let said = prompt.run(&format!("msiexec /i {} /qn\necho ended %ERRORLEVEL%\n{products}", installer(&old, "0.1.0")));
    assert!(!said.contains("ended 0\n") && said.matches("Uninstall\\{").count() == 1, "{said}");

    // The upgrade stopped a service that ran. Wine's installer does not wait for the end of the process, and leaves a program
    // that still ends: here it has ended before.
    prompt.run(r#""C:\Program Files\Berth\agent.exe" service stop"#);
    eventually("the process of the service ends", Duration::from_secs(20), || {
        shell("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true", Path::new("/"))
            .lines()
            .all(|line| !line.contains(r"Program Files\Berth\agent.exe"))
            .then_some(())
    });
    let said = prompt.run(&format!("msiexec /x {} /qn\necho ended %ERRORLEVEL%\n{service}\n{events}\n{products}\n{path}\nreg query HKLM\\Software\\Berth", installer(&new, "0.2.0")));
    assert!(said.contains("ended 0\n"), "{said}");
    for gone in ["ImagePath", "EventCreate", "Uninstall\\{", "Arguments", r"C:\Program Files\Berth"] {
        assert!(!said.contains(gone), "{gone} is left: {said}");
    }
    let left: Vec<_> = prompt.files().into_iter().filter(|file| !before.contains(file)).collect();
    let (ours, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|file| file.starts_with("./ProgramData/Berth/"));
    assert_eq!(others, [""; 0]);
    let is_log = |file: &&String| file.starts_with("./ProgramData/Berth/agent.");
    assert!(ours.iter().any(|file| is_log(&file)) && ours.iter().any(|file| file.contains("/state/")), "{ours:?}");
    assert!(!prompt.drive.join("Program Files/Berth").exists());
    let log = ours.iter().find(is_log).unwrap();
    let log = fs::read_to_string(prompt.drive.join(log)).unwrap();
    assert!(log.matches("service stop").count() == 2 && !log.contains("ERROR"), "{log}");
    fs::remove_dir_all(prompt.drive.join("ProgramData/Berth")).unwrap();
}
