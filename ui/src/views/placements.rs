//! Placements: what was promised and what became of it; where something would go; what if.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Context;
use super::forms::{begin, end, field};
use crate::answers::{Explanation, PlacedContainer, Placements, Rebalance, WhatIf};
use crate::hidden::Hidden;
use crate::html::Html;
use crate::page::{Block, Cell, Page, Row, Table, Tone, column, number};
use crate::query::{Query, link};

/// Most moves that a plan may have.
const MOVES_MAX: u64 = 100;

/// Moves of a plan unless something else is said.
const MOVES: u64 = 10;

/// What was asked of the scheduler, and its answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Where something would go.
    Explained(Result<Explanation, String>),
    /// What if.
    WhatIf(Result<WhatIf, String>),
    /// How containers would be spread better.
    Rebalance(Result<Rebalance, String>),
}

/// The question of a form: its path and body; `None` if nothing is asked.
///
/// # Errors
///
/// Fails if a field cannot be what it says, or is about a label whose value is hidden.
pub(crate) fn question(query: &Query, hidden: &Hidden) -> Result<Option<(&'static str, Value)>, String> {
    let list = |name: &str| {
        query.get(name).split([',', ' ']).filter(|word| !word.is_empty()).map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    // The number in a field; `None` if that is empty.
    let number = |name: &str| match query.get(name) {
        "" => Ok(None),
        text => text.parse::<u64>().map(Some).map_err(|_| format!("{name}: {text:?}, expected a whole number")),
    };
    let has_any = |names: &[&str]| names.iter().any(|name| !query.get(name).is_empty());
    let form = query.path.get(1).map_or("", String::as_str);
    match form {
        "explain" if has_any(&["image", "memory", "cpu", "ports", "constraints"]) => {
            if query.get("image").is_empty() {
                return Err("image: which one is to be placed?".to_owned());
            }
            let mut body = json!({ "image": query.get("image") });
            let mut resources = serde_json::Map::new();
            if !query.get("memory").is_empty() {
                resources.insert("memory".into(), query.get("memory").into());
            }
            if let Some(cpu) = number("cpu")? {
                resources.insert("milli_cpu".into(), cpu.into());
            }
            if !resources.is_empty() {
                body["resources"] = resources.into();
            }
            if !list("ports").is_empty() {
                body["ports"] = list("ports").into();
            }
            let constraints: Vec<_> =
                query.get("constraints").split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
            if constraints.iter().any(|text| hidden.sentence(text) != *text) {
                return Err(
                    "constraints: the page does not show the values of this label, so it does not compare them either"
                        .to_owned(),
                );
            }
            if !constraints.is_empty() {
                body["constraints"] = constraints.into();
            }
            Ok(Some(("/v1/explain", body)))
        }
        "what-if" if has_any(&["lose", "service", "count"]) => {
            let mut body = json!({});
            if !list("lose").is_empty() {
                body["lose"] = list("lose").into();
            }
            let count = number("count")?;
            if !query.get("service").is_empty() {
                body["replicas"] = json!([{ "service": query.get("service"), "count": count.unwrap_or(1) }]);
            } else if count.is_some() {
                return Err("service: more of which one?".to_owned());
            }
            Ok(Some(("/v1/what-if", body)))
        }
        "rebalance" => {
            let moves = number("moves")?.unwrap_or(MOVES);
            if !(1..=MOVES_MAX).contains(&moves) {
                return Err(format!("moves: {moves}, expected 1 to {MOVES_MAX}"));
            }
            Ok(Some(("/v1/rebalance", json!({ "max_moves": moves }))))
        }
        _ => Ok(None),
    }
}

/// The view.
pub(crate) fn placements(
    context: &Context,
    query: &Query,
    known: Result<Placements, String>,
    answer: Option<Result<Arc<Answer>, String>>,
) -> Page {
    let mut page = Page::new(
        "placements",
        "Placements",
        "What was promised and what became of it. The forms ask and change nothing.",
    );
    page.blocks.push(Block::Markup(forms(query)));
    match answer {
        None => {}
        Some(Err(error)) => page.blocks.push(Block::Note(Tone::Bad, error)),
        Some(Ok(answer)) => match &*answer {
            Answer::Explained(Ok(answer)) => explained(context, &mut page, answer),
            Answer::WhatIf(Ok(answer)) => what_if(context, &mut page, answer),
            Answer::Rebalance(Ok(answer)) => rebalance(&mut page, answer),
            Answer::Explained(Err(error)) | Answer::WhatIf(Err(error)) | Answer::Rebalance(Err(error)) => {
                page.blocks.push(Block::Note(Tone::Bad, context.hidden.sentence(error).into_owned()));
            }
        },
    }
    match known {
        Ok(known) => {
            if let Some(warning) = &known.warning {
                page.blocks.push(Block::Note(Tone::Waiting, warning.clone()));
            }
            page.blocks.push(Block::Table(table(context, &known)));
        }
        Err(error) => page.blocks.push(Block::Note(Tone::Bad, error)),
    }
    page.command = Some("scheduler placements".to_owned());
    page
}

fn forms(query: &Query) -> Html {
    let mut html = Html::default();
    html.raw("<div class=\"cards\"><section><h2>Where would it go?</h2>");
    begin(&mut html, "/ui/placements/explain", "Where would it go?");
    field(&mut html, "image", "Image", query.get("image"), "shop/web:1");
    field(&mut html, "memory", "Memory", query.get("memory"), "512MiB");
    field(&mut html, "cpu", "Thousandths of a CPU", query.get("cpu"), "500");
    field(&mut html, "ports", "Ports", query.get("ports"), "80:8080");
    field(&mut html, "constraints", "Constraints", query.get("constraints"), "disk = ssd, zone = a");
    end(&mut html, "Explain");
    html.raw("</section><section><h2>What if?</h2>");
    begin(&mut html, "/ui/placements/what-if", "What if?");
    field(&mut html, "lose", "Hosts that are lost", query.get("lose"), "win-2022, win-2025");
    field(&mut html, "service", "More of a service", query.get("service"), "shop/web");
    field(&mut html, "count", "How many more", query.get("count"), "1");
    end(&mut html, "Try");
    html.raw("</section><section><h2>Rebalance</h2>");
    begin(&mut html, "/ui/placements/rebalance", "Rebalance");
    field(&mut html, "moves", "Most moves", query.get("moves"), "10");
    end(&mut html, "Plan");
    html.raw("</section></div>\n");
    html
}

fn table(context: &Context, known: &Placements) -> Table {
    let rows = known.placements.iter().take(super::ROWS_MAX).map(|placement| {
        let hosts: Vec<_> = placement.placements.iter().map(|unit| &*unit.host.name).collect();
        let containers = placement.placements.iter().flat_map(|unit| &unit.containers);
        let state = |container: &PlacedContainer| match &container.detail {
            Some(detail) => format!("{}: {} ({detail})", container.name, container.state),
            None => format!("{}: {}", container.name, container.state),
        };
        let states: Vec<_> = containers.clone().map(state).collect();
        let mut containers = containers;
        let image = containers.find_map(|container| container.image_name.as_deref()).unwrap_or_default();
        let mut why: Vec<String> = placement.error.iter().cloned().collect();
        why.extend(placement.failures.iter().map(|failure| format!("{}: {}", failure.host.name, failure.error)));
        let tone = match &*placement.state {
            "placed" => Tone::Good,
            "released" => Tone::Off,
            _ => Tone::Bad,
        };
        Row {
            key: placement.id.clone(),
            cells: vec![
                Cell::new(&placement.id),
                Cell::new(&placement.state).tone(tone),
                Cell::new(image),
                Cell::new(hosts.join("  ")),
                Cell::quiet(states.join("  ")),
                Cell::new(context.hidden.sentence(&why.join("; "))),
            ],
        }
    });
    let columns = ["Request", "State", "Image", "Hosts", "Containers", "Why not"].map(column).to_vec();
    let caption = format!("Promised · {}", known.placements.len());
    Table {
        id: "placements",
        caption,
        columns,
        rows: rows.collect(),
        empty: "Nothing was placed by this scheduler yet.",
    }
}

fn explained(context: &Context, page: &mut Page, answer: &Explanation) {
    let all = answer.hosts.len();
    let tone = if answer.fits > 0 { Tone::Good } else { Tone::Bad };
    page.blocks.push(Block::Note(tone, format!("It fits on {} of {all} hosts.", answer.fits)));
    let mut fitting: Vec<_> = answer.hosts.iter().filter(|host| host.fits).collect();
    fitting.sort_by_key(|host| host.rank);
    let rows = fitting.into_iter().take(super::ROWS_MAX).map(|host| Row {
        key: host.uuid.clone(),
        cells: vec![
            Cell::new(host.rank.map(|rank| rank.to_string()).unwrap_or_default()),
            Cell::new(&host.name).link(link(&["hosts", &host.uuid])),
            Cell::quiet(format!("{} containers", context.world.on(&host.uuid).all())),
        ],
    });
    let columns = vec![number("Rank"), column("Host"), column("Runs")];
    page.blocks.push(Block::Table(Table {
        id: "fits",
        caption: "Fits".into(),
        columns,
        rows: rows.collect(),
        empty: "No host.",
    }));
    let rows = answer.reasons.iter().map(|reason| {
        let example = answer.hosts.iter().flat_map(|host| &host.reasons).find(|text| text.starts_with(&*reason.text));
        Row {
            key: context.hidden.sentence(&reason.text).into_owned(),
            cells: vec![
                Cell::new(context.hidden.sentence(&reason.text))
                    .note(context.hidden.sentence(example.map_or("", |text| text))),
                Cell::new(reason.count.to_string()),
                Cell::quiet(reason.hosts.join("  ")),
            ],
        }
    });
    let columns = vec![column("Why not"), number("Hosts"), column("Which")];
    page.blocks.push(Block::Table(Table {
        id: "reasons",
        caption: "Does not fit".into(),
        columns,
        rows: rows.collect(),
        empty: "Every host fits.",
    }));
    for change in &answer.changes {
        let change = context.hidden.sentence(change);
        page.blocks.push(Block::Note(Tone::Quiet, format!("It would fit with {change}.")));
    }
}

fn what_if(context: &Context, page: &mut Page, answer: &WhatIf) {
    let tone = if answer.fits { Tone::Good } else { Tone::Bad };
    let verdict = if answer.fits { "Everything still has a place" } else { "Not everything has a place" };
    page.blocks.push(Block::Note(tone, format!("{verdict}, on {} hosts.", answer.hosts)));
    let error = |text: &str| Cell::new(context.hidden.sentence(text)).tone(Tone::Bad);
    let from_to = |key: usize, what: &str, containers: &[String], from: &str, to: Cell| Row {
        key: format!("{what} {key}"),
        cells: vec![Cell::new(containers.join("  ")), Cell::new(what), Cell::new(from), to],
    };
    let moved = answer.moved.iter().enumerate().map(|(at, one)| {
        from_to(at, "moves", &one.containers, &one.from.name, Cell::new(&one.to.name).tone(Tone::Good))
    });
    let stranded = answer
        .stranded
        .iter()
        .enumerate()
        .map(|(at, one)| from_to(at, "has no place", &one.containers, &one.from.name, error(&one.error)));
    let placed = answer
        .placed
        .iter()
        .enumerate()
        .map(|(at, one)| from_to(at, "new", &one.containers, "", Cell::new(&one.host.name).tone(Tone::Good)));
    let unplaced = answer
        .unplaced
        .iter()
        .enumerate()
        .map(|(at, one)| from_to(at, "not placed", &[format!("{} more", one.count)], "", error(&one.error)));
    let rows = stranded.chain(unplaced).chain(moved).chain(placed).take(super::ROWS_MAX).collect();
    let columns = ["Containers", "What", "From", "To"].map(column).to_vec();
    page.blocks.push(Block::Table(Table {
        id: "what-if",
        caption: "What would become of it".into(),
        columns,
        rows,
        empty: "Nothing would move.",
    }));
}

fn rebalance(page: &mut Page, answer: &Rebalance) {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let (before, after) = (percent(answer.imbalance.before), percent(answer.imbalance.after));
    page.blocks.push(Block::Note(
        Tone::Good,
        format!("{} moves would bring the imbalance from {before} to {after}. Nothing is moved.", answer.moves.len()),
    ));
    let rows = answer.moves.iter().enumerate().map(|(at, one)| Row {
        key: at.to_string(),
        cells: vec![
            Cell::new(one.containers.join("  ")),
            Cell::new(&one.from.name).link(link(&["hosts", &one.from.uuid])),
            Cell::new(&one.to.name).link(link(&["hosts", &one.to.uuid])),
            Cell::new(one.gain.map(percent).unwrap_or_default()),
        ],
    });
    let columns = vec![column("Containers"), column("From"), column("To"), number("Gain")];
    page.blocks.push(Block::Table(Table {
        id: "moves",
        caption: "Moves".into(),
        columns,
        rows: rows.collect(),
        empty: "No move would make it better.",
    }));
}
