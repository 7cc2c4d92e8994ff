//! What is found for the text in the search box.

use model::Entity as _;

use super::containers::container_row;
use super::{Context, name_of};
use crate::page::{Block, Cell, Page, Row, Table, Tone, column};
use crate::query::link;

/// Most things of a kind that are shown.
const HITS_MAX: usize = 50;

/// Hosts, services and containers of a name, an address or a label.
pub(crate) fn search(context: &Context, wanted: &str) -> Page {
    let mut page = Page::new("search", "Search", format!("“{wanted}”"));
    let text = wanted.to_lowercase();
    if text.is_empty() {
        page.blocks.push(Block::Note(Tone::Quiet, "Type a name, an address or label=value into the box above.".into()));
        return page;
    }
    let snapshot = &context.world.snapshot;
    let hosts = snapshot.hosts.values().filter(|host| super::hosts::finds(context, host, &text));
    let hosts = hosts
        .take(HITS_MAX)
        .map(|host| (host.uuid(), "host", Cell::new(name_of(&**host)).link(link(&["hosts", host.uuid()]))));
    let services = snapshot.services.values().filter(|service| name_of(&***service).to_lowercase().contains(&text));
    let services = services.take(HITS_MAX).map(|service| {
        let name = format!("{}/{}", service.stack_name().map_or("", |name| name), name_of(&**service));
        (service.id(), "service", Cell::new(name).link(link(&["services", service.id()])))
    });
    let rows: Vec<_> = hosts
        .chain(services)
        .map(|(id, kind, name)| Row { key: format!("{kind} {id}"), cells: vec![name, Cell::quiet(kind)] })
        .collect();
    let columns = vec![column("Name"), column("Kind")];
    page.blocks.push(Block::Table(Table {
        id: "found",
        caption: "Hosts and services".into(),
        columns,
        rows,
        empty: "None.",
    }));
    let containers = snapshot.containers.values().filter(|container| {
        name_of(&***container).to_lowercase().contains(&text)
            || container.primary_ip().is_some_and(|address| address.to_string() == text)
            || text.contains(['=', ':']) && super::has_label(context, container.labels(), &text)
    });
    let rows = containers.take(HITS_MAX).map(|container| container_row(context, container, None)).collect();
    page.blocks.push(Block::Table(Table {
        id: "containers",
        caption: "Containers".into(),
        columns: super::containers::columns(),
        rows,
        empty: "None.",
    }));
    page
}
