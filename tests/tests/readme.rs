//! The README's examples, run as they stand there, and what the first command prints.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tests::cluster::shop;
use tests::console::{Example, Terminal, examples, fits};
use tests::service::Executable;
use tests::shared::Exclusive;
use tests::{Launch, eventually, repository, scaled};

const LIMIT: Duration = Duration::from_secs(10);

/// Commands that other tests run: the README's processes beside each other stand in `addresses.rs`, engines and etcd in
/// `hosts.rs`.
const ELSEWHERE: [&str; 3] = ["--metadata-server", "--add-address", "agent up --docker"];

fn readme() -> String {
    std::fs::read_to_string(repository().join("README.md")).unwrap()
}

/// Whether the commands that the examples use are there.
fn has_clients() -> bool {
    tests::shared::there(&[("curl", "--version"), ("dig", "-v")], "curl, bind9-dnsutils")
}

/// The lines of the `sh` blocks, as examples that print whatever they like.
fn commands(markdown: &str) -> Vec<Example> {
    let console = markdown.replace("```sh\n", "```console\n$ ");
    let known = examples(markdown);
    let all = examples(&console).into_iter();
    let blocks = all.filter(|example| !known.iter().any(|known| known.command == example.command));
    // In a block of commands the lines that follow the first are commands too.
    let lines = blocks.flat_map(|example| {
        let Example { line, command, expected } = example;
        std::iter::once(command).chain(expected).map(move |command| Example { line, command, expected: Vec::new() })
    });
    lines.collect()
}

#[test]
fn every_example_of_the_readme_and_of_the_page_about_names_does_what_it_says() {
    if !has_clients() {
        return;
    }
    let _ports = Exclusive::default_ports();
    let readme = readme();
    let (blocks, consoles) = (commands(&readme), examples(&readme));
    assert!(!blocks.is_empty() && !consoles.is_empty());
    let mut all: Vec<_> = blocks.into_iter().chain(consoles).collect();
    all.sort_by_key(|example| example.line);
    let mut terminal = Terminal::new(&repository());
    for mut example in all {
        if ELSEWHERE.iter().any(|elsewhere| example.command.contains(elsewhere)) {
            continue;
        }
        if example.command.ends_with("up examples/shop.yml") {
            // It runs until it is ended; what it prints is the business of the next test.
            example.expected = vec!["...".to_owned(), "Ctrl-C ends it.".to_owned(), "...".to_owned()];
        }
        terminal.run(&example).unwrap_or_else(|problem| panic!("README.md, {problem}"));
    }
    // What the page about names asks, it asks the same cluster.
    let names = examples(&std::fs::read_to_string(repository().join("docs/dns.md")).unwrap());
    assert!(!names.is_empty());
    for example in names {
        terminal.run(&example).unwrap_or_else(|problem| panic!("docs/dns.md, {problem}"));
    }
}

/// Runs a line that was printed for pasting.
fn paste(line: &str) -> String {
    let output = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_first_command_prints_three_lines_that_work_when_pasted() {
    if !has_clients() {
        return;
    }
    let _ports = Exclusive::default_ports();
    let default = Launch::bare(Executable::Agent).word("up").word("examples/shop.yml");
    for (launch, default_ports) in [(default, true), (Launch::agent(&shop()), false)] {
        let agent = launch.start();
        let printed = eventually("it tells what it serves", LIMIT, || {
            let printed = agent.printed();
            printed.contains("Ctrl-C").then_some(printed)
        });
        if default_ports {
            for address in ["http://127.0.0.1:8250", "127.0.0.1:8253 (UDP and TCP)", "http://127.0.0.1:8254"] {
                assert!(printed.contains(address), "{address} in {printed}");
            }
        }
        let lines: Vec<_> = printed
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("curl ") || line.starts_with("dig "))
            .collect();
        let [own, name, placement] = lines[..] else { panic!("three lines in {printed}") };
        eventually("it serves", LIMIT, || (paste(own) == "shop-web-1").then_some(()));
        eventually("it has names", LIMIT, || (paste(name) == "127.42.2.21\n").then_some(()));
        let placed: serde_json::Value = eventually("it has hosts", LIMIT, || {
            let value: serde_json::Value = serde_json::from_str(&paste(placement)).ok()?;
            value.get("error").is_none().then_some(value)
        });
        assert!(["win-2022", "win-2025"].iter().any(|host| placed.to_string().contains(host)), "{placed:#}");
    }
}

#[test]
fn an_edit_while_it_runs_is_shown_as_the_readme_says() {
    let folder = tests::cluster::ClusterFolder::new(tests::cluster::shop_text());
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    let metadata = agent.address_of("metadata");
    folder.write(tests::cluster::shop_text().replace("name: shop-web-1,", "name: shop-web-9,"));
    let own = tests::http::get("/latest/self/container/name").from("127.42.1.11");
    let told = tests::wait::timed("the edit", Duration::from_millis(250), || {
        (own.ask(metadata).text() == "shop-web-9").then_some(())
    });
    assert!(told.1 < scaled(Duration::from_millis(250)));
}

#[test]
fn the_runner_of_examples_notices_what_is_wrong() {
    let mut terminal = Terminal::new(&repository());
    let mut run = |command: &str, expected: &[&str]| {
        let expected = expected.iter().map(|line| (*line).to_owned()).collect();
        terminal.run(&Example { line: 1, command: command.to_owned(), expected }).is_ok()
    };
    assert!(run("echo a; echo b", &["a", "b"]));
    assert!(run("echo a; echo b", &["a", "..."]));
    assert!(run("true", &[]));
    assert!(!run("echo a; echo b", &["a"]));
    assert!(!run("echo a", &["b"]));
    assert!(!run("false", &[]));
    assert!(!run("no-such-command", &["..."]));
    assert!(run("echo serving; exec sleep 30", &["serving"]));
    assert!(fits(&[], &[]));
    let found: Vec<_> =
        commands("```sh\na\nb\n```\n```console\n$ c\nd\n```\n").into_iter().map(|e| e.command).collect();
    assert_eq!(found, ["a", "b"]);
}
