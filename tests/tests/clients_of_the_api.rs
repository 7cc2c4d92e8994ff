//! Clients written for the original by others, unchanged: `PyPI`'s `rancher_metadata`, npm's `fetch-rancher-metadata`, curl.
//!
//! They are installed below `target/clients` when they are used for the first time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::cluster::ClusterFolder;
use tests::installed::{installed, python_packages};
use tests::namespace::Pair;
use tests::shared::there;
use tests::{Executable, Launch, eventually, fixture, http};

const LIMIT: Duration = Duration::from_secs(15);

/// A container of the recorded answers that has a service with metadata.
const CLIENT: &str = "127.42.1.11";

/// The address of the container in the namespace.
const CONTAINER: &str = "10.42.0.7";

const CLUSTER: &str = r#"berth: 1
host: here
environment: { name: Example }
hosts:
- { name: here, agent_ip: 10.42.0.1, memory: 8GiB, milli_cpu: 4000 }
services:
- { name: web, stack: shop, metadata: { config: { port: 8080, deep: { list: [1, 2.5, "three"] } } } }
containers:
- { name: shop-web-1, service: shop/web, host: here, primary_ip: 10.42.0.7 }
...
"#;

fn start() -> (tests::Service, SocketAddr) {
    let mut service = Launch::metadata(&fixture("metadata/answers.delta.json")).start();
    service.ready();
    let address = service.address();
    (service, address)
}

/// The Python with `rancher_metadata`.
fn python() -> Option<PathBuf> {
    let bin = if there(&[("python3", "--version")], "python3") {
        python_packages("clients", &["rancher_metadata==0.17.15"])
    } else {
        None
    };
    Some(bin?.join("python3"))
}

/// How the client changes what it reads.
#[derive(Clone, Copy)]
enum Reading {
    /// Not at all; an answer that is not found becomes nothing.
    Plain,
    /// Text becomes a number.
    Number,
    /// A list of containers becomes a map by name, with numbers as numbers.
    ByName,
    /// A container's numbers are numbers.
    Container,
    /// Each container's numbers are numbers.
    Containers,
}

/// A method with its arguments, what it reads below the version, and how.
const CALLS: [(&str, &str, &str, Reading); 34] = [
    ("get_services", "{}", "services", Reading::Plain),
    ("get_service", "{}", "self/service", Reading::Plain),
    ("get_service", r#"{"service_name": "api"}"#, "self/stack/services/api", Reading::Plain),
    ("get_service", r#"{"service_name": "db", "stack_name": "data"}"#, "stacks/data/services/db", Reading::Plain),
    ("get_service", r#"{"service_name": "nowhere"}"#, "self/stack/services/nowhere", Reading::Plain),
    ("get_service_field", r#"{"field": "kind"}"#, "self/service/kind", Reading::Plain),
    (
        "get_service_field",
        r#"{"field": "uuid", "service_name": "api", "stack_name": "Shop"}"#,
        "stacks/Shop/services/api/uuid",
        Reading::Plain,
    ),
    ("get_service_scale_size", "{}", "self/service/scale", Reading::Plain),
    ("get_service_containers", "{}", "self/service/containers", Reading::ByName),
    ("wait_service_containers", "{}", "self/service/containers", Reading::ByName),
    ("get_service_metadata", "{}", "self/service/metadata", Reading::Plain),
    (
        "get_service_metadata",
        r#"{"service_name": "prometheus", "stack_name": "mon"}"#,
        "stacks/mon/services/prometheus/metadata",
        Reading::Plain,
    ),
    ("get_service_links", "{}", "self/service/links", Reading::Plain),
    ("get_stacks", "{}", "stacks", Reading::Plain),
    ("get_stack", "{}", "self/stack", Reading::Plain),
    ("get_stack", r#"{"stack_name": "mon"}"#, "stacks/mon", Reading::Plain),
    ("get_stack", r#"{"stack_name": "nowhere"}"#, "stacks/nowhere", Reading::Plain),
    ("get_stack_services", "{}", "self/stack/services", Reading::Plain),
    ("get_stack_services", r#"{"stack_name": "data"}"#, "stacks/data/services", Reading::Plain),
    ("get_containers", "{}", "containers", Reading::Containers),
    ("get_container", "{}", "self/container", Reading::Container),
    ("get_container", r#"{"container_name": "data-db-1"}"#, "containers/data-db-1", Reading::Container),
    ("get_container_create_index", "{}", "self/container/create_index", Reading::Number),
    ("get_container_ip", "{}", "self/container/primary_ip", Reading::Plain),
    ("get_container_ip", r#"{"container_name": "Shop-api-1"}"#, "containers/Shop-api-1/primary_ip", Reading::Plain),
    ("get_container_name", "{}", "self/container/name", Reading::Plain),
    ("get_container_service_name", "{}", "self/container/service_name", Reading::Plain),
    ("get_container_stack_name", "{}", "self/container/stack_name", Reading::Plain),
    ("get_container_service_index", "{}", "self/container/service_index", Reading::Number),
    ("get_container_host_uuid", "{}", "self/container/host_uuid", Reading::Plain),
    ("get_hosts", "{}", "hosts", Reading::Plain),
    ("get_host", r#"{"host_name": "Host2"}"#, "hosts/Host2", Reading::Plain),
    ("get_host_ip", "{}", "self/host/agent_ip", Reading::Plain),
    ("get_host_name", "{}", "self/host/name", Reading::Plain),
];

fn number(value: &Value) -> Value {
    value.as_str().and_then(|text| text.parse::<i64>().ok()).map_or_else(|| value.clone(), |number| json!(number))
}

fn container(mut container: Value) -> Value {
    for key in ["create_index", "service_index"] {
        if container[key].is_string() {
            container[key] = number(&container[key]);
        }
    }
    container
}

/// What the client should make of an answer.
fn read(reading: Reading, answer: &http::Response) -> Value {
    if answer.status == 404 {
        assert_eq!(answer.value()["code"], 404);
        return Value::Null;
    }
    let value = answer.value();
    let list = |value: Value| -> Vec<Value> { value.as_array().unwrap().iter().cloned().map(container).collect() };
    match reading {
        Reading::Plain => value,
        Reading::Number => number(&value),
        Reading::Container => container(value),
        Reading::Containers => list(value).into(),
        Reading::ByName => list(value)
            .into_iter()
            .map(|container| (container["name"].as_str().unwrap().to_owned(), container))
            .collect(),
    }
}

#[test]
fn rancher_metadata_of_pypi_reads_what_is_sent() {
    let Some(python) = python() else { return };
    let (_service, address) = start();
    let calls: Vec<_> = CALLS
        .iter()
        .map(|(method, arguments, ..)| json!([method, serde_json::from_str::<Value>(arguments).unwrap()]))
        .collect();
    // Names are in lower case from 2016-07-29 on.
    for (version, name) in [("2015-12-19", "Shop-Web-1"), ("latest", "shop-web-1")] {
        let mut command = Command::new(&python);
        command.arg(fixture("clients/calls.py")).arg(format!("http://{address}/{version}"));
        let output = command.arg(CLIENT).arg(Value::from(calls.clone()).to_string()).output().unwrap();
        assert!(output.status.success(), "{}{}", lossy(&output.stdout), lossy(&output.stderr));
        let results: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(results.len(), CALLS.len());
        for ((method, arguments, path, reading), result) in CALLS.iter().zip(results) {
            let answer = http::get(format!("/{version}/{path}")).json().from(CLIENT).ask(address);
            assert_eq!(result, read(*reading, &answer), "{version} {method} {arguments}");
            assert_eq!(result.is_null(), path.ends_with("nowhere"), "{version} {method} {arguments} of {path}");
            match *method {
                "get_container_name" => assert_eq!(result, name, "{version}"),
                "get_container_ip" if *arguments == "{}" => assert_eq!(result, CLIENT),
                "get_service_scale_size" => assert_eq!(result, 3),
                _ => {}
            }
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A container with the resolver configuration that it would have; its namespace's file is removed at the end.
struct Container {
    pair: Pair,
    files: PathBuf,
}

impl Container {
    fn new() -> Option<Self> {
        let pair = Pair::try_new(CONTAINER)?;
        let files = Path::new("/etc/netns").join(&pair.container);
        let container = Self { pair, files };
        let search = "search web.shop.rancher.internal shop.rancher.internal rancher.internal";
        std::fs::create_dir_all(&container.files).unwrap();
        std::fs::write(container.files.join("resolv.conf"), format!("{search}\nnameserver 169.254.169.251\n")).unwrap();
        Some(container)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.files);
    }
}

#[test]
fn fetch_rancher_metadata_of_npm_finds_the_service_by_name_and_reads_it() {
    if !there(&[("node", "--version"), ("npm", "--version"), ("ip", "-V")], "nodejs, npm, iproute2") {
        return;
    }
    let script = installed("clients", "node_modules/fetch-rancher-metadata/bin/fetch-rancher-metadata.js", |folder| {
        let mut command = Command::new("npm");
        command.args([
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "fetch-rancher-metadata@1.0.34",
            "--prefix",
        ]);
        command.arg(folder);
        command
    });
    let (Some(script), Some(container)) = (script, Container::new()) else { return };
    let folder = ClusterFolder::new(CLUSTER);
    let launch =
        |executable| Launch::bare(executable).logged().flag("--add-address").in_namespace(&container.pair.host);
    let mut metadata = launch(Executable::Metadata).with("--answers", folder.file()).start();
    let mut dns = launch(Executable::Dns).with("--metadata-server", "169.254.169.250").start();
    assert_eq!(metadata.address().to_string(), "169.254.169.250:80");
    assert_eq!(dns.address().to_string(), "169.254.169.251:53");
    let work = folder.file().parent().unwrap().to_owned();
    let fetch = |arguments: &str| {
        let line = format!("cd {} && exec node {} {arguments}", work.display(), script.display());
        container.pair.in_container(&["sh", "-c", &line])
    };
    eventually("the client's first answer", LIMIT, || (fetch("--get container/name") == "shop-web-1\n").then_some(()));
    assert_eq!(fetch("--get service/scale"), "1\n");
    assert_eq!(fetch("--get stack/environment_name"), "example\n");
    assert_eq!(fetch("--get container/ips"), "[ '10.42.0.7' ]\n");
    assert!(fetch("--get container/nothing").contains("code: 404"), "{}", fetch("--get container/nothing"));

    // The service's metadata, merged into a file of the container.
    std::fs::write(work.join("Application-Config.json"), r#"{"port": 1, "own": true}"#).unwrap();
    let printed = fetch("");
    let merged: Value = serde_json::from_slice(&std::fs::read(work.join("Application-Config.json")).unwrap()).unwrap();
    assert_eq!(merged, json!({"port": 8080, "own": true, "deep": {"list": [1, 2.5, "three"]}}), "{printed}");

    fetch("--e");
    let variables = std::fs::read_to_string(work.join("rancher-env.sh")).unwrap();
    for line in ["RANCHER_SERVICE_NAME=web", "RANCHER_STACK_NAME=shop", "RANCHER_ENV_NAME=example"] {
        assert!(variables.contains(&format!("export {line}\n")), "{variables}");
    }
    std::fs::write(work.join("app.conf"), "me=__NAME__\n").unwrap();
    fetch("--file app.conf --replacefullname __NAME__");
    assert_eq!(std::fs::read_to_string(work.join("app.conf")).unwrap(), "me=web.shop\n");
}

/// Arguments of curl, with `URL` for the address, and what it prints.
const CURL: [(&[&str], &str); 13] = [
    (&["URL/latest/self/container/name"], "shop-web-1"),
    (&["--http1.0", "URL/latest/self/container/name"], "shop-web-1"),
    (&["--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_code}", "URL/latest"], "000"),
    (&["--compressed", "URL/latest/self/container/name"], "shop-web-1"),
    (&["-H", "Accept: application/json", "URL/latest/self/service/scale"], "3"),
    (&["-H", "Accept: application/json", "URL/latest/self/service/metadata/simple"], "\"value\""),
    // Two on one connection.
    (
        &["-w", " %{num_connects};", "URL/latest/self/host/name", "URL/latest/self/service/kind"],
        "host1.example.org 1;service 0;",
    ),
    (&["-o", "/dev/null", "-w", "%{http_code}", "URL/latest/nothing"], "404"),
    (&["--fail", "-w", "%{http_code}", "URL/latest/nothing"], "404"),
    (&["-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", "URL//latest//self/"], "301 URL/latest/self/"),
    (&["-L", "URL//latest//self/container/name"], "shop-web-1"),
    (
        &[
            "-I",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{size_download} %{content_type}",
            "URL/latest/self/container/name",
        ],
        "200 0 text/plain; charset=utf-8",
    ),
    (&["-X", "POST", "-d", "x=1", "-o", "/dev/null", "-w", "%{http_code}", "URL/latest"], "404"),
];

#[test]
fn curl_reads_what_is_sent() {
    if !there(&[("curl", "--version")], "curl") {
        return;
    }
    let (_service, address) = start();
    let url = format!("http://{address}");
    for (arguments, expected) in CURL {
        let mut command = Command::new("curl");
        command.args(["-s", "-m", "10", "--path-as-is", "--interface", CLIENT]);
        command.args(arguments.iter().map(|argument| argument.replace("URL", &url)));
        let output = command.output().unwrap();
        assert_eq!(lossy(&output.stdout), expected.replace("URL", &url), "{arguments:?} {}", lossy(&output.stderr));
    }
}
