//! Containers as people name them, and what is done with them by hand: commands run, units started again; [`logs`](super::logs) are read.
//!
//! Only what a placement of the ledger has is found, under the id that its engine gave, so that no name and no label leads to another
//! container.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine::EngineError;
use futures_util::future::join_all;
use model::{Map, Text, Value};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::ledger::record::{Record, Stage};
use crate::place::invalid::Invalid;
use crate::place::refusal::Refusal;
use crate::start::Starter;
use crate::start::docker::inside::OutputStream;
use crate::start::progress::ProgressSender;

/// Lines that wait for a slow reader; then its engines wait, too.
pub(crate) const LINES_MAX: usize = 256;

/// A container of a placement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    /// The placement.
    pub(crate) id: Text,
    /// Which of its units.
    pub(crate) unit: usize,
    /// Whether it is the first container of the unit.
    pub(crate) is_first: bool,
    /// What was asked for.
    pub(crate) asked: Map,
    pub(crate) name: Text,
    pub(crate) host: Text,
    pub(crate) host_name: Text,
    /// The engine's id.
    pub(crate) container: Text,
}

/// A line that a container wrote.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OutputLine {
    host: Text,
    container: Text,
    stream: OutputStream,
    /// As text, without its end.
    line: String,
    /// All bytes of it in base64, where they are others than the text and a line feed.
    #[serde(skip_serializing_if = "Option::is_none")]
    line_base64: Option<String>,
}

/// A line, or nothing after a while, so that the reader sees that the scheduler is there.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Output {
    Line(OutputLine),
    Quiet {},
}

/// After how long without an end there is a sign of life: clients wait for some minutes.
const PULSE: Duration = Duration::from_mins(1);

/// Waits for something, with signs of life.
pub(super) async fn with_pulse<T>(lines: &mpsc::Sender<Output>, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = sleep(PULSE) => drop(lines.try_send(Output::Quiet {})),
        }
    }
}

/// A container of which something could not be had.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailedTarget {
    host: Text,
    container: Text,
    error: String,
}

/// What an engine says of a container.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DescribedTarget {
    id: Text,
    unit: usize,
    host: Text,
    container: Text,
    /// As the engine's API has it, without the values of variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Which containers of each unit of a placement a name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    All,
    /// The one at this place.
    One(usize),
}

impl Named {
    fn has(self, at: usize) -> bool {
        self == Self::All || self == Self::One(at)
    }
}

/// What of a placement is named: all of it by its id, by `STACK/SERVICE`, or of a stack by `STACK/SERVICE/INDEX`; a sidekick by its
/// name behind one of the last two. An index is meant before a sidekick of that name.
fn named(id: &str, record: &Record, name: &str) -> Option<Named> {
    if id == name {
        return Some(Named::All);
    }
    let (stack, service) = match &record.unit {
        Some(unit) => (Some(&unit.stack), Some(&unit.service)),
        None => (record.asked.text("stack"), record.asked.text("service")),
    };
    let service = service.map(|text| &**text).filter(|service| !service.is_empty())?;
    let rest = name.strip_prefix(stack.map(|text| &**text).unwrap_or_default())?.strip_prefix('/')?;
    let rest = match rest.strip_prefix(service)? {
        "" => return Some(Named::All),
        rest => rest.strip_prefix('/')?,
    };
    let of_unit = record.unit.as_ref().and_then(|unit| rest.strip_prefix(&*unit.index));
    let sidekick = match of_unit {
        Some("") => return Some(Named::All),
        Some(behind) => behind.strip_prefix('/').unwrap_or(rest),
        None => rest,
    };
    let sidekicks = record.asked.list("sidekicks").iter().filter_map(Value::as_map);
    let at = sidekicks.enumerate().find(|(_, map)| map.text("name").is_some_and(|name| **name == *sidekick))?.0;
    Some(Named::One(at + 1))
}

/// Whether `STACK/SERVICE/INDEX` names this unit, or a sidekick of it.
fn is_of_unit(record: &Record, name: &str) -> bool {
    let Some(unit) = &record.unit else { return false };
    let parts = [&*unit.stack, "/", &*unit.service, "/", &*unit.index];
    let behind = parts.iter().try_fold(name, |rest, part| rest.strip_prefix(part));
    behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('/'))
}

impl Starter {
    /// The containers of what is named: a placement by its id, a service as `STACK/SERVICE`, its unit as `STACK/SERVICE/INDEX`, a
    /// sidekick of either with its name behind that, or a container by its name.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] if no engine has a container of it; [`Refusal::Invalid`] if containers of several placements have the name.
    pub(crate) fn targets(&self, name: &str) -> Result<Vec<Target>, Refusal> {
        let (placed, called) = self.placer.with_any(self.clock.now(), |book| {
            let (mut placed, mut called) = (Vec::new(), Vec::new());
            let is_unit = book.records().any(|(_, record)| is_of_unit(record, name));
            for (id, record) in book.records().filter(|(_, record)| record.is_placement()) {
                // Other units may have a sidekick that is called like the index.
                let named = named(id, record, name).filter(|_| !is_unit || is_of_unit(record, name));
                for (unit, replica) in record.replicas.iter().enumerate().filter(|(_, replica)| replica.stands()) {
                    for (at, held) in replica.members.iter().enumerate() {
                        let Some(container) = held.container.clone() else { continue };
                        let is_placed = named.is_some_and(|named| named.has(at));
                        let found = if is_placed { &mut placed } else { &mut called };
                        if is_placed || *held.name == *name {
                            found.push(Target {
                                id: id.clone(),
                                unit,
                                is_first: at == 0,
                                asked: record.asked.clone(),
                                name: held.name.clone(),
                                host: replica.host.clone(),
                                host_name: replica.host_name.clone(),
                                container,
                            });
                        }
                    }
                }
            }
            (placed, called)
        });
        // Who calls a container like another one's placement gets nothing of what is meant for that.
        let is_placed = !placed.is_empty();
        let mut found = if is_placed { placed } else { called };
        found.sort_by(|a, b| (&a.id, a.unit, !a.is_first, &a.name).cmp(&(&b.id, b.unit, !b.is_first, &b.name)));
        let Some(first) = found.first() else { return Err(Refusal::Unknown(name.into())) };
        match found.iter().find(|other| !is_placed && other.id != first.id) {
            None => Ok(found),
            Some(other) => {
                let problem = format!("found {name}, as containers of {} and {} are called", first.id, other.id);
                Err(Invalid::new("of", problem, "the id of one of these placements").into())
            }
        }
    }

    /// What engines say of containers, or why one cannot be asked.
    pub(crate) async fn describe_targets(self: &Arc<Self>, targets: Vec<Target>) -> Vec<DescribedTarget> {
        let asked = targets.into_iter().map(|target| async move {
            let described = async { self.docker(&target.host)?.0.described(&target.container).await };
            let (engine, error) = match described.await {
                Ok(engine) => (Some(engine), None),
                Err(error) => (None, Some(error.to_string())),
            };
            let Target { id, unit, name, host_name, .. } = target;
            DescribedTarget { id, unit, host: host_name, container: name, engine, error }
        });
        join_all(asked).await
    }

    /// Runs a command in a container and sends what it writes; returns its exit code. When the reader goes away, the command goes on.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn run_command(
        &self,
        target: &Target,
        command: &[String],
        lines: &mpsc::Sender<Output>,
    ) -> Result<Option<i64>, EngineError> {
        let (docker, _) = self.docker(&target.host)?;
        let lost = |who: &str| Err(EngineError::Lost(format!("{who}; the command goes on")));
        tokio::select! {
            ended = with_pulse(lines, docker.run_in(&target.container, command, (lines, line_of(target)))) => ended,
            () = lines.closed() => lost("its reader is gone"),
            () = self.stop.cancelled() => lost("the scheduler ends"),
        }
    }

    /// Stops the containers of units and starts the same ones again, one placement after another.
    ///
    /// # Cancel safety
    ///
    /// As [`Starter::stop_units`].
    ///
    /// # Errors
    ///
    /// As [`Starter::stop_units`].
    pub(crate) async fn restart_targets(
        self: &Arc<Self>,
        targets: &[Target],
        progress: &ProgressSender,
    ) -> Result<(), Refusal> {
        for (id, units) in units_of(targets) {
            let stages = self.placer.stages(&id, self.clock.now());
            let (kept, others): (Vec<usize>, Vec<usize>) =
                units.into_iter().partition(|at| stages.get(*at) == Some(&Stage::Kept));
            if !kept.is_empty() {
                self.start_kept(&id, &kept, progress.clone()).await?;
            }
            if !others.is_empty() {
                self.restart_units(&id, &others, progress.clone()).await?;
            }
        }
        Ok(())
    }

    /// Stops the containers of units and keeps them, so that they can be started again.
    ///
    /// # Errors
    ///
    /// As [`Starter::stop_units`]; [`Refusal::Taken`] for a unit of a stack, whose place another one would take at once.
    pub(crate) async fn stop_targets(
        self: &Arc<Self>,
        targets: &[Target],
        progress: &ProgressSender,
    ) -> Result<(), Refusal> {
        let stack_of = |target: &Target| {
            self.placer.with_any(self.clock.now(), |book| Some(book.record(&target.id)?.unit.as_ref()?.stack.clone()))
        };
        if let Some((id, stack)) = targets.iter().find_map(|target| Some((&target.id, stack_of(target)?))) {
            return Err(Refusal::Taken(format!(
                "{id} is a unit of the stack {stack}, which would start another one: `scheduler scale {stack}/SERVICE=N` or \
                 `scheduler down {stack}`"
            )));
        }
        for (id, units) in units_of(targets) {
            self.stop_units(&id, &units, None, progress.clone()).await?;
        }
        Ok(())
    }
}

/// The units of containers, by placement.
fn units_of(targets: &[Target]) -> BTreeMap<Text, Vec<usize>> {
    let mut units: BTreeMap<Text, Vec<usize>> = BTreeMap::new();
    for target in targets {
        let units = units.entry(target.id.clone()).or_default();
        if !units.contains(&target.unit) {
            units.push(target.unit);
        }
    }
    units
}

/// A line that a container wrote, with its name and host.
pub(super) fn line_of(target: &Target) -> impl Fn(OutputStream, &[u8]) -> Output {
    move |stream, bytes| {
        let (host, container) = (target.host_name.clone(), target.name.clone());
        let line = String::from_utf8_lossy(bytes).trim_end_matches(['\n', '\r']).to_owned();
        let is_whole = bytes.strip_suffix(b"\n") == Some(line.as_bytes());
        let line_base64 = (!is_whole).then(|| STANDARD.encode(bytes));
        Output::Line(OutputLine { host, container, stream, line, line_base64 })
    }
}

pub(super) fn failed(target: &Target, error: &EngineError) -> FailedTarget {
    FailedTarget { host: target.host_name.clone(), container: target.name.clone(), error: error.to_string() }
}

#[cfg(test)]
mod tests {
    use model::Map;

    use super::*;
    use crate::ledger::stack::StackUnit;

    #[test]
    fn a_line_that_is_no_text_is_sent_whole_too() {
        let target = Target {
            id: "a".into(),
            unit: 0,
            is_first: true,
            asked: Map::default(),
            name: "web".into(),
            host: "h".into(),
            host_name: "h".into(),
            container: "c".into(),
        };
        for (bytes, line, whole) in [
            (&b"a\tb\n"[..], "a\tb", None),
            (b"a\r\n", "a", Some(&b"a\r\n"[..])),
            (b"a", "a", Some(b"a")),
            (b"a\xff\n", "a\u{fffd}", Some(b"a\xff\n")),
            (b"\n", "", None),
        ] {
            let Output::Line(sent) = line_of(&target)(OutputStream::Stdout, bytes) else { unreachable!() };
            assert_eq!((&*sent.line, sent.line_base64), (line, whole.map(|bytes| STANDARD.encode(bytes))));
        }
    }

    #[test]
    fn placements_are_named_by_id_service_and_index() {
        let asked =
            r#"{"stack": "shop", "service": "web", "sidekicks": [{"name": "log"}, {"name": "2"}, {"name": "21"}]}"#;
        let asked: Map = serde_json::from_str(asked).unwrap();
        let plain = Record { asked, ..Record::of_stack(stack(), Duration::ZERO) };
        let unit = StackUnit {
            stack: "shop".into(),
            service: "web".into(),
            index: "2".into(),
            digest: "d".into(),
            evicted: false,
            evicted_at: 0,
            covered: false,
            done: false,
        };
        let of_stack = Record { unit: Some(unit), ..plain.clone() };
        let (all, log) = (Some(Named::All), Some(Named::One(1)));
        for (name, in_plain, in_unit) in [
            ("p1", all, all),
            ("shop/web", all, all),
            ("shop/web/2", Some(Named::One(2)), all),
            ("shop/web/1", None, None),
            ("shop/web/log", log, log),
            ("shop/web/2/log", None, log),
            ("shop/web/2/2", None, Some(Named::One(2))),
            ("shop/web/21", Some(Named::One(3)), Some(Named::One(3))),
            ("shop/web/1/log", None, None),
            ("shop/web/log/2", None, None),
            ("shop/web/", None, None),
            ("shop/web/2/", None, None),
            ("shop/webs", None, None),
            ("shop/web/logs", None, None),
            ("shop/we", None, None),
            ("shop/", None, None),
            ("shop", None, None),
            ("/web", None, None),
            ("", None, None),
        ] {
            assert_eq!(named("p1", &plain, name), in_plain, "{name}");
            assert_eq!(named("p1", &of_stack, name), in_unit, "{name}");
        }
        for (name, expected) in
            [("shop/web/2", true), ("shop/web/2/log", true), ("shop/web/21", false), ("shop/web", false)]
        {
            assert_eq!((is_of_unit(&of_stack, name), is_of_unit(&plain, name)), (expected, false), "{name}");
        }
    }

    fn stack() -> crate::ledger::stack::StackRecord {
        crate::ledger::stack::StackRecord {
            stack: stacks::Stack::default(),
            history: Vec::new(),
            answers: BTreeMap::new(),
        }
    }
}
