//! Compose files that become requests, and what is wrong with others.

use super::*;
use crate::cli::compose::deploy::thousandths;

fn read(yaml: &str) -> Result<Vec<Value>, Invalid> {
    read_for(false, yaml)
}

fn read_for(for_stack: bool, yaml: &str) -> Result<Vec<Value>, Invalid> {
    let parsed = |text: &&str| source::format::parse(text).unwrap().value(plain_scalar);
    let documents: Vec<_> = divide(yaml).iter().map(parsed).collect();
    let variable = |name: &str| (name == "TAG").then(|| "7".to_owned());
    let reading = Reading {
        variable: &variable,
        for_stack,
        file: &|name| match name {
            "common/base.yml" => {
                Ok("services: {base: {image: base, env_file: own.env, extends: {file: more.yml, service: more}}}\n"
                    .into())
            }
            "common/more.yml" => Ok("more: {image: more, tty: true, labels: [a=b]}\n".into()),
            "common/own.env" => Ok("OWN=1\n".into()),
            "web.labels" => Ok("a=file\n# of the team\nteam=blue\n".into()),
            other => Err(format!("{other}: not found")),
        },
        ..Reading::of_tests()
    };
    requests(&documents, &reading, &mut Vec::new())
}

fn check_wrong(yaml: &str, field: &str, part: &str) {
    let error = read(yaml).unwrap_err();
    assert_eq!(error.field, field, "{yaml}: {error}");
    assert!(error.to_string().contains(part), "{yaml}: {error}");
}

#[test]
fn compose_files_become_requests() {
    let found = read(
            "version: '3.8'\nx-mine: {a: 1}\nvolumes: {data: }\nservices:\n  web:\n    image: web:${TAG}-${OTHER:-x}\n    depends_on: [db]\n\
             \x20   command: serve --all\n    environment:\n    - A=1\n    ports: ['80:8080', '9000-9001:90-91/udp', {target: 443, published: '8443', host_ip: 192.0.2.1}]\n\
             \x20   labels: {a: b, 'io.rancher.scheduler.affinity:container_label_ne': 'io.rancher.stack_service.name=$${stack_name}/$${service_name}'}\n\
             \x20   deploy:\n      replicas: 3\n      placement: {constraints: ['node.labels.zone == a'], preferences: [{spread: node.labels.rack}]}\n\
             \x20     resources: {reservations: {cpus: '0.25', memory: 64M}, limits: {memory: 128M}}\n      restart_policy: {condition: on-failure, max_attempts: 2}\n\
             \x20 db:\n    image: db\n    platform: windows/amd64\n    deploy: {mode: global}\n",
        )
        .unwrap();
    let json: Vec<serde_json::Value> = found.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
    assert_eq!((&json[0]["id"], &json[0]["global"]), (&"shop-db".into(), &true.into()));
    let web = &json[1];
    assert_eq!((&web["image"], &web["count"], &web["stack"]), (&"web:7-x".into(), &3.into(), &"shop".into()));
    assert_eq!(web["ports"].as_array().unwrap().len(), 4);
    assert_eq!(web["resources"], serde_json::json!({"memory": "64M", "milli_cpu": 250}));
    assert_eq!((&web["restart"], &web["spread"]), (&"on-failure:2".into(), &serde_json::json!(["rack"])));
    let request = Request::parse(&found[1]).unwrap();
    assert_eq!(request.members[0].run.memory_limit, Some(128 << 20));
    let rules: Vec<_> = request.constraints.iter().map(|rule| rule.subject.to_string()).collect();
    assert!(rules.iter().any(|rule| rule.contains("io.rancher.stack_service.name=shop/web")), "{rules:?}");
}

#[test]
fn what_is_not_supported_is_named() {
    let service = |line: &str| format!("services:\n  web:\n    image: a\n    {line}\n");
    for (line, field) in [
        ("healthcheck: {tests: x}", "services.web.healthcheck.tests"),
        ("pull_policy: never", "services.web.pull_policy"),
        ("networks: {a: {ipv4_address: 192.0.2.1}}", "services.web.networks.a.ipv4_address"),
        ("deploy: {update_config: {parallelism: 1}}", "services.web.deploy.update_config"),
        ("deploy: {placement: {max_replicas_per_node: 1}}", "services.web.deploy.placement.max_replicas_per_node"),
        (
            "deploy: {placement: {constraints: ['node.role == manager']}}",
            "services.web.deploy.placement.constraints[0]: node.role == manager",
        ),
        ("deploy: {resources: {reservations: {pids: 5}}}", "services.web.deploy.resources.reservations.pids"),
        ("network_mode: 'service:db'", "services.web.network_mode"),
        ("volumes: [{type: cluster, target: /a}]", "services.web.volumes[0].type"),
        ("depends_on: {web: {condition: service_healthy}}", "services.web.depends_on.web.condition"),
        ("ports: [{target: 80, mode: ingress}]", "services.web.ports[0].mode"),
    ] {
        check_wrong(&service(line), field, "not supported");
    }
    check_wrong(&service("deploy: {replicas: 0}"), "services.web.deploy.replicas", "at least one");
    check_wrong(&service("start_on_create: false"), "services.web.start_on_create", "scheduler up");
    check_wrong("version: '2'\nvolumes: {a: }\n", "services", "nothing to start");
    check_wrong("services: {a: {image: a, profiles: [b, a]}}\n", "services", "--profile with one of a, b");
    check_wrong(&service("deploy: {replicas: x}"), "services.web.deploy.replicas", "whole number");
    check_wrong(&service("depends_on: [db]"), "services.web.depends_on", "no service db");
    check_wrong(&service("depends_on: [web]"), "services.web.depends_on", "wait for each other");
    check_wrong(&service("ports: ['1-2:1-3']"), "services.web.ports[0]", "a port");
    check_wrong(&service("stop_grace_period: soon"), "services.web.stop_grace_period", "1m30s");
    check_wrong(&service("stop_grace_period: 2h"), "services.web.stop_grace_period", "at most 3600s");
    check_wrong(&service("cpus: many"), "services.web.cpus", "0.5");
    let read_only = service("volumes: [{type: volume, target: /a, read_only: true}]");
    check_wrong(&read_only, "services.web.volumes[0].read_only", "without a source");
    check_wrong(&service("user: ${WHO:?give one}"), "services.web.user", "WHO is not set: give one");
    check_wrong("services:\n  web: {}\n", "services.web.image", "nothing is built");
    check_wrong("services:\n  web: {build: .}\n", "services.web.build", "nothing is built");
    check_wrong(&service("label_file: none.labels"), "services.web.label_file[0]", "none.labels: not found");
    check_wrong("networks: {a: {internal: true}}\nservices: {}\n", "networks.a.internal", "not supported");
    check_wrong("volumes: {a: {driver_opts: {b: c}}}\nservices: {}\n", "volumes.a.driver_opts", "docker volume create");
}

fn json(yaml: &str) -> Vec<serde_json::Value> {
    read(yaml).unwrap().iter().map(|one| serde_json::to_value(one).unwrap()).collect()
}

#[test]
fn files_of_version_1_are_read() {
    let found = json(
        "web:\n  image: web\n  links: [db]\n  expose: ['80', 90-91/udp]\n  tty: true\n  stdin_open: true\ndb: {image: db, net: host}\n",
    );
    let ids: Vec<_> = found.iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["shop-db", "shop-web"]);
    assert_eq!((&found[0]["network"], &found[1]["tty"]), (&"host".into(), &true.into()));
    assert_eq!(found[1]["stdin_open"], true);
    check_wrong("web: {image: a, links: [db]}\n", "web.links", "no service db");
    check_wrong("web: {image: a, links: ['db:a.b']}\ndb: {image: a}\n", "web.links[0]", "STACK/SERVICE");
    check_wrong("web: {image: a, external_links: [/db]}\n", "web.external_links[0]", "STACK/SERVICE");
    check_wrong("web: {image: a, expose: [http]}\n", "web.expose[0]", "a port");
    check_wrong("web: {image: a, tty: 5}\n", "web.tty", "true or false");
    check_wrong("web: {build: .}\n", "web.build", "not supported");
}

#[test]
fn labels_stand_in_files_too_and_what_is_built_elsewhere_has_its_image() {
    let found = json("services: {web: {image: a, build: {context: .}, label_file: [web.labels], labels: {a: own}}}\n");
    assert_eq!(found[0]["labels"], serde_json::json!({ "a": "own", "team": "blue" }));
    assert_eq!(found[0]["image"], "a");
}

/// One case for each key and form that files of the predecessor's catalog have.
#[test]
fn keys_of_catalog_files_are_read() {
    let one = |line: &str| json(&format!("web:\n  image: a\n  {line}\n"))[0].clone();
    for (line, field, expected) in [
        ("privileged: true", "/engine/privileged", serde_json::json!(true)),
        ("read_only: off", "/engine/read_only", serde_json::json!(false)),
        ("labels: {io.rancher.container.start_once: yes}", "/restart", serde_json::json!("no")),
        ("labels: {io.rancher.scheduler.global: On}", "/labels/io.rancher.scheduler.global", serde_json::json!("true")),
        (
            "environment: {A: 0123, B: 22:22, C: no, D: 08}",
            "/environment",
            serde_json::json!({"A": "0123", "B": "22:22", "C": "no", "D": "08"}),
        ),
        ("scale: 03", "/count", serde_json::json!(3)),
        ("dns: ['', 192.0.2.1]", "/dns", serde_json::json!(["192.0.2.1"])),
        ("dns: ['']", "/dns", serde_json::json!(null)),
        ("cap_add: ['', A]", "/engine/cap_add", serde_json::json!(["A"])),
        ("links: ['other/db:sql', 'x/y']", "/labels/io.berth.links", serde_json::json!("other/db:sql,x/y:y")),
        ("external_links: ['db:sql', 'web:']", "/labels/io.berth.links", serde_json::json!("db:sql")),
        (
            "credential_spec: {file: a.json}",
            "/engine/security_opt",
            serde_json::json!(["credentialspec=file://a.json"]),
        ),
        (
            "security_opt: [a]\n  credential_spec: {registry: b}",
            "/engine/security_opt",
            serde_json::json!(["a", "credentialspec=registry://b"]),
        ),
        ("privileged: '${NO:-true}'", "/engine/privileged", serde_json::json!(true)),
        ("cap_add: [NET_ADMIN]", "/engine/cap_add", serde_json::json!(["NET_ADMIN"])),
        ("cap_drop: [ALL]", "/engine/cap_drop", serde_json::json!(["ALL"])),
        ("devices: ['/dev/fuse:/dev/fuse']", "/engine/devices", serde_json::json!(["/dev/fuse:/dev/fuse"])),
        ("pid: host", "/engine/pid", serde_json::json!("host")),
        ("ipc: host", "/engine/ipc", serde_json::json!("host")),
        ("uts: host", "/engine/uts", serde_json::json!("host")),
        ("security_opt: ['label:disable']", "/engine/security_opt", serde_json::json!(["label:disable"])),
        ("extra_hosts: ['a:192.0.2.1']", "/engine/extra_hosts", serde_json::json!(["a:192.0.2.1"])),
        ("extra_hosts: {a: 192.0.2.1}", "/engine/extra_hosts", serde_json::json!(["a:192.0.2.1"])),
        ("log_driver: syslog", "/engine/logging/driver", serde_json::json!("syslog")),
        ("log_opt: {max-size: 10m}", "/engine/logging/options/max-size", serde_json::json!("10m")),
        ("logging: {driver: none}", "/engine/logging/driver", serde_json::json!("none")),
        ("volume_driver: rancher-nfs", "/engine/volume_driver", serde_json::json!("rancher-nfs")),
        ("cpu_shares: 512", "/engine/cpu_shares", serde_json::json!(512)),
        ("cpu_shares: '${NO:-512}'", "/engine/cpu_shares", serde_json::json!(512)),
        ("cpuset: 0,1", "/engine/cpuset", serde_json::json!("0,1")),
        ("cpuset: 0", "/engine/cpuset", serde_json::json!("0")),
        ("memswap_limit: 1g", "/engine/memswap_limit", serde_json::json!("1g")),
        ("mem_swappiness: 0", "/engine/mem_swappiness", serde_json::json!(0)),
        ("ulimits: {nofile: {soft: 1, hard: 2}, nproc: 3}", "/engine/ulimits/nproc", serde_json::json!(3)),
        ("tmpfs: /run", "/engine/tmpfs", serde_json::json!("/run")),
        ("shm_size: 64m", "/engine/shm_size", serde_json::json!("64m")),
        ("sysctls: ['net.core.somaxconn=1024']", "/engine/sysctls/net.core.somaxconn", serde_json::json!("1024")),
        ("sysctls: {net.core.somaxconn: 1024}", "/engine/sysctls/net.core.somaxconn", serde_json::json!(1024)),
        ("read_only: true", "/engine/read_only", serde_json::json!(true)),
        ("init: false", "/engine/init", serde_json::json!(false)),
        ("pids_limit: 5", "/engine/pids_limit", serde_json::json!(5)),
        ("group_add: [mail, 5]", "/engine/group_add", serde_json::json!(["mail", "5"])),
        ("cgroup_parent: /a", "/engine/cgroup_parent", serde_json::json!("/a")),
        ("userns_mode: host", "/engine/userns_mode", serde_json::json!("host")),
        ("external_links: {other/db: sql}", "/labels/io.berth.links", serde_json::json!("other/db:sql")),
        ("external_links: [':sql', '']", "/labels", serde_json::json!({})),
        ("net: managed", "/service", serde_json::json!("web")),
        ("logging: {driver: '', options: {a: b}}", "/engine/logging/options/a", serde_json::json!("b")),
        ("cpu_shares: ''", "/image", serde_json::json!("a")),
        ("scale: ''", "/image", serde_json::json!("a")),
        ("domainname: example.org", "/domainname", serde_json::json!("example.org")),
        (
            "external_links: ['other/db:sql', 'other/cache']",
            "/labels/io.berth.links",
            serde_json::json!("other/db:sql,other/cache:cache"),
        ),
        ("mem_limit: 512m", "/limits/memory", serde_json::json!("512m")),
        ("mem_limit: 536870912", "/limits/memory", serde_json::json!(536_870_912)),
        ("dns: 192.0.2.1", "/dns", serde_json::json!("192.0.2.1")),
        ("dns_search: [a.b]", "/dns_search", serde_json::json!(["a.b"])),
        ("ports: [8080, '53:53/udp']", "/ports", serde_json::json!(["8080", "53:53/udp"])),
        ("environment: [A=1, TAG, NO]", "/environment", serde_json::json!({"A": "1", "TAG": "7"})),
        (
            "environment: {A: 1, B: true, TAG: , NO: }",
            "/environment",
            serde_json::json!({"A": 1, "B": true, "TAG": "7"}),
        ),
        ("labels: ['a=b', 'c=']", "/labels", serde_json::json!({"a": "b", "c": ""})),
        ("net: host", "/network", serde_json::json!("host")),
        ("restart: always", "/restart", serde_json::json!("always")),
        ("working_dir: /x", "/working_dir", serde_json::json!("/x")),
        ("tty: '${NO:-true}'", "/tty", serde_json::json!(true)),
        (
            "volumes: [{type: volume, source: a, target: /a, read_only: true}, /b]",
            "/volumes",
            serde_json::json!(["a:/a:ro", "/b"]),
        ),
    ] {
        assert_eq!(one(line).pointer(field).cloned().unwrap_or_default(), expected, "{line}: {}", one(line));
    }
    check_wrong("web: {image: a, credential_spec: {config: b}}\n", "web.credential_spec.config", "not supported");
    check_wrong("web: {image: a, credential_spec: {}}\n", "web.credential_spec", "file");
    check_wrong("web: {image: a, pid: 'service:b'}\n", "web.pid", "not supported");
    check_wrong("web: {image: a, cpu_shares: many}\n", "web.cpu_shares", "a number");
    check_wrong("web: {image: a, ulimits: {nofile: {soft: 1}}}\n", "web.ulimits.nofile.hard", "missing");
    check_wrong("web: {image: a, log_driver: a, logging: {driver: b}}\n", "web.log_driver", "one of them");
}

#[test]
fn services_call_others_by_names_of_their_own() {
    let found = json("a: {image: a, links: ['b:sql', c]}\nb: {image: b, links: [a]}\nc: {image: c}\n");
    let of = |name: &str| found.iter().find(|one| one["service"] == name).unwrap();
    assert_eq!(of("a")["labels"]["io.berth.links"], "b:sql");
    // Each uses the other's name: neither waits for ever.
    assert_eq!((found.len(), &of("b")["labels"]), (3, &serde_json::json!({})));
}

#[test]
fn volumes_have_the_driver_that_the_file_says() {
    let file = |volumes: &str, uses: &str| {
        format!(
            "version: '2'\nvolumes: {volumes}\nnetworks: {{back: {{external: true}}}}\nservices:\n  web: {{image: a, volumes: {uses}}}\n"
        )
    };
    let driver = |volumes: &str, uses: &str| json(&file(volumes, uses))[0]["engine"]["volume_driver"].clone();
    assert_eq!(driver("{a: {driver: '${NO:-nfs}', external: true}, b: }", "['a:/a', 'b:/b', '/c:/c']"), "nfs");
    assert_eq!(driver("{a: {driver: local}, b: {driver: nfs}}", "['a:/a']"), serde_json::Value::Null);
    let both = file("{a: {driver: x}, b: {driver: y}}", "['a:/a', 'b:/b']");
    check_wrong(&both, "services.web.volumes[1]", "one driver");
    check_wrong(&file("{a: {per_container: true}}", "[]"), "volumes.a.per_container", "not supported");
}

#[test]
fn volumes_of_stacks_have_the_options_that_the_file_says() {
    let file = "version: '2'\nservices: {web: {image: a, volumes: ['data:/a', 'each:/b', 'none:/c', /d]}}\n\
                volumes:\n  data: {driver_opts: {type: nfs, size: 5, none: ''}}\n  each: {per_container: true, driver_opts: {x: y}}\n\
                \x20 none: {name: real, driver_opts: {z: ~}}\n  other: {driver_opts: {unused: a}}\n";
    let found = serde_json::to_value(&read_for(true, file).unwrap()[0]).unwrap();
    let expected = serde_json::json!({ "data": { "type": "nfs", "size": "5" }, "shop-each-${index}": { "x": "y" } });
    assert_eq!(found["volume_options"], expected);
    let wrong = read_for(true, &file.replace("size: 5", "size: [5]")).unwrap_err();
    assert_eq!(wrong.field, "volumes.data.driver_opts.size");
}

#[test]
fn a_stack_may_have_services_that_do_not_run_yet() {
    let one = |line: &str| {
        let found = read_for(true, &format!("web:\n  image: a\n  {line}\n"));
        serde_json::to_value(&found.unwrap_or_else(|error| panic!("{line}: {error}"))[0]).unwrap()
    };
    for (line, count, start) in [
        ("scale: 0", serde_json::json!(0), serde_json::Value::Null),
        ("deploy: {replicas: 0}", serde_json::json!(0), serde_json::Value::Null),
        ("start_on_create: false", serde_json::Value::Null, serde_json::json!(false)),
        ("start_on_create: 'no'\n  scale: 3", serde_json::Value::Null, serde_json::json!(false)),
        ("start_on_create: ''\n  scale: 3", serde_json::json!(3), serde_json::Value::Null),
    ] {
        let found = one(line);
        assert_eq!((&found["count"], &found["start"]), (&count, &start), "{line}: {found}");
    }
    let global = "web: {image: a, start_on_create: false, labels: {io.rancher.scheduler.global: yes}}\n";
    let error = read_for(true, global).unwrap_err();
    assert!(error.field == "web.start_on_create" && error.to_string().contains("global"), "{error}");
}

#[test]
fn sidekicks_are_of_the_unit_of_their_service() {
    let found = json(
        "web:\n  image: web\n  volumes_from: ['data:ro']\n  labels: {io.rancher.sidekicks: 'data, log'}\n\
             data:\n  image: data\n  links: [db]\n  labels: {io.rancher.container.start_once: true}\n  volumes: [/data]\n\
             log: {image: log, net: 'container:web'}\ndb: {image: db}\n",
    );
    assert_eq!(found.len(), 2, "{found:?}");
    let web = &found[1];
    assert_eq!((&web["id"], &web["volumes_from"]), (&"shop-web".into(), &serde_json::json!(["data:ro"])));
    let sidekicks = web["sidekicks"].as_array().unwrap();
    assert_eq!((&sidekicks[0]["name"], &sidekicks[0]["restart"]), (&"data".into(), &"no".into()));
    assert_eq!((&sidekicks[1]["name"], &sidekicks[1]["network_from"]), (&"log".into(), &"shop-web".into()));
    let pair = |web: &str, side: &str| {
        format!(
            "web: {{image: a, labels: {{io.rancher.sidekicks: {web}}}}}\nside: {{image: a{side}}}\nthird: {{image: a, labels: {{io.rancher.sidekicks: {web}}}}}\n"
        )
    };
    check_wrong(&pair("lost", ""), "third.labels.io.rancher.sidekicks", "no service lost");
    check_wrong(&pair("side", ""), "web.labels.io.rancher.sidekicks", "of third already");
    let one =
        |side: &str| format!("web: {{image: a, labels: {{io.rancher.sidekicks: side}}}}\nside: {{image: a{side}}}\n");
    // Each is the other's: the error names one of them.
    let mutual = one(", labels: {io.rancher.sidekicks: web}");
    check_wrong(&mutual, "web.labels.io.rancher.sidekicks", "web is a sidekick of side itself");
    let chain = one(", labels: {io.rancher.sidekicks: third}") + "third: {image: a}\n";
    check_wrong(&chain, "side.labels.io.rancher.sidekicks", "side is a sidekick of web itself");
    check_wrong(&one(", scale: 2"), "side.scale", "web");
    let after = |compose: &str| {
        let found = json(compose);
        assert_eq!(found.len(), 1, "{found:?}");
        (found[0]["start_after"].clone(), found[0]["sidekicks"][0]["start_after"].clone())
    };
    let [own, none] = [serde_json::json!(["shop-web"]), serde_json::Value::Null];
    assert_eq!(after(&one(", depends_on: [web], container_name: x")), (none.clone(), own));
    let first = one("").replace("labels", "depends_on: [side], labels");
    assert_eq!(after(&first), (serde_json::json!(["side"]), none));
    check_wrong(&first.replace("{image: a}", "{image: a, net: 'container:web'}"), "web.depends_on", "no circle");
    check_wrong(&first.replace("{image: a}", "{image: a, depends_on: [web]}"), "web.depends_on", "no circle");
    let healthy = first.replace("[side]", "{side: {condition: service_healthy}}");
    let error = read_for(true, &healthy).unwrap_err();
    assert_eq!(error.field, "web.depends_on.side.condition", "{error}");
    check_wrong("web: {image: a, volumes_from: [db]}\ndb: {image: a}\n", "web.volumes_from[0]", "sidekick");
    check_wrong("web: {image: a, net: 'container:db'}\ndb: {image: a}\n", "web.net", "sidekick");
}

#[test]
fn what_only_an_engine_would_refuse_is_refused_here() {
    for (service, field, part) in [
        ("volumes: ['/a:/b:bogus']", "volumes", "\"bogus\" in \"/a:/b:bogus\""),
        ("volumes: ['/a:/b:ro:z']", "volumes", "modes"),
        ("volumes: ['/a:/b', 'data:/b']", "volumes", "two appear at /b"),
        ("volumes: ['C:\\a:C:\\b:ro', 'D:\\c:C:\\b']", "volumes", "two appear at"),
        ("extra_hosts: [a]", "extra_hosts", "NAME:ADDRESS"),
        ("extra_hosts: [':192.0.2.1']", "extra_hosts", "NAME:ADDRESS"),
        ("extra_hosts: ['a:b']", "extra_hosts", "NAME:ADDRESS"),
        ("extra_hosts: {a: 5}", "extra_hosts", "NAME:ADDRESS"),
        ("volumes: ['/a:/b', 'data:/b/']", "volumes", "two appear at /b"),
        ("deploy: {restart_policy: {max_attempts: 3}}", "deploy.restart_policy.max_attempts", "on-failure"),
        ("extra_hosts: {a: 1.2.3}", "extra_hosts", "NAME:ADDRESS"),
        ("devices: [{target: /dev/a}]", "devices[0].source", "missing"),
        ("scale: 2\n  deploy: {replicas: 3}", "deploy.replicas", "given with scale"),
        ("mem_limit: 1g\n  deploy: {resources: {limits: {memory: 2g}}}", "deploy.resources.limits.memory", "mem_limit"),
        ("cpus: 1\n  deploy: {resources: {limits: {cpus: '2'}}}", "deploy.resources.limits.cpus", "given with cpus"),
        ("pids_limit: 1\n  deploy: {resources: {limits: {pids: 2}}}", "deploy.resources.limits.pids", "pids_limit"),
        ("mem_limit: none", "mem_limit", "bytes such as"),
        ("deploy: {resources: {limits: {memory: none}}}", "deploy.resources.limits.memory", "bytes such as"),
    ] {
        check_wrong(&format!("services:\n web:\n  image: a\n  {service}\n"), &format!("services.web.{field}"), part);
    }
    for (image, is_one) in [
        ("a", true),
        ("shop/web:1", true),
        ("registry.example:5000/shop/web_x-y.z:V1.0@sha256:0123456789abcdef0123456789abcdef", true),
        ("localhost/a", true),
        ("Host/a", true),
        ("a b", false),
        ("Web", false),
        ("shop/Web", false),
        ("a:", false),
        ("a:-1", false),
        ("/a", false),
        ("a//b", false),
        ("a@1", false),
        ("-a", false),
    ] {
        let parsed = source::format::parse(&format!("services: {{web: {{image: '{image}'}}}}")).unwrap();
        let mut warnings = Vec::new();
        requests(&[parsed.value(plain_scalar)], &Reading::of_tests(), &mut warnings).unwrap();
        assert_eq!(warnings.is_empty(), is_one, "{image}: {warnings:?}");
    }
}

#[test]
fn what_counts_less_or_is_misspelt_is_named() {
    let told = |service: &str| {
        let parsed = source::format::parse(&format!("services: {{web: {{image: a, {service}}}}}")).unwrap();
        let mut warnings = Vec::new();
        let found = requests(&[parsed.value(plain_scalar)], &Reading::of_tests(), &mut warnings).unwrap();
        let found = serde_json::to_value(&found[0]).unwrap();
        let fields: Vec<String> = warnings.iter().map(|warning| warning.field.clone()).collect();
        (
            fields.join(" "),
            found["restart"].as_str().map(str::to_owned),
            found["pull_policy"].as_str().map(str::to_owned),
        )
    };
    let pull = "labels: {io.rancher.container.pull_image: always}";
    let once = "labels: {io.rancher.container.start_once: true}";
    for (service, fields, restart, pulled) in [
        ("restart: always", "", Some("always"), None),
        ("restart: always, deploy: {restart_policy: {condition: any}}", "", Some("always"), None),
        ("restart: always, deploy: {restart_policy: {condition: none}}", "services.web.restart", Some("no"), None),
        (&format!("restart: 'no', {once}"), "", Some("no"), None),
        (&format!("restart: '', {once}"), "", Some("no"), None),
        (&format!("restart: always, {once}"), "services.web.restart", Some("no"), None),
        (&format!("pull_policy: always, {pull}"), "", None, Some("always")),
        (&format!("pull_policy: missing, {pull}"), "services.web.pull_policy", None, Some("always")),
        ("pull_policy: missing", "", None, None),
        ("labels: {io.berth.health.port: 80, io.berth.health.header.X-A: b}", "", None, None),
        (
            "labels: {io.berth.health.port: 80, io.berth.health.intervall: 1s}",
            "services.web.labels.io.berth.health.intervall",
            None,
            None,
        ),
        ("net: a, network_mode: a", "", None, None),
    ] {
        let expected = (fields.to_owned(), restart.map(str::to_owned), pulled.map(str::to_owned));
        assert_eq!(told(service), expected, "{service}");
    }
    check_wrong("web: {image: a, net: a, network_mode: b}\n", "web.net", "one of them");
}

#[test]
fn variables_have_defaults_alternatives_and_demands() {
    let label = |text: &str| {
        let found = json(&format!("services: {{a: {{image: a, labels: {{x: \"{text}\"}}}}}}\n"));
        found[0]["labels"]["x"].as_str().unwrap().to_owned()
    };
    for (text, expected) in [
        ("x${TAG:+yes}${NO:+no}", "xyes"),
        ("x${TAG+yes}", "xyes"),
        ("${NO:-${TAG:-b}}", "7"),
        ("${NO:-${OTHER:-b}}c", "bc"),
        ("${TAG:?must be}", "7"),
        ("a$$b", "a$b"),
    ] {
        assert_eq!(label(text), expected, "{text}");
    }
    let wrong = |text: &str, part: &str| {
        check_wrong(
            &format!("services: {{a: {{image: a, labels: {{x: \"{text}\"}}}}}}\n"),
            "services.a.labels.x",
            part,
        );
    };
    wrong("${NO:?give a tag}", "give a tag");
    wrong("${NO?}", "NO is not set");
    wrong("${TAG", "stays open");
    wrong("${TAG!x}", "found");
    wrong(&"${NO:-".repeat(100), "stays open");
    wrong(&format!("{}{}", "${NO:-".repeat(100), "}".repeat(100)), "nested");
}

#[test]
fn files_hold_several_documents() {
    let found = read("---\nid: a\n---\n- id: b\n- {id: c}\n...\n--- {id: d}\n").unwrap();
    let ids: Vec<_> = found.iter().map(|one| one.as_map().unwrap().text("id").unwrap().to_string()).collect();
    assert_eq!(ids, ["a", "b", "c", "d"]);
    check_wrong("id: a\n---\n- id: b\n- {idd: c}\n", "[1][1].idd", "unknown field");
    assert_eq!(thousandths("1.25"), Some(1250));
    assert_eq!(thousandths(".5"), Some(500));
    for text in ["", "x", "-1", "1e3", "."] {
        assert_eq!(thousandths(text), None, "{text}");
    }
}

/// One case for each key of the Compose Specification that has a form of its own.
#[test]
fn keys_of_the_specification_are_read() {
    let one = |line: &str| {
        let file = format!(
            "networks: {{front: {{external: true, name: real-front}}, old: {{external: {{name: real-old}}}}}}\n\
             volumes: {{data: {{external: true, name: real-data}}, old: {{external: {{name: real-old}}}}}}\n\
             secrets: {{key: {{file: /srv/key}}}}\nconfigs: {{conf: {{file: /srv/conf}}}}\n\
             services:\n  web:\n    image: a\n    {line}\n"
        );
        let found = read_for(true, &file).unwrap_or_else(|error| panic!("{line}: {error}"));
        serde_json::to_value(&found[0]).unwrap()
    };
    for (line, field, expected) in [
        ("healthcheck: {test: curl -f localhost}", "/healthcheck/test", serde_json::json!("curl -f localhost")),
        ("healthcheck: {test: [CMD, a, 5]}", "/healthcheck/test", serde_json::json!(["CMD", "a", "5"])),
        (
            "healthcheck: {interval: 1m30s, timeout: 500ms, start_period: 0s, start_interval: 1s, retries: '3'}",
            "/healthcheck",
            serde_json::json!({"interval": 90_000, "timeout": 500, "start_interval": 1000, "retries": 3}),
        ),
        ("healthcheck: {disable: true}", "/healthcheck/test", serde_json::json!(["NONE"])),
        ("networks: [front]", "/network", serde_json::json!("real-front")),
        ("networks: {old: }", "/network", serde_json::json!("real-old")),
        ("networks: [default]", "/network", serde_json::json!(null)),
        (
            "networks: {back: {aliases: [db], priority: 5}, front: {aliases: [a, b]}, other: }",
            "/networks",
            serde_json::json!([
                {"name": "back", "aliases": ["db"]}, {"name": "real-front", "aliases": ["a", "b"]}, {"name": "other"}
            ]),
        ),
        ("secrets: [key]", "/volumes", serde_json::json!(["/srv/key:/run/secrets/key:ro"])),
        ("secrets: [{source: key, target: other}]", "/volumes", serde_json::json!(["/srv/key:/run/secrets/other:ro"])),
        ("configs: [conf]", "/volumes", serde_json::json!(["/srv/conf:/conf:ro"])),
        ("configs: [{source: conf, target: /etc/c}]", "/volumes", serde_json::json!(["/srv/conf:/etc/c:ro"])),
        ("volumes: ['data:/a', 'old:/b:ro']", "/volumes", serde_json::json!(["real-data:/a", "real-old:/b:ro"])),
        (
            "volumes: [{type: tmpfs, target: /t, tmpfs: {size: 5, mode: 448}}, {type: volume, target: /v}]",
            "/engine/tmpfs",
            serde_json::json!(["/t:mode=448,size=5"]),
        ),
        (
            "volumes: [{type: bind, source: /a, target: /b, read_only: true, bind: {propagation: rslave}}]",
            "/volumes",
            serde_json::json!(["/a:/b:ro,rslave"]),
        ),
        (
            "volumes: [{type: volume, source: a, target: /b, volume: {nocopy: true}}]",
            "/volumes",
            serde_json::json!(["a:/b:nocopy"]),
        ),
        ("deploy: {resources: {limits: {pids: 5}}}", "/engine/pids_limit", serde_json::json!(5)),
        ("cgroup: private", "/engine/cgroup", serde_json::json!("private")),
        (
            "devices: [{source: /dev/fuse}, {source: /dev/a, target: /dev/b, permissions: r}]",
            "/engine/devices",
            serde_json::json!(["/dev/fuse:/dev/fuse", "/dev/a:/dev/b:r"]),
        ),
        (
            "extra_hosts: ['a:::1', 'b=[::2]', 'c:host-gateway', 'd:', 'e=192.0.2.1']",
            "/engine/extra_hosts",
            serde_json::json!(["a:::1", "b:::2", "c:host-gateway", "e:192.0.2.1"]),
        ),
        (
            "mem_limit: 1g\n    deploy: {resources: {limits: {memory: 1024m}}}",
            "/limits/memory",
            serde_json::json!("1024m"),
        ),
        ("scale: 2\n    deploy: {replicas: 2}", "/count", serde_json::json!(2)),
        (
            "extra_hosts: {a: [192.0.2.1, '::1'], b: 192.0.2.2}",
            "/engine/extra_hosts",
            serde_json::json!(["a:192.0.2.1", "a:::1", "b:192.0.2.2"]),
        ),
        ("pid: '${NO:-}'", "/engine", serde_json::json!(null)),
        ("cpu_quota: '50000'", "/engine/cpu_quota", serde_json::json!(50_000)),
        ("dns_opt: ['ndots:1']", "/engine/dns_opt", serde_json::json!(["ndots:1"])),
        ("storage_opt: {size: 1G}", "/engine/storage_opt/size", serde_json::json!("1G")),
        ("device_cgroup_rules: ['c 1:3 r']", "/engine/device_cgroup_rules", serde_json::json!(["c 1:3 r"])),
        ("entrypoint: sh -c 'a b'", "/entrypoint", serde_json::json!(["sh", "-c", "a b"])),
        ("command: [a, 5, true]", "/command", serde_json::json!(["a", "5", "true"])),
        ("command: ''", "/command", serde_json::json!(null)),
        ("ulimits: {nofile: {soft: '1', hard: '2'}}", "/engine/ulimits/nofile/hard", serde_json::json!(2)),
        ("mem_limit: 1.5g", "/limits/memory", serde_json::json!(1_610_612_736)),
        ("mem_limit: '${NO:-}'", "/limits/memory", serde_json::json!(null)),
        ("tty: yes", "/tty", serde_json::json!(true)),
        ("privileged: 'off'", "/engine/privileged", serde_json::json!(false)),
        ("labels: [a, 'b=']", "/labels", serde_json::json!({"a": "", "b": ""})),
        ("ports: ['${NO:-}:80', '81:81', '::82', '']", "/ports", serde_json::json!(["80", "81:81", "82"])),
        ("volumes: ['${NO:-}', /b]", "/volumes", serde_json::json!(["/b"])),
        ("pull_policy: missing", "/pull_policy", serde_json::json!(null)),
        ("pull_policy: always", "/pull_policy", serde_json::json!("always")),
        ("labels: {io.rancher.container.pull_image: always}", "/pull_policy", serde_json::json!("always")),
        ("milli_cpu_reservation: 250", "/resources/milli_cpu", serde_json::json!(250)),
        ("extends: {file: common/base.yml, service: base}", "/environment", serde_json::json!({"OWN": "1"})),
        ("extends: {file: common/base.yml, service: base}", "/image", serde_json::json!("a")),
        ("extends: {file: common/base.yml, service: base}", "/labels/a", serde_json::json!("b")),
    ] {
        assert_eq!(one(line).pointer(field).cloned().unwrap_or_default(), expected, "{line}: {}", one(line));
    }
}

#[test]
fn what_cannot_be_given_is_refused_with_a_way_out() {
    let service = |line: &str| format!("services:\n  web:\n    image: a\n    {line}\n");
    for (line, field, part) in [
        ("extends: {service: other}", "services.web.extends", "no service other in the same file"),
        ("extends: {file: ../x.yml, service: a}", "services.web.extends.file", "in the folder"),
        ("extends: {file: lost.yml, service: a}", "services.web.extends.file", "not found"),
        (
            "extends: {file: common/base.yml, service: lost}",
            "services.web.extends",
            "no service lost in common/base.yml",
        ),
        ("extends: {service: web}", "services.web.extends", "no circle"),
        ("secrets: [lost]", "services.web.secrets[0]", "no lost among secrets"),
        ("networks: {default: {aliases: [a]}}", "services.web.networks.default", "nothing makes a network"),
        ("environment: {A: {b: c}}", "services.web.environment.A", "found a map"),
        ("depends_on: [5.5]", "services.web.depends_on", "no service 5.5"),
        ("network_mode: host\n    networks: [a]", "services.web.network_mode", "one of them"),
        ("shm_size: much", "services.web.shm_size", "bytes"),
        ("mem_limit: much", "services.web.mem_limit", "bytes"),
    ] {
        check_wrong(&service(line), field, part);
    }
    let top = |line: &str| format!("{line}\nservices: {{web: {{image: a}}}}\n");
    check_wrong(&top("networks: {a: {internal: true}}"), "networks.a.internal", "docker network create");
}

#[test]
fn services_of_a_stack_wait_for_what_they_say() {
    let file = |depends: &str, job: &str| {
        format!("services:\n  web: {{image: a, depends_on: {depends}}}\n  job: {{image: b, restart: '{job}'}}\n")
    };
    let depends = |depends: &str| {
        let found = read_for(true, &file(depends, "no")).unwrap();
        serde_json::to_value(&found[1]).unwrap()["depends_on"].clone()
    };
    assert_eq!(depends("[job]"), serde_json::json!(["job"]));
    assert_eq!(depends("{job: {condition: service_healthy, required: true}}"), serde_json::json!(["job"]));
    assert_eq!(
        depends("{job: {condition: service_completed_successfully}, lost: {required: false}}"),
        serde_json::json!([{"service": "job", "condition": "service_completed_successfully"}])
    );
    for (text, job, field, part) in [
        (
            "{job: {condition: service_completed_successfully}}",
            "always",
            "services.web.depends_on.job.condition",
            "never ends",
        ),
        ("{job: {condition: service_done}}", "no", "services.web.depends_on.job.condition", "not supported"),
        ("{job: {restart: true}}", "no", "services.web.depends_on.job.restart", "not supported"),
        ("{lost: {required: true}}", "no", "services.web.depends_on", "no service lost"),
    ] {
        let error = read_for(true, &file(text, job)).unwrap_err();
        assert_eq!(error.field, field, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = read(&file("{job: {condition: service_healthy}}", "no")).unwrap_err();
    assert!(error.to_string().contains("scheduler up"), "{error}");
}
