//! The tables of keys and labels in `docs/stacks.md`, compared with what is done with each.

use super::*;

/// The page with the tables.
const PAGE: &str = include_str!("../../../../docs/stacks.md");

/// What a row may say of its keys.
const WORDS: [&str; 4] = ["honoured", "checked", "no effect", "refused"];

/// A file in which each key can have an effect.
const BASE: &str = "
networks: {front: {name: front}}
volumes: {data: {external: true}}
configs: {conf: {file: /srv/conf}}
secrets: {key: {file: /srv/key}}
services:
  db: {image: b, restart: 'no'}
  side: {image: c}
  web: {image: a, networks: [front], volumes: ['data:/data'], configs: [conf], secrets: [key],
    labels: {io.rancher.sidekicks: side}}
";

/// A name of the tables, and what is added to the service `web`, or to the top of the file, to see what becomes of it.
const CASES: &[(&str, &str)] = &[
    ("annotations", "{annotations: {a: b}}"),
    ("attach", "{attach: false}"),
    ("blkio_config", "{blkio_config: {weight: 300}}"),
    ("build", "{build: .}"),
    ("cap_add", "{cap_add: [NET_ADMIN]}"),
    ("cap_drop", "{cap_drop: [ALL]}"),
    ("certs", "{certs: [a]}"),
    ("cgroup", "{cgroup: private}"),
    ("cgroup_parent", "{cgroup_parent: /a}"),
    ("command", "{command: a 'b c'}"),
    ("configs", "{configs: ~}"),
    ("container_name", "{container_name: other}"),
    ("cpu_count", "{cpu_count: 2}"),
    ("cpu_percent", "{cpu_percent: 50}"),
    ("cpu_period", "{cpu_period: 50000}"),
    ("cpu_quota", "{cpu_quota: 50000}"),
    ("cpu_rt_period", "{cpu_rt_period: 5}"),
    ("cpu_rt_runtime", "{cpu_rt_runtime: 5}"),
    ("cpu_shares", "{cpu_shares: 512}"),
    ("cpus", "{cpus: 0.5}"),
    ("cpuset", "{cpuset: 0}"),
    ("credential_spec", "{credential_spec: {file: a.json}}"),
    ("default_cert", "{default_cert: a}"),
    ("default_certs", "{default_certs: a}"),
    ("depends_on", "{depends_on: [db]}"),
    ("deploy.endpoint_mode", "{deploy: {endpoint_mode: vip}}"),
    ("deploy.labels", "{deploy: {labels: {a: b}}}"),
    ("deploy.mode", "{deploy: {mode: global}}"),
    ("deploy.placement.constraints", "{deploy: {placement: {constraints: ['node.labels.a == b']}}}"),
    ("deploy.placement.preferences", "{deploy: {placement: {preferences: [{spread: node.labels.a}]}}}"),
    ("deploy.replicas", "{deploy: {replicas: 3}}"),
    ("deploy.resources", "{deploy: {resources: {limits: {memory: 5M}}}}"),
    ("deploy.restart_policy", "{deploy: {restart_policy: {condition: on-failure}}}"),
    ("deploy.rollback_config", "{deploy: {rollback_config: {parallelism: 2}}}"),
    ("deploy.update_config", "{deploy: {update_config: {parallelism: 2}}}"),
    ("develop", "{develop: {watch: []}}"),
    ("device_cgroup_rules", "{device_cgroup_rules: ['c 1:3 r']}"),
    ("devices", "{devices: [/dev/fuse]}"),
    ("disks", "{disks: [a]}"),
    ("dns", "{dns: 192.0.2.1}"),
    ("dns_opt", "{dns_opt: ['ndots:1']}"),
    ("dns_search", "{dns_search: example.org}"),
    ("dockerfile", "{dockerfile: a}"),
    ("domainname", "{domainname: example.org}"),
    ("drain_timeout_ms", "{drain_timeout_ms: 5}"),
    ("driver_opts", "{driver_opts: {a: b}}"),
    ("entrypoint", "{entrypoint: a 'b c'}"),
    ("env_file", "{env_file: own.env}"),
    ("environment", "{environment: [A=1]}"),
    ("expose", "{expose: [80]}"),
    ("extends", "{extends: {service: db}}"),
    ("external_ips", "{external_ips: [192.0.2.1]}"),
    ("external_links", "{external_links: ['other/db:sql']}"),
    ("extra_hosts", "{extra_hosts: ['a:192.0.2.1']}"),
    ("gpus", "{gpus: all}"),
    ("group_add", "{group_add: [mail]}"),
    ("health_check", "{health_check: {port: 80}}"),
    ("healthcheck", "{healthcheck: {test: 'true'}}"),
    ("hostname", "{hostname: h}"),
    ("image", "{image: other}"),
    ("image: rancher/dns-service", "{image: rancher/dns-service}"),
    ("image: rancher/external-service", "{image: rancher/external-service}"),
    ("image: rancher/lb-service-haproxy", "{image: 'rancher/lb-service-haproxy:v1'}"),
    ("image: rancher/load-balancer-service", "{image: rancher/load-balancer-service}"),
    ("image: rancher/none", "{image: rancher/none}"),
    ("init", "{init: true}"),
    ("io.berth.health.port", "80"),
    ("io.berth.revision", "a"),
    ("io.berth.stack", "a"),
    ("io.berth.unit", "a"),
    ("io.rancher.container.agent.role", "environment"),
    ("io.rancher.container.create_agent", "true"),
    ("io.rancher.container.dns", "true"),
    ("io.rancher.container.hostname_override", "container_name"),
    ("io.rancher.container.pull_image", "always"),
    ("io.rancher.container.start_once", "true"),
    ("io.rancher.lb_service.skip_target_lb_rules", "true"),
    ("io.rancher.lb_service.target", "any"),
    ("io.rancher.scheduler.affinity:container", "a"),
    ("io.rancher.scheduler.affinity:container_label", "a=b"),
    ("io.rancher.scheduler.affinity:host_label", "a=b"),
    ("io.rancher.scheduler.affinity:not_host_label", "a=b"),
    ("io.rancher.scheduler.global", "true"),
    ("io.rancher.service.requested.host.id", "1"),
    ("io.rancher.service.selector.link", "a=b"),
    ("io.rancher.sidekicks", "db, side"),
    ("ipc", "{ipc: host}"),
    ("isolation", "{isolation: hyperv}"),
    ("label_file", "{label_file: own.env}"),
    ("labels", "{labels: {a: b, io.rancher.sidekicks: side}}"),
    ("lb_config", "{lb_config: {port_rules: []}}"),
    ("links", "{links: ['db:sql']}"),
    ("links_to", "{links_to: [db]}"),
    ("load_balancer_config", "{load_balancer_config: {a: b}}"),
    ("log_driver", "{log_driver: syslog}"),
    ("log_opt", "{log_opt: {max-size: 1m}}"),
    ("logging", "{logging: {driver: syslog}}"),
    ("mac_address", "{mac_address: '02:42:ac:11:00:02'}"),
    ("mem_limit", "{mem_limit: 5m}"),
    ("mem_reservation", "{mem_reservation: 5m}"),
    ("mem_swappiness", "{mem_swappiness: 5}"),
    ("memory", "{memory: 5}"),
    ("memswap_limit", "{memswap_limit: 5m}"),
    ("metadata", "{metadata: {a: b}}"),
    ("milli_cpu_reservation", "{milli_cpu_reservation: 5}"),
    ("models", "{models: [a]}"),
    ("net", "{net: host, networks: ~}"),
    ("net: container:NAME", "{net: 'container:side', networks: ~}"),
    ("network_driver", "{network_driver: {name: a}}"),
    ("network_mode", "{network_mode: host, networks: ~}"),
    ("network_mode: service:NAME", "{network_mode: 'service:side', networks: ~}"),
    ("networks", "{networks: [front, back]}"),
    ("oom_kill_disable", "{oom_kill_disable: true}"),
    ("oom_score_adj", "{oom_score_adj: 5}"),
    ("pid", "{pid: host}"),
    ("pids_limit", "{pids_limit: 5}"),
    ("platform", "{platform: windows/amd64}"),
    ("ports", "{ports: ['80:80']}"),
    ("post_start", "{post_start: [{command: a}]}"),
    ("pre_stop", "{pre_stop: [{command: a}]}"),
    ("privileged", "{privileged: true}"),
    ("profiles", "{profiles: [debug], labels: ~}"),
    ("provider", "{provider: {type: a}}"),
    ("pull_policy", "{pull_policy: always}"),
    ("read_only", "{read_only: true}"),
    ("restart", "{restart: always}"),
    ("retain_ip: false", "{retain_ip: false}"),
    ("retain_ip: true", "{retain_ip: true}"),
    ("runtime", "{runtime: runsc}"),
    ("scale", "{scale: 3}"),
    ("scale_policy", "{scale_policy: {min: 3, max: 3}}"),
    ("secrets", "{secrets: ~}"),
    ("security_opt", "{security_opt: [no-new-privileges]}"),
    ("selector_container", "{selector_container: a=b}"),
    ("shm_size", "{shm_size: 64m}"),
    ("start_on_create: false", "{start_on_create: false}"),
    ("start_on_create: true", "{start_on_create: true}"),
    ("stdin_open", "{stdin_open: true}"),
    ("stop_grace_period", "{stop_grace_period: 1m}"),
    ("stop_signal", "{stop_signal: SIGQUIT}"),
    ("storage_driver", "{storage_driver: {name: a}}"),
    ("storage_opt", "{storage_opt: {size: 1G}}"),
    ("sysctls", "{sysctls: {net.core.somaxconn: 5}}"),
    ("tmpfs", "{tmpfs: /run}"),
    ("top .catalog", "{.catalog: {name: a}}"),
    ("top catalog", "{catalog: {name: a}}"),
    ("top configs", "{configs: {conf: {file: /srv/other}}}"),
    ("top include", "{include: [a.yml]}"),
    ("top models", "{models: {a: {model: b}}}"),
    ("top name", "{name: other}"),
    ("top networks", "{networks: {front: {name: other}}}"),
    ("top secrets", "{secrets: {key: {file: /srv/other}}}"),
    ("top service", "{service: {}}"),
    ("top services", "{services: {web: {image: other}}}"),
    ("top version", "{version: 3.8}"),
    ("top volumes", "{volumes: {data: {name: other}}}"),
    ("tty", "{tty: true}"),
    ("ulimits", "{ulimits: {nproc: 5}}"),
    ("upgrade_strategy", "{upgrade_strategy: {start_first: true}}"),
    ("use_api_socket", "{use_api_socket: true}"),
    ("user", "{user: 5}"),
    ("userdata", "{userdata: a}"),
    ("userns_mode", "{userns_mode: host}"),
    ("uts", "{uts: host}"),
    ("vcpu", "{vcpu: 5}"),
    ("volume_driver", "{volume_driver: nfs}"),
    ("volumes", "{volumes: [/a]}"),
    ("volumes_from", "{volumes_from: [side]}"),
    ("working_dir", "{working_dir: /a}"),
];

/// The names of the tables, each with what its row says.
fn rows() -> Vec<(String, &'static str)> {
    let mut rows = Vec::new();
    for line in PAGE.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let Some(word) = cells.get(1).and_then(|cell| WORDS.iter().find(|word| *word == cell)) else { continue };
        let top = if cells[0].starts_with("| top: ") { "top " } else { "" };
        // What only says where a name belongs has nothing after its dot.
        let names = cells[0].split('`').skip(1).step_by(2).filter(|name| !name.ends_with('.') && *name != "affinity");
        rows.extend(names.map(|name| (format!("{top}{name}"), *word)));
    }
    rows
}

fn value(yaml: &str) -> Value {
    source::format::parse(yaml).unwrap().value(scalar::core)
}

/// A file with what a case adds.
fn with(name: &str, added: &str) -> Value {
    let base = value(BASE);
    let base = base.as_map().unwrap();
    if name.starts_with("top ") {
        return base.with(value(added).as_map().unwrap().iter().cloned()).into();
    }
    let added = if name.starts_with("io.") {
        let labels = vec![("io.rancher.sidekicks".into(), "side".into()), (Text::from(name), Value::text(added))];
        Map::new(vec![("labels".into(), Map::new(labels).into())])
    } else {
        value(added).as_map().unwrap().clone()
    };
    let services = base.map("services").unwrap();
    let web = services.map("web").unwrap().with(added.iter().cloned());
    base.with([("services".into(), services.with([("web".into(), web.into())]).into())]).into()
}

fn read(document: Value) -> Result<(Vec<Value>, Vec<Warning>), Invalid> {
    let file = |name: &str| Ok(if name == "own.env" { "OWN=1\n" } else { "services: {more: {image: more}}\n" }.into());
    let reading = Reading { file: &file, ..Reading::of_tests() };
    let mut warnings = Vec::new();
    Ok((requests(&[document], &reading, &mut warnings)?, warnings))
}

/// What becomes of a key or a label.
fn outcome(name: &str, added: &str) -> String {
    let (before, told) = read(value(BASE)).unwrap();
    assert!(told.is_empty(), "{told:?}");
    let key = name.strip_prefix("top ").unwrap_or(name).split(": ").next().unwrap_or_default();
    let field = match name {
        _ if name.starts_with("top ") => key.to_owned(),
        _ if name.starts_with("io.") => format!("services.web.labels.{key}"),
        _ => format!("services.web.{key}"),
    };
    match read(with(name, added)) {
        Err(error) if error.field == field => "refused".to_owned(),
        Err(error) => format!("refused as something else: {error}"),
        Ok((after, told)) if told.is_empty() => (if after == before { "checked" } else { "honoured" }).to_owned(),
        Ok((after, told)) if told.iter().all(|told| told.field == field) => {
            // A label stays on the container, and what has no container has none of these.
            let stays = name.starts_with("io.") || key == "image" || after == before;
            match key {
                // Who brings the stack up has to know what it does not start.
                "start_on_create" => "honoured",
                _ if stays => "no effect",
                _ => "honoured, with a warning",
            }
            .to_owned()
        }
        Ok((_, told)) => format!("a warning of something else: {told:?}"),
    }
}

#[test]
fn the_tables_say_what_becomes_of_each_key() {
    let rows = rows();
    let mut wrong: Vec<String> = Vec::new();
    for (name, word) in &rows {
        match CASES.iter().find(|(own, _)| own == name) {
            None => wrong.push(format!("{name}: no case")),
            Some((_, added)) => {
                let found = outcome(name, added);
                wrong.extend((found != *word).then(|| format!("{name}: {word} in the table, but it is {found}")));
            }
        }
    }
    let is_there = |name: &str| rows.iter().any(|(own, _)| own == name || own.starts_with(&format!("{name}: ")));
    wrong.extend(CASES.iter().filter(|(name, _)| !is_there(name)).map(|(name, _)| format!("{name}: in no table")));
    let known =
        service::SERVICE_KEYS.iter().chain(rancher::KEYS).copied().chain(crate::place::request::engine::names());
    let has_row = |key: &&str| is_there(key) || rows.iter().any(|(own, _)| own.starts_with(&format!("{key}.")));
    wrong.extend(known.filter(|key| !has_row(key)).map(|key| format!("{key}: known, but in no table")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for word in WORDS {
        assert!(rows.iter().any(|(_, own)| *own == word), "{word}: no row, so the tables have another form");
    }
}

#[test]
fn extensions_are_skipped_and_what_yaml_shares_is_read() {
    let file = "
x-env: &env {A: 1}
services:
  web: &web
    image: a
    x-note: {a: b}
    environment: {<<: *env, B: 2}
    deploy: {x-note: 1, replicas: 1}
    logging: {driver: json-file}
    healthcheck: {test: 'true', x-note: 1}
  other:
    <<: [{image: b, tty: true}, *web]
    environment: {<<: *env}
volumes: {data: {x-note: 1}}
networks: {front: {x-note: 1}}
";
    let (found, told) = read(value(file)).unwrap();
    assert!(told.is_empty(), "{told:?}");
    let found: Vec<serde_json::Value> = found.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
    let of = |name: &str| found.iter().find(|one| one["service"] == name).unwrap();
    assert_eq!(of("web")["environment"], serde_json::json!({"A": 1, "B": 2}));
    assert_eq!((&of("other")["image"], &of("other")["tty"]), (&"b".into(), &true.into()));
    assert_eq!(of("other")["environment"], serde_json::json!({"A": 1}));
}
