//! The hostile batteries, run against the executables; each has to end with `0 failed`.
//!
//! Against Windows executables under Wine they are shorter (see `tests::battery::is_short`).
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use tests::battery;
use tests::cluster::{ClusterFolder, shop_text_for};
use tests::shared::{Exclusive, folder, python};
use tests::{Launch, fixture, wait};

/// What the batteries need beside Python.
fn ready_to_run() -> bool {
    tests::shared::there(&[("curl", "--version")], "curl")
}

/// Runs the battery of HTTP abuse against the metadata service with these flags.
fn abuse(name: &str, flags: &[&str], more: &[&str]) {
    let (Some(shared), Some(mut python)) = (folder(), python()) else { return };
    let _processors = Exclusive::processors();
    let files = ClusterFolder::empty();
    let path = |name: &str| files.path(name).display().to_string();
    let file = files.path("answers.json");
    std::fs::copy(fixture("metadata/answers.delta.json"), &file).unwrap();
    for account in ["QAKEY", "STGKEY"] {
        let beside = fixture(&format!("metadata/answers.delta.json_{account}"));
        std::fs::copy(beside, files.path(&format!("answers.json_{account}"))).unwrap();
    }
    // What is published while thousands wait has the place that is asked for all the time, too.
    std::fs::write(path("next"), shop_text_for("win-2022")).unwrap();
    let launch = flags.iter().fold(Launch::metadata(&file), Launch::word);
    let mut service = launch.start();
    service.ready();
    let (address, admin) = (service.address(), service.admin());
    let publish = format!("cp {} {} && curl -fsS -m 9 -X POST http://{admin}/v1/reload", path("next"), file.display());
    let scaled = |seconds: f64| (seconds * wait::scale()).to_string();
    python.arg(shared.join("batteries/http_abuse.py"));
    python.args([&address.ip().to_string(), &address.port().to_string()]);
    python.args(["--path", "/latest/self/host/name", "--big", "/latest/containers"]);
    python.args(["--wait", "/latest/version?wait=true&value={value}&maxWait={max}", "--release", &publish]);
    battery::watch(&mut python, &service);
    if battery::is_short() {
        python.args(["--conns", "200", "--waiters", "200"]);
    }
    python.args(["--secret", "tok-web-secret", "--owner", "127.42.1.11"]);
    python.args(["--header-timeout", &scaled(15.0), "--release-s", &scaled(2.0)]).args(more);
    battery::pass(&mut python, name);
    assert!(service.is_running());
}

#[test]
fn metadata_bears_abuse() {
    // By default a connection may idle for a minute, which is waited for with `tests/run --long` only.
    let (flags, idle): (&[&str], _) = if battery::is_long() { (&[], 75.0) } else { (&["--idle=10"], 20.0) };
    if !battery::is_short() && ready_to_run() {
        abuse("abuse of metadata", flags, &["--idle", &(idle * wait::scale()).to_string()]);
    }
}

#[test]
fn metadata_bears_abuse_when_it_is_strict() {
    if ready_to_run() {
        let flags = ["--strict", "--tokens=optional", "--client-rate=0", "--idle=10"];
        let idle = (20.0 * wait::scale()).to_string();
        abuse("abuse of strict metadata", &flags, &["--reject-host", "--reject-xff", "--idle", &idle]);
    }
}

/// Containers that all bear the stamp of their version.
fn stamped() -> String {
    let container = |number| format!("{{\"name\": \"c{number}\", \"labels\": {{\"stamp\": \"v0\"}}}}");
    let containers: Vec<_> = (0..STAMPS).map(container).collect();
    format!("{{\"berth\": 1, \"containers\": [{}]}}\n", containers.join(", "))
}

const STAMPS: usize = 40;

/// Version after version under readers who never stop, and followers who wait for each.
#[test]
fn metadata_bears_churn() {
    if !ready_to_run() {
        return;
    }
    let (Some(shared), Some(mut python)) = (folder(), python()) else { return };
    let _processors = Exclusive::processors();
    let files = ClusterFolder::empty();
    let (file, template, next) = (files.path("answers.json"), files.path("template"), files.path("next"));
    std::fs::write(&file, stamped()).unwrap();
    std::fs::write(&template, stamped()).unwrap();
    let mut service = Launch::metadata(&file).start();
    service.ready();
    let (address, admin) = (service.address(), service.admin());
    let publish = format!(
        "sed s/v0/v{{n}}/g {} > {} && mv {} {} && curl -fsS -m 9 -X POST http://{admin}/v1/reload",
        template.display(),
        next.display(),
        next.display(),
        file.display()
    );
    python.arg(shared.join("batteries/churn.py"));
    python.args(["http", &address.ip().to_string(), &address.port().to_string(), "--publish", &publish]);
    python.args(["--path", "/latest/containers", "--stamps", &STAMPS.to_string()]);
    python.args(["--wait", "/latest/containers/0/labels/stamp?wait=true&value={value}&maxWait={max}"]);
    python.args(["--pid", &service.pid().to_string(), "--fresh", &wait::scale().to_string()]);
    battery::pass(&mut python, "changes of metadata");
    assert!(service.is_running());
}
