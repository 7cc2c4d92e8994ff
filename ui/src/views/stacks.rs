//! Stacks: what should run, and how far that is.

use std::collections::HashMap;

use model::Entity as _;

use super::{Context, ROWS_MAX, name_of};
use crate::answers::{Stack, StackService, StackUnit, Stacks};
use crate::page::{Block, Cell, Page, Row, Table, Tone, column, number};
use crate::query::link;

/// What the state of a stack, or the stage of a service of it, means.
fn tone(state: &str) -> Tone {
    match state {
        "done" | "steady" => Tone::Good,
        "updating" | "unconfirmed" | "rolling_back" | "removing" => Tone::Waiting,
        "paused" => Tone::Off,
        _ => Tone::Bad,
    }
}

/// What the state of a unit means.
fn tone_of_unit(state: &str) -> Tone {
    match state {
        "healthy" | "done" => Tone::Good,
        "starting" | "removing" | "returned" => Tone::Waiting,
        "kept" | "ended" => Tone::Off,
        _ => Tone::Bad,
    }
}

/// The words of the scheduler as people write them.
fn words(state: &str) -> String {
    state.replace('_', " ")
}

/// How many of the wanted units are good.
fn progress(good: usize, wanted: usize) -> Cell {
    let tone = if good >= wanted { Tone::Good } else { Tone::Waiting };
    Cell::new(format!("{good} / {wanted}")).tone(tone)
}

/// All stacks.
pub(crate) fn stacks(known: Result<Stacks, String>) -> Page {
    let mut page = Page::new("stacks", "Stacks", "What should run, and how far that is.");
    match known {
        Ok(known) => {
            if let Some(warning) = &known.warning {
                page.blocks.push(Block::Note(Tone::Waiting, warning.clone()));
            }
            let rows = known.stacks.iter().take(ROWS_MAX).map(row).collect();
            let columns = vec![
                column("Stack"),
                column("State"),
                number("Good"),
                number("Revision"),
                column("Asked for by"),
                column("Why"),
            ];
            let caption = format!("Table of stacks · {}", known.stacks.len());
            let empty = "No stack yet: `scheduler up FILE` makes one of a compose file.";
            page.blocks.push(Block::Table(Table { id: "stacks", caption, columns, rows, empty }));
        }
        Err(error) => page.blocks.push(Block::Note(Tone::Bad, error)),
    }
    page.command = Some("scheduler stacks".to_owned());
    page
}

fn row(stack: &Stack) -> Row {
    let sum = |count: fn(&StackService) -> usize| stack.services.iter().map(count).sum();
    Row {
        key: stack.name.clone(),
        cells: vec![
            Cell::new(&stack.name).link(link(&["stacks", &stack.name])),
            Cell::new(words(&stack.state)).tone(tone(&stack.state)),
            progress(sum(|service| service.good), sum(|service| service.wanted)),
            Cell::new(stack.revision.to_string()),
            Cell::quiet(&stack.subject),
            Cell::new(&stack.detail),
        ],
    }
}

/// One stack, its services and their units.
pub(crate) fn stack(context: &Context, known: Result<Stack, String>) -> Page {
    let stack = match known {
        Ok(stack) => stack,
        Err(error) => return super::nothing("stacks", &error),
    };
    let mut page = Page::new("stacks", &stack.name, &stack.detail);
    let Row { cells, .. } = row(&stack);
    let [_, state, good, revision, subject, _] = <[Cell; 6]>::try_from(cells).unwrap_or_default();
    let mut facts = vec![("State", state), ("Good", good), ("Revision", revision), ("Asked for by", subject)];
    if !stack.orphans.is_empty() {
        facts.push(("Services to be removed", Cell::new(stack.orphans.join("  "))));
    }
    page.blocks.push(Block::Facts("facts", "About this stack".into(), facts));
    let services = stack.services.iter().take(ROWS_MAX).map(service_row).collect();
    let columns = ["Service", "Stage", "Good", "Image", "Waits for, or why"].map(column).to_vec();
    let caption = format!("Services · {}", stack.services.len());
    page.blocks.push(Block::Table(Table {
        id: "stack-services",
        caption,
        columns,
        rows: services,
        empty: "No service.",
    }));
    let hosts = context.world.snapshot.hosts.values();
    let hosts: HashMap<&str, &str> = hosts.map(|host| (&**name_of(&**host), &**host.id())).collect();
    let units = stack.services.iter().flat_map(|service| service.units.iter().map(move |unit| (service, unit)));
    let rows = units.clone().take(ROWS_MAX).map(|(service, unit)| unit_row(&hosts, service, unit)).collect();
    let columns = ["Unit", "Service", "Host", "State", "Revision", "Why"].map(column).to_vec();
    let caption = format!("Units · {}", units.count());
    page.blocks.push(Block::Table(Table { id: "units", caption, columns, rows, empty: "No unit." }));
    page.command = super::command(&["scheduler", "stacks", &stack.name]);
    page
}

fn service_row(service: &StackService) -> Row {
    let why = service.why.clone().unwrap_or_default();
    let why = if why.is_empty() { &service.waits } else { &why };
    Row {
        key: service.name.clone(),
        cells: vec![
            Cell::new(&service.name),
            Cell::new(words(&service.stage)).tone(tone(&service.stage)),
            progress(service.good, service.wanted),
            Cell::new(service.image.as_deref().unwrap_or_default()),
            Cell::new(why),
        ],
    }
}

/// A unit, with a link to its host if that is among `hosts`, by name with their uuids.
fn unit_row(hosts: &HashMap<&str, &str>, service: &StackService, unit: &StackUnit) -> Row {
    let name = Cell { link: hosts.get(&*unit.host).map(|uuid| link(&["hosts", uuid])), ..Cell::new(&unit.host) };
    Row {
        key: unit.id.clone(),
        cells: vec![
            Cell::new(&unit.id),
            Cell::quiet(&service.name),
            name,
            Cell::new(words(&unit.state)).tone(tone_of_unit(&unit.state)),
            Cell::quiet(if unit.is_wanted { "wanted" } else { "earlier" }),
            Cell::new(unit.why.as_deref().unwrap_or_default()),
        ],
    }
}
