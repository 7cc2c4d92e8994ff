//! The body that creates a container: the request in Docker's terms.
//!
//! Names and addresses of others are asked of Berth's DNS, so its address and the search list of the predecessor are
//! what a container gets when its request says nothing else.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, EndpointSettings, HealthConfig, HostConfig, HostConfigIsolationEnum, NetworkingConfig,
    PortBinding, RestartPolicy, RestartPolicyNameEnum,
};
use model::Text;

use crate::ledger::record::{PromisedContainer, Replica};
use crate::place::hosts::{CPU, MEMORY};
use crate::place::inventory::PLACEMENT_LABEL;
use crate::place::request::Request;
use crate::place::request::health_check::HealthCheck;
use crate::place::request::member::Member;
use crate::place::windows::Isolation;
use crate::start::docker::{ATTEMPT_LABEL, LEDGER_LABEL, REQUEST_LABEL};

/// Domain of all services.
const DOMAIN: &str = "rancher.internal";

/// Shares of the processor that an engine gives a whole one, in its own unit.
const SHARES_OF_PROCESSOR: i64 = 1024;

/// Billionths in a thousandth, of a processor and of a second.
const NANO_PER_MILLI: i64 = 1_000_000;

/// The least shares that an engine takes.
const SHARES_MIN: i64 = 2;

/// The body that creates the container at `at` of a unit.
pub(crate) fn body(
    request: &Request,
    replica: &Replica,
    at: usize,
    id: &str,
    ledger: Option<&str>,
    (resolver, windows): (&[Text], bool),
) -> ContainerCreateBody {
    let (member, held) = (&request.members[at], &replica.members[at]);
    let run = &member.run;
    let strings = |texts: &[Text]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let some = |texts: &[Text]| (!texts.is_empty()).then(|| strings(texts));
    let in_unit = |name: &Text| unit_name(request, replica, name);
    let shared = run.network_from.as_ref().map(|name| format!("container:{}", in_unit(name)));
    // A container that shares a network has its names too, and without a network there is no server to ask.
    let apart = shared.is_none() && run.network.as_deref() != Some("none");
    let labels = member.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    let own = [(PLACEMENT_LABEL, &*held.name), (REQUEST_LABEL, id)];
    let own = own.into_iter().chain(replica.attempt.iter().map(|attempt| (ATTEMPT_LABEL, &**attempt)));
    let own = own.chain(ledger.map(|ledger| (LEDGER_LABEL, ledger)));
    let labels = labels.chain(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let amount = |pool: &str| member.amounts.iter().find(|(own, _)| &**own == pool).map(|(_, amount)| *amount);
    let chosen = held.system.as_ref().and_then(|system| system.isolation.as_deref());
    let isolation = chosen.or_else(|| request.isolation.map(Isolation::name));
    let volumes_from = run.volumes_from.iter().map(|from| match from.split_once(':') {
        Some((name, mode)) => format!("{}:{mode}", unit_name(request, replica, name)),
        None => in_unit(from),
    });
    let volumes_from: Vec<String> = volumes_from.collect();
    let ports = bindings(held);
    // Each field was checked when the request was read.
    let settings: HostConfig = serde_json::from_value(run.engine.as_json()).unwrap_or_default();
    ContainerCreateBody {
        image: member.image.as_ref().map(ToString::to_string),
        cmd: some(&run.command),
        entrypoint: some(&run.entrypoint),
        env: (!run.environment.is_empty()).then(|| run.environment.clone()),
        hostname: member.hostname(&held.name).filter(|_| apart),
        domainname: run.domainname.as_ref().filter(|_| apart).map(ToString::to_string),
        open_stdin: run.stdin_open.then_some(true),
        tty: run.tty.then_some(true),
        user: run.user.as_ref().map(ToString::to_string),
        working_dir: run.working_dir.as_ref().map(ToString::to_string),
        stop_signal: run.stop_signal.as_ref().map(ToString::to_string),
        stop_timeout: run.stop_timeout,
        healthcheck: run.health_check.as_ref().map(health_check),
        networking_config: run.network.as_ref().filter(|_| !run.aliases.is_empty()).map(|network| NetworkingConfig {
            endpoints_config: Some(HashMap::from([(network.to_string(), endpoint(&run.aliases))])),
        }),
        labels: Some(labels.collect()),
        exposed_ports: (!ports.is_empty()).then(|| ports.keys().cloned().collect()),
        host_config: Some(HostConfig {
            binds: some(&run.volumes),
            // Windows knows no reservations.
            cpu_shares: amount(CPU)
                .filter(|_| !windows)
                .map(|milli| (milli.saturating_mul(SHARES_OF_PROCESSOR) / 1000).max(SHARES_MIN))
                .or(settings.cpu_shares),
            memory_reservation: amount(MEMORY).filter(|_| !windows),
            memory: run.memory_limit,
            nano_cpus: run.milli_cpu_limit.map(|milli| milli.saturating_mul(NANO_PER_MILLI)),
            dns: apart.then(|| strings(run.dns.as_deref().unwrap_or(resolver))),
            dns_search: apart.then(|| run.dns_search.as_deref().map_or_else(|| search(request), strings)),
            network_mode: shared.or_else(|| run.network.as_ref().map(ToString::to_string)),
            port_bindings: (!ports.is_empty()).then_some(ports),
            restart_policy: run.restart.as_deref().map(restart),
            volumes_from: (!volumes_from.is_empty()).then_some(volumes_from),
            isolation: isolation.map(|word| match word {
                "hyperv" => HostConfigIsolationEnum::HYPERV,
                _ => HostConfigIsolationEnum::PROCESS,
            }),
            ..settings
        }),
        ..ContainerCreateBody::default()
    }
}

/// How a container is in a network.
pub(crate) fn endpoint(aliases: &[Text]) -> EndpointSettings {
    let aliases = (!aliases.is_empty()).then(|| aliases.iter().map(ToString::to_string).collect());
    EndpointSettings { aliases, ..EndpointSettings::default() }
}

/// A check as the engine takes it, whose times are billionths of a second.
fn health_check(check: &HealthCheck) -> HealthConfig {
    let nanos = |millis: Option<i64>| millis.map(|millis| millis.saturating_mul(NANO_PER_MILLI));
    HealthConfig {
        test: (!check.test.is_empty()).then(|| check.test.iter().map(ToString::to_string).collect()),
        interval: nanos(check.interval),
        timeout: nanos(check.timeout),
        retries: check.retries,
        start_period: nanos(check.start_period),
        start_interval: nanos(check.start_interval),
    }
}

/// The order in which the containers of a unit are started: each after those whose network or volumes it uses, and those that it
/// names.
pub(crate) fn order(request: &Request) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    while order.len() < request.members.len() {
        let ready = (0..request.members.len()).filter(|at| !order.contains(at)).find(|at| {
            let run = &request.members[*at].run;
            let used = run.network_from.iter().chain(&run.volumes_from).chain(&run.start_after);
            used.filter_map(|name| member_at(request, name)).all(|other| order.contains(&other))
        });
        // `Request::parse` refuses circles, so there always is one.
        order.push(ready.unwrap_or(order.len()));
    }
    order
}

fn member_at(request: &Request, name: &str) -> Option<usize> {
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    let named = |member: &Member| member.name.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(name));
    request.members.iter().position(named)
}

/// What the engine calls a container that the request calls `name`.
fn unit_name(request: &Request, replica: &Replica, name: &str) -> String {
    let held = member_at(request, name).and_then(|at| replica.members.get(at));
    held.map_or_else(|| name.to_owned(), |held| held.name.to_string())
}

fn bindings(held: &PromisedContainer) -> HashMap<String, Option<Vec<PortBinding>>> {
    let mut bindings: HashMap<String, Option<Vec<PortBinding>>> = HashMap::new();
    for bound in &held.bound {
        let binding = PortBinding {
            host_ip: (!bound.address.is_unspecified()).then(|| bound.address.to_string()),
            host_port: Some(bound.public.to_string()),
        };
        let inside = format!("{}/{}", bound.private, bound.protocol.name());
        bindings.entry(inside).or_default().get_or_insert_default().push(binding);
    }
    bindings
}

fn restart(word: &str) -> RestartPolicy {
    let (name, times) = word.split_once(':').unwrap_or((word, ""));
    RestartPolicy {
        name: Some(match name {
            "always" => RestartPolicyNameEnum::ALWAYS,
            "unless-stopped" => RestartPolicyNameEnum::UNLESS_STOPPED,
            "on-failure" => RestartPolicyNameEnum::ON_FAILURE,
            _ => RestartPolicyNameEnum::NO,
        }),
        maximum_retry_count: times.parse().ok(),
    }
}

/// Where a container of this service looks for names, as the predecessor set it up.
fn search(request: &Request) -> Vec<String> {
    let path = request.service.as_deref().and_then(|path| path.split_once('/'));
    let path = path.filter(|(stack, service)| !stack.is_empty() && !service.is_empty());
    let own = path.map(|(stack, service)| {
        let (stack, service) = (stack.to_lowercase(), service.to_lowercase());
        [format!("{service}.{stack}.{DOMAIN}"), format!("{stack}.{DOMAIN}")]
    });
    own.into_iter().flatten().chain([DOMAIN.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::port::{Bound, Protocol};
    use crate::place::replica::replica_of;

    fn bodies(json: &str, windows: bool) -> Vec<serde_json::Value> {
        let request = Request::parse(&serde_json::from_str(json).unwrap()).unwrap();
        let names: Vec<Text> = (0..request.members.len()).map(|at| Text::from(format!("unit-{at}"))).collect();
        let port = request.members[0].ports.first().map(|port| Bound {
            address: "192.0.2.1".parse().unwrap(),
            public: port.public,
            private: port.private,
            protocol: Protocol::Tcp,
            owner: names[0].clone(),
        });
        let bound: Vec<_> = port.into_iter().collect();
        let replica = replica_of(&request, ("h1".into(), "one".into()), &names, &bound);
        let resolver = ["169.254.169.251".into()];
        let body =
            |at| serde_json::to_value(body(&request, &replica, at, "r1", Some("l1"), (&resolver, windows))).unwrap();
        order(&request).into_iter().map(body).collect()
    }

    #[test]
    fn every_setting_reaches_the_engine() {
        let json = r#"{"image": "a", "domainname": "b.c", "engine": {"cap_add": ["A"], "cap_drop": ["B"], "cgroup": "private", "cgroup_parent": "/p", "cpu_shares": 5,
            "cpu_count": 1, "cpu_percent": 5, "cpu_period": 5, "cpu_quota": 5, "device_cgroup_rules": ["a"], "dns_opt": ["a"], "storage_opt": {"size": "1G"},
            "cpuset": "0", "devices": ["/dev/fuse"], "extra_hosts": ["a:192.0.2.1"], "group_add": ["mail"], "init": true, "ipc": "host",
            "logging": {"driver": "syslog", "options": {"tag": "x"}}, "mem_swappiness": 5, "memswap_limit": -1, "oom_kill_disable": true,
            "oom_score_adj": 5, "pid": "host", "pids_limit": 5, "privileged": true, "read_only": true, "security_opt": ["a"],
            "shm_size": "1m", "sysctls": {"net.a": 1}, "tmpfs": ["/run:size=1m"], "ulimits": {"nproc": 5}, "userns_mode": "host",
            "uts": "host", "volume_driver": "nfs"}}"#;
        let value: model::Value = serde_json::from_str(json).unwrap();
        let settings = Request::parse(&value).unwrap().members[0].run.engine.as_json();
        let settings = settings.as_object().unwrap();
        assert_eq!(settings.len(), crate::place::request::engine::names().count());
        let sent = &bodies(json, false)[0];
        assert_eq!(sent["Domainname"], "b.c");
        for (field, value) in settings {
            assert_eq!(sent["HostConfig"][field], *value, "{field}");
        }
    }

    #[test]
    fn engines_are_told_what_was_asked_for() {
        let sent = bodies(
            r#"{"image": "web:1", "stack": "Shop", "service": "web", "labels": {"a": "b"}, "ports": ["80:8080"],
                "command": "serve 'two words' -x", "environment": {"A": "1", "constraint:zone": "=a"}, "restart": "on-failure:3",
                "stop_signal": "SIGQUIT", "stop_timeout": 60, "tty": true, "stdin_open": true, "resources": {"memory": "64MiB", "milli_cpu": 500}, "volumes": ["/a:/b:ro"]}"#,
            false,
        );
        let sent = &sent[0];
        assert_eq!((&sent["StopSignal"], &sent["StopTimeout"]), (&"SIGQUIT".into(), &60.into()));
        assert_eq!((&sent["Tty"], &sent["OpenStdin"]), (&true.into(), &true.into()));
        assert_eq!(sent["Cmd"], serde_json::json!(["serve", "two words", "-x"]));
        assert_eq!(sent["Env"], serde_json::json!(["A=1"]));
        assert_eq!((&sent["Labels"]["a"], &sent["Labels"][PLACEMENT_LABEL]), (&"b".into(), &"unit-0".into()));
        assert_eq!((&sent["Labels"][REQUEST_LABEL], &sent["Labels"][LEDGER_LABEL]), (&"r1".into(), &"l1".into()));
        let host = &sent["HostConfig"];
        assert_eq!(host["PortBindings"]["8080/tcp"][0]["HostPort"], "80");
        assert_eq!(host["PortBindings"]["8080/tcp"][0]["HostIp"], "192.0.2.1");
        assert_eq!(host["Dns"], serde_json::json!(["169.254.169.251"]));
        assert_eq!(
            host["DnsSearch"],
            serde_json::json!(["web.shop.rancher.internal", "shop.rancher.internal", "rancher.internal"])
        );
        assert_eq!((&host["MemoryReservation"], &host["CpuShares"]), (&(64 << 20).into(), &512.into()));
        assert_eq!(host["RestartPolicy"], serde_json::json!({"Name": "on-failure", "MaximumRetryCount": 3}));
        assert_eq!(host["Binds"], serde_json::json!(["/a:/b:ro"]));
        assert!(
            bodies(r#"{"image": "a", "resources": {"memory": 5}}"#, true)[0]["HostConfig"]["MemoryReservation"]
                .is_null()
        );
    }

    #[test]
    fn a_label_of_the_predecessor_gives_a_container_its_own_name() {
        let hostname = |more: &str, value: &str| {
            let labels = format!("{{\"io.rancher.container.hostname_override\": \"{value}\"}}");
            bodies(&format!("{{\"image\": \"a\", \"labels\": {labels}{more}}}"), false)[0]["Hostname"].clone()
        };
        for (more, value, expected) in [
            ("", "container_name", serde_json::json!("unit-0")),
            ("", "other", serde_json::Value::Null),
            (r#", "hostname": "web""#, "container_name", "web".into()),
            (r#", "engine": {"uts": "host"}"#, "container_name", serde_json::Value::Null),
            (r#", "network": "none""#, "container_name", serde_json::Value::Null),
        ] {
            assert_eq!(hostname(more, value), expected, "{more} {value}");
        }
    }

    #[test]
    fn engines_check_health_and_know_names_in_networks() {
        let sent = &bodies(
            r#"{"image": "a", "healthcheck": {"test": "true", "interval": 1500, "retries": 2},
                "networks": [{"name": "front", "aliases": ["web"]}, "back"]}"#,
            false,
        )[0];
        let check = serde_json::json!({"Test": ["CMD-SHELL", "true"], "Interval": 1_500_000_000, "Retries": 2});
        assert_eq!(sent["Healthcheck"], check);
        assert_eq!(sent["HostConfig"]["NetworkMode"], "front");
        assert_eq!(sent["NetworkingConfig"]["EndpointsConfig"], serde_json::json!({"front": {"Aliases": ["web"]}}));
        let plain = &bodies(r#"{"image": "a", "networks": ["front"]}"#, false)[0];
        assert!(plain["NetworkingConfig"].is_null() && plain["Healthcheck"].is_null(), "{plain}");
    }

    #[test]
    fn units_start_in_the_order_in_which_they_use_each_other() {
        let sent = bodies(
            r#"{"name": "app", "image": "a", "network_from": "net", "volumes_from": "data", "sidekicks": [
                {"name": "net", "image": "n"}, {"name": "data", "image": "d", "network_from": "elsewhere"}]}"#,
            false,
        );
        let images = |sent: &[serde_json::Value]| {
            sent.iter().map(|one| one["Image"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(images(&sent), ["n", "d", "a"]);
        let named = bodies(
            r#"{"name": "app", "image": "a", "start_after": ["log"], "sidekicks": [
                {"name": "db", "image": "d", "start_after": "app"}, {"name": "log", "image": "l"}]}"#,
            false,
        );
        assert_eq!(images(&named), ["l", "a", "d"]);
        assert_eq!(sent[2]["HostConfig"]["NetworkMode"], "container:unit-1");
        assert_eq!(sent[2]["HostConfig"]["VolumesFrom"], serde_json::json!(["unit-2"]));
        assert_eq!(sent[1]["HostConfig"]["NetworkMode"], "container:elsewhere");
        assert!(sent[2]["HostConfig"]["Dns"].is_null());
    }
}
