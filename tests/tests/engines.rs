//! Two real Docker Engines in network namespaces: the scheduler starts containers there, and they find each other.
//!
//! Images are made of programs of this machine, since there is no registry; the engines have their files, sockets and
//! mounts to themselves. Linux, as root, with Debian's docker.io.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "engines/hosts.rs"]
mod hosts;
#[path = "engines/inside.rs"]
mod inside;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::registry::Registry;
use tests::service::Ended;
use tests::wait::{scaled, seconds};
use tests::{Companion, Executable, Launch, eventually, http};

use hosts::{Engines, Host, IMAGE};

const LIMIT: Duration = Duration::from_secs(30);

/// Longest time for a client to be told something definite, whatever becomes of an engine and the scheduler.
const ASKING: Duration = Duration::from_mins(2);

/// Runs a subcommand of the scheduler against a running one.
fn command(words: &[&str], server: SocketAddr) -> Ended {
    let launch = Launch::bare(Executable::Scheduler).word(words[0]).word("--server").word(server.to_string());
    words[1..].iter().fold(launch, Launch::word).run()
}

#[test]
fn containers_are_started_where_labels_say_and_find_each_other() {
    let Some(engines) = Engines::start() else { return };
    let (mut scheduler, server) = engines.scheduler();
    let agents = [engines.agent(&engines.pair.host), engines.agent(&engines.pair.container)];
    let run = |name: &str, side: &str, more: &[&str]| {
        let rule = format!("side = {side}");
        let words = ["run", "--name", name, "--stack", "shop", "--service", name, "--constraint", &rule];
        command(&[&words, more, &[IMAGE, "/bin/sleep", "1000"]].concat(), server)
    };
    for (name, side) in [("web", "one"), ("db", "two")] {
        let ended = run(name, side, &["-m", "64m", "-p", "8080:80", "-e", "COLOUR=red", "-l", "team=blue"]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
        assert!(ended.output.contains("running") && ended.output.contains(side), "{}", ended.output);
        assert!(ended.errors.contains(&format!("{name} on {side}: starting")), "{}", ended.errors);
    }
    let [one, two] = &engines.both[..] else { panic!("two engines") };
    assert_eq!((one.engine.names(), two.engine.names()), (["web".to_owned()].into(), ["db".to_owned()].into()));
    let shown: Value = serde_json::from_str(&one.engine.docker(&["inspect", "web"])).unwrap();
    let (config, host) = (&shown[0]["Config"], &shown[0]["HostConfig"]);
    assert_eq!((&config["Labels"]["team"], &config["Labels"]["io.berth.placement"]), (&json!("blue"), &json!("web")));
    assert!(config["Env"].as_array().unwrap().contains(&json!("COLOUR=red")), "{config}");
    assert_eq!(host["Dns"], json!(["169.254.169.251"]));
    assert_eq!(host["PortBindings"]["80/tcp"][0]["HostPort"], "8080");
    assert_eq!(host["MemoryReservation"], 64 << 20);

    // Asking again starts nothing, and taking another's name is refused.
    assert_eq!(run("web", "one", &["-m", "64m", "-p", "8080:80", "-e", "COLOUR=red", "-l", "team=blue"]).code, Some(0));
    assert_eq!(run("web", "two", &[]).code, Some(1));
    assert_eq!(one.engine.names().len() + two.engine.names().len(), 2);

    // What a host's agent would report.
    let containers = [("web", "shop/web", "one", one.address("web")), ("db", "shop/db", "two", two.address("db"))];
    engines.describe(&containers);
    let inside = |host: &Host, container: &str, words: &[&str]| {
        host.engine.try_docker(&[&["exec", container], words].concat()).unwrap_or_default()
    };
    for (host, own, other, address) in [(one, "web", "db", &containers[1].3), (two, "db", "web", &containers[0].3)] {
        for name in [other.to_owned(), format!("{other}.shop.rancher.internal")] {
            eventually(&format!("{own} finds {name}"), LIMIT, || {
                inside(host, own, &["getent", "hosts", &name]).starts_with(address.as_str()).then_some(())
            });
        }
        for (path, expected) in [("container", own), ("host", host.name)] {
            let url = format!("http://169.254.169.250/latest/self/{path}/name");
            eventually(&format!("{own} is told its {path}"), LIMIT, || {
                (inside(host, own, &["curl", "-sS", "-m", "5", &url]) == expected).then_some(())
            });
        }
        // Nothing listens there, and the other side says so at once.
        let refused = host.engine.try_docker(&["exec", own, "curl", "-sS", "-m", "5", &format!("http://{other}:9/")]);
        let refused = refused.unwrap_err();
        assert!(refused.contains("Failed to connect") && !refused.contains("timed out"), "{refused}");
    }

    let ended = command(&["ps"], server);
    let words = ["web", "db", "running", IMAGE, "8080->80/tcp"];
    assert!(words.iter().all(|word| ended.output.contains(word)), "{}", ended.output);
    assert_eq!(command(&["rm", "--time", "0", "web", "db"], server).code, Some(0));
    assert_eq!(one.engine.names().len() + two.engine.names().len(), 0);
    drop(agents);
    scheduler.stop();
}

#[test]
fn an_image_goes_where_its_registry_says_that_it_runs() {
    let Some(engines) = Engines::start() else { return };
    let Some(registry) = Registry::start(Some(&engines.pair.host)) else { return };
    let (_scheduler, server) = engines.scheduler();
    let one = &engines.both[0];
    let run = |image: &str, name: &str| {
        let words = ["run", "--name", name, "--constraint", "side = one", image, "/bin/sleep", "1000"];
        command(&words, server)
    };
    // An image for one build of Windows: no engine here runs that, and none has to try.
    let windows = format!("{}/windows:1", registry.address);
    let layer = engines.files.path("layer.tar").display().to_string();
    std::fs::write(engines.files.path("readme"), "nothing").unwrap();
    let packed = Command::new("tar").arg("-C").arg(engines.files.path(".")).args(["-cf", &layer, "readme"]).status();
    assert!(packed.unwrap().success());
    registry.crane(&["append", "--oci-empty-base", "-f", &layer, "-t", &windows]);
    registry.crane(&["mutate", "--set-platform", "windows/amd64:10.0.20348.1", "-t", &windows, &windows]);
    // As images for several systems are: an index with an entry for each.
    registry.crane(&["index", "append", "-m", &windows, "-t", &windows]);
    let ended = run(&windows, "win");
    assert_eq!(ended.code, Some(1), "{}{}", ended.output, ended.errors);
    let text = format!("{}{}", ended.output, ended.errors);
    assert!(text.contains("is for windows 20348.1/amd64, host is linux"), "{text}");

    // One for Linux is pulled and started, with progress.
    let linux = format!("{}/probe:1", registry.address);
    one.engine.docker(&["tag", IMAGE, &linux]);
    one.engine.docker(&["push", &linux]);
    one.engine.docker(&["rmi", &linux]);
    let ended = run(&linux, "pulled");
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    assert!(ended.errors.contains("pulling"), "{}", ended.errors);
    assert_eq!(
        one.engine.docker(&["inspect", "--format", "{{.State.Running}} {{.Config.Image}}", "pulled"]),
        format!("true {linux}")
    );
}

#[test]
fn an_engine_that_refuses_is_quoted_and_the_next_one_is_tried() {
    let Some(engines) = Engines::start() else { return };
    let (_scheduler, server) = engines.scheduler();
    let [one, two] = &engines.both[..] else { panic!("two engines") };
    // Only one of them has the image, and there is no registry to pull it from.
    two.engine.docker(&["tag", IMAGE, "rare:1"]);
    for number in 1..=3 {
        let ended = command(&["run", "--name", &format!("rare-{number}"), "rare:1", "/bin/sleep", "1000"], server);
        assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    }
    assert_eq!((one.engine.names().len(), two.engine.names().len()), (0, 3));
    // That another host worked does not hide what was tried.
    two.engine.docker(&["tag", IMAGE, "scarce:1"]);
    let asked = json!({ "id": "scarce", "image": "scarce:1", "command": "/bin/sleep 1000", "start": true });
    let told = http::post("/v1/placements", asked.to_string()).ask(server).value();
    let tried = told["failures"].as_array().map_or(0, Vec::len);
    assert_eq!(
        (&told["state"], &told["placements"][0]["host"]["name"], tried),
        (&json!("placed"), &json!("two"), 1),
        "{told}"
    );
    two.engine.docker(&["rm", "--force", "scarce"]);
    // With one attempt, on the host that has it not: the engine's own words, and nothing is left.
    let ended = command(&["run", "--name", "none", "--host", "one", "--attempts", "1", "rare:1"], server);
    assert_eq!(ended.code, Some(1));
    assert!(ended.errors.contains("none could not be started on one: "), "{}", ended.errors);
    let ended = command(&["run", "--name", "bad", "--constraint", "side = one", IMAGE, "/no/such/program"], server);
    assert_eq!(ended.code, Some(1));
    assert!(ended.errors.contains("no such file or directory"), "{}", ended.errors);
    assert_eq!(one.engine.names(), BTreeSet::new());
    let hosts = http::get("/v1/hosts").ask(server).value();
    assert_eq!(hosts["hosts"][0]["pools"]["instanceReservation"]["promised"], 0, "{hosts}");
    // A container that somebody else made keeps its name and its life.
    one.engine.docker(&["run", "--detach", "--name", "mine", IMAGE, "/bin/sleep", "1000"]);
    let ended = command(&["run", "--name", "mine", "--host", "one", IMAGE, "/bin/sleep", "1000"], server);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert_eq!(one.engine.names(), ["mine".to_owned()].into());
    // One that it created too late for an attempt that ended is not in the way.
    let labels = ["io.berth.placement=late", "io.berth.request=late", "io.berth.attempt=ended"];
    let labels: Vec<_> = labels.iter().flat_map(|label| ["--label", label]).collect();
    one.engine.docker(&[&["create", "--name", "late"], &labels[..], &[IMAGE, "/bin/sleep", "1000"]].concat());
    let ended = command(&["run", "--name", "late", "--host", "one", IMAGE, "/bin/sleep", "1000"], server);
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    // One that is removed by hand gives its room back.
    two.engine.docker(&["rm", "--force", "rare-1"]);
    eventually("its room is free", LIMIT, || {
        let text = http::get("/v1/placements").ask(server).text();
        (!text.contains("rare-1") && text.contains("rare-2")).then_some(())
    });
}

#[test]
fn a_container_that_does_not_run_is_not_told_to_be_started() {
    let Some(engines) = Engines::start() else { return };
    let (_scheduler, server) = engines.scheduler();
    let one = &engines.both[0].engine;
    let run = |name: &str, flags: &[&str], words: &[&str]| {
        let run = ["run", "--name", name, "--host", "one"];
        command(&[&run[..], flags, &[IMAGE, "/bin/sh", "-c"], words].concat(), server)
    };
    // The scheduler knows nothing of who has the port.
    one.docker(&["run", "--detach", "--name", "foreign", "--publish", "9999:80", IMAGE, "/bin/sleep", "1000"]);
    let (endless, broken) = (["sleep 1000"], ["echo no configuration >&2; exit 3"]);
    for (name, flags, words, parts) in [
        ("port", &["-p", "9999:80"][..], &endless, ["port", "already"]),
        ("ends", &[], &broken, ["exit code 3", "no configuration"]),
        ("loops", &["--restart", "always"], &broken, ["ended", "no configuration"]),
    ] {
        let ended = run(name, flags, words);
        assert_eq!(ended.code, Some(1), "{name}: {}{}", ended.output, ended.errors);
        assert!(parts.iter().all(|part| ended.errors.contains(part)), "{name}: {}", ended.errors);
        assert!(!ended.errors.contains(&format!("{name} on one: started")), "{name}: {}", ended.errors);
        let shown = http::get(format!("/v1/placements/{name}")).ask(server);
        assert_eq!((shown.status, one.names()), (404, ["foreign".to_owned()].into()), "{name}");
    }
    // What has done what it had to is a success, and not told to run.
    let ended = run("job", &[], &["exit 0"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    assert!(ended.output.contains("exited (0)") && !ended.output.contains("started"), "{}", ended.output);
    // What ends later is told to have ended.
    assert_eq!(run("web", &["-p", "9998:80"], &endless).code, Some(0));
    one.docker(&["kill", "web"]);
    let ended = command(&["ps"], server);
    let line = ended.output.lines().find(|line| line.starts_with("web")).unwrap_or_default();
    assert!(["exited (137)", "Z", "one", IMAGE].iter().all(|part| line.contains(part)), "{}", ended.output);
    let shown = http::get("/v1/placements/web").ask(server).value();
    let container = &shown["placements"][0]["containers"][0];
    assert_eq!((&container["state"], &container["life"]["exit_code"]), (&json!("exited"), &json!(137)), "{shown}");
    // So is asking for it again.
    let ended = run("web", &["-p", "9998:80"], &endless);
    assert_eq!(ended.code, Some(1), "{}{}", ended.output, ended.errors);
    assert!(ended.errors.contains("web does not run on one, it is exited (137)"), "{}", ended.errors);
    // What somebody removed is not told to run because it did: it is started again, or it is said that it is gone.
    one.docker(&["rm", "--force", "web"]);
    let ended = run("web", &["-p", "9998:80"], &endless);
    let (runs, is_said) = (one.names().contains("web"), ended.errors.contains("no such container any more"));
    assert!(if runs { ended.code == Some(0) } else { ended.code == Some(1) && is_said }, "{runs} {ended:?}");
    eventually("its room is given back", LIMIT, || {
        (run("web", &["-p", "9998:80"], &endless).code == Some(0)).then_some(())
    });
    assert!(one.names().contains("web"));
    // What has the labels of a placement is not what this request has started, whoever made it.
    let labels = ["io.berth.placement=left", "io.berth.request=left"];
    one.docker(&["run", "--detach", "--name", "left", "-l", labels[0], "-l", labels[1], IMAGE, "/bin/sleep", "1000"]);
    let ended = run("left", &[], &endless);
    assert_eq!(ended.code, Some(1), "{}{}", ended.output, ended.errors);
    assert!(ended.errors.contains("`docker rm --force left` there"), "{}", ended.errors);
    assert!(one.names().contains("left"));
}

#[test]
fn nothing_is_swept_but_what_has_the_label_of_this_ledger_and_no_record_in_it() {
    let Some(engines) = Engines::start() else { return };
    let mut scheduler = engines.launch().flag("--sweep=1").start();
    scheduler.ready();
    let (server, one) = (scheduler.address(), &engines.both[0].engine);
    let ended = command(&["run", "--name", "web", "--host", "one", IMAGE, "/bin/sleep", "1000"], server);
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    let ledger = one.docker(&["inspect", "--format", "{{index .Config.Labels \"io.berth.ledger\"}}", "web"]);
    assert_eq!(ledger.trim().len(), 32, "{ledger}");
    let own = format!("io.berth.ledger={}", ledger.trim());
    let run = |name: &str, image: &str, ledger: &[&str]| {
        let [placement, request] = ["placement", "request"].map(|label| format!("--label=io.berth.{label}=left"));
        let labels = ledger.iter().flat_map(|label| ["--label", label]);
        let words = ["run", "--detach", "--name", name, &placement, &request].into_iter().chain(labels);
        one.docker(&words.chain([image, "/bin/sleep", "1000"]).collect::<Vec<_>>());
    };
    run("left", IMAGE, &[&own]);
    run("unnamed", IMAGE, &[]);
    run("foreign", IMAGE, &["io.berth.ledger=0123456789abcdef0123456789abcdef"]);
    // Whoever makes an image does not choose what is removed.
    one.docker(&["commit", "--change", &format!("LABEL {own}"), "unnamed", "baked:1"]);
    run("baked", "baked:1", &[]);
    let all = BTreeSet::from(["web", "unnamed", "foreign", "baked"].map(str::to_owned));
    eventually("what the ledger lost is removed", LIMIT, || (!one.names().contains("left")).then_some(()));
    // The others had as much time.
    let audit = || std::fs::read_to_string(engines.files.path("state").join("audit.ndjson")).unwrap_or_default();
    let swept =
        || audit().lines().filter(|line| line.contains(r#""action":"sweep""#)).map(str::to_owned).collect::<Vec<_>>();
    let lines = eventually("it is in the audit log", LIMIT, || Some(swept()).filter(|lines| !lines.is_empty()));
    assert!(
        lines.len() == 1 && lines[0].contains(r#""request":"left""#) && lines[0].contains(r#""hosts":["one"]"#),
        "{lines:?}"
    );
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(one.names(), all);
    assert_eq!(swept().len(), 1);
}

#[test]
fn a_container_is_not_killed_before_it_had_its_grace() {
    let Some(engines) = Engines::start() else { return };
    let (_scheduler, server) = engines.scheduler();
    let one = &engines.both[0].engine;
    let folder = engines.files.path("out");
    std::fs::create_dir(&folder).unwrap();
    let volume = format!("{}:/out", folder.display());
    let run = |name: &str, flags: &[&str], script: &str| {
        let run = ["run", "--name", name, "--host", "one", "--volume", &volume];
        let ended = command(&[&run[..], flags, &[IMAGE, "/bin/sh", "-c", script]].concat(), server);
        assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    };
    let script = |signal: &str, word: &str| {
        format!("trap 'sleep 1; echo {word} > /out/{word}; exit 0' {signal}; while :; do sleep 0.1; done")
    };
    run("gentle", &[], &script("TERM", "told"));
    run("other", &["--stop-signal", "USR1"], &script("USR1", "signalled"));
    run("deaf", &["--stop-timeout", "600"], "trap '' TERM; while :; do sleep 1; done");
    // Whatever a person calls it, it is what was started.
    one.docker(&["rename", "other", "otherwise"]);
    assert_eq!(command(&["rm", "gentle", "other"], server).code, Some(0));
    assert!(folder.join("told").exists() && folder.join("signalled").exists());
    assert_eq!(one.names(), ["deaf".to_owned()].into());
    // Who does not want to be told of progress is told what happens, and may give up.
    let told = http::Request::new("DELETE", "/v1/placements/deaf").within(seconds(60)).ask(server);
    assert!(
        told.status == 504 && told.text().contains("deaf is not removed yet: stopping"),
        "{} {}",
        told.status,
        told.text()
    );
    let shown = http::get("/v1/placements/deaf").ask(server).value();
    let container = &shown["placements"][0]["containers"][0];
    assert_eq!(container["state"], "stopping", "{shown}");
    assert!(container["detail"].as_str().is_some_and(|detail| detail.contains("of at most 600 s")), "{shown}");
    // A time that is said later counts.
    assert!(told.text().contains("`scheduler rm --time 0 deaf` kills it at once"), "{}", told.text());
    let ended = command(&["rm", "--time", "0", "deaf"], server);
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert!(ended.errors.contains("deaf on one: stopping"), "{}", ended.errors);
    assert_eq!(one.names(), BTreeSet::new());
}

#[test]
fn a_host_whose_engine_is_dead_gets_no_placements() {
    let Some(mut engines) = Engines::start() else { return };
    let (_scheduler, server) = engines.scheduler();
    let run = |name: &str, flags: &[&str]| {
        command(&[&["run", "--name", name], flags, &[IMAGE, "/bin/sleep", "1000"]].concat(), server)
    };
    assert_eq!(run("before", &["--host", "two"]).code, Some(0));
    engines.both[1].engine.kill();
    for name in ["n1", "n2", "n3"] {
        let begun = Instant::now();
        let ended = run(name, &[]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
        assert!(begun.elapsed() < seconds(20), "{name} took {:?}", begun.elapsed());
    }
    assert_eq!(engines.both[0].engine.names(), ["n1", "n2", "n3"].map(ToOwned::to_owned).into());
    let ended = run("n4", &["--host", "two"]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(
        ended.errors.contains("has not answered for") && ended.errors.contains("connection refused"),
        "{}",
        ended.errors
    );
    let ended = command(&["hosts"], server);
    assert!(ended.output.contains("its Docker Engine has not answered"), "{}", ended.output);
    // What cannot be removed says why, and how to give up.
    let ended = command(&["rm", "before"], server);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    let shown = command(&["ps"], server).output;
    for part in ["waits for the Docker Engine of two", "is it running?", "`scheduler rm --force before` gives up"] {
        assert!(ended.errors.contains(part), "{}", ended.errors);
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!ended.errors.contains("hyper"), "{}", ended.errors);
    engines.both[1].engine.restart();
    eventually("the host takes containers again", LIMIT, || {
        (run("n5", &["--host", "two"]).code == Some(0)).then_some(())
    });
    eventually("what was to be removed is gone", LIMIT, || {
        (engines.both[1].engine.names() == ["n5".to_owned()].into()).then_some(())
    });

    // One that hangs is found out as soon as something is to be started there.
    engines.both[1].engine.hang();
    // What it said a moment ago shows for a second that it is there.
    std::thread::sleep(Duration::from_millis(1200));
    let begun = Instant::now();
    let ended = run("n6", &["--constraint", "side in (one, two)"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
    let ended = run("n7", &["--host", "two"]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    // The start finds it out, or the look at all engines did shortly before.
    assert!(ended.errors.contains("within 5 s"), "{}", ended.errors);
    assert!(begun.elapsed() < seconds(20), "it took {:?}", begun.elapsed());
    assert!(engines.both[0].engine.names().contains("n6"));
    engines.both[1].engine.go_on();
    eventually("the host takes containers again", LIMIT, || {
        (run("n8", &["--host", "two"]).code == Some(0)).then_some(())
    });

    // A host that is no more says so by its name, and how to give up.
    let document: Value = serde_json::from_str(&std::fs::read_to_string(engines.files.file()).unwrap()).unwrap();
    std::fs::write(engines.files.file(), json!({ "berth": 1, "hosts": [document["hosts"][0]] }).to_string()).unwrap();
    let hosts = || http::get("/v1/hosts").ask(server).value()["hosts"].as_array().map_or(0, Vec::len);
    eventually("the host is gone", LIMIT, || (hosts() == 1).then_some(()));
    let removing = std::thread::spawn(move || command(&["rm", "n8"], server));
    for part in ["waits for the Docker Engine of two", "no longer has this host", "`scheduler rm --force n8` gives up"]
    {
        eventually(part, LIMIT, || command(&["ps"], server).output.contains(part).then_some(()));
    }
    assert_eq!(command(&["rm", "--force", "n8"], server).code, Some(0));
    removing.join().unwrap();
    // Its name can be had again.
    let ended = run("n8", &[]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.output, ended.errors);
}

#[test]
fn an_engine_killed_in_the_middle_of_a_start_loses_nothing() {
    const CLIENTS: usize = 12;
    let Some(mut engines) = Engines::start() else { return };
    let (mut scheduler, server) = engines.scheduler();
    let ask = move |number: usize| {
        let body = json!({ "id": format!("c-{number}"), "image": IMAGE, "command": "/bin/sleep 1000", "start": true });
        let begun = Instant::now();
        while begun.elapsed() < scaled(ASKING) {
            match http::post("/v1/placements", body.to_string()).within(seconds(60)).send(server) {
                Ok(answer) if matches!(answer.status, 200 | 201) => return true,
                Ok(answer) if matches!(answer.status, 409 | 502) => return false,
                Ok(answer) if matches!(answer.status, 503 | 504) => {}
                Ok(answer) => panic!("{} {}", answer.status, answer.text()),
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("c-{number}: no definite answer within {:?}", scaled(ASKING));
    };
    let clients: Vec<_> = (0..CLIENTS).map(|number| Companion::start(move || ask(number))).collect();
    eventually("a container is being made on two", LIMIT, || {
        (!engines.both[1].engine.names().is_empty()).then_some(())
    });
    engines.both[1].engine.kill();
    std::thread::sleep(Duration::from_secs(2));
    // The scheduler dies as well, so that all it knows is what is on disk.
    let launch = engines.launch().with("--listen", server.to_string());
    scheduler.kill();
    engines.both[1].engine.restart();
    scheduler = launch.start();
    scheduler.ready();
    let told: Vec<bool> = clients.into_iter().map(Companion::join).collect();
    let there = eventually("everything is settled", Duration::from_secs(90), || {
        let placements = http::get("/v1/placements").ask(server).value();
        let mut there = BTreeMap::new();
        for placement in placements["placements"].as_array()? {
            let unit = &placement["placements"][0];
            (unit["containers"][0]["state"] == "started").then_some(())?;
            there.insert(placement["id"].as_str()?.to_owned(), unit["host"]["name"].as_str()?.to_owned());
        }
        Some(there)
    });
    for (number, told) in told.iter().enumerate() {
        assert_eq!(there.contains_key(&format!("c-{number}")), *told, "{there:?}");
    }
    for host in &engines.both {
        let promised: BTreeSet<_> =
            there.iter().filter(|(_, name)| **name == host.name).map(|(id, _)| id.clone()).collect();
        assert_eq!(host.engine.names(), promised, "on {}", host.name);
    }
    assert!(told.iter().filter(|told| **told).count() > CLIENTS / 2, "{told:?}");
    scheduler.stop();
}
