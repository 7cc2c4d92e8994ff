//! Files that are read, and where what is wrong in them stands.

use std::fmt::Write as _;

use super::*;

fn input(shown: &str, text: &str) -> Input {
    Input { shown: shown.to_owned(), text: text.to_owned(), rendered: None }
}

/// A file in the folder `Shop`.
fn of_file(text: &str) -> Files<'_> {
    Files {
        compose: input("shop.yml", text),
        more: Vec::new(),
        rancher: None,
        stack: None,
        folder: Some("Shop".to_owned()),
        variable: &|_| None,
        path: PathBuf::new(),
        is_confined: false,
        profiles: &[],
    }
}

/// The stack that a file describes.
pub(super) fn read_of(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> ReadStack {
    read_stack(&Files { variable, ..of_file(text) }).unwrap()
}

fn wrong(compose: Input, rancher: Option<&str>) -> String {
    let files = Files { compose, rancher: rancher.map(|text| input("second", text)), ..of_file("") };
    match read_stack(&files) {
        Ok(read) => panic!("{read:?}"),
        Err(failure) => failure.to_string(),
    }
}

#[test]
fn a_folder_that_can_give_no_name_is_named() {
    let files = Files { folder: Some("x".repeat(41)), ..of_file("services: {web: {image: a}}\n") };
    let failure = read_stack(&files).unwrap_err().to_string();
    assert!(
        failure.starts_with("shop.yml: the stack is called as the folder is") && failure.contains("--stack"),
        "{failure}"
    );
    assert_eq!(read_stack(&Files { stack: Some("shop"), ..files }).unwrap().name, "shop");
}

#[test]
fn errors_name_the_file_that_says_it_and_the_line() {
    const COMPOSE: &str = "version: '2'\nservices:\n  web:\n    image: a\n    scale: 2\n";
    let first =
        |line: &str| wrong(input("first", &format!("{COMPOSE}    {line}\n")), Some("web:\n  retain_ip: true\n"));
    assert!(first("gpus: .").starts_with("first, line 6: services.web.gpus: is not supported"), "{}", first("gpus: ."));
    let second = |line: &str| wrong(input("first", COMPOSE), Some(&format!("web:\n  retain_ip: true\n  {line}\n")));
    for (line, part) in [
        ("vcpu: 2", "second, line 3: services.web.vcpu: is not supported"),
        ("health_check: {prot: 80}", "second, line 3: services.web.health_check.prot"),
        // Both have it, and the second file's word counts.
        ("scale: x", "second, line 3: services.web.scale"),
    ] {
        assert!(second(line).starts_with(part), "{line}: {}", second(line));
    }
    let versioned = wrong(input("first", "web: {image: a}\n"), Some("version: '2'\nservices:\n  web:\n    vcpu: 2\n"));
    assert!(versioned.starts_with("second, line 4: web.vcpu"), "{versioned}");
    // What is there twice would be one of the two.
    let twice = wrong(input("first", "services:\n  web:\n    image: a\n    image: b\n"), None);
    assert!(twice.starts_with("first: line 4") && twice.contains("image"), "{twice}");
    let several = wrong(input("first", "id: a\nservice: a\nimage: b\n---\n# c\nid: b\nimagee: c\n"), None);
    assert!(several.starts_with("first, line 7: [1].imagee"), "{several}");
}

#[test]
fn errors_about_configs_and_secrets_name_their_keys() {
    let of = |lines: &str| {
        format!("services:\n  web:\n    image: a\n{lines}secrets:\n  a: {{content: x}}\n  b: {{content: y}}\n")
    };
    for (lines, part) in [
        (
            "    configs: []\n    secrets:\n    - a\n    - {source: b, target: a}\n",
            "first, line 7: services.web.secrets[1].target: /run/secrets/a is there twice",
        ),
        (
            "    volumes: ['/srv:/run']\n    secrets:\n    - a\n",
            "first, line 6: services.web.secrets[0].target: /run/secrets/a is in what is mounted",
        ),
        (
            "    read_only: true\n    secrets:\n    - a\n",
            "first, line 5: services.web.secrets: its file system is read-only",
        ),
        (
            "    labels: {io.rancher.sidekicks: s}\n  s:\n    image: a\n    secrets:\n    - source: a\n      target: /\n",
            "first, line 9: services.s.secrets[0].target: ",
        ),
        ("    secrets:\n    - c\n", "first, line 5: services.web.secrets[0]: no c among secrets"),
    ] {
        let error = wrong(input("first", &of(lines)), None);
        assert!(error.starts_with(part), "{lines}: {error}");
    }
}

#[test]
fn a_file_without_services_is_named() {
    for text in ["services: {}\n", "services:\n", "[]\n", "---\n", "# c\n", "5\n", "include: []\nservices: {}\n"] {
        let error = wrong(input("first", text), None);
        assert!(error.starts_with("first"), "{text}: {error}");
    }
    let two = "services: {a: {image: a}}\n---\nservices: {b: {image: b}}\n";
    for error in
        [wrong(input("first", "a: {image: a}\n"), Some(two)), wrong(input("first", two), Some("a: {scale: 1}\n"))]
    {
        assert!(error.starts_with("second: line 2") || error.starts_with("first: it is read with"), "{error}");
    }
    let twice =
        wrong(input("first", "name: a\nservices: {a: {image: a}}\n---\nname: b\nservices: {b: {image: b}}\n"), None);
    assert!(twice.starts_with("first: it is of two stacks, a and b"), "{twice}");
}

#[test]
fn a_stack_has_a_name_and_nothing_else_in_the_place_of_it() {
    let named =
        |name: &str| wrong(input("first", &format!("# c\nname: {name}\nservices: {{web: {{image: a}}}}\n")), None);
    for name in ["a/b", "''", ".x"] {
        let error = named(name);
        assert!(
            error.starts_with("first, line 2: name: found ") && error.contains("a letter or digit first"),
            "{error}"
        );
    }
    let service = wrong(input("first", "services:\n  a: {image: a}\n  a b: {image: a}\n"), None);
    assert!(service.starts_with("first, line 3: services.a b: found \"a b\""), "{service}");
}

#[test]
fn errors_of_templates_name_the_line_of_the_template() {
    let template = "services:\n{{- if .Values.no }}\n  gone: {image: a}\n{{- end }}\n  web:\n    image: a\n    {{ .Values.key }}: 5\n";
    let rendered = |key: &'static str| {
        let answer = move |name: &str| Some(if name == "key" { key } else { "" }.to_owned());
        let rendered = stacks::Template::parse(template).unwrap().render(&answer).unwrap();
        wrong(input("first.tpl", template).of_template(rendered), None)
    };
    assert!(rendered("gpus").starts_with("first.tpl, line 7: services.web.gpus"), "{}", rendered("gpus"));
    // What is no YAML too, where the reader notices.
    assert!(rendered("[").starts_with("first.tpl: line 8"), "{}", rendered("["));
}

#[test]
fn what_only_an_engine_would_refuse_is_refused_with_its_line() {
    for (line, field, part) in [
        ("mem_limit: 64m, mem_reservation: 128m", "mem_reservation", "more than the limit"),
        ("cpus: 1.5, cpu_quota: 50000", "cpu_quota", "given with a number of processors"),
        ("tmpfs: /a/, volumes: ['/x:/a']", "volumes", "memory and a volume appear at /a"),
        ("volumes: ['/x:/a:ro,rw']", "volumes", "ro or rw"),
        ("ulimits: {nproc: {soft: 6, hard: 5}}", "ulimits.nproc.soft", "at most the hard one, 5"),
    ] {
        let text = format!("services:\n  web: {{image: a, {line}}}\n");
        let error = read_stack(&of_file(&text)).unwrap_err().to_string();
        assert!(error.contains(&format!("shop.yml, line 2: services.web.{field}")) && error.contains(part), "{error}");
    }
}

#[test]
fn several_files_are_one_and_errors_name_the_last_that_says_it() {
    const BASE: &str = "services:\n  web:\n    image: a\n    scale: 2\n";
    let files = |compose: &str, more: &[&str]| Files {
        compose: input("first", compose),
        more: more.iter().enumerate().map(|(at, text)| input(["second", "third"][at], text)).collect(),
        rancher: None,
        stack: Some("shop"),
        folder: None,
        variable: &|_| None,
        path: PathBuf::new(),
        is_confined: false,
        profiles: &[],
    };
    let read = read_stack(&files(BASE, &["services: {web: {scale: 3}}\n", "web: {tty: true}\n"])).unwrap();
    let services = read.services;
    assert_eq!((&services[0]["count"], &services[0]["tty"]), (&3.into(), &true.into()));
    let wrong = |compose: &str, more: &[&str]| read_stack(&files(compose, more)).unwrap_err().to_string();
    for (more, part) in [
        (&["services:\n  web:\n    scale: x\n"][..], "second, line 3: services.web.scale"),
        (
            &["services:\n  web:\n    scale: x\n", "services:\n  web:\n\n    scale: y\n"],
            "third, line 4: services.web.scale",
        ),
        (&["services:\n  web:\n    tty: true\n    gpus: .\n"], "second, line 4: services.web.gpus"),
        (&["- a\n"], "first: it is read with second"),
        (&["id: a\nimage: b\n"], "first: it is read with second"),
    ] {
        let error = wrong(BASE, more);
        assert!(error.starts_with(part), "{more:?}: {error}");
    }
    let whole = wrong("services:\n  web:\n    image: a\n    gpus: .\n", &["services:\n  web:\n    tty: true\n"]);
    assert!(whole.starts_with("first, line 4: services.web.gpus"), "{whole}");
}

#[test]
fn what_a_service_has_from_another_is_found_where_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("common")).unwrap();
    std::fs::write(folder.path().join("common/base.yml"), "base:\n  image: a\n  gpus: .\n").unwrap();
    let wrong = |text: &str| {
        std::fs::write(folder.path().join("compose.yml"), text).unwrap();
        let files = Files::of(&folder.path().join("compose.yml"), None, None).unwrap();
        read_stack(&files).unwrap_err().to_string()
    };
    let other = wrong("services:\n  web:\n    extends: {file: common/base.yml, service: base}\n");
    assert!(other.contains("common/base.yml, line 3: services.web.gpus"), "{other}");
    let included = wrong("include: [common/base.yml]\nservices:\n  web: {image: a}\n");
    assert!(included.contains("common/base.yml, line 3: services.base.gpus"), "{included}");
    let missing = wrong("services: {}\ninclude:\n- common/lost.yml\n");
    assert!(missing.contains("compose.yml, line 3: include[0]"), "{missing}");
    let same = wrong("services:\n  base:\n    image: a\n    gpus: .\n  a:\n    extends: base\n");
    assert!(same.contains("compose.yml, line 4: services.a.gpus"), "{same}");
}

/// Files in the manner of the predecessor's catalog, and what becomes of each: the services in the order in which they are
/// started, or why it is refused, and what has no effect.
const CATALOG: [&str; 6] = ["databases", "forms", "infrastructure", "oddities", "specification", "web"];

/// Sets what the files of the catalog are expected to be to what they are.
const UPDATE: &str = "UPDATE";

fn shown(request: &Value) -> String {
    let names = |key: &str, name: fn(&Value) -> Option<&str>| {
        let names: Vec<_> = request[key].as_array().into_iter().flatten().filter_map(name).collect();
        names.join(", ")
    };
    let mut out = request["service"].as_str().unwrap_or_default().to_owned();
    for (word, names) in [
        ("with", names("sidekicks", |one| one["name"].as_str())),
        ("after", names("depends_on", |one| one.as_str().or_else(|| one["service"].as_str()))),
    ] {
        if !names.is_empty() {
            write!(out, " {word} {names}").unwrap();
        }
    }
    out
}

/// What becomes of one entry of a file of the catalog.
fn result(parts: &[(&str, &str)]) -> String {
    let part = |name: &str| parts.iter().find(|(own, _)| *own == name).map(|(_, text)| *text);
    let answers: Vec<_> = part("answers").unwrap_or_default().lines().filter_map(|line| line.split_once('=')).collect();
    let variable = |name: &str| answers.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
    let files = Files {
        compose: input("docker-compose.yml", part("docker-compose.yml").unwrap_or_default()),
        more: Vec::new(),
        rancher: part("rancher-compose.yml").map(|text| input("rancher-compose.yml", text)),
        stack: Some("shop"),
        folder: None,
        variable: &variable,
        path: PathBuf::new(),
        is_confined: true,
        profiles: &[],
    };
    let mut out = String::new();
    match stack(&files) {
        Ok((read, warnings)) => {
            for service in &read.services {
                writeln!(out, "start {}", shown(service)).unwrap();
            }
            for line in warnings {
                writeln!(out, "warning: {line}").unwrap();
            }
        }
        Err(failure) => writeln!(out, "refused: {failure}").unwrap(),
    }
    out
}

#[test]
fn files_of_a_catalog_are_read() {
    for name in CATALOG {
        let path = format!("{}/../tests/fixtures/compose/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let expected = std::fs::read_to_string(&path).unwrap();
        let mut found = String::new();
        for entry in expected.split("@@ ").skip(1) {
            let mut parts = entry.split("\n@ ");
            let title = parts.next().unwrap();
            write!(found, "@@ {title}").unwrap();
            let parts: Vec<_> = parts.filter_map(|part| part.split_once('\n')).collect();
            for (name, text) in parts.iter().filter(|(name, _)| *name != "result") {
                write!(found, "\n@ {name}\n{}", text.trim_end()).unwrap();
            }
            write!(found, "\n@ result\n{}\n", result(&parts)).unwrap();
        }
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&path, &found).unwrap();
        } else {
            assert!(found == expected, "{path} is otherwise; {UPDATE}=1 writes what is so now:\n{found}");
        }
    }
}
