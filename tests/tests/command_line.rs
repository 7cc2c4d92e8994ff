//! Command lines: the flags of the originals, the subcommands, exit codes, and what is refused at start.

use std::time::Duration;

use tests::cluster::{ClusterFolder, shop, shop_text};
use tests::service::{Ended, NO_NAME_SERVER};
use tests::wait::seconds;
use tests::{Executable, Launch, Question, Service, eventually, http};

const LIMIT: Duration = Duration::from_secs(5);

/// Starts an executable with a command line in the originals' words.
fn old_style(executable: Executable, line: &str) -> Service {
    line.split(' ').fold(Launch::bare(executable), Launch::word).start()
}

#[test]
fn the_command_line_of_the_original_metadata_starts_it() {
    let folder = ClusterFolder::new(shop_text());
    let (log, pid) = (folder.path("log"), folder.path("pid"));
    let line = format!(
        "-debug -xff=true -listen=127.0.0.1:0 -listenReload=127.0.0.1:0 -answers={} -log={} -pid-file {} -subscribe -reload-interval-limit=1000 -log-format json",
        folder.file().display(),
        log.display(),
        pid.display()
    );
    let service = old_style(Executable::Metadata, &line);
    let lines = eventually("it logs into the file", LIMIT, || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.contains("\"serving\"").then_some(text)
    });
    for told in ["-subscribe does nothing", "-reload-interval-limit does nothing"] {
        assert!(lines.contains(told), "{told} in {lines}");
    }
    eventually("the pid file", LIMIT, || {
        (std::fs::read_to_string(&pid).ok()? == service.pid().to_string()).then_some(())
    });
    let serving = lines.lines().find(|line| line.contains("\"serving\"")).unwrap();
    let serving: serde_json::Value = serde_json::from_str(serving).unwrap();
    let address = serving["address"].as_str().unwrap().parse().unwrap();
    // -xff: the header says who asks.
    let request = http::get("/latest/self/container/name").header("X-Forwarded-For", "127.42.1.11");
    eventually("it answers", LIMIT, || (request.ask(address).text() == "shop-web-1").then_some(()));
    assert_eq!(service.log(), "", "nothing but the file is written");
}

#[test]
fn the_command_line_of_the_original_dns_starts_it() {
    let folder = ClusterFolder::new(shop_text());
    let mut metadata = Launch::metadata(&folder.file()).start();
    let line = format!(
        "-listen 127.0.0.1:0 -listenReload 127.0.0.1:0 -metadata-server={} -answers={} -ttl 7 -recurser-timeout=2 -ndots 1 -cache-capacity 1000 -never-recurse-to=169.254.169.251 -rancher-metadata-answer=192.0.2.250 -pid-file {} -log-format=json",
        metadata.address(),
        folder.path("answers.json").display(),
        folder.path("pid").display()
    );
    let mut dns = old_style(Executable::Dns, &line);
    dns.ready();
    let address = dns.address();
    let question = Question::a("db.data.rancher.internal");
    eventually("it has names", LIMIT, || (question.ask(address).rcode() == "NOERROR").then_some(()));
    assert_eq!(question.ask(address).records(), ["db.data.rancher.internal. 7 A 127.42.2.21"]);
    assert_eq!(Question::a("rancher-metadata").ask(address).line(), "NOERROR 192.0.2.250");
    dns.line("what -answers does", |line| {
        line["message"].as_str().unwrap_or_default().starts_with("-answers does nothing")
    });
}

#[test]
fn the_command_line_of_the_original_scheduler_starts_it() {
    let folder = ClusterFolder::new(shop_text());
    let mut metadata = Launch::metadata(&folder.file()).start();
    let line = format!(
        "-listen 127.0.0.1:0 -admin 127.0.0.1:0 -metadata-address={} -debug -log-format json",
        metadata.address()
    );
    let mut scheduler = old_style(Executable::Scheduler, &line);
    scheduler.ready();
    let address = scheduler.address();
    eventually("it has hosts", LIMIT, || http::get("/v1/hosts").ask(address).text().contains("win-2025").then_some(()));
}

#[test]
fn check_tells_every_defect_with_its_line() {
    let folder = ClusterFolder::new(
        "berth: 1\ncontainers:\n- name: good\n- name: bad\n  primary_ip: nowhere\n- name: odd\n  primary_pi: 192.0.2.1\n- primary_ip: 192.0.2.2\n",
    );
    let file = folder.file();
    let expected = [
        "line 5, column 15: containers/bad/primary_ip: \"nowhere\" is no IP address (left out)",
        "line 7, column 15: containers/odd/primary_pi: unknown field, did you mean primary_ip? (ignored)",
        "line 8, column 3: containers/3: the field name is missing (left out)",
        "Berth document: 0 hosts, 0 stacks, 0 services, 2 containers, 0 networks, 3 defects",
    ];
    for executable in Executable::ALL {
        let check = |launch: Launch| launch.word("check").word(&file).run();
        let ended = check(Launch::bare(executable));
        assert_eq!(ended.code, Some(1), "{executable:?}");
        for line in expected {
            assert!(ended.output.contains(line), "{executable:?}: {line} in\n{}", ended.output);
        }
        let ended = check(Launch::bare(executable).flag("--json"));
        let report: serde_json::Value = serde_json::from_str(&ended.output).unwrap();
        assert_eq!((report["defects"].as_array().map(Vec::len), &report["good"]), (Some(3), &false.into()));
        let ended = Launch::bare(executable).word("check").word(shop()).run();
        assert_eq!((ended.code, ended.errors.as_str()), (Some(0), ""), "{executable:?}: {}", ended.output);
    }
}

#[test]
fn check_says_why_a_file_is_no_cluster() {
    let folder = ClusterFolder::new("berth: 1\nhosts: 5\n");
    let check = |file| Launch::bare(Executable::Agent).word("check").word(file).run();
    let ended = check(folder.file());
    assert_eq!(ended.code, Some(1));
    assert!(ended.output.contains("line 2, column 8: hosts: expected a list, found a number"), "{}", ended.output);
    let ended = check(folder.path("nowhere"));
    assert_eq!(ended.code, Some(1));
    assert!(ended.output.contains("does not exist"), "{}", ended.output);
}

#[test]
fn healthcheck_is_0_when_well_and_1_when_not() {
    let folder = ClusterFolder::empty();
    let mut agent = Launch::agent(&folder.file()).start();
    let admin = agent.admin().to_string();
    let health = |executable, ready: bool| {
        let launch = Launch::bare(executable).word("healthcheck").with("--admin", &admin);
        if ready { launch.flag("--ready") } else { launch }.run().code
    };
    for executable in Executable::ALL {
        assert_eq!((health(executable, false), health(executable, true)), (Some(0), Some(1)), "{executable:?}");
    }
    folder.replace(shop_text());
    agent.ready();
    assert_eq!(health(Executable::Metadata, true), Some(0));
    agent.stop();
    let ended = Launch::bare(Executable::Dns).word("healthcheck").env("BERTH_ADMIN", &admin).run();
    assert_eq!(ended.code, Some(1));
    assert!(ended.output.contains(&admin), "{}", ended.output);
}

#[test]
fn version_and_completions_are_printed() {
    for executable in Executable::ALL {
        let name = executable.name();
        let run = |words: &[&str]| words.iter().fold(Launch::bare(executable), Launch::word).run();
        let version = format!("{name} {}\n", env!("CARGO_PKG_VERSION"));
        for words in [&["version"][..], &["--version"], &["-version"]] {
            let ended = run(words);
            assert_eq!((ended.code, ended.output.as_str()), (Some(0), version.as_str()), "{name} {words:?}");
        }
        let json: serde_json::Value = serde_json::from_str(&run(&["version", "--json"]).output).unwrap();
        assert_eq!(json["name"], name);
        for shell in ["bash", "zsh", "fish", "powershell"] {
            let ended = run(&["completions", shell]);
            assert!(ended.code == Some(0) && ended.output.contains("healthcheck"), "{name} {shell}");
        }
    }
}

#[test]
fn a_wrong_command_line_is_told_and_ends_with_2() {
    for executable in Executable::ALL {
        for words in [
            &["--no-such-flag"][..],
            &["-no-such-flag=1"],
            &["check"],
            &["up", "--metadata", "nowhere"],
            &["serve", "--listen", "1.2.3"],
        ] {
            let Ended { code, output, errors } = words.iter().fold(Launch::bare(executable), Launch::word).run();
            assert_eq!((code, output.as_str()), (Some(2), ""), "{executable:?} {words:?}");
            assert!(errors.contains("error:"), "{executable:?} {words:?}: {errors}");
        }
    }
}

#[test]
fn help_tells_every_flag_with_its_variable() {
    for (executable, words) in [
        (Executable::Agent, &["up", "--help"][..]),
        (Executable::Metadata, &["--help"]),
        (Executable::Dns, &["--help"]),
        (Executable::Scheduler, &["--help"]),
    ] {
        let ended = words.iter().fold(Launch::bare(executable), Launch::word).run();
        assert_eq!(ended.code, Some(0));
        for told in
            ["--state-dir", "BERTH_STATE_DIR", "--log-format", "--pid-file", "--add-address", "--admin", "BERTH_ADMIN"]
        {
            assert!(ended.output.contains(told), "{executable:?}: no {told} in\n{}", ended.output);
        }
    }
}

/// Lines of a screen.
const SCREEN: usize = 40;

/// Lines beside the list of all commands: what it is, how it is used, and the options that are wanted most.
const BESIDE_COMMANDS: usize = 15;

/// Every command, as the help of the one above it lists them.
fn commands(executable: Executable) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut next = 0;
    while let Some(words) = found.get(next).cloned() {
        let help = words.iter().fold(Launch::bare(executable), Launch::word).word("-h").run().output;
        let (_, listed) = help.split_once("\nCommands:\n").unwrap_or_default();
        let listed = listed.lines().take_while(|line| !line.is_empty());
        let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).filter(|name| *name != "help");
        found.extend(names.filter(|name| !name.is_empty()).map(|name| [&words[..], &[name.to_owned()]].concat()));
        next += 1;
    }
    found
}

#[test]
fn the_short_help_fits_a_screen() {
    for executable in Executable::ALL {
        let commands = commands(executable);
        assert!(commands.len() >= 5, "{executable:?}: {commands:?}");
        let first = commands.iter().filter(|words| words.len() == 1).count();
        for words in commands {
            let help = words.iter().fold(Launch::bare(executable), Launch::word).word("-h").run();
            let lines = help.output.lines().count();
            // The list of all commands has a line for each, however many there are.
            let limit = if words.is_empty() { SCREEN.max(first + BESIDE_COMMANDS) } else { SCREEN };
            assert!(help.code == Some(0) && lines <= limit, "{executable:?} {words:?}: {lines} lines\n{}", help.output);
        }
    }
}

#[test]
fn the_long_help_has_what_is_rarely_needed_under_headings_after_the_rest() {
    for (executable, words, headings) in [
        (
            Executable::Agent,
            &["up"][..],
            &["Options:", "Source:", "etcd:", "Metadata:", "DNS:", "Scheduler:", "Process:"][..],
        ),
        (Executable::Metadata, &[], &["Options:", "Source:", "etcd:", "Answers and limits:", "Process:"]),
        (Executable::Dns, &[], &["Options:", "Names and forwarding:", "Process:"]),
        (Executable::Scheduler, &[], &["Options:", "Placing and starting:", "etcd:", "Process:"]),
    ] {
        let help = words.iter().fold(Launch::bare(executable), Launch::word).word("--help").run().output;
        let places: Vec<_> = headings.iter().map(|heading| help.find(&format!("\n{heading}\n"))).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{executable:?} {headings:?}:\n{help}");
        let etcd = help.find("--etcd-ca").map(|at| help[..at].rfind("\netcd:\n").is_some());
        assert_eq!(etcd, headings.contains(&"etcd:").then_some(true), "{executable:?}");
    }
}

#[test]
fn an_agent_without_a_source_is_told_which_there_are() {
    let ended = Launch::bare(Executable::Agent).word("up").run();
    assert_eq!(ended.code, Some(2));
    for source in ["FILE", "--source", "--docker"] {
        assert!(ended.errors.contains(source), "{source} in {}", ended.errors);
    }
}

#[test]
fn an_agent_greets_with_what_is_wrong_instead_of_what_it_does_not_serve() {
    let folder = ClusterFolder::empty();
    let greeting = |file: &std::path::Path| {
        let mut agent = Launch::agent(file).start();
        let greeting = eventually("it greets", LIMIT, || Some(agent.printed()).filter(|text| text.contains("Ctrl-C")));
        agent.stop();
        greeting
    };
    let missing = greeting(&folder.path("typo.yml"));
    let (first, rest) = missing.split_once('\n').unwrap();
    assert!(first.contains("not ready") && first.ends_with("typo.yml does not exist"), "{missing}");
    assert!(!rest.contains("curl") && rest.contains("last good state"), "{missing}");
    folder.write("berth: 1\nhosts: 5\n");
    assert!(greeting(&folder.file()).lines().next().unwrap().contains("expected a list, found a number"));
    assert!(greeting(&shop()).starts_with("Berth serves the file "));
}

/// Of no file.
const DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[test]
fn a_service_that_does_not_answer_is_told_with_the_way_out() {
    let nobody = format!("127.0.0.1:{}", tests::ports::free());
    for (executable, words) in [
        (Executable::Agent, &["healthcheck"][..]),
        (Executable::Agent, &["upgrade", "agent", "--sha256", DIGEST]),
        (Executable::Dns, &["healthcheck"]),
        (Executable::Dns, &["query", "web"]),
    ] {
        let ended = words.iter().fold(Launch::bare(executable), Launch::word).with("--admin", &nobody).run();
        let told = format!("{}{}", ended.output, ended.errors);
        assert_eq!(ended.code, Some(1));
        for part in [&nobody, "is it running?", "--admin"] {
            assert!(told.contains(part), "{part} in {told}");
        }
        assert!(!told.contains("client error"), "{told}");
    }
    let evacuate = Launch::bare(Executable::Agent).word("evacuate").word("a").flag("--dead").flag("--dry-run");
    let ended = evacuate.with("--server", &nobody).run();
    assert!(ended.code == Some(1) && ended.errors.contains("is it running? (--server"), "{ended:?}");
}

#[test]
fn no_service_of_the_tests_asks_the_name_servers_of_the_machine() {
    let folder = ClusterFolder::new(shop_text());
    let dns = Launch::dns().with("--answers", folder.file());
    let agent = Launch::agent(&folder.file());
    let old = Launch::bare(Executable::Dns).word("-listen=127.0.0.1:0").word("-listenReload=127.0.0.1:0").logged();
    for launch in [dns, agent, old.with("--answers", folder.file())] {
        let mut service = launch.start();
        service.ready();
        let upstreams = http::get("/v1/upstreams").ask(service.admin()).value();
        let addresses: Vec<_> =
            upstreams.as_array().unwrap().iter().map(|one| one["address"].as_str().unwrap()).collect();
        assert_eq!(addresses, [NO_NAME_SERVER.1]);
    }
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_default() {
    let folder = ClusterFolder::new(shop_text());
    let other = ClusterFolder::new("berth: 1\ncontainers:\n- { name: other, primary_ip: 127.42.1.11 }\n");
    let name = |launch: Launch| {
        let mut service = launch.start();
        service.ready();
        http::get("/latest/self/container/name").from("127.42.1.11").ask(service.address()).text()
    };
    let base = Launch::served(Executable::Metadata);
    let environment = base.clone().env("BERTH_ANSWERS", other.file());
    assert_eq!(name(environment.clone()), "other");
    assert_eq!(name(environment.with("--answers", folder.file())), "shop-web-1");
    // The default is a file in the working directory.
    std::fs::copy(folder.file(), folder.path("answers.json")).unwrap();
    assert_eq!(name(base.clone().within(folder.path("answers.json").parent().unwrap())), "shop-web-1");
    // The log's form too.
    let mut service =
        base.without("--log-format").env("BERTH_LOG_FORMAT", "json").with("--answers", folder.file()).start();
    service.address();
}

#[test]
fn a_taken_address_is_told_with_its_owner_and_ends_with_1() {
    let folder = ClusterFolder::new(shop_text());
    let mut first = Launch::agent(&folder.file()).start();
    let (metadata, dns, scheduler) =
        (first.address_of("metadata"), first.address_of("dns"), first.address_of("scheduler"));
    let launch = Launch::agent(&folder.file());
    let second = |flag: &str, address: std::net::SocketAddr| (launch.clone().with(flag, address.to_string()), address);
    for (launch, address) in [
        second("--metadata", metadata),
        second("--dns", dns),
        second("--scheduler", scheduler),
        second("--admin", first.admin()),
    ] {
        let ended = launch.run();
        assert_eq!(ended.code, Some(1), "{address}");
        for told in [address.to_string(), format!("agent (process {})", first.pid())] {
            assert!(ended.errors.contains(&told), "{told} in {}", ended.errors);
        }
    }
    // And the first one is served on.
    first.ready();
    assert_eq!(http::get("/latest/self/container/name").from("127.42.1.11").ask(metadata).text(), "shop-web-1");
}

#[test]
fn admin_pages_are_for_loopback_only() {
    let folder = ClusterFolder::new(shop_text());
    for address in ["0.0.0.0:0", "192.0.2.1:8112", "[::]:0"] {
        let ended = Launch::agent(&folder.file()).with("--admin", address).run();
        assert_eq!(ended.code, Some(1), "{address}");
        assert!(ended.errors.contains("give a loopback address"), "{}", ended.errors);
    }
}

#[test]
fn the_scheduler_listens_to_others_only_with_a_token_and_in_plain_text_only_if_that_is_wanted() {
    let folder = ClusterFolder::new(shop_text());
    let launch = Launch::scheduler().with("--source", format!("file:{}", folder.file().display()));
    let ended = launch.clone().with("--listen", "0.0.0.0:0").run();
    assert_eq!(ended.code, Some(1));
    assert!(ended.errors.contains("is not loopback") && ended.errors.contains("--token-file"), "{}", ended.errors);
    let token = "0123456789abcdef0123456789abcdef";
    // Only its owner can read such a file.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), token).unwrap();
    let launch = launch.with("--listen", "0.0.0.0:0").with("--token-file", file.path());
    let ended = launch.clone().run();
    assert_eq!(ended.code, Some(1));
    assert!(ended.errors.contains("--tls-certs instead, or --insecure"), "{}", ended.errors);
    let mut scheduler = launch.flag("--insecure").start();
    scheduler.ready();
    // Nor does a command send it so: nobody is asked at this address.
    let hosts = Launch::bare(Executable::Scheduler).word("hosts").with("--server", "192.0.2.1:8254");
    let ended = hosts.with("--token-file", file.path()).run();
    assert!(ended.code != Some(0) && ended.errors.contains("the token would go"), "{}", ended.errors);
    let address = ([127, 0, 0, 1], scheduler.address().port()).into();
    let hosts = http::get("/v1/hosts");
    assert_eq!(hosts.ask(address).status, 401);
    assert_eq!(hosts.clone().header("Authorization", "Bearer wrong").ask(address).status, 401);
    assert_eq!(hosts.header("Authorization", &format!("Bearer {token}")).ask(address).status, 200);
}

#[test]
fn nothing_administrative_is_on_the_service_addresses() {
    let folder = ClusterFolder::new(shop_text());
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    for service in ["metadata", "scheduler"] {
        let address = agent.address_of(service);
        for request in [
            http::post("/v1/reload", ""),
            http::get("/healthz"),
            http::get("/readyz"),
            http::get("/metrics"),
            http::post("/v1/loglevel", ""),
        ] {
            let response = request.clone().within(seconds(5)).ask(address);
            assert_eq!(response.status, 404, "{service}: {request:?}: {}", response.text());
        }
    }
}

#[test]
fn admin_pages_that_nobody_asked_for_keep_no_service_from_running() {
    // Their default port is taken by whoever came first: this test, if nobody else did.
    let _owner = std::net::TcpListener::bind("127.0.0.1:8112");
    let folder = ClusterFolder::new(shop_text());
    let mut metadata = Launch::metadata(&folder.file()).without("--admin").start();
    let line = metadata.line("no admin pages", |line| {
        line["message"].as_str().unwrap_or_default().starts_with("no admin pages, so no health, metrics or reload")
    });
    let text = line["message"].as_str().unwrap_or_default();
    assert!(text.contains("127.0.0.1:8112") && text.ends_with("(--admin ADDRESS:PORT)"), "{text}");
    // One that somebody asked for is an error that names the flag.
    let ended = Launch::metadata(&folder.file()).with("--admin", "127.0.0.1:8112").run();
    assert_eq!(ended.code, Some(1));
    assert!(ended.errors.contains("--admin 127.0.0.1:8112: cannot listen"), "{}", ended.errors);
    let address = metadata.address();
    eventually("it serves", LIMIT, || (http::get("/latest").ask(address).status == 200).then_some(()));
}

#[test]
fn the_doctor_tells_what_is_served_and_what_is_not() {
    let folder = ClusterFolder::new(shop_text());
    // The doctor takes a session token where one is required.
    let mut agent = Launch::agent(&folder.file()).with("--tokens", "required").start();
    agent.ready();
    let (metadata, dns) = (agent.address_of("metadata"), agent.address_of("dns"));
    let report = folder.path("report.json");
    let doctor = Launch::bare(Executable::Agent).word("doctor").flag("--json").with("--report", &report);
    let doctor = doctor.with("--metadata", metadata.to_string()).with("--dns", dns.to_string());
    let outcomes = || {
        let told: serde_json::Value = serde_json::from_str(&doctor.run().output).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert_eq!(told, written);
        let findings = told["findings"].as_array().unwrap().clone();
        move |subject: &str| {
            let finding = findings.iter().find(|finding| finding["subject"].as_str().unwrap().starts_with(subject));
            let finding = finding.unwrap_or_else(|| panic!("{subject} in {findings:?}"));
            (finding["outcome"].as_str().unwrap().to_owned(), finding["found"].as_str().unwrap().to_owned())
        }
    };
    let served = [format!("metadata on {metadata}"), format!("dns on {dns} (UDP)"), format!("dns on {dns} (TCP)")];
    let outcome = outcomes();
    for subject in &served {
        assert_eq!(outcome(subject).0, "ok", "{:?}", outcome(subject));
    }
    agent.stop();
    let outcome = outcomes();
    for subject in &served {
        assert_eq!(outcome(subject).0, "bad", "{:?}", outcome(subject));
    }
    assert_eq!(doctor.run().code, Some(1));
    // An address that is not of this machine is not asked: it may be somebody else's.
    let away = doctor.clone().with("--metadata", "203.0.113.7:80").run();
    assert!(away.output.contains("203.0.113.7 is on no interface") && !away.output.contains("metadata on"), "{away:?}");
}

#[test]
fn sources_that_cannot_be_had_are_refused_at_start() {
    for (flags, code, expected) in [
        (&["--source", "docker:http://192.0.2.1:2375"][..], 2, "is not loopback"),
        (&["--source", "docker:tcp://192.0.2.1:2376"], 1, "--docker-certs"),
        (&["--source", "docker", "--docker-certs", "/nowhere"], 1, "/nowhere/ca.pem"),
        (&["--source", "etcd:"], 2, "expected file:PATH"),
        (&["--source", "etcd:https://192.0.2.1:2379"], 1, "https needs --etcd-ca"),
        (&["--source", "etcd:https://192.0.2.1:2379", "--etcd-ca", "/nowhere"], 1, "--etcd-ca /nowhere"),
        (&["--source", "etcd:http://192.0.2.1:2379", "--etcd-prefix", "berth"], 1, "slash"),
        (&["--source", "etcd:http://192.0.2.1:2379", "--etcd-user", "me"], 2, "--etcd-password-file"),
        (&["--source", "docker", "--label", "no-value"], 2, "KEY=VALUE"),
        (&["--source", "docker", "--public-ip", "here"], 2, "--public-ip"),
        (&["--source", "docker", "--public-ip", "here"], 2, "expected the IP address under which other hosts reach"),
        (&["--source", "docker", "--public-ip", "0.0.0.0"], 2, "leads to no other host"),
        (&["--source", "docker", "--public-ip", "127.0.0.1"], 2, "leads to no other host"),
        (&["--source", "docker", "--public-ip", "169.254.169.250"], 2, "leads to no other host"),
        (&["--source", "docker", "--public-ip", "fe80::1"], 2, "leads to no other host"),
        (&["--docker", "--source", "file:x"], 1, "--docker goes alone"),
        (&["--docker", "--answers", "x"], 2, "cannot be used with"),
    ] {
        let ended = flags.iter().fold(Launch::served(Executable::Metadata), Launch::word).run();
        assert_eq!(ended.code, Some(code), "{flags:?}: {}", ended.errors);
        assert!(ended.errors.contains(expected), "{flags:?}: {}", ended.errors);
    }
}

#[test]
fn a_wrong_value_is_blamed_where_it_stands_and_with_what_is_expected() {
    let check = |launch: Launch, expected: &str| {
        let ended = launch.run();
        assert_eq!(ended.code, Some(2), "{expected}: {}", ended.errors);
        assert!(ended.errors.contains(expected), "{expected}: {}", ended.errors);
    };
    let agent = || Launch::bare(Executable::Agent).word("up").word("file.yml");
    let dns = || Launch::bare(Executable::Dns);
    check(agent().with("--ttl", "abc"), "invalid value 'abc' for '--ttl <SECONDS>': expected a whole number");
    check(agent().with("--etcd-lease", "1"), "for '--etcd-lease <SECONDS>': expected 3 to 3600");
    check(dns().with("--never-recurse-to", "foo"), "expected an IP address");
    let blamed = "for '--ttl <SECONDS>', from the environment variable BERTH_DNS_TTL: expected a whole number";
    check(agent().env("BERTH_DNS_TTL", "x"), blamed);
    check(dns().env("BERTH_DNS_TTL", "x"), blamed);
    check(
        Launch::bare(Executable::Scheduler).word("ps").with("--server", "foo"),
        "\"foo\" is no address of a scheduler that can be found; expected HOST:PORT",
    );
}
