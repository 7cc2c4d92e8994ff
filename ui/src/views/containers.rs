//! Containers: as rows of a host or a service, and each by itself.

use model::{Container, Entity as _};

use super::overview::host_name;
use super::{Context, labels_cell, life_cell, name_of, nothing};
use crate::answers::Health;
use crate::page::{Block, Cell, Column, Page, Row, Tone, column};
use crate::query::link;
use crate::world::{Life, state};

/// The columns of [`container_row`].
pub(crate) fn columns() -> Vec<Column> {
    ["Container", "State", "Why", "Service", "Host", "Address", "Ports"].map(column).to_vec()
}

/// A container in a table.
pub(crate) fn container_row(context: &Context, container: &Container, health: Option<&Health>) -> Row {
    let service = context.world.service_of(container.uuid());
    let service = service.map_or_else(Cell::default, |service| {
        let name = format!("{}/{}", service.stack_name().map_or("", |name| name), name_of(&**service));
        Cell::new(name).link(link(&["services", service.id()]))
    });
    let host = container
        .host_uuid()
        .map_or_else(Cell::default, |uuid| Cell::new(host_name(context, container)).link(link(&["hosts", uuid])));
    let address = container.primary_ip().map_or_else(|| Cell::quiet("none"), |address| Cell::new(address.to_string()));
    Row {
        key: container.uuid().to_string(),
        cells: vec![
            Cell::new(name_of(container)).link(link(&["containers", container.uuid()])),
            life_cell(Life::of(container), &state(container)),
            Cell::quiet(why(container, health)),
            service,
            host,
            address,
            Cell::new(ports(container)),
        ],
    }
}

/// Why a container counts as it does.
fn why(container: &Container, health: Option<&Health>) -> String {
    if let Some(failed) = model::health::failed(container) {
        return format!("given up: {failed}");
    }
    let said = health.and_then(|health| {
        let problem = health.problem.as_ref().map(|problem| format!("its check is left out: {problem}"));
        let failed = health.failed.as_ref().map(|failed| format!("given up: {failed}"));
        let check = health.check.as_ref().and_then(|check| {
            let last = check.last.as_ref()?;
            let reason = last.reason.as_deref().unwrap_or_default();
            Some(format!("{} {}: {} {reason}", check.r#type, check.address, last.outcome))
        });
        let owner = health.owner.as_ref().map(|owner| format!("checked by {owner}"));
        problem.or(failed).or(check).or(owner)
    });
    said.unwrap_or_else(|| match Life::of(container) {
        Life::Unhealthy => "its check fails: `agent health` on its host has the reason".to_owned(),
        _ => String::new(),
    })
}

fn ports(container: &Container) -> String {
    let ports: Vec<_> = model::entity::texts(container.fields(), "ports").map(|port| &**port).collect();
    ports.join("  ")
}

/// One container.
pub(crate) fn container(context: &Context, uuid: &str, health: Option<&Health>) -> Page {
    let Some(container) = context.world.snapshot.containers.get(uuid) else {
        return nothing("services", "There is no such container, or it is gone.");
    };
    let mut page = Page::new("services", name_of(&**container), "");
    let Row { cells, .. } = container_row(context, container, health);
    let [_, state, why, service, host, address, ports] = <[Cell; 7]>::try_from(cells).unwrap_or_default();
    let or_none = |cell: Cell| if cell.text.is_empty() { Cell::quiet("none") } else { cell };
    let number = |key: &str| {
        container.fields().int(key).map_or_else(|| Cell::quiet("unknown"), |count| Cell::new(count.to_string()))
    };
    let links: Vec<_> = container.links().iter().map(|(name, _)| name.to_string()).collect();
    page.blocks.push(Block::Facts(
        "facts",
        "About this container".into(),
        vec![
            ("State", state),
            ("Why", or_none(why.tone(Tone::Plain))),
            ("Service", or_none(service)),
            ("Host", or_none(host)),
            ("Address", address),
            ("Ports", or_none(ports)),
            ("Links", or_none(Cell::new(links.join("  ")))),
            ("Starts", number("start_count")),
            ("Labels", labels_cell(container.labels(), &context.hidden)),
            ("Id", Cell::quiet(&**container.uuid())),
        ],
    ));
    let mut names = crate::html::Html::default();
    names.raw("<p><a").attribute("href", &format!("/ui/names?client={}", crate::query::part(name_of(&**container))));
    names.raw(">Ask DNS as this container →</a></p>\n");
    page.blocks.push(Block::Markup(names));
    page.command = super::command(&["agent", "health", name_of(&**container)]);
    page
}
