//! The recordings of the originals, replayed against the executables; each has to end with `0 failed`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::cluster::ClusterFolder;
use tests::shared::{Exclusive, folder, python};
use tests::{Launch, Process, Question, Service, eventually};

const LIMIT: Duration = Duration::from_secs(10);

/// Most lines of a replay that are shown when it failed.
const SHOWN_MAX: usize = 60;

/// Runs a replay; it has to count no failure.
fn replay(python: Command, script: &Path, record: &Path, to: SocketAddr) {
    let mut command = python;
    command.arg(script).arg(record).arg(to.ip().to_string()).arg(to.port().to_string());
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let last = printed.lines().last().unwrap_or_default();
    let shown: Vec<_> = printed.lines().take(SHOWN_MAX).collect();
    let good = output.status.success() && last.ends_with(" passed, 0 failed") && !last.starts_with("0 ");
    assert!(good, "{}: {last}\n{}", record.display(), shown.join("\n"));
    tests::tell(&format!("{}: {last}", record.file_name().unwrap().to_string_lossy()));
}

/// Replays one record of the metadata service.
fn metadata(record: &str, prepare: impl FnOnce(&Path, &ClusterFolder) -> Service) {
    let (Some(shared), Some(python)) = (folder(), python()) else { return };
    let compat = shared.join("compat");
    let files = ClusterFolder::empty();
    let mut service = prepare(&compat.join("metadata"), &files);
    let to = service.address();
    replay(python, &compat.join("replay_metadata.py"), &compat.join("metadata").join(record), to);
    assert!(service.is_running());
}

/// The service from a file that is ready.
fn ready(file: &Path) -> Service {
    let mut service = Launch::metadata(file).start();
    service.ready();
    service
}

#[test]
fn metadata_answers_as_0_10_4_did() {
    metadata("0.10.4.json", |recorded, _| ready(&recorded.join("answers.delta.json")));
}

#[test]
fn metadata_answers_as_0_10_4_did_after_two_reloads() {
    metadata("0.10.4_reloaded.json", |recorded, _| {
        let mut service = ready(&recorded.join("answers.delta.json"));
        for _ in 0..2 {
            assert_eq!(service.reload().text(), "OK");
        }
        service
    });
}

#[test]
fn metadata_answers_as_0_10_4_did_behind_a_proxy() {
    metadata("0.10.4_xff.json", |recorded, _| {
        let mut service = Launch::metadata(&recorded.join("answers.delta.json")).flag("--xff").start();
        service.ready();
        service
    });
}

#[test]
fn metadata_answers_as_0_10_4_did_without_data() {
    metadata("0.10.4_empty.json", |_, files| Launch::metadata(&files.file()).start());
}

#[test]
fn metadata_answers_as_0_7_4_did_from_yaml() {
    metadata("0.7.4.json", |recorded, _| ready(&recorded.join("answers.yml")));
}

#[test]
fn metadata_answers_as_0_7_4_did_from_json() {
    metadata("0.7.4_json.json", |recorded, files| {
        let text = std::fs::read_to_string(recorded.join("answers.yml")).unwrap();
        let value = source::format::parse(&text).unwrap().value(model::scalar::yaml11);
        files.write(serde_json::to_string(&value).unwrap());
        ready(&files.file())
    });
}

/// Starts the upstream of the recordings.
fn upstream(mut python: Command, compat: &Path, files: &ClusterFolder, names: &[String]) -> Process {
    python.arg(compat.join("dns/fake_upstream.py")).arg(files.path("upstream.log")).args(names);
    let upstream = Process::start(python.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    let address: SocketAddr = names[0].split_once('=').unwrap().1.parse().unwrap();
    let question = Question::a("www.example.com").within(Duration::from_millis(200));
    eventually("the upstream answers", LIMIT, || question.send(address).ok().map(drop));
    upstream
}

/// The ports that the recorded answers file names as upstreams, below those that systems give away by themselves.
fn upstreams() -> Vec<String> {
    ["first", "second", "dead", "refuse"]
        .iter()
        .zip(15354..)
        .map(|(name, port)| format!("{name}=127.0.0.1:{port}"))
        .collect()
}

#[test]
fn dns_answers_as_the_original_did() {
    let (Some(shared), Some(python), Some(other)) = (folder(), python(), python()) else { return };
    let _ports = Exclusive::take("recorded-upstreams");
    let compat = shared.join("compat");
    let files = ClusterFolder::empty();
    let _upstream = upstream(other, &compat, &files, &upstreams());

    // From a metadata service; the system's upstream was the first one.
    let mut metadata = ready(&compat.join("metadata/answers.delta.json"));
    let launch = Launch::dns().following(metadata.address()).with("--ttl", "1").with("--upstream", "127.0.0.1:15354");
    let mut dns = launch.start();
    dns.ready();
    replay(python, &compat.join("replay_dns.py"), &compat.join("dns/metadata_mode.json"), dns.address());

    // From its own answers file.
    let Some(python) = tests::shared::python() else { return };
    let mut dns = Launch::dns().with("--answers", compat.join("dns/dns-answers.json")).start();
    dns.ready();
    replay(python, &compat.join("replay_dns.py"), &compat.join("dns/file_mode.json"), dns.address());
}
