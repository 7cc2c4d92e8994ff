//! Secrets and configs of a stack on a real engine: they are in their containers, and nowhere else.
//!
//! Linux, as root, with Debian's docker.io, etcd-server and busybox-static.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tests::docker_hosts::DockerHosts;
use tests::etcd::{base64, text};
use tests::stacked::Stacked;
use tests::{Launch, eventually};

const LIMIT: Duration = Duration::from_mins(1);

/// What must not be found.
const SECRETS: [&str; 3] = ["fernsehturm-1", "fernsehturm-2", "fernsehturm-3"];

const SHOP: &str = "name: shop
services:
  web:
    image: box
    command: [/bin/busybox, sh, -c, 'trap exit TERM; sleep 1000 & wait']
    stop_grace_period: 2s
    secrets: [{source: file, uid: '5', gid: '6', mode: 0400}, env]
    configs: [{source: text, target: /etc/deep/er/web.conf}]
    deploy: {update_config: {monitor: 1s}}
secrets: {file: {file: ./pw.txt}, env: {environment: SECRET}}
configs: {text: {content: 'x ${MORE}'}}
";

/// A scheduler with a key, which only its owner reads.
fn with_key(digits: &str) -> impl FnOnce(Launch, &DockerHosts) -> Launch + '_ {
    move |scheduler, hosts| {
        let path = hosts.folder().join("secrets.key");
        std::fs::write(&path, digits).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        scheduler.with("--secrets-key", path)
    }
}

#[test]
fn secrets_are_in_their_containers_and_nowhere_else() {
    let Some(mut world) = Stacked::start_with(1, with_key(&"5a".repeat(32))) else { return };
    let variables = format!("SECRET={}\nMORE={}\n", SECRETS[1], SECRETS[2]);
    let (file, variables) = (world.file("shop.yml", SHOP), world.file("shop.env", &variables));
    world.file("pw.txt", SECRETS[0]);
    let up = ["up", &file, "--env-file", &variables];
    let planned = world.ends(0, &["plan", &file, "--env-file", &variables]);
    let said = world.ends(0, &up);
    let id = world.hosts.engines[0].docker(&["ps", "--quiet", "--filter", "label=io.berth.stack=shop"]);
    let id = id.trim().to_owned();
    let inside = |world: &Stacked, line: &str| {
        world.hosts.engines[0].docker(&["exec", &id, "/bin/busybox", "sh", "-c", line]).trim().to_owned()
    };
    assert_eq!(inside(&world, "cat /run/secrets/file"), SECRETS[0]);
    assert_eq!(inside(&world, "stat -c '%u %g %a' /run/secrets/file"), "5 6 400");
    assert_eq!(
        inside(&world, "cat /run/secrets/env; stat -c ' %u %a' /run/secrets/env"),
        format!("{} 0 444", SECRETS[1])
    );
    assert_eq!(inside(&world, "cat /etc/deep/er/web.conf"), format!("x {}", SECRETS[2]));

    // The same contents change nothing, others do, and a difference does not show them.
    let again = world.ends(0, &up);
    assert!(again.contains("nothing changes") || !again.contains("web.files"), "{again}");
    let still = world.hosts.engines[0].docker(&["ps", "--quiet", "--filter", "label=io.berth.stack=shop"]);
    assert_eq!(still.trim(), id, "the same container runs");
    world.file("pw.txt", "fernsehturm-1 changed");
    let changed = world.ends(0, &["plan", &file, "--env-file", &variables]);
    assert!(changed.contains("files: *** -> ***"), "{changed}");
    world.ends(0, &up);
    let new = world.hosts.engines[0].docker(&["ps", "--quiet", "--filter", "label=io.berth.stack=shop"]);
    let new = new.trim().to_owned();
    let read = world.hosts.engines[0].docker(&["exec", &new, "/bin/busybox", "cat", "/run/secrets/file"]);
    assert_eq!(read.trim(), "fernsehturm-1 changed");

    // Sought in all that was said, in etcd, in what the engine shows and in every file but those that have it by rights.
    let mut seen = vec![("plan", planned), ("up", said), ("again", again), ("changed", changed)];
    seen.push(("stacks", world.json(&["stacks", "shop"]).to_string()));
    seen.push(("history", world.json(&["history", "shop"]).to_string()));
    seen.push(("ps", world.json(&["ps"]).to_string()));
    seen.push(("inspect", world.hosts.engines[0].docker(&["inspect", &new])));
    let all = world.hosts.etcd.ask("kv/range", &json!({"key": base64("\0"), "range_end": base64("\0")}));
    let values = all["kvs"].as_array().unwrap().iter().map(|pair| text(&pair["value"]));
    seen.push(("etcd", values.collect()));
    for (what, text) in &seen {
        assert!(!text.is_empty() && !has_secret(text.as_bytes()), "{what}: {text}");
    }
    assert!(seen.iter().any(|(what, text)| *what == "etcd" && text.contains("sealed")), "it was sought where it is");
    let own = [file.as_str(), variables.as_str()].map(Path::new);
    search(world.hosts.etcd.folder(), &|_| false);
    search(world.hosts.folder(), &|path| {
        own.contains(&path)
            || path.ends_with("pw.txt")
            || path.components().any(|part| part.as_os_str() == "overlay2" || part.as_os_str() == "vfs")
    });
    world.ends(0, &["down", "shop"]);
}

fn has_secret(bytes: &[u8]) -> bool {
    SECRETS.iter().any(|secret| bytes.windows(secret.len()).any(|window| window == secret.as_bytes()))
}

/// Fails if a file below a folder has a secret, but for those that may.
fn search(folder: &Path, may: &dyn Fn(&Path) -> bool) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if may(&path) {
            continue;
        }
        if kind.is_dir() {
            search(&path, may);
        } else if kind.is_file() {
            assert!(!has_secret(&std::fs::read(&path).unwrap_or_default()), "{}", path.display());
        }
    }
}

#[test]
fn without_the_key_contents_are_refused_and_nothing_is_started() {
    let Some(mut world) = Stacked::start(1) else { return };
    let variables = world.file("shop.env", "SECRET=a\nMORE=b\n");
    let file = world.file("shop.yml", SHOP);
    world.file("pw.txt", "x");
    let said = world.ends(2, &["up", &file, "--env-file", &variables]);
    assert!(said.contains("--secrets-key") && said.contains("shop.yml, line 11: configs.text.content: "), "{said}");
    let names: Vec<String> = (0..13).map(|number| format!("s{number}")).collect();
    for name in &names {
        world.file(name, &"x".repeat(64 << 10));
    }
    let described: Vec<String> = names.iter().map(|name| format!("{name}: {{file: {name}}}")).collect();
    let text = format!(
        "services: {{web: {{image: box, secrets: [{}]}}}}\nsecrets: {{{}}}\n",
        names.join(", "),
        described.join(", ")
    );
    let file = world.file("large.yml", &text);
    let said = world.ends(2, &["up", &file]);
    assert!(said.contains("large.yml: body too large: services.web has 11"), "{said}");
    assert!(said.contains("contents of configs and secrets") && said.contains("at most 1048576 bytes"), "{said}");
    assert_eq!(world.running("shop"), 0);
}

#[test]
fn a_scheduler_that_lost_its_key_says_which_one_it_needs_and_what_runs_goes_on() {
    let Some(mut world) = Stacked::start_with(1, with_key(&"5a".repeat(32))) else { return };
    let variables = world.file("shop.env", "SECRET=a\nMORE=b\n");
    let file = world.file("shop.yml", SHOP);
    world.file("pw.txt", "x");
    world.ends(0, &["up", &file, "--env-file", &variables]);
    world.file("pw.txt", "y");
    world.ends(0, &["up", &file, "--env-file", &variables]);
    let ids = |world: &Stacked| {
        world.hosts.engines[0].docker(&["ps", "--no-trunc", "--quiet", "--filter", "label=io.berth.stack=shop"])
    };
    let before = ids(&world);
    world.restart_scheduler();
    eventually("it has the stack again", LIMIT, || (world.ask(&["stacks", "shop"]).code == Some(0)).then_some(()));
    world.ask(&["scale", "shop/web=2", "--detach"]);
    eventually("the second unit says why it is not started", LIMIT, || {
        world.json(&["stacks", "shop"]).to_string().contains("--secrets-key").then_some(())
    });
    assert_eq!(world.running("shop"), 1, "what runs goes on");
    // It is known before the only unit stops for another.
    world.ends(0, &["rollback", "shop", "--detach"]);
    eventually("the stack says why it is not rolled back", LIMIT, || {
        let shop = world.json(&["stacks", "shop"]).to_string();
        (shop.contains("stuck") && shop.contains("--secrets-key")).then_some(())
    });
    assert_eq!(ids(&world), before);
    let id = before.trim();
    let inspected = world.hosts.engines[0].docker(&["inspect", "--format", "{{.State.Status}} {{.RestartCount}}", id]);
    assert_eq!(inspected.trim(), "running 0");
}

#[test]
fn a_folder_that_stands_where_a_file_is_to_be_stays() {
    let Some(mut world) = Stacked::start_with(1, with_key(&"5a".repeat(32))) else { return };
    let of = |target: &str| {
        format!(
            "name: data\nservices:\n  db:\n    image: box\n    command: [/bin/busybox, sleep, '1000']\n    stop_grace_period: 1s\n    \
             volumes: ['data:/srv/data']\n    deploy: {{update_config: {{monitor: 1s}}}}\n{target}volumes: {{data: {{}}}}\nconfigs: {{c: {{content: x}}}}\n"
        )
    };
    let file = world.file("data.yml", &of(""));
    world.ends(0, &["up", &file]);
    let inside = |world: &Stacked, command: &str| {
        let id = world.hosts.engines[0].docker(&["ps", "--quiet", "--filter", "label=io.berth.stack=data"]);
        world.hosts.engines[0].docker(&["exec", id.trim(), "/bin/busybox", "sh", "-c", command])
    };
    inside(&world, "mkdir -p /srv/data/sub && echo precious > /srv/data/sub/file");
    // In, at and above what is mounted: refused before anything is done.
    for target in ["/srv", "/srv/data", "/srv/data/x"] {
        world.file("data.yml", &of(&format!("    configs: [{{source: c, target: {target}}}]\n")));
        let said = world.ends(2, &["up", &file]);
        assert!(said.contains("/srv/data") && said.contains("mounted"), "{said}");
    }
    // A folder of the image, of which only the engine knows: what ran is back, with its folder.
    world.file("data.yml", &of("    configs: [{source: c, target: /bin}]\n"));
    let said = world.ends(1, &["up", &file]);
    assert!(said.contains("director"), "{said}");
    assert_eq!(inside(&world, "cat /srv/data/sub/file; test -d /bin && echo folder").trim(), "precious\nfolder");
    world.ends(0, &["down", "data"]);
}
