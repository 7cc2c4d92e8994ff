//! The page of a running agent, as a browser shows it; and what it answers to other programs.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tests::battery::is_long;
use tests::certificates::Authority;
use tests::cluster::{ClusterFolder, shop_text};
use tests::wait::seconds;
use tests::{Executable, Launch, Service, http, repository, skip};

/// A container that Prometheus asks, and one that has a secret in a label.
const MORE: &str = "
- name: measured
  host: linux-1
  primary_ip: 127.42.3.91
  labels: { io.berth.metrics.port: \"9100\", db_password: hunter2 }
";

/// How much of each there is in a large cluster.
const HOSTS: usize = 5000;
const SERVICES: usize = 3000;
const CONTAINERS: usize = 100_000;

/// What the balancer of the cluster does.
const RULES: &str = "  kind: loadBalancerService
  lb_config: { port_rules: [{ source_port: 8080, hostname: shop.example.org, service: shop/web, target_port: 80 }] }
";

/// A service whose name is markup.
const HOSTILE: &str = "
- name: \"<img src=x onerror=alert(1)>\"
  stack: shop
  labels: { \"<b>\": \"]]>\" }
";

fn cluster() -> (ClusterFolder, String) {
    let text = shop_text().replacen("  kind: loadBalancerService\n", RULES, 1);
    let text = format!("{}{MORE}", text.trim_end_matches("...\n"));
    (ClusterFolder::new(&text), text)
}

/// 5,000 hosts in three zones with 100,000 containers of 3,000 services, of which a few are not as they should be.
fn large() -> String {
    let mut text = "berth: 1\nenvironment: { name: large }\nhosts:\n".to_owned();
    for host in 0..HOSTS {
        let (zone, system) = (["a", "b", "c"][host % 3], host % 5);
        let builds = ["17763", "20348", "26100", "20348"];
        let labels = builds.get(system).map_or_else(
            || "io.rancher.host.os: linux".to_owned(),
            |build| format!("io.rancher.host.os: windows, io.rancher.host.windows_build: \"{build}\""),
        );
        let state = if host % 997 == 5 { ", state: inactive" } else { "" };
        let address = format!("10.200.{}.{}", host / 250, host % 250 + 1);
        let _ = writeln!(
            text,
            "- {{ name: host-{host:04}, agent_ip: {address}, milli_cpu: 16000, memory: 64GiB, local_storage_mb: 409600{state}, \
             labels: {{ {labels}, zone: {zone} }} }}"
        );
    }
    text.push_str("networks:\n- { name: transparent, is_default: true, host_ports: true }\nservices:\n");
    let service = |number: usize| match number {
        0 => "shop/web".to_owned(),
        _ => format!("team-{:02}/service-{number:04}", number % 60),
    };
    for number in 0..SERVICES {
        let path = service(number);
        let (stack, name) = path.split_once('/').expect("it has a stack");
        let _ = writeln!(text, "- {{ name: {name}, stack: {stack}, ports: [\"8080:80/tcp\"] }}");
    }
    text.push_str("containers:\n");
    for number in 0..CONTAINERS {
        let (path, copy) = (service(number % SERVICES), number / SERVICES + 1);
        let name = path.replace('/', "-");
        // More at the beginning of each thousand hosts, as where new ones were added later.
        let (host, many) = (number * 7 % HOSTS, number * 7 % HOSTS % 1000 / 100);
        let memory = 512 + 256 * (10 - many) % 2300;
        let health = if number % 9973 == 1 { "unhealthy" } else { "healthy" };
        let address = format!("10.{}.{}.{}", number / 62_500 + 1, number / 250 % 250, number % 250 + 1);
        let _ = writeln!(
            text,
            "- {{ name: {name}-{copy}, service: {path}, host: host-{host:04}, primary_ip: {address}, health_state: {health}, \
             memory_reservation: {memory}MiB, milli_cpu_reservation: {} }}",
            200 + 50 * (host % 7)
        );
    }
    text + "...\n"
}

fn agent(file: &Path) -> Service {
    let mut agent = Launch::agent(file).start();
    agent.ready();
    agent
}

#[test]
fn every_view_answers_without_script_and_to_nobody_elses_pages() {
    let (folder, _) = cluster();
    let mut agent = agent(&folder.file());
    let page = agent.address_of("ui");
    for (path, expected) in [
        ("/ui/", "shop-web-3"),
        ("/ui/hosts", "build 20348"),
        ("/ui/hosts?q=zone%3Ab", "1 of 3 hosts"),
        ("/ui/services", "beside web"),
        ("/ui/stacks", "No stack yet"),
        ("/ui/names?name=web&client=shop-web-1", "127.42.2.11"),
        ("/ui/placements/explain?image=web&memory=30GiB", "It fits on 1 of 3 hosts."),
        ("/ui/placements/explain?image=web&memory=much", "resources.memory"),
        ("/ui/placements/what-if?lose=win-2025", "has a place"),
        ("/ui/placements/rebalance?moves=5", "imbalance"),
        ("/ui/changes", "Table of changes"),
        ("/ui/search?q=shop-web-1", "127.42.1.11"),
    ] {
        let answer = http::get(path).ask(page);
        assert_eq!(answer.status, 200, "{path}");
        let text = answer.text();
        assert!(text.contains(expected), "{path}: no {expected} in {text}");
        assert!(text.len() <= 150_000, "{path}: {} bytes", text.len());
    }
    for path in ["/ui/hosts/none", "/ui/stacks/none"] {
        assert_eq!(http::get(path).ask(page).status, 404, "{path}");
    }
    let services = http::get("/ui/services?q=shop%2Flb").ask(page).text();
    let link = services.split("/ui/services/").nth(1).unwrap().split('"').next().unwrap();
    let balancer = http::get(format!("/ui/services/{link}")).ask(page).text();
    for expected in ["shop.example.org", "127.42.1.11:80", "services/shop/lb"] {
        assert!(balancer.contains(expected), "no {expected} in {balancer}");
    }
    let image = r#"{"name": "shop/new:1", "platforms": [{"os": "windows", "os_version": "10.0.26100.1"}]}"#;
    let placed = http::post("/v1/placements", format!(r#"{{"image": {image}}}"#)).ask(agent.address_of("scheduler"));
    assert!(placed.text().contains("win-2025"), "{}", placed.text());
    let refusal = "shop/new:1 is for windows 26100.1, host is ";
    for (host, expected) in [("linux-1", refusal), ("win-2022", refusal), ("win-2025", "windows 10.0.26100.1 process")]
    {
        let hosts = http::get(format!("/ui/hosts?q={host}")).ask(page).text();
        let link = hosts.split("/ui/hosts/").nth(1).unwrap().split('"').next().unwrap();
        let text = http::get(format!("/ui/hosts/{link}")).ask(page).text();
        assert!(text.contains(expected), "{host}: no {expected} in {text}");
    }
    let found = http::get("/ui/search?q=measured").ask(page).text();
    let link = found.split("/ui/containers/").nth(1).unwrap().split('"').next().unwrap();
    let container = http::get(format!("/ui/containers/{link}")).ask(page).text();
    assert!(container.contains("db_password=•••") && !container.contains("hunter2"), "{container}");
    let targets = http::get("/v1/prometheus").ask(agent.admin()).text();
    assert!(targets.contains(r#"["127.42.3.91:9100"]"#), "{targets}");
}

/// What curl prints for a path of the page over TLS, and the code of the response after it.
fn over_tls(authority: &Path, arguments: &[&str], url: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--include", "--write-out", " code=%{http_code}", "--cacert"])
        .arg(authority);
    let ended = curl.args(arguments).arg(url).output().expect("curl is there");
    format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr))
}

#[test]
fn over_tls_the_page_opens_to_a_certificate_or_a_ticket_alone() {
    let (folder, _) = cluster();
    let ours = Authority::new("ours");
    let [server, client] = ["server", "client"].map(|name| ours.folder(&folder.path("certs"), name));
    let stranger = Authority::new("theirs").folder(&folder.path("certs"), "stranger");
    let authority = server.join("ca.pem");
    let with = |certificates: &Path| {
        let [cert, key] = ["cert.pem", "key.pem"].map(|file| certificates.join(file).display().to_string());
        ["--cert".to_owned(), cert, "--key".to_owned(), key]
    };
    let token = folder.path("ui.token");
    std::fs::write(&token, "a-token-of-at-least-thirty-two-letters\n").unwrap();
    let readable = Launch::agent(&folder.file()).with("--ui-token-file", &token).run();
    assert!(readable.code == Some(1) && readable.errors.contains("chmod go-rw"), "{}", readable.errors);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();

    // Nothing begins that would show everything to everybody.
    let refused = Launch::agent(&folder.file()).with("--ui", "0.0.0.0:0").with("--ui-token-file", &token).run();
    assert!(refused.code == Some(1) && refused.errors.contains("--ui-tls-certs"), "{}", refused.errors);

    let mut agent = Launch::agent(&folder.file()).with("--ui-tls-certs", &server).start();
    agent.ready();
    let url = format!("https://{}/ui/hosts", agent.address_of("ui"));
    let ask = |certificates: &[String]| {
        let words: Vec<_> = certificates.iter().map(String::as_str).collect();
        over_tls(&authority, &words, &url)
    };
    let text = ask(&with(&client));
    assert!(text.contains("linux-1") && text.ends_with("code=200"), "{text}");
    for certificates in [&[][..], &with(&stranger)] {
        let text = ask(certificates);
        assert!(text.contains("code=000") && !text.contains("linux-1"), "{text}");
    }
    agent.stop();

    // Without the authority of its readers, a ticket opens it, and its session goes over TLS alone.
    std::fs::rename(&authority, folder.path("ca.pem")).unwrap();
    let authority = folder.path("ca.pem");
    let mut agent =
        Launch::agent(&folder.file()).with("--ui-tls-certs", &server).with("--ui-token-file", &token).start();
    agent.ready();
    let address = agent.address_of("ui");
    let text = over_tls(&authority, &[], &format!("https://{address}/ui/hosts"));
    assert!(text.ends_with("code=401"), "{text}");
    let printing = Launch::bare(Executable::Agent).word("ui").with("--ui", address.to_string()).word("--print");
    let printed = printing.with("--ui-tls-certs", &server).with("--token-file", &token).run();
    let ticket = printed.output.trim();
    assert!(ticket.starts_with(&format!("https://{address}/ui/?t=")), "{}{ticket}", printed.errors);
    let text = over_tls(&authority, &[], ticket);
    let cookie = text.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{text}"));
    assert!(cookie.contains("; Secure"), "{cookie}");
    let session = ["--cookie", cookie.split(';').next().unwrap()];
    let text = over_tls(&authority, &session, &format!("https://{address}/ui/hosts"));
    assert!(text.contains("linux-1") && text.ends_with("code=200"), "{text}");
}

#[test]
fn alert_rules_are_rules_about_what_is_counted() {
    let rules = repository().join("docs/alerts/berth.yml");
    let promtool = repository().join("target/promtool");
    if promtool.exists() {
        let checked = Command::new(promtool).args(["check", "rules"]).arg(&rules).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    } else {
        skip("the form of alert rules (promtool of Debian's package prometheus, as target/promtool)");
    }
    let (folder, _) = cluster();
    let counted = http::get("/metrics").ask(agent(&folder.file()).admin()).text();
    let rules = std::fs::read_to_string(rules).unwrap();
    let words = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let words = words.flat_map(|line| line.split(|other: char| !other.is_ascii_alphanumeric() && other != '_'));
    let names: Vec<_> = words.filter(|word| word.contains('_')).collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let family = format!("# TYPE {} ", name.trim_end_matches("_total"));
        assert!(counted.contains(&family), "nothing counts {name}");
    }
}

/// The packages with which a browser is driven, if they and a browser are there.
fn packages() -> Option<PathBuf> {
    let modules = repository().join("target/browser");
    if Path::new("/usr/bin/chromium").exists() && modules.join("node_modules/axe-core").exists() {
        return Some(modules);
    }
    skip("the page in a browser (Debian's chromium, and npm's playwright-core and axe-core below target/browser)");
    None
}

/// What looks at the page of this agent with a browser, by a script of `tests/browser`; the folder is for its profiles.
fn browser(script: &str, agent: &mut Service, modules: &Path, profile: &Path) -> Command {
    let address = format!("http://{}/ui/", agent.address_of("ui"));
    let mut browser = Command::new("node");
    browser.arg(repository().join("tests/browser").join(script)).arg(address).arg(modules).arg(profile);
    browser
}

#[test]
fn a_browser_shows_every_view_and_each_change() {
    let Some(modules) = packages() else { return };
    let profile = tempfile::tempdir().unwrap();
    let images = repository().join("docs/images");
    if tests::update() {
        let folder = ClusterFolder::new(large());
        let mut agent = agent(&folder.file());
        let mut browser = browser("look.mjs", &mut agent, &modules, profile.path());
        let ended = browser.arg(&images).arg("large").status().unwrap();
        assert!(ended.success(), "pictures of a large cluster");
    }
    let (folder, text) = cluster();
    let mut agent = agent(&folder.file());
    let mut browser = browser("look.mjs", &mut agent, &modules, profile.path());
    if tests::update() {
        browser.arg(images);
    }
    let mut browser = browser.stdout(Stdio::piped()).spawn().unwrap();
    let mut last = String::new();
    for line in BufReader::new(browser.stdout.take().unwrap()).lines() {
        last = line.unwrap();
        if last == "waiting for a change" {
            let changed = text.replacen("services:\n", &format!("services:{HOSTILE}"), 1);
            folder.replace(&changed);
        }
    }
    assert!(browser.wait().unwrap().success(), "after {last:?}");
    assert_eq!(last, "done");
}

#[test]
fn axe_finds_nothing_in_any_view_of_a_large_cluster() {
    let Some(modules) = packages().filter(|_| is_long()) else { return };
    let (folder, profile) = (ClusterFolder::new(large()), tempfile::tempdir().unwrap());
    let mut agent = agent(&folder.file());
    let ended = browser("long.mjs", &mut agent, &modules, profile.path()).arg("judge").status().unwrap();
    assert!(ended.success());
}

#[test]
fn pages_left_open_for_ten_minutes_do_not_grow() {
    let Some(modules) = packages().filter(|_| is_long()) else { return };
    let ((folder, text), profile) = (cluster(), tempfile::tempdir().unwrap());
    let mut agent = agent(&folder.file());
    let most = seconds(1).as_millis() / 20;
    let mut browser = browser("long.mjs", &mut agent, &modules, profile.path());
    let mut browser = browser.args(["stay", "600", &most.to_string()]).spawn().unwrap();
    let mut turn = 0;
    let ended = loop {
        if let Some(ended) = browser.try_wait().unwrap() {
            break ended;
        }
        // Other states and another address each time, so that rows of every table change.
        turn += 1;
        let (from, state) = ("127.42.3.91", ["healthy", "unhealthy"][turn % 2]);
        let changed = text.replace(from, &format!("127.42.4.{}", turn % 200 + 1));
        folder.replace(changed.replace("health_state: healthy", &format!("health_state: {state}")));
        sleep(Duration::from_millis(100));
    };
    assert!(ended.success());
}
