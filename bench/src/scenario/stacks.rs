//! What stacks cost a scheduler, in this process: no sockets and no engines, the plan and the keeper alone.
//!
//! All units of all stacks run and are healthy. A plan is what `scheduler plan` asks for, from the body of the request to its answer.
//! Processor time is the process's own.

use std::time::Duration;

use scheduler::benching::{Kept, Size};

use crate::Failure;
use crate::paired::Spread;
use crate::report::{Goal, Row};
use crate::scenario::Scene;

/// A large cluster.
const LARGE: Size = Size { hosts: 5000, units: 20, stacks: 500 };

/// What its stacks have in place of another image.
const IMAGE: &str = "stack/web:1";

/// Most milliseconds of a plan.
const PLAN_GOAL: f64 = 50.0;

/// Largest part of a core while nothing happens, in percent.
const IDLE_GOAL: f64 = 1.0;

/// Within what time it has looked at all, as it does when it begins.
const SETTLE: Duration = Duration::from_secs(10);

/// How many containers change in a second in a cluster that is at rest as far as stacks are concerned: health checks that are
/// repeated, and agents that publish again.
const CHANGES: u32 = 10;

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<(), Failure> {
    let options = scene.options;
    let (rounds, idle) = if options.quick { (5, 5) } else { (21, 30) };
    let mut kept = Kept::of(LARGE);
    let each = LARGE.hosts * LARGE.units / LARGE.stacks;
    if options.wants("plan") {
        let title = format!("plan: one of {} stacks, {each} units, on {} hosts", LARGE.stacks, LARGE.hosts);
        let rows = vec![
            plans(&kept, "nothing changes", rounds, |_| IMAGE.to_owned(), (0, true))?,
            plans(&kept, "another image for all", rounds, |round| format!("stack/web:2.{round}"), (each, false))?,
        ];
        scene.tell("CPU ms", &title, "", rows);
    }
    if options.wants("idle") {
        let title = format!("idle: {} stacks with {} units, kept for {idle} s", LARGE.stacks, LARGE.stacks * each);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let mut rows = Vec::new();
        for (subject, changes) in [("nothing changes", 0), ("ten containers change in a second", CHANGES)] {
            let mut before = Duration::ZERO;
            let time = Duration::from_secs(idle);
            runtime.block_on(kept.keep(SETTLE, || before = cpu(), (time, changes)));
            let percent = cpu().saturating_sub(before).as_secs_f64() * 100.0 / time.as_secs_f64();
            rows.push(Row::figure(subject, percent).with_goal(Goal::AtMost(IDLE_GOAL)));
        }
        scene.tell("% of a core", &title, "", rows);
    }
    if options.wants("look") {
        let mut times = Vec::new();
        let mut wrong = 0;
        for round in 0..=rounds {
            let before = cpu();
            wrong += kept.look_at_all();
            if round > 0 {
                times.push(cpu().saturating_sub(before).as_secs_f64() * 1e3);
            }
        }
        let times = Spread::of(times);
        let row = Row::figure("all stacks, each once", times.median).with_note(note(&times, wrong));
        scene.tell("CPU ms", &format!("look: {} stacks as they are", LARGE.stacks), "", vec![row]);
    }
    Ok(())
}

fn plans(
    kept: &Kept,
    subject: &str,
    rounds: usize,
    image: impl Fn(usize) -> String,
    expected: (usize, bool),
) -> Result<Row, Failure> {
    let mut times = Vec::new();
    let mut wrong = 0;
    for round in 0..=rounds {
        let before = cpu();
        let found = kept.plan(round * 7 % LARGE.stacks, &image(round))?;
        // The first one warms up.
        if round > 0 {
            times.push(cpu().saturating_sub(before).as_secs_f64() * 1e3);
        }
        wrong += usize::from(found != expected);
    }
    let times = Spread::of(times);
    Ok(Row::figure(subject, times.median).with_goal(Goal::AtMost(PLAN_GOAL)).with_note(note(&times, wrong)))
}

fn note(times: &Spread, wrong: usize) -> String {
    let note = format!("{:.1}-{:.1}", times.min, times.max);
    if wrong > 0 { format!("{wrong} answers were wrong; {note}") } else { note }
}

fn cpu() -> Duration {
    platform::usage::Usage::now().cpu.unwrap_or_default()
}
