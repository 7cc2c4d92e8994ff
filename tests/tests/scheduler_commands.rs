//! The scheduler's subcommands against a running one, and the examples of its documentation.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use serde_json::Value;
use tests::cluster::{ClusterFolder, shop_text};
use tests::service::Ended;
use tests::{Executable, Launch, Service, http, repository};

struct World {
    files: ClusterFolder,
    _scheduler: Service,
    server: SocketAddr,
}

impl World {
    fn new() -> Self {
        Self::of(shop_text())
    }

    fn of(text: String) -> Self {
        let files = ClusterFolder::new(text);
        let source = format!("file:{}", files.file().display());
        let mut scheduler = Launch::scheduler().with("--source", source).start();
        scheduler.ready();
        let server = scheduler.address();
        Self { files, _scheduler: scheduler, server }
    }

    /// The same on hosts that have engines, as far as their labels say.
    fn with_engines() -> Self {
        let mut text = String::new();
        for line in shop_text().lines() {
            text.extend([line, "\n"]);
            if let Some(os) = line.strip_prefix("    io.rancher.host.os: ") {
                let host = if os == "linux" {
                    "linux-1"
                } else if text.contains("win-2025") {
                    "win-2025"
                } else {
                    "win-2022"
                };
                text.extend(["    io.berth.docker.endpoint: tcp://", host, ":2375\n"]);
            }
        }
        Self::of(text)
    }

    fn ask(&self, words: &[&str]) -> Ended {
        let server = self.server.to_string();
        // Most of what is asked of a catalog asks no scheduler.
        let server = if matches!(words, ["catalog", "list" | "show", ..]) { vec![] } else { vec!["--server", &server] };
        let (command, rest) = words.split_at(if words[0] == "catalog" { 2 } else { 1 });
        let words = [command, &server[..], rest].concat();
        words.iter().fold(Launch::bare(Executable::Scheduler), Launch::word).run()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.files.path(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Asks; exit code and the parts that one of the outputs has to have.
    fn check(&self, words: &[&str], code: i32, parts: &[&str]) -> Ended {
        let ended = self.ask(words);
        let text = format!("{}{}", ended.output, ended.errors);
        assert_eq!(ended.code, Some(code), "{words:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{words:?} does not say {part:?}: {text}");
        }
        ended
    }
}

#[test]
fn commands_find_the_token_of_the_scheduler_that_they_ask_or_say_what_to_do() {
    let files = ClusterFolder::new(shop_text());
    let state = files.path("state");
    let source = format!("file:{}", files.file().display());
    let mut scheduler = Launch::scheduler().with("--source", source).with("--state-dir", &state).start();
    scheduler.ready();
    let server = scheduler.address().to_string();
    let run = |words: &[&str]| {
        let launch = Launch::bare(Executable::Scheduler).word(words[0]).word("--server").word(&server);
        words[1..].iter().fold(launch, Launch::word).run()
    };
    let ended = run(&["run", "--no-start", "--name", "one", "web"]);
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    let token = state.join("scheduler.token");
    let away = files.path("copy");
    std::fs::rename(&token, &away).unwrap();
    // Who only asks needs none.
    assert_eq!(run(&["ps"]).code, Some(0));
    let ended = run(&["rm", "one"]);
    assert_eq!(ended.code, Some(1));
    let told = [&*token.to_string_lossy(), "only the user that the scheduler runs as", "--token-file"];
    assert!(told.iter().all(|part| ended.errors.contains(part)), "{}", ended.errors);
    let ended = run(&["rm", "one", "--token-file", &away.to_string_lossy()]);
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    scheduler.stop();
}

#[test]
fn people_see_tables_and_programs_see_json() {
    let world = World::new();
    world.check(&["hosts"], 0, &["NAME", "MEMORY FREE", "linux-1", "win-2025", "windows 26100"]);
    world.check(&["hosts", "--labels"], 0, &["LABELS"]);
    let json: Value = serde_json::from_str(&world.check(&["hosts", "--json"], 0, &[]).output).unwrap();
    assert_eq!(json["hosts"].as_array().map(Vec::len), Some(3));
    world.check(
        &["run", "--no-start", "--name", "a", "-p", "7777:80", "-m", "1g", "web", "serve", "-v"],
        0,
        &["reserved", "7777->80/tcp"],
    );
    world.check(&["ps"], 0, &["ID", "reserved", "web", "7777->80/tcp"]);
    // Another request of this id is told how it differs, without its values.
    let other =
        ["run", "--no-start", "--name", "a", "-p", "7777:80", "-m", "1g", "-e", "SECRET=x", "web", "serve", "-v"];
    let ended = world.check(
        &other,
        1,
        &["id a belongs to a different request, which differs in environment", "scheduler rm a"],
    );
    assert!(!ended.errors.contains("SECRET=x"), "{}", ended.errors);
    let json: Value = serde_json::from_str(&world.check(&["ps", "--json"], 0, &[]).output).unwrap();
    assert_eq!(json["placements"][0]["id"], "a");
    world.check(
        &["run", "--dry-run", "--constraint", "gpu = yes", "-m", "1t", "web"],
        1,
        &["no place (dry run)", "It would fit with", "label gpu = yes"],
    );
    let json = world.check(&["run", "--dry-run", "--json", "web"], 0, &[]);
    assert_eq!(serde_json::from_str::<Value>(&json.output).unwrap()["state"], "placed");
    world.check(&["rm", "a"], 0, &["a\n"]);
    world.check(&["rm", "a"], 1, &["no placement a (404)"]);
    world.check(&["ps"], 0, &["ID"]);
}

#[test]
fn files_of_requests_and_compose_files_are_placed() {
    let world = World::new();
    let compose = world.file(
        "compose.yml",
        "services:\n  web:\n    image: web\n    ports: ['7001:80']\n    deploy: {replicas: 2}\n  db: {image: db, labels: {a: b}}\n",
    );
    world.check(
        &["place", "-f", &compose, "--stack", "mall", "--dry-run"],
        0,
        &["mall-web-2", "mall-db", "reserved (dry run)"],
    );
    // The start can be tried too: no host here has an engine.
    world.check(
        &["place", "-f", &compose, "--stack", "mall", "--start", "--dry-run"],
        1,
        &["no place (dry run)", "has no Docker endpoint"],
    );
    // What depends on something that cannot be started is not started either.
    let chain = "services:\n  web: {image: a, depends_on: [db]}\n  db: {image: a, labels: {a: b}}\n";
    let chain = world.file("chain.yml", chain);
    let ended = world.check(
        &["place", "-f", &chain, "--stack", "chain", "--start"],
        1,
        &["not started, since they come after what failed in the file: chain-web"],
    );
    assert!(!ended.output.contains("chain-web"), "{}", ended.output);
    world.check(&["place", "-f", &compose, "--stack", "mall"], 0, &["mall-web-1"]);
    let again: Value =
        serde_json::from_str(&world.check(&["place", "-f", &compose, "--stack", "mall", "--json"], 0, &[]).output)
            .unwrap();
    assert!(again.as_array().unwrap().iter().all(|answer| answer["repeated"] == true), "{again}");
    let requests =
        world.file("requests.yml", "id: one\nimage: a\n---\nid: two\nimage: a\nresources: {memory: 900TiB}\n");
    world.check(&["place", "-f", &requests], 1, &["one", "no place", "not enough memory"]);
    world.check(&["explain", "-f", &requests], 1, &["HOST", "yes, 1.", "two:", "not enough memory: needs"]);
    let json = world.file("requests.json", r#"[{"id": "three"}, {"id": "four"}]"#);
    world.check(&["place", "-f", &json], 0, &["three", "four"]);
    // What is wrong is named before anything is placed.
    for (text, parts) in [
        ("services:\n  web: {image: a, healthcheck: {tests: b}}\n", ["services.web.healthcheck", "is not supported"]),
        ("id: five\n---\ncolour: red\n", ["[1].colour", "unknown field"]),
        ("id: [\n", ["wrong.yml", "line"]),
        ("# nothing\n", ["wrong.yml", "no request in it"]),
        ("some text\n", ["wrong.yml: found text", "expected a map"]),
        ("berth: 1\nhosts: []\n", ["wrong.yml: it describes a cluster", "expected placement requests"]),
    ] {
        let wrong = world.file("wrong.yml", text);
        world.check(&["place", "-f", &wrong], 2, &parts);
    }
    world.check(&["place", "-f", "/no/such/file"], 2, &["/no/such/file"]);
    assert!(!world.ask(&["ps"]).output.contains("five"));
}

/// `up` of this file, with these words more.
fn up<'w>(file: &'w str, words: &[&'w str]) -> Vec<&'w str> {
    [&["up", file, "--stack", "mall", "--detach"][..], words].concat()
}

#[test]
fn variables_of_a_file_are_set_by_words_before_files_and_wrong_ones_are_named() {
    let world = World::new();
    let compose = world.file("compose.yml", "services:\n  web: {image: '${REPO}:${TAG:-none}'}\n");
    let (one, two) = (world.file("one.env", "REPO=web\nTAG=1\n"), world.file("two.env", "# newer\nTAG='2'\n"));
    let bad = world.file("bad.env", "REPO=web\nhunter2 and more\n");
    for (words, image) in [
        (&["--set", "REPO=shop"][..], "shop:none"),
        (&["--env-file", &one], "web:1"),
        (&["--env-file", &one, "--env-file", &two], "web:2"),
        (&["--env-file", &one, "--set", "TAG=3", "--set", "REPO=shop"], "shop:3"),
    ] {
        world.check(&up(&compose, words), 0, &["mall is"]);
        let shown = world.check(&["stacks", "mall", "--json"], 0, &[]).output;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["services"][0]["image"], image, "{words:?}");
    }
    for (words, parts) in [
        (&["--set", "REPO"][..], &["no = in it", "KEY=VALUE"][..]),
        (&["--set", "1=x"], &["found \"1\""]),
        (&["--env-file", &bad], &["bad.env, line 2: no = in it"]),
        (&["--env-file", "/no/such/file"], &["/no/such/file"]),
    ] {
        let ended = world.check(&up(&compose, words), 2, parts);
        assert!(!ended.errors.contains("hunter2"), "{}", ended.errors);
        world.check(&[&["plan", &compose, "--stack", "mall"][..], words].concat(), 2, parts);
    }
    // As in Compose, what nothing sets is empty, and a warning says so; here the image is none then.
    world.check(&up(&compose, &[]), 0, &["compose.yml, line 2: services.web.image: nothing sets REPO: it is empty"]);
}

#[test]
fn wrong_arguments_and_a_scheduler_that_is_away_are_told() {
    let world = World::new();
    world.check(&["run", "--restart", "often", "web"], 2, &["restart: found \"often\"", "on-failure:TIMES"]);
    world.check(&["run", "--cpus", "many", "web"], 2, &["--cpus"]);
    world.check(&["run", "--platform", "plan9", "web"], 2, &["linux or windows"]);
    world.check(&["run"], 2, &["IMAGE"]);
    world.check(&["run", "--colour", "red", "web"], 2, &["unknown option --colour"]);
    world.check(&["run", "web"], 1, &["has no Docker endpoint (label io.berth.docker.endpoint)"]);
    let away = Launch::bare(Executable::Scheduler).word("ps").word("--server").word("127.0.0.1:1").run();
    assert_eq!(away.code, Some(1));
    assert!(away.errors.contains("is it running?") && away.errors.contains("127.0.0.1:1"), "{}", away.errors);
    for (words, parts) in [
        (&["--help"][..], &["run", "place", "explain", "hosts", "ps", "rm"][..]),
        (&["run", "--help"], &["--constraint", "--publish", "Examples"]),
        (&["completions", "bash"], &["scheduler__subcmd__run", "--constraint"]),
    ] {
        let ended = words.iter().fold(Launch::bare(Executable::Scheduler), Launch::word).run();
        assert_eq!(ended.code, Some(0));
        for part in parts {
            assert!(ended.output.contains(part), "{words:?}: {part}");
        }
    }
}

#[test]
fn engines_are_only_commanded_by_who_may_and_a_wrong_host_is_named() {
    let files = ClusterFolder::new(shop_text());
    let launch = || Launch::scheduler().with("--source", format!("file:{}", files.file().display()));
    for (text, part) in
        [("linux-1: tcp://192.0.2.1:2376\n", "--docker-certs"), ("linux-1: nowhere\n", "linux-1"), ("- a\n", "a map")]
    {
        let engines = files.path("engines.yml");
        std::fs::write(&engines, text).unwrap();
        let ended = launch().with("--docker-engines", &engines).run();
        assert!(ended.code == Some(1) && ended.errors.contains(part), "{text}: {}", ended.errors);
    }
    let engines = files.path("engines.yml");
    std::fs::write(&engines, "linux-1: unix:///nowhere\nno-such: unix:///nowhere\n").unwrap();
    let mut scheduler = launch().with("--docker-engines", &engines).start();
    scheduler.line("which host there is not", |line| line["hosts"] == "no-such");
    let ended = launch().with("--docker-certs", files.path("certs")).run();
    assert!(ended.code == Some(1) && ended.errors.contains("ca.pem"), "{}", ended.errors);
    let ended = launch().with("--listen", "0.0.0.0:0").run();
    assert!(ended.code == Some(1) && ended.errors.contains("--token-file"), "{}", ended.errors);
}

#[test]
fn templates_of_a_catalog_are_listed_asked_and_planned() {
    let world = World::with_engines();
    let catalog = repository().join("examples/catalog").display().to_string();
    let demo = format!("{catalog}/templates/windows-demo");
    world.check(&["catalog", "list", &catalog], 0, &["TEMPLATE", "windows-demo", "v2", "0 1", "IIS on Windows hosts"]);
    let listed: Value =
        serde_json::from_str(&world.check(&["catalog", "list", &catalog, "--json"], 0, &[]).output).unwrap();
    assert_eq!((&listed[0]["template"], &listed[0]["version"]), (&"windows-demo".into(), &"v2".into()));
    world.check(&["catalog", "show", &demo], 0, &["v1", "v2", "root_password", "password", "(required)", "1 to 65535"]);
    let shown: Value =
        serde_json::from_str(&world.check(&["catalog", "show", &demo, "--json"], 0, &[]).output).unwrap();
    assert_eq!((&shown["folder"], &shown["questions"][0]["variable"]), (&"1".into(), &"web_image".into()));

    // Both versions, on the hosts that they are made for; the second is named as it calls itself.
    for version in ["0", "v2"] {
        let version = format!("{demo}/{version}");
        let words = ["catalog", "up", &version, "--set", "root_password=s3cret", "--dry-run"];
        let planned = world.check(&words, 0, &["+ web", "+ db"]);
        assert!(!planned.output.contains("s3cret"), "{}", planned.output);
        let json = world.check(&[&words[..], &["--json"]].concat(), 0, &[]);
        let json: Value = serde_json::from_str(&json.output).unwrap();
        let places = |name: &str| -> Vec<String> {
            let services = json["services"].as_array().unwrap();
            let service = services.iter().find(|service| service["name"] == name).unwrap();
            let units = service["units"].as_array().unwrap().iter();
            units.map(|unit| unit["to"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let mut web = places("web");
        web.sort();
        assert_eq!(
            (web, places("db")),
            (vec!["win-2022".into(), "win-2025".into()], vec!["linux-1".to_owned()]),
            "{json:#}"
        );
    }

    // Answers stay with the stack, but for passwords: another version asks for what is new.
    let first = format!("{demo}/0");
    world.check(&["catalog", "up", &first, "--set", "root_password=s3cret", "--set", "scale=1", "--detach"], 0, &[]);
    let next = ["catalog", "up", &demo, "--set", "root_password=s3cret", "--dry-run"];
    let planned = world.check(&next, 0, &["as stored with the stack, unless given now: scale"]);
    assert!(!planned.output.contains("s3cret"), "{}", planned.output);
    let json: Value = serde_json::from_str(&world.check(&[&next[..], &["--json"]].concat(), 0, &[]).output).unwrap();
    let web = json["services"].as_array().unwrap().iter().find(|service| service["name"] == "web").unwrap();
    assert_eq!(web["units"].as_array().unwrap().len(), 1, "{json:#}");
    let forgotten = ["catalog", "up", &demo, "--dry-run"];
    world.check(&forgotten, 2, &["root_password: has no answer", "as stored with the stack"]);
    world.check(&["down", "windows-demo", "--detach"], 0, &[]);

    // What is wrong is named, all of it.
    let wrong = ["catalog", "up", &demo, "--set", "scale=many", "--set", "prot=1", "--dry-run"];
    let parts = [
        "scale: found \"many\", expected a whole number, 1 to 100",
        "prot: no question asks for it",
        "root_password: has no answer, expected a password",
    ];
    world.check(&wrong, 2, &parts);
    world.check(&["catalog", "show", &format!("{demo}/7")], 2, &["no such version, expected one of 0, 1"]);
    world.check(&["catalog", "show", &catalog], 2, &["no template", "DIR/TEMPLATE"]);
    let folder = world.files.path("mine/0");
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write(
        "docker-compose.yml.tpl",
        "web:\n  image: a\n  {{- if .Values.on }}\n  lb: 1\n  {{- end }}\n  user: '${NOBODY}'\n",
    );
    write(
        "rancher-compose.yml",
        ".catalog:\n  questions:\n  - {variable: on, type: boolean, default: true}\nweb:\n  scale: 1\n",
    );
    let mine = world.files.path("mine").display().to_string();
    world.check(
        &["catalog", "up", &mine, "--dry-run"],
        2,
        &["docker-compose.yml.tpl, line 4: web.lb: is not supported"],
    );
    world.check(
        &["catalog", "up", &mine, "--set", "on=", "--dry-run"],
        0,
        &["docker-compose.yml.tpl, line 6: web.user: nothing sets NOBODY"],
    );
    write("rancher-compose.yml", ".catalog:\n  questions:\n  - {variable: on, type: colour}\n");
    world.check(&["catalog", "show", &mine], 2, &["rancher-compose.yml, line 3", "colour", "boolean, certificate"]);
    write("rancher-compose.yml", "");
    write("docker-compose.yml.tpl", "web:\n  image: a\n  env_file: ../../berth.env\n");
    std::fs::write(world.files.path("berth.env"), "A=1\n").unwrap();
    world.check(&["catalog", "up", &mine, "--dry-run"], 2, &["env_file[0]", "it is not in the folder of the template"]);
    write("docker-compose.yml.tpl", "web:\n  image: a\n  env_file: pipe.env\n");
    assert!(std::process::Command::new("mkfifo").arg(folder.join("pipe.env")).status().unwrap().success());
    world.check(&["catalog", "up", &mine, "--dry-run"], 2, &["env_file[0]", "not a regular file"]);
    // No message shows a password, wherever the template puts it.
    write("docker-compose.yml.tpl", "web:\n  image: a\n  ports: ['{{ .Values.word }}']\n");
    write("rancher-compose.yml", ".catalog:\n  questions:\n  - {variable: word, type: password}\n");
    let shown =
        world.check(&["catalog", "up", &mine, "--set", "word=S3CRET", "--dry-run"], 2, &["ports[0]", "\"***\""]);
    assert!(!shown.errors.contains("S3CRET"), "{}", shown.errors);
    write("docker-compose.yml.tpl", "web:\n  image: a\n");
    write("rancher-compose.yml", "web:\n  vcpu: 1\n");
    world.check(
        &["catalog", "up", &mine, "--dry-run"],
        2,
        &["rancher-compose.yml, line 2: web.vcpu: is not supported"],
    );
}

#[test]
fn programs_read_errors_as_json_too() {
    let world = World::new();
    let read = |words: &[&str], code: i32| {
        let ended = world.check(words, code, &[]);
        // The sentence for people is where it always is.
        assert!(ended.errors.starts_with("error: "), "{words:?}: {}", ended.errors);
        serde_json::from_str::<Value>(&ended.output).unwrap_or_else(|_| panic!("{words:?} printed {:?}", ended.output))
    };
    // Errors of the API with all that it said.
    let often = read(&["run", "--json", "--restart", "often", "web"], 2);
    assert_eq!((&often["status"], &often["field"]), (&400.into(), &"restart".into()));
    assert_eq!(often["error"], "restart: found \"often\"");
    assert_eq!(often["expected"], "no, always, unless-stopped, on-failure or on-failure:TIMES");
    // What is wrong here, before anybody is asked.
    let wrong = [
        (&["run", "--json", "--cpus", "many", "web"][..], "--cpus: found \"many\""),
        (&["run", "--json", "--colour", "red", "web"], "unknown option --colour"),
        (&["place", "--json", "-f", "/no/such/file"], "/no/such/file"),
        (&["explain", "--json", "-f", "/no/such/file"], "/no/such/file"),
    ];
    for (words, part) in wrong {
        let error = read(words, 2);
        assert!(error["error"].as_str().unwrap().contains(part), "{error}");
    }
    let away = Launch::bare(Executable::Scheduler).word("ps").flag("--json").with("--server", "127.0.0.1:1").run();
    let error: Value = serde_json::from_str(&away.output).unwrap();
    assert!(away.code == Some(1) && error["error"].as_str().unwrap().contains("is it running?"), "{error}");
    let answer = http::get("/v1/placements/%ff").ask(world.server);
    assert_eq!((answer.status, &answer.value()["field"]), (400, &"path".into()), "{}", answer.text());
    // Lists have what worked and what did not.
    world.check(&["run", "--no-start", "--name", "a", "web"], 0, &[]);
    let removed = read(&["rm", "--json", "nobody", "a"], 1);
    let error = serde_json::json!({
        "id": "nobody", "status": 404, "field": "id", "expected": "the id of a placement", "error": "no placement nobody",
    });
    assert_eq!((&removed[0], &removed[1]["state"]), (&error, &"released".into()));
    world.check(&["run", "--no-start", "--name", "two", "web"], 0, &[]);
    let requests = world.file("requests.json", r#"[{"id": "one"}, {"id": "two", "image": "db"}, {"id": "three"}]"#);
    let placed = read(&["place", "--json", "-f", &requests], 1);
    assert_eq!(placed.as_array().map(Vec::len), Some(2), "{placed}");
    assert_eq!((&placed[0]["state"], &placed[1]["status"]), (&"placed".into(), &409.into()));
}

#[test]
fn what_cannot_be_read_is_deleted_whatever_its_id_is() {
    const IDS: [&str; 8] = ["#1", "%2F", "-dash", "..", "a b", "a:b", "x?force=true", "ä/ö"];
    let files = ClusterFolder::new(shop_text());
    let state = files.path("state");
    std::fs::create_dir_all(&state).unwrap();
    // Requests have plain ids; a person may have written others.
    let unit = serde_json::json!({ "host": "u", "host_name": "h", "stage": "begun", "containers": [] });
    let line = |id: &str| {
        let record =
            serde_json::json!({ "id": id, "made": 1, "unplaced": 0, "asked": { "image": "i" }, "units": [unit] });
        format!("{record}\n")
    };
    std::fs::write(state.join("ledger.ndjson"), IDS.map(line).concat()).unwrap();
    let source = format!("file:{}", files.file().display());
    let mut scheduler = Launch::scheduler().with("--source", source).with("--state-dir", &state).start();
    scheduler.ready();
    let server = scheduler.address().to_string();
    let world = World { files, server: scheduler.address(), _scheduler: scheduler };
    let listed = || {
        let all: Value = serde_json::from_str(&world.check(&["ps", "--json"], 0, &[]).output).unwrap();
        let ids = all["placements"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(listed(), IDS);
    // What is to be typed can be typed.
    world.check(&["rm", "a b"], 1, &["`scheduler rm --force \"a b\"` deletes it"]);
    for id in IDS {
        let rm = Launch::bare(Executable::Scheduler).word("rm").word("--force").word("--server").word(&server);
        let ended = rm.word("--").word(id).run();
        assert_eq!((ended.code, &*ended.output), (Some(0), &*format!("{id}\n")), "{}", ended.errors);
        assert!(!listed().contains(&id.to_owned()), "{id}");
    }
}

#[test]
fn a_host_that_does_not_exist_is_named_with_those_that_do() {
    let world = World::new();
    let words = ["run", "--no-start", "--host", "nosuch", "web"];
    let lines = ["there is no host nosuch", "`--host linux-1`, `--host win-2025` or `--host win-2022`"];
    let ended = world.check(&words, 1, &lines);
    assert!(!ended.errors.contains("valid host(s)"), "{}", ended.errors);
}

/// The words of a line as a shell takes them: split at spaces that are not within single quotes, without a comment.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap_or_default();
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
    words.map(ToOwned::to_owned).collect()
}

#[test]
fn the_first_commands_of_the_documentation_work_on_the_example_cluster() {
    let world = World::new();
    let text = std::fs::read_to_string(repository().join("docs/scheduler.md")).unwrap();
    let blocks: Vec<_> = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [asking, starting, ..] = blocks[..] else { panic!("two blocks of commands") };
    for line in asking.lines() {
        let words = words(line);
        let words: Vec<_> = words.iter().skip(1).map(String::as_str).collect();
        world.check(&words, 0, &[]);
    }
    // The text says so beforehand.
    let words = words(starting.lines().next().unwrap());
    let words: Vec<_> = words.iter().skip(1).map(String::as_str).collect();
    world.check(&words, 1, &["no place"]);
}

#[test]
fn the_examples_of_the_documentation_are_fine() {
    let world = World::new();
    let text = std::fs::read_to_string(repository().join("docs/scheduler.md")).unwrap();
    let examples = text.lines().filter_map(|line| line.strip_prefix("curl ")).collect::<Vec<_>>();
    assert_eq!(examples.len(), 10);
    for example in examples {
        // What sends requests here sends the token by itself.
        let example = &example.replace(" -H \"$token\"", "");
        let (method, rest) =
            example.strip_prefix("-X DELETE ").map_or(("GET", example.as_str()), |rest| ("DELETE", rest));
        let (target, body) = rest.split_once(" -d ").map_or((rest, None), |(target, body)| (target, Some(body)));
        let target = format!("/v1{}", target.strip_prefix("$api").unwrap());
        let request = match body {
            None => http::Request::new(method, target),
            Some(body) => http::post(target, body.strip_prefix('\'').unwrap().strip_suffix('\'').unwrap()),
        };
        let answer = request.ask(world.server);
        // Without engines nothing is started, and so there is nothing to remove.
        assert!(matches!(answer.status, 200 | 201 | 404 | 409), "{example}: {} {}", answer.status, answer.text());
    }
}
