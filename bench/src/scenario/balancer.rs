//! Balancers: what a large plan takes, how soon HAProxy has a thousand that change in one snapshot, and how soon requests go where they
//! should.

mod soon;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use model::lb::{LbPlan, Viewpoint, find};
use serde_json::Value;
use tempfile::TempDir;

use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::server::{Server, free_address};
use crate::{Failure, exchange, load};

/// Members that change in one snapshot.
const MEMBERS: u32 = 1000;

/// Milliseconds from a snapshot with a thousand changes until HAProxy has confirmed them, and its file is on the disk.
const CHANGES_MAX: f64 = 150.0;

/// What is looked for in the agent's log.
const FOLLOWED: &str = "without a reload";

/// Rules of a large balancer, each of which leads to a service of its own.
const RULES: u32 = 10_000;

/// Members of each of these services.
const MEMBERS_OF_RULE: u32 = 10;

/// Milliseconds for the plan of such a balancer.
const PLAN_MAX: f64 = 100.0;

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    plan(scene)?;
    members(scene)?;
    soon::run(scene)
}

/// The plan of a large balancer, made here: no process is asked.
fn plan(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let title = format!("plan of {RULES} rules with {MEMBERS_OF_RULE} members each");
    if !scene.options.wants(&title) {
        return Ok(());
    }
    let mut text = "berth: 1\nservices:\n- name: lb\n  stack: edge\n  lb_config:\n    port_rules:\n".to_owned();
    for rule in 0..RULES {
        let _ = writeln!(
            text,
            "    - {{ source_port: 80, hostname: h{rule}.example.org, service: s/web-{rule}, target_port: 80 }}"
        );
    }
    let mut containers = String::new();
    for rule in 0..RULES {
        let _ = writeln!(text, "- {{ name: web-{rule}, stack: s }}");
        for member in 0..MEMBERS_OF_RULE {
            let [_, high, middle, low] = (rule * MEMBERS_OF_RULE + member).to_be_bytes();
            let ip = format!("10.{high}.{middle}.{low}");
            let _ = writeln!(
                containers,
                "- {{ name: web-{rule}-{member}, service: s/web-{rule}, primary_ip: {ip}, state: running }}"
            );
        }
    }
    text = text + "containers:\n" + &containers + "...\n";
    let (reading, _) = source::cluster_file::read(Path::new("cluster.yml"), text.into_bytes())?;
    let balancer = find(&reading.snapshot, "edge/lb").ok_or("no balancer")?;
    let mut times = Vec::new();
    for _ in 0..if scene.options.quick { 5 } else { 21 } {
        let begun = Instant::now();
        let plan = LbPlan::of(&reading.snapshot, balancer, &Viewpoint::default());
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
        if plan.backends.len() != RULES as usize {
            return Err(format!("{} backends", plan.backends.len()).into());
        }
    }
    let times = Spread::of(times);
    let note = format!("{:.0}-{:.0}", times.min, times.max);
    let row = Row::figure("the whole plan", times.median).with_note(note).with_goal(Goal::AtMost(PLAN_MAX));
    scene.tell("ms", &title, "", vec![row]);
    Ok(())
}

fn members(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let Scene { machine, executables, options, .. } = *scene;
    if !options.wants("members change") {
        return Ok(());
    }
    if !load::has("haproxy") {
        scene.tell("ms", "members that change", "", vec![Row::missing("berth", "apt-get install haproxy")]);
        return Ok(());
    }
    let folder = TempDir::new()?;
    let file = folder.path().join("cluster.yml");
    let port = free_address()?.port();
    write(&file, port, 0, MEMBERS)?;
    let mut command = Command::new(executables.of("agent"));
    command.args(["lb", "haproxy", "--run", "--bind", "127.0.0.1", "--admin", "127.0.0.1:0", "--log-format", "json"]);
    command.arg("--source").arg(format!("file:{}", file.display())).arg("--folder").arg(folder.path().join("haproxy"));
    let mut agent = Server::start(machine, "berth", &command, TempDir::new()?)?;
    exchange::until("HAProxy", Duration::from_millis(20), || {
        if !agent.is_running() {
            return Err(format!("the agent does not run: {}", agent.log()).into());
        }
        Ok(agent.log().contains("with a new configuration"))
    })?;
    let rounds = if options.quick { 5 } else { 21 };
    for (changed, goal) in [(MEMBERS, Some(CHANGES_MAX)), (1, None)] {
        let (mut inner, mut outer) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            // The round before has to be over: what follows a file waits for a second write.
            std::thread::sleep(Duration::from_millis(200));
            let known = times(&agent).len();
            let begun = Instant::now();
            write(&file, port, round % 2, changed)?;
            exchange::until("the change", Duration::from_millis(1), || Ok(times(&agent).len() > known))?;
            outer.push(begun.elapsed().as_secs_f64() * 1000.0);
            inner.extend(times(&agent).last());
        }
        let [inner, outer] = [inner, outer].map(Spread::of);
        let range = |spread: &Spread| format!("{:.0}-{:.0}", spread.min, spread.max);
        let row = Row::figure("snapshot to confirmed", inner.median).with_note(range(&inner));
        let row = match goal {
            Some(goal) => row.with_goal(Goal::AtMost(goal)),
            None => row,
        };
        let rows = vec![row, Row::figure("file to confirmed", outer.median).with_note(range(&outer))];
        scene.tell("ms", &format!("{changed} of {MEMBERS} members change"), "", rows);
        write(&file, port, 0, MEMBERS)?;
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

/// The times that HAProxy took to follow, in milliseconds.
fn times(agent: &Server) -> Vec<f64> {
    let log = agent.log();
    let lines = log.lines().filter(|line| line.contains(FOLLOWED));
    lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()?.get("took_ms")?.as_str()?.parse().ok()).collect()
}

/// A balancer with a thousand members, of which so many have addresses of this generation.
fn write(file: &Path, port: u16, generation: u32, changed: u32) -> Result<(), Failure> {
    let mut text = format!(
        "berth: 1\nservices:\n- name: lb\n  stack: edge\n  lb_config:\n    port_rules:\n    - {{ source_port: {port}, service: s/web, target_port: 80 }}\n- {{ name: web, stack: s }}\ncontainers:\n"
    );
    for number in 0..MEMBERS {
        let [_, _, high, low] = number.to_be_bytes();
        let own = if number < changed { generation } else { 0 };
        let _ =
            writeln!(text, "- {{ name: web-{number}, service: s/web, primary_ip: 127.{}.{high}.{low} }}", 110 + own);
    }
    text.push_str("...\n");
    let aside = file.with_extension("new");
    fs::write(&aside, text)?;
    Ok(fs::rename(aside, file)?)
}
