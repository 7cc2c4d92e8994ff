//! The battery of a service's life, run against the executables: how soon it is ready, what it makes of bad contents, how it
//! stops, how it comes back. Much of it is about time, so that nothing else should run beside.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use tests::battery;
use tests::cluster::{ClusterFolder, shop_text_for};
use tests::service::NO_NAME_SERVER;
use tests::shared::{Exclusive, folder, python};
use tests::{Executable, binaries, fixture, ports, wait};

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
        if !tests::shared::there(&[("curl", "--version")], "curl") {
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
        python.arg(shared.join("batteries/lifecycle.py")).env(NO_NAME_SERVER.0, NO_NAME_SERVER.1);
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

const METADATA: &str = "http://127.0.0.1:{port}/latest/self/container/labels/value";

/// A wait that is pending while the service stops.
const WAIT: &str = "/latest/self/container/labels/value?wait=true&value=one&maxWait=60";

#[test]
fn metadata_keeps_its_promises_over_its_life() {
    let good = [(document("one", "192.0.2.1"), "^200 one$"), (document("two", "192.0.2.2"), "^200 two$")];
    Lifecycle { more: &["--missing", "unready", "--wait", WAIT], ..Lifecycle::metadata(METADATA, good) }.run();
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
