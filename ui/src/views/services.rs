//! Services, down to their containers.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Entity as _, Service, Value};

use super::containers::container_row;
use super::forms::filter;
use super::{Context, counts_cell, labels_cell, name_of, nothing, paged};
use crate::answers::Health;
use crate::page::{Block, Cell, Page, Row, Table, column, number};
use crate::query::{Query, link};
use crate::world::{Life, World};

/// What `state=` may ask for.
const STATES: [(&str, &str); 3] = [("", "all"), ("bad", "with problems"), ("good", "well")];

fn stack(service: &Service) -> &str {
    service.stack_name().map_or("", |name| name)
}

/// What people call the kinds of the wire.
fn kind(service: &Service) -> &str {
    match service.kind() {
        "" | "service" => "service",
        "loadBalancerService" => "balancer",
        "dnsService" => "alias",
        "externalService" => "external",
        other => other,
    }
}

/// Whether what answers for a service is no container of its own.
fn is_elsewhere(service: &Service) -> bool {
    matches!(kind(service), "alias" | "external")
}

/// Why fewer containers of a service run than are wanted; `None` if there are enough.
pub(super) fn below_scale(world: &World, service: &Service) -> Option<String> {
    let wanted = service.fields().int("scale").filter(|_| !is_elsewhere(service))?;
    let wanted = u32::try_from(wanted).ok()?;
    let counts = world.of_service(service.id());
    let runs = counts.all() - counts.of(Life::Stopped);
    (runs < wanted).then(|| format!("{runs} of {wanted} run"))
}

/// All services.
pub(crate) fn services(context: &Context, query: &Query) -> Page {
    let (wanted, state) = (query.get("q").to_lowercase(), query.get("state"));
    let world = &context.world;
    let is_wanted = |service: &&Arc<Service>| {
        let counts = world.of_service(service.id());
        let is_bad = counts.of(Life::Running) < counts.all() || below_scale(world, service).is_some();
        (state.is_empty() || (state == "bad") == is_bad)
            && (wanted.is_empty()
                || format!("{}/{}", stack(service), name_of(&***service)).to_lowercase().contains(&wanted))
    };
    let mut all: Vec<_> = world.snapshot.services.values().filter(is_wanted).collect();
    all.sort_by(|a, b| (stack(a), name_of(&***a), a.id()).cmp(&(stack(b), name_of(&***b), b.id())));
    let lead = format!(
        "{} of {} services in {} stacks",
        all.len(),
        world.snapshot.services.len(),
        world.snapshot.stacks.len()
    );
    let mut page = Page::new("services", "Services", lead);
    page.blocks.push(filter("services", query, &[("state", "Show", &STATES)]));
    let (range, pager) = paged(query, all.len());
    let rows = all[range].iter().map(|service| row(context, service)).collect();
    let columns = vec![
        column("Service"),
        column("Stack"),
        column("Kind"),
        number("Well"),
        number("Wanted"),
        column("Ports"),
        column("Virtual address"),
    ];
    let empty = "No service: change the filter, or see how services come about in docs/docker.md.";
    page.blocks.push(Block::Table(Table { id: "services", caption: "Table of services".into(), columns, rows, empty }));
    page.blocks.extend(pager);
    page.command = Some("scheduler ps".to_owned());
    page
}

fn row(context: &Context, service: &Service) -> Row {
    let ports: Vec<_> = model::entity::texts(service.fields(), "ports").map(|port| &**port).collect();
    let wanted = service
        .fields()
        .int("scale")
        .filter(|_| !is_elsewhere(service))
        .map_or_else(|| Cell::quiet("–"), |scale| Cell::new(scale.to_string()));
    let name = Cell::new(name_of(service)).link(link(&["services", service.id()]));
    let name = if service.is_sidekick() { name.note(format!("beside {}", service.primary_name())) } else { name };
    let counts = context.world.of_service(service.id());
    let well = if counts.all() == 0 && is_elsewhere(service) { Cell::quiet("–") } else { counts_cell(counts) };
    Row {
        key: service.id().to_string(),
        cells: vec![
            name,
            Cell::new(stack(service)),
            Cell::quiet(kind(service)),
            well,
            wanted,
            Cell::new(ports.join("  ")),
            Cell::new(service.fields().text("vip").map_or("", |vip| vip)),
        ],
    }
}

/// One service and its containers.
pub(crate) fn service(context: &Context, query: &Query, id: &str, health: &[Health]) -> Page {
    let world = &context.world;
    let Some(service) = world.snapshot.services.get(id) else {
        return nothing("services", "There is no such service, or it is gone.");
    };
    let own = format!("{}/{}", stack(service), name_of(&**service));
    let mut page = Page::new("services", &own, "");
    let Row { cells, .. } = row(context, service);
    let [_, _, kind, well, wanted, ports, vip] = <[Cell; 7]>::try_from(cells).unwrap_or_default();
    let or_none = |cell: Cell| if cell.text.is_empty() { Cell::quiet("none") } else { cell };
    let names = format!("{}.{}.rancher.internal", name_of(&**service), stack(service));
    page.blocks.push(Block::Facts(
        "facts",
        "About this service".into(),
        vec![
            ("Well", well),
            ("Wanted", wanted),
            ("Kind", kind),
            ("Ports", or_none(ports)),
            ("Virtual address", or_none(vip)),
            ("Name in DNS", Cell::new(&names).link(format!("/ui/names?name={}", crate::query::part(&names)))),
            ("Labels", labels_cell(service.labels(), &context.hidden)),
        ],
    ));
    if self::kind(service) == "balancer" {
        super::balancer::add(context, &mut page, service);
    }
    let health: HashMap<&str, &Health> = health.iter().map(|health| (&*health.uuid, health)).collect();
    let mut members: Vec<_> = service.members().iter().filter_map(|uuid| world.snapshot.containers.get(uuid)).collect();
    members.sort_by_key(|container| (Life::of(container) != Life::Unhealthy, name_of(&***container), container.uuid()));
    let (range, pager) = paged(query, members.len());
    let rows = members[range]
        .iter()
        .map(|container| container_row(context, container, health.get(&**container.uuid()).copied()))
        .collect();
    let caption = format!("Containers · {}", members.len());
    page.blocks.push(Block::Table(Table {
        id: "containers",
        caption,
        columns: super::containers::columns(),
        rows,
        empty: "No container.",
    }));
    page.blocks.extend(pager);
    page.blocks.push(Block::Table(links(context, service, &own)));
    page.command = super::command(&["agent", "health", &own]);
    page
}

/// Links of a service to others and from others.
fn links(context: &Context, service: &Service, own: &str) -> Table {
    let to = service.links().iter().map(|(name, alias)| Row {
        key: format!("to {name}"),
        cells: vec![Cell::new("uses"), Cell::new(name), Cell::quiet(alias.as_str().unwrap_or_default())],
    });
    let from =
        context.world.snapshot.services.values().filter(|other| other.links().get(own).is_some()).map(|other| Row {
            key: format!("from {}", other.id()),
            cells: vec![
                Cell::new("used by"),
                Cell::new(format!("{}/{}", stack(other), name_of(&**other))).link(link(&["services", other.id()])),
                Cell::quiet(other.links().get(own).and_then(Value::as_str).unwrap_or_default()),
            ],
        });
    let rows = to.chain(from).take(super::ROWS_MAX).collect();
    let columns = vec![column("Direction"), column("Service"), column("Called")];
    Table { id: "links", caption: "Links".into(), columns, rows, empty: "No links, to or from." }
}
