//! Names: the steps of a DNS answer as one client gets it, and which clients get another one.

use std::net::IpAddr;

use super::forms::{begin, choice, end, field};
use super::{Context, name_of};
use crate::answers::Resolution;
use crate::html::Html;
use crate::page::{Block, Cell, Page, Row, Table, Tone, column, number};
use crate::query::{Query, part};

/// Types that people ask for.
const TYPES: [(&str, &str); 6] =
    [("A", "A"), ("AAAA", "AAAA"), ("SRV", "SRV"), ("CNAME", "CNAME"), ("PTR", "PTR"), ("TXT", "TXT")];

/// Most clients whose answers are compared: each costs an answer.
pub(crate) const CLIENTS_MAX: usize = 50;

/// The question of a query, as DNS takes it; `None` if there is none.
///
/// # Errors
///
/// Fails if the client is neither an address nor a container with one.
pub(crate) fn question(context: &Context, query: &Query) -> Result<Option<String>, String> {
    if query.get("name").is_empty() {
        return Ok(None);
    }
    let client = match query.get("client") {
        "" | "host" => "127.0.0.1".to_owned(),
        client => address_of(context, client)
            .ok_or_else(|| format!("{client} is no address, and no container of this name has one"))?,
    };
    Ok(Some(asking(query, &client)))
}

fn asking(query: &Query, client: &str) -> String {
    let kind = if query.get("type").is_empty() { "A" } else { query.get("type") };
    format!("/v1/query?name={}&type={}&client={}", part(query.get("name")), part(kind), part(client))
}

fn address_of(context: &Context, client: &str) -> Option<String> {
    if let Ok(address) = client.parse::<IpAddr>() {
        return Some(address.to_string());
    }
    let containers = context.world.snapshot.containers.values();
    let mut named = containers.filter(|container| **name_of(&***container) == *client || **container.uuid() == *client);
    named.find_map(|container| container.primary_ip()).map(|address| address.to_string())
}

/// The clients whose answers may differ: one container of each service, with the question of each.
pub(crate) fn others(context: &Context, query: &Query) -> Vec<(String, String)> {
    let snapshot = &context.world.snapshot;
    let firsts = snapshot.services.values().filter_map(|service| {
        let container = service
            .members()
            .iter()
            .filter_map(|uuid| snapshot.containers.get(uuid))
            .find(|container| container.runs())?;
        Some((name_of(&**container).to_string(), asking(query, &container.primary_ip()?.to_string())))
    });
    firsts.take(CLIENTS_MAX).collect()
}

/// The view, with the answer if something was asked, and those of other clients.
pub(crate) fn names(
    query: &Query,
    answer: Option<Result<Resolution, String>>,
    others: &[(String, Resolution)],
) -> Page {
    let mut page =
        Page::new("names", "Names", "The answer of DNS as one client gets it, step by step. Asking changes nothing.");
    let mut html = Html::default();
    begin(&mut html, "/ui/names", "Ask DNS");
    field(&mut html, "name", "Name", query.get("name"), "db or web.shop.rancher.internal");
    choice(&mut html, "type", "Type", query.get("type"), &TYPES);
    field(&mut html, "client", "Asked by", query.get("client"), "container, address or host");
    choice(
        &mut html,
        "compare",
        "Compare",
        query.get("compare"),
        &[("", "no others"), ("services", "one of each service")],
    );
    end(&mut html, "Ask");
    page.blocks.push(Block::Markup(html));
    match answer {
        None => {}
        Some(Err(error)) => page.blocks.push(Block::Note(Tone::Bad, error)),
        Some(Ok(answer)) => {
            let kind = if query.get("type").is_empty() { "A" } else { query.get("type") };
            page.command = super::command(&["dns", "query", query.get("name"), kind, "--client", &answer.client]);
            show(&mut page, &answer);
            if !others.is_empty() {
                page.blocks.push(Block::Table(compared(others)));
            }
        }
    }
    page
}

fn show(page: &mut Page, answer: &Resolution) {
    let code = if answer.code == "NOERROR" && !answer.answers.is_empty() { Tone::Good } else { Tone::Off };
    let mut facts = vec![
        ("Answer", Cell::new(&answer.code).tone(code)),
        ("From", Cell::new(source(&answer.answered_by))),
        ("Client", Cell::new(&answer.client)),
        (
            "Names of its own",
            Cell::new(if answer.section.name == "default" { "none: it is no known container" } else { "yes" }),
        ),
        ("Search", Cell::new(answer.section.search.join("  "))),
    ];
    if let Some(forwarding) = &answer.forwarding {
        facts.push((
            "Upstreams",
            Cell::new(forwarding.asked_first_to_last.join("  ")).note(format!("those of: {}", forwarding.upstreams_of)),
        ));
        facts.push(("Answered", Cell::new(forwarding.answered.as_deref().unwrap_or("none"))));
    }
    page.blocks.push(Block::Facts("answer", "Answer".into(), facts));
    // The order of equals is another one in each answer, which is no change to look at.
    let mut records: Vec<_> = answer.answers.iter().collect();
    for equals in records.chunk_by_mut(|one, other| (&one.name, &one.kind) == (&other.name, &other.kind)) {
        equals.sort_by_key(|record| &record.data);
    }
    let rows = records.into_iter().enumerate().map(|(at, record)| Row {
        key: at.to_string(),
        cells: vec![
            Cell::new(&record.data),
            Cell::quiet(&record.kind),
            Cell::new(record.ttl.to_string()),
            Cell::quiet(&record.name),
        ],
    });
    let columns = vec![column("Data"), column("Type"), number("TTL, s"), column("Name")];
    page.blocks.push(Block::Table(Table {
        id: "records",
        caption: "Records".into(),
        columns,
        rows: rows.take(super::ROWS_MAX).collect(),
        empty: "No record of this type.",
    }));
    let rows = answer.left_out.iter().enumerate().map(|(at, left)| Row {
        key: at.to_string(),
        cells: vec![
            Cell::new(&left.container).tone(Tone::Off),
            Cell::new(left.host.as_deref().unwrap_or_default()),
            Cell::new(&left.reason),
        ],
    });
    let columns = ["Container", "Host", "Why"].map(column).to_vec();
    page.blocks.push(Block::Table(Table {
        id: "left-out",
        caption: "Left out of the answer".into(),
        columns,
        rows: rows.take(super::ROWS_MAX).collect(),
        empty: "No container is left out.",
    }));
    let rows = answer.steps.iter().enumerate().map(|(at, step)| {
        let (found, tone) = found(&step.found);
        let place = if step.section == "client" { "names of this client" } else { "names of all" };
        Row {
            key: at.to_string(),
            cells: vec![
                Cell::new((at + 1).to_string()),
                Cell::new(&step.name),
                Cell::quiet(place),
                Cell::quiet(step.search.as_deref().unwrap_or("as it was asked")),
                Cell::new(found).tone(tone),
            ],
        }
    });
    let columns =
        vec![number("Step"), column("Name tried"), column("Looked for in"), column("Search entry"), column("Found")];
    page.blocks.push(Block::Table(Table {
        id: "steps",
        caption: "Steps".into(),
        columns,
        rows: rows.take(super::ROWS_MAX).collect(),
        empty: "No name was tried here.",
    }));
}

/// Who gave an answer, in words.
fn source(answered_by: &str) -> &str {
    match answered_by {
        "zone" => "the names of the cluster",
        "cache" => "the cache",
        "upstream" => "an upstream",
        "refused" => "nowhere: refused",
        "not_served" => "nowhere: not served",
        "not_ready" => "nowhere: not ready yet",
        other => other,
    }
}

fn found(found: &serde_json::Value) -> (String, Tone) {
    match found {
        serde_json::Value::String(word) if word == "records" => ("records".into(), Tone::Good),
        serde_json::Value::String(word) if word == "nothing" => ("nothing".into(), Tone::Quiet),
        serde_json::Value::String(word) => (word.replace('_', " "), Tone::Waiting),
        other => {
            let alias = other.get("alias").and_then(serde_json::Value::as_str).unwrap_or_default();
            (format!("alias of {alias}"), Tone::Good)
        }
    }
}

/// Clients grouped by what they get.
fn compared(others: &[(String, Resolution)]) -> Table {
    let mut groups: std::collections::BTreeMap<String, Vec<&str>> = std::collections::BTreeMap::new();
    for (client, answer) in others {
        let mut data: Vec<_> = answer.answers.iter().map(|record| &*record.data).collect();
        data.sort_unstable();
        let given = if data.is_empty() { answer.code.clone() } else { data.join("  ") };
        groups.entry(given).or_default().push(client);
    }
    let rows = groups.into_iter().map(|(given, clients)| Row {
        key: given.clone(),
        cells: vec![Cell::new(given), Cell::new(clients.len().to_string()), Cell::quiet(clients.join("  "))],
    });
    let columns = vec![column("What they get"), number("Clients"), column("Which")];
    Table {
        id: "compared",
        caption: "One container of each service".into(),
        columns,
        rows: rows.collect(),
        empty: "No other client.",
    }
}
