//! Following the cluster file: edits are seen by all, and nothing that becomes of the file is ever seen in an answer.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::cluster::{CLIENT, ClusterFolder, revisions, shop_text, stamped};
use tests::shared::Exclusive;
use tests::wait::{Stop, seconds, timed};
use tests::{Companion, Launch, Question, Service, eventually, http};

/// How soon an edit is visible in all three services.
const VISIBLE: Duration = Duration::from_millis(250);

/// How long a broken file is left in place after it was read: longer than an edit needs to be visible. A slow machine
/// needs no longer, since clients ask all the time.
const BROKEN_FOR: Duration = Duration::from_millis(300);

/// Pause of a client between two questions: constant, but not what the machine is tested with.
const PAUSE: Duration = Duration::from_millis(1);

/// Most answers that are told when they were wrong.
const TOLD_MAX: usize = 5;

/// The addresses of all three services.
#[derive(Clone, Copy)]
struct Addresses {
    metadata: SocketAddr,
    dns: SocketAddr,
    scheduler: SocketAddr,
}

impl Addresses {
    fn of(agent: &mut Service) -> Self {
        let [metadata, dns, scheduler] = ["metadata", "dns", "scheduler"].map(|service| agent.address_of(service));
        Self { metadata, dns, scheduler }
    }

    /// One question to each service; the answers.
    fn ask(&self) -> Vec<Result<String, String>> {
        QUESTIONS.iter().map(|(_, question)| question(self)).collect()
    }

    fn show(&self, revision: u16) -> bool {
        self.ask().into_iter().all(|answer| answer.is_ok_and(|answer| revisions(&answer).into_iter().eq([revision])))
    }
}

type Ask = fn(&Addresses) -> Result<String, String>;

/// What clients ask all the time, by service and way; every answer of a stamped document shows its revision.
const QUESTIONS: [(&str, Ask); 6] = [
    ("metadata, all", |to| read(&http::get("/latest").json(), to.metadata)),
    ("metadata, self", |to| read(&http::get("/latest/self").json().from(CLIENT), to.metadata)),
    ("metadata, text", |to| read(&http::get("/2015-12-19/services/0/labels/stamp"), to.metadata)),
    ("dns, UDP", |to| resolve(&Question::a("web.all.rancher.internal"), to.dns)),
    ("dns, TCP", |to| resolve(&Question::a("web.all.rancher.internal").tcp(), to.dns)),
    ("scheduler", |to| {
        let question = http::post("/v1/placements", r#"{"image": "web", "dry_run": true}"#);
        read(&question, to.scheduler)
    }),
];

fn read(request: &http::Request, to: SocketAddr) -> Result<String, String> {
    let response = request.send(to).map_err(|error| error.to_string())?;
    if response.status == 200 { Ok(response.text()) } else { Err(format!("{} {}", response.status, response.text())) }
}

fn resolve(question: &Question, to: SocketAddr) -> Result<String, String> {
    let answer = question.send(to).map_err(|error| error.to_string())?;
    if answer.data().len() == 5 { Ok(answer.line()) } else { Err(answer.line()) }
}

/// An agent that serves the first revision.
fn serve(launch: &Launch) -> (Service, Addresses) {
    let mut agent = launch.start();
    agent.ready();
    let addresses = Addresses::of(&mut agent);
    eventually("the first revision", seconds(5), || addresses.show(1).then_some(()));
    (agent, addresses)
}

#[test]
fn an_edit_is_visible_in_all_three_services_within_a_quarter_of_a_second() {
    let _alone = Exclusive::processors();
    let folder = ClusterFolder::new(stamped(1));
    let (_agent, addresses) = serve(&Launch::agent(&folder.file()));
    let mut slowest = Duration::ZERO;
    for revision in 2..14 {
        let how = if revision % 2 == 0 {
            folder.write(stamped(revision));
            "in place"
        } else {
            folder.replace(stamped(revision));
            "by rename"
        };
        let ((), took) =
            timed(&format!("revision {revision} ({how})"), VISIBLE, || addresses.show(revision).then_some(()));
        println!("revision {revision} ({how}) was visible in all three services after {took:?}");
        slowest = slowest.max(took);
        // Edits come at any moment of the poll.
        std::thread::sleep(Duration::from_millis(u64::from(revision) * 7));
    }
    println!("the slowest edit took {slowest:?}");
}

#[test]
fn a_file_that_is_written_piece_by_piece_is_seen_whole_or_not_at_all() {
    use std::io::Write as _;
    let _alone = Exclusive::processors();
    let folder = ClusterFolder::new(stamped(1));
    let (_agent, addresses) = serve(&Launch::agent(&folder.file()));
    let text = stamped(2);
    let mut file = std::fs::File::create(folder.file()).unwrap();
    for piece in text.as_bytes().chunks(text.len() / 12 + 1) {
        file.write_all(piece).unwrap();
        file.flush().unwrap();
        let shown: BTreeSet<_> = addresses.ask().into_iter().flat_map(|answer| revisions(&answer.unwrap())).collect();
        assert!(shown.len() == 1 || shown == BTreeSet::from([1, 2]), "{shown:?}");
        std::thread::sleep(Duration::from_millis(60));
    }
    drop(file);
    eventually("the whole of it", VISIBLE, || addresses.show(2).then_some(()));
}

/// Clients that ask all services all the time, each noting what it was told.
struct Clients<'a> {
    to: Addresses,
    /// The newest revision that may be shown; everything newer was never published.
    newest: &'a AtomicU64,
    stop: &'a AtomicBool,
    asked: &'a AtomicU64,
    wrong: &'a Mutex<Vec<String>>,
}

impl Clients<'_> {
    fn run(&self, name: &str, ask: Ask) {
        let mut last = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let problem = match ask(&self.to) {
                Err(error) => Some(error),
                Ok(answer) => {
                    let shown: Vec<_> = revisions(&answer).into_iter().collect();
                    // Loaded after the answer came: what was written by then may be shown.
                    let newest = self.newest.load(Ordering::SeqCst);
                    match shown[..] {
                        [revision] if revision >= last && u64::from(revision) <= newest => {
                            last = revision;
                            None
                        }
                        _ => Some(format!("revisions {shown:?} after {last} up to {newest} in {answer:.200}")),
                    }
                }
            };
            if let Some(problem) = problem {
                self.wrong.lock().unwrap().push(format!("{name}: {problem}"));
            }
            self.asked.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PAUSE);
        }
    }
}

/// What becomes of the file, with what `/readyz` and the log say about it.
type Breakage = (&'static str, fn(&ClusterFolder), &'static str);

fn shell(folder: &ClusterFolder, script: &str) {
    let done = Command::new("sh").args(["-c", script]).env("FILE", folder.file()).status();
    assert!(done.is_ok_and(|status| status.success()), "{script}");
}

/// The revision in broken documents: it must never be seen.
const NEVER: u16 = 60_000;

const BREAKAGES: [Breakage; 22] = [
    ("half", |f| f.replace(&stamped(NEVER).into_bytes()[..900]), "not YAML"),
    ("half in place", |f| f.write(&stamped(NEVER).into_bytes()[..900]), "not YAML"),
    ("cut at the end of a line", |f| f.replace(stamped(NEVER).replace("...\n", "")), "may be cut off"),
    ("cut by one byte", |f| f.replace(stamped(NEVER).trim_end().strip_suffix('.').unwrap()), "line"),
    ("half of JSON", |f| f.replace(r#"{"containers": [{"name": "rev60000-a"}, {"na"#), "line 1, column 44"),
    ("empty", |f| f.replace(""), "the file is empty"),
    ("empty in place", |f| f.write(""), "the file is empty"),
    ("deleted", ClusterFolder::remove, "does not exist"),
    ("a directory", |f| (f.remove(), std::fs::create_dir(f.file()).unwrap()).1, "is a directory"),
    ("a dangling link", |f| shell(f, "rm -rf \"$FILE\"; ln -s /nonexistent/x \"$FILE\""), "does not exist"),
    ("a pipe nobody writes", |f| shell(f, "rm -f \"$FILE\"; mkfifo \"$FILE\""), "not a regular file"),
    // Opens, but reading it fails, for root too.
    ("unreadable", |f| shell(f, "rm -f \"$FILE\"; ln -s /proc/self/mem \"$FILE\""), "cannot read"),
    ("binary", |f| (f.remove(), f.replace((0..=255).cycle().take(5000).collect::<Vec<u8>>())).1, "not UTF-8"),
    ("not UTF-8", |f| f.replace(b"berth: 1\ncontainers:\n- name: \xff\xfe\n"), "line 3, column 9: not UTF-8"),
    (
        "wrong types",
        |f| f.replace("berth: 1\nhosts: { a: 1 }\n...\n"),
        "line 2, column 8: hosts: expected a list, found a map",
    ),
    ("a list", |f| f.replace("[1, 2]"), "expected a Berth document"),
    ("no YAML", |f| f.replace("berth: 1\nhosts:\n- name: [a\ncontainers: x\n...\n"), "not YAML"),
    ("another format", |f| f.replace("berth: 2\ncontainers:\n- name: rev60000-a\n...\n"), "documents of format 1"),
    ("not one good entity", |f| f.replace("berth: 1\ncontainers:\n- nam: rev60000\n...\n"), "line 3"),
    ("an alias bomb", |f| f.replace(bomb()), "aliases counted"),
    ("nested without end", |f| f.replace("[".repeat(200_000)), "recursion"),
    ("an error page", |f| f.replace("<html><body>502 Bad Gateway rev60000</body></html>"), "expected a Berth document"),
];

fn bomb() -> String {
    let mut bomb = "a: &a [rev60000,x,x,x,x,x,x,x,x]\n".to_owned();
    for letter in 'b'..'n' {
        let before = char::from(u8::try_from(letter).unwrap() - 1);
        let aliases = vec![format!("*{before}"); 9].join(",");
        bomb.extend([letter.to_string(), format!(": &{letter} [{aliases}]\n")]);
    }
    bomb
}

#[test]
fn broken_files_are_survived_under_constant_questions_without_one_failed_or_mixed_answer() {
    let _alone = Exclusive::processors();
    let folder = ClusterFolder::new(stamped(1));
    let launch = Launch::agent(&folder.file()).with("--state-dir", folder.path("state"));
    let (mut agent, to) = serve(&launch);
    let (newest, stop, asked, wrong) =
        (AtomicU64::new(1), AtomicBool::new(false), AtomicU64::new(0), Mutex::new(Vec::new()));
    let clients = Clients { to, newest: &newest, stop: &stop, asked: &asked, wrong: &wrong };
    std::thread::scope(|scope| {
        // Also when an assertion below fails.
        let _stop = Stop(&stop);
        for (name, ask) in QUESTIONS {
            let clients = &clients;
            scope.spawn(move || clients.run(name, ask));
        }
        let mut revision = 1;
        for (name, break_it, told) in BREAKAGES {
            let lines_before = agent.lines_with(told).len();
            break_it(&folder);
            eventually(&format!("{name}: /readyz says so"), seconds(3), || {
                agent.reasons().contains(told).then_some(())
            });
            eventually(&format!("{name}: the log says so"), seconds(3), || {
                (agent.lines_with(told).len() > lines_before).then_some(())
            });
            std::thread::sleep(BROKEN_FOR);
            assert!(agent.is_running(), "{name}");
            assert!(to.show(revision), "{name}: {:?}", to.ask());
            let lines = agent.lines_with(told);
            assert_eq!(lines.len() - lines_before, 1, "{name}: told once: {lines:#?}");
            revision += 1;
            newest.store(u64::from(revision), Ordering::SeqCst);
            folder.remove();
            folder.replace(stamped(revision));
            eventually(&format!("{name}: healed"), seconds(3), || to.show(revision).then_some(()));
            eventually(&format!("{name}: ready again"), seconds(3), || agent.reasons().is_empty().then_some(()));
            // So that no line about what was mended comes after the next count.
            eventually(&format!("{name}: the log says that it was read"), seconds(3), || {
                (agent.lines_with("\"message\":\"read\"").len() >= usize::from(revision)).then_some(())
            });
        }
    });
    let (asked, wrong) = (asked.into_inner(), wrong.into_inner().unwrap());
    println!("{} kinds of broken file, {asked} answers, {} of them wrong", BREAKAGES.len(), wrong.len());
    assert!(asked > 1000, "only {asked} answers");
    assert!(wrong.is_empty(), "{} of {asked}: {:#?}", wrong.len(), &wrong[..wrong.len().min(TOLD_MAX)]);
}

#[test]
fn one_bad_entity_hides_only_itself_and_is_told_with_its_place() {
    let bad = "containers:\n- { name: bad, primary_ip: nowhere }\n";
    let folder = ClusterFolder::new(stamped(1).replace("containers:\n", bad));
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    let addresses = Addresses::of(&mut agent);
    eventually("the rest is served", seconds(5), || addresses.show(1).then_some(()));
    agent.line("the defect", |line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.contains("line 15, column 28: containers/bad/primary_ip: \"nowhere\" is no IP address (left out)")
    });
    assert_eq!(http::get("/latest/containers/bad").ask(addresses.metadata).status, 404);
}

#[test]
fn text_as_windows_tools_write_it_is_understood() {
    let folder = ClusterFolder::new(stamped(1));
    let (_agent, addresses) = serve(&Launch::agent(&folder.file()));
    let windows = |revision| stamped(revision).replace('\n', "\r\n");
    let utf16 = |revision: u16, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
        format!("\u{feff}{}", windows(revision)).encode_utf16().flat_map(bytes).collect()
    };
    for (revision, contents) in [
        (2, windows(2).into_bytes()),
        (3, format!("\u{feff}{}", windows(3)).into_bytes()),
        (4, utf16(4, u16::to_le_bytes)),
        (5, utf16(5, u16::to_be_bytes)),
    ] {
        folder.replace(contents);
        eventually(&format!("revision {revision}"), seconds(3), || addresses.show(revision).then_some(()));
    }
}

#[test]
fn a_reload_is_answered_when_everything_is_visible() {
    let folder = ClusterFolder::new(stamped(1));
    let (mut agent, addresses) = serve(&Launch::agent(&folder.file()));
    for revision in 2..8 {
        folder.replace(stamped(revision));
        let response = agent.reload();
        assert_eq!((response.status, response.text().as_str()), (200, "OK"));
        assert!(addresses.show(revision), "at once after OK: {:?}", addresses.ask());
    }
    folder.replace("berth: 1\nhosts: 5\n");
    let response = agent.reload();
    assert_eq!(response.status, 500);
    assert!(
        response.text().contains("line 2, column 8: hosts: expected a list, found a number"),
        "{}",
        response.text()
    );
    folder.remove();
    assert!(agent.reload().text().contains("does not exist"));
    assert!(addresses.show(7));
    // The page is for POST: a crawler that follows links reloads nothing.
    assert_eq!(http::get("/v1/reload").ask(agent.admin()).status, 405);
}

#[test]
fn sighup_reloads() {
    let folder = ClusterFolder::new(stamped(1));
    let (mut agent, addresses) = serve(&Launch::agent(&folder.file()));
    folder.replace(stamped(2));
    agent.signal("HUP");
    eventually("the second revision", seconds(3), || addresses.show(2).then_some(()));
    // Nothing good to read is a line of the log, not an end.
    folder.remove();
    agent.signal("HUP");
    agent.line("not reloaded", |line| line["message"] == "not reloaded");
    assert!(agent.is_running());
    assert!(addresses.show(2));
}

#[test]
fn equal_contents_do_not_change_the_version() {
    let folder = ClusterFolder::new(shop_text());
    let mut agent = Launch::agent(&folder.file()).start();
    agent.ready();
    let metadata = agent.address_of("metadata");
    let version = || http::get("/latest/version").ask(metadata).text();
    let first = version();
    assert!(!first.is_empty());
    let waiting = Companion::start(move || {
        let target = format!("/latest/version?wait=true&value={first}&maxWait=2");
        let begun = Instant::now();
        (first, http::get(target).ask(metadata).text(), begun.elapsed())
    });
    // Written again, by rename and in place; with other comments; read again on request.
    folder.replace(shop_text());
    assert_eq!(agent.reload().text(), "OK");
    folder.write(format!("# another comment\n{}", shop_text()));
    assert_eq!(agent.reload().text(), "OK");
    let (first, told, took) = waiting.join();
    assert_eq!(told, first);
    assert!(took >= Duration::from_secs(2), "nobody was woken for nothing: {took:?}");
    // And a change does change it, at once for who waits.
    let waiting = Companion::start({
        let first = first.clone();
        move || http::get(format!("/latest/version?wait=true&value={first}&maxWait=30")).ask(metadata).text()
    });
    folder.replace(shop_text().replace("theme: summer", "theme: winter"));
    let told = waiting.join();
    assert_ne!(told, first);
    assert_eq!(told, version());
}

#[test]
fn readyz_is_json_with_the_reasons() {
    let folder = ClusterFolder::new("berth: 1\nhosts: 5\n");
    let mut agent = Launch::agent(&folder.file()).start();
    let admin = agent.admin();
    let response = eventually("it was read", seconds(5), || {
        let response = http::get("/readyz").ask(admin);
        response.text().contains("line 2").then_some(response)
    });
    assert_eq!((response.status, response.header("content-type")), (503, Some("application/json")));
    let value: Value = response.value();
    assert_eq!(value["ready"], false);
    let reason = format!("{}: line 2, column 8: hosts: expected a list, found a number", folder.file().display());
    assert_eq!(value["reasons"]["source"], reason);
    let metrics = http::get("/metrics").ask(admin);
    assert_eq!(metrics.status, 200);
    assert!(metrics.text().ends_with("# EOF\n"), "{}", metrics.text());
}

#[test]
fn readyz_warns_of_names_that_are_left_out() {
    let hosts = "berth: 1\nhost: one\nhosts: [{name: one}, {name: two}]\n";
    let folder = ClusterFolder::new(format!(
        "{hosts}containers: [{{name: far, host: two, primary_ip: 172.17.0.2, routed_ips: []}}]\n"
    ));
    let mut agent = Launch::agent(&folder.file()).start();
    let admin = agent.admin();
    let answer = || http::get("/readyz").ask(admin).value();
    let warned = eventually("it is looked at", seconds(5), || {
        let value: Value = answer();
        value["warnings"]["names across hosts"].as_str().map(str::to_owned)
    });
    assert!(warned.contains("such as far (") && warned.contains("publish each port"), "{warned}");
    // What was read is looked at before it counts as read.
    agent.ready();
    folder.replace(hosts);
    eventually("none is left out", seconds(5), || (answer()["warnings"] == serde_json::json!({})).then_some(()));
}

/// Holds a file alone for five seconds, as nobody else may open it meanwhile; says when it begins.
const LEASE: &str = "
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = os.open(sys.argv[1], os.O_RDWR)
while True:
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except OSError:
        time.sleep(0.01)
os.write(held, sys.argv[2].encode())
print('held', flush=True)
time.sleep(5)
";

/// A lease keeps others from opening a file, and its end changes nothing that could be seen of the file: as with the
/// share modes of Windows.
#[test]
fn a_file_held_by_a_lease_is_read_once_it_is_free() {
    let Some(mut python) = tests::shared::python() else { return };
    let folder = ClusterFolder::new(stamped(1));
    let (mut agent, addresses) = serve(&Launch::agent(&folder.file()));
    let mut holder = python.args(["-c", LEASE]).arg(folder.file()).arg(stamped(2)).spawn().unwrap();
    eventually("the file cannot be read", seconds(4), || agent.reasons().contains("cannot open").then_some(()));
    assert!(holder.wait().unwrap().success());
    eventually("it is read when it is free", seconds(3), || addresses.show(2).then_some(()));
    agent.ready();
}
