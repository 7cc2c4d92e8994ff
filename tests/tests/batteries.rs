//! The hostile batteries, run against the executables; each has to end with `0 failed`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use tests::battery;
use tests::cluster::{ClusterFolder, shop_text_for};
use tests::shared::{Exclusive, folder, python};
use tests::{Executable, Launch, binaries, fixture, ports, wait};

/// A document with one container, which answers `value` under `latest/self/container/labels/value`.
fn document(value: &str, address: &str) -> String {
    format!(
        "{{\"berth\": 1, \"services\": [{{\"name\": \"web\", \"stack\": \"shop\"}}],\n \"containers\": [{{\"name\": \"probe\", \
         \"primary_ip\": \"127.0.0.1\", \"labels\": {{\"value\": \"{value}\"}}}},\n \
         {{\"name\": \"web-1\", \"service\": \"shop/web\", \"primary_ip\": \"{address}\"}}]}}\n"
    )
}

/// The same as YAML, with the mark at its end.
fn yaml(value: &str, address: &str) -> String {
    format!(
        "berth: 1\nservices:\n- {{ name: web, stack: shop }}\ncontainers:\n\
         - {{ name: probe, primary_ip: 127.0.0.1, labels: {{ value: {value} }} }}\n\
         - {{ name: web-1, service: shop/web, primary_ip: {address} }}\n...\n"
    )
}

/// The same as answers of v0.7.
fn answers(value: &str, address: &str) -> String {
    let container = |uuid: &str, name: &str, address: &str, more: &str| {
        format!(
            "{{\"uuid\": \"{uuid}\", \"name\": \"{name}\", \"primary_ip\": \"{address}\", \"state\": \"running\", \
             \"environment_uuid\": \"e\", \"host_uuid\": \"h\", \"metadata_kind\": \"container\"{more}}}"
        )
    };
    let probe = container("p", "probe", "127.0.0.1", &format!(", \"labels\": {{\"value\": \"{value}\"}}"));
    let web = container(
        "w",
        "web-1",
        address,
        ", \"service_uuid\": \"s\", \"service_name\": \"web\", \"stack_name\": \"shop\"",
    );
    let service = format!(
        "{{\"uuid\": \"s\", \"name\": \"web\", \"stack_name\": \"shop\", \"kind\": \"service\", \"environment_uuid\": \"e\", \
         \"metadata_kind\": \"service\", \"containers\": [{web}]}}"
    );
    let host = "{\"uuid\": \"h\", \"name\": \"host\", \"environment_uuid\": \"e\", \"metadata_kind\": \"host\"}";
    format!(
        "{{\"2016-07-29\": {{\"default\": {{\"containers\": [{probe}, {web}], \"services\": [{service}], \"hosts\": [{host}], \
         \"self\": {{\"host\": {host}}}}}, \"127.0.0.1\": {{\"self\": {{\"container\": {probe}}}}}}}}}\n"
    )
}

/// Runs the lifecycle battery: `arguments` start the executable, `probe` asks it, `good` are two contents with what they answer.
struct Lifecycle<'a> {
    executable: Executable,
    arguments: &'a str,
    probe: &'a str,
    good: [(String, &'a str); 2],
    more: &'a [&'a str],
    /// Groups; all when empty.
    only: &'a str,
}

impl<'a> Lifecycle<'a> {
    /// That of the metadata service, in all groups.
    fn metadata(probe: &'a str, good: [(String, &'a str); 2]) -> Self {
        let (arguments, more) = ("--answers {file} --when-empty unavailable", &["--missing", "unready"]);
        Self { executable: Executable::Metadata, arguments, probe, good, more, only: "" }
    }

    /// That of the DNS service, in all groups.
    fn dns(good: [(String, &'a str); 2]) -> Self {
        let (probe, more) = ("dns://127.0.0.1:{port}/web.shop.rancher.internal", &["--missing", "unready"]);
        Self { executable: Executable::Dns, arguments: "--source file:{file}", probe, good, more, only: "" }
    }

    fn run(&self) {
        if !ready_to_run() {
            return;
        }
        let (Some(shared), Some(mut python)) = (folder(), python()) else { return };
        let _processors = Exclusive::processors();
        let files = ClusterFolder::empty();
        let admin = ports::free();
        let path = |name: &str| files.path(name).display().to_string();
        let file = path("cluster");
        let executable = binaries::path(self.executable.name());
        let arguments = self.arguments.replace("{file}", &file);
        let start =
            format!("{} --listen 127.0.0.1:{{port}} {arguments} --admin 127.0.0.1:{admin}", executable.display());
        std::fs::write(path("good"), &self.good[0].0).unwrap();
        std::fs::write(path("good2"), &self.good[1].0).unwrap();
        let scaled = |seconds: f64| (seconds * wait::scale()).to_string();
        python.arg(shared.join("batteries/lifecycle.py"));
        python.args(["--start", &start, "--file", &file, "--good", &path("good"), "--good2", &path("good2")]);
        python.args(["--probe", self.probe, "--expect1", self.good[0].1, "--expect2", self.good[1].1]);
        python.args(["--reload", &format!("curl -fsS -m 5 -X POST http://127.0.0.1:{admin}/v1/reload")]);
        python.args(["--ready", &scaled(0.1), "--settle", &scaled(1.0), "--drain", &scaled(3.0)]);
        python.args(self.more);
        if !self.only.is_empty() {
            python.args(["--only", self.only]);
        }
        battery::pass(&mut python, &format!("lifecycle of {} ({})", self.executable.name(), self.only));
    }
}

/// What the batteries need beside Python.
fn ready_to_run() -> bool {
    tests::shared::there(&[("curl", "--version")], "curl")
}

const METADATA: &str = "http://127.0.0.1:{port}/latest/self/container/labels/value";

/// A wait that is pending while the service stops.
const WAIT: &str = "/latest/self/container/labels/value?wait=true&value=one&maxWait=60";

#[test]
fn metadata_keeps_its_promises_over_its_life() {
    let good = [(document("one", "192.0.2.1"), "^200 one$"), (document("two", "192.0.2.2"), "^200 two$")];
    Lifecycle { more: &["--missing", "unready", "--wait", WAIT], ..Lifecycle::metadata(METADATA, good) }.run();
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
    python.args(["--pid", &service.pid().to_string()]);
    python.args(["--secret", "tok-web-secret", "--owner", "127.42.1.11"]);
    python.args(["--header-timeout", &scaled(15.0), "--release-s", &scaled(2.0)]).args(more);
    battery::pass(&mut python, name);
    assert!(service.is_running());
}

#[test]
fn metadata_bears_abuse() {
    if ready_to_run() {
        abuse("abuse of metadata", &[], &["--idle", &(75.0 * wait::scale()).to_string()]);
    }
}

#[test]
fn metadata_bears_abuse_when_it_is_strict() {
    if ready_to_run() {
        let flags = ["--strict-host", "--reject-forwarded", "--tokens=optional", "--cors=off", "--idle=10"];
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

#[test]
fn dns_keeps_its_promises_over_its_life() {
    let good =
        [(document("one", "192.0.2.1"), "^NOERROR 192.0.2.1$"), (document("two", "192.0.2.2"), "^NOERROR 192.0.2.2$")];
    Lifecycle::dns(good).run();
}

/// The groups in which the form of the file matters.
const OF_FORMS: &str = "bad,kill";

/// For the forms beside JSON.
#[test]
fn every_form_of_the_file_is_kept_through_bad_contents() {
    let yaml = [yaml("one", "192.0.2.1"), yaml("two", "192.0.2.2")];
    let answers = [answers("one", "192.0.2.1"), answers("two", "192.0.2.2")];
    for [one, two] in [yaml, answers] {
        let good = [(one.clone(), "^200 one$"), (two.clone(), "^200 two$")];
        Lifecycle { only: OF_FORMS, ..Lifecycle::metadata(METADATA, good) }.run();
        let good = [(one, "^NOERROR 192.0.2.1$"), (two, "^NOERROR 192.0.2.2$")];
        Lifecycle { only: OF_FORMS, ..Lifecycle::dns(good) }.run();
    }
}

/// Saved answers of v0.8 and later, against a document as the other good file.
#[test]
fn saved_answers_are_kept_through_bad_contents() {
    let saved = std::fs::read_to_string(fixture("metadata/answers.delta.json")).unwrap();
    let good = [(saved, "^200 [Hh]ost"), (shop_text_for("win-2022"), "^200 win-2022$")];
    let probe = "http://127.0.0.1:{port}/latest/self/host/name";
    Lifecycle { only: OF_FORMS, ..Lifecycle::metadata(probe, good) }.run();
}
